"""Replay by the real broker: rows, segments, kills, a root that is gone, and paho as a client.

`semel broker --data … --stream plant=plant/#` as a user starts it. Where rows are (in the table,
in segments, in both) is seen to before a client asks for them.
"""

import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Packet,
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
)
from semel.store.retention import trim
from semel.store.roots import LocalRoot, open_root
from tests.broker import paho_client
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import Link, link
from tests.broker.recorded import ALL, seq, seqs, subscribe

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "data" / "replay.md"

# Rows become segments at once, or stay in the table.
SEALED = "10ms"
UNSEALED = "1h"


class Place:
    """A data folder whose broker records `plant/#`."""

    def __init__(self, folder: Path, *, seal_after: str = SEALED, arguments: tuple[str, ...] = ()):
        self.folder = folder
        given = ("--data", str(folder), "--stream", "plant=plant/#", "--node", "n1")
        self.arguments = (*given, *arguments)
        self.seal_after = seal_after
        self.broker = self._start()
        self.sent = 0

    def _start(self) -> Process:
        return Process(*self.arguments, "--seal-after", self.seal_after)

    @property
    def root(self) -> LocalRoot:
        root = open_root(self.folder / "streams")
        assert isinstance(root, LocalRoot)
        return root

    @contextmanager
    def link(self, client_id: str = "", version: int = MQTT5) -> Iterator[Link]:
        with link(self.broker.address, client_id, version) as made:
            yield made

    def publish(self, count: int, qos: int = 1, *, size: int = 0) -> None:
        """So many messages more, each with its number; all are safe when this returns."""
        with self.link("publisher") as publisher:
            for first in range(0, count, 50):
                batch = range(self.sent + 1, self.sent + min(50, count - first) + 1)
                publisher.send(
                    *[
                        Publish(
                            f"plant/{number % 3}",
                            b"%d:" % number + b"x" * size,
                            qos,
                            number % 60_000 + 1 if qos else 0,
                        )
                        for number in batch
                    ]
                )
                self.sent = batch[-1]
                answers = publisher.take(len(batch)) if qos else []
                if qos == 2:
                    publisher.send(*[PubRel(packet.packet_id) for packet in acks(answers)])
                    publisher.take(len(batch))
            publisher.ping()
        self.wait_for(lambda: self.committed() == self.sent)

    def committed(self) -> int:
        return self.ask("SELECT last_seq FROM stream")

    def ask(self, question: str) -> int:
        uri = f"{(self.folder / 'store.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return int(connection.execute(question).fetchone()[0])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "".join(self.broker.log)
            time.sleep(0.02)

    def seal(self) -> None:
        """Wait until all is in segments and nowhere else; what comes now stays in the table."""
        self.wait_for(lambda: self.ask("SELECT last_seq - sealed_seq FROM stream") == 0)
        self.wait_for(lambda: self.ask("SELECT count(*) FROM record") == 0)
        self.end()
        self.seal_after = UNSEALED
        self.broker = self._start()

    def kill(self) -> None:
        """kill -9, and a new broker."""
        assert self.broker.stop(signal.SIGKILL) == -signal.SIGKILL
        self.broker = self._start()

    def end(self) -> None:
        assert self.broker.stop() == 0
        assert "Traceback" not in "".join(self.broker.log)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "data")
    yield made
    made.end()


def acks(packets: list[Packet]) -> list[PubRec]:
    found = [packet for packet in packets if isinstance(packet, PubRec)]
    assert len(found) == len(packets)
    return found


def connect(client: Link, client_id: str = "r", *, durable: bool = True, window: int = 0) -> None:
    """A reader; `window` is its Receive Maximum."""
    client.connect(
        client_id,
        clean_start=not durable,
        properties=Properties(
            session_expiry_interval=1_000 if durable else None,
            receive_maximum=window or None,
        ),
    )


