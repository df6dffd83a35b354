"""Pages of NVIDIA's dcgm-exporter: one GpuState for each GPU or GPU instance. Old and new field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_control.signals.exposition import Selector, Series, merge_counts
from xds_control.signals.gpu import GpuState

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Field:
    """A GpuState field: names in order of preference, factor to its unit, and whether several series are summed."""

    target: str
    names: tuple[tuple[str, float], ...]
    whole: bool = False
    summed: bool = False


def _dev(*names: str) -> tuple[str, ...]:
    return tuple(f"DCGM_FI_DEV_{name}" for name in names)


_FIELDS = (
    _Field("mem_total_bytes", tuple((name, MIB) for name in _dev("FB_TOTAL")), whole=True),
    _Field("mem_used_bytes", tuple((name, MIB) for name in _dev("FB_USED")), whole=True),
    _Field("mem_free_bytes", tuple((name, MIB) for name in _dev("FB_FREE")), whole=True),
    _Field("util", (*((name, 0.01) for name in _dev("GPU_UTIL")), ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0))),
    _Field("mem_bw_util", (("DCGM_FI_PROF_DRAM_ACTIVE", 1.0), *((name, 0.01) for name in _dev("MEM_COPY_UTIL")))),
    _Field("temp_c", tuple((name, 1.0) for name in _dev("GPU_TEMP", "GPU_TEMP_CELSIUS"))),
    _Field("power_w", tuple((name, 1.0) for name in _dev("POWER_USAGE", "BOARD_POWER_WATTS"))),
    _Field("power_limit_w", tuple((name, 1.0) for name in _dev("ENFORCED_POWER_LIMIT", "POWER_MGMT_LIMIT"))),
    _Field(
        "throttle_reasons",
        tuple((name, 1.0) for name in _dev("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS")),
        whole=True,
    ),
    _Field("xid_last", tuple((name, 1.0) for name in _dev("XID_ERRORS", "XID_ERROR")), whole=True),
    _Field("xid_count", (("DCGM_EXP_XID_ERRORS_COUNT", 1.0),), whole=True, summed=True),
    _Field("ecc_uncorrected", tuple((name, 1.0) for name in _dev("ECC_DBE_VOL_TOTAL")), whole=True),
    _Field("remap_failures", tuple((name, 1.0) for name in _dev("ROW_REMAP_FAILURE")), whole=True),
    _Field("nvlink_rx_bytes_s", (("DCGM_FI_PROF_NVLINK_RX_BYTES", 1.0),)),
    _Field("nvlink_tx_bytes_s", (("DCGM_FI_PROF_NVLINK_TX_BYTES", 1.0),)),
    _Field("pcie_rx_bytes_s", (("DCGM_FI_PROF_PCIE_RX_BYTES", 1.0),)),
    _Field("pcie_tx_bytes_s", (("DCGM_FI_PROF_PCIE_TX_BYTES", 1.0),)),
)
_RATIO = _dev("FB_USED_PERCENT", "FB_USED_RATIO")
_RESERVED = _dev("FB_RESERVED")[0]

FAMILIES: tuple[str, ...] = (*(name for one in _FIELDS for name, _ in one.names), *_RATIO, _RESERVED)
_SELECTOR = Selector(dict.fromkeys(FAMILIES, "value"))

# "Blank", "not found", "not supported", "no permission" as 32-bit integers and as doubles; the 64-bit ones are
# refused by the reader of the page already.
_BLANKS = (range(2147483632, 2147483636), range(140737488355328, 140737488355332))


@dataclass(slots=True)
class GpuPage:
    """What an exporter's page says. node: the exporter's host name. dropped: reason → values not used."""

    node: str = ""
    gpus: list[GpuState] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    recognised: bool = False


def read_dcgm(body: bytes) -> GpuPage:
    """Reads a page. A GPU instance (MIG) has the UUID of its GPU with `/gi` and its number, and the GPU as parent."""
    out = GpuPage()
    if not body.endswith(b"\n"):
        merge_counts(out.dropped, {"partial": 1})
        return out
    page = _SELECTOR.read(body)
    out.dropped = page.dropped
    table: dict[str, dict[str, float]] = {}
    first: dict[str, Series] = {}
    pods: dict[str, Series] = {}
    summed = {name for one in _FIELDS if one.summed for name, _ in one.names}
    spoiled: set[tuple[str, str]] = set()
    for family, rows in page.rows.items():
        for series, value in rows.items():
            uuid = _identity(series.labels)
            if uuid is None:
                merge_counts(out.dropped, {"no_uuid": 1})
                continue
            if value >= 2147483632 and any(int(value) in blank for blank in _BLANKS):
                merge_counts(out.dropped, {"blank": 1})
                continue
            first.setdefault(uuid, series)
            if series.labels.get("pod"):
                pods[uuid] = series
            mine = table.setdefault(uuid, {})
            if family in summed:
                mine[family] = mine.get(family, 0.0) + value
            elif mine.setdefault(family, value) != value:
                # One GPU, two values: with and without a pod's labels they must agree.
                spoiled.add((uuid, family))
    for uuid, family in spoiled:
        merge_counts(out.dropped, {"conflict": 1})
        del table[uuid][family]
    for uuid, values in table.items():
        out.gpus.append(_state(uuid, values, first[uuid], pods.get(uuid)))
        out.node = out.node or first[uuid].labels.get("Hostname", first[uuid].labels.get("hostname", ""))
    out.recognised = bool(out.gpus) or b"\nDCGM_" in body or body.startswith(b"DCGM_")
    return out


def _identity(labels: Mapping[str, str]) -> str | None:
    uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid")
    if not uuid:
        return None
    instance = labels.get("GPU_I_ID")
    return f"{uuid}/gi{instance}" if instance else uuid


def _state(uuid: str, values: dict[str, float], series: Series, pod: Series | None) -> GpuState:
    found: dict[str, float | int] = {}
    for one in _FIELDS:
        for name, scale in one.names:
            if name in values:
                value = values[name] * scale
                found[one.target] = int(value) if one.whole else value
                break
    used, free = found.get("mem_used_bytes"), found.get("mem_free_bytes")
    if "mem_total_bytes" not in found and used is not None and free is not None:
        found["mem_total_bytes"] = int(used + free + values.get(_RESERVED, 0.0) * MIB)
    if found.get("mem_total_bytes") == 0:
        # Unified memory: the driver answers zero for "there is no memory of the GPU's own".
        for name in ("mem_total_bytes", "mem_used_bytes", "mem_free_bytes"):
            found.pop(name, None)
    ratio = next((values[name] for name in _RATIO if name in values), None)
    if used is None and ratio is not None and "mem_total_bytes" in found and ratio <= 1:
        found["mem_used_bytes"] = int(ratio * found["mem_total_bytes"])
    labels = series.labels
    parent, instance, _ = uuid.partition("/gi")
    index = labels.get("gpu", "")
    owner = {} if pod is None else {name: pod.labels[name] for name in ("pod", "namespace") if pod.labels.get(name)}
    return GpuState(
        uuid=uuid,
        name=labels.get("modelName", labels.get("model_name", "")),
        parent_uuid=parent if instance else "",
        index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None,
        labels=owner,
        **found,  # type: ignore[arg-type]
    )
