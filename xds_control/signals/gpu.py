"""GPUs: their states from agents and exporters, which endpoint each belongs to, and what they mean for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from xds_control.fleet.endpoint import Endpoint
from xds_control.signals.store import SignalStore

THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons that mean trouble: hardware slowdown, both thermal ones, power brake; not idle or the power cap."""

XID_FELL_OFF = 79
"""The Xid for "GPU has fallen off the bus", which is what NVML's GPU_IS_LOST says."""

LABEL_NODE = "gpu.node"
LABEL_INDEX = "gpu.index"
LABEL_PID = "gpu.pid"
LABEL_POD = "gpu.pod"
LABEL_NAMESPACE = "gpu.namespace"

_INHERITED = (
    "temp_c",
    "power_w",
    "power_limit_w",
    "throttle_reasons",
    "xid_last",
    "xid_count",
    "ecc_uncorrected",
    "remap_failures",
    "nvlink_rx_bytes_s",
    "nvlink_tx_bytes_s",
    "pcie_rx_bytes_s",
    "pcie_tx_bytes_s",
)
"""What a MIG device does not have of its own and takes from its GPU."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU or MIG device. None is "not known" or "not supported", never zero.

    uuid: `GPU-...` or `MIG-...`. parent_uuid: of a MIG device. index: in PCI order on its node. util, mem_bw_util:
    0..1. throttle_reasons: NVML's bit mask. pids: processes that use it. lost: fell off the bus or needs a reset.
    labels: `pod` and `namespace` where an exporter knows them.
    """

    uuid: str
    name: str = ""
    parent_uuid: str = ""
    index: int | None = None
    mem_total_bytes: int | None = None
    mem_used_bytes: int | None = None
    mem_free_bytes: int | None = None
    util: float | None = None
    mem_bw_util: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: int | None = None
    xid_last: int | None = None
    xid_count: int | None = None
    ecc_uncorrected: int | None = None
    remap_failures: int | None = None
    nvlink_rx_bytes_s: float | None = None
    nvlink_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None
    pcie_tx_bytes_s: float | None = None
    pids: tuple[int, ...] = ()
    lost: bool = False
    error: str = ""
    unified_memory: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


STATE_FIELDS = tuple(one.name for one in fields(GpuState))


def with_parent(device: GpuState, parent: GpuState | None) -> GpuState:
    """A MIG device with what only its GPU can tell. A lost GPU takes its devices with it."""
    if parent is None:
        return device
    taken = {name: getattr(parent, name) for name in _INHERITED if getattr(device, name) is None}
    return replace(device, **taken, lost=device.lost or parent.lost)


def gpu_signals(states: Iterable[GpuState]) -> dict[str, float]:
    """The signals of an endpoint on these GPUs: the worst of them counts. Absent where none of them tells."""
    out: dict[str, float] = {}

    def worst(name: str, value: float | None, least: bool = False) -> None:
        if value is None:
            return
        held = out.get(name)
        if held is None or (value < held if least else value > held):
            out[name] = float(value)

    xid: tuple[int, int] | None = None
    count = ecc = 0
    counted = ecc_known = False
    for state in states:
        used = state.mem_used_bytes
        total, free = state.mem_total_bytes, state.mem_free_bytes
        if used is not None and total:
            worst("gpu_mem_used_ratio", min(1.0, used / total))
        if free is None and total and used is not None:
            free = max(0, total - used)
        worst("gpu_mem_free_bytes", free, least=True)
        worst("gpu_util", state.util)
        worst("gpu_mem_bw_util", state.mem_bw_util)
        worst("gpu_temp", state.temp_c)
        if state.power_w is not None and state.power_limit_w:
            worst("gpu_power_ratio", state.power_w / state.power_limit_w)
        if state.throttle_reasons is not None:
            worst("gpu_throttled", 1.0 if state.throttle_reasons & THROTTLED else 0.0)
        worst("nvlink_rx", state.nvlink_rx_bytes_s)
        worst("nvlink_tx", state.nvlink_tx_bytes_s)
        worst("pcie_rx", state.pcie_rx_bytes_s)
        worst("pcie_tx", state.pcie_tx_bytes_s)
        if state.ecc_uncorrected is not None:
            ecc_known = True
            ecc += state.ecc_uncorrected
        seen = state.xid_count
        last = state.xid_last
        if state.lost:
            seen, last = max(1, seen or 0), XID_FELL_OFF
        if seen is not None:
            counted = True
            count += seen
        if last is not None and (xid is None or (last > 0, seen or 0) > (xid[1] > 0, xid[0])):
            xid = (seen or 0, last)
    if xid is not None:
        out["xid"] = float(xid[1])
    if counted:
        out["xid_count"] = float(count)
    if ecc_known:
        out["ecc_uncorrected"] = float(ecc)
    return out


