"""What a processor makes of its peers' messages: the last word on outstanding work stands, and grows older."""

from __future__ import annotations

import pytest

from tests.unit.routing.fleet import address, endpoint, pool
from xds_control.extproc.picking import PoolPicker
from xds_control.fleet.snapshot import Snapshot
from xds_control.policy.load import parse_policy
from xds_control.proto import fleet_pb2 as pb

POLICY = """
version: xds-control/v1
pools:
- {name: p, picks: true, endpoints: [{address: "10.0.0.1:8000"}]}
"""


def test_messages_without_news_do_not_bring_old_work_back() -> None:
    picker = PoolPicker(parse_policy(POLICY), "me")
    rows = [endpoint(0, running=0, waiting=0, at=0.0)]
    picker.update(Snapshot("e", 1, 0.0, {"p": pool("p", rows)}, "1"), 0.0)
    slots = picker.picker.pool("p")
    assert slots is not None
    slot = slots.by_address[address(0)]
    work = pb.Outstanding(endpoint=address(0), requests=2, prefill_tokens=round(0.2 / slot.rate))
    picker.merge_peers(pb.PeerState(outstanding=[pb.Outstanding(), work]), 1.0)
    assert slot.busy - 1.0 - slot.step == pytest.approx(0.2, abs=0.002)
    for step in range(1, 10):
        picker.merge_peers(
            pb.PeerState(prefixes=[pb.PrefixAdd(endpoint=address(0), keys=[step], tokens=[9])]), 1.0 + step / 10
        )
    assert slot.busy <= 1.9
    assert slot.flight.count == 2
    picker.merge_peers(pb.PeerState(outstanding=[pb.Outstanding()]), 2.0)
    assert slot.flight.count == 0
