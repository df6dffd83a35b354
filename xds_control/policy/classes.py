"""Service classes: what a kind of request is promised, and who goes first."""

from __future__ import annotations

from typing import Annotated

from xds_control.policy.base import Section, bound, meta


class ServiceClassPolicy(Section, frozen=True):
    """One service class. An absent target is not judged; a class with no target always meets its SLO when answered."""

    name: Annotated[
        str,
        meta("name, as rules and the class header use it", pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", example="high"),
    ]
    priority: Annotated[
        int, meta("order under pressure: a higher number is served first and shed last", ge=0, le=1000, example=80)
    ]
    ttft_s: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("target for the time to first token of streamed answers, queueing included", unit="s", example=1.0),
    ] = None
    tpot_s: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("target for the mean time per output token after the first one", unit="s", example=0.1),
    ] = None
    e2e_s: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("target for the whole request, from its last byte received to the last byte of its answer", unit="s"),
    ] = None
    max_queue_s: Annotated[
        float,
        meta(
            "longest wait for admission before the request is refused with 429; 0 = never waits", unit="s", ge=0, le=600
        ),
    ] = 0.2


DEFAULT_CLASSES: tuple[ServiceClassPolicy, ...] = (
    ServiceClassPolicy(name="critical", priority=100, ttft_s=0.5, tpot_s=0.05, max_queue_s=0.01),
    ServiceClassPolicy(name="high", priority=80, ttft_s=1.0, tpot_s=0.1, max_queue_s=0.05),
    ServiceClassPolicy(name="medium", priority=50, ttft_s=2.0, tpot_s=0.1, max_queue_s=0.2),
    ServiceClassPolicy(name="low", priority=10, ttft_s=30.0, max_queue_s=5.0),
)


class ClassesPolicy(Section, frozen=True):
    """The service classes. A request without a class, or with one that is not listed, gets the default one."""

    default: Annotated[str, meta("class of requests that name none", example="medium")] = "medium"
    items: Annotated[
        tuple[ServiceClassPolicy, ...], meta("the classes; naming any replaces all the default ones", min_length=1)
    ] = DEFAULT_CLASSES

    def __post_init__(self) -> None:
        names = [one.name for one in self.items]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"class {name!r} is listed more than once")
        if self.default not in names:
            raise ValueError(f"the default class {self.default!r} is not listed (listed: {', '.join(names)})")

    def by_name(self) -> dict[str, ServiceClassPolicy]:
        """The classes by name, in the order listed."""
        return {one.name: one for one in self.items}
