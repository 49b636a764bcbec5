"""The seam between the broker and what lasts: what waits for a commit, and what does not.

Each case is a line of DESIGN.md section 4. `Held` takes commits and says later that they are safe;
what leaves before is what never waits.
"""

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
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
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from semel.mqtt.delivery import ASSIGNED, FINISHED, FREED, QUEUED, RELEASED, STORED
from semel.store.commit import Commit
from semel.store.store import BEHIND, FULL, OPEN, Store
from semel.store.streams import Stream, Streams
from tests.broker.world import Client, World

# Of the user u.
OWNER = '{"address":"test","listener":"default","proof":"anonymous","user_name":"u"}'
KEPT = Properties(session_expiry_interval=100)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


class Held(Store):
    """Takes commits; while `holding`, they are safe when `settle` says so."""

    def __init__(self) -> None:
        super().__init__(is_durable=True)
        self.holding = False
        self.taken: list[Commit] = []

    def write(self, commit: Commit) -> bool:
        if self.holding:
            self.taken.append(commit)
        return not self.holding


class Kept(World):
    """A world whose store can be slow."""

    def __init__(self, settings: BrokerSettings | None = None, *streams: str) -> None:
        self.store = Held()
        every = [Stream(at + 1, name, name, 0) for at, name in enumerate(streams)]
        super().__init__(settings, store=self.store, streams=Streams(every))

    def durable(self, client_id: str, version: int = MQTT5) -> Client:
        kept = KEPT if version == MQTT5 else Properties()
        return self.connect(client_id, version, clean_start=version == MQTT5, properties=kept)

    def hold(self) -> None:
        self.store.holding = True

    def settle(self, count: int | None = None) -> None:
        """The first commits, or all, are safe."""
        for commit in self.store.taken[:count]:
            self.broker.committed(commit, self.now)
        del self.store.taken[:count]
        self.tick()

    def condition(self, condition: int) -> None:
        self.store.condition = condition
        self.tick()


# --- what waits -----------------------------------------------------------------------------------


@VERSIONS
def test_an_acknowledgement_leaves_after_the_commit_of_a_message_for_a_durable_session(
    version: int,
) -> None:
    world = Kept()
    reader = world.durable("reader", version)
    reader.subscribe("t", qos=1)
    publisher = world.connect("p", version)
    for packet_id in (1, 2):  # the plain path, then the hot one
        world.hold()
        assert publisher.send(Publish("t", b"x", 1, packet_id)) == []
        assert reader.take() == []
        world.settle()
        assert publisher.take() == [PubAck(packet_id)]
        assert reader.take() == [Publish("t", b"x", 1, packet_id)]


@VERSIONS
def test_an_acknowledgement_of_what_nobody_keeps_never_waits(version: int) -> None:
    world = Kept()
    reader = world.connect("reader", version)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    world.hold()
    for packet_id in (1, 2):
        assert publisher.send(Publish("t", b"x", 1, packet_id)) == [PubAck(packet_id)]
        assert reader.take() == [Publish("t", b"x", 1, packet_id)]
    assert publisher.send(Publish("t", b"x", 2, 9)) == [PubRec(9)]
    assert publisher.send(PubRel(9)) == [PubComp(9)]
    assert world.store.taken == []


@VERSIONS
def test_a_message_that_lasts_anywhere_reaches_nobody_at_qos_1_before_its_commit(
    version: int,
) -> None:
    """Not even a reader whose session ends with its connection; at QoS 0 it leaves at once."""
    world = Kept()
    world.durable("kept", version).subscribe("t", qos=1)
    fleeting = world.connect("fleeting", version)
    fleeting.subscribe("t", qos=1)
    at_most_once = world.connect("zero", version)
    at_most_once.subscribe("t", qos=0)
    publisher = world.connect("p", version)
    for packet_id in (1, 2):
        world.hold()
        assert publisher.send(Publish("t", b"x", 1, packet_id)) == []
        assert at_most_once.take() == [Publish("t", b"x")]
        assert fleeting.take() == []
        world.settle()
        assert fleeting.take() == [Publish("t", b"x", 1, packet_id)]
        assert publisher.take() == [PubAck(packet_id)]


