"""When an endpoint is warmed, suspected, ejected, drained (the `lifecycle` section of the policy)."""

from __future__ import annotations

from typing import Annotated

from xds_control.policy.base import Section, meta


class Probing(Section, frozen=True):
    """How a new or ejected endpoint shows that it is there."""

    successes: Annotated[int, meta("good probes in a row that are needed", ge=1, le=100)] = 1
    interval_s: Annotated[float, meta("time between two probes", unit="s", gt=0, le=3600)] = 1.0
    max_interval_s: Annotated[float, meta("longest time between two probes of one that fails", unit="s", gt=0)] = 15.0


class WarmUp(Section, frozen=True):
    """Prompts that an endpoint answers before it takes traffic."""

    prompts: Annotated[
        tuple[str, ...], meta("prompts sent in turn; none switches warm-up off", example=["Say hello."])
    ] = ()
    answers: Annotated[int, meta("good answers in a row that are needed", ge=1, le=1000)] = 5
    max_latency_s: Annotated[float, meta("longest time of a good answer", unit="s", gt=0, le=3600)] = 10.0
    max_tokens: Annotated[int, meta("length of the answers asked for", unit="tokens", ge=1, le=100000)] = 16
    timeout_s: Annotated[float, meta("time after which warm-up starts again from probing", unit="s", gt=0)] = 300.0
    max_failures: Annotated[int, meta("bad answers after which it goes back to probing", ge=1, le=1000)] = 5


class Suspicion(Section, frozen=True):
    """When an endpoint is no longer trusted."""

    heartbeat_s: Annotated[float, meta("time without a sign of life", unit="s", gt=0, le=3600)] = 15.0
    scrape_failures: Annotated[int, meta("failed scrapes in a row", ge=1, le=1000)] = 2
    recover: Annotated[int, meta("good scrapes in a row that clear the suspicion", ge=1, le=100)] = 2
    eject_after_s: Annotated[
        float, meta("time as a suspect without a sign of life after which it is ejected", unit="s", gt=0)
    ] = 60.0


class Ejection(Section, frozen=True):
    """What throws an endpoint out, and for how long."""

    fatal_xids: Annotated[tuple[int, ...], meta("Xid codes after which the GPU needs a reset", example=[48, 79])] = (
        46,
        48,
        62,
        64,
        74,
        79,
        95,
        109,
        110,
        119,
        120,
        136,
        140,
        143,
    )
    ecc: Annotated[bool, meta("eject on a new uncorrected ECC error")] = True
    oom_count: Annotated[int, meta("out-of-memory errors within `oom_window_s`", ge=1, le=1000)] = 2
    oom_window_s: Annotated[float, meta("window of repeated out-of-memory errors", unit="s", gt=0)] = 300.0
    consecutive_errors: Annotated[int, meta("connect errors, timeouts or 5xx in a row", ge=1, le=10000)] = 5
    refused_scrapes: Annotated[int, meta("scrapes in a row that found nobody listening", ge=1, le=1000)] = 3
    error_share: Annotated[float, meta("share of failed requests within the window", gt=0, le=1)] = 0.5
    error_window_s: Annotated[float, meta("window of the error share", unit="s", gt=0)] = 10.0
    error_requests: Annotated[int, meta("fewest requests in the window for the share to count", ge=1)] = 20
    base_s: Annotated[float, meta("length of the first ejection", unit="s", gt=0, le=86400)] = 10.0
    factor: Annotated[float, meta("growth of each further ejection", ge=1, le=10)] = 2.0
    max_s: Annotated[float, meta("longest ejection", unit="s", gt=0)] = 300.0
    jitter: Annotated[float, meta("spread of the ejection times", ge=0, le=0.5)] = 0.1
    forgive_s: Annotated[float, meta("healthy time after which one ejection is forgotten", unit="s", gt=0)] = 300.0
    max_share: Annotated[
        float, meta("most of a pool that may be ejected by rule; further ones stay suspect", ge=0, le=1)
    ] = 0.5


class Draining(Section, frozen=True):
    """How an endpoint leaves."""

    timeout_s: Annotated[float, meta("longest wait for running requests", unit="s", gt=0, le=86400)] = 120.0
    settle_s: Annotated[
        float, meta("least time in draining, so that every Envoy has heard of it", unit="s", ge=0, le=3600)
    ] = 2.0


class LifecyclePolicy(Section, frozen=True):
    """Life of an endpoint: new, probing, warming, ready, suspect, ejected, draining, gone."""

    probing: Annotated[Probing, meta("proof of life")] = Probing()
    warm_up: Annotated[WarmUp, meta("answers before traffic")] = WarmUp()
    suspicion: Annotated[Suspicion, meta("loss of trust")] = Suspicion()
    ejection: Annotated[Ejection, meta("removal by rule")] = Ejection()
    draining: Annotated[Draining, meta("orderly leave")] = Draining()
    trust_at_start: Annotated[
        bool,
        meta("endpoints that are there when control starts skip warm-up and ramp: a restart must not disturb traffic"),
    ] = True

    def __post_init__(self) -> None:
        if self.probing.max_interval_s < self.probing.interval_s:
            raise ValueError("`probing.max_interval_s` must be at least `probing.interval_s`")
        if self.ejection.max_s < self.ejection.base_s:
            raise ValueError("`ejection.max_s` must be at least `ejection.base_s`")