class Reader:
    """A client that keeps its own account: what is new, what is owed, which messages are open."""

    def __init__(self) -> None:
        self.received: list[Publish] = []
        self.open_ids: set[int] = set()

    def answer(self, packet: Packet) -> Packet | None:
        """Deal with one packet; what is owed for it."""
        if isinstance(packet, Publish):
            if packet.qos < 2 or packet.packet_id not in self.open_ids:
                self.received.append(packet)
            if packet.qos == 1:
                return PubAck(packet.packet_id)
            if packet.qos == 2:
                self.open_ids.add(packet.packet_id)
                return PubRec(packet.packet_id)
        elif isinstance(packet, PubRel):
            self.open_ids.discard(packet.packet_id)
            return PubComp(packet.packet_id)
        return None

    def read(self, client: Link, last: int) -> list[Publish]:
        """All up to that seq, each acknowledged at once."""
        while not self.received or seq(self.received[-1]) < last or self.open_ids:
            (packet,) = client.take(1)
            answer = self.answer(packet)
            if answer is not None:
                client.send(answer)
        return self.received


def follow(client: Link, offset: str | None = "earliest", *, qos: int = 2, code: int = -1) -> None:
    """Subscribe to the stream; the SUBACK comes before all messages."""
    client.send(subscribe(offset=offset, qos=qos))
    (suback,) = client.take(1)
    assert isinstance(suback, SubAck)
    assert list(suback.reasons) == [qos if code < 0 else code]


# --- the record, wherever it is -------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_record_comes_in_order_out_of_segments_out_of_the_table_and_live(
    place: Place, qos: int
) -> None:
    place.publish(300, qos)
    place.seal()
    place.publish(50, qos)
    with place.link() as client:
        connect(client, durable=False)
        follow(client)
        reader = Reader()
        reader.read(client, 350)
        place.publish(130, qos)
        found = reader.read(client, 480)
    assert seqs(found) == list(range(1, 481))
    assert [packet.payload for packet in found] == [b"%d:" % number for number in range(1, 481)]
    assert {packet.qos for packet in found} == {qos}
    assert found[4].topic_name == "$stream/plant/plant/2"
    assert not any(packet.retain or packet.dup for packet in found)
    times = [packet.properties.user_properties[1] for packet in found]
    assert all(name == "stream-time" for name, _ in times)
    assert [value for _, value in times] == sorted(value for _, value in times)


def test_each_kind_of_offset_leads_where_it_says(place: Place) -> None:
    place.publish(200)
    place.seal()
    place.publish(50)
    place.publish(20)
    with place.link() as client:
        connect(client, durable=False)
        follow(client)
        everything = Reader().read(client, 270)
        received = {seq(each): each.properties.user_properties[1][1] for each in everything}
        # In a segment, in the table, and at the border of what was published at one time.
        for number in (1, 57, 200, 201, 251, 270):
            earliest = min(each for each, at in received.items() if at >= received[number])
            follow(client, received[number])
            assert seqs(Reader().read(client, 270)) == list(range(earliest, 271))
        for number in (1, 100, 101, 200, 201, 270):
            follow(client, f"{number}")
            assert seqs(Reader().read(client, 270)) == list(range(number, 271))
        follow(client, "latest")
        place.publish(1)
        assert seqs(Reader().read(client, 271)) == [271]
        follow(client, "273")
        place.publish(3)
        assert seqs(Reader().read(client, 274)) == [273, 274]


@pytest.fixture
def busy_place(tmp_path: Path) -> Iterator[Place]:
    """One that seals and merges all the time, and keeps nothing that others cover."""
    merging = ("--compact-below", "1MiB", "--compact-grace", "0s")
    made = Place(tmp_path / "data", arguments=merging)
    yield made
    made.end()


def test_while_rows_become_segments_nothing_is_passed_over(busy_place: Place) -> None:
    """A reader at its own pace, while the broker records, seals and merges."""
    with busy_place.link() as client, busy_place.link() as late:
        connect(client, window=7)
        follow(client)
        reader = Reader()
        for _ in range(12):
            busy_place.publish(60)
            reader.read(client, busy_place.sent - 30)
        assert seqs(reader.read(client, 720)) == list(range(1, 721))
        connect(late, "late", durable=False)
        follow(late)
        assert seqs(Reader().read(late, 720)) == list(range(1, 721))


