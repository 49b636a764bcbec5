"""A CONNECT that awaits a Proof: nothing else of the client is processed until it has decided."""

import pytest

from semel.broker.authority import Authority, Denied, Granted, Proof, ServerAuthentication, Step
from semel.broker.connection import Connection
from semel.broker.identity import Identity, PeerInfo, identity_of
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    Subscribe,
    Subscription,
)
from semel.mqtt.reasons import BAD_USER_NAME_OR_PASSWORD
from tests.broker.world import Client, World

KEPT = Properties(session_expiry_interval=100)


class Slow(Proof):
    """Knows one password."""

    def __init__(self, packet: Connect, peer: PeerInfo) -> None:
        self.packet = packet
        self.peer = peer

    def run(self) -> Identity | Denied:
        if self.packet.password != b"right":
            return Denied(BAD_USER_NAME_OR_PASSWORD)
        user_name = self.packet.user_name
        return identity_of(self.packet.client_id, self.peer, user_name=user_name)


class Passwords(Authority):
    """Every session belongs to its user."""

    def __init__(self) -> None:
        self.left_clients: list[str] = []

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return Slow(packet, peer)

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        return identity.user_name == owner.user_name

    def left(self, identity: Identity) -> None:
        self.left_clients.append(identity.client_id)


def login(
    client_id: str = "a",
    *,
    user_name: str = "ann",
    password: bytes = b"right",
    version: int = MQTT5,
    clean_start: bool = True,
    properties: Properties | None = None,
) -> Connect:
    return Connect(
        client_id,
        version=version,
        user_name=user_name,
        password=password,
        clean_start=clean_start,
        properties=properties or Properties(),
    )


def decide(world: World, client: Client) -> list[object]:
    """Run the proof of this client, as the server does in a thread."""
    proofs: list[tuple[Connection, Proof]] = world.broker.take_proofs()
    ((connection, proof),) = proofs
    assert connection is client.connection
    world.broker.proved(connection, proof.run(), world.now)
    world.tick()
    return [*client.take()]


def connected(world: World, packet: Connect) -> Client:
    client = world.open(packet.version)
    assert client.send(packet) == []
    connack = decide(world, client)[0]
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    return client


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_what_follows_a_connect_waits_until_it_is_proved(version: int) -> None:
    world = World(authority=Passwords())
    client = world.open(version)
    assert client.send(login(version=version), PingReq()) == []
    assert client.connection.awaits_proof
    world.wait(5)
    assert client.take() == []
    connack, answer = decide(world, client)
    assert isinstance(connack, ConnAck)
    assert (connack.reason, answer) == (0, PingResp())
    assert client.connection.may_be_read
    assert [connection.number for connection in world.broker.resumed] == [client.connection.number]


@pytest.mark.parametrize(("version", "code"), [(MQTT311, 4), (MQTT5, 0x86)])
def test_a_proof_that_fails_refuses_and_nothing_else_is_processed(version: int, code: int) -> None:
    world = World(authority=Passwords())
    client = world.open(version)
    retained = Publish("t", b"x", retain=True)
    assert client.send(login(version=version, password=b"wrong"), retained) == []
    assert decide(world, client) == [ConnAck(code)]
    assert client.is_closed()
    assert len(world.broker.router.retained) == 0


def test_a_proof_that_takes_too_long_ends_the_connection_and_its_result_has_no_effect() -> None:
    world = World(BrokerSettings(connect_timeout=3.0), Passwords())
    client = world.open()
    client.send(login())
    world.wait(4)
    assert client.is_closed()
    assert decide(world, client) == []
    assert world.broker.router.sessions == {}


def test_a_proof_of_a_connection_that_was_lost_has_no_effect() -> None:
    world = World(authority=Passwords())
    client = world.open()
    client.send(login())
    client.cut()
    ((connection, proof),) = world.broker.take_proofs()
    connection.closing = True
    world.broker.proved(connection, proof.run(), world.now)
    assert world.broker.router.sessions == {}


def test_a_failure_after_a_proof_ends_this_connection_only() -> None:
    class Failing(Passwords):
        def may_use_session(self, identity: Identity, owner: Identity) -> bool:
            raise RuntimeError("a hook that is broken")

    world = World(authority=Failing())
    other = connected(world, login("b"))
    first = connected(world, login())
    second = world.open()
    second.send(login())
    assert decide(world, second) == []
    assert second.is_closed()
    assert not first.is_closed()
    assert other.send(PingReq()) == [PingResp()]


