"""`semel sub` as a process: what it prints, what it ends with, and mosquitto_sub beside it.

A message waits in a session (-c) or is retained before a subscriber starts, so that both programs
are given the same, in the same order.
"""

import asyncio
import base64
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client
from semel.mqtt import NO_PROPERTIES, Properties, Publish, encode
from tests.broker.broker_process import Process
from tests.cli.beside_mosquitto import (
    BOTH,
    CLOSE,
    CONNACK,
    NEEDS_TOOLS,
    PATIENCE,
    Packet,
    Result,
    Script,
    Scripted,
    Tool,
    mosquitto,
    run,
    running,
    semel,
    sentence,
    suback,
    wait_for,
)
from tests.kills.brokers import free_port
from tests.terminals import open_terminal

VERSIONS = {4: "mqttv311", 5: "mqttv5"}
ON_BOTH_VERSIONS = pytest.mark.parametrize("version", VERSIONS.values())
SUBACK = {4: bytes.fromhex("9003000100"), 5: bytes.fromhex("900400010000")}
PUBLISH, DISCONNECT = 3, 14

number = itertools.count()


class Shell:
    """Where a test runs programs. Its topics and client identifiers are its own."""

    def __init__(self, broker: Process, folder: Path) -> None:
        self.broker = broker
        self.root = f"sub{next(number)}"
        host, port = broker.address
        self.address = ["-h", host, "-p", f"{port}"]
        self.state = {"XDG_STATE_HOME": str(folder)}

    def publish(
        self,
        name: str,
        *payloads: bytes,
        qos: int = 1,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        async def publish() -> None:
            async with Client("mqtt://{}:{}".format(*self.broker.address)) as client:
                for payload in payloads:
                    await client.publish(
                        f"{self.root}/{name}", payload, qos, retain=retain, properties=properties
                    )

        asyncio.run(publish())

    def retain(self, name: str, payload: bytes, properties: Properties = NO_PROPERTIES) -> None:
        self.publish(name, payload, qos=2, retain=True, properties=properties)

    def run(self, tool: Tool, *arguments: str) -> Result:
        return run(tool("sub", *self.address, *arguments), environment=self.state)

    def prepare(self, tool: Tool, *arguments: str) -> list[str]:
        """A session that waits for messages; the flags to go on with it."""
        flags = ["-c", "-i", f"{self.root}-{tool.__name__}", *arguments]
        result = self.run(tool, *flags, "-E")
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
        return flags


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def shell(broker: Process, tmp_path: Path) -> Shell:
    return Shell(broker, tmp_path)


# --- what is printed ------------------------------------------------------------------------------

PAYLOADS = [b"one", b"", bytes(range(256)), b"two\nlines", "größe".encode(), b"x" * 100_000]


@BOTH
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        ([], b"".join(each + b"\n" for each in PAYLOADS if each)),
        (["-N"], b"".join(PAYLOADS)),
        (["-v"], b"".join(b"a/t " + (each or b"(null)") + b"\n" for each in PAYLOADS)),
        (["-v", "-N"], b"".join(b"a/t " + each for each in PAYLOADS if each)),
        (["-F", "%q|%x"], b"".join(b"0|" + each.hex().encode() + b"\n" for each in PAYLOADS)),
        (["-F", "%p", "-N", "-v"], b"".join(PAYLOADS)),
    ],
)
def test_a_pipe_gets_the_bytes_that_mosquitto_sub_prints(
    tool: Tool, version: int, flags: list[str], printed: bytes
) -> None:
    sent = b"".join(encode(Publish("a/t", payload), version) for payload in PAYLOADS)
    common = ["-V", VERSIONS[version], "-t", "a/t", "-C", f"{len(PAYLOADS)}"]
    with Scripted([CONNACK[version], SUBACK[version] + sent]) as server:
        result = run(tool("sub", *server.address, *common, *flags))
    assert (result.returncode, result.stdout, result.stderr) == (0, printed, b"")


