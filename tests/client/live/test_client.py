"""A client from its making to its end, and how it behaves as a guest of a program's loop."""

import asyncio
import ssl
import threading
from pathlib import Path

import pytest

from semel.client import (
    Address,
    Backoff,
    BadAddress,
    Client,
    ClientAuthentication,
    Disconnected,
    Refused,
)
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    Rule,
    Subscription,
    Violation,
    Will,
    exchange_rules,
    rules,
)
from tests.client.listening import cancel_at_every_turn, run, silent
from tests.client.servers import ASSIGNED, BOTH, QUICK, Scripted, accept, resume, start, turns
from tests.kills.brokers import free_port

LOOPS = ["asyncio", "uvloop"]
ALIASES = Properties(topic_alias_maximum=1)


# --- connecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("version", BOTH)
def test_a_client_connects_publishes_and_leaves(version: int, loop: str) -> None:
    async def main() -> None:
        async with Scripted() as server:
            async with Client(server.url, client_id="a", version=version) as client:
                visit = await server.visit(greeted=False)
                connect = await visit.take(Connect)
                assert (connect.client_id, connect.version) == ("a", version)
                assert (connect.clean_start, connect.keep_alive) == (True, 60)
                states = [client.connected]
                assert not client.session_present
                assert await client.publish("b", b"x") == 0
                assert await visit.take(Publish) == Publish("b", b"x")
            states.append(client.connected)
            assert states == [True, False]
            assert isinstance(await visit.packet(), Disconnect)
            assert await visit.end() == []

    run(main(), loop)


def test_the_client_says_what_the_server_said_of_itself() -> None:
    said = Properties(
        assigned_client_identifier="you",
        server_keep_alive=30,
        maximum_qos=1,
        user_properties=(("a", "b"),),
    )

    async def main() -> None:
        async with Scripted(ConnAck(properties=said)) as server:
            client = Client(server.url)
            assert (client.client_id, client.server) == ("", Properties())
            async with client:
                assert client.client_id == "you"
                assert client.server == said
                assert client.server.maximum_qos == 1

    run(main())


def test_the_identifier_that_the_server_assigned_is_kept_over_a_reconnect() -> None:
    """[MQTT-3.1.3-2] The session is known by it."""

    async def main() -> None:
        async with (
            Scripted(accept, resume) as server,
            Client(server.url, reconnect=QUICK) as client,
        ):
            assert client.client_id == ASSIGNED
            (await server.visit()).cut()
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            assert (connect.client_id, connect.clean_start) == (ASSIGNED, False)

    run(main())


def test_3_1_1_makes_a_client_id_that_every_server_takes() -> None:
    """[MQTT-3.1.3-5] (3.1.1) 1 to 23 letters and digits."""

    async def main() -> None:
        async with Scripted() as server:
            seen = set()
            for _ in range(2):
                async with Client(server.url, version=MQTT311) as client:
                    visit = await server.visit(greeted=False)
                    connect = await visit.take(Connect)
                    assert client.client_id == connect.client_id
                    assert 1 <= len(connect.client_id) <= 23
                    assert connect.client_id.isascii()
                    assert connect.client_id.isalnum()
                    assert connect.clean_start
                    seen.add(connect.client_id)
            assert len(seen) == 2

    run(main())


def test_every_option_reaches_the_connect_packet() -> None:
    async def main() -> None:
        will = Will("gone", b"w", qos=1, retain=True, properties=Properties(will_delay_interval=5))
        async with (
            Scripted() as server,
            Client(
                f"mqtt://user:p%40ss@127.0.0.1:{server.port}",
                client_id="a",
                keep_alive=7,
                session_expiry=9,
                receive_maximum=11,
                maximum_packet_size=1300,
                will=will,
                properties=Properties(topic_alias_maximum=3, user_properties=(("k", "v"),)),
            ),
        ):
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            assert (connect.user_name, connect.password) == ("user", b"p@ss")
            assert connect.keep_alive == 7
            assert connect.will == will
            properties = connect.properties
            assert properties.session_expiry_interval == 9
            assert properties.receive_maximum == 11
            assert properties.maximum_packet_size == 1300
            assert properties.topic_alias_maximum == 3
            assert properties.user_properties == (("k", "v"),)

    run(main())


