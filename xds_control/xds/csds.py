"""Client status (CSDS): what each client was sent and what it said to it, in the form of standard tools (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.status.v3 import csds_pb2

from xds_control.errors import XdsControlError
from xds_control.xds.delta import DeltaSubscription
from xds_control.xds.sotw import SotwSubscription
from xds_control.xds.stream import StreamState
from xds_control.xds.types import SDS

_STATUS: Final = config_dump_shared_pb2.ClientResourceStatus.Value
_CONFIG: Final = csds_pb2.ConfigStatus.Value


class BadMatcher(XdsControlError):
    """A request selects nodes in a way that is not understood."""

    code = "xds-node-matcher"
    grpc_status = "INVALID_ARGUMENT"


def client_config(
    node: Any, state: StreamState, *, wall: Callable[[float], float], contents: bool = True
) -> csds_pb2.ClientConfig:
    """The state of one stream.

    node: its message. wall: from monotonic seconds to seconds since 1970. contents: with the resources themselves
    (never secrets).
    """
    config = csds_pb2.ClientConfig(node=node)
    for subscription in state.subscriptions:
        for item in _resources(subscription, state, wall, contents):
            config.generic_xds_configs.append(item)
    return config


def _resources(
    subscription: SotwSubscription | DeltaSubscription,
    state: StreamState,
    wall: Callable[[float], float],
    contents: bool,
) -> Iterator[csds_pb2.ClientConfig.GenericXdsConfig]:
    rtype = subscription.type
    progress = subscription.progress
    view = state.view[rtype.type_url] if state.view is not None else None
    unanswered = {n for n, _ in progress.outstanding.names} if progress.outstanding is not None else set()
    for name in sorted({*subscription.names, *subscription.sent}):
        item = csds_pb2.ClientConfig.GenericXdsConfig(type_url=rtype.type_url, name=name)
        sent = subscription.sent.get(name)
        current = view.resolve(name) if view is not None else None
        rejected = progress.rejected.get(name)
        if sent is None:
            missing = current is None
            item.client_status = _STATUS("DOES_NOT_EXIST" if missing else "REQUESTED")
            item.config_status = _CONFIG("NOT_SENT")
        else:
            item.version_info = sent
            if rejected is not None and rejected.version == sent:
                item.client_status, item.config_status = _STATUS("NACKED"), _CONFIG("ERROR")
                item.error_state.details = rejected.message
                item.error_state.version_info = rejected.version
                if progress.last_error_at is not None:
                    item.error_state.last_update_attempt.FromNanoseconds(int(wall(progress.last_error_at) * 1e9))
            elif name in unanswered:
                item.client_status, item.config_status = _STATUS("REQUESTED"), _CONFIG("STALE")
            else:
                item.client_status = _STATUS("ACKED")
                in_step = current is not None and current.version == sent
                item.config_status = _CONFIG("SYNCED" if in_step else "STALE")
            if contents and rtype != SDS and current is not None and current.version == sent:
                item.xds_config.type_url = rtype.type_url
                item.xds_config.value = current.body
        yield item


def selected(node: Any, matchers: Iterable[Any]) -> bool:
    """Whether a node is among those asked for; no matcher means all. Raises BadMatcher."""
    matchers = list(matchers)
    return not matchers or any(_matches(node, m) for m in matchers)


def _matches(node: Any, matcher: Any) -> bool:
    if matcher.HasField("node_id") and not _string(node.id, matcher.node_id):
        return False
    return all(_struct(node.metadata, m) for m in matcher.node_metadatas)


def _string(text: str, matcher: Any) -> bool:
    kind = matcher.WhichOneof("match_pattern")
    if kind == "safe_regex":
        try:
            return re.fullmatch(matcher.safe_regex.regex, text) is not None
        except re.error as problem:
            raise BadMatcher(f"regular expression {matcher.safe_regex.regex!r}: {problem}") from None
    if kind not in ("exact", "prefix", "suffix", "contains"):
        raise BadMatcher(f"a string matcher of kind {kind} is not supported")
    pattern = getattr(matcher, kind)
    if matcher.ignore_case:
        text, pattern = text.lower(), pattern.lower()
    if kind == "exact":
        return bool(text == pattern)
    if kind == "prefix":
        return text.startswith(pattern)
    return text.endswith(pattern) if kind == "suffix" else pattern in text


def _struct(struct: Any, matcher: Any) -> bool:
    fields = struct.fields
    value: Any = None
    for number, segment in enumerate(matcher.path):
        if segment.key not in fields:
            value = None
            break
        value = fields[segment.key]
        if number + 1 < len(matcher.path):
            if value.WhichOneof("kind") != "struct_value":
                value = None
                break
            fields = value.struct_value.fields
    return _value(value, matcher.value)


def _value(value: Any, matcher: Any) -> bool:
    kind = matcher.WhichOneof("match_pattern")
    held = value.WhichOneof("kind") if value is not None else None
    if kind == "present_match":
        return bool((held is not None) == matcher.present_match)
    if kind == "or_match":
        return any(_value(value, m) for m in matcher.or_match.value_matchers)
    if kind == "null_match":
        return held == "null_value"
    if kind == "string_match":
        return held == "string_value" and _string(value.string_value, matcher.string_match)
    if kind == "bool_match":
        return held == "bool_value" and bool(value.bool_value == matcher.bool_match)
    if kind == "double_match":
        wanted = matcher.double_match
        if held != "number_value":
            return False
        if wanted.WhichOneof("match_pattern") == "range":
            return bool(wanted.range.start <= value.number_value < wanted.range.end)
        return bool(value.number_value == wanted.exact)
    if kind == "list_match":
        return held == "list_value" and any(_value(v, matcher.list_match.one_of) for v in value.list_value.values)
    raise BadMatcher("a value matcher without a kind")