SEPARATOR = "\x1e"
FORMS = [
    *("%t", "%30t", "%-30t|", "%.5t", "%30.5t", "%-30.5t|", "%030t"),
    *("%p", "%20p", "%-20p|", "%020p", "%3p", "%.3p", "%x", "%X", "%4x", "%-5X|", "%05x"),
    *("%q", "%r", "%l", "%5l", "%05l", "%-5l|", "%m", "%5m", "%-05m|", "%%", "%5%"),
    *("%A|", "%5A|", "%05A|", "%C|", "%20C|", "%-20C|", "%.4C|", "%020C|", "%D|", "%9D|"),
    *("%E|", "%9E|", "%09E|", "%F|", "%5F|", "%05F|", "%-5F|", "%P|", "%40P|"),
    *("%R|", "%10R|", "%10.2R|", "%S|", "%5S|", "%05S|"),
    *("%I", "%30I|", "%.10I", "%U", "@Y-@m-@d", "@H:@M:@S.@N", "@@", "@z@Z", "@q", "@%"),
    *(r"\\", r"\a", r"\e[0m", r"\n", r"\r", r"\t", r"\v", "plain ü", "%j"),
]
MESSAGES: list[tuple[bytes, Properties]] = [
    ("12 bytes ä\n".encode(), NO_PROPERTIES),
    (
        b'"quoted" \\ / \x01',
        Properties(
            content_type="text/plain",
            correlation_data=b"data",
            response_topic="re/ply",
            payload_format_indicator=1,
            user_properties=[("k", "v"), ("k", "2"), ("ü", "")],
        ),
    ),
    (b'{"a":[1,  2.50, "x"]}', Properties(content_type="application/json")),
]


def comparable(printed: bytes) -> list[str]:
    """Each form apart. A time is as long as another; mosquitto's JSON has a Z too much."""
    text = re.sub(rb'"tst":"[^"]*"', b'"tst":"TIME"', printed)
    text = re.sub(rb"\d{4}-\d\d-\d\dT?|\d\d:\d\d:\d\d|\d{10}\.\d{9}|\.\d{9}", b"TIME", text)
    return text.decode().split(SEPARATOR)


@NEEDS_TOOLS
@ON_BOTH_VERSIONS
@pytest.mark.parametrize("identifier", [[], ["-D", "subscribe", "subscription-identifier", "7"]])
def test_every_form_prints_what_mosquitto_sub_prints(
    shell: Shell, version: str, identifier: list[str]
) -> None:
    if identifier and version != "mqttv5":
        pytest.skip("3.1.1 has no subscription identifiers")
    for index, (payload, properties) in enumerate(MESSAGES):
        shell.retain(f"{index}", payload, properties)
    topics = [word for index in range(len(MESSAGES)) for word in ("-t", f"{shell.root}/{index}")]
    form = SEPARATOR.join(FORMS)
    flags = [*topics, "-V", version, "-q", "1", "-C", f"{len(MESSAGES)}", "-F", form, *identifier]
    ours, theirs = (shell.run(tool, *flags) for tool in (semel, mosquitto))
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr) == (0, b"")
    assert comparable(ours.stdout) == comparable(theirs.stdout)


@BOTH
def test_a_payload_of_json_is_shown_as_json_or_told_to_be_none(shell: Shell, tool: Tool) -> None:
    shell.retain("json", b'{"a":[1,  2.50]}')
    shell.retain("text", b"text")
    topics = ["-t", f"{shell.root}/json", "-t", f"{shell.root}/text"]
    result = shell.run(tool, *topics, "-C", "2", "-F", "<%J>")
    first, second = result.stdout.splitlines()
    assert b'"payload":{"a":[1,2.5]}' in first
    assert second == b"<>"
    assert result.returncode == 0
    assert f"{shell.root}/text" in result.stderr.decode()
    assert shell.run(tool, *topics, "-C", "2", "-F", "<%J>", "--quiet").stderr == b""


def test_json_is_an_object_on_a_line(shell: Shell) -> None:
    properties = Properties(
        content_type="text",
        correlation_data=b"\xff",
        message_expiry_interval=100_000,
        user_properties=[("k", "1"), ("k", "2")],
    )
    shell.retain("text", "größe\n".encode(), properties)
    shell.retain("bytes", b"\xff\0")
    topics = ["-t", f"{shell.root}/text", "-t", f"{shell.root}/bytes", "-q", "1"]
    result = shell.run(semel, *topics, "-V", "5", "-C", "2", "--json")
    first, second = [json.loads(line) for line in result.stdout.splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first.pop("received"))
    assert first["properties"].pop("message_expiry_interval") > 99_000
    assert first == {
        "topic": f"{shell.root}/text",
        "qos": 1,
        "retain": True,
        "dup": False,
        "payload": "größe\n",
        "properties": {
            "content_type": "text",
            "correlation_data": None,
            "correlation_data_base64": base64.b64encode(b"\xff").decode(),
            "user_properties": [["k", "1"], ["k", "2"]],
        },
    }
    assert (second["payload"], second["payload_base64"]) == (None, "/wA=")


