"""`semel config import`: what becomes of the directives of Mosquitto, and of mistakes."""

import json
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.config import find_problems
from semel.cli.conversion import (
    CHANGED,
    CONVERTED,
    NO_EQUIVALENT,
    NOT_NEEDED,
    Conversion,
    Outcome,
)
from semel.cli.mosquitto_config import (
    CHOICES,
    DIRECTIVES,
    KINDS,
    MosquittoConfig,
    MosquittoConfigError,
    read_mosquitto_config,
)
from semel.cli.mosquitto_import import convert
from semel.cli.sections import SECTIONS
from semel.settings import load
from tests.cli.mosquitto_examples import NAMES, Example
from tests.client.mosquitto import NEEDS_MOSQUITTO


def read(folder: Path, text: str) -> MosquittoConfig:
    path = folder / "mosquitto.conf"
    path.write_text(text)
    return read_mosquitto_config(path)


def converted(folder: Path, text: str) -> tuple[dict[str, object], dict[str, Outcome], str]:
    """The new settings, the outcome of the last line with each keyword, and the new file."""
    config = read(folder, text)
    conversion = convert(config)
    outcomes = conversion.in_order(config.directives)
    file = conversion.render(outcomes)
    path = folder / "semel.toml"
    path.write_text(file)
    load(SECTIONS, path=path, environ={}, flags={})
    return tomllib.loads(file), {each.directive.keyword: each for each in outcomes}, file


def listeners(folder: Path, text: str) -> list[dict[str, object]]:
    found = converted(folder, text)[0].get("listener", [])
    assert isinstance(found, list)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.group, ["config", "import", *words])


# --- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_directive_of_an_example_has_an_outcome_and_the_file_can_be_loaded(
    name: str, tmp_path: Path
) -> None:
    example = Example(name, tmp_path)
    config = read_mosquitto_config(example.path)
    conversion = convert(config)
    outcomes = conversion.in_order(config.directives)
    for each in outcomes:
        assert each.verdict == CONVERTED or each.sentence, each.line
    path = tmp_path / "semel.toml"
    path.write_text(conversion.render(outcomes))
    load(SECTIONS, path=path, environ={}, flags={})


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="not installed: mosquitto")
@pytest.mark.parametrize("name", [each for each in NAMES if each != "plugin"])
def test_the_converted_file_of_an_example_is_accepted_by_config_check(
    name: str, tmp_path: Path
) -> None:
    example = Example(name, tmp_path)
    example.add_passwords()
    example.add_certificates()
    output = tmp_path / "semel.toml"
    result = run(str(example.path), "--output", str(output))
    assert result.exit_code == 0, result.output
    assert "to do before the first start" not in result.stderr
    result = CliRunner().invoke(cli.group, ["config", "check", str(output)])
    assert result.exit_code == 0, result.output
    assert result.stdout == "the settings are valid\n"


def test_there_are_enough_examples() -> None:
    assert len(NAMES) >= 10


# --- every directive ------------------------------------------------------------------------------


def example_value(keyword: str) -> str:
    kind = KINDS[keyword]
    if keyword in CHOICES:
        return CHOICES[keyword][-1]
    if isinstance(kind, tuple):
        return str(min(kind[1], 1000))
    special = {
        "topic": "a/# both 1",
        "persistent_client_expiration": "3d",
        "address": "example.org",
        "addresses": "example.org",
        "restart_timeout": "5 30",
        "log_dest": "stderr",
    }
    return special.get(keyword, "true" if kind == "boolean" else "some/path")


@pytest.mark.parametrize(
    "keyword", [each for names in DIRECTIVES.values() for each in names if each != "include_dir"]
)
def test_every_directive_has_an_outcome(keyword: str, tmp_path: Path) -> None:
    values = [example_value(keyword)]
    if KINDS[keyword] == "boolean":
        values.append("false")
    for value in values:
        text = f"{keyword} {value}\n"
        if keyword in DIRECTIVES["bridge"]:
            address = "" if keyword.startswith("address") else "address 127.0.0.1\n"
            topic = "" if keyword == "topic" else "topic b\n"
            text = f"listener 1884 127.0.0.1\nconnection x\n{address}{topic}{text}"
        elif keyword not in DIRECTIVES["global"] and keyword not in ("port", "bind_address"):
            text = f"listener 1884 127.0.0.1\n{text}"
        outcome = converted(tmp_path, text)[1][keyword]
        assert outcome.verdict == CONVERTED or outcome.sentence
        assert "later line" not in outcome.sentence


