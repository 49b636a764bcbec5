"""A socket with layers, and the protocol inside that knows nothing of them."""

import asyncio
from collections.abc import Callable

import pytest

from semel.broker.network.address_log import AddressLog
from semel.broker.network.handshakes import Handshakes
from semel.broker.network.layer import LayerFailed
from semel.broker.network.layer_stack import LayerStack
from semel.broker.network.layered_transport import LayeredProtocol, LayeredTransport
from tests.broker.layers_by_hand import Shift, Wire

# Generous: it only ends what would hang.
PATIENCE = 60.0


class Inner(asyncio.Protocol):
    """The protocol inside: keeps what it gets."""

    def __init__(self) -> None:
        self.transport: LayeredTransport | None = None
        self.received = b""
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, LayeredTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"explode":
            raise ZeroDivisionError
        if data == b"leave":
            assert self.transport is not None
            self.transport.close()
        self.received += data

    def connection_lost(self, problem: Exception | None) -> None:
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class World:
    """One connection. It is the LayerOwner, too."""

    def __init__(self, layer: Shift) -> None:
        self.connect_seconds = 10.0
        self.is_stopping = False
        self.refusal: str | None = None
        self.problem: str | None = None
        self.inner = Inner()
        self.failures: list[str] = []
        self.failed_handshakes: list[str] = []
        self.lines: list[str] = []
        loop = asyncio.get_running_loop()
        self.handshakes = Handshakes(loop, AddressLog(self.lines.append), maximum_unconnected=5)
        self.layer = layer
        self.wire = Wire()
        self.protocol = LayeredProtocol(LayerStack([layer]), self.handshakes, self)

    def connect(self) -> "World":
        self.protocol.connection_made(self.wire)
        return self

    def establish(self) -> "World":
        self.connect().protocol.data_received(b"|hello")
        assert self.wire.taken() == b"|welcome"
        return self

    def transport(self) -> LayeredTransport:
        assert self.inner.transport is not None
        return self.inner.transport

    def now(self) -> float:
        return 5.0

    def identify(self, transport: asyncio.BaseTransport) -> tuple[str, str]:
        host, port = transport.get_extra_info("peername")
        return f"{host}:{port}", host

    def refuse_new(self, address: str) -> str | None:
        assert address == "192.0.2.1"
        return self.refusal

    def first_bytes_problem(self, data: bytes) -> str | None:
        return self.problem

    def make_inner(
        self, connection: LayeredProtocol, transport: asyncio.Transport
    ) -> asyncio.Protocol:
        assert connection is self.protocol
        assert transport is self.wire
        return self.inner

    def handshake_failed(self, connection: LayeredProtocol, why: str) -> None:
        assert connection is self.protocol
        self.failed_handshakes.append(why)

    def inner_failed(self, inner: asyncio.Protocol, why: str) -> None:
        assert inner is self.inner
        self.failures.append(why)


def with_world(
    check: Callable[[World], None], make_layer: Callable[[], Shift] = lambda: Shift(b"|")
) -> None:
    """Run a check in an event loop."""

    async def run() -> None:
        world = World(make_layer())
        try:
            check(world)
        finally:
            world.handshakes.close()

    asyncio.run(run())


# --- the handshake --------------------------------------------------------------------------------


def test_the_inner_protocol_begins_when_the_handshake_is_complete() -> None:
    def check(world: World) -> None:
        world.connect()
        assert len(world.handshakes) == 1
        assert world.inner.transport is None
        world.protocol.data_received(b"|hello|data")
        assert len(world.handshakes) == 0
        assert world.wire.taken() == b"|welcome"
        assert world.inner.received == b"data"
        assert world.protocol.accepted_at == 5.0
        world.protocol.data_received(b"|more")
        assert world.inner.received == b"datamore"

    with_world(check)