def on_a_terminal(shell: Shell, *arguments: str, **environment: str) -> str:
    """What is printed there."""
    ours, theirs = open_terminal()
    command = semel("sub", *shell.address, *arguments)
    variables = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment}
    with running(command, stdout=theirs, stderr=subprocess.PIPE, env=variables) as process:
        os.close(theirs)
        printed = b""
        try:
            while data := os.read(ours, 65_536):
                printed += data
        except OSError:
            # The other end is closed.
            pass
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    return printed.decode()


NASTY = "\x1b]0;title\x07\x9b31m\u202e"


def test_a_terminal_shows_a_line_for_people(shell: Shell) -> None:
    properties = Properties(content_type=f"text{NASTY}", user_properties=[("unit", "°C")])
    shell.retain("text", f"21.5\n{NASTY}".encode(), properties)
    shell.retain("bytes", b"\xff\x1b")
    topics = ["-t", f"{shell.root}/text", "-t", f"{shell.root}/bytes", "-V", "5", "-q", "1"]
    plain = on_a_terminal(shell, *topics, "-C", "2", NO_COLOR="1")
    escaped = r"\x1b]0;title\x07\x9b31m\u202e"
    first, second = plain.splitlines()
    assert first[10:] == (
        f"q1  {shell.root}/text  retained  21.5\\n{escaped}  [content-type=text{escaped}, unit=°C]"
    )
    assert second[10:] == f"q1  {shell.root}/bytes  retained  0xff1b"
    coloured = on_a_terminal(shell, *topics, "-C", "2")
    assert "\x1b[36m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured)[10:].splitlines()[0] == first[10:]
    assert "\x1b" not in on_a_terminal(shell, *topics, "-C", "2", TERM="dumb")


@pytest.mark.parametrize("flags", [["-v"], ["-N"], ["-F", "%t %p %C"], ["--json"]])
def test_on_a_terminal_nothing_of_a_peer_acts_on_it(shell: Shell, flags: list[str]) -> None:
    shell.retain("x", NASTY.encode(), Properties(content_type=NASTY))
    printed = on_a_terminal(shell, "-t", f"{shell.root}/x", "-V", "5", "-C", "1", *flags)
    assert re.sub(r"\r\n", "", printed).isprintable()
    assert "title" in printed


# --- which messages -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["-C", "3"], b"1 r/a\n1 r/b\n0 r/a\n"),
        (["-R", "-C", "2"], b"0 r/a\n0 r/c\n"),
        (["-T", "r/a", "-T", "r/+/x", "-C", "2"], b"1 r/b\n0 r/c\n"),
        (["-T", "+/b", "-C", "2"], b"1 r/a\n0 r/a\n"),
        (["--retained-only"], b"1 r/a\n1 r/b\n"),
        (["--retained-only", "-T", "r/a"], b"1 r/b\n"),
        (["--retained-only", "-C", "1"], b"1 r/a\n"),
    ],
)
def test_flags_choose_among_fresh_and_retained_messages(
    tool: Tool, flags: list[str], printed: bytes
) -> None:
    """The server sends two that are retained, then two that are not."""
    messages = b"".join(
        bytes([0x30 | retain, 6, 0, 3]) + topic + b"x"
        for retain, topic in ((1, b"r/a"), (1, b"r/b"), (0, b"r/a"), (0, b"r/c"))
    )
    with Scripted([CONNACK[4], SUBACK[4] + messages]) as server:
        result = run(tool("sub", *server.address, "-t", "r/+", "-F", "%r %t", *flags))
    assert (result.returncode, result.stdout, result.stderr) == (0, printed, b"")