# Directives of other versions: one of 1.6 and earlier, and those since 2.1.
OTHER_VERSIONS = {
    "store_clean_interval",
    *("accept_protocol_versions", "bridge_ciphers", "bridge_ciphers_tls1.3", "bridge_clean_start"),
    *("bridge_max_topic_alias", "bridge_receive_maximum", "bridge_reload_type"),
    *("bridge_session_expiry", "bridge_tcp_keepalive", "bridge_tcp_user_timeout"),
    *("bridge_tls_engine", "bridge_tls_use_os_certs", "disable_client_cert_date_checks"),
    *("enable_control_api", "enable_proxy_protocol", "global_max_clients"),
    *("global_max_connections", "global_plugin", "listener_allow_anonymous"),
    *("listener_auto_id_prefix", "max_topic_alias_broker", "packet_buffer_size", "plugin_load"),
    *("plugin_use", "proxy_protocol_v2_require_tls", "retain_expiry_interval"),
    *("websockets_origin",),
}


@NEEDS_MOSQUITTO
def test_mosquitto_knows_every_directive(tmp_path: Path) -> None:
    """An unknown last line lets Mosquitto end when it has read the file."""
    path = tmp_path / "mosquitto.conf"
    unknown = set()
    for keyword in [*KINDS, "connection", "listener"]:
        path.write_text(f"{keyword}\nend_of_file 1\n")
        result = subprocess.run(
            ["mosquitto", "-c", path], capture_output=True, text=True, check=False
        )
        assert result.returncode != 0
        if f'Unknown configuration variable "{keyword}"' in result.stderr + result.stdout:
            unknown.add(keyword)
    assert unknown <= OTHER_VERSIONS


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = [
    ("allow_anonymous\n", "line 1: allow_anonymous has no value"),
    ("allow_anonymous maybe\n", 'line 1: allow_anonymous is "maybe", but must be true or false'),
    ("allow_anonymous TRUE\n", "must be true or false"),
    ("\n\nlistner 1883\n", 'line 3: Mosquitto has no directive "listner"; did you mean listener?'),
    ("nonsense 1\n", 'line 1: Mosquitto has no directive "nonsense"'),
    ("listener\t1883\n", "a space must follow the directive, not a tab"),
    ("listener abc\n", 'listener has the port "abc", but must have one from 1 to 65535'),
    ("listener 70000\n", "from 1 to 65535"),
    ("listener 0\n", "listener has port 0 without the path of a Unix socket"),
    ("port 0\n", 'port is "0", but must be a number, from 1 to 65535'),
    ("listener 1884\nprotocol xx\n", 'protocol is "xx", but must be one of mqtt'),
    ("persistent_client_expiration 3x\n", "must be a number followed by h, d, w, m or y"),
    ("allow_anonymous true\nper_listener_settings true\n", "must come before all directives"),
    ("persistence_location /a\npersistence_location /b\n", "is given a second time, after"),
    ("address x:1\n", "address is outside of a bridge: it must come after `connection NAME`"),
    ("connection a\ntopic x\n", "connection a has no address"),
    ("connection a\naddress localhost:2\n", "connection a has no topic"),
    ("connection a\naddress localhost:2\ntopic # both 3\n", 'topic has the QoS "3"'),
    ("connection a\naddress localhost:2\ntopic # up\n", 'topic has the direction "up"'),
    ("connection a\naddress localhost:x\ntopic #\n", "must have HOST or HOST:PORT"),
    ("log_type foo\n", 'log_type is "foo", but must be one of all, debug'),
    ("max_keepalive 70000\n", "from 0 to 65535"),
    ('connection a\naddress h:2\ntopic "" out 0 a\n', "needs a local and a remote prefix"),
    ("mount_point a/\n", "mount_point must come after a listener"),
    ("include_dir /no/such/folder\n", "line 1: include_dir /no/such/folder cannot be read"),
]
# Mistakes that Mosquitto accepts, and reads in a way that nobody meant.
STRICTER = [
    ("max_queued_messages 12abc\n", 'is "12abc", but must be a number, at least 0'),
    ("max_queued_messages x\n", "must be a number, at least 0"),
    ("connection a\naddress localhost:2\ntopic # out 1 a/ b/ c/\n", "topic has more words"),
    ("connection a\naddress h:2\ntopic #\nrestart_timeout x\n", "one or two numbers of seconds"),
    ("connection a\naddress h:2\ntopic a/#/b\n", "is not a topic filter"),
]


