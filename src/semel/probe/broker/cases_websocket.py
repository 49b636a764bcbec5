"""Cases: MQTT over WebSocket [6], with frames that this module writes itself.

The transport of a ProbeLink writes right binary frames only. A RawSocket writes any frames, and
reads those of the broker one by one.
"""

import asyncio
import base64
import os
from typing import Final

from semel.client.tls import make_context
from semel.mqtt.packet_types import CONNACK, PINGRESP
from semel.probe import wire
from semel.probe.broker.case import WEBSOCKET, Case
from semel.probe.broker.trial import CONNECT_SECONDS, Trial
from semel.probe.claims import ControlFailed
from semel.probe.evidence import CLOSED_BY_EXAMINER, CLOSED_BY_SUBJECT, OPENED, RECEIVED, SENT
from semel.probe.meaning import describe
from semel.probe.verdicts import RECEIVE, SEND

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
DATA: Final = (CONTINUATION, TEXT, BINARY)
KIND: Final = {0: "continuation", 1: "text", 2: "binary", 8: "close", 9: "ping", 10: "pong"}


class RawSocket:
    """A WebSocket connection, frame by frame. `opcodes` are those of the broker's data frames."""

    def __init__(
        self, trial: Trial, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.trial = trial
        self.is_closed = False
        self.subprotocol = ""
        self.opcodes: set[int] = set()
        self._number = 1 + max((event.link for event in trial.recorder.events), default=0)
        self._reader = reader
        self._writer = writer
        self._unread = b""
        trial.closers.append(writer.close)

    async def shake_hands(self, protocols: str) -> str:
        """Do the handshake; returns the status line of the answer."""
        address = self.trial.subject.address
        key = base64.b64encode(os.urandom(16)).decode()
        host = f"[{address.host}]" if ":" in address.host else address.host
        request = (
            f"GET {address.path or '/'} HTTP/1.1\r\nHost: {host}:{address.port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {protocols}\r\n\r\n"
        ).encode()
        self._record(OPENED, b"", f"connected to {address.where}")
        self._record(SENT, request, "the WebSocket handshake")
        self._writer.write(request)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        self._record(RECEIVED, answer, "the answer to the handshake")
        lines = answer.decode("latin-1").split("\r\n")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            if name.strip().lower() == "sec-websocket-protocol":
                self.subprotocol = value.strip()
        return lines[0]

    async def send(
        self, payload: bytes, *, opcode: int = BINARY, is_last: bool = True, meaning: str = ""
    ) -> None:
        """Send one masked frame."""
        size = len(payload)
        head = bytes([opcode | is_last << 7])
        if size < 126:
            head += bytes([0x80 | size])
        else:
            head += bytes([0x80 | 126]) + wire.two(size)
        mask = os.urandom(4)
        data = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        end = "" if is_last else ", to be continued"
        content = meaning or (describe(payload, self.trial.version) if payload else "empty")
        self._record(SENT, head + mask + data, f"{KIND[opcode]} frame{end}: {content}")
        try:
            self._writer.write(head + mask + data)
            await self._writer.drain()
        except OSError:
            # What the broker does is seen when it is read.
            pass

    async def packet(self) -> bytes | None:
        """The next MQTT packet; None if the connection ends or none comes within the timeout."""
        try:
            async with asyncio.timeout(self.trial.timeout):
                while not self.is_closed:
                    found = self._whole_packet()
                    if found is not None:
                        return found
                    await self._take_frame()
        except TimeoutError:
            pass
        return None

    async def wait_closed(self) -> bool:
        """Whether the broker closes within the timeout; what it sends before is kept."""
        try:
            async with asyncio.timeout(self.trial.timeout):
                while not self.is_closed:
                    await self._take_frame()
        except TimeoutError:
            pass
        return self.is_closed

    def close(self) -> None:
        if not self._writer.is_closing():
            self._record(CLOSED_BY_EXAMINER, b"", "closed")
            self._writer.close()

    def _whole_packet(self) -> bytes | None:
        """The first packet of the bytes that frames have brought so far, which is short."""
        if len(self._unread) < 2 or len(self._unread) < 2 + self._unread[1]:
            return None
        end = 2 + self._unread[1]
        found, self._unread = self._unread[:end], self._unread[end:]
        return found

    async def _take_frame(self) -> None:
        try:
            head = await self._reader.readexactly(2)
            size = head[1] & 0x7F
            if size == 126:
                size = int.from_bytes(await self._reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self._reader.readexactly(8), "big")
            payload = await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            self.is_closed = True
            self._record(CLOSED_BY_SUBJECT, b"", "closed")
            return
        opcode = head[0] & 0x0F
        kind = KIND.get(opcode, str(opcode))
        content = describe(payload, self.trial.version) if payload and opcode in DATA else "control"
        self._record(RECEIVED, payload, f"{kind} frame: {content}")
        if opcode in DATA:
            self.opcodes.add(opcode)
            self._unread += payload
        elif opcode == PING:
            await self.send(payload, opcode=PONG, meaning="the answer")
        elif opcode == CLOSE:
            self.is_closed = True
            self._record(CLOSED_BY_SUBJECT, payload, "closed by a close frame")

    def _record(self, kind: str, data: bytes, meaning: str) -> None:
        self.trial.recorder.record(self._number, kind, data, meaning)


async def _open(trial: Trial, protocols: str = "mqtt") -> RawSocket:
    """A WebSocket after its handshake. Raises ControlFailed."""
    address = trial.subject.address
    tls = trial.subject.tls
    if address.secure and tls is None:
        tls = make_context()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                address.host,
                address.port,
                ssl=tls,
                server_hostname=address.host if tls is not None else None,
            )
            opened = RawSocket(trial, reader, writer)
            status = await opened.shake_hands(protocols)
    except (OSError, asyncio.IncompleteReadError) as problem:
        raise ControlFailed(f"the WebSocket handshake failed: {problem}") from None
    if " 101 " not in f"{status} ":
        opened.close()
        raise ControlFailed(f"the broker answered the WebSocket handshake with {status}")
    return opened


