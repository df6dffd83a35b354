"""Runs files of protocol cases on the pure core and over gRPC: `python -m tests.protocol.xds_cases FILE...`

The header of `cases/xds_cases.yaml` says what a case means. The last line is `N passed, N failed`; the exit code is
1 when something failed, 2 when a file cannot be read. `--repeat N` runs everything N times, `--only ID` some cases.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml

from tests.protocol.xds_backends import CoreBackend, GrpcBackend, World
from tests.protocol.xds_steps import Failed, Runner

POLICY_CHECKS = Path(__file__).with_name("xds_policy.yaml")
"""Steps for policy entries that a file gives in words only, by id and title."""

AT_ONCE = 8
BACKENDS: dict[str, Any] = {"core": CoreBackend, "grpc": GrpcBackend}


@dataclass(frozen=True)
class Case:
    """One case and the section it stands in."""

    id: str
    title: str
    section: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    case: Case
    backend: str
    failure: str | None


def load(path: Path) -> tuple[list[Case], list[str]]:
    """The cases of a file that can be run, and the ids of those given in words only."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    sections: Mapping[str, Any] = document if isinstance(document, Mapping) else {"must": document}
    known = _policy_checks() if path != POLICY_CHECKS else {}
    cases: list[Case] = []
    words: list[str] = []
    for section, entries in sections.items():
        if section == "invariants" or not isinstance(entries, list):
            continue
        for entry in entries:
            if not isinstance(entry, Mapping) or "id" not in entry:
                continue
            case = Case(str(entry["id"]), str(entry.get("title", "")), str(section), entry)
            if "steps" in entry:
                cases.append(case)
            elif (case.id, case.title) in known:
                cases += [Case(c.id, c.title, section, c.body) for c in known[(case.id, case.title)]]
            else:
                words.append(case.id)
    return cases, words


def _policy_checks() -> dict[tuple[str, str], list[Case]]:
    found: dict[tuple[str, str], list[Case]] = {}
    for case in load(POLICY_CHECKS)[0]:
        found.setdefault((str(case.body["of"]), str(case.body["policy"])), []).append(case)
    return found


async def run_case(case: Case, backend: str) -> str | None:
    """Why the case failed, None when it passed."""
    runner = Runner(BACKENDS[backend](World()))
    try:
        await asyncio.wait_for(runner.run(case.body), 60)
    except Failed as failure:
        return str(failure)
    except TimeoutError:
        return "took longer than 60 s"
    except Exception as problem:  # noqa: BLE001 - a case that breaks the runner has failed
        return f"{type(problem).__name__}: {problem}"
    return None


async def run_all(cases: Iterable[Case], backends: Iterable[str] = ("core", "grpc")) -> list[Outcome]:
    """Runs the cases on each backend, some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case, backend: str) -> Outcome:
        async with gate:
            return Outcome(case, backend, await run_case(case, backend))

    return list(await asyncio.gather(*(one(c, b) for c in cases for b in backends)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.xds_cases", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--backend", choices=sorted(BACKENDS), action="append")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    cases: list[Case] = []
    for path in options.files:
        try:
            found, words = load(path)
        except (OSError, yaml.YAMLError) as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            return 2
        cases += [c for c in found if not options.only or c.id in options.only]
        if words:
            print(f"{path}: given in words only, not run: {', '.join(words)}")
    passed = failed = 0
    for _ in range(options.repeat):
        for outcome in asyncio.run(run_all(cases, options.backend or ("core", "grpc"))):
            if outcome.failure is None:
                passed += 1
                if options.verbose:
                    print(f"ok   {outcome.case.id} [{outcome.backend}] {outcome.case.title}")
            else:
                failed += 1
                print(f"FAIL {outcome.case.id} [{outcome.backend}] {outcome.case.title}\n     {outcome.failure}")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(main())
