"""The store knows who owns a durable session or a will."""

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.connecting import IDENTITY_TOO_LONG
from semel.broker.identity import Identity, PeerInfo, decode_identity, identity_of
from semel.broker.session_state import SessionState
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Will,
)
from semel.mqtt.reasons import BAD_USER_NAME_OR_PASSWORD, REFUSED_BAD_USER_NAME_OR_PASSWORD
from semel.store.commit import MAXIMUM_IDENTITY_BYTES
from tests.broker.core.test_restart import KEPT, Lasting
from tests.broker.world import Client

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


def connect(
    world: Lasting,
    user_name: str | None,
    *,
    version: int = MQTT5,
    will: Will | None = None,
    properties: Properties = KEPT,
) -> Client:
    """Send the CONNECT of client "a"; what it gets stays in its inbox."""
    client = world.open(version=version)
    client.inbox = client.send(
        Connect(
            "a",
            clean_start=False,
            user_name=user_name,
            will=will,
            version=version,
            properties=properties if version == MQTT5 else Properties(),
        )
    )
    return client


def state_of(world: Lasting) -> SessionState:
    return world.broker.router.sessions["a"]


def stored_users(world: Lasting, table: str = "session") -> list[str | None]:
    found = world.database.connection.execute(f"SELECT identity FROM {table}")
    return [decode_identity("a", text).user_name for (text,) in found]


@VERSIONS
def test_the_owner_of_a_durable_session_survives(version: int) -> None:
    world = Lasting()
    connect(world, "ann", version=version)
    before = state_of(world).stored_owner
    world.crash()
    assert state_of(world).stored_owner == before
    assert decode_identity("a", before).user_name == "ann"
    # Also if nobody has connected in between.
    world.crash()
    assert state_of(world).stored_owner == before


def test_another_owner_is_in_the_commit_that_connack_waits_for() -> None:
    world = Lasting()
    connect(world, "ann").cut()
    for user_name in ("ann", "bob", None):
        world.store.holding = True
        client = connect(world, user_name)
        (commit,) = world.store.held
        # One row, whether or not the owner is another one.
        ((_, _, _, identity),) = commit.sessions
        assert decode_identity("a", identity).user_name == user_name
        assert client.take() == []
        world.database.apply(world.store.held)
        world.broker.committed(commit, world.now)
        world.tick()
        world.store.held.clear()
        world.store.holding = False
        assert isinstance(client.take()[0], ConnAck)
        assert stored_users(world) == [user_name]
        client.cut()


def test_a_crash_before_connack_leaves_the_session_to_its_owner() -> None:
    world = Lasting()
    connect(world, "ann").cut()
    world.store.holding = True
    connect(world, "bob")
    world.crash()
    assert decode_identity("a", state_of(world).stored_owner).user_name == "ann"


def test_a_new_expiry_interval_leaves_the_owner() -> None:
    world = Lasting()
    client = connect(world, "ann")
    client.send(Disconnect(properties=Properties(session_expiry_interval=7)))
    assert stored_users(world) == ["ann"]
    (row,) = world.database.connection.execute("SELECT expiry_interval FROM session")
    assert row == (7,)


@pytest.mark.parametrize("user_name", ["ann", None])
@pytest.mark.parametrize("properties", [KEPT, Properties()], ids=["durable", "not durable"])
def test_a_will_after_a_crash_is_recorded_with_its_user(
    user_name: str | None, properties: Properties
) -> None:
    world = Lasting()
    connect(world, user_name, will=Will("s/gone", b"bye"), properties=properties)
    assert stored_users(world, "will") == [user_name]
    world.crash()
    (row,) = world.database.connection.execute("SELECT client_id, user_name FROM record")
    assert row == ("a", user_name)


@pytest.mark.parametrize("identity", ['{"user_name":7}', "[]", "{", "[" * 30_000])
def test_a_will_whose_identity_cannot_be_decoded_is_published(identity: str) -> None:
    world = Lasting()
    connect(world, "ann", will=Will("s/gone", b"bye"))
    world.broker.router.commit.wills.append(("a", identity, Will("s/gone", b"bye"), None))
    world.tick()
    world.crash()
    (line,) = world.log
    assert line.startswith("owner of 'a' unknown: its stored identity: ")
    (row,) = world.database.connection.execute("SELECT client_id, user_name FROM record")
    # The row of the session still has it.
    assert row == ("a", "ann")


@VERSIONS
def test_a_very_long_user_name_can_be_stored(version: int) -> None:
    """As JSON a character beyond ASCII takes six bytes."""
    longest = "é" * 30_000
    world = Lasting()
    client = connect(world, longest, version=version)
    (connack,) = client.take()
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    assert stored_users(world) == [longest]
    world.crash()
    assert decode_identity("a", state_of(world).stored_owner).user_name == longest


class Claiming(Authority):
    """Everybody has a claim of this length."""

    length = 1

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        claims = {"c": "x" * self.length}
        return identity_of(packet.client_id, peer, user_name=packet.user_name, claims=claims)


@VERSIONS
def test_an_identity_that_cannot_be_stored_is_refused(version: int) -> None:
    authority = Claiming()
    world = Lasting(authority=authority)
    first = connect(world, "ann", version=version)
    assert isinstance(first.take()[0], ConnAck)
    authority.length = MAXIMUM_IDENTITY_BYTES
    client = connect(world, "ann", version=version)
    (connack,) = client.take()
    assert isinstance(connack, ConnAck)
    if version == MQTT5:
        assert connack.reason == BAD_USER_NAME_OR_PASSWORD
        assert connack.properties.reason_string == IDENTITY_TOO_LONG
    else:
        assert connack.reason == REFUSED_BAD_USER_NAME_OR_PASSWORD
    assert client.is_closed()
    # The session was not taken over.
    assert first.send(PingReq()) == [PingResp()]
    assert stored_users(world) == ["ann"]
