"""gRPC reflection: lets tools such as grpcurl see the services of the port."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

import grpc
from grpc_reflection.v1alpha import reflection

# Reflection answers from the descriptor pool, which knows a service once its module is imported.
_MODULES: Final = (
    "envoy.service.discovery.v3.ads_pb2",
    "envoy.service.cluster.v3.cds_pb2",
    "envoy.service.endpoint.v3.eds_pb2",
    "envoy.service.endpoint.v3.leds_pb2",
    "envoy.service.listener.v3.lds_pb2",
    "envoy.service.route.v3.rds_pb2",
    "envoy.service.route.v3.srds_pb2",
    "envoy.service.secret.v3.sds_pb2",
    "envoy.service.runtime.v3.rtds_pb2",
    "envoy.service.extension.v3.config_discovery_pb2",
)


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Describes these services, and reflection itself."""
    for module in _MODULES:
        import_module(module)
    reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], server)
