"""`semel pub`: publish messages, with the flags of mosquitto_pub."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import click

from semel.cli.mqtt_client import DONE, FAILED, Failure, code_of, connect, make_client, run, say
from semel.cli.mqtt_options import (
    QOS,
    ConnectionOptions,
    MqttCommand,
    check_topic,
    connection_options,
    parse_topic,
)
from semel.cli.mqtt_options import option as section_option
from semel.cli.numbers import YEAR, NumberRange
from semel.cli.pipes import Input, standard_input
from semel.client import Client, Disconnected, Refused
from semel.counts import count
from semel.mqtt import LARGEST_PACKET, Properties, Violation
from semel.mqtt.packet_types import DISCONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.rules import PACKET_SIZE_WITHIN_MAXIMUM

MESSAGE: Final = "Message"
# Publications of -l that wait for their acknowledgement, if -M does not say.
WINDOW: Final = 100
# A server that closes the connection when it gets this many bytes has most likely a limit.
LARGE_BYTES: Final = 64 * 1024
# With -l, how many connections may be lost over one large message, and how often that is checked.
LARGE_ATTEMPTS: Final = 3
CHECK_SECONDS: Final = 0.2
# How long a server may take to confirm that it has read messages of QoS 0: so long, and a second
# for each of so many bytes.
CONFIRM_SECONDS: Final = 30.0
SLOWEST_BYTES: Final = 4_096


@dataclass(frozen=True)
class Publication:
    """What all the messages of one command share."""

    topic: str
    qos: int
    retain: bool
    properties: Properties
    quiet: bool


class Tally:
    """How the publications went: the exit code of the first that failed."""

    def __init__(self, publication: Publication, *, reconnects: bool) -> None:
        self.publication = publication
        self.code = DONE
        self._reconnects = reconnects
        self._count = 0
        # Large messages that the server has not confirmed: payload sizes, and how often the client
        # had reconnected before.
        self.large: dict[int, tuple[int, int]] = {}
        # Bytes sent at QoS 0 since the last answer to a PINGREQ.
        self._unconfirmed = 0

    async def publish(self, client: Client, payload: bytes) -> None:
        """Publish one message. Raises Disconnected; other failures are told and counted."""
        what = self.publication
        size = len(payload)
        self._count += 1
        number = self._count
        is_large = size >= LARGE_BYTES
        if is_large:
            self.large[number] = (size, client.counters.reconnects)
        try:
            await client.publish(
                what.topic, payload, what.qos, retain=what.retain, properties=what.properties
            )
        except Refused as problem:
            self.note(str(problem), code_of(problem))
        except Violation as problem:
            limit = client.server.maximum_packet_size
            is_limit = problem.rule is PACKET_SIZE_WITHIN_MAXIMUM and limit is not None
            self.note(too_large(size, limit or 0) if is_limit else str(problem), FAILED)
        except TimeoutError as problem:
            self.note(str(problem), FAILED)
        else:
            if what.qos == 0:
                self._unconfirmed += size + 1
                if is_large:
                    # Now: after others it would not be known which one the server refused.
                    await self._confirm_large(client, size)
        self.large.pop(number, None)

    async def _confirm_large(self, client: Client, size: int) -> None:
        try:
            await self.confirm(client)
        except Disconnected as problem:
            if not self._reconnects:
                raise
            # The next line goes by another connection.
            self.note(likely_too_large(size, problem), FAILED)

    async def confirm(self, client: Client) -> None:
        """Wait until the server has read what was sent at QoS 0. Raises Disconnected."""
        size, self._unconfirmed = self._unconfirmed, 0
        if not size:
            return
        patience = CONFIRM_SECONDS + size / SLOWEST_BYTES
        try:
            async with asyncio.timeout(patience):
                await client.ping()
        except TimeoutError:
            sentence = f"the server did not answer PINGREQ within {patience:.0f} s"
            raise Disconnected(sentence) from None

    async def until_too_large(self, client: Client) -> None:
        """Raises Failure if one large message ends every connection on which it is sent."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            reconnects = client.counters.reconnects
            for size, before in self.large.values():
                if reconnects - before >= LARGE_ATTEMPTS:
                    times = count(reconnects - before, "time")
                    raise Failure(likely_too_large(size, f"the connection was lost {times}"))

    def failure(self, problem: Refused | Disconnected) -> Failure:
        """Why the command ends with this problem."""
        if isinstance(problem, Disconnected) and self.large:
            if problem.reason is None and problem.violation is None:
                size = max(size for size, _ in self.large.values())
                return Failure(likely_too_large(size, problem))
        return Failure(str(problem), code_of(problem))

    def note(self, sentence: str, code: int) -> None:
        if not self.publication.quiet:
            say(f"Warning: a message was not published: {sentence}")
        self.code = self.code or code


