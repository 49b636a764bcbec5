"""`Client(outbox=PATH)`: what is on disk when, what a next run does with it, and who may use it."""

import asyncio
from pathlib import Path

import pytest

from semel.client import Client, Disconnected
from semel.mqtt import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
)
from semel.store.care import describe
from semel.store.forensics.check import check_store
from semel.store.schema import Unusable
from tests.client.listening import run
from tests.client.outboxes import answer, first_visit, killed, lasting, made, rows, sent_to, until
from tests.client.servers import BOTH, QUICK, Scripted, accept, resume, start, turns
from tests.kills.brokers import free_port

VERSIONS = pytest.mark.parametrize("version", BOTH, ids=["3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [1, 2])


# --- on the way out -------------------------------------------------------------------------------


@VERSIONS
@QOS
def test_what_is_published_without_a_server_is_stored_and_sent_by_the_next_run(
    tmp_path: Path, version: int, qos: int
) -> None:
    async def main() -> None:
        async with made(f"mqtt://127.0.0.1:{free_port()}", tmp_path, version=version) as client:
            assert not client.connected
            for payload in (b"1", b"2"):
                assert await client.publish("t", payload, qos, until="stored") == 0
            assert client.counters.waiting == 2
        assert [row[0] for row in rows(tmp_path, "SELECT payload FROM delivery")] == [b"1", b"2"]
        async with (
            Scripted(obliges=True) as server,
            made(server.url, tmp_path, version=version) as client,
        ):
            visit = await first_visit(server, version)
            await visit.until(lambda: len(sent_to(visit)) == 2)
            assert sent_to(visit) == [b"1", b"2"]
            await until(lambda: client.counters.waiting + client.counters.in_flight == 0)
        assert rows(tmp_path, "SELECT * FROM delivery") == []

    run(main())


@VERSIONS
def test_what_is_published_without_a_server_is_sent_when_it_comes(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server:
            await server.stop_listening()
            async with made(server.url, tmp_path, version=version) as client:
                stored = [client.publish("t", b"%d" % n, 2, until="stored") for n in range(3)]
                await asyncio.gather(*stored)
                complete = start(client.publish("t", b"3", 2))
                await turns()
                assert not client.connected
                assert not complete.done()
                await server.listen()
                assert await complete == 0
                visit = await first_visit(server, version)
                assert sent_to(visit) == [b"0", b"1", b"2", b"3"]
        assert rows(tmp_path, "SELECT * FROM delivery") == []

    run(main())


def test_until_stored_returns_before_the_server_has_answered_and_complete_does_not(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Scripted() as server, made(server.url, tmp_path) as client:
            visit = await server.visit()
            complete = start(client.publish("t", b"1", 2))
            await client.publish("t", b"2", 2, until="stored")
            assert len(rows(tmp_path, "SELECT * FROM delivery")) == 2
            assert not complete.done()
            for packet_id in (1, 2):
                await visit.take(Publish)
                visit.send(PubRec(packet_id))
            for packet_id in (1, 2):
                await visit.take(PubRel)
                visit.send(PubComp(packet_id))
            assert await complete == 0

    run(main())


@pytest.mark.parametrize("wait", ["stored", "complete"])
def test_cancelling_stops_the_waiting_and_not_the_message(tmp_path: Path, wait: str) -> None:
    async def main() -> None:
        async with made(f"mqtt://127.0.0.1:{free_port()}", tmp_path) as client:
            going = start(client.publish("t", b"1", 1, until=wait))  # type: ignore[arg-type]
            # It has begun: from here on the message is on its way.
            await asyncio.sleep(0)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            await client.publish("t", b"2", 1, until="stored")
        assert rows(tmp_path, "SELECT payload FROM delivery") == [(b"1",), (b"2",)]

    run(main())


def test_closing_ends_who_waits_and_keeps_the_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted() as server:
            async with made(server.url, tmp_path) as client:
                visit = await server.visit()
                going = start(client.publish("t", b"1", 1))
                await visit.take(Publish)
            with pytest.raises(Disconnected, match="closed"):
                await going
        assert rows(tmp_path, "SELECT payload, packet_id FROM delivery") == [(b"1", 1)]

    run(main())


def test_of_many_messages_that_wait_few_are_in_memory(tmp_path: Path) -> None:
    count = 5_000

    async def main() -> None:
        async with made(f"mqtt://127.0.0.1:{free_port()}", tmp_path) as client:
            await asyncio.gather(
                *(client.publish("t", b"%d" % n, 1, until="stored") for n in range(count))
            )
            assert client.counters.waiting == count
        async with Scripted(obliges=True) as server, made(server.url, tmp_path) as client:
            assert client.counters.waiting + client.counters.in_flight <= count
            visit = await server.visit()
            await until(lambda: client.counters.waiting + client.counters.in_flight == 0)
            sent = [int(each.payload) for each in visit.sent if isinstance(each, Publish)]
            assert sent == list(range(count))
        assert rows(tmp_path, "SELECT count(*) FROM delivery") == [(0,)]

    run(main())


# --- on the way in --------------------------------------------------------------------------------


@VERSIONS
@QOS
def test_a_message_is_handed_out_again_until_the_program_has_acknowledged_it(
    tmp_path: Path, version: int, qos: int
) -> None:
    async def main() -> None:
        keys = []
        async with lasting(version) as server:
            async with killed(made(server.url, tmp_path, version=version)) as client:
                visit = await first_visit(server, version)
                messages = await client.subscribe("t", qos=2, auto_ack=False)
                await visit.take(Subscribe)
                visit.send(Publish("t", b"1", qos, 7), Publish("t", b"2", qos, 8))
                for payload in (b"1", b"2"):
                    message = await anext(messages)
                    assert (message.payload, message.dup) == (payload, False)
                    keys.append(message.key)
                assert rows(tmp_path, "SELECT key FROM inbox") == [(key,) for key in keys]
                assert client.counters.unacknowledged == 2
            # Again and again, whether the server sends it again or not.
            for _ in range(2):
                async with killed(made(server.url, tmp_path, version=version)) as client:
                    await server.visit()
                    messages = client.subscribe("t", qos=2, auto_ack=False)
                    for payload, key in zip((b"1", b"2"), keys, strict=True):
                        message = await anext(messages)
                        assert (message.payload, message.key, message.dup) == (payload, key, True)
            async with made(server.url, tmp_path, version=version) as client:
                visit = await server.visit()
                messages = client.subscribe("t", qos=2, auto_ack=False)
                again = [Publish("t", b"%d" % n, qos, 6 + n, dup=True) for n in (1, 2)]
                visit.send(*again)
                for key in keys:
                    message = await anext(messages)
                    assert message.key == key
                    message.ack()
                for packet_id in (7, 8):
                    expected = PubAck(packet_id) if qos == 1 else PubRec(packet_id)
                    assert await answer(visit) == expected
                assert client.counters.unacknowledged == 0
        assert rows(tmp_path, "SELECT * FROM inbox") == []

    run(main())


def test_what_is_acknowledged_when_the_next_one_is_asked_for_is_not_handed_out_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with lasting() as server:
            async with killed(made(server.url, tmp_path)) as client:
                visit = await server.visit()
                messages = await client.subscribe("t", qos=2)
                await visit.take(Subscribe)
                visit.send(Publish("t", b"1", 2, 7), Publish("t", b"2", 2, 8))
                assert (await anext(messages)).payload == b"1"
                assert (await anext(messages)).payload == b"2"
                assert await visit.take(PubRec) == PubRec(7)
            async with made(server.url, tmp_path) as client:
                messages = client.subscribe("t", qos=2)
                # The body of the loop was not done with it.
                message = await anext(messages)
                assert (message.payload, message.dup) == (b"2", True)

    run(main())


def test_an_acknowledgement_that_comes_after_the_end_of_the_client_counts_for_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with lasting() as server:
            async with made(server.url, tmp_path) as client:
                visit = await server.visit()
                messages = await client.subscribe("t", qos=2, auto_ack=False)
                visit.send(Publish("t", b"1", 2, 7))
                message = await anext(messages)
            message.ack()
            async with made(server.url, tmp_path) as client:
                again = await anext(client.subscribe("t", qos=2))
                assert again.key == message.key

    run(main())


def test_a_message_whose_filter_is_no_longer_wanted_is_for_who_asks_for_all(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Scripted(resume, obliges=True) as server:
            async with killed(made(server.url, tmp_path)) as client:
                visit = await server.visit()
                await client.subscribe("t", qos=2, auto_ack=False)
                await visit.take(Subscribe)
                visit.send(Publish("t", b"1", 2, 7))
                await until(lambda: client.counters.unacknowledged == 1)
            async with made(server.url, tmp_path, subscriptions=["u"]) as client:
                async for message in client.messages():
                    assert (message.topic, message.payload) == ("t", b"1")
                    break

    run(main())


# --- subscriptions --------------------------------------------------------------------------------


def test_without_a_list_the_session_keeps_what_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with Scripted(resume, obliges=True) as server:
            async with made(server.url, tmp_path) as client:
                await client.subscribe("a", qos=1)
            async with made(server.url, tmp_path) as client:
                (_, visit) = (await server.visit(), await server.visit())
                # Nobody knows whether the server has it: it is asked for once more, and brings no
                # retained message again.
                packet = await visit.take(Subscribe)
                assert packet.subscriptions[0].topic_filter == "a"
                assert packet.subscriptions[0].retain_handling == 1
                visit.send(Publish("a", b"1", 1, 7))
                async for message in client.messages():
                    assert message.payload == b"1"
                    break

    run(main())


# --- whose it is ----------------------------------------------------------------------------------


def test_an_outbox_belongs_to_one_client_id(tmp_path: Path) -> None:
    async def main() -> None:
        nobody = f"mqtt://127.0.0.1:{free_port()}"
        async with Client(nobody, client_id="one", outbox=tmp_path, reconnect=QUICK):
            pass
        with pytest.raises(Unusable, match="belongs to the client 'one'"):
            await Client(nobody, client_id="two", outbox=tmp_path).connect()
        # Who does not say has the one that it belongs to.
        async with Client(nobody, outbox=tmp_path, reconnect=QUICK) as client:
            assert client.client_id == "one"

    run(main())


@VERSIONS
def test_a_client_id_that_nobody_chose_is_kept_in_the_outbox(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        nobody = f"mqtt://127.0.0.1:{free_port()}"
        async with Client(nobody, outbox=tmp_path, version=version, reconnect=QUICK) as client:
            known = client.client_id
        assert known
        async with Client(nobody, outbox=tmp_path, version=version, reconnect=QUICK) as client:
            assert client.client_id == known
        async with Client(
            nobody, outbox=tmp_path / "other", version=version, reconnect=QUICK
        ) as client:
            assert client.client_id != known

    run(main())


def test_one_client_at_a_time_has_an_outbox(tmp_path: Path) -> None:
    async def main() -> None:
        nobody = f"mqtt://127.0.0.1:{free_port()}"
        second = made(nobody, tmp_path)
        async with made(nobody, tmp_path):
            with pytest.raises(Unusable, match=r"is in use by another process \(process \d+\)"):
                await second.connect()
        async with second:
            pass

    run(main())


def test_a_client_that_is_closed_may_be_opened_again_on_its_outbox(tmp_path: Path) -> None:
    async def main() -> None:
        client = made(f"mqtt://127.0.0.1:{free_port()}", tmp_path)
        for count in (1, 2):
            async with client:
                await client.publish("t", b"x", 1, until="stored")
                assert client.counters.waiting == count

    run(main())


def test_a_brokers_store_is_no_outbox_and_an_outbox_no_brokers_store(tmp_path: Path) -> None:
    from semel.store.opening import open_store
    from semel.store.settings import StoreSettings

    async def main() -> None:
        nobody = f"mqtt://127.0.0.1:{free_port()}"
        open_store(StoreSettings(data=tmp_path / "broker"), ()).close()
        with pytest.raises(Unusable, match="is the store of a broker, not of a client"):
            await made(nobody, tmp_path / "broker").connect()
        async with made(nobody, tmp_path / "client"):
            pass
        with pytest.raises(Unusable, match="is the store of a client, not of a broker"):
            open_store(StoreSettings(data=tmp_path / "client"), ())
        # Neither has been changed by that.
        open_store(StoreSettings(data=tmp_path / "broker"), ()).close()
        async with made(nobody, tmp_path / "client"):
            pass

    run(main())


def test_a_folder_that_cannot_be_one_is_explained(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").write_text("mine")
        client = made(f"mqtt://127.0.0.1:{free_port()}", tmp_path / "file")
        with pytest.raises(Unusable, match="is not a folder"):
            await client.connect()
        assert (tmp_path / "file").read_text() == "mine"

    run(main())


# --- people ---------------------------------------------------------------------------------------


def test_an_outbox_can_be_looked_into(tmp_path: Path) -> None:
    async def main() -> None:
        async with made(f"mqtt://127.0.0.1:{free_port()}", tmp_path) as client:
            for payload in (b"1", b"2"):
                await client.publish("t", payload, 1, until="stored")
            found = describe(tmp_path)
            assert (found["queued"], found["in_flight"], found["inbox"]) == (2, 0, 0)
            assert check_store(tmp_path).is_clean

    run(main())


def test_a_server_that_never_accepted_the_client_is_asked_for_nothing_old(tmp_path: Path) -> None:
    """A CONNECT that was not answered may have begun a session; the next one begins clean, too."""

    async def main() -> None:
        async with Scripted(None, accept) as server:
            client = made(server.url, tmp_path)
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            assert (await visit.take(Connect)).clean_start
            visit.cut()
            visit = await server.visit(greeted=False)
            assert (await visit.take(Connect)).clean_start
            await opening
            await client.close()

    run(main())
