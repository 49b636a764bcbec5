"""Bugs that brokers have had: class 7, deep topics, and class 8, special names."""

import unicodedata
from itertools import product

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import (
    connect,
    frame,
    healthy_pair,
    link,
    publish,
    section,
    subscribe,
    text,
    unsubscribe,
)
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.world import Client, World
from tests.modes import repeats

# --- class 7: deep topics -------------------------------------------------------------------------

# 65,536 levels, as many as a topic can have.
DEEPEST = "/" * 65_535
# As many as the settings can permit; one more byte for a payload and its header does not matter.
BOTTOMLESS = BrokerSettings(
    topic_levels=65_536,
    before_connect_packet_size=200_000,
    # Each level of a filter with a wildcard counts.
    maximum_client_subscription_bytes=256 * 1024 * 1024,
)
WAYS = ("publish", "subscribe", "unsubscribe", "will", "retain", "alias")


def send_deep(world: World, way: str, topic: str, version: int) -> tuple[Client, list[Packet]]:
    """A client that has sent the topic in one of the ways there are, and what it got for it."""
    if way == "will":
        client = world.open(version)
        return client, client.send(Connect("a", version=version, will=Will(topic, b"bye")))
    client = world.connect("a", version)
    if way == "subscribe":
        return client, client.send(Subscribe(1, [Subscription("ok"), Subscription(topic)]))
    if way == "unsubscribe":
        return client, client.send(Unsubscribe(1, ["ok", topic]))
    alias = way == "alias" and version == MQTT5
    properties = Properties(topic_alias=1) if alias else Properties()
    packet = Publish(topic, b"x", qos=1, packet_id=1, retain=way == "retain", properties=properties)
    return client, client.send(packet)


@VERSIONS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("topic", [DEEPEST, "a/" * 32_767, "/".join("a" * 129)])
def test_class_7_a_topic_deeper_than_the_limit_ends_one_connection(
    version: int, way: str, topic: str
) -> None:
    """By the settings: 128 levels, in a name or a filter, wherever it stands"""
    world = World(BrokerSettings(before_connect_packet_size=200_000))
    bystander = world.connect("b")
    bystander.subscribe("#")
    client, answer = send_deep(world, way, topic, version)
    assert client.is_closed()
    if version == MQTT5:
        assert [p.reason for p in answer if isinstance(p, Disconnect | ConnAck)] == [0x90]
    elif way == "will":
        assert [p.reason for p in answer if isinstance(p, ConnAck)] != [0]
    else:
        assert answer == []
    assert bystander.take() == []
    assert bystander.send(PingReq()) == [PingResp()]
    assert world.connect("c").subscribe("#") == []


@VERSIONS
@pytest.mark.parametrize("way", WAYS)
def test_class_7_a_topic_of_as_many_levels_as_the_limit_is_taken(version: int, way: str) -> None:
    world = World()
    client, answer = send_deep(world, way, "/".join("a" * 128), version)
    assert not client.is_closed()
    if way == "subscribe":
        assert answer == [SubAck(1, [0, 0])]
    elif way == "unsubscribe":
        assert answer == [UnsubAck(1, [0x11, 0x11] if version == MQTT5 else [])]
    else:
        assert [p.reason for p in answer if isinstance(p, ConnAck)] in ([], [0])


def retained_for(client: Client, topic_filter: str) -> list[Packet]:
    """What a subscription brings; the deepest tree is searched in several ticks."""
    got = client.subscribe(topic_filter)
    for _ in range(100):
        client.world.tick()
    return got + client.take()


# The versions differ in their packets, and not in what is done with a topic.
DEEP = [(MQTT5, DEEPEST), (MQTT311, "a/" * 32_767 + "a")]
MORE = [(MQTT311, DEEPEST), (MQTT5, "a/" * 32_767 + "a")]


