"""Ticks and the sweep: what fails there is said, and everybody else is served on.

A stand-in for the core makes it fail. Compiled code accepts none, so that this is tested on the
sources only.
"""

import asyncio
import contextlib
import logging

import pytest

from semel.broker.core import Broker
from semel.broker.network import server as server_module
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, PingReq, encode
from semel.store.commit import Commit
from tests.broker.broker_process import PATIENCE
from tests.modes import COMPILED

pytestmark = pytest.mark.skipif(COMPILED, reason="compiled code accepts no stand-in")


class Raising:
    """A broker one of whose methods raises the first times."""

    def __init__(self, broker: Broker, name: str, times: int) -> None:
        self.broker = broker
        self.name = name
        self.times = times

    def __getattr__(self, name: str) -> object:
        if name == self.name and self.times:
            self.times -= 1
            raise RuntimeError("a mistake")
        return getattr(self.broker, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("broker", "name", "times"):
            super().__setattr__(name, value)
        else:
            setattr(self.broker, name, value)


def stand_in(server: Server, broker: Raising) -> None:
    """Let the server and its connections use this instead of the core."""
    server.broker = broker  # type: ignore[assignment]
    server.peers.broker = broker  # type: ignore[misc, assignment]


@pytest.mark.parametrize("name", ["sweep", "flush"])
def test_the_sweep_goes_on_after_it_has_failed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever never connects is closed all the same."""
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.01)

    async def serve() -> bytes:
        server = Server(BrokerSettings(port=0, connect_timeout=1.0))
        host, port = await server.start()
        failing = Raising(server.broker, name, 3)
        stand_in(server, failing)
        while failing.times:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(host, port)
        rest = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        await server.stop()
        return rest

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(serve()) == b""
    assert [record.message for record in caplog.records].count("the sweep failed") == 3


def test_a_commit_that_cannot_be_told_closes_who_waited_for_it_and_the_next_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve() -> bytes:
        server = Server(BrokerSettings(port=0))
        host, port = await server.start()
        victim, victim_out = await asyncio.open_connection(host, port)
        other, other_out = await asyncio.open_connection(host, port)
        victim_out.write(encode(Connect("victim")))
        await asyncio.wait_for(victim.read(1), PATIENCE)
        (number,) = [n for n, each in server.broker.connections.items() if each.state is not None]
        failing, following = Commit(), Commit()
        failing.packets.append((number, []))
        following.number = 7
        stand_in(server, Raising(server.broker, "committed", 1))
        server.peers.committed([failing, following])
        with contextlib.suppress(ConnectionResetError):
            # To its end: an abort may show as either.
            await asyncio.wait_for(victim.read(), PATIENCE)
        other_out.write(encode(Connect("other")))
        answer = await asyncio.wait_for(other.read(1), PATIENCE)
        for writer in (victim_out, other_out):
            writer.close()
        await server.stop()
        return answer

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(serve()) == b"\x20"
    assert sum("could not be answered" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("name", ["opened", "lost", "written", "resumed"])
def test_a_fault_over_a_socket_is_logged_once_and_ends_that_socket_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> bytes:
        server = Server(BrokerSettings(port=0))
        host, port = await server.start()
        other, other_out = await asyncio.open_connection(host, port)
        other_out.write(encode(Connect("other")))
        assert (await asyncio.wait_for(other.readexactly(2), PATIENCE))[0] == 0x20
        raising = Raising(server.broker, "written" if name == "resumed" else name, 1)
        if name != "resumed":
            stand_in(server, raising)
        victim, victim_out = await asyncio.open_connection(host, port)
        victim_out.write(encode(Connect("victim")))
        if name in ("lost", "resumed"):
            await asyncio.wait_for(victim.read(1), PATIENCE)
        if name == "lost":
            victim_out.close()
        if name == "resumed":
            stand_in(server, raising)
            list(server.peers.by_number.values())[-1].resume_writing()
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(victim.read(), PATIENCE)
        while raising.times or len(server.peers.by_number) > 1:
            await asyncio.sleep(0.01)
        victim_out.close()
        # Neither it nor anybody else is locked out.
        again, again_out = await asyncio.open_connection(host, port)
        again_out.write(encode(Connect("victim")))
        assert await asyncio.wait_for(again.read(1), PATIENCE) == b"\x20"
        other_out.write(encode(PingReq()))
        rest = await asyncio.wait_for(other.readuntil(b"\xd0\x00"), PATIENCE)
        for writer in (other_out, again_out):
            writer.close()
        await server.stop()
        return rest[-2:]

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(serve()) == b"\xd0\x00"
    (record,) = caplog.records
    assert "Traceback" in caplog.text
    assert record.name == "semel.broker"
