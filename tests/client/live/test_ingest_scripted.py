"""Ingest beside a server that says what a test tells it to."""

import asyncio
import logging
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest
from semel.client.ingest_plan import make_plan
from semel.client.ingest_settings import IngestSettings
from semel.mqtt import (
    MQTT5,
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
from semel.store.settings import StoreSettings
from tests.client.ingests import (
    VERSIONS,
    breaks_in,
    ingesting,
    plan_of,
    rows_in,
    said,
    until,
)
from tests.client.listening import run
from tests.client.servers import Scripted, Visit, accept, resume

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All that is said is kept, and the interpreter is left as it was."""
    interval = sys.getswitchinterval()
    caplog.set_level(logging.INFO)
    yield
    sys.setswitchinterval(interval)


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
            with pytest.raises(Disconnected, match="the store can no longer be used"):
                await running

    run(main())


async def part(server: Scripted, reason: int, *, subscribes: bool = True) -> None:
    """A connection that the server ends with DISCONNECT when it gets a SUBSCRIBE."""
    visit = await server.visit()
    if subscribes:
        await visit.take(Subscribe)
    visit.send(Disconnect(reason))
    await visit.end()


@pytest.mark.parametrize(
    ("reason", "words"),
    [(0x90, "topic name invalid"), (0x82, "protocol error"), (0xA2, "wildcard subscriptions not")],
)
def test_a_disconnect_that_no_retry_cures_ends_it_after_three_connections(
    reason: int, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted() as server:
            running = asyncio.get_running_loop().create_task(
                Ingest(plan_of(server.url, tmp_path)).run()
            )
            for _ in range(3):
                await part(server, reason)
            sentence = f"0x{reason:02x}, {words}.* 3 connections in a row.*subscription to plant/#"
            with pytest.raises(Disconnected, match=sentence):
                await running
            assert len(server.visits) == 3

    run(main())
    # The last attempt is not followed by the promise of another one.
    assert sum("trying again" in each.message for each in caplog.records) == 2


def test_a_disconnect_that_passes_or_comes_after_progress_does_not_end_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            ingesting(plan_of(server.url, tmp_path)) as work,
        ):
            for _ in range(5):
                await part(server, 0x8B)
            for seen in range(1, 3):
                for _ in range(2):
                    await part(server, 0x90)
                visit = await server.visit()
                visit.send(SubAck((await visit.take(Subscribe)).packet_id, [2]))
                visit.send(Publish("plant/1", b"a", 1, seen))
                await visit.take(PubAck)
                visit.send(Disconnect(0x8B))
                await visit.end()
            await until(lambda: work.counters.received == 2)

    run(main())
    assert len(rows_in(tmp_path)) == 2


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