@pytest.mark.parametrize(("text", "sentence"), [*MISTAKES, *STRICTER])
def test_a_mistake_is_reported_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    result = run(str(path))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert sentence in result.stderr.replace(f"{path}, ", "").replace("'", '"')
    assert str(path) in result.stderr


@NEEDS_MOSQUITTO
@pytest.mark.parametrize("text", [text for text, _ in MISTAKES])
def test_mosquitto_reports_the_same_mistakes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    result = subprocess.run(
        ["mosquitto", "-c", path], capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode != 0
    assert "Error" in result.stderr + result.stdout


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(MosquittoConfigError) as caught:
        read(tmp_path, "port 0\nlistener x\nfoo\n")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"user \xff\n", "line 1: is not UTF-8"),
        (b"user a\0b\n", "is not a configuration file of Mosquitto"),
        (b"# x\n" * 2_000_000, "is not a configuration file of Mosquitto"),
    ],
)
def test_a_file_of_another_kind_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(content)
    result = run(str(path))
    assert result.exit_code == 1
    assert sentence in result.stderr
    path.write_bytes(b"user a\r\n")
    assert run(str(path)).exit_code == 0


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.conf"))
    assert result.exit_code == 1
    assert "none.conf: cannot be read: No such file or directory" in result.stderr


# --- listeners ------------------------------------------------------------------------------------


def test_no_listener_is_one_for_this_machine(tmp_path: Path) -> None:
    (found,) = listeners(tmp_path, "")
    assert found == {"name": "local", "host": "localhost", "port": 1883, "anonymous": True}
    # What does not make a default listener in Mosquitto makes none here.
    for text in ("tls_version tlsv1.2\n", "max_connections -1\n", "protocol mqtt\n"):
        assert [each["name"] for each in listeners(tmp_path, text)] == ["local"]


def test_a_directive_before_the_first_listener_opens_the_default_one(tmp_path: Path) -> None:
    found = listeners(tmp_path, "max_connections 5\nlistener 1884 127.0.0.1\n")
    assert [(each["host"], each["port"]) for each in found] == [
        ("0.0.0.0", 1883),
        ("::", 1883),
        ("127.0.0.1", 1884),
    ]
    assert [each["anonymous"] for each in found] == [False, False, False]
    assert found[0]["maximum_connections"] == 5
    _, outcomes, file = converted(tmp_path, "max_qos 1\n")
    assert outcomes["max_qos"].verdict == NO_EQUIVALENT
    assert "By default, Mosquitto listens by IPv4 and IPv6" in file


def test_a_listener_without_an_address_has_one_for_each_family(tmp_path: Path) -> None:
    text = "listener 1884\nallow_anonymous true\n"
    assert [each["host"] for each in listeners(tmp_path, text)] == ["0.0.0.0", "::"]
    for family, host in (("ipv4", "0.0.0.0"), ("ipv6", "::")):
        assert [
            each["host"] for each in listeners(tmp_path, f"{text}socket_domain {family}\n")
        ] == [host]
    assert [each["host"] for each in listeners(tmp_path, "listener 1884 ::1 # me\n")] == ["::1"]