@BOTH
def test_retained_messages_are_removed_but_for_those_filtered_out(shell: Shell, tool: Tool) -> None:
    names = {name: f"{shell.root}/{name}" for name in "abc"}
    for name in names:
        shell.retain(name, name.encode())
    every = ["-t", f"{shell.root}/+", "-v"]
    flags = [*every, "-T", names["b"], "--remove-retained", "-W", "2"]
    removed = shell.run(tool, *flags).stdout.decode().splitlines()
    # That they are gone comes as a message, too.
    assert sorted(removed) == sorted(
        f"{names[name]} {what}" for name in "ac" for what in (name, "(null)")
    )
    left = shell.run(tool, *every, "-C", "1")
    assert left.stdout == f"{names['b']} b\n".encode()


def test_a_share_of_the_messages_is_printed_and_all_are_counted(shell: Shell) -> None:
    session = shell.prepare(semel, "-t", f"{shell.root}/t", "-q", "1")
    shell.publish("t", *[b"x"] * 400)
    result = shell.run(semel, *session, "-C", "400", "--random-filter", "50")
    assert result.returncode == 0
    assert 100 < len(result.stdout.splitlines()) < 300


def test_a_subscription_of_the_session_is_ended(shell: Shell) -> None:
    old, new = f"{shell.root}/old", f"{shell.root}/new"
    session = shell.prepare(semel, "-t", old, "-q", "1")[:3]
    assert shell.run(semel, *session, "-t", new, "-q", "1", "-U", old, "-E").returncode == 0
    shell.publish("old", b"not wanted")
    shell.publish("new", b"wanted")
    result = shell.run(semel, *session, "-t", new, "-q", "1", "-C", "1")
    assert result.stdout == b"wanted\n"


def test_the_properties_of_an_unsubscription_are_sent(tmp_path: Path) -> None:
    """The second run takes up the session, and asks again for what it has."""

    def answered(packet: Packet) -> bytes:
        kind = b"\x90" if packet.kind == 8 else b"\xb0"
        return kind + b"\x04" + packet.body[:2] + b"\0\0"

    resumed = bytes.fromhex("2003010000")
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with Scripted([CONNACK[5], answered], [resumed, *[answered] * 9]) as server:
        flags = ["sub", *server.address, "-V", "5", "-c", "-E"]
        assert run(semel(*flags, "-t", "old"), environment=state).returncode == 0
        words = ["-t", "new", "-U", "old", "-D", "unsubscribe", "user-property", "a", "b"]
        assert run(semel(*flags, *words), environment=state).returncode == 0
        (packet,) = [packet for packet in server.packets if packet.kind == 10]
    assert packet.body[2:] == b"\x07\x26\0\1a\0\1b\0\3old"


def test_what_the_session_has_subscribed_to_is_printed_too(shell: Shell) -> None:
    session = shell.prepare(semel, "-t", f"{shell.root}/old", "-q", "1")[:3]
    shell.publish("old", b"1", b"2", b"3")
    result = shell.run(semel, *session, "-t", f"{shell.root}/new", "-C", "3")
    assert result.stdout == b"1\n2\n3\n"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], 0x01),
        (["--retain-as-published"], 0x09),
        (["--retain-handling", "new"], 0x11),
        (["--retain-handling", "never"], 0x21),
    ],
)
def test_the_options_of_a_subscription_are_sent(flags: list[str], options: int) -> None:
    with Scripted([CONNACK[5], SUBACK[5]]) as server:
        command = semel("sub", *server.address, "-V", "5", "-q", "1", "-t", "a/b", "-E", *flags)
        assert run(command).returncode == 0
        subscribe = server.packets[1]
    assert subscribe.kind == 8
    assert subscribe.body.endswith(b"\0\3a/b" + bytes([options]))


def test_the_properties_of_a_subscription_are_sent() -> None:
    given = [
        *("-D", "subscribe", "subscription-identifier", "300"),
        *("-D", "subscribe", "user-property", "a", "b"),
    ]
    with Scripted([CONNACK[5], SUBACK[5]]) as server:
        assert (
            run(semel("sub", *server.address, "-V", "5", "-t", "t", "-E", *given)).returncode == 0
        )
        body = server.packets[1].body
    assert b"\x0b\xac\x02" in body
    assert body.count(b"\x0b") == 1
    assert b"\x26\0\1a\0\1b" in body


