"""How the data plane sends bodies to the processor, told from the first message of a stream."""

from __future__ import annotations

import enum

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2

_Wire = processing_mode_pb2.ProcessingMode


class Mode(enum.Enum):
    """What arrives of a body, and what must be answered.

    NONE: nothing; the headers decide. BUFFERED, PARTIAL: one message, answered; PARTIAL may be cut short.
    STREAMED_ONCE: pieces that need no answer until the end; the headers' answer carries the decision.
    STREAMED: pieces, each of which waits for its answer after the headers have gone on; the headers decide.
    DUPLEX: pieces that the processor sends back, cut as it likes, after its answer to the headers.
    """

    NONE = "none"
    BUFFERED = "buffered"
    PARTIAL = "buffered_partial"
    STREAMED_ONCE = "streamed_once"
    STREAMED = "streamed"
    DUPLEX = "full_duplex_streamed"


_BY_WIRE = {
    _Wire.NONE: Mode.NONE,
    _Wire.STREAMED: Mode.STREAMED,
    _Wire.BUFFERED: Mode.BUFFERED,
    _Wire.BUFFERED_PARTIAL: Mode.PARTIAL,
    _Wire.FULL_DUPLEX_STREAMED: Mode.DUPLEX,
}


def request_mode(message: external_processor_pb2.ProcessingRequest) -> Mode:
    """The mode of request bodies. A data plane that announces nothing is taken to send BUFFERED bodies."""
    if not message.HasField("protocol_config"):
        return Mode.BUFFERED
    config = message.protocol_config
    mode = _BY_WIRE.get(config.request_body_mode, Mode.BUFFERED)
    if mode is Mode.STREAMED and config.send_body_without_waiting_for_header_response:
        return Mode.STREAMED_ONCE
    return mode


def response_mode(message: external_processor_pb2.ProcessingRequest) -> Mode:
    """The mode of response bodies; NONE when the data plane announces nothing."""
    if not message.HasField("protocol_config"):
        return Mode.NONE
    return _BY_WIRE.get(message.protocol_config.response_body_mode, Mode.NONE)
