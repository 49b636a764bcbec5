"""Ingest beside real brokers, and beside a server that says what a test tells it to."""

import asyncio
import logging
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semel.broker.settings import BrokerSettings
from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest, Plan, do_overlap, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Violation,
)
from semel.settings import SettingsError
from semel.store.care import describe
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings
from tests.broker.serving import serving
from tests.broker.test_server_store import fill, small_disk
from tests.client.listening import run
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto
from tests.client.servers import Scripted, Visit, accept, resume
from tests.kills.ingesting import Publisher
from tests.kills.record import pick

pytest.importorskip("pyarrow")

__all__ = ["small_disk"]

BROKERS = pytest.mark.parametrize(
    "kind", ["semel", pytest.param("mosquitto", marks=NEEDS_MOSQUITTO)]
)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
# Each broker, and each version, once.
PAIRS = pytest.mark.parametrize(
    ("kind", "version"),
    [("semel", MQTT5), pytest.param("mosquitto", MQTT311, marks=NEEDS_MOSQUITTO)],
    ids=["semel-5.0", "mosquitto-3.1.1"],
)
NAMES = {MQTT311: "311", MQTT5: "5"}


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All that is said is kept, and the interpreter is left as it was."""
    interval = sys.getswitchinterval()
    caplog.set_level(logging.INFO)
    yield
    sys.setswitchinterval(interval)


def plan_of(
    url: str,
    folder: Path,
    *topics: str,
    version: int = MQTT5,
    client_id: str | None = None,
    share: str | None = None,
    store: StoreSettings | None = None,
) -> Plan:
    """What to ingest. Nothing is sealed but what an earlier run has left."""
    wanted = IngestSettings(
        url=url,
        topic=topics or ("plant/#",),
        stream="plant",
        protocol_version=NAMES[version],
        client_id=client_id,
        share=share,
        longest_wait=0.05,
    )
    kept = store or StoreSettings(
        data=folder / "data", root=str(folder / "root"), seal_after=3600.0, durability="os"
    )
    return make_plan(wanted, kept)


@asynccontextmanager
async def ingesting(plan: Plan, *, start_clean: bool = False) -> AsyncIterator[Ingest]:
    """One at work. What ends it before its time comes out."""
    work = Ingest(plan, start_clean=start_clean)
    running = asyncio.get_running_loop().create_task(work.run())
    try:
        yield work
    finally:
        work.stop()
        await running


async def until(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not reached():
        await asyncio.sleep(0.01)


async def said(caplog: pytest.LogCaptureFixture, words: str, times: int = 1) -> None:
    """Wait until the log has these words."""
    await until(lambda: sum(words in line for line in caplog.messages) >= times)


def publish(port: int, *messages: tuple[str, str, int], retain: bool = False) -> None:
    """Topics, payloads and QoS; the broker has them when this returns."""
    with Publisher(port) as publisher:
        for topic, payload, qos in messages:
            publisher.publish(topic, payload.encode(), qos, retain=retain)
        publisher.finish()


async def send(port: int, *messages: tuple[str, str, int], retain: bool = False) -> None:
    await asyncio.to_thread(publish, port, *messages, retain=retain)


class Row(NamedTuple):
    """A row of the record."""

    topic: str
    payload: str
    qos: int
    retain: bool
    dup: bool
    version: int
    packet_id: int
    client_id: str


def rows_in(folder: Path) -> list[Row]:
    """The record by its numbers, which are dense: the store, and what was sealed at a restart."""
    found: dict[int, Row] = {}
    store = f"file:{folder / 'data' / 'store.db'}?mode=ro"
    with closing(sqlite3.connect(store, uri=True)) as connection:
        for seq, topic, payload, flags, *rest in connection.execute(
            "SELECT seq, topic, payload, flags, version, packet_id, client_id FROM record"
        ):
            flag = (flags & 3, bool(flags & 4), bool(flags & 8))
            found[seq] = Row(topic, payload.decode(), *flag, *rest)
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["seq", "topic", "payload", "qos", "retain", "dup"]
    columns += ["protocol_version", "packet_id", "client_id"]
    for _, _, path in pick(folder / "root" / "plant"):
        table = parquet.read_table(path, columns=columns).to_pydict()
        for seq, *values in zip(*(table[name] for name in columns), strict=True):
            row = Row(*values)
            payload = bytes(table["payload"][seq - table["seq"][0]]).decode()
            found[seq] = row._replace(payload=payload, packet_id=row.packet_id or 0)
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[seq] for seq in sorted(found)]


def breaks_in(folder: Path) -> object:
    streams = describe(folder / "data")["streams"]
    assert isinstance(streams, list)
    (stream,) = streams
    return stream["breaks"]


@contextmanager
def served(kind: str, folder: Path, settings: BrokerSettings | None = None) -> Iterator[int]:
    """A broker of either kind. Its port."""
    if kind == "semel":
        with serving(settings or BrokerSettings(port=0, sys_interval=0.0)) as server:
            yield server.address[1]
    else:
        with mosquitto(folder, []) as (port,):
            yield port


def url_of(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"


# --- beside brokers -------------------------------------------------------------------------------


@BROKERS
@VERSIONS
def test_messages_of_every_qos_are_rows_as_they_came(
    kind: str, version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        plan = plan_of(url_of(port), tmp_path, "plant/#", "yard/+", version=version)
        async with ingesting(plan) as work:
            await said(caplog, "is recorded, at QoS 2", 2)
            await send(port, ("plant/0", "a", 0), ("plant/1", "b", 1), ("plant/2", "c", 2))
            await send(port, ("yard/0", "d", 2), ("elsewhere", "e", 2), ("plant", "", 1))
            await until(lambda: work.counters.stored == 5)
            counters = work.counters
            assert (counters.state, counters.received, counters.sealed) == ("connected", 5, 0)
            assert counters.lag > 0
        assert work.counters.state == "ended"
        assert (work.counters.received, work.counters.stored) == (5, 5)

    with served(kind, tmp_path) as port:
        run(main())
    rows = rows_in(tmp_path)
    # QoS 0 may overtake the others, or be overtaken.
    assert sorted((row.topic, row.payload, row.qos) for row in rows) == [
        ("plant", "", 1),
        ("plant/0", "a", 0),
        ("plant/1", "b", 1),
        ("plant/2", "c", 2),
        ("yard/0", "d", 2),
    ]
    assert {row.version for row in rows} == {version}
    assert all((row.packet_id == 0) == (row.qos == 0) for row in rows)
    assert len({row.client_id for row in rows}) == 1
    assert not any(row.dup or row.retain for row in rows)


@PAIRS
def test_what_comes_while_nobody_ingests_is_there_afterwards(
    kind: str, version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client identifier is made at the first start, and the same at the second."""

    async def main() -> None:
        plan = plan_of(url_of(port), tmp_path, version=version)
        async with ingesting(plan) as work:
            await said(caplog, "is recorded, at QoS 2")
            await send(port, ("plant/1", "a", 2))
            await until(lambda: work.counters.stored == 1)
        assert "a session begins" in caplog.text
        await send(port, ("plant/1", "b", 1), ("plant/1", "c", 2))
        async with ingesting(plan) as work:
            await until(lambda: work.counters.stored == 3)
        assert "its session goes on" in caplog.text

    with served(kind, tmp_path) as port:
        run(main())
    rows = rows_in(tmp_path)
    assert [row.payload for row in rows] == ["a", "b", "c"]
    assert len({row.client_id for row in rows}) == 1
    assert breaks_in(tmp_path) == []


