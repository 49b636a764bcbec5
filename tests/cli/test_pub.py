"""`semel pub` as a process: what arrives, what it ends with, and mosquitto_pub beside it."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, Received
from semel.mqtt import Properties
from tests.broker.broker_process import Process
from tests.cli.beside_mosquitto import (
    BOTH,
    CLOSE,
    CONNACK,
    PATIENCE,
    PINGREQ,
    PINGRESP,
    Scripted,
    Tool,
    puback,
    read_packets,
    run,
    running,
    semel,
    sentence,
    wait_for,
)
from tests.client.certificates import NEEDS_OPENSSL, Certificates
from tests.client.mosquitto import NEEDS_MOSQUITTO
from tests.client.mosquitto import mosquitto as mosquitto_broker
from tests.kills.brokers import free_port
from tests.terminals import open_terminal

VERSIONS = {4: "mqttv311", 5: "mqttv5"}
PUBLISH, DISCONNECT = 3, 14


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture(scope="module")
def address(broker: Process) -> list[str]:
    host, port = broker.address
    return ["-h", host, "-p", f"{port}"]


def received(
    broker: Process, topic: str, count: int, *commands: list[str], given: bytes | None = None
) -> list[Received]:
    """Run commands, each to a good end, and what a subscriber to `topic` gets of them."""

    async def receive() -> list[Received]:
        url = "mqtt://{}:{}".format(*broker.address)
        async with Client(url) as client:
            messages = client.subscribe(topic, qos=2, retain_as_published=True)
            await messages
            for command in commands:
                result = await asyncio.to_thread(run, command, given=given)
                assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
            async with asyncio.timeout(PATIENCE):
                return [await anext(messages) for _ in range(count)]

    return asyncio.run(receive())


# --- what is published ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("version", VERSIONS.values())
def test_a_message_arrives_as_it_was_given(
    broker: Process, address: list[str], tool: Tool, version: str, tmp_path: Path
) -> None:
    every = bytes(range(256)) * 1000
    file = tmp_path / "payload"
    file.write_bytes(every)
    common = [*address, "-V", version, "-t", "größe/1"]
    commands = [
        tool("pub", *common, "-m", "größe", "-q", "0"),
        tool("pub", *common, "-m", os.fsdecode(b"\xff\xfe"), "-q", "1", "-r"),
        tool("pub", *common, "-f", str(file), "-q", "2"),
        tool("pub", *common, "-n", "-q", "1", "-r"),
        tool("pub", *common, "-m", "-5", "--repeat", "2", "-q", "1"),
    ]
    found = received(broker, "größe/1", 6, *commands)
    assert [(each.payload, each.qos, each.retain) for each in found] == [
        ("größe".encode(), 0, False),
        (b"\xff\xfe", 1, True),
        (every, 2, False),
        (b"", 1, True),
        (b"-5", 1, False),
        (b"-5", 1, False),
    ]


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"a\nb\n\nc", [b"a", b"b", b"", b"c"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"a\r\n" + b"x" * 5_000 + b"\nb", [b"a\r", b"x" * 5_000, b"b"]),
    ],
)
def test_each_line_of_standard_input_is_a_message(
    broker: Process, address: list[str], tool: Tool, qos: int, text: bytes, lines: list[bytes]
) -> None:
    command = tool("pub", *address, "-t", "lines", "-q", f"{qos}", "-l")
    found = received(broker, "lines", len(lines), command, given=text)
    assert [(each.payload, each.qos) for each in found] == [(line, qos) for line in lines]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_line_may_be_long_and_have_any_byte_in_it(
    broker: Process, address: list[str], qos: int
) -> None:
    """mosquitto_pub ends a message at a null character."""
    lines = [b"\xff\0\x1b", bytes(byte for byte in range(256) if byte != 10), b"x" * 500_000]
    command = semel("pub", *address, "-t", "bytes", "-q", f"{qos}", "-l")
    found = received(broker, "bytes", len(lines), command, given=b"\n".join(lines))
    assert [each.payload for each in found] == lines


@BOTH
def test_all_of_standard_input_is_one_message(
    broker: Process, address: list[str], tool: Tool
) -> None:
    text = b"a\n\nb\n" * 50_000
    (found,) = received(broker, "whole", 1, tool("pub", *address, "-t", "whole", "-s"), given=text)
    assert found.payload == text


@pytest.mark.parametrize("flag", ["-l", "-s"])
def test_standard_input_may_be_a_file_or_nothing(
    broker: Process, address: list[str], flag: str
) -> None:
    async def receive() -> list[bytes]:
        url = "mqtt://{}:{}".format(*broker.address)
        async with Client(url) as client:
            messages = await client.subscribe("file", qos=1)
            command = semel("pub", *address, "-t", "file", "-q", "1", flag)
            with tempfile.TemporaryFile() as file:
                file.write(b"one\ntwo\n")
                file.seek(0)
                for source in (file.fileno(), subprocess.DEVNULL):
                    process = await asyncio.create_subprocess_exec(*command, stdin=source)
                    assert await process.wait() == 0
            await client.publish("file", "last", qos=1)
            found: list[bytes] = []
            async for message in messages:
                if message.payload == b"last":
                    return found
                found.append(message.payload)
        raise AssertionError

    expected = [b"one", b"two"] if flag == "-l" else [b"one\ntwo\n", b""]
    assert asyncio.run(receive()) == expected


def test_a_line_that_is_typed_is_sent_at_once(broker: Process, address: list[str]) -> None:
    """A terminal gives lines one by one, and stays open."""
    ours, theirs = open_terminal()
    command = semel("pub", *address, "-t", "typed", "-q", "1", "-l", "-d")
    try:
        with running(command, stdin=theirs, stderr=subprocess.PIPE) as process:
            for word in (b"one\n", b"two\n"):
                os.write(ours, word)
                wait_for(process, "received PUBACK")
            # Ctrl-D
            os.write(ours, b"\x04")
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(ours)
        os.close(theirs)


@BOTH
def test_the_properties_of_5_0_arrive(broker: Process, address: list[str], tool: Tool) -> None:
    words = [
        *("-D", "publish", "content-type", "text/plain; Größe"),
        *("-D", "publish", "correlation-data", "data"),
        *("-D", "publish", "response-topic", "re/ply"),
        *("-D", "publish", "payload-format-indicator", "1"),
        *("-D", "publish", "user-property", "b", "2"),
        *("-D", "publish", "user-property", "a", "-t"),
    ]
    (found,) = received(broker, "props", 1, tool("pub", *address, "-t", "props", "-m", "x", *words))
    kept = [item for item in found.properties.items if item[0] != 0x0B]
    assert Properties(kept) == Properties(
        [
            *((0x03, "text/plain; Größe"), (0x09, b"data"), (0x08, "re/ply"), (0x01, 1)),
            *((0x26, ("b", "2")), (0x26, ("a", "-t"))),
        ]
    )


@BOTH
def test_a_topic_alias_stands_for_its_topic(
    broker: Process, address: list[str], tool: Tool
) -> None:
    words = ["-D", "publish", "topic-alias", "3", "--repeat", "3"]
    found = received(
        broker, "aliased", 3, tool("pub", *address, "-t", "aliased", "-m", "x", "-q", "1", *words)
    )
    assert [each.payload for each in found] == [b"x"] * 3


@BOTH
def test_the_url_has_server_and_topic(broker: Process, tool: Tool) -> None:
    host, port = broker.address
    command = tool("pub", "-L", f"mqtt://{host}:{port}/by/url", "-m", "x")
    assert [each.topic for each in received(broker, "by/#", 1, command)] == ["by/url"]


def test_a_topic_beside_that_of_the_url_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"mqtt://127.0.0.1:{listener.getsockname()[1]}/by/url"
        result = run(semel("pub", "-L", url, "-t", "other", "-m", "x"))
        assert result.returncode == 1
        assert "give one of -t and the topic of -L" in result.stderr.decode().splitlines()[-1]
        with pytest.raises(BlockingIOError):
            listener.accept()


def connects(*arguments: str) -> bytes:
    """The body of the CONNECT that these flags give."""
    with Scripted([CONNACK[5] if "5" in arguments else CONNACK[4]]) as server:
        assert run(semel("pub", *server.address, "-t", "t", "-m", "x", *arguments)).returncode == 0
        return server.packets[0].body


def test_what_a_client_says_of_itself_is_in_its_connect() -> None:
    will = ["--will-topic", "w", "--will-payload", "gone", "--will-qos", "1", "--will-retain"]
    body = connects("-i", "me", "-u", "ann", "-P", "pw", "-k", "7", *will)
    # User name, password, will retain, will QoS 1, will, clean session.
    assert body == b"\0\4MQTT\4\xee\0\7\0\2me\0\1w\0\4gone\0\3ann\0\2pw"


def test_the_properties_of_a_connect_are_sent() -> None:
    given = [
        *("-D", "connect", "receive-maximum", "20", "-D", "connect", "maximum-packet-size", "500"),
        *("-D", "connect", "topic-alias-maximum", "4", "-D", "connect", "user-property", "a", "b"),
        *("-D", "connect", "request-problem-information", "0"),
    ]
    body = connects("-V", "5", "-i", "me", "-x", "60", *given)
    for item in ("110000003c", "210014", "27000001f4", "220004", "26000161000162", "1700"):
        assert bytes.fromhex(item) in body
    assert body.endswith(b"\0\2me")


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ([], ""),
        (["-D", "disconnect", "user-property", "a", "b"], "000726000161000162"),
        (["-x", "60", "-D", "disconnect", "session-expiry-interval", "5"], "00051100000005"),
        (["-x", "60", "-D", "disconnect", "session-expiry-interval", "60"], ""),
    ],
)
def test_it_leaves_with_a_disconnect(given: list[str], body: str) -> None:
    with Scripted([CONNACK[5]]) as server:
        command = semel("pub", *server.address, "-V", "5", "-t", "t", "-m", "x", *given)
        assert run(command).returncode == 0
        assert [packet.kind for packet in server.packets] == [1, PUBLISH, PINGREQ, DISCONNECT]
        assert server.packets[-1].body == bytes.fromhex(body)


def test_properties_of_a_disconnect_that_break_a_rule_are_one_sentence() -> None:
    given = ["-D", "disconnect", "session-expiry-interval", "60"]
    with Scripted([CONNACK[5]]) as server:
        result = run(semel("pub", *server.address, "-V", "5", "-t", "t", "-m", "x", *given))
        assert result.returncode == 1
        assert "DISCONNECT: SESSION_EXPIRY_NOT_REVIVED" in sentence(result)
        # The connection ends with a DISCONNECT, so that the server does not publish a will.
        assert [packet.kind for packet in server.packets] == [1, PUBLISH, PINGREQ, DISCONNECT]
        assert server.packets[-1].body == b""


def test_it_connects_from_the_address_that_it_is_given() -> None:
    """127.0.0.2 is this machine, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        words = ["-h", "127.0.0.1", "-p", f"{port}", "-A", "127.0.0.2", "-t", "t", "-m", "x"]
        words += ["-V", "3.1.1"]
        with running(semel("pub", *words)) as process:
            connection, peer = listener.accept()
            with connection:
                assert peer[0] == "127.0.0.2"
                connection.sendall(CONNACK[4])
                for packet in read_packets(connection):
                    if packet.kind == PINGREQ:
                        connection.sendall(PINGRESP)
                    if packet.kind == DISCONNECT:
                        break
            assert process.wait(PATIENCE) == 0
    result = run(semel("pub", "-h", "127.0.0.1", "-A", "192.0.2.1", "-t", "t", "-m", "x"))
    assert result.returncode == 1
    assert "cannot assign requested address" in sentence(result)


