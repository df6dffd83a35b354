"""Exact token counts by models' own tokenizers, where the `tokenizers` extra is installed. Reads files: an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xds_control.errors import ConfigError


def load_counters(tokenizers: Mapping[str, str]) -> dict[str, Callable[[str], int]]:
    """Counters by model from `InspectPolicy.tokens.tokenizers` (model name to path of tokenizer.json).

    Raises ConfigError when the extra is not installed or a file is not a tokenizer.
    """
    if not tokenizers:
        return {}
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError("the policy names tokenizers, but the `tokenizers` extra is not installed") from error
    counters: dict[str, Callable[[str], int]] = {}
    for model, path in tokenizers.items():
        try:
            counters[model] = _counter(Tokenizer.from_file(path))
        except Exception as error:  # the library has no class of its own for a bad file
            raise ConfigError(f"the tokenizer of {model}, {path}, cannot be used: {error}") from error
    return counters


def _counter(tokenizer: object) -> Callable[[str], int]:
    encode = tokenizer.encode  # type: ignore[attr-defined]
    # A lone surrogate, which clients do send, is no Unicode to the library.
    return lambda text: len(encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)
