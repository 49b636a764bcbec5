"""The configured authority in the broker's core: what clients see on the wire."""

from pathlib import Path

import pytest

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.password_file import UserEntry, parse_entry, remove_user, set_user
from semel.broker.access.rights_loading import read_rights
from semel.broker.access.scram_keys import make_keys
from semel.broker.access.users import load_users
from semel.broker.access.users_settings import UsersSettings
from semel.client.scram import METHOD, ScramAuthentication
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.broker.core.test_access_tokens import SECRET, payload, sign
from tests.broker.world import Client, World

QUICK = mosquitto_2(b"secret", iterations=1)
# What tokens expire by; the clock of the world begins here.
LATER = 4_000_000_000


class Guarded:
    """A broker with users, whose proofs run when they are asked for."""

    def __init__(self, folder: Path, *, anonymous: bool = False) -> None:
        self.file = folder / "users.txt"
        for name in ("ann", "bob"):
            set_user(self.file, parse_entry(f"{name}:{QUICK}"))
        keys = make_keys("secret", iterations=4096)
        set_user(self.file, UserEntry("dan", None, (), keys))
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        self.settings = UsersSettings(
            password_file=self.file, scram=True, jwt_secret_file=secret, jwt_leeway=0.0
        )
        self.lines: list[str] = []
        self.authority = ConfiguredAuthority(
            load_users(self.settings),
            anonymous_listeners=frozenset(("default",) if anonymous else ()),
            log=self.lines.append,
        )
        self.world = World(authority=self.authority, now=LATER)

    def connect(self, packet: Connect) -> tuple[Client, ConnAck]:
        client = self.world.open(packet.version, peer="192.0.2.7:5000")
        answers = client.send(packet)
        for connection, proof in self.world.broker.take_proofs():
            assert answers == []
            self.world.broker.proved(connection, proof.run(), self.world.now)
            self.world.tick()
            answers = client.take()
        (connack,) = answers
        assert isinstance(connack, ConnAck)
        return client, connack

    def log_in(
        self,
        user_name: str | None,
        password: bytes | None = b"secret",
        *,
        client_id: str = "c",
        expiry: int | None = None,
    ) -> tuple[Client, int]:
        packet = Connect(
            client_id,
            user_name=user_name,
            password=password,
            clean_start=False,
            properties=Properties(session_expiry_interval=expiry),
        )
        client, connack = self.connect(packet)
        return client, connack.reason


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.mark.parametrize(
    ("user_name", "password", "code", "return_code"),
    [
        ("ann", b"secret", 0, 0),
        ("ann", b"guess", 0x86, 4),
        ("nobody", b"secret", 0x86, 4),
        (None, None, 0x87, 5),
    ],
)
def test_codes_of_both_versions(
    user_name: str | None, password: bytes | None, code: int, return_code: int, guarded: Guarded
) -> None:
    for version, expected in ((MQTT5, code), (MQTT311, return_code)):
        packet = Connect("c", user_name=user_name, password=password, version=version)
        client, connack = guarded.connect(packet)
        assert connack.reason == expected
        assert client.is_closed() is bool(code)


def test_nobody_else_can_take_over_resume_or_discard_a_session(guarded: Guarded) -> None:
    ann, code = guarded.log_in("ann", expiry=1000)
    assert code == 0
    ann.subscribe("t", qos=1)
    assert guarded.log_in("bob")[1] == 0x85
    clean = Connect("c", user_name="bob", password=b"secret", clean_start=True)
    assert guarded.connect(clean)[1].reason == 0x85
    assert not ann.is_closed()
    ann.cut()
    for packet in (clean, Connect("c", user_name="bob", password=b"guess", clean_start=True)):
        assert guarded.connect(packet)[1].reason in (0x85, 0x86)
    resumed = Connect(
        "c",
        user_name="ann",
        password=b"secret",
        clean_start=False,
        properties=Properties(session_expiry_interval=1000),
    )
    _, connack = guarded.connect(resumed)
    assert (connack.reason, connack.session_present) == (0, True)
    # Another client identifier is free.
    assert guarded.log_in("bob", client_id="d")[1] == 0


def test_anonymous_sessions_belong_to_anonymous_clients(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, anonymous=True)
    anonymous, code = guarded.log_in(None, None)
    assert code == 0
    assert guarded.log_in("ann")[1] == 0x85
    assert guarded.log_in(None, None)[1] == 0
    assert anonymous.is_closed()


