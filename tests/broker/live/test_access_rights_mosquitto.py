"""Decisions by an ACL file of Mosquitto, beside those of Mosquitto itself."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.access.mosquitto_acl import parse_mosquitto_acl
from semel.broker.access.rights import Rights
from semel.broker.access.rights_rules import RightsError
from semel.broker.identity import ANONYMOUS, PASSWORD, Identity
from semel.mqtt import (
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from tests.broker.by_hand import Link
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto

pytestmark = NEEDS_MOSQUITTO

# May read and write everything, so that there is something to receive.
SUPER = "user super\ntopic readwrite #\ntopic readwrite $other/#\n"

ACLS = {
    "users": """\
topic read anon/#
topic anon/rw
user alice
topic a/#
topic deny a/secret/#
topic write w/+
topic read a b/c
topic read $other/+
topic read +/plus/#
user bob
topic read #
topic deny a/b
topic write a/b
user +
topic read plus
""",
    "patterns": """\
user alice
topic read a/b
topic deny a/x
pattern read dev/%c/#
pattern write users/%u
pattern deny dev/%c/locked
pattern readwrite dev/%c/locked
pattern deny a/b
pattern read a/x
pattern read mix/x-%u-%c
pattern read percent/%x
pattern read fixed
user +
topic read own
""",
    "anonymous only": "topic read a/#\ntopic deny a/b\n",
    "empty": "# nothing\n",
}
USERS = (None, "alice", "bob", "+", "nobody")
CLIENT_IDS = ("c1", "c#")
TOPICS = (
    *("a", "a/b", "a/x", "a/secret", "a/secret/x", "w/1", "w/1/2", "a b/c", "anon/rw", "anon/x"),
    *("$other/x", "x/plus", "x/plus/y", "plus", "own", "fixed", "percent/%x", "/", "a/"),
    *("dev/c1", "dev/c1/x", "dev/c1/locked", "dev/c2/x", "users/alice", "users/bob", "users/x"),
    "mix/x-alice-c1",
)
FILTERS = ("#", "a/#", "a/secret/#", "$other/#", "$share/g/a/#", "+/+", "nothing")


class Client(Link):
    """A client of Mosquitto that says who it is."""

    def __init__(self, port: int, client_id: str, user_name: str | None) -> None:
        super().__init__(("127.0.0.1", port))
        self.send(Connect(client_id, user_name=user_name))
        self.take(1)

    def may_publish(self, topic: str) -> bool:
        self.send(Publish(topic, b"x", qos=1, packet_id=1))
        while True:
            (packet,) = self.take(1)
            if isinstance(packet, PubAck):
                return packet.reason < 0x80

    def may_subscribe(self, topic_filter: str) -> bool:
        self.send(Subscribe(1, [Subscription(topic_filter, 0)]))
        while True:
            (packet,) = self.take(1)
            if isinstance(packet, SubAck):
                return packet.reasons[0] < 0x80

    def received(self) -> list[str]:
        """The topics of all messages that were sent to it so far."""
        self.send(PingReq())
        topics: list[str] = []
        while True:
            (packet,) = self.take(1)
            if isinstance(packet, PingResp):
                return topics
            if isinstance(packet, Publish):
                topics.append(packet.topic_name)


@pytest.fixture(params=ACLS)
def acl(request: pytest.FixtureRequest) -> str:
    return f"{ACLS[request.param]}{SUPER}"


@pytest.fixture
def port(acl: str, tmp_path: Path) -> Iterator[int]:
    file = tmp_path / "acl"
    file.write_text(acl)
    # It does not check passwords here, so that any user name will do.
    with mosquitto(tmp_path, [f"acl_file {file}"]) as (listening,):
        yield listening


def test_decisions_are_those_of_mosquitto(acl: str, port: int) -> None:
    rights = Rights(parse_mosquitto_acl(acl, name="acl"))
    publisher = Client(port, "publisher", "super")
    found, expected = {}, {}
    for user, client_id in itertools.product(USERS, CLIENT_IDS):
        proof = ANONYMOUS if user is None else PASSWORD
        identity = Identity(client_id, user_name=user, proof=proof)
        client = Client(port, client_id, user)
        for topic in FILTERS:
            case = (user, client_id, "subscribe", topic)
            expected[case] = client.may_subscribe(topic)
            found[case] = rights.granted_qos(identity, topic, qos=0) is not None
        client.close()
        client = Client(port, client_id, user)
        for topic in TOPICS:
            case = (user, client_id, "publish", topic)
            expected[case] = client.may_publish(topic)
            found[case] = rights.may_publish(identity, topic, qos=1, retain=False)
        for topic in TOPICS:
            assert client.may_subscribe(topic)
        for topic in TOPICS:
            assert publisher.may_publish(topic)
        delivered = client.received()
        for topic in TOPICS:
            case = (user, client_id, "receive", topic)
            expected[case] = topic in delivered
            found[case] = rights.may_receive(identity, topic)
        client.close()
    publisher.close()
    assert {case: result for case, result in found.items() if result != expected[case]} == {}
    assert True in expected.values()
    assert False in expected.values()


@pytest.mark.parametrize("acl", [f"pattern write users/%u\n{SUPER}"])
def test_a_name_with_a_slash_gets_less_than_from_mosquitto(acl: str, port: int) -> None:
    """Mosquitto lets the user a/b publish to users/a/b; a value is one level here."""
    rights = Rights(parse_mosquitto_acl(acl, name="acl"))
    for name, expected in (("a", True), ("a/b", False)):
        topic = f"users/{name}"
        client = Client(port, "c", name)
        assert client.may_publish(topic)
        client.close()
        identity = Identity("c", user_name=name, proof=PASSWORD)
        assert rights.may_publish(identity, topic, qos=1, retain=False) is expected


@pytest.mark.parametrize(
    "text",
    ["foo bar\n", "topic foo bar\n", "topic read a#\n", "user\n", "topic\n", "topic\tread a\n"],
)
def test_what_mosquitto_refuses_is_a_mistake(text: str, tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text(text)
    started = mosquitto(tmp_path, [f"acl_file {file}"])
    with pytest.raises(AssertionError, match="acl_file"), started:
        pass
    with pytest.raises(RightsError):
        parse_mosquitto_acl(text, name="acl")
