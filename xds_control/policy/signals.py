"""What is read from engines and GPUs, how often, and how long it counts."""

from __future__ import annotations

from typing import Annotated, Literal

from xds_control.policy.base import Section, bound, meta


class ScrapeTlsPolicy(Section, frozen=True):
    """TLS towards metrics pages with the scheme https."""

    ca_file: Annotated[str | None, meta("CA certificates (PEM) to trust; the system's when absent")] = None
    cert_file: Annotated[str | None, meta("our own certificate (PEM) for mutual TLS")] = None
    key_file: Annotated[str | None, meta("key of our own certificate (PEM)")] = None
    server_name: Annotated[str | None, meta("name expected in the certificate; the URL's host when absent")] = None
    verify: Annotated[bool, meta("whether certificates are checked; leave this on")] = True

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or neither")


class ScrapePolicy(Section, frozen=True):
    """How the pages of engines are fetched: one task per endpoint, never two requests at once to one engine."""

    min_interval_s: Annotated[
        float, meta("shortest time between two scrapes, used while load moves fast", unit="s", ge=0.05, le=60)
    ] = 0.5
    max_interval_s: Annotated[
        float, meta("longest time between two scrapes, used while nothing moves", unit="s", ge=0.05, le=300)
    ] = 2.0
    timeout_s: Annotated[
        float, meta("deadline of one scrape, from connecting to the last byte", unit="s", gt=0, le=60)
    ] = 1.0
    jitter: Annotated[float, meta("each interval is varied by this share up and down", ge=0, le=0.5)] = 0.1
    max_backoff_s: Annotated[
        float, meta("longest pause after failures; it doubles from the interval", unit="s", ge=0.05, le=600)
    ] = 15.0
    max_page_bytes: Annotated[
        int, meta("largest page that is read, after decompression", unit="bytes", ge=1024, le=1 << 30)
    ] = 4 * 1024 * 1024
    window_s: Annotated[
        float, meta("window of hit ratios, means and SLO shares from counters", unit="s", ge=1, le=600)
    ] = 30.0
    rate_window_s: Annotated[float, meta("window of token and preemption rates", unit="s", ge=1, le=600)] = 10.0
    min_observations: Annotated[
        int, meta("a share of fewer observations within the window is not given", ge=1, le=1_000_000)
    ] = 20
    kv_combine: Annotated[Literal["max", "mean"], meta("KV usage of an endpoint with several data-parallel ranks")] = (
        "max"
    )
    ttft_target_s: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("time to first token against which the engines' own histograms are judged", unit="s", example=0.5),
    ] = None
    tpot_target_s: Annotated[
        Annotated[float, bound(gt=0)] | None,
        meta("time per output token against which the engines' own histograms are judged", unit="s", example=0.05),
    ] = None
    bearer_token_file: Annotated[
        str | None, meta("file with a bearer token for the pages; read again when it changes")
    ] = None
    tls: Annotated[ScrapeTlsPolicy, meta("TLS towards https pages")] = ScrapeTlsPolicy()

    def __post_init__(self) -> None:
        if self.min_interval_s > self.max_interval_s:
            raise ValueError(
                f"min_interval_s ({self.min_interval_s:g}) must not be above max_interval_s ({self.max_interval_s:g})"
            )


class MetricMapping(Section, frozen=True):
    """One metric of an engine that has no adapter, and the signal that it is."""

    signal: Annotated[str, meta("name of the signal in the catalogue", example="waiting")]
    metric: Annotated[
        str,
        meta(
            "name of the metric; `:` is read as `_`, `ray_` is dropped, `_total` may be left out",
            pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$",
            example="myengine_queue_length",
        ),
    ]
    kind: Annotated[
        Literal["gauge", "counter", "ratio", "histogram"],
        meta(
            "gauge: the value itself; counter: its growth per second; ratio: its growth over that of `over`; "
            "histogram: the mean, and the share within the target for ttft and tpot"
        ),
    ] = "gauge"
    over: Annotated[str, meta("for a ratio, the metric below the line", example="myengine_queries_total")] = ""
    labels: Annotated[
        dict[str, list[str]], meta("only series whose labels have one of these values", example={"state": ["queued"]})
    ] = {}
    over_labels: Annotated[dict[str, list[str]], meta("the same for `over`")] = {}
    combine: Annotated[Literal["sum", "max", "mean", "min"], meta("what several series of a gauge become")] = "sum"
    scale: Annotated[float, meta("factor to the catalogue's unit", example=0.001)] = 1.0
    offset: Annotated[float, meta("added after scaling")] = 0.0

    def __post_init__(self) -> None:
        if (self.kind == "ratio") != bool(self.over):
            raise ValueError("`over` names the metric below the line of kind `ratio`, and only of that")


class GenericMapping(Section, frozen=True):
    """An engine described by its metrics' names. An endpoint uses it by `engine: NAME`."""

    signals: Annotated[list[MetricMapping], meta("which metric is which signal", min_length=1)]
    path: Annotated[str, meta("path of the metrics page", pattern=r"^/")] = "/metrics"
    model_labels: Annotated[tuple[str, ...], meta("labels that name the model")] = ("model_name", "model")
    repeated_labels: Annotated[
        list[str], meta("labels whose series repeat one value, such as ranks of one group", example=["tp_rank"])
    ] = []


class GpuPolicy(Section, frozen=True):
    """Where GPU readings come from besides agents, and how many are kept."""

    dcgm: Annotated[list[str], meta("metrics pages of DCGM exporters", example=["http://10.0.0.11:9400/metrics"])] = []
    dcgm_interval_s: Annotated[float, meta("time between two scrapes of one exporter", unit="s", ge=0.1, le=300)] = 10.0
    max_gpus: Annotated[int, meta("GPUs and MIG devices that are kept at most", ge=1, le=1_000_000)] = 65536


class SignalsPolicy(Section, frozen=True):
    """Signals about endpoints: where they come from, how old they may be."""

    scrape: Annotated[ScrapePolicy, meta("scraping of the engines' pages")] = ScrapePolicy()
    gpu: Annotated[GpuPolicy, meta("GPU readings")] = GpuPolicy()
    age_limits_s: Annotated[
        dict[str, float],
        meta("age limits that differ from the catalogue's, by signal", unit="s", example={"waiting": 5.0}),
    ] = {}
    engines: Annotated[
        dict[str, GenericMapping], meta("engines without an adapter, by the name that endpoints use")
    ] = {}
    ignore_sources: Annotated[
        list[str],
        meta("kinds of source that are not used (push, engine, nvml, dcgm, accesslog, orca, lrs)", example=["orca"]),
    ] = []

    def __post_init__(self) -> None:
        for name, limit in self.age_limits_s.items():
            if not limit > 0:
                raise ValueError(f"age_limits_s: {name} must be above 0, it is {limit:g}")
