"""Prefill and decode on different demo engines: the sidecar of a decode engine, and what a prefill engine answers.

A decode engine reads where its prompt is to be prefilled in the forms that real connectors use, asks that engine first
and then decodes as if the KV had been moved to it:

- llm-d's sidecar: header `x-prefiller-host-port`; the prefill call has one output token and
  `kv_transfer_params {do_remote_decode: true}`, and the params that come back go into the decode call.
- vLLM's P2P NCCL connector: both addresses in `x-request-id`; the prefill call has the same id and one output token.
- SGLang: `bootstrap_host`, `bootstrap_port` and `bootstrap_room` in the bodies of both calls. Real ones run at once and
  meet in the room; here the decode waits for the prefill.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from xds_control.policy.headers import BOOTSTRAP_HOST, BOOTSTRAP_PORT, BOOTSTRAP_ROOM, PREFILL
from xds_control.routing.disagg import REQUEST_ID

_P2P: Final = re.compile(r"___prefill_addr_([^_]+)___decode_addr_([^_]+)_")
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")


@dataclass(frozen=True, slots=True)
class Remote:
    """A prefill that another engine is to do. prefiller: its address. connector: the form in which it was asked for.
    headers: of the prefill call. fields: what its body gets besides (SGLang)."""

    prefiller: str
    connector: str
    headers: Mapping[str, str]
    fields: Mapping[str, Any]


def asked_for(headers: Mapping[str, str]) -> Remote | None:
    """What a request's headers say; None when its prompt is prefilled where it is decoded. headers: any case."""
    given = {name.lower(): value for name, value in headers.items()}
    room = given.get(BOOTSTRAP_ROOM, "")
    prefiller = given.get(PREFILL, "")
    if prefiller and room.isdecimal():
        port = given.get(BOOTSTRAP_PORT, "")
        fields = {
            "bootstrap_host": given.get(BOOTSTRAP_HOST, ""),
            "bootstrap_port": int(port) if port.isdecimal() else None,
            "bootstrap_room": int(room),
        }
        return Remote(prefiller, "sglang", {}, fields)
    named = _P2P.search(given.get(REQUEST_ID, ""))
    if named is not None:
        return Remote(named[1], "vllm", {REQUEST_ID: given[REQUEST_ID]}, {})
    return Remote(prefiller, "llm-d", {}, {}) if prefiller else None


def prefill_body(body: bytes, remote: Remote) -> bytes:
    """The body of the prefill call: not streamed, one output token."""
    asked: dict[str, Any] = msgspec.json.decode(body, type=dict)
    asked.pop("stream_options", None)
    asked["stream"] = False
    for name in _LIMITS:
        if name in asked:
            asked[name] = 1
    asked.setdefault("max_tokens", 1)
    if remote.connector == "llm-d":
        asked["kv_transfer_params"] = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
        }
    return msgspec.json.encode({**asked, **remote.fields})


def transfer_params(engine: str, host: str, port: int, blocks: int) -> dict[str, Any]:
    """What a prefill engine gives back, to be put into the decode call."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_block_ids": list(range(blocks)),
        "remote_host": host,
        "remote_port": port,
    }


def moved(remote: Remote, answer: bytes) -> bool:
    """Whether the prefill call left KV behind that the decode engine can take."""
    if remote.connector != "llm-d":
        return True
    try:
        params = msgspec.json.decode(answer, type=dict).get("kv_transfer_params")
    except msgspec.DecodeError:
        return False
    return isinstance(params, dict) and params.get("do_remote_prefill") is True


def for_others(asked: Any, headers: Mapping[str, str], address: str) -> bool:
    """Whether a request that the demo engine at `address` serves is the prefill call of another engine."""
    given = {name.lower(): value for name, value in headers.items()}
    params = asked.kv_transfer_params or {}
    named = _P2P.search(given.get(REQUEST_ID, ""))
    return (
        params.get("do_remote_decode") is True
        or asked.bootstrap_room is not None
        or (named is not None and named[1] == address)
    )
