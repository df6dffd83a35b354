"""The GPUs behind one endpoint: whether they can be one replica, what their values mean, whether all are there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xds_control.errors import XdsControlError
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import Reading

MIXED_LABEL = "mixed-gpus"
"""An endpoint labelled `mixed-gpus: "true"` may consist of different GPU models."""

_OLD_MIG = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)$")

_WORST_LOW = frozenset({"gpu_mem_free_bytes"})
_SUMS = frozenset({"ecc_uncorrected", "xid_count"})


class ReplicaError(XdsControlError):
    """GPUs that cannot be one replica. The message says which and why."""

    code = "replica-invalid"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU or MIG slice as an agent sees it. parent: UUID of the whole card of a slice, None for a whole card.
    memory_bytes: its memory, None when unknown."""

    uuid: str
    node: str = ""
    model: str = ""
    parent: str | None = None
    memory_bytes: float | None = None


def is_slice(uuid: str) -> bool:
    """Whether a UUID names a MIG slice."""
    return uuid.startswith("MIG-")


def parent_of(uuid: str, inventory: Mapping[str, GpuInfo]) -> str | None:
    """UUID of the card that a slice belongs to: from the agent, or from the old form `MIG-GPU-.../gi/ci`."""
    info = inventory.get(uuid)
    if info is not None and info.parent:
        return info.parent
    old = _OLD_MIG.match(uuid)
    return old.group(1) if old else None


def validate_replica(endpoint: Endpoint, inventory: Mapping[str, GpuInfo] | None = None) -> None:
    """Raises ReplicaError when the endpoint's GPUs cannot work as one replica.

    inventory: what agents have reported; what they have not is not judged.
    """
    known = inventory or {}
    gpus = endpoint.gpus
    name = endpoint.name or endpoint.address
    twice = sorted({g for g in gpus if gpus.count(g) > 1})
    if twice:
        raise ReplicaError(f"endpoint {name}: GPU {twice[0]} is listed twice")
    strange = [g for g in gpus if not g.startswith(("GPU-", "MIG-"))]
    if strange:
        raise ReplicaError(f"endpoint {name}: {strange[0]!r} is no GPU UUID; expected GPU-... or MIG-...")
    slices = [g for g in gpus if is_slice(g)]
    whole = [g for g in gpus if not is_slice(g)]
    if slices and whole:
        raise ReplicaError(
            f"endpoint {name}: MIG slice {slices[0]} and whole GPU {whole[0]} cannot be one replica: "
            "a slice has no NVLink or peer access to another device"
        )
    if len(slices) > 1:
        _same_card(name, slices, known)
    if endpoint.labels.get(MIXED_LABEL, "").lower() not in ("true", "yes", "1"):
        _same_kind(name, gpus, known)


def _same_card(name: str, slices: Sequence[str], inventory: Mapping[str, GpuInfo]) -> None:
    cards = {g: parent_of(g, inventory) for g in slices}
    by_card = {card: g for g, card in cards.items() if card is not None}
    if len(by_card) > 1:
        (card_a, a), (card_b, b) = sorted(by_card.items())[:2]
        raise ReplicaError(
            f"endpoint {name}: MIG slices {a} (of {card_a}) and {b} (of {card_b}) belong to different cards "
            "and cannot be one replica; declare one endpoint for each"
        )


def _same_kind(name: str, gpus: Sequence[str], inventory: Mapping[str, GpuInfo]) -> None:
    kinds: dict[str, str] = {}
    for g in gpus:
        info = inventory.get(g)
        if info is not None and info.model:
            kinds.setdefault(info.model, g)
    if len(kinds) > 1:
        (model_a, a), (model_b, b) = sorted(kinds.items())[:2]
        raise ReplicaError(
            f"endpoint {name}: {a} is a {model_a} and {b} a {model_b}; a replica runs at the pace of its slowest GPU. "
            f'If that is meant, label the endpoint `{MIXED_LABEL}: "true"`'
        )


def validate_fleet(endpoints: Iterable[Endpoint], inventory: Mapping[str, GpuInfo] | None = None) -> list[str]:
    """Every problem in words, of single replicas and between them: a card that is used whole here and sliced there."""
    known = inventory or {}
    problems: list[str] = []
    whole: dict[str, str] = {}
    sliced: dict[str, str] = {}
    users: dict[str, str] = {}
    for endpoint in endpoints:
        name = endpoint.name or endpoint.address
        try:
            validate_replica(endpoint, known)
        except ReplicaError as error:
            problems.append(str(error))
        for g in endpoint.gpus:
            if is_slice(g) and g in users and users[g] != name:
                problems.append(f"MIG slice {g} is claimed by endpoints {users[g]} and {name}")
            users.setdefault(g, name)
            card = parent_of(g, known) if is_slice(g) else g
            if card is not None:
                (sliced if is_slice(g) else whole).setdefault(card, name)
    problems.extend(
        f"GPU {card} is used whole by endpoint {whole[card]} and in slices by {sliced[card]}"
        for card in sorted(whole.keys() & sliced.keys())
    )
    return problems


def missing_gpus(endpoint: Endpoint, lost: Collection[str]) -> str | None:
    """Why lost GPUs take the endpoint out, or None. lost: UUIDs that agents report as gone. One is enough: the others
    of a replica can do nothing without it."""
    gone = [g for g in endpoint.gpus if g in lost]
    if not gone:
        return None
    left = len(endpoint.gpus) - len(gone)
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    return f"GPU {gone[0]}{more} lost: {left} of {len(endpoint.gpus)} left, the replica cannot run"


def worst_of(values: Iterable[Mapping[str, Reading]]) -> dict[str, Reading]:
    """Readings of a replica from those of its GPUs: the worst value of each signal, error counters summed.

    The reading keeps the time of the value that was taken; a sum is as old as its oldest part.
    """
    merged: dict[str, Reading] = {}
    for readings in values:
        for signal, reading in readings.items():
            before = merged.get(signal)
            if before is None:
                merged[signal] = reading
            elif signal in _SUMS:
                merged[signal] = Reading(before.value + reading.value, min(before.at, reading.at), reading.source)
            elif signal == "xid":
                # The newest code that is not 0 says most.
                newest = max(before, reading, key=lambda r: (r.value != 0, r.at))
                merged[signal] = newest
            elif (reading.value < before.value) if signal in _WORST_LOW else (reading.value > before.value):
                merged[signal] = reading
    return merged
