"""The cost of ext_proc on a real Envoy: processor and Envoy CPU per request, and added latency.

    python -m tests.bench.extproc [--seconds N] [--transport native|grpc] [--no-picks]

Envoy (one worker) is pinned to one core and the processor to another; the load comes from `wrk` (Debian package). The
engine is a listener of the same Envoy that answers at once, so that what is measured is the way there. Every figure
is against plain Envoy with the same backend in the same run. Rounds of plain and processed requests alternate, so that
the machine's other work falls on both; of several rounds the least CPU and latency count, because other work only adds.
N is the length of all rounds together, at least a dozen seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.bench.extproc_processor import MODEL, POOL, addresses
from tests.envoy.harness import free_ports
from tests.envoy.static_envoy import bootstrap, envoy_binary

SIZES = {"4k": 4096, "400k": 409_600}
CONNECTIONS = {"4k": 16, "400k": 4}

_LUA = """
local bodies = {}
local file = io.open("%s", "rb")
for line in file:lines() do bodies[#bodies + 1] = line end
file:close()
local at = 0
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
request = function()
  at = at %% #bodies + 1
  return wrk.format(nil, "/v1/chat/completions", nil, bodies[at])
end
done = function(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('JSON {"requests": %%d, "failed": %%d, "us": %%d, "p50": %%f, "p99": %%f}\\n',
    summary.requests, failed, summary.duration, latency:percentile(50), latency:percentile(99)))
end
"""


def chat(size: int, rng: random.Random) -> str:
    """A chat of about `size` bytes: a system prompt that others share, some turns, the model last."""
    words = "the model reads text and code then answers with care about facts numbers tables and names"

    vocabulary = words.split()

    def text(length: int, source: random.Random) -> str:
        return " ".join(source.choices(vocabulary, k=length // 4))[:length]

    shared = random.Random(rng.randrange(4))
    turns = max(2, min(40, size // 1000))
    messages = [{"role": "system", "content": text(size // 4, shared)}]
    each = (size - size // 4 - 60 * turns - 120) // turns
    messages += [
        {"role": "assistant" if number % 2 else "user", "content": text(max(each, 10), rng)} for number in range(turns)
    ]
    document = {"messages": messages, "temperature": 0.7, "max_tokens": 256, "stream": True, "model": MODEL}
    return json.dumps(document)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Setup:
    """Envoy and processor, started and pinned; `load` runs one round."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[0], cores[1 % len(cores)], cores[2] if len(cores) > 2 else cores[0])
        self.folder = folder
        self.options = options
        names = ("buffered", "streamed_once", "plain", "backend")
        ports = free_ports(len(names) + 2)
        self.ports = dict(zip(names, ports, strict=False))
        self.admin, self.processor_port = ports[-2:]
        self.envoy: subprocess.Popen[bytes] | None = None
        self.processor: subprocess.Popen[bytes] | None = None
        for name, size in SIZES.items():
            rng = random.Random(size)
            lines = folder / f"{name}.jsonl"
            lines.write_text("\n".join(chat(size, rng) for _ in range(32)) + "\n")
            (folder / f"{name}.lua").write_text(_LUA % lines)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Starts both, and stops them whatever happens."""
        config = self._configuration()
        path = self.folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(config))
        log = (self.folder / "log").open("wb")
        options = self.options
        argv = [sys.executable, "-m", "tests.bench.extproc_processor", str(self.processor_port)]
        argv += [str(self.ports["backend"]), "--endpoints", str(options.endpoints), "--transport", options.transport]
        argv += [] if options.picks else ["--no-picks"]
        argv += ["--profile"] if options.profile else []
        try:
            self.envoy = subprocess.Popen(
                [envoy_binary(), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"],
                stdout=log,
                stderr=log,
            )
            os.sched_setaffinity(self.envoy.pid, {self.cores[0]})
            self.processor = subprocess.Popen(argv, stdout=log, stderr=None if options.profile else log)
            os.sched_setaffinity(self.processor.pid, {self.cores[1]})
            self._wait()
            yield
        finally:
            for process in (self.envoy, self.processor):
                if process is not None:
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                    if process.returncode is None:
                        process.kill()
            log.close()

    def _configuration(self) -> dict[str, Any]:
        ports = {name: self.ports[name] for name in ("buffered", "streamed_once", "plain")}
        backend = self.ports["backend"]
        config = bootstrap(ports, self.admin, self.processor_port, {POOL: [backend]})
        resources = config["static_resources"]
        hosts = [one.rpartition(":")[0] for one in addresses(self.options.endpoints, backend)]
        resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": host, "port_value": backend}}}} for host in hosts
        ]
        forwarded = [":path", ":method", "content-type", "content-encoding", "x-session-id"]
        for listener in resources["listeners"]:
            manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
            for one in manager["http_filters"]:
                if one["name"] == "ext_proc":
                    patterns = [{"exact": name} for name in forwarded]
                    one["typed_config"]["forward_rules"] = {"allowed_headers": {"patterns": patterns}}
        answer = {"status": 200, "body": {"inline_string": '{"choices": []}'}}
        routes = [{"match": {"prefix": "/"}, "direct_response": answer}]
        last = json.loads(json.dumps(resources["listeners"][-1]))
        last["name"] = "backend"
        last["address"]["socket_address"] = {"address": "0.0.0.0", "port_value": backend}
        manager = last["filter_chains"][0]["filters"][0]["typed_config"]
        manager["stat_prefix"] = "backend"
        manager["route_config"]["virtual_hosts"][0]["routes"] = routes
        resources["listeners"].append(last)
        return config

    def _wait(self) -> None:
        body = chat(1000, random.Random(0)).encode()
        for _ in range(200):
            try:
                before, trouble = self.processed(), self.trouble()
                for name in ("plain", "buffered"):
                    url = f"http://127.0.0.1:{self.ports[name]}/v1/chat/completions"
                    urllib.request.urlopen(urllib.request.Request(url, body), timeout=5).read()
                if self.processed() > before and self.trouble() == trouble:
                    return
                raise OSError("the processor does not answer yet")
            except OSError:
                time.sleep(0.1)
        raise RuntimeError((self.folder / "log").read_text()[-3000:])

    def stats(self, pattern: str) -> int:
        """Sum of Envoy's counters that match."""
        url = f"http://127.0.0.1:{self.admin}/stats?filter={pattern}"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines() if ": " in line)

    def processed(self) -> int:
        """Messages that the processor has answered."""
        return self.stats("ext_proc.stream_msgs_received$")

    def trouble(self) -> int:
        """Streams that failed, fell open or were wrong since the counters were last reset."""
        return self.stats("ext_proc.(streams_failed|failure_mode_allowed|spurious_msgs_received|message_timeouts)$")

    def reset(self) -> None:
        """Sets Envoy's counters to 0."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}/reset_counters", b"")
        urllib.request.urlopen(request, timeout=5).read()

    def load(self, listener: str, size: str, connections: int, seconds: float) -> dict[str, float]:
        """One round of wrk: requests, failed, p50 and p99 in µs, CPU of both in µs per request."""
        assert self.envoy is not None
        assert self.processor is not None
        before = (cpu_seconds(self.envoy.pid), cpu_seconds(self.processor.pid))
        url = f"http://127.0.0.1:{self.ports[listener]}"
        argv = ["taskset", "-c", str(self.cores[2]), "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
        argv += ["--timeout", "10s", "-s", str(self.folder / f"{size}.lua"), url]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
        found: dict[str, float] = json.loads(text.rpartition("JSON ")[2])
        after = (cpu_seconds(self.envoy.pid), cpu_seconds(self.processor.pid))
        done = max(found["requests"], 1)
        found["envoy_us"] = (after[0] - before[0]) / done * 1e6
        found["processor_us"] = (after[1] - before[1]) / done * 1e6
        return found


def _least(rounds: list[dict[str, float]], key: str) -> float:
    return min(one[key] for one in rounds)


def plan(seconds: float) -> tuple[int, float]:
    """(rounds, length of one) for about so many seconds: twelve kinds of round, wrk counts whole seconds."""
    rounds = max(1, min(3, int(seconds // 12)))
    return rounds, max(1.0, round(seconds / (12 * rounds)))


def measure(setup: Setup, total: float) -> dict[str, Any]:
    """All figures of one setup."""
    rounds, seconds = plan(total)
    result: dict[str, Any] = {}
    failed = 0.0
    for mode in ("buffered", "streamed_once"):
        setup.load(mode, "4k", 8, 1)
    setup.reset()
    for size, connections in CONNECTIONS.items():
        table: dict[str, list[dict[str, float]]] = {"plain": [], "buffered": [], "streamed_once": []}
        for _ in range(rounds):
            for name, rows in table.items():
                rows.append(setup.load(name, size, connections, seconds))
        failed += sum(row["failed"] for rows in table.values() for row in rows)
        plain = _least(table["plain"], "envoy_us")
        for name in ("buffered", "streamed_once"):
            processor = _least(table[name], "processor_us")
            envoy = _least(table[name], "envoy_us")
            result[f"{name}_{size}"] = {
                "processor_us": round(processor, 1),
                "envoy_us": round(envoy, 1),
                "envoy_added_us": round(envoy - plain, 1),
                "sum_added_us": round(processor + envoy - plain, 1),
                "rps_per_cpu_s": round(1e6 / processor) if processor else None,
            }
            print(f"{name:14} {size:>4}: {result[f'{name}_{size}']}", flush=True)
        result[f"envoy_plain_us_{size}"] = round(plain, 1)
        result[f"rps_per_cpu_s_{size}"] = result[f"buffered_{size}"]["rps_per_cpu_s"]
    for size in SIZES:
        single: dict[str, list[dict[str, float]]] = {"plain": [], "buffered": [], "streamed_once": []}
        for _ in range(rounds):
            for name, rows in single.items():
                rows.append(setup.load(name, size, 1, seconds))
        failed += sum(row["failed"] for rows in single.values() for row in rows)
        for name in ("buffered", "streamed_once"):
            for percentile in ("p50", "p99"):
                added = (_least(single[name], percentile) - _least(single["plain"], percentile)) / 1000
                result[f"{name}_added_{percentile}_ms_{size}"] = round(added, 3)
    result["added_p50_ms"] = result["buffered_added_p50_ms_4k"]
    result["added_p99_ms"] = result["buffered_added_p99_ms_4k"]
    result["failed"] = int(failed) + setup.trouble()
    return result


def main() -> int:
    """Entry point: exit code 2 when `wrk` is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=72.0, help="length of all rounds together")
    parser.add_argument("--transport", default="native", choices=["native", "grpc"])
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--no-picks", dest="picks", action="store_false", help="rings 1 and 2 only")
    parser.add_argument(
        "--profile", action="store_true", help="print the processor's profile (its CPU then counts double)"
    )
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("this benchmark needs wrk: apt-get install wrk", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(Path(folder), options)
        with setup.running():
            result = measure(setup, options.seconds)
    result["transport"] = options.transport
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
