"""Our own processes: where control and the processors listen, and how many processors there are."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from xds_control.policy.address import check_listen
from xds_control.policy.base import Section, meta
from xds_control.policy.security import AdminSecurity, FleetSecurity


class ControlPolicy(Section, frozen=True):
    """The control process: O(endpoints) work only."""

    xds: Annotated[str, meta("where Envoys fetch their configuration (ADS)")] = "127.0.0.1:18000"
    fleet: Annotated[str, meta("where processors, agents and engines connect (Fleet service)")] = "127.0.0.1:18001"
    admin: Annotated[
        str, meta("admin gRPC, ip:port or unix:/path; elsewhere than on loopback only with TLS and tokens or mTLS")
    ] = "127.0.0.1:18002"
    http: Annotated[str, meta("`/metrics`, `/healthz`, `/readyz` and the page")] = "127.0.0.1:18003"
    tick_s: Annotated[
        float, meta("how often weights and states are computed from the signals", unit="s", ge=0.02, le=10)
    ] = 0.2
    peers_s: Annotated[
        float, meta("how often processors hear of each other's picks and prefixes", unit="s", ge=0.02, le=10)
    ] = 0.1
    history: Annotated[
        int,
        meta(
            "past snapshots of which it is kept what moved, for `xds-control history`; fewer where so many endpoints "
            "move each time that 50,000 moves are in less",
            ge=1,
            le=100_000,
        ),
    ] = 512
    store: Annotated[
        str | None,
        meta(
            "file that keeps policy versions, orders and the audit; `store.db` in --run-dir when absent, and in memory "
            "where there is no such folder",
            example="/var/lib/xds-control/store.db",
        ),
    ] = None
    watch: Annotated[bool, meta("whether a change of the policy file is pushed by itself")] = True
    watch_force: Annotated[
        bool, meta("whether a changed file is pushed though it empties a pool or moves more than push_limit")
    ] = False
    push_limit: Annotated[
        float,
        meta(
            "share of a pool's traffic that may lose its endpoint, or be added to the endpoints of today, by a push "
            "without --force",
            unit="ratio",
            ge=0,
            le=1,
        ),
    ] = 0.5
    admin_security: Annotated[AdminSecurity, meta("who may call the admin port")] = AdminSecurity()
    fleet_security: Annotated[FleetSecurity, meta("who may call the fleet port")] = FleetSecurity()

    def __post_init__(self) -> None:
        for field in ("xds", "fleet", "http"):
            check_listen(getattr(self, field), field)
        if not self.admin.startswith("unix:/"):
            check_listen(self.admin, "admin")


LISTEN: Final = {"envoy": "127.0.0.1:18010", "endpoint-picker": "0.0.0.0:9002"}
HEALTH: Final = {"envoy": "", "endpoint-picker": "0.0.0.0:9003"}
PRIVATE: Final = {"envoy": "", "endpoint-picker": "127.0.0.1:18010"}
"""Where processors listen when policy does not say; 9002 and 9003 are what InferencePools name by default."""


class ProcessorTls(Section, frozen=True):
    """TLS of the processors' port. Endpoint pickers usually have it, and data planes do not check the certificate."""

    certificate_file: Annotated[
        str | None,
        meta("PEM file with the certificate chain; absent = self-signed, made at each start (needs `openssl`)"),
    ] = None
    key_file: Annotated[str | None, meta("PEM file with its key")] = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both or neither")


class RequestRecords(Section, frozen=True):
    """Requests that each processor keeps for `xds-control requests` and `explain`; never their prompts."""

    notable: Annotated[
        int,
        meta(
            "newest requests of each kind: slow, failed, fell back, refused; 0 also leaves out what the candidates of "
            "each pick cost",
            ge=0,
            le=100_000,
        ),
    ] = 512
    sampled: Annotated[int, meta("newest of the others, by sample_share", ge=0, le=100_000)] = 256
    recent: Annotated[
        int, meta("newest of all others that ended, to be found by their ids and not listed", ge=0, le=100_000)
    ] = 1024
    sample_share: Annotated[float, meta("share of the others that is kept", unit="ratio", ge=0, le=1)] = 0.01


class ProcessorPolicy(Section, frozen=True):
    """The processors: ext_proc and the access log service, O(requests) work."""

    count: Annotated[
        int, meta("processors on this machine, about one per spare core; 0 runs ring 1 alone", ge=0, le=256)
    ] = 1
    mode: Annotated[
        Literal["envoy", "endpoint-picker"],
        meta(
            "who calls. envoy: Envoys that control configures; endpoint-picker: a Gateway API data plane, so all "
            "processors share one port and one health port (the kernel spreads the connections)"
        ),
    ] = "envoy"
    listen: Annotated[
        str,
        meta(
            "address of the first processor's ext_proc and access log port; the next ones count the port up. When "
            "absent 127.0.0.1:18010, or 0.0.0.0:9002 as an endpoint picker"
        ),
    ] = ""
    health: Annotated[
        str,
        meta(
            "address of a port of its own for gRPC health: `liveness`, and `readiness`, the empty name and ext_proc's, "
            "which serve once a policy and a snapshot are there; counts up like `listen`. When absent none, or "
            "0.0.0.0:9003 as an endpoint picker",
            example="0.0.0.0:9003",
        ),
    ] = ""
    private: Annotated[
        str,
        meta(
            "address of one more port of the first processor, plain text and its own; the next ones count it up. "
            "Control asks processors there, and Envoys that take processors over EDS call it. When absent none, or "
            "127.0.0.1:18010 as an endpoint picker"
        ),
    ] = ""
    tls: Annotated[
        ProcessorTls | None,
        meta("TLS of `listen` of an endpoint picker, none = plain text; its files are read again when they change"),
    ] = None
    http: Annotated[
        str, meta("address of the first processor's `/metrics` and `/healthz`; the next ones count the port up")
    ] = "127.0.0.1:18110"
    requests: Annotated[RequestRecords, meta("what is kept of requests, to be looked at")] = RequestRecords()
    report_s: Annotated[float, meta("how often a processor reports to control", unit="s", ge=0.02, le=10)] = 0.1
    access_log_flush_s: Annotated[
        float, meta("how long Envoy may hold access log entries back", unit="s", ge=0.01, le=10)
    ] = 0.1
    restart_backoff_s: Annotated[
        float, meta("first pause before a processor that died is started again; doubles up to 5 s", unit="s", ge=0.05)
    ] = 0.1
    message_timeout_s: Annotated[
        float,
        meta("how long Envoy waits for one answer of a processor before it goes on without", unit="s", gt=0, le=60),
    ] = 0.5

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "listen", self.listen or LISTEN[self.mode])
        msgspec.structs.force_setattr(self, "health", self.health or HEALTH[self.mode])
        msgspec.structs.force_setattr(self, "private", self.private or PRIVATE[self.mode])
        check_listen(self.listen, "listen")
        check_listen(self.http, "http")
        for field in ("health", "private"):
            if getattr(self, field):
                check_listen(getattr(self, field), field)
        if self.tls is not None and not self.shared:
            raise ValueError("tls is served in mode endpoint-picker only")

    @property
    def shared(self) -> bool:
        """Whether all processors listen on the same ports."""
        return self.mode == "endpoint-picker"


class LogPolicy(Section, frozen=True):
    """Structured logs, one event a line, on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], meta("least severe level that is written")] = "info"
    format: Annotated[Literal["auto", "json", "text"], meta("auto: text on a terminal, JSON elsewhere")] = "auto"