def test_a_removed_user_has_no_rights_after_a_reload(guarded: Guarded) -> None:
    ann, _ = guarded.log_in("ann")
    ann.subscribe("t")
    bob, _ = guarded.log_in("bob", client_id="d")
    assert bob.send(Publish("t", b"1")) == []
    assert len(ann.take()) == 1
    remove_user(guarded.file, "ann")
    guarded.authority.replace(load_users(guarded.settings), None)
    guarded.world.wait(2)
    bob.send(Publish("t", b"2"))
    assert not [each for each in ann.take() if isinstance(each, Publish)]
    (suback,) = ann.send(Subscribe(2, [Subscription("t")]))
    assert isinstance(suback, SubAck)
    assert list(suback.reasons) == [0x87]
    assert guarded.log_in("ann", client_id="e")[1] == 0x86


def test_rules_decide_about_users_and_groups(guarded: Guarded, tmp_path: Path) -> None:
    rules = tmp_path / "rights.txt"
    rules.write_text(
        "allow user:ann publish,subscribe plant/#\nallow group:ops all ops/%u/#\n", "utf-8"
    )
    guarded.authority.replace(load_users(guarded.settings), read_rights(rules))
    ann, _ = guarded.log_in("ann")
    bob, _ = guarded.log_in("bob", client_id="d")

    def granted(client: Client, topic_filter: str) -> list[int]:
        (suback,) = client.send(Subscribe(1, [Subscription(topic_filter)]))
        assert isinstance(suback, SubAck)
        return list(suback.reasons)

    assert granted(ann, "plant/1") == [0]
    assert granted(ann, "ops/ann/1") == [0x87]
    assert granted(bob, "ops/bob/1") == [0x87]
    # A group of the password file counts for a client that is connected.
    set_user(guarded.file, parse_entry(f"bob:{QUICK}:ops"))
    guarded.authority.replace(load_users(guarded.settings), read_rights(rules))
    assert granted(bob, "ops/bob/1") == [0]
    assert granted(bob, "ops/ann/1") == [0x87]
    assert granted(bob, "plant/1") == [0x87]


def test_a_token_gets_in(guarded: Guarded) -> None:
    token = sign(payload(exp=LATER + 60), SECRET, "HS256")
    client, code = guarded.log_in("ann", token)
    assert code == 0
    guarded.world.wait(55)
    assert not client.is_closed()
    guarded.world.wait(10)
    assert client.is_closed()


# --- SCRAM ----------------------------------------------------------------------------------------


def auth(reason: int, data: bytes) -> Auth:
    properties = Properties(authentication_method=METHOD, authentication_data=data)
    return Auth(reason, properties=properties)


def data_of(packet: Packet) -> bytes:
    assert isinstance(packet, Auth | ConnAck)
    data = packet.properties.authentication_data
    assert data is not None
    return data


def scram(guarded: Guarded, user_name: str, password: str) -> tuple[Client, ConnAck]:
    exchange = ScramAuthentication(user_name, password)
    properties = Properties(authentication_method=METHOD, authentication_data=exchange.begin())
    client = guarded.world.open(peer="192.0.2.7:5000")
    (challenge,) = client.send(Connect("c", properties=properties))
    (connack,) = client.send(auth(0x18, exchange.final_message(data_of(challenge))))
    assert isinstance(connack, ConnAck)
    if connack.reason == 0:
        exchange.finish(data_of(connack))
    return client, connack


def test_scram_lets_in_who_knows_the_password(guarded: Guarded) -> None:
    client, connack = scram(guarded, "dan", "secret")
    assert connack.reason == 0
    assert connack.properties.authentication_method == METHOD
    assert client.subscribe("t") == []
    for user_name, password in (("dan", "guess"), ("nobody", "secret"), ("ann", "secret")):
        client, connack = scram(guarded, user_name, password)
        assert connack.reason == 0x86
        assert client.is_closed()


def test_a_client_re_authenticates_as_itself_only(guarded: Guarded) -> None:
    client, _ = scram(guarded, "dan", "secret")
    exchange = ScramAuthentication("dan", "secret")
    (challenge,) = client.send(auth(0x19, exchange.begin()))
    (done,) = client.send(auth(0x18, exchange.final_message(data_of(challenge))))
    assert isinstance(done, Auth)
    assert done.reason == 0
    exchange.finish(data_of(done))
    (answer,) = client.send(auth(0x19, ScramAuthentication("eve", "secret").begin()))
    assert isinstance(answer, Disconnect)
    assert answer.reason == 0x87
    assert client.is_closed()


def test_another_method_is_refused(guarded: Guarded) -> None:
    client = guarded.world.open()
    properties = Properties(authentication_method="GSSAPI")
    (connack,) = client.send(Connect("c", properties=properties))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0x8C
