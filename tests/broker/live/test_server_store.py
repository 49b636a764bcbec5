"""`semel broker --data`: a folder, a full disk, a store that fails, an end and a new start."""

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
)
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import Link, link

KEPT = Properties(session_expiry_interval=1_000)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


def durable(client: Link, client_id: str) -> None:
    """Connect with a session that outlives the connection."""
    kept = KEPT if client.version == MQTT5 else Properties()
    client.connect(client_id, clean_start=False, properties=kept)


def published(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


@VERSIONS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_the_next_broker_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, version: int, number: signal.Signals
) -> None:
    broker = Process("--data", str(tmp_path / "data"))
    with (
        link(broker.address, version=version) as reader,
        link(broker.address, version=version) as publisher,
    ):
        durable(reader, "r")
        reader.send(Subscribe(1, [Subscription("t", 2)]))
        reader.take(1)
        reader.close()
        publisher.connect("p")
        publisher.send(Publish("t", b"kept", 1, 1))
        assert publisher.take(1) == [PubAck(1)]
    assert broker.stop(number) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    assert "Traceback" not in "".join(broker.log)
    with (
        Process("--data", str(tmp_path / "data")) as broker,
        link(broker.address, version=version) as reader,
    ):
        durable(reader, "r")
        assert published(reader.take(1)) == [b"kept"]