# --- exit codes -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("version", "code"), [(4, 1), (4, 2), (4, 3), (4, 4), (4, 5), (5, 0x80), (5, 0x86), (5, 0x87)]
)
def test_a_connection_that_is_refused_ends_with_the_servers_code(
    tool: Tool, version: int, code: int
) -> None:
    answer = bytes([0x20, 2, 0, code]) if version == 4 else bytes([0x20, 3, 0, code, 0])
    with Scripted([answer]) as server:
        words = ["-V", VERSIONS[version], "-u", "ann", "-P", "secret", "-t", "t", "-m", "x"]
        result = run(tool("pub", *server.address, *words))
    assert result.returncode == code
    assert b"secret" not in result.stderr
    if tool is semel:
        assert "refused the connection" in sentence(result)


REFUSALS = [bytes.fromhex("20020001"), bytes.fromhex("2003008400")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["in 3.1.1", "in 5.0"])
def test_a_server_that_refuses_5_0_is_asked_with_3_1_1(refusal: bytes) -> None:
    with Scripted([refusal, CLOSE], [CONNACK[4], puback]) as server:
        words = ["-h", "127.0.0.1", "-p", f"{server.port}", "-i", "a", "-t", "t", "-m", "x"]
        result = run(semel("pub", *words, "-q", "1"))
        assert (result.returncode, result.stderr) == (0, b"")
    # The protocol level is after the name MQTT.
    assert [packets[0].body[6] for packets in server.connections] == [5, 4]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["in 3.1.1", "in 5.0"])
