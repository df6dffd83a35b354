"""A selective reader of Prometheus and OpenMetrics text: only the wanted families, in a tenth of a millisecond.

The text before a sample's value is the same on every page of an engine, so a line is cut at its last
blank and what stands before it is looked up in a table that remembers how it was understood. Only lines
that were never seen take the careful path, which handles blanks in label lists, escapes, tabs, time stamps
and exemplars. Names are compared without the differences that exporters make: `:` is `_`, one leading
`ray_` is dropped, counters may or may not end in `_total`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

Kind = Literal["value", "histogram"]
Part = Literal["value", "bucket", "sum", "count"]

_PARTS: tuple[Part, ...] = ("bucket", "sum", "count")

BLANK = 9.2e18
"""From here on a number is one of DCGM's int64 "blank" marks (0x7ffffffffffffff0 and up), not a measurement."""

_NAME = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=\}))')
_END = re.compile(rb"[ \t]*\}")
_ESCAPE = re.compile(r"\\([\\n\"])")
_MAX_HEADS = 32768
_MAX_HEAD_BYTES = 8192


class BadLine(ValueError):
    """A line that is neither a sample nor a comment. `args[0]` is the reason it is counted under."""


class Sample(NamedTuple):
    """One sample: name as written, labels in order of their names, the value's text; plain when nothing follows it."""

    name: str
    labels: tuple[tuple[str, str], ...]
    text: bytes
    plain: bool

    @property
    def value(self) -> float:
        return number(self.text)


class Series:
    """One time series of a wanted family; one object for all its samples on all pages, compared by identity.

    labels are those that tell series apart, without `le`; bound is the value of `le` (None outside of buckets).
    group is equal for series that repeat one value, such as those of the ranks of one tensor-parallel group.
    """

    __slots__ = ("__weakref__", "bound", "family", "group", "labels", "part")

    def __init__(
        self, family: str, part: Part, labels: tuple[tuple[str, str], ...], bound: float | None, group: object = None
    ) -> None:
        self.family = family
        self.part = part
        self.labels: Mapping[str, str] = dict(labels)
        self.bound = bound
        self.group = group

    def __repr__(self) -> str:
        le = "" if self.bound is None else f" le={self.bound:g}"
        return f"<Series {self.family}.{self.part} {dict(self.labels)}{le}>"


_UNSEEN = Series("", "value", (), None)


class Page(NamedTuple):
    """What one page says: family → series → value; families of which a series was unusable; why values were dropped."""

    rows: dict[str, dict[Series, float]]
    spoiled: dict[str, list[Series]]
    dropped: dict[str, int]


def normalise(name: str) -> str:
    """A metric name without what exporters change about it (not `_total`, which the caller accepts both ways)."""
    return name.replace(":", "_").removeprefix("ray_")


def number(text: bytes) -> float:
    """The number in a sample's value. Raises BadLine when it is none (`1_000` is none, though Python would take it)."""
    if b"_" in text:
        raise BadLine("bad_number")
    try:
        return float(text)
    except ValueError:
        raise BadLine("bad_number") from None


def parse_line(line: bytes) -> Sample | None:
    """One line with all care. None for blank lines and comments; raises BadLine for what is not a sample."""
    named = _NAME.match(line)
    if named is None:
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            return None
        raise BadLine("bad_line")
    at = named.end()
    labels: list[tuple[str, str]] = []
    if line[at : at + 1] == b"{":
        at += 1
        while True:
            label = _LABEL.match(line, at)
            if label is None:
                break
            labels.append((label[1].decode("ascii"), _unescape(label[2])))
            at = label.end()
        end = _END.match(line, at)
        if end is None:
            raise BadLine("bad_line")
        at = end.end()
    elif named.end() == named.end(1):
        raise BadLine("bad_line")
    rest = line[at:].partition(b"#")
    fields = rest[0].split()
    if not 1 <= len(fields) <= 2:
        raise BadLine("bad_line")
    plain = not rest[1] and len(fields) == 1 and line.endswith(fields[0])
    return Sample(named[1].decode("ascii"), tuple(sorted(labels)), fields[0], plain)


def parse(page: bytes) -> Iterator[Sample]:
    """All samples of a page in order; lines that are not samples are left out."""
    for line in page.split(b"\n"):
        try:
            sample = parse_line(line)
        except BadLine:
            continue
        if sample is not None:
            yield sample


