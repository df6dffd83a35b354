"""Cases that send requests: picks, refusals, bodies, headers, subsets, sessions, prefix sequences."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.protocol import epp_peer as peer
from tests.protocol.epp_peer import Core, Exchange, Failed, Grpc
from tests.protocol.epp_world import POOL, Unsupported, World, address, encode_token, request_body, request_headers
from xds_control.policy import headers as names

Backend = type[Core] | type[Grpc]
PIECE = 62_000
PROSE = frozenset({"note", "improve", "anchor_shape", "anchor_does", "order_note"})


@dataclass
class Answer:
    """What came back for one request."""

    replies: list[ext_proc.ProcessingResponse]
    exchange: Exchange
    sent_headers: dict[str, str]
    sent_body: bytes
    early: int = 0
    header_only: bool = False
    after: list[ext_proc.ProcessingResponse] = field(default_factory=list)

    @property
    def immediate(self) -> ext_proc.ImmediateResponse | None:
        for reply in self.replies:
            if reply.WhichOneof("response") == "immediate_response":
                return reply.immediate_response
        return None

    @property
    def headers_reply(self) -> ext_proc.ProcessingResponse:
        for reply in self.replies:
            if reply.WhichOneof("response") == "request_headers":
                return reply
        raise Failed(f"no answer to the request headers: {self.describe()}")

    @property
    def destinations(self) -> list[str]:
        """The ordered list; header and metadata must agree."""
        reply = self.headers_reply
        header = peer.set_headers(reply).get(names.DESTINATION, "")
        told = peer.reply_metadata(reply).get(names.LB_NAMESPACE, {}).get(names.DESTINATION, "")
        if header != told:
            raise Failed(f"header says {header!r}, metadata {told!r}")
        if not header:
            raise Failed(f"no endpoint was named: {self.describe()}")
        return header.split(",")

    @property
    def body(self) -> bytes:
        """The body as forwarded."""
        return b"".join(body for body, _ in peer.pieces(self.replies, "request_body"))

    def describe(self) -> str:
        immediate = self.immediate
        if immediate is not None:
            return f"status {immediate.status.code} {immediate.body[:200]!r}"
        kinds = [reply.WhichOneof("response") for reply in self.replies]
        return f"replies {kinds} ended={self.exchange.ended} error={self.exchange.error!r}"

    def upstream_headers(self) -> dict[str, str]:
        """Headers as the engine gets them: ours applied to the client's."""
        reply = self.headers_reply
        found = dict(self.sent_headers)
        for name in peer.removed_headers(reply):
            found.pop(name.lower(), None)
        found.update({name.lower(): value for name, value in peer.set_headers(reply).items()})
        return found


async def ask(
    world: World,
    exchange: Exchange,
    case: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    body: Sequence[bytes] | None = None,
) -> Answer:
    """Sends one request and takes the answers to it."""
    headers = request_headers(case, world.fixtures, extra)
    filter_metadata = None
    if case.get("subset") is not None:
        filter_metadata = {names.SUBSET_HINT_NAMESPACE: {names.DESTINATION_SUBSET: case["subset"]}}
    header_only = bool(case.get("header_eos"))
    if header_only:
        headers.pop("content-length", None)
    replies = list(await exchange.send(peer.request_headers(headers, header_only, filter_metadata), expect=header_only))
    early = len(replies)
    sent = b""
    if not header_only:
        chunks = list(body if body is not None else request_body(case, world.fixtures))
        for number, chunk in enumerate(chunks):
            end = number == len(chunks) - 1
            sent += chunk
            found = await exchange.send(peer.request_body(chunk, end), expect=end)
            replies += found
            if not end:
                early += len(found)
    return Answer(replies, exchange, headers, sent, early, header_only)


def check(world: World, case: Mapping[str, Any], answer: Answer) -> None:
    """Holds an answer against the case's expectations."""
    expect = dict(case.get("expect") or {})
    unknown = expect.keys() - _CHECKS.keys() - PROSE
    if unknown:
        raise Unsupported(f"expectation not understood: {', '.join(sorted(unknown))}")
    for name, wanted in expect.items():
        if name in _CHECKS:
            _CHECKS[name](world, case, answer, wanted)
    if "status" not in expect and not answer.header_only:
        _routed_well(answer)


