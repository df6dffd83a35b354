"""Where session, tenant and class come from, in the order that policy gives."""

from __future__ import annotations

import operator
from collections.abc import Mapping
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
        self._sources: list[tuple[str, str, tuple[str, ...], str]] = []
        self.fields: tuple[str, ...] = ()
        names = set()
        for source in sources:
            kind, _, name = source.partition(":")
            first, *rest = name.split(".") if kind == "body" else (name,)
            self._sources.append((kind, first, tuple(rest), source))
            if kind == "body" and first not in self.fields:
                self.fields += (first,)
            elif kind in ("header", "cookie"):
                names.add(first if kind == "header" else "cookie")
        self._names = frozenset(names)
        self._values = operator.attrgetter(*map(attribute, self.fields)) if len(self.fields) > 1 else None
        self._absent = (None,) * len(self.fields)
        self._last = FINGERPRINT if FINGERPRINT in sources else ""

    def find(self, headers: Mapping[str, str], top: Any) -> tuple[str, str]:
        """The value and the source; ("", "fingerprint") where that is next in order, ("", "") when there is none."""
        if (
            self._names.isdisjoint(headers)
            and self._values is not None
            and (top is None or self._values(top) == self._absent)
        ):
            return "", self._last  # the usual case, at the cost of two calls
        for kind, name, rest, source in self._sources:
            if kind == "header":
                value = headers.get(name)
                if not value:
                    continue
            elif kind == "body":
                if top is None:
                    continue
                raw = getattr(top, attribute(name))
                if raw is None:
                    continue
                value = self._from_body(raw, rest)
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
