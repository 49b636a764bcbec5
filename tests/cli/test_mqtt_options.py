"""The flags of a connection: what they mean, and what is said about wrong ones."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.mqtt_client import authentication_of, state_folder, tls_context
from semel.cli.mqtt_options import ConnectionOptions, MqttCommand, connection_options
from semel.cli.property_options import take_properties
from semel.client import Address, ScramAuthentication
from semel.mqtt import MQTT5, MQTT311, Properties, Will
from semel.mqtt.packet_types import CONNECT, DISCONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.session import NEVER_EXPIRES

SEEN: list[ConnectionOptions] = []
PASSWORD = "correct horse"


@click.command(cls=MqttCommand)
@click.option("-m", "message")
@click.option("-v", "verbose", is_flag=True)
@connection_options
def command(connection: ConnectionOptions, message: str | None, verbose: bool) -> None:
    SEEN.append(connection)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def parsed(*arguments: str) -> ConnectionOptions:
    result = ran(*arguments)
    assert (result.exit_code, result.output) == (0, "")
    return SEEN[-1]


def refused(*arguments: str) -> str:
    """What is said about these; it is one sentence, after click's two lines of usage."""
    result = ran(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    return last.removeprefix("Error: ")


# --- where to -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], Address("mqtt", "localhost", 1883)),
        (["-h", "example.org"], Address("mqtt", "example.org", 1883)),
        (["--host", "::1", "--port", "1884"], Address("mqtt", "::1", 1884)),
        (["-p", "8883"], Address("mqtts", "localhost", 8883)),
        (["-p", "8883", "--no-tls"], Address("mqtt", "localhost", 8883)),
        (["--cafile", "f"], Address("mqtts", "localhost", 8883)),
        (["--capath", "d", "-p", "1"], Address("mqtts", "localhost", 1)),
        (["--tls-use-os-certs"], Address("mqtts", "localhost", 8883)),
        (["--ws"], Address("ws", "localhost", 80, "/mqtt")),
        (["--ws", "--cafile", "f"], Address("wss", "localhost", 443, "/mqtt")),
        (["--unix", "a/b.sock"], Address("unix", "", 0, "a/b.sock")),
        (["-L", "mqtt://h/t"], Address("mqtt", "h", 1883)),
        (["-L", "mqtts://h/t"], Address("mqtts", "h", 8883)),
        (["-L", "ws://h:8080/t"], Address("ws", "h", 8080, "/mqtt")),
        (["-L", "wss://h/t"], Address("wss", "h", 443, "/mqtt")),
        (["-L", "mqtt://h/t", "-p", "7"], Address("mqtt", "h", 7)),
        (["-L", "mqtt://h/t", "--cafile", "f"], Address("mqtts", "h", 1883)),
        (["-L", "mqtt://h/t", "--ws"], Address("ws", "h", 1883, "/mqtt")),
    ],
)
def test_the_flags_say_where_the_server_is(arguments: list[str], address: Address) -> None:
    assert parsed(*arguments).address == address


@pytest.mark.parametrize("topic", ["a", "a/b", "plant/+/temp", "a/#", "#", "a?b", "a%20b", "ü 1"])
def test_the_topic_of_a_url_stands_as_it_is(topic: str) -> None:
    assert parsed("-L", f"mqtt://localhost/{topic}").topic == topic


