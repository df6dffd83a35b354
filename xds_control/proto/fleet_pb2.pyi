from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("processor", "ext_proc_address", "version")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    EXT_PROC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    processor: str
    ext_proc_address: str
    version: str
    def __init__(self, processor: _Optional[str] = ..., ext_proc_address: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("epoch", "version", "full", "pools", "removed_pools", "policy", "peers", "estimates", "shadow", "secret")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_POOLS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    version: int
    full: bool
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    removed_pools: _containers.RepeatedScalarFieldContainer[str]
    policy: Policy
    peers: PeerState
    estimates: Estimates
    shadow: Policy
    secret: str
    def __init__(self, epoch: _Optional[str] = ..., version: _Optional[int] = ..., full: _Optional[bool] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., removed_pools: _Optional[_Iterable[str]] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., peers: _Optional[_Union[PeerState, _Mapping]] = ..., estimates: _Optional[_Union[Estimates, _Mapping]] = ..., shadow: _Optional[_Union[Policy, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("version", "json")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    version: str
    json: bytes
    def __init__(self, version: _Optional[str] = ..., json: _Optional[bytes] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "models", "endpoints", "removed_endpoints")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    removed_endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., removed_endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address", "name", "state", "weight", "priority", "pickable", "capacity", "role", "labels", "signals", "gates", "why", "info", "region", "zone", "sub_zone", "engine", "health")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SignalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PICKABLE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SUB_ZONE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    address: str
    name: str
    state: str
    weight: int
    priority: int
    pickable: bool
    capacity: float
    role: str
    labels: _containers.ScalarMap[str, str]
    signals: _containers.MessageMap[str, Value]
    gates: _containers.RepeatedScalarFieldContainer[str]
    why: str
    info: EngineInfo
    region: str
    zone: str
    sub_zone: str
    engine: str
    health: str
    def __init__(self, address: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., weight: _Optional[int] = ..., priority: _Optional[int] = ..., pickable: _Optional[bool] = ..., capacity: _Optional[float] = ..., role: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., signals: _Optional[_Mapping[str, Value]] = ..., gates: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ..., info: _Optional[_Union[EngineInfo, _Mapping]] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., sub_zone: _Optional[str] = ..., engine: _Optional[str] = ..., health: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("value", "age_s", "source")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    value: float
    age_s: float
    source: str
    def __init__(self, value: _Optional[float] = ..., age_s: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("models", "lora_running", "lora_waiting", "lora_max", "max_model_len", "block_size", "num_blocks", "started_at")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LORA_RUNNING_FIELD_NUMBER: _ClassVar[int]
    LORA_WAITING_FIELD_NUMBER: _ClassVar[int]
    LORA_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    lora_running: _containers.RepeatedScalarFieldContainer[str]
    lora_waiting: _containers.RepeatedScalarFieldContainer[str]
    lora_max: int
    max_model_len: int
    block_size: int
    num_blocks: int
    started_at: float
    def __init__(self, models: _Optional[_Iterable[str]] = ..., lora_running: _Optional[_Iterable[str]] = ..., lora_waiting: _Optional[_Iterable[str]] = ..., lora_max: _Optional[int] = ..., max_model_len: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., started_at: _Optional[float] = ...) -> None: ...

class PeerState(_message.Message):
    __slots__ = ("prefixes", "outstanding", "rates")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PrefixAdd]
    outstanding: _containers.RepeatedCompositeFieldContainer[Outstanding]
    rates: _containers.RepeatedCompositeFieldContainer[RateState]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PrefixAdd, _Mapping]]] = ..., outstanding: _Optional[_Iterable[_Union[Outstanding, _Mapping]]] = ..., rates: _Optional[_Iterable[_Union[RateState, _Mapping]]] = ...) -> None: ...

class PrefixAdd(_message.Message):
    __slots__ = ("endpoint", "keys", "tokens")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, endpoint: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Outstanding(_message.Message):
    __slots__ = ("endpoint", "requests", "prefill_tokens", "decode_tokens", "age_s")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    requests: int
    prefill_tokens: int
    decode_tokens: int
    age_s: float
    def __init__(self, endpoint: _Optional[str] = ..., requests: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., decode_tokens: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class RateState(_message.Message):
    __slots__ = ("pool", "endpoint", "state")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    state: bytes
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., state: _Optional[bytes] = ...) -> None: ...

class Estimates(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    def __init__(self, tokens: _Optional[bytes] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("sequence", "hello", "window", "signals", "gpus")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    hello: Hello
    window: Window
    signals: _containers.RepeatedCompositeFieldContainer[Signals]
    gpus: GpuReport
    def __init__(self, sequence: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., signals: _Optional[_Iterable[_Union[Signals, _Mapping]]] = ..., gpus: _Optional[_Union[GpuReport, _Mapping]] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("source", "kind", "version")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    source: str
    kind: str
    version: str
    def __init__(self, source: _Optional[str] = ..., kind: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("period_s", "outcomes", "prefixes", "outstanding", "rates", "tokens", "decisions", "load", "shadow")
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    period_s: float
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcomes]
    prefixes: _containers.RepeatedCompositeFieldContainer[PrefixAdd]
    outstanding: _containers.RepeatedCompositeFieldContainer[Outstanding]
    rates: _containers.RepeatedCompositeFieldContainer[RateState]
    tokens: bytes
    decisions: _containers.RepeatedCompositeFieldContainer[Decisions]
    load: ProcessorLoad
    shadow: ShadowWindow
    def __init__(self, period_s: _Optional[float] = ..., outcomes: _Optional[_Iterable[_Union[Outcomes, _Mapping]]] = ..., prefixes: _Optional[_Iterable[_Union[PrefixAdd, _Mapping]]] = ..., outstanding: _Optional[_Iterable[_Union[Outstanding, _Mapping]]] = ..., rates: _Optional[_Iterable[_Union[RateState, _Mapping]]] = ..., tokens: _Optional[bytes] = ..., decisions: _Optional[_Iterable[_Union[Decisions, _Mapping]]] = ..., load: _Optional[_Union[ProcessorLoad, _Mapping]] = ..., shadow: _Optional[_Union[ShadowWindow, _Mapping]] = ...) -> None: ...

class ShadowWindow(_message.Message):
    __slots__ = ("version", "requests", "same_pool", "refused_live", "refused_shadow", "picks", "same_endpoint", "ttft_live_s", "ttft_shadow_s", "problem")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SAME_POOL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_LIVE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SHADOW_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    SAME_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TTFT_LIVE_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_SHADOW_S_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    version: str
    requests: int
    same_pool: int
    refused_live: int
    refused_shadow: int
    picks: int
    same_endpoint: int
    ttft_live_s: float
    ttft_shadow_s: float
    problem: str
    def __init__(self, version: _Optional[str] = ..., requests: _Optional[int] = ..., same_pool: _Optional[int] = ..., refused_live: _Optional[int] = ..., refused_shadow: _Optional[int] = ..., picks: _Optional[int] = ..., same_endpoint: _Optional[int] = ..., ttft_live_s: _Optional[float] = ..., ttft_shadow_s: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...

class Outcomes(_message.Message):
    __slots__ = ("pool", "endpoint", "service_class", "requests", "ok", "errors_connect", "errors_timeout", "errors_5xx", "errors_4xx", "aborted", "backpressure", "retries", "streamed", "ttft_s", "tpot_s", "queue_s", "e2e_s", "prompt_tokens", "completion_tokens", "cached_tokens", "usage_known", "slo_known", "slo_met", "decode_seconds", "prefill_seconds", "orca", "cached_known", "errors_reset", "ttft_known", "ttft_met", "tpot_known", "tpot_met", "attempts_connect", "attempts_timeout", "attempts_reset", "attempts_5xx", "attempts_backpressure", "timed_decode_tokens", "timed_prefill_tokens")
    class OrcaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: OrcaSum
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[OrcaSum, _Mapping]] = ...) -> None: ...
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERRORS_CONNECT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_5XX_FIELD_NUMBER: _ClassVar[int]
    ERRORS_4XX_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURE_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TPOT_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    E2E_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_KNOWN_FIELD_NUMBER: _ClassVar[int]
    SLO_KNOWN_FIELD_NUMBER: _ClassVar[int]
    SLO_MET_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ORCA_FIELD_NUMBER: _ClassVar[int]
    CACHED_KNOWN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_RESET_FIELD_NUMBER: _ClassVar[int]
    TTFT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TTFT_MET_FIELD_NUMBER: _ClassVar[int]
    TPOT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TPOT_MET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_CONNECT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_RESET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_5XX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_BACKPRESSURE_FIELD_NUMBER: _ClassVar[int]
    TIMED_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    service_class: str
    requests: int
    ok: int
    errors_connect: int
    errors_timeout: int
    errors_5xx: int
    errors_4xx: int
    aborted: int
    backpressure: int
    retries: int
    streamed: int
    ttft_s: Sketch
    tpot_s: Sketch
    queue_s: Sketch
    e2e_s: Sketch
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_known: int
    slo_known: int
    slo_met: int
    decode_seconds: float
    prefill_seconds: float
    orca: _containers.MessageMap[str, OrcaSum]
    cached_known: int
    errors_reset: int
    ttft_known: int
    ttft_met: int
    tpot_known: int
    tpot_met: int
    attempts_connect: int
    attempts_timeout: int
    attempts_reset: int
    attempts_5xx: int
    attempts_backpressure: int
    timed_decode_tokens: int
    timed_prefill_tokens: int
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., service_class: _Optional[str] = ..., requests: _Optional[int] = ..., ok: _Optional[int] = ..., errors_connect: _Optional[int] = ..., errors_timeout: _Optional[int] = ..., errors_5xx: _Optional[int] = ..., errors_4xx: _Optional[int] = ..., aborted: _Optional[int] = ..., backpressure: _Optional[int] = ..., retries: _Optional[int] = ..., streamed: _Optional[int] = ..., ttft_s: _Optional[_Union[Sketch, _Mapping]] = ..., tpot_s: _Optional[_Union[Sketch, _Mapping]] = ..., queue_s: _Optional[_Union[Sketch, _Mapping]] = ..., e2e_s: _Optional[_Union[Sketch, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., usage_known: _Optional[int] = ..., slo_known: _Optional[int] = ..., slo_met: _Optional[int] = ..., decode_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., orca: _Optional[_Mapping[str, OrcaSum]] = ..., cached_known: _Optional[int] = ..., errors_reset: _Optional[int] = ..., ttft_known: _Optional[int] = ..., ttft_met: _Optional[int] = ..., tpot_known: _Optional[int] = ..., tpot_met: _Optional[int] = ..., attempts_connect: _Optional[int] = ..., attempts_timeout: _Optional[int] = ..., attempts_reset: _Optional[int] = ..., attempts_5xx: _Optional[int] = ..., attempts_backpressure: _Optional[int] = ..., timed_decode_tokens: _Optional[int] = ..., timed_prefill_tokens: _Optional[int] = ...) -> None: ...

class OrcaSum(_message.Message):
    __slots__ = ("last", "sum", "count")
    LAST_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    last: float
    sum: float
    count: int
    def __init__(self, last: _Optional[float] = ..., sum: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class Sketch(_message.Message):
    __slots__ = ("index", "count", "zeros", "sum", "min", "max")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    count: _containers.RepeatedScalarFieldContainer[int]
    zeros: int
    sum: float
    min: float
    max: float
    def __init__(self, index: _Optional[_Iterable[int]] = ..., count: _Optional[_Iterable[int]] = ..., zeros: _Optional[int] = ..., sum: _Optional[float] = ..., min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class Decisions(_message.Message):
    __slots__ = ("pool", "rule", "reason", "count")
    POOL_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    rule: str
    reason: str
    count: int
    def __init__(self, pool: _Optional[str] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ProcessorLoad(_message.Message):
    __slots__ = ("streams", "cpu_seconds", "requests", "access_log_entries", "prefix_index_bytes", "loop_lag_s", "rss_bytes")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_LOG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_S_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    streams: int
    cpu_seconds: float
    requests: int
    access_log_entries: int
    prefix_index_bytes: int
    loop_lag_s: float
    rss_bytes: int
    def __init__(self, streams: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., requests: _Optional[int] = ..., access_log_entries: _Optional[int] = ..., prefix_index_bytes: _Optional[int] = ..., loop_lag_s: _Optional[float] = ..., rss_bytes: _Optional[int] = ...) -> None: ...

class Signals(_message.Message):
    __slots__ = ("endpoint", "values", "at_unix_s")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    values: _containers.ScalarMap[str, float]
    at_unix_s: float
    def __init__(self, endpoint: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ..., at_unix_s: _Optional[float] = ...) -> None: ...

class GpuReport(_message.Message):
    __slots__ = ("node", "driver", "gpus", "lost", "full")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    node: str
    driver: str
    gpus: _containers.RepeatedCompositeFieldContainer[GpuState]
    lost: _containers.RepeatedScalarFieldContainer[str]
    full: bool
    def __init__(self, node: _Optional[str] = ..., driver: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[GpuState, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ..., full: _Optional[bool] = ...) -> None: ...

class GpuState(_message.Message):
    __slots__ = ("uuid", "name", "parent_uuid", "mem_total_bytes", "mem_used_bytes", "mem_free_bytes", "util", "mem_bw_util", "temp_c", "power_w", "power_limit_w", "throttle_reasons", "xid_last", "xid_count", "ecc_uncorrected", "nvlink_rx_bytes_s", "nvlink_tx_bytes_s", "pcie_rx_bytes_s", "pcie_tx_bytes_s", "pids", "lost", "error", "remap_failures", "unified_memory", "index")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    MEM_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEM_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEM_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTIL_FIELD_NUMBER: _ClassVar[int]
    MEM_BW_UTIL_FIELD_NUMBER: _ClassVar[int]
    TEMP_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    XID_LAST_FIELD_NUMBER: _ClassVar[int]
    XID_COUNT_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    NVLINK_RX_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    NVLINK_TX_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REMAP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    UNIFIED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    parent_uuid: str
    mem_total_bytes: int
    mem_used_bytes: int
    mem_free_bytes: int
    util: float
    mem_bw_util: float
    temp_c: float
    power_w: float
    power_limit_w: float
    throttle_reasons: int
    xid_last: int
    xid_count: int
    ecc_uncorrected: int
    nvlink_rx_bytes_s: float
    nvlink_tx_bytes_s: float
    pcie_rx_bytes_s: float
    pcie_tx_bytes_s: float
    pids: _containers.RepeatedScalarFieldContainer[int]
    lost: bool
    error: str
    remap_failures: int
    unified_memory: bool
    index: int
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., parent_uuid: _Optional[str] = ..., mem_total_bytes: _Optional[int] = ..., mem_used_bytes: _Optional[int] = ..., mem_free_bytes: _Optional[int] = ..., util: _Optional[float] = ..., mem_bw_util: _Optional[float] = ..., temp_c: _Optional[float] = ..., power_w: _Optional[float] = ..., power_limit_w: _Optional[float] = ..., throttle_reasons: _Optional[int] = ..., xid_last: _Optional[int] = ..., xid_count: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., nvlink_rx_bytes_s: _Optional[float] = ..., nvlink_tx_bytes_s: _Optional[float] = ..., pcie_rx_bytes_s: _Optional[float] = ..., pcie_tx_bytes_s: _Optional[float] = ..., pids: _Optional[_Iterable[int]] = ..., lost: _Optional[bool] = ..., error: _Optional[str] = ..., remap_failures: _Optional[int] = ..., unified_memory: _Optional[bool] = ..., index: _Optional[int] = ...) -> None: ...
