"""When a request ended, by Envoy's wall clock and ours: clocks in step, ahead, behind, far apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from xds_control.extproc.picking import PoolPicker
from xds_control.policy.pools import EndpointPolicy, PoolPolicy
from xds_control.policy.schema import Policy
from xds_control.signals.finished import Finished

OWN_GAP = -1_000.0  # our monotonic clock reads 1000 s less than the wall clock


def finished(ended_unix_s: float) -> Finished:
    names = Finished.__struct_fields__
    defaults = Finished.__struct_defaults__
    values: dict[str, Any] = dict.fromkeys(names[: len(names) - len(defaults)])
    values |= {"id": "1", "pool": "p", "endpoint": "e:1", "kind": "ok", "ok": True, "attempts": 1, "status": 200}
    return msgspec.structs.replace(Finished(**values), ended_unix_s=ended_unix_s)


@pytest.mark.parametrize(
    ("ahead", "own_gap", "expected"),
    [
        (0.0, OWN_GAP, 500.0),  # in step: the log's delay does not count
        (0.2, OWN_GAP, 500.1),  # Envoy's clock is ahead of what it can be: by what was seen
        (-0.1, OWN_GAP, 499.9),  # a little behind: taken as in step
        (-30.0, OWN_GAP, 500.1),  # far apart: by what was seen
        (0.0, float("inf"), 500.1),  # nobody says ours
    ],
)
def test_the_end_of_a_request(ahead: float, own_gap: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(
        version="xds-control/v1", pools=[PoolPolicy(name="p", endpoints=[EndpointPolicy(address="127.0.0.1:1")])]
    )
    picker = PoolPicker(policy, "p0")
    picker.own_gap = own_gap
    heard: list[float] = []
    monkeypatch.setattr(picker.picker, "finished", lambda one, now, *, ended_at, **_: heard.append(ended_at))
    ended, delay = 500.0, 0.1
    picker.finished(finished(ended - OWN_GAP + ahead), ended + delay)
    assert heard == [pytest.approx(expected, abs=1e-6)]
