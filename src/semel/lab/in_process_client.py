"""A client in the process of the broker, without a socket.

It uses a `MemoryTransport`, so that the broker treats it like any other connection. The test uses
it to publish, to receive messages, and to take over client identifiers.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from semel.broker.network.peers import Peer
from semel.broker.network.server import Server
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

# The peer name that an Authority gets for such a client: not a network address.
PEER_NAME: Final = "the test"
PEER: Final = f"{PEER_NAME}:0"

# Retain Handling: do not send retained messages.
NO_RETAINED: Final = 2


class MemoryTransport(asyncio.Transport):
    """The transport that the server writes to and closes."""

    def __init__(self, client: "InProcessClient") -> None:
        super().__init__({"peername": (PEER_NAME, 0)})
        self._client = client
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._client.receive(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._client.server.loop.call_soon(self._client.connection_lost)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Not needed: the test sends little."""

    def resume_reading(self) -> None:
        """Not needed: the test sends little."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no write buffer."""

    def get_write_buffer_size(self) -> int:
        return 0


class RequestFailed(Exception):
    """The broker refused a request of the test; the text has its answer."""


class InProcessClient:
    """One connection. `on_message` gets the messages of its subscriptions.

    Without it, messages are not acknowledged, and stay for the session's next connection.
    """

    def __init__(self, server: Server, on_message: Callable[[Publish], None] | None = None) -> None:
        self.server = server
        self.on_message = on_message
        self.reason = SUCCESS
        self._decoder = Decoder(MQTT5)
        self._replies: list[Packet] = []
        # Responses that are awaited: CONNACK as 0, others by packet identifier.
        self._pending: dict[int, asyncio.Future[Packet]] = {}
        self._next_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._peer = Peer(server.peers)
        self.transport = MemoryTransport(self)
        self._peer.connection_made(self.transport)
        # The broker's side. Its limits for clients do not apply to the test's own packets.
        self.connection = self._peer.connection
        assert self.connection is not None
        self.connection.decoder.before_connect = 0
        self.connection.decoder.maximum_packet_size = LARGEST_PACKET

    # --- to the broker ----------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        if not self.transport.is_closing():
            self._peer.data_received(encode(packet, MQTT5))

    def _check_open(self) -> None:
        if self.transport.is_closing():
            raise RequestFailed(f"the broker closed the test's connection: 0x{self.reason:02x}")

    async def _request(self, number: int, packet: Packet) -> Packet:
        """Send a packet and await its response. Raises RequestFailed if the connection closes."""
        self._check_open()
        answer: asyncio.Future[Packet] = self.server.loop.create_future()
        self._pending[number] = answer
        self._send(packet)
        return await answer

    async def connect(
        self, client_id: str, *, clean_start: bool = True, expiry_interval: int = 0
    ) -> ConnAck:
        """Connect. Raises RequestFailed if the broker refuses."""
        kept = Properties(session_expiry_interval=expiry_interval or None)
        connect = Connect(client_id, clean_start=clean_start, keep_alive=0, properties=kept)
        answer = await self._request(0, connect)
        assert isinstance(answer, ConnAck)
        if answer.reason != SUCCESS:
            why = answer.properties.reason_string or ""
            raise RequestFailed(
                f"the broker refused the test's connection as {client_id!r}:"
                f" 0x{answer.reason:02x} {why}".rstrip()
            )
        self._ping_periodically(answer.properties.server_keep_alive or 0)
        return answer

    def _ping_periodically(self, keep_alive: int) -> None:
        """Send PINGREQ often enough for the server's keep alive, if it has one."""
        if keep_alive and not self.transport.is_closing():
            self._timer = self.server.loop.call_later(
                keep_alive / 2, self._ping_periodically, keep_alive
            )
            self._send(PingReq())

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe to all messages except its own. Raises RequestFailed."""
        subscription = Subscription(
            topic_filter, 2, no_local=True, retain_as_published=True, retain_handling=NO_RETAINED
        )
        answer = await self._request(self._new_id(), Subscribe(self._next_id, [subscription]))
        assert isinstance(answer, SubAck)
        if answer.reasons[0] >= FAILURE:
            code = f"0x{answer.reasons[0]:02x}"
            raise RequestFailed(
                f"the broker refused the test's subscription to {topic_filter}: {code}"
            )

    def _new_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    async def publish(
        self, topic_name: str, payload: bytes, qos: int, *, retain: bool, properties: Properties
    ) -> None:
        """Publish, and await the acknowledgement. Raises RequestFailed and Violation."""
        packet_id = self._new_id() if qos else 0
        packet = Publish(topic_name, payload, qos, packet_id, retain=retain, properties=properties)
        if not qos:
            self._check_open()
            self._send(packet)
            return
        answer = await self._request(packet_id, packet)
        if isinstance(answer, PubRec) and answer.reason < FAILURE:
            answer = await self._request(packet_id, PubRel(packet_id))
        assert isinstance(answer, PubAck | PubRec | PubComp)
        if answer.reason >= FAILURE:
            code = f"0x{answer.reason:02x}"
            raise RequestFailed(f"the broker refused the message to {topic_name}: {code}")

    async def close(self) -> None:
        """Disconnect, and wait until the connection is closed."""
        self._send(Disconnect())
        self.transport.close()
        await self._closed.wait()

    # --- from the broker --------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the broker."""
        for packet in self._decoder.receive(data):
            assert not isinstance(packet, Violation), packet
            self._handle(packet)
        if self._replies:
            # Not now: this is called from within the server's write.
            self.server.loop.call_soon(self._reply)

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if self.on_message is not None:
                self._deliver(packet, self.on_message)
        elif isinstance(packet, PubRel):
            self._replies.append(PubComp(packet.packet_id))
        elif isinstance(packet, Disconnect):
            self.reason = packet.reason
        elif isinstance(packet, ConnAck):
            self._resolve(0, packet)
        elif isinstance(packet, PubAck | PubRec | PubComp | SubAck):
            self._resolve(packet.packet_id, packet)
        else:
            assert isinstance(packet, PingResp)

    def _deliver(self, packet: Publish, on_message: Callable[[Publish], None]) -> None:
        if packet.qos == 1:
            self._replies.append(PubAck(packet.packet_id))
        elif packet.qos == 2:
            self._replies.append(PubRec(packet.packet_id))
        on_message(packet)

    def _resolve(self, number: int, packet: Packet) -> None:
        answer = self._pending.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(packet)

    def _reply(self) -> None:
        replies, self._replies = self._replies, []
        for packet in replies:
            self._send(packet)

    def connection_lost(self) -> None:
        """Clean up after either side has closed the connection."""
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                code = f"0x{self.reason:02x}"
                answer.set_exception(
                    RequestFailed(f"the broker closed the test's connection: {code}")
                )
        self._peer.connection_lost(None)
        self._closed.set()