def test_user_and_password_are_in_the_url_or_apart() -> None:
    url = parsed("-L", "mqtt://ann:s%40cret@h/t")
    assert (url.user_name, url.password) == ("ann", b"s@cret")
    apart = parsed("-L", "mqtt://ann:s%40cret@h/t", "-u", "bob", "-P", os.fsdecode(b"\xff"))
    assert (apart.user_name, apart.password) == ("bob", b"\xff")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "65536"], "65536"),
        (["-p", "abc"], "abc"),
        (["-p"], "-p"),
        (["--no-such-flag"], "--no-such-flag"),
        (["stray"], "stray"),
        (["-h", "no host"], "no host"),
        (["-h", ""], "host"),
        (["-L", "http://h/t"], "http"),
        (["-L", "h/t"], "scheme"),
        (["-L", "mqtt://h"], "topic is missing"),
        (["-L", "mqtt://h/"], "topic is missing"),
        (["-L", "mqtt://h/t", "-h", "h"], "one of -L and -h"),
        (["--unix", "s", "-h", "h"], "--unix cannot be combined"),
        (["--unix", "s", "-p", "1883"], "--unix cannot be combined"),
        (["--unix", "s", "--cafile", "f"], "a Unix socket is used without TLS"),
        (["--unix", "s", "--tls-use-os-certs"], "a Unix socket is used without TLS"),
        (["--cafile", "f", "--no-tls"], "--no-tls cannot be combined with --cafile"),
        (["-L", "mqtts://h/t", "--no-tls"], "--no-tls cannot be combined with --cafile"),
        (["-L", "wss://h/t", "--no-tls"], "--no-tls cannot be combined with --cafile"),
        (["--unix", ""], "path"),
        (["-k", "65536"], "65536"),
        (["-V", "6"], "mqttv311"),
        (["-V", "mqttv31"], "MQTT 3.1 is not supported"),
        (["-V", "31"], "MQTT 3.1 is not supported"),
        (["-A", "localhost"], "not an IP address"),
        (["-A", "127.0.0.1", "--unix", "s"], "-A cannot be combined"),
        (["-S"], "-S: SRV lookups are not supported"),
        (["--proxy", "socks5h://h"], "--proxy"),
        (["--psk", "00"], "--psk"),
        (["--tls-engine", "e"], "--tls-engine"),
        (["-o", "file"], "-o: option files are not supported"),
        (["--keyform", "engine", "--cafile", "f"], "engine"),
        (["--tls-version", "tlsv1.1", "--cafile", "f"], "tlsv1.1"),
        (["--cert", "c"], "--cert needs TLS"),
        (["--insecure"], "--insecure needs TLS"),
        (["--tls-alpn", "mqtt", "-p", "8883", "--no-tls"], "--tls-alpn needs TLS"),
    ],
)
def test_a_wrong_flag_is_refused_with_exit_code_1(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


# --- who ------------------------------------------------------------------------------------------


def test_the_client_identifier_is_given_or_made_of_a_prefix() -> None:
    assert parsed().client_id == ""
    assert parsed("-i", "one").client_id == "one"
    assert parsed("-I", "pre-").client_id == f"pre-{os.getpid()}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "a", "-I", "b"], "-i and -I"),
        (["-i", ""], "-i is empty"),
        (["-c"], "-c needs -i"),
        (["-c", "-I", "pre"], "-c needs -i"),
        (["-V", "5", "-x", "-1"], "needs a client identifier"),
        (["-V", "5", "-x", "∞", "-I", "pre"], "needs a client identifier"),
        (["-x", "4294967296"], "4294967296"),
        (["-x", "1h30"], "1h30"),
        (["-x", "1.5"], "1.5"),
        (["-x", "-2"], "-2"),
        (["-V", "311", "-x", "10"], "-x needs MQTT 5.0"),
        (["-P", PASSWORD], "a password needs a user name (-u)"),
        (["-V", "311", "-P", PASSWORD], "a password needs a user name (-u)"),
        (["-P", "x", "--password-file", "f"], "one of -P and --password-file"),
        (["--password-file", "/no/such/file"], "--password-file /no/such/file: No such file"),
    ],
)
def test_identities_that_cannot_be_are_refused(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "version", "persistent", "expiry"),
    [
        ([], MQTT5, False, None),
        (["-V", "3.1.1"], MQTT311, False, None),
        (["--mqtt-version", "5"], MQTT5, False, None),
        (["--protocol-version", "mqttv5"], MQTT5, False, None),
        (["--session-expiry", "1h"], MQTT5, False, 3600),
        (["-V", "mqttv311"], MQTT311, False, None),
        (["-V", "5"], MQTT5, False, None),
        (["-c", "-i", "a"], MQTT5, True, NEVER_EXPIRES),
        (["-c", "-i", "a", "-V", "mqttv5"], MQTT5, True, NEVER_EXPIRES),
        (["-c", "-i", "a", "-x", "60"], MQTT5, True, 60),
        (["-i", "a", "-x", "-1"], MQTT5, False, NEVER_EXPIRES),
        (["-i", "a", "-x", "∞"], MQTT5, False, NEVER_EXPIRES),
        (["-x", "0"], MQTT5, False, 0),
        (["-D", "connect", "session-expiry-interval", "5"], MQTT5, False, 5),
    ],
)
def test_the_flags_say_what_session_is_wanted(
    arguments: list[str], version: int, persistent: bool, expiry: int | None
) -> None:
    connection = parsed(*arguments)
    assert connection.version == version
    assert connection.persistent == persistent
    assert connection.session_expiry == expiry


