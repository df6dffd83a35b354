"""The root of the policy, and the checks that need more than one section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from xds_control.policy.address import canonical_address
from xds_control.policy.admission import AdmissionPolicy
from xds_control.policy.base import Section, meta
from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.classes import ClassesPolicy
from xds_control.policy.document import Path
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.inspect import InspectPolicy
from xds_control.policy.lifecycle import LifecyclePolicy
from xds_control.policy.picker import PickerPolicy
from xds_control.policy.pools import PoolPolicy
from xds_control.policy.processes import ControlPolicy, LogPolicy, ProcessorPolicy
from xds_control.policy.routing import RoutingPolicy
from xds_control.policy.signals import SignalsPolicy
from xds_control.policy.tracing import TracingPolicy
from xds_control.policy.validate import nearest
from xds_control.policy.weights import WeightsPolicy
from xds_control.policy.xds import XdsPolicy

RESERVED_POOLS = frozenset({"xds-control-xds", "xds-control-processors", "xds-control-otlp"})


class Policy(Section, frozen=True):
    """Everything that xds-control can be told."""

    version: Annotated[Literal["xds-control/v1"], meta("version of this schema")]
    pools: Annotated[
        list[PoolPolicy], meta("endpoints by what they serve; each pool is one Envoy cluster", min_length=1)
    ]
    routing: Annotated[RoutingPolicy, meta("how a request finds its pool")] = RoutingPolicy()
    classes: Annotated[ClassesPolicy, meta("service classes and their targets")] = ClassesPolicy()
    weights: Annotated[WeightsPolicy, meta("ring 1: how weights are made")] = WeightsPolicy()
    capacity: Annotated[CapacityPolicy, meta("where an endpoint's capacity comes from")] = CapacityPolicy()
    lifecycle: Annotated[LifecyclePolicy, meta("when endpoints are warmed, suspected, ejected, drained")] = (
        LifecyclePolicy()
    )
    signals: Annotated[SignalsPolicy, meta("how engines are scraped, and what is believed")] = SignalsPolicy()
    inspect: Annotated[InspectPolicy, meta("ring 2: what is read out of requests")] = InspectPolicy()
    admission: Annotated[AdmissionPolicy, meta("waiting for room before the picker")] = AdmissionPolicy()
    picker: Annotated[PickerPolicy, meta("ring 3: how endpoints are named for requests")] = PickerPolicy()
    ext_proc: Annotated[ExtProcPolicy, meta("how the processors talk with Envoy")] = ExtProcPolicy()
    envoy: Annotated[EnvoyPolicy, meta("the Envoy that is configured")] = EnvoyPolicy()
    xds: Annotated[XdsPolicy, meta("the xDS server")] = XdsPolicy()
    control: Annotated[ControlPolicy, meta("the control process")] = ControlPolicy()
    processors: Annotated[ProcessorPolicy, meta("the processors")] = ProcessorPolicy()
    log: Annotated[LogPolicy, meta("logs")] = LogPolicy()
    tracing: Annotated[TracingPolicy | None, meta("OpenTelemetry traces, none = off")] = None

    @property
    def longest_wait_s(self) -> float:
        """How long admission may hold a request's answer back; 0 where it does not."""
        return max(one.max_queue_s for one in self.classes.items) if self.admission.enabled else 0.0

    def default_pool(self) -> str | None:
        """The pool of requests that nothing has looked at: the one named, else the only one."""
        if self.routing.default_pool:
            return self.routing.default_pool
        return self.pools[0].name if len(self.pools) == 1 else None


def cross_check(policy: Policy) -> Iterator[tuple[Path, str]]:
    """(YAML path, sentence) of everything that is wrong between sections."""
    yield from _pools(policy)
    yield from _pool_names(policy)
    yield from _class_names(policy)
    if policy.admission.enabled and not policy.picker.limits.max_concurrency:
        yield ("admission", "enabled"), "admission needs picker.limits.max_concurrency: without it there is always room"
    if policy.processors.shared and policy.ext_proc.transport != "native":
        yield ("ext_proc", "transport"), "an endpoint picker is served by the native transport"


def _pools(policy: Policy) -> Iterator[tuple[Path, str]]:
    names: dict[str, int] = {}
    models: dict[str, str] = {}
    for index, pool in enumerate(policy.pools):
        where: Path = ("pools", index)
        if pool.name in names:
            yield (*where, "name"), f"pool {pool.name!r} is named twice (first pools[{names[pool.name]}])"
        names.setdefault(pool.name, index)
        if pool.name in RESERVED_POOLS:
            yield (*where, "name"), f"{pool.name!r} is reserved for a cluster of our own"
        addresses: dict[str, int] = {}
        for number, endpoint in enumerate(pool.endpoints):
            address = canonical_address(endpoint.address)
            if address in addresses:
                first = f"pools[{index}].endpoints[{addresses[address]}]"
                yield (*where, "endpoints", number, "address"), f"endpoint {address} is listed twice (first {first})"
            addresses.setdefault(address, number)
        for number, model in enumerate(pool.models):
            if models.get(model, pool.name) != pool.name:
                message = f"model {model!r} is served by pool {models[model]!r} too; use routing.models to split it"
                yield (*where, "models", number), message
            models.setdefault(model, pool.name)


def _pool_names(policy: Policy) -> Iterator[tuple[Path, str]]:
    known = {pool.name for pool in policy.pools}
    routing = policy.routing
    if routing.default_pool and routing.default_pool not in known:
        yield ("routing", "default_pool"), _no_pool(routing.default_pool, known)
    for index, rule in enumerate(routing.rules):
        for pool in rule.pools:
            if pool not in known:
                yield ("routing", "rules", index, "pool"), _no_pool(pool, known)
    for index, route in enumerate(routing.models):
        where: Path = ("routing", "models", index)
        for number, target in enumerate(route.to):
            if target.pool not in known:
                yield (*where, "to", number, "pool"), _no_pool(target.pool, known)
        for number, target in enumerate(route.fallback):
            if target.pool not in known:
                yield (*where, "fallback", number, "pool"), _no_pool(target.pool, known)
        if route.mirror is not None and route.mirror.pool not in known:
            yield (*where, "mirror", "pool"), _no_pool(route.mirror.pool, known)


def _class_names(policy: Policy) -> Iterator[tuple[Path, str]]:
    known = list(policy.classes.by_name())
    named: list[tuple[Path, str]] = [
        (("routing", "rules", index, "class"), rule.service_class) for index, rule in enumerate(policy.routing.rules)
    ]
    named += [(("picker", "use", index, "class"), use.service_class) for index, use in enumerate(policy.picker.use)]
    for path, name in named:
        if name and name not in known:
            yield path, f"there is no class {name!r}; classes are {', '.join(known)}{nearest(name, known)}"


def _no_pool(name: str, known: set[str]) -> str:
    return f"there is no pool {name!r}; pools are {', '.join(sorted(known))}{nearest(name, known)}"