def test_a_failed_handshake_is_logged_answered_and_closed() -> None:
    def check(world: World) -> None:
        world.connect().protocol.data_received(b"what")
        assert world.wire.taken() == b"|refused"
        assert world.wire.is_closed
        assert world.lines == ["192.0.2.1:5 closed: no hello in b'what'"]
        assert len(world.handshakes) == 0
        world.protocol.data_received(b"|hello")
        world.protocol.connection_lost(None)
        assert world.inner.transport is None

    with_world(check)


def test_a_connection_may_be_refused_before_its_handshake() -> None:
    def check(world: World) -> None:
        world.refusal = "too many"
        world.connect()
        assert world.wire.is_aborted
        assert world.lines == ["192.0.2.1:5 closed: too many"]
        assert len(world.handshakes) == 0
        world.protocol.data_received(b"|hello")
        assert world.wire.written == b""

    with_world(check)


def test_a_connection_may_be_refused_by_its_first_bytes_only() -> None:
    def refused(world: World) -> None:
        world.problem = "it begins wrong"
        world.connect().protocol.data_received(b"|hello")
        assert world.wire.is_closed
        assert world.lines == ["192.0.2.1:5 closed: it begins wrong"]

    def accepted(world: World) -> None:
        world.establish()
        world.problem = "it begins wrong"
        world.protocol.data_received(b"|data")
        assert world.inner.received == b"data"

    with_world(refused)
    with_world(accepted)


def test_a_connection_that_ends_in_its_handshake_is_forgotten() -> None:
    def check(world: World) -> None:
        world.connect()
        world.protocol.pause_writing()
        world.protocol.resume_writing()
        world.protocol.connection_lost(None)
        assert len(world.handshakes) == 0
        assert world.lines == []
        assert world.inner.events == []

    with_world(check)


# --- work in a thread -----------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_failure_while_the_work_runs_ends_the_connection_at_once() -> None:
    def check(world: World) -> None:
        world.connect().protocol.data_received(b"|hel")
        world.layer.failure = LayerFailed("too many bytes")
        world.protocol.data_received(b"more")
        assert world.wire.is_closed
        assert world.protocol.is_cancelled
        assert world.lines == ["192.0.2.1:5 closed: too many bytes"]
        # The thread ends its work later.
        world.protocol.worked()
        assert world.inner.transport is None

    with_world(check, lambda: Shift(b"|", works=True))


# --- afterwards -----------------------------------------------------------------------------------


def test_what_is_written_passes_the_layers() -> None:
    def check(world: World) -> None:
        world.establish()
        transport = world.transport()
        transport.write(bytearray(b"answer"))
        assert transport.get_write_buffer_size() == len(b"|answer")
        assert world.wire.taken() == b"|answer"
        assert transport.get_extra_info("peername") == ("192.0.2.1", 5)
        transport.set_write_buffer_limits(high=7, low=3)
        assert world.wire.limits == (7, 3)
        transport.pause_reading()
        transport.resume_reading()
        assert world.wire.reading == ["pause", "resume"]
        world.protocol.pause_writing()
        world.protocol.resume_writing()
        world.protocol.connection_lost(None)
        assert world.inner.events == ["pause", "resume", "lost"]

    with_world(check)


@pytest.mark.parametrize(("is_stopping", "word"), [(False, b"|close"), (True, b"|shutdown")])
def test_closing_ends_the_layers_in_order(is_stopping: bool, word: bytes) -> None:
    def check(world: World) -> None:
        world.establish()
        world.is_stopping = is_stopping
        world.transport().close()
        world.transport().close()
        world.transport().write(b"late")
        assert world.wire.taken() == word
        assert world.wire.is_closed
        assert world.transport().is_closing()
        world.protocol.data_received(b"|late")
        assert world.inner.received == b""

    with_world(check)


def test_closing_a_layer_without_an_end_of_its_own_closes_the_socket() -> None:
    class Silent(Shift):
        def close(self, *, is_shutdown: bool = False) -> bytes:
            return b""

    def check(world: World) -> None:
        world.establish()
        world.transport().close()
        assert world.wire.is_closed
        assert world.wire.written == b""

    with_world(check, lambda: Silent(b"|"))


