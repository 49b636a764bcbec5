"""Sockets in the broker's own epoll set, with real sockets and a real loop."""

import asyncio
import contextlib
import errno
import os
import resource
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from semel.broker.network.event_loop import BrokerLoop, close_plain_sockets, open_plain_sockets
from semel.broker.network.plain_sockets import (
    ACCEPTED_AT_ONCE,
    READABLE,
    READY_SOCKETS,
    WRITABLE,
    Acceptor,
    PlainTransport,
)
from tests.broker.broker_process import PATIENCE

# More than the buffers of both ends hold, and a mark far below.
LARGE = 8 * 1024 * 1024
MARK = 100_000


class Recorded:
    """A protocol that records what its transport reports."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.transport: PlainTransport | None = None
        self.data = b""
        self.resumed: list[int] = []
        self.lost = 0
        self.raises: Exception | None = None
        self.receive: Callable[[], object] | None = None

    def connection_made(self, transport: PlainTransport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(MARK, MARK)
        if self.world.refuses:
            raise RuntimeError("refused")

    def data_received(self, data: bytes) -> None:
        if self.raises is not None:
            raise self.raises
        self.data += data
        if self.receive is not None:
            self.receive()

    def connection_lost(self, problem: Exception | None) -> None:
        assert problem is None
        self.lost += 1
        if self.raises is not None:
            raise self.raises

    def resume_writing(self) -> None:
        assert self.transport is not None
        self.resumed.append(self.transport.get_write_buffer_size())

    @property
    def end(self) -> PlainTransport:
        assert self.transport is not None
        return self.transport


class World:
    """An epoll set with one listening socket, and what was reported."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: list[str] = []
        self.sockets = open_plain_sockets(
            self.loop,
            begin_reading=lambda: self.calls.append("begin"),
            end_reading=self.end_reading,
        )
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.sockets.listen(self.listening, self.new_protocol)
        self.address = self.listening.getsockname()
        self.protocols: list[Recorded] = []
        self.refuses = False
        self.end_raises: Exception | None = None
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))

    def end_reading(self) -> None:
        self.calls.append("end")
        if self.end_raises is not None:
            raise self.end_raises

    def new_protocol(self) -> Recorded:
        self.protocols.append(Recorded(self))
        return self.protocols[-1]

    async def open(self, buffer: int = 0) -> tuple[socket.socket, Recorded]:
        """A client that does not block, and the protocol of its connection."""
        known = len(self.protocols)
        client = socket.socket()
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.connect(self.address)
        client.setblocking(False)
        await until(lambda: len(self.protocols) > known)
        return client, self.protocols[-1]

    async def receive(self, client: socket.socket, size: int) -> bytes:
        """So many bytes, or all until the end."""
        data = b""
        while len(data) < size:
            more = await asyncio.wait_for(self.loop.sock_recv(client, 65_536), PATIENCE)
            if not more:
                break
            data += more
        return data