# --- exit codes -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("version", "code"), [(4, 2), (4, 5), (5, 0x86), (5, 0x87), (5, 0x89)])
def test_a_connection_that_is_refused_ends_with_the_servers_code(
    tool: Tool, version: int, code: int
) -> None:
    answer = bytes([0x20, 2, 0, code]) if version == 4 else bytes([0x20, 3, 0, code, 0])
    with Scripted([answer]) as server:
        flags = ["-V", VERSIONS[version], "-u", "ann", "-P", "secret", "-t", "t"]
        result = run(tool("sub", *server.address, *flags))
    assert (result.returncode, result.stdout) == (code, b"")
    assert b"secret" not in result.stderr
    if tool is semel:
        assert "refused the connection" in sentence(result)
        with Scripted([answer]) as server:
            quiet = run(tool("sub", *server.address, *flags, "--quiet"))
        assert (quiet.returncode, quiet.stderr) == (code, b"")


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_a_server_that_is_not_there_is_code_1(tool: Tool, persistent: bool, tmp_path: Path) -> None:
    flags = ["-h", "127.0.0.1", "-p", f"{free_port()}", "-t", "t"]
    result = run(
        tool("sub", *flags, *(["-c", "-i", "x"] if persistent else [])),
        environment={"XDG_STATE_HOME": str(tmp_path)},
    )
    assert result.returncode == 1
    if tool is semel:
        assert "connection refused" in sentence(result)


@BOTH
@ON_BOTH_VERSIONS
def test_time_that_is_up_is_code_27_and_enough_is_code_0(
    shell: Shell, tool: Tool, version: str
) -> None:
    shell.retain("t", b"x")
    flags = ["-t", f"{shell.root}/t", "-V", version, "-W", "1"]
    late = shell.run(tool, *flags, "-C", "2")
    assert (late.returncode, late.stdout) == (27, b"x\n")
    assert late.stderr.lower().endswith(b"timed out\n")
    assert shell.run(tool, *flags, "-C", "1").returncode == 0


@BOTH
def test_a_server_that_breaks_the_protocol_is_code_2(tool: Tool) -> None:
    """A PUBLISH with QoS 3"""
    with Scripted([CONNACK[4], SUBACK[4] + bytes.fromhex("36050001612378")]) as server:
        result = run(tool("sub", *server.address, "-t", "a", "-W", "10"))
    assert result.returncode == 2
    if tool is semel:
        assert "MQTT-3.3.1-4" in sentence(result)


@BOTH
def test_a_subscriber_comes_back_after_a_loss_and_ends_when_it_is_refused_then(
    tool: Tool,
) -> None:
    """The second connection brings a message, the third is refused."""
    refusal = bytes.fromhex("20020005")
    message = b"\x30\x04\0\1ax"
    second: Script = [CONNACK[4], lambda packet: suback(packet) + message, CLOSE]
    with Scripted([CONNACK[4], CLOSE], second, [refusal]) as server:
        # The keep alive sends the third packet.
        flags = ["-t", "a", "-k", "5", "-W", "25", "--quiet"]
        result = run(tool("sub", *server.address, *flags))
    assert (result.returncode, result.stdout, result.stderr) == (5, b"x\n", b"")
    assert len(server.connections) == 3


def test_a_session_on_a_server_that_refuses_5_0_is_one_of_3_1_1_and_goes_on(tmp_path: Path) -> None:
    """Each run tries 5.0 first, which changes nothing, and then resumes the 3.1.1 session."""
    refusal: Script = [bytes.fromhex("20020001"), CLOSE]
    message = bytes.fromhex("320700016100077465")  # QoS 1, topic a, packet identifier 7
    first_run: Script = [CONNACK[4], suback]
    second_run: Script = [bytes.fromhex("20020100") + message, suback]
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    with Scripted(refusal, first_run, refusal, second_run) as server:
        words = ["-h", "127.0.0.1", "-p", f"{server.port}", "-c", "-i", "audit", "-t", "a"]
        first = run(semel("sub", *words, "-E"), environment=environment)
        assert (first.returncode, first.stderr) == (0, b"")
        second = run(semel("sub", *words, "-C", "1"), environment=environment)
        assert (second.returncode, second.stdout, second.stderr) == (0, b"te\n", b"")
    connects = [packets[0].body for packets in server.connections]
    # The protocol level, and Clean Start or Clean Session, which is 0.
    assert [(body[6], body[7]) for body in connects] == [(5, 0), (4, 0), (5, 0), (4, 0)]
    assert b"\x00\x07" in [packet.body for packet in server.connections[3] if packet.kind == 4]


