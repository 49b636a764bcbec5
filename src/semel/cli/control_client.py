"""The client of a broker's control socket."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from semel.broker.network.control_protocol import encode_request, reachable_path
from semel.broker.network.control_settings import ControlSettings
from semel.cli.flags import CONFIG, data_option, shared_option
from semel.cli.safe_text import shown_text
from semel.cli.sections import SECTIONS
from semel.settings import load
from semel.store.settings import StoreSettings

# How long the broker may take to answer. A commit to a full disk takes up to 30 seconds.
ANSWER_SECONDS: Final = 120.0

Values = dict[str, Any]


class ControlClient:
    """A connection to the control socket of a broker. Its methods raise ClickException."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            with reachable_path(path) as reachable:
                self._socket.connect(os.fspath(reachable))
        except OSError as problem:
            self._socket.close()
            raise click.ClickException(_explain(path, problem)) from None
        self._file = self._socket.makefile("rb")

    def call(self, command: str, **arguments: object) -> tuple[list[Values], Values]:
        """Run a command of the broker. Returns its entries and its result."""
        given = {name: value for name, value in arguments.items() if value is not None}
        entries: list[Values] = []
        try:
            with suppress(BrokenPipeError):
                # A broker that refuses the connection has already written why.
                self._socket.sendall(encode_request(command, given))
            while line := self._file.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise click.ClickException(shown_text(str(answer["error"])))
                if "done" in answer:
                    return entries, answer["done"]
                entries += answer["entries"]
        except TimeoutError:
            raise click.ClickException(
                f"the broker at {self._path} has not answered within {ANSWER_SECONDS:g} seconds"
            ) from None
        except (ConnectionError, ValueError):
            pass
        raise click.ClickException(f"the broker at {self._path} has closed the connection")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


def control_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --socket, --data and --config. The function receives `broker`, a ControlClient."""

    @wraps(function)
    def with_broker(
        *, control_socket: Path | None, config: Path | None, data: Path | None, **values: Any
    ) -> None:
        if control_socket is not None and data is not None:
            raise click.UsageError("give one of --socket and --data")
        broker = ControlClient(control_socket or _find_socket(config, data))
        try:
            function(broker=broker, **values)
        finally:
            broker.close()

    decorated: Callable[..., None] = with_broker
    for option in (
        CONFIG,
        data_option(
            "The data folder of the broker, which contains its control socket.  "
            "[or SEMEL_STORE_DATA]"
        ),
        shared_option(
            "--socket",
            "control_socket",
            type=click.Path(path_type=Path),
            help="The control socket of the broker.  [or SEMEL_CONTROL_PATH]",
        ),
    ):
        decorated = option(decorated)
    return decorated


def _find_socket(config: Path | None, data: Path | None) -> Path:
    """The control socket of the settings; --data takes precedence over [control] path."""
    flags = {} if data is None else {"store": {"data": str(data)}}
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    control, folder = settings.of(ControlSettings), settings.of(StoreSettings).data
    path = ControlSettings().socket_path(folder) if data else control.socket_path(folder)
    if path is None:
        raise click.UsageError(
            "no control socket is given: use --socket PATH or --data DIR (semel up uses semel-data)"
        )
    return path


def _explain(path: Path, problem: OSError) -> str:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return (
            f"no broker listens at {path}: is it running, with --data or [control] path, and is "
            "this its data folder?"
        )
    if isinstance(problem, ConnectionRefusedError):
        return f"no broker listens at {path}: the one that made this socket has ended"
    if isinstance(problem, PermissionError):
        return f"{path} may be used by root and by the user who runs the broker only"
    return f"{path} cannot be used: {problem.strerror}"
