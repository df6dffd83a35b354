"""Client status (CSDS) and load reports (LRS) over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.load_stats.v3 import lrs_pb2, lrs_pb2_grpc
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from google.protobuf import json_format

from tests.protocol.xds_client import assignment, connected, open_stream, until
from xds_control.xds import CDS, EDS, SDS, LoadReport, SnapshotCache, XdsPolicy, XdsServer


@pytest.fixture
async def running() -> AsyncIterator[tuple[SnapshotCache, XdsServer, list[LoadReport], int]]:
    cache = SnapshotCache()
    rows: list[LoadReport] = []
    server = XdsServer(cache, XdsPolicy(load_report_interval_s=0.25), on_load=rows.extend)
    cache.set("", {EDS.type_url: {"a": assignment("a"), "b": assignment("b")}})
    port = await server.start("127.0.0.1:0")
    yield cache, server, rows, port
    await server.stop(0)


async def status(channel: grpc.aio.Channel, request: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Node id → resource name → its configuration."""
    parsed = json_format.ParseDict(request or {}, csds_pb2.ClientStatusRequest())
    answer = await csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).FetchClientStatus(parsed)
    return {c.node.id: {r.name: r for r in c.generic_xds_configs} for c in answer.config}


def said(item: Any) -> tuple[str, str]:
    fields = csds_pb2.ClientConfig.GenericXdsConfig.DESCRIPTOR.fields_by_name
    return (
        fields["client_status"].enum_type.values_by_number[item.client_status].name,
        fields["config_status"].enum_type.values_by_number[item.config_status].name,
    )


async def test_client_status_follows_a_client(running: Any) -> None:
    cache, server, _, port = running
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a", "b", "missing")
        message = await stream.read()
        told = (await status(channel))["n"]
        assert said(told["a"]) == ("REQUESTED", "STALE")
        assert said(told["missing"]) == ("DOES_NOT_EXIST", "NOT_SENT")
        await stream.ack(message)
        await until(lambda: not server.clients()[0].types[0].outstanding)
        told = (await status(channel))["n"]
        assert said(told["a"]) == ("ACKED", "SYNCED")
        assert told["a"].type_url == EDS.type_url
        assert told["a"].version_info == message.resources[0].version
        assert told["a"].xds_config.value == message.resources[0].resource.value
        # A rejected one, with the client's own words; the others are as they were.
        cache.update("", {EDS.type_url: {"a": assignment("a", 2)}})
        await stream.ack(await stream.read(), "this is bad")
        await until(lambda: server.clients()[0].types[0].nacks)
        told = (await status(channel))["n"]
        assert said(told["a"]) == ("NACKED", "ERROR")
        assert told["a"].error_state.details == "this is bad"
        assert told["a"].error_state.last_update_attempt.seconds > 1_600_000_000
        assert said(told["b"]) == ("ACKED", "SYNCED")
        # While an answer is owed the newest change is not with the client.
        cache.update("", {EDS.type_url: {"b": assignment("b", 2)}})
        await stream.read()
        cache.update("", {EDS.type_url: {"b": assignment("b", 3)}})
        assert said((await status(channel))["n"]["b"]) == ("REQUESTED", "STALE")
        bare = (await status(channel, {"exclude_resource_contents": True}))["n"]
        assert not bare["a"].HasField("xds_config")


async def test_secrets_are_never_shown(running: Any) -> None:
    cache, _, _, port = running
    secret = secret_pb2.Secret(name="s")
    secret.generic_secret.secret.inline_string = "hush"
    cache.update("", {SDS.type_url: {"s": secret}})
    async with connected(port) as channel:
        stream = open_stream(channel)
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=SDS.type_url, resource_names_subscribe=["s"])
        request.node.id = "n"
        await stream.call.write(request)
        assert b"hush" in (await stream.read()).resources[0].resource.value
        answer = await csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).FetchClientStatus(
            csds_pb2.ClientStatusRequest()
        )
        assert answer.config[0].generic_xds_configs[0].name == "s"
        assert b"hush" not in answer.SerializeToString()


TEAM_X = {"path": [{"key": "team"}], "value": {"string_match": {"exact": "x"}}}


@pytest.mark.parametrize(
    ("matcher", "nodes"),
    [
        ({}, {"web-1", "web-2", "db"}),
        ({"node_id": {"exact": "db"}}, {"db"}),
        ({"node_id": {"prefix": "web-"}}, {"web-1", "web-2"}),
        ({"node_id": {"suffix": "2"}}, {"web-2"}),
        ({"node_id": {"contains": "EB", "ignore_case": True}}, {"web-1", "web-2"}),
        ({"node_id": {"safe_regex": {"regex": "web-[0-9]"}}}, {"web-1", "web-2"}),
        ({"node_metadatas": [TEAM_X]}, {"db"}),
        ({"node_id": {"prefix": "web"}, "node_metadatas": [TEAM_X]}, set()),
        ({"node_metadatas": [{"path": [{"key": "team"}], "value": {"present_match": True}}]}, {"db"}),
        (
            {
                "node_metadatas": [
                    {
                        "path": [{"key": "deep"}, {"key": "n"}],
                        "value": {"double_match": {"range": {"start": 1, "end": 3}}},
                    }
                ]
            },
            {"db"},
        ),
        (
            {
                "node_metadatas": [
                    {"path": [{"key": "tags"}], "value": {"list_match": {"one_of": {"bool_match": True}}}}
                ]
            },
            {"db"},
        ),
    ],
)
async def test_nodes_are_selected_as_asked(running: Any, matcher: dict[str, Any], nodes: set[str]) -> None:
    _, _, _, port = running
    async with connected(port) as channel:
        for node in ("web-1", "web-2", "db"):
            stream = open_stream(channel)
            request = discovery_pb2.DeltaDiscoveryRequest(type_url=EDS.type_url, resource_names_subscribe=["a"])
            request.node.id = node
            if node == "db":
                request.node.metadata.update({"team": "x", "deep": {"n": 2}, "tags": [False, True]})
            await stream.call.write(request)
            await stream.read()
        assert set(await status(channel, {"node_matchers": [matcher]} if matcher else None)) == nodes


