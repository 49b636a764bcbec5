"""The broker in the process of a test: started, stopped, killed, and asked what it knows.

It is the server of `semel broker`, as it is. The store is a temporary folder, in memory where there
is one. An acknowledgement means that the operating system has it: no more could survive the end of
a broker that is in this process. All of it belongs to one event loop.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.router import OWN_TOPICS
from semel.broker.server import Server
from semel.broker.session_state import SessionState
from semel.broker.settings import BrokerSettings
from semel.lab.inside import PEER, Insider
from semel.mqtt import Connect, Message, Properties, Publish, check_levels
from semel.mqtt.message import received_message
from semel.mqtt.packet_types import DISCONNECT, PACKET_NAMES
from semel.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    DISCONNECT_ONLY_CLIENT,
    REASONS_5,
    SERVER_SHUTTING_DOWN,
    SUCCESS,
)
from semel.mqtt.topics import quoted
from semel.store.opening import Opened, open_store
from semel.store.settings import OS, StoreSettings

# The client identifier of the connection by which a test publishes and listens.
TEST_CLIENT: Final = "semel-test"

# How often the store is asked whether it has written, in seconds.
POLL_SECONDS: Final = 0.001

# A folder in memory, where a store is made in 5 ms and not in 50, and the room that it must have.
IN_MEMORY: Final = "/dev/shm"
ROOM_IN_MEMORY: Final = 1024**3


class Users(Authority):
    """Who may connect, by user name and password; whoever may, may do everything."""

    def __init__(self, passwords: Mapping[str, str | bytes]) -> None:
        self.passwords = {
            name: password.encode() if isinstance(password, str) else bytes(password)
            for name, password in passwords.items()
        }

    def connect(self, packet: Connect, peer: str) -> int:
        if peer == PEER:
            return SUCCESS
        wanted = None if packet.user_name is None else self.passwords.get(packet.user_name)
        if wanted is None or packet.password != wanted:
            return BAD_USER_NAME_OR_PASSWORD
        return SUCCESS


@dataclass(frozen=True)
class SessionFacts:
    """A session, as it is when asked for. `expiry_interval` is in seconds, 0xFFFFFFFF for ever;
    `queued` counts the messages that wait to be sent to it, without those that were and are not
    acknowledged; `topic_filters` are its subscriptions."""

    client_id: str
    is_connected: bool
    expiry_interval: int
    queued: int
    topic_filters: tuple[str, ...]


def _place() -> str | None:
    """Where to make the folder of a store: in memory, if there is room and nobody said otherwise by
    TMPDIR; None: where temporary folders are made."""
    if os.environ.get("TMPDIR") or not os.access(IN_MEMORY, os.W_OK | os.X_OK):
        return None
    try:
        room = shutil.disk_usage(IN_MEMORY).free
    except OSError:
        return None
    return IN_MEMORY if room >= ROOM_IN_MEMORY else None


class Hosted:
    """One broker after another, on the same store or on none."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        authority: Authority,
        store: bool,
        on_message: Callable[[Message], None],
    ) -> None:
        # The test's own connection and session are not counted against the program.
        self.settings = replace(
            settings,
            maximum_connections=min(settings.maximum_connections + 1, 1_000_000),
            maximum_sessions=settings.maximum_sessions + 1,
        )
        self.authority = authority
        self.on_message = on_message
        self.folder = TemporaryDirectory(prefix="semel-test-", dir=_place()) if store else None
        self.server: Server | None = None
        self._opened: Opened | None = None
        self._insider: Insider | None = None
        # How often the store has been forgotten.
        self._life = 0

    # --- its life ---------------------------------------------------------------------------------

    async def start(self, *, forget: bool = False) -> tuple[str, int]:
        """Run a broker; where it listens. `forget`: with an empty store."""
        if forget:
            self._life += 1
        store = streams = None
        if self.folder is not None:
            data = Path(self.folder.name, str(self._life))
            self._opened = open_store(StoreSettings(data=data, durability=OS), [])
            store, streams = self._opened.store, self._opened.streams
        try:
            self.server = Server(self.settings, self.authority, store, streams)
            address = await self.server.start()
            self._insider = Insider(self.server, self._received)
            await self._insider.connect(TEST_CLIENT)
            await self._insider.subscribe("#")
        except BaseException:
            await self.kill()
            raise
        return address

    def _received(self, packet: Publish) -> None:
        assert self.server is not None
        self.on_message(received_message(packet, packet.topic_name, self.server.now()))

    async def stop(self) -> None:
        """Let the broker end as it should: clients are told, and what is to last is on disk."""
        server, insider = self.server, self._insider
        if server is None or insider is None:
            return
        for peer in server.peers.values():
            peer.pause()
        # What the store has been given is answered first, as the server itself would see to.
        await self._written()
        # The test's own connection is the last to go: so it gets the wills of the others.
        for connection in list(server.broker.connections.values()):
            if connection.is_connected and connection is not insider.connection:
                server.broker.disconnect(connection, SERVER_SHUTTING_DOWN, server.now())
        server.tick()
        await self._written()
        await insider.close()
        await server.stop()
        self._close_store()

    async def kill(self) -> None:
        """Let it end without a word, in the middle of whatever it does.

        What the store was given before is written, as a disk goes on when a process dies; but
        nobody is told any more.
        """
        server = self.server
        if server is None:
            self._close_store()
            return
        for peer in list(server.peers.values()):
            if peer.transport is not None:
                # From here on, what happens to the connection is no longer the broker's business.
                peer.transport.set_protocol(asyncio.Protocol())
                peer.transport.abort()
        server.peers.clear()
        if server.listener is not None:
            server.listener.close()
        if server.sweeper is not None:
            server.sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await server.sweeper
        await self._written()
        while server.scheduled:
            await asyncio.sleep(0)
        await self._written()
        self._close_store()

    def is_writing(self) -> bool:
        """Whether the store has not yet all that it was given."""
        if self.server is None or self.server.failure is not None or self._opened is None:
            return False
        return bool(self._opened.store.sizes)

    async def _written(self) -> None:
        """Wait until the store has what it was given; nobody may be giving it more."""
        while self.is_writing():
            await asyncio.sleep(POLL_SECONDS)

    def _close_store(self) -> None:
        self.server = None
        self._insider = None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def clean_up(self) -> None:
        """Delete the folder."""
        if self.folder is not None:
            self.folder.cleanup()

    # --- what it does -----------------------------------------------------------------------------

    def running(self) -> Server:
        """The server. Raises RuntimeError if it is down."""
        if self.server is None:
            raise RuntimeError("the broker is stopped: call start() first")
        return self.server

    async def publish(
        self, topic_name: str, payload: bytes, qos: int, *, retain: bool, properties: Properties
    ) -> None:
        """Publish as the test. Raises NotTaken, Violation, and ValueError."""
        server = self.running()
        assert self._insider is not None
        if properties.has(TOPIC_ALIAS) or properties.has(SUBSCRIPTION_IDENTIFIER):
            raise ValueError("topic_alias and subscription_identifiers are no part of a message")
        if topic_name.startswith((OWN_TOPICS, STREAM_TOPICS)):
            raise ValueError(f"{quoted(topic_name)} is the broker's own: nobody publishes there")
        check_levels(topic_name, self.settings.topic_levels)
        await self._insider.publish(topic_name, payload, qos, retain=retain, properties=properties)
        # At QoS 0 nothing is awaited: let it leave now.
        server.tick()

    def connection_of(self, client_id: str) -> Connection:
        """The connection of a client. Raises LookupError if it has none."""
        server = self.running()
        state = server.broker.router.sessions.get(client_id)
        connection = None if state is None else server.broker.connections.get(state.connection)
        if connection is None:
            raise LookupError(f"no client {quoted(client_id)} is connected; {self._connected()}")
        return connection

    def _connected(self) -> str:
        names = [facts.client_id for facts in self.sessions() if facts.is_connected]
        return f"connected are {', '.join(map(quoted, names))}" if names else "nobody is"

    def disconnect(self, client_id: str, reason: int) -> None:
        """End a connection by the broker. Raises ValueError for what no server may say."""
        if reason not in REASONS_5[DISCONNECT] or reason in DISCONNECT_ONLY_CLIENT:
            name = PACKET_NAMES[DISCONNECT]
            raise ValueError(f"0x{reason:02x} is no reason code of a server's {name}")
        server = self.running()
        server.broker.disconnect(self.connection_of(client_id), reason, server.now())
        server.tick()

    async def take_over(self, client_id: str, *, clean_start: bool) -> None:
        """Connect with the client identifier of a client that is connected, and leave again."""
        self.connection_of(client_id)
        await self._visit(self._session(client_id), clean_start=clean_start)

    async def expire(self, client_id: str, before: Callable[[], None]) -> None:
        """Let a session be over; `before` is called at once if its client is connected."""
        state = self._session(client_id)
        if state.connection:
            before()
        await self._visit(state, clean_start=True)

    async def _visit(self, state: SessionState, *, clean_start: bool) -> None:
        """A connection of the test that has a session for a moment."""
        visitor = Insider(self.running())
        expiry_interval = 0 if clean_start else state.expiry_interval
        try:
            await visitor.connect(
                state.client_id, clean_start=clean_start, expiry_interval=expiry_interval
            )
        finally:
            await visitor.close()

    def _session(self, client_id: str) -> SessionState:
        state = self.running().broker.router.sessions.get(client_id)
        if state is None or client_id == TEST_CLIENT:
            names = ", ".join(quoted(facts.client_id) for facts in self.sessions())
            raise LookupError(
                f"no session {quoted(client_id)}; " + (f"there are {names}" if names else "none is")
            )
        return state

    # --- what it knows ----------------------------------------------------------------------------

    def sessions(self) -> list[SessionFacts]:
        """All sessions but the test's own."""
        router = self.running().broker.router
        return [
            SessionFacts(
                state.client_id,
                is_connected=state.connection > 0,
                expiry_interval=state.expiry_interval,
                queued=len(state.session.backlog),
                topic_filters=tuple(
                    entry.topic_filter for entry in router.subscriptions.of(state.client_id)
                ),
            )
            for state in router.sessions.values()
            if state.client_id != TEST_CLIENT
        ]
