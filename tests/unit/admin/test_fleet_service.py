from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from xds_control.admin.fleet_service import FleetService
from xds_control.admin.hub import Hub
from xds_control.proto import fleet_pb2 as pb


async def reports(count: int) -> AsyncIterator[pb.ReportRequest]:
    yield pb.ReportRequest(sequence=1, hello=pb.Hello(source="s", kind="engine"))
    for number in range(count):
        yield pb.ReportRequest(sequence=2 + number, signals=[pb.Signals(endpoint="nobody")])


async def test_a_sender_that_is_always_wrong_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: str, _source: str, request: pb.ReportRequest) -> None:
        if request.signals:
            raise ValueError("there is no endpoint 'nobody'")

    told: list[dict[str, Any]] = []
    service = FleetService(Hub(), 0.1, refuse, lambda: None)
    monkeypatch.setattr(service, "_log", type("Log", (), {"warning": lambda _self, event, **more: told.append(more)})())
    context: Any = None
    answers = [answer.sequence async for answer in service.report(reports(100), context)]
    assert answers == list(range(1, 102))
    assert service.refused == 100
    assert [one["count"] for one in told] == [1, 2, 4, 8, 16, 32, 64]
