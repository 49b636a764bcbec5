"""One client's life, in which each call to a hook or a store that is about it raises in turn.

Beside the table of `test_fault_table.py`, which has a scenario for each kind of call: here it is
each single call, whatever it is for.
"""

import pytest

from semel.mqtt import Connect, Packet, Publish, PubRel, Subscribe, Subscription, Will
from tests.broker.core.test_fault_table import KEPT, Whole
from tests.broker.recorded import read_all, subscribe
from tests.broker.world import Client


class Script:
    """All that a victim does in its life. Whatever ends its connection, it comes back."""

    def __init__(self, world: Whole) -> None:
        self.world = world
        self.client: Client | None = None
        world.fuse.counts = self.is_about_it

    def is_about_it(self, name: str, about: object) -> bool:
        router = self.world.broker.router
        if name in ("Store.records", "Store.seek"):
            own = router.streams.named("own")
            return own is not None and about == own.id
        if name.startswith("Store."):
            state = router.sessions.get("victim")
            return state is not None and about == state.store_id
        return about == "victim"

    def victim(self) -> Client:
        """Its connection, or a new one."""
        world = self.world
        for _ in range(2):
            if self.client is not None and not self.client.is_closed():
                return self.client
            client = self.client = world.open()
            will = Will("will/v", b"gone", qos=1)
            connect = Connect("victim", clean_start=False, properties=KEPT, will=will)
            world.say(client, connect)
        assert self.client is not None
        assert not self.client.is_closed()
        return self.client

    def say(self, *packets: Packet) -> None:
        client = self.victim()
        self.world.say(client, *packets)
        if client.is_closed():
            self.world.say(self.victim(), *packets)
        read_all(self.victim())

    def leave(self) -> None:
        client = self.victim()
        self.client = None
        self.world.beside(client.cut)

    def run(self) -> None:
        world = self.world
        for at, topic_filter in enumerate(("v/#", "$share/g/w", "by/#"), 1):
            self.say(Subscribe(at, [Subscription(topic_filter, 1)]))
        self.say(subscribe("$stream/own/#"))
        for at in (11, 12, 13):
            self.say(Publish("v/1", b"x", 2, at), Publish("own/it", b"x", 1, at + 10))
            self.say(PubRel(at))
        self.say(Publish("v/kept", b"x", retain=True), Publish("v/1", b"x"))
        self.say(Subscribe(4, [Subscription("v/+", 1)]))
        self.leave()
        for topic in ("v/1", "w"):
            world.fill_queue(7, topic=topic, expiry=1 if topic == "w" else None)
        world.now += 2
        self.say(subscribe("$stream/own/#", offset="1970-01-01T00:00:01Z", packet_id=5))
        self.leave()
        world.crash()
        world.come_back()
        self.say(Publish("v/1", b"x", 1, 31))
        self.leave()


@pytest.mark.slow
def test_each_call_of_a_life_may_raise_and_nobody_else_notices() -> None:
    at = 0
    has_blown = True
    while has_blown:
        at += 1
        world = Whole()
        world.fuse.blows_at = at
        Script(world).run()
        has_blown = world.fuse.has_blown
        assert set(world.closed()) <= {"victim"}
        lines = world.wrong()
        assert len(lines) == has_blown, lines
        assert all("Mistake" in line for line in lines)
        world.check_bystanders()
        # It is not cut off from anything.
        again = world.victim()
        read_all(again)
        world.packet_id += 1
        world.publisher.send(Publish("v/1", b"to it", 1, world.packet_id))
        assert b"to it" in [each.payload for each in read_all(again)]
    assert at > 50
