"""Load reports as the xDS server hands them over, as rows of single endpoints (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from xds_control.signals.loadreport import LoadRow
from xds_control.xds.lrs import LoadReport


def load_rows(reports: Iterable[LoadReport]) -> list[LoadRow]:
    """Those rows that tell of one endpoint."""
    return [
        LoadRow(
            cluster=one.service or one.cluster,
            address=one.address,
            successful=one.succeeded,
            errors=one.failed,
            issued=one.issued,
            in_progress=one.in_progress,
            interval_s=one.interval_s,
            metrics={name: total / count for name, (count, total) in one.metrics.items() if count},
            node=one.node_id,
        )
        for one in reports
        if one.address
    ]
