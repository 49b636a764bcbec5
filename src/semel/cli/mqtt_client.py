"""A Client from the flags of `semel pub` and `semel sub`, and how its failures end a command.

The exit codes are those of Mosquitto's tools: 0; the code with which the server refused the
connection (5 or 135 for bad credentials); and the codes of libmosquitto: 1 for wrong flags, file
errors and a server that cannot be reached, 2 for a server that violates the protocol, 7 for a lost
connection, 27 for a timeout. Where Mosquitto's tools print a warning and exit with 0, semel exits
with the server's code: for a refused message or subscription, and for a DISCONNECT.
"""

import asyncio
import functools
import hashlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from semel.cli.mqtt_options import ConnectionOptions
from semel.cli.packet_lines import PacketLines, tapped
from semel.cli.safe_text import shown_text
from semel.client import Client, ClientAuthentication, Disconnected, Refused
from semel.client.address import BadAddress
from semel.client.connector import Connector, open_transport
from semel.client.scram import ScramAuthentication
from semel.client.tls import TlsError, make_context
from semel.extras import MissingExtra
from semel.mqtt import MQTT5, MQTT311, Properties, Violation
from semel.mqtt.packet_types import CONNECT, DISCONNECT
from semel.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.store.schema import Unusable

LOG: Final = logging.getLogger("semel.client")

DONE: Final = 0
FAILED: Final = 1
PROTOCOL_BROKEN: Final = 2
LOST: Final = 7
TIMED_OUT: Final = 27
# A shell reports a program that a signal ended with this and the number of the signal.
SIGNALLED: Final = 128

# Unless -D connect receive-maximum is given.
DEFAULT_RECEIVE_MAXIMUM: Final = 100
# The longest directory name that every file system accepts.
MOST_NAME: Final = 200
# Properties of CONNECT for which Client has arguments.
ARGUMENTS: Final = (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
)


class Failure(Exception):
    """The command fails with this sentence and exit code."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class VersionRefused(Failure):
    """The server refused the version of MQTT."""


class FixedAuthentication(ClientAuthentication):
    """An authentication of one step, with the method and data of -D connect."""

    def __init__(self, method: str, data: bytes | None) -> None:
        super().__init__(method)
        self.data = data

    def begin(self) -> bytes | None:
        return self.data

    def respond(self, data: bytes | None) -> bytes | None:
        raise Disconnected("the server requests a second authentication step, which -D cannot give")


def state_folder(connection: ConnectionOptions) -> Path:
    """The directory for this side's state of a session that outlives the command."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # [XDG] a relative path is ignored
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    address = connection.address
    where = address.path if address.scheme == "unix" else address.where
    name = f"{quote(where, safe='')}:{quote(connection.client_id, safe='')}"
    if len(name) > MOST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return root / "semel" / "sessions" / name


def tls_context(connection: ConnectionOptions) -> ssl.SSLContext | None:
    """The TLS context of the flags. Raises Failure."""
    tls = connection.tls
    if tls is None:
        return None
    try:
        return make_context(
            cafile=tls.cafile,
            capath=tls.capath,
            certfile=tls.cert,
            keyfile=tls.key,
            insecure=tls.insecure,
            minimum_version=tls.version,
            ciphers=tls.ciphers,
            alpn=tls.alpn,
        )
    except TlsError as problem:
        raise Failure(str(problem)) from None


def connector_of(connection: ConnectionOptions) -> Connector:
    """How to connect: from the address of -A, and with the packet lines of -d."""
    opening: Connector = open_transport
    if connection.bind_address is not None:
        opening = functools.partial(open_transport, local_host=connection.bind_address)
    if connection.debug:
        opening = tapped(opening, PacketLines(connection.version, print_to_stderr))
    return opening


def authentication_of(connection: ConnectionOptions) -> ClientAuthentication | None:
    """The authentication that --scram or -D connect requests, or None."""
    if connection.scram is not None:
        return ScramAuthentication(*connection.scram)
    given = connection.properties_of(CONNECT)
    method = given.authentication_method
    return None if method is None else FixedAuthentication(method, given.authentication_data)


