"""Named scorers, addresses, rendezvous hashing, connector headers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import xxhash

from xds_control.fleet.endpoint import Locality
from xds_control.policy.picker import DisaggPolicy
from xds_control.routing import scorers
from xds_control.routing.affinity import order, ranks
from xds_control.routing.disagg import connector_headers, wants_split
from xds_control.routing.sessions import Sessions, make_token, read_token
from xds_control.routing.subset import join_address, parse_hint, resolve, split_address


def test_unknown_endpoints_stand_a_little_behind_the_mean() -> None:
    scores = scorers.fill_unknown(np.array([1.0, 0.0, 0.0]), np.array([True, True, False]))
    assert list(scores) == [1.0, 0.0, pytest.approx(0.45)]
    assert list(scorers.fill_unknown(np.array([0.3]), np.array([False]))) == [0.5]


def test_queue_by_depth_does_not_overreact() -> None:
    scores = scorers.queue_depth([0, 1, 8, 1000])
    assert scores[0] == 1.0
    assert scores[1] > 0.85
    assert scores[2] == 0.5
    assert scores[3] < 0.01


def test_context_length_prefers_the_narrow_range_that_fits() -> None:
    narrow, wide = scorers.context_length_one(1000, (0, 2000)), scorers.context_length_one(1000, (0, 100_000))
    assert narrow > wide > scorers.context_length_one(200_000, (0, 100_000)) > 0
    assert scorers.context_length_one(5, None) == 0.5
    assert scorers.context_length_one(5, (1, 0)) == 0


def test_no_hit_lru() -> None:
    assert list(scorers.no_hit_lru(True, [None, 1.0])) == [0.5, 0.5]
    assert list(scorers.no_hit_lru(False, [5.0, None, 2.0])) == [0.0, 1.0, 0.5]
    assert list(scorers.no_hit_lru(False, [5.0])) == [1.0]


def test_common_level() -> None:
    a, b = Locality("r", "z", "k"), Locality("r", "z", "k")
    assert scorers.common_level(a, "h", b, "h") == "host"
    assert scorers.common_level(a, "h", b, "g") == "rack"
    assert scorers.common_level(a, "", Locality("r", "z", "x"), "") == "zone"
    assert scorers.common_level(a, "", Locality("r", "y"), "") == "region"
    assert scorers.common_level(a, "", Locality("s", "z", "k"), "") == "none"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:8000", "10.0.0.1", "8000"),
        ("10.0.0.1", "10.0.0.1", ""),
        ("[fd00::1]:80", "fd00::1", "80"),
        ("[FD00::1]", "fd00::1", ""),
        ("fd00::1", "fd00::1", ""),
    ],
)
def test_addresses(text: str, host: str, port: str) -> None:
    assert split_address(text) == (host, port)
    if port:
        assert join_address(host, port) == text.lower()


def test_hints() -> None:
    assert parse_hint(None) is None
    assert parse_hint([]) == ()
    assert parse_hint(["a:1", 5, None, " b:2 ", ""]) == ("a:1", "b:2")
    assert parse_hint("a:1, b:2,,") == ("a:1", "b:2")
    assert parse_hint(7) == ()
    known = {"10.0.0.1:1": 1, "10.0.0.1:2": 2, "[fd00::1]:1": 4}
    hosts = {"10.0.0.1": 3, "fd00::1": 4}
    assert resolve(["10.0.0.1:2"], known, hosts) == 2
    assert resolve(["10.0.0.1"], known, hosts) == 3
    assert resolve(["fd00::1", "[FD00::1]:1"], known, hosts) == 4
    assert resolve(["10.0.0.1:3", "10.0.0.9"], known, hosts) == 0


def test_rendezvous_is_even_and_moves_only_the_keys_of_what_left() -> None:
    seeds = np.array([xxhash.xxh3_64_intdigest(f"10.0.0.{i}:80".encode()) for i in range(8)], dtype=np.uint64)
    keys = [xxhash.xxh3_64_intdigest(str(i).encode()) for i in range(4000)]
    homes = [int(ranks(seeds, key).argmax()) for key in keys]
    assert max(Counter(homes).values()) < 1.2 * 500
    assert min(Counter(homes).values()) > 0.8 * 500
    fewer = [order(seeds[:7], key)[0] for key in keys]
    assert all(now == before for now, before in zip(fewer, homes, strict=True) if before != 7)


def test_rendezvous_by_capacity() -> None:
    seeds = np.array([xxhash.xxh3_64_intdigest(f"e{i}".encode()) for i in range(3)], dtype=np.uint64)
    capacities = np.array([1.0, 1.0, 2.0])
    homes = Counter(order(seeds, xxhash.xxh3_64_intdigest(str(i).encode()), capacities)[0] for i in range(4000))
    assert homes[2] / homes[0] == pytest.approx(2.0, rel=0.15)


def test_sessions_are_bounded_and_expire() -> None:
    sessions = Sessions(3)
    for key in range(5):
        sessions.remember(key, f"e{key}", 10.0)
    assert len(sessions) == 3
    assert sessions.place(0, 1.0) is None
    assert sessions.place(4, 9.0) == "e4"
    assert sessions.place(4, 11.0) is None
    sessions.forget(3)
    assert sessions.place(3, 1.0) is None
    none = Sessions(0)
    none.remember(1, "e", 5.0)
    assert len(none) == 0


def test_tokens() -> None:
    assert read_token(make_token("pool", "[fd00::1]:8000")) == ("pool", "[fd00::1]:8000")
    for text in ("", "%%%", "YWJj", make_token("p", ""), "é", "A" * 600):
        assert read_token(text) is None


def test_connector_headers() -> None:
    assert connector_headers(DisaggPolicy(), "", "d:1", "id", 5) == {}
    assert connector_headers(DisaggPolicy(), "p:1", "d:1", "id", 5) == {"x-prefiller-host-port": "p:1"}
    vllm = connector_headers(DisaggPolicy(connector="vllm"), "p:1", "d:1", "id", 5)
    assert vllm["x-request-id"] == "___prefill_addr_p:1___decode_addr_d:1_id"
    sglang = connector_headers(DisaggPolicy(connector="sglang"), "10.0.0.1:1", "d:1", "id", 5)
    assert sglang["x-sglang-bootstrap-host"] == "10.0.0.1"
    assert sglang["x-sglang-bootstrap-port"] == "8998"
    assert 0 <= int(sglang["x-sglang-bootstrap-room"]) < 1 << 63


def test_split_bounds() -> None:
    policy = DisaggPolicy(uncached_tokens=100, prompt_tokens=500)
    assert wants_split(policy, 1000, 101)
    assert not wants_split(policy, 1000, 100)
    assert not wants_split(policy, 400, 300)
    assert wants_split(DisaggPolicy(mode="always"), 1, 0)
    assert not wants_split(DisaggPolicy(mode="off"), 100_000, 100_000)