def test_user_name_and_password_given_apart_win_over_the_address() -> None:
    async def main() -> None:
        async with Scripted() as server:
            url = f"mqtt://user:pass@127.0.0.1:{server.port}"
            for password in ("geheim", b"geheim"):
                async with Client(url, client_id="a", user_name="other", password=password):
                    connect = await (await server.visit(greeted=False)).take(Connect)
                    assert (connect.user_name, connect.password) == ("other", b"geheim")

    run(main())


def test_an_address_may_be_given_as_one() -> None:
    async def main() -> None:
        async with Scripted() as server:
            address = Address("mqtt", "127.0.0.1", server.port)
            async with Client(address, client_id="a") as client:
                assert client.address is address

    run(main())


def test_a_client_on_an_ip_address_starts_no_thread() -> None:
    async def main() -> None:
        before = threading.enumerate()
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            await client.publish("a")
            await client.subscribe("b")
            assert threading.enumerate() == before

    run(main())


# --- what is wrong with it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"client_id": "a\0b"}, rules.TEXT_WITHOUT_NUL),
        ({"receive_maximum": 0}, rules.PROPERTY_NOT_ZERO),
        ({"receive_maximum": 65536}, rules.INTEGER_FITS_ITS_FIELD),
        ({"maximum_packet_size": 0}, rules.PROPERTY_NOT_ZERO),
        ({"properties": Properties(maximum_qos=1)}, rules.PROPERTY_IN_ITS_PACKET),
        ({"properties": Properties(session_expiry_interval=1)}, rules.PROPERTY_ONCE),
        ({"version": MQTT311, "properties": ALIASES}, rules.PROPERTIES_NEED_MQTT5),
        ({"keep_alive": 65536}, rules.INTEGER_FITS_ITS_FIELD),
        ({"session_expiry": -1}, rules.INTEGER_FITS_ITS_FIELD),
        ({"version": MQTT311, "session_expiry": -1}, rules.INTEGER_FITS_ITS_FIELD),
        ({"version": MQTT311, "password": "p"}, rules.PASSWORD_NEEDS_USER_NAME),
        ({"version": 3}, rules.PROTOCOL_LEVEL_SUPPORTED),
    ],
)
def test_an_option_that_breaks_a_rule_is_refused_before_anything_happens(
    options: dict[str, object], rule: Rule
) -> None:
    with pytest.raises(Violation) as caught:
        Client("mqtt://localhost", **options)  # type: ignore[arg-type]
    assert caught.value.rule is rule
    assert "Seen:" in str(caught.value)


def test_options_at_their_bounds_are_taken() -> None:
    Client(
        "mqtt://localhost",
        client_id="a" * 65535,
        receive_maximum=65535,
        keep_alive=65535,
        session_expiry=0xFFFF_FFFF,
        maximum_packet_size=1,
    )
    Client("mqtt://localhost", version=MQTT311, keep_alive=0, user_name="u", password=b"")
    Client("mqtt://localhost", password="p")


@pytest.mark.parametrize("url", ["localhost", "http://localhost", "mqtt://", "mqtt://h:99999"])
def test_a_bad_address_is_refused_before_anything_happens(url: str) -> None:
    with pytest.raises(BadAddress):
        Client(url)


def test_a_tls_context_for_an_address_without_tls_is_refused() -> None:
    with pytest.raises(BadAddress, match="mqtts"):
        Client("mqtt://localhost", tls=ssl.create_default_context())


# --- failing to connect ---------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_a_disconnected_at_once() -> None:
    async def main() -> None:
        client = Client(f"mqtt://127.0.0.1:{free_port()}")
        with pytest.raises(Disconnected, match="connection refused") as caught:
            await client.connect()
        assert caught.value.violation is None
        assert isinstance(caught.value, ConnectionError)

    run(main())


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, connect_timeout=0.05)
            with pytest.raises(Disconnected, match="did not answer CONNECT"):
                await client.connect()
            visit = await server.visit()
            assert await visit.end() == []

    run(main())


