"""Every format in one table: the fields that are read, which of them may be large, and the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers import chat, text

Reader = Callable[[Any, Prompt, RequestFacts], None]

COMMON: Final = (
    "model",
    "stream",
    "n",
    "temperature",
    "priority",
    "max_tokens",
    "max_completion_tokens",
    "cache_salt",
    "extra_key",
    "lora_path",
    "service_tier",
)
"""Fields that every format's struct has, so that the inspector may look at them without asking."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How one format is read. fields: beside COMMON. heavy: those that may be large (or repeat key names inside).
    generates: whether output tokens are made. output_cap: what applies when the client names no limit.
    stream: what applies when the client does not say. plain: the prompt reaches the model without a template."""

    api: str
    reader: Reader
    fields: tuple[str, ...] = ()
    heavy: tuple[str, ...] = ()
    generates: bool = True
    output_cap: int | None = None
    stream: bool = False
    plain: bool = False


_CHAT_FIELDS: Final = (
    "messages",
    "tools",
    "functions",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "response_format",
    "metadata",
)

SPECS: Final[dict[str, Spec]] = {
    spec.api: spec
    for spec in (
        Spec("openai.chat", chat.read_openai, _CHAT_FIELDS, _CHAT_FIELDS[:6] + _CHAT_FIELDS[7:]),
        Spec(
            "openai.completions",
            text.read_completion,
            ("prompt", "prompt_embeds", "suffix", "metadata"),
            ("prompt", "prompt_embeds", "suffix", "metadata"),
            output_cap=16,
            plain=True,
        ),
        Spec(
            "anthropic.messages",
            chat.read_anthropic,
            ("system", "messages", "tools", "metadata"),
            ("system", "messages", "tools", "metadata"),
        ),
    )
}
