"""What a decode engine reads out of a request's headers, what it sends to the prefill engine, and the demo's fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xds_control.demo.disagg import Remote, asked_for, moved, prefill_body, transfer_params
from xds_control.demo.fleet import plan
from xds_control.policy.load import parse_policy
from xds_control.policy.picker import DisaggPolicy
from xds_control.routing.disagg import connector_headers

PREFILL, DECODE = "10.0.0.1:8000", "10.0.0.2:8000"


@pytest.mark.parametrize("connector", ["llm-d", "vllm", "sglang"])
def test_what_the_picker_writes_is_what_the_decode_engine_reads(connector: Any) -> None:
    headers = connector_headers(DisaggPolicy(connector=connector), PREFILL, DECODE, "id-1", 77)
    found = asked_for({name.title(): value for name, value in headers.items()})
    assert found is not None
    assert (found.prefiller, found.connector) == (PREFILL, connector)
    asked = {"model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 90}
    sent = json.loads(prefill_body(json.dumps(asked).encode(), found))
    assert (sent["stream"], sent["max_tokens"], "stream_options" in sent) == (False, 1, False)
    if connector == "sglang":
        assert found.fields == {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 77}
        assert sent["bootstrap_room"] == 77
    if connector == "vllm":
        assert found.headers["x-request-id"].endswith("_id-1")


def test_without_an_address_nothing_is_read_elsewhere() -> None:
    assert asked_for({"x-request-id": "abc", "x-sglang-bootstrap-room": "3"}) is None


def test_all_limits_become_one_token() -> None:
    remote = Remote(PREFILL, "llm-d", {}, {})
    sent = json.loads(prefill_body(b'{"max_completion_tokens": 50, "min_tokens": 10}', remote))
    assert [sent[name] for name in ("max_completion_tokens", "min_tokens", "max_tokens")] == [1, 1, 1]


def test_the_kv_has_moved_only_when_the_prefill_says_so() -> None:
    llmd = Remote(PREFILL, "llm-d", {}, {})
    assert moved(llmd, json.dumps({"kv_transfer_params": transfer_params("p", "10.0.0.1", 8000, 3)}).encode())
    assert not moved(llmd, b'{"choices": []}')
    assert not moved(llmd, b"oops")
    assert moved(Remote(PREFILL, "vllm", {}, {}), b"")


def test_the_demo_splits_its_engines(tmp_path: Path) -> None:
    fleet = plan(tmp_path, 5, 0, True, disagg=True)
    assert [one.role for one in fleet.servers] == ["prefill", "prefill", "decode", "decode", "decode"]
    assert ["--decodes" in one.command for one in fleet.servers] == [False, False, True, True, True]
    policy = parse_policy(json.dumps(fleet.policy))
    assert [one.role for one in policy.pools[0].endpoints] == [one.role for one in fleet.servers]
    assert policy.picker.named()["default"].disagg.uncached_tokens == 300
    assert all(one.role == "both" for one in plan(tmp_path, 3, 0, False).servers)
