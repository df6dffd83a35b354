"""Cases that need a data plane: run behind a real Envoy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.protocol.epp_requests import Backend
from tests.protocol.epp_world import Unsupported


async def conformance(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind conformance."""
    raise Unsupported("needs a gateway")
