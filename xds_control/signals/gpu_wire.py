"""GPU states on the wire: Fleet's GpuReport and back."""

from __future__ import annotations

from collections.abc import Iterable

from xds_control.proto import fleet_pb2 as pb
from xds_control.signals.gpu import GpuFleet, GpuState

_OPTIONAL = (
    "index",
    "mem_total_bytes",
    "mem_used_bytes",
    "mem_free_bytes",
    "util",
    "mem_bw_util",
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
_UNSIGNED = {
    "index": 2**32 - 1,
    "mem_total_bytes": 2**64 - 1,
    "mem_used_bytes": 2**64 - 1,
    "mem_free_bytes": 2**64 - 1,
    "throttle_reasons": 2**64 - 1,
    "xid_last": 2**32 - 1,
    "xid_count": 2**64 - 1,
    "ecc_uncorrected": 2**64 - 1,
    "remap_failures": 2**64 - 1,
}
MAX_GPUS_PER_REPORT = 4096


def to_proto(state: GpuState) -> pb.GpuState:
    """A state as a message; what is None stays unset."""
    message = pb.GpuState(
        uuid=state.uuid,
        name=state.name,
        parent_uuid=state.parent_uuid,
        pids=state.pids,
        lost=state.lost,
        error=state.error,
        unified_memory=state.unified_memory,
    )
    for name in _OPTIONAL:
        value = getattr(state, name)
        if value is not None:
            top = _UNSIGNED.get(name)
            setattr(message, name, value if top is None else min(max(0, int(value)), top))
    return message


def from_proto(message: pb.GpuState) -> GpuState:
    """A message as a state; unset fields are None."""
    values = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return GpuState(
        uuid=message.uuid,
        name=message.name,
        parent_uuid=message.parent_uuid,
        pids=tuple(message.pids),
        lost=message.lost,
        error=message.error,
        unified_memory=message.unified_memory,
        **values,
    )


def report(node: str, driver: str, states: Iterable[GpuState], lost: Iterable[str], full: bool) -> pb.GpuReport:
    """A report of a node's agent."""
    return pb.GpuReport(node=node, driver=driver, gpus=[to_proto(one) for one in states], lost=list(lost), full=full)


def take_report(fleet: GpuFleet, message: pb.GpuReport, sender: str, at: float) -> None:
    """Takes an agent's report in. at: when it came; senders' clocks are not used. A nameless node is its sender."""
    states = [from_proto(one) for one in message.gpus[:MAX_GPUS_PER_REPORT] if one.uuid]
    fleet.report(message.node or sender, states, at, "nvml", lost=message.lost, full=message.full)
