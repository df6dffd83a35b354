"""Exact token counts by models' own tokenizers, where the `tokenizers` extra is installed. Reads files: an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xds_control.errors import ConfigError


def load_counters(
    tokenizers: Mapping[str, str], on_problem: Callable[[str, str], None] | None = None
) -> dict[str, Callable[[str], int]]:
    """Counters by model from `InspectPolicy.tokens.tokenizers` (model name to path of tokenizer.json).

    A model whose tokenizer cannot be used, or all when the extra is not installed, is told to on_problem (model,
    what is wrong) and left out, so that its lengths are estimated; without on_problem that raises ConfigError.
    """
    counters: dict[str, Callable[[str], int]] = {}
    for model, path in tokenizers.items():
        try:
            counters[model] = _load(path)
        except ConfigError as error:
            if on_problem is None:
                raise
            on_problem(model, str(error))
    return counters


def _load(path: str) -> Callable[[str], int]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError("the policy names tokenizers, but the `tokenizers` extra is not installed") from error
    try:
        return _counter(Tokenizer.from_file(path))
    except Exception as error:  # the library has no class of its own for a bad file
        raise ConfigError(f"{path} cannot be used as a tokenizer: {error}") from error


def _counter(tokenizer: object) -> Callable[[str], int]:
    encode = tokenizer.encode  # type: ignore[attr-defined]
    # A lone surrogate, which clients do send, is no Unicode to the library.
    return lambda text: len(encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)
