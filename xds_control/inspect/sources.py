"""Where session, tenant and class come from, in the order that policy gives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from xds_control.inspect.scalars import as_text, child, plain

FINGERPRINT: Final = "fingerprint"
_SMALL: Final = 65536  # larger objects are no session parameters


def attribute(field: str) -> str:
    """Name under which a body's struct holds a field: JSON allows names that Python does not."""
    return field if field.isidentifier() else "field_" + field.encode("utf-8", "surrogatepass").hex()


class SessionSources:
    """Ordered sources of the session value; `fields` are the top-level body fields that they need."""

    def __init__(self, sources: tuple[str, ...], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.fields: tuple[str, ...] = ()
        # Of each source: kind, name (or the place of its field in `fields`), the path below that, the source itself.
        self._sources: list[tuple[str, Any, tuple[str, ...], str]] = []
        names = set()
        for source in sources:
            kind, _, name = source.partition(":")
            first, *rest = name.split(".") if kind == "body" else (name,)
            if kind == "body":
                if first not in self.fields:
                    self.fields += (first,)
                self._sources.append((kind, self.fields.index(first), tuple(rest), source))
            else:
                self._sources.append((kind, first, (), source))
                names.add("cookie" if kind == "cookie" else first)
            if kind == FINGERPRINT:
                break  # always there, as far as sources go
        self._names = frozenset(names)
        self._not_in_headers = [one for one in self._sources if one[0] in ("body", FINGERPRINT)]
        self._last = FINGERPRINT if FINGERPRINT in sources else ""
        attributes = [attribute(field) for field in self.fields] or ["model"]
        values = operator.attrgetter(*attributes)
        self._values: Callable[[Any], tuple[Any, ...]] = values if len(attributes) > 1 else lambda top: (values(top),)
        self._absent = (None,) * len(attributes)

    def find(self, headers: Mapping[str, str], top: Any) -> tuple[str, str]:
        """The value and the source; ("", "fingerprint") where that is next in order, ("", "") when there is none."""
        values = self._absent if top is None else self._values(top)
        sources = self._sources
        if self._names.isdisjoint(headers):
            if values == self._absent:
                return "", self._last  # the usual case, at the cost of two calls
            sources = self._not_in_headers
        for kind, name, rest, source in sources:
            if kind == "body":
                raw = values[name]
                if raw is None:
                    continue
                value = self._from_body(raw, rest)
            elif kind == "header":
                value = headers.get(name, "")
            elif kind == "cookie":
                value = _cookie(headers.get("cookie", ""), name)
            else:
                return "", source
            if value and len(value) <= self._max_bytes:
                return value, source
        return "", ""

    def _from_body(self, raw: Any, rest: tuple[str, ...]) -> str:
        if not rest:
            if memoryview(raw)[0] != 0x7B:
                return as_text(raw, self._max_bytes + 2)
            rest = ("id",)  # `conversation` may be {"id": ...}
        if len(raw) > _SMALL or len(raw) < 4:
            return ""
        return plain(child(raw, *rest))


def _cookie(header: str, name: str) -> str:
    for pair in header.split(";"):
        key, equals, value = pair.strip().partition("=")
        if equals and key == name:
            return value.strip('"')
    return ""


def first_header(headers: Mapping[str, str], names: tuple[str, ...], limit: int = 256) -> str:
    """The first non-empty of some headers; values over `limit` characters are passed over."""
    for name in names:
        value = headers.get(name)
        if value and len(value) <= limit:
            return value
    return ""