@BROKERS
def test_a_changed_list_of_topics_is_applied_to_the_session(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with ingesting(plan_of(url_of(port), tmp_path, "plant/a", "plant/b")):
            await said(caplog, "is recorded, at QoS 2", 2)
        caplog.clear()
        async with ingesting(plan_of(url_of(port), tmp_path, "plant/b", "plant/c")) as work:
            await said(caplog, "plant/a is not asked for any more")
            await said(caplog, "plant/c is recorded, at QoS 2")
            await send(port, ("plant/a", "a", 2), ("plant/b", "b", 2), ("plant/c", "c", 2))
            await until(lambda: work.counters.stored == 2)
        assert "its session goes on" in caplog.text

    with served(kind, tmp_path) as port:
        run(main())
    assert [row.payload for row in rows_in(tmp_path)] == ["b", "c"]


@BROKERS
def test_ingesters_of_one_group_get_each_message_once_together(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}" for number in range(200)]
    folders = [tmp_path / "one", tmp_path / "two"]

    async def main() -> None:
        first, second = (plan_of(url_of(port), each, share="g") for each in folders)
        async with ingesting(first) as one, ingesting(second) as two:
            await said(caplog, "$share/g/plant/# is recorded, at QoS 2", 2)
            await send(port, *(("plant/1", name, 2) for name in names))
            await until(lambda: one.counters.stored + two.counters.stored >= len(names))

    with served(kind, tmp_path) as port:
        run(main())
    parts = [[row.payload for row in rows_in(each)] for each in folders]
    assert Counter(parts[0] + parts[1]) == Counter(names)
    assert all(parts)


@PAIRS
def test_a_session_that_another_store_began_is_not_taken_without_a_word(
    kind: str, version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[MQTT-3.2.2-4]"""

    def plan(name: str) -> Plan:
        return plan_of(url_of(port), tmp_path / name, version=version, client_id="plant")

    async def main() -> None:
        async with ingesting(plan("lost")):
            await said(caplog, "is recorded, at QoS 2")
        await send(port, ("plant/1", "kept by the broker", 2))
        with pytest.raises(Disconnected, match="the server has a session of this client") as caught:
            await Ingest(plan("new")).run()
        assert caught.value.is_final
        async with ingesting(plan("new"), start_clean=True) as work:
            await said(caplog, "is recorded, at QoS 2", 2)
            await send(port, ("plant/1", "new", 2))
            await until(lambda: work.counters.stored == 1)
        # From then on the session is ours.
        await send(port, ("plant/1", "more", 2))
        async with ingesting(plan("new")) as work:
            await until(lambda: work.counters.stored == 2)

    with served(kind, tmp_path) as port:
        run(main())
    assert [row.payload for row in rows_in(tmp_path / "new")] == ["new", "more"]
    # What was given up is noted.
    assert breaks_in(tmp_path / "new") == [1]
    assert breaks_in(tmp_path / "lost") == []


@pytest.mark.parametrize("expiry", [60, 0xFFFF_FFFF])
def test_a_session_that_the_broker_keeps_for_less_long_is_warned_of(
    expiry: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with ingesting(plan_of(url_of(port), tmp_path)):
            await said(caplog, "is recorded, at QoS 2")

    settings = BrokerSettings(port=0, sys_interval=0.0, maximum_session_expiry=expiry)
    with served("semel", tmp_path, settings) as port:
        run(main())
    warning = "the broker keeps the session for 60 s without a connection, not for ever"
    assert (warning in caplog.text) == (expiry == 60)


@NEEDS_MOSQUITTO
def test_a_lower_qos_than_was_asked_for_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with ingesting(plan_of(url_of(port), tmp_path)) as work:
            await said(caplog, "the broker grants plant/# QoS 1, not the 2 asked for")
            await send(port, ("plant/1", "a", 1))
            await until(lambda: work.counters.stored == 1)

    with mosquitto(tmp_path, ["max_qos 1"]) as (port,):
        run(main())


def test_retained_messages_come_once_with_a_new_subscription(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await send(port, ("plant/1", "old", 1), retain=True)
        for _ in range(2):
            async with ingesting(plan_of(url_of(port), tmp_path)) as work:
                await said(caplog, "is recorded, at QoS 2")
                await until(lambda: work.counters.stored >= 1)
            caplog.clear()

    with served("semel", tmp_path) as port:
        run(main())
    assert [(row.payload, row.retain) for row in rows_in(tmp_path)] == [("old", True)]


def test_a_folder_has_one_ingester_at_a_time_and_one_client_identifier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        plan = plan_of(url_of(port), tmp_path, client_id="one")
        async with ingesting(plan):
            await said(caplog, "connected as one")
            with pytest.raises(Unusable, match="is in use by another process"):
                await Ingest(plan).run()
        with pytest.raises(Unusable, match="belongs to the client 'one'"):
            await Ingest(plan_of(url_of(port), tmp_path, client_id="two")).run()
        async with ingesting(plan_of(url_of(port), tmp_path)):
            await said(caplog, "connected as one", 2)

    with served("semel", tmp_path) as port:
        run(main())


def test_a_broker_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            await server.stop_listening()
            async with ingesting(plan_of(server.url, tmp_path)) as work:
                await said(caplog, "connection refused; trying again", 2)
                await server.listen()
                await server.visit()
                await until(lambda: work.counters.state == "connected")
                assert work.counters.reconnects >= 2

    run(main())


# --- at the bounds --------------------------------------------------------------------------------


def test_while_too_much_is_not_sealed_nothing_is_read_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}" for number in range(500)]
    kept = StoreSettings(
        data=tmp_path / "data",
        root=str(tmp_path / "root"),
        seal_after=3600.0,
        maximum_unsealed_rows=100,
    )

    async def main() -> None:
        async with ingesting(plan_of(url_of(port), tmp_path, store=kept)) as work:
            await said(caplog, "is recorded, at QoS 2")
            await send(port, *(("plant/1", name, 2) for name in names[:150]))
            await until(lambda: work.counters.store == "behind")
            taken = work.counters.received
            # It is with the broker that the rest waits.
            await send(port, *(("plant/1", name, 2) for name in names[150:]))
            assert work.counters.received == taken
        # One that starts like this connects all the same, and waits.
        plan = plan_of(url_of(port), tmp_path, store=kept)
        async with ingesting(plan) as work:
            await until(lambda: work.counters.state == "connected")
            await until(lambda: work.counters.store == "behind")
        more = StoreSettings(data=kept.data, root=kept.root, seal_after=3600.0)
        async with ingesting(plan_of(url_of(port), tmp_path, store=more)) as work:
            await until(lambda: work.counters.stored == len(names))

    with served("semel", tmp_path) as port:
        run(main())
    assert [row.payload for row in rows_in(tmp_path)] == names


def test_a_store_that_is_behind_by_what_it_was_given_is_not_given_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every chunk is too much for it, and is to be written before another is read."""
    kept = StoreSettings(
        data=tmp_path / "data",
        root=str(tmp_path / "root"),
        seal_after=3600.0,
        maximum_unwritten_bytes=1,
    )
    count = 10_000
    furthest = 0

    async def main() -> None:
        nonlocal furthest
        async with (
            Scripted(grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, store=kept)) as work,
        ):
            visit = await server.visit()
            await said(caplog, "is recorded, at QoS 2")
            visit.send(*(Publish("plant/1", b"x" * 1000) for _ in range(count)))
            while work.counters.stored < count:
                # Two looks: what is written between them is not counted twice.
                stored = work.counters.stored
                furthest = max(furthest, work.counters.received - stored)
                await asyncio.sleep(0)
            await until(lambda: work.counters.store == "open")

    run(main())
    assert len(rows_in(tmp_path)) == count
    # A read takes 256 KiB at the most.
    assert furthest < 1000


def test_a_disk_that_is_full_holds_it_up_until_there_is_space(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}-{'x' * 2000}" for number in range(60)]
    kept = StoreSettings(data=small_disk / "data", root=str(small_disk / "root"), seal_after=3600.0)

    async def main() -> None:
        async with ingesting(plan_of(url_of(port), small_disk, store=kept)) as work:
            await said(caplog, "is recorded, at QoS 2")
            filler = fill(small_disk)
            await send(port, *(("plant/1", name, 2) for name in names))
            await until(lambda: work.counters.store == "full")
            stored = work.counters.stored
            assert stored < len(names)
            filler.unlink()
            await until(lambda: work.counters.stored == len(names))
            await until(lambda: work.counters.store == "open")

    with served("semel", small_disk) as port:
        run(main())
    assert [row.payload for row in rows_in(small_disk)] == names


# --- beside a server of the test ------------------------------------------------------------------


async def begun(server: Scripted) -> Visit:
    """A connection whose subscription is granted, and forgotten by the test."""
    visit = await server.visit()
    await visit.take(Subscribe)
    return visit


@VERSIONS
def test_a_message_is_acknowledged_when_it_is_in_the_store_with_its_identifier(
    version: int, tmp_path: Path
) -> None:
    def look() -> tuple[int, int]:
        store = f"file:{tmp_path / 'data' / 'store.db'}?mode=ro"
        with closing(sqlite3.connect(store, uri=True)) as connection:
            ask = "SELECT (SELECT count(*) FROM record), (SELECT count(*) FROM inbound)"
            found: tuple[int, int] = connection.execute(ask).fetchone()
            return found

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, version=version, client_id="plant")),
        ):
            visit = await begun(server)
            visit.send(Publish("plant/1", b"a", 2, 7), Publish("plant/1", b"b", 1, 8))
            assert (await visit.take(PubRec)).packet_id == 7
            assert look() == (2, 1)
            assert (await visit.take(PubAck)).packet_id == 8
            visit.send(PubRel(7))
            assert (await visit.take(PubComp)).packet_id == 7
            assert look() == (2, 0)

    run(main())


