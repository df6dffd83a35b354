"""A small discovery client for tests of the server's edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2

from xds_control.xds import EDS
from xds_control.xds.server import ADS_SERVICE


def assignment(name: str, weight: int = 1, endpoints: int = 1) -> Any:
    """A valid assignment."""
    made = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    locality = made.endpoints.add()
    for number in range(endpoints):
        endpoint = locality.lb_endpoints.add()
        endpoint.endpoint.address.socket_address.address = f"192.0.{number // 250}.{1 + number % 250}"
        endpoint.endpoint.address.socket_address.port_value = 80
        endpoint.load_balancing_weight.value = weight
    return made


class Stream:
    """One delta stream on EDS."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def ask(self, *names: str, node: str = "n", **more: Any) -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=EDS.type_url, resource_names_subscribe=names, **more)
        request.node.id = node
        await self.call.write(request)

    async def read(self) -> Any:
        return await asyncio.wait_for(self.call.read(), 10)

    async def ack(self, message: Any, error: str = "") -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=EDS.type_url, response_nonce=message.nonce)
        if error:
            request.error_detail.message = error
        await self.call.write(request)

    async def end(self) -> tuple[str, str]:
        """How the server ended it."""
        code = await asyncio.wait_for(self.call.code(), 10)
        return code.name, await self.call.details()


def open_stream(channel: grpc.aio.Channel, metadata: Iterable[tuple[str, str]] = (), *, wait: bool = False) -> Stream:
    """wait: until the server is there."""
    method: Any = channel.stream_stream(
        f"/{ADS_SERVICE}/DeltaAggregatedResources",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=discovery_pb2.DeltaDiscoveryResponse.FromString,
    )
    return Stream(method(metadata=tuple(metadata), wait_for_ready=wait))


@asynccontextmanager
async def connected(
    port: int, credentials: grpc.ChannelCredentials | None = None, **options: Any
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of its own connection. options: channel arguments, `__` for a dot."""
    arguments = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    arguments += [("grpc." + k.replace("__", "."), v) for k, v in options.items()]
    target = f"127.0.0.1:{port}"
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options=arguments)
    else:
        channel = grpc.aio.secure_channel(
            target, credentials, options=[*arguments, ("grpc.ssl_target_name_override", "server.test")]
        )
    try:
        yield channel
    finally:
        await channel.close()


async def until(check: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Waits until `check` is true."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not check():
        assert asyncio.get_running_loop().time() < deadline, "it never became true"
        await asyncio.sleep(0.01)