def too_large(size: int, limit: int) -> str:
    """A message that the server has said it does not take."""
    return (
        f"its {count(size, 'byte')} are too large: the server takes packets of at most "
        f"{count(limit, 'byte')} (Maximum Packet Size), topic and properties included"
    )


def likely_too_large(size: int, problem: Disconnected | str) -> str:
    """A message after which the server closed the connection, without saying why."""
    return (
        f"{problem}, after a message of {count(size, 'byte')}: most likely the server's limit for "
        "packets is smaller. With MQTT 5.0 (-V mqttv5) a server tells its limit"
    )


async def lines_of(source: Input) -> AsyncIterator[bytes]:
    """Lines without their ends; the last may have none. Raises Failure."""
    begun: list[bytes] = []
    size = 0
    while True:
        try:
            data = await source.read()
        except OSError as problem:
            raise Failure(f"standard input cannot be read: {problem.strerror}") from None
        if not data:
            break
        first, *rest = data.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LARGEST_PACKET:
            raise Failure("a line of standard input is longer than any packet of MQTT")
        if rest:
            yield b"".join(begun)
            for line in rest[:-1]:
                yield line
            begun, size = [rest[-1]], len(rest[-1])
    if size:
        yield b"".join(begun)


async def all_of(source: Input) -> bytes:
    """The whole of standard input. Raises Failure."""
    found: list[bytes] = []
    size = 0
    try:
        while data := await source.read():
            found.append(data)
            size += len(data)
            check_size(size, "standard input")
    except OSError as problem:
        raise Failure(f"standard input cannot be read: {problem.strerror}") from None
    return b"".join(found)