@VERSIONS
def test_what_comes_again_after_a_reconnect_is_a_row_at_qos_1_and_none_at_qos_2(
    version: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            Scripted(accept, resume, grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, version=version, client_id="plant")),
        ):
            visit = await begun(server)
            visit.send(Publish("plant/1", b"two", 2, 7), Publish("plant/1", b"one", 1, 8))
            await visit.take(PubRec)
            await visit.take(PubAck)
            visit.cut()
            visit = await server.visit()
            # For all that the server knows, its acknowledgements were lost.
            visit.misbehave(
                Publish("plant/1", b"two", 2, 7, dup=True),
                Publish("plant/1", b"one", 1, 8, dup=True),
            )
            await visit.take(PubRec)
            await visit.take(PubAck)

    run(main())
    assert [(row.payload, row.dup) for row in rows_in(tmp_path)] == [
        ("two", False),
        ("one", False),
        ("one", True),
    ]


@VERSIONS
def test_an_end_acknowledges_what_came_and_keeps_the_session(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, version=version, client_id="plant")) as work,
        ):
            visit = await begun(server)
            visit.send(*(Publish("plant/1", b"a", 1, number) for number in range(1, 101)))
            await until(lambda: work.counters.received == 100)
            work.stop()
            *answers, last = await visit.end()
            assert [each.packet_id for each in answers if isinstance(each, PubAck)] == [
                *range(1, 101)
            ]
            assert isinstance(last, Disconnect)
            assert last.properties == Properties()

    run(main())
    assert len(rows_in(tmp_path)) == 100