def test_a_server_that_closes_instead_of_answering_is_a_disconnected() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            opening = start(Client(server.url).connect())
            (await server.visit()).close()
            with pytest.raises(Disconnected, match="closed the connection"):
                await opening

    run(main())


def test_a_client_that_failed_to_connect_may_try_again() -> None:
    async def main() -> None:
        async with Scripted(ConnAck(0x88), accept) as server:
            client = Client(server.url, client_id="a")
            with pytest.raises(Refused):
                await client.connect()
            await client.connect()
            await client.publish("b")
            await client.close()

    run(main())


def test_a_client_that_is_open_cannot_be_opened() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            with pytest.raises(RuntimeError, match="open"):
                await client.connect()
            await client.publish("still/there")

    run(main())


def test_a_client_may_be_opened_again_when_it_is_closed() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a")
            for _ in range(3):
                async with client:
                    visit = await server.visit()
                    messages = await client.subscribe("b")
                    visit.send(Publish("b", b"x"))
                    assert (await anext(messages)).payload == b"x"

    run(main())


# --- as a guest of a loop -------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("session_expiry", [None, 100])
def test_connecting_may_be_cancelled_at_any_moment(
    version: int, session_expiry: int | None
) -> None:
    """In 3.1.1 a session that outlives its connection needs two connections to begin."""

    async def main() -> None:
        async with Scripted() as server:

            async def connect() -> None:
                client = Client(
                    server.url, client_id="a", version=version, session_expiry=session_expiry
                )
                await client.connect()
                await client.close()

            await cancel_at_every_turn(connect)

    run(main())


