"""One ext_proc stream, that is one HTTP request, as a state machine: messages in, encoded answers out. No I/O.

What the protocol demands and this keeps (envoy/service/ext_proc/v3/external_processor.proto):
every message that waits for an answer gets exactly one, in the order headers, body, trailers; nothing after the
body's end is looked at; a fault never looks like a clean end, which means "go on without me" (`StreamError`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol, TypeAlias

from envoy.service.ext_proc.v3 import external_processor_pb2

from xds_control.errors import XdsControlError
from xds_control.extproc import answers
from xds_control.extproc.decide import Decider, Refusal
from xds_control.extproc.decision import Decision
from xds_control.extproc.http2.pieces import Kept, keep
from xds_control.extproc.modes import Mode, request_mode, response_mode
from xds_control.extproc.request import RequestView, read_attributes, read_headers, read_served, read_subset
from xds_control.extproc.wire import Piece, joined
from xds_control.policy import headers as names

Message: TypeAlias = external_processor_pb2.ProcessingRequest


class StreamError(XdsControlError):
    """The stream cannot go on and must be ended with a gRPC error, never cleanly."""

    code = "stream-failed"
    grpc_status = "INTERNAL"


class ProtocolViolation(StreamError):
    """The peer sent a message that cannot come at this point."""

    code = "protocol-violation"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


class Phase(enum.Enum):
    """Where the request side of a stream is."""

    START = "start"
    BODY = "body"
    HELD = "held"
    ECHO = "echo"
    DONE = "done"


class ResponseObserver(Protocol):
    """Looks at an answer that the data plane shows to the processor; see `responses`."""

    def headers(self, status: str, headers: dict[str, str], served: str, end: bool) -> None:
        """The answer's headers arrived. served: the endpoint that answered, "" when not reported."""
        ...

    def body(self, piece: bytes, end: bool) -> bytes:
        """A piece of the body arrived; returns what the client gets for it (b"" holds it back)."""
        ...

    def last(self) -> bytes:
        """Encoded top-level fields to add to the answer to the last piece, such as dynamic metadata; b"" for none."""
        ...

    def end(self) -> None:
        """The answer is over, or was cut off."""
        ...


