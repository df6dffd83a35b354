from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "epoch", "uptime_s", "ready", "problems", "policy_version", "shadow_version", "snapshot_version", "snapshot_age_s", "ticks", "tick_s", "pools", "endpoints", "endpoint_states", "xds_clients", "xds_clients_behind", "processors", "agents", "requests_per_s", "log_level")
    class EndpointStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHADOW_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    TICK_S_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_STATES_FIELD_NUMBER: _ClassVar[int]
    XDS_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    XDS_CLIENTS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: str
    uptime_s: float
    ready: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    policy_version: str
    shadow_version: str
    snapshot_version: int
    snapshot_age_s: float
    ticks: int
    tick_s: float
    pools: int
    endpoints: int
    endpoint_states: _containers.ScalarMap[str, int]
    xds_clients: int
    xds_clients_behind: int
    processors: int
    agents: int
    requests_per_s: float
    log_level: str
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[str] = ..., uptime_s: _Optional[float] = ..., ready: _Optional[bool] = ..., problems: _Optional[_Iterable[str]] = ..., policy_version: _Optional[str] = ..., shadow_version: _Optional[str] = ..., snapshot_version: _Optional[int] = ..., snapshot_age_s: _Optional[float] = ..., ticks: _Optional[int] = ..., tick_s: _Optional[float] = ..., pools: _Optional[int] = ..., endpoints: _Optional[int] = ..., endpoint_states: _Optional[_Mapping[str, int]] = ..., xds_clients: _Optional[int] = ..., xds_clients_behind: _Optional[int] = ..., processors: _Optional[int] = ..., agents: _Optional[int] = ..., requests_per_s: _Optional[float] = ..., log_level: _Optional[str] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    def __init__(self, pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "models", "states", "endpoints", "serving", "pickable", "capacity", "localities", "traffic")
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    PICKABLE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LOCALITIES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    states: _containers.ScalarMap[str, int]
    endpoints: int
    serving: int
    pickable: int
    capacity: float
    localities: _containers.RepeatedCompositeFieldContainer[Locality]
    traffic: Traffic
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., states: _Optional[_Mapping[str, int]] = ..., endpoints: _Optional[int] = ..., serving: _Optional[int] = ..., pickable: _Optional[int] = ..., capacity: _Optional[float] = ..., localities: _Optional[_Iterable[_Union[Locality, _Mapping]]] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class Locality(_message.Message):
    __slots__ = ("region", "zone", "sub_zone", "priority", "weight", "endpoints")
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SUB_ZONE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    region: str
    zone: str
    sub_zone: str
    priority: int
    weight: int
    endpoints: int
    def __init__(self, region: _Optional[str] = ..., zone: _Optional[str] = ..., sub_zone: _Optional[str] = ..., priority: _Optional[int] = ..., weight: _Optional[int] = ..., endpoints: _Optional[int] = ...) -> None: ...

class ListEndpointsRequest(_message.Message):
    __slots__ = ("pool", "endpoint", "states", "explain", "all_sources", "long_window")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    ALL_SOURCES_FIELD_NUMBER: _ClassVar[int]
    LONG_WINDOW_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    states: _containers.RepeatedScalarFieldContainer[str]
    explain: bool
    all_sources: bool
    long_window: bool
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ..., explain: _Optional[bool] = ..., all_sources: _Optional[bool] = ..., long_window: _Optional[bool] = ...) -> None: ...