def read_file(path: str) -> bytes:
    """The payload of -f. Raises Failure."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_PACKET + 1)
    except OSError as problem:
        raise Failure(f"-f {path}: {problem.strerror}") from None
    check_size(len(data), path)
    return data


def check_size(size: int, what: str) -> None:
    if size > LARGEST_PACKET:
        raise Failure(f"{what} is larger than any packet of MQTT")


async def publish_lines(client: Client, tally: Tally, given: Input, window: int) -> None:
    """A message for each line, so many at a time that are not acknowledged."""
    room = asyncio.Semaphore(window)
    running: set[asyncio.Task[None]] = set()

    def done(task: asyncio.Task[None]) -> None:
        running.discard(task)
        room.release()
        if not task.cancelled() and task.exception() is not None:
            failed.append(task)

    failed: list[asyncio.Task[None]] = []
    try:
        async for line in lines_of(given):
            if tally.publication.qos == 0:
                await tally.publish(client, line)
                continue
            await room.acquire()
            if failed:
                break
            task = asyncio.create_task(tally.publish(client, line))
            running.add(task)
            task.add_done_callback(done)
        if running:
            await asyncio.wait(running)
        # The callbacks of the last have their turn.
        await asyncio.sleep(0)
        for task in failed:
            task.result()
        await tally.confirm(client)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


@dataclass(frozen=True)
class PayloadSource:
    """Where messages come from: a payload, all of standard input, or its lines."""

    payload: bytes | None
    by_line: bool
    repeat: int
    delay: float
    window: int


async def publish(
    connection: ConnectionOptions, publication: Publication, source: PayloadSource
) -> int:
    """Connect, publish, and leave. The exit code. Raises Failure."""
    payload = source.payload
    given = standard_input() if payload is None else None
    if given is not None and not source.by_line:
        payload = await all_of(given)
        given = None
    client = make_client(connection, reconnect=source.by_line, lasting=source.by_line)
    await connect(client, connection)
    tally = Tally(publication, reconnects=source.by_line)
    work = publish_lines(client, tally, given, source.window) if given else None
    publishing = asyncio.create_task(work or repeat(client, tally, payload or b"", source))
    # While standard input says nothing, the connection may be over.
    connected = asyncio.create_task(until_over(client))
    fitting = asyncio.create_task(tally.until_too_large(client))
    tasks = {publishing, connected, fitting}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (publishing if publishing in done else done.pop()).result()
    except (Disconnected, Refused) as problem:
        raise tally.failure(problem) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close(properties=connection.properties_of(DISCONNECT))
    return tally.code


async def repeat(client: Client, tally: Tally, payload: bytes, source: PayloadSource) -> None:
    """One message, as often as it is wanted."""
    for each in range(source.repeat):
        if each:
            await asyncio.sleep(source.delay)
        await tally.publish(client, payload)
    await tally.confirm(client)


async def until_over(client: Client) -> None:
    """Raises why there will be no other connection. Messages of an old session are left alone."""
    async for _ in client.messages(auto_ack=False):
        pass


def chosen_payload(
    message: str | None, file: str | None, null: bool, lines: bool, whole: bool
) -> bytes | None:
    """The payload that is known before anything is read; of -l and -s none is."""
    wanted = [
        name
        for name, is_wanted in (
            ("-m", message is not None),
            ("-f", file is not None),
            ("-n", null),
            ("-l", lines),
            ("-s", whole),
        )
        if is_wanted
    ]
    if len(wanted) != 1:
        said = f", not {' and '.join(wanted)}" if wanted else ""
        raise click.UsageError(f"what to publish is one of -m, -f, -n, -l and -s{said}")
    if message is not None:
        return os.fsencode(message)
    if file is not None:
        try:
            return read_file(file)
        except Failure as failure:
            raise click.ClickException(str(failure)) from None
    return b"" if null else None


@click.command(cls=MqttCommand)
@section_option(
    "-t", "--topic", section=MESSAGE, callback=parse_topic, help="Publish to this topic."
)
@section_option("-m", "--message", section=MESSAGE, metavar="TEXT", help="Publish this.")
@section_option("-f", "--file", section=MESSAGE, metavar="FILE", help="Publish a file.")
@section_option("-n", "--null-message", section=MESSAGE, is_flag=True, help="Publish no bytes.")
@section_option(
    "-l",
    "--stdin-line",
    section=MESSAGE,
    is_flag=True,
    help="Publish each line of standard input, and connect again if the connection is lost.",
)
@section_option(
    "-s", "--stdin-file", section=MESSAGE, is_flag=True, help="Publish all of standard input."
)
@section_option("-q", "--qos", section=MESSAGE, type=QOS, default=0, help="0, 1 or 2.")
@section_option("-r", "--retain", section=MESSAGE, is_flag=True, help="The message is retained.")
@section_option(
    "--repeat",
    section=MESSAGE,
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Publish it so many times (not with -l).",
)
@section_option(
    "--repeat-delay",
    section=MESSAGE,
    type=NumberRange(0, YEAR),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long in between.",
)
@section_option(
    "-M",
    "window",
    section=MESSAGE,
    type=click.IntRange(min=1),
    default=WINDOW,
    metavar="N",
    help=f"With -l, at most so many messages are not acknowledged. By default {WINDOW}.",
)
@connection_options
def command(
    connection: ConnectionOptions,
    topic: str | None,
    message: str | None,
    file: str | None,
    null_message: bool,
    stdin_line: bool,
    stdin_file: bool,
    qos: int,
    retain: bool,
    repeat: int,
    repeat_delay: float,
    window: int,
) -> None:
    """Publish a message, or one for each line of standard input.

    The flags and exit codes are those of mosquitto_pub. It ends with 0 when the server has taken
    every message: at QoS 1 and 2, has acknowledged it; at QoS 0, has read it and not closed the
    connection.

    \b
        semel pub -h localhost -t plant/1/temp -m 21.5 -q 1
        read_sensor | semel pub -L mqtts://ann:secret@example.org/plant/1/temp -l -q 2
    """
    payload = chosen_payload(message, file, null_message, stdin_line, stdin_file)
    for packet_type, name in ((SUBSCRIBE, "subscribe"), (UNSUBSCRIBE, "unsubscribe")):
        if packet_type in connection.properties:
            raise click.UsageError(f"-D {name}: `semel pub` sends no such packet")
    chosen = topic if topic is not None else connection.topic
    if chosen is None:
        raise click.UsageError("where to publish is missing: -t TOPIC, or -L with a topic")
    if connection.topic is not None:
        check_topic(connection.topic)
    properties = connection.properties_of(PUBLISH)
    publication = Publication(chosen, qos, retain, properties, connection.quiet)
    source = PayloadSource(payload, stdin_line, repeat, repeat_delay, window)
    run(connection, lambda: publish(connection, publication, source))
