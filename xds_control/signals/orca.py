"""ORCA load reports that an engine sends with its answers (`endpoint-load-metrics` and `endpoint-load-metrics-bin`).

Three forms of one report: `JSON {...}`, `TEXT key=value, ...` and `BIN <base64 of the protobuf>`; the older
`-bin` header is bare base64. vLLM writes TEXT or JSON on answers that are not streamed, Triton likewise.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from xds.data.orca.v3 import orca_load_report_pb2

HEADER: Final = "endpoint-load-metrics"
HEADER_BIN: Final = "endpoint-load-metrics-bin"

MAX_LENGTH: Final = 8192
"""A longer header value is not read."""
MAX_METRICS: Final = 64
"""Values beyond this number in one report are dropped."""
MAX_NAME: Final = 128

_SCALARS: Final = (
    "cpu_utilization",
    "mem_utilization",
    "application_utilization",
    "rps_fractional",
    "eps",
)
_MAPS: Final = ("named_metrics", "utilization", "request_cost")

Number = float | int | str | None


_FIELDS: Final[list[tuple[str, Any, Any]]] = [
    *((name, Number, None) for name in (*_SCALARS, "rps")),
    *((name, dict[str, Number] | None, None) for name in _MAPS),
]
_Report = msgspec.defstruct("_Report", _FIELDS)
_CamelReport = msgspec.defstruct("_CamelReport", _FIELDS, rename="camel")
"""The JSON form in the proto's names, and in the lowerCamelCase that protobuf's own JSON writes."""

_DECODE = msgspec.json.Decoder(_Report).decode
_DECODE_CAMEL = msgspec.json.Decoder(_CamelReport).decode

SIGNALS: Final[Mapping[str, str]] = {
    "named_metrics.kv_cache_usage_perc": "kv_usage",
    "named_metrics.kv_cache_utilization": "kv_usage",
    "named_metrics.kv_cache_usage": "kv_usage",
    "named_metrics.gpu_cache_usage_perc": "kv_usage",
    "utilization.kv_cache": "kv_usage",
    "named_metrics.num_requests_waiting": "waiting",
    "named_metrics.num_requests_running": "running",
    "named_metrics.num_waiting_reqs": "waiting",
    "named_metrics.num_running_reqs": "running",
    "utilization.gpu": "gpu_util",
    "named_metrics.gpu_utilization": "gpu_util",
}
"""Name in a report → signal of the catalogue, for the names that engines are known to send."""

RATIOS: Final = frozenset({"kv_usage", "gpu_util"})
"""Signals of `SIGNALS` that lie between 0 and 1; anything else in a report is not believed."""


def parse(value: str) -> dict[str, float] | None:
    """Values of a report in an `endpoint-load-metrics` header, by name: `cpu_utilization`,
    `named_metrics.kv_cache_usage_perc`, `utilization.gpu`, ... None when it cannot be read.

    Values that are negative or not finite are left out, as are those beyond `MAX_METRICS`.
    """
    if len(value) > MAX_LENGTH:
        return None
    kind, _, rest = value.partition(" ")
    if kind == "JSON":
        return parse_json(rest)
    if kind == "TEXT":
        return parse_text(rest)
    if kind == "BIN":
        return parse_bin(rest)
    stripped = value.strip()
    # Without a prefix: what it can only be (old sidecars leave the prefix out).
    if stripped.startswith("{"):
        return parse_json(stripped)
    return parse_text(stripped) if "=" in stripped.rstrip("=") else None


def parse_json(text: str) -> dict[str, float] | None:
    """Values of the JSON form (without its prefix)."""
    try:
        report: Any = _DECODE(text)
        if report == _EMPTY:
            report = _DECODE_CAMEL(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    found: dict[str, float] = {}
    for name in _SCALARS:
        _put(found, name, getattr(report, name))
    if "rps_fractional" not in found:
        _put(found, "rps_fractional", report.rps)
    for group in _MAPS:
        for name, number in (getattr(report, group) or {}).items():
            _put(found, f"{group}.{name}", number)
    return found


def parse_text(text: str) -> dict[str, float] | None:
    """Values of the TEXT form (without its prefix): `named_metrics.a=0.4, cpu_utilization=0.1`. Parts that are
    not `name=number` are left out; None when none is."""
    found: dict[str, float] = {}
    for part in text.split(",", MAX_METRICS + 1)[:MAX_METRICS]:
        name, equals, number = part.partition("=")
        if equals:
            _put(found, name.strip(), number.strip())
    return found or None


def parse_bin(text: str) -> dict[str, float] | None:
    """Values of a base64 protobuf (`BIN` form without its prefix, or the `endpoint-load-metrics-bin` header)."""
    if len(text) > MAX_LENGTH:
        return None
    body = text.strip().replace("-", "+").replace("_", "/")
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
        report = orca_load_report_pb2.OrcaLoadReport.FromString(raw)
    except (binascii.Error, ValueError, DecodeError):
        return None
    found: dict[str, float] = {}
    for name in _SCALARS:
        number = getattr(report, name)
        if number:  # proto3: zero and absent look the same
            _put(found, name, number)
    if "rps_fractional" not in found and report.rps:
        _put(found, "rps_fractional", report.rps)
    for group in _MAPS:
        for name, number in getattr(report, group).items():
            _put(found, f"{group}.{name}", number)
    return found


def signals(report: Mapping[str, float]) -> dict[str, float]:
    """The values of a report (as `parse` gives them) that are signals of the catalogue, by signal name."""
    found: dict[str, float] = {}
    for name, value in report.items():
        signal = SIGNALS.get(name)
        if signal is not None and not (signal in RATIOS and value > 1.0):
            found.setdefault(signal, value)
    return found


_EMPTY: Final = _Report()


def _put(found: dict[str, float], name: str, value: Number) -> None:
    if value is None or not name or len(name) > MAX_NAME or len(found) >= MAX_METRICS:
        return
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return
    if math.isfinite(number) and number >= 0:
        found[name] = number