class ListEndpointsResponse(_message.Message):
    __slots__ = ("epoch", "snapshot_version", "endpoints")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    snapshot_version: int
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, epoch: _Optional[str] = ..., snapshot_version: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address", "name", "pool", "state", "state_age_s", "state_reason", "health", "weight", "weight_share", "priority", "pickable", "capacity", "gates", "why", "role", "engine", "region", "zone", "sub_zone", "labels", "models", "loras", "max_model_len", "override", "ejections", "until_s", "held", "signals", "explanation", "traffic")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_AGE_S_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SHARE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PICKABLE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SUB_ZONE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    EJECTIONS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    address: str
    name: str
    pool: str
    state: str
    state_age_s: float
    state_reason: str
    health: str
    weight: int
    weight_share: float
    priority: int
    pickable: bool
    capacity: float
    gates: _containers.RepeatedScalarFieldContainer[str]
    why: str
    role: str
    engine: str
    region: str
    zone: str
    sub_zone: str
    labels: _containers.ScalarMap[str, str]
    models: _containers.RepeatedScalarFieldContainer[str]
    loras: _containers.RepeatedScalarFieldContainer[str]
    max_model_len: int
    override: Override
    ejections: int
    until_s: float
    held: str
    signals: _containers.RepeatedCompositeFieldContainer[Signal]
    explanation: Explanation
    traffic: Traffic
    def __init__(self, address: _Optional[str] = ..., name: _Optional[str] = ..., pool: _Optional[str] = ..., state: _Optional[str] = ..., state_age_s: _Optional[float] = ..., state_reason: _Optional[str] = ..., health: _Optional[str] = ..., weight: _Optional[int] = ..., weight_share: _Optional[float] = ..., priority: _Optional[int] = ..., pickable: _Optional[bool] = ..., capacity: _Optional[float] = ..., gates: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ..., role: _Optional[str] = ..., engine: _Optional[str] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., sub_zone: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., models: _Optional[_Iterable[str]] = ..., loras: _Optional[_Iterable[str]] = ..., max_model_len: _Optional[int] = ..., override: _Optional[_Union[Override, _Mapping]] = ..., ejections: _Optional[int] = ..., until_s: _Optional[float] = ..., held: _Optional[str] = ..., signals: _Optional[_Iterable[_Union[Signal, _Mapping]]] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("name", "value", "unit", "age_s", "age_limit_s", "fresh", "source", "used", "normalised", "disagrees")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    AGE_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    NORMALISED_FIELD_NUMBER: _ClassVar[int]
    DISAGREES_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    unit: str
    age_s: float
    age_limit_s: float
    fresh: float
    source: str
    used: bool
    normalised: float
    disagrees: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., unit: _Optional[str] = ..., age_s: _Optional[float] = ..., age_limit_s: _Optional[float] = ..., fresh: _Optional[float] = ..., source: _Optional[str] = ..., used: _Optional[bool] = ..., normalised: _Optional[float] = ..., disagrees: _Optional[bool] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("kind", "weight", "ttl_s", "reason", "by")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    weight: int
    ttl_s: float
    reason: str
    by: str
    def __init__(self, kind: _Optional[str] = ..., weight: _Optional[int] = ..., ttl_s: _Optional[float] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("factors", "terms", "raw", "stages", "weight", "why")
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    factors: _containers.RepeatedCompositeFieldContainer[Factor]
    terms: _containers.RepeatedCompositeFieldContainer[Factor]
    raw: float
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    weight: int
    why: str
    def __init__(self, factors: _Optional[_Iterable[_Union[Factor, _Mapping]]] = ..., terms: _Optional[_Iterable[_Union[Factor, _Mapping]]] = ..., raw: _Optional[float] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., weight: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Factor(_message.Message):
    __slots__ = ("name", "signal", "value", "age_s", "confidence", "normalised", "exponent", "factor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    NORMALISED_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    signal: str
    value: float
    age_s: float
    confidence: float
    normalised: float
    exponent: float
    factor: float
    def __init__(self, name: _Optional[str] = ..., signal: _Optional[str] = ..., value: _Optional[float] = ..., age_s: _Optional[float] = ..., confidence: _Optional[float] = ..., normalised: _Optional[float] = ..., exponent: _Optional[float] = ..., factor: _Optional[float] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("window_s", "requests", "ok", "streamed", "retries", "requests_per_s", "share", "errors", "error_rate", "slo_attainment", "ttft_attainment", "tpot_attainment", "kv_hit_ratio", "prompt_tokens", "completion_tokens", "cached_tokens", "prefill_tps", "decode_tps", "decode_speed", "ttft", "tpot", "queue", "e2e", "orca", "classes")
    class ErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class OrcaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ClassesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Traffic
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    SLO_ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    TTFT_ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    TPOT_ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    KV_HIT_RATIO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SPEED_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    TPOT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    E2E_FIELD_NUMBER: _ClassVar[int]
    ORCA_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    window_s: float
    requests: int
    ok: int
    streamed: int
    retries: int
    requests_per_s: float
    share: float
    errors: _containers.ScalarMap[str, int]
    error_rate: float
    slo_attainment: float
    ttft_attainment: float
    tpot_attainment: float
    kv_hit_ratio: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prefill_tps: float
    decode_tps: float
    decode_speed: float
    ttft: Quantiles
    tpot: Quantiles
    queue: Quantiles
    e2e: Quantiles
    orca: _containers.ScalarMap[str, float]
    classes: _containers.MessageMap[str, Traffic]
    def __init__(self, window_s: _Optional[float] = ..., requests: _Optional[int] = ..., ok: _Optional[int] = ..., streamed: _Optional[int] = ..., retries: _Optional[int] = ..., requests_per_s: _Optional[float] = ..., share: _Optional[float] = ..., errors: _Optional[_Mapping[str, int]] = ..., error_rate: _Optional[float] = ..., slo_attainment: _Optional[float] = ..., ttft_attainment: _Optional[float] = ..., tpot_attainment: _Optional[float] = ..., kv_hit_ratio: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prefill_tps: _Optional[float] = ..., decode_tps: _Optional[float] = ..., decode_speed: _Optional[float] = ..., ttft: _Optional[_Union[Quantiles, _Mapping]] = ..., tpot: _Optional[_Union[Quantiles, _Mapping]] = ..., queue: _Optional[_Union[Quantiles, _Mapping]] = ..., e2e: _Optional[_Union[Quantiles, _Mapping]] = ..., orca: _Optional[_Mapping[str, float]] = ..., classes: _Optional[_Mapping[str, Traffic]] = ...) -> None: ...

class Quantiles(_message.Message):
    __slots__ = ("p50", "p90", "p99", "mean", "count")
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    p50: float
    p90: float
    p99: float
    mean: float
    count: int
    def __init__(self, p50: _Optional[float] = ..., p90: _Optional[float] = ..., p99: _Optional[float] = ..., mean: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("after", "limit", "endpoint", "pool", "kind")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    endpoint: str
    pool: str
    kind: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., endpoint: _Optional[str] = ..., pool: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "newest")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    newest: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., newest: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at_unix_s", "kind", "pool", "endpoint", "before", "after", "reason", "by")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at_unix_s: float
    kind: str
    pool: str
    endpoint: str
    before: str
    after: str
    reason: str
    by: str
    def __init__(self, sequence: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., kind: _Optional[str] = ..., pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("since", "limit", "endpoint", "pool")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    since: int
    limit: int
    endpoint: str
    pool: str
    def __init__(self, since: _Optional[int] = ..., limit: _Optional[int] = ..., endpoint: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotEntry]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[SnapshotEntry, _Mapping]]] = ...) -> None: ...

class SnapshotEntry(_message.Message):
    __slots__ = ("version", "at_unix_s", "policy_version", "moves", "moved")
    class MovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    version: int
    at_unix_s: float
    policy_version: str
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    moved: _containers.ScalarMap[str, float]
    def __init__(self, version: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., policy_version: _Optional[str] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., moved: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("pool", "endpoint", "weight_before", "weight", "state_before", "state", "gates_before", "gates", "why")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GATES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    weight_before: int
    weight: int
    state_before: str
    state: str
    gates_before: _containers.RepeatedScalarFieldContainer[str]
    gates: _containers.RepeatedScalarFieldContainer[str]
    why: str
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., weight_before: _Optional[int] = ..., weight: _Optional[int] = ..., state_before: _Optional[str] = ..., state: _Optional[str] = ..., gates_before: _Optional[_Iterable[str]] = ..., gates: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ...) -> None: ...

class CompareSnapshotsRequest(_message.Message):
    __slots__ = ("older", "newer")
    OLDER_FIELD_NUMBER: _ClassVar[int]
    NEWER_FIELD_NUMBER: _ClassVar[int]
    older: int
    newer: int
    def __init__(self, older: _Optional[int] = ..., newer: _Optional[int] = ...) -> None: ...

class CompareSnapshotsResponse(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    def __init__(self, moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("pool", "endpoint", "events_only", "after_event", "interval_s", "explain", "traffic")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    AFTER_EVENT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    events_only: bool
    after_event: int
    interval_s: float
    explain: bool
    traffic: bool
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., events_only: _Optional[bool] = ..., after_event: _Optional[int] = ..., interval_s: _Optional[float] = ..., explain: _Optional[bool] = ..., traffic: _Optional[bool] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("epoch", "snapshot_version", "at_unix_s", "policy_version", "full", "endpoints", "removed", "events")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    snapshot_version: int
    at_unix_s: float
    policy_version: str
    full: bool
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    removed: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, epoch: _Optional[str] = ..., snapshot_version: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., policy_version: _Optional[str] = ..., full: _Optional[bool] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id", "request", "shadow")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    request: HttpRequest
    shadow: bool
    def __init__(self, request_id: _Optional[str] = ..., request: _Optional[_Union[HttpRequest, _Mapping]] = ..., shadow: _Optional[bool] = ...) -> None: ...

class HttpRequest(_message.Message):
    __slots__ = ("method", "path", "headers", "body")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    method: str
    path: str
    headers: _containers.ScalarMap[str, str]
    body: bytes
    def __init__(self, method: _Optional[str] = ..., path: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("explanation", "shadow")
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    explanation: RequestExplanation
    shadow: RequestExplanation
    def __init__(self, explanation: _Optional[_Union[RequestExplanation, _Mapping]] = ..., shadow: _Optional[_Union[RequestExplanation, _Mapping]] = ...) -> None: ...

class RequestExplanation(_message.Message):
    __slots__ = ("id", "at_unix_s", "processor", "dry_run", "facts", "decision", "candidates", "endpoints", "why", "outcome", "notable")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NOTABLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    at_unix_s: float
    processor: str
    dry_run: bool
    facts: RequestFacts
    decision: Decision
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    endpoints: int
    why: str
    outcome: RequestOutcome
    notable: str
    def __init__(self, id: _Optional[str] = ..., at_unix_s: _Optional[float] = ..., processor: _Optional[str] = ..., dry_run: _Optional[bool] = ..., facts: _Optional[_Union[RequestFacts, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., endpoints: _Optional[int] = ..., why: _Optional[str] = ..., outcome: _Optional[_Union[RequestOutcome, _Mapping]] = ..., notable: _Optional[str] = ...) -> None: ...

class RequestFacts(_message.Message):
    __slots__ = ("api", "path", "model", "body_bytes", "prompt_bytes", "prompt_tokens", "tokens_exact", "max_output_tokens", "expected_output_tokens", "stream", "n", "messages", "tools", "images", "media_count", "media_bytes", "priority", "lora", "cache_salted", "session_key", "session_source", "prefix_blocks", "prefix_key", "tenant", "service_class", "tags", "problem", "detail")
    API_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_EXACT_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALTED_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    api: str
    path: str
    model: str
    body_bytes: int
    prompt_bytes: int
    prompt_tokens: int
    tokens_exact: bool
    max_output_tokens: int
    expected_output_tokens: int
    stream: bool
    n: int
    messages: int
    tools: int
    images: int
    media_count: int
    media_bytes: int
    priority: int
    lora: str
    cache_salted: bool
    session_key: str
    session_source: str
    prefix_blocks: int
    prefix_key: str
    tenant: str
    service_class: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    detail: str
    def __init__(self, api: _Optional[str] = ..., path: _Optional[str] = ..., model: _Optional[str] = ..., body_bytes: _Optional[int] = ..., prompt_bytes: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., tokens_exact: _Optional[bool] = ..., max_output_tokens: _Optional[int] = ..., expected_output_tokens: _Optional[int] = ..., stream: _Optional[bool] = ..., n: _Optional[int] = ..., messages: _Optional[int] = ..., tools: _Optional[int] = ..., images: _Optional[int] = ..., media_count: _Optional[int] = ..., media_bytes: _Optional[int] = ..., priority: _Optional[int] = ..., lora: _Optional[str] = ..., cache_salted: _Optional[bool] = ..., session_key: _Optional[str] = ..., session_source: _Optional[str] = ..., prefix_blocks: _Optional[int] = ..., prefix_key: _Optional[str] = ..., tenant: _Optional[str] = ..., service_class: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("rule", "route", "pool", "model", "service_class", "tenant", "profile", "reason", "destinations", "prefill", "matched_tokens", "headers", "status", "expected_ttft_s", "cost_s")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RULE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    rule: str
    route: str
    pool: str
    model: str
    service_class: str
    tenant: str
    profile: str
    reason: str
    destinations: _containers.RepeatedScalarFieldContainer[str]
    prefill: str
    matched_tokens: int
    headers: _containers.ScalarMap[str, str]
    status: int
    expected_ttft_s: float
    cost_s: float
    def __init__(self, rule: _Optional[str] = ..., route: _Optional[str] = ..., pool: _Optional[str] = ..., model: _Optional[str] = ..., service_class: _Optional[str] = ..., tenant: _Optional[str] = ..., profile: _Optional[str] = ..., reason: _Optional[str] = ..., destinations: _Optional[_Iterable[str]] = ..., prefill: _Optional[str] = ..., matched_tokens: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., status: _Optional[int] = ..., expected_ttft_s: _Optional[float] = ..., cost_s: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("endpoint", "cost_s", "expected_ttft_s", "wait_s", "prefill_s", "kv_wait_s", "interference_s", "decode_s", "memory_s", "fixed_s", "matched_tokens", "in_flight", "speed", "score", "excluded")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    KV_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    INTERFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_S_FIELD_NUMBER: _ClassVar[int]
    FIXED_S_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    cost_s: float
    expected_ttft_s: float
    wait_s: float
    prefill_s: float
    kv_wait_s: float
    interference_s: float
    decode_s: float
    memory_s: float
    fixed_s: float
    matched_tokens: int
    in_flight: float
    speed: float
    score: float
    excluded: str
    def __init__(self, endpoint: _Optional[str] = ..., cost_s: _Optional[float] = ..., expected_ttft_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., kv_wait_s: _Optional[float] = ..., interference_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., memory_s: _Optional[float] = ..., fixed_s: _Optional[float] = ..., matched_tokens: _Optional[int] = ..., in_flight: _Optional[float] = ..., speed: _Optional[float] = ..., score: _Optional[float] = ..., excluded: _Optional[str] = ...) -> None: ...

class RequestOutcome(_message.Message):
    __slots__ = ("kind", "status", "endpoint", "attempts", "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_s", "decode_s", "e2e_s", "queue_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    E2E_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    status: int
    endpoint: str
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    decode_s: float
    e2e_s: float
    queue_s: float
    def __init__(self, kind: _Optional[str] = ..., status: _Optional[int] = ..., endpoint: _Optional[str] = ..., attempts: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., ttft_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., e2e_s: _Optional[float] = ..., queue_s: _Optional[float] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("limit", "notable", "pool", "endpoint", "processor")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NOTABLE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    limit: int
    notable: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    endpoint: str
    processor: str
    def __init__(self, limit: _Optional[int] = ..., notable: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., processor: _Optional[str] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "unreachable")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestExplanation]
    unreachable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestExplanation, _Mapping]]] = ..., unreachable: _Optional[_Iterable[str]] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[XdsClient]
    def __init__(self, clients: _Optional[_Iterable[_Union[XdsClient, _Mapping]]] = ...) -> None: ...

class XdsClient(_message.Message):
    __slots__ = ("id", "peer", "node_id", "cluster", "group", "user_agent", "protocol", "service", "age_s", "lag_s", "stuck", "writing_s", "types")
    ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    WRITING_S_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    id: str
    peer: str
    node_id: str
    cluster: str
    group: str
    user_agent: str
    protocol: str
    service: str
    age_s: float
    lag_s: float
    stuck: bool
    writing_s: float
    types: _containers.RepeatedCompositeFieldContainer[XdsType]
    def __init__(self, id: _Optional[str] = ..., peer: _Optional[str] = ..., node_id: _Optional[str] = ..., cluster: _Optional[str] = ..., group: _Optional[str] = ..., user_agent: _Optional[str] = ..., protocol: _Optional[str] = ..., service: _Optional[str] = ..., age_s: _Optional[float] = ..., lag_s: _Optional[float] = ..., stuck: _Optional[bool] = ..., writing_s: _Optional[float] = ..., types: _Optional[_Iterable[_Union[XdsType, _Mapping]]] = ...) -> None: ...

class XdsType(_message.Message):
    __slots__ = ("type", "type_url", "wildcard", "names", "held", "version_sent", "version_acked", "outstanding", "rejected", "last_error", "lag_s", "responses", "acks", "nacks")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_URL_FIELD_NUMBER: _ClassVar[int]
    WILDCARD_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    VERSION_SENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_ACKED_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    NACKS_FIELD_NUMBER: _ClassVar[int]
    type: str
    type_url: str
    wildcard: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    held: int
    version_sent: str
    version_acked: str
    outstanding: bool
    rejected: _containers.RepeatedScalarFieldContainer[str]
    last_error: str
    lag_s: float
    responses: int
    acks: int
    nacks: int
    def __init__(self, type: _Optional[str] = ..., type_url: _Optional[str] = ..., wildcard: _Optional[bool] = ..., names: _Optional[_Iterable[str]] = ..., held: _Optional[int] = ..., version_sent: _Optional[str] = ..., version_acked: _Optional[str] = ..., outstanding: _Optional[bool] = ..., rejected: _Optional[_Iterable[str]] = ..., last_error: _Optional[str] = ..., lag_s: _Optional[float] = ..., responses: _Optional[int] = ..., acks: _Optional[int] = ..., nacks: _Optional[int] = ...) -> None: ...

class ListProcessorsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProcessorsResponse(_message.Message):
    __slots__ = ("processors",)
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    processors: _containers.RepeatedCompositeFieldContainer[Processor]
    def __init__(self, processors: _Optional[_Iterable[_Union[Processor, _Mapping]]] = ...) -> None: ...

class Processor(_message.Message):
    __slots__ = ("name", "address", "version", "age_s", "last_report_age_s", "snapshot_version", "snapshots_behind", "policy_version", "streams", "requests", "access_log_entries", "cpu_seconds", "loop_lag_s", "rss_bytes", "prefix_index_bytes", "outstanding")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LAST_REPORT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_LOG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_S_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    version: str
    age_s: float
    last_report_age_s: float
    snapshot_version: int
    snapshots_behind: int
    policy_version: str
    streams: int
    requests: int
    access_log_entries: int
    cpu_seconds: float
    loop_lag_s: float
    rss_bytes: int
    prefix_index_bytes: int
    outstanding: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., age_s: _Optional[float] = ..., last_report_age_s: _Optional[float] = ..., snapshot_version: _Optional[int] = ..., snapshots_behind: _Optional[int] = ..., policy_version: _Optional[str] = ..., streams: _Optional[int] = ..., requests: _Optional[int] = ..., access_log_entries: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., loop_lag_s: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., prefix_index_bytes: _Optional[int] = ..., outstanding: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("endpoint", "ttl_s", "reason")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    ttl_s: float
    reason: str
    def __init__(self, endpoint: _Optional[str] = ..., ttl_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ("endpoint", "reason")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    reason: str
    def __init__(self, endpoint: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("endpoint", "weight", "ttl_s", "reason")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    weight: int
    ttl_s: float
    reason: str
    def __init__(self, endpoint: _Optional[str] = ..., weight: _Optional[int] = ..., ttl_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class EjectRequest(_message.Message):
    __slots__ = ("endpoint", "ttl_s", "reason")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    ttl_s: float
    reason: str
    def __init__(self, endpoint: _Optional[str] = ..., ttl_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("endpoint", "reason")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    reason: str
    def __init__(self, endpoint: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class OverrideResponse(_message.Message):
    __slots__ = ("endpoint", "before", "override")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    endpoint: Endpoint
    before: Override
    override: Override
    def __init__(self, endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., before: _Optional[_Union[Override, _Mapping]] = ..., override: _Optional[_Union[Override, _Mapping]] = ...) -> None: ...

class PolicyFile(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("file", "line", "column", "path", "message")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    column: int
    path: str
    message: str
    def __init__(self, file: _Optional[str] = ..., line: _Optional[int] = ..., column: _Optional[int] = ..., path: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PolicyVersion(_message.Message):
    __slots__ = ("version", "number", "at_unix_s", "by", "reason", "source", "active", "rolled_back_to")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_TO_FIELD_NUMBER: _ClassVar[int]
    version: str
    number: int
    at_unix_s: float
    by: str
    reason: str
    source: str
    active: bool
    rolled_back_to: str
    def __init__(self, version: _Optional[str] = ..., number: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., source: _Optional[str] = ..., active: _Optional[bool] = ..., rolled_back_to: _Optional[str] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("info", "files", "effective_json")
    INFO_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_JSON_FIELD_NUMBER: _ClassVar[int]
    info: PolicyVersion
    files: _containers.RepeatedCompositeFieldContainer[PolicyFile]
    effective_json: str
    def __init__(self, info: _Optional[_Union[PolicyVersion, _Mapping]] = ..., files: _Optional[_Iterable[_Union[PolicyFile, _Mapping]]] = ..., effective_json: _Optional[str] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[PolicyVersion]
    def __init__(self, policies: _Optional[_Iterable[_Union[PolicyVersion, _Mapping]]] = ...) -> None: ...

class ValidatePolicyRequest(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[PolicyFile]
    def __init__(self, files: _Optional[_Iterable[_Union[PolicyFile, _Mapping]]] = ...) -> None: ...

class ValidatePolicyResponse(_message.Message):
    __slots__ = ("ok", "version", "problems", "warnings")
    OK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    version: str
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    warnings: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, ok: _Optional[bool] = ..., version: _Optional[str] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class DiffPolicyRequest(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[PolicyFile]
    def __init__(self, files: _Optional[_Iterable[_Union[PolicyFile, _Mapping]]] = ...) -> None: ...

class DiffPolicyResponse(_message.Message):
    __slots__ = ("diff", "problems", "warnings")
    DIFF_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    diff: PolicyDiff
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    warnings: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, diff: _Optional[_Union[PolicyDiff, _Mapping]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class PolicyDiff(_message.Message):
    __slots__ = ("base_version", "version", "fields", "weights", "routes", "moved", "emptied", "needs_force", "why_force")
    class MovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FORCE_FIELD_NUMBER: _ClassVar[int]
    WHY_FORCE_FIELD_NUMBER: _ClassVar[int]
    base_version: str
    version: str
    fields: _containers.RepeatedCompositeFieldContainer[FieldChange]
    weights: _containers.RepeatedCompositeFieldContainer[WeightChange]
    routes: _containers.RepeatedScalarFieldContainer[str]
    moved: _containers.ScalarMap[str, float]
    emptied: _containers.RepeatedScalarFieldContainer[str]
    needs_force: bool
    why_force: str
    def __init__(self, base_version: _Optional[str] = ..., version: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[FieldChange, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightChange, _Mapping]]] = ..., routes: _Optional[_Iterable[str]] = ..., moved: _Optional[_Mapping[str, float]] = ..., emptied: _Optional[_Iterable[str]] = ..., needs_force: _Optional[bool] = ..., why_force: _Optional[str] = ...) -> None: ...

class FieldChange(_message.Message):
    __slots__ = ("path", "before", "after")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    path: str
    before: str
    after: str
    def __init__(self, path: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class WeightChange(_message.Message):
    __slots__ = ("pool", "endpoint", "weight_before", "weight", "share_before", "share", "why")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoint: str
    weight_before: int
    weight: int
    share_before: float
    share: float
    why: str
    def __init__(self, pool: _Optional[str] = ..., endpoint: _Optional[str] = ..., weight_before: _Optional[int] = ..., weight: _Optional[int] = ..., share_before: _Optional[float] = ..., share: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class PushPolicyRequest(_message.Message):
    __slots__ = ("files", "expect_version", "force", "reason", "dry_run")
    FILES_FIELD_NUMBER: _ClassVar[int]
    EXPECT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[PolicyFile]
    expect_version: str
    force: bool
    reason: str
    dry_run: bool
    def __init__(self, files: _Optional[_Iterable[_Union[PolicyFile, _Mapping]]] = ..., expect_version: _Optional[str] = ..., force: _Optional[bool] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PushPolicyResponse(_message.Message):
    __slots__ = ("accepted", "info", "diff", "problems", "warnings")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    info: PolicyVersion
    diff: PolicyDiff
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    warnings: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, accepted: _Optional[bool] = ..., info: _Optional[_Union[PolicyVersion, _Mapping]] = ..., diff: _Optional[_Union[PolicyDiff, _Mapping]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class RollbackPolicyRequest(_message.Message):
    __slots__ = ("version", "expect_version", "force", "reason", "dry_run")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    version: str
    expect_version: str
    force: bool
    reason: str
    dry_run: bool
    def __init__(self, version: _Optional[str] = ..., expect_version: _Optional[str] = ..., force: _Optional[bool] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class GetShadowRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetShadowRequest(_message.Message):
    __slots__ = ("files", "reason")
    FILES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[PolicyFile]
    reason: str
    def __init__(self, files: _Optional[_Iterable[_Union[PolicyFile, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ClearShadowRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GetShadowResponse(_message.Message):
    __slots__ = ("info", "weights", "moved", "requests", "same_pool", "same_endpoint", "predicted", "problems", "picks")
    class MovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PredictedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INFO_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SAME_POOL_FIELD_NUMBER: _ClassVar[int]
    SAME_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    info: PolicyVersion
    weights: _containers.RepeatedCompositeFieldContainer[WeightChange]
    moved: _containers.ScalarMap[str, float]
    requests: int
    same_pool: int
    same_endpoint: int
    predicted: _containers.ScalarMap[str, float]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    picks: int
    def __init__(self, info: _Optional[_Union[PolicyVersion, _Mapping]] = ..., weights: _Optional[_Iterable[_Union[WeightChange, _Mapping]]] = ..., moved: _Optional[_Mapping[str, float]] = ..., requests: _Optional[int] = ..., same_pool: _Optional[int] = ..., same_endpoint: _Optional[int] = ..., predicted: _Optional[_Mapping[str, float]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., picks: _Optional[int] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("limit", "endpoint")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    endpoint: str
    def __init__(self, limit: _Optional[int] = ..., endpoint: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("at_unix_s", "by", "action", "target", "detail", "reason")
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_unix_s: float
    by: str
    action: str
    target: str
    detail: str
    reason: str
    def __init__(self, at_unix_s: _Optional[float] = ..., by: _Optional[str] = ..., action: _Optional[str] = ..., target: _Optional[str] = ..., detail: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetLogLevelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLogLevelResponse(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level", "ttl_s")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    level: str
    ttl_s: float
    def __init__(self, level: _Optional[str] = ..., ttl_s: _Optional[float] = ...) -> None: ...