async def _must_answer(trial: Trial, opened: RawSocket, packet_type: int, why: str) -> None:
    packet = await opened.packet()
    if packet is None:
        trial.refute(f"the broker did not answer {why}")
    trial.must(packet[0] >> 4 == packet_type, f"the broker answered with another packet {why}")
    if packet_type == CONNACK:
        trial.must(packet[3] == 0, f"the broker refused the CONNECT {why}")


async def _connect(trial: Trial) -> RawSocket:
    """A WebSocket on which a CONNECT was accepted, as a step that prepares the case."""
    opened = await _open(trial)
    await opened.send(trial.connect_bytes())
    packet = await opened.packet()
    if packet is None or packet[0] >> 4 != CONNACK or packet[3]:
        raise ControlFailed("a CONNECT in one binary frame was not accepted")
    return opened


# --- binary frames only ---------------------------------------------------------------------------


async def text_frame_with_connect_closes(trial: Trial) -> None:
    with trial.control():
        (await _connect(trial)).close()
    opened = await _open(trial)
    await opened.send(trial.connect_bytes(), opcode=TEXT)
    closed = await opened.wait_closed()
    trial.must(not opened.opcodes, "the broker answered a CONNECT in a text frame")
    trial.must(closed, "the broker did not close the connection for a text frame")


async def text_frame_after_connect_closes(trial: Trial) -> None:
    topic = trial.topic()
    watcher = await trial.connect("w")
    await trial.subscribe(watcher, (topic, 0))
    opened = await _connect(trial)
    with trial.control():
        await opened.send(wire.publish(trial.version, topic, b"binary"))
        await trial.must_receive_message(watcher)
    await opened.send(wire.publish(trial.version, topic, b"text"), opcode=TEXT)
    trial.must(await opened.wait_closed(), "the broker did not close for a text frame")
    publisher = await trial.connect("p")
    found = await trial.messages_until(watcher, topic, publisher)
    trial.must(not found, "the broker delivered a message that came in a text frame")


async def broker_sends_binary_frames(trial: Trial) -> None:
    opened = await _connect(trial)
    for _ in range(3):
        await opened.send(wire.pingreq())
        await _must_answer(trial, opened, PINGRESP, "to a PINGREQ")
    opened.close()
    trial.must(TEXT not in opened.opcodes, "the broker sent a text frame")


# --- packets are not aligned with frames ----------------------------------------------------------


async def packet_split_over_frames_is_accepted(trial: Trial) -> None:
    with trial.control():
        (await _connect(trial)).close()
    opened = await _open(trial)
    for byte in trial.connect_bytes():
        await opened.send(bytes([byte]), meaning="one byte of a CONNECT")
    await _must_answer(trial, opened, CONNACK, "to a CONNECT of one byte per frame")
    await opened.send(wire.pingreq()[:1], meaning="the first byte of a PINGREQ")
    await opened.send(wire.pingreq()[1:], meaning="the second byte of a PINGREQ")
    await _must_answer(trial, opened, PINGRESP, "to a PINGREQ in two frames")
    opened.close()


async def packets_in_one_frame_are_accepted(trial: Trial) -> None:
    with trial.control():
        (await _connect(trial)).close()
    opened = await _open(trial)
    await opened.send(trial.connect_bytes() + wire.pingreq() * 2)
    await _must_answer(trial, opened, CONNACK, "to a CONNECT with two PINGREQs in its frame")
    for _ in range(2):
        await _must_answer(trial, opened, PINGRESP, "to each PINGREQ in one frame")
    opened.close()


