"""Replay to sessions that last: a cursor in the store instead of copies, over cuts and crashes.

QoS 2 exactly once, QoS 1 without a gap, QoS 0 at most once, each in the order of the record: that
is judged by a client that keeps its own account of identifiers, as the standard has it.
"""

import random
from collections.abc import Callable

import pytest

from semel.mqtt import (
    MQTT311,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Unsubscribe,
)
from semel.mqtt.delivery import ASSIGNED, QUEUED
from semel.store.row_checksums import KEEP_LOW
from semel.store.store import BEHIND, OPEN
from tests.broker.recorded import (
    ALL,
    Plant,
    follow,
    messages,
    read_all,
    seq,
    seqs,
    subscribe,
)
from tests.broker.world import Client
from tests.modes import repeats

CURSOR = "SELECT topic_filter, cursor FROM subscription"


def back(world: Plant, *, receive_maximum: int | None = None) -> Client:
    """The durable reader connects again."""
    reader = world.reader(durable=True, present=True, receive_maximum=receive_maximum)
    world.settle()
    return reader


# --- cuts and crashes, one by one -----------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_it_goes_on_after_the_cursor_and_sends_again_what_was_in_flight(
    qos: int, crash: bool
) -> None:
    world = Plant()
    world.fill(8, qos=qos)
    reader = world.reader(durable=True, receive_maximum=3)
    assert seqs(follow(reader)) == [1, 2, 3]
    if qos == 1:
        assert seqs(messages(reader.send(PubAck(1)))) == [4]
    else:
        reader.send(PubRec(1))
        assert seqs(messages(reader.send(PubComp(1)))) == [4]
    assert world.rows(CURSOR) == [(ALL, 4)]
    # Copies of what is in flight, and of nothing else.
    assert world.rows("SELECT count(*) FROM delivery") == [(3,)]
    if crash:
        world.crash()
    else:
        reader.cut()
    world.fill(1, first=9, qos=qos)
    reader = back(world, receive_maximum=3)
    again = messages(reader.take())
    assert [(seq(each), each.dup) for each in again] == [(2, True), (3, True), (4, True)]
    found = read_all(reader, list(again))
    assert seqs(found) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [each.dup for each in found] == [True] * 3 + [False] * 5
    assert world.rows("SELECT count(*) FROM delivery") == [(0,)]
    world.crash()
    assert back(world).take() == []


def test_a_subscribe_without_an_offset_goes_on_where_the_cursor_stands() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader(durable=True)
    assert seqs(read_all(reader, list(follow(reader)))) == [1, 2, 3]
    world.crash()
    world.fill(2, first=4)
    reader = world.reader(durable=True, present=True)
    assert SubAck(900, [2]) in reader.send(subscribe(offset=None))
    world.crash()
    reader = back(world)
    assert seqs(read_all(reader)) == [4, 5]


def test_moving_and_unsubscribing_last() -> None:
    world = Plant()
    world.fill(5)
    reader = world.reader(durable=True)
    read_all(reader, list(follow(reader)))
    assert world.rows(CURSOR) == [(ALL, 5)]
    reader.send(subscribe(offset="4"), Unsubscribe(8, ["$stream/plant/other"]))
    reader.cut()
    world.crash()
    reader = back(world)
    assert seqs(read_all(reader)) == [4, 5]
    reader.send(subscribe(offset="latest"))
    assert world.rows(CURSOR) == [(ALL, 5)]
    reader.send(Unsubscribe(8, [ALL]))
    assert world.rows(CURSOR) == []
    world.crash()
    world.fill(1)
    reader = back(world)
    assert reader.take() == []
    assert follow(reader, offset=None) == []
    # In one tick: the last word counts.
    reader.send(
        subscribe(offset="earliest", packet_id=1),
        Unsubscribe(2, [ALL]),
        subscribe(offset="6", packet_id=3),
    )
    world.crash()
    assert seqs(read_all(back(world))) == [6]


def test_a_session_that_ends_takes_its_cursor_along() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader(durable=True)
    assert seqs(follow(reader)) == [1, 2]
    reader.send(Disconnect(properties=Properties(session_expiry_interval=1)))
    reader.cut()
    world.wait(3.0)
    assert world.rows(CURSOR) == []
    world.fill(1)
    reader = world.reader(durable=True)
    assert reader.take() == []
    assert follow(reader, offset=None) == []