@pytest.mark.parametrize(
    ("arguments", "may_fall_back"),
    [
        ([], True),
        (["-c", "-i", "a"], True),
        (["-V", "5"], False),
        (["-V", "3.1.1"], False),
        (["-x", "5"], False),
        (["-D", "connect", "user-property", "a", "b"], False),
    ],
)
def test_3_1_1_may_follow_if_nothing_requires_a_version(
    arguments: list[str], may_fall_back: bool
) -> None:
    connection = parsed(*arguments)
    assert connection.may_fall_back is may_fall_back
    assert connection.with_311().version == MQTT311
    assert not connection.with_311().may_fall_back


def test_our_spellings_mean_the_same_as_mosquittos() -> None:
    ours = parsed("--client-id", "a", "--username", "u", "--password", "p", "--keep-alive", "2m")
    assert ours == parsed("-i", "a", "-u", "u", "--pw", "p", "--keepalive", "120")
    assert ours == parsed("--id", "a", "-u", "u", "-P", "p", "-k", "120s")


def test_a_password_is_read_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for content, password in ((b"s\xff", b"s\xff"), (b"a b\n", b"a b"), (b"a\r\n", b"a")):
        secret.write_bytes(content)
        assert parsed("-u", "ann", "--password-file", f"{secret}").password == password


def test_a_password_without_a_user_is_for_5_0() -> None:
    connection = parsed("-V", "5", "-P", PASSWORD)
    assert (connection.user_name, connection.password) == (None, PASSWORD.encode())


@pytest.mark.parametrize(
    "arguments",
    [
        ["-u", "ann", "-P", PASSWORD, "--no-such-flag"],
        ["-P", PASSWORD],
        ["-L", f"mqtt://ann:{PASSWORD.replace(' ', '')}@h:1/2"],
        ["-L", f"mqtt://ann:{PASSWORD.replace(' ', '/')}@h/t"],
        ["-L", f"nope://ann:{PASSWORD}@h/t"],
    ],
)
def test_no_complaint_has_a_password_in_it(arguments: list[str]) -> None:
    result = ran(*arguments)
    for word in PASSWORD.split():
        assert word not in result.output


# --- the will -------------------------------------------------------------------------------------


