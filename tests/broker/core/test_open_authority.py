"""A broker without users lets everybody in, and warns once that credentials are not checked."""

import pytest

from semel.broker.access.loading import open_access
from semel.broker.authority import Authority
from semel.broker.core import Broker
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, Disconnect, encode
from semel.store.store import Store


@pytest.mark.parametrize(
    "connect",
    [
        Connect("a", user_name="ann", password=b"secret"),
        Connect("a", user_name="ann"),
        Connect("a", password=b"secret"),
    ],
)
def test_credentials_are_taken_and_the_first_of_them_makes_it_warn(connect: Connect) -> None:
    told: list[str] = []
    authority = open_access(["default"]).authority(told.append)
    assert isinstance(authority.connect(Connect("b"), PeerInfo("192.0.2.1:9")), Identity)
    assert told == []
    for peer in ("192.0.2.1:9", "192.0.2.2:9"):
        identity = authority.connect(connect, PeerInfo(peer))
        assert isinstance(identity, Identity)
        assert identity.user_name == connect.user_name
    (line,) = told
    assert line.startswith("192.0.2.1:9 connects with a user name or password, which are not")
    assert "secret" not in line


def test_what_every_connection_brings_is_logged_apart_from_what_is_wrong() -> None:
    wrong: list[str] = []
    connections: list[str] = []
    broker = Broker(
        BrokerSettings(),
        authority=Authority(),
        store=Store(),
        new_client_id=lambda: "new",
        log=wrong.append,
        log_connection=connections.append,
        now=0.0,
    )
    first, second, third = (broker.opened(PeerInfo(f"test:{number}"), 0.0) for number in (1, 2, 3))
    broker.receive(first, encode(Connect("a")), 0.0)
    broker.receive(second, encode(Connect("a")), 0.0)
    broker.receive(second, encode(Disconnect()), 0.0)
    broker.receive(third, encode(Connect("b")), 0.0)
    broker.lost(third, 0.0)
    assert [line.partition(") ")[2] for line in connections] == [
        "connected with MQTT 5.0",
        "taken over by a new connection from test:2",
        "connected with MQTT 5.0",
        "disconnected",
        "connected with MQTT 5.0",
        "lost its connection",
    ]
    assert wrong == []
    fourth = broker.opened(PeerInfo("test:4"), 0.0)
    broker.receive(fourth, b"\x00\x00", 0.0)
    assert len(wrong) == 1
    assert "broke a rule" in wrong[0]