def test_anonymous_is_always_explicit(tmp_path: Path) -> None:
    for text, expected in (
        ("listener 1884 127.0.0.1\n", False),
        ("listener 1884 127.0.0.1\nallow_anonymous false\n", False),
        ("listener 1884 127.0.0.1\nallow_anonymous true\n", True),
        ("listener 1884 127.0.0.1\nallow_anonymous true\nplugin x.so\n", False),
        ("per_listener_settings true\nallow_anonymous true\nlistener 1884 127.0.0.1\n", False),
        ("", True),
        ("allow_anonymous false\n", False),
        ("plugin x.so\n", False),
    ):
        assert [each["anonymous"] for each in listeners(tmp_path, text)] == [expected], text


def test_transports(tmp_path: Path) -> None:
    tls = "certfile a.pem\nkeyfile b.pem\n"
    for text, transport in (
        ("listener 1884 127.0.0.1\n", "tcp"),
        (f"listener 1884 127.0.0.1\n{tls}", "tls"),
        ("listener 1884 127.0.0.1\nprotocol websockets\n", "ws"),
        (f"listener 1884 127.0.0.1\nprotocol websockets\n{tls}", "wss"),
        ("listener 0 /run/a b.sock\n", "unix"),
    ):
        (found,) = listeners(tmp_path, text)
        assert found["transport"] == transport
        if transport == "unix":
            assert found["path"] == "/run/a b.sock"
            assert "port" not in found


def test_client_certificates(tmp_path: Path) -> None:
    text = "listener 1884 127.0.0.1\ncertfile a.pem\nkeyfile b.pem\ncafile c.pem\n"
    settings, outcomes, _ = converted(tmp_path, text)
    assert "cafile" not in settings["listener"][0]  # type: ignore[index]
    assert outcomes["cafile"].verdict == NOT_NEEDED
    assert "append the chain to certfile" in outcomes["cafile"].sentence
    text += "require_certificate true\nuse_identity_as_username true\ncrlfile d.pem\n"
    settings, outcomes, _ = converted(tmp_path, text)
    (found,) = listeners(tmp_path, text)
    assert found["client_certificate"] == "required"
    assert (found["cafile"], found["crlfile"]) == ("c.pem", "d.pem")
    assert settings["users"] == {"certificate_users": "common_name"}
    assert {each.verdict for each in outcomes.values()} == {CONVERTED}


def test_old_versions_of_tls_are_not_converted(tmp_path: Path) -> None:
    text = "listener 1884 127.0.0.1\ncertfile a.pem\nkeyfile b.pem\ntls_version "
    assert listeners(tmp_path, f"{text}tlsv1.3\n")[0]["tls_version"] == "1.3"
    settings, outcomes, _ = converted(tmp_path, f"{text}tlsv1.1\n")
    assert "tls_version" not in settings["listener"][0]  # type: ignore[index]
    assert outcomes["tls_version"].verdict == CHANGED
    assert outcomes["tls_version"].sentence == "the lowest version of semel is TLS 1.2"


def test_a_certificate_without_a_key_is_never_a_plain_listener(tmp_path: Path) -> None:
    """Mosquitto opens a plain listener."""
    settings, outcomes, _ = converted(tmp_path, "listener 1884 127.0.0.1\ncertfile a.pem\n")
    assert settings["listener"][0]["transport"] == "tls"  # type: ignore[index]
    assert outcomes["certfile"].verdict == CHANGED


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("mount_point a/", "its clients would see the topics of all other clients"),
        ("psk_hint x", "it uses pre-shared keys"),
        ("bind_interface eth0", "set host to the address of the interface"),
        ("use_subject_as_username true", "from the Common Name only"),
        ("use_identity_as_username true", "admits nobody without require_certificate true"),
        ("password_file b", "semel has one password_file for all listeners"),
        ("password_file a\nacl_file b", "semel has one file of rights for all listeners"),
        ("", "Mosquitto admits nobody here"),
    ],
)
def test_a_listener_that_would_admit_more_is_disabled(
    lines: str, reason: str, tmp_path: Path
) -> None:
    first = "listener 1884 127.0.0.1\npassword_file a\nacl_file a\n"
    text = f"per_listener_settings true\n{first}listener 1885 127.0.0.1\n{lines}\n"
    settings, _, file = converted(tmp_path, text)
    assert [each["port"] for each in settings["listener"]] == [1884]  # type: ignore[attr-defined]
    words = " ".join(file.replace("\n# ", " ").split())
    assert re.search(r"This table is disabled, because [^#]*" + re.escape(reason), words), file
    assert "#port = 1885" in file
    # The same without it is not disabled.
    text = f"per_listener_settings true\n{first}listener 1885 127.0.0.1\npassword_file a\n"
    settings, _, file = converted(tmp_path, text)
    assert [each["port"] for each in settings["listener"]] == [1884, 1885]  # type: ignore[attr-defined]
    assert "disabled" not in file


