"""A simulated fleet: its messages by their seed, its journal, and its promise at a real broker."""

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from semel.client import Backoff, Client, Disconnected
from semel.lab.demo import rows_of
from semel.lab.demo_reconciliation import Reconciliation, Verdict
from semel.lab.faults import CUT_AFTER, CUT_BEFORE, REPEAT, Fault, Faults
from semel.lab.fleet.devices import BINARY, FORMS, JSON, MIXED, Devices, read_name
from semel.lab.fleet.journal import (
    BEGIN,
    DONE,
    KEPT,
    REFUSED,
    BadJournal,
    Journal,
    JournalLine,
    read_journal,
)
from semel.lab.fleet.publishing import EarlierRuns, Fleet, FleetPace
from semel.lab.proxy import HOST, Proxy
from semel.lab.recording import Recording
from semel.mqtt import CLIENT, MQTT5, MQTT311, SERVER, Publish
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBLISH, PUBREC
from semel.mqtt.topics import check_topic_name
from semel.store.reading import StreamCatalog
from tests.kills.brokers import PATIENCE, STREAM, Broker, free_port, semel

MANY = 1_500


# --- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_same_seed_gives_the_same_messages(form: str) -> None:
    fleet = Devices(7, 30, form=form)
    again = Devices(7, 30, form=form)
    # In any order, and without those before them.
    for index in reversed(range(500)):
        assert fleet.message(index) == again.message(index)


def test_another_seed_gives_other_messages() -> None:
    one, other = Devices(1, 30), Devices(2, 30)
    same = [index for index in range(300) if one.message(index) == other.message(index)]
    assert not same


def test_a_message_has_two_names_that_belong_together() -> None:
    fleet = Devices(1, 7)
    names = [fleet.name_of(index) for index in range(70)]
    assert len(set(names)) == 70
    assert [fleet.index_of(*name) for name in names] == list(range(70))
    assert names[:8] == [*((device, 1) for device in range(7)), (0, 2)]


@pytest.mark.parametrize("name", [(7, 1), (-1, 1), (0, 0)])
def test_a_name_that_no_message_of_the_fleet_has_is_refused(name: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="does not belong to this fleet"):
        Devices(1, 7).index_of(*name)


@pytest.mark.parametrize("form", FORMS)
def test_every_payload_says_which_message_it_is(form: str) -> None:
    fleet = Devices(3, 11, form=form)
    for index in range(200):
        assert read_name(fleet.message(index).payload) == fleet.name_of(index)


def test_a_json_payload_has_what_a_device_says() -> None:
    fleet = Devices(3, 11, form=JSON)
    said = json.loads(fleet.message(11 * 4 + 5).payload)
    assert set(said) == {"device", "n", "at", "value", "unit", "status"}
    assert said["device"] == fleet.all[5].name
    assert said["n"] == 5


def test_a_binary_payload_has_device_and_counter_at_their_place() -> None:
    payload = Devices(3, 11, form=BINARY).message(11 * 4 + 5).payload
    assert len(payload) == 40
    assert struct.unpack_from(">I", payload, 4) == (5,)
    assert struct.unpack_from(">Q", payload, 8) == (5,)
    assert struct.unpack_from(">I", payload, 36) == (zlib.crc32(payload[:36]),)


def test_of_a_mixed_fleet_a_third_speaks_binary() -> None:
    fleet = Devices(3, 300, form=MIXED)
    assert Counter(device.is_binary for device in fleet.all) == {False: 200, True: 100}
    for device in fleet.all:
        assert fleet.message(device.number).payload.startswith(b"SF01") == device.is_binary


def test_topics_are_site_line_device_and_measure() -> None:
    for prefix, levels in (("plant", 5), ("", 4)):
        fleet = Devices(3, 50, prefix=prefix)
        topics = [fleet.message(index).topic for index in range(500)]
        assert {topic.count("/") + 1 for topic in topics} == {levels}
        for topic in topics:
            check_topic_name(topic, "topic", None)
        # A device measures several things, in turn.
        assert len(set(topics)) == 150