def test_the_cursor_is_in_the_commit_of_what_moved_it_and_packets_leave_after_that() -> None:
    world = Plant()
    world.fill(3, qos=2)
    reader = world.reader(durable=True)
    world.hold()
    assert reader.send(subscribe()) == []
    (commit,) = world.store.held
    assert [change.kind for _, change in commit.changes] == [QUEUED, ASSIGNED] * 3
    assert commit.cursors == [(1, ALL, 0), (1, ALL, 3)]
    world.settle()
    assert reader.take() == []
    world.let_go()
    suback, *others = reader.take()
    assert suback == SubAck(900, [2])
    assert seqs(messages(others)) == [1, 2, 3]


@pytest.mark.parametrize("safe", [False, True])
def test_a_crash_before_the_commit_has_sent_nothing_and_one_after_it_sends_it_again(
    safe: bool,
) -> None:
    world = Plant()
    world.fill(3, qos=2)
    reader = world.reader(durable=True)
    assert follow(reader, offset="latest") == []
    world.hold()
    reader.send(subscribe(offset="2"))
    if safe:
        world.database.apply(world.store.held)
    world.crash()
    found = read_all(back(world))
    assert [(seq(each), each.dup) for each in found] == ([(2, True), (3, True)] if safe else [])


# --- QoS 0 ----------------------------------------------------------------------------------------


