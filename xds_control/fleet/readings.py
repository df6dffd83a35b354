"""What is known about an endpoint at one moment: named values, each with its own time and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Reading(NamedTuple):
    """One value of one signal. `value` in the catalogue's unit; `at` in monotonic seconds of the
    process that holds it; `source` names where it came from (`vllm`, `accesslog`, `nvml`, ...)."""

    value: float
    at: float
    source: str


Readings = Mapping[str, Reading]
"""Signal name (see `signals.catalogue`) → newest trusted reading. Absent means unknown, never zero."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine serves: model names, resident and waiting LoRA adapters, slots, limits (None = unknown)."""

    models: tuple[str, ...] = ()
    lora_running: tuple[str, ...] = ()
    lora_waiting: tuple[str, ...] = ()
    lora_max: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    started_at: float | None = None