def test_a_will_is_made_of_its_flags() -> None:
    assert parsed().will is None
    assert parsed("--will-topic", "gone").will == Will("gone")
    whole = ["--will-payload", "bye", "--will-qos", "2", "--will-retain"]
    properties = ["-D", "will", "will-delay-interval", "5", "-D", "will", "user-property", "a", "b"]
    assert parsed("--will-topic", "gone", *whole, *properties).will == Will(
        "gone",
        b"bye",
        qos=2,
        retain=True,
        properties=Properties(will_delay_interval=5, user_properties=[("a", "b")]),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--will-payload", "bye"], "--will-payload needs --will-topic"),
        (["--will-qos", "0"], "--will-qos needs --will-topic"),
        (["--will-retain"], "--will-retain needs --will-topic"),
        (["-D", "will", "content-type", "t"], "-D will needs --will-topic"),
        (["--will-topic", "a/#"], "TOPIC_NAME_WITHOUT_WILDCARDS"),
        (["--will-topic", ""], "TOPIC_NAME_NOT_EMPTY"),
        (["--will-topic", "a", "--will-qos", "3"], "3"),
        (["--will-topic", "a", "--will-payload", "x" * 65_536], "the will"),
    ],
)
def test_a_will_that_cannot_be_is_refused(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


# --- properties -----------------------------------------------------------------------------------

# Every property that can be given to each packet: mosquitto's list, and the identifier of a
# subscription.
GOOD: list[tuple[str, str, tuple[str, ...], int, dict[str, Any]]] = [
    ("connect", "authentication-method", ("m",), CONNECT, {"authentication_method": "m"}),
    ("connect", "authentication-data", ("d",), CONNECT, {"authentication_data": b"d"}),
    ("connect", "maximum-packet-size", ("500",), CONNECT, {"maximum_packet_size": 500}),
    ("connect", "receive-maximum", ("20",), CONNECT, {"receive_maximum": 20}),
    ("connect", "request-problem-information", ("0",), CONNECT, {"request_problem_information": 0}),
    (
        *("connect", "request-response-information", ("1",), CONNECT),
        {"request_response_information": 1},
    ),
    ("connect", "session-expiry-interval", ("9",), CONNECT, {"session_expiry_interval": 9}),
    ("connect", "topic-alias-maximum", ("10",), CONNECT, {"topic_alias_maximum": 10}),
    ("connect", "user-property", ("n", "v"), CONNECT, {"user_properties": [("n", "v")]}),
    ("publish", "content-type", ("text",), PUBLISH, {"content_type": "text"}),
    ("publish", "correlation-data", ("\udcff",), PUBLISH, {"correlation_data": b"\xff"}),
    ("publish", "message-expiry-interval", ("7",), PUBLISH, {"message_expiry_interval": 7}),
    ("publish", "payload-format-indicator", ("1",), PUBLISH, {"payload_format_indicator": 1}),
    ("publish", "response-topic", ("r/t",), PUBLISH, {"response_topic": "r/t"}),
    ("publish", "topic-alias", ("5",), PUBLISH, {"topic_alias": 5}),
    ("publish", "user-property", ("n", "-D"), PUBLISH, {"user_properties": [("n", "-D")]}),
    ("subscribe", "subscription-identifier", ("7",), SUBSCRIBE, {"subscription_identifiers": [7]}),
    ("subscribe", "user-property", ("n", "v"), SUBSCRIBE, {"user_properties": [("n", "v")]}),
    ("unsubscribe", "user-property", ("n", "v"), UNSUBSCRIBE, {"user_properties": [("n", "v")]}),
    ("disconnect", "session-expiry-interval", ("0",), DISCONNECT, {"session_expiry_interval": 0}),
    ("disconnect", "user-property", ("n", "v"), DISCONNECT, {"user_properties": [("n", "v")]}),
    ("PUBLISH", "content-type", ("text",), PUBLISH, {"content_type": "text"}),
]


@pytest.mark.parametrize(("packet", "name", "words", "packet_type", "expected"), GOOD)
def test_a_property_goes_to_its_packet(
    packet: str, name: str, words: tuple[str, ...], packet_type: int, expected: dict[str, Any]
) -> None:
    # `-v` and `-m` before and after: whatever they take is theirs.
    connection = parsed("-vm", "-D", "-D", packet, name, *words, "-m", "--property")
    assert connection.version == MQTT5
    assert connection.properties == {packet_type: Properties(**expected)}


WILLS = [
    ("content-type", ("text",)),
    ("correlation-data", ("d",)),
    ("message-expiry-interval", ("7",)),
    ("payload-format-indicator", ("1",)),
    ("response-topic", ("r",)),
    ("user-property", ("a", "b")),
    ("will-delay-interval", ("3",)),
]


@pytest.mark.parametrize(("name", "words"), WILLS)
def test_a_will_has_properties_too(name: str, words: tuple[str, ...]) -> None:
    will = parsed("--will-topic", "t", "-D", "will", name, *words).will
    assert will is not None
    assert will.properties.present


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["connec", "user-property", "a", "b"], "properties can be given to connect, publish"),
        (["puback", "user-property", "a", "b"], "properties can be given to"),
        (["auth", "user-property", "a", "b"], "properties can be given to"),
        (["connect", "user-prop", "a"], "no property of that name"),
        (["connect", "user_property", "a"], "no property of that name"),
        (["publish", "Content-Type", "a"], "no property of that name"),
        (["connect", "receive-maximum", "abc"], "needs a number"),
        (["connect", "receive-maximum", "0"], "PROPERTY_NOT_ZERO [U5-"),
        (["connect", "receive-maximum", "70000"], "receive_maximum 70000"),
        (["connect", "maximum-packet-size", "-1"], "maximum_packet_size -1"),
        (["connect", "request-problem-information", "2"], "PROPERTY_IS_0_OR_1"),
        (["connect", "topic-alias", "5"], "PROPERTY_IN_ITS_PACKET"),
        (["connect", "server-keep-alive", "5"], "PROPERTY_IN_ITS_PACKET"),
        (["publish", "reason-string", "x"], "PROPERTY_IN_ITS_PACKET"),
        (["publish", "topic-alias", "0"], "TOPIC_ALIAS_NOT_ZERO"),
        (["publish", "payload-format-indicator", "2"], "PROPERTY_IS_0_OR_1"),
        (["publish", "response-topic", "a/#"], "TOPIC_NAME_WITHOUT_WILDCARDS"),
        (["publish", "content-type", "\udcff"], "content_type"),
        (["subscribe", "subscription-identifier", "0"], "PROPERTY_NOT_ZERO"),
        (["publish", "content-type", "a", "-D", "publish", "content-type", "b"], "PROPERTY_ONCE"),
        (["publish", "content-type"], "-D needs a packet"),
        (["publish"], "-D needs a packet"),
        (["publish", "user-property", "a"], "-D needs a packet"),
        ([], "-D needs a packet"),
    ],
)
def test_a_wrong_property_is_refused_with_the_rule(words: list[str], rule: str) -> None:
    assert rule in refused("-D", *words)


