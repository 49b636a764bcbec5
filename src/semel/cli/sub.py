"""`semel sub`: subscribe and print what comes, with the flags of mosquitto_sub.

A message is acknowledged when standard output has taken it, and not before: what a pipe has not got
is still the server's, or in the state of the session on this side.
"""

import asyncio
import os
import random
from dataclasses import dataclass
from typing import Final

import click

from semel.broker.cursors import STREAM_TOPICS
from semel.cli.message_format import BadFormat
from semel.cli.message_view import MessageStyle, printing, stripped, wants_colour
from semel.cli.mqtt_client import (
    DONE,
    TIMED_OUT,
    Failure,
    code_of,
    connect,
    make_client,
    run,
    say,
)
from semel.cli.mqtt_options import (
    QOS,
    ConnectionOptions,
    MqttCommand,
    check_filter,
    check_filters,
    connection_options,
    parse_filters,
)
from semel.cli.mqtt_options import option as section_option
from semel.cli.numbers import NumberRange
from semel.cli.pipes import STANDARD_OUTPUT, PipeOutput, standard_output
from semel.client import Client, Disconnected, Messages, Received, Refused
from semel.mqtt import MQTT5, Subscription, Violation, topic_matches
from semel.mqtt.packet_types import DISCONNECT, PUBLISH, SUBACK, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.reasons import DISCONNECT_WITH_WILL_MESSAGE

SUBSCRIPTION: Final = "Subscription"
OUTPUT: Final = "PipeOutput"
RETAIN_HANDLING: Final = ("always", "new", "never")


@dataclass(frozen=True)
class SubscribeRequest:
    """What to subscribe to, and which of the messages to print."""

    subscriptions: tuple[Subscription, ...]
    unsubscriptions: tuple[str, ...]
    filtered_out: tuple[str, ...]
    count: int | None
    seconds: int | None
    only_subscribe: bool
    no_retained: bool
    retained_only: bool
    remove_retained: bool
    # Per cent of the messages that are printed.
    share: float


class MessageReader:
    """Prints messages until there are enough."""

    def __init__(
        self, client: Client, output: PipeOutput, wanted: SubscribeRequest, look: MessageStyle
    ) -> None:
        self.client = client
        self.output = output
        self.wanted = wanted
        self.print = printing(look)
        self.look = look
        self.printed = 0
        self.removals: list[asyncio.Task[int]] = []

    async def take(self, message: Received) -> bool:
        """Do with a message what is wanted, then acknowledge it. Whether it was the last."""
        wanted = self.wanted
        if wanted.retained_only and not message.retain:
            return True
        if any(topic_matches(each, message.topic) for each in wanted.filtered_out):
            message.ack()
            return False
        if wanted.remove_retained and message.retain:
            removal = self.client.publish(message.topic, b"", 1, retain=True)
            self.removals.append(asyncio.create_task(removal))
        if wanted.no_retained and message.retain:
            message.ack()
            return False
        if wanted.share >= 100 or random.random() * 100 < wanted.share:
            text, problem = self.print(message if self.look.identifiers else stripped(message))
            await self.output.write(text)
            if problem is not None and not self.look.quiet:
                say(f"Error: {problem}")
        message.ack()
        self.printed += 1
        return self.printed == wanted.count

    async def finish(self) -> None:
        """Wait until what was to be removed is."""
        for removal in self.removals:
            await removal


def explained(problem: Refused, topic_filter: str, connection: ConnectionOptions) -> Failure:
    """A refusal, with what a user can do about it."""
    advice = ""
    is_replay = problem.packet_type == SUBACK and topic_filter.startswith(STREAM_TOPICS)
    if is_replay and connection.version != MQTT5:
        # [3.1.1 §3.9.3] 0x80 is all that such a server can say.
        advice = "; the replay of a stream needs MQTT 5.0: -V mqttv5"
    return Failure(f"{problem}{advice}", code_of(problem))


async def request(client: Client, connection: ConnectionOptions, wanted: SubscribeRequest) -> None:
    """Ask for each subscription. Raises Failure if none is granted; some are enough."""
    properties = connection.properties_of(SUBSCRIBE)
    asked = [client.subscribe(each, properties=properties) for each in wanted.subscriptions]
    refusals = []
    for subscription in wanted.subscriptions:
        try:
            await asked[0]
        except Refused as problem:
            refusals.append(explained(problem, subscription.topic_filter, connection))
        # Nobody iterates over it: from now on what comes by it is for `client.messages()`.
        del asked[0]
    if refusals and len(refusals) == len(wanted.subscriptions):
        raise refusals[0]
    for refusal in refusals:
        if not connection.quiet:
            say(f"Warning: {refusal}")