def test_a_session_that_the_server_has_lost_is_noted_before_the_row_that_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted(accept, accept, resume, accept, grants=True) as server:
            async with ingesting(plan_of(server.url, tmp_path)) as work:
                visit = await begun(server)
                visit.send(Publish("plant/1", b"a", 2, 7))
                await visit.take(PubRec)
                visit.cut()
                # Its identifiers are forgotten: 7 is another message now.
                visit = await server.visit()
                await visit.take(Subscribe)
                visit.exchange.carry()
                visit.misbehave(Publish("plant/1", b"b", 2, 7))
                await visit.take(PubRec)
                assert work.counters.sessions_lost == 1
                visit.cut()
                visit = await server.visit()
                visit.misbehave(PubRel(7))
                await visit.take(PubComp)
                assert work.counters.sessions_lost == 1
            # The end of a process is no end of a session, and so it is found by the next one.
            async with ingesting(plan_of(server.url, tmp_path)) as work:
                visit = await begun(server)
                assert work.counters.sessions_lost == 1

    run(main())
    assert [row.payload for row in rows_in(tmp_path)] == ["a", "b"]
    assert breaks_in(tmp_path) == [2, 3]
    assert "messages may be missing before row 2 of stream plant" in caplog.text


@VERSIONS
def test_a_session_in_doubt_is_subscribed_again(version: int, tmp_path: Path) -> None:
    """The server may have made a new session for the CONNECT whose answer was lost."""

    async def main() -> None:
        async with (
            Scripted(accept, resume, None, resume, grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, version=version, client_id="plant")),
        ):
            (await begun(server)).cut()
            visit = await server.visit()
            visit.send(Publish("plant/1", b"a", 1, 1))
            # Nothing is in doubt: nothing is asked for again.
            await visit.take(PubAck)
            visit.cut()
            (await server.visit()).cut()
            visit = await server.visit()
            asked = await visit.take(Subscribe)
            assert [each.topic_filter for each in asked.subscriptions] == ["plant/#"]

    run(main())


