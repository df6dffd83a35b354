"""Runs files of endpoint-picker cases: `python -m tests.protocol.epp_cases FILE...`

Cases about requests and answers run twice: on the pure core (decider, stream and picker) and over a real gRPC
channel to the processor's own server. A case counts once. A case whose feature this product does not have is
listed with the reason. The last line is `N passed, N failed, N skipped`; the exit code is 1 when something failed,
2 when a file cannot be read. `--only ID` runs some cases, `--backend core|grpc` one of the two.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml

from tests.protocol import epp_answers, epp_concurrency, epp_conformance, epp_parts, epp_requests
from tests.protocol.epp_peer import Core, Failed, Grpc
from tests.protocol.epp_requests import Backend
from tests.protocol.epp_world import Unsupported

Handler = Callable[[Mapping[str, Any], Mapping[str, Any], Backend], Awaitable[None]]

BOTH: dict[str, Handler] = {
    "pick": epp_requests.one_request,
    "reject": epp_requests.one_request,
    "passthrough": epp_requests.one_request,
    "headers": epp_requests.one_request,
    "protocol": epp_requests.protocol,
    "chunking": epp_requests.chunking,
    "candidates": epp_requests.candidates,
    "attribute": epp_requests.attribute,
    "distribution": epp_requests.distribution,
    "session": epp_requests.sessions,
    "sequence": epp_requests.sequence,
    "response": epp_answers.response,
    "usage": epp_answers.usage,
    "response_rewrite": epp_answers.response_rewrite,
}
"""Kinds that run on both backends."""

ONCE: dict[str, Handler] = {
    "score": epp_parts.score,
    "saturation": epp_parts.saturation,
    "scrape": epp_parts.scrape,
    "table": epp_parts.table,
    "index": epp_parts.index,
    "conformance": epp_conformance.conformance,
    "concurrency": epp_concurrency.concurrency,
}
"""Kinds about one part: there is nothing to send over a channel."""

LIMIT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """state: passed, failed or skipped; text: why."""

    id: str
    state: str
    text: str = ""


async def run_case(case: Mapping[str, Any], fixtures: Mapping[str, Any], backends: tuple[Backend, ...]) -> Outcome:
    """Runs one case on all backends that it applies to."""
    identifier = str(case.get("id", "?"))
    kind = str(case.get("kind", ""))
    handler = BOTH.get(kind) or ONCE.get(kind)
    if handler is None:
        return Outcome(identifier, "skipped", f"kind {kind!r} is not known")
    for backend in backends if kind in BOTH else (Core,):
        try:
            await asyncio.wait_for(handler(case, fixtures, backend), LIMIT_S)
        except Unsupported as reason:
            return Outcome(identifier, "skipped", str(reason))
        except Failed as failure:
            return Outcome(identifier, "failed", f"[{backend.name}] {failure}")
        except TimeoutError:
            return Outcome(identifier, "failed", f"[{backend.name}] took longer than {LIMIT_S:.0f} s")
        except Exception as problem:  # noqa: BLE001 - a case that breaks the runner has failed
            return Outcome(identifier, "failed", f"[{backend.name}] {type(problem).__name__}: {problem}")
    return Outcome(identifier, "passed")


def load(path: Path) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Cases and fixtures of a file."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(document, list):
        return [case for case in document if isinstance(case, Mapping)], {}
    return list(document.get("cases") or []), dict(document.get("fixtures") or {})


async def run_all(
    cases: list[Mapping[str, Any]], fixtures: Mapping[str, Any], backends: tuple[Backend, ...]
) -> list[Outcome]:
    """All cases, one after the other."""
    return [await run_case(case, fixtures, backends) for case in cases]


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.epp_cases", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--backend", choices=("core", "grpc"))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    backends: tuple[Backend, ...] = (Core, Grpc)
    if options.backend:
        backends = (Core,) if options.backend == "core" else (Grpc,)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in options.files:
        try:
            cases, fixtures = load(path)
        except (OSError, yaml.YAMLError) as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            return 2
        chosen = [case for case in cases if not options.only or case.get("id") in options.only]
        for outcome in asyncio.run(run_all(chosen, fixtures, backends)):
            counts[outcome.state] += 1
            if outcome.state == "failed":
                print(f"FAIL {outcome.id}: {outcome.text}")
            elif outcome.state == "skipped":
                print(f"skip {outcome.id}: {outcome.text}")
            elif options.verbose:
                print(f"ok   {outcome.id}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
