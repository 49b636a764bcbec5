"""Ingest beside real brokers, and at its bounds."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.settings import BrokerSettings
from semel.client.errors import Disconnected
from semel.client.ingest import Ingest
from semel.client.ingest_plan import IngestPlan
from semel.mqtt import Publish
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings
from tests.broker.live.test_server_store import fill, small_disk
from tests.client.ingests import (
    BROKERS,
    PAIRS,
    VERSIONS,
    breaks_in,
    ingesting,
    plan_of,
    rows_in,
    said,
    send,
    served,
    until,
    url_of,
)
from tests.client.listening import run
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto
from tests.client.servers import Scripted

pytest.importorskip("pyarrow")

__all__ = ["small_disk"]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All that is said is kept, and the interpreter is left as it was."""
    interval = sys.getswitchinterval()
    caplog.set_level(logging.INFO)
    yield
    sys.setswitchinterval(interval)


# --- beside brokers -------------------------------------------------------------------------------


@BROKERS
@VERSIONS
def test_messages_of_every_qos_are_rows_as_they_came(
    kind: str, version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        plan = plan_of(url_of(port), tmp_path, "plant/#", "yard/+", version=version)
        async with ingesting(plan) as work:
            await said(caplog, "at QoS 2", 2)
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
            await said(caplog, "at QoS 2")
            await send(port, ("plant/1", "a", 2))
            await until(lambda: work.counters.stored == 1)
        assert "new session" in caplog.text
        await send(port, ("plant/1", "b", 1), ("plant/1", "c", 2))
        async with ingesting(plan) as work:
            await until(lambda: work.counters.stored == 3)
        assert "session resumed" in caplog.text

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
            await said(caplog, "at QoS 2", 2)
        caplog.clear()
        async with ingesting(plan_of(url_of(port), tmp_path, "plant/b", "plant/c")) as work:
            await said(caplog, "unsubscribed from plant/a")
            await said(caplog, "subscribed to plant/c at QoS 2")
            await send(port, ("plant/a", "a", 2), ("plant/b", "b", 2), ("plant/c", "c", 2))
            await until(lambda: work.counters.stored == 2)
        assert "session resumed" in caplog.text

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
            await said(caplog, "subscribed to $share/g/plant/# at QoS 2", 2)
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

    def plan(name: str) -> IngestPlan:
        return plan_of(url_of(port), tmp_path / name, version=version, client_id="plant")

    async def main() -> None:
        async with ingesting(plan("lost")):
            await said(caplog, "at QoS 2")
        await send(port, ("plant/1", "kept by the broker", 2))
        with pytest.raises(
            Disconnected, match="the server has a session for this client"
        ) as caught:
            await Ingest(plan("new")).run()
        assert caught.value.is_final
        async with ingesting(plan("new"), start_clean=True) as work:
            await said(caplog, "at QoS 2", 2)
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
            await said(caplog, "at QoS 2")

    settings = BrokerSettings(port=0, sys_interval=0.0, maximum_session_expiry=expiry)
    with served("semel", tmp_path, settings) as port:
        run(main())
    warning = "the broker keeps the session for 60 s without a connection, not forever"
    assert (warning in caplog.text) == (expiry == 60)


@NEEDS_MOSQUITTO
def test_a_lower_qos_than_was_asked_for_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with ingesting(plan_of(url_of(port), tmp_path)) as work:
            await said(caplog, "subscribed to plant/# at QoS 1, not 2 as requested")
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
                await said(caplog, "at QoS 2")
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
            await said(caplog, "at QoS 2")
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
            await said(caplog, "at QoS 2")
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
            await said(caplog, "at QoS 2")
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
