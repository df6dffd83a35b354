"""Pools and their endpoints, as the user lists them."""

from __future__ import annotations

from typing import Annotated, Literal

from xds_control.policy.address import canonical_address
from xds_control.policy.base import Section, bound, meta
from xds_control.policy.weights import WeightsPolicy


class LocalityPolicy(Section, frozen=True):
    """Where an endpoint stands. Envoy gets it as it is."""

    region: Annotated[str, meta("region", example="eu-west-1")] = ""
    zone: Annotated[str, meta("zone", example="eu-west-1a")] = ""
    rack: Annotated[str, meta("rack or other part of a zone (Envoy's sub_zone)", example="r12")] = ""


class EndpointPolicy(Section, frozen=True):
    """One inference server (one replica, however many GPUs it uses)."""

    address: Annotated[str, meta("host:port, [ipv6]:port or name:port of its API", example="10.0.0.11:8000")]
    name: Annotated[str, meta("a name for people; the address when empty", max_length=200)] = ""
    engine: Annotated[str | None, meta("metrics adapter of this endpoint; the pool's when absent", example="vllm")] = (
        None
    )
    capacity: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("declared relative capacity; when absent it is taken from the GPU model or learned", example=2.0),
    ] = None
    role: Annotated[Literal["both", "prefill", "decode"], meta("part it plays in disaggregated serving")] = "both"
    locality: Annotated[LocalityPolicy, meta("region, zone and rack")] = LocalityPolicy()
    labels: Annotated[dict[str, str], meta("labels that rules, scorers and GPU mapping may use")] = {}
    gpus: Annotated[
        list[str], meta("UUIDs of its GPUs or MIG devices", example=["GPU-7f2c1c4e-0000-0000-0000-000000000000"])
    ] = []
    gpu_model: Annotated[str | None, meta("GPU model, looked up in the capacity table", example="H100-SXM")] = None
    gpu_memory_need_bytes: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("GPU memory it needs free to go on safely; the gate adds 20 %", unit="bytes"),
    ] = None
    metrics_url: Annotated[
        str | None, meta("its metrics page when it is not at the pool's path", example="http://10.0.0.11:9400/metrics")
    ] = None

    def __post_init__(self) -> None:
        canonical_address(self.address)


class PoolPolicy(Section, frozen=True):
    """Endpoints that serve the same models: one Envoy cluster."""

    name: Annotated[
        str,
        meta("name of the pool and of its Envoy cluster", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", example="chat"),
    ]
    models: Annotated[list[str], meta("models that these endpoints serve", example=["llama-3.1-8b"])] = []
    engine: Annotated[
        str,
        meta(
            "metrics adapter: auto, vllm, sglang, llamacpp, trtllm, triton, tgi, ... or a name of signals.engines",
            example="auto",
        ),
    ] = "auto"
    scheme: Annotated[Literal["http", "https"], meta("how the metrics pages are fetched")] = "http"
    metrics_path: Annotated[str | None, meta("path of the metrics page; the engine's usual one when absent")] = None
    protocol: Annotated[Literal["http1", "http2"], meta("protocol from Envoy to the endpoints")] = "http1"
    tls: Annotated[bool, meta("whether Envoy speaks TLS to the endpoints")] = False
    lb: Annotated[
        Literal["least_request", "round_robin", "random", "maglev", "ring_hash"],
        meta(
            "Envoy's own balancing under the picks; maglev and ring_hash keep sessions together without picks, by "
            "weights that keep still (declared capacities)"
        ),
    ] = "least_request"
    hash_key: Annotated[
        Literal["session", "prefix"], meta("what maglev and ring_hash hash: the session or the prefix header")
    ] = "session"
    hash_balance_factor: Annotated[
        int,
        meta("bounded load of maglev and ring_hash in percent of the mean; 0 switches the bound off", ge=0, le=1000),
    ] = 125
    picks: Annotated[bool, meta("whether the picker may name endpoints of this pool (ring 3)")] = True
    endpoints: Annotated[list[EndpointPolicy], meta("its inference servers")] = []
    weights: Annotated[WeightsPolicy | None, meta("weights of this pool; the policy's `weights` when absent")] = None
    labels: Annotated[dict[str, str], meta("labels for rules")] = {}

    @property
    def hashes(self) -> bool:
        """Whether Envoy balances it by a consistent hash."""
        return self.lb in ("maglev", "ring_hash")