def test_a_loss_is_told_unless_it_is_to_be_quiet() -> None:
    refusal = bytes.fromhex("20020005")
    with Scripted([CONNACK[4], CLOSE], [refusal]) as server:
        result = run(semel("sub", *server.address, "-t", "a"))
    warning, error = result.stderr.decode().splitlines()
    assert warning.startswith("Warning: ")
    assert "trying again" in warning
    assert error.startswith("Error: ")


@pytest.mark.parametrize("others", [[], ["-t", "$stream/other/#"], ["-c", "-i", "hinted"]])
def test_a_replay_that_3_1_1_cannot_have_is_refused_with_the_way_to_have_it(
    broker: Process, others: list[str], tmp_path: Path
) -> None:
    words = ["-h", broker.address[0], "-p", f"{broker.address[1]}", "-t", "$stream/all/#", *others]
    kept = {"XDG_STATE_HOME": str(tmp_path)}
    result = run(semel("sub", *words, "-V", "311"), environment=kept)
    assert result.returncode == 0x80
    assert sentence(result) == (
        "Error: the server refused the subscription to $stream/all/# with SUBACK 0x80, "
        "unspecified error; replaying a stream needs MQTT 5.0: -V 5"
    )
    # With 5.0 the server says itself what is wrong.
    if not others:
        result = run(semel("sub", *words, "-V", "5"), environment=kept)
        assert sentence(result).endswith("topic filter invalid: there is no stream 'all'")


def test_a_replay_that_is_refused_beside_a_subscription_that_is_not_is_a_warning(
    broker: Process,
) -> None:
    words = ["-h", broker.address[0], "-p", f"{broker.address[1]}", "-V", "311", "-E"]
    result = run(semel("sub", *words, "-t", "$stream/all/#", "-t", "a"))
    assert result.returncode == 0
    assert sentence(result).startswith("Warning: the server refused")
    assert sentence(result).endswith("; replaying a stream needs MQTT 5.0: -V 5")


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x87)])
def test_a_subscription_that_is_refused_is_no_success(version: int, code: int) -> None:
    """mosquitto_sub prints that all are denied, and ends with 0."""
    suback = SUBACK[version][:-1] + bytes([code])
    with Scripted([CONNACK[version], suback]) as server:
        result = run(semel("sub", *server.address, "-V", VERSIONS[version], "-t", "a"))
        assert server.packets[-1].kind == DISCONNECT
    assert result.returncode == code
    assert "refused the subscription to a" in sentence(result)


def test_one_subscription_that_is_refused_does_not_end_the_others(shell: Shell) -> None:
    with Process("--maximum-subscriptions", "1") as process:
        narrow = Shell(process, Path(shell.state["XDG_STATE_HOME"]))
        narrow.retain("a", b"x")
        flags = ["-t", f"{narrow.root}/a", "-t", f"{narrow.root}/b", "-V", "5", "-C", "1"]
        result = narrow.run(semel, *flags)
        assert (result.returncode, result.stdout) == (0, b"x\n")
        both = narrow.run(semel, *flags[:-1], "2", "-W", "1")
        assert (both.returncode, both.stdout) == (27, b"x\n")
        assert "quota exceeded" in both.stderr.decode()


def test_a_server_that_ends_the_connection_says_why() -> None:
    """mosquitto_sub ends with 0."""
    with Scripted([CONNACK[5], SUBACK[5] + bytes.fromhex("e0018e")]) as server:
        result = run(semel("sub", *server.address, "-V", "5", "-t", "a"))
    assert result.returncode == 0x8E
    assert "session taken over" in sentence(result)


@BOTH
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_code_0(tool: Tool, version: int, signal_number: int) -> None:
    """In 5.0 with DISCONNECT 0x04, so that the will is published"""
    message = encode(Publish("a", b"x"), version)
    with Scripted([CONNACK[version], SUBACK[version] + message]) as server:
        command = tool("sub", *server.address, "-V", VERSIONS[version], "-t", "a")
        with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"x\n"
            process.send_signal(signal_number)
            assert process.wait(PATIENCE) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        last = server.packets[-1]
    assert last.kind == DISCONNECT
    assert last.body[:1] == (b"\x04" if version == 5 else b"")


