"""What control knows, as admin messages (pure: time comes in as `now`, monotonic, and `wall`, unix seconds)."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from xds_control.admin.backend import AdminEvent, ProcessorFacts, UnknownEndpoint
from xds_control.fleet.history import Entry, Move
from xds_control.fleet.life import LifeView
from xds_control.fleet.override import Override
from xds_control.fleet.readings import Readings
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot
from xds_control.proto import admin_pb2 as pb
from xds_control.signals.catalogue import freshness, goodness, spec_of
from xds_control.signals.stats import Quantiles, Stats
from xds_control.signals.store import RawSignal
from xds_control.weights.explain import Explanation, Factor
from xds_control.weights.inputs import PoolWeights
from xds_control.xds.clients import ClientStatus, TypeStatus


def unserved(snapshot: Snapshot | None) -> list[str]:
    """A sentence for each pool that no endpoint serves."""
    pools = snapshot.pools.values() if snapshot is not None else ()
    return [
        f"pool {pool.name}: no endpoint serves, its requests fail"
        for pool in pools
        if not any(one.weight > 0 for one in pool.endpoints)
    ]


def find_endpoint(snapshot: Snapshot, text: str, pool: str = "") -> tuple[str, EndpointSnapshot]:
    """(pool, endpoint) for an address or a name. Raises UnknownEndpoint, saying what there is or which names fit."""
    found: list[tuple[str, EndpointSnapshot]] = []
    for one in snapshot.pools.values():
        if pool and one.name != pool:
            continue
        for endpoint in one.endpoints:
            if endpoint.endpoint.address == text:
                return one.name, endpoint
            if endpoint.endpoint.name and endpoint.endpoint.name == text:
                found.append((one.name, endpoint))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{endpoint.endpoint.address} ({name})" for name, endpoint in found)
        raise UnknownEndpoint(f"several endpoints are called {text!r}: {names}; name one by its address")
    where = f" in pool {pool!r}" if pool else ""
    close = _close(snapshot, text)
    hint = f"; did you mean {close}?" if close else ""
    raise UnknownEndpoint(f"there is no endpoint {text!r}{where}{hint}")


def _close(snapshot: Snapshot, text: str) -> str:
    known = {
        name: None
        for pool in snapshot.pools.values()
        for one in pool.endpoints
        for name in (one.endpoint.address, one.endpoint.name)
        if name
    }
    return " or ".join(difflib.get_close_matches(text, known, n=2, cutoff=0.7))


def weight_shares(pool: PoolSnapshot) -> dict[str, float]:
    """Address → its share of the weights at its priority level."""
    sums: Counter[int] = Counter()
    for one in pool.endpoints:
        sums[one.priority] += one.weight
    return {
        one.endpoint.address: one.weight / sums[one.priority] if sums[one.priority] else 0.0 for one in pool.endpoints
    }


def endpoint_message(
    pool: str,
    one: EndpointSnapshot,
    share: float,
    now: float,
    life: LifeView | None = None,
    stats: Stats | None = None,
    raw: Sequence[RawSignal] | None = None,
    explanation: Explanation | None = None,
) -> pb.Endpoint:
    """An endpoint of the snapshot. raw: signals of all sources; None gives those that are in use."""
    endpoint = one.endpoint
    message = pb.Endpoint(
        address=endpoint.address,
        name=endpoint.name,
        pool=pool,
        state=one.state.value,
        health=one.health,
        weight=one.weight,
        weight_share=share,
        priority=one.priority,
        pickable=one.pickable,
        capacity=one.capacity,
        gates=one.gates,
        why=one.why,
        role=endpoint.role,
        engine=endpoint.engine,
        region=endpoint.locality.region,
        zone=endpoint.locality.zone,
        sub_zone=endpoint.locality.sub_zone,
        labels=dict(endpoint.labels),
        models=one.info.models,
        loras=one.info.lora_running,
        max_model_len=one.info.max_model_len,
    )
    if life is not None:
        message.state = life.state.value
        message.state_age_s = max(0.0, now - life.since)
        message.state_reason = life.reason
        message.ejections = life.ejections
        message.held = life.held
        if life.until is not None and math.isfinite(life.until):
            message.until_s = max(0.0, life.until - now)
        if life.override is not None:
            message.override.CopyFrom(override_message(life.override, now))
    message.signals.extend(used_signals(one.readings, now) if raw is None else (signal_message(item) for item in raw))
    if explanation is not None:
        message.explanation.CopyFrom(explanation_message(explanation))
    if stats is not None:
        message.traffic.CopyFrom(traffic_message(stats))
    return message


def used_signals(readings: Readings, now: float) -> Iterable[pb.Signal]:
    """The signals of a snapshot, by name."""
    for name, reading in sorted(readings.items()):
        age = max(0.0, now - reading.at)
        message = pb.Signal(name=name, value=reading.value, age_s=age, source=reading.source, used=True)
        spec = spec_of(name)
        if spec is not None:
            message.unit = spec.unit
            message.age_limit_s = spec.age_limit_s
            message.fresh = freshness(age, spec.age_limit_s)
            good = goodness(spec, reading.value)
            if good is not None:
                message.normalised = good
        yield message


def signal_message(raw: RawSignal) -> pb.Signal:
    """One value of one source."""
    return pb.Signal(
        name=raw.name,
        value=raw.value,
        unit=raw.unit,
        age_s=raw.age_s,
        age_limit_s=raw.age_limit_s,
        fresh=raw.fresh,
        source=raw.source,
        used=raw.chosen,
        normalised=raw.normalised,
        disagrees=raw.disagrees,
    )


def override_message(order: Override, now: float) -> pb.Override:
    """An operator's order."""
    return pb.Override(
        kind=order.kind,
        weight=order.weight,
        ttl_s=None if order.until is None else max(0.0, order.until - now),
        reason=order.reason,
        by=order.by,
    )