def test_a_message_that_waited_for_quota_still_waits_for_its_own_commit() -> None:
    """Its reader is in memory alone, and had nothing held back in the tick of the message"""
    world = Kept(None, "s")
    reader = world.connect("r", properties=Properties(receive_maximum=1))
    reader.subscribe("#", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("u", b"first", 1, 1))
    assert [type(packet) for packet in reader.take()] == [Publish]
    world.hold()
    assert publisher.send(Publish("s", b"kept", 1, 2)) == []
    assert reader.send(PubAck(1)) == []
    world.settle()
    assert reader.take() == [Publish("s", b"kept", 1, 2)]
    publisher.take()
    assert publisher.send(Publish("u", b"free", 1, 3)) == [PubAck(3)]
    assert reader.send(PubAck(2)) == [Publish("u", b"free", 1, 3)]


@VERSIONS
def test_a_retained_message_waits_and_one_to_a_stream_does(version: int) -> None:
    world = Kept(None, "s/#")
    reader = world.connect("r", version)
    reader.subscribe("#", qos=1)
    publisher = world.connect("p", version)
    for packet_id, packet in enumerate(
        [Publish("t", b"x", 1, 1, retain=True), Publish("s", b"x", 1, 2), Publish("s", b"x", 1, 3)],
        1,
    ):
        world.hold()
        assert publisher.send(packet) == []
        assert reader.take() == []
        world.settle()
        assert publisher.take() == [PubAck(packet_id)]
        assert [type(each) for each in reader.take()] == [Publish]


def test_a_subscriber_of_a_retained_message_that_is_not_safe_yet_waits_with_it() -> None:
    world = Kept()
    publisher, reader = world.connect("p"), world.connect("r")
    world.hold()
    publisher.send(Publish("t", b"x", 1, 1, retain=True))
    assert reader.send(Subscribe(1, [Subscription("t", 1)])) == []
    world.settle(1)
    assert reader.take() == []
    world.settle()
    packets = reader.take()
    assert Publish("t", b"x", 1, 1, retain=True) in packets
    assert SubAck(1, [1]) in packets


@VERSIONS
def test_a_durable_sender_waits_at_every_step_of_qos_2(version: int) -> None:
    """The identifier with PUBREC, its release with PUBCOMP: also if nobody gets the message"""
    world = Kept()
    publisher = world.durable("p", version)
    world.hold()
    for packet_id in (1, 2):
        assert publisher.send(Publish("t", b"x", 2, packet_id)) == []
        assert [c.kind for t in world.store.taken for _, c in t.changes] == [STORED]
        world.settle()
        (answer,) = publisher.take()
        assert isinstance(answer, PubRec)
        assert publisher.send(PubRel(packet_id)) == []
        assert [c.kind for t in world.store.taken for _, c in t.changes] == [FREED]
        world.settle()
        assert publisher.take() == [PubComp(packet_id)]


@VERSIONS
def test_to_a_durable_receiver_pubrel_waits_and_its_last_answer_for_nothing(version: int) -> None:
    world = Kept()
    reader = world.durable("r", version)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"x", 2, 1))
    publisher.send(Publish("t", b"x", 2, 2))
    assert [packet.packet_id for packet in reader.take() if isinstance(packet, Publish)] == [1, 2]
    world.hold()
    for packet_id in (1, 2):
        assert reader.send(PubRec(packet_id)) == []
        assert [c.kind for t in world.store.taken for _, c in t.changes] == [RELEASED]
        world.settle()
        assert reader.take() == [PubRel(packet_id)]
        assert reader.send(PubComp(packet_id)) == []
        assert [c.kind for t in world.store.taken for _, c in t.changes] == [FINISHED]
        world.settle()


@VERSIONS
def test_suback_and_unsuback_of_a_durable_session_wait_and_others_do_not(version: int) -> None:
    world = Kept()
    kept, fleeting = world.durable("kept", version), world.connect("fleeting", version)
    world.hold()
    for client, waits in ((kept, True), (fleeting, False)):
        for packet, answer in (
            (Subscribe(1, [Subscription("t", 1)]), SubAck(1, [1])),
            (Unsubscribe(2, ["t"]), UnsubAck(2, [0] if version == MQTT5 else [])),
        ):
            at_once = client.send(packet)
            assert at_once == ([] if waits else [answer])
            world.settle()
            assert client.take() == ([answer] if waits else [])


