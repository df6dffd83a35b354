"""Cases about answers: usage, the client's model name, metadata, the endpoint that served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.protocol import epp_peer as peer
from tests.protocol.epp_peer import Exchange, Failed
from tests.protocol.epp_requests import PROSE, Backend, Session, ask
from tests.protocol.epp_world import Unsupported
from xds_control.extproc.responses import Observed
from xds_control.extproc.usage import UsageReader


async def _begin(session: Session, case: Mapping[str, Any], body: dict[str, Any] | None = None) -> Exchange:
    """A stream on which a request has been answered."""
    exchange = await session.backend.open()
    document = {"model": "base-m", "prompt": "x", **(body or {})}
    await ask(session.world, exchange, {**case, "body": document, "headers": {":path": "/v1/completions"}})
    return exchange


async def _answer(
    exchange: Exchange, headers: Mapping[str, str], pieces: list[bytes], metadata: Mapping[str, Any] | None = None
) -> list[ext_proc.ProcessingResponse]:
    """Sends an answer through and returns the replies to its body."""
    found = await exchange.send(peer.response_headers(headers, False, metadata))
    if not found or found[0].WhichOneof("response") != "response_headers":
        raise Failed(f"no answer to the response headers; ended={exchange.ended} error={exchange.error!r}")
    replies: list[ext_proc.ProcessingResponse] = []
    for number, piece in enumerate(pieces):
        end = number == len(pieces) - 1
        replies += await exchange.send(peer.response_body(piece, end), expect=bool(piece) or end)
    if exchange.error:
        raise Failed(f"the stream failed: {exchange.error}")
    return replies


def _usage(found: Any, wanted: Any) -> None:
    if wanted is None:
        if found.known():
            raise Failed(f"usage {found}, wanted none")
        return
    told = {"in": found.prompt, "out": found.completion, "total": found.total, "cached": found.cached}
    for name, value in wanted.items():
        if told[name] != value:
            raise Failed(f"usage {name} is {told[name]}, wanted {value} ({told})")


async def response(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind response."""
    config = case.get("config")
    async with Session({"pool": [[1, 0, 0.1, []], [2, 0, 0.1, []]], **case}, fixtures, backend) as session:
        seen: list[Observed] = []
        state = session.world.state
        told = state.on_observed
        assert state._responses is not None

        def tell(observed: Observed) -> None:
            seen.append(observed)
            told(observed)

        state._responses._told = tell
        exchange = await _begin(session, {**case, "config": config})
        headers = {str(k): str(v) for k, v in (case.get("resp_headers") or {}).items()}
        pieces = [str(piece).encode() for piece in case["pieces"]]
        replies = await _answer(exchange, headers, pieces, case.get("metadata"))
        await exchange.close()
        for name, wanted in case["expect"].items():
            _response_expectation(name, wanted, case, exchange, replies, pieces, seen)


def _response_expectation(
    name: str,
    wanted: Any,
    case: Mapping[str, Any],
    exchange: Exchange,
    replies: list[ext_proc.ProcessingResponse],
    pieces: list[bytes],
    seen: list[Observed],
) -> None:
    parts = peer.pieces(replies, "response_body")
    if name in PROSE:
        return
    if name == "concat":
        if b"".join(body for body, _ in parts) != str(wanted).encode():
            raise Failed(f"the client gets {parts!r}")
    elif name == "eos_only_on_last":
        if [end for _, end in parts] != [False] * (len(parts) - 1) + [True]:
            raise Failed(f"end_of_stream on {[end for _, end in parts]}")
    elif name == "stream_error":
        if bool(exchange.error) != bool(wanted):
            raise Failed(f"stream error {exchange.error!r}")
    elif name == "pieces_echoed_in_order":
        given = [piece for piece in pieces if piece]
        if [body for body, _ in parts if body] != given:
            raise Failed(f"pieces {parts!r}")
    elif name == "usage":
        _usage(_read(pieces, _streamed(case)).usage, wanted)
        observed = seen[-1]
        if wanted is not None and "out" in wanted and observed.completion_tokens != wanted["out"]:
            raise Failed(f"observed {observed.completion_tokens} output tokens")
    elif name == "last_reply_metadata":
        found = peer.reply_metadata(replies[-1]) if replies else {}
        if found != wanted:
            raise Failed(f"metadata of the last reply is {found}, wanted {wanted}")
    elif name == "metadata_on_reply_index":
        carrying = [
            at
            for at, reply in enumerate(exchange.replies)
            if reply.HasField("dynamic_metadata") and reply.WhichOneof("response") == "response_body"
        ]
        if carrying != [wanted]:
            raise Failed(f"metadata on replies {carrying}, wanted {wanted}")
    elif name == "feedback_credited_to":
        if not seen or seen[-1].endpoint != wanted:
            raise Failed(f"credited to {seen[-1].endpoint if seen else None}, wanted {wanted}")
    else:
        raise Unsupported(f"expectation {name}")