def _unescape(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadLine("bad_utf8") from None
    if "\\" in text:
        return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
    return text


class Selector:
    """Reads the wanted families out of pages. One is shared by all endpoints of an adapter; memory is bounded.

    families: normalised name → "value" (gauge or counter) or "histogram". same: labels whose series repeat one value.
    """

    def __init__(self, families: Mapping[str, Kind], same: Iterable[str] = ()) -> None:
        self._same = frozenset(same)
        self._names: dict[str, tuple[str, Part]] = {}
        for family, kind in families.items():
            if kind == "histogram":
                for part in _PARTS:
                    self._names[f"{family}_{part}"] = (family, part)
                self._names.setdefault(family, (family, "bucket"))
            else:
                base = family.removesuffix("_total")
                self._names.setdefault(base, (family, "value"))
                self._names[base + "_total"] = (family, "value")
        self._by_name: dict[bytes, tuple[str, Part] | None] = {}
        self._heads: dict[bytes, Series | None] = {}
        self._series: WeakValueDictionary[tuple[object, ...], Series] = WeakValueDictionary()

    def read(self, page: bytes) -> Page:
        """The wanted samples of a page. What cannot be a measurement is left out, counted and spoils its family."""
        rows: dict[str, dict[Series, float]] = {}
        spoiled: dict[str, list[Series]] = {}
        dropped: dict[str, int] = {}
        seen = self._heads.get
        for line in page.split(b"\n"):
            head, _, text = line.rpartition(b" ")
            series = seen(head, _UNSEEN)
            if series is None:
                continue
            if series is _UNSEEN:
                try:
                    found = self._understand(line, head, text)
                    if found is None:
                        continue
                    series, text = found
                except BadLine as bad:
                    _count(dropped, str(bad))
                    continue
            try:
                value = float(text)
            except ValueError:
                value, text = _careful(line)
            # One comparison chain refuses NaN, infinities, negatives and blank marks; `_` is Python's, not Prometheus'.
            if not 0.0 <= value < BLANK or b"_" in text:
                _count(dropped, _reason(text))
                spoiled.setdefault(series.family, []).append(series)
                continue
            family = rows.get(series.family)
            if family is None:
                rows[series.family] = {series: value}
            elif series not in family:
                family[series] = value
            elif family[series] == value:
                _count(dropped, "duplicate")
            else:
                _count(dropped, "conflict")
                spoiled.setdefault(series.family, []).append(series)
        return Page(rows, spoiled, dropped)

    def _understand(self, line: bytes, head: bytes, text: bytes) -> tuple[Series, bytes] | None:
        """A line whose head is new: its series and value, None when it is not wanted. Heads that recur are kept."""
        start = line.lstrip(b" \t")[:1]
        if start in (b"", b"#", b"\r"):
            if start == b"#" and len(head) <= _MAX_HEAD_BYTES:
                self._remember(head, None)
            return None
        wanted = self._wanted(line)
        if wanted is None:
            # Heads that hold a value before a time stamp or an exemplar differ on every page: not worth remembering.
            if head and len(head) <= _MAX_HEAD_BYTES and b"#" not in head and (head[-1:] == b"}" or b" " not in head):
                self._remember(head, None)
            return None
        sample = parse_line(line)
        if sample is None:
            return None
        family, part = wanted
        labels = tuple(pair for pair in sample.labels if pair[0] != "le")
        bound: float | None = None
        if part == "bucket":
            le = dict(sample.labels).get("le")
            if le is None:
                raise BadLine("bad_bucket")
            bound = number(le.encode())
            if bound != bound:
                raise BadLine("bad_bucket")
        key = (family, part, labels, bound)
        series = self._series.get(key)
        if series is None:
            group = (part, bound, tuple(pair for pair in labels if pair[0] not in self._same)) if self._same else None
            series = self._series[key] = Series(family, part, labels, bound, group)
        if sample.plain and sample.text == text and len(head) <= _MAX_HEAD_BYTES:
            self._remember(head, series)
        return series, sample.text

    def _wanted(self, line: bytes) -> tuple[str, Part] | None:
        named = _NAME.match(line)
        if named is None:
            raise BadLine("bad_line")
        name = named[1]
        try:
            return self._by_name[name]
        except KeyError:
            wanted = self._names.get(normalise(name.decode("ascii")))
            if len(self._by_name) > _MAX_HEADS:
                self._by_name.clear()
            self._by_name[name] = wanted
            return wanted

    def _remember(self, head: bytes, series: Series | None) -> None:
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[head] = series


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def _careful(line: bytes) -> tuple[float, bytes]:
    """Value and its text of a line whose head is known but whose last word is no number (a tab before a time stamp)."""
    try:
        sample = parse_line(line)
        return (-1.0, b"") if sample is None else (sample.value, sample.text)
    except BadLine:
        return -1.0, b""


def _reason(text: bytes) -> str:
    try:
        value = number(text)
    except BadLine:
        return "bad_number"
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "infinite"
    return "unknown" if value == -1 else "negative" if value < 0 else "blank"


def names(page: bytes, limit: int = 4096) -> set[str]:
    """The normalised names on a page (at most `limit` lines are looked at), for recognising an engine."""
    found: set[str] = set()
    for line in page.split(b"\n", limit)[:limit]:
        named = _NAME.match(line)
        if named is not None:
            found.add(named[1].decode("ascii"))
    return {normalise(name) for name in found}


def merge_counts(into: dict[str, int], more: Mapping[str, int] | Iterable[tuple[str, int]]) -> None:
    """Adds counts by reason."""
    for reason, count in more.items() if isinstance(more, Mapping) else more:
        into[reason] = into.get(reason, 0) + count