def test_after_a_kill_the_start_says_what_it_recovered_and_a_lost_log_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    broker = Process("--data", str(data))
    request.addfinalizer(broker.process.kill)
    with link(broker.address) as publisher:
        publisher.connect("p")
        for number in range(1, 4):
            publisher.send(Publish("t", b"%d" % number, 1, number, retain=True))
            publisher.take(1)
    broker.stop(signal.SIGKILL)
    # The process that was killed has left its control socket, which cannot be copied.
    shutil.copytree(data, tmp_path / "cut", ignore=shutil.ignore_patterns("control.sock"))
    with Process("--data", str(data)) as broker, link(broker.address) as reader:
        reader.connect("r")
        reader.send(Subscribe(1, [Subscription("t", 1)]))
        assert published(reader.take(2)) == [b"3"]
    log = "".join(broker.log)
    assert re.search(r"was not closed by its last process: recovered \d+ transactions", log)
    with Process("--data", str(data)) as broker:
        pass
    assert "was not closed" not in "".join(broker.log)
    (tmp_path / "cut" / "store.db-wal").unlink()
    ended = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0", "--data", str(tmp_path / "cut")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert "the end of its log is missing" in ended.stderr
    assert "semel store repair" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    with Process("--data", str(tmp_path)) as broker:
        second = subprocess.run(
            [sys.executable, "-m", "semel", "broker", "--port", "0", "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert second.returncode == 1
        assert str(broker.process.pid) in second.stderr
        assert second.stderr.count("\n") == 1
    with Process("--data", str(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "FILE"], "folder"),
        (["--stream", "all=#"], "--data"),
        (["--data", "DIR", "--durability", "memory", "--stream", "all=#"], "memory"),
        (["--data", "DIR", "--stream", "all"], "NAME=FILTER"),
        (["--data", "DIR", "--stream", "all=$SYS/#"], "$"),
        (["--data", "DIR", "--stream", "a=#", "--stream", "a=b"], "two streams"),
        (["--data", "DIR", "--stream", "a=#", "--root", "nope://x"], "s3://"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").touch()
    places = {"FILE": str(tmp_path / "file"), "DIR": str(tmp_path / "dir")}
    ended = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0"]
        + [places.get(each, each) for each in arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_store_that_fails_ends_the_broker_and_nothing_is_acknowledged(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker = Process("--data", str(tmp_path))
    request.addfinalizer(broker.process.kill)
    with (
        link(broker.address, version=MQTT5) as reader,
        link(broker.address, version=MQTT5) as publisher,
    ):
        durable(reader, "r")
        reader.send(Subscribe(1, [Subscription("t", 1)]))
        reader.take(1)
        publisher.connect("p")
        publisher.send(Publish("t", b"0", 1, 1))
        assert publisher.take(1) == [PubAck(1)]
        # Somebody takes a table away from under it.
        with sqlite3.connect(tmp_path / "store.db") as connection:
            connection.execute("ALTER TABLE delivery RENAME TO lost")
        connection.close()
        publisher.send(Publish("t", b"1", 1, 2))
        assert publisher.until_closed() == []
    assert broker.process.wait(PATIENCE) == 1
    broker.stop()
    log = "".join(broker.log)
    assert "the store failed" in log
    assert "Traceback" not in log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no program mount")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes all that is free."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


def test_a_full_disk_refuses_and_holds_up_and_then_goes_on_by_itself(small_disk: Path) -> None:
    """0x97 for 5.0, silence for 3.1.1, and everybody else is served"""
    patient = ("--full-disk-timeout", "1h")
    with Process("--data", str(small_disk / "data"), *patient) as broker:
        address = broker.address
        with (
            link(address, version=MQTT5) as reader,
            link(address, version=MQTT5) as five,
            link(address, version=MQTT311) as three,
            link(address, version=MQTT5) as other,
        ):
            durable(reader, "r")
            reader.send(Subscribe(1, [Subscription("t", 1)]))
            reader.take(1)
            reader.close()
            five.connect("five")
            three.connect("three")
            other.connect("other")
            filler = fill(small_disk)
            acknowledged: list[bytes] = []
            refused = 0
            at = 0
            deadline = time.monotonic() + PATIENCE
            waiting: dict[int, bytes] = {}
            # What the log has room for is still acknowledged; then one commit waits for space.
            while not any("full" in line for line in broker.log):
                assert time.monotonic() < deadline, "the disk was never full"
                at += 1
                payload = b"%d" % at + bytes(2_000)
                waiting[at] = payload
                five.send(Publish("t", payload, 1, at))
                packets = five.within(0.5)
                for packet in packets:
                    assert isinstance(packet, PubAck)
                    sent = waiting.pop(packet.packet_id)
                    if packet.reason < 0x80:
                        acknowledged.append(sent)
                    else:
                        refused += 1
            # Who has no answer outstanding is refused at once.
            other.send(Publish("t", b"no", 1, 1))
            assert other.take(1) == [PubAck(1, 0x97)]
            three.send(Publish("t", b"three", 1, 1))
            assert three.within(1.0) == []
            other.send(Publish("nobody", b"x", 1, 2))
            assert other.take(1) == [PubAck(2, 0x10)]
            filler.unlink()
            assert three.take(1) == [PubAck(1)]
            acknowledged.append(b"three")
            for packet in five.take(len(waiting)):
                assert isinstance(packet, PubAck)
                sent = waiting.pop(packet.packet_id)
                if packet.reason < 0x80:
                    acknowledged.append(sent)
            other.send(Publish("t", b"again", 1, 3))
            assert other.take(1) == [PubAck(3)]
            acknowledged.append(b"again")
        with link(address, version=MQTT5) as reader:
            durable(reader, "r")
            received: list[bytes] = []
            while len(received) < len(acknowledged):
                for packet in reader.take(1):
                    if isinstance(packet, Publish):
                        received.append(packet.payload)
                        reader.send(PubAck(packet.packet_id))
        assert sorted(received) == sorted(acknowledged)


def test_a_publisher_whose_message_waits_for_a_full_disk_is_told_while_it_is_full(
    small_disk: Path,
) -> None:
    """By DISCONNECT 0x97: what it was refused since has to wait behind that message"""
    told = ("--full-disk-timeout", "1s")
    with Process("--data", str(small_disk / "data"), *told) as broker:
        with (
            link(broker.address, version=MQTT5) as reader,
            link(broker.address, version=MQTT5) as publisher,
        ):
            durable(reader, "r")
            reader.send(Subscribe(1, [Subscription("t", 1)]))
            reader.take(1)
            publisher.connect("p")
            filler = fill(small_disk)
            last: list[Packet] = []
            deadline = time.monotonic() + PATIENCE
            packet_id = 0
            while not any(isinstance(packet, Disconnect) for packet in last):
                assert time.monotonic() < deadline, "nobody told the publisher anything"
                packet_id += 1
                publisher.send(Publish("t", bytes(2_000), 1, packet_id))
                last = publisher.within(0.5)
            (notice,) = (packet for packet in last if isinstance(packet, Disconnect))
            assert notice.reason == 0x97
            filler.unlink()
        with link(broker.address, version=MQTT5) as again:
            deadline = time.monotonic() + PATIENCE
            again.connect("again")
            answer: list[Packet] = []
            while answer != [PubAck(1)]:
                assert time.monotonic() < deadline, "the broker did not go on"
                again.send(Publish("t", b"x", 1, 1))
                answer = again.take(1)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE session SET expiry_interval = 'x'",
        "UPDATE session SET ends_at = 'soon'",
        "UPDATE subscription SET options = 3",
        "INSERT INTO retained (checksum, topic, qos, payload) VALUES (0, 'a/+', 0, x'00')",
    ],
)
def test_a_damaged_store_is_named_with_a_way_out(tmp_path: Path, damage: str) -> None:
    with Process("--data", str(tmp_path)) as broker, link(broker.address, version=MQTT5) as reader:
        durable(reader, "r")
        reader.send(Subscribe(1, [Subscription("t", 1)]))
        reader.take(1)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute(damage)
    connection.close()
    ended = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert "semel store check" in ended.stderr
    assert "Traceback" not in ended.stderr
