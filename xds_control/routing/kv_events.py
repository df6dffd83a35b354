"""KV block events of vLLM and SGLang: their wire forms, their order, and what to do about gaps. Pure.

A publisher (one per data-parallel rank) sends batches `[time, [event, ...], rank?]` with a sequence number. Events are
tagged arrays (vLLM up to 0.23, old SGLang) or tagged maps (newer). A batch that was missed can be asked for again while
the publisher remembers it; what cannot be had again makes everything known about that publisher unknown. A sequence
that starts over means the engine started over.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from xds_control.routing.kv_index import KvIndex, Name

MAX_BLOCKS: Final = 100_000
"""Most blocks of one event that are taken; an event with more is nonsense."""
MAX_EVENTS: Final = 20_000
"""Most events of one batch that are taken: an engine sends one at each step, and requests wait while it is read."""
MAX_NAME: Final = 128
"""Longest name of a block in bytes; engines use 64-bit numbers or SHA-256."""
MAX_TEXT: Final = 256
"""Characters of an adapter or cache salt that count."""
_FULL_ATTENTION: Final = frozenset({"", "full", "full_attention", "fullattention"})
_decode = msgspec.msgpack.Decoder().decode


class Stored(NamedTuple):
    """Blocks that hang one behind the other after `parent` (None: at the beginning)."""

    names: tuple[Name, ...]
    parent: Name | None
    tokens: tuple[int, ...]
    block_size: int
    salt: str
    medium: str


class Removed(NamedTuple):
    """Blocks that are gone from a tier."""

    names: tuple[Name, ...]
    medium: str


class Cleared(NamedTuple):
    """The whole cache is empty."""


Event = Stored | Removed | Cleared


class KvEventError(ValueError):
    """A payload that is not a batch of events."""


class Batch(NamedTuple):
    """Events in order. rank: data-parallel rank, None when not told. passed: events of kinds that are not used."""

    events: tuple[Event, ...]
    rank: int | None
    passed: int


_ARRAY_FIELDS: Final = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED_FIELDS: Final = ("type", "block_hashes", "medium", "group_idx")


def _named(event: Any) -> Mapping[str, Any]:
    if isinstance(event, Mapping):
        return event
    if isinstance(event, Sequence) and not isinstance(event, str | bytes) and event:
        fields = _REMOVED_FIELDS if event[0] == "BlockRemoved" else _ARRAY_FIELDS
        return dict(zip(fields, event, strict=False))
    raise KvEventError("an event is neither a tagged array nor a tagged map")


def _names(value: Any) -> tuple[Name, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > MAX_BLOCKS:
        raise KvEventError("block_hashes is not a list of blocks")
    return tuple(map(_name, value))


def _name(value: Any) -> Name:
    if not isinstance(value, int | str | bytes):
        raise KvEventError("a block hash is neither a number nor bytes")
    if not isinstance(value, int) and len(value) > MAX_NAME:
        raise KvEventError(f"a block hash is longer than {MAX_NAME} bytes")
    return value


def _items(event: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A list of an event, empty where there is none."""
    found = event.get(name)
    if found is None:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise KvEventError(f"{name} is not a list")
    return found


def _salt(event: Mapping[str, Any]) -> str:
    """What tells equal tokens apart: the adapter, the cache salt, the digests of media."""
    parts = [event.get("lora_name") or event.get("lora_id"), event.get("cache_salt")]
    return "\0".join(_short(part) for part in parts if part not in (None, ""))


def _short(value: Any) -> str:
    """A text or number that stands in an event."""
    if not isinstance(value, str | int):
        raise KvEventError(f"{type(value).__name__} where a name is due")
    text = str(value)
    if len(text) > MAX_TEXT:
        raise KvEventError(f"a name is longer than {MAX_TEXT} characters")
    return text


def _event(raw: Any) -> Event | None:
    event = _named(raw)
    kind = event.get("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    # Hybrid models report each attention group apart: only blocks of full attention make a usable prefix.
    group, spec = event.get("group_idx"), str(event.get("kv_cache_spec_kind") or "").lower().replace("-", "_")
    if spec not in _FULL_ATTENTION or (spec == "" and isinstance(group, int) and group > 0):
        return None
    medium = _short(event.get("medium") or "gpu").lower()
    if kind == "BlockStored":
        given = event.get("parent_block_hash")
        parent = None if given is None else _name(given)
        tokens = _items(event, "token_ids")
        if not all(isinstance(token, int) for token in tokens):
            tokens = ()  # bigram ids of speculative decoding: the blocks count, their content does not
        size = event.get("block_size")
        names = _names(event.get("block_hashes"))
        salted = _salt(event)
        if any(_items(event, "extra_keys")):
            tokens = ()  # media or embeddings: token ids alone would claim too much
        return Stored(names, parent, tuple(tokens), size if isinstance(size, int) and size > 0 else 0, salted, medium)
    if kind == "BlockRemoved":
        return Removed(_names(event.get("block_hashes")), medium)
    return None


def decode(payload: bytes) -> Batch:
    """The events of a payload. Raises KvEventError for what is not a batch."""
    try:
        batch = _decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KvEventError(f"not msgpack: {error}") from None
    if not isinstance(batch, Sequence) or len(batch) < 2 or not isinstance(batch[1], Sequence):
        raise KvEventError("a batch is [time, events, rank?]")
    if len(batch[1]) > MAX_EVENTS:
        raise KvEventError(f"a batch of {len(batch[1])} events; {MAX_EVENTS} are the most")
    found = [_event(raw) for raw in batch[1]]
    if sum(len(event.names) for event in found if isinstance(event, Stored | Removed)) > MAX_BLOCKS:
        raise KvEventError(f"a batch of more than {MAX_BLOCKS} blocks")
    rank = batch[2] if len(batch) > 2 and isinstance(batch[2], int) else None
    events = tuple(event for event in found if event is not None)
    return Batch(events, rank, len(found) - len(events))


def apply(index: KvIndex, slot: int, batch: Batch) -> bool:
    """Brings the index up to date. Returns whether the cache was cleared."""
    cleared = False
    for event in batch.events:
        if isinstance(event, Stored):
            index.store(
                slot, event.names, event.parent, event.tokens, event.block_size, event.salt, medium=event.medium
            )
        elif isinstance(event, Removed):
            index.remove(slot, event.names, event.medium)
        else:
            index.clear(slot)
            cleared = True
    return cleared


class Verdict(enum.Enum):
    """What to do with a batch: take it; ask for what was missed first; begin anew, then take it; or drop it."""

    TAKE = "take"
    MISSED = "missed"
    RESTARTED = "restarted"
    OLD = "old"


class Sequencer:
    """The order of one publisher's batches."""

    def __init__(self) -> None:
        self.next: int | None = None

    def see(self, sequence: int) -> Verdict:
        """Judges a batch's number and, unless something was missed, counts on from it."""
        expected = self.next
        if expected is None or sequence == expected:
            self.next = sequence + 1
            return Verdict.TAKE
        if sequence > expected:
            return Verdict.MISSED
        if sequence == 0 or expected - sequence > 1000:
            self.next = sequence + 1
            return Verdict.RESTARTED
        return Verdict.OLD  # a replay overlaps what came in the meantime

    def skip_to(self, sequence: int) -> None:
        """Gives up what is before `sequence`."""
        self.next = sequence