def test_a_connack_waits_that_makes_changes_or_wipes_a_durable_session() -> None:
    world = Kept()
    world.hold()

    def connects(client_id: str, *, clean: bool, kept: bool) -> bool:
        """Whether its CONNACK waited."""
        client = world.open()
        packets = client.send(
            Connect(client_id, clean_start=clean, properties=KEPT if kept else Properties())
        )
        waited = packets == []
        world.settle()
        assert [type(packet) for packet in packets + client.take()] == [ConnAck]
        client.cut()
        world.settle()
        return waited

    assert connects("a", clean=True, kept=True)  # makes
    assert connects("a", clean=False, kept=True)  # resumes
    assert connects("a", clean=True, kept=False)  # wipes
    assert not connects("a", clean=True, kept=False)  # nothing to do with the store
    assert not connects("b", clean=False, kept=False)


def test_a_connack_waits_while_a_crash_could_bring_an_older_session_back() -> None:
    world = Kept()
    world.durable("a")
    world.hold()
    assert world.open().send(Connect("a")) == []
    # That one wipes; the next takes over from what was never stored.
    client = world.open()
    assert client.send(Connect("a")) == []
    world.settle()
    assert [type(packet) for packet in client.take()] == [ConnAck]


def test_a_connack_waits_for_the_end_of_the_last_of_several_older_sessions() -> None:
    world = Kept()
    world.durable("a")
    world.hold()
    # Each wipes the one before, in a commit of its own.
    for _ in range(2):
        assert world.open().send(Connect("a", properties=KEPT)) == []
    client = world.open()
    assert client.send(Connect("a")) == []
    assert [commit.ended for commit in world.store.taken] == [[1], [2], [3]]
    world.settle(2)
    assert client.take() == []
    # It ends with its connection, and the store still has the one before.
    client.cut()
    client = world.open()
    assert client.send(Connect("a")) == []
    world.settle()
    assert [type(packet) for packet in client.take()] == [ConnAck]


@VERSIONS
def test_a_connack_waits_for_the_will_that_it_accepts(version: int) -> None:
    """[MQTT-3.1.2-7]: stored, also for a session that ends with its connection"""
    world = Kept()
    world.hold()
    client = world.open(version)
    assert client.send(Connect("a", version=version, will=Will("gone"))) == []
    assert [who for commit in world.store.taken for who, _, _, _ in commit.wills] == ["a"]
    world.settle()
    assert [type(packet) for packet in client.take()] == [ConnAck]
    assert [type(packet) for packet in world.open(version).send(Connect("b", version=version))] == [
        ConnAck
    ]


def test_nothing_overtakes_a_connack() -> None:
    """[MQTT-3.2.0-1]"""
    world = Kept()
    world.hold()
    client = world.open()
    sent: list[Packet] = [Connect("a", properties=KEPT), PingReq()]
    assert client.send(*sent) == []
    assert client.send(PingReq()) == []
    world.settle()
    packets = client.take()
    assert [type(packet) for packet in packets] == [ConnAck, PingResp, PingResp]


def test_a_ping_and_qos_0_messages_pass_what_waits() -> None:
    world = Kept()
    client = world.durable("a")
    client.subscribe("zero", qos=0)
    publisher = world.connect("p")
    world.hold()
    assert client.send(Subscribe(2, [Subscription("t", 2)])) == []
    assert client.send(PingReq()) == [PingResp()]
    publisher.send(Publish("zero", b"x"))
    assert client.take() == [Publish("zero", b"x")]
    world.settle()
    assert client.take() == [SubAck(2, [2])]


@VERSIONS
def test_acknowledgements_of_one_connection_leave_in_packet_order(version: int) -> None:
    """[MQTT-4.6.0-2]: one that need not wait goes behind one that must; others' do not"""
    world = Kept()
    world.durable("reader", version).subscribe("kept", qos=1)
    world.connect("other", version).subscribe("gone", qos=1)
    publisher, stranger = world.connect("p", version), world.connect("q", version)
    world.hold()
    for packet_id in (1, 3):
        assert publisher.send(Publish("kept", b"x", 1, packet_id)) == []
        assert publisher.send(Publish("gone", b"x", 1, packet_id + 1)) == []
        assert stranger.send(Publish("gone", b"x", 1, packet_id)) == [PubAck(packet_id)]
        world.settle(1)
        assert publisher.take() == [PubAck(packet_id)]
        world.settle()
        assert publisher.take() == [PubAck(packet_id + 1)]