def _routed_well(answer: Answer) -> None:
    """The form of every route answer."""
    reply = answer.headers_reply
    if not reply.request_headers.response.clear_route_cache:
        raise Failed("clear_route_cache is not set")
    parts = peer.pieces(answer.replies, "request_body")
    if not parts:
        raise Failed("the body was not sent on")
    if any(len(body) > PIECE for body, _ in parts):
        raise Failed(f"a piece is larger than {PIECE} bytes")
    if [end for _, end in parts] != [False] * (len(parts) - 1) + [True]:
        raise Failed("end_of_stream is not on the last piece alone")
    length = answer.upstream_headers().get("content-length")
    if length != str(len(answer.body)):
        raise Failed(f"content-length is {length}, the body has {len(answer.body)} bytes")
    if answer.replies[0].WhichOneof("response") != "request_headers":
        raise Failed("the answer to the headers does not come first")


def _same(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise Failed(f"{what}: {found!r}, wanted {wanted!r}")


def _endpoint(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(answer.destinations[0], wanted, "endpoint")


def _any_of(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if answer.destinations[0] not in wanted:
        raise Failed(f"endpoint {answer.destinations[0]} is none of {wanted}")


def _none_of(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if set(answer.destinations) & set(wanted if isinstance(wanted, list) else [wanted]):
        raise Failed(f"endpoint {answer.destinations} should not be among {wanted}")


def _body_model(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    found = json.loads(answer.body)
    _same(found.get("model"), wanted, "model in the body")
    before = json.loads(answer.sent_body)
    before["model"] = found["model"]
    _same(found, before, "the rest of the body")


def _body_json(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(json.loads(answer.body), wanted, "body")


def _body_raw(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(answer.body, str(wanted).encode(), "body")


def _unchanged(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if bool(wanted) != (answer.body == answer.sent_body):
        raise Failed(f"body {answer.body[:200]!r} against {answer.sent_body[:200]!r}")


def _early(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(answer.early, wanted, "replies before the last chunk")


def _metric(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    for name, value in wanted.items():
        if name == "ready_endpoints":
            assert world.state.picker is not None
            slots = world.state.picker.picker.pool(POOL)
            _same(slots.eligible_bits.bit_count() if slots else 0, value, "ready endpoints")
        elif name == "requests_total":
            decision = world.last
            facts: dict[str, Any] = {
                "model": decision.original_model or decision.model,
                "target": decision.model,
                "priority": world.priorities.get(decision.service_class, 0),
                "value": len(world.decisions),
            }
            for label, content in value.items():
                if label not in facts:
                    raise Unsupported(f"metric label {label}")
                _same(facts[label], content, f"{name}.{label}")
        else:
            raise Unsupported(f"metric {name}")


def _response_phase(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if "ends after the request" in str(wanted) and not answer.exchange.ended:
        raise Failed("the stream goes on after the request's answers")


def _keeps(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    for name in [wanted] if isinstance(wanted, str) else wanted:
        _same(answer.upstream_headers().get(name), answer.sent_headers.get(name), f"header {name}")


def _contains(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    found = answer.upstream_headers()
    for name, value in wanted.items():
        _same(found.get(name.lower()), str(value), f"header {name} on the way to the engine")


def _lacks(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    found = answer.upstream_headers()
    present = [name for name in wanted if name.lower() in found]
    if present:
        raise Failed(f"headers that reach the engine: {present}")


def _removes(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    missing = set(wanted) - peer.removed_headers(answer.headers_reply)
    if missing:
        raise Failed(f"not in remove_headers: {sorted(missing)}")


def _content_length(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    length = answer.upstream_headers().get("content-length")
    _same(length, str(len(answer.body)) if str(wanted).startswith("<") else str(wanted), "content-length")


def _score_map(answer: Answer) -> dict[str, float]:
    found = peer.reply_metadata(answer.headers_reply).get(names.LB_NAMESPACE, {}).get(names.DESTINATION_SCORES)
    return dict(found or {})


def _score_keys(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(sorted(_score_map(answer)), sorted(wanted), "scores")


def _score_signs(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if bool(wanted) != all(value >= 0 for value in _score_map(answer).values()):
        raise Failed(f"scores {_score_map(answer)}")


def _scores_absent(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if wanted and _score_map(answer):
        raise Failed(f"scores {_score_map(answer)}")


def _status(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    immediate = answer.immediate
    if immediate is None:
        raise Failed(f"was not refused: {answer.describe()}")
    _same(immediate.status.code, wanted, "status")


def _refusal_body(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    immediate = answer.immediate
    if immediate is None or str(wanted).encode() not in immediate.body:
        raise Failed(f"body {immediate.body if immediate else None!r} lacks {wanted!r}")


def _refusal_headers(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    for reply in answer.replies:
        if reply.WhichOneof("response") == "immediate_response":
            found = peer.set_headers(reply)
            for name, value in wanted.items():
                _same(found.get(name), value, f"header {name}")
            return
    raise Failed("was not refused")


def _order(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    kinds: list[str] = []
    for reply in answer.replies:
        kind = str(reply.WhichOneof("response"))
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    _same(kinds, list(wanted), "order of the answers")


def _tail(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if wanted and (answer.after or answer.exchange.error):
        raise Failed(f"something came after the end: {len(answer.after)} replies, error {answer.exchange.error!r}")


def _first_eos(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    if bool(wanted) != bool(answer.destinations):
        raise Failed(answer.describe())


def _fallbacks(world: World, case: Mapping[str, Any], answer: Answer, wanted: Any) -> None:
    _same(answer.destinations, list(wanted), "ordered list")


_CHECKS = {
    "endpoint": _endpoint,
    "endpoint_any_of": _any_of,
    "endpoint_not": _none_of,
    "endpoint_none_of": _none_of,
    "endpoints": _fallbacks,
    "body_model": _body_model,
    "body_json": _body_json,
    "body": _body_json,
    "body_raw": _body_raw,
    "body_unchanged": _unchanged,
    "replies_before_last_chunk": _early,
    "metric": _metric,
    "response_phase": _response_phase,
    "keeps_header": _keeps,
    "set_headers_contains": _contains,
    "set_headers_lacks": _lacks,
    "remove_headers": _removes,
    "content_length": _content_length,
    "scores_keys": _score_keys,
    "scores_non_negative": _score_signs,
    "scores_absent": _scores_absent,
    "status": _status,
    "body_contains": _refusal_body,
    "headers": _refusal_headers,
    "order": _order,
    "tail_ignored": _tail,
    "endpoint_from_first_eos": _first_eos,
}


class Session:
    """A world on a backend, started and stopped."""

    def __init__(self, case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
        self.world = World(case, fixtures)
        self.backend = backend(self.world)

    async def __aenter__(self) -> Session:
        await self.backend.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.stop()

    async def request(
        self, case: Mapping[str, Any], extra: Mapping[str, Any] | None = None, body: Sequence[bytes] | None = None
    ) -> Answer:
        """One request on a stream of its own, which is then closed."""
        exchange = await self.backend.open()
        try:
            return await ask(self.world, exchange, case, extra, body)
        finally:
            await exchange.close()


async def one_request(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kinds pick, reject, passthrough, headers."""
    async with Session(case, fixtures, backend) as session:
        check(session.world, case, await session.request(case))


async def protocol(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind protocol: an exact order of messages."""
    async with Session({"pool": [[1, 0, 0.1, []]], **case}, fixtures, backend) as session:
        exchange = await session.backend.open()
        headers = request_headers(case, fixtures)
        answer = Answer([], exchange, headers, b"")
        ended = False
        for step in case["send"]:
            if step == "headers":
                found = await exchange.send(peer.request_headers(headers, False), expect=False)
            elif step == "trailers":
                found = await exchange.send(
                    ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()), expect=not ended
                )
                ended = True
            elif isinstance(step, Mapping) and "body" in step:
                end = bool(step.get("eos", False))
                if not ended:
                    answer.sent_body += str(step["body"]).encode()
                found = await exchange.send(
                    peer.request_body(str(step["body"]).encode(), end), expect=end and not ended
                )
                if ended:
                    answer.after += found
                    found = []
                ended = ended or end
            else:
                raise Unsupported(f"step {step!r}")
            answer.replies += found
        expect = dict(case.get("expect") or {})
        if "trailers" in case["send"]:
            # The body ends with the trailers, so no piece carries end_of_stream.
            _no_eos(answer)
            for name, wanted in expect.items():
                if name in _CHECKS:
                    _CHECKS[name](session.world, case, answer, wanted)
                elif name not in PROSE:
                    raise Unsupported(f"expectation {name}")
            _same(answer.body, answer.sent_body, "body")
        else:
            check(session.world, case, answer)
        await exchange.close()


def _no_eos(answer: Answer) -> None:
    if any(end for _, end in peer.pieces(answer.replies, "request_body")):
        raise Failed("a piece ends the stream though trailers follow")


async def chunking(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind chunking: bodies of given sizes come back in so many pieces."""
    raw = {**case, "config": {"parser": "passthrough"}, "pool": [[1, 0, 0.1, []]]}
    for row in case["rows"]:
        size = int(row["size"])
        body = bytes(i * 7 % 251 for i in range(size))
        async with Session(raw, fixtures, backend) as session:
            cut = [body[: size // 2], body[size // 2 :]] if size > 1 else [body]
            answer = await session.request({**raw, "headers": {":path": "/anything"}}, body=cut)
            parts = peer.pieces(answer.replies, "request_body")
            _same(len(parts), row["pieces"], f"pieces of {size} bytes")
            _same(b"".join(part for part, _ in parts), body, f"{size} bytes put together")
            _routed_well(answer)


async def candidates(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind candidates: the set of endpoints that may be named."""
    expect = case["expect"]
    wanted = set(expect.get("candidates_addresses") or [address(n) for n in expect["candidates"]])
    seen: set[str] = set()
    async with Session(case, fixtures, backend) as session:
        for number in range(12):
            body = json.dumps({"model": "base-m", "prompt": f"candidate {number}"}).encode()
            answer = await session.request(case, body=[body])
            if not wanted:
                _status(session.world, case, answer, 503)
                return
            seen |= set(answer.destinations)
    _same(sorted(seen), sorted(wanted), "candidates")


async def attribute(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind attribute: what a request counts as."""
    extra = {}
    if "attribute_agent" in case:
        extra["x-claude-code-session-id"] = case["attribute_agent"]
    async with Session({"pool": [[1, 0, 0.1, []]], **case}, fixtures, backend) as session:
        await session.request(case, extra)
        for name, wanted in case["expect"].items():
            if name == "fairness_id":
                _same(session.world.last.tenant, wanted, "tenant")
            elif name == "priority":
                decision = session.world.last
                _same(session.world.priorities.get(decision.service_class, 0), wanted, "priority")
            elif name not in PROSE:
                raise Unsupported(f"expectation {name}")


async def distribution(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind distribution: shares over many requests."""
    trials = int(case.get("trials", 300))
    models = bool(case.get("rewrites"))
    if backend is Grpc:
        trials = min(trials, 300)
    counts: Counter[str] = Counter()
    expect = case["expect"]
    async with Session({"pool": [[1, 0, 0.1, []]], **case}, fixtures, backend) as session:
        model = case["rewrites"][0].get("match", "base-m") if models else "base-m"
        given = case.get("body")
        for number in range(trials):
            document = {**(given if isinstance(given, Mapping) else {}), "model": model, "prompt": f"trial {number}"}
            answer = await session.request({**case, "body": document})
            counts[json.loads(answer.body)["model"] if models else answer.destinations[0]] += 1
    tolerance = float(expect.get("tolerance", 0.05))
    if trials < int(case.get("trials", 300)) and tolerance:
        tolerance = max(tolerance, 0.12)  # fewer trials over the channel
    for name, share in (expect.get("share") or {}).items():
        found = counts[str(name)] / trials
        if abs(found - share) > tolerance:
            raise Failed(f"share of {name} is {found:.3f}, wanted {share} ± {tolerance}")
    for name, most in (expect.get("share_max") or {}).items():
        if counts[str(name)] / trials > most:
            raise Failed(f"share of {name} is {counts[str(name)] / trials:.3f}, at most {most}")
    for name, least in (expect.get("share_min") or {}).items():
        if counts[str(name)] / trials < least:
            raise Failed(f"share of {name} is {counts[str(name)] / trials:.3f}, at least {least}")


async def sessions(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind session: steps that save tokens and endpoints and use them again."""
    saved: dict[str, str] = {}

    def filled(value: Any) -> Any:
        return saved[value[1:]] if isinstance(value, str) and value.startswith("$") else value

    async with Session(case, fixtures, backend) as session:
        if "token_for_missing" in case:
            token = encode_token(str(case["token_for_missing"]))
            check(session.world, case, await session.request(case, {"x-session-token": token}))
            return
        for step in case["steps"]:
            headers = {name: filled(value) for name, value in (step.get("send") or {}).items()}
            for _ in range(int(step.get("repeat", 1))):
                expect = dict(step.get("expect") or {})
                exchange = await session.backend.open()
                answer = await ask(session.world, exchange, case, headers)
                told = await _answer_headers(exchange, answer)
                await exchange.close()
                _session_step(expect, answer, told, saved, filled)


async def _answer_headers(exchange: Exchange, answer: Answer) -> dict[str, str]:
    served = {names.LB_NAMESPACE: {names.DESTINATION_SERVED: answer.destinations[0]}}
    message = peer.response_headers({":status": "200", "content-type": "application/json"}, False, served)
    found = await exchange.send(message)
    told = peer.set_headers(found[0]) if found else {}
    await exchange.send(peer.response_body(b"{}", True))
    return told


def _session_step(
    expect: dict[str, Any], answer: Answer, told: dict[str, str], saved: dict[str, str], filled: Any
) -> None:
    for name, wanted in expect.items():
        if name == "endpoint":
            _same(answer.destinations[0], filled(wanted), "endpoint")
        elif name == "endpoint_any_of":
            if answer.destinations[0] not in wanted:
                raise Failed(f"endpoint {answer.destinations[0]} is none of {wanted}")
        elif name == "endpoint_not":
            if answer.destinations[0] == filled(wanted):
                raise Failed(f"endpoint is {answer.destinations[0]}")
        elif name in ("response_header", "response_headers"):
            for header in [wanted] if isinstance(wanted, str) else wanted:
                if header not in told:
                    raise Failed(f"the answer lacks header {header}; it has {sorted(told)}")
        elif name == "response_headers_absent":
            present = [header for header in wanted if header in told]
            if present:
                raise Failed(f"the answer has {present}")
        elif name == "save":
            for key, source in wanted.items():
                if source == "endpoint":
                    saved[key] = answer.destinations[0]
                elif source in told:
                    saved[key] = told[source]
                else:
                    raise Failed(f"nothing to save from {source}")
        elif name not in PROSE:
            raise Unsupported(f"expectation {name}")


async def sequence(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind sequence: the same long prompt several times, and how much of it is believed cached."""
    matched: list[int] = []
    async with Session({"pool": [[1, 0, 0.1, []]], **case}, fixtures, backend) as session:
        for step in case["steps"]:
            found = re.match(r"send (\S+)(.*)", str(step))
            if not found:
                raise Unsupported(f"step {step!r}")
            body: dict[str, Any] = {"model": "base-m", "prompt": f"{found.group(1)} word " * 2000}
            for option, value in re.findall(r"(model|cache_salt|lora|adapter)\s+(\S+)", found.group(2)):
                body["model" if option in ("model", "lora", "adapter") else option] = value
            await session.request({**case, "headers": {":path": "/v1/completions"}}, body=[json.dumps(body).encode()])
            matched.append(session.world.last.matched_tokens)
    for name, wanted in case["expect"].items():
        if name in PROSE:
            continue
        which = re.match(r"(second|third|last)_matched_blocks(_min)?$", name)
        if not which:
            raise Unsupported(f"expectation {name}")
        tokens = matched[{"second": 1, "third": 2, "last": -1}[which.group(1)]]
        if (wanted == 0) != (tokens == 0):
            raise Failed(f"{name}: {tokens} tokens matched, wanted {wanted} blocks")
