"""An outbox that is damaged, or on a disk that is full: what a client does then, and says."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from semel.client import Disconnected
from semel.mqtt import PubAck, Publish, Subscribe
from semel.store.forensics.check import check_store
from semel.store.schema import Unusable
from tests.client.listening import run
from tests.client.outboxes import change, killed, lasting, made, rows, until
from tests.client.servers import Scripted, resume, start, turns
from tests.kills.brokers import free_port

# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE session SET expiry_interval = 'x'",
        "UPDATE subscription SET options = 3",
        "UPDATE delivery SET topic = 'a/#' WHERE number = 1",
        "UPDATE inbox SET properties = x'05'",
        "UPDATE inbox SET payload = 'text'",
        "UPDATE inbox SET topic = 'a/#'",
        "UPDATE inbox SET flags = 3",
    ],
)
def test_a_damaged_outbox_is_named_with_a_way_out_and_stays_free(
    tmp_path: Path, damage: str
) -> None:
    async def main() -> None:
        async with lasting() as server:
            async with killed(made(server.url, tmp_path)) as client:
                visit = await server.visit()
                await client.subscribe("t", qos=1, auto_ack=False)
                await visit.take(Subscribe)
                waiting = start(client.publish("t", b"out", 1))
                await visit.take(Publish)
                visit.send(Publish("t", b"in", 1, 7))
                await until(lambda: client.counters.unacknowledged == 1)
            with pytest.raises(Disconnected):
                await waiting
            assert check_store(tmp_path).is_clean
            change(tmp_path, damage)
            for _ in range(2):
                with pytest.raises(Unusable, match="semel store check"):
                    await made(server.url, tmp_path).connect()
            assert not check_store(tmp_path).is_clean

    run(main())


def test_a_damaged_row_of_the_queue_ends_the_client_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with made(f"mqtt://127.0.0.1:{free_port()}", tmp_path) as client:
            await client.publish("t", b"x", 1, until="stored")
        change(tmp_path, "UPDATE delivery SET topic = 'a/#'")
        async with Scripted() as server:
            client = made(server.url, tmp_path)
            with pytest.raises((Disconnected, Unusable), match="semel store check"):
                async with client:
                    await client.publish("t", b"y", 1)

    run(main())


def test_a_store_that_fails_ends_the_client_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = made(server.url, tmp_path)
            await client.connect()
            visit = await server.visit()
            change(tmp_path, "ALTER TABLE delivery RENAME TO lost")
            with pytest.raises(Disconnected, match="the store can no longer be used"):
                await client.publish("t", b"x", 1, until="stored")
            with pytest.raises(Disconnected, match="the store can no longer be used"):
                await client.publish("t", b"x", 1)
            assert not client.connected
            await visit.until(lambda: visit.ended)
            await client.close()

    run(main())


# --- a disk that is full --------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no program mount")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes all that is free."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_a_full_disk_holds_up_publishers_and_acknowledgements_and_loses_nothing(
    small_disk: Path,
) -> None:
    async def main() -> None:
        async with (
            Scripted(resume, obliges=True) as server,
            made(server.url, small_disk / "out") as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("in", qos=2, auto_ack=False)
            visit.send(Publish("in", b"1", 1, 7))
            message = await anext(messages)
            filler = fill(small_disk)
            stored: list[int] = []

            async def publish(n: int) -> None:
                await client.publish("t", b"%d " % n + bytes(2_000), 1, until="stored")
                stored.append(n)

            # What the log has room for is stored; then one waits for space, and no others come.
            going: list[asyncio.Task[None]] = []
            while not going or going[-1].done():
                going.append(start(publish(len(going))))
                with suppress(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await asyncio.shield(going[-1])
            going += [start(publish(len(going) + n)) for n in range(20)]
            message.ack()
            await turns(100)
            before = len(stored)
            assert not any(isinstance(each, PubAck) for each in visit.sent)
            assert client.connected
            filler.unlink()
            await asyncio.gather(*going)
            assert len(stored) == len(going) > before
            await visit.until(lambda: any(isinstance(each, PubAck) for each in visit.sent))
            await until(lambda: client.counters.waiting + client.counters.in_flight == 0)
            sent = [each for each in visit.sent if isinstance(each, Publish)]
            assert [int(each.payload.split()[0]) for each in sent] == list(range(len(going)))
        assert check_store(small_disk / "out").is_clean

    run(main())


def test_closing_on_a_full_disk_keeps_what_was_stored(small_disk: Path) -> None:
    async def main() -> None:
        outbox = small_disk / "out"
        async with made(f"mqtt://127.0.0.1:{free_port()}", outbox) as client:
            filler = fill(small_disk)
            stored = 0
            waiting = start(client.publish("t", bytes(2_000), 1, until="stored"))
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(2.0):
                        await asyncio.shield(waiting)
                    stored += 1
                    waiting = start(client.publish("t", bytes(2_000), 1, until="stored"))
        with pytest.raises(Disconnected):
            await waiting
        filler.unlink()
        assert check_store(outbox).is_clean
        assert rows(outbox, "SELECT count(*) FROM delivery") == [(stored,)]

    run(main())


@pytest.mark.parametrize(("reason", "refused"), [(0x97, 1), (0x10, 0)])
def test_a_stored_message_that_the_server_refuses_is_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: int, refused: int
) -> None:
    """Nobody waits for it, and it is gone: [MQTT-4.4.0-2] a failure completes it, too."""

    async def main() -> None:
        async with Scripted() as server, made(server.url, tmp_path) as client:
            visit = await server.visit()
            await client.publish("t", b"1", 1, until="stored")
            await visit.take(Publish)
            visit.send(PubAck(1, reason))
            await until(lambda: not client.counters.in_flight)
            assert (client.counters.sent, client.counters.refused) == (1 - refused, refused)
        told = [each for each in caplog.messages if "that no task awaits" in each]
        assert len(told) == refused
        assert all("0x97, quota exceeded" in each for each in told)

    run(main())
