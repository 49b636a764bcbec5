"""Attempts of a stranger to use a session that belongs to somebody else.

A stranger connects with the client identifier of a session, but under a user name to which the
session does not belong, at any moment, with or without a clean start. It must be refused, and the
session must not notice: it stays connected, keeps its owner and everything in it.
"""

from typing import TYPE_CHECKING

from semel.broker.connection import Connection
from semel.broker.identity import PeerInfo
from semel.mqtt import MQTT5, MQTT311, ConnAck, Connect, Properties, Will, encode
from semel.mqtt.codec import decode
from semel.mqtt.reasons import CLIENT_IDENTIFIER_NOT_VALID, REFUSED_IDENTIFIER_REJECTED
from tests.simulation.clock import Broken
from tests.simulation.rights import THIEF

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World


class Thefts:
    """Connects as a thief, and checks the answers."""

    def __init__(self, world: "World") -> None:
        self._world = world
        # By connection number: the version of a thief that awaits its refusal.
        self._versions: dict[int, int] = {}

    def forget(self) -> None:
        """Start over with a new broker."""
        self._versions = {}

    def attempt(self, client: "Client", a: int) -> None:
        """A thief connects with the identifier of this client, if that has a session."""
        world = self._world
        state = world.broker.router.sessions.get(client.name)
        if state is None:
            return
        world.tally["thefts"] += 1
        version = MQTT5 if a % 2 else MQTT311
        expiry = 30 if version == MQTT5 and a // 8 % 2 else None
        packet = Connect(
            client.name,
            version=version,
            clean_start=a // 2 % 2 == 1,
            will=Will("w/thief", b"stolen", qos=1) if a // 4 % 2 else None,
            user_name=THIEF,
            properties=Properties(session_expiry_interval=expiry),
        )
        world.add_trace(f"    {THIEF} connects as {client.name}, clean {packet.clean_start}")
        connection = world.broker.opened(PeerInfo("thief"), world.clock.now)
        self._versions[connection.number] = version
        number, owner, size = state.connection, state.identity, len(state.session.backlog)
        world.broker.receive(connection, encode(packet, version), world.clock.now)
        if not connection.closing:
            raise Broken(f"{THIEF} was allowed to use the session of {client.name}")
        is_same = world.broker.router.sessions.get(client.name) is state and (
            (number, owner, size) == (state.connection, state.identity, len(state.session.backlog))
        )
        if not is_same or (number and world.broker.connections[number].closing):
            raise Broken(f"the session of {client.name} has noticed the attempt of {THIEF}")

    def take_output(self, connection: Connection) -> bool:
        """Check the output for a thief; False: the connection is not that of a thief."""
        version = self._versions.pop(connection.number, None)
        if version is None:
            return False
        data = connection.take_outgoing()
        code = CLIENT_IDENTIFIER_NOT_VALID if version == MQTT5 else REFUSED_IDENTIFIER_REJECTED
        # Without a tick since then, it is closed before its CONNACK is encoded.
        if data:
            decoded = decode(data, version)
            if decoded is None or not isinstance(decoded[0], ConnAck) or decoded[0].reason != code:
                raise Broken(f"{THIEF} was answered {decoded}")
        self._world.broker.lost(connection, self._world.clock.now)
        return True