class _Gpu:
    __slots__ = ("at", "node", "source", "state")

    def __init__(self, state: GpuState, node: str, at: float, source: str) -> None:
        self.state = state
        self.node = node
        self.at = at
        self.source = source


class _Mapping(NamedTuple):
    """GPUs of endpoints at one version of what is known, and which endpoints a node concerns."""

    given: Sequence[Endpoint]
    version: int
    endpoints: dict[str, Endpoint]
    gpus: dict[str, list[_Gpu]]
    by_node: dict[tuple[str, str], set[str]]


class GpuFleet:
    """All GPUs that agents or exporters told of, and the endpoints that they belong to.

    A GPU whose state is not repeated has not changed, as long as its node is heard of: its values are as old
    as the node's last word. An endpoint finds its GPUs by `Endpoint.gpus`, else by its labels: `gpu.node` with
    `gpu.index` ("0,1"), `gpu.pid` or neither (all of the node), or `gpu.pod` with `gpu.namespace`.
    counts: "backward" (older than what is held), "full" (more than max_gpus), "unknown_lost".
    """

    def __init__(self, max_gpus: int = 65536) -> None:
        self._max = max_gpus
        self._gpus: dict[tuple[str, str], _Gpu] = {}
        self._by_node: dict[tuple[str, str], dict[str, _Gpu]] = {}
        self._heard: dict[tuple[str, str], float] = {}
        self._version = 0
        self._mapped: _Mapping | None = None
        self._news: set[tuple[str, str]] = set()
        self.counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._gpus)

    def states(self) -> list[GpuState]:
        """Every GPU that is known."""
        return [gpu.state for gpu in self._gpus.values()]

    def report(
        self,
        node: str,
        states: Iterable[GpuState],
        at: float,
        source: str,
        *,
        lost: Iterable[str] = (),
        full: bool = False,
    ) -> None:
        """What a node's agent ("nvml") or exporter ("dcgm") said at `at`; also with no states, as a sign of life.

        lost: UUIDs that are gone from the node. full: `states` is all that the node has.
        """
        key = (source, node)
        heard = self._heard.get(key)
        if heard is not None and at < heard:
            self._count("backward")
            return
        if heard is None and len(self._heard) >= self._max:
            self._count("full")
            return
        self._heard[key] = at
        self._news.add(key)
        mine = self._by_node.setdefault(key, {})
        seen: set[str] = set()
        for state in states:
            seen.add(state.uuid)
            held = mine.get(state.uuid)
            if held is None:
                if len(self._gpus) >= self._max:
                    self._count("full")
                    continue
                mine[state.uuid] = self._gpus[(source, state.uuid)] = _Gpu(state, node, at, source)
                self._version += 1
                continue
            if held.state.pids != state.pids or held.state.index != state.index or held.state.labels != state.labels:
                self._version += 1
            held.state, held.at = state, at
        gone = set(lost)
        if full:
            gone.update(uuid for uuid in mine if uuid not in seen)
        for uuid in gone:
            if mine.pop(uuid, None) is None:
                self._count("unknown_lost")
                continue
            held = self._gpus.get((source, uuid))
            if held is not None and held.node == node:
                del self._gpus[(source, uuid)]
            self._version += 1

    def forget_before(self, at: float) -> None:
        """Drops nodes that were last heard of before `at`."""
        for key in [key for key, heard in self._heard.items() if heard < at]:
            source, node = key
            del self._heard[key]
            for uuid in self._by_node.pop(key, {}):
                held = self._gpus.get((source, uuid))
                if held is not None and held.node == node:
                    del self._gpus[(source, uuid)]
            self._version += 1

    def of(self, endpoint: Endpoint) -> list[GpuState]:
        """The GPUs of an endpoint as last told, by whatever source."""
        return [self._whole(gpu) for gpu in self._find(endpoint)]

    def unmapped(self, endpoints: Iterable[Endpoint]) -> list[str]:
        """UUIDs that belong to no endpoint: parents of mapped MIG devices do not count."""
        used: set[str] = set()
        for endpoint in endpoints:
            for gpu in self._find(endpoint):
                used.update((gpu.state.uuid, gpu.state.parent_uuid))
        return sorted({uuid for _, uuid in self._gpus} - used)

    def fill(self, store: SignalStore, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Puts the GPU signals of endpoints into the store, of those whose nodes were heard of since the last time.

        Those endpoints come back. Meant to be called once a tick, however many reports there were.
        """
        mapping = self._mapping(endpoints)
        news, self._news = self._news, set()
        touched = {address for key in news for address in mapping.by_node.get(key, ())}
        found: list[Endpoint] = []
        for address in sorted(touched):
            by_source: dict[str, list[_Gpu]] = {}
            for gpu in mapping.gpus[address]:
                by_source.setdefault(gpu.source, []).append(gpu)
            for source, mine in by_source.items():
                values = gpu_signals(self._whole(gpu) for gpu in mine)
                at = min(self._heard.get((source, gpu.node), gpu.at) for gpu in mine)
                store.put_all(address, values, at, source)
            found.append(mapping.endpoints[address])
        return found

    def _mapping(self, endpoints: Sequence[Endpoint]) -> _Mapping:
        """Which GPUs each endpoint has; found anew when the endpoints, the GPUs or their processes are others."""
        mapped = self._mapped
        if mapped is not None and mapped.version == self._version and mapped.given == tuple(endpoints):
            return mapped
        mapped = _Mapping(tuple(endpoints), self._version, {one.address: one for one in endpoints}, {}, {})
        for address, endpoint in mapped.endpoints.items():
            mapped.gpus[address] = self._find(endpoint)
            for gpu in mapped.gpus[address]:
                mapped.by_node.setdefault((gpu.source, gpu.node), set()).add(address)
        self._news.update(mapped.by_node)
        self._mapped = mapped
        return mapped

    def _whole(self, gpu: _Gpu) -> GpuState:
        parent = gpu.state.parent_uuid
        if not parent:
            return gpu.state
        held = self._gpus.get((gpu.source, parent))
        return with_parent(gpu.state, None if held is None else held.state)

    def _find(self, endpoint: Endpoint) -> list[_Gpu]:
        sources = sorted({source for source, _ in self._by_node})
        if endpoint.gpus:
            return [
                gpu
                for source in sources
                for uuid in endpoint.gpus
                if (gpu := self._gpus.get((source, uuid))) is not None
            ]
        labels = endpoint.labels
        node = labels.get(LABEL_NODE)
        pod = labels.get(LABEL_POD)
        if node is None and pod is None:
            return []
        nodes = [(source, node) for source in sources] if node is not None else list(self._by_node)
        candidates = [gpu for key in nodes for gpu in self._by_node.get(key, {}).values()]
        if pod is not None:
            namespace = labels.get(LABEL_NAMESPACE)
            candidates = [
                gpu
                for gpu in candidates
                if gpu.state.labels.get("pod") == pod
                and (namespace is None or gpu.state.labels.get("namespace") == namespace)
            ]
        if LABEL_INDEX in labels:
            wanted = _numbers(labels[LABEL_INDEX])
            candidates = [gpu for gpu in candidates if gpu.state.index in wanted and not gpu.state.parent_uuid]
        if LABEL_PID in labels:
            pids = _numbers(labels[LABEL_PID])
            candidates = [gpu for gpu in candidates if pids.intersection(gpu.state.pids)]
        # A MIG device stands for its part of the GPU; the GPU itself would count its neighbours' load.
        parents = {gpu.state.parent_uuid for gpu in candidates}
        return [gpu for gpu in candidates if gpu.state.uuid not in parents]

    def _count(self, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1


def _numbers(text: str) -> set[int]:
    return {int(part) for part in text.replace(" ", "").split(",") if part.isdecimal()}
