"""Runs the demo: starts servers, control, processor and Envoy, sends traffic, disturbs engines, shows what follows."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from rich.console import Console
from rich.live import Live

from xds_control.demo import llama, view
from xds_control.demo.fleet import LLAMA_SERVERS, Fleet, Server, plan, write_policy
from xds_control.demo.llama import wait_until_healthy
from xds_control.demo.load import Load
from xds_control.demo.processes import Child, stop_all
from xds_control.demo.scenario import Course, scenario
from xds_control.demo.traffic import TrafficConfig
from xds_control.errors import ConfigError

READY_S: Final = 60.0
LOOK_S: Final = 0.5
PLAIN_S: Final = 5.0
LAST_ANSWERS_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """seconds: length of the show, None = until stopped. engines: demo engines. rate: requests per second in all.
    picks: whether the processor names endpoints (ring 3); without it the shares follow the weights alone.
    disagg: whether prefill and decode run on different engines, and prompts are longer; with picks only.
    folder: where policy and logs are kept; None = a temporary folder.
    """

    seconds: float | None = None
    engines: int = 3
    llama: bool = True
    rate: float = 14.0
    picks: bool = False
    disagg: bool = False
    folder: Path | None = None


class Screen(Protocol):
    """Where the demo is shown."""

    def say(self, text: str) -> None:
        """Something that happened."""

    def show(self, state: dict[str, Any], head: str) -> None:
        """The fleet as it is now."""


class _Table:
    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False)

    def show(self, state: dict[str, Any], head: str) -> None:
        self._live.update(view.table(state, head, self._live.console.width), refresh=True)


class _Lines:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next = 0.0

    def say(self, text: str) -> None:
        self._write(text)

    def show(self, state: dict[str, Any], head: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + PLAIN_S
        for line in view.lines(state, head):
            self._write(line)


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Screen]:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            yield _Table(live)
    else:
        yield _Lines(lambda text: print(text, flush=True))


def run_demo(options: DemoOptions, console: Console | None = None) -> str:
    """Run it to its end, SIGINT or SIGTERM; the summary line. Leaves nothing running.

    Raises ConfigError when something did not come up.
    """
    with contextlib.ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xds-control-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        screen = stack.enter_context(_screen(console or Console()))
        return asyncio.run(_Demo(options, folder, screen).run())


class _Demo:
    def __init__(self, options: DemoOptions, folder: Path, screen: Screen) -> None:
        self._options = options
        self._folder = folder
        self._screen = screen
        self._children: list[Child] = []
        self._serve: Child | None = None
        self._stopped = asyncio.Event()

    async def run(self) -> str:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        show = asyncio.create_task(self._show())
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({show, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not show.done():
                show.cancel()
            return await show
        except asyncio.CancelledError:
            return "demo: stopped before traffic began"
        finally:
            stopped.cancel()
            self._screen.say("stopping")
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        """The gateway first, so that it can drain, then the servers behind it."""
        if self._serve is not None:
            stop_all([self._serve], grace_s=20.0)
        stop_all(self._children, grace_s=5.0)

    async def _show(self) -> str:
        """Start, perform, and return the summary; also when cancelled in the middle."""
        options = self._options
        fleet = self._plan()
        await self._start(fleet)
        gateway = f"http://127.0.0.1:{fleet.ports.gateway}"
        traffic = TrafficConfig(
            rate=options.rate,
            models=fleet.models,
            system_tokens=150,
            user_tokens=300.0 if options.disagg else 25.0,
            answer_tokens=60.0,
        )
        load = Load(gateway, traffic, max_in_flight=256)
        sending = asyncio.create_task(load.run(seconds=options.seconds))
        course = Course(scenario([one.name for one in fleet.engines], options.seconds))
        self._screen.say(f"every weight and request is explained at http://127.0.0.1:{fleet.ports.http}/")
        self._screen.say(f"Envoy listens on {gateway}; traffic starts: {options.rate:g} requests per second")
        begin = asyncio.get_running_loop().time()
        elapsed = 0.0
        try:
            elapsed = await self._perform(fleet, load, course, begin)
            await asyncio.wait({sending}, timeout=LAST_ANSWERS_S)
            if sending.done():
                sending.result()
        except asyncio.CancelledError:
            elapsed = asyncio.get_running_loop().time() - begin
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return view.closing(elapsed, load.figures(), [*course.moved(), *await self._splits(fleet)])

    async def _splits(self, fleet: Fleet) -> list[str]:
        """One sentence for each engine that took part in splits."""
        if not self._options.disagg:
            return []
        sentences: list[str] = []
        async with _client() as client:
            for server in fleet.engines:
                async with client.get(f"http://{server.address}/demo/split") as answer:
                    found = await answer.json()
                what = "read for others" if server.role == "prefill" else "taken over from others"
                count = found["prefilled" if server.role == "prefill" else "received"]
                sentences.append(f"{server.name}: {count} prompts {what}")
        return sentences

    def _plan(self) -> Fleet:
        options = self._options
        llamas = LLAMA_SERVERS if options.llama else 0
        missing = llama.available() if llamas else ""
        if missing:
            self._screen.say(f"without llama.cpp servers: {missing}")
            llamas = 0
        if options.disagg and options.engines < 2:
            raise ConfigError("a split into prefill and decode needs two demo engines at least")
        fleet = plan(self._folder, options.engines, llamas, options.picks or options.disagg, options.disagg)
        if not fleet.servers:
            raise ConfigError("nothing to balance: there are no demo engines and no llama.cpp servers")
        write_policy(self._folder / "policy.yaml", fleet.policy)
        return fleet

    async def _start(self, fleet: Fleet) -> None:
        self._screen.say(f"starting {len(fleet.servers)} servers: {', '.join(one.name for one in fleet.servers)}")
        started: list[tuple[Server, Child]] = []
        for server in fleet.servers:
            child = Child(server.name, server.command, self._folder / f"{server.name}.log")
            self._children.append(child)
            started.append((server, child))
        await asyncio.gather(
            *(wait_until_healthy(child, f"http://{server.address}/health", READY_S) for server, child in started)
        )
        self._screen.say("starting control, one processor and Envoy")
        command = [sys.executable, "-m", "xds_control", "serve", "--policy", str(self._folder / "policy.yaml")]
        self._serve = Child(
            "xds-control serve",
            [*command, "--with-envoy", "--run-dir", str(self._folder / "run"), "--drain-s", "2"],
            self._folder / "serve.log",
            on_parent_death=signal.SIGTERM,
        )
        ports = fleet.ports
        await wait_until_healthy(self._serve, f"http://127.0.0.1:{ports.http}/readyz", READY_S)
        await wait_until_healthy(self._serve, f"http://127.0.0.1:{ports.processor_http}/readyz", READY_S)
        await wait_until_healthy(self._serve, f"http://127.0.0.1:{ports.envoy_admin}/ready", READY_S)
        await self._until_all_ready(fleet)

    async def _until_all_ready(self, fleet: Fleet) -> None:
        """Endpoints are probed and warmed before they get traffic; the show starts when all have passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_S
        async with _client() as client:
            while True:
                state = await _state(client, fleet)
                states = [one["state"] for pool in state.get("pools", ()) for one in pool["endpoints"]]
                if len(states) == len(fleet.servers) and all(one == "ready" for one in states):
                    return
                self._screen.show(state, "endpoints are probed and warmed up")
                self._watch()
                if loop.time() > deadline:
                    raise ConfigError(f"not all endpoints became ready within {READY_S:g} s: {', '.join(states)}")
                await asyncio.sleep(LOOK_S)

    async def _perform(self, fleet: Fleet, load: Load, course: Course, begin: float) -> float:
        """Until the end of the show; the seconds it took."""
        loop = asyncio.get_running_loop()
        addresses = {server.name: server.address for server in fleet.servers}
        title, before = "all engines are well", 0.0
        async with _client() as client:
            while True:
                elapsed = loop.time() - begin
                for step in course.scenario.due(before, elapsed):
                    title = step.title
                    self._screen.say(f"{elapsed:.0f} s: {title}")
                    for name, body in step.commands.items():
                        async with client.post(f"http://{addresses[name]}/demo/control", json=body) as answer:
                            answer.raise_for_status()
                before = elapsed
                state = await _state(client, fleet)
                course.add(elapsed, state)
                seconds = self._options.seconds
                self._screen.show(state, view.headline(elapsed, seconds, title, load.figures(), load.in_flight))
                self._watch()
                if seconds is not None and elapsed >= seconds:
                    return elapsed
                rest = LOOK_S if seconds is None else min(LOOK_S, max(0.01, seconds - elapsed))
                await asyncio.sleep(rest)

    def _watch(self) -> None:
        """Raises ConfigError when a child ended that should run."""
        for child in [*self._children, *([self._serve] if self._serve is not None else [])]:
            if child.exit_code is not None:
                raise ConfigError(f"{child.name} ended with code {child.exit_code}:\n{child.tail()}")


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))


async def _state(client: aiohttp.ClientSession, fleet: Fleet) -> dict[str, Any]:
    """What control says now; an empty fleet while it cannot be asked (it is restarted by its supervisor)."""
    try:
        async with client.get(f"http://127.0.0.1:{fleet.ports.http}/api/v1/state") as answer:
            if answer.status != 200:
                return {}
            state: dict[str, Any] = await answer.json()
            return state
    except (aiohttp.ClientError, TimeoutError):
        return {}
