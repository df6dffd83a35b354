"""What a running system cannot change: a pushed policy keeps the values that the processes were started with (pure)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.errors import Place, Problem
from xds_control.policy.schema import Policy
from xds_control.policy.xds import XdsPolicy

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "control": (
        *("xds", "fleet", "admin", "http", "store", "history", "peers_s", "watch"),
        *("admin_security", "fleet_security"),
    ),
    "processors": ("count", "mode", "listen", "health", "private", "tls", "http", "restart_backoff_s"),
    "envoy": ("admin", "concurrency", "node_id", "node_cluster", "xds"),
    "ext_proc": ("transport", "max_streams", "max_body_bytes"),
    "xds": tuple(XdsPolicy.__struct_fields__),
    "log": ("format",),
}
"""Section → fields that need a restart."""


def keep_running(wanted: Policy, running: Policy) -> tuple[Policy, list[Problem]]:
    """(the policy that can be in force, a sentence for each field that waits for a restart)."""
    changed: dict[str, Any] = {}
    notes: list[Problem] = []
    for section, fields in FIELDS.items():
        new, old = getattr(wanted, section), getattr(running, section)
        differing = [name for name in fields if getattr(new, name) != getattr(old, name)]
        if differing:
            changed[section] = msgspec.structs.replace(new, **{name: getattr(old, name) for name in differing})
        notes += [
            Problem(
                Place(path=f"{section}.{name}"),
                "takes effect when the processes are started again with this policy as their file",
            )
            for name in differing
        ]
    gpus, running_gpus = wanted.signals.gpu, running.signals.gpu
    if gpus.max_gpus != running_gpus.max_gpus:
        kept = msgspec.structs.replace(gpus, max_gpus=running_gpus.max_gpus)
        changed["signals"] = msgspec.structs.replace(wanted.signals, gpu=kept)
        notes.append(Problem(Place(path="signals.gpu.max_gpus"), "takes effect when control is started again"))
    return (msgspec.structs.replace(wanted, **changed) if changed else wanted), notes