def test_what_waits_for_a_connection_that_closes_is_said_to_nobody() -> None:
    world = Kept()
    world.durable("reader").subscribe("t", qos=1)
    publisher, other = world.connect("p"), world.connect("q")
    world.hold()
    assert publisher.send(Publish("t", b"x", 1, 1)) == []
    assert other.send(Publish("t", b"x", 1, 1)) == []
    farewell = publisher.send(Subscribe(1, [Subscription("u")]), Connect("p"))
    assert [type(packet) for packet in farewell] == [Disconnect]
    assert publisher.is_closed()
    world.settle()
    assert publisher.take() == []
    assert other.take() == [PubAck(1)]


def test_a_commit_that_comes_after_its_connection_is_gone_is_for_nobody() -> None:
    world = Kept()
    world.durable("reader").subscribe("t", qos=1)
    client, other = world.connect("a"), world.connect("b")
    world.hold()
    client.send(Publish("t", b"x", 1, 1))
    other.send(Publish("t", b"x", 1, 1))
    client.cut()
    world.settle()
    assert other.take() == [PubAck(1)]


# --- what is in a commit --------------------------------------------------------------------------


@VERSIONS
def test_everything_that_must_last_is_in_a_commit(version: int) -> None:
    """From both paths: what a session that outlives its connection goes through, in order."""
    world = Kept()
    client = world.durable("a", version)
    publisher = world.connect("p", version)
    world.hold()

    def changes() -> list[int]:
        kinds = [change.kind for commit in world.store.taken for _, change in commit.changes]
        world.settle()
        return kinds

    client.send(Subscribe(1, [Subscription("t", 2)]))
    kept = [each[:2] for commit in world.store.taken for each in commit.subscriptions]
    assert kept == [(1, "t")]
    assert changes() == []
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"x", 2, packet_id))
        assert changes() == [QUEUED, ASSIGNED]
    publisher.send(Publish("t", b"kept", retain=True))
    assert [name for commit in world.store.taken for name, _ in commit.retained] == ["t"]
    assert changes() == []
    client.send(PubRec(1))
    assert changes() == [RELEASED]
    client.send(PubComp(1))
    assert changes() == [FINISHED]
    for packet_id in (7, 8):
        client.send(Publish("elsewhere", b"x", 2, packet_id))
        assert changes() == [STORED]
        client.send(PubRel(packet_id))
        assert changes() == [FREED]


@pytest.mark.parametrize("properties", [KEPT, Properties()], ids=["durable", "not durable"])
def test_a_will_is_in_a_commit_until_it_is_published_or_given_up(properties: Properties) -> None:
    world = Kept()
    will = Will("gone", b"bye")
    world.hold()

    def wills() -> list[tuple[str, Will | None]]:
        kept = [(who, will) for c in world.store.taken for who, _, will, _ in c.wills]
        world.settle()
        return kept

    client = world.open()
    client.send(Connect("a", user_name="u", will=will, properties=properties))
    assert [c.wills for c in world.store.taken] == [[("a", OWNER, will, None)]]
    assert wills() == [("a", will)]
    client.send(Disconnect())
    assert wills() == [("a", None)]
    client = world.open()
    client.send(Connect("a", will=will, properties=properties))
    assert wills() == [("a", will)]
    client.cut()
    assert wills() == [("a", None)]


def test_a_will_and_its_end_are_one_commit_with_what_it_brings() -> None:
    world = Kept()
    world.durable("reader").subscribe("gone", qos=1)
    client = world.connect("a", will=Will("gone", b"bye", qos=1))
    world.hold()
    client.cut()
    (commit,) = world.store.taken
    assert [(who, will, at) for who, _, will, at in commit.wills] == [("a", None, None)]
    assert [change.kind for _, change in commit.changes] == [QUEUED, ASSIGNED]


def test_a_delayed_will_is_stored_with_the_time_when_it_is_due() -> None:
    world = Kept()
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=30))
    client = world.connect("a", will=will, properties=KEPT)
    world.hold()
    client.cut()
    due = [at for commit in world.store.taken for _, _, kept, at in commit.wills if kept]
    assert due == [world.now + 30]
    world.settle()
    world.store.holding = False
    assert world.connect("a", clean_start=False, properties=KEPT, present=True) is not None