def test_at_qos_0_a_message_leaves_after_its_cursor_is_safe_and_few_wait_for_that() -> None:
    world = Plant()
    world.fill(450, qos=0)
    reader = world.reader(durable=True)
    assert follow(reader, offset="latest") == []
    world.hold()
    reader.send(subscribe())
    world.settle()
    assert reader.take() == []
    held = [packets for commit in world.store.held for _, packets in commit.packets]
    assert sum(map(len, held)) <= 101  # and the SUBACK
    # Not even others of its session, or time, make more of them.
    for packet_id in range(1, 6):
        reader.send(Unsubscribe(packet_id, ["nothing"]))
        world.settle()
    held = [packets for commit in world.store.held for _, packets in commit.packets]
    assert sum(map(len, held)) <= 106
    world.let_go()
    found = [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert seqs(found) == list(range(1, 451))


def test_at_qos_0_a_crash_repeats_nothing() -> None:
    world = Plant()
    world.fill(250, qos=0)
    reader = world.reader(durable=True)
    world.hold()
    reader.send(subscribe())
    world.settle()
    world.let_go(1)
    found = seqs(messages(reader.take()[1:]))
    assert found == list(range(1, len(found) + 1))
    assert 50 < len(found) <= 100
    world.crash()
    assert seqs(read_all(back(world))) == list(range(len(found) + 1, 251))


def test_who_takes_over_while_messages_are_held_goes_on_after_them() -> None:
    world = Plant()
    world.fill(150, qos=0)
    reader = world.reader(durable=True)
    world.hold()
    reader.send(subscribe())
    world.settle()
    held = [
        each for commit in world.store.held for _, packets in commit.packets for each in packets
    ]
    numbers = seqs([packet for packet in held if isinstance(packet, Publish)])
    assert 50 < len(numbers) <= 100
    second = world.open()

    second.send(Connect("r", clean_start=False, properties=Properties(session_expiry_interval=9)))
    world.let_go()
    assert seqs(messages(second.take()[1:])) == list(range(len(numbers) + 1, 151))


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_messages_of_different_qos_keep_the_order_of_the_record_while_the_store_is_slow(
    durable: bool,
) -> None:
    """A reader that waits for a commit, because it is durable or has just published."""
    world = Plant()
    for qos in (1, 0, 2, 0, 0, 1):
        world.fill(1, qos=qos)
    reader = world.reader(durable=durable)
    world.hold()
    assert reader.send(Publish("plant/b", b"own", 1, 1), subscribe()) == []
    world.settle()
    world.let_go(1)
    world.let_go()
    found = [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert [each.qos for each in found] == [1, 0, 2, 0, 0, 1, 1]
    assert seqs(found) == [1, 2, 3, 4, 5, 6, 7]


# --- times ----------------------------------------------------------------------------------------


def test_a_time_that_is_not_looked_up_yet_survives_a_crash() -> None:
    """Message n is received at second 999 + n."""
    world = Plant()
    world.fill(4)
    world.store.late = True
    reader = world.reader(durable=True)
    assert follow(reader, offset="1970-01-01T00:16:42Z") == []
    assert world.rows(CURSOR) == [(ALL, -1_002_000_000)]
    world.crash()
    assert seqs(read_all(back(world))) == [3, 4]
    assert world.rows(CURSOR) == [(ALL, 4)]


def test_a_time_to_come_survives_a_crash_and_so_does_the_place_once_it_is_there() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader(durable=True)
    assert follow(reader, offset="1970-01-01T00:16:44Z") == []
    world.fill(1)
    world.crash()
    reader = back(world)
    world.fill(2)
    assert seqs(read_all(reader)) == [5]
    world.now -= 500.0
    world.crash()
    world.fill(1)
    assert seqs(read_all(back(world))) == [6]


# --- what else may have changed -------------------------------------------------------------------


def test_what_retention_has_deleted_meanwhile_is_told_and_it_goes_on() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader(durable=True)
    read_all(reader, list(follow(reader)))
    reader.cut()
    world.fill(9)
    world.trim(8)
    world.crash()
    found = read_all(back(world))
    assert seqs(found) == [8, 9, 10, 11, 12]
    assert found[0].properties.user_properties[2] == ("stream-missed", "4-7")
    assert any("of stream plant, which are no longer kept: 4 to" in line for line in world.log)


def test_a_stream_that_is_not_there_any_more_keeps_the_place_until_it_is() -> None:
    world = Plant(streams={"plant": "plant/#", "other": "other/#"})
    world.fill(2)
    reader = world.reader(durable=True)
    read_all(reader, list(follow(reader)))
    reader.subscribe("t", qos=1, packet_id=901)
    world.named = {"other": "other/#"}
    world.crash()
    assert any("stream 'plant' is no longer configured" in line for line in world.log)
    reader = back(world)
    world.connect("p").send(Publish("t", b"x", 1, 1))
    assert [packet.payload for packet in messages(reader.take())] == [b"x"]
    world.named = {"plant": "plant/#"}
    world.crash()
    world.fill(1)
    assert seqs(read_all(back(world))[1:]) == [3]


def test_a_subscription_without_a_cursor_begins_with_what_comes() -> None:
    """Made by a broker to whom `$stream` was a topic as any other."""
    world = Plant()
    world.fill(2)
    reader = world.reader(durable=True)
    assert follow(reader, offset="latest") == []
    world.database.connection.execute(
        f"UPDATE subscription SET cursor = NULL, checksum = {KEEP_LOW}"
    )
    world.crash()
    assert world.rows(CURSOR) == [(ALL, 2)]
    world.fill(1)
    world.crash()
    assert seqs(read_all(back(world))) == [3]


def test_a_session_that_3_1_1_takes_over_gets_its_messages_without_properties() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader(durable=True, receive_maximum=1)
    assert seqs(follow(reader)) == [1]
    reader.cut()
    old = world.connect("r", MQTT311, clean_start=False, present=True)
    world.settle()
    found = messages(old.take())
    assert [(each.topic_name, each.payload) for each in found] == [
        ("$stream/plant/plant/a", b"1"),
        ("$stream/plant/plant/a", b"2"),
    ]
    assert not found[1].properties.present


def test_what_is_passed_over_is_noted_now_and_then_if_the_store_takes_it() -> None:
    """So that a filter that matches little does not look through all again after a restart."""
    world = Plant()
    world.fill(2_500, qos=0)
    reader = world.reader(durable=True)
    nothing = "$stream/plant/nothing"
    world.store.condition = BEHIND
    assert follow(reader, nothing) == []
    assert world.rows(CURSOR) == [(nothing, 0)]
    world.store.condition = OPEN
    assert follow(reader, nothing) == []
    ((_, cursor),) = world.rows(CURSOR)
    assert isinstance(cursor, int)
    assert 1_000 <= cursor <= 2_500
    assert world.rows("SELECT count(*) FROM delivery") == [(0,)]


# --- any history ----------------------------------------------------------------------------------


class Account:
    """What a client has received, by the rules of its end of the protocol alone."""

    def __init__(self) -> None:
        self.received: list[tuple[int, int, bool]] = []
        self.open_ids: set[int] = set()

    def take(self, packets: list[Packet]) -> list[Packet]:
        """Deal with packets; what is owed for them."""
        owed: list[Packet] = []
        for packet in packets:
            if isinstance(packet, Publish):
                if packet.qos < 2 or packet.packet_id not in self.open_ids:
                    self.received.append((seq(packet), packet.qos, packet.dup))
                if packet.qos == 1:
                    owed.append(PubAck(packet.packet_id))
                elif packet.qos == 2:
                    self.open_ids.add(packet.packet_id)
                    owed.append(PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                self.open_ids.discard(packet.packet_id)
                owed.append(PubComp(packet.packet_id))
        return owed


class History:
    """A random life of a publisher, a durable reader, and a broker that crashes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = Plant()
        self.account = Account()
        self.granted = self.random.randrange(3)
        self.owed: list[Packet] = []
        self.packet_id = 0
        self.unanswered: set[int] = set()
        self.publisher = self.world.connect("p")
        self.reader = self.world.reader(durable=True)
        follow(self.reader, qos=self.granted, offset="earliest")

    def run(self, steps: int) -> None:
        events: list[tuple[int, Callable[[], None]]] = [
            (30, self.publish),
            (30, self.answer),
            (10, self.world_goes_on),
            (6, self.slow),
            (6, self.reconnect),
            (4, self.crash),
        ]
        kinds = [event for _, event in events]
        weights = [weight for weight, _ in events]
        for _ in range(steps):
            self.random.choices(kinds, weights)[0]()
            self.gather()
        self.world.store.late = False
        self.crash()
        self.gather()
        while self.owed:
            self.answer()
            self.gather()

    def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 5, 40))):
            qos = self.random.randrange(3)
            if qos and len(self.unanswered) > 50:
                continue
            self.packet_id = self.packet_id % 60_000 + 1
            number = self.packet_id if qos else 0
            if qos:
                self.unanswered.add(number)
            self.heard(self.publisher.send(Publish("plant/a", b"x", qos, number)))

    def heard(self, packets: list[Packet]) -> None:
        for packet in packets:
            if isinstance(packet, PubRec):
                self.heard(self.publisher.send(PubRel(packet.packet_id)))
            elif isinstance(packet, PubAck | PubComp):
                self.unanswered.discard(packet.packet_id)

    def gather(self) -> None:
        self.heard(self.publisher.take())
        self.owed += self.account.take(self.reader.take())

    def answer(self) -> None:
        count = self.random.randrange(len(self.owed) + 1) if self.owed else 0
        now, self.owed = self.owed[:count], self.owed[count:]
        if now:
            packets = self.reader.send(*now)
            self.reader.inbox = packets
        self.world.settle()

    def world_goes_on(self) -> None:
        if self.random.random() < 0.5:
            self.world.answer()
        elif self.world.store.held:
            self.world.let_go(self.random.choice((1, 2, None)))

    def slow(self) -> None:
        if self.random.random() < 0.5:
            self.world.hold()
        else:
            self.world.store.late = not self.world.store.late
            if not self.world.store.late:
                self.world.answer()

    def connect(self) -> None:
        self.owed = []
        maximum = self.random.choice((1, 3, 100))
        self.world.store.holding = False
        self.world.let_go()
        self.reader = self.world.reader(durable=True, present=True, receive_maximum=maximum)
        self.world.settle()

    def reconnect(self) -> None:
        # What was on its way to the client is lost, or not.
        if self.random.random() < 0.5:
            self.reader.inbox = []
        self.gather()
        self.reader.cut()
        self.connect()

    def crash(self) -> None:
        self.gather()
        self.world.crash()
        self.publisher = self.world.connect("p")
        self.unanswered = set()
        self.connect()


@pytest.mark.parametrize("seed", range(repeats(25, 6)))
def test_in_any_history_each_message_comes_as_its_qos_promises(seed: int) -> None:
    history = History(seed)
    history.run(80)
    rows = history.world.rows("SELECT seq, flags & 3 FROM record ORDER BY seq")
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    granted = history.granted
    wanted = {number: min(int(str(qos)), granted) for number, qos in rows}
    received = history.account.received
    for number, qos, _ in received:
        assert wanted[number] == qos
    firsts: list[int] = []
    for number, qos, dup in received:
        if number not in firsts:
            firsts.append(number)
        else:
            # Only QoS 1 comes again, and says so.
            assert (qos, dup) == (1, True), (number, qos)
    assert firsts == sorted(firsts)
    missing = [number for number, qos in wanted.items() if qos and number not in firsts]
    assert missing == []
