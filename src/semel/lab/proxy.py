"""An MQTT proxy in front of a broker: it records packets and injects faults.

    client ── up ──▶ broker        each direction is a Pipe: bytes in, packets inspected, bytes out
    client ◀─ down ── broker       both are a ProxyLink, one per connection of a client

The proxy forwards bytes unchanged and as they arrive, valid or not, whole packets or parts. It
buffers a packet until it is complete only if a fault may apply to it. If framing is lost, the rest
of the connection is forwarded without being recorded.

The record is the client's view: a client's packet is recorded when it arrives, a server's when it
is written to the client. Everything runs in one event loop; see `TestBroker` for other threads.

Memory is bounded: with more than QUEUE_BYTES queued in a pipe the proxy stops reading from its
sender. A packet that is buffered for a fault may have any size that the standard allows.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from semel.broker.admission import refuse_connect
from semel.broker.network.listener_settings import UNIX
from semel.lab.faults import (
    CLOSED,
    CUT_AFTER,
    CUT_BEFORE,
    DROP,
    LOST,
    REFUSE,
    REPEAT,
    STALL,
    Fault,
    Faults,
)
from semel.lab.proxy_front import ProxyFront
from semel.lab.recording import Recording
from semel.mqtt import CLIENT, SERVER, Connect, encode
from semel.mqtt.codec import read_frame
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.mqtt.violation import Violation

HOST: Final = "127.0.0.1"
QUEUE_BYTES: Final = 1024 * 1024
# How long an endpoint may take to read what was sent before a cut, in seconds.
LAST_BYTES_SECONDS: Final = 2.0
# The longest fixed header: type, and four bytes of Remaining Length.
HEADER: Final = 5
# Only Linux has it.
QUICK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


@dataclass
class QueuedBytes:
    """Bytes to send at time `due`. `on_sent` is called with whether they were sent or lost.

    With `is_last` the link is cut after them.
    """

    due: float
    data: bytes
    on_sent: Callable[[bool], None] | None
    is_last: bool


class ProxyEndpoint(asyncio.Protocol):
    """One socket of a link: the client's, or the one to the broker."""

    def __init__(self, link: "ProxyLink", side: int) -> None:
        self.link = link
        self.side = side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.link.connected(self.side, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        if self.side == CLIENT:
            self.link.acknowledge_quickly()
        self.link.proxy.received += len(data)
        self.link.pipes[self.side].receive(data)

    def connection_lost(self, problem: Exception | None) -> None:
        self.link.disconnected(self.side)

    def pause_writing(self) -> None:
        self.link.pipes[1 - self.side].set_receiver_full(full=True)

    def resume_writing(self) -> None:
        self.link.pipes[1 - self.side].set_receiver_full(full=False)


class Pipe:
    """One direction of a link."""

    def __init__(self, link: "ProxyLink", sender: int) -> None:
        self.link = link
        self.sender = sender
        # Bytes since the end of the last packet, and how many of them have been forwarded.
        self._rest = bytearray()
        self._passed = 0
        # A fault may apply to the incoming packet; None: not checked yet.
        self._must_buffer: bool | None = None
        # Framing is lost: packet boundaries are unknown.
        self._is_unframed = False
        self._queue: deque[QueuedBytes] = deque()
        self._queued_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_receiver_full = False
        # The sender has disconnected: close the other side when everything is sent.
        self._is_ending = False

    # --- reading ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the sender."""
        if self._is_unframed:
            if not self.link.is_cut:
                self._send(data)
            return
        self._rest += data
        while self._rest and self._take_packet():
            pass
        if not self._must_buffer and len(self._rest) > self._passed and not self.link.is_cut:
            self._send(bytes(self._rest[self._passed :]))
            self._passed = len(self._rest)
        self.update_reading()

    def _take_packet(self) -> bool:
        """Handle the first packet; False if it is not complete."""
        link = self.link
        if self._must_buffer is None:
            client_id = link.trace.client_id if link.knows_client_id else None
            kind = self._rest[0] >> 4
            self._must_buffer = link.proxy.faults.may_apply_to(self.sender, kind, client_id)
        try:
            end = read_frame(bytes(self._rest[:HEADER]), 0)[2]
        except Violation:
            # Its length is unknown: take everything that has arrived.
            self._is_unframed = True
            end = len(self._rest)
        if not end or end > len(self._rest):
            return False
        data = bytes(self._rest[:end])
        passed, must_buffer = self._passed, self._must_buffer
        del self._rest[:end]
        self._passed = 0
        self._must_buffer = None
        observed = link.trace.read(data)
        if link.is_cut:
            self._record(observed, [], LOST, reached_client=False)
        elif must_buffer:
            self._apply_fault(observed)
        else:
            self._forward(observed, data[passed:])
        return True

    # --- faults -----------------------------------------------------------------------------------

    def _apply_fault(self, observed: ObservedPacket) -> None:
        """Apply the faults that select a packet."""
        link = self.link
        packet = observed.packet
        client_id = packet.client_id if isinstance(packet, Connect) else link.trace.client_id
        fault, delays = link.proxy.faults.take_for(self.sender, observed.packet_type, client_id)
        seconds = sum(delay.seconds for delay in delays)
        if fault is None:
            self._forward(observed, observed.data, delays, seconds=seconds)
        elif fault.action == DROP:
            self._record(observed, [fault], fault.action, reached_client=False)
        elif fault.action == REPEAT:
            self._forward(observed, observed.data, [*delays], seconds=seconds)
            self._forward(
                observed, observed.data, [fault], fault.action, seconds=seconds, is_copy=True
            )
        elif fault.action == CUT_BEFORE:
            self._record(observed, [fault], fault.action, reached_client=False)
            link.cut()
        elif fault.action == CUT_AFTER:
            self._forward(
                observed,
                observed.data,
                [fault, *delays],
                fault.action,
                seconds=seconds,
                cut=True,
            )
        else:
            assert fault.action == REFUSE
            self._record(observed, [fault], fault.action)
            # Only CONNECT is answered with CONNACK.
            if isinstance(packet, Connect):
                link.refuse(packet, fault.reason)
            else:
                link.cut()

    def _forward(
        self,
        observed: ObservedPacket,
        data: bytes,
        faults: list[Fault] | None = None,
        fault: str | None = None,
        *,
        seconds: float = 0.0,
        is_copy: bool = False,
        cut: bool = False,
    ) -> None:
        """Forward a packet. `is_copy`: the proxy repeats it; `cut`: cut the link after it."""
        applied = faults or []
        if fault is None and applied:
            fault = applied[0].action
        if self.sender == CLIENT:
            self._record(observed, applied, fault, is_copy=is_copy)
            self._send(data, seconds, is_last=cut)
            return

        def on_sent(is_sent: bool) -> None:
            self._record(observed, applied, fault if is_sent else LOST, reached_client=is_sent)

        self._send(data, seconds, on_sent, is_last=cut)

    def _record(
        self,
        observed: ObservedPacket,
        faults: list[Fault],
        fault: str | None,
        *,
        reached_client: bool = True,
        is_copy: bool = False,
    ) -> None:
        link = self.link
        if is_copy and self.sender == CLIENT:
            recorded = link.proxy.recording.add(link.trace, self.sender, observed, (), fault)
        else:
            recorded = link.proxy.recording.record(
                link.trace, self.sender, observed, fault=fault, reached_client=reached_client
            )
        link.packet_recorded(observed)
        for each in faults:
            each.hits.add(lambda number: recorded)

    # --- writing ----------------------------------------------------------------------------------

    def _send(
        self,
        data: bytes,
        seconds: float = 0.0,
        on_sent: Callable[[bool], None] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Send bytes after `seconds`, in order."""
        due = self.link.proxy.loop.time() + seconds
        self._queue.append(QueuedBytes(due, data, on_sent, is_last))
        self._queued_size += len(data)
        self._send_due()

    def _send_due(self) -> None:
        """Write everything that is due."""
        loop = self.link.proxy.loop
        self._stop_timer()
        while self._queue:
            piece = self._queue[0]
            if piece.due > loop.time():
                self._timer = loop.call_at(piece.due, self._send_due)
                break
            self._queue.popleft()
            self._queued_size -= len(piece.data)
            target = self.link.transports[1 - self.sender]
            is_sent = target is not None and not target.is_closing()
            if piece.on_sent is not None:
                # Before the write, so that the client's reaction follows in the record.
                piece.on_sent(is_sent)
            if target is not None and is_sent:
                target.write(piece.data)
                if piece.is_last:
                    self.link.cut(deliver_to=1 - self.sender)
        if self._is_ending and not self._queue and not self.link.is_cut:
            self.link.close(1 - self.sender)
        self.update_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """Discard what is queued."""
        self._stop_timer()
        lost, self._queue = self._queue, deque()
        self._queued_size = 0
        for piece in lost:
            if piece.on_sent is not None:
                piece.on_sent(False)

    def end(self) -> None:
        """The sender has closed: close the other side once everything is sent."""
        self._is_ending = True
        self._send_due()

    def set_receiver_full(self, *, full: bool) -> None:
        """Set whether the write buffer to the receiver is full."""
        self._is_receiver_full = full
        self.update_reading()

    def update_reading(self) -> None:
        """Pause or resume reading from the sender."""
        link = self.link
        source = link.transports[self.sender]
        if source is None or source.is_closing():
            return
        faults = link.proxy.faults
        if (
            link.transports[1 - self.sender] is None
            or self._is_receiver_full
            or self._queued_size > QUEUE_BYTES
            or faults.is_stalled(self.sender, link.trace.client_id)
        ):
            if not link.is_cut:
                source.pause_reading()
                return
        source.resume_reading()


class ProxyLink:
    """A client's connection and the matching connection to the broker."""

    def __init__(self, proxy: "Proxy", trace: ConnectionTrace) -> None:
        self.proxy = proxy
        self.trace = trace
        # By side: the client's, the broker's.
        self.transports: list[asyncio.Transport | None] = [None, None]
        self.pipes = [Pipe(self, CLIENT), Pipe(self, SERVER)]
        self.connecting: asyncio.Task[None] | None = None
        self.knows_client_id = False
        # Set once the link is cut: nothing more is forwarded.
        self.is_cut = False
        self._abort_timer: asyncio.TimerHandle | None = None

    def connected(self, side: int, transport: asyncio.Transport) -> None:
        """One of the two connections is established."""
        self.transports[side] = transport
        if side == CLIENT:
            self.proxy.links[self.trace.number] = self
            transport.pause_reading()
            self.connecting = self.proxy.loop.create_task(self._connect())
        elif self.transports[CLIENT] is None or self.is_cut:
            # The client has left meanwhile.
            transport.abort()
        else:
            self.pipes[CLIENT].update_reading()

    async def _connect(self) -> None:
        """Connect to the broker."""
        host, port = self.proxy.broker
        try:
            await self.proxy.loop.create_connection(lambda: ProxyEndpoint(self, SERVER), host, port)
        except OSError:
            self.cut()
        finally:
            self.connecting = None
            self._remove_if_closed()

    def _remove_if_closed(self) -> None:
        """Remove the link from the proxy once both connections are closed."""
        if self.transports == [None, None] and self.connecting is None:
            if self._abort_timer is not None:
                self._abort_timer.cancel()
            self.proxy.links.pop(self.trace.number, None)

    def acknowledge_quickly(self) -> None:
        """Send a TCP acknowledgement without delay.

        Linux delays it by up to 40 ms to combine it with a response, and clients with Nagle's
        algorithm hold back small packets until then. The option resets itself, so it is set again
        after each read.
        """
        end = self.transports[CLIENT]
        if end is not None and QUICK is not None and self.proxy.is_tcp:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, QUICK, 1)

    def packet_recorded(self, observed: ObservedPacket) -> None:
        """After CONNECT the client identifier is known: a stall may apply to this link now."""
        if not self.knows_client_id and isinstance(observed.packet, Connect):
            self.knows_client_id = True
            for pipe in self.pipes:
                pipe.update_reading()

    def disconnected(self, side: int) -> None:
        """One of the two connections is closed."""
        self.transports[side] = None
        if side == CLIENT:
            self.trace.end()
        # Bytes that are queued for this side cannot be delivered.
        self.pipes[1 - side].clear()
        self.pipes[side].end()
        self._remove_if_closed()

    def close(self, side: int) -> None:
        """Close one connection after its pending writes."""
        end = self.transports[side]
        if end is not None:
            end.close()

    def cut(self, *, deliver_to: int | None = None) -> None:
        """Abort both connections; `deliver_to` is the side that still gets pending writes."""
        self.is_cut = True
        for side in (CLIENT, SERVER):
            self.pipes[side].clear()
            end = self.transports[side]
            if end is None:
                continue
            if side == deliver_to and not end.is_closing():
                # With unread input, close() would send a reset, which may overtake the last
                # bytes written.
                end.write_eof()
                end.resume_reading()
                self._abort_timer = self.proxy.loop.call_later(LAST_BYTES_SECONDS, end.abort)
            else:
                end.abort()

    def refuse(self, connect: Connect, reason: int) -> None:
        """Answer a CONNECT in place of the broker, which never gets it."""
        data = encode(refuse_connect(connect, reason).connack, connect.version)
        observed = self.trace.read(data)
        self.proxy.recording.record(self.trace, SERVER, observed, fault=REFUSE)
        end = self.transports[CLIENT]
        if end is not None:
            end.write(data)
        self.cut(deliver_to=CLIENT)


class Proxy:
    """Listens, and creates a link per connection. `broker` is the broker's address.

    `open` and `detach` may alternate: the port stays the same, and is reserved in between.
    """

    def __init__(
        self,
        recording: Recording,
        faults: Faults,
        *,
        front: ProxyFront | None = None,
        port: int = 0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.recording = recording
        self.faults = faults
        self.broker = ("", 0)
        self.links: dict[int, ProxyLink] = {}
        # Bytes received from both sides.
        self.received = 0
        self._listener: asyncio.Server | None = None
        # None: plain TCP.
        self._front = front
        self._connections = None if front is None else front.serve(self._accepted)
        self.is_tcp = front is None or front.transport != UNIX
        # Keeps the port while the proxy does not listen.
        self._port_reservation = _bind_socket(port) if self.is_tcp else None
        self.port: int = self._port_reservation.getsockname()[1] if self._port_reservation else 0

    async def open(self, broker: tuple[str, int]) -> None:
        """Accept connections, and forward them to this broker."""
        self.broker = broker
        await self.listen()

    async def listen(self) -> None:
        """Accept connections, unless a fault prevents it or there is no broker."""
        if self._listener is None and self.broker[1] and not self.faults.refuses_connections():
            make: Callable[[], asyncio.Protocol] = self._accepted
            if self._connections is not None:
                make = self._connections.make_protocol
            if self._front is not None and not self.is_tcp:
                listening = self._front.bind_socket()
                self._listener = await self.loop.create_unix_server(make, sock=listening)
            else:
                listening = _bind_socket(self.port)
                self._listener = await self.loop.create_server(make, sock=listening)

    def _accepted(self) -> ProxyEndpoint:
        return ProxyEndpoint(ProxyLink(self, self.recording.open()), CLIENT)

    def refuse_connections(self) -> None:
        """Close the listener, so that the system refuses new connections; open ones remain."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def detach(self) -> None:
        """Refuse connections until `open` names a broker again."""
        self.broker = ("", 0)
        self.refuse_connections()

    def links_of(self, client_id: str | None) -> list[ProxyLink]:
        """The links of one client, or all links."""
        return [
            link
            for link in self.links.values()
            if not link.is_cut and client_id in (None, link.trace.client_id)
        ]

    def add(self, fault: Fault) -> None:
        """Put a fault into effect."""
        self.faults.add(fault)
        if fault.action == STALL:
            self._update_reading()
        elif fault.action == CLOSED:
            self.refuse_connections()

    async def remove(self, fault: Fault) -> None:
        """End a fault."""
        self.faults.remove(fault)
        if fault.action == STALL:
            self._update_reading()
        elif fault.action == CLOSED:
            await self.listen()

    def _update_reading(self) -> None:
        for link in self.links.values():
            for pipe in link.pipes:
                pipe.update_reading()

    async def close(self) -> None:
        """Cut all links, and stop listening."""
        self.detach()
        for link in list(self.links.values()):
            link.cut()
        while self.links:
            connecting = [each.connecting for each in self.links.values() if each.connecting]
            if connecting:
                await asyncio.wait(connecting)
            await asyncio.sleep(0)
        if self._connections is not None:
            self._connections.close()
        if self._port_reservation is not None:
            self._port_reservation.close()


def _bind_socket(port: int) -> socket.socket:
    """A socket bound to this port (0: any free port) that does not listen yet."""
    # With its protocol: asyncio sets TCP_NODELAY only if the protocol of the socket is TCP.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Several sockets may be bound to a port as long as none of them listens.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made
