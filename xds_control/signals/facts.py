"""What an engine's page says about the engine itself: models, adapters, block size, start time."""

from __future__ import annotations

from collections.abc import Mapping

from xds_control.fleet.readings import ModelInfo
from xds_control.signals.adapter import Adapter
from xds_control.signals.exposition import Page, Series

_CONFIG_FIELDS = {
    "block_size": "block_size",
    "num_blocks": "num_blocks",
    "model_len": "max_model_len",
    "lora_max": "lora_max",
}


class Facts:
    """Keeps the last answer and computes a new one only when a page says something else."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._families = tuple(
            dict.fromkeys(
                (
                    *(config.family for config in adapter.config),
                    *((adapter.lora.family,) if adapter.lora else ()),
                    *adapter.started,
                )
            )
        )
        self._key: list[object] = []
        self._page_info = ModelInfo()
        self._values: dict[str, float] = {}
        self._started: float | None = None

    def restarted(self, page: Page) -> bool:
        """Whether the process that wrote this page is not the one before. Pages without a start time never say so."""
        started = self._start_time(page)
        if started is None:
            return False
        before = self._started
        self._started = started
        return before is not None and abs(started - before) > 1.0

    def read(self, page: Page, values: dict[str, float], extra: Mapping[str, ModelInfo]) -> ModelInfo:
        """What the engine serves; adds the configuration signals to `values`."""
        rows = page.rows
        key: list[object] = [rows.get(family) for family in self._families]
        key.extend(rows[family].keys() for family in self._adapter.model_families if family in rows)
        key.extend(values.get(signal) for signal in _CONFIG_FIELDS)
        if key != self._key:
            self._key = key
            self._compute(page, {name: values[name] for name in _CONFIG_FIELDS if name in values})
        values.update(self._values)
        return self.merged(extra)

    def merged(self, extra: Mapping[str, ModelInfo]) -> ModelInfo:
        """The page's facts, filled up with those of the engine's other pages."""
        info = self._page_info
        if not extra:
            return info
        parts = [*extra.values(), info]
        return ModelInfo(
            models=tuple(dict.fromkeys(model for part in parts for model in part.models)),
            lora_running=tuple(dict.fromkeys(name for part in parts for name in part.lora_running)),
            lora_waiting=tuple(dict.fromkeys(name for part in parts for name in part.lora_waiting)),
            lora_max=_first(info.lora_max, *(part.lora_max for part in parts)),
            max_model_len=_first(*(part.max_model_len for part in parts)),
            block_size=_first(info.block_size, *(part.block_size for part in parts)),
            num_blocks=_first(info.num_blocks, *(part.num_blocks for part in parts)),
            started_at=info.started_at,
        )

    def _start_time(self, page: Page) -> float | None:
        for family in self._adapter.started:
            rows = page.rows.get(family)
            if rows:
                return max(rows.values())
        return None

    def _compute(self, page: Page, told: dict[str, float]) -> None:
        adapter = self._adapter
        numbers = dict(told)
        capacity = 0.0
        for config in adapter.config:
            found = [
                number
                for series in page.rows.get(config.family, ())
                if (number := _number(series.labels.get(config.label, ""))) is not None
            ]
            if found:
                numbers[config.signal] = sum(found) if config.combine == "sum" else max(found)
        if "block_size" in numbers and "num_blocks" in numbers:
            capacity = numbers["block_size"] * numbers["num_blocks"]
        running: tuple[str, ...] = ()
        waiting: tuple[str, ...] = ()
        if adapter.lora is not None:
            rows = page.rows.get(adapter.lora.family)
            if rows:
                newest: Series = max(rows, key=lambda series: rows[series])
                running = _list(newest.labels.get(adapter.lora.running, ""))
                waiting = _list(newest.labels.get(adapter.lora.waiting, ""))
                most = _number(newest.labels.get(adapter.lora.maximum, ""))
                numbers["lora_loaded"] = float(len(running))
                if most is not None:
                    numbers["lora_max"] = most
        models = dict.fromkeys(
            name
            for family in adapter.model_families
            for series in page.rows.get(family, ())
            for label in adapter.model_labels
            if (name := series.labels.get(label))
        )
        whole = {_CONFIG_FIELDS[name]: int(value) for name, value in numbers.items() if name in _CONFIG_FIELDS}
        self._page_info = ModelInfo(
            models=tuple(sorted(models)),
            lora_running=running,
            lora_waiting=waiting,
            started_at=self._start_time(page),
            **whole,
        )
        if capacity:
            numbers.setdefault("kv_capacity_tokens", capacity)
        self._values = numbers


def _first(*candidates: int | None) -> int | None:
    return next((value for value in candidates if value is not None), None)


def _number(text: str) -> float | None:
    """A non-negative number in a label; "None" and the like are none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e15 else None


def _list(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