# --- flow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window", [1, 5])
def test_a_client_has_no_more_in_flight_than_it_takes(place: Place, window: int, qos: int) -> None:
    """[MQTT-3.3.4-9]"""
    place.publish(20, qos)
    place.seal()
    place.publish(10, qos)
    with place.link() as client:
        connect(client, durable=False, window=window)
        follow(client)
        reader = Reader()
        while len(reader.received) < 30:
            # Nothing is answered until nothing more comes.
            packets = client.take(1)
            while more := client.within(0.05):
                packets += more
            published = [packet for packet in packets if isinstance(packet, Publish)]
            assert len(published) <= window
            owed = [reader.answer(packet) for packet in packets]
            client.send(*[packet for packet in owed if packet is not None])
    assert seqs(reader.received) == list(range(1, 31))


def test_who_does_not_read_holds_up_neither_publishers_nor_other_readers(place: Place) -> None:
    place.publish(3_000, 0, size=2_000)
    with (
        link(place.broker.address, receive_buffer=4_096) as stuck,
        place.link() as other,
    ):
        connect(stuck, "stuck", durable=False)
        stuck.send(subscribe(qos=0))
        connect(other, "other", durable=False)
        follow(other, qos=0)
        assert seqs(Reader().read(other, 3_000)) == list(range(1, 3_001))
        place.publish(100)
        # When it reads at last, with a window that lets it, nothing is missing.
        stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert isinstance(stuck.take(1)[0], SubAck)
        assert seqs(Reader().read(stuck, 3_100)) == list(range(1, 3_101))


# --- sessions that last ---------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_cursor_survives_cuts_and_kills_of_the_broker(place: Place, qos: int) -> None:
    """QoS 2 exactly once, QoS 1 without a gap; segments, table and live rows, all in one life."""
    place.publish(200, qos)
    place.seal()
    place.publish(30, qos)
    reader = Reader()
    with place.link() as client:
        connect(client, window=10)
        follow(client)
    for life in range(8):
        with place.link() as client:
            connect(client, window=1 + 5 * (life % 3))
            for _ in range(qos * (15 + 3 * life)):
                (packet,) = client.take(1)
                answer = reader.answer(packet)
                if answer is not None:
                    client.send(answer)
            # It leaves with one packet that it has not answered.
            reader.answer(client.take(1)[0])
        if life % 2:
            place.kill()
        place.publish(10, qos)
    with place.link() as client:
        connect(client)
        reader.read(client, place.sent)
        client.ping()
        assert client.waiting == []
    numbers = seqs(reader.received)
    if qos == 2:
        assert numbers == list(range(1, place.sent + 1))
    else:
        firsts = list(dict.fromkeys(numbers))
        assert firsts == list(range(1, place.sent + 1))
        repeated = [
            packet for at, packet in enumerate(reader.received) if seq(packet) in numbers[:at]
        ]
        assert all(packet.dup for packet in repeated)
    # A cursor is kept, and no copies.
    place.wait_for(lambda: place.ask("SELECT count(*) FROM delivery") == 0)
    assert place.ask("SELECT cursor FROM subscription") == place.sent


def test_a_time_and_a_seq_that_wait_survive_a_kill(place: Place) -> None:
    place.publish(10)
    with place.link() as client:
        connect(client)
        follow(client, "14")
    place.kill()
    place.publish(2)
    place.kill()
    place.publish(3)
    with place.link() as client:
        connect(client)
        assert seqs(Reader().read(client, 15)) == [14, 15]
        client.send(Unsubscribe(5, [ALL]))
        assert client.take(1) == [UnsubAck(5, [0])]
    place.kill()
    assert place.ask("SELECT count(*) FROM subscription") == 0


def test_what_retention_has_deleted_is_told_to_the_client_and_to_the_log(place: Place) -> None:
    for _ in range(4):
        place.publish(100)
        place.wait_for(lambda: place.ask("SELECT last_seq - sealed_seq FROM stream") == 0)
    place.seal()
    place.publish(50)
    with place.link() as client:
        connect(client, window=1)
        follow(client)
        reader = Reader()
        reader.read(client, 5)
    trimmed = trim(place.root, "plant", "n1", before_seq=300)
    assert 100 <= trimmed < 300
    place.kill()
    with place.link() as client:
        connect(client, window=1)
        found = reader.read(client, 450)
    # One was in flight, and is a copy.
    numbers = seqs(found)
    first = numbers.index(trimmed + 1)
    assert list(dict.fromkeys(numbers[:first])) == list(range(1, numbers[first - 1] + 1))
    assert numbers[first - 1] in (5, 6)
    assert numbers[first:] == list(range(trimmed + 1, 451))
    missed = f"{numbers[first - 1] + 1}-{trimmed}"
    assert found[first].properties.user_properties[2] == ("stream-missed", missed)
    assert len(found[first + 1].properties.user_properties) == 2
    told = f"of stream plant, which are no longer kept: {numbers[first - 1] + 1} to {trimmed}"
    assert any(told in line for line in place.broker.log)