def test_several_proofs_are_decided_in_any_order() -> None:
    world = World(authority=Passwords())
    clients = [world.open() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(login(f"c{number}"))
    proofs = world.broker.take_proofs()
    assert world.broker.take_proofs() == []
    for connection, proof in reversed(proofs):
        world.broker.proved(connection, proof.run(), world.now)
    world.tick()
    assert [len(client.take()) for client in clients] == [1, 1, 1]
    assert len(world.broker.router.sessions) == 3


# --- whose session it is --------------------------------------------------------------------------


@pytest.mark.parametrize("clean_start", [False, True])
def test_class_15_nobody_else_can_resume_take_over_or_wipe_a_session(clean_start: bool) -> None:
    world = World(authority=Passwords())
    owner = connected(world, login(properties=KEPT))
    owner.send(Subscribe(1, [Subscription("t", 1)]))
    thief = world.open()
    thief.send(login(user_name="eve", clean_start=clean_start))
    (refusal,) = decide(world, thief)
    assert isinstance(refusal, ConnAck)
    assert refusal.reason == 0x85
    assert not owner.is_closed()
    owner.cut()
    thief = world.open()
    thief.send(login(user_name="eve", clean_start=clean_start))
    (refusal,) = decide(world, thief)
    assert isinstance(refusal, ConnAck)
    assert refusal.reason == 0x85
    again = world.open()
    again.send(login(clean_start=False, properties=KEPT))
    (connack,) = decide(world, again)
    assert isinstance(connack, ConnAck)
    assert (connack.reason, connack.session_present) == (0, True)
    assert world.broker.router.subscriptions.has("a", "t")


def test_who_is_not_proved_does_not_learn_whose_session_it_is() -> None:
    world = World(authority=Passwords())
    connected(world, login(properties=KEPT))
    for client_id in ("a", "b"):
        stranger = world.open()
        stranger.send(login(client_id, user_name="eve", password=b"wrong"))
        assert decide(world, stranger) == [ConnAck(0x86)]


def test_the_authority_hears_when_a_client_leaves() -> None:
    authority = Passwords()
    world = World(authority=authority)
    first, second = connected(world, login("a")), connected(world, login("b"))
    first.send(Disconnect())
    second.cut()
    assert authority.left_clients == ["a", "b"]


# --- credentials that expire ----------------------------------------------------------------------


class Expiring(Authority):
    """Everybody may stay for ten seconds."""

    def __init__(self, until: float | None) -> None:
        self.until = until

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return identity_of(packet.client_id, peer, expires_at=self.until)


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("until", [1_010.0, None])
def test_a_client_whose_credentials_expire_is_disconnected(
    version: int, until: float | None
) -> None:
    world = World(authority=Expiring(until))
    client = world.connect("a", version)
    world.wait(9)
    assert not client.is_closed()
    world.wait(2)
    assert client.is_closed() == (until is not None)
    if until is not None and version == MQTT5:
        assert client.take() == [Disconnect(0xA0)]


# --- enhanced authentication ----------------------------------------------------------------------


class Renewing(ServerAuthentication):
    """Grants the user that the data names."""

    def start(self, data: bytes | None) -> Step:
        user_name = (data or b"").decode()
        return Granted(identity=Identity("whatever", user_name=user_name, groups=("g",)))


class ByMethod(Passwords):
    """Everybody authenticates by AUTH, after a CONNECT without a proof."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return identity_of(packet.client_id, peer)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        return Renewing()


def method_and(data: bytes) -> Properties:
    return Properties(
        authentication_method="M", authentication_data=data, session_expiry_interval=100
    )


def test_an_identity_of_enhanced_authentication_replaces_that_of_connect() -> None:
    world = World(authority=ByMethod())
    client = world.open()
    (connack, *_) = client.send(Connect("a", properties=method_and(b"ann")))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    owner = world.broker.router.sessions["a"].identity
    assert (owner.client_id, owner.user_name, owner.groups) == ("a", "ann", ("g",))
    again = Properties(authentication_method="M", authentication_data=b"ann")
    (answer,) = client.send(Auth(0x19, properties=again))
    assert isinstance(answer, Auth)
    assert not client.is_closed()


def test_who_authenticates_again_as_somebody_else_is_disconnected() -> None:
    world = World(authority=ByMethod())
    client = world.open()
    client.send(Connect("a", properties=method_and(b"ann")))
    other = Properties(authentication_method="M", authentication_data=b"eve")
    assert client.send(Auth(0x19, properties=other)) == [Disconnect(0x87)]
    assert client.is_closed()
    assert world.broker.router.sessions["a"].identity.user_name == "ann"


def test_a_proof_decides_nothing_by_itself() -> None:
    with pytest.raises(NotImplementedError):
        Proof().run()
