"""MQTT over WebSocket (section 6 of both standards), with the package `websockets`.

That package implements WebSocket without I/O; a StreamTransport carries its bytes. MQTT requires:

- the client offers the subprotocol "mqtt", and the server has to select it;
- MQTT is in binary frames only, and any other data frame ends the connection;
- packets are not aligned with frames: the payload of frames is a stream of bytes.

A fragment is passed on when it is complete, not when its message is. A message is at most as long
as the largest MQTT packet. Nothing is compressed. Of several pings that arrive together, or while
the server does not read, only the last one is answered (RFC 6455, 5.5.3), so that answers do not
accumulate.
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
    ListenerGate,
    StreamTransport,
    TransportListener,
    open_stream,
)
from semel.mqtt.wire import MAXIMUM_VARIABLE_BYTE_INTEGER

SUBPROTOCOL: Final = Subprotocol("mqtt")
# The largest MQTT packet: its first byte, the four of its length, and the rest.
MAXIMUM_MESSAGE: Final = 1 + 4 + MAXIMUM_VARIABLE_BYTE_INTEGER
# The codes of a clean close; the third means a close frame without a code.
IN_ORDER: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)

CLOSED_EARLY: Final = "the server closed the connection during the handshake"


async def open_websocket(
    address: Address,
    listener: TransportListener,
    tls: ssl.SSLContext | None,
    local_host: str | None = None,
) -> "WebSocket":
    """A WebSocket after its handshake; it calls its listener from the next loop iteration on.

    Raises CannotConnect if the handshake fails, and OSError if the connection does.
    """
    loop = asyncio.get_running_loop()
    gate = ListenerGate(listener)
    opened = WebSocket(address, gate, loop)
    stream = await open_stream(address, opened, tls, local_host)
    try:
        await opened.do_handshake(stream)
    except BaseException:
        stream.abort()
        # asyncio closes the socket in the next iteration of the event loop.
        await asyncio.sleep(0)
        raise
    loop.call_soon(gate.open)
    return opened


class WebSocket:
    """A Transport over the frames of a StreamTransport, whose listener it is."""

    def __init__(
        self, address: Address, gate: ListenerGate, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.peer = address.where
        self._address = address
        self._gate = gate
        self._loop = loop
        self._stream: StreamTransport | None = None
        # The zone of an IPv6 address is only valid on this machine.
        host = address.host.partition("%")[0]
        uri = WebSocketURI(address.secure, host, address.port, address.path, query="")
        # [MQTT-6.0.0-3]; without extensions there is no compression.
        self._protocol = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=MAXIMUM_MESSAGE)
        # Done after the handshake: None, or why it failed.
        self._handshake_result: asyncio.Future[str | None] = loop.create_future()
        self._closing = False
        # Whether frames that still arrive are ignored.
        self._ended = False
        # Why we end it, for the listener.
        self._why: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable = True
        # The answer to a ping that arrived while nothing could be written.
        self._pong = b""

    async def do_handshake(self, stream: StreamTransport) -> None:
        """Do the WebSocket handshake. Raises CannotConnect if the server refuses."""
        self._stream = stream
        self.peer = stream.peer
        self._protocol.send_request(self._protocol.connect())
        self._send()
        refusal = await self._handshake_result
        if refusal is not None:
            raise CannotConnect(f"cannot connect to {self._address}: WebSocket: {refusal}")

    # --- called by the StreamTransport ---

    def received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._send_answers()
        events = self._protocol.events_received()
        if not self._handshake_result.done():
            self._check_handshake(events)
        for event in events:
            if isinstance(event, Frame):
                self._process_frame(event)
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
        if not self._handshake_result.done():
            # The body of an HTTP response may end with the connection.
            self._protocol.receive_eof()
            self._check_handshake(self._protocol.events_received(), why or CLOSED_EARLY)
        self._gate.lost(why if self._why is None else self._why)

    # --- called by the owner ---

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
        # The server answers with a close frame, and then we close.
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._stream.give_up)

    def abort(self) -> None:
        self._gate.shut()
        self._closing = True
        assert self._stream is not None
        self._stream.abort()

    def pause_reading(self) -> None:
        """As in Transport. While reading is paused, no ping is answered."""
        if not self._closing:
            assert self._stream is not None
            self._stream.pause_reading()

    def resume_reading(self) -> None:
        if not self._closing:
            assert self._stream is not None
            self._stream.resume_reading()

    # --- between the two ---

    def _check_handshake(self, events: Sequence[object], lost: str = "") -> None:
        """Set the result of the handshake if it is over; `lost` is why the connection closed."""
        response = next((event for event in events if isinstance(event, Response)), None)
        problem = self._protocol.handshake_exc
        if response is not None and response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            selected = response.headers.get_all("Sec-WebSocket-Protocol")
            if selected != [SUBPROTOCOL]:
                but = f", but selected {printable(', '.join(selected))}" if selected else ""
                why = f'the server did not select the subprotocol "mqtt" [MQTT-6.0.0-4]{but}'
                self._handshake_result.set_result(why)
                return
        if problem is None:
            if response is not None:
                self._handshake_result.set_result(None)
            return
        if response is not None and response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            why = f"the server answered HTTP {response.status_code}"
        elif lost:
            why = lost
        elif isinstance(problem, InvalidMessage):
            why = f"the response is not HTTP: {printable(str(problem.__cause__))}"
        else:
            why = printable(str(problem))
        self._handshake_result.set_result(why)

    def _process_frame(self, frame: Frame) -> None:
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
        """Close the stream. `why` is reported unless we were closing already."""
        if not self._closing:
            self._why = why
        self._closing = True
        self._ended = True
        assert self._stream is not None
        self._stream.close()

    def _send_answers(self) -> None:
        """Send the answer that WebSocket requires: the last pong, or the close frame."""
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
    """Text from a server, made safe for one line of a terminal."""
    return "".join(one if one.isprintable() else "�" for one in text)
