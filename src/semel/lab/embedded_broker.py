"""The broker in the process of a test: start, stop, kill, and inspect it.

It is the unmodified server of `semel broker`. Its store is in a temporary directory, in memory if
possible. The store is not fsynced: this process cannot simulate a power loss anyway. Everything
belongs to one event loop.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from semel.broker.access_control import OWN_TOPICS
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.connection import Connection
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.identity import Identity, PeerInfo, identity_of
from semel.broker.network.server import Server
from semel.broker.session_state import SessionState
from semel.broker.settings import BrokerSettings
from semel.lab.in_process_client import PEER, InProcessClient
from semel.mqtt import Connect, Message, Properties, Publish, check_levels
from semel.mqtt.message import received_message
from semel.mqtt.packet_types import DISCONNECT, PACKET_NAMES
from semel.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    DISCONNECT_ONLY_CLIENT,
    REASONS_5,
    SERVER_SHUTTING_DOWN,
)
from semel.mqtt.topics import quoted
from semel.store.opening import Opened, open_store
from semel.store.settings import OS, StoreSettings

# The client identifier of the test's own connection.
TEST_CLIENT: Final = "semel-test"

# How often to check whether the store has written, in seconds.
POLL_SECONDS: Final = 0.001

# A directory in memory, where a store is created in 5 ms instead of 50, and the space it needs.
MEMORY_DIRECTORY: Final = "/dev/shm"  # nosec B108 # tempfile makes one in it
REQUIRED_BYTES: Final = 1024**3


class Users(Authority):
    """Authenticates clients by user name and password; permits them everything."""

    def __init__(self, passwords: Mapping[str, str | bytes]) -> None:
        self.passwords = {
            name: password.encode() if isinstance(password, str) else bytes(password)
            for name, password in passwords.items()
        }

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        identity = identity_of(packet.client_id, peer, user_name=packet.user_name)
        if peer.label == PEER:
            return identity
        password = None if packet.user_name is None else self.passwords.get(packet.user_name)
        if password is None or packet.password != password:
            return Denied(BAD_USER_NAME_OR_PASSWORD)
        return identity


@dataclass(frozen=True)
class SessionSnapshot:
    """The state of a session at the time of the call.

    `expiry_interval` is in seconds, 0xFFFFFFFF for never; `queued` counts the messages that have
    not been sent yet; `topic_filters` are its subscriptions.
    """

    client_id: str
    is_connected: bool
    expiry_interval: int
    queued: int
    topic_filters: tuple[str, ...]


def _memory_directory() -> str | None:
    """The parent directory of a store: in memory, if there is space and TMPDIR is not set.

    None: the default for temporary directories.
    """
    if os.environ.get("TMPDIR") or not os.access(MEMORY_DIRECTORY, os.W_OK | os.X_OK):
        return None
    try:
        free = shutil.disk_usage(MEMORY_DIRECTORY).free
    except OSError:
        return None
    return MEMORY_DIRECTORY if free >= REQUIRED_BYTES else None


class EmbeddedBroker:
    """Runs one broker after another, on the same store or without one."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        authority: Authority,
        store: bool,
        on_message: Callable[[Message], None],
    ) -> None:
        # The test's own connection and session do not count against the limits.
        self.settings = replace(
            settings,
            maximum_connections=min(settings.maximum_connections + 1, 1_000_000),
            maximum_sessions=settings.maximum_sessions + 1,
        )
        self.authority = authority
        self.on_message = on_message
        self.folder = (
            TemporaryDirectory(prefix="semel-test-", dir=_memory_directory()) if store else None
        )
        self.server: Server | None = None
        self._opened: Opened | None = None
        self._client: InProcessClient | None = None
        # Counts the times that the store was replaced by an empty one.
        self._store_number = 0

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self, *, forget: bool = False) -> tuple[str, int]:
        """Start a broker, and return its address. `forget`: with an empty store."""
        if forget:
            self._store_number += 1
        store = streams = None
        if self.folder is not None:
            data = Path(self.folder.name, str(self._store_number))
            self._opened = open_store(StoreSettings(data=data, durability=OS), [])
            store, streams = self._opened.store, self._opened.streams
        try:
            self.server = Server(self.settings, self.authority, store, streams)
            address = await self.server.start()
            self._client = InProcessClient(self.server, self._handle_publish)
            await self._client.connect(TEST_CLIENT)
            await self._client.subscribe("#")
        except BaseException:
            await self.kill()
            raise
        return address

    def _handle_publish(self, packet: Publish) -> None:
        assert self.server is not None
        self.on_message(received_message(packet, packet.topic_name, self.server.now()))

    async def stop(self) -> None:
        """Shut the broker down: clients get DISCONNECT, and the store is complete."""
        server, client = self.server, self._client
        if server is None or client is None:
            return
        for peer in server.peers.by_number.values():
            peer.pause()
        # Wait for pending commits, so that their acknowledgements are sent, as the server does.
        await self._wait_until_written()
        # The test's own connection closes last, so that it gets the wills of the others.
        for connection in list(server.broker.connections.values()):
            if connection.is_connected and connection is not client.connection:
                server.broker.disconnect(connection, SERVER_SHUTTING_DOWN, server.now())
        server.peers.tick()
        await self._wait_until_written()
        await client.close()
        await server.stop()
        self._close_store()

    async def kill(self) -> None:
        """End the broker abruptly, as kill -9 would.

        Writes that the store has accepted still complete, but are not acknowledged to clients.
        """
        server = self.server
        if server is None:
            self._close_store()
            return
        for peer in list(server.peers.by_number.values()):
            peer.detach()
            if peer.transport is not None:
                peer.transport.abort()
        server.peers.by_number.clear()
        server.stop_listening()
        server.close_sockets()
        server.handshakes.close()
        if server.sweeper is not None:
            server.sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await server.sweeper
        await self._wait_until_written()
        while server.peers.is_scheduled:
            await asyncio.sleep(0)
        await self._wait_until_written()
        self._close_store()

    def is_writing(self) -> bool:
        """Whether the store has unfinished writes."""
        if self.server is None or self.server.failure is not None or self._opened is None:
            return False
        return bool(self._opened.store.sizes)

    async def _wait_until_written(self) -> None:
        """Wait until the store has finished its writes; there must be no new ones."""
        while self.is_writing():
            await asyncio.sleep(POLL_SECONDS)

    def _close_store(self) -> None:
        self.server = None
        self._client = None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def clean_up(self) -> None:
        """Delete the store's directory."""
        if self.folder is not None:
            self.folder.cleanup()

    # --- actions ----------------------------------------------------------------------------------

    def running_server(self) -> Server:
        """The server. Raises RuntimeError if it is down."""
        if self.server is None:
            raise RuntimeError("the broker is stopped: call start() first")
        return self.server

    async def publish(
        self, topic_name: str, payload: bytes, qos: int, *, retain: bool, properties: Properties
    ) -> None:
        """Publish a message of the test. Raises RequestFailed, Violation and ValueError."""
        server = self.running_server()
        assert self._client is not None
        if properties.has(TOPIC_ALIAS) or properties.has(SUBSCRIPTION_IDENTIFIER):
            raise ValueError("topic_alias and subscription_identifiers are not part of a message")
        if topic_name.startswith((OWN_TOPICS, STREAM_TOPICS)):
            raise ValueError(f"{quoted(topic_name)} is reserved for the broker")
        check_levels(topic_name, self.settings.topic_levels)
        await self._client.publish(topic_name, payload, qos, retain=retain, properties=properties)
        # At QoS 0 there is no acknowledgement to await: send it now.
        server.peers.tick()

    def connection_of(self, client_id: str) -> Connection:
        """The connection of a client. Raises LookupError if it has none."""
        server = self.running_server()
        state = server.broker.router.sessions.get(client_id)
        connection = None if state is None else server.broker.connections.get(state.connection)
        if connection is None:
            raise LookupError(
                f"no client {quoted(client_id)} is connected; {self._list_connected()}"
            )
        return connection

    def _list_connected(self) -> str:
        names = [session.client_id for session in self.sessions() if session.is_connected]
        return f"connected: {', '.join(map(quoted, names)) or 'none'}"

    def disconnect(self, client_id: str, reason: int) -> None:
        """Disconnect a client. Raises ValueError if a server may not send this reason code."""
        if reason not in REASONS_5[DISCONNECT] or reason in DISCONNECT_ONLY_CLIENT:
            name = PACKET_NAMES[DISCONNECT]
            raise ValueError(f"0x{reason:02x} is not a reason code of a server's {name}")
        server = self.running_server()
        server.broker.disconnect(self.connection_of(client_id), reason, server.now())
        server.peers.tick()

    async def take_over(self, client_id: str, *, clean_start: bool) -> None:
        """Take over the session of a connected client, and disconnect again."""
        self.connection_of(client_id)
        await self._connect_briefly(self._session(client_id), clean_start=clean_start)

    async def expire(self, client_id: str, cut_client: Callable[[], None]) -> None:
        """End a session; `cut_client` is called first if its client is connected."""
        state = self._session(client_id)
        if state.connection:
            cut_client()
        await self._connect_briefly(state, clean_start=True)

    async def _connect_briefly(self, state: SessionState, *, clean_start: bool) -> None:
        """Connect to a session, and disconnect again."""
        client = InProcessClient(self.running_server())
        expiry_interval = 0 if clean_start else state.expiry_interval
        try:
            await client.connect(
                state.client_id, clean_start=clean_start, expiry_interval=expiry_interval
            )
        finally:
            await client.close()

    def _session(self, client_id: str) -> SessionState:
        state = self.running_server().broker.router.sessions.get(client_id)
        if state is None or client_id == TEST_CLIENT:
            names = ", ".join(quoted(session.client_id) for session in self.sessions())
            raise LookupError(
                f"there is no session {quoted(client_id)}; sessions: {names or 'none'}"
            )
        return state

    # --- sessions ---------------------------------------------------------------------------------

    def sessions(self) -> list[SessionSnapshot]:
        """All sessions except the test's own."""
        router = self.running_server().broker.router
        return [
            SessionSnapshot(
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


def check_setting_names(settings: Mapping[str, object]) -> None:
    """Raises TypeError if a name is not a setting of [broker] that a test may change."""
    # The test uses its own logging.
    of_command = (
        "host",
        "port",
        "anonymous",
        "log_level",
        "log_format",
        "metrics_host",
        "metrics_port",
    )
    known = [field.name for field in fields(BrokerSettings) if field.name not in of_command]
    for name in settings:
        if name not in known:
            raise TypeError(
                f"{name!r} is not a setting of the broker: use one of {', '.join(known)}"
            )