@pytest.mark.parametrize("words", [["-V", "5"], ["-D", "publish", "content-type", "x"]])
def test_a_version_that_is_needed_is_not_given_up(refusal: bytes, words: list[str]) -> None:
    with Scripted([refusal, CLOSE]) as server:
        command = ["-h", "127.0.0.1", "-p", f"{server.port}", "-i", "a", "-t", "t", "-m", "x"]
        result = run(semel("pub", *command, *words))
    assert result.returncode == refusal[3]
    assert sentence(result) == (
        "Error: the server refused the connection with MQTT 5.0: try -V 3.1.1"
    )
    assert len(server.connections) == 1


@BOTH
@pytest.mark.parametrize("flag", ["-m", "-l"])
def test_a_server_that_is_not_there_is_code_1(tool: Tool, flag: str) -> None:
    words = ["-h", "127.0.0.1", "-p", f"{free_port()}", "-t", "t"]
    result = run(tool("pub", *words, *(["-l"] if flag == "-l" else ["-m", "x"])), given=b"x\n")
    assert result.returncode == 1
    if tool is semel:
        assert "connection refused" in sentence(result)


@pytest.fixture(scope="module")
def small_broker() -> Iterator[list[str]]:
    """A broker that takes packets of 100 KB."""
    with Process("--maximum-packet-size", "100000") as process:
        host, port = process.address
        yield ["-h", host, "-p", f"{port}"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("flag", ["-s", "-l"])
def test_a_message_above_the_limit_that_a_server_tells_is_code_1(
    small_broker: list[str], qos: int, flag: str
) -> None:
    words = [*small_broker, "-V", "5", "-t", "t", "-q", f"{qos}", flag]
    result = run(semel("pub", *words), given=b"x" * 100_000)
    assert result.returncode == 1
    assert sentence(result) == (
        "Warning: a message was not published: its 100,000 bytes are too large: the server accepts "
        "packets of at most 100,000 bytes (Maximum Packet Size), topic and properties included"
    )
    assert run(semel("pub", *words), given=b"x" * 99_900).returncode == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_ends_the_connection_of_3_1_1_is_code_1_and_its_size_the_reason(
    small_broker: list[str], qos: int
) -> None:
    words = [*small_broker, "-V", "311", "-t", "t", "-q", f"{qos}", "-s"]
    result = run(semel("pub", *words), given=b"x" * 300_000)
    assert result.returncode == 1
    assert sentence(result).endswith(
        ", after a message of 300,000 bytes: probably the packet size limit of the server is lower"
    )
    assert run(semel("pub", *words), given=b"x" * 99_900).returncode == 0


def test_a_line_of_qos_0_that_ends_the_connection_of_3_1_1_is_told_and_the_others_are_sent(
    small_broker: list[str],
) -> None:
    words = [*small_broker, "-V", "311", "-t", "t", "-l", "-d"]
    result = run(semel("pub", *words), given=b"a\n" + b"x" * 300_000 + b"\nb\n")
    assert result.returncode == 1
    told = result.stderr.decode()
    assert told.count("after a message of 300,000 bytes: probably the packet size limit") == 1
    assert told.count("sending PUBLISH") == 3


def test_a_line_that_ends_every_connection_of_3_1_1_is_given_up(small_broker: list[str]) -> None:
    words = [*small_broker, "-V", "311", "-t", "t", "-q", "1", "-l"]
    result = run(semel("pub", *words), given=b"x" * 300_000 + b"\nb\n")
    assert result.returncode == 1
    last = result.stderr.decode().splitlines()[-1]
    assert last.startswith("Error: the connection was lost 3 times, after a message of 300,000")


def test_a_connection_that_is_lost_at_qos_0_before_the_message_is_read_is_code_7() -> None:
    with Scripted([CONNACK[4], CLOSE]) as server:
        result = run(semel("pub", *server.address, "-t", "t", "-m", "x"))
    assert result.returncode == 7
    assert sentence(result)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_a_connection_that_is_lost_before_the_acknowledgement_is_code_7(
    tool: Tool, qos: int
) -> None:
    with Scripted([CONNACK[4], CLOSE]) as server:
        result = run(tool("pub", *server.address, "-t", "t", "-m", "x", "-q", f"{qos}"))
    assert result.returncode == 7
    assert len(server.connections) == 1
    if tool is semel:
        assert "closed the connection" in sentence(result)


@BOTH
def test_a_server_that_breaks_the_protocol_is_code_2(tool: Tool) -> None:
    """A PUBACK of one byte"""
    with Scripted([CONNACK[4], bytes.fromhex("400100")]) as server:
        result = run(tool("pub", *server.address, "-t", "t", "-m", "x", "-q", "1"))
    if tool is semel:
        assert result.returncode == 2
        assert "broke a rule" in sentence(result)
    else:
        # Mosquitto 2.0.21 has a code for a malformed packet.
        assert result.returncode in (2, 21)


@BOTH
def test_lines_are_sent_again_after_a_loss(tool: Tool) -> None:
    with Scripted([CONNACK[4], CLOSE], [CONNACK[4], puback, puback, puback]) as server:
        words = ["-t", "t", "-q", "1", "-l", "--quiet"]
        result = run(tool("pub", *server.address, *words), given=b"a\nb\nc\n")
    assert (result.returncode, result.stderr) == (0, b"")
    second = [packet.body[-1:] for packet in server.connections[1] if packet.kind == PUBLISH]
    assert second == [b"a", b"b", b"c"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_refused_is_told_and_is_no_success(address: list[str], qos: int) -> None:
    """mosquitto_pub prints a warning, and ends with 0."""
    words = ["-V", "5", "-t", "$SYS/forged", "-q", f"{qos}", "-m", "x"]
    result = run(semel("pub", *address, *words))
    assert result.returncode == 0x87
    assert "not authorized" in sentence(result)
    quiet = run(semel("pub", *address, *words, "--quiet"))
    assert (quiet.returncode, quiet.stderr) == (0x87, b"")


def test_of_lines_that_are_refused_the_others_are_sent() -> None:
    acks = [bytes.fromhex("40020001"), bytes.fromhex("4003000299"), bytes.fromhex("40020003")]
    with Scripted([CONNACK[5], *acks]) as server:
        words = ["-V", "5", "-t", "t", "-q", "1", "-l"]
        result = run(semel("pub", *server.address, *words), given=b"a\nb\nc\n")
    assert result.returncode == 0x99
    assert "payload format invalid" in sentence(result)
    assert [packet.kind for packet in server.packets] == [1, PUBLISH, PUBLISH, PUBLISH, DISCONNECT]


def test_a_message_too_large_for_the_server_is_not_sent_and_is_code_1() -> None:
    """mosquitto_pub sends nothing either, and ends with 0."""
    connack = bytes.fromhex("2008000005270000000a")
    with Scripted([connack]) as server:
        words = ["-V", "5", "-t", "t", "-m", "x" * 100, "-q", "1"]
        result = run(semel("pub", *server.address, *words))
    assert result.returncode == 1
    assert "at most 10 bytes (Maximum Packet Size)" in sentence(result)
    assert [packet.kind for packet in server.packets] == [1, DISCONNECT]


def test_a_server_that_ends_the_connection_says_why() -> None:
    with Scripted([CONNACK[5], bytes.fromhex("e0018e")]) as server:
        result = run(semel("pub", *server.address, "-V", "5", "-t", "t", "-m", "x", "-q", "1"))
    assert result.returncode == 0x8E
    assert "session taken over" in sentence(result)


def test_it_ends_though_standard_input_is_silent() -> None:
    """The server sends DISCONNECT 0x8E when it has the first line; the pipe stays open."""
    with Scripted([CONNACK[5], bytes.fromhex("e0018e")]) as server:
        command = semel("pub", *server.address, "-V", "5", "-t", "t", "-q", "0", "-l")
        with running(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.wait(PATIENCE) == 0x8E


# --- flow -----------------------------------------------------------------------------------------


def test_no_more_lines_are_on_their_way_than_asked_for() -> None:
    """The server acknowledges one when three are there and no fourth comes."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    words = ["-h", "127.0.0.1", "-p", f"{port}", "-t", "t", "-q", "1", "-l", "-M", "3", "-V", "311"]
    with running(semel("pub", *words), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(b"%d\n" % each for each in range(10)))
        process.stdin.close()
        connection, _ = listener.accept()
        with connection:
            seen = acknowledged = 0
            for packet in read_packets(connection):
                if packet.kind == 1:
                    connection.sendall(CONNACK[4])
                if packet.kind != PUBLISH:
                    continue
                seen += 1
                assert packet.body[-1:] == b"%d" % (seen - 1)
                assert seen - acknowledged <= 3
                while acknowledged < seen and (seen == 10 or seen - acknowledged == 3):
                    if seen < 10:
                        assert not select.select([connection], [], [], 0.2)[0]
                    acknowledged += 1
                    connection.sendall(b"\x40\x02" + acknowledged.to_bytes(2, "big"))
            assert (seen, acknowledged) == (10, 10)
        assert process.wait(PATIENCE) == 0
    listener.close()


def test_debug_lines_are_on_standard_error_and_show_no_secret(address: list[str]) -> None:
    words = ["-t", "t", "-m", "hidden", "-q", "2", "-d", "-i", "shown", "-u", "ann", "-P", "secret"]
    words += ["-V", "3.1.1"]
    result = run(semel("pub", *address, *words))
    assert (result.returncode, result.stdout) == (0, b"")
    lines = result.stderr.decode().splitlines()
    assert lines == [
        "Client shown sending CONNECT",
        "Client shown received CONNACK (0)",
        "Client shown sending PUBLISH (d0, q2, r0, m1, 't', ... (6 bytes))",
        "Client shown received PUBREC (Mid: 1, RC:0)",
        "Client shown sending PUBREL (Mid: 1, RC:0)",
        "Client shown received PUBCOMP (Mid: 1, RC:0)",
        "Client shown sending DISCONNECT (0)",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(address: list[str], number: int) -> None:
    command = semel("pub", *address, "-t", "t", "-l", "-d", "-q", "1")
    with running(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        wait_for(process, "received PUBACK")
        process.send_signal(number)
        assert wait_for(process, "DISCONNECT")
        assert process.wait(PATIENCE) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("flag", ["-l", "-s"])
def test_standard_input_that_is_closed_is_told(address: list[str], flag: str) -> None:
    command = semel("pub", *address, "-t", "t", flag)
    result = run(["sh", "-c", 'exec "$@" <&-', "sh", *command])
    assert result.returncode == 1
    assert "standard input is closed" in sentence(result)


def test_a_file_that_is_not_there_is_told(address: list[str]) -> None:
    result = run(semel("pub", *address, "-t", "t", "-f", "/no/such/file"))
    assert result.returncode == 1
    assert "/no/such/file" in sentence(result)


def test_a_session_that_is_kept_is_kept_on_both_sides(
    broker: Process, address: list[str], tmp_path: Path
) -> None:
    words = ["-c", "-i", "keeper", "-t", "kept", "-q", "2"]
    state = {"XDG_STATE_HOME": str(tmp_path)}
    for text in ("one", "two"):
        result = run(semel("pub", *address, *words, "-m", text), environment=state)
        assert (result.returncode, result.stderr) == (0, b"")
    (folder,) = (tmp_path / "semel" / "sessions").iterdir()
    assert folder.name.endswith(":keeper")
    assert folder.stat().st_mode & 0o077 == 0


# --- by other ways --------------------------------------------------------------------------------


@NEEDS_MOSQUITTO
@NEEDS_OPENSSL
def test_tls_and_websocket_work_by_their_flags(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    made = Certificates(folder)
    ca, cert, key = (str(made / name) for name in ("ca.pem", "client.pem", "client.key"))
    files = [f"cafile {ca}", f"certfile {made / 'server.pem'}", f"keyfile {made / 'server.key'}"]
    elsewhere = [
        f"cafile {ca}",
        f"certfile {made / 'elsewhere.pem'}",
        f"keyfile {made / 'elsewhere.key'}",
    ]
    unix = str(tmp_path / "s")
    listeners = [
        files,
        [*files, "require_certificate true"],
        elsewhere,
        ["protocol websockets"],
        [f"unix {unix}"],
    ]
    with mosquitto_broker(tmp_path, *listeners) as (tls, strict, wrong, ws, _):
        common = ["-t", "t", "-m", "x", "-q", "1"]
        trusted = ["-h", "localhost", "--cafile", ca]
        for good in (
            [*trusted, "-p", f"{tls}"],
            [*trusted, "-p", f"{tls}", "--tls-version", "tlsv1.3"],
            [*trusted, "-p", f"{strict}", "--cert", cert, "--key", key],
            [*trusted, "-p", f"{wrong}", "--insecure"],
            ["-h", "127.0.0.1", "-p", f"{ws}", "--ws"],
            ["--unix", unix],
        ):
            result = run(semel("pub", *common, *good))
            assert (result.returncode, result.stderr) == (0, b""), good
        assert (
            run(semel("pub", "-L", f"ws://127.0.0.1:{ws}/t", "-m", "x", "-q", "1")).returncode == 0
        )
        for bad, words in (
            ([*trusted, "-p", f"{wrong}"], "certificate"),
            (["-h", "localhost", "-p", f"{tls}", "--tls-use-os-certs"], "certificate"),
            ([*trusted, "-p", f"{ws}"], "TLS"),
            (["-h", "localhost", "-p", f"{tls}", "--cafile", "/no/file"], "/no/file"),
        ):
            result = run(semel("pub", *common, *bad))
            assert result.returncode == 1, bad
            assert words in sentence(result)


def test_a_will_is_left_by_who_is_killed(broker: Process, address: list[str]) -> None:
    async def watch() -> Received:
        url = "mqtt://{}:{}".format(*broker.address)
        async with Client(url) as client:
            messages = await client.subscribe("will/of", qos=1)
            words = ["-t", "t", "-l", "-d", "--will-topic", "will/of", "--will-payload", "gone"]
            command = semel("pub", *address, *words)
            with running(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                await asyncio.to_thread(wait_for, process, "received CONNACK")
                process.kill()
                async with asyncio.timeout(PATIENCE):
                    return await anext(messages)

    message = asyncio.run(watch())
    assert (message.topic, message.payload) == ("will/of", b"gone")
