"""MQTT inside WebSocket (section 6 of both standards), through the package `websockets`.

That package speaks WebSocket without doing I/O; a Stream carries its bytes. What MQTT asks for:

- the sub-protocol "mqtt" is offered, and the server has to select it;
- MQTT is in binary frames only, and any other data frame ends the connection;
- packets do not begin or end with frames: what a frame holds is passed on as bytes.

A fragment is passed on when it is complete, not when its message is; a message is no longer than
the largest MQTT packet. Nothing is compressed. Pings are answered; of several that come at once, or
while the server does not read, only the last one (RFC 6455, 5.5.3), so that no answers pile up.
"""

import asyncio
import ssl
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidMessage
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from semel.client.address import Address
from semel.client.transport import (
    CLOSE_SECONDS,
    CannotConnect,
    Gate,
    StreamTransport,
    TransportListener,
    open_stream,
)
from semel.mqtt.wire import MAXIMUM_VARIABLE_BYTE_INTEGER

SUBPROTOCOL: Final = Subprotocol("mqtt")
# The largest MQTT packet: its first byte, the four of its length, and the rest.
MAXIMUM_MESSAGE: Final = 1 + 4 + MAXIMUM_VARIABLE_BYTE_INTEGER
# With these the server closes in order; the third stands for a close frame without a code.
IN_ORDER: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)

CLOSED_EARLY: Final = "the server closed the connection in the handshake"


async def open_websocket(
    address: Address,
    listener: TransportListener,
    tls: ssl.SSLContext | None,
    local_host: str | None = None,
) -> "WebSocket":
    """A WebSocket after its handshake, which tells its listener from the next turn of the loop.

    Raises CannotConnect if the handshake fails, and OSError if not even the connection is made.
    """
    loop = asyncio.get_running_loop()
    gate = Gate(listener)
    opened = WebSocket(address, gate, loop)
    stream = await open_stream(address, opened, tls, local_host)
    try:
        await opened.shake_hands(stream)
    except BaseException:
        stream.abort()
        # The turn of the loop in which asyncio closes the socket.
        await asyncio.sleep(0)
        raise
    loop.call_soon(gate.open)
    return opened