async def test_a_matcher_that_is_not_understood_is_refused(running: Any) -> None:
    _, _, _, port = running
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await status(channel, {"node_matchers": [{"node_id": {"safe_regex": {"regex": "("}}}]})
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_client_status_can_be_streamed_and_switched_off(running: Any) -> None:
    cache, _, _, port = running
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        await stream.read()
        call = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).StreamClientStatus()
        for _ in range(2):
            await call.write(csds_pb2.ClientStatusRequest())
            assert [c.node.id for c in (await call.read()).config] == ["n"]
    silent = XdsServer(cache, XdsPolicy(client_status=False))
    port = await silent.start("127.0.0.1:0")
    async with connected(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await status(channel)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    await silent.stop(0)


def _report(node: str = "envoy-1", *features: str) -> Any:
    report = lrs_pb2.LoadStatsRequest()
    report.node.id = node
    report.node.client_features.extend(features)
    return report


async def test_load_reports_become_rows(running: Any) -> None:
    _, _, rows, port = running
    async with connected(port) as channel:
        call = lrs_pb2_grpc.LoadReportingServiceStub(channel).StreamLoadStats()
        await call.write(_report("envoy-1", "envoy.lrs.supports_send_all_clusters"))
        asked = await asyncio.wait_for(call.read(), 5)
        assert asked.send_all_clusters
        assert asked.report_endpoint_granularity
        assert asked.load_reporting_interval.ToNanoseconds() == 250_000_000
        stats = {
            "cluster_stats": [
                {
                    "cluster_name": "pool",
                    "cluster_service_name": "svc",
                    "load_report_interval": "0.25s",
                    "total_dropped_requests": "3",
                    "dropped_requests": [{"category": "throttle", "dropped_count": "2"}],
                    "upstream_locality_stats": [
                        {
                            "locality": {"region": "r", "zone": "z"},
                            "priority": 1,
                            "total_successful_requests": "7",
                            "total_error_requests": "1",
                            "total_issued_requests": "9",
                            "total_requests_in_progress": "4",
                            "upstream_endpoint_stats": [
                                {
                                    "address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}},
                                    "total_successful_requests": "5",
                                    "total_issued_requests": "6",
                                    "load_metric_stats": [
                                        {
                                            "metric_name": "kv",
                                            "num_requests_finished_with_metric": "5",
                                            "total_metric_value": 2.5,
                                        }
                                    ],
                                },
                                {"address": {"socket_address": {"address": "fd00::1", "port_value": 81}}},
                            ],
                        }
                    ],
                }
            ]
        }
        await call.write(json_format.ParseDict(stats, lrs_pb2.LoadStatsRequest()))
        await until(lambda: len(rows) == 4)
        first, second, locality, cluster = rows
        assert first == LoadReport(
            "envoy-1", "pool", "svc", ("r", "z", ""), 1, "10.0.0.1:80", 0.25, 6, 5, 0, 0, {"kv": (5, 2.5)}
        )
        assert second.address == "[fd00::1]:81"
        assert (locality.address, locality.issued, locality.failed, locality.in_progress) == ("", 9, 1, 4)
        assert cluster.locality is None
        assert cluster.dropped == {"throttle": 2, "": 3}


async def test_a_client_that_cannot_send_all_is_asked_for_the_clusters(running: Any) -> None:
    cache, _, _, port = running

    def put(*names: str) -> None:
        cache.set("", {CDS.type_url: {n: cluster_pb2.Cluster(name=n) for n in names}})

    put("a", "b")
    async with connected(port) as channel:
        call = lrs_pb2_grpc.LoadReportingServiceStub(channel).StreamLoadStats()
        await call.write(_report())
        asked = await asyncio.wait_for(call.read(), 5)
        assert (asked.send_all_clusters, list(asked.clusters)) == (False, ["a", "b"])
        put("a", "b", "c")
        await call.write(lrs_pb2.LoadStatsRequest())
        assert list((await asyncio.wait_for(call.read(), 5)).clusters) == ["a", "b", "c"]


async def test_load_reports_need_a_node_and_a_listener(running: Any) -> None:
    cache, _, _, port = running
    async with connected(port) as channel:
        call = lrs_pb2_grpc.LoadReportingServiceStub(channel).StreamLoadStats()
        await call.write(lrs_pb2.LoadStatsRequest())
        assert await asyncio.wait_for(call.code(), 5) == grpc.StatusCode.INVALID_ARGUMENT
    deaf = XdsServer(cache)
    port = await deaf.start("127.0.0.1:0")
    async with connected(port) as channel:
        call = lrs_pb2_grpc.LoadReportingServiceStub(channel).StreamLoadStats()
        assert await asyncio.wait_for(call.code(), 5) == grpc.StatusCode.UNIMPLEMENTED
    await deaf.stop(0)