def explanation_message(explanation: Explanation) -> pb.Explanation:
    """Why an endpoint has its weight."""
    return pb.Explanation(
        factors=[_factor(one) for one in explanation.factors],
        terms=[_factor(one) for one in explanation.terms],
        raw=explanation.raw,
        stages=[pb.Stage(name=stage.name, value=stage.value) for stage in explanation.stages],
        weight=explanation.weight,
        why=explanation.why,
    )


def _factor(one: Factor) -> pb.Factor:
    return pb.Factor(
        name=one.name,
        signal=one.signal,
        value=_known(one.value),
        age_s=_known(one.age),
        confidence=_known(one.confidence),
        normalised=_known(one.normalised),
        exponent=_known(one.exponent),
        factor=one.factor,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def traffic_message(stats: Stats) -> pb.Traffic:
    """Traffic over a window, with its classes."""
    message = pb.Traffic(
        window_s=stats.window_s,
        requests=stats.requests,
        ok=stats.ok,
        streamed=stats.streamed,
        retries=stats.retries,
        requests_per_s=stats.requests_per_s,
        share=stats.share,
        errors=dict(stats.errors),
        error_rate=stats.error_rate,
        slo_attainment=stats.slo_attainment,
        ttft_attainment=stats.ttft_attainment,
        tpot_attainment=stats.tpot_attainment,
        kv_hit_ratio=stats.kv_hit_ratio,
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        cached_tokens=stats.cached_tokens,
        prefill_tps=stats.prefill_tps,
        decode_tps=stats.decode_tps,
        decode_speed=stats.decode_speed,
        ttft=_quantiles(stats.ttft),
        tpot=_quantiles(stats.tpot),
        queue=_quantiles(stats.queue),
        e2e=_quantiles(stats.e2e),
        orca=dict(stats.orca),
    )
    for name, part in stats.classes.items():
        message.classes[name].CopyFrom(traffic_message(part))
    return message


def _quantiles(of: Quantiles | None) -> pb.Quantiles | None:
    return None if of is None else pb.Quantiles(p50=of.p50, p90=of.p90, p99=of.p99, mean=of.mean, count=of.count)


def pool_message(pool: PoolSnapshot, weights: PoolWeights | None, stats: Stats | None) -> pb.Pool:
    """A pool of the snapshot."""
    serving = [one for one in pool.endpoints if one.weight > 0 and one.priority == 0]
    message = pb.Pool(
        name=pool.name,
        models=pool.models,
        states=dict(Counter(one.state.value for one in pool.endpoints)),
        endpoints=len(pool.endpoints),
        serving=len(serving),
        pickable=sum(one.pickable for one in pool.endpoints),
        capacity=sum(one.capacity for one in serving),
        traffic=None if stats is None else traffic_message(stats),
    )
    for place in weights.localities if weights is not None else ():
        message.localities.add(
            region=place.locality.region,
            zone=place.locality.zone,
            sub_zone=place.locality.sub_zone,
            priority=place.priority,
            weight=place.weight,
            endpoints=place.endpoints,
        )
    return message


def event_message(event: AdminEvent, now: float, wall: float) -> pb.Event:
    """Something that happened."""
    return pb.Event(
        sequence=event.sequence,
        at_unix_s=wall - (now - event.at),
        kind=event.kind,
        pool=event.pool,
        endpoint=event.endpoint,
        before=event.before,
        after=event.after,
        reason=event.reason,
        by=event.by,
    )


def snapshot_message(entry: Entry, now: float, wall: float, endpoint: str = "", pool: str = "") -> pb.SnapshotEntry:
    """One kept snapshot and what moved, of one endpoint or pool only when named."""
    moves = [
        move for move in entry.moves if (not endpoint or move.address == endpoint) and (not pool or move.pool == pool)
    ]
    return pb.SnapshotEntry(
        version=entry.version,
        at_unix_s=wall - (now - entry.at),
        policy_version=entry.policy_version,
        moves=[move_message(move) for move in moves],
        moved={name: share for name, share in entry.moved.items() if not pool or name == pool},
    )


def move_message(move: Move) -> pb.Move:
    """One endpoint that differs between two snapshots."""
    return pb.Move(
        pool=move.pool,
        endpoint=move.address,
        weight_before=move.weight_before,
        weight=move.weight,
        state_before=move.state_before.value if move.state_before else "",
        state=move.state.value if move.state else "",
        gates_before=move.gates_before,
        gates=move.gates,
        why=move.why,
    )


def client_message(client: ClientStatus) -> pb.XdsClient:
    """One discovery stream."""
    return pb.XdsClient(
        id=client.id,
        peer=client.peer,
        node_id=client.node_id,
        cluster=client.cluster,
        group=client.group,
        user_agent=client.user_agent,
        protocol=client.protocol,
        service=client.service,
        age_s=client.age_s,
        lag_s=client.lag_s,
        stuck=client.stuck,
        writing_s=client.writing_s,
        types=[_type(one) for one in client.types],
    )


def _type(one: TypeStatus) -> pb.XdsType:
    return pb.XdsType(
        type=one.type,
        type_url=one.type_url,
        wildcard=one.wildcard,
        names=one.names,
        held=one.held,
        version_sent=one.version_sent,
        version_acked=one.version_acked,
        outstanding=one.outstanding,
        rejected=one.rejected,
        last_error=one.last_error,
        lag_s=one.lag_s,
        responses=one.responses,
        acks=one.acks,
        nacks=one.nacks,
    )


def behind(client: ClientStatus) -> bool:
    """Whether a client rejected something or owes an answer."""
    return client.stuck or any(one.rejected or one.lag_s > 0 for one in client.types)


def processor_message(facts: ProcessorFacts, newest: int, now: float) -> pb.Processor:
    """One processor. newest: version of control's newest snapshot."""
    message = pb.Processor(
        name=facts.name,
        address=facts.address,
        version=facts.version,
        age_s=max(0.0, now - facts.since),
        last_report_age_s=None if facts.last_report is None else max(0.0, now - facts.last_report),
        snapshot_version=facts.snapshot_version,
        snapshots_behind=max(0, newest - facts.snapshot_version),
        policy_version=facts.policy_version,
        outstanding=facts.outstanding,
    )
    load = facts.load
    if load is not None:
        message.streams = load.streams
        message.requests = load.requests
        message.access_log_entries = load.access_log_entries
        message.cpu_seconds = load.cpu_seconds
        message.loop_lag_s = load.loop_lag_s
        message.rss_bytes = load.rss_bytes
        message.prefix_index_bytes = load.prefix_index_bytes
    return message


def states_of(snapshot: Snapshot | None) -> Mapping[str, int]:
    """Number of endpoints by state."""
    if snapshot is None:
        return {}
    return Counter(one.state.value for pool in snapshot.pools.values() for one in pool.endpoints)
