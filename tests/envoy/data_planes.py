"""Envoys as Gateway API data planes set them up in front of an endpoint picker: one route, one pool, ext_proc."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.envoy.harness import eventually, free_ports, http_get
from tests.envoy.static_envoy import envoy_binary
from xds_control.policy import headers as names

TYPE = "type.googleapis.com/envoy.extensions."
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{TYPE}upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


@dataclass(frozen=True, slots=True)
class DataPlane:
    """How one kind of gateway asks the picker and obeys it.

    source: where the load balancer reads the pick: `metadata`, `header`, or `original_dst` for a cluster that dials
    what the header says. duplex: full duplex bodies both ways, else BUFFERED requests alone. tls: whether the picker
    is called over TLS, its certificate unchecked. removes: headers that clients may not send. logs: whether access logs
    go to the picker.
    """

    name: str
    source: str = "metadata"
    duplex: bool = True
    tls: bool = True
    fail_open: bool = False
    fallback: str = "round_robin"
    namespaces: tuple[str, ...] = (names.LB_NAMESPACE,)
    removes: tuple[str, ...] = ()
    logs: bool = False


ISTIO = DataPlane("istio", fail_open=True)
ENVOY_GATEWAY = DataPlane(
    "envoy-gateway",
    source="header",
    duplex=False,
    tls=False,
    fail_open=True,
    fallback="least_request",
    namespaces=(names.LB_NAMESPACE, names.NAMESPACE),
    removes=names.RESERVED_REQUEST_HEADERS,
    logs=True,
)
KGATEWAY = DataPlane("kgateway", fallback="round_robin")
KGATEWAY_2_0 = DataPlane("kgateway-2.0", source="original_dst")
PLANES = (ISTIO, ENVOY_GATEWAY, KGATEWAY, KGATEWAY_2_0)


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _lb(name: str, **more: Any) -> dict[str, Any]:
    kind = "".join(part.title() for part in name.split("_"))
    config = {"@type": f"{TYPE}load_balancing_policies.{name}.v3.{kind}", **more}
    extension = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}
    return {"policies": [{"typed_extension_config": extension}]}


def _pool(plane: DataPlane, ports: list[int]) -> dict[str, Any]:
    if plane.source == "original_dst":
        by_header = {"use_http_header": True, "http_header_name": names.DESTINATION}
        return {
            "name": "pool",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": by_header,
        }
    hosts = [{"endpoint": {"address": _address(port)}} for port in ports]
    source: dict[str, Any] = {"header": names.DESTINATION}
    if plane.source == "metadata":
        source = {"metadata": {"key": names.LB_NAMESPACE, "path": [{"key": names.DESTINATION}]}}
    return {
        "name": "pool",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "pool", "endpoints": [{"lb_endpoints": hosts}]},
        "load_balancing_policy": _lb(
            "override_host",
            override_host_sources=[source],
            selected_host_key={"key": names.LB_NAMESPACE, "path": [{"key": names.DESTINATION_SERVED}]},
            fallback_policy=_lb(plane.fallback),
        ),
    }


def _picker(plane: DataPlane, picker: int, health: int) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "name": "picker",
        "type": "STATIC",
        "typed_extension_protocol_options": HTTP2,
        "circuit_breakers": {"thresholds": [{"max_connections": 40_000, "max_requests": 40_000}]},
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {
                            "endpoint": {
                                "address": _address(picker),
                                "health_check_config": {"port_value": health},
                            }
                        }
                    ]
                }
            ],
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }
    if plane.tls:
        context = {"@type": f"{TYPE}transport_sockets.tls.v3.UpstreamTlsContext", "common_tls_context": {}}
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    else:
        # As llm-d's charts have it. With TLS these planes check the port itself or nothing: health is plain text.
        cluster["health_checks"] = [
            {
                "timeout": "2s",
                "interval": "0.2s",
                "no_traffic_interval": "0.2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": SERVICE},
            }
        ]
    return cluster


def _ext_proc(plane: DataPlane) -> dict[str, Any]:
    duplex = {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    buffered = {"request_header_mode": "SEND", "request_body_mode": "BUFFERED", "response_header_mode": "SKIP"}
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPE}filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
            "failure_mode_allow": plane.fail_open,
            "message_timeout": "10s",
            "processing_mode": duplex if plane.duplex else buffered,
            "metadata_options": {
                "receiving_namespaces": {"untyped": list(plane.namespaces)},
                "forwarding_namespaces": {"untyped": [names.SUBSET_HINT_NAMESPACE, names.LB_NAMESPACE]},
            },
        },
    }


def bootstrap(plane: DataPlane, *, gateway: int, admin: int, picker: int, health: int, ports: list[int]) -> Any:
    """A whole configuration of an Envoy as `plane` makes it."""
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPE}filters.http.router.v3.Router"}}
    manager: dict[str, Any] = {
        "@type": f"{TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {
                                "cluster": "pool",
                                "timeout": "0s",
                                "retry_policy": {"retry_on": "connect-failure,reset", "num_retries": 2},
                            },
                        }
                    ],
                }
            ]
        },
        "http_filters": [_ext_proc(plane), router],
    }
    if plane.logs:
        manager["access_log"] = [
            {
                "name": "envoy.access_loggers.http_grpc",
                "typed_config": {
                    "@type": f"{TYPE}access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
                    "common_config": {
                        "log_name": "xds-control",
                        "transport_api_version": "V3",
                        "buffer_flush_interval": "0.1s",
                        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
                    },
                },
            }
        ]
    if plane.removes:
        removal = {
            "@type": f"{TYPE}http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove": name} for name in plane.removes],
        }
        manager["early_header_mutation_extensions"] = [{"name": "remove", "typed_config": removal}]
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "node": {"id": plane.name, "cluster": plane.name},
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [{"name": "gateway", "address": _address(gateway), "filter_chains": [chain]}],
            "clusters": [_pool(plane, ports), _picker(plane, picker, health)],
        },
    }


@dataclass
class Gateway:
    """A running Envoy of a data plane."""

    plane: DataPlane
    port: int
    admin: int
    log: Path
    process: asyncio.subprocess.Process = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def picker_healthy(self) -> bool:
        """Whether Envoy believes that the picker is healthy."""
        _, text = await http_get(f"http://127.0.0.1:{self.admin}/clusters")
        flags = [line for line in text.splitlines() if line.startswith("picker::") and "::health_flags::" in line]
        return bool(flags) and all(line.endswith("::healthy") for line in flags)


@contextlib.asynccontextmanager
async def running(plane: DataPlane, folder: Path, picker: int, health: int, ports: list[int]) -> AsyncIterator[Gateway]:
    """Runs an Envoy as `plane` sets it up, until the end of the block."""
    gateway, admin = free_ports(2)
    path = folder / f"{plane.name}.yaml"
    made = bootstrap(plane, gateway=gateway, admin=admin, picker=picker, health=health, ports=ports)
    path.write_text(yaml.safe_dump(made))
    log = folder / f"{plane.name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(envoy_binary(), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id"),
            *("--log-level", "warning", "--drain-time-s", "1"),
            stdout=output,
            stderr=output,
        )
    found = Gateway(plane, gateway, admin, log, process)
    try:

        async def live() -> bool:
            assert process.returncode is None, log.read_text()[-3000:]
            return (await http_get(f"http://127.0.0.1:{admin}/ready"))[0] == 200

        await eventually(live, 20, f"Envoy as {plane.name}")
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
