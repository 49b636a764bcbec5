"""Bridges beside servers that say what a test tells them to."""

import logging
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.broker.settings import BrokerSettings
from semel.client.bridge import Bridge
from semel.client.bridge_plan import make_bridge_plan
from semel.client.errors import Disconnected, Refused
from semel.mqtt import (
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
)
from semel.mqtt.reasons import (
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
from tests.broker.live.test_server_store import fill, small_disk
from tests.broker.serving import serving
from tests.client.bridges import bridge_of, bridging, is_ready
from tests.client.ingests import said, send, until
from tests.client.listening import run
from tests.client.servers import Scripted, Visit, accept, resume, start

__all__ = ["small_disk"]


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


def test_a_message_is_acknowledged_and_sent_when_one_commit_has_both_ends(tmp_path: Path) -> None:
    def rows() -> tuple[int, int]:
        store = f"file:{tmp_path / 'bridge' / 'store.db'}?mode=ro"
        with closing(sqlite3.connect(store, uri=True)) as connection:
            query = "SELECT (SELECT count(*) FROM inbound), (SELECT count(*) FROM delivery)"
            found: tuple[int, int] = connection.execute(query).fetchone()
            return found

    async def main() -> None:
        async with Scripted(grants=True) as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("plant/#",))
            async with bridging(settings) as work:
                source, destination = await begun(local), await remote.visit()
                await is_ready(work)
                source.send(Publish("plant/1", b"a", 2, 7))
                assert (await source.take(PubRec)).packet_id == 7
                assert rows() == (1, 1)
                packet = await destination.take(Publish)
                assert (packet.topic_name, packet.payload) == ("plant/1", b"a")
                source.send(PubRel(7))
                assert (await source.take(PubComp)).packet_id == 7
                destination.send(PubRec(packet.packet_id))
                await destination.take(PubRel)
                destination.send(PubComp(packet.packet_id))
                await until(lambda: work.status.to_remote.delivered == 1)
                await until(lambda: rows() == (0, 0))
            assert not local.complaints + remote.complaints

    run(main())


def test_what_the_destination_refuses_is_counted_and_the_first_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        small = ConnAck(properties=Properties(maximum_packet_size=200))
        async with Scripted(grants=True) as local, Scripted(small) as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("plant/#",))
            async with bridging(settings) as work:
                source, destination = await begun(local), await remote.visit()
                await is_ready(work)
                source.send(Publish("plant/1", b"a", 2, 1), Publish("plant/1", b"b", 1, 2))
                packets = [await destination.take(Publish), await destination.take(Publish)]
                destination.send(
                    PubRec(packets[0].packet_id, NOT_AUTHORIZED),
                    PubAck(packets[1].packet_id, QUOTA_EXCEEDED),
                )
                source.send(Publish("plant/1", b"x" * 300, 1, 3))
                await until(lambda: work.status.to_remote.refused == 3)
                assert "200" in (work.status.remote.last_error or "")
                assert work.status.to_remote.queued == 0
            words = "a message was not delivered: the server refused a message with PUBREC 0x87"
            assert sum("a message was not delivered" in line for line in caplog.messages) == 1
            assert any(words in line for line in caplog.messages)

    run(main())


def test_a_message_that_expires_in_the_queue_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as local, Scripted() as remote:
            await remote.stop_listening()
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("plant/#",))
            async with bridging(settings) as work:
                source = await begun(local)
                for packet_id, seconds in ((1, 1), (2, 1_000)):
                    properties = Properties(message_expiry_interval=seconds)
                    source.send(Publish("plant/1", b"a", 2, packet_id, properties=properties))
                await until(lambda: work.status.to_remote.expired == 1)
                assert work.status.to_remote.queued == 1

    run(main())


def test_a_shorter_expiry_a_lower_qos_and_a_lost_session_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        short = ConnAck(properties=Properties(session_expiry_interval=60))
        async with Scripted(short, accept) as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("plant/#",))
            async with bridging(settings) as work:
                source = await local.visit()
                packet = await source.take(Subscribe)
                source.send(SubAck(packet.packet_id, [1]))
                await said(caplog, "subscribed to plant/# at QoS 1, not 2 as requested")
                await said(caplog, "keeps the session for 60 s without a connection, not for 60480")
                await is_ready(work)
                source.cut()
                source = await local.visit()
                await said(caplog, "bridge site, local: the broker lost the session")
                packet = await source.take(Subscribe)
                source.send(SubAck(packet.packet_id, [2]))
                await said(caplog, "bridge site, local: subscribed to plant/# at QoS 2")
                assert work.status.local.sessions_lost == 1
                assert work.status.local.reconnects == 1

    run(main())