def test_while_the_root_is_gone_those_who_need_it_wait_and_nobody_else(place: Place) -> None:
    place.publish(100)
    place.seal()
    place.publish(30)
    folder = place.folder / "streams"
    away = folder.rename(place.folder / "away")
    with place.link() as old, place.link() as new:
        connect(old, "old", durable=False)
        follow(old)
        connect(new, "new", durable=False)
        follow(new, "101")
        assert seqs(Reader().read(new, 130)) == list(range(101, 131))
        place.publish(5)
        assert seqs(Reader().read(new, 135)) == list(range(131, 136))
        place.wait_for(lambda: any("retrying" in line for line in place.broker.log))
        old.ping()
        assert old.waiting == []
        # The sealer may have made the folder anew meanwhile: what was there comes back.
        if folder.exists():
            folder.rename(place.folder / "made-meanwhile")
        away.rename(folder)
        assert seqs(Reader().read(old, 135)) == list(range(1, 136))


# --- what is refused ------------------------------------------------------------------------------


def test_refusals_have_their_codes_on_the_wire(place: Place) -> None:
    place.publish(1)
    with place.link() as client, place.link(version=MQTT311) as old:
        connect(client, durable=False)
        for topic_filter, offset, code in (
            ("$stream/unknown/#", "earliest", 0x8F),
            ("$stream/plant", "earliest", 0x8F),
            ("$share/g/$stream/plant/#", "earliest", 0x9E),
            (ALL, "soon", 0x83),
        ):
            client.send(subscribe(topic_filter, offset))
            (answer,) = client.take(1)
            assert isinstance(answer, SubAck)
            assert list(answer.reasons) == [code]
            assert answer.properties.reason_string
        client.send(Publish("$stream/plant/plant/a", b"x", 1, 1))
        assert client.take(1) == [PubAck(1, 0x87)]
        follow(client)
        assert seqs(Reader().read(client, 1)) == [1]
        old.connect("old")
        old.send(Subscribe(1, [Subscription(ALL, 1), Subscription("plant/#", 1)]))
        assert old.take(1) == [SubAck(1, [0x80, 1])]


# --- paho -----------------------------------------------------------------------------------------


def test_paho_replays_from_an_offset_and_follows(place: Place) -> None:
    place.publish(100, 2)
    place.seal()
    place.publish(50, 2)
    client = paho_client.Client(place.broker, "paho", "5.0", ReceiveMaximum=3)
    client.open()
    offset = [("stream-offset", "90")]
    assert client.subscribe(ALL, UserProperty=offset, SubscriptionIdentifier=4) == [2]
    place.publish(10, 2)
    found = [client.inbox.get(timeout=PATIENCE) for _ in range(71)]
    seen = [paho_client.seen(message) for message in found]
    assert [dict(each["UserProperty"])["stream-seq"] for each in seen] == [
        str(number) for number in range(90, 161)
    ]
    assert {(message.qos, message.retain) for message in found} == {(2, False)}
    assert {tuple(each["SubscriptionIdentifier"]) for each in seen} == {(4,)}
    assert client.subscribe(ALL, UserProperty=[("stream-offset", "never")]) == [0x83]
    client.close()


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed")
def test_the_command_of_the_page_shows_the_record(place: Place) -> None:
    place.publish(3)
    block = re.search(r"```\n(mosquitto_sub.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    command = shlex.split(block[1].replace("\\\n", " "))
    host, port = place.broker.address
    result = subprocess.run(
        [*command, "-h", host, "-p", str(port), "-C", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [f"$stream/plant/plant/{number % 3}", f"stream-seq:{number}"] for number in (1, 2, 3)
    ]
    assert [line.split()[3] for line in lines] == ["1:", "2:", "3:"]