async def until(condition: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        close_plain_sockets(world.loop, world.sockets)


def reset(client: socket.socket) -> None:
    """Close with RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def run(test: Callable[[World], Any]) -> None:
    async def inner() -> None:
        async with opened() as world:
            await test(world)

    # In a set that the loop watches, and in the set of the loop.
    for loop_factory in (None, BrokerLoop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(inner())


def test_bytes_pass_both_ways() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        assert protocol.end.get_extra_info("peername") == client.getsockname()
        assert protocol.end.get_extra_info("socket", "unknown") == "unknown"
        client.send(b"question")
        await until(lambda: protocol.data == b"question")
        protocol.end.write(b"answer")
        protocol.end.write(b"")
        assert protocol.end.get_write_buffer_size() == 0
        assert await world.receive(client, 6) == b"answer"
        assert world.calls[:2] == ["begin", "end"]
        assert world.calls == ["begin", "end"] * (len(world.calls) // 2)
        client.close()

    run(test)


@pytest.mark.parametrize("timeout", [None, float(PATIENCE)])
def test_sockets_are_served_until_another_descriptor_is_ready(timeout: float | None) -> None:
    async def test() -> None:
        async with opened() as world:
            client, protocol = await world.open()
            reading, writing = os.pipe()
            world.loop.add_reader(reading, lambda: None)
            # It is ready only after the socket was served, so that the wait must go on.
            protocol.receive = lambda: os.write(writing, b"x")
            client.send(b"question")
            assert world.sockets.wait(timeout) == [(reading, select.EPOLLIN)]
            assert protocol.data == b"question"
            world.loop.remove_reader(reading)
            os.close(reading)
            os.close(writing)
            client.close()

    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        runner.run(test())


def test_many_connections_are_served_in_several_calls() -> None:
    async def test(world: World) -> None:
        clients = [await world.open() for _ in range(READY_SOCKETS + 10)]
        for client, _ in clients:
            client.send(b"x")
        await until(lambda: all(protocol.data == b"x" for _, protocol in clients))
        for client, _ in clients:
            client.close()
        await until(lambda: all(protocol.lost == 1 for _, protocol in clients))

    run(test)


def test_a_flood_of_connections_is_accepted_in_several_calls() -> None:
    async def test(world: World) -> None:
        clients = [socket.create_connection(world.address) for _ in range(ACCEPTED_AT_ONCE + 5)]
        await until(lambda: bool(world.protocols))
        assert len(world.protocols) <= ACCEPTED_AT_ONCE
        await until(lambda: len(world.protocols) == len(clients))
        for client in clients:
            client.close()

    run(test)


def test_what_the_system_does_not_accept_is_sent_later_in_order() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        pieces = [bytes([65 + number % 26]) * 50_000 for number in range(LARGE // 50_000)]
        for piece in pieces:
            protocol.end.write(piece)
        assert protocol.end.get_write_buffer_size() > MARK
        # It is not writable, whatever the set reports.
        protocol.end.handle(WRITABLE)
        sent = b"".join(pieces)
        assert await world.receive(client, len(sent)) == sent
        await until(lambda: protocol.end.get_write_buffer_size() == 0)
        # Once, when the reader had caught up.
        (unsent,) = protocol.resumed
        assert unsent <= MARK
        protocol.end.write(b"more")
        assert await world.receive(client, 4) == b"more"
        client.close()

    run(test)


def test_a_socket_that_accepts_nothing_gets_it_later() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += os.write(protocol.end.fd, b"x" * 65_536)
        protocol.end.write(b"last")
        assert protocol.end.get_write_buffer_size() == 4
        assert await world.receive(client, filled + 4) == b"x" * filled + b"last"
        # It never was above the mark.
        assert protocol.resumed == []
        client.close()

    run(test)


def test_close_sends_what_is_unsent_and_then_ends() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        protocol.end.write(b"x" * LARGE)
        protocol.end.close()
        protocol.end.close()
        protocol.end.write(b"too late")
        assert protocol.end.is_closing()
        assert protocol.lost == 0
        assert await world.receive(client, LARGE + 1) == b"x" * LARGE
        await until(lambda: protocol.lost == 1)
        assert protocol.resumed == []
        client.close()

    run(test)


@pytest.mark.parametrize("name", ["close", "abort"])
def test_the_end_is_reported_once_and_not_within_the_call(name: str) -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        end = protocol.end
        getattr(end, name)()
        assert protocol.lost == 0
        end.abort()
        end.resume_reading()
        end.pause_reading()
        await until(lambda: protocol.lost == 1)
        assert await world.receive(client, 1) == b""
        await asyncio.sleep(0)
        assert protocol.lost == 1
        client.close()

    run(test)


def test_abort_discards_what_is_unsent() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        protocol.end.write(b"x" * LARGE)
        protocol.end.abort()
        assert protocol.end.get_write_buffer_size() == 0
        await until(lambda: protocol.lost == 1)
        assert len(await world.receive(client, LARGE)) < LARGE
        client.close()

    run(test)


def test_a_paused_connection_is_not_read() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        protocol.end.pause_reading()
        protocol.end.pause_reading()
        client.send(b"later")
        for _ in range(20):
            await asyncio.sleep(0)
        assert protocol.data == b""
        # As if the set had reported it just before.
        protocol.end.handle(READABLE)
        assert protocol.data == b""
        protocol.end.resume_reading()
        protocol.end.resume_reading()
        await until(lambda: protocol.data == b"later")
        # There is nothing to read, whatever the set reports.
        protocol.end.handle(READABLE)
        client.close()

    run(test)


def test_a_peer_that_leaves_a_paused_connection_costs_nothing_and_loses_nothing() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        protocol.end.pause_reading()
        client.send(b"last words")
        client.close()
        await asyncio.sleep(0.05)
        calls = len(world.calls)
        await asyncio.sleep(0.05)
        assert len(world.calls) == calls
        assert protocol.lost == 0
        protocol.end.resume_reading()
        await until(lambda: protocol.lost == 1)
        assert protocol.data == b"last words"

    run(test)


def test_a_peer_that_sends_nothing_more_still_gets_what_is_unsent() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        protocol.end.write(b"x" * LARGE)
        client.shutdown(socket.SHUT_WR)
        await until(protocol.end.is_closing)
        assert protocol.lost == 0
        assert await world.receive(client, LARGE + 1) == b"x" * LARGE
        await until(lambda: protocol.lost == 1)
        client.close()

    run(test)


@pytest.mark.parametrize("unsent", [0, LARGE])
def test_a_reset_ends_the_connection(unsent: int) -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open(buffer=4_096)
        protocol.end.write(b"x" * unsent)
        reset(client)
        await until(lambda: protocol.lost == 1)
        assert world.faults == []

    run(test)


def test_writing_to_a_peer_that_is_gone_ends_the_connection() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        protocol.end.pause_reading()
        reset(client)
        protocol.end.write(b"x")
        protocol.end.write(b"x")
        await until(lambda: protocol.lost == 1)
        assert world.faults == []

    run(test)


def test_a_protocol_that_fails_ends_its_connection_alone() -> None:
    async def test(world: World) -> None:
        victim, failing = await world.open()
        other, serving = await world.open()
        failing.raises = RuntimeError("a mistake")
        victim.send(b"x")
        other.send(b"x")
        await until(lambda: failing.lost == 1)
        await until(lambda: serving.data == b"x")
        messages = [fault["message"] for fault in world.faults]
        # Its end fails, too; the socket is closed all the same.
        assert messages == ["serving a connection failed: closed", "ending a connection failed"]
        assert await world.receive(victim, 1) == b""
        assert serving.lost == 0
        victim.close()
        other.close()

    run(test)


def test_a_new_connection_that_cannot_be_served_is_closed() -> None:
    async def test(world: World) -> None:
        world.refuses = True
        client, protocol = await world.open()
        assert await world.receive(client, 1) == b""
        await until(lambda: protocol.lost == 1)
        assert [fault["message"] for fault in world.faults] == [
            "serving a new connection failed: closed"
        ]
        world.refuses = False
        other, _ = await world.open()
        assert len(world.faults) == 1
        client.close()
        other.close()

    run(test)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """The process has reached its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        highest = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_are_accepted_again_when_there_are_files_again() -> None:
    async def test(world: World) -> None:
        client = socket.socket()
        client.setblocking(False)
        with no_more_files():
            with contextlib.suppress(BlockingIOError):
                client.connect(world.address)
            await until(lambda: bool(world.faults))
            (fault,) = world.faults
            assert fault["exception"].errno == errno.EMFILE
        # The system is not asked again and again meanwhile.
        calls = len(world.calls)
        await asyncio.sleep(0.05)
        assert len(world.calls) == calls
        await until(lambda: bool(world.protocols))
        client.close()

    run(test)


def test_listening_can_end_while_there_are_no_files() -> None:
    async def test(world: World) -> None:
        client = socket.socket()
        client.setblocking(False)
        with no_more_files():
            with contextlib.suppress(BlockingIOError):
                client.connect(world.address)
            await until(lambda: bool(world.faults))
            world.sockets.stop_listening(world.listening)
        assert world.listening.fileno() == -1
        world.sockets.stop_listening(world.listening)
        await asyncio.sleep(1.1)
        assert world.protocols == []
        client.close()

    run(test)


class Aborting:
    """A listening socket whose first connection is gone before it is accepted."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.aborted = 0

    def fileno(self) -> int:
        return self.listening.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.aborted:
            self.aborted += 1
            raise OSError(errno.ECONNABORTED, "gone")
        return self.listening.accept()

    def close(self) -> None:
        self.listening.close()


def test_a_connection_that_is_gone_before_it_is_accepted_does_not_delay_others() -> None:
    async def test(world: World) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        aborting = Aborting(listening)
        world.sockets.listen(aborting, world.new_protocol)  # type: ignore[arg-type]
        client = socket.create_connection(listening.getsockname())
        await until(lambda: bool(world.protocols))
        assert aborting.aborted == 1
        assert world.faults == []
        client.close()

    run(test)


def test_nothing_is_accepted_after_listening_has_ended() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        world.sockets.stop_listening(world.listening)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(world.address)
        client.send(b"still here")
        await until(lambda: protocol.data == b"still here")
        client.close()

    run(test)


def test_a_connection_that_arrives_when_listening_ends_is_refused() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()

        def stop_listening(data: bytes) -> None:
            world.sockets.stop_listening(world.listening)

        protocol.data_received = stop_listening  # type: ignore[method-assign]
        # The set looks once more at the socket that has accepted, and then has nothing to report.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.send(b"x")
        # The set reports both at once, in this order.
        late = socket.create_connection(world.address)
        await until(lambda: world.listening.fileno() == -1)
        assert len(world.protocols) == 1
        assert world.faults == []
        client.close()
        late.close()

    run(test)


def test_close_ends_everything_without_a_report() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        other, ending = await world.open()
        ending.end.abort()
        close_plain_sockets(world.loop, world.sockets)
        assert await world.receive(client, 1) == b""
        assert await world.receive(other, 1) == b""
        await asyncio.sleep(0)
        assert protocol.lost == ending.lost == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(world.address)
        client.close()
        other.close()
        # The fixture closes it once more.
        world.sockets = open_plain_sockets(
            world.loop, begin_reading=lambda: None, end_reading=lambda: None
        )

    run(test)


def test_an_event_of_a_socket_that_is_already_gone_is_ignored() -> None:
    """The set reports several sockets at once; an earlier one may have closed a later one."""

    async def test(world: World) -> None:
        client, protocol = await world.open()
        other, second = await world.open()

        def close_other(data: bytes) -> None:
            second.end.abort()

        protocol.data_received = close_other  # type: ignore[method-assign]
        client.send(b"x")
        other.send(b"y")
        await until(lambda: second.lost == 1)
        assert world.faults == []
        client.close()
        other.close()

    run(test)


def test_a_tick_that_fails_is_reported_and_ends_nothing() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        world.end_raises = RuntimeError("no tick")
        client.send(b"x")
        await until(lambda: bool(world.faults))
        assert world.faults[0]["exception"] is world.end_raises
        world.end_raises = None
        client.send(b"y")
        await until(lambda: protocol.data == b"xy")
        client.close()

    run(test)


def test_a_connection_for_which_the_set_has_no_room_is_closed() -> None:
    """The system limits how many descriptors a user has in epoll sets."""

    async def test(world: World) -> None:
        client, protocol = await world.open()
        unusable, other = socket.socketpair()
        descriptor = unusable.detach()
        # A descriptor that is in the set already is refused in the same way.
        world.sockets._epoll.register(descriptor, READABLE)
        world.sockets._add(descriptor, None, Acceptor(world.listening, world.new_protocol))
        assert len(world.faults) == 1
        assert len(world.protocols) == 1
        other.setblocking(False)
        assert await world.receive(other, 1) == b""
        client.send(b"x")
        await until(lambda: protocol.data == b"x")
        client.close()
        other.close()

    run(test)


# --- the loop -------------------------------------------------------------------------------------


def test_a_callback_of_the_loop_is_called_while_sockets_are_always_ready() -> None:
    """Such a loop stays in its selector as long as it has nothing else to do."""

    async def test(world: World) -> None:
        client, protocol = await world.open()

        # A socket that is ready whenever it is looked at.
        def send_again(data: bytes) -> None:
            client.send(data)

        protocol.data_received = send_again  # type: ignore[method-assign]
        client.send(b"x")
        ready: list[str] = []

        def later() -> None:
            ready.append("later")
            world.loop.call_soon(ready.append, "soon")

        world.loop.call_later(0.01, later)
        world.loop.call_soon_threadsafe(ready.append, "thread")
        await asyncio.sleep(0.03)
        assert ready == ["thread", "later", "soon"]
        client.close()

    run(test)


def test_what_a_protocol_schedules_is_called_without_another_event() -> None:
    async def test(world: World) -> None:
        client, protocol = await world.open()
        called = asyncio.Event()

        def schedule(data: bytes) -> None:
            world.loop.call_soon(called.set)

        protocol.data_received = schedule  # type: ignore[method-assign]
        client.send(b"x")
        # No timer: nothing else ends the wait of the loop.
        await called.wait()
        client.close()

    run(test)


def test_other_descriptors_of_the_loop_are_served_too() -> None:
    async def test(world: World) -> None:
        one, other = socket.socketpair()
        for each in (one, other):
            each.setblocking(False)
        received: list[bytes] = []
        world.loop.add_reader(one, lambda: received.append(one.recv(10)))
        other.send(b"x")
        await until(lambda: received == [b"x"])
        world.loop.remove_reader(one)
        written: list[int] = []
        world.loop.add_writer(one, lambda: written.append(1))
        await until(lambda: len(written) > 1)
        world.loop.remove_writer(one)
        one.close()
        other.close()

    run(test)