def test_if_all_listeners_are_disabled_nobody_gets_in(tmp_path: Path) -> None:
    """Without a [[listener]], that of [broker] would admit everybody on this machine."""
    text = "listener 1884 127.0.0.1\nallow_anonymous true\n"
    settings, outcomes, file = converted(tmp_path, f"{text}clientid_prefixes dev-\n")
    assert "listener" not in settings
    assert settings["broker"]["anonymous"] is False  # type: ignore[index]
    assert outcomes["clientid_prefixes"].verdict == NO_EQUIVALENT
    (problem,) = find_problems(file, "new")
    assert "nobody could connect to listener default" in problem
    settings, _, file = converted(tmp_path, text)
    assert "anonymous" not in settings["broker"]  # type: ignore[operator]
    assert find_problems(file, "new") == ()


def test_a_password_beside_a_certificate_stays_required(tmp_path: Path) -> None:
    tls = "certfile a\nkeyfile b\ncafile c\nrequire_certificate true\n"
    text = (
        f"password_file p\nlistener 1884 127.0.0.1\n{tls}use_identity_as_username true\n"
        f"listener 1885 127.0.0.1\n{tls}"
    )
    settings, _, file = converted(tmp_path, text)
    assert [each["port"] for each in settings["listener"]] == [1884]  # type: ignore[attr-defined]
    assert "a certificate is enough in semel" in file.replace("\n# ", " ")
    settings, _, file = converted(tmp_path, text.replace("use_identity_as_username true\n", ""))
    assert [each["port"] for each in settings["listener"]] == [1884, 1885]  # type: ignore[attr-defined]


def test_rules_that_hold_for_more_listeners_are_pointed_out(tmp_path: Path) -> None:
    text = (
        "per_listener_settings true\nlistener 1884 127.0.0.1\nacl_file rules\n"
        "allow_anonymous true\nlistener 1885 127.0.0.1\nallow_anonymous true\n"
    )
    settings, _, file = converted(tmp_path, text)
    assert settings["rights"] == {"mosquitto_acl_file": "rules"}
    assert "Here the rules of rules hold for them, too." in file.replace("\n# ", " ")


def test_a_listener_of_another_protocol_is_left_out(tmp_path: Path) -> None:
    text = "listener 1884 127.0.0.1\nlistener 1885\nprotocol mqttsn\nmax_connections 4\n"
    settings, outcomes, _ = converted(tmp_path, text)
    assert [each["port"] for each in settings["listener"]] == [1884]  # type: ignore[attr-defined]
    assert outcomes["max_connections"].verdict == NO_EQUIVALENT


def test_listeners_have_different_names(tmp_path: Path) -> None:
    text = "listener 1884 127.0.0.1\nlistener 1884 127.0.0.2\nlistener 0 /a\nlistener 0 /b\n"
    names = [each["name"] for each in listeners(tmp_path, text)]
    assert names == ["tcp-1884", "tcp-1884-2", "unix", "unix-2"]