@pytest.mark.parametrize(("version", "topic"), DEEP + MORE[: repeats(2, 0)])
def test_class_7_where_the_limit_permits_it_the_deepest_topic_works(
    version: int, topic: str
) -> None:
    """Nothing recurses: matching, retaining, deleting and forgetting, by each kind of filter"""
    world = World(BOTTOMLESS)
    wild = "+/" * topic.count("/") + "+"
    subscriber, publisher = world.connect("s", version), world.connect("p", version)
    for topic_filter in (topic, "#", wild, topic + "#" if len(topic) < 65_535 else "#"):
        if len(topic_filter) > 65_535:
            continue
        subscriber.subscribe(topic_filter)
        publisher.send(Publish(topic, b"live", retain=True))
        assert payloads(subscriber.take()) == [b"live"]
        (kept,) = retained_for(world.connect("late", version), topic_filter)
        assert isinstance(kept, Publish)
        assert kept.topic_name == topic
        publisher.send(Publish(topic, b"", retain=True))
        assert payloads(subscriber.take()) == [b""]
        assert retained_for(world.connect("late", version), topic_filter) == []
        (unsuback,) = subscriber.send(Unsubscribe(1, [topic_filter]))
        assert isinstance(unsuback, UnsubAck)
        publisher.send(Publish(topic, b"unheard"))
        assert subscriber.take() == []


def test_class_7_the_deepest_will_is_published_and_the_deepest_session_ends() -> None:
    world = World(BOTTOMLESS)
    watching = persistent(world, "w", MQTT5)
    watching.subscribe("#", DEEPEST, "$share/g/" + "/" * 65_000, qos=1)
    client = world.open()
    (connack,) = client.send(Connect("a", will=Will(DEEPEST, b"bye", retain=True)))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    client.cut()
    assert payloads(watching.take()) == [b"bye"]
    world.connect("w")
    world.connect("p").send(Publish("/" * 65_000, b"x", qos=1, packet_id=1))
    (kept,) = retained_for(world.connect("w"), "#")
    assert isinstance(kept, Publish)
    assert kept.topic_name == DEEPEST


def test_class_7_a_response_topic_is_data_and_passes_unaltered() -> None:
    """[MQTT-3.3.2-15]: nobody subscribes or publishes to it here, however deep it is"""
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    deep = Properties(response_topic="/" * 65_535)
    world.connect("p").send(Publish("t", b"x", properties=deep))
    assert subscriber.take() == [Publish("t", b"x", properties=deep)]


def test_class_7_many_ways_through_the_tree_bring_one_message() -> None:
    """Filters of + and a in each combination: each level doubles the ways a match can take."""
    world = World()
    client = world.connect("a")
    filters = ["/".join(levels) for levels in product("+a", repeat=9)]
    client.subscribe(*filters)
    publisher = world.connect("p")
    publisher.send(Publish("/".join("a" * 9), b"all"), Publish("/".join("b" * 9), b"one"))
    publisher.send(Publish("/".join("a" * 10), b"none"))
    assert payloads(client.take()) == [b"all", b"one"]


def test_class_7_a_deep_topic_on_a_real_socket_ends_one_connection() -> None:
    deep = DEEPEST.encode()
    with Process() as broker, healthy_pair(broker.address) as pair:
        for data in (publish(deep), subscribe(deep), publish(deep, qos=2)):
            with link(broker.address, "a") as client:
                client.send_bytes(data)
                answer = client.until_closed()
                assert [p.reason for p in answer if isinstance(p, Disconnect)] == [0x90]
            pair.exchange()


