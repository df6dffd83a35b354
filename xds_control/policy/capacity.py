"""Where an endpoint's capacity comes from: declared, a GPU table, learned, calibrated (the `capacity` section)."""

from __future__ import annotations

from typing import Annotated

from xds_control.policy.base import Section, meta


class Learning(Section, frozen=True):
    """Capacity learned from what the endpoints deliver. The only slow loop, and the only one that remembers."""

    enabled: Annotated[bool, meta("whether measured speed corrects the declared capacity")] = True
    half_life_s: Annotated[float, meta("half-life of the observations", unit="s", gt=0, le=86400)] = 20.0
    age_limit_s: Annotated[
        float, meta("age at which learned rates count for nothing and the declared capacity holds", unit="s", gt=0)
    ] = 600.0
    least_tokens: Annotated[
        float, meta("tokens, decayed by the half-life, from which an endpoint's rates count fully", unit="tokens", ge=1)
    ] = 200.0
    limit: Annotated[float, meta("largest ratio of learned to declared capacity, up or down", ge=1, le=1000)] = 16.0
    dead_band: Annotated[
        float, meta("relative change of learned capacity under which the weights do not follow", ge=0, le=0.5)
    ] = 0.05


class Calibration(Section, frozen=True):
    """A short standard load that is run against an endpoint to see what it can do."""

    enabled: Annotated[bool, meta("whether new endpoints are calibrated before they take traffic")] = False
    prompt_tokens: Annotated[int, meta("length of the long prompts of the prefill part", unit="tokens", ge=16)] = 2048
    output_tokens: Annotated[int, meta("length of the answers of the decode part", unit="tokens", ge=8)] = 128
    prefill_requests: Annotated[int, meta("prompts sent one after another in the prefill part", ge=1, le=1000)] = 4
    concurrency: Annotated[
        tuple[int, ...], meta("numbers of requests run at once in the decode part, rising", example=[1, 4, 16])
    ] = (1, 4, 16)
    rounds: Annotated[int, meta("requests that each of the concurrent streams runs", ge=1, le=100)] = 2
    timeout_s: Annotated[float, meta("time limit of the whole load", unit="s", gt=0, le=3600)] = 60.0

    def __post_init__(self) -> None:
        if not self.concurrency or any(c < 1 for c in self.concurrency):
            raise ValueError("`concurrency` needs at least one number, each 1 or more")
        if list(self.concurrency) != sorted(set(self.concurrency)):
            raise ValueError("the numbers of `concurrency` must rise")


class CapacityPolicy(Section, frozen=True):
    """Capacity: what an endpoint can do compared with the others."""

    gpu_models: Annotated[
        dict[str, Annotated[float, meta("capacity of one whole GPU, A100-80GB = 1", gt=0)]],
        meta("capacity by GPU model, added to the built-in table", example={"L40S": 0.7}),
    ] = {}
    parallel_efficiency: Annotated[
        float, meta("what each further GPU of a multi-GPU replica adds, as a share of the first", gt=0, le=1)
    ] = 0.9
    learn: Annotated[Learning, meta("capacity from measured speed")] = Learning()
    calibrate: Annotated[Calibration, meta("standard load for new endpoints")] = Calibration()