# --- limits, log and store ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_inflight_messages 5", {"inflight_window": 5, "receive_maximum": 5}),
        ("max_inflight_messages 0", {"inflight_window": 65535, "receive_maximum": 65535}),
        ("max_queued_messages 7", {"maximum_queued_messages": 7}),
        ("max_queued_messages 0", {}),
        ("max_queued_bytes 4096", {"maximum_queued_bytes": "4KiB"}),
        ("max_packet_size 2048", {"maximum_packet_size": "2KiB"}),
        ("max_keepalive 60", {"maximum_keep_alive": "1m"}),
        ("memory_limit 1024", {"maximum_memory": "64MiB"}),
        ("message_size_limit 0", {}),
        ("message_size_limit 1000", {"maximum_packet_size": "129KiB"}),
        ("message_size_limit 1000\nmax_packet_size 2048", {"maximum_packet_size": "2KiB"}),
        ("global_max_connections 5", {"maximum_connections": 5}),
        ("global_max_connections -1", {}),
        ("sys_interval 0", {"sys_interval": 0}),
        ("connection_messages false", {"connection_messages": False}),
        ("persistent_client_expiration 2m", {"maximum_session_expiry": "60d"}),
        ("persistent_client_expiration 999y", {"maximum_session_expiry": "4294967295s"}),
        ("allow_duplicate_messages false", {"overlapping": "once"}),
        ("", {"overlapping": "each", "maximum_session_expiry": "4294967295s"}),
        ("log_type error", {"log_level": "error"}),
        ("log_type none", {"log_level": "error"}),
        ("log_type error\nlog_type warning", {"log_level": "warning"}),
        ("log_type error\nlog_type debug", {"log_level": "info"}),
    ],
)
def test_numbers_and_switches_of_the_broker(
    line: str, expected: dict[str, object], tmp_path: Path
) -> None:
    broker = converted(tmp_path, f"{line}\n")[0]["broker"]
    assert isinstance(broker, dict)
    for key, value in expected.items():
        assert broker[key] == value
    if not expected:
        assert set(broker) == {"overlapping", "maximum_session_expiry"}


def test_persistence_becomes_a_store_beside_the_old_one(tmp_path: Path) -> None:
    assert "store" not in converted(tmp_path, "persistence false\n")[0]
    assert "store" not in converted(tmp_path, "persistence_location /a\n")[0]
    assert converted(tmp_path, "persistence true\n")[0]["store"] == {"data": "semel-data"}
    settings, outcomes, _ = converted(
        tmp_path, "persistence true\npersistence_location /var/lib/mosquitto/\n"
    )
    assert settings["store"] == {"data": "/var/lib/mosquitto/semel"}
    assert "does not read mosquitto.db" in outcomes["persistence"].sentence


def test_the_head_of_the_file_names_limits_that_mosquitto_does_not_have(tmp_path: Path) -> None:
    _, _, file = converted(tmp_path, "")
    head = file.partition("[broker]")[0].replace("\n# ", " ")
    assert "A packet of a client has at most 1MiB, where Mosquitto sets no limit" in head
    _, _, file = converted(tmp_path, "max_packet_size 2000\n")
    assert "A packet of a client" not in file


# --- bridges --------------------------------------------------------------------------------------


def test_bridges(tmp_path: Path) -> None:
    example = Example("bridges", tmp_path)
    config = read_mosquitto_config(example.path)
    conversion = convert(config)
    outcomes = conversion.in_order(config.directives)
    cloud, partner = tomllib.loads(conversion.render(outcomes))["bridge"]
    assert cloud == {
        "name": "cloud",
        "data": "bridge-cloud",
        "local": f"mqtt://127.0.0.1:{example.ports[0]}",
        "remote": "mqtts://mqtt.example.org:8883",
        "to_remote": ["'#' local plant/ remote sites/7/ qos 2"],
        "to_local": ["'commands/#' remote sites/7/ qos 1"],
        "remote_client_id": "site-7",
        "remote_password": "a secret of ours",
        "remote_username": "site-7",
        "remote_cafile": f"{tmp_path}/ca.pem",
        "keep_alive": "30s",
        "remote_mqtt_version": "5",
        "longest_wait": "30s",
    }
    assert partner == {
        "name": "partner-ltd.",
        "data": "bridge-partner-ltd.",
        "local": f"mqtt://127.0.0.1:{example.ports[0]}",
        "remote": "mqtt://192.0.2.7:1883",
        "to_remote": ["temp local plant/ remote shared/ qos 1"],
    }
    lines = {each.directive.text: each for each in outcomes}
    assert lines['topic "" out 1 plant/total shared/sum'].verdict == NO_EQUIVALENT
    assert lines["notifications false"].verdict == NOT_NEEDED
    assert "one remote address" in lines["address 192.0.2.7 192.0.2.8:1884"].sentence