@VERSIONS
def test_a_connection_that_is_refused_for_good_ends_it(version: int, tmp_path: Path) -> None:
    reason = 0x86 if version == MQTT5 else 4

    async def main() -> None:
        async with Scripted(ConnAck(reason=reason)) as server:
            with pytest.raises(Refused, match="bad user name or password"):
                await Ingest(
                    plan_of(server.url, tmp_path, version=version, client_id="plant")
                ).run()

    run(main())


@VERSIONS
def test_a_connection_that_is_refused_for_now_is_tried_again(version: int, tmp_path: Path) -> None:
    reason = 0x89 if version == MQTT5 else 3

    async def main() -> None:
        async with (
            Scripted(ConnAck(reason=reason), accept, grants=True) as server,
            ingesting(plan_of(server.url, tmp_path, version=version, client_id="plant")),
        ):
            await server.visit()
            await begun(server)

    run(main())


def test_a_client_that_has_taken_the_session_over_ends_it(tmp_path: Path) -> None:
    """Whoever came back would take it over in turn."""

    async def main() -> None:
        async with Scripted(grants=True) as server:
            running = asyncio.get_running_loop().create_task(
                Ingest(plan_of(server.url, tmp_path)).run()
            )
            visit = await begun(server)
            visit.send(Disconnect(0x8E))
            with pytest.raises(Disconnected, match="0x8e, session taken over"):
                await running

    run(main())