class Stream:
    """The machine. Feed every message to `receive`; send what it returns; end the RPC cleanly once `done`.

    While `held` is set the request waits for admission: await `held.hold.key`, then call `resume`.
    """

    __slots__ = (
        "_body",
        "_buffered",
        "_decider",
        "_mode",
        "_observe",
        "_observer",
        "_phase",
        "_request",
        "_response_done",
        "_response_mode",
        "_saw_headers",
        "_size",
        "_trailers",
        "decision",
        "done",
        "failure",
        "held",
        "observer_factory",
    )

    def __init__(
        self, decider: Decider, observer_factory: Callable[[Decision | None], ResponseObserver] | None = None
    ) -> None:
        self._decider = decider
        self._phase = Phase.START
        self._mode = Mode.BUFFERED
        self._response_mode = Mode.NONE
        self._request: RequestView | None = None
        self._body: list[Kept] = []
        self._size = 0
        self._buffered = 0
        self._trailers = False
        self._saw_headers = False
        self._observe = False
        self._observer: ResponseObserver | None = None
        self._response_done = False
        self.observer_factory = observer_factory
        self.decision: Decision | None = None
        self.done = False
        self.held: Decision | None = None
        self.failure: Exception | None = None

    @property
    def mode(self) -> Mode:
        """How request bodies arrive on this stream."""
        return self._mode

    @property
    def request_headers(self) -> dict[str, str]:
        """The request's headers, as far as they were sent to us."""
        return {} if self._request is None else self._request.headers

    def receive(self, message: Message, now: float) -> list[bytes]:
        """The answers to one message, encoded, in order. `now`: monotonic seconds.

        Raises StreamError when the stream must be ended with a gRPC error.
        """
        if self.done or message.observability_mode:
            return []
        kind = message.WhichOneof("request")
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolViolation("a message without a request part")
        return handler(self, message, now)

    def receive_body(self, pieces: list[Piece], end: bool, now: float) -> list[bytes]:
        """As `receive`, for a message that is a piece of the request body and nothing else (see `wire`)."""
        if self.done:
            return []
        if self._phase is Phase.START:
            raise ProtocolViolation("a body before anything that announces it")
        return self._take_body(pieces, end, now)

    def resume(self, refusal: Refusal | None, now: float) -> list[bytes]:
        """The answers once a held request was let in (`refusal` None) or refused."""
        held, request = self.held, self._request
        if held is None or request is None:
            raise StreamError("nothing is held on this stream")
        self.held = None
        try:
            decision = self._decider.finish(held, request, refusal, now)
        except Exception as error:  # noqa: BLE001 - see `_failed`
            return self._failed(error, cut=False)
        return self._answer(decision)

    def closed(self) -> None:
        """The RPC is over, however it ended."""
        self.done = True
        if self._buffered:
            self._body = []
            self._release()
        if self._observer is not None and not self._response_done:
            self._response_done = True
            self._observer.end()

    # Request side

    def _begin(self, message: Message, headers: dict[str, str]) -> RequestView:
        self._mode = request_mode(message)
        self._response_mode = response_mode(message)
        wish = self._decider.policy.responses
        self._observe = wish == "observe" or (wish == "auto" and self._response_mode is Mode.DUPLEX)
        request = RequestView(headers, can_rewrite=self._mode in (Mode.BUFFERED, Mode.DUPLEX))
        if message.attributes:
            request.attributes = read_attributes(message)
        request.subset = read_subset(message)
        self._request = request
        self._phase = Phase.BODY
        return request

    def _request_headers(self, message: Message, now: float) -> list[bytes]:
        if self._phase is not Phase.START:
            raise ProtocolViolation("request headers came twice or too late")
        part = message.request_headers
        request = self._begin(message, read_headers(part.headers))
        self._saw_headers = True
        if part.end_of_stream or self._mode in (Mode.NONE, Mode.STREAMED):
            request.has_body = not part.end_of_stream
            request.complete = part.end_of_stream
            request.can_rewrite = False
            self._mode = Mode.NONE if self._mode is not Mode.STREAMED else self._mode
            return self._decide(now)
        if self._mode in (Mode.BUFFERED, Mode.PARTIAL):
            return [answers.STRIP_REQUEST_HEADERS]
        return []

    def _request_body(self, message: Message, now: float) -> list[bytes]:
        part = message.request_body
        if self._phase is Phase.START:
            # The filter skips request headers: the body can be read and recorded, but not routed.
            self._begin(message, {})
        return self._take_body([part.body], part.end_of_stream, now)

    def _take_body(self, pieces: list[Piece], end: bool, now: float) -> list[bytes]:
        if self._phase is not Phase.BODY:
            return self._late_body(joined(pieces), end)
        mode = self._mode
        request = self._request
        assert request is not None
        if mode in (Mode.BUFFERED, Mode.PARTIAL):
            request.body = joined(pieces)
            request.complete = mode is Mode.BUFFERED or end
            return self._decide(now)
        if mode in (Mode.NONE, Mode.STREAMED):
            return [answers.CONTINUE_REQUEST_BODY]
        policy, buffered = self._decider.policy, self._decider.buffered
        size = sum(map(len, pieces))
        self._size += size
        if end:
            self._body += pieces
        else:
            for piece in pieces:
                keep(self._body, piece, long=True)
        self._buffered += size
        buffered.bytes += size
        if end or self._size > policy.max_body_bytes or buffered.bytes > policy.max_buffered_bytes:
            return self._whole_body(end, now)
        return []

    def _release(self) -> None:
        """What was buffered is so no more."""
        self._decider.buffered.bytes -= self._buffered
        self._buffered = 0

    def _whole_body(self, ended: bool, now: float) -> list[bytes]:
        request = self._request
        assert request is not None
        request.body = joined(self._body) if self._body else b""
        self._body = []
        self._release()
        request.complete = ended
        if not ended:
            request.can_rewrite = False
            if self._size > self._decider.policy.max_body_bytes and self._decider.policy.on_too_large == "reject":
                request.complete = True  # it will be refused; nothing more needs to be seen
        return self._decide(now, cut=not ended)

    def _late_body(self, body: bytes, end: bool) -> list[bytes]:
        if self._phase is Phase.ECHO:
            if end:
                self._phase = Phase.DONE
            found = list(answers.streamed_pieces(body, end))
            self._finish_request()
            return found
        if self._mode is Mode.STREAMED:
            return [answers.CONTINUE_REQUEST_BODY]
        return []  # after the end of the body: Envoy has been seen to repeat it (gateway-api-inference-extension#2988)

    def _request_trailers(self, message: Message, now: float) -> list[bytes]:
        if self._phase is Phase.BODY and self._mode in (Mode.STREAMED_ONCE, Mode.DUPLEX):
            self._trailers = True
            return self._whole_body(True, now)
        if self._phase is Phase.HELD:
            self._trailers = True
            return []
        if self._phase is Phase.ECHO:
            self._phase = Phase.DONE
            self._finish_request()
        return [answers.CONTINUE_REQUEST_TRAILERS]

    def _decide(self, now: float, cut: bool = False) -> list[bytes]:
        request = self._request
        assert request is not None
        try:
            decision = self._decider.decide(request, now)
        except Exception as error:  # noqa: BLE001 - see `_failed`
            return self._failed(error, cut)
        if decision.hold is not None:
            self.held = decision
            self._phase = Phase.HELD
            # Envoy would go on without us. In full duplex a data plane takes nothing but what ends the wait.
            wait_s = decision.hold.wait_s
            return [answers.more_time(wait_s + 1.0)] if wait_s and self._mode is not Mode.DUPLEX else []
        return self._answer(decision, cut)

    def _failed(self, error: Exception, cut: bool) -> list[bytes]:
        """A decision could not be made. Raises StreamError where policy wants that."""
        if self._decider.policy.on_error == "abort":
            raise StreamError(f"deciding failed: {error!r}") from error
        self.failure = error
        return self._unchanged(cut)

    def _answer(self, decision: Decision, cut: bool = False) -> list[bytes]:
        """The decision in the form that the mode wants."""
        self.decision = decision
        self._phase = Phase.ECHO if cut and self._mode is Mode.DUPLEX else Phase.DONE
        if decision.immediate is not None:
            self._phase = Phase.DONE
            self.done = True
            return [answers.immediate_answer(decision.immediate, decision)]
        request, mode = self._request, self._mode
        assert request is not None
        if mode is Mode.DUPLEX:
            found = self._duplex(decision, request, cut)
        elif not self._saw_headers or mode in (Mode.BUFFERED, Mode.PARTIAL):
            found = [answers.body_answer(decision)]
        else:
            found = [answers.headers_answer(decision)]
        request.body = b""
        self._finish_request()
        return found

    def _duplex(self, decision: Decision, request: RequestView, cut: bool) -> list[bytes]:
        body = request.body if decision.body is None else decision.body
        ended = not cut and not self._trailers
        found: list[bytes] = []
        if self._saw_headers:
            found.append(answers.headers_answer(decision, len(body) if ended else None))
        found.extend(answers.streamed_pieces(body, ended))
        if self._trailers:
            found.append(answers.CONTINUE_REQUEST_TRAILERS)
        return found

    def _unchanged(self, cut: bool) -> list[bytes]:
        """The answer that changes nothing but the reserved headers, for a request on which deciding failed."""
        request = self._request
        assert request is not None
        self._phase = Phase.ECHO if cut and self._mode is Mode.DUPLEX else Phase.DONE
        if self._mode is Mode.DUPLEX:
            ended = not cut and not self._trailers
            found = [answers.STRIP_REQUEST_HEADERS, *answers.streamed_pieces(request.body, ended)]
            if self._trailers:
                found.append(answers.CONTINUE_REQUEST_TRAILERS)
        elif self._mode in (Mode.BUFFERED, Mode.PARTIAL):
            found = [answers.CONTINUE_REQUEST_BODY]
        else:
            found = [answers.STRIP_REQUEST_HEADERS]
        self._finish_request()
        return found

    def _finish_request(self) -> None:
        if self._phase is Phase.DONE and not self._observe:
            self.done = True

    # Response side

    def _response_headers(self, message: Message, now: float) -> list[bytes]:
        part = message.response_headers
        if self._observer is None and self.observer_factory is not None:
            self._observer = self.observer_factory(self.decision)
        if self._observer is not None:
            headers = read_headers(part.headers)
            status = headers.get(":status") or headers.get("status", "")
            self._observer.headers(status, headers, read_served(message), part.end_of_stream)
        if part.end_of_stream:
            self._end_response()
        decision = self.decision
        extra = decision.response_headers if decision is not None else {}
        if decision is not None and self._decider.policy.emit_decision:
            extra = {**extra, names.DECISION: decision.id}
        if self._decider.policy.served_header:
            served = read_served(message)
            if served:
                extra = {**extra, self._decider.policy.served_header: served}
        return [answers.response_headers_answer(extra)]

    def _response_body(self, message: Message, now: float) -> list[bytes]:
        part = message.response_body
        if self._response_done:
            return []
        body, end = part.body, part.end_of_stream
        if self._observer is not None:
            body = self._observer.body(body, end)
        more = b"" if self._observer is None or not end else self._observer.last()
        if end:
            self._end_response()
        if self._response_mode is not Mode.DUPLEX:
            return [answers.CONTINUE_RESPONSE_BODY + more]
        found = list(answers.streamed_pieces(body, end, response=True))
        if more:
            found[-1] += more
        return found

    def _response_trailers(self, message: Message, now: float) -> list[bytes]:
        self._end_response()
        return [answers.CONTINUE_RESPONSE_TRAILERS]

    def _end_response(self) -> None:
        if not self._response_done:
            self._response_done = True
            if self._observer is not None:
                self._observer.end()
        self.done = True


_HANDLERS: dict[str | None, Callable[[Stream, Message, float], list[bytes]]] = {
    "request_headers": Stream._request_headers,
    "request_body": Stream._request_body,
    "request_trailers": Stream._request_trailers,
    "response_headers": Stream._response_headers,
    "response_body": Stream._response_body,
    "response_trailers": Stream._response_trailers,
}
