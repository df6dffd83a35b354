"""The processor's side of the Fleet service against a real one, when a message cannot be taken."""

from __future__ import annotations

from tests.envoy.harness import eventually, free_ports
from tests.unit.admin.test_hub import hub, snapshot
from xds_control.admin.fleet_service import FleetService, serve
from xds_control.extproc.fleet_client import FleetClient
from xds_control.fleet.snapshot import Snapshot
from xds_control.proto import fleet_pb2 as pb


async def test_a_fault_in_one_message_does_not_end_the_watch() -> None:
    world = hub()
    versions: list[int] = []

    def take(held: Snapshot, message: pb.WatchResponse) -> None:
        if not versions:
            versions.append(0)
            raise AttributeError("a fault")
        versions.append(held.version)

    address = f"127.0.0.1:{free_ports(1)[0]}"
    _, stop = await serve(address, FleetService(world, 0.02, lambda *_: None, lambda: None).handler())
    client = FleetClient(address, "p0", "127.0.0.1:1", take, lambda _now: None)
    client.start()
    try:
        await eventually(lambda: versions == [0, 1], what="the snapshot comes again")
        world.publish(snapshot(2, 20))
        await eventually(lambda: versions == [0, 1, 2], what="and the stream goes on")
        assert client.errors == 1
        assert client.connected
    finally:
        await client.stop()
        await stop()


async def test_a_fault_in_one_window_does_not_end_the_reports() -> None:
    windows, heard = 0, 0

    def window(_now: float) -> pb.Window | None:
        nonlocal windows
        windows += 1
        if windows == 2:
            raise KeyError("a fault")
        return pb.Window()

    def take(*_: object) -> None:
        nonlocal heard
        heard += 1

    address = f"127.0.0.1:{free_ports(1)[0]}"
    _, stop = await serve(address, FleetService(hub(), 0.02, take, lambda: None).handler())
    client = FleetClient(address, "p0", "127.0.0.1:1", lambda *_: None, window, report_s=0.02)
    client.start()
    try:
        await eventually(lambda: heard > 5, what="reports after the fault")
    finally:
        await client.stop()
        await stop()
