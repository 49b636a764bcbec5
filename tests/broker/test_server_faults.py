"""The server's own loop: what fails there is said, and everybody else is served on."""

import asyncio
import contextlib
import logging

import pytest

from semel.broker import server as server_module
from semel.broker.core import Broker
from semel.broker.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, encode
from semel.store.commit import Commit
from tests.broker.live import PATIENCE


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


@pytest.mark.parametrize("name", ["sweep", "flush"])
def test_the_sweep_goes_on_after_it_has_failed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever never connects is closed all the same."""
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.01)

    async def serve() -> bytes:
        server = Server(BrokerSettings(port=0, connect_timeout=1.0))
        host, port = await server.start()
        server.broker = Raising(server.broker, name, 3)  # type: ignore[assignment]
        while server.broker.times:  # type: ignore[attr-defined]
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
        server.broker = Raising(server.broker, "committed", 1)  # type: ignore[assignment]
        server._committed([failing, following])
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
