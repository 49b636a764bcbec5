"""What goes wrong, as a program sees it: the class, the reason, and words that a person can use."""

import asyncio
import logging

import pytest

from semel.client import Client, Disconnected, Refused
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Disconnect,
    Properties,
    Publish,
    Violation,
    exchange_rules,
    rules,
)
from semel.mqtt.packet_types import CONNACK, DISCONNECT
from semel.mqtt.reasons import DISCONNECT_ONLY_CLIENT, REASONS_5, REASONS_311
from tests.client.listening import run
from tests.client.servers import BOTH, Scripted, start, turns

REFUSALS = [(MQTT5, reason) for reason in sorted(REASONS_5[CONNACK]) if reason]
REFUSALS += [(MQTT311, reason) for reason in sorted(REASONS_311[CONNACK]) if reason]


def test_a_connack_that_refuses_is_refused_with_its_reason() -> None:
    async def main(version: int, reason: int) -> None:
        said = Properties(reason_string="not you") if version == MQTT5 else Properties()
        async with Scripted(ConnAck(reason, properties=said)) as server:
            with pytest.raises(Refused) as caught:
                async with Client(server.url, client_id="a", version=version):
                    raise AssertionError("inside")
            refused = caught.value
            assert (refused.reason, refused.packet_type) == (reason, CONNACK)
            text = str(refused)
            assert f"0x{reason:02x}" in text
            assert "unknown" not in text
            assert "success" not in text
            if version == MQTT5:
                assert refused.reason_string == "not you"
                assert "not you" in text

    for version, reason in REFUSALS:
        run(main(version, reason))


@pytest.mark.parametrize("version", BOTH)
def test_a_client_that_is_refused_closes_if_the_server_does_not(version: int) -> None:
    """[MQTT-4.13.2-1] (5.0) a code of 0x80 or more in CONNACK"""

    async def main() -> None:
        reason = 0x87 if version == MQTT5 else 5
        async with Scripted(ConnAck(reason)) as server:
            opening = start(Client(server.url, client_id="a", version=version).connect())
            visit = await server.visit()
            assert await visit.end() == []
            with pytest.raises(Refused):
                await opening

    run(main())


def test_every_reason_of_a_disconnect_is_told_and_closes() -> None:
    """[MQTT-4.13.2-1] (5.0) whoever is told a code of 0x80 or more closes"""

    async def main(reason: int) -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            said = Properties(reason_string="because", user_properties=(("a", "b"),))
            visit.send(Disconnect(reason, properties=said))
            with pytest.raises(Disconnected) as caught:
                await anext(client.messages())
            problem = caught.value
            assert (problem.reason, problem.violation) == (reason, None)
            assert problem.properties.user_properties == (("a", "b"),)
            assert "because" in str(problem)
            assert f"0x{reason:02x}" in str(problem)
            # [MQTT-3.14.4-3] A client that is told so sends nothing more.
            assert await visit.end() == []

    for reason in sorted(REASONS_5[DISCONNECT] - DISCONNECT_ONLY_CLIENT):
        run(main(reason))


def test_a_rule_that_the_server_broke_is_named() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            visit.send_bytes(b"\x36\x07\x00\x01a\x00\x01\x00x")
            with pytest.raises(Disconnected) as caught:
                await client.publish("b", qos=1)
            problem = caught.value
            assert isinstance(problem.violation, Violation)
            assert problem.violation.rule is rules.QOS_NOT_3
            assert problem.reason is None
            text = str(problem)
            assert "QOS_NOT_3" in text
            assert "MQTT-3.3.1-4" in text
            assert not problem.is_temporary

    run(main())


def test_a_connection_that_is_lost_is_told_as_that() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            visit.cut()
            with pytest.raises(Disconnected) as caught:
                await anext(client.messages())
            problem = caught.value
            assert (problem.violation, problem.reason) == (None, None)
            assert problem.is_temporary
            assert isinstance(problem, ConnectionError)
            assert isinstance(problem, OSError)

    run(main())


def test_half_a_packet_at_the_end_is_no_message() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            visit.send_bytes(b"\x30\x10\x00\x01a\x00half")
            visit.close()
            with pytest.raises(Disconnected) as caught:
                await anext(client.messages())
            assert caught.value.violation is None
            assert client.counters.received == 0

    run(main())


def test_a_packet_that_comes_byte_by_byte_is_one() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a", reconnect=False)
            opening = start(client.connect())
            visit = await server.visit()
            visit.send_bytes(b"\x20")
            await turns()
            for byte in b"\x03\x00\x00\x00":
                visit.send_bytes(bytes([byte]))
                await turns()
            await opening
            messages = client.messages()
            for byte in b"\x30\x06\x00\x01a\x00xy":
                visit.send_bytes(bytes([byte]))
                await turns()
            assert (await anext(messages)).payload == b"xy"
            await client.close()

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",
        b"\x00" * 1000,
        b"\xff" * 1000,
    ],
)
def test_what_does_not_speak_mqtt_is_told_apart(answer: bytes) -> None:
    """Another server on that port is the commonest mistake of all."""

    async def main(version: int) -> None:
        async with Scripted(None) as server:
            opening = start(Client(server.url, client_id="a", version=version).connect())
            visit = await server.visit()
            visit.send_bytes(answer)
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is not None
            await visit.end()

    for version in BOTH:
        run(main(version))


def test_a_server_that_sends_first_is_no_mqtt_server() -> None:
    """As those of mail and of files do."""

    async def main() -> None:
        async with Scripted(None) as server:
            # Its first line may look like the beginning of a packet.
            client = Client(server.url, client_id="a", connect_timeout=0.1)
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            visit.send_bytes(b"220 mail ready\r\n")
            with pytest.raises(Disconnected):
                await opening

    run(main())


def test_a_packet_before_the_connack_is_a_violation() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            opening = start(Client(server.url, client_id="a").connect())
            visit = await server.visit()
            visit.misbehave(Publish("a"))
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is not None
            assert caught.value.violation.rule is exchange_rules.CONNACK_FIRST

    run(main())


def test_what_a_server_causes_is_no_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        for data in (b"\x00", b"\xd0\x01\x00", b"\x20\x03\x00\x00\x00", b"\x40\x02\x00\x07"):
            async with (
                Scripted() as server,
                Client(server.url, client_id="a", reconnect=False) as client,
            ):
                visit = await server.visit()
                visit.send_bytes(data)
                with pytest.raises(Disconnected):
                    await anext(client.messages())

    with caplog.at_level(logging.DEBUG):
        run(main())
    assert [each for each in caplog.records if each.exc_info] == []


def test_two_hundred_tasks_that_wait_are_all_told_the_same() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            going = [start(client.publish("b", qos=n % 2 + 1)) for n in range(200)]
            await turns()
            visit.send_bytes(b"\x00")
            problems = await asyncio.gather(*going, return_exceptions=True)
            assert {type(problem) for problem in problems} == {Disconnected}
            assert len({str(problem) for problem in problems}) == 1

    run(main())


def test_a_password_is_in_no_message() -> None:
    async def main() -> None:
        async with Scripted(ConnAck(0x86)) as server:
            url = f"mqtt://user:sesame@127.0.0.1:{server.port}"
            with pytest.raises(Refused) as caught:
                await Client(url).connect()
            assert "sesame" not in str(caught.value) + repr(caught.value)
            assert "sesame" not in repr(Client(url).address)

    run(main())
