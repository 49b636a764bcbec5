"""Every path of a message, with and without the right to it.

Each scenario moves one secret message, or one subscription, along one path. Where the right is
granted it must arrive, and where it is denied it must not: the scenario is the same. The last test
fails when a module of the broker starts to send messages on a path that is not in the table.
"""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import semel.broker
from semel.broker.access_control import AccessControl
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.mqtt import (
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from tests.broker.recorded import Plant

SECRET = "plant/secret"
KEPT = Properties(session_expiry_interval=1_000)
ONE_AT_A_TIME = Properties(session_expiry_interval=1_000, receive_maximum=1)


class Rights(Authority):
    """Denies the user of the client `c` some actions on the secret topic."""

    def __init__(self) -> None:
        self.denied: set[str] = set()

    def deny(self, *actions: str) -> None:
        """Take these rights away from now on."""
        self.denied = set(actions)
        self.generation += 1

    def rights(self, identity: Identity) -> str:
        return identity.client_id

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        is_denied = "publish" in self.denied and topic_name == SECRET
        return 0x87 if is_denied and identity.client_id == "c" else 0

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        is_denied = "subscribe" in self.denied and identity.client_id == "c"
        return 0x87 if is_denied else qos

    def receive(self, identity: Identity, topic_name: str) -> bool:
        is_denied = "receive" in self.denied and topic_name == SECRET
        return not (is_denied and identity.client_id == "c")


def world_with(rights: Rights) -> Plant:
    return Plant(authority=rights, window=2)


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


# --- paths of a published message -----------------------------------------------------------------


def published_plainly(world: Plant, rights: Rights, action: str) -> bool:
    watcher = world.connect("w")
    watcher.subscribe("#")
    client = world.connect("c")
    rights.deny(action)
    client.send(Publish(SECRET, b"x", retain=True))
    return bool(payloads(watcher.take()))


def published_hot(world: Plant, rights: Rights, action: str) -> bool:
    watcher = world.connect("w")
    watcher.subscribe("#")
    client = world.connect("c")
    client.send(Publish(SECRET, b"x"))
    client.send(Publish(SECRET, b"x"))
    watcher.take()
    rights.deny(action)
    client.send(Publish(SECRET, b"y"))
    return bool(payloads(watcher.take()))


def acknowledged(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c")
    rights.deny(action)
    (first,) = client.send(Publish(SECRET, b"x", 1, 1))
    (second,) = client.send(Publish(SECRET, b"x", 2, 2))
    assert isinstance(first, PubAck)
    assert isinstance(second, PubRec)
    assert (first.reason == 0x87) == (second.reason == 0x87)
    return first.reason < 0x80


def recorded(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c")
    rights.deny(action)
    client.send(Publish(SECRET, b"x", 1, 1))
    (stream,) = world.broker.router.streams.of(SECRET)
    return stream.last_seq == 1


def will_at_connect(world: Plant, rights: Rights, action: str) -> bool:
    rights.deny(action)
    (connack,) = world.open().send(Connect("c", will=Will(SECRET, b"x")))
    assert isinstance(connack, ConnAck)
    assert connack.reason in (0, 0x87)
    return connack.reason == 0


def will_when_published(world: Plant, rights: Rights, action: str) -> bool:
    watcher = world.connect("w")
    watcher.subscribe("#")
    client = world.connect("c", will=Will(SECRET, b"x"))
    rights.deny(action)
    client.cut()
    return bool(payloads(watcher.take()))


def will_after_a_crash(world: Plant, rights: Rights, action: str) -> bool:
    watcher = world.connect("w", clean_start=False, properties=KEPT)
    watcher.subscribe("#", qos=1)
    world.connect("c", will=Will(SECRET, b"x", qos=1))
    rights.deny(action)
    world.crash()
    watcher = world.connect("w", clean_start=False, properties=KEPT, present=True)
    world.settle()
    return bool(payloads(watcher.take()))


# --- paths of a subscription ----------------------------------------------------------------------


def granted(packets: list[Packet]) -> bool:
    suback = packets[0]
    assert isinstance(suback, SubAck)
    (reason,) = suback.reasons
    assert reason < 3 or reason == 0x87
    return reason < 3


def subscribed(topic_filter: str) -> Callable[[Plant, Rights, str], bool]:
    def scenario(world: Plant, rights: Rights, action: str) -> bool:
        client = world.connect("c")
        rights.deny(action)
        return granted(client.send(Subscribe(1, [Subscription(topic_filter, 1)])))

    scenario.__name__ = f"subscribed_to_{topic_filter}"
    return scenario


def subscribed_before(topic_filter: str) -> Callable[[Plant, Rights, str], bool]:
    def scenario(world: Plant, rights: Rights, action: str) -> bool:
        client = world.connect("c")
        assert granted(client.send(Subscribe(1, [Subscription(topic_filter, 1)])))
        rights.deny(action)
        world.settle()
        return world.broker.router.subscriptions.has("c", topic_filter)

    scenario.__name__ = f"subscribed_before_to_{topic_filter}"
    return scenario


def subscribed_and_away(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe(SECRET, qos=1)
    client.cut()
    rights.deny(action)
    world.settle()
    return world.broker.router.subscriptions.has("c", SECRET)


def subscribed_before_a_crash(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe(SECRET, qos=1)
    rights.deny(action)
    world.crash()
    world.connect("c", clean_start=False, properties=KEPT, present=True)
    return world.broker.router.subscriptions.has("c", SECRET)


# --- paths of a delivery --------------------------------------------------------------------------


def delivered(topic_filter: str, *, qos: int) -> Callable[[Plant, Rights, str], bool]:
    def scenario(world: Plant, rights: Rights, action: str) -> bool:
        client = world.connect("c")
        client.subscribe(topic_filter, qos=qos)
        publisher = world.connect("p")
        rights.deny(action)
        publisher.send(Publish(SECRET, b"x", qos, qos))
        world.settle()
        return bool(payloads(client.take()))

    scenario.__name__ = f"delivered_to_{topic_filter}_at_qos_{qos}"
    return scenario


def delivered_hot(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c")
    client.subscribe("plant/#", qos=1)
    publisher = world.connect("p")
    for packet_id in (1, 2):
        publisher.send(Publish(SECRET, b"x", 1, packet_id))
    for packet in client.take():
        assert isinstance(packet, Publish)
        client.send(PubAck(packet.packet_id))
    rights.deny(action)
    taken = world.broker.hot_path.taken if world.broker.hot_path else 0
    publisher.send(Publish(SECRET, b"y", 1, 3))
    publisher.send(Publish(SECRET, b"z", 1, 4))
    assert world.broker.hot_path is not None
    assert world.broker.hot_path.taken > taken
    return bool(payloads(client.take()))


def retained(world: Plant, rights: Rights, action: str) -> bool:
    world.connect("p").send(Publish(SECRET, b"x", retain=True))
    client = world.connect("c")
    rights.deny(action)
    return bool(payloads(client.subscribe("plant/#", qos=1)))


def replayed(world: Plant, rights: Rights, action: str) -> bool:
    world.publish(b"x", topic=SECRET)
    client = world.connect("c")
    rights.deny(action)
    earliest = Properties(user_properties=[("stream-offset", "earliest")])
    request = Subscribe(1, [Subscription("$stream/plant/plant/#", 1)], properties=earliest)
    answers = client.send(request)
    world.settle()
    return bool(payloads(answers + client.take()))


def queued(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("plant/#", qos=1)
    client.cut()
    world.publish(b"x", topic=SECRET)
    rights.deny(action)
    client = world.connect("c", clean_start=False, properties=KEPT, present=True)
    world.settle()
    return bool(payloads(client.take()))


def queued_while_connected(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=ONE_AT_A_TIME)
    client.subscribe("plant/#", qos=1)
    world.publish(b"first", topic="plant/open")
    (first,) = client.take()
    assert isinstance(first, Publish)
    world.publish(b"x", topic=SECRET)
    assert client.take() == []
    rights.deny(action)
    world.settle()
    answers = client.send(PubAck(first.packet_id))
    world.settle()
    assert not client.is_closed()
    return bool(payloads(answers + client.take()))


def queued_on_disk(world: Plant, rights: Rights, action: str) -> bool:
    """More than the window of two: the store has the rest."""
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("plant/#", qos=1)
    client.cut()
    world.publish(b"1", b"2", b"3", b"4", topic="plant/open")
    world.publish(b"x", topic=SECRET)
    rights.deny(action)
    client = world.connect("c", clean_start=False, properties=KEPT, present=True)
    received: list[bytes] = []
    for _ in range(8):
        world.settle()
        for packet in client.take():
            assert isinstance(packet, Publish)
            received.append(packet.payload)
            client.send(PubAck(packet.packet_id))
    assert received[:4] == [b"1", b"2", b"3", b"4"]
    return b"x" in received


def queued_before_a_crash(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("plant/#", qos=1)
    client.cut()
    world.publish(b"x", topic=SECRET)
    rights.deny(action)
    world.crash()
    client = world.connect("c", clean_start=False, properties=KEPT, present=True)
    world.settle()
    return bool(payloads(client.take()))


def in_flight(qos: int) -> Callable[[Plant, Rights, str], bool]:
    def scenario(world: Plant, rights: Rights, action: str) -> bool:
        client = world.connect("c", clean_start=False, properties=KEPT)
        client.subscribe("plant/#", qos=qos)
        world.publish(b"x", topic=SECRET, qos=qos)
        assert payloads(client.take()) == [b"x"]
        client.cut()
        rights.deny(action)
        client = world.connect("c", clean_start=False, properties=KEPT, present=True)
        world.settle()
        found = payloads(client.take())
        # Its packet identifier is free: the session goes on.
        world.publish(b"next", topic="plant/open", qos=qos)
        assert payloads(client.take())[-1:] == [b"next"]
        return bool(found)

    scenario.__name__ = f"in_flight_at_qos_{qos}"
    return scenario


def in_flight_before_a_crash(world: Plant, rights: Rights, action: str) -> bool:
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("plant/#", qos=1)
    world.publish(b"x", topic=SECRET)
    rights.deny(action)
    world.crash()
    client = world.connect("c", clean_start=False, properties=KEPT, present=True)
    world.settle()
    return bool(payloads(client.take()))


def being_sent_again(world: Plant, rights: Rights, action: str) -> bool:
    """Two are in flight, and the client takes one at a time: the second waits to be sent again."""
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("plant/#", qos=1)
    world.publish(b"first", topic="plant/open")
    world.publish(b"x", topic=SECRET)
    assert payloads(client.take()) == [b"first", b"x"]
    client.cut()
    client = world.connect("c", clean_start=False, properties=ONE_AT_A_TIME, present=True)
    world.settle()
    (first,) = [packet for packet in client.take() if isinstance(packet, Publish)]
    rights.deny(action)
    world.settle()
    assert client.is_closed() == (action == "receive")
    if not client.is_closed():
        answers = client.send(PubAck(first.packet_id))
        world.settle()
        return bool(payloads(answers + client.take()))
    client.cut()
    client = world.connect("c", clean_start=False, properties=KEPT, present=True)
    world.settle()
    return b"x" in payloads(client.take())


def handed_over(world: Plant, rights: Rights, action: str) -> bool:
    """A member leaves the group, and its queue goes to the others that may have it."""
    leaving = world.connect("l", clean_start=False, properties=ONE_AT_A_TIME)
    leaving.subscribe("$share/g/plant/#", qos=1)
    world.publish(b"first", topic="plant/open")
    world.publish(b"x", topic=SECRET)
    client = world.connect("c")
    client.subscribe("$share/g/plant/#", qos=1)
    rights.deny(action)
    leaving.cut()
    world.settle()
    return bool(payloads(client.take()))


PATHS: dict[str, tuple[Callable[[Plant, Rights, str], bool], ...]] = {
    "publish": (
        published_plainly,
        published_hot,
        acknowledged,
        recorded,
        will_at_connect,
        will_when_published,
        will_after_a_crash,
    ),
    "subscribe": (
        subscribed(SECRET),
        subscribed("plant/#"),
        subscribed("$share/g/plant/#"),
        subscribed("$SYS/#"),
        subscribed("$stream/plant/plant/#"),
        subscribed_before(SECRET),
        subscribed_before("#"),
        subscribed_before("$share/g/plant/#"),
        subscribed_before("$stream/plant/plant/#"),
        subscribed_and_away,
        subscribed_before_a_crash,
    ),
    "receive": (
        delivered(SECRET, qos=0),
        delivered("#", qos=1),
        delivered("plant/+", qos=2),
        delivered("$share/g/plant/#", qos=0),
        delivered("$share/g/plant/#", qos=1),
        delivered_hot,
        retained,
        replayed,
        queued,
        queued_while_connected,
        queued_on_disk,
        queued_before_a_crash,
        in_flight(1),
        in_flight(2),
        in_flight_before_a_crash,
        being_sent_again,
        handed_over,
    ),
}
CASES = [(action, scenario) for action, scenarios in PATHS.items() for scenario in scenarios]


@pytest.mark.parametrize(("action", "scenario"), CASES, ids=[f"{a}-{s.__name__}" for a, s in CASES])
def test_class_11_a_path_is_closed_without_its_right_and_open_with_it(
    action: str, scenario: Callable[[Plant, Rights, str], bool]
) -> None:
    assert not is_open(scenario, action)
    assert is_open(scenario, "nothing")


def is_open(scenario: Callable[[Plant, Rights, str], bool], action: str) -> bool:
    rights = Rights()
    return scenario(world_with(rights), rights, action)


def test_messages_that_a_member_may_no_longer_receive_go_to_another_one() -> None:
    rights = Rights()
    world = world_with(rights)
    client = world.connect("c", clean_start=False, properties=KEPT)
    client.subscribe("$share/g/plant/#", qos=1)
    client.cut()
    world.publish(b"x", topic=SECRET)
    other = world.connect("o")
    other.subscribe("$share/g/plant/#", qos=1)
    rights.deny("receive")
    world.settle()
    assert payloads(other.take()) == [b"x"]


# --- a path that is not in the table --------------------------------------------------------------

# What puts a message into a session or out of it, and the functions that may call it. All of them
# are on a path above: a new one needs a scenario.
SENDERS = {
    "send": {"router.Router._send", "replay.Replays._send_record"},
    "append": {"hot_path.HotPath._end_run"},
    "send_encoded": {"hot_path.HotPath._publish"},
    "refill": {"router.Router.refill"},
    "restore_exchanges": {"router.Router.load_exchanges"},
}
# Of a Session or a Backlog; other objects have methods of these names.
RECEIVERS = {"session", "receiver", "backlog"}
# The modules of the core. Those of the network shell have no access to sessions.
CORE = list(Path(semel.broker.__path__[0]).glob("*.py"))


def calls_of_senders() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in SENDERS}
    for path in CORE:
        for owner in ast.parse(path.read_text("utf-8")).body:
            if isinstance(owner, ast.ClassDef):
                for method in owner.body:
                    for name in _called(method):
                        function = getattr(method, "name", "?")
                        found[name].add(f"{path.stem}.{owner.name}.{function}")
    return found


def _called(method: ast.stmt) -> set[str]:
    names = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in SENDERS:
                names.add(function.id)
            elif isinstance(function, ast.Attribute) and function.attr in SENDERS:
                owner = function.value
                label = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                if label in RECEIVERS:
                    names.add(function.attr)
    return names


def test_nothing_else_puts_messages_into_a_session() -> None:
    assert calls_of_senders() == SENDERS


def test_nothing_but_access_control_and_admission_asks_the_authority() -> None:
    questions = {name for name in vars(AccessControl) if not name.startswith("_")}
    assert {"publish", "subscribe", "receive"} <= questions
    asking = set()
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Attribute) and owner.attr in ("authority", "_authority"):
                    asking.add(path.stem)
    assert asking == {"access_control", "admission"}