def test_a_server_that_breaks_a_rule_ends_it_and_the_rule_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            running = asyncio.get_running_loop().create_task(
                Ingest(plan_of(server.url, tmp_path)).run()
            )
            visit = await begun(server)
            visit.send(Publish("plant/1", b"a", 1, 1))
            await visit.take(PubAck)
            visit.send_bytes(bytes.fromhex("3606000161000100"))
            with pytest.raises(Disconnected, match="QOS_NOT_3"):
                await running

    run(main())
    assert len(rows_in(tmp_path)) == 1


def test_a_store_that_fails_ends_it_and_acknowledges_nothing_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            running = asyncio.get_running_loop().create_task(
                Ingest(plan_of(server.url, tmp_path)).run()
            )
            visit = await begun(server)
            # Somebody takes a table away from under it.
            with closing(sqlite3.connect(tmp_path / "data" / "store.db")) as connection:
                connection.execute("ALTER TABLE record RENAME TO lost")
            visit.send(Publish("plant/1", b"a", 1, 1))
            assert await visit.end() == []
            with pytest.raises(Disconnected, match="the store cannot be used any more"):
                await running

    run(main())


@VERSIONS
def test_subscriptions_that_are_all_refused_end_it(version: int, tmp_path: Path) -> None:
    reason = 0x87 if version == MQTT5 else 0x80

    async def main() -> None:
        async with Scripted() as server:
            plan = plan_of(
                server.url, tmp_path, "plant/a", "plant/b", version=version, client_id="plant"
            )
            running = asyncio.get_running_loop().create_task(Ingest(plan).run())
            visit = await server.visit()
            for _ in range(2):
                visit.send(SubAck((await visit.take(Subscribe)).packet_id, [reason]))
            await visit.take(Disconnect)
            with pytest.raises(Refused, match="refused the subscription to plant/b with SUBACK"):
                await running

    run(main())


