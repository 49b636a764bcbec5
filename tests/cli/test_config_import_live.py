"""Who gets in: Mosquitto with its configuration, and semel with the converted one.

Every client that Mosquitto refuses must be refused by semel, too. Every client that Mosquitto
admits is admitted, except where NARROWER says so.
"""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from semel import cli
from semel.broker.network.listener_settings import ListenerSettings
from semel.cli.sections import SECTIONS
from semel.mqtt import ConnAck, Connect
from semel.settings import Settings, load
from tests.broker.by_hand import Link
from tests.broker.transports import WebSocketEnd
from tests.cli.mosquitto_examples import PASSWORD, USER, Example
from tests.client.mosquitto import NEEDS_MOSQUITTO, PATIENCE, wait_for

pytestmark = NEEDS_MOSQUITTO

# The transports of the ports of each example that can be compared without certificates.
EXAMPLES = {
    "closed": ["tcp", "tcp"],
    "debian": ["tcp"],
    "guests": ["tcp"],
    "home": ["tcp", "ws"],
    "industry": ["tcp"],
    "old": ["tcp"],
    "other_files": ["tcp", "tcp"],
    "two_sides": ["tcp", "tcp"],
}
# User name, password; None: none.
CREDENTIALS: dict[str, tuple[str | None, str | None]] = {
    "anonymous": (None, None),
    "right": (USER, PASSWORD),
    "wrong": (USER, "a guess"),
    "without": (USER, None),
    "stranger": ("bob", PASSWORD),
}
# By example and number of its port: who is only admitted by Mosquitto.
NARROWER = {
    # Without a password_file of its own, it accepts every password.
    ("two_sides", 1): {"wrong", "without", "stranger"},
    # Tenants have separate users: the second listener is disabled.
    ("other_files", 1): {"right"},
}


def prepared(name: str, folder: Path) -> Example:
    """An example with its files."""
    example = Example(name, folder)
    example.add_passwords()
    example.add_certificates()
    return example


def converted(example: Example) -> Settings:
    """The converted settings, which `semel config check` accepts."""
    output = example.folder / "semel.toml"
    words = ["config", "import", str(example.path), "--output", str(output)]
    result = CliRunner().invoke(cli.group, words)
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(cli.group, ["config", "check", str(output)])
    assert result.exit_code == 0, result.output
    return load(SECTIONS, path=output, environ={}, flags={})


@contextmanager
def running(command: list[str], example: Example, ports: list[int]) -> Iterator[None]:
    """A broker that listens on these ports."""
    log = example.folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
    try:
        for port in ports:
            wait_for(port, process, log)
        yield
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()


@contextmanager
def mosquitto(example: Example, ports: list[int], *options: str) -> Iterator[None]:
    """Mosquitto with the example, as root, who may read its files."""
    text = example.path.read_text()
    if "user root" not in text:
        example.path.write_text(f"{text}user root\n")
    with running(["mosquitto", *options, "-c", str(example.path)], example, ports):
        yield


@contextmanager
def semel(example: Example, ports: list[int]) -> Iterator[None]:
    """`semel broker` with the converted settings."""
    settings = str(example.folder / "semel.toml")
    command = [sys.executable, "-m", "semel", "broker", "--config", settings]
    with running(command, example, ports):
        yield


def is_accepted(link: Link, user_name: str | None, password: str | None) -> bool:
    """Whether a broker accepts a client on a connection."""
    given = None if password is None else password.encode()
    with closing(link):
        link.send(Connect("c", user_name=user_name, password=given))
        (answer,) = link.take(1)
    assert isinstance(answer, ConnAck)
    return answer.reason == 0


def admitted(port: int, transport: str) -> set[str]:
    """Whom a broker admits; nobody where it does not listen."""
    found = set()
    for who, (user_name, password) in CREDENTIALS.items():
        address = ("127.0.0.1", port)
        try:
            raw = socket.create_connection(address, PATIENCE)
        except ConnectionRefusedError:
            continue
        link = Link(address, connected=raw if transport == "tcp" else WebSocketEnd(raw, "/mqtt"))
        if is_accepted(link, user_name, password):
            found.add(who)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_semel_admits_whom_mosquitto_admits(name: str, tmp_path: Path) -> None:
    example = prepared(name, tmp_path)
    settings = converted(example)
    ports = dict(zip(example.ports, EXAMPLES[name], strict=False))
    opened = {each.port for each in settings.all_of(ListenerSettings)}
    with mosquitto(example, list(ports)):
        theirs = {port: admitted(port, transport) for port, transport in ports.items()}
    with semel(example, [port for port in ports if port in opened]):
        ours = {port: admitted(port, transport) for port, transport in ports.items()}
    for number, port in enumerate(ports):
        assert ours[port] <= theirs[port], number
        assert theirs[port] - ours[port] == NARROWER.get((name, number), set()), number
    assert any(theirs.values())


def is_admitted_by_certificate(example: Example, port: int, name: str | None) -> bool:
    """Whether a client with this certificate, or with none, is admitted."""
    context = ssl.create_default_context(cafile=str(example.folder / "ca.pem"))
    if name is not None:
        context.load_cert_chain(example.folder / f"{name}.pem", example.folder / f"{name}.key")
    raw = socket.create_connection(("127.0.0.1", port), PATIENCE)
    try:
        encrypted = context.wrap_socket(raw, server_hostname="127.0.0.1")
        link = Link(("127.0.0.1", port), connected=encrypted)
        return is_accepted(link, None, None)
    except (ssl.SSLError, ConnectionError, AssertionError, EOFError):
        # In TLS 1.3 a client learns after its handshake that it was refused.
        return False
    finally:
        raw.close()


def test_semel_admits_the_certificates_that_mosquitto_admits(tmp_path: Path) -> None:
    example = prepared("industry", tmp_path)
    converted(example)
    names = ("press-7", "stranger", None)
    port = example.ports[1]
    results = []
    for broker in (mosquitto, semel):
        with broker(example, example.ports):
            results.append([is_admitted_by_certificate(example, port, each) for each in names])
    assert results == [[True, False, False]] * 2


def test_mosquitto_without_a_listener_admits_everybody_on_this_machine(tmp_path: Path) -> None:
    """Port 1883 may be in use, so the command line gives another one to Mosquitto."""
    example = Example("nothing", tmp_path)
    port = example.ports[0]
    (listener,) = converted(example).all_of(ListenerSettings)
    assert (listener.host, listener.port, listener.anonymous) == ("localhost", 1883, True)
    with mosquitto(example, [port], "-p", str(port)):
        assert admitted(port, "tcp") == set(CREDENTIALS)
    settings = tmp_path / "semel.toml"
    settings.write_text(settings.read_text().replace("port = 1883", f"port = {port}"))
    with semel(example, [port]):
        # A user name that nobody can prove is not refused: every client is anonymous.
        assert admitted(port, "tcp") == set(CREDENTIALS)
