"""Pages of engines that are JSON: what they say as signals. Each raises ValueError for anything else."""

from __future__ import annotations

import msgspec

from xds_control.fleet.readings import ModelInfo
from xds_control.signals.adapter import ExtraResult


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Slot(msgspec.Struct):
    is_processing: bool | None = None
    state: int | None = None
    n_ctx: int | None = None


class _TgiInfo(msgspec.Struct):
    model_id: str
    max_total_tokens: int | None = None
    max_concurrent_requests: int | None = None


class _OllamaModel(msgspec.Struct):
    name: str
    size: int = 0
    size_vram: int = 0
    context_length: int | None = None


class _OllamaPs(msgspec.Struct):
    models: list[_OllamaModel]


class _Load(msgspec.Struct):
    num_waiting_uncached_tokens: int | None = None


class _Loads(msgspec.Struct):
    loads: list[_Load] = []


_cards = msgspec.json.Decoder(_Cards)
_slots = msgspec.json.Decoder(list[_Slot])
_tgi = msgspec.json.Decoder(_TgiInfo)
_ollama = msgspec.json.Decoder(_OllamaPs)
_loads = msgspec.json.Decoder(_Loads | list[_Load])


def openai_models(body: bytes) -> ExtraResult:
    """`/v1/models`: model names and the longest context. Cards with a parent are LoRA adapters."""
    cards = _cards.decode(body).data
    lengths = [card.max_model_len for card in cards if card.max_model_len and card.max_model_len > 0]
    length = min(lengths) if lengths else None
    info = ModelInfo(models=tuple(sorted(card.id for card in cards)), max_model_len=length)
    return ExtraResult({} if length is None else {"model_len": float(length)}, info)


def llamacpp_slots(body: bytes) -> ExtraResult:
    """`/slots`: busy share of the slots, the nearest to KV usage that recent servers tell, and their context."""
    slots = _slots.decode(body)
    if not slots:
        return ExtraResult()
    busy = sum(1 for slot in slots if slot.is_processing or (slot.is_processing is None and slot.state == 1))
    values = {"kv_usage": busy / len(slots), "max_running": float(len(slots))}
    contexts = [slot.n_ctx for slot in slots if slot.n_ctx]
    if contexts:
        values["kv_capacity_tokens"] = float(sum(contexts))
        values["model_len"] = float(min(contexts))
    return ExtraResult(values, ModelInfo(max_model_len=min(contexts) if contexts else None))


def sglang_loads(body: bytes) -> ExtraResult:
    """`/v1/loads`: uncached prompt tokens of waiting requests, over all ranks."""
    decoded = _loads.decode(body)
    loads = decoded if isinstance(decoded, list) else decoded.loads
    tokens = [load.num_waiting_uncached_tokens for load in loads if load.num_waiting_uncached_tokens is not None]
    return ExtraResult({"waiting_tokens": float(sum(tokens))} if tokens and min(tokens) >= 0 else {})


def tgi_info(body: bytes) -> ExtraResult:
    """`/info`: model, longest context, requests at once."""
    info = _tgi.decode(body)
    values = {}
    if info.max_total_tokens:
        values["model_len"] = float(info.max_total_tokens)
    if info.max_concurrent_requests:
        values["max_running"] = float(info.max_concurrent_requests)
    return ExtraResult(values, ModelInfo(models=(info.model_id,), max_model_len=info.max_total_tokens))


def ollama_ps(body: bytes) -> ExtraResult:
    """`/api/ps`: which models are loaded. Ollama tells nothing about its queue."""
    models = _ollama.decode(body).models
    lengths = [model.context_length for model in models if model.context_length]
    length = min(lengths) if lengths else None
    values = {} if length is None else {"model_len": float(length)}
    return ExtraResult(values, ModelInfo(models=tuple(sorted(model.name for model in models)), max_model_len=length))
