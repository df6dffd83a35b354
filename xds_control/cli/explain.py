"""`explain` and `requests`: why a request went where it went."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.output import (
    clock,
    counted,
    emit,
    facts,
    grid,
    heading,
    limit_option,
    number,
    optional,
    output_option,
    seconds,
    size,
)
from xds_control.proto import admin_pb2 as pb

PATH = "/v1/chat/completions"


@click.command()
@click.argument("request_id", default="")
@click.option("--path", default=PATH, show_default=True, help="Path of a request to try.")
@click.option("--method", default="POST", show_default=True, help="Its method.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header of it; may be repeated."
)
@click.option(
    "--body", type=click.Path(path_type=Path, allow_dash=True), help="Its body: a file, or - for standard input."
)
@click.option("--data", "-d", help="Its body, given here.")
@click.option("--shadow", is_flag=True, help="By the shadow policy too.")
@output_option
@admin_options
def explain(
    client: AdminClient,
    request_id: str,
    path: str,
    method: str,
    headers: Sequence[str],
    body: Path | None,
    data: str | None,
    shadow: bool,
    output: str,
) -> None:
    """Explain a recorded request by its id, or try one: rule, pool, keys, candidates with their costs.

    Nothing is sent to any engine. The id is in the response header x-xds-control-decision, where policy lets it out.

    Examples:

      xds-control explain processor-0-692b7c3d0002f

      xds-control explain -d '{"model": "llama", "messages": [{"role": "user", "content": "hi"}]}'
    """
    request = pb.ExplainRequestRequest(shadow=shadow)
    if request_id:
        if body is not None or data is not None or headers:
            raise click.UsageError("give either the id of a recorded request, or a request to try")
        request.request_id = request_id
    else:
        if body is None and data is None:
            raise click.UsageError("give the id of a recorded request, or a body to try (--body FILE, --data JSON)")
        request.request.CopyFrom(_request(method, path, headers, body, data))
    answer = client.call("ExplainRequest", request)
    emit(output, answer, lambda: _parts(answer))


def _request(method: str, path: str, headers: Sequence[str], body: Path | None, data: str | None) -> pb.HttpRequest:
    made = pb.HttpRequest(method=method.upper(), path=path)
    made.headers["content-type"] = "application/json"
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{header!r} is not `name: value`", param_hint="--header")
        made.headers[name.strip().lower()] = value.strip()
    if data is not None:
        made.body = data.encode()
    elif body is not None:
        try:
            made.body = sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()
        except OSError as error:
            raise click.FileError(str(body), error.strerror or "cannot be read") from error
    return made


def _parts(answer: Any) -> Iterable[RenderableType]:
    yield from request_parts(answer.explanation)
    if answer.HasField("shadow"):
        yield Text("")
        yield heading("By the shadow policy")
        yield from request_parts(answer.shadow)


def request_parts(one: Any) -> Iterable[RenderableType]:
    """One request: what was read, what was decided, among whom, and how it ended."""
    read, decision = one.facts, one.decision
    yield Text(one.why, style="bold")
    tokens = f"{read.prompt_tokens}{'' if read.tokens_exact else ' (estimate)'}"
    session = f"{read.session_key} from {read.session_source}" if read.session_key else ""
    prefix = f"{counted(read.prefix_blocks, 'block')}, {read.prefix_key}" if read.prefix_blocks else ""
    media = f"{read.media_count}, {size(read.media_bytes)}" if read.media_count else ""
    yield facts(
        [
            ("id", one.id),
            ("when", clock(one.at_unix_s) if one.at_unix_s else ""),
            ("processor", one.processor),
            ("kept because", one.notable),
            ("API", read.api or "unknown path"),
            ("problem", f"{read.problem}: {read.detail}" if read.problem else ""),
            ("model", f"{read.model} → {decision.model}" if decision.model not in ("", read.model) else read.model),
            ("LoRA", read.lora),
            ("prompt tokens", tokens if read.prompt_bytes or read.prompt_tokens else ""),
            ("output tokens", f"{read.expected_output_tokens} expected" if read.expected_output_tokens else ""),
            ("streamed", "yes" if read.stream else "no"),
            ("media", media),
            ("tools", str(read.tools) if read.tools else ""),
            ("session", session),
            ("prefix", prefix),
            ("tags", ", ".join(read.tags)),
            ("tenant", decision.tenant or read.tenant),
            ("class", decision.service_class or read.service_class),
            ("rule", decision.rule or "none matched"),
            ("model route", decision.route),
            ("pool", decision.pool or "-"),
            ("decision", decision.reason),
            ("answered", str(decision.status) if decision.status else ""),
            ("endpoints", ", ".join(decision.destinations) or "chosen by Envoy's weights"),
            ("prefill at", decision.prefill),
            ("believed cached", f"{decision.matched_tokens} tokens" if decision.matched_tokens else ""),
            ("expected TTFT", seconds(decision.expected_ttft_s) if decision.HasField("expected_ttft_s") else ""),
            ("headers set", "  ".join(f"{name}: {value}" for name, value in sorted(decision.headers.items()))),
        ]
    )
    if one.candidates:
        yield Text("")
        yield heading(f"Candidates ({len(one.candidates)} of {one.endpoints} endpoints)")
        yield _candidates(one)
    if one.HasField("outcome"):
        yield Text("")
        yield heading("Outcome")
        yield _outcome(one.outcome)


def _candidates(one: Any) -> RenderableType:
    table = grid(
        "|ENDPOINT|>COST|>TTFT|>WAIT|?>PREFILL|??>KV WAIT|?>OTHERS|?>DECODE|"
        "??>MEMORY|??>FIXED|>CACHED|>IN FLIGHT|???>SPEED|~OUT BECAUSE"
    )
    chosen = set(one.decision.destinations)
    for candidate in one.candidates:
        out = bool(candidate.excluded)
        parts = (
            *(candidate.cost_s, candidate.expected_ttft_s, candidate.wait_s, candidate.prefill_s, candidate.kv_wait_s),
            *(candidate.interference_s, candidate.decode_s, candidate.memory_s, candidate.fixed_s),
        )
        table.add_row(
            "*" if candidate.endpoint in chosen else "",
            candidate.endpoint,
            *("-" if out else seconds(part) for part in parts),
            str(candidate.matched_tokens),
            number(candidate.in_flight),
            number(candidate.speed),
            candidate.excluded,
            style="dim" if out else "",
        )
    return table


def _outcome(ended: Any) -> RenderableType:
    return facts(
        [
            ("ended", f"{ended.kind} ({ended.status})" if ended.status else ended.kind),
            ("at", ended.endpoint),
            ("attempts", str(ended.attempts)),
            ("tokens", _tokens(ended)),
            ("time to first token", seconds(ended.ttft_s) if ended.HasField("ttft_s") else ""),
            ("whole", seconds(ended.e2e_s) if ended.HasField("e2e_s") else ""),
            ("before the engine", seconds(ended.queue_s) if ended.HasField("queue_s") else ""),
        ]
    )


def _tokens(ended: Any) -> str:
    if not ended.HasField("prompt_tokens"):
        return ""
    cached = f" ({ended.cached_tokens} cached)" if ended.HasField("cached_tokens") else ""
    out = f", {ended.completion_tokens} out" if ended.HasField("completion_tokens") else ""
    return f"{ended.prompt_tokens} in{cached}{out}"


@click.command()
@click.option("--slow", "notable", flag_value="slow", multiple=True, help="Only slow ones.")
@click.option("--failed", "notable", flag_value="failed", multiple=True, help="Only failed ones.")
@click.option("--fell-back", "notable", flag_value="fell-back", multiple=True, help="Only those that left their pick.")
@click.option("--rejected", "notable", flag_value="rejected", multiple=True, help="Only refused ones.")
@click.option("--pool", "-p", default="", help="Only of this pool.")
@click.option("--endpoint", "-e", default="", help="Only those that ended at this endpoint.")
@click.option("--processor", default="", help="Only those of this processor.")
@limit_option(30)
@output_option
@admin_options
def requests(
    client: AdminClient,
    notable: Sequence[str],
    pool: str,
    endpoint: str,
    processor: str,
    limit: int,
    output: str,
) -> None:
    """List recent requests that the processors kept: sampled ones and notable ones. No prompt text is kept.

    Example: xds-control requests --slow
    """
    request = pb.ListRequestsRequest(limit=limit, notable=notable, pool=pool, endpoint=endpoint, processor=processor)
    answer = client.call("ListRequests", request)
    emit(output, answer.requests, lambda: [_requests(answer.requests)])
    if answer.unreachable:
        click.echo(f"no answer from {', '.join(answer.unreachable)}: their requests are missing", err=True)


def _requests(found: Sequence[Any]) -> RenderableType:
    if not found:
        return Text(
            "no such request is kept: kept are a sample and those that were slow, failed, fell back or were refused "
            "(`processors.requests` in the policy); `explain` still finds the last ones by their ids"
        )
    table = grid("TIME|ID|KEPT|??POOL|??MODEL|???CLASS|??>PROMPT|?DECISION|?PICKED|ENDED AT|ENDED|>TTFT|>WHOLE")
    for one in found:
        ended = one.outcome
        known = one.HasField("outcome")
        table.add_row(
            clock(one.at_unix_s),
            one.id,
            one.notable or "-",
            one.decision.pool or "-",
            one.facts.model or "-",
            one.decision.service_class or "-",
            str(one.facts.prompt_tokens),
            one.decision.reason,
            one.decision.destinations[0] if one.decision.destinations else "-",
            (ended.endpoint or "-") if known else "runs",
            f"{ended.kind} {ended.status or ''}".strip() if known else "-",
            seconds(optional(ended, "ttft_s")),
            seconds(optional(ended, "e2e_s")),
        )
    return table
