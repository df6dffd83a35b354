"""The OpenAI dialect of the demo engine: requests read, prompts rendered, answers and errors as vLLM has them."""

from __future__ import annotations

import json
import math
from statistics import NormalDist
from typing import Any, Final

import msgspec
import xxhash

from xds_control.demo.kvcache import BYTES_PER_TOKEN, token_count
from xds_control.errors import XdsControlError

JSON: Final = "application/json"
_NORMAL = NormalDist()
# Each word and its space are one token of four bytes.
_LETTERS = (
    "andanyarebaybigbitboxbuscancarcatcutdaydogdryeareatendeyefanfarfigfinfitfixflyfogforfungapgasgethathayherhot"
    "howiceinkjamjarjobkeykitlawlaylegletlidloglowmapmaymenmixmudnetnewnowoakoiloldoneouroutownpanpaypenpin"
)
_WORDS = [_LETTERS[i : i + 3] for i in range(0, len(_LETTERS), 3)]


def _prose() -> bytes:
    """4096 words of four bytes each, the space included, in an order that does not repeat early."""
    state, words = 1, []
    for _ in range(4096):
        state = (state * 1103515245 + 12345) % 2**31
        words.append(_WORDS[(state >> 16) % len(_WORDS)])
    return (" ".join(words) + " ").encode()


_PROSE = _prose()


class ApiError(XdsControlError):
    """A request that the engine refuses, in OpenAI's error form. `type` as vLLM names it."""

    code = "demo-api-error"

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.http_status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """`{"error": {...}}`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.http_status}
        return json.dumps({"error": error}).encode()


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400, as vLLM says it."""
    return ApiError(400, "BadRequestError", message, param)


class StreamOptions(msgspec.Struct):
    """`stream_options` of a request."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct):
    """One chat message. `content` may be text, a list of parts or missing."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


class Request(msgspec.Struct):
    """Both APIs in one shape; what is not named here is accepted and ignored."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    seed: int | None = None
    n: int | None = None
    tools: list[Any] | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    bootstrap_room: int | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


_decoder = msgspec.json.Decoder(Request)


def parse(body: bytes, chat: bool) -> Request:
    """Read a request body. Raises ApiError 400."""
    try:
        request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body could not be read: {error}") from error
    if chat and not request.messages:
        raise bad_request("messages must hold at least one message", "messages")
    if not chat and request.prompt is None:
        raise bad_request("prompt is required", "prompt")
    if request.n is not None and request.n != 1:
        raise bad_request("only n=1 is served", "n")
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if limit is not None and limit < 1:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    return request


def render_chat(request: Request) -> bytes:
    """The prompt text of a chat: the next turn of a conversation starts with exactly this, plus the answer."""
    parts: list[str] = []
    if request.tools:
        parts.append(f"<|tools|>{json.dumps(request.tools, separators=(',', ':'))}<|end|>")
    for message in request.messages or ():
        content = message.content
        if isinstance(content, list):
            content = "".join(_part_text(part) for part in content)
        text = content or ""
        if message.tool_calls:
            text += json.dumps(message.tool_calls, separators=(",", ":"))
        parts.append(f"<|{message.role}|>{text}<|end|>")
    parts.append("<|assistant|>")
    return "".join(parts).encode("utf-8", "replace")


def render_prompt(prompt: str | list[str | int | list[int]] | None) -> bytes:
    """The prompt of a completion; token ids count one token each. Raises ApiError for a batch of several prompts."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0] if isinstance(prompt[0], str) else list(prompt[0])
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "replace")
    if not prompt:
        raise bad_request("prompt must not be empty", "prompt")
    ids: list[bytes] = []
    for token in prompt:
        if not isinstance(token, int):
            raise bad_request("only one prompt per request is served", "prompt")
        if not 0 <= token < 2**32:
            raise bad_request("token ids must be integers from 0 to 4294967295", "prompt")
        ids.append(token.to_bytes(BYTES_PER_TOKEN, "little"))
    return b"".join(ids)


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text")
    if isinstance(text, str):
        return text
    return json.dumps(part, separators=(",", ":"), sort_keys=True)


def answer_length(digest: int, mean: float, spread: float) -> int:
    """Tokens of an answer: log-normal with that mean, drawn by the request's digest; `spread` is sigma of the log."""
    u = ((digest >> 11) + 0.5) / 2**53
    return max(1, round(mean * math.exp(spread * _NORMAL.inv_cdf(u) - spread * spread / 2)))


def answer_text(digest: int, tokens: int) -> bytes:
    """Plain ASCII words, one a token, four bytes each: the same digest gives the same text."""
    start = (digest % 4096) * BYTES_PER_TOKEN
    length = tokens * BYTES_PER_TOKEN
    repeats = -(-(start + length) // len(_PROSE))
    return (_PROSE * repeats)[start : start + length]


def request_digest(prompt: bytes, seed: int) -> int:
    """64 bits from which everything that looks random in an answer follows."""
    return xxhash.xxh3_64_intdigest(prompt, seed & 0xFFFFFFFFFFFFFFFF)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """As vLLM with --enable-prompt-tokens-details: the details are null when nothing was cached."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens} if cached_tokens else None,
    }


class StreamShapes:
    """The server-sent events of one answer."""

    def __init__(self, chat: bool, request_id: str, created: int, model: str) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = (
            f'data: {{"id":{json.dumps(request_id)},"object":"{kind}","created":{created},"model":{json.dumps(model)}'
        )
        self._chat = chat
        self._choice = f'{head},"choices":[{{"index":0,'
        self._usage = f'{head},"choices":[],"usage":'
        self._before = (self._choice + ('"delta":{"content":"' if chat else '"text":"')).encode()
        self._after = (('"}' if chat else '"') + ',"logprobs":null,"finish_reason":null}]}\n\n').encode()

    def role(self) -> bytes:
        """The first chunk of a chat, which carries no text; nothing for a completion."""
        if not self._chat:
            return b""
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return (self._choice + delta).encode()

    def text(self, text: bytes) -> bytes:
        """A chunk with that text, which must need no JSON escape."""
        return self._before + text + self._after

    def finish(self, reason: str) -> bytes:
        """The chunk that says why it ended."""
        body = '"delta":{"content":""}' if self._chat else '"text":""'
        return f'{self._choice}{body},"logprobs":null,"finish_reason":"{reason}","stop_reason":null}}]}}\n\n'.encode()

    def usage(self, figures: dict[str, Any]) -> bytes:
        """The chunk without choices that carries the usage."""
        return f"{self._usage}{json.dumps(figures, separators=(',', ':'))}}}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def full_answer(
    chat: bool,
    request_id: str,
    created: int,
    model: str,
    text: str,
    reason: str,
    figures: dict[str, Any],
    kv_transfer_params: dict[str, Any] | None = None,
) -> bytes:
    """The body of a non-streamed answer. kv_transfer_params: of a prefill for another engine."""
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    else:
        choice["text"] = text
    choice.update(logprobs=None, finish_reason=reason, stop_reason=None)
    kind = "chat.completion" if chat else "text_completion"
    answer = {
        "id": request_id,
        "object": kind,
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": figures,
    }
    if kv_transfer_params is not None:
        answer["kv_transfer_params"] = kv_transfer_params
    return msgspec.json.encode(answer)


def count_tokens(request: Request) -> int:
    """Prompt tokens of either kind of request."""
    prompt = render_chat(request) if request.messages else render_prompt(request.prompt)
    return token_count(len(prompt))
