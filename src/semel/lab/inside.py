"""A client inside the process of the broker: no socket, the same server, the same rules.

It speaks through a `MemoryTransport`, so that to the broker it is a connection like any other.
The test publishes and listens by it, and takes over client identifiers.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from semel.broker.server import Peer, Server
from semel.mqtt import (
    LARGEST_PACKET,
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Violation,
    encode,
)
from semel.mqtt.reasons import FAILURE, SUCCESS

# What an Authority is told of where such a client connects from: no address of a network.
PEER_NAME: Final = "the test"
PEER: Final = f"{PEER_NAME}:0"

# New messages only, whatever is retained.
NO_RETAINED: Final = 2


class MemoryTransport(asyncio.Transport):
    """What the server writes to, and closes."""

    def __init__(self, insider: "Insider") -> None:
        super().__init__({"peername": (PEER_NAME, 0)})
        self._insider = insider
        self._is_closing = False
        # Whom the server has to hear of its end.
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._insider.receive(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._insider.server.loop.call_soon(self._insider.lost)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """It says so little that nobody need be spared."""

    def resume_reading(self) -> None:
        """It says so little that nobody need be spared."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It reads at once."""

    def get_write_buffer_size(self) -> int:
        return 0


class NotTaken(Exception):
    """The broker did not do what the test asked of it; the text says what it answered."""


class Insider:
    """One connection. `on_message`, if any, is given what it subscribed to; without it, messages
    are left unanswered, so that they stay for the next connection of the session."""

    def __init__(self, server: Server, on_message: Callable[[Publish], None] | None = None) -> None:
        self.server = server
        self.on_message = on_message
        self.reason = SUCCESS
        self._decoder = Decoder(MQTT5)
        self._replies: list[Packet] = []
        # What the broker owes: CONNACK by 0, other answers by their packet identifier.
        self._owed: dict[int, asyncio.Future[Packet]] = {}
        self._next_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._peer = Peer(server)
        self.line = MemoryTransport(self)
        self.line.set_protocol(self._peer)
        self._peer.connection_made(self.line)
        # As the broker has it. Bounds for what clients send are not about the test's own packets.
        self.connection = self._peer.connection
        assert self.connection is not None
        self.connection.decoder.before_connect = 0
        self.connection.decoder.maximum_packet_size = LARGEST_PACKET

    # --- to the broker ----------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        if not self.line.is_closing():
            self._peer.data_received(encode(packet, MQTT5))

    def _check_open(self) -> None:
        if self.line.is_closing():
            raise NotTaken(f"the broker closed the test's connection: 0x{self.reason:02x}")

    async def _ask(self, number: int, packet: Packet) -> Packet:
        """Send a packet, and await its answer. Raises NotTaken if none can come."""
        self._check_open()
        answer: asyncio.Future[Packet] = self.server.loop.create_future()
        self._owed[number] = answer
        self._send(packet)
        return await answer

    async def connect(
        self, client_id: str, *, clean_start: bool = True, expiry_interval: int = 0
    ) -> ConnAck:
        """Raises NotTaken."""
        kept = Properties(session_expiry_interval=expiry_interval or None)
        connect = Connect(client_id, clean_start=clean_start, keep_alive=0, properties=kept)
        answer = await self._ask(0, connect)
        assert isinstance(answer, ConnAck)
        if answer.reason != SUCCESS:
            why = answer.properties.reason_string or ""
            raise NotTaken(
                f"the broker refuses a connection of the test as {client_id!r}:"
                f" 0x{answer.reason:02x} {why}".rstrip()
            )
        self._beat(answer.properties.server_keep_alive or 0)
        return answer

    def _beat(self, keep_alive: int) -> None:
        """Be heard often enough, if the broker insists on it."""
        if keep_alive and not self.line.is_closing():
            self._timer = self.server.loop.call_later(keep_alive / 2, self._beat, keep_alive)
            self._send(PingReq())

    async def subscribe(self, topic_filter: str) -> None:
        """All messages but its own, as they were published. Raises NotTaken."""
        wanted = Subscription(
            topic_filter, 2, no_local=True, retain_as_published=True, retain_handling=NO_RETAINED
        )
        answer = await self._ask(self._new_id(), Subscribe(self._next_id, [wanted]))
        assert isinstance(answer, SubAck)
        if answer.reasons[0] >= FAILURE:
            code = f"0x{answer.reasons[0]:02x}"
            raise NotTaken(f"the broker refuses the test's subscription to {topic_filter}: {code}")

    def _new_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    async def publish(
        self, topic_name: str, payload: bytes, qos: int, *, retain: bool, properties: Properties
    ) -> None:
        """Until the broker has it. Raises NotTaken, and Violation if there is no such message."""
        packet_id = self._new_id() if qos else 0
        packet = Publish(topic_name, payload, qos, packet_id, retain=retain, properties=properties)
        if not qos:
            self._check_open()
            self._send(packet)
            return
        answer = await self._ask(packet_id, packet)
        if isinstance(answer, PubRec) and answer.reason < FAILURE:
            answer = await self._ask(packet_id, PubRel(packet_id))
        assert isinstance(answer, PubAck | PubRec | PubComp)
        if answer.reason >= FAILURE:
            code = f"0x{answer.reason:02x}"
            raise NotTaken(f"the broker refuses the message to {topic_name}: {code}")

    async def close(self) -> None:
        """Leave, as one should."""
        self._send(Disconnect())
        self.line.close()
        await self._closed.wait()

    # --- from the broker --------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The broker has written."""
        for packet in self._decoder.receive(data):
            assert not isinstance(packet, Violation), packet
            self._handle(packet)
        if self._replies:
            # Not now: the server is in the middle of writing.
            self.server.loop.call_soon(self._reply)

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if self.on_message is not None:
                self._take(packet, self.on_message)
        elif isinstance(packet, PubRel):
            self._replies.append(PubComp(packet.packet_id))
        elif isinstance(packet, Disconnect):
            self.reason = packet.reason
        elif isinstance(packet, ConnAck):
            self._answered(0, packet)
        elif isinstance(packet, PubAck | PubRec | PubComp | SubAck):
            self._answered(packet.packet_id, packet)
        else:
            assert isinstance(packet, PingResp)

    def _take(self, packet: Publish, on_message: Callable[[Publish], None]) -> None:
        if packet.qos == 1:
            self._replies.append(PubAck(packet.packet_id))
        elif packet.qos == 2:
            self._replies.append(PubRec(packet.packet_id))
        on_message(packet)

    def _answered(self, number: int, packet: Packet) -> None:
        answer = self._owed.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(packet)

    def _reply(self) -> None:
        replies, self._replies = self._replies, []
        for packet in replies:
            self._send(packet)

    def lost(self) -> None:
        """The connection is over, whoever ended it."""
        if self._timer is not None:
            self._timer.cancel()
        owed, self._owed = self._owed, {}
        for answer in owed.values():
            if not answer.done():
                code = f"0x{self.reason:02x}"
                answer.set_exception(NotTaken(f"the broker closed the test's connection: {code}"))
        self.line.get_protocol().connection_lost(None)
        self._closed.set()