def test_a_forever_expiry_that_is_not_granted_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        short = ConnAck(properties=Properties(session_expiry_interval=60))
        async with Scripted(short, grants=True) as local, Scripted() as remote:
            settings = bridge_of(
                *(tmp_path, local.port, remote.port), to_remote=("a",), session_expiry=0xFFFF_FFFF
            )
            async with bridging(settings):
                await said(caplog, "not forever as requested")

    run(main())


def test_a_bridge_goes_on_without_a_refused_filter_and_ends_without_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("a", "b"))
            async with bridging(settings) as work:
                source = await local.visit()
                first, second = await source.take(Subscribe), await source.take(Subscribe)
                source.send(SubAck(first.packet_id, [NOT_AUTHORIZED]))
                source.send(SubAck(second.packet_id, [2]))
                await said(caplog, "refused the subscription to a with SUBACK 0x87")
                await is_ready(work)
                assert work.status.state == "running"
        async with Scripted() as local, Scripted() as remote:
            settings = bridge_of(
                *(tmp_path, local.port, remote.port), data=tmp_path / "other", to_remote=("a",)
            )
            work = Bridge(make_bridge_plan(settings))
            running = start(work.run())
            source = await local.visit()
            packet = await source.take(Subscribe)
            source.send(SubAck(packet.packet_id, [NOT_AUTHORIZED]))
            with pytest.raises(Refused, match="the subscription to a with SUBACK 0x87"):
                await running
            assert (work.failed_side, work.status.state) == ("local", "failed")

    run(main())


def test_a_broker_that_ends_connections_for_what_is_asked_is_left_after_three(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Scripted() as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("a/#",))
            running = start(Bridge(make_bridge_plan(settings)).run())
            for _ in range(3):
                source = await local.visit()
                await source.take(Subscribe)
                source.send(Disconnect(WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED))
            with pytest.raises(Disconnected, match="3 connections in a row ended like this"):
                await running

    run(main())


def test_both_sides_get_disconnect_at_the_end_and_keep_their_sessions(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as local, Scripted(grants=True) as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("a/#",))
            async with bridging(settings) as work:
                source = await local.visit(greeted=False)
                connect = await source.take(Connect)
                assert connect.properties.session_expiry_interval == 7 * 86_400
                assert connect.properties.receive_maximum == 1000
                packet = await source.take(Subscribe)
                assert packet.subscriptions[0].no_local
                destination = await remote.visit()
                await is_ready(work)
            for visit in (source, destination):
                (last,) = await visit.end()
                assert isinstance(last, Disconnect)
                assert last.properties.session_expiry_interval is None

    run(main())


def test_a_side_that_cannot_close_does_not_keep_the_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("a/#",))
            async with bridging(settings) as work:
                destination = await remote.visit()
                await is_ready(work)
                link = work._sides[0].link
                close = link.close

                async def fail(*reasons: int | None) -> None:
                    await close(*reasons)  # type: ignore[arg-type]
                    raise RuntimeError("a test says so")

                monkeypatch.setattr(link, "close", fail)
            (last,) = await destination.end()
            assert isinstance(last, Disconnect)
            await said(caplog, "bridge site: a connection did not close: RuntimeError('a test")

    run(main())


# --- the store ------------------------------------------------------------------------------------


def test_a_full_disk_pauses_both_sides_and_nothing_is_lost(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}-{'x' * 2_000}" for number in range(60)]

    async def main(local: int, remote: int) -> None:
        settings = bridge_of(small_disk, local, remote, to_remote=("plant/#",))
        async with bridging(settings) as work:
            await is_ready(work)
            filler = fill(small_disk)
            await send(local, *(("plant/1", name, 2) for name in names))
            await until(lambda: work.status.store == "full")
            filler.unlink()
            await until(lambda: work.status.to_remote.delivered == len(names))
            assert work.status.store == "open"

    settings = BrokerSettings(port=0, sys_interval=0.0)
    with serving(settings) as local, serving(settings) as remote:
        run(main(local.address[1], remote.address[1]))


def test_a_store_that_fails_ends_the_bridge_and_nothing_more_is_acknowledged(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as local, Scripted() as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("a/#",))
            work = Bridge(make_bridge_plan(settings))
            running = start(work.run())
            source, destination = await begun(local), await remote.visit()
            await is_ready(work)
            # Somebody takes a table away from under it.
            with closing(sqlite3.connect(tmp_path / "bridge" / "store.db")) as connection:
                connection.execute("ALTER TABLE delivery RENAME TO lost")
            source.send(Publish("a/1", b"a", 2, 1))
            assert await source.end() == await destination.end() == []
            with pytest.raises(Disconnected, match="the store can no longer be used"):
                await running

    run(main())
