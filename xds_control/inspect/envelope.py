"""What stands around the prompt: model, limits, flags. Requests of one client share it, so it is read once.

The envelope is the body with its large values cut out, a few hundred bytes. Equal bytes mean equal facts,
so the facts of the latest envelopes are remembered; a miss costs a fraction of a microsecond more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from xds_control.inspect.document import Document, address_of_model, place_of_model, repeated_keys
from xds_control.inspect.scalars import as_count, as_flag, as_int, as_number, as_text

_ENTRIES: Final = 1024
_LONGEST: Final = 1024
_NAME_LIMIT: Final = 1024
_MOST_ANSWERS: Final = 1024
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Envelope(msgspec.Struct, gc=False):
    """Facts that every format writes alike. stream: None when the client does not say.

    place: of the model's string in the envelope's bytes, None when it has to be looked up by address.
    cut: where in them the one large value was that was cut out, -1 when it was none or several.
    top: the envelope's own struct of raw values, once `cut` is set.
    """

    model: str = ""
    stream: bool | None = None
    max_output_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    priority: int | None = None
    lora: str = ""
    cache_salt: str = ""
    extra: Mapping[str, Any] = _NOTHING
    ambiguous: tuple[str, ...] = ()
    place: tuple[int, int] | None = None
    cut: int = -1
    top: Any = None


class Recalled(NamedTuple):
    """A body whose envelope is known: the envelope, the place of the model's string, and the value within."""

    envelope: Envelope
    model_span: tuple[int, int] | None
    value: memoryview


class Envelopes:
    """The latest envelopes of one format.

    decode: decoder of the format's struct. main: the field with a list that makes up most of a body, "" for none.
    """

    def __init__(self, decode: Callable[[bytes], Any], main: str) -> None:
        self._decode = decode
        self._main = main
        self._key = re.compile(rb'"%b"\s*+:\s*+' % main.encode()) if main else None
        self._known: dict[bytes, Envelope] = {}

    def recall(self, data: bytes) -> Recalled | None:
        """Splits a body by a known envelope, without reading what is in it.

        What is left over is the list if it decodes as one value; if it does not, the split was wrong.
        """
        if self._key is None:
            return None
        found = self._key.search(data, 0, _LONGEST)
        if found is None:
            return None
        start = found.end()
        size = len(data)
        end = data.rfind(b"]", max(start, size - _LONGEST)) + 1
        if end <= start:
            return None
        envelope = self._known.get(data[:start] + b"0" + data[end:])
        # The same bytes were once read properly, and the list stood in the same place.
        if envelope is None or envelope.cut != start:
            return None
        span = envelope.place
        if span is not None and span[0] > start:
            removed = end - start - 1
            span = (span[0] + removed, span[1] + removed)
        return Recalled(envelope, span, memoryview(data)[start:end])

    def read(self, document: Document, data: bytes) -> tuple[Envelope, tuple[int, int] | None]:
        """The envelope of a document read from `data`, and the place of the model's string in `data`."""
        rest = document.rest
        envelope = self._known.get(rest) if document.complete else None
        if envelope is None:
            envelope = _examine(document)
            if document.complete and 0 < len(rest) <= _LONGEST:
                if len(self._known) >= _ENTRIES:
                    del self._known[next(iter(self._known))]
                self._known[rest] = envelope
        elif envelope.cut < 0 and envelope.place is not None and document.cut_names == (self._main,):
            # Seen twice, so worth recalling. Not the document's own struct: that keeps the whole body alive.
            envelope.cut = document.cuts[0][0]
            envelope.top = self._decode(rest)
        if document.repeated is not None:
            return envelope, document.model_span
        if envelope.place is None:
            return envelope, address_of_model(data, document.top)
        start, end = envelope.place
        removed = sum([gone for place, gone in document.cuts if place < start])
        return envelope, (start + removed, end + removed)


def _examine(document: Document) -> Envelope:
    top = document.top
    envelope = Envelope()
    if document.repeated is not None:
        envelope.ambiguous = document.repeated
    else:
        repeated = repeated_keys(document.rest)
        if repeated is None:
            envelope.place = place_of_model(document.rest, top)
        else:
            envelope.ambiguous = repeated
    envelope.model = as_text(top.model, _NAME_LIMIT)
    if top.stream is not None and bytes(top.stream) != b"null":
        envelope.stream = as_flag(top.stream)
    envelope.max_output_tokens = as_count(top.max_completion_tokens)
    if envelope.max_output_tokens is None:
        envelope.max_output_tokens = as_count(top.max_tokens)
    envelope.n = min(max(as_count(top.n) or 1, 1), _MOST_ANSWERS)
    envelope.temperature = as_number(top.temperature)
    envelope.priority = as_int(top.priority)
    envelope.lora = as_text(top.lora_path, _NAME_LIMIT)
    envelope.cache_salt = as_text(top.cache_salt, _NAME_LIMIT) + as_text(top.extra_key, _NAME_LIMIT)
    tier = as_text(top.service_tier, 64)
    if tier:
        envelope.extra = MappingProxyType({"service_tier": tier})
    return envelope