@BOTH
def test_a_reader_that_has_enough_ends_it_with_code_0(shell: Shell, tool: Tool) -> None:
    session = shell.prepare(tool, "-t", f"{shell.root}/t", "-q", "1")
    shell.publish("t", *[b"x" * 50_000] * 10)
    reading, writing = os.pipe()
    command = tool("sub", *shell.address, *session)
    variables = {**os.environ, **shell.state}
    with running(command, stdout=writing, stderr=subprocess.PIPE, env=variables) as process:
        os.close(writing)
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        # mosquitto_sub 2.0.21 is ended by the signal that 2.0.11 ignored.
        codes = (0,) if tool is semel else (0, -signal.SIGPIPE)
        assert process.wait(PATIENCE) in codes
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        (">&-", 1, "standard output is closed"),
        (">/dev/full", 1, "No space left on device"),
        (">/dev/null", 0, ""),
    ],
)
def test_what_standard_output_cannot_take_is_told(
    shell: Shell, redirection: str, code: int, words: str
) -> None:
    shell.retain("t", b"x")
    command = semel("sub", *shell.address, "-t", f"{shell.root}/t", "-C", "1")
    result = run(["sh", "-c", f'exec "$@" {redirection}', "sh", *command])
    assert result.returncode == code
    assert words in result.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "-t FILTER"),
        (["-t", "a#"], "HASH_IS_LAST_LEVEL"),
        (["-t", "a", "-T", "b+"], "PLUS_FILLS_ITS_LEVEL"),
        (["-t", "a", "-U", ""], "TOPIC_FILTER_NOT_EMPTY"),
        (["-t", "$share//a", "-V", "5"], "SHARE_NAME_NOT_EMPTY"),
        (["-L", "mqtt://h/a#"], "HASH_IS_LAST_LEVEL"),
        (["-t", "a", "-q", "3"], "3"),
        (["-t", "a", "-C", "0"], "0"),
        (["-t", "a", "-W", "0"], "0"),
        (["-t", "a", "-F", "%z"], "-F: unknown sequence %z"),
        (["-t", "a", "-F", "%t", "--json"], "give one"),
        (["-t", "a", "-R", "--retained-only"], "nothing to print"),
        (["-t", "a", "--random-filter", "0"], "0"),
        (
            ["-V", "3.1.1", "-t", "a", "--retain-as-published"],
            "--retain-as-published needs MQTT 5.0",
        ),
        (["-t", "a", "-D", "publish", "content-type", "x"], "publishes no message with properties"),
    ],
)
def test_wrong_flags_are_refused_in_a_sentence(arguments: list[str], words: str) -> None:
    result = run(semel("sub", *arguments))
    assert (result.returncode, result.stdout) == (1, b"")
    assert words in result.stderr.decode().splitlines()[-1]


# --- what is acknowledged -------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@ON_BOTH_VERSIONS
def test_a_session_goes_on_where_the_last_run_ended(shell: Shell, version: str, qos: int) -> None:
    flags = ["-t", f"{shell.root}/t", "-q", f"{qos}", "-V", version]
    session = shell.prepare(semel, *flags)
    shell.publish("t", *[b"%d" % each for each in range(10)], qos=qos)
    printed = b""
    for count in ("3", "1", "6"):
        result = shell.run(semel, *session, "-C", count, "-W", "10")
        assert (result.returncode, result.stderr) == (0, b"")
        printed += result.stdout
    assert printed.split() == [b"%d" % each for each in range(10)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_pipe_has_not_taken_is_not_acknowledged(shell: Shell, qos: int) -> None:
    """The pipe has the beginning of the first message when the process is killed."""
    session = shell.prepare(semel, "-t", f"{shell.root}/t", "-q", f"{qos}")
    shell.publish("t", *[b"%d" % each * 200_000 for each in range(5)], qos=qos)
    command = semel("sub", *shell.address, *session, "-d", "-k", "1")
    variables = {**os.environ, **shell.state}
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b"0"
        lines = wait_for(process, "received PINGRESP", times=2)
        assert not [line for line in lines if "sending PUBACK" in line or "sending PUBREC" in line]
        process.kill()
    result = shell.run(semel, *session, "-C", "5", "-W", "10", "-F", "%1p")
    assert result.stdout.split() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_pipe_that_is_full_does_not_keep_the_client_from_its_pings(shell: Shell) -> None:
    session = shell.prepare(semel, "-t", f"{shell.root}/t", "-q", "1")
    shell.publish("t", b"x" * 500_000)
    command = semel("sub", *shell.address, *session, "-d", "-k", "1", "-C", "1")
    variables = {**os.environ, **shell.state}
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables) as process:
        wait_for(process, "received PUBLISH")
        wait_for(process, "received PINGRESP", times=2)
        assert process.stdout is not None
        assert len(process.stdout.read()) == 500_001
        wait_for(process, "sending PUBACK")
        assert process.wait(PATIENCE) == 0