async def packets_across_frames_are_accepted(trial: Trial) -> None:
    """A frame ends in the middle of a packet, and the next one begins there."""
    opened = await _connect(trial)
    data = wire.pingreq() * 3
    await opened.send(data[:3], meaning="a PINGREQ and a half")
    await opened.send(data[3:], meaning="a half and a PINGREQ")
    for _ in range(3):
        await _must_answer(trial, opened, PINGRESP, "to PINGREQs across frames")
    opened.close()


async def fragmented_message_is_accepted(trial: Trial) -> None:
    with trial.control():
        (await _connect(trial)).close()
    opened = await _open(trial)
    data = trial.connect_bytes() + wire.pingreq()
    await opened.send(data[:5], is_last=False, meaning="the beginning of a CONNECT")
    await opened.send(b"between", opcode=PING, meaning="a ping between fragments")
    await opened.send(data[5:9], opcode=CONTINUATION, is_last=False, meaning="more of it")
    await opened.send(data[9:], opcode=CONTINUATION, meaning="its end and a PINGREQ")
    await _must_answer(trial, opened, CONNACK, "to a CONNECT in fragments")
    await _must_answer(trial, opened, PINGRESP, "to a PINGREQ behind a CONNECT in fragments")
    opened.close()


async def empty_frame_is_accepted(trial: Trial) -> None:
    opened = await _connect(trial)
    await opened.send(b"")
    await opened.send(wire.pingreq()[:1], meaning="the first byte of a PINGREQ")
    await opened.send(b"")
    await opened.send(wire.pingreq()[1:], meaning="the second byte of a PINGREQ")
    await _must_answer(trial, opened, PINGRESP, "to a PINGREQ with an empty frame within")
    opened.close()


# --- the subprotocol ------------------------------------------------------------------------------


async def subprotocol_is_mqtt(trial: Trial) -> None:
    opened = await _open(trial)
    opened.close()
    trial.must(opened.subprotocol == "mqtt", f"the subprotocol is {opened.subprotocol!r}")


async def subprotocol_is_mqtt_among_others(trial: Trial) -> None:
    with trial.control():
        (await _connect(trial)).close()
    for offer in ("semel-probe, mqtt", "mqtt, semel-probe"):
        opened = await _open(trial, offer)
        opened.close()
        trial.must(
            opened.subprotocol == "mqtt",
            f"of the subprotocols {offer} the broker selected {opened.subprotocol!r}",
        )


CASES: Final = (
    Case(
        "websocket-text-frame-with-connect",
        RECEIVE,
        "A broker closes the connection for a CONNECT in a text frame.",
        text_frame_with_connect_closes,
        mqtt311="6.0.0-1",
        mqtt5="6.0.0-1",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-text-frame-after-connect",
        RECEIVE,
        "A broker closes the connection for a PUBLISH in a text frame.",
        text_frame_after_connect_closes,
        mqtt311="6.0.0-1",
        mqtt5="6.0.0-1",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-binary-frames",
        SEND,
        "A broker sends its packets in binary frames.",
        broker_sends_binary_frames,
        mqtt311="6.0.0-1",
        mqtt5="6.0.0-1",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-packet-over-frames",
        RECEIVE,
        "A broker accepts packets that are split over frames.",
        packet_split_over_frames_is_accepted,
        mqtt311="6.0.0-2",
        mqtt5="6.0.0-2",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-packets-in-one-frame",
        RECEIVE,
        "A broker accepts several packets in one frame.",
        packets_in_one_frame_are_accepted,
        mqtt311="6.0.0-2",
        mqtt5="6.0.0-2",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-packets-across-frames",
        RECEIVE,
        "A broker accepts frames that begin and end within packets.",
        packets_across_frames_are_accepted,
        mqtt311="6.0.0-2",
        mqtt5="6.0.0-2",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-fragments",
        RECEIVE,
        "A broker accepts packets in fragmented messages, with a ping between the fragments.",
        fragmented_message_is_accepted,
        mqtt311="6.0.0-2",
        mqtt5="6.0.0-2",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-empty-frame",
        RECEIVE,
        "A broker accepts empty binary frames.",
        empty_frame_is_accepted,
        mqtt311="6.0.0-2",
        mqtt5="6.0.0-2",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-subprotocol",
        SEND,
        "A broker selects the subprotocol mqtt.",
        subprotocol_is_mqtt,
        mqtt311="6.0.0-4",
        mqtt5="6.0.0-4",
        needs=WEBSOCKET,
    ),
    Case(
        "websocket-subprotocol-among-others",
        SEND,
        "A broker selects the subprotocol mqtt among others.",
        subprotocol_is_mqtt_among_others,
        mqtt311="6.0.0-4",
        mqtt5="6.0.0-4",
        needs=WEBSOCKET,
    ),
)
