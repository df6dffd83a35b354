"""Waiting for room before the picker."""

from __future__ import annotations

from typing import Annotated

from xds_control.policy.base import Section, meta


class AdmissionPolicy(Section, frozen=True):
    """Requests wait in the processor while every endpoint of their pool is at `picker.limits.max_concurrency`."""

    enabled: Annotated[
        bool,
        meta(
            "whether requests wait, by their class's priority and no longer than its max_queue_s, instead of being "
            "refused at once; needs picker.limits.max_concurrency"
        ),
    ] = False
    max_requests: Annotated[
        int,
        meta("most requests that wait in one processor; beyond it the least important are refused", ge=1, le=1_000_000),
    ] = 1000
    max_bytes: Annotated[
        int, meta("most bytes of bodies that wait in one processor", unit="bytes", ge=1 << 20, le=1 << 40)
    ] = 256 << 20
    retry_after_s: Annotated[float, meta("Retry-After of refusals", unit="s", ge=0, le=3600)] = 1.0
