"""`calibrate`: what a server can do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import click
import msgspec

from xds_control.admin.calibrate import CalibrationError, Target, calibrate, models_of
from xds_control.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_UNREACHABLE, fail, read_policy
from xds_control.policy.capacity import Calibration
from xds_control.weights.calibrate import Report


@click.command("calibrate")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--model", default=None, help="Model to ask for; the first that the server lists when absent.")
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="Take the load from `capacity.calibrate`."
)
@click.option("--timeout-s", type=float, default=None, help="Time limit of the load of one server.")
@click.option("--concurrency", default=None, help="Numbers of requests at once, rising, such as 1,4,16.")
@click.option("--header", "headers", multiple=True, help="Header to send, `name: value`; may be repeated.")
@click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
def command(
    urls: tuple[str, ...],
    model: str | None,
    policy_path: Path | None,
    timeout_s: float | None,
    concurrency: str | None,
    headers: tuple[str, ...],
    output: str,
) -> None:
    """Run a short standard load against OpenAI-compatible servers, one after another, and print what they can do.

    The column `capacity` is relative to the first server: write it into the policy as the endpoint's `capacity`.

    Example: xds-control calibrate http://10.0.0.11:8000 http://10.0.0.12:8000
    """
    load = read_policy(policy_path).capacity.calibrate if policy_path is not None else Calibration()
    load = _changed(load, timeout_s, concurrency)
    pairs = tuple(_header(text) for text in headers)
    reports: list[tuple[str, str, Report]] = []
    for url in urls:
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            base = f"http://{base}"
        try:
            reports.append(asyncio.run(_measure(base, model, load, pairs)))
        except CalibrationError as error:
            fail(error, EXIT_UNREACHABLE)
    if output == "json":
        click.echo(json.dumps([_as_dict(*r, reports[0][2], load) for r in reports], indent=2))
    else:
        for line in _table(reports, load):
            click.echo(line)
    if not all(report.ok for _, _, report in reports):
        fail("some requests failed, the figures are not complete", EXIT_FAILED)


async def _measure(
    base: str, model: str | None, load: Calibration, headers: tuple[tuple[str, str], ...]
) -> tuple[str, str, Report]:
    async with aiohttp.ClientSession() as session:
        name = model
        if name is None:
            listed = await models_of(base, session, dict(headers))
            if not listed:
                raise CalibrationError(f"{base} lists no model; name one with --model")
            name = listed[0]
        return base, name, await calibrate(Target(base, name, headers), load, session=session)


def _changed(load: Calibration, timeout_s: float | None, concurrency: str | None) -> Calibration:
    fields = msgspec.to_builtins(load)
    if timeout_s is not None:
        fields["timeout_s"] = timeout_s
    if concurrency is not None:
        fields["concurrency"] = [part.strip() for part in concurrency.split(",")]
    try:
        return msgspec.convert(fields, Calibration, strict=False)
    except msgspec.ValidationError as error:
        fail(str(error), EXIT_BAD_INPUT)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        fail(f"--header {text!r} is not `name: value`", EXIT_BAD_INPUT)
    return name.strip(), value.strip()


def _relative(report: Report, first: Report, load: Calibration) -> float | None:
    own, other = report.rates(0.0, load), first.rates(0.0, load)
    if own is None or other is None or own.capacity is None or other.capacity is None:
        return None
    return own.capacity / other.capacity


def _as_dict(url: str, model: str, report: Report, first: Report, load: Calibration) -> dict[str, object]:
    return {
        "url": url,
        "model": model,
        "capacity": _rounded(_relative(report, first, load)),
        "prefill_tps": _rounded(report.prefill_tps),
        "decode_tps": _rounded(report.decode_tps),
        "saturated": report.saturated,
        "levels": [
            {"concurrency": x.concurrency, "tokens_per_s": _rounded(x.tokens_per_s), "tpot_s": _rounded(x.tpot_s)}
            for x in report.levels
        ],
        "requests": report.requests,
        "failed": report.failed,
        "errors": report.errors,
        "seconds": round(report.seconds, 3),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _table(reports: list[tuple[str, str, Report]], load: Calibration) -> list[str]:
    rows = [("server", "model", "capacity", "prefill tok/s", "decode tok/s", "at", "TPOT ms", "failed")]
    for url, model, report in reports:
        relative = _relative(report, reports[0][2], load)
        best = max(report.levels, key=lambda x: x.tokens_per_s, default=None)
        rows.append(
            (
                url,
                model,
                "–" if relative is None else f"{relative:.2f}",
                "–" if report.prefill_tps is None else f"{report.prefill_tps:.0f}",
                "–" if best is None else f"{best.tokens_per_s:.0f}" + ("" if report.saturated else "+"),
                "–" if best is None else str(best.concurrency),
                "–" if best is None else f"{best.tpot_s * 1e3:.1f}",
                f"{report.failed}/{report.requests}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