def test_properties_need_5_0() -> None:
    words = ["-D", "connect", "user-property", "a", "b"]
    assert "-D needs MQTT 5.0" in refused("-V", "311", *words)
    assert parsed("-V", "5", *words).version == MQTT5


def test_two_ways_to_say_the_session_expiry_are_one_too_many() -> None:
    words = ["-D", "connect", "session-expiry-interval", "5"]
    assert "give one" in refused("-x", "5", *words)


@pytest.mark.parametrize(
    ("given", "rest"),
    [
        (["-m", "-D", "-v"], ["-m", "-D", "-v"]),
        (["-vm", "-D"], ["-vm", "-D"]),
        (["-m-D", "-D", "a", "b", "c"], ["-m-D"]),
        (["-v", "-D", "a", "user-property", "c", "d", "-v"], ["-v", "-v"]),
        (["--long", "-D", "--", "-D", "x"], ["--long", "-D", "--", "-D", "x"]),
    ],
)
def test_only_a_d_that_is_an_option_takes_words(given: list[str], rest: list[str]) -> None:
    assert take_properties(given, {"-m": 1, "-v": 0, "--long": 1})[0] == rest


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="not installed: mosquitto_pub")
@pytest.mark.parametrize(
    "arguments",
    [
        ["-D", "connect", "receive-maximum", "0"],
        ["-D", "connect", "topic-alias", "5"],
        ["-D", "connec", "user-property", "a", "b"],
        ["-D", "publish", "content-type", "a", "-D", "publish", "content-type", "b"],
        ["-i", "a", "-I", "b"],
        ["-i", ""],
        ["-c"],
        ["-V", "6"],
        ["-p", "65536"],
        ["-q", "3"],
        ["--will-payload", "x"],
        ["--no-such-flag"],
        ["stray"],
        ["-L", "http://h/t"],
        ["-L", "mqtt://h"],
        ["-P", "password"],
        ["-t", "a/#"],
        ["-m", "two"],
        ["-f", "/no/such/file"],
        ["-V", "5", "-x", "-1"],
        ["--tls-version", "tlsv9", "--cafile", "/dev/null"],
    ],
)
def test_what_mosquitto_pub_refuses_is_refused_with_its_exit_code(arguments: list[str]) -> None:
    words = ["-t", "t", "-m", "x", *arguments]
    theirs = subprocess.run(["mosquitto_pub", *words], capture_output=True, timeout=20, check=False)
    ours = CliRunner().invoke(cli.group, ["pub", *words])
    assert ours.exit_code == theirs.returncode == 1
    assert ours.stdout == ""
    assert "Traceback" not in ours.output