@VERSIONS
def test_a_subscription_that_is_refused_beside_others_is_warned_of(
    version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = 0x87 if version == MQTT5 else 0x80

    async def main() -> None:
        async with Scripted() as server:
            plan = plan_of(
                server.url, tmp_path, "plant/a", "plant/b", version=version, client_id="plant"
            )
            async with ingesting(plan) as work:
                visit = await server.visit()
                visit.send(SubAck((await visit.take(Subscribe)).packet_id, [reason]))
                visit.send(SubAck((await visit.take(Subscribe)).packet_id, [2]))
                await said(caplog, "refused the subscription to plant/a with SUBACK")
                visit.send(Publish("plant/b", b"b", 1, 1))
                await visit.take(PubAck)
                assert work.counters.state == "connected"

    run(main())


def test_a_server_without_what_a_filter_needs_is_one_that_refuses_it(tmp_path: Path) -> None:
    properties = Properties(wildcard_subscription_available=False)

    async def main() -> None:
        async with Scripted(ConnAck(properties=properties)) as server:
            with pytest.raises(Violation, match="WILDCARD_IF_AVAILABLE"):
                await Ingest(plan_of(server.url, tmp_path)).run()

    run(main())


def test_the_end_of_a_subscription_that_is_refused_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server:
            async with ingesting(plan_of(server.url, tmp_path, "plant/a", "plant/b")):
                visit = await begun(server)
                await visit.take(Subscribe)
            async with ingesting(plan_of(server.url, tmp_path, "plant/b")) as work:
                visit = await server.visit()
                packet = await visit.packet()
                while not isinstance(packet, Unsubscribe):
                    packet = await visit.packet()
                visit.send(UnsubAck(packet.packet_id, [0x87]))
                await said(caplog, "refused to end the subscription to plant/a with UNSUBACK")
                assert work.counters.state == "connected"

    run(main())


def test_what_a_client_identifier_tells_decides_how_the_first_connection_begins(
    tmp_path: Path,
) -> None:
    """One that was made is nobody else's; under a given one there may be a session already."""

    async def clean(client_id: str | None, folder: Path) -> bool:
        async with (
            Scripted(None) as server,
            ingesting(plan_of(server.url, folder, client_id=client_id)),
        ):
            visit = await server.visit(greeted=False)
            return (await visit.take(Connect)).clean_start

    async def main() -> None:
        assert await clean(None, tmp_path / "made")
        assert not await clean("plant", tmp_path / "given")

    run(main())


def test_a_connect_asks_for_the_longest_session_and_says_who_we_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            wanted = IngestSettings(
                url=f"mqtt://ann:secret@127.0.0.1:{server.port}", topic=("a",), stream="plant"
            )
            kept = StoreSettings(root=str(tmp_path))
            async with ingesting(make_plan(wanted, kept)):
                connect = await (await server.visit(greeted=False)).take(Connect)
                assert connect.properties.session_expiry_interval == 0xFFFF_FFFF
                assert (connect.user_name, connect.password) == ("ann", b"secret")
                assert connect.properties.receive_maximum is None
        assert (tmp_path / ".semel-ingest" / "plant" / "store.db").exists()

    run(main())


# --- what is wanted -------------------------------------------------------------------------------


GIVEN = {"url": "mqtt://host", "topic": ("a/#",), "stream": "plant"}


def plan_from(folder: Path, **changes: object) -> Plan:
    store = {name: changes.pop(name) for name in ("data", "root", "durability") if name in changes}
    kept = StoreSettings(**({"root": str(folder / "root")} | store))  # type: ignore[arg-type]
    return make_plan(IngestSettings(**(GIVEN | changes)), kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": None}, "say where the broker is"),
        ({"url": "host"}, "the address has no scheme"),
        ({"topic": ()}, "say what to take: --topic FILTER"),
        ({"topic": ("a/#/b",)}, "--topic a/#/b: HASH_IS_LAST_LEVEL"),
        ({"topic": ("$share/g",)}, r"--topic \$share/g: SHARE_NAME_BEFORE_FILTER"),
        ({"topic": ("$share/g/a",), "share": "h"}, "it names a group already"),
        ({"share": "a/b"}, "must be a name without /"),
        ({"share": "+"}, "is no topic filter"),
        ({"stream": None}, "say what the stream is called"),
        ({"stream": "Plant"}, "small letters"),
        ({"qos": 3}, "from 0 to 2"),
        ({"session_expiry": 0}, "session_expiry is 0"),
        ({"cafile": Path("x")}, "cafile is for TLS, which mqtts:// and wss:// ask for"),
        ({"url": "mqtts://host", "cafile": Path("x")}, "cafile 'x': No such file"),
        ({"password_file": Path("nowhere")}, "--password-file nowhere: No such file"),
        ({"password": "a", "password_file": Path(__file__)}, "give one of them"),
        ({"protocol_version": "311", "password": "secret"}, "no CONNECT can be made of this"),
        ({"root": None}, "say where segments are to be kept"),
        ({"root": "ftp://x/y"}, "is no root"),
        ({"root": "s3://bucket/x?region=r"}, "say by --data where the store is"),
        ({"durability": "memory"}, "keeps nothing"),
    ],
)
def test_settings_that_make_no_plan_are_told_in_a_sentence(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        plan_from(tmp_path, **changes)
    assert "secret" not in str(caught.value)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        plan_from(tmp_path, url=None, topic=(), stream=None, root=None)
    assert len(caught.value.problems) == 4


def test_a_plan_has_what_the_settings_say(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"s\xffcret\n")
    plan = plan_from(
        tmp_path,
        topic=("a", "b/#", "a"),
        share="g",
        qos=1,
        username="ann",
        password_file=file,
        session_expiry=60,
        retain_for=3600,
    )
    assert [each.topic_filter for each in plan.subscriptions] == ["$share/g/a", "$share/g/b/#"]
    assert {each.qos for each in plan.subscriptions} == {1}
    assert (plan.greeting.user_name, plan.greeting.password) == ("ann", b"s\xffcret")
    assert plan.greeting.session_expiry == 60
    assert plan.stream.retain_for == 3600
    assert plan.store.data == tmp_path / "root" / ".semel-ingest" / "plant"
    assert plan.warnings == ()
    assert plan_from(tmp_path, data=tmp_path / "x").store.data == tmp_path / "x"
    assert plan_from(tmp_path, root=f"file://{tmp_path}/r").store.data == (
        tmp_path / "r" / ".semel-ingest" / "plant"
    )


def test_a_plan_warns_of_what_its_author_may_not_mean(tmp_path: Path) -> None:
    found = plan_from(tmp_path, topic=("a/#", "a/b", "c"), share="g", protocol_version="311")
    assert [words.split(":")[0] for words in found.warnings] == [
        "MQTT 3.1.1 cannot say how long the broker is to keep the session",
        "MQTT 3.1.1 knows no shared subscriptions",
        "$share/g/a/# and $share/g/a/b overlap",
    ]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/+", "+/b", True),
        ("a/+", "b/+", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "b/#", False),
        ("#", "x/y", True),
        ("+", "x/y", False),
        ("+/y", "x/#", True),
        ("a/b", "a/b/c", False),
        ("a/b/#", "a/+", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_two_filters_overlap_if_there_is_a_topic_that_both_match(
    one: str, other: str, overlap: bool
) -> None:
    assert do_overlap(one, other) == overlap
    assert do_overlap(other, one) == overlap
