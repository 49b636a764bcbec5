"""How the compared brokers listen, and whom they let do what: the same for each of them.

By default there is one TCP listener for everyone. Further listeners, users and rules are written in
each broker's own format, with a certificate that is made for the run.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.lab.load.description import WINDOW
from tests.broker.tls_files import SERVER_AUTH, Authority

HOST: Final = "127.0.0.1"

TCP: Final = "tcp"
TLS: Final = "tls"
WS: Final = "ws"
WSS: Final = "wss"
# A TCP listener whose clients need a password.
USERS: Final = "users"

USER: Final = "ann"
PASSWORD: Final = "correct horse"  # nosec B105 # the broker lives for a few seconds
CA: Final = "ca"
SERVER: Final = "server"

_MOSQUITTO: Final = """
allow_anonymous {anonymous}
persistence false
set_tcp_nodelay true
max_inflight_messages {window}
max_queued_messages 0
max_queued_bytes 0
log_dest stderr
"""


@dataclass(frozen=True)
class Configuration:
    """The listeners of a broker, and how many access rules it has; 0: none are configured.

    Of semel also: whether it stores messages and records all of them in a stream, and how many
    connections it permits; 0: its default.
    """

    listeners: tuple[str, ...] = (TCP,)
    rules: int = 0
    durable: bool = False
    connections: int = 0

    @property
    def has_default_listener(self) -> bool:
        """Whether everyone may do everything, over TCP."""
        return self.listeners == (TCP,) and not self.rules


PLAIN: Final = Configuration()


def make_certificate(folder: Path) -> None:
    """Files of a CA and of a server, with keys of P-256."""
    Authority(folder, CA).issue(SERVER, hosts=["localhost"], usage=SERVER_AUTH)


def write_semel(made: Configuration, ports: dict[str, int], folder: Path) -> Path:
    """A semel.toml. Raises OSError."""
    lines: list[str] = []
    for listener in made.listeners:
        transport = TCP if listener == USERS else listener
        lines += ["[[listener]]", f'name = "{listener}"', f'transport = "{transport}"']
        lines += [f'host = "{HOST}"', f"port = {ports[listener]}"]
        lines += [f"anonymous = {str(listener != USERS).lower()}"]
        if listener in (TLS, WSS):
            lines += [f'{key} = "{folder / name}"' for key, name in _files(folder).items()]
    if USERS in made.listeners:
        path = folder / "users"
        command = [sys.executable, "-m", "semel", "passwd", "add", USER, "--file", str(path)]
        command.append("--password-stdin")
        subprocess.run(command, input=PASSWORD.encode(), check=True, capture_output=True)
        lines += ["[users]", f'password_file = "{path}"']
    if made.rules:
        path = folder / "rights"
        path.write_text(_rights(made.rules))
        lines += ["[rights]", f'file = "{path}"']
    path = folder / "semel.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_mosquitto(made: Configuration, ports: dict[str, int], folder: Path) -> Path:
    """A mosquitto.conf."""
    lines = ["per_listener_settings true"] if USERS in made.listeners else []
    for listener in made.listeners:
        lines += [f"listener {ports[listener]} {HOST}"]
        if listener in (WS, WSS):
            lines += ["protocol websockets"]
        if listener in (TLS, WSS):
            lines += [f"{key} {folder / name}" for key, name in _files(folder).items()]
        anonymous = str(listener != USERS).lower()
        # Options that do not belong to a listener may be repeated.
        lines += [_MOSQUITTO.format(anonymous=anonymous, window=WINDOW)]
        if listener == USERS:
            path = folder / "users"
            command = ["mosquitto_passwd", "-b", "-c", str(path), USER, PASSWORD]
            subprocess.run(command, check=True, capture_output=True)
            lines += [f"password_file {path}"]
    if made.rules:
        path = folder / "rights"
        path.write_text(_mosquitto_acl(made.rules))
        lines += [f"acl_file {path}"]
    path = folder / "mosquitto.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def _files(folder: Path) -> dict[str, str]:
    if not (folder / f"{CA}.pem").exists():
        make_certificate(folder)
    return {"certfile": f"{SERVER}.pem", "keyfile": f"{SERVER}.key"}


def _rights(rules: int) -> str:
    """Half of the rules are for one user each, half for everyone; the last one allows the bench."""
    return "\n".join([*map(_rule, range(rules - 1)), "allow * all #", ""])


def _rule(number: int) -> str:
    if number % 2:
        return f"allow user:device-{number} all devices/{number}/#"
    return f"allow * publish,subscribe sites/{number}/+/state"


def _mosquitto_acl(rules: int) -> str:
    """The same rules. Those for everyone have to come first."""
    everyone = [f"topic readwrite sites/{number}/+/state" for number in range(0, rules - 1, 2)]
    users: Sequence[str] = [
        f"user device-{number}\ntopic readwrite devices/{number}/#"
        for number in range(1, rules - 1, 2)
    ]
    return "\n".join([*everyone, "topic readwrite #", *users, ""])