def test_the_password_of_a_bridge_is_only_in_the_new_settings(tmp_path: Path) -> None:
    example = Example("bridges", tmp_path)
    result = run(str(example.path))
    assert result.stdout.count("a secret of ours") == 1
    assert "secret" not in result.stderr
    found = json.loads(run(str(example.path), "--json").stdout)
    assert "secret" not in json.dumps(found["directives"])


def test_the_local_side_of_a_bridge_is_the_first_usable_listener(tmp_path: Path) -> None:
    bridge = "connection a\naddress h:1\ntopic #\n"
    for lines, local in (
        ("listener 1884\nallow_anonymous true\n", "mqtt://127.0.0.1:1884"),
        ("listener 1884 ::1\nallow_anonymous true\n", "mqtt://[::1]:1884"),
        ("listener 0 /run/a\nallow_anonymous true\n", "unix:/run/a"),
        ("listener 1884 h\ncertfile a\nkeyfile b\n", "mqtts://h:1884"),
        ("listener 1884 h\nprotocol websockets\nlistener 1885 h\n", "mqtt://h:1885"),
        ("listener 1884 h\nprotocol websockets\n", "ws://h:1884/mqtt"),
    ):
        settings, _, file = converted(tmp_path, lines + bridge)
        assert settings["bridge"][0]["local"] == local  # type: ignore[index]
        has_note = "The local broker admits no anonymous clients" in file
        assert has_note is ("anonymous" not in lines)
    settings, _, file = converted(tmp_path, f"listener 1884\nmount_point a/\n{bridge}")
    assert "bridge" not in settings
    assert "no listener is enabled" in file


BRIDGE = "listener 1884 h\nconnection a\naddress h:1\ntopic #\n"


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("log_dest none\n", NO_EQUIVALENT, "/dev/null"),
        ("log_dest syslog\n", NO_EQUIVALENT, "systemd keeps it in the journal"),
        ("listener 1884 h\nmax_qos 1\n", NO_EQUIVALENT, "limit the QoS by rules"),
        ("listener 1884 h\nmax_qos 2\n", NOT_NEEDED, "in Mosquitto either"),
        ("listener 1884 h\nmax_connections -1\n", CHANGED, "limits all listeners together"),
        ("listener 1884 h\nprotocol websockets\n", CHANGED, "on every path, semel on /mqtt only"),
        ("password_file a\n", CONVERTED, ""),
        (f"{BRIDGE}bridge_protocol_version mqttv31\n", CHANGED, "semel speaks MQTT 3.1.1"),
        (f"{BRIDGE}bridge_tls_version tlsv1.1\n", CHANGED, "the lowest version is tlsv1.2"),
        (f"{BRIDGE}bridge_max_packet_size 0\n", CHANGED, "always has a limit"),
        (f"{BRIDGE}keepalive_interval 0\n", CONVERTED, ""),
        (f"{BRIDGE}notifications true\n", NO_EQUIVALENT, "status.json"),
        (f"{BRIDGE}bridge_outgoing_retain true\n", NOT_NEEDED, "semel does it this way"),
        (f"{BRIDGE}bridge_outgoing_retain false\n", NO_EQUIVALENT, "stay retained"),
    ],
)
def test_outcomes_of_the_last_line(text: str, verdict: str, words: str, tmp_path: Path) -> None:
    config = read(tmp_path, text)
    outcome = convert(config).outcomes[config.directives[-1]]
    assert outcome.verdict == verdict
    assert words in outcome.sentence


@pytest.mark.parametrize(
    "text",
    [
        "sys_interval 1\nsys_interval 2\n",
        "allow_anonymous true\nallow_anonymous false\nlistener 1884 h\n",
        "max_qos 1\nmax_qos 0\n",
    ],
)
def test_a_line_that_a_later_one_overrides_has_no_effect(text: str, tmp_path: Path) -> None:
    config = read(tmp_path, text)
    outcome = convert(config).outcomes[config.directives[0]]
    assert (outcome.verdict, outcome.sentence) == (NOT_NEEDED, "a later line overrides it")


