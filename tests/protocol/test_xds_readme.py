"""The example of the README runs as it stands."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from envoy.config.endpoint.v3 import endpoint_pb2

import xds_control.xds
from tests.envoy.harness import free_ports
from tests.protocol.xds_client import connected, open_stream

README = Path(xds_control.xds.__file__).with_name("README.md")


async def test_the_example_is_a_control_plane(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    code = [line for line in source.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) <= 30
    (port,) = free_ports(1)
    script = tmp_path / "plane.py"
    script.write_text(source.replace(":18000", f":{port}").replace("sleep(1)", "sleep(0.05)"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), cwd=README.parents[2], env={"PYTHONPATH": str(README.parents[2])}
    )
    try:
        async with connected(port) as channel:
            stream = open_stream(channel, wait=True)
            await stream.ask("pool")
            weights = []
            for _ in range(3):
                message = await stream.read()
                await stream.ack(message)
                (resource,) = message.resources
                assignment = endpoint_pb2.ClusterLoadAssignment.FromString(resource.resource.value)
                weights.append([e.load_balancing_weight.value for e in assignment.endpoints[0].lb_endpoints])
            assert [w[0] for w in weights] == [100, 100, 100]
            assert weights[0][1] < weights[1][1] < weights[2][1]
    finally:
        process.kill()
        await process.wait()
