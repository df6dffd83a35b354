"""Exact token counts by models' own tokenizers, where the `tokenizers` extra is installed. Reads files: an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xds_control.errors import ConfigError


class ExactTokenizer:
    """A model's own tokenizer. Called, it counts the tokens of a text."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> int:
        return len(self._encode(_unicode(text), add_special_tokens=False).ids)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text that reaches the model without a template, what the engine puts before it included."""
        found: list[int] = self._encode(_unicode(text), add_special_tokens=True).ids
        return found


def _unicode(text: str) -> str:
    # A lone surrogate, which clients do send, is no Unicode to the library.
    return text.encode("utf-8", "replace").decode()


def load_counters(
    tokenizers: Mapping[str, str], on_problem: Callable[[str, str], None] | None = None
) -> dict[str, ExactTokenizer]:
    """Tokenizers by model from `InspectPolicy.tokens.tokenizers` (model name to path of tokenizer.json).

    A model whose tokenizer cannot be used, or all when the extra is not installed, is told to on_problem (model,
    what is wrong) and left out, so that its lengths are estimated; without on_problem that raises ConfigError.
    """
    counters: dict[str, ExactTokenizer] = {}
    for model, path in tokenizers.items():
        try:
            counters[model] = _load(path)
        except ConfigError as error:
            if on_problem is None:
                raise
            on_problem(model, str(error))
    return counters


def _load(path: str) -> ExactTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError("the policy names tokenizers, but the `tokenizers` extra is not installed") from error
    try:
        return ExactTokenizer(Tokenizer.from_file(path))
    except Exception as error:  # the library has no class of its own for a bad file
        raise ConfigError(f"{path} cannot be used as a tokenizer: {error}") from error