def test_keys_of_websockets(tmp_path: Path) -> None:
    text = (
        "listener 1884 h\nprotocol websockets\nwebsockets_headers_size 2048\n"
        "websockets_origin https://a\nwebsockets_origin https://b\nenable_proxy_protocol 2\n"
    )
    (found,) = listeners(tmp_path, text)
    assert found["maximum_header_bytes"] == "2KiB"
    assert found["origins"] == ["https://a", "https://b"]
    assert found["proxy_protocol"] is True
    settings, _, file = converted(tmp_path, "listener 0 /run/a\nprotocol websockets\n")
    assert "listener" not in settings
    assert "semel has no WebSocket over a Unix socket" in file


def test_bridges_have_different_names_and_folders(tmp_path: Path) -> None:
    text = BRIDGE + BRIDGE.partition("\n")[2].replace("topic #", "topic b")
    bridges = converted(tmp_path, text)[0]["bridge"]
    assert isinstance(bridges, list)
    assert [each["name"] for each in bridges] == ["a", "a-2"]
    assert len({each["data"] for each in bridges}) == 2


# --- the command ----------------------------------------------------------------------------------


def test_the_output_is_a_private_new_file(tmp_path: Path) -> None:
    example = Example("home", tmp_path)
    output = tmp_path / "semel.toml"
    result = run(str(example.path), "--output", str(output))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    written = output.read_text()
    assert run(str(example.path)).stdout == written
    result = run(str(example.path), "--output", str(output))
    assert result.exit_code == 1
    assert f"{output} exists: remove it, or choose another --output" in result.stderr
    assert output.read_text() == written
    result = run(str(example.path), "--output", str(tmp_path / "none" / "semel.toml"))
    assert result.exit_code == 1
    assert "semel.toml: cannot be written: No such file or directory" in result.stderr


def test_the_list_has_one_line_for_each_directive_and_a_summary(tmp_path: Path) -> None:
    example = Example("home", tmp_path)
    lines = run(str(example.path)).stderr.splitlines()
    config = read_mosquitto_config(example.path)
    assert len(lines) == len(config.directives) + 1
    assert lines[0] == f"{example.path}, line 2: listener {example.ports[0]} 127.0.0.1: converted"
    assert lines[-1].startswith(f"{len(config.directives)} directives: ")
    found = json.loads(run(str(example.path), "--json").stdout)
    assert len(found["directives"]) == len(config.directives)
    assert found["problems"] == []
    assert tomllib.loads(found["settings"])["broker"]["maximum_queued_messages"] == 5000


def test_what_is_still_to_do_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text("listener 1884\n")
    result = run(str(path))
    assert result.exit_code == 0
    assert (
        "to do before the first start: nobody could connect to listener tcp-1884" in result.stderr
    )
    assert find_problems("[broker]\nports = 1\n", "new") == (
        'new, line 2: [broker] has no key "ports"; did you mean port?',
    )


def test_control_characters_of_a_file_stay_in_it(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(b"user a\x1b[2Jb\npid_file /x\ry\n")
    result = run(str(path))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    tomllib.loads(result.stdout)


def test_included_files_are_read_in_mosquittos_order(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for number, name in enumerate(("b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "x.txt")):
        (folder / name).write_text(f"listener {2000 + number} 127.0.0.1\n")
    found = listeners(tmp_path, f"include_dir {folder}\nlistener 3000 127.0.0.1\n")
    assert [each["port"] for each in found] == [2002, 2001, 2003, 2004, 2000, 3000]


def test_an_outcome_keeps_the_worst_verdict_and_all_sentences(tmp_path: Path) -> None:
    directive = read(tmp_path, "user a\n").directives[0]
    conversion = Conversion("x")
    conversion.note(directive, CHANGED, "one")
    conversion.note(directive, CONVERTED)
    conversion.note(directive, CHANGED, "two")
    (outcome,) = conversion.in_order([directive])
    assert (outcome.verdict, outcome.sentence) == (CHANGED, "one; two")