class WebSocket:
    """A Transport whose bytes are in the frames of another, whose Listener it is."""

    def __init__(self, address: Address, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = address.where
        self._address = address
        self._gate = gate
        self._loop = loop
        self._stream: StreamTransport | None = None
        # The zone of an IPv6 address is a matter of this machine.
        host = address.host.partition("%")[0]
        uri = WebSocketURI(address.secure, host, address.port, address.path, query="")
        # [MQTT-6.0.0-3]; without extensions there is no compression.
        self._protocol = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=MAXIMUM_MESSAGE)
        # Done when the handshake is: None, or why it failed.
        self._refusal: asyncio.Future[str | None] = loop.create_future()
        self._closing = False
        # Nothing that still comes counts.
        self._ended = False
        # Why we end it, which is what the listener is told then.
        self._why: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable = True
        # The answer to a ping that came while nothing could be written.
        self._pong = b""

    async def shake_hands(self, stream: StreamTransport) -> None:
        """Ask the server for WebSocket. Raises CannotConnect if it does not agree."""
        self._stream = stream
        self.peer = stream.peer
        self._protocol.send_request(self._protocol.connect())
        self._send()
        refusal = await self._refusal
        if refusal is not None:
            raise CannotConnect(f"cannot connect to {self._address}: WebSocket: {refusal}")

    # What the Stream calls.

    def received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._answer()
        events = self._protocol.events_received()
        if not self._refusal.done():
            self._examine_handshake(events)
        for event in events:
            if isinstance(event, Frame):
                self._take(event)
        if self._protocol.parser_exc is not None:
            self._end(f"WebSocket: {printable(str(self._protocol.parser_exc))}")

    def writable(self, writable: bool) -> None:
        self._writable = writable
        if writable and self._pong:
            pong, self._pong = self._pong, b""
            self._write(pong)
        self._gate.writable(writable)

    def lost(self, why: str | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._closing = True
        if not self._refusal.done():
            # The body of an answer may end with the connection.
            self._protocol.receive_eof()
            self._examine_handshake(self._protocol.events_received(), why or CLOSED_EARLY)
        self._gate.lost(why if self._why is None else self._why)

    # What the owner calls.

    def write(self, data: bytes) -> None:
        if not self._closing and self._protocol.state is OPEN:
            self._protocol.send_binary(data)
            self._send()

    def close(self) -> None:
        if self._closing:
            return
        self._gate.shut()
        self._closing = True
        assert self._stream is not None
        if self._protocol.state is not OPEN:
            self._stream.close()
            return
        self._stream.resume_reading()
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._send()
        # The server answers with a close frame of its own, and then we close.
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._stream.give_up)

    def abort(self) -> None:
        self._gate.shut()
        self._closing = True
        assert self._stream is not None
        self._stream.abort()

    def pause_reading(self) -> None:
        """As in Transport. While it lasts, no ping is answered either."""
        if not self._closing:
            assert self._stream is not None
            self._stream.pause_reading()

    def resume_reading(self) -> None:
        if not self._closing:
            assert self._stream is not None
            self._stream.resume_reading()

    # What is between the two.

    def _examine_handshake(self, events: Sequence[object], lost: str = "") -> None:
        """See whether the handshake is over, which it is when the connection is lost."""
        response = next((event for event in events if isinstance(event, Response)), None)
        problem = self._protocol.handshake_exc
        if response is not None and response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            selected = response.headers.get_all("Sec-WebSocket-Protocol")
            if selected != [SUBPROTOCOL]:
                but = f", but {printable(', '.join(selected))}" if selected else ""
                why = f'the server did not select the sub-protocol "mqtt" [MQTT-6.0.0-4]{but}'
                self._refusal.set_result(why)
                return
        if problem is None:
            if response is not None:
                self._refusal.set_result(None)
            return
        if response is not None and response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            why = f"the server answered HTTP {response.status_code}"
        elif lost:
            why = lost
        elif isinstance(problem, InvalidMessage):
            why = f"the answer is not HTTP: {printable(str(problem.__cause__))}"
        else:
            why = printable(str(problem))
        self._refusal.set_result(why)

    def _take(self, frame: Frame) -> None:
        if self._ended:
            return
        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            # [MQTT-6.0.0-2]
            if frame.data:
                self._gate.received(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            rule = "MQTT is in binary frames only [MQTT-6.0.0-1]"
            if not self._closing and self._protocol.state is OPEN:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, rule)
                self._send()
            self._end(f"WebSocket: the server sent a text frame; {rule}")
        elif frame.opcode is Opcode.CLOSE:
            close_frame = self._protocol.close_rcvd
            in_order = close_frame is None or close_frame.code in IN_ORDER
            self._end(
                None if in_order else f"WebSocket: the server closed: {printable(str(close_frame))}"
            )

    def _end(self, why: str | None) -> None:
        """Close what carries us. `why` counts unless it was our own wish to close."""
        if not self._closing:
            self._why = why
        self._closing = True
        self._ended = True
        assert self._stream is not None
        self._stream.close()

    def _answer(self) -> None:
        """Send what WebSocket has to answer: the last pong, or the close frame."""
        answers = [data for data in self._protocol.data_to_send() if data]
        if not answers:
            return
        if self._writable or self._protocol.state is not OPEN:
            self._write(answers[-1])
        else:
            self._pong = answers[-1]

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            self._write(data)

    def _write(self, data: bytes) -> None:
        assert self._stream is not None
        self._stream.write(data)


def printable(text: str) -> str:
    """What a server may have chosen, fit for one line of a terminal."""
    return "".join(one if one.isprintable() else "�" for one in text)
