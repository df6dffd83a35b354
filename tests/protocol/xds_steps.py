"""Runs the steps of one case against a backend and checks the invariants of everything the server says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2

from tests.protocol.xds_backends import NODE, CoreBackend, End, GrpcBackend, Kind, Stream
from tests.protocol.xds_world import read, type_of
from xds_control.xds.types import ResourceType, resource_type
from xds_control.xds.wire import RESOURCE_TYPE_URL

SETTLE_S = 0.25
PATIENCE_S = 5.0

Backend = CoreBackend | GrpcBackend


class Failed(AssertionError):
    """The server did not do what the case demands."""


@dataclass
class Message:
    """A server message, taken apart. revisions: name → content revision, None for a heartbeat."""

    rtype: ResourceType
    version: str
    nonce: str
    names: list[str]
    revisions: dict[str, str | None]
    versions: dict[str, str]
    removed: list[str]
    raw: Any

    def __str__(self) -> str:
        what = ", ".join(f"{n}@{self.revisions.get(n)}" for n in self.names)
        gone = f" removed [{', '.join(self.removed)}]" if self.removed else ""
        return f"{self.rtype.short} [{what}]{gone} v={self.version} n={self.nonce}"


@dataclass
class Client:
    """One stream as the case's client sees it."""

    stream: Stream
    sent_any: bool = False
    nonces: set[str] = field(default_factory=set)
    last: dict[str, Message] = field(default_factory=dict)  # newest message by type URL
    names: dict[str, list[str]] = field(default_factory=dict)  # names last sent by type URL (state of the world)
    received: list[Message] = field(default_factory=list)
    contents: dict[tuple[str, str, str], str | None] = field(default_factory=dict)


