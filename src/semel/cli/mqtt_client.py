"""A Client from the flags of `semel pub` and `semel sub`, and how its failures end a command.

Exit codes are those of mosquitto's tools: 0; the code with which the server refused the connection
(5 or 135 for bad credentials); and for the rest what libmosquitto returns: 1 for flags, files and a
server that cannot be reached, 2 for a server that breaks the protocol, 7 for a connection that is
lost, 27 for time that is up. The other codes are the server's too, where mosquitto's tools would
print a warning and end with 0: a message or a subscription that it refuses, or a DISCONNECT.
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
from semel.client.opening import Opening, open_transport
from semel.client.tls import TlsError, make_context
from semel.extras import MissingExtra
from semel.mqtt import MQTT311, Properties, Violation
from semel.mqtt.packet_types import CONNECT
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
# What the shell says of a program that a signal has ended.
SIGNALLED: Final = 128

# Messages that wait for their acknowledgement, if nobody says otherwise.
RECEIVE_MAXIMUM_HERE: Final = 100
# The longest name of a folder that every file system takes.
MOST_NAME: Final = 200
# Properties of CONNECT that the Client has its own arguments for.
ARGUMENTS: Final = (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
)


class Failure(Exception):
    """The command has failed: a sentence, and the exit code."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class Fixed(ClientAuthentication):
    """A method and its first data, as -D connect gives them."""

    def __init__(self, method: str, data: bytes | None) -> None:
        super().__init__(method)
        self.data = data

    def begin(self) -> bytes | None:
        return self.data

    def respond(self, data: bytes | None) -> bytes | None:
        raise Disconnected("the server wants a second step, and this command knows only the first")


def state_folder(connection: ConnectionOptions) -> Path:
    """Where the state of a session that outlives a run is kept, on this side."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # [XDG] a path that is not absolute is ignored
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    address = connection.address
    where = address.path if address.scheme == "unix" else address.where
    name = f"{quote(where, safe='')}:{quote(connection.client_id, safe='')}"
    if len(name) > MOST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return root / "semel" / "sessions" / name


def tls_context(connection: ConnectionOptions) -> ssl.SSLContext | None:
    """The context that the flags describe. Raises Failure."""
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


def opening_of(connection: ConnectionOptions) -> Opening:
    """How to connect: from the address of -A, and with the lines of -d."""
    opening: Opening = open_transport
    if connection.bind_address is not None:
        opening = functools.partial(open_transport, local_host=connection.bind_address)
    if connection.debug:
        opening = tapped(opening, PacketLines(connection.version, say))
    return opening


def make_client(connection: ConnectionOptions, *, reconnect: bool, lasting: bool) -> Client:
    """The Client that the flags describe. Raises Failure.

    `lasting` is for a command that goes on until it is stopped: its session survives a short loss
    of the connection, though it ends with the command.
    """
    given = connection.properties_of(CONNECT)
    method = given.authentication_method
    outbox = None
    expiry = connection.session_expiry
    if expiry is None and not lasting:
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
            # Without -c a session is new. With it, one that the server has and we have no state
            # of is an error, and is not thrown away unsaid.
            clean_start=not connection.persistent,
            keep_alive=connection.keep_alive,
            user_name=connection.user_name,
            password=connection.password,
            will=connection.will,
            receive_maximum=given.receive_maximum or RECEIVE_MAXIMUM_HERE,
            maximum_packet_size=given.maximum_packet_size,
            properties=Properties([item for item in given.items if item[0] not in ARGUMENTS]),
            tls=tls_context(connection),
            authentication=None if method is None else Fixed(method, given.authentication_data),
            reconnect=reconnect,
            outbox=outbox,
            opening=opening_of(connection),
        )
    except (Violation, BadAddress) as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(f"the state of the session cannot be kept: {problem}") from None


async def connect(client: Client, connection: ConnectionOptions) -> None:
    """Connect, or raise Failure. From then on, what the client reports is printed."""
    with Heard() as heard:
        try:
            await client.connect()
            if not client.connected:
                # A client with an outbox would try for ever; a command says that it cannot.
                await client.close()
                raise Failure(heard.problem or "the server cannot be reached")
        except Disconnected as problem:
            is_theirs = problem.reason is not None or problem.violation is not None
            raise Failure(str(problem), code_of(problem) if is_theirs else FAILED) from None
        except Refused as problem:
            raise Failure(str(problem), problem.reason) from None
        except (Unusable, MissingExtra) as problem:
            raise Failure(str(problem)) from None
    if not connection.quiet:
        LOG.addHandler(Warnings(logging.WARNING))


def code_of(problem: Refused | Disconnected) -> int:
    """The exit code for what the server did."""
    if isinstance(problem, Refused):
        return problem.reason
    if problem.violation is not None:
        return PROTOCOL_BROKEN
    return problem.reason or LOST


class Warnings(logging.Handler):
    """What the client reports while it goes on: a line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"Warning: {record.getMessage()}")


class Heard(logging.Handler):
    """Hears, while it is a context, why the client cannot connect though it will try again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problem = ""

    def emit(self, record: logging.LogRecord) -> None:
        problems = [each for each in record.args or () if isinstance(each, Exception)]
        self.problem = str(problems[0]) if problems else record.getMessage()

    def __enter__(self) -> "Heard":
        LOG.addHandler(self)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        LOG.removeHandler(self)


def say(sentence: str) -> None:
    """One line for people. Text of a peer in it does nothing to a terminal."""
    click.echo(shown_text(sentence), err=True)


class StoppedBySignal(Exception):
    """SIGINT or SIGTERM has come."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Do the work; a signal cancels it, and comes out as Stopped."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    came: list[int] = []

    def stop(number: int) -> None:
        # Once more, and it does not even wait for the connection to close.
        came.append(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not came:
            raise
        raise StoppedBySignal(came[0]) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(connection: ConnectionOptions, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command to its end, and exit."""
    LOG.propagate = False
    LOG.addHandler(logging.NullHandler())
    try:
        code = asyncio.run(until_stopped(work()))
    except StoppedBySignal as stopped:
        code = SIGNALLED + stopped.number
    except Failure as failure:
        if not connection.quiet:
            say(f"Error: {failure}")
        code = failure.code
    sys.exit(code)