def make_client(connection: ConnectionOptions, *, reconnect: bool, outlives_loss: bool) -> Client:
    """The Client of the flags. Raises Failure.

    `outlives_loss` is for a command that runs until it is stopped: its session survives a short
    loss of the connection, but ends with the command.
    """
    given = connection.properties_of(CONNECT)
    outbox = None
    expiry = connection.session_expiry
    if expiry is None and not outlives_loss:
        expiry = 0
    if connection.persistent and expiry:
        outbox = state_folder(connection)
    if connection.version == MQTT311 and expiry:
        expiry = NEVER_EXPIRES
    try:
        if outbox is not None:
            outbox.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Client(
            connection.address,
            client_id=connection.client_id,
            version=connection.version,
            session_expiry=expiry,
            # Without -c the session is new. With -c, a session of the server without state on
            # this side is an error: it is not discarded silently.
            clean_start=not connection.persistent,
            keep_alive=connection.keep_alive,
            user_name=connection.user_name,
            password=connection.password,
            will=connection.will,
            receive_maximum=given.receive_maximum or DEFAULT_RECEIVE_MAXIMUM,
            maximum_packet_size=given.maximum_packet_size,
            properties=Properties([item for item in given.items if item[0] not in ARGUMENTS]),
            tls=tls_context(connection),
            authentication=authentication_of(connection),
            reconnect=reconnect,
            outbox=outbox,
            connector=connector_of(connection),
        )
    except (Violation, BadAddress) as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(f"the state of the session cannot be stored: {problem}") from None


async def connect(
    connection: ConnectionOptions, *, reconnect: bool, outlives_loss: bool
) -> tuple[Client, ConnectionOptions]:
    """Connect: the client, and the options with the version that the server accepted.

    Without -V, if the server refuses 5.0, connects with 3.1.1. Afterwards, warnings of the client
    are printed. Raises Failure.
    """
    client = make_client(connection, reconnect=reconnect, outlives_loss=outlives_loss)
    with ConnectProblem() as latest:
        try:
            await client.connect()
            if not client.connected:
                # A client with an outbox would retry forever, but a command should fail.
                await client.close()
                raise Failure(latest.sentence or "the server cannot be reached")
        except Disconnected as problem:
            is_theirs = problem.reason is not None or problem.violation is not None
            raise Failure(str(problem), code_of(problem) if is_theirs else FAILED) from None
        except Refused as problem:
            if problem.refuses_version and connection.may_fall_back:
                return await connect(
                    connection.with_311(), reconnect=reconnect, outlives_loss=outlives_loss
                )
            raise refusal(problem, connection) from None
        except (Unusable, MissingExtra) as problem:
            raise Failure(str(problem)) from None
    if not connection.quiet:
        LOG.addHandler(Warnings(logging.WARNING))
    return client, connection


async def disconnect(client: Client, connection: ConnectionOptions, reason: int = 0) -> None:
    """Close the client, with the properties of -D. Raises Failure if these break a rule."""
    try:
        await client.close(reason, properties=connection.properties_of(DISCONNECT))
    except Violation as problem:
        await client.close(reason)
        raise Failure(str(problem)) from None


def refusal(problem: Refused, connection: ConnectionOptions) -> Failure:
    """The Failure for a refused connection, with advice if the version was refused."""
    if not problem.refuses_version:
        return Failure(str(problem), problem.reason)
    name, other = ("5.0", "3.1.1") if connection.version == MQTT5 else ("3.1.1", "5")
    return VersionRefused(
        f"the server refused the connection with MQTT {name}: try -V {other}", problem.reason
    )


def code_of(problem: Refused | Disconnected) -> int:
    """The exit code for what the server did."""
    if isinstance(problem, Refused):
        return problem.reason
    if problem.violation is not None:
        return PROTOCOL_BROKEN
    return problem.reason or LOST


class Warnings(logging.Handler):
    """Prints warnings of the client to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_to_stderr(f"Warning: {record.getMessage()}")


class ConnectProblem(logging.Handler):
    """Records, while it is a context, why the client cannot connect although it will retry."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentence = ""

    def emit(self, record: logging.LogRecord) -> None:
        problems = [each for each in record.args or () if isinstance(each, Exception)]
        self.sentence = str(problems[0]) if problems else record.getMessage()

    def __enter__(self) -> "ConnectProblem":
        LOG.addHandler(self)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        LOG.removeHandler(self)


def print_to_stderr(sentence: str) -> None:
    """Print one line. Text of a peer in it cannot control the terminal."""
    click.echo(shown_text(sentence), err=True)


class StoppedBySignal(Exception):
    """SIGINT or SIGTERM was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Do the work. A signal cancels it and is raised as StoppedBySignal."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def stop(number: int) -> None:
        # A second signal also cancels the wait for the connection to close.
        received.append(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise StoppedBySignal(received[0]) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(connection: ConnectionOptions, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command and exit."""
    LOG.propagate = False
    LOG.addHandler(logging.NullHandler())
    try:
        code = asyncio.run(until_stopped(work()))
    except StoppedBySignal as stopped:
        code = SIGNALLED + stopped.number
    except Failure as failure:
        if not connection.quiet:
            print_to_stderr(f"Error: {failure}")
        code = failure.code
    sys.exit(code)
