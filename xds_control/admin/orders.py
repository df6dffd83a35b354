"""Operators' orders: on disk before they are in force, and in force again before the first tick after a restart."""

from __future__ import annotations

from typing import Final

from xds_control.admin.core import ControlCore
from xds_control.fleet.override import Override
from xds_control.observe.logs import logger
from xds_control.policy.store import AuditRecord, Store, StoreError

RETRY_S: Final = 30.0
"""Pause after the store could not be written: it may wait for seconds itself."""


class Orders:
    """Orders of a core, kept in a store. now: monotonic seconds; wall: unix seconds."""

    def __init__(self, core: ControlCore, store: Store) -> None:
        self._core = core
        self._store = store
        self._kept: set[str] = set()
        self._again_at = 0.0
        self._log = logger("orders")

    def put(self, address: str, order: Override | None, who: str, reason: str, now: float, wall: float) -> str:
        """Puts an order into force, None takes the present one back; the kind of the one before, "" for none.

        Raises StoreError; then nothing has changed.
        """
        before = self._core.lifecycle.overrides().get(address)
        action = order.kind if order is not None else "clear"
        detail = ""
        if order is not None and order.weight is not None:
            detail = f"weight {order.weight}"
        elif order is None and before is not None:
            detail = before.kind
        if order is not None and order.until is not None:
            detail = f"{detail} for {order.until - now:.0f} s".strip()
        record = None if order is None else order.to_record(now, wall)
        self._store.put_order(address, record, AuditRecord(wall, who, action, address, detail, reason))
        self._kept.discard(address)
        if order is not None:
            self._kept.add(address)
        self._core.override(address, order, now)
        return "" if before is None else before.kind

    def restore(self, now: float, wall: float) -> None:
        """Orders from before the restart. One that cannot be read stays out, and one whose time is over ends."""
        for address, record in self._store.orders().items():
            try:
                order = Override.from_record(dict(record), now, wall)
            except (ValueError, TypeError) as error:
                self._log.error("order-not-restored", endpoint=address, error=str(error))
                continue
            self._kept.add(address)
            if not order.lapsed(now):
                self._core.override(address, order, now)
                self._log.info("order-restored", endpoint=address, order=order.kind, by=order.by)
        self.drop_lapsed(wall)

    def drop_lapsed(self, wall: float) -> None:
        """Takes orders out of the store that ended by time. One that cannot be taken out is tried again: it is over
        all the same, now and after a restart."""
        if wall < self._again_at <= wall + RETRY_S:
            return
        for address in self._kept - self._core.lifecycle.overrides().keys():
            act = AuditRecord(wall, "xds-control", "lapse", address, "its time is over")
            try:
                self._store.put_order(address, None, act)
            except StoreError as error:
                self._again_at = wall + RETRY_S
                self._log.error("lapse-not-kept", endpoint=address, error=str(error), again_in_s=RETRY_S)
                return
            self._kept.discard(address)