# --- class 8: special names -----------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("topic", ["$", "$/", "$/a", "$SYS/a", "$share", "$a/b", "$$", "$\u0301"])
def test_class_8_a_name_that_begins_with_a_dollar_is_for_who_asks_for_it(
    version: int, topic: str
) -> None:
    """[MQTT-4.7.2-1], live and retained, and by a shared subscription too"""
    world = World(BrokerSettings(sys_interval=0.0))
    greedy = world.connect("greedy", version)
    wild = ["#", "+", "+/#", "+/a", "+/b", "+/+", "+/"]
    greedy.subscribe(*wild, *[f"$share/g/{topic_filter}" for topic_filter in wild])
    exact = world.connect("exact", version)
    exact.subscribe(topic)
    publisher = world.connect("p", version)
    publisher.send(Publish(topic, b"x", retain=True))
    heard = [] if topic.startswith("$SYS/") else [b"x"]
    assert payloads(exact.take()) == heard
    assert greedy.take() == []
    assert world.connect("late", version).subscribe(*wild) == []
    assert payloads(world.connect("later", version).subscribe(topic)) == heard


BAD_SHARES = """
    $share/  $share//  $share//t  $share///  $share/g  $share/g/  $share/g+/t  $share/+/t
    $share/#  $share/#/t  $share/g#/t  $share/g/t#  $share/g/#/t
"""


