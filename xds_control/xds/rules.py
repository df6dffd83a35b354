"""Checks a message against the constraints that the Envoy API declares in its own descriptors (pure).

Envoy enforces these (`validate.rules`) on everything it receives, packed messages included, and rejects the whole
response otherwise. The constraints of a message type are read from its descriptor once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from validate import validate_pb2

_DEPTH: Final = 64
_ANY: Final = "google.protobuf.Any"
_TYPED_STRUCTS: Final = frozenset({"xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"})
_HEADER_NAME: Final = re.compile(r":?[0-9a-zA-Z!#$%&'*+,\-.^_|~`]+")
_HEADER_VALUE_STRICT: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_HEADER_LOOSE: Final = re.compile(r"[^\x00\x0a\x0d]*")

Check = Callable[[Any], str | None]
Extra = Mapping[str, Callable[[Any], Iterator[str]]]
NO_EXTRA: Final[Extra] = {}


class _Field(NamedTuple):
    """How to check one field. Checks of `item`, `key` and `value` apply to each element."""

    name: str
    field: Any
    repeated: bool
    is_map: bool
    is_message: bool
    presence: bool
    required: bool
    whole: tuple[Check, ...]
    item: tuple[Check, ...]
    key: tuple[Check, ...]
    skip: bool
    map_value_message: bool


class _Plan(NamedTuple):
    fields: tuple[_Field, ...]
    oneofs: tuple[str, ...]


def check_rules(message: Message, path: str = "", depth: int = 0, extra: Extra = NO_EXTRA) -> Iterator[str]:
    """Sentences on every declared constraint that the message breaks, in the form `path.to.field: what is wrong`.

    extra: further checks by full name of a message, wherever one stands inside this one.
    """
    if depth > _DEPTH:
        yield f"{path or 'message'}: nested too deeply"
        return
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == _ANY:
        yield from _packed(message, path, depth, extra)
        return
    further = extra.get(descriptor.full_name)
    if further is not None:
        for sentence in further(message):
            yield f"{path}: {sentence}" if path else sentence
    plan = _plan(descriptor)
    for oneof in plan.oneofs:
        if message.WhichOneof(oneof) is None:
            yield f"{_join(path, oneof)}: one of its fields must be set"
    for rule in plan.fields:
        where = _join(path, rule.name)
        if rule.repeated:
            values = getattr(message, rule.name)
            for check in rule.whole:
                problem = check(values)
                if problem:
                    yield f"{where}: {problem}"
            yield from _elements(rule, values, where, depth, extra)
        elif not rule.presence or message.HasField(rule.name):
            value = getattr(message, rule.name)
            for check in rule.item:
                problem = check(value)
                if problem:
                    yield f"{where}: {problem}"
            if rule.is_message and not rule.skip:
                yield from check_rules(value, where, depth + 1, extra)
        elif rule.required:
            yield f"{where}: is required"


def _elements(rule: _Field, values: Any, where: str, depth: int, extra: Extra) -> Iterator[str]:
    if rule.is_map:
        for key in values:
            for check in rule.key:
                problem = check(key)
                if problem:
                    yield f"{where} key {key!r}: {problem}"
            value = values[key]
            for check in rule.item:
                problem = check(value)
                if problem:
                    yield f"{where}[{key!r}]: {problem}"
            if rule.map_value_message:
                yield from check_rules(value, f"{where}[{key!r}]", depth + 1, extra)
        return
    if not rule.item and not rule.is_message:
        return
    for index, value in enumerate(values):
        for check in rule.item:
            problem = check(value)
            if problem:
                yield f"{where}[{index}]: {problem}"
        if rule.is_message and not rule.skip:
            yield from check_rules(value, f"{where}[{index}]", depth + 1, extra)


def _packed(message: Any, path: str, depth: int, extra: Extra) -> Iterator[str]:
    """Envoy unpacks and checks what it knows; what this build does not know passes unseen."""
    if not message.type_url:
        return
    name = message.type_url.rpartition("/")[2]
    if name in _TYPED_STRUCTS:
        return
    cls = _class(name)
    if cls is None:
        return
    try:
        inner = cls.FromString(message.value)
    except DecodeError:
        yield f"{path}: the bytes are not a {name}"
        return
    yield from check_rules(inner, path, depth + 1, extra)


@lru_cache(maxsize=4096)
def _class(name: str) -> Any | None:
    pool = descriptor_pool.Default()
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError:
        return None
    return message_factory.GetMessageClass(found)


@lru_cache(maxsize=8192)
def _plan(descriptor: Any) -> _Plan:
    if descriptor.GetOptions().Extensions[validate_pb2.disabled]:
        return _Plan((), ())
    oneofs = tuple(o.name for o in descriptor.oneofs if o.GetOptions().Extensions[validate_pb2.required])
    return _Plan(tuple(f for f in (_field(f) for f in descriptor.fields) if f is not None), oneofs)


def _field(field: Any) -> _Field | None:
    rules = field.GetOptions().Extensions[validate_pb2.rules]
    kind = rules.WhichOneof("type")
    is_map = bool(field.message_type is not None and field.message_type.GetOptions().map_entry and field.is_repeated)
    is_message = field.message_type is not None and not is_map
    whole: list[Check] = []
    item: list[Check] = []
    key: list[Check] = []
    # A member of a oneof is required only when it is the one that is set (protoc-gen-validate).
    required = rules.message.required and field.containing_oneof is None
    skip = rules.message.skip
    map_value_message = False
    wrapper = is_message and field.message_type.full_name in _WRAPPERS
    if is_map:
        value_field = field.message_type.fields_by_name["value"]
        map_value_message = value_field.message_type is not None and _checkable(value_field.message_type)
        if kind == "map":
            whole += _size(rules.map, "min_pairs", "max_pairs", "entries")
            key += _checks(rules.map.keys)
            item += _checks(rules.map.values)
    elif field.is_repeated:
        if kind == "repeated":
            whole += _size(rules.repeated, "min_items", "max_items", "items")
            if rules.repeated.unique:
                whole.append(_unique)
            item += _checks(rules.repeated.items)
            skip = skip or rules.repeated.items.message.skip
    else:
        item += [_of_wrapper(c) for c in _checks(rules)] if wrapper else _checks(rules)
        if kind in ("duration", "timestamp", "any"):
            required = required or getattr(rules, kind).required
    if is_message and (wrapper or not _checkable(field.message_type)):
        skip = True
    if not (whole or item or key or required or map_value_message or (is_message and not skip)):
        return None
    return _Field(
        field.name,
        field,
        bool(field.is_repeated),
        is_map,
        is_message,
        bool(field.has_presence),
        required,
        tuple(whole),
        tuple(item),
        tuple(key),
        skip,
        map_value_message,
    )


_WRAPPERS: Final = frozenset(
    f"google.protobuf.{n}Value"
    for n in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def _checkable(descriptor: Any) -> bool:
    """Whether looking inside can find anything: the standard types have no constraints of their own."""
    return descriptor.full_name == _ANY or not descriptor.full_name.startswith("google.protobuf.")


def _of_wrapper(check: Check) -> Check:
    return lambda wrapper: check(wrapper.value)


def _checks(rules: Any) -> list[Check]:
    kind = rules.WhichOneof("type")
    if kind is None:
        return []
    own = getattr(rules, kind)
    if kind in _NUMBERS:
        return _number(own)
    builder = _BUILDERS.get(kind)
    return builder(own) if builder is not None else []


_NUMBERS: Final = frozenset(
    (
        "float",
        "double",
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint32",
        "sint64",
        "fixed32",
        "fixed64",
        "sfixed32",
        "sfixed64",
    )
)


def _has(rules: Any, name: str) -> bool:
    return bool(rules.HasField(name))


def _number(rules: Any, read: Callable[[Any], Any] = lambda v: v) -> list[Check]:
    checks = _bounds(rules, read)
    if _has(rules, "const"):
        const = read(rules.const)
        checks.append(lambda v: None if read(v) == const else f"must be {const}")
    return checks + _membership(rules, read)


def _bounds(rules: Any, read: Callable[[Any], Any]) -> list[Check]:
    low = next(((n, read(getattr(rules, n))) for n in ("gt", "gte") if _has(rules, n)), None)
    high = next(((n, read(getattr(rules, n))) for n in ("lt", "lte") if _has(rules, n)), None)
    above: Check = lambda v: None  # noqa: E731
    below: Check = lambda v: None  # noqa: E731
    if low is not None:
        above = _at_least(low[0] == "gte", low[1], read)
    if high is not None:
        below = _at_most(high[0] == "lte", high[1], read)
    if low is not None and high is not None and low[1] > high[1]:
        # Bounds the wrong way round mean "outside of".
        return [lambda v: None if above(v) is None or below(v) is None else above(v)]
    return [c for c, given in ((above, low), (below, high)) if given is not None]


def _at_least(inclusive: bool, bound: Any, read: Callable[[Any], Any]) -> Check:
    def check(value: Any) -> str | None:
        got = read(value)
        if got > bound or (inclusive and got == bound):
            return None
        return f"is {got}, must be {'at least' if inclusive else 'over'} {bound}"

    return check


def _at_most(inclusive: bool, bound: Any, read: Callable[[Any], Any]) -> Check:
    def check(value: Any) -> str | None:
        got = read(value)
        if got < bound or (inclusive and got == bound):
            return None
        return f"is {got}, must be {'at most' if inclusive else 'under'} {bound}"

    return check


def _membership(rules: Any, read: Callable[[Any], Any] = lambda v: v) -> list[Check]:
    checks: list[Check] = []
    allowed = [read(v) for v in getattr(rules, "in")]
    denied = [read(v) for v in rules.not_in]
    if allowed:
        checks.append(lambda v: None if read(v) in allowed else f"must be one of {allowed}")
    if denied:
        checks.append(lambda v: f"must not be {read(v)!r}" if read(v) in denied else None)
    return checks


def _size(rules: Any, low: str, high: str, what: str) -> list[Check]:
    checks: list[Check] = []
    if _has(rules, low) and getattr(rules, low):
        least = getattr(rules, low)
        checks.append(lambda v: None if len(v) >= least else f"has {len(v)} {what}, must have at least {least}")
    if _has(rules, high):
        most = getattr(rules, high)
        checks.append(lambda v: None if len(v) <= most else f"has {len(v)} {what}, must have at most {most}")
    return checks


def _unique(values: Any) -> str | None:
    seen: list[Any] = []
    for value in values:
        if value in seen:
            return "has an element twice"
        seen.append(value)
    return None


def _string(rules: Any) -> list[Check]:
    checks = _text(rules, len)
    if _has(rules, "min_bytes"):
        least = rules.min_bytes
        checks.append(lambda v: None if len(v.encode()) >= least else f"is under {least} bytes" if v else "is empty")
    if _has(rules, "max_bytes"):
        most = rules.max_bytes
        checks.append(lambda v: None if len(v.encode()) <= most else f"is over {most} bytes")
    form = rules.WhichOneof("well_known")
    if form == "well_known_regex":
        checks.append(_header(rules.well_known_regex, rules.strict if _has(rules, "strict") else True))
    return _unless_ignored(rules, checks)


def _bytes(rules: Any) -> list[Check]:
    return _unless_ignored(rules, _text(rules, len))


def _unless_ignored(rules: Any, checks: list[Check]) -> list[Check]:
    if not rules.ignore_empty:
        return checks
    return [_skip_empty(c) for c in checks]


def _skip_empty(check: Check) -> Check:
    return lambda v: check(v) if v else None


def _text(rules: Any, length: Callable[[Any], int]) -> list[Check]:
    checks: list[Check] = []
    if _has(rules, "const"):
        const = rules.const
        checks.append(lambda v: None if v == const else f"must be {const!r}")
    if _has(rules, "len"):
        exact = rules.len
        checks.append(lambda v: None if length(v) == exact else f"must be {exact} long")
    if _has(rules, "min_len") and rules.min_len:
        least = rules.min_len
        checks.append(lambda v: None if length(v) >= least else f"is shorter than {least}" if v else "is empty")
    if _has(rules, "max_len"):
        most = rules.max_len
        checks.append(lambda v: None if length(v) <= most else f"is longer than {most}")
    checks += [_affix(n, getattr(rules, n)) for n in ("prefix", "suffix", "contains") if _has(rules, n)]
    if "not_contains" in rules.DESCRIPTOR.fields_by_name and _has(rules, "not_contains"):
        part = rules.not_contains
        checks.append(lambda v: f"must not contain {part!r}" if part in v else None)
    return checks + _membership(rules)


def _affix(kind: str, part: Any) -> Check:
    def check(value: Any) -> str | None:
        if kind == "contains":
            return None if part in value else f"must contain {part!r}"
        if kind == "prefix":
            return None if value.startswith(part) else f"must start with {part!r}"
        return None if value.endswith(part) else f"must end with {part!r}"

    return check


def _header(regex: int, strict: bool) -> Check:
    is_name = regex == validate_pb2.KnownRegex.Value("HTTP_HEADER_NAME")
    pattern = (_HEADER_NAME if is_name else _HEADER_VALUE_STRICT) if strict else _HEADER_LOOSE
    what = "header name" if is_name else "header value"

    def check(value: str) -> str | None:
        return None if pattern.fullmatch(value) else f"{value!r} is not a valid {what}"

    return check


def _bool(rules: Any) -> list[Check]:
    if not _has(rules, "const"):
        return []
    const = rules.const
    return [lambda v: None if v == const else f"must be {str(const).lower()}"]


def _enum(rules: Any) -> list[Check]:
    # `defined_only` is left to the client: a newer Envoy may define values that this build does not know.
    checks = _membership(rules)
    if _has(rules, "const"):
        const = rules.const
        checks.append(lambda v: None if v == const else f"must be {const}")
    return checks


def _duration(rules: Any) -> list[Check]:
    return _number(rules, lambda d: d.seconds + d.nanos / 1e9)


def _any(rules: Any) -> list[Check]:
    checks: list[Check] = []
    allowed = list(getattr(rules, "in"))
    if allowed:
        checks.append(lambda v: None if v.type_url in allowed else f"must hold one of {allowed}")
    denied = list(rules.not_in)
    if denied:
        checks.append(lambda v: f"must not hold {v.type_url}" if v.type_url in denied else None)
    return checks


_BUILDERS: Final[dict[str, Callable[[Any], list[Check]]]] = {
    "string": _string,
    "bytes": _bytes,
    "bool": _bool,
    "enum": _enum,
    "duration": _duration,
    "any": _any,
}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