def test_an_inner_protocol_that_closes_gets_nothing_more() -> None:
    def check(world: World) -> None:
        world.establish()
        world.protocol.data_received(b"|leave")
        assert world.wire.taken() == b"|close"
        world.protocol.data_received(b"|more")
        assert world.inner.received == b"leave"

    with_world(check)


def test_an_abort_writes_nothing() -> None:
    def check(world: World) -> None:
        world.establish()
        world.transport().abort()
        assert world.wire.is_aborted
        assert world.wire.written == b""
        assert world.transport().is_closing()

    with_world(check)


def test_an_end_of_file_ends_the_layers_and_what_arrives_is_ignored() -> None:
    def check(world: World) -> None:
        world.establish()
        assert world.transport().can_write_eof()
        world.transport().write_eof()
        assert world.wire.taken() == b"|close(end)"
        assert not world.wire.is_closing()

    with_world(check)


async def let_others_run() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_bytes_are_held_while_the_inner_protocol_does_not_read() -> None:
    async def run() -> None:
        world = World(Shift(b"|")).establish()
        world.transport().pause_reading()
        # They were in the same segment as what made it pause.
        world.protocol.data_received(b"|one")
        world.protocol.data_received(b"|two")
        assert world.inner.received == b""
        world.transport().resume_reading()
        assert world.inner.received == b""
        await let_others_run()
        assert world.inner.received == b"onetwo"
        assert world.wire.reading == ["pause", "resume"]
        # It pauses again before they are delivered.
        world.transport().pause_reading()
        world.protocol.data_received(b"|three")
        world.transport().resume_reading()
        world.transport().pause_reading()
        await let_others_run()
        assert world.inner.received == b"onetwo"
        assert world.wire.reading[2:] == ["pause", "pause"]
        world.transport().resume_reading()
        await let_others_run()
        assert world.inner.received == b"onetwothree"
        world.handshakes.close()

    asyncio.run(run())


def test_held_bytes_of_a_closed_connection_are_dropped() -> None:
    async def run() -> None:
        world = World(Shift(b"|")).establish()
        world.transport().pause_reading()
        world.protocol.data_received(b"|late")
        world.transport().resume_reading()
        world.transport().abort()
        await let_others_run()
        assert world.inner.received == b""
        assert world.wire.reading == ["pause"]
        world.handshakes.close()

    asyncio.run(run())


def test_another_protocol_can_take_over() -> None:
    def check(world: World) -> None:
        world.establish()
        other = Inner()
        world.transport().set_protocol(other)
        assert world.transport().get_protocol() is other
        world.protocol.data_received(b"|data")
        world.protocol.connection_lost(None)
        assert (other.received, other.events) == (b"data", ["lost"])
        assert (world.inner.received, world.inner.events) == (b"", [])

    with_world(check)


def test_an_end_by_the_peer_is_answered_and_closes_without_a_line() -> None:
    def check(world: World) -> None:
        world.establish()
        world.protocol.data_received(b"|last|bye")
        assert world.inner.received == b"last"
        assert world.wire.taken() == b"|bye"
        assert world.wire.is_closed
        assert world.lines == world.failures == []

    with_world(check)


def test_a_layer_that_fails_later_is_reported_to_the_owner() -> None:
    def check(world: World) -> None:
        world.establish()
        world.protocol.data_received(b"|last|bad")
        assert world.inner.received == b"last"
        assert world.failures == ["a bad piece"]
        assert world.lines == []
        assert world.wire.is_closed

    with_world(check)


def test_an_exception_closes_this_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    def check(world: World) -> None:
        world.establish()
        world.protocol.data_received(b"|explode")
        assert world.wire.is_aborted
        assert "192.0.2.1:5 closed: serving it failed" in caplog.text
        assert "ZeroDivisionError" in caplog.text

    with_world(check)


def test_nothing_is_written_to_a_socket_that_is_closing() -> None:
    def check(world: World) -> None:
        world.connect()
        world.wire.is_closed = True
        world.protocol.data_received(b"|hello")
        assert world.wire.written == b""

    with_world(check)