@pytest.mark.parametrize("topic_filter", BAD_SHARES.split())
def test_class_8_a_share_without_a_name_or_a_filter_is_no_subscription(topic_filter: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]: closed or 0x8F; it killed the loop of all of Moquette"""
    world = World()
    bystander = world.connect("b")
    client = world.connect("a")
    answer = client.send_bytes(subscribe(topic_filter.encode()))
    if client.is_closed():
        (packet,) = answer
        assert isinstance(packet, Disconnect)
        assert packet.reason in (0x81, 0x82, 0x8F)
    else:
        assert answer == [SubAck(9, [0x8F])]
    for topic in ("t", "/t", "g", "g/t", "/", topic_filter):
        if "+" not in topic and "#" not in topic:
            bystander.send(Publish(topic, b"x"))
    assert payloads(client.take()) == []
    # an UNSUBSCRIBE from it finds nothing, or is refused as well
    other = world.connect("c")
    said = other.send_bytes(unsubscribe(topic_filter.encode()))
    assert said == [UnsubAck(9, [0x11])] or other.is_closed()
    assert bystander.send(PingReq()) == [PingResp()]


@VERSIONS
@pytest.mark.parametrize("topic_filter", ["$share", "$shared/g/t", "$SHARE/g/t", "/$share/g/t"])
def test_class_8_what_only_looks_like_a_share_is_a_filter_like_any_other(
    version: int, topic_filter: str
) -> None:
    world = World()
    first, second = world.connect("a", version), world.connect("b", version)
    for client in (first, second):
        client.subscribe(topic_filter)
    world.connect("p").send(Publish(topic_filter, b"x"), Publish("t", b"y"))
    assert payloads(first.take()) == payloads(second.take()) == [b"x"]


@VERSIONS
@pytest.mark.parametrize("topic_filter", ["$share/g/t", "$share/g//", "$share/ /+", "$share/$/#"])
def test_class_8_a_message_to_the_name_of_a_share_is_not_for_its_members(
    version: int, topic_filter: str
) -> None:
    """`$share/g/t` subscribes to `t`: a topic of the longer name has nothing to do with it."""
    world = World()
    member = world.connect("a", version)
    member.subscribe(topic_filter)
    publisher = world.connect("p", version)
    name = topic_filter.replace("+", "x").replace("#", "x")
    publisher.send(Publish(name, b"no", retain=True))
    assert member.take() == []
    publisher.send(Publish(name.split("/", 2)[2], b"yes"))
    assert payloads(member.take()) == [b"yes"]


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share//t", "$share/g", "$share/g/", "$share"]
)
def test_class_8_in_3_1_1_a_share_that_is_none_is_a_filter(topic_filter: str) -> None:
    """3.1.1 knows no shares, so the filter is right there; it may be refused, but harms nobody."""
    world = World()
    client = world.connect("a", MQTT311)
    (suback,) = client.send(Subscribe(1, [Subscription(topic_filter)]))
    assert isinstance(suback, SubAck)
    publisher = world.connect("p")
    publisher.send(Publish(topic_filter, b"same"), Publish("t", b"t"), Publish("g", b"g"))
    assert payloads(client.take()) == ([b"same"] if suback.reasons[0] == 0 else [])


# What other languages, shells, formats and file systems trip over.
NAMES = [
    "__proto__",
    "constructor",
    "prototype/toString",
    "hasOwnProperty",
    "__class__/__init__/__globals__",
    "%s%n%x",
    "{0}{0.__class__}",
    "${jndi:ldap://x}",
    "$(reboot)`reboot`;reboot",
    "' OR 1=1 --",
    '"; DROP TABLE t',
    "../../etc/passwd",
    "C:\\CON\\aux",
    "*",
    "a*b?[c]",
    " ",
    " leading and trailing ",
    "null",
    "None",
    "0",
    "-1",
    "1e999",
    ",",
    "\u00e9",
    "e\u0301",
    "\ufeff",
    "\ufeffa",
    "a",
    "A",
    "/",
    "/a",
    "a/",
    "a//b",
    "\U0001f600",
    "\U0010fffd",
    "\u202etxt.exe",
    "x" * 65_535,
    "\u20ac" * 21_845,
]


@VERSIONS
def test_class_8_each_name_is_a_topic_of_its_own(version: int) -> None:
    """[MQTT-4.7.3-4] (5.0) [MQTT-4.7.3-4] (3.1.1): character by character; U+FEFF is kept [-3]"""
    world = World()
    publisher = world.connect("p", version)
    clients = [world.connect(f"s{number}", version) for number in range(len(NAMES))]
    for client, name in zip(clients, NAMES, strict=True):
        client.subscribe(name)
    for number, name in enumerate(NAMES):
        publisher.send(Publish(name, b"%d" % number, retain=True))
    for number, (client, name) in enumerate(zip(clients, NAMES, strict=True)):
        assert client.take() == [Publish(name, b"%d" % number)]
        (kept,) = world.connect("late", version).subscribe(name)
        assert kept == Publish(name, b"%d" % number, retain=True)


@VERSIONS
def test_class_8_each_name_is_a_client_id_a_user_and_a_share_of_its_own(version: int) -> None:
    world = World()
    publisher = world.connect("p", version)
    for name in NAMES:
        if len(name.encode()) < 60_000:
            client = persistent(world, name, version)
            client.subscribe("all", qos=1)
    for name in NAMES:
        if len(name.encode()) < 60_000:
            again = persistent(world, name, version, present=True)
            publisher.send(Publish("all", name.encode(), qos=1, packet_id=1))
            assert payloads(again.take())[-1:] == [name.encode()]
            share = name.replace("/", "-").replace("+", "-")
            again.subscribe(f"$share/{share}/{name}")
            publisher.send(Publish(name, b"mine"))
            assert payloads(again.take()) == [b"mine"]
            opened = world.open(version)
            (connack,) = opened.send(
                Connect("user", version=version, user_name=name, password=name.encode())
            )
            assert isinstance(connack, ConnAck)
            assert connack.reason == 0


@VERSIONS
@pytest.mark.parametrize("topic_filter", ["+", "+/+", "/+", "+/", "a/+", "#", "/#", "a/#"])
def test_class_8_an_empty_level_is_a_level(version: int, topic_filter: str) -> None:
    """[4.7.1]: "/finance" has two levels; "+" stands for an empty one too"""
    matched = {
        "+": ["a"],
        "+/+": ["/", "/a", "a/"],
        "/+": ["/", "/a"],
        "+/": ["/", "a/"],
        "a/+": ["a/"],
        "#": ["/", "/a", "a", "a/", "a//", "//"],
        "/#": ["/", "/a", "//"],
        "a/#": ["a", "a/", "a//"],
    }
    world = World()
    client = world.connect("a", version)
    client.subscribe(topic_filter)
    publisher = world.connect("p", version)
    for topic in ("/", "/a", "a", "a/", "a//", "//"):
        publisher.send(Publish(topic, topic.encode()))
    assert [p.decode() for p in payloads(client.take())] == matched[topic_filter]


# U+0001 and its like may be refused or taken; what is not permitted is to change them.
ODD = ["\x01", "a\nb", "\x1b[2J", "\x7f", "\x85", "\ufffe", "\uffff", "\U0001ffff", "\u2028"]


@VERSIONS
@pytest.mark.parametrize("odd", ODD)
def test_class_8_a_control_character_is_refused_or_kept(version: int, odd: str) -> None:
    """[1.5.4]: SHOULD NOT be sent, MAY be refused"""
    world = World()
    watching = world.connect("watcher", version)
    watching.subscribe("#")
    client = world.open(version)
    client.send(Connect(odd, version=version), Publish(f"t/{odd}", b"x"))
    seen = [p.topic_name for p in watching.take() if isinstance(p, Publish)]
    assert seen == ([] if client.is_closed() else [f"t/{odd}"])
    assert watching.send(PingReq()) == [PingResp()]


def escaped(lines: list[str]) -> bool:
    """Whether no line holds a character that a terminal or a log reader would act on."""
    return not any(
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        for line in lines
        for character in line
    )


EVIL = "evil\r\n2026-01-01 root connected\x1b]0;owned\x07\x9b2J\u202e\u2028\u200b\ufeff"


@VERSIONS
def test_class_8_nothing_that_a_peer_chose_reaches_the_log_as_it_is(version: int) -> None:
    """Whatever a client does under such a name, it is told in one line that is safe to print."""

    class Picky(Authority):
        def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
            return Denied(0x85) if packet.client_id.endswith("!") else super().connect(packet, peer)

    world = World(BrokerSettings(connect_timeout=2.0), authority=Picky())
    opened = world.open(version)
    opened.send(Connect(EVIL + "!", version=version, user_name=EVIL))
    kept = persistent(world, EVIL, version)
    kept = persistent(world, EVIL, version, present=True)
    kept.send(Subscribe(1, [Subscription(EVIL + "/#")]), Publish(EVIL, b"x"))
    kept.cut()
    deep = EVIL + "/a" * 200
    for data in (
        publish(EVIL.encode() + b"/#", version),
        publish(b"\xff" + EVIL.encode(), version),
        publish(deep.encode(), version),
        subscribe(EVIL.encode() + b"#", version),
        subscribe(b"$share/" + EVIL.encode(), version),
        unsubscribe(EVIL.encode() + b"+", version),
        frame(0x10, text(EVIL.encode()), b"\x05"),
    ):
        persistent(world, EVIL, version, present=True).send_bytes(data)
    for data in (
        frame(0x10, text(EVIL.encode()), b"\x04\x02\x00\x00", text(b"a")),
        connect(EVIL.encode() + b"\x00", version),
        connect(b"\xed\xa0\x80" + EVIL.encode(), version),
        connect(b"a", version, flags=0x82, rest=text(EVIL.encode() + b"\xc0")),
        connect(b"a", version, flags=0x06, rest=section(version) + text(b"#" + EVIL.encode())),
    ):
        world.open(version).send_bytes(data)
    persistent(world, EVIL, version, present=True).send(Disconnect())
    world.open(version)
    world.connect(EVIL, version, keep_alive=1, clean_start=True)
    world.wait(5)
    # each of them was worth a line, and no line is two
    assert len(world.log) > 20
    assert sum("evil" in line for line in world.log) > 10
    assert escaped(world.log), [line for line in world.log if not escaped([line])]


def test_class_8_a_line_break_in_a_name_makes_no_line_of_the_log() -> None:
    with Process() as broker:
        with link(broker.address) as client:
            assert client.connect(EVIL).reason == 0
            client.send_bytes(b"\xc1\x00")
            client.until_closed()
        with link(broker.address, "plain") as client:
            client.ping()
    lines = [line.removesuffix("\n") for line in broker.log]
    assert escaped(lines), lines
    assert any("evil" in line for line in lines)
    assert not any(line.startswith("2026-01-01 root connected") for line in lines)
