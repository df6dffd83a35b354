"""Small builders shared by the resources."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    SocketAddress,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamHttpProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.google import protobuf as pb

from xds_control.policy.address import split_address

UPSTREAM_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def socket_address(text: str) -> Address:
    """`ip:port` as Envoy's Address."""
    host, port = split_address(text)
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def extension(name: str, message: Any) -> TypedExtensionConfig:
    return TypedExtensionConfig(name=name, typed_config=pb.Any.pack(message))


def ads() -> ConfigSource:
    return ConfigSource(ads=AggregatedConfigSource(), resource_api_version=ApiVersion.V3)


def http2_upstream(*, idle_timeout_s: float | None = None, keepalive: bool = True) -> dict[str, pb.Any]:
    """Protocol options of an HTTP/2 cluster; keepalive finds a peer that is gone without closing."""
    options = Http2ProtocolOptions(
        connection_keepalive=KeepaliveSettings(interval=seconds(10), timeout=seconds(5)) if keepalive else None,
        initial_stream_window_size=16 * 1024 * 1024,
        initial_connection_window_size=24 * 1024 * 1024,
        max_concurrent_streams=4096,
    )
    common = HttpProtocolOptions(idle_timeout=seconds(idle_timeout_s)) if idle_timeout_s else None
    return {
        UPSTREAM_HTTP_OPTIONS: pb.Any.pack(
            UpstreamHttpProtocolOptions(
                explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=options),
                common_http_protocol_options=common,
            )
        )
    }