def _flipped(payload: bytes) -> bytes:
    return payload[:20] + bytes([payload[20] ^ 1]) + payload[21:]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"21.5",
        b"[]",
        b"{}",
        b'{"device": "pump-1"}',
        b'{"device": "pump", "n": 1}',
        b'{"device": "pump-1", "n": true}',
        b"\xff\xfe",
        Devices(1, 1, form=BINARY).message(0).payload[:-1],
        _flipped(Devices(1, 1, form=BINARY).message(0).payload),
    ],
)
def test_a_payload_that_is_none_of_a_fleet_has_no_name(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_name(payload)


# --- the journal ----------------------------------------------------------------------------------


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.note(BEGIN, 3, 1)
    journal.note(REFUSED, 3, 1, 0x97)
    journal.flush()
    journal.note(DONE, 4, 1)
    journal.close()
    assert list(read_journal(path)) == [(BEGIN, 3, 1), (REFUSED, 3, 1), (DONE, 4, 1)]


def test_a_journal_goes_on_after_a_line_that_a_kill_has_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("begin 1 1\nbegin 2 1\nbegin 3 1\ndone 1")
    assert [line.word for line in read_journal(path)] == [BEGIN] * 3
    journal = Journal(path)
    journal.note(DONE, 2, 1)
    journal.close()
    assert path.read_text() == "begin 1 1\nbegin 2 1\nbegin 3 1\ndone 2 1\n"


def test_a_journal_with_an_incomplete_first_line_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("beg")
    Journal(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize("text", ["nonsense\n", "begin 1\n", "begin a 1\n", "done 1 1\n\n"])
def test_another_file_is_no_journal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal"
    path.write_text(text)
    with pytest.raises(BadJournal, match="is not the journal of a fleet"):
        list(read_journal(path))


def test_what_earlier_runs_have_left_is_known_from_the_journal() -> None:
    lines = [
        *(JournalLine(BEGIN, device, counter) for counter in (1, 2) for device in range(3)),
        JournalLine(DONE, 0, 1),
        JournalLine(KEPT, 1, 1),
        JournalLine(KEPT, 2, 1),
        JournalLine(DONE, 2, 1),
        JournalLine(REFUSED, 0, 2),
    ]
    begun = EarlierRuns(Devices(1, 4), lines)
    assert begun.last == [2, 2, 2, 0]
    assert begun.kept == {1}
    assert begun.done == 2


def test_a_message_that_completes_as_the_fleet_ends_is_journaled_once(tmp_path: Path) -> None:
    devices = Devices(5, 2)
    path = tmp_path / "journal"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        acknowledged = [loop.create_future(), loop.create_future()]
        waiting = iter(acknowledged)

        class Publisher:
            async def publish(self, topic: str, payload: bytes, qos: int) -> None:
                await next(waiting)

        journal = Journal(path)
        clients = [cast(Client, Publisher())]
        pace = FleetPace(2, None, 30, 2)
        fleet = Fleet(devices, clients, journal, pace, EarlierRuns(devices, []))
        (gateway,) = fleet.gateways
        gateway._begin(2)
        await asyncio.sleep(0)
        # After the task of the first message has ended, but before its done-callback.
        acknowledged[0].set_result(None)
        loop.call_soon(gateway.hand_over)
        for _ in range(5):
            await asyncio.sleep(0)
        assert gateway.in_flight == 1
        assert fleet.published == 1
        journal.close()

    asyncio.run(main())
    lines = [JournalLine(BEGIN, *devices.name_of(index)) for index in range(2)]
    lines += [JournalLine(DONE, *devices.name_of(0)), JournalLine(KEPT, *devices.name_of(1))]
    assert list(read_journal(path)) == lines
    earlier = EarlierRuns(devices, lines)
    assert (earlier.done, earlier.kept) == (1, {1})


# --- at a broker ----------------------------------------------------------------------------------


class Run:
    """A fleet in this process, on a proxy before a broker in another one."""

    def __init__(self, folder: Path, *, qos: int, version: int, count: int = MANY) -> None:
        self.folder = folder
        self.pace = FleetPace(qos, None, 30, count)
        self.version = version
        self.devices = Devices(5, 40)
        self.recording = Recording()
        self.proxy: Proxy | None = None
        self.fleet: Fleet | None = None

    def lines(self) -> list[JournalLine]:
        path = self.folder / "journal"
        return list(read_journal(path)) if path.exists() else []

    async def run(
        self, port: int, meanwhile: Callable[[Fleet, Proxy], Awaitable[None]] | None = None
    ) -> Fleet:
        proxy = self.proxy = Proxy(self.recording, Faults(), port=free_port())
        await proxy.open((HOST, port))
        clients = [
            Client(
                f"mqtt://{HOST}:{proxy.port}",
                client_id=f"gateway-{number}",
                version=self.version,
                outbox=self.folder / f"outbox-{number}",
                reconnect=Backoff(first=0.02, most=0.2),
            )
            for number in range(3)
        ]
        begun = EarlierRuns(self.devices, self.lines())
        journal = Journal(self.folder / "journal")
        try:
            for client in clients:
                await client.connect()
            fleet = self.fleet = Fleet(self.devices, clients, journal, self.pace, begun)
            async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(fleet.run())
                if meanwhile is not None:
                    await meanwhile(fleet, proxy)
            return fleet
        finally:
            for client in clients:
                await client.close()
            journal.close()
            await proxy.close()

    def verdict(self, broker: Broker, *, unknown: int = 0) -> Verdict:
        """The verdict, once the broker has ended."""
        reconciliation = Reconciliation(self.devices, self.pace.count or 0, lands=False)
        reconciliation.add_journal(self.lines())
        with StreamCatalog(broker.data, None) as catalog:
            for record in catalog.records(STREAM):
                tables = record.tables(1, record.last())
                reconciliation.add_record(
                    record.node, 1, rows_of(tables, "seq", "topic", "payload")
                )
        return reconciliation.reconcile(0, unknown=unknown)

    def again(self) -> int:
        """Publications that a client sent again."""
        packets = [each.packet for each in self.recording.packets.items()]
        return sum(isinstance(packet, Publish) and packet.dup for packet in packets)


async def reached(fleet: Fleet, published: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while fleet.published < published:
            await asyncio.sleep(0.002)


def cut(proxy: Proxy, action: str, kind: int, sender: int, count: int = 1) -> None:
    proxy.add(Fault(action, kind=kind, sender=sender, count=count, end=proxy.faults.remove))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    pytest.importorskip("pyarrow")
    return semel(free_port(), tmp_path)


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_at_qos_2_each_message_is_recorded_once_over_cuts_and_kills(
    tmp_path: Path, broker: Broker, version: int
) -> None:
    run = Run(tmp_path, qos=2, version=version)

    async def faults(fleet: Fleet, proxy: Proxy) -> None:
        await reached(fleet, 150)
        cut(proxy, CUT_BEFORE, PUBREC, SERVER)
        await reached(fleet, 300)
        cut(proxy, REPEAT, PUBLISH, CLIENT, 20)
        cut(proxy, CUT_AFTER, PUBLISH, CLIENT)
        await reached(fleet, 450)
        cut(proxy, CUT_BEFORE, PUBCOMP, SERVER)
        for moment in (600, 1_050):
            await reached(fleet, moment)
            await asyncio.to_thread(broker.kill)
            broker.start()

    broker.start()
    try:
        broker.serve_seconds()
        fleet = asyncio.run(run.run(broker.port, faults))
        progress = fleet.progress()
        assert progress.published == progress.total == MANY
        assert progress.refused == progress.in_flight == progress.sessions_lost == 0
        # It was no quiet run.
        assert progress.reconnects >= 5
        assert run.again() > 10
        assert broker.terminate() == 0
        verdict = run.verdict(broker)
        assert verdict.holds, verdict
        assert (verdict.published, verdict.recorded) == (MANY, MANY)
    finally:
        broker.end()


def test_at_qos_1_none_is_lost_and_duplicates_are_counted(tmp_path: Path, broker: Broker) -> None:
    run = Run(tmp_path, qos=1, version=MQTT5)

    async def faults(fleet: Fleet, proxy: Proxy) -> None:
        await reached(fleet, 150)
        cut(proxy, CUT_BEFORE, PUBACK, SERVER)
        await fleet.gateways[0].client.publish("other", b"x")

    broker.start()
    try:
        broker.serve_seconds()
        asyncio.run(run.run(broker.port, faults))
        assert broker.terminate() == 0
        verdict = run.verdict(broker)
        assert verdict.lost == 0
        assert verdict.published == MANY
        # The message whose acknowledgement was lost, at the least; and the foreign one of QoS 0.
        assert verdict.duplicated >= 1
        assert verdict.recorded == MANY + verdict.duplicated + 1
        assert not verdict.holds
    finally:
        broker.end()


def test_a_fleet_that_is_stopped_goes_on_where_it_ended(tmp_path: Path, broker: Broker) -> None:
    run = Run(tmp_path, qos=2, version=MQTT5)

    async def stop(fleet: Fleet, proxy: Proxy) -> None:
        await reached(fleet, 500)
        fleet.stop()

    broker.start()
    try:
        broker.serve_seconds()
        first = asyncio.run(run.run(broker.port, stop)).progress()
        assert 500 <= first.published < MANY
        second = asyncio.run(run.run(broker.port)).progress()
        assert second.published == MANY - first.published
        assert second.total == MANY
        assert broker.terminate() == 0
        verdict = run.verdict(broker)
        assert verdict.holds, verdict
    finally:
        broker.end()


def test_what_a_fleet_leaves_in_its_outbox_is_published_by_the_next_run(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.lab.fleet.publishing.STOP_SECONDS", 0.2)
    run = Run(tmp_path, qos=2, version=MQTT5)

    async def stop_without_a_broker(fleet: Fleet, proxy: Proxy) -> None:
        await reached(fleet, 200)
        await asyncio.to_thread(broker.kill)
        async with asyncio.timeout(PATIENCE):
            # All that the windows take is in the outboxes.
            while fleet.progress().in_flight < 90:
                await asyncio.sleep(0.002)
        fleet.stop()

    broker.start()
    try:
        broker.serve_seconds()
        first = asyncio.run(run.run(broker.port, stop_without_a_broker)).progress()
        kept = [line for line in run.lines() if line.word == KEPT]
        assert len(kept) == first.in_flight == 90
        broker.start()
        broker.serve_seconds()
        second = asyncio.run(run.run(broker.port)).progress()
        assert second.total == MANY
        assert second.in_flight == 0
        assert broker.terminate() == 0
        verdict = run.verdict(broker)
        assert verdict.holds, verdict
        assert verdict.published == MANY
    finally:
        broker.end()


def test_a_fleet_that_was_killed_continues_without_duplicates(
    tmp_path: Path, broker: Broker
) -> None:
    state = tmp_path / "state"
    options = {
        "-h": HOST,
        "-p": broker.port,
        "--seed": 5,
        "--devices": 40,
        "--rate": 0,
        "--count": MANY,
        "--data": state,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "semel", "fleet", *words]
    run = Run(state, qos=2, version=MQTT311)
    broker.start()
    try:
        broker.serve_seconds()
        killed = subprocess.Popen(command)
        deadline = time.monotonic() + PATIENCE
        while sum(line.word == DONE for line in run.lines()) < 200:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        killed.kill()
        killed.wait()
        assert subprocess.run(command, timeout=PATIENCE).returncode == 0
        assert broker.terminate() == 0
        begun = [line[1:] for line in run.lines() if line.word == BEGIN]
        assert sorted(begun) == sorted(run.devices.name_of(index) for index in range(MANY))
        # At most the in-flight messages of four gateways are unknown.
        verdict = run.verdict(broker, unknown=4 * 100)
        assert verdict.holds, verdict
        assert MANY - 4 * 100 <= verdict.published <= verdict.recorded <= MANY
    finally:
        broker.end()


def test_a_fleet_ends_with_the_problem_if_its_client_is_finished(
    tmp_path: Path, broker: Broker
) -> None:
    run = Run(tmp_path, qos=2, version=MQTT5, count=1_000_000)

    async def take_over(fleet: Fleet, proxy: Proxy) -> None:
        await reached(fleet, 100)
        # The broker's word may be lost with the connection, and the gateway comes back then: it
        # takes over from us in turn.
        while True:
            with contextlib.suppress(Disconnected):
                async with Client(f"mqtt://{HOST}:{broker.port}", client_id="gateway-1"):
                    pass

    broker.start()
    try:
        broker.serve_seconds()
        with pytest.RaisesGroup(pytest.RaisesExc(Disconnected, match="taken over")):
            asyncio.run(run.run(broker.port, take_over))
    finally:
        broker.end()
