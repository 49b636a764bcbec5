"""A proxy that knows packets: it stands before a broker, records what passes, and makes faults.

    client ── up ──▶ broker        each direction is a Pipe: bytes in, packets looked at, bytes out
    client ◀─ down ── broker       both are a Link, one for each connection of a client

Bytes pass as they are and as they come, right or wrong, whole packets or parts. A packet is held
until all of it is there only if a fault may be meant for it. Where bytes no longer say where a
packet ends, the rest of the connection passes unseen.

The record is the client's view: a client's packet is noted when it comes, a server's when it is
written to the client. Everything happens in one event loop; other threads reach it through theirs.

What waits here for its time is bounded: with more than QUEUE_BYTES in a pipe nothing is read for
it. A packet that is held for a fault may be as large as the standard has them.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from semel.broker.admission import refuse_connect
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
from semel.lab.recording import Recorded, Recording
from semel.mqtt import CLIENT, SERVER, Connect, encode
from semel.mqtt.codec import read_frame
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.mqtt.violation import Violation

HOST: Final = "127.0.0.1"
QUEUE_BYTES: Final = 1024 * 1024
# How long one end may take to read what came before a cut, in seconds.
LAST_BYTES_SECONDS: Final = 2.0
# The longest fixed header: type, and four digits of Remaining Length.
HEADER: Final = 5
# Linux has it, others do without.
QUICK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


@dataclass
class ProxiedPiece:
    """Bytes that wait for their time. `note` is told whether they get out or are lost; after the
    last, the link is cut."""

    due: float
    data: bytes
    note: Callable[[bool], None] | None
    is_last: bool


class End(asyncio.Protocol):
    """One socket of a link: the client's, or the one to the broker."""

    def __init__(self, link: "ProxyLink", side: int) -> None:
        self.link = link
        self.side = side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.link.joined(self.side, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        if self.side == CLIENT:
            self.link.hurry()
        self.link.proxy.received += len(data)
        self.link.pipes[self.side].receive(data)

    def connection_lost(self, problem: Exception | None) -> None:
        self.link.lost(self.side)

    def pause_writing(self) -> None:
        self.link.pipes[1 - self.side].press(full=True)

    def resume_writing(self) -> None:
        self.link.pipes[1 - self.side].press(full=False)


class Pipe:
    """What one side of a link sends to the other."""

    def __init__(self, link: "ProxyLink", sender: int) -> None:
        self.link = link
        self.sender = sender
        # Bytes since the end of the last packet, and how many of them have been passed on.
        self._rest = bytearray()
        self._passed = 0
        # A fault may be meant for the packet that is coming; None: nobody has looked.
        self._is_held: bool | None = None
        # Nobody knows where packets begin.
        self._is_raw = False
        self._waiting: deque[ProxiedPiece] = deque()
        self._waiting_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_full = False
        # The sender has gone: so does the other when all is out.
        self._is_ending = False

    # --- reading ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have come."""
        if self._is_raw:
            if not self.link.is_cut:
                self._send(data)
            return
        self._rest += data
        while self._rest and self._take_packet():
            pass
        if not self._is_held and len(self._rest) > self._passed and not self.link.is_cut:
            self._send(bytes(self._rest[self._passed :]))
            self._passed = len(self._rest)
        self.review()

    def _take_packet(self) -> bool:
        """The packet at the front, if all of it is there."""
        link = self.link
        if self._is_held is None:
            client_id = link.trace.client_id if link.is_named else None
            kind = self._rest[0] >> 4
            self._is_held = link.proxy.faults.may_concern(self.sender, kind, client_id)
        try:
            end = read_frame(bytes(self._rest[:HEADER]), 0)[2]
        except Violation:
            # Nobody can say how long it is: it is all that there is.
            self._is_raw = True
            end = len(self._rest)
        if not end or end > len(self._rest):
            return False
        data = bytes(self._rest[:end])
        passed, is_held = self._passed, self._is_held
        del self._rest[:end]
        self._passed = 0
        self._is_held = None
        reading = link.trace.read(data)
        if link.is_cut:
            self._note(reading, [], LOST, reached_client=False)
        elif is_held:
            self._strike(reading)
        else:
            self._pass(reading, data[passed:])
        return True

    # --- faults -----------------------------------------------------------------------------------

    def _strike(self, reading: ObservedPacket) -> None:
        """Do to a packet what is to be done to it."""
        link = self.link
        packet = reading.packet
        client_id = packet.client_id if isinstance(packet, Connect) else link.trace.client_id
        fault, delays = link.proxy.faults.of(self.sender, reading.packet_type, client_id)
        seconds = sum(delay.seconds for delay in delays)
        if fault is None:
            self._pass(reading, reading.data, delays, seconds=seconds)
        elif fault.action == DROP:
            self._note(reading, [fault], fault.action, reached_client=False)
        elif fault.action == REPEAT:
            self._pass(reading, reading.data, [*delays], seconds=seconds)
            self._pass(reading, reading.data, [fault], fault.action, seconds=seconds, again=True)
        elif fault.action == CUT_BEFORE:
            self._note(reading, [fault], fault.action, reached_client=False)
            link.cut()
        elif fault.action == CUT_AFTER:
            self._pass(
                reading,
                reading.data,
                [fault, *delays],
                fault.action,
                seconds=seconds,
                cut=True,
            )
        else:
            assert fault.action == REFUSE
            self._note(reading, [fault], fault.action)
            # What is no CONNECT gets no CONNACK.
            if isinstance(packet, Connect):
                link.refuse(packet, fault.reason)
            else:
                link.cut()

    def _pass(
        self,
        reading: ObservedPacket,
        data: bytes,
        faults: list[Fault] | None = None,
        fault: str | None = None,
        *,
        seconds: float = 0.0,
        again: bool = False,
        cut: bool = False,
    ) -> None:
        """Let a packet through; `again`: it is the proxy's own copy of one that its sender sent;
        `cut`: it is the last."""
        struck = faults or []
        if fault is None and struck:
            fault = struck[0].action
        if self.sender == CLIENT:
            self._note(reading, struck, fault, again=again)

            self._send(data, seconds, is_last=cut)
            return

        def note(is_out: bool) -> None:
            self._note(reading, struck, fault if is_out else LOST, reached_client=is_out)

        self._send(data, seconds, note, is_last=cut)

    def _note(
        self,
        reading: ObservedPacket,
        faults: list[Fault],
        fault: str | None,
        *,
        reached_client: bool = True,
        again: bool = False,
    ) -> None:
        link = self.link
        if again and self.sender == CLIENT:
            recorded = link.proxy.recording.add(link.trace, self.sender, reading, (), fault)
        else:
            recorded = link.proxy.recording.note(
                link.trace, self.sender, reading, fault=fault, reached_client=reached_client
            )
        link.noted(reading)
        for each in faults:
            _hit(each, recorded)

    # --- writing ----------------------------------------------------------------------------------

    def _send(
        self,
        data: bytes,
        seconds: float = 0.0,
        note: Callable[[bool], None] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Pass bytes on, after what is before them, and not before their time."""
        due = self.link.proxy.loop.time() + seconds
        self._waiting.append(ProxiedPiece(due, data, note, is_last))
        self._waiting_size += len(data)
        self._write_due()

    def _write_due(self) -> None:
        """Write what may be written now."""
        loop = self.link.proxy.loop
        self._stop_timer()
        while self._waiting:
            piece = self._waiting[0]
            if piece.due > loop.time():
                self._timer = loop.call_at(piece.due, self._write_due)
                break
            self._waiting.popleft()
            self._waiting_size -= len(piece.data)
            target = self.link.ends[1 - self.sender]
            is_out = target is not None and not target.is_closing()
            if piece.note is not None:
                # Before the client can know it: what it does next comes after it in the record.
                piece.note(is_out)
            if target is not None and is_out:
                target.write(piece.data)
                if piece.is_last:
                    self.link.cut(deliver_to=1 - self.sender)
        if self._is_ending and not self._waiting and not self.link.is_cut:
            self.link.close(1 - self.sender)
        self.review()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """What waits is lost."""
        self._stop_timer()
        lost, self._waiting = self._waiting, deque()
        self._waiting_size = 0
        for piece in lost:
            if piece.note is not None:
                piece.note(False)

    def end(self) -> None:
        """Nothing more will come: when all is out, the other side is told."""
        self._is_ending = True
        self._write_due()

    def press(self, *, full: bool) -> None:
        """The receiver does not read, or reads again."""
        self._is_full = full
        self.review()

    def review(self) -> None:
        """Read from the sender, or do not."""
        link = self.link
        source = link.ends[self.sender]
        if source is None or source.is_closing():
            return
        faults = link.proxy.faults
        if (
            link.ends[1 - self.sender] is None
            or self._is_full
            or self._waiting_size > QUEUE_BYTES
            or faults.is_stalled(self.sender, link.trace.client_id)
        ):
            if not link.is_cut:
                source.pause_reading()
                return
        source.resume_reading()


def _hit(fault: Fault, recorded: Recorded) -> None:
    fault.hits.add(lambda number: recorded)


class ProxyLink:
    """One connection of a client, and the one to the broker that was made for it."""

    def __init__(self, proxy: "Proxy", trace: ConnectionTrace) -> None:
        self.proxy = proxy
        self.trace = trace
        # By side: the client's socket, the broker's.
        self.ends: list[asyncio.Transport | None] = [None, None]
        self.pipes = [Pipe(self, CLIENT), Pipe(self, SERVER)]
        self.connecting: asyncio.Task[None] | None = None
        self.is_named = False
        # Nothing passes any more.
        self.is_cut = False
        self._last_bytes: asyncio.TimerHandle | None = None

    def joined(self, side: int, transport: asyncio.Transport) -> None:
        """One of the two sockets is there."""
        self.ends[side] = transport
        if side == CLIENT:
            self.proxy.links[self.trace.number] = self
            transport.pause_reading()
            self.connecting = self.proxy.loop.create_task(self._connect())
        elif self.ends[CLIENT] is None or self.is_cut:
            # Its client did not wait.
            transport.abort()
        else:
            self.pipes[CLIENT].review()

    async def _connect(self) -> None:
        """Make the connection to the broker."""
        host, port = self.proxy.broker
        try:
            await self.proxy.loop.create_connection(lambda: End(self, SERVER), host, port)
        except OSError:
            self.cut()
        finally:
            self.connecting = None
            self._forget()

    def _forget(self) -> None:
        """If nothing is left of it, it is over."""
        if self.ends == [None, None] and self.connecting is None:
            if self._last_bytes is not None:
                self._last_bytes.cancel()
            self.proxy.links.pop(self.trace.number, None)

    def hurry(self) -> None:
        """Have the system confirm to the client what it has sent.

        Left alone it waits 40 ms for an answer to go with, and many clients have their system hold
        small packets back until then. The setting does not last.
        """
        end = self.ends[CLIENT]
        if end is not None and QUICK is not None:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, QUICK, 1)

    def noted(self, reading: ObservedPacket) -> None:
        """A packet has passed: what is meant for one client may now be meant for this one."""
        if not self.is_named and isinstance(reading.packet, Connect):
            self.is_named = True
            for pipe in self.pipes:
                pipe.review()

    def lost(self, side: int) -> None:
        """One of the sockets has gone."""
        self.ends[side] = None
        if side == CLIENT:
            self.trace.end()
        # Nobody is left to read what was for it.
        self.pipes[1 - side].clear()
        self.pipes[side].end()
        self._forget()

    def close(self, side: int) -> None:
        """Close one socket when what was written to it is out."""
        end = self.ends[side]
        if end is not None:
            end.close()

    def cut(self, *, deliver_to: int | None = None) -> None:
        """Both sockets go, at once; but this side gets what was written to it before."""
        self.is_cut = True
        for side in (CLIENT, SERVER):
            self.pipes[side].clear()
            end = self.ends[side]
            if end is None:
                continue
            if side == deliver_to and not end.is_closing():
                # With bytes that nobody has read, closing would be a reset, which may overtake the
                # last that were written.
                end.write_eof()
                end.resume_reading()
                self._last_bytes = self.proxy.loop.call_later(LAST_BYTES_SECONDS, end.abort)
            else:
                end.abort()

    def refuse(self, connect: Connect, reason: int) -> None:
        """Answer a CONNECT that the broker never gets."""
        data = encode(refuse_connect(connect, reason).connack, connect.version)
        reading = self.trace.read(data)
        self.proxy.recording.note(self.trace, SERVER, reading, fault=REFUSE)
        end = self.ends[CLIENT]
        if end is not None:
            end.write(data)
        self.cut(deliver_to=CLIENT)


class Proxy:
    """Listens, and makes a link for each connection. `broker` is where the broker listens.

    `open` and `shut` may be called again and again: the port is the same, and nobody else gets it
    meanwhile.
    """

    def __init__(self, recording: Recording, faults: Faults, *, port: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.recording = recording
        self.faults = faults
        self.broker = ("", 0)
        self.links: dict[int, ProxyLink] = {}
        # Bytes from either side so far.
        self.received = 0
        self._listener: asyncio.Server | None = None
        # It holds the port while nobody listens there.
        self._keeper = _bound(port)
        self.port: int = self._keeper.getsockname()[1]

    async def open(self, broker: tuple[str, int]) -> None:
        """Take connections, and connect them with this broker."""
        self.broker = broker
        await self.listen()

    async def listen(self) -> None:
        """Take connections, unless a fault is against it or there is no broker."""
        if self._listener is None and self.broker[1] and not self.faults.are_closed():
            listening = _bound(self.port)
            self._listener = await self.loop.create_server(self._accepted, sock=listening)

    def _accepted(self) -> End:
        return End(ProxyLink(self, self.recording.open()), CLIENT)

    def refuse_connections(self) -> None:
        """Whoever tries to connect is refused by the system; who is connected stays so."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def shut(self) -> None:
        """Take no connections: there is no broker."""
        self.broker = ("", 0)
        self.refuse_connections()

    def of(self, client_id: str | None) -> list[ProxyLink]:
        """The links of one client, or all."""
        return [
            link
            for link in self.links.values()
            if not link.is_cut and client_id in (None, link.trace.client_id)
        ]

    def add(self, fault: Fault) -> None:
        """Let a fault happen from now on."""
        self.faults.add(fault)
        if fault.action == STALL:
            self._review()
        elif fault.action == CLOSED:
            self.refuse_connections()

    async def remove(self, fault: Fault) -> None:
        """Let it happen no more."""
        self.faults.remove(fault)
        if fault.action == STALL:
            self._review()
        elif fault.action == CLOSED:
            await self.listen()

    def _review(self) -> None:
        for link in self.links.values():
            for pipe in link.pipes:
                pipe.review()

    async def close(self) -> None:
        """Cut what there is, and listen no more."""
        self.shut()
        for link in list(self.links.values()):
            link.cut()
        while self.links:
            connecting = [each.connecting for each in self.links.values() if each.connecting]
            if connecting:
                await asyncio.wait(connecting)
            await asyncio.sleep(0)
        self._keeper.close()


def _bound(port: int) -> socket.socket:
    """A socket that has a port of this machine, 0: one that is free, and does not listen yet."""
    # With its protocol, for asyncio sends small packets at once only where it knows that it is TCP.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Several sockets may have a port as long as none of them listens.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made