def test_the_broker_itself_reports_to_no_store() -> None:
    world = Kept(BrokerSettings(sys_interval=1.0))
    world.hold()
    world.wait(3)
    assert len(world.broker.router.retained) > 0
    assert world.store.taken == []


def test_a_retained_message_that_expired_leaves_the_store_too() -> None:
    world = Kept()
    publisher = world.connect("p")
    publisher.send(
        Publish("t", b"x", retain=True, properties=Properties(message_expiry_interval=5))
    )
    world.hold()
    world.wait(10)
    assert [each for commit in world.store.taken for each in commit.retained] == [("t", None)]


def test_without_a_store_nobody_remembers_what_expired() -> None:
    world = World(BrokerSettings(sys_interval=0.0))
    short = Properties(message_expiry_interval=1)
    world.connect("p").send(Publish("t", b"x", retain=True, properties=short))
    world.wait(5)
    assert len(world.broker.router.retained) == 0
    assert world.broker.router.retained.expired == []


def test_a_new_retained_message_outlives_the_old_one_that_expires_in_the_same_tick() -> None:
    world = Kept()
    publisher = world.connect("p")
    short = Properties(message_expiry_interval=5)
    publisher.send(Publish("t", b"old", retain=True, properties=short))
    world.now += 10
    world.hold()
    world.broker.sweep(world.now)
    publisher.send(Publish("t", b"new", retain=True))
    kept = [each for commit in world.store.taken for each in commit.retained]
    assert [(name, None if message is None else message.payload) for name, message in kept] == [
        ("t", b"new")
    ]


# --- streams --------------------------------------------------------------------------------------


@VERSIONS
def test_a_message_of_a_stream_is_a_row_of_its_commit(version: int) -> None:
    """At every QoS, by both paths; numbers are dense, one row for each stream that matches"""
    world = Kept(None, "s/#", "s/a")
    publisher = world.connect("p", version)
    world.hold()
    publisher.send(Publish("s/a", b"0"), Publish("s/b", b"1", 1, 1), Publish("other", b"-", 1, 2))
    publisher.send(Publish("s/b", b"2", 1, 3), Publish("s/b", b"3"), Publish("s/b", b"4", 2, 4))
    rows = [record for commit in world.store.taken for record in commit.records]
    assert [(row.stream, row.seq, row.payload) for row in rows] == [
        (1, 1, b"0"),
        (2, 1, b"0"),
        (1, 2, b"1"),
        (1, 3, b"2"),
        (1, 4, b"3"),
        (1, 5, b"4"),
    ]
    assert [(row.qos, row.packet_id, row.client_id, row.version) for row in rows[2:4]] == [
        (1, 1, "p", version),
        (1, 3, "p", version),
    ]


def test_a_row_of_a_stream_has_no_topic_alias_which_belongs_to_the_connection() -> None:
    world = Kept(None, "s")
    publisher = world.connect("p")
    world.hold()
    named = Properties(topic_alias=1, content_type="x")
    publisher.send(Publish("s", b"named", 1, 1, properties=named))
    publisher.send(Publish("", b"by alias", 1, 2, properties=Properties(topic_alias=1)))
    publisher.send(Publish("s", b"plain", 1, 3, properties=Properties(content_type="y")))
    rows = [record for commit in world.store.taken for record in commit.records]
    assert [(row.topic_name, row.payload, row.properties) for row in rows] == [
        ("s", b"named", Properties(content_type="x")),
        ("s", b"by alias", Properties()),
        ("s", b"plain", Properties(content_type="y")),
    ]


def test_a_will_is_recorded_and_a_replay_of_what_is_retained_or_refused_is_not() -> None:
    world = Kept(None, "#")
    told = Properties(will_delay_interval=0, content_type="x", message_expiry_interval=9)
    client = world.connect("a", will=Will("gone", b"bye", qos=1, properties=told))
    client.send(Publish("t", b"kept", retain=True))
    world.hold()
    client.subscribe("t")
    client.send(Publish("$SYS/x", b"no", 1, 9))
    assert [record for commit in world.store.taken for record in commit.records] == []
    client.cut()
    rows = [record for commit in world.store.taken for record in commit.records]
    assert [(row.topic_name, row.payload, row.client_id) for row in rows] == [("gone", b"bye", "a")]
    # The delay was for the server.
    assert rows[0].properties == Properties(content_type="x", message_expiry_interval=9)