class Runner:
    """Executes one case. Raises Failed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._clients: dict[str, Client] = {}
        self._variables: dict[str, str] = {}
        self._states: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
        self._ops: dict[str, Callable[[Any, str], Awaitable[None]]] = {
            "open": self._open,
            "send": self._send,
            "expect": self._expect,
            "quiet": self._quiet,
            "close": self._close,
            "expect_end": self._expect_end,
            "drain": self._drain,
            "quiet_except_only": self._quiet_except_only,
            "eventually_received": self._eventually,
            "eventually_received_after": self._eventually_after,
            "subscribe_and_ack_all": self._subscribe_all,
            "expect_order": self._expect_order,
        }

    async def run(self, case: Mapping[str, Any]) -> None:
        self._backend.world.change(case.get("world") or {}, {})
        await self._backend.start()
        try:
            for number, step in enumerate(case["steps"], 1):
                try:
                    await self._step(step)
                except Failed as failure:
                    raise Failed(f"step {number} {_short(step)}: {failure}") from None
        finally:
            for client in self._clients.values():
                await client.stream.close()
            await self._backend.stop()

    async def _step(self, step: Mapping[str, Any]) -> None:
        stream = str(step.get("stream", ""))
        ops = [k for k in step if k != "stream"]
        if set(ops) <= {"set", "del"} and ops:
            self._backend.world.change(step.get("set") or {}, step.get("del") or {})
            return
        if len(ops) != 1 or ops[0] not in self._ops:
            raise Failed(f"no such step: {ops}")
        await self._ops[ops[0]](step[ops[0]], stream)

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _open(self, what: Any, stream: str) -> None:
        if isinstance(what, Mapping):
            what = " ".join(str(v) for v in what.values())
        self._clients[stream] = Client(await self._backend.open(Kind.parse(what)))

    async def _close(self, what: Any, stream: str) -> None:
        await self._client(stream).stream.close()

    async def _send(self, fields: Mapping[str, Any], stream: str) -> None:
        _known(fields, "t v n names sub unsub init err node use_last_nonce")
        client = self._client(stream)
        kind = client.stream.kind
        message = discovery_pb2.DeltaDiscoveryRequest() if kind.delta else discovery_pb2.DiscoveryRequest()
        wanted = fields.get("t")
        if wanted is not None:
            message.type_url = type_of(str(wanted)).type_url
        type_url = message.type_url or (kind.only.type_url if kind.only is not None else "")
        _set_node(message, fields.get("node", None if client.sent_any else NODE))
        client.sent_any = True
        message.response_nonce = self._value(fields.get("n")) or ""
        if fields.get("use_last_nonce"):
            last = client.last.get(type_url)
            message.response_nonce = last.nonce if last is not None else ""
        if fields.get("err") is not None:
            message.error_detail.code = 3
            message.error_detail.message = str(fields["err"])
        if isinstance(message, discovery_pb2.DeltaDiscoveryRequest):
            message.resource_names_subscribe.extend(_names(fields.get("sub", fields.get("names"))))
            message.resource_names_unsubscribe.extend(_names(fields.get("unsub")))
            for name, version in (fields.get("init") or {}).items():
                message.initial_resource_versions[str(name)] = self._value(version) or ""
        else:
            message.version_info = self._value(fields.get("v")) or ""
            names = _names(fields.get("names", fields.get("sub")))
            message.resource_names.extend(names)
            client.names[type_url] = names
        await client.stream.send(message)

    async def _expect(self, wanted: Mapping[str, Any], stream: str) -> None:
        client = self._client(stream)
        self._matches(await self._message(client, PATIENCE_S), wanted)

    async def _quiet(self, window: Any, stream: str) -> None:
        client = self._client(stream)
        got = await self._next(client, _window(window))
        if got is not None:
            raise Failed(f"expected silence, got {got}")

    async def _quiet_except_only(self, names: Any, stream: str) -> None:
        client = self._client(stream)
        allowed = set(_names(names))
        while (got := await self._next(client, SETTLE_S)) is not None:
            if isinstance(got, End):
                raise Failed(f"the stream ended: {got}")
            if not set(got.names) | set(got.removed) <= allowed:
                raise Failed(f"allowed only {sorted(allowed)}, got {got}")
            await self._ack(client, got)

    async def _drain(self, mode: Any, stream: str) -> None:
        client = self._client(stream)
        got = await self._next(client, SETTLE_S)
        if got is None:
            return
        if isinstance(got, End):
            raise Failed(f"the stream ended: {got}")
        if mode == "optional_empty" and (got.names or got.removed):
            raise Failed(f"allowed only an empty message, got {got}")
        if mode == "optional_removed" and (got.names or not got.removed):
            raise Failed(f"allowed only removals, got {got}")
        await self._ack(client, got)

    async def _expect_end(self, codes: Any, stream: str) -> None:
        got = await self._next(self._client(stream), PATIENCE_S)
        allowed = _names(codes)
        if not isinstance(got, End):
            raise Failed(f"expected the stream to end, got {got}")
        if got.code not in allowed:
            raise Failed(f"ended with {got.code} ({got.details}), expected {allowed}")

    async def _eventually(self, wanted: Mapping[str, Any], stream: str) -> None:
        client = self._client(stream)
        seen = []
        waited = 0.0
        while waited < PATIENCE_S:
            got, spent = await self._timed(client, PATIENCE_S - waited)
            waited += spent
            if got is None:
                break
            if isinstance(got, End):
                raise Failed(f"the stream ended: {got}")
            await self._ack(client, got)
            if self._is(got, wanted):
                return
            seen.append(str(got))
        raise Failed(f"never came; came: {seen}")

    async def _eventually_after(self, wanted: Mapping[str, Any], stream: str) -> None:
        client = self._client(stream)
        mark = self._value(wanted["mark"])
        rest = {k: v for k, v in wanted.items() if k != "mark"}
        nonces = [m.nonce for m in client.received]
        if mark in nonces and any(self._is(m, rest) for m in client.received[nonces.index(mark) + 1 :]):
            return
        if mark not in nonces:
            await self._eventually({"n": mark}, stream)
        await self._eventually(rest, stream)

    async def _subscribe_all(self, wanted: Mapping[str, Any], stream: str) -> None:
        client = self._client(stream)
        for short, names in wanted.items():
            explicit = [] if names == "*" and type_of(short).legacy_wildcard else _names(names)
            key = "sub" if client.stream.kind.delta else "names"
            await self._send({"t": short, key: explicit} if explicit else {"t": short}, stream)
        while (got := await self._next(client, SETTLE_S)) is not None:
            if isinstance(got, End):
                raise Failed(f"the stream ended: {got}")
            await self._ack(client, got)

    async def _expect_order(self, wanted: Any, stream: str) -> None:
        client = self._client(stream)
        order: list[str] = []
        waited = 0.0
        expected = [type_of(str(t)).short for t in wanted]
        while waited < PATIENCE_S and set(order) != set(expected):
            got, spent = await self._timed(client, PATIENCE_S - waited)
            waited += spent
            if not isinstance(got, Message):
                break
            await self._ack(client, got)
            if got.rtype.short not in order:
                order.append(got.rtype.short)
        if order != expected:
            raise Failed(f"came in the order {order}, expected {expected}")

    # -- messages -------------------------------------------------------------------------------------------------

    def _client(self, stream: str) -> Client:
        if stream not in self._clients:
            raise Failed(f"stream {stream!r} is not open")
        return self._clients[stream]

    async def _timed(self, client: Client, timeout_s: float) -> tuple[Message | End | None, float]:
        clock = self._clock()
        got = await self._next(client, timeout_s)
        return got, max(0.001, self._clock() - clock)

    def _clock(self) -> float:
        if isinstance(self._backend, CoreBackend):
            return self._backend.now
        return asyncio.get_running_loop().time()

    async def _message(self, client: Client, timeout_s: float) -> Message:
        got = await self._next(client, timeout_s)
        if got is None:
            raise Failed("nothing came")
        if isinstance(got, End):
            raise Failed(f"the stream ended: {got}")
        return got

    async def _next(self, client: Client, timeout_s: float) -> Message | End | None:
        raw = await client.stream.next(timeout_s)
        if raw is None or isinstance(raw, End):
            return raw
        message = _parse(raw, client.stream.kind)
        self._check_invariants(client, message)
        client.nonces.add(message.nonce)
        client.last[message.rtype.type_url] = message
        client.received.append(message)
        return message

    async def _ack(self, client: Client, got: Message) -> None:
        type_url = got.rtype.type_url
        if client.stream.kind.delta:
            await client.stream.send(discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, response_nonce=got.nonce))
            return
        await client.stream.send(
            discovery_pb2.DiscoveryRequest(
                type_url=type_url,
                version_info=got.version,
                response_nonce=got.nonce,
                resource_names=client.names.get(type_url, []),
            )
        )

    def _check_invariants(self, client: Client, got: Message) -> None:
        if not got.nonce:
            raise Failed(f"empty nonce in {got}")
        if got.nonce in client.nonces:
            raise Failed(f"nonce used twice: {got}")
        only = client.stream.kind.only
        if only is not None and got.rtype != only:
            raise Failed(f"a {got.rtype.short} message on the {only.short} service")
        if len(set(got.names)) != len(got.names) or len(set(got.removed)) != len(got.removed):
            raise Failed(f"a name occurs twice in {got}")
        both = set(got.names) & set(got.removed)
        if both:
            raise Failed(f"{sorted(both)} are both present and removed in {got}")
        if client.stream.kind.delta:
            for name in got.names:
                if not name or not got.versions.get(name):
                    raise Failed(f"a resource without name or version in {got}")
        elif not got.version:
            raise Failed(f"empty version_info in {got}")
        for name, revision in got.revisions.items():
            version = got.versions.get(name, got.version)
            key = (got.rtype.type_url, name, version)
            if revision is not None and client.contents.setdefault(key, revision) != revision:
                raise Failed(f"{name} changed but version {version} did not: {got}")
        self._check_state(client, got)

    def _check_state(self, client: Client, got: Message) -> None:
        """Equal states of a type have equal versions, unequal ones unequal (where the state is known for sure)."""
        if client.stream.kind.delta or not self._backend.exact:
            return
        type_url = got.rtype.type_url
        if got.rtype.full_state:
            if client.names.get(type_url):
                return
            state = frozenset((n, r or "") for n, r in got.revisions.items())
        else:
            state = frozenset(self._backend.world.revisions.get(type_url, {}).items())
        known = self._states.setdefault((type_url, state), got.version)
        if known != got.version:
            raise Failed(f"the same state had version {known} before: {got}")
        for (other_type, other), version in self._states.items():
            if other_type == type_url and version == got.version and other != state:
                raise Failed(f"version {version} names two states: {sorted(state)} and {sorted(other)}")

    # -- matching -------------------------------------------------------------------------------------------------

    def _is(self, got: Message, wanted: Mapping[str, Any]) -> bool:
        before = dict(self._variables)
        try:
            self._matches(got, wanted)
        except Failed:
            self._variables = before
            return False
        return True

    def _matches(self, got: Message, wanted: Mapping[str, Any]) -> None:
        _known(wanted, "t v n only has not removed rev bind_versions versions")
        if wanted.get("t") is not None and got.rtype != type_of(str(wanted["t"])):
            raise Failed(f"expected {wanted['t']}, got {got}")
        names = set(got.names)
        if "only" in wanted and names != set(_names(wanted["only"])):
            raise Failed(f"expected only {_names(wanted['only'])}, got {got}")
        if not set(_names(wanted.get("has"))) <= names:
            raise Failed(f"expected {_names(wanted['has'])} in it, got {got}")
        if names & set(_names(wanted.get("not"))):
            raise Failed(f"expected none of {_names(wanted['not'])}, got {got}")
        if "removed" in wanted and set(got.removed) != set(_names(wanted["removed"])):
            raise Failed(f"expected removed {_names(wanted['removed'])}, got {got}")
        for name, revision in (wanted.get("rev") or {}).items():
            if got.revisions.get(str(name)) != str(revision):
                raise Failed(f"expected {name} at revision {revision}, got {got}")
        for key, value in (("v", got.version), ("n", got.nonce)):
            if wanted.get(key) is not None:
                self._bind(wanted[key], value, got)
        for name, variable in {**(wanted.get("bind_versions") or {}), **(wanted.get("versions") or {})}.items():
            if str(name) not in got.versions:
                raise Failed(f"expected {name} in it, got {got}")
            self._bind(variable, got.versions[str(name)], got)

    def _bind(self, wanted: Any, value: str, got: Message) -> None:
        text = str(wanted)
        expected = self._variables.setdefault(text, value) if text.startswith("$") else text
        if expected != value:
            raise Failed(f"expected {text} = {expected!r}, got {value!r} in {got}")

    def _value(self, text: Any) -> str | None:
        if text is None:
            return None
        if str(text).startswith("$"):
            if str(text) not in self._variables:
                raise Failed(f"{text} has no value yet")
            return self._variables[str(text)]
        return str(text)


def _parse(raw: Any, kind: Kind) -> Message:
    rtype = resource_type(raw.type_url)
    names: list[str] = []
    revisions: dict[str, str | None] = {}
    versions: dict[str, str] = {}
    for item in raw.resources:
        name, packed = "", item
        if kind.delta:
            name, packed = item.name, item.resource if item.HasField("resource") else None
            versions[name] = item.version
        elif item.type_url == RESOURCE_TYPE_URL:
            wrapped = discovery_pb2.Resource.FromString(item.value)
            name, packed = wrapped.name, wrapped.resource if wrapped.HasField("resource") else None
        revision: str | None = None
        if packed is not None:
            if packed.type_url != raw.type_url:
                raise Failed(f"a {packed.type_url} in a response of {raw.type_url}")
            own, revision = read(rtype, packed.value)
            if name and own and own != name:
                raise Failed(f"resource {name} holds {own}")
            name = name or own
        names.append(name)
        revisions[name] = revision
    version = raw.system_version_info if kind.delta else raw.version_info
    removed = list(raw.removed_resources) if kind.delta else []
    return Message(rtype, version, raw.nonce, names, revisions, versions, removed, raw)


def _set_node(message: Any, node: Any) -> None:
    if node is None:
        return
    if isinstance(node, Mapping):
        message.node.id = str(node.get("id", ""))
        message.node.cluster = str(node.get("cluster", ""))
        message.node.metadata.update(node.get("metadata") or {})
        message.node.client_features.extend(_names(node.get("features")))
    else:
        message.node.id = str(node)


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, str) else [str(v) for v in value]


def _known(fields: Mapping[str, Any], allowed: str) -> None:
    unknown = set(fields) - set(allowed.split())
    if unknown:
        raise Failed(f"fields that this runner does not know: {sorted(unknown)}")


def _window(value: Any) -> float:
    return SETTLE_S if value is True else float(value) / 1000


def _short(step: Mapping[str, Any]) -> str:
    text = str(dict(step))
    return text if len(text) <= 120 else text[:117] + "..."
