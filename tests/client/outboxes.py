"""Clients with an outbox, for tests: how to make, to kill and to look into one."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from semel.client import Client
from semel.mqtt import MQTT5, MQTT311, Packet, Publish, Subscribe
from tests.client.servers import QUICK, Scripted, Visit, accept, resume, start


def rows(outbox: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(outbox / "store.db")) as connection:
        return connection.execute(question).fetchall()


def change(outbox: Path, *statements: str) -> None:
    with closing(sqlite3.connect(outbox / "store.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def made(url: str, outbox: Path, *, version: int = MQTT5, **options: object) -> Client:
    """A client that comes back at once."""
    return Client(
        url,
        client_id="c",
        version=version,
        outbox=outbox,
        reconnect=QUICK,
        **options,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def killed(client: Client) -> AsyncIterator[Client]:
    """A client that leaves without a word when the block ends; its store is as it was then."""
    await client.connect()
    try:
        yield client
    finally:
        closing_it = start(client.close())
        await asyncio.sleep(0)
        closing_it.cancel()
        with suppress(asyncio.CancelledError):
            await closing_it


def lasting(version: int = MQTT5) -> Scripted:
    """A server that keeps the session; it answers all but what a client publishes.

    3.1.1 needs a connection of its own to begin clean.
    """
    return Scripted(*[accept] * (2 if version == MQTT311 else 1), resume, grants=True)


async def first_visit(server: Scripted, version: int) -> Visit:
    """The first connection of a client that has no state."""
    if version == MQTT311:
        await server.visit()
    return await server.visit()


async def answer(visit: Visit) -> Packet:
    """The next packet of the client but for its subscriptions."""
    while True:
        packet = await visit.packet()
        if not isinstance(packet, Subscribe):
            return packet


def sent_to(visit: Visit) -> list[bytes]:
    """What the client has published on this connection."""
    return [packet.payload for packet in visit.sent if isinstance(packet, Publish)]


async def until(reached: Callable[[], bool]) -> None:
    """Wait until this is true; the test's own time-out ends it otherwise."""
    while not reached():
        await asyncio.sleep(0.001)