def test_every_flag_on_the_page_is_one() -> None:
    """docs/reference/pub-sub.md"""
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "pub-sub.md"
    named = set(re.findall(r"`(--?[A-Za-z][a-z-]*)", page.read_text("utf-8")))
    context = click.Context(cli.group)
    known: set[str] = {"--help"}
    for name in ("pub", "sub"):
        found = cli.group.get_command(context, name)
        assert found is not None
        known.update(flag for parameter in found.params for flag in parameter.opts)
    assert len(named) > 50
    assert named <= known


# --- SCRAM ----------------------------------------------------------------------------------------


def test_with_scram_neither_name_nor_password_is_in_connect(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n", "utf-8")
    for given in (
        ["-u", "ann", "--password-file", str(secret)],
        ["-u", "ann", "-P", PASSWORD],
        ["-L", "mqtt://ann:correct%20horse@localhost/t"],
    ):
        options = parsed("--scram", *given)
        assert options.scram == ("ann", PASSWORD)
        assert (options.user_name, options.password) == (None, None)
        assert (options.address.user_name, options.address.password) == (None, None)
        assert (options.version, options.may_fall_back) == (MQTT5, False)
        assert isinstance(authentication_of(options), ScramAuthentication)
        without = parsed(*given)
        assert without.scram is None
        assert (without.user_name, without.password) == ("ann", PASSWORD.encode())
        assert authentication_of(without) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "--scram needs a user name (-u) and a password (--password-file)"),
        (["-u", "ann"], "--scram needs a user name (-u) and a password (--password-file)"),
        (["-u", "ann", "-P", "a\x07"], "--scram: the password contains the character U+0007"),
        (["-u", "ann", "-P", "\udcff"], "--scram: the password is not UTF-8"),
        (
            ["-u", "ann", "-P", "a", "-V", "3.1.1"],
            "--scram needs MQTT 5.0: leave -V out, or give -V 5",
        ),
        (
            ["-u", "ann", "-P", "a", "-D", "connect", "authentication-method", "m"],
            "give one of --scram and -D connect authentication-method",
        ),
    ],
)
def test_scram_says_what_it_needs(given: list[str], sentence: str) -> None:
    assert refused("--scram", *given) == sentence


# --- what is made of it ---------------------------------------------------------------------------


def test_a_folder_belongs_to_one_server_and_one_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    given = [
        ["-i", "a"],
        ["-i", "b"],
        ["-i", "a", "-p", "1"],
        ["-i", "a", "-h", "::1"],
        ["-i", "a", "-h", "1", "-p", "1"],
        ["-i", "1:a", "-h", "1", "-p", "1"],
        ["-i", "a", "--unix", "/x:1"],
        ["-i", "a", "--unix", "/x/1"],
        ["-i", "../../a"],
        ["-i", "é" * 300],
        ["-i", "é" * 301],
    ]
    folders = [state_folder(parsed(*arguments)) for arguments in given]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder.parent == tmp_path / "semel" / "sessions"
        folder.mkdir(parents=True)


@pytest.mark.parametrize("base", ["", "relative/path"])
def test_without_a_state_folder_it_is_the_users(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", base)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = state_folder(parsed("-i", "a"))
    assert folder.is_relative_to(tmp_path / ".local" / "state" / "semel")


def test_tls_is_as_the_flags_say() -> None:
    assert tls_context(parsed()) is None
    context = tls_context(parsed("--tls-use-os-certs", "--insecure"))
    assert context is not None
    assert not context.check_hostname
    strict = tls_context(parsed("-p", "8883"))
    assert strict is not None
    assert strict.check_hostname
