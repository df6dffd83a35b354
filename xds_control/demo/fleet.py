"""What the demo starts: names, ports, command lines and the policy. Writes files, starts nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from xds_control.demo import llama
from xds_control.demo.processes import free_ports

CHAT_MODEL: Final = "demo-chat"
LLAMA_MODEL: Final = "tiny-llama"
LLAMA_SERVERS: Final = 3
SPLIT_TOKENS: Final = 300
"""Uncached tokens above which the demo splits a request."""


@dataclass(frozen=True, slots=True)
class Server:
    """One inference server of the demo. kind: "vllm" (the demo engine) or "llamacpp". role: as policy has it."""

    name: str
    kind: str
    port: int
    command: tuple[str, ...]
    role: str = "both"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where our own processes listen, all on loopback."""

    gateway: int
    envoy_admin: int
    xds: int
    fleet: int
    admin: int
    http: int
    processor: int
    processor_http: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything of one demo run."""

    servers: tuple[Server, ...]
    ports: Ports
    policy: dict[str, Any]

    @property
    def engines(self) -> tuple[Server, ...]:
        """The demo engines, which may be disturbed."""
        return tuple(server for server in self.servers if server.kind == "vllm")

    @property
    def models(self) -> dict[str, float]:
        """Served model → share of the traffic."""
        kinds = {server.kind for server in self.servers}
        shares = {"vllm": (CHAT_MODEL, 0.7), "llamacpp": (LLAMA_MODEL, 0.3)}
        return {name: share for kind, (name, share) in shares.items() if kind in kinds}


def plan(folder: Path, engines: int, llamas: int, picks: bool, disagg: bool = False) -> Fleet:
    """Choose free ports and write down what to start; with `llamas` > 0 (extra `llama`) write the model file.

    disagg: half of the demo engines prefill, the others decode.
    """
    ports = free_ports(engines + llamas + 8)
    own = Ports(*ports[:8])
    servers: list[Server] = []
    for index in range(engines):
        port = ports[8 + index]
        role = ("prefill" if index < engines // 2 else "decode") if disagg else "both"
        name = f"chat-{index}" if role == "both" else f"{role}-{index}"
        command = engine_command(name, port) + (["--decodes"] if role == "decode" else [])
        servers.append(Server(name, "vllm", port, tuple(command), role))
    if llamas:
        model = folder / "tiny-llama.gguf"
        llama.write_model(model)
        for index in range(llamas):
            port = ports[8 + engines + index]
            servers.append(Server(f"llama-{index}", "llamacpp", port, tuple(llama.command(model, port, LLAMA_MODEL))))
    return Fleet(tuple(servers), own, policy(servers, own, picks, disagg))


def engine_command(name: str, port: int) -> list[str]:
    """A demo engine of the size that a few requests a second keep visibly busy."""
    return [
        *(sys.executable, "-m", "xds_control.demo.engine", "--port", str(port), "--name", name, "--model", CHAT_MODEL),
        *("--prefill-tps", "3000", "--decode-ms", "12", "--decode-growth-ms", "0.8", "--max-seqs", "16"),
        *("--kv-blocks", "600", "--answer-tokens", "60", "--stream-interval", "2"),
    ]


def policy(servers: list[Server], ports: Ports, picks: bool, disagg: bool = False) -> dict[str, Any]:
    """The policy of the demo; what is not said here is the default."""
    pools: list[dict[str, Any]] = []
    for name, kind, model in (("chat", "vllm", CHAT_MODEL), ("llama", "llamacpp", LLAMA_MODEL)):
        endpoints: list[dict[str, Any]] = [
            {"address": one.address, "name": one.name, **({} if one.role == "both" else {"role": one.role})}
            for one in servers
            if one.kind == kind
        ]
        if endpoints:
            pools.append({"name": name, "models": [model], "engine": kind, "picks": picks, "endpoints": endpoints})
    split = {"picker": {"profiles": {"default": {"disagg": {"uncached_tokens": SPLIT_TOKENS}}}}}
    return {
        "version": "xds-control/v1",
        "pools": pools,
        **(split if disagg else {}),
        "envoy": {"listen": _local(ports.gateway), "admin": _local(ports.envoy_admin)},
        "control": {
            "xds": _local(ports.xds),
            "fleet": _local(ports.fleet),
            "admin": _local(ports.admin),
            "http": _local(ports.http),
        },
        "processors": {"count": 1, "listen": _local(ports.processor), "http": _local(ports.processor_http)},
    }


def write_policy(path: Path, content: dict[str, Any]) -> None:
    """As YAML, in the order in which one reads it."""
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _local(port: int) -> str:
    return f"127.0.0.1:{port}"