def _streamed(case: Mapping[str, Any]) -> bool:
    kind = str((case.get("resp_headers") or {}).get("content-type", ""))
    if kind:
        return "event-stream" in kind
    return any(str(piece).lstrip().startswith(("data:", "event:")) for piece in case["pieces"])


def _read(pieces: list[bytes], streamed: bool) -> UsageReader:
    reader = UsageReader(streamed)
    for number, piece in enumerate(pieces):
        reader.feed(piece, number == len(pieces) - 1)
    return reader


async def usage(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind usage: on the reader itself, cut as given and cut after every byte; over the channel, as outcomes."""
    pieces = [str(piece).encode() for piece in case["pieces"]]
    streamed = _streamed(case)
    for name in case["expect"].keys() - {"usage", "events"} - PROSE:
        raise Unsupported(f"expectation {name}")
    whole = b"".join(pieces)
    for cut in (pieces, [whole[i : i + 1] for i in range(len(whole))]):
        reader = _read(list(cut), streamed)
        _usage(reader.usage, case["expect"].get("usage"))
        if "events" in case["expect"] and reader.events != case["expect"]["events"]:
            raise Failed(f"{reader.events} events, wanted {case['expect']['events']}")
    kind = "text/event-stream" if streamed else "application/json"
    given = {**case, "resp_headers": {":status": "200", "content-type": kind}}
    wanted = case["expect"].get("usage")
    await response({**given, "expect": {"usage": wanted, "concat": whole.decode()}}, fixtures, backend)


async def response_rewrite(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind response_rewrite: the served model's name never reaches the client."""
    served, client = str(case["served"]), str(case["client"])
    rows = [([str(row["in"])], str(row["out"])) for row in case.get("rows") or ()]
    if "in_pieces" in case:
        rows.append(([str(piece) for piece in case["in_pieces"]], str(case["expect"]["out_concat"])))
    world_case = {
        "pool": [[1, 0, 0.1, []]],
        "rewrites": [{"match": client, "target": served}],
        **{key: value for key, value in case.items() if key != "rewrites"},
    }
    for given, wanted in rows:
        whole = "".join(given).encode()
        for cut in ([piece.encode() for piece in given], [whole[i : i + 1] for i in range(len(whole))]):
            async with Session(world_case, fixtures, backend) as session:
                exchange = await _begin(session, world_case, {"model": client})
                kind = "text/event-stream" if "data:" in "".join(given) else "application/json"
                headers = {":status": "200", "content-type": kind}
                found = await exchange.send(peer.response_headers(headers, False))
                if not found:
                    raise Failed(f"no answer to the response headers: {exchange.error!r}")
                replies: list[ext_proc.ProcessingResponse] = []
                for number, piece in enumerate(cut):
                    end = number == len(cut) - 1
                    replies += await exchange.send(peer.response_body(piece, end), expect=end)
                await exchange.close()
                out = b"".join(body for body, _ in peer.pieces(replies, "response_body"))
                if out != wanted.encode():
                    raise Failed(f"{given} became {out!r}, wanted {wanted!r}")
            if backend.name == "grpc":
                break  # byte by byte only on the core: each piece waits for its answer