# --- a store that takes no more -------------------------------------------------------------------


def test_when_the_disk_is_full_what_would_last_is_refused_before_it_is_anywhere() -> None:
    world = Kept(None, "s/#")
    reader = world.durable("reader")
    reader.subscribe("t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"before", 1, 1))
    reader.take()
    world.condition(FULL)
    assert publisher.send(Publish("t", b"x", 1, 2)) == [PubAck(2, 0x97)]
    assert publisher.send(Publish("t", b"x", 2, 3)) == [PubRec(3, 0x97)]
    assert publisher.send(Publish("s/x", b"x", 1, 4)) == [PubAck(4, 0x97)]
    assert publisher.send(Publish("u", b"x", 1, 5, retain=True)) == [PubAck(5, 0x97)]
    # What nobody keeps is no matter of the disk's.
    assert publisher.send(Publish("u", b"x", 1, 6)) == [PubAck(6, 0x10)]
    assert reader.take() == []
    assert len(world.broker.router.retained) == 0
    world.condition(OPEN)
    assert publisher.send(Publish("t", b"x", 1, 2)) == [PubAck(2)]
    assert reader.take() == [Publish("t", b"x", 1, 2)]


@pytest.mark.parametrize(
    ("version", "condition"),
    [(MQTT311, FULL), (MQTT311, BEHIND), (MQTT5, BEHIND)],
    ids=["3.1.1 full", "3.1.1 behind", "5.0 behind"],
)
def test_a_publisher_that_cannot_be_refused_is_not_read_from(version: int, condition: int) -> None:
    """Its message stays where it is, and what follows it; then all of it goes on, once"""
    world = Kept()
    reader = world.durable("reader", version)
    reader.subscribe("t", qos=1)
    publisher, other = world.connect("p", version, keep_alive=1), world.connect("q", version)
    publisher.send(Publish("t", b"0", 1, 1))
    reader.take()
    world.condition(condition)
    assert publisher.send(Publish("t", b"1", 1, 2), PingReq()) == []
    assert publisher.connection.paused_by_store
    assert publisher.send(Publish("t", b"2", 1, 3)) == []
    assert other.send(PingReq(), Publish("u", b"x", 1, 1))[0] == PingResp()
    assert not other.connection.paused_by_store
    # Whoever is not read from is not silent.
    world.wait(5)
    assert not publisher.is_closed()
    world.condition(OPEN)
    assert publisher.connection in world.broker.resumed
    assert publisher.take() == [PingResp(), PubAck(2), PubAck(3)]
    assert [packet.payload for packet in reader.take() if isinstance(packet, Publish)] == [
        b"1",
        b"2",
    ]


def test_a_qos_0_message_of_a_stream_waits_rather_than_being_lost() -> None:
    world = Kept(None, "s")
    publisher = world.connect("p")
    for condition in (FULL, BEHIND):
        world.condition(condition)
        assert publisher.send(Publish("s", b"x"), PingReq()) == []
        assert publisher.connection.paused_by_store
        world.hold()
        world.condition(OPEN)
        assert publisher.take() == [PingResp()]
        assert len([row for commit in world.store.taken for row in commit.records]) == 1
        world.settle()
        world.store.holding = False


def test_a_qos_2_message_that_is_stored_already_is_answered_on_a_full_disk() -> None:
    """[MQTT-4.3.3-10]: to refuse it now would be a lie"""
    world = Kept(None, "s")
    publisher = world.durable("p", MQTT311)
    publisher.send(Publish("s", b"x", 2, 1))
    world.condition(FULL)
    assert publisher.send(Publish("s", b"x", 2, 1, dup=True)) == [PubRec(1)]
    five = world.connect("five")
    assert five.send(Publish("s", b"x", 2, 1)) == [PubRec(1, 0x97)]


def test_a_blocked_connection_that_goes_away_is_forgotten() -> None:
    world = Kept(None, "s")
    publisher = world.connect("p")
    world.condition(BEHIND)
    publisher.send(Publish("s", b"x"))
    publisher.cut()
    world.condition(OPEN)
    assert world.broker.resumed == []


def test_what_a_shared_subscription_would_keep_is_refused_too_and_qos_0_is_nobodys() -> None:
    world = Kept()
    member = world.durable("member")
    member.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    world.durable("zero").subscribe("t", qos=0)
    publisher = world.connect("p")
    kept = world.durable("kept")
    world.condition(FULL)
    assert publisher.send(Publish("t", b"x", 1, 1)) == [PubAck(1, 0x97)]
    assert publisher.send(Publish("t", b"x"), PingReq()) == [PingResp()]
    # A group whose members keep nothing is nobody's either.
    world.connect("fleeting").send(Subscribe(1, [Subscription("$share/h/u", 1)]))
    assert publisher.send(Publish("u", b"x", 1, 3)) == [PubAck(3)]
    # Its identifier has to be stored.
    assert kept.send(Publish("nobody", b"x", 2, 1)) == [PubRec(1, 0x97)]
    assert publisher.send(Publish("nobody", b"x", 2, 2)) == [PubRec(2, 0x10)]


@VERSIONS
def test_a_full_disk_takes_no_new_session_and_no_new_will(version: int) -> None:
    """0x97, or return code 3; who needs nothing of the store is welcome"""
    world = Kept()
    world.durable("kept", version).cut()
    world.condition(FULL)
    kept = KEPT if version == MQTT5 else Properties()
    refused = ConnAck(0x97 if version == MQTT5 else 3)
    for packet in (
        Connect("new", version=version, clean_start=version == MQTT5, properties=kept),
        Connect("will", version=version, will=Will("gone")),
        Connect("kept", version=version),  # a wipe
    ):
        (answer,) = world.open(version).send(packet)
        assert isinstance(answer, ConnAck)
        assert answer.reason == refused.reason
    world.connect("fleeting", version)
    world.condition(OPEN)
    assert world.connect("will", version, will=Will("gone")) is not None


def test_a_client_of_5_0_is_told_in_time_that_its_acknowledgement_waits_for_a_full_disk() -> None:
    """Its message was with the writer when space ran out, and refusals keep their order behind it:
    without a word it would look hung for as long as the disk is full."""
    world = Kept(BrokerSettings(full_disk_timeout=10.0))
    reader = world.durable("reader")
    reader.subscribe("t", qos=1)
    five, three = world.connect("five"), world.connect("three", MQTT311)
    subscriber, idle = world.durable("subscriber"), world.connect("idle")
    world.hold()
    first = [five, three]
    for client in first:
        assert client.send(Publish("t", b"x", 1, 1)) == []
    # Whom messages wait for, and not an answer, has nothing to be told.
    assert reader.take() == []
    world.condition(FULL)
    assert five.send(Publish("t", b"x", 1, 2)) == []
    assert subscriber.send(Subscribe(1, [Subscription("u")])) == []
    world.wait(9)
    assert not any(client.is_closed() for client in (five, three, subscriber, idle, reader))
    world.wait(3)
    for client in (five, subscriber):
        assert client.take() == [
            Disconnect(0x97, properties=Properties(reason_string="the disk of the server is full"))
        ]
        assert client.is_closed()
    assert not any(client.is_closed() for client in (three, idle, reader))
    assert (
        len(
            [
                line
                for line in world.log
                if "its acknowledgements wait for space on the disk" in line
            ]
        )
        == 2
    )
    # Back again, it is refused at once: nothing is before it.
    again = world.connect("again")
    assert again.send(Publish("t", b"x", 1, 1)) == [PubAck(1, 0x97)]
    world.settle()
    world.condition(OPEN)
    assert three.take() == [PubAck(1)]
    assert [type(packet) for packet in reader.take()] == [Publish, Publish]


def test_a_wait_for_a_full_disk_that_ends_in_time_counts_no_more() -> None:
    world = Kept(BrokerSettings(full_disk_timeout=10.0))
    world.durable("reader").subscribe("t", qos=2)
    publisher = world.connect("p")
    for packet_id, packet in ((1, PubAck(1)), (2, PubRec(2))):
        world.hold()
        assert publisher.send(Publish("t", b"x", packet_id, packet_id)) == []
        world.condition(FULL)
        world.wait(8)
        world.settle()
        world.condition(OPEN)
        assert publisher.take() == [packet]
    world.condition(FULL)
    world.wait(30)
    assert not publisher.is_closed()


def test_without_a_timeout_for_a_full_disk_nobody_is_disconnected() -> None:
    world = Kept(BrokerSettings(full_disk_timeout=0.0))
    world.durable("reader").subscribe("t", qos=1)
    publisher = world.connect("p")
    world.hold()
    publisher.send(Publish("t", b"x", 1, 1))
    world.condition(FULL)
    world.wait(60)
    assert not publisher.is_closed()


def test_answers_that_a_connection_is_owed_are_bounded_while_the_disk_is_full() -> None:
    world = Kept()
    client = world.durable("a")
    world.hold()
    world.condition(FULL)
    for at in range(1, 201):
        client.send(Subscribe(at, [Subscription("t")]))
    assert client.connection.paused_by_store
    assert len(world.store.taken) == 100
    world.settle()
    world.condition(OPEN)
    world.settle()
    assert [type(packet) for packet in client.take()] == [SubAck] * 200


def test_a_rule_that_is_broken_on_a_full_disk_is_named_all_the_same() -> None:
    world = Kept(None, "s")
    for broken in (
        Publish("", b"x", properties=Properties(topic_alias=7)),  # never set
        b"\x37\x05\x00\x01s\x00\x01",  # QoS 3
    ):
        client = world.connect("a")
        world.condition(FULL)
        sent = client.send_bytes(broken) if isinstance(broken, bytes) else client.send(broken)
        assert [type(packet) for packet in sent] == [Disconnect]
        world.condition(OPEN)


class Angry(Authority):
    """Fails over one topic."""

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        if topic_name == "angry":
            raise RuntimeError("no")
        return 0


def test_what_fails_for_one_who_waited_leaves_the_others_alone() -> None:
    store = Held()
    streams = Streams([Stream(1, "s", "#", 0)])
    world = World(store=store, streams=streams, authority=Angry())
    victim, other = world.connect("victim"), world.connect("other")
    store.condition = BEHIND
    assert victim.send(Publish("angry", b"x", 1, 1)) == []
    assert other.send(Publish("calm", b"x", 1, 1)) == []
    store.condition = OPEN
    world.tick()
    assert victim.is_closed()
    assert other.take() == [PubAck(1, 0x10)]
    assert sum("'victim' (test:1) closed: serving it failed" in line for line in world.log) == 1


# --- faults ---------------------------------------------------------------------------------------


class Tampering(Held):
    """Puts something into a commit that is no packet."""

    victim = 0

    def write(self, commit: Commit) -> bool:
        if self.victim:
            commit.packets.insert(0, (self.victim, [b""]))
        return True


class Failing(Held):
    """Has no room, when it is told so."""

    fails = False

    def write(self, commit: Commit) -> bool:
        if self.fails:
            raise OSError("no room")
        return True


def test_what_fails_for_one_connection_in_a_commit_leaves_the_others_alone() -> None:
    store = Tampering()
    world = World(store=store)
    victim, other = world.connect("victim"), world.connect("other", properties=KEPT)
    store.victim = victim.connection.number
    assert other.send(Subscribe(1, [Subscription("t")])) == [SubAck(1, [0])]
    assert victim.is_closed()
    assert not other.is_closed()
    assert sum("'victim' (test:1) closed: serving it failed" in line for line in world.log) == 1


def test_a_commit_that_the_store_refuses_is_acknowledged_to_nobody() -> None:
    store = Failing()
    world = World(store=store)
    client, other = world.connect("a", properties=KEPT), world.connect("b")
    leaves = world.connect("c", properties=KEPT)
    store.fails = True
    # What a connection said that is gone is for nobody.
    asked = encode(Subscribe(1, [Subscription("t")])) + encode(PingReq())
    world.broker.receive(leaves.connection, asked, world.now)
    world.broker.lost(leaves.connection, world.now)
    world.clients.remove(leaves)
    assert client.send(Publish("t", b"", 2, 1)) == []
    assert client.is_closed()
    assert other.send(PingReq()) == [PingResp()]
    # What it has not got leaves a hole: nothing more may be said to last, until a new start.
    store.fails = False
    assert "no room" in world.broker.store_failure
    late = world.open()
    assert late.send(Connect("c", properties=KEPT)) == []
    assert late.is_closed()
    assert other.send(PingReq()) == [PingResp()]
    assert sum("the store failed" in line for line in world.log) == 1
