"""A real broker beside an attacker, and one that was stopped for a while.

The bounds are generous, because machines are busy: they tell turns from none, and no more. What an
innocent pair really feels is measured by `python -m bench fairness`.
"""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack
from typing import cast

import pytest

from semel.broker.network.peers import Peer
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, PingReq, PingResp, Publish, Will, encode
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import Link, link

# What the broker's system may read of one socket before it looks at another.
CHUNK = encode(PingReq()) * 4_000_000
MESSAGES = 20
# Half of the messages come sooner. Without turns it takes as long as a chunk does: many seconds.
MEDIAN = 1.0
STOP = 8.0


class Flood:
    """A client that sends PINGREQ without end, and reads all answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=PATIENCE)
        self.sock.sendall(encode(Connect("attacker")))
        self.threads = [threading.Thread(target=each) for each in (self._send, self._read)]
        for thread in self.threads:
            thread.start()

    def _send(self) -> None:
        try:
            while True:
                self.sock.sendall(CHUNK)
        except OSError:
            pass

    def _read(self) -> None:
        buffer = bytearray(1 << 20)
        try:
            while self.sock.recv_into(buffer):
                pass
        except OSError:
            pass

    def end(self) -> None:
        self.sock.close()
        for thread in self.threads:
            thread.join(PATIENCE)


def latency(publisher: Link, subscriber: Link, number: int) -> float:
    """How long one message takes."""
    began = time.monotonic()
    publisher.send(Publish("innocent", b"%d" % number))
    subscriber.take(1)
    return time.monotonic() - began


def test_beside_a_flood_others_are_served_and_sigterm_is_heard() -> None:
    with (
        Process() as broker,
        link(broker.address, "publisher") as publisher,
        link(broker.address, "subscriber") as subscriber,
    ):
        subscriber.subscribe("innocent")
        flood = Flood(broker.address)
        try:
            time.sleep(0.5)
            found = sorted(latency(publisher, subscriber, at) for at in range(MESSAGES))
            assert found[MESSAGES // 2] < MEDIAN
            began = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - began < STOP
        finally:
            flood.end()


def test_after_a_stall_of_the_broker_nobody_is_thrown_out_for_what_it_had_not_read() -> None:
    """A stopped process reads nothing for longer than one and a half times the keep alive."""
    with ExitStack() as stack:
        broker = stack.enter_context(Process())
        witness = stack.enter_context(link(broker.address, "witness"))
        witness.subscribe("gone")
        clients = [stack.enter_context(link(broker.address)) for _ in range(5)]
        for number, client in enumerate(clients):
            client.send(Connect(f"client-{number}", keep_alive=2, will=Will("gone", b"x")))
            client.take(1)
        broker.pause()
        try:
            for _ in range(5):
                for client in clients:
                    client.send(PingReq())
                time.sleep(1.0)
        finally:
            broker.resume()
        for client in clients:
            assert client.take(5) == [PingResp()] * 5
        # Nor is a will published.
        witness.ping()


class Transport:
    """As much of a transport as a Peer needs."""

    def __init__(self) -> None:
        self.is_read = True
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "test", 1

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


@pytest.mark.parametrize("pings", [20_000, 100_000])
def test_a_socket_is_not_read_from_while_its_client_waits_for_its_turn(pings: int) -> None:
    async def flood() -> None:
        server = Server(BrokerSettings(port=0))
        peer, transport = Peer(server.peers), Transport()
        peer.connection_made(cast(asyncio.Transport, transport))
        peer.data_received(encode(Connect("attacker")))
        while not transport.written:
            await asyncio.sleep(0)
        connack = len(transport.written)
        peer.data_received(encode(PingReq()) * pings)
        assert peer.connection is not None
        assert peer.connection.awaits_turn
        turns = 0
        while not transport.is_read:
            turns += 1
            await asyncio.sleep(0)
        # It has taken several, and everything is answered.
        assert turns > 2
        while len(transport.written) < connack + 2 * pings:
            await asyncio.sleep(0)
        assert len(transport.written) == connack + 2 * pings

    asyncio.run(asyncio.wait_for(flood(), PATIENCE))
