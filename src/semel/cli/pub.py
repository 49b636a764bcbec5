"""`semel pub`: publish messages, with the flags of mosquitto_pub."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import click

from semel.cli.flags import shared_option
from semel.cli.mqtt_client import (
    DONE,
    FAILED,
    Failure,
    code_of,
    connect,
    disconnect,
    print_to_stderr,
    run,
)
from semel.cli.mqtt_options import (
    QOS,
    ConnectionOptions,
    MqttCommand,
    check_topic,
    connection_options,
    parse_topic,
)
from semel.cli.numbers import YEAR, Duration, IntegerRange
from semel.cli.option_groups import grouped_option
from semel.cli.pipes import Input, standard_input
from semel.client import Client, Disconnected, Refused
from semel.counts import count
from semel.mqtt import LARGEST_PACKET, Properties, Violation
from semel.mqtt.packet_types import PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.rules import PACKET_SIZE_WITHIN_MAXIMUM

MESSAGE: Final = "Message"
# Unacknowledged messages of -l at a time, without -M.
WINDOW: Final = 100
# A server that closes the connection after a message of this size probably has a lower limit.
LARGE_BYTES: Final = 64 * 1024
# With -l: how many connections one large message may cost, and how often this is checked.
LARGE_ATTEMPTS: Final = 3
CHECK_SECONDS: Final = 0.2
# How long a server may take to confirm that it has read messages of QoS 0: this, and one second
# for each SLOWEST_BYTES.
CONFIRM_SECONDS: Final = 30.0
SLOWEST_BYTES: Final = 4_096


@dataclass(frozen=True)
class Publication:
    """What all messages of one command have in common."""

    topic: str
    qos: int
    retain: bool
    properties: Properties
    quiet: bool


class MessagePublisher:
    """Publishes messages, and remembers the exit code of the first failure."""

    def __init__(self, publication: Publication, *, reconnects: bool) -> None:
        self.publication = publication
        self.code = DONE
        self._reconnects = reconnects
        self._count = 0
        # Large messages that the server has not confirmed: payload size, and the number of
        # reconnects before.
        self.large: dict[int, tuple[int, int]] = {}
        # Bytes sent at QoS 0 since the last answer to a PINGREQ.
        self._unconfirmed = 0

    async def publish(self, client: Client, payload: bytes) -> None:
        """Publish one message. Raises Disconnected; other failures are reported and kept."""
        common = self.publication
        size = len(payload)
        self._count += 1
        number = self._count
        is_large = size >= LARGE_BYTES
        if is_large:
            self.large[number] = (size, client.counters.reconnects)
        try:
            await client.publish(
                common.topic,
                payload,
                common.qos,
                retain=common.retain,
                properties=common.properties,
            )
        except Refused as problem:
            self._report_failure(str(problem), code_of(problem))
        except Violation as problem:
            limit = client.server.maximum_packet_size
            is_limit = problem.rule is PACKET_SIZE_WITHIN_MAXIMUM and limit is not None
            self._report_failure(too_large(size, limit or 0) if is_limit else str(problem), FAILED)
        except TimeoutError as problem:
            self._report_failure(str(problem), FAILED)
        else:
            if common.qos == 0:
                self._unconfirmed += size + 1
                if is_large:
                    # Now: later it would be unclear which message the server refused.
                    await self._confirm_large(client, size)
        self.large.pop(number, None)

    async def _confirm_large(self, client: Client, size: int) -> None:
        try:
            await self.confirm(client)
        except Disconnected as problem:
            if not self._reconnects:
                raise
            # The next line uses a new connection.
            self._report_failure(likely_too_large(size, problem), FAILED)

    async def confirm(self, client: Client) -> None:
        """Wait until the server has read what was sent at QoS 0. Raises Disconnected."""
        size, self._unconfirmed = self._unconfirmed, 0
        if not size:
            return
        timeout = CONFIRM_SECONDS + size / SLOWEST_BYTES
        try:
            async with asyncio.timeout(timeout):
                await client.ping()
        except TimeoutError:
            sentence = f"the server did not answer PINGREQ within {timeout:.0f} s"
            raise Disconnected(sentence) from None

    async def watch_large_messages(self, client: Client) -> None:
        """Run until cancelled. Raises Failure if a large message ends every connection it uses."""
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

    def _report_failure(self, sentence: str, code: int) -> None:
        if not self.publication.quiet:
            print_to_stderr(f"Warning: a message was not published: {sentence}")
        self.code = self.code or code


def too_large(size: int, limit: int) -> str:
    """The sentence for a message above the limit that the server announced."""
    return (
        f"its {count(size, 'byte')} are too large: the server accepts packets of at most "
        f"{count(limit, 'byte')} (Maximum Packet Size), topic and properties included"
    )


def likely_too_large(size: int, problem: Disconnected | str) -> str:
    """The sentence for a message after which the server closed the connection without a reason."""
    return (
        f"{problem}, after a message of {count(size, 'byte')}: probably the packet size limit of "
        "the server is lower"
    )


async def lines_of(source: Input) -> AsyncIterator[bytes]:
    """Lines without their line ends. Raises Failure."""
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            data = await source.read()
        except OSError as problem:
            raise Failure(f"standard input cannot be read: {problem.strerror}") from None
        if not data:
            break
        first, *rest = data.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > LARGEST_PACKET:
            raise Failure("a line of standard input is too long for an MQTT packet")
        if rest:
            yield b"".join(parts)
            for line in rest[:-1]:
                yield line
            parts, size = [rest[-1]], len(rest[-1])
    if size:
        yield b"".join(parts)


async def all_of(source: Input) -> bytes:
    """All of standard input. Raises Failure."""
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


def check_size(size: int, source: str) -> None:
    if size > LARGEST_PACKET:
        raise Failure(f"{source} is too large for an MQTT packet")


async def publish_lines(
    client: Client, publisher: MessagePublisher, source: Input, window: int
) -> None:
    """Publish each line, with at most `window` unacknowledged messages."""
    room = asyncio.Semaphore(window)
    running: set[asyncio.Task[None]] = set()

    def done(task: asyncio.Task[None]) -> None:
        running.discard(task)
        room.release()
        if not task.cancelled() and task.exception() is not None:
            failed.append(task)

    failed: list[asyncio.Task[None]] = []
    try:
        async for line in lines_of(source):
            if publisher.publication.qos == 0:
                await publisher.publish(client, line)
                continue
            await room.acquire()
            if failed:
                break
            task = asyncio.create_task(publisher.publish(client, line))
            running.add(task)
            task.add_done_callback(done)
        if running:
            await asyncio.wait(running)
        # Let the callbacks of the last tasks run.
        await asyncio.sleep(0)
        for task in failed:
            task.result()
        await publisher.confirm(client)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


@dataclass(frozen=True)
class PayloadSource:
    """Where payloads come from: the flags, standard input, or its lines."""

    # None: standard input
    payload: bytes | None
    by_line: bool
    repeat: int
    delay: float
    window: int


async def publish(
    connection: ConnectionOptions, publication: Publication, source: PayloadSource
) -> int:
    """Connect, publish and disconnect. Returns the exit code. Raises Failure."""
    payload = source.payload
    lines = standard_input() if payload is None else None
    if lines is not None and not source.by_line:
        payload = await all_of(lines)
        lines = None
    client, connection = await connect(
        connection, reconnect=source.by_line, outlives_loss=source.by_line
    )
    publisher = MessagePublisher(publication, reconnects=source.by_line)
    work = publish_lines(client, publisher, lines, source.window) if lines else None
    publishing = asyncio.create_task(work or repeat(client, publisher, payload or b"", source))
    # The connection may end for good while standard input is silent.
    connected = asyncio.create_task(watch_connection(client))
    fitting = asyncio.create_task(publisher.watch_large_messages(client))
    tasks = {publishing, connected, fitting}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (publishing if publishing in done else done.pop()).result()
    except (Disconnected, Refused) as problem:
        raise publisher.failure(problem) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await disconnect(client, connection)
    return publisher.code


async def repeat(
    client: Client, publisher: MessagePublisher, payload: bytes, source: PayloadSource
) -> None:
    """Publish one message `source.repeat` times."""
    for number in range(source.repeat):
        if number:
            await asyncio.sleep(source.delay)
        await publisher.publish(client, payload)
    await publisher.confirm(client)


async def watch_connection(client: Client) -> None:
    """Wait until the connection ends for good, and raise the reason.

    Messages of the session are not acknowledged.
    """
    async for _ in client.messages(auto_ack=False):
        pass


def chosen_payload(
    message: str | None, file: str | None, null: bool, lines: bool, whole: bool
) -> bytes | None:
    """The payload of -m, -f or -n; None for -l and -s, which read standard input."""
    sources = {
        "-m": message is not None,
        "-f": file is not None,
        "-n": null,
        "-l": lines,
        "-s": whole,
    }
    given = [name for name, is_given in sources.items() if is_given]
    if len(given) != 1:
        found = f", not {' and '.join(given)}" if given else ""
        raise click.UsageError(f"give one of -m, -f, -n, -l and -s as the payload{found}")
    if message is not None:
        return os.fsencode(message)
    if file is not None:
        try:
            return read_file(file)
        except Failure as failure:
            raise click.ClickException(str(failure)) from None
    return b"" if null else None


@click.command(
    cls=MqttCommand,
    examples=(
        "semel pub -h localhost -t plant/1/temp -m 21.5 -q 1",
        "read_sensor | semel pub -L mqtts://ann:secret@example.org/plant/1/temp -l -q 2",
    ),
)
@grouped_option(
    "-t",
    "--topic",
    section=MESSAGE,
    callback=parse_topic,
    metavar="TOPIC",
    help="Publish to this topic.",
)
@grouped_option("-m", "--message", section=MESSAGE, metavar="TEXT", help="Publish this text.")
@shared_option("--file", section=MESSAGE, help="Publish the content of a file.")
@grouped_option(
    "-n", "--null-message", section=MESSAGE, is_flag=True, help="Publish an empty message."
)
@grouped_option(
    "-l",
    "--stdin-line",
    section=MESSAGE,
    is_flag=True,
    help="Publish each line of standard input. Reconnect if the connection is lost.",
)
@grouped_option(
    "-s",
    "--stdin-file",
    section=MESSAGE,
    is_flag=True,
    help="Publish all of standard input as one message.",
)
@shared_option("--qos", section=MESSAGE, type=QOS, default=0, help="The QoS. By default 0.")
@grouped_option("-r", "--retain", section=MESSAGE, is_flag=True, help="Retain the message.")
@shared_option(
    "--count",
    "--repeat",
    section=MESSAGE,
    type=IntegerRange(min=1),
    default=1,
    help="Publish the message this many times (not with -l).",
)
@grouped_option(
    "--repeat-delay",
    section=MESSAGE,
    type=Duration(0, YEAR),
    default=0.0,
    metavar="DURATION",
    help="Wait this long between repetitions.",
)
@shared_option(
    "--window",
    "-M",
    section=MESSAGE,
    type=IntegerRange(min=1),
    default=WINDOW,
    help=f"With -l: at most this many unacknowledged messages. By default {WINDOW}.",
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
    count: int,
    repeat_delay: float,
    window: int,
) -> None:
    """Publish a message, or each line of standard input as a message.

    The flags and exit codes are those of mosquitto_pub. The exit code is 0 when the server has
    received every message: at QoS 1 and 2, when it has acknowledged them; at QoS 0, when it has
    read them and not closed the connection.
    """
    payload = chosen_payload(message, file, null_message, stdin_line, stdin_file)
    for packet_type, name in ((SUBSCRIBE, "subscribe"), (UNSUBSCRIBE, "unsubscribe")):
        if packet_type in connection.properties:
            raise click.UsageError(f"-D {name}: `semel pub` does not send this packet")
    if topic is not None and connection.topic is not None:
        raise click.UsageError("give one of -t and the topic of -L: a message has one topic")
    chosen = topic if topic is not None else connection.topic
    if chosen is None:
        raise click.UsageError("the topic is missing: give -t TOPIC, or -L with a topic")
    if connection.topic is not None:
        check_topic(connection.topic)
    properties = connection.properties_of(PUBLISH)
    publication = Publication(chosen, qos, retain, properties, connection.quiet)
    source = PayloadSource(payload, stdin_line, count, repeat_delay, window)
    run(connection, lambda: publish(connection, publication, source))
