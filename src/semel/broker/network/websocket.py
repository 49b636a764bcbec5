"""MQTT over WebSocket (section 6 of both standards) as a layer.

The package `websockets` judges the HTTP request (`websocket_handshake`) and close frames. Frames
are split here, in one plain loop, because the library's parser takes several microseconds for each
frame, and collects a frame before it passes it on:

- A chunk of 256 KiB can have 43,000 frames, which must not block the loop.
- Before CONNECT a client must not make the broker allocate what its frame announces. So the
  payload of a data frame is passed on as it arrives, and the limits of the core hold as on TCP.

Packets are not aligned with frames [MQTT-6.0.0-2]: the payloads are a stream of bytes. A message
may have any number of fragments, and `maximum_frame` bounds each frame. Of several pings that
arrive together only the last one is answered (RFC 6455, section 5.5.3). Nothing is compressed.
"""

from typing import Final

from websockets.exceptions import ProtocolError
from websockets.frames import Close, CloseCode, apply_mask  # type: ignore[attr-defined]

from semel.broker.network.first_bytes import describe_any_bytes, describe_first_bytes
from semel.broker.network.layer import LayerFailed
from semel.broker.network.websocket_handshake import (
    HEAD_END,
    RefusedRequest,
    WebSocketHandshake,
    WebSocketRules,
)

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_CONTINUATION: Final = 0x0
_TEXT: Final = 0x1
_BINARY: Final = 0x2
_CLOSE: Final = 0x8
_PING: Final = 0x9
_PONG: Final = 0xA
_WHOLE_BINARY: Final = _FIN | _BINARY

_MAXIMUM_CONTROL_PAYLOAD: Final = 125
_HTTP: Final = "an HTTP request"
_BINARY_ONLY: Final = "MQTT is in binary frames only [MQTT-6.0.0-1]"


