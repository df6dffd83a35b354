"""What an agent has to tell: only what changed since it was last sent, the newest state of each GPU only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xds_control.signals.gpu import STATE_FIELDS, GpuState

_MIB = float(1 << 20)

_STEPS: dict[str, tuple[float, float]] = {
    # field: (absolute step, step relative to what was sent); the larger of both must be passed
    "mem_used_bytes": (8 * _MIB, 0.0),
    "mem_free_bytes": (8 * _MIB, 0.0),
    "util": (0.02, 0.0),
    "mem_bw_util": (0.02, 0.0),
    "temp_c": (1.0, 0.0),
    "power_w": (5.0, 0.02),
    "nvlink_rx_bytes_s": (10e6, 0.05),
    "nvlink_tx_bytes_s": (10e6, 0.05),
    "pcie_rx_bytes_s": (10e6, 0.05),
    "pcie_tx_bytes_s": (10e6, 0.05),
}
"""Smaller movements than these are not worth a message; all other fields are sent at any change."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One message's worth. With nothing in it, it is a sign of life."""

    changed: tuple[GpuState, ...]
    gone: tuple[str, ...]
    full: bool


class Changes:
    """Collects states and hands out what is new when the sender has room.

    A slow receiver costs nothing: while nothing is taken, states replace each other. heartbeat_s: a batch is
    handed out at least so often. full_s: everything is repeated so often.
    """

    def __init__(self, heartbeat_s: float = 1.0, full_s: float = 60.0) -> None:
        self._heartbeat = heartbeat_s
        self._full = full_s
        self._now: dict[str, GpuState] = {}
        self._sent: dict[str, GpuState] = {}
        self._gone: set[str] = set()
        self._sent_at: float | None = None
        self._full_at: float | None = None

    def observe(self, states: Iterable[GpuState]) -> None:
        """All GPUs of the node as they are now. Those that are not among them are gone."""
        now = {state.uuid: state for state in states}
        self._gone.update(uuid for uuid in self._sent if uuid not in now)
        self._gone.difference_update(now)
        self._now = now

    def unreadable(self, error: str) -> None:
        """The driver cannot be asked: all that was measured is unknown now. Counts of the past stay."""
        self._now = {
            uuid: GpuState(
                uuid=uuid,
                name=state.name,
                parent_uuid=state.parent_uuid,
                index=state.index,
                xid_last=state.xid_last,
                xid_count=state.xid_count,
                error=error,
            )
            for uuid, state in self._now.items()
        }

    def connected(self) -> None:
        """A new stream begins: the receiver may know nothing."""
        self._full_at = None
        self._sent.clear()
        self._gone.clear()

    def take(self, now: float) -> Batch | None:
        """What is to be sent at `now` (monotonic seconds), taken as sent. None when there is nothing to say."""
        if self._full_at is None or now - self._full_at >= self._full:
            self._sent = dict(self._now)
            self._gone.clear()
            self._full_at = self._sent_at = now
            return Batch(tuple(self._now.values()), (), True)
        changed = tuple(state for uuid, state in self._now.items() if _differs(state, self._sent.get(uuid)))
        gone = tuple(sorted(self._gone))
        if not changed and not gone and self._sent_at is not None and now - self._sent_at < self._heartbeat:
            return None
        for state in changed:
            self._sent[state.uuid] = state
        for uuid in gone:
            self._sent.pop(uuid, None)
        self._gone.clear()
        self._sent_at = now
        return Batch(changed, gone, False)


def _differs(state: GpuState, sent: GpuState | None) -> bool:
    if sent is None:
        return True
    if state == sent:
        return False
    for name in STATE_FIELDS:
        new, old = getattr(state, name), getattr(sent, name)
        if new == old:
            continue
        step = _STEPS.get(name)
        if step is None or new is None or old is None:
            return True
        if abs(new - old) >= max(step[0], step[1] * abs(old)):
            return True
    return False