async def read(messages: Messages, reader: MessageReader) -> None:
    """Print until there is enough."""
    async for message in messages:
        if await reader.take(message):
            break
    await reader.finish()


async def receive_all(client: Client, connection: ConnectionOptions, reader: MessageReader) -> None:
    """Subscribe and read, at the same time: a session may have messages before it is answered."""
    wanted = reader.wanted

    async def prepare() -> None:
        if messages.subscriptions:
            await messages
        else:
            await request(client, connection, wanted)
        for topic_filter in wanted.unsubscriptions:
            properties = connection.properties_of(UNSUBSCRIBE)
            await client.end_subscription(topic_filter, properties=properties)

    if len(wanted.subscriptions) == 1 and not connection.persistent:
        messages = client.subscribe(
            *wanted.subscriptions, auto_ack=False, properties=connection.properties_of(SUBSCRIBE)
        )
    else:
        # One may be refused, and the others not; the session may have some of earlier runs.
        messages = client.messages(auto_ack=False)
    if wanted.only_subscribe:
        await prepare()
        return
    reading = asyncio.create_task(read(messages, reader))
    tasks = {reading, asyncio.create_task(prepare())}
    try:
        while not reading.done():
            done, _ = await asyncio.wait(
                {task for task in tasks if not task.done()}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def receive(
    connection: ConnectionOptions, wanted: SubscribeRequest, look: MessageStyle
) -> int:
    """Connect, subscribe and print. The exit code. Raises Failure."""
    output = standard_output()
    client = make_client(connection, reconnect=True, lasting=True)
    reader = MessageReader(client, output, wanted, look)
    await connect(client, connection)
    reason = 0
    try:
        async with asyncio.timeout(wanted.seconds):
            await receive_all(client, connection, reader)
        return DONE
    except TimeoutError:
        reason = DISCONNECT_WITH_WILL_MESSAGE
        raise Failure("timed out", TIMED_OUT) from None
    except asyncio.CancelledError:
        # A signal is how most subscribers end.
        reason = DISCONNECT_WITH_WILL_MESSAGE
        return DONE
    except BrokenPipeError:
        # Whoever read has enough.
        return DONE
    except Refused as problem:
        # Of several subscriptions `request` has told which one is refused.
        topic_filter = wanted.subscriptions[0].topic_filter if wanted.subscriptions else ""
        raise explained(problem, topic_filter, connection) from None
    except Disconnected as problem:
        raise Failure(str(problem), code_of(problem)) from None
    except Violation as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(f"standard output cannot be written: {problem.strerror}") from None
    finally:
        reason = reason if connection.version == MQTT5 else 0
        await client.close(reason, properties=connection.properties_of(DISCONNECT))


# --- the command ----------------------------------------------------------------------------------


@click.command(cls=MqttCommand)
@section_option(
    "-t",
    "--topic",
    "topics",
    section=SUBSCRIPTION,
    callback=parse_filters,
    multiple=True,
    metavar="FILTER",
    help="Subscribe to this topic filter. May be repeated.",
)
@section_option("-q", "--qos", section=SUBSCRIPTION, type=QOS, default=0, help="0, 1 or 2.")
@section_option(
    "-U",
    "--unsubscribe",
    section=SUBSCRIPTION,
    callback=parse_filters,
    multiple=True,
    metavar="FILTER",
    help="End a subscription that the session (-c) has. May be repeated.",
)
@section_option(
    "--retain-as-published",
    section=SUBSCRIPTION,
    is_flag=True,
    help="Messages have the retain flag of their publisher (5.0).",
)
@section_option(
    "--retain-handling",
    section=SUBSCRIPTION,
    type=click.Choice(RETAIN_HANDLING),
    help="When retained messages are sent: at each subscription, a new one, never (5.0).",
)
@section_option(
    "-E",
    "only_subscribe",
    section=SUBSCRIPTION,
    is_flag=True,
    help="End when the server has answered the subscriptions.",
)
@section_option(
    "-C",
    "count",
    section=SUBSCRIPTION,
    type=click.IntRange(min=1),
    metavar="N",
    help="End after so many messages.",
)
@section_option(
    "-W",
    "seconds",
    section=SUBSCRIPTION,
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="End after so long, with exit code 27.",
)
@section_option(
    "-R", "no_retained", section=OUTPUT, is_flag=True, help="Do not print retained messages."
)
@section_option(
    "--retained-only",
    section=OUTPUT,
    is_flag=True,
    help="Print retained messages only, and end with the first that is not.",
)
@section_option(
    "--remove-retained",
    section=OUTPUT,
    is_flag=True,
    help="Have the server forget each retained message that comes, but for those of -T.",
)
@section_option(
    "-T",
    "--filter-out",
    "filtered_out",
    section=OUTPUT,
    callback=parse_filters,
    multiple=True,
    metavar="FILTER",
    help="Do not print messages of these topics. May be repeated.",
)
@section_option(
    "--random-filter",
    "share",
    section=OUTPUT,
    type=NumberRange(0.1, 100.0),
    default=100.0,
    metavar="PERCENT",
    help="Print so many of a hundred messages, at random.",
)
@section_option("-v", "--verbose", section=OUTPUT, is_flag=True, help="Print topic and payload.")
@section_option("-N", "no_end", section=OUTPUT, is_flag=True, help="Do not end each with a line.")
@section_option(
    "-F",
    "form",
    section=OUTPUT,
    metavar="FORM",
    help="Print messages in this form: %t is the topic, %p the payload; see the documentation.",
)
@section_option("--pretty", section=OUTPUT, is_flag=True, help="%j and %J on many lines.")
@section_option(
    "--json", "json_wanted", section=OUTPUT, is_flag=True, help="Print an object on a line."
)
@connection_options
def command(
    connection: ConnectionOptions,
    topics: tuple[str, ...],
    qos: int,
    unsubscribe: tuple[str, ...],
    retain_as_published: bool,
    retain_handling: str | None,
    only_subscribe: bool,
    count: int | None,
    seconds: int | None,
    no_retained: bool,
    retained_only: bool,
    remove_retained: bool,
    filtered_out: tuple[str, ...],
    share: float,
    verbose: bool,
    no_end: bool,
    form: str | None,
    pretty: bool,
    json_wanted: bool,
) -> None:
    """Subscribe to topics, and print the messages that come.

    The flags and exit codes are those of mosquitto_sub. On a terminal a message is a line with its
    topic, QoS and properties; a pipe or file gets the payload and the end of a line. A message is
    acknowledged when it is printed.

    \b
        semel sub -h localhost -t 'plant/+/temp' -v
        semel sub -t '#' -F '@H:@M %t %p'
        semel sub -c -i audit -t 'orders/#' -q 2 --json >>orders.json
    """
    if connection.topic is not None:
        check_filter(connection.topic)
        topics = (*topics, connection.topic)
    if not topics and not unsubscribe:
        raise click.UsageError("what to subscribe to is missing: -t FILTER, or -L with a topic")
    check_filters((*topics, *unsubscribe), connection.version)
    if no_retained and retained_only:
        raise click.UsageError("-R and --retained-only leave nothing to print")
    if form is not None and json_wanted:
        raise click.UsageError("-F and --json are two forms; give one")
    if PUBLISH in connection.properties:
        raise click.UsageError("-D publish: `semel sub` publishes nothing that has properties")
    if connection.version != MQTT5 and (retain_as_published or retain_handling):
        name = "--retain-as-published" if retain_as_published else "--retain-handling"
        raise click.UsageError(f"{name} needs MQTT 5.0: -V mqttv5")
    wanted = SubscribeRequest(
        subscriptions=tuple(
            Subscription(
                topic,
                qos,
                retain_as_published=retain_as_published,
                retain_handling=RETAIN_HANDLING.index(retain_handling or "always"),
            )
            for topic in dict.fromkeys(topics)
        ),
        unsubscriptions=unsubscribe,
        filtered_out=filtered_out,
        count=count,
        seconds=seconds,
        only_subscribe=only_subscribe,
        no_retained=no_retained,
        retained_only=retained_only,
        remove_retained=remove_retained,
        share=share,
    )
    is_terminal = os.isatty(STANDARD_OUTPUT)
    look = MessageStyle(
        form=form,
        verbose=verbose,
        end_of_line=not no_end,
        pretty=pretty,
        json=json_wanted,
        is_terminal=is_terminal,
        colour=wants_colour(is_terminal),
        identifiers=bool(connection.properties_of(SUBSCRIBE).subscription_identifiers),
        quiet=connection.quiet,
    )
    try:
        printing(look)
    except BadFormat as problem:
        raise click.UsageError(f"-F: {problem}") from None
    run(connection, lambda: receive(connection, wanted, look))
