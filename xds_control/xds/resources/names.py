"""Names of the resources that are not pools. A pool's cluster is named after the pool."""

from __future__ import annotations

from typing import Final

LISTENER: Final = "xds-control-gateway"
ROUTES: Final = "xds-control-gateway"
XDS_CLUSTER: Final = "xds-control-xds"
PROCESSOR_CLUSTER: Final = "xds-control-processors"
OTLP_CLUSTER: Final = "xds-control-otlp"
RESERVED: Final = frozenset({XDS_CLUSTER, PROCESSOR_CLUSTER, OTLP_CLUSTER})