class WebSocketLayer:
    """The server's side of a WebSocket. A `Layer`."""

    def __init__(self, rules: WebSocketRules) -> None:
        self.is_established = False
        self.is_closed = False
        self.has_work = False
        self._rules = rules
        # The head of the request until it is complete, then the beginning of a frame.
        self._beginning = b""
        # How much of the payload of a data frame is still to come, and the mask for it.
        self._left = 0
        self._mask = b""
        # Whether the next data frame must continue a message.
        self._in_message = False
        self._output = b""
        # The payload of the last ping that has not been answered.
        self._ping: bytes | None = None
        self._is_closing = False

    def receive(self, data: bytes) -> bytes:
        """As in Layer: the payloads of binary frames."""
        if self.is_closed:
            return b""
        if not self.is_established:
            if self._is_closing:
                return b""
            data = self._open(data)
            if not self.is_established:
                return b""
        inner: list[bytes] = []
        try:
            self._split(data, inner)
        except LayerFailed:
            if not self._is_closing:
                raise
            # What the client does after our close frame does not matter any more.
            self.is_closed = True
        if self._is_closing:
            # Nothing follows a close frame.
            self._output = b""
            self._ping = None
            return b""
        return inner[0] if len(inner) == 1 else b"".join(inner)

    def send(self, data: bytes) -> bytes:
        """As in Layer: one binary frame."""
        if self._is_closing or self.is_closed or not data:
            return b""
        return _encode_frame(_BINARY, data)

    def take_output(self) -> bytes:
        """As in Layer: the HTTP response, the last pong, or a close frame."""
        output, self._output = self._output, b""
        if self._ping is not None:
            output += _encode_frame(_PONG, self._ping)
            self._ping = None
        return output

    def work(self) -> None:
        """As in Layer: there is none."""

    def close(self, *, is_shutdown: bool = False) -> bytes:
        """As in Layer: a close frame, after the handshake.

        The client answers with a close frame, after which `is_closed` is True.
        """
        if self._is_closing or self.is_closed:
            return b""
        self._is_closing = True
        if not self.is_established:
            self._beginning = b""
            return b""
        code = CloseCode.GOING_AWAY if is_shutdown else CloseCode.NORMAL_CLOSURE
        return self.take_output() + _encode_frame(_CLOSE, Close(code, "").serialize())

    def _open(self, data: bytes) -> bytes:
        """Read the request. Returns what follows its head."""
        head = self._beginning + data
        if not head:
            return b""
        self._beginning = b""
        self._check_first_bytes(head)
        end = head.find(HEAD_END, 0, self._rules.maximum_head)
        if end < 0:
            if len(head) >= self._rules.maximum_head:
                self._refuse(WebSocketHandshake(self._rules).refuse_length())
            self._beginning = head
            return b""
        end += len(HEAD_END)
        answer = WebSocketHandshake(self._rules).answer(head[:end])
        if isinstance(answer, RefusedRequest):
            self._refuse(answer)
        else:
            self._output = answer
            self.is_established = True
        return head[end:]

    def _check_first_bytes(self, head: bytes) -> None:
        """Fail at once for what is not HTTP, instead of waiting for the end of its head."""
        what = describe_first_bytes(head)
        # The method of a request has uppercase letters.
        if what not in (None, _HTTP) or not head[:1].isupper():
            raise LayerFailed(
                "this port expects a WebSocket handshake; the client sent "
                f"{describe_any_bytes(head)}"
            )

    def _refuse(self, refused: RefusedRequest) -> None:
        self._output = refused.response
        raise LayerFailed(refused.sentence)

    def _split(self, data: bytes, inner: list[bytes]) -> None:
        """Split bytes into frames; add the payloads of data frames to `inner`.

        Raises LayerFailed, with these payloads.
        """
        at = 0
        if self._left:
            at = min(self._left, len(data))
            self._add_piece(data[:at], inner)
        elif self._beginning:
            data = self._beginning + data
            self._beginning = b""
        size = len(data)
        limit = self._rules.maximum_frame
        while size - at >= 2:
            first, second = data[at], data[at + 1]
            is_data = first == _WHOLE_BINARY and second >= _MASKED and not self._in_message
            if not is_data:
                self._check_header(first, second, inner)
            length = second & 0x7F
            body = at + 6
            if length == 126:
                body = at + 8
                length = int.from_bytes(data[at + 2 : at + 4], "big")
            elif length == 127:
                body = at + 14
                length = int.from_bytes(data[at + 2 : at + 10], "big")
            if body > size:
                break
            if first & _CLOSE:
                if body + length > size:
                    break
                payload = apply_mask(data[body : body + length], data[body - 4 : body])
                at = body + length
                if not self._process_control(first & 0x0F, payload, inner):
                    return
                continue
            if length > limit:
                self._fail(
                    CloseCode.MESSAGE_TOO_BIG,
                    f"a frame of {length} bytes; at most {limit} are accepted",
                    inner,
                )
            self._in_message = not first & _FIN
            mask = data[body - 4 : body]
            at = body + length
            if at > size:
                self._left = length
                self._mask = mask
                self._add_piece(data[body:], inner)
                return
            if length:
                inner.append(apply_mask(data[body:at], mask))
        self._beginning = data[at:]

    def _add_piece(self, piece: bytes, inner: list[bytes]) -> None:
        """Unmask a part of a payload."""
        if piece:
            inner.append(apply_mask(piece, self._mask))
            self._left -= len(piece)
            turn = len(piece) % 4
            self._mask = self._mask[turn:] + self._mask[:turn]

    def _check_header(self, first: int, second: int, inner: list[bytes]) -> None:
        """Check the first two bytes of a frame that is not the most frequent one."""
        opcode = first & 0x0F
        if opcode == _TEXT:
            self._fail(CloseCode.UNSUPPORTED_DATA, f"a text frame; {_BINARY_ONLY}", inner)
        why = ""
        if first & _RESERVED:
            why = "a frame with reserved bits, such as those of compression"
        elif opcode not in (_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG):
            why = f"a frame with the unknown opcode {opcode}"
        elif second < _MASKED:
            why = "a frame that is not masked"
        elif opcode >= _CLOSE:
            if not first & _FIN:
                why = "a control frame in fragments"
            elif second & 0x7F > _MAXIMUM_CONTROL_PAYLOAD:
                why = f"a control frame of more than {_MAXIMUM_CONTROL_PAYLOAD} bytes"
        elif opcode == _BINARY and self._in_message:
            why = "a new message before the end of the last one"
        elif opcode == _CONTINUATION and not self._in_message:
            why = "the continuation of a message that has not begun"
        if why:
            self._fail(CloseCode.PROTOCOL_ERROR, why, inner)

    def _process_control(self, opcode: int, payload: bytes, inner: list[bytes]) -> bool:
        """Process a control frame. Returns whether more frames may follow."""
        if opcode == _PING:
            self._ping = payload
            return True
        if opcode == _PONG:
            return True
        try:
            Close.parse(payload)
        except (ProtocolError, UnicodeDecodeError):
            self._fail(CloseCode.PROTOCOL_ERROR, "a close frame that is malformed", inner)
        self.is_closed = True
        self._ping = None
        self._output += _encode_frame(_CLOSE, payload[:2])
        return False

    def _fail(self, code: int, what: str, inner: list[bytes]) -> None:
        """Close with this code. Raises LayerFailed."""
        self._ping = None
        self._output += _encode_frame(_CLOSE, Close(code, what).serialize())
        raise LayerFailed(f"WebSocket: the client sent {what}", b"".join(inner))


def _encode_frame(opcode: int, payload: bytes) -> bytes:
    """A frame with the whole payload."""
    first = _FIN | opcode
    length = len(payload)
    if length <= _MAXIMUM_CONTROL_PAYLOAD:
        return bytes((first, length)) + payload
    if length < 1 << 16:
        return bytes((first, 126)) + length.to_bytes(2, "big") + payload
    return bytes((first, 127)) + length.to_bytes(8, "big") + payload
