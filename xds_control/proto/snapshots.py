"""Snapshots on the wire: full for a processor that begins to watch, then only what changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.proto import fleet_pb2 as pb


def full(snapshot: Snapshot, now: float) -> pb.WatchResponse:
    """Everything in `snapshot`. now: monotonic seconds of the process that took the readings."""
    message = pb.WatchResponse(epoch=snapshot.epoch, version=snapshot.version, full=True)
    for pool in snapshot.pools.values():
        _put_pool(message.pools.add(), pool, pool.endpoints, now)
    return message


def delta(old: Snapshot, new: Snapshot, now: float) -> pb.WatchResponse | None:
    """What turns `old` into `new`, or None when a receiver of `old` knows all of it already."""
    message = pb.WatchResponse(epoch=new.epoch, version=new.version, full=False)
    for name, pool in new.pools.items():
        before = old.pools.get(name)
        if before is pool:
            continue
        known = {e.endpoint.address: e for e in before.endpoints} if before else {}
        changed = [e for e in pool.endpoints if known.get(e.endpoint.address) != e]
        current = {e.endpoint.address for e in pool.endpoints}
        removed = sorted(known.keys() - current)
        if before is None or changed or removed or before.models != pool.models:
            entry = message.pools.add()
            _put_pool(entry, pool, changed, now)
            entry.removed_endpoints.extend(removed)
    message.removed_pools.extend(sorted(old.pools.keys() - new.pools.keys()))
    if not message.pools and not message.removed_pools and old.epoch == new.epoch:
        return None
    return message


def apply(held: Snapshot | None, message: pb.WatchResponse, now: float) -> Snapshot:
    """The snapshot after a message. Reading times become this process's own: now − age.

    Raises ValueError when a delta comes with nothing held, or from another epoch.
    """
    if not message.full and (held is None or held.epoch != message.epoch):
        raise ValueError("a delta without the snapshot that it builds on")
    pools: dict[str, PoolSnapshot] = {} if message.full or held is None else dict(held.pools)
    for entry in message.pools:
        before = None if message.full else pools.get(entry.name)
        endpoints = {e.endpoint.address: e for e in before.endpoints} if before else {}
        for address in entry.removed_endpoints:
            endpoints.pop(address, None)
        for one in entry.endpoints:
            endpoints[one.address] = _get_endpoint(one, entry.name, now)
        pools[entry.name] = PoolSnapshot(
            entry.name, tuple(entry.models), tuple(endpoints[address] for address in sorted(endpoints))
        )
    for name in message.removed_pools:
        pools.pop(name, None)
    policy = message.policy.version if message.HasField("policy") else (held.policy_version if held else "")
    return Snapshot(message.epoch, message.version, now, MappingProxyType(pools), policy)


def _put_pool(
    entry: pb.Pool, pool: PoolSnapshot, endpoints: tuple[EndpointSnapshot, ...] | list[EndpointSnapshot], now: float
) -> None:
    entry.name = pool.name
    entry.models.extend(pool.models)
    for one in endpoints:
        _put_endpoint(entry.endpoints.add(), one, now)


def _put_endpoint(entry: pb.Endpoint, one: EndpointSnapshot, now: float) -> None:
    endpoint = one.endpoint
    entry.address = endpoint.address
    entry.name = endpoint.name
    entry.engine = endpoint.engine
    entry.role = endpoint.role
    entry.labels.update(endpoint.labels)
    entry.region = endpoint.locality.region
    entry.zone = endpoint.locality.zone
    entry.sub_zone = endpoint.locality.sub_zone
    entry.state = one.state.value
    entry.weight = one.weight
    entry.priority = one.priority
    entry.health = one.health
    entry.pickable = one.pickable
    entry.capacity = one.capacity
    entry.gates.extend(one.gates)
    entry.why = one.why
    for name, reading in one.readings.items():
        value = entry.signals[name]
        value.value = reading.value
        value.age_s = max(now - reading.at, 0.0)
        value.source = reading.source
    info = one.info
    entry.info.models.extend(info.models)
    entry.info.lora_running.extend(info.lora_running)
    entry.info.lora_waiting.extend(info.lora_waiting)
    for field in ("lora_max", "max_model_len", "block_size", "num_blocks", "started_at"):
        value_of = getattr(info, field)
        if value_of is not None:
            setattr(entry.info, field, value_of)


def _get_endpoint(entry: pb.Endpoint, pool: str, now: float) -> EndpointSnapshot:
    info = entry.info
    optional: Mapping[str, float | int | None] = {
        field: getattr(info, field) if info.HasField(field) else None
        for field in ("lora_max", "max_model_len", "block_size", "num_blocks", "started_at")
    }
    return EndpointSnapshot(
        endpoint=Endpoint(
            address=entry.address,
            pool=pool,
            engine=entry.engine,
            capacity=None,
            role=entry.role or "both",
            locality=Locality(entry.region, entry.zone, entry.sub_zone),
            labels=MappingProxyType(dict(entry.labels)),
            name=entry.name,
        ),
        state=State(entry.state),
        weight=entry.weight,
        priority=entry.priority,
        pickable=entry.pickable,
        capacity=entry.capacity,
        readings=MappingProxyType(
            {name: Reading(value.value, now - value.age_s, value.source) for name, value in entry.signals.items()}
        ),
        info=ModelInfo(
            models=tuple(info.models),
            lora_running=tuple(info.lora_running),
            lora_waiting=tuple(info.lora_waiting),
            **optional,  # type: ignore[arg-type]
        ),
        gates=tuple(entry.gates),
        why=entry.why,
        health=entry.health or "healthy",
    )
