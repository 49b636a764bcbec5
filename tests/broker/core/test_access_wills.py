"""Wills of configured users: asked about at CONNECT, and again when they are published."""

from pathlib import Path

import pytest

from semel.broker.access.password_file import parse_entry, remove_user, set_user
from semel.broker.access.rights_loading import read_rights
from semel.broker.access.users import load_users
from semel.mqtt import Connect, Disconnect, Properties, Publish, Will
from tests.broker.core.test_access_core import QUICK, Guarded
from tests.broker.recorded import Plant
from tests.broker.world import Client

RULES = "allow user:ann publish plant/#\nallow user:bob subscribe #\n"

# What is changed while the client is away, and what its topics' rules are then.
CHANGES = {
    "nothing": RULES,
    "another rule": RULES + "deny user:bob publish plant/#\n",
    "the user is removed": RULES,
    "the user is removed and added again": RULES,
    "the right to publish": "allow user:bob subscribe #\n",
    "the right to this topic": "deny user:ann publish plant/gone\n" + RULES,
    "the right to QoS 1": RULES.replace("plant/#", "plant/# max-qos 0"),
    "the right to retain": RULES.replace("plant/#", "plant/# no-retain"),
}
ALLOWED = {"nothing", "another rule", "the user is removed and added again"}


class Station:
    """A broker with users, rights, a stream of plant/# and a store; and a reload."""

    def __init__(self, folder: Path) -> None:
        self.guarded = Guarded(folder)
        self.rules = folder / "rights.txt"
        self.world = Plant(authority=self.guarded.authority)
        self.guarded.world = self.world
        self.reload(RULES)

    def reload(self, rules: str) -> None:
        self.rules.write_text(rules, "utf-8")
        users = load_users(self.guarded.settings)
        self.guarded.authority.replace(users, read_rights(self.rules))
        self.world.settle()

    def change(self, what: str) -> None:
        if "removed" in what:
            remove_user(self.guarded.file, "ann")
        self.reload(CHANGES[what])
        if "added again" in what:
            set_user(self.guarded.file, parse_entry(f"ann:{QUICK}"))
            self.reload(CHANGES[what])

    def connect(self, *, delay: int, expiry: int) -> Client:
        """`ann`, with a retained will of QoS 1."""
        will = Will(
            "plant/gone",
            b"bye",
            qos=1,
            retain=True,
            properties=Properties(will_delay_interval=delay),
        )
        client, connack = self.guarded.connect(
            Connect(
                "c",
                user_name="ann",
                password=b"secret",
                will=will,
                properties=Properties(session_expiry_interval=expiry),
            )
        )
        assert connack.reason == 0
        return client

    def published(self) -> set[str]:
        """Where the will is found: with a new subscriber, or in the stream."""
        bob, _ = self.guarded.log_in("bob", client_id="b")
        retained = [each for each in bob.subscribe("#", qos=1) if isinstance(each, Publish)]
        found = {"retained"} if retained else set()
        if self.world.rows("SELECT 1 FROM record"):
            found.add("recorded")
        return found


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_will_is_published_if_its_user_may_do_that_at_that_time(
    is_delayed: bool, restart: bool, what: str, tmp_path: Path
) -> None:
    station = Station(tmp_path)
    world = station.world
    client = station.connect(delay=10 if is_delayed else 0, expiry=100)
    if is_delayed:
        client.cut()
        world.wait(5)
        assert station.published() == set()
    station.change(what)
    if restart:
        world.crash()
    elif not is_delayed:
        client.cut()
    world.wait(11)
    assert station.published() == ({"retained", "recorded"} if what in ALLOWED else set())
    # It is not kept for a time when its user may publish it again.
    station.change("the user is removed and added again")
    world.crash()
    world.wait(200)
    assert station.published() == ({"retained", "recorded"} if what in ALLOWED else set())
    assert len(world.rows("SELECT 1 FROM record")) == int(what in ALLOWED)
    assert world.rows("SELECT count(*) FROM will") == [(0,)]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_will_that_is_refused_is_counted_as_a_refused_publish(
    is_allowed: bool, tmp_path: Path
) -> None:
    station = Station(tmp_path)
    client = station.connect(delay=0, expiry=0)
    if not is_allowed:
        station.change("the right to publish")
    client.cut()
    refused = station.world.broker.counters.refused_publishes
    assert refused == ({} if is_allowed else {0x87: 1})
    # A client that disconnects normally has no will to refuse.
    station.reload(RULES)
    again = station.connect(delay=0, expiry=0)
    station.change("the right to publish")
    again.send(Disconnect())
    assert refused == ({} if is_allowed else {0x87: 1})


@pytest.mark.parametrize("topic", ["plant/gone", "other/gone"])
def test_a_will_that_its_user_may_not_publish_is_refused_at_connect(
    topic: str, tmp_path: Path
) -> None:
    station = Station(tmp_path)
    packet = Connect("c", user_name="ann", password=b"secret", will=Will(topic, b"bye"))
    client, connack = station.guarded.connect(packet)
    is_refused = topic == "other/gone"
    assert connack.reason == (0x87 if is_refused else 0)
    assert client.is_closed() is is_refused