def test_a_session_that_is_not_ours_is_not_taken_up(shell: Shell, tmp_path: Path) -> None:
    """[MQTT-3.2.2-4] the state of the session is with another program"""
    flags = ["-i", f"{shell.root}-theirs", "-t", f"{shell.root}/t", "-q", "1", "-V", "5"]
    assert shell.run(semel, "-c", *flags, "-E").returncode == 0
    shell.publish("t", b"for them")
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    result = run(semel("sub", *shell.address, "-c", *flags, "-W", "5"), environment=elsewhere)
    assert (result.returncode, result.stdout) == (1, b"")
    assert "MQTT-3.2.2-4" in sentence(result)
    # It is still there for whom it belongs to.
    assert shell.run(semel, "-c", *flags, "-C", "1").stdout == b"for them\n"
    # Without -c it is ended, and another may begin.
    assert run(semel("sub", *shell.address, *flags, "-E"), environment=elsewhere).returncode == 0
    assert (
        run(semel("sub", *shell.address, "-c", *flags, "-E"), environment=elsewhere).returncode == 0
    )


def test_two_at_a_time_cannot_have_one_state(shell: Shell) -> None:
    session = shell.prepare(semel, "-t", f"{shell.root}/t", "-q", "1")
    command = semel("sub", *shell.address, *session, "-d")
    variables = {**os.environ, **shell.state}
    with running(command, stderr=subprocess.PIPE, env=variables) as process:
        wait_for(process, "received SUBACK")
        result = shell.run(semel, *session)
        assert result.returncode == 1
        assert "Traceback" not in sentence(result)
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_debug_lines_are_on_standard_error(shell: Shell) -> None:
    shell.retain("t", b"hidden")
    flags = ["-t", f"{shell.root}/t", "-C", "1", "-d", "-i", "shown", "-q", "1"]
    result = shell.run(semel, *flags)
    assert (result.returncode, result.stdout) == (0, b"hidden\n")
    assert result.stderr.decode().splitlines() == [
        "Client shown sending CONNECT",
        "Client shown received CONNACK (0)",
        f"Client shown sending SUBSCRIBE (Mid: 1, Topic: {shell.root}/t, QoS: 1)",
        "Client shown received SUBACK (Mid: 1, RC: 1)",
        f"Client shown received PUBLISH (d0, q1, r1, m1, '{shell.root}/t', ... (6 bytes))",
        "Client shown sending PUBACK (Mid: 1, RC:0)",
        "Client shown sending DISCONNECT (0)",
    ]


def test_properties_of_a_disconnect_that_break_a_rule_are_one_sentence(shell: Shell) -> None:
    flags = ["-V", "5", "-x", "0", "-E", "-t", f"{shell.root}/t"]
    given = ["-D", "disconnect", "session-expiry-interval", "60"]
    will = ["--will-topic", f"{shell.root}/will", "--will-retain", "--will-payload", "w"]
    result = run(semel("sub", *shell.address, *flags, *will, *given))
    assert result.returncode == 1
    assert "DISCONNECT: SESSION_EXPIRY_NOT_REVIVED" in sentence(result)
    # The broker has published no will.
    result = run(semel("sub", *shell.address, "-t", f"{shell.root}/will", "-W", "1"))
    assert (result.returncode, result.stdout) == (27, b"")