def test_a_connect_that_is_cancelled_leaves_a_client_that_can_connect() -> None:
    async def main() -> None:
        async with Scripted(None, accept) as server:
            client = Client(server.url, client_id="a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.connect()
            with pytest.raises(Disconnected):
                await client.publish("a")
            async with client:
                await client.publish("a")

    run(main())


def test_wait_for_ends_a_connect_to_who_does_not_answer() -> None:
    async def main() -> None:
        with silent() as port, pytest.raises(TimeoutError):
            await asyncio.wait_for(Client(f"mqtt://127.0.0.1:{port}").connect(), 0.05)

    run(main())


class Mine(Exception):
    """Of the program."""


def test_an_exception_in_the_body_closes_the_client_and_comes_out() -> None:
    async def main() -> None:
        async with Scripted() as server:
            with pytest.raises(Mine):
                async with Client(server.url, client_id="a") as client:
                    raise Mine
            visit = await server.visit()
            assert [type(packet) for packet in await visit.end()] == [Disconnect]
            assert not client.connected

    run(main())


def test_a_body_that_is_cancelled_closes_the_client() -> None:
    async def main() -> None:
        async with Scripted() as server:

            async def body() -> None:
                async with Client(server.url, client_id="a") as client:
                    async for _ in client.messages():
                        pass

            going = start(body())
            visit = await server.visit()
            await turns()
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            assert [type(packet) for packet in await visit.end()] == [Disconnect]

    run(main())


def test_a_task_group_ends_with_its_client() -> None:
    """One task fails; the others, which wait in the client, are cancelled and leave nothing."""

    async def main() -> None:
        async def fail() -> None:
            await turns()
            raise Mine

        async def listen(client: Client) -> None:
            await anext(client.messages())

        async def work(url: str) -> None:
            async with Client(url, client_id="a") as client, asyncio.TaskGroup() as group:
                group.create_task(client.publish("a", qos=1))
                group.create_task(listen(client))
                group.create_task(fail())

        async with Scripted() as server:
            with pytest.raises(ExceptionGroup) as caught:
                await work(server.url)
            assert [type(each) for each in caught.value.exceptions] == [Mine]

    run(main())


def test_a_loop_that_cancels_every_task_leaves_nobody_waiting() -> None:
    """As programs do that end: the client's own task is cancelled as well."""

    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", reconnect=QUICK)
            await client.connect()
            visit = await server.visit()
            mine = asyncio.current_task()
            for task in asyncio.all_tasks():
                if task is not mine:
                    task.cancel()
            await turns()
            visit.cut()
            with pytest.raises(Disconnected):
                async with asyncio.timeout(5):
                    await client.publish("a", qos=1)
            await client.close()

    run(main())


def test_many_clients_live_in_one_loop() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:

            async def live(number: int) -> None:
                async with Client(server.url, client_id=f"c{number}") as client:
                    await client.subscribe("a")
                    await client.publish("a", b"x")

            await asyncio.gather(*(live(number) for number in range(50)))

    run(main())


def test_two_clients_in_one_loop_have_nothing_in_common() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            one = Client(server.url, client_id="one", reconnect=False)
            other = Client(server.url, client_id="other", reconnect=False)
            async with one, other:
                first = await server.visit()
                second = await server.visit()
                heard = await other.subscribe("a")
                first.send_bytes(b"\xff\xff\xff\xff\xff")
                with pytest.raises(Disconnected):
                    await one.publish("a", qos=1)
                second.send(Publish("a", b"x"))
                assert (await anext(heard)).payload == b"x"

    run(main())


# --- before it is open, and after it is closed ----------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_client_that_is_not_open_raises_disconnected(moment: str) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a", authentication=None)
            if moment == "after":
                async with client:
                    held = await client.subscribe("held")
                    everything = client.messages()
                # What was there is over, and that is not an error.
                with pytest.raises(StopAsyncIteration):
                    await anext(held)
                with pytest.raises(StopAsyncIteration):
                    await anext(everything)
                await held.unsubscribe()
            for qos in range(3):
                with pytest.raises(Disconnected, match="not open"):
                    await client.publish("a", qos=qos)
            with pytest.raises(Disconnected, match="not open"):
                client.subscribe("a")
            with pytest.raises(Disconnected, match="not open"):
                client.messages()
            with pytest.raises(Disconnected, match="not open"):
                await client.request("a")
            with pytest.raises(Disconnected, match="not open"):
                await client.reauthenticate()
            assert not client.connected
            await client.close()

    run(main())


def test_waiting_for_a_grant_ends_with_the_client() -> None:
    """Nobody is told that a subscription was granted when it was not."""

    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()

            async def subscribe() -> None:
                await client.subscribe("b")

            going = start(subscribe())
            await turns()
            await client.close()
            with pytest.raises(Disconnected):
                await going

    run(main())


# --- sessions of 5.0 and 3.1.1 --------------------------------------------------------------------


def test_session_present_without_a_session_of_ours_closes() -> None:
    """[MQTT-3.2.2-4] (5.0)"""

    async def main() -> None:
        async with Scripted(ConnAck(session_present=True)) as server:
            client = Client(server.url, client_id="a", clean_start=False, session_expiry=100)
            with pytest.raises(Disconnected, match=r"MQTT-3\.2\.2-4") as caught:
                await client.connect()
            assert not caught.value.is_temporary
            visit = await server.visit()
            assert [type(packet) for packet in await visit.end()] == [Disconnect]

    run(main())


def test_clean_start_0_without_a_session_on_either_end_begins_one() -> None:
    async def main() -> None:
        async with Scripted(ConnAck()) as server:
            client = Client(server.url, client_id="a", clean_start=False, session_expiry=100)
            async with client:
                visit = await server.visit(greeted=False)
                assert not (await visit.take(Connect)).clean_start
                await client.publish("b")
                assert await visit.take(Publish) == Publish("b")

    run(main())


def test_session_present_after_a_clean_start_is_a_violation() -> None:
    """[MQTT-3.2.2-2] (5.0) [MQTT-3.2.2-1] (3.1.1)"""

    async def main(version: int) -> None:
        async with Scripted(None) as server:
            opening = start(Client(server.url, client_id="a", version=version).connect())
            visit = await server.visit()
            visit.misbehave(ConnAck(session_present=True))
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is not None
            rule = caught.value.violation.rule
            assert rule is exchange_rules.SESSION_PRESENT_NEEDS_OLD_SESSION

    for version in BOTH:
        run(main(version))


def test_a_lasting_session_of_3_1_1_begins_by_ending_the_one_that_the_server_has() -> None:
    """[3.1.1 §3.1.2.4] CleanSession 1 and a DISCONNECT, then CleanSession 0."""

    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", version=MQTT311, session_expiry=100)
            async with client:
                first = await server.visit(greeted=False)
                assert (await first.take(Connect)).clean_start
                assert await first.end() == [Disconnect()]
                second = await server.visit(greeted=False)
                assert not (await second.take(Connect)).clean_start

    run(main())


def test_a_session_that_a_3_1_1_server_has_after_a_purge_is_taken_for_none() -> None:
    """[3.1.1 §3.2.2.2] There are servers that forget nothing; the client may go on."""

    async def main() -> None:
        async with Scripted(accept, ConnAck(session_present=True), grants=True) as server:
            client = Client(server.url, client_id="a", version=MQTT311, session_expiry=100)
            async with client:
                await server.visit()
                visit = await server.visit()
                messages = await client.subscribe("b")
                visit.send(Publish("b", b"x"))
                assert (await anext(messages)).payload == b"x"
                assert client.counters.sessions_lost == 0

    run(main())


def test_a_client_of_3_1_1_is_closed_in_peace_while_nobody_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The link may be at another attempt, which begins with a purge, when it is closed."""

    async def main() -> None:
        for number in range(30):
            client = Client(
                f"mqtt://127.0.0.1:{free_port()}",
                client_id="a",
                version=MQTT311,
                outbox=tmp_path / str(number),
                reconnect=Backoff(first=0.001, most=0.001),
            )
            await client.connect()
            publishing = asyncio.ensure_future(client.publish("a", b"x" * 100_000, qos=2))
            await asyncio.sleep(0)
            await client.close()
            publishing.cancel()
            await asyncio.wait((publishing,))

    run(main())
    assert "failed" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(ConnAck(5), Refused), (b"\x20\x02\x00\x09", Disconnected), (b"\xd0\x00", Disconnected)],
)
def test_a_purge_that_fails_is_a_connect_that_fails(
    answer: ConnAck | bytes, problem: type[Exception]
) -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a", version=MQTT311, session_expiry=100)
            opening = start(client.connect())
            visit = await server.visit()
            if isinstance(answer, ConnAck):
                visit.send(answer)
            else:
                visit.send_bytes(answer)
            with pytest.raises(problem):
                await opening
            await visit.end()

    run(main())


def test_a_purge_that_is_never_answered_is_given_up() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(
                server.url,
                client_id="a",
                version=MQTT311,
                session_expiry=100,
                connect_timeout=0.05,
            )
            with pytest.raises(Disconnected, match="did not answer CONNECT"):
                await client.connect()

    run(main())


def test_a_purge_may_be_cancelled_while_the_server_is_slow_to_close() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", version=MQTT311, session_expiry=100)
            opening = start(client.connect())
            visit = await server.visit()
            visit.closes = False
            await visit.take(Disconnect)
            await turns()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    run(main())


def test_a_subscription_may_be_asked_for_when_the_client_is_made() -> None:
    async def main() -> None:
        wanted: list[str | Subscription] = ["a/+", Subscription("b", 1)]
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", subscriptions=wanted) as client,
        ):
            visit = await server.visit()
            visit.send(Publish("a/x", b"1"), Publish("b", b"2"))
            messages = client.messages()
            assert [(await anext(messages)).payload for _ in range(2)] == [b"1", b"2"]

    run(main())


def test_authentication_is_not_for_3_1_1() -> None:
    """[3.1.1] has no AUTH."""
    with pytest.raises((Violation, ValueError)):
        Client("mqtt://localhost", version=MQTT311, authentication=ClientAuthentication("x"))
    Client("mqtt://localhost", version=MQTT5, authentication=ClientAuthentication("x"))
