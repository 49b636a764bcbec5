"""`semel sub`: subscribe and print messages, with the flags of mosquitto_sub.

A message is acknowledged after standard output has accepted it: until then the server, or the
session state of this client, keeps it.
"""

import asyncio
import functools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from semel.broker.cursors import STREAM_TOPICS
from semel.cli.flags import json_option, shared_option
from semel.cli.message_format import BadFormat
from semel.cli.message_view import MessageStyle, make_printer, stripped, use_color
from semel.cli.mqtt_client import (
    DONE,
    TIMED_OUT,
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
    check_filter,
    check_filters,
    connection_options,
    parse_filters,
)
from semel.cli.numbers import YEAR, Duration, IntegerRange, NumberRange
from semel.cli.option_groups import OUTPUT, grouped_option
from semel.cli.pipes import STANDARD_OUTPUT, PipeOutput, standard_output
from semel.client import Client, Disconnected, Messages, Received, Refused
from semel.mqtt import MQTT5, Subscription, Violation, topic_matches
from semel.mqtt.packet_types import PUBLISH, SUBACK, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.reasons import DISCONNECT_WITH_WILL_MESSAGE

SUBSCRIPTION: Final = "Subscription"
RETAIN_HANDLING: Final = ("always", "new", "never")


# --- receiving ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubscribeRequest:
    """What to subscribe to, and which messages to print."""

    subscriptions: tuple[Subscription, ...]
    unsubscriptions: tuple[str, ...]
    filtered_out: tuple[str, ...]
    count: int | None
    seconds: float | None
    only_subscribe: bool
    no_retained: bool
    retained_only: bool
    remove_retained: bool
    # The percentage of messages to print.
    share: float


class MessageReader:
    """Prints messages up to the last one requested."""

    def __init__(
        self, client: Client, output: PipeOutput, request: SubscribeRequest, style: MessageStyle
    ) -> None:
        self.client = client
        self.output = output
        self.request = request
        self.print = make_printer(style)
        self.style = style
        self.printed = 0
        self.removals: list[asyncio.Task[int]] = []

    async def process(self, message: Received) -> bool:
        """Print a message if requested, and acknowledge it. Returns whether it was the last."""
        request = self.request
        if request.retained_only and not message.retain:
            return True
        if any(topic_matches(each, message.topic) for each in request.filtered_out):
            message.ack()
            return False
        if request.remove_retained and message.retain:
            removal = self.client.publish(message.topic, b"", 1, retain=True)
            self.removals.append(asyncio.create_task(removal))
        if request.no_retained and message.retain:
            message.ack()
            return False
        if request.share >= 100 or random.random() * 100 < request.share:  # nosec B311
            text, problem = self.print(message if self.style.identifiers else stripped(message))
            await self.output.write(text)
            if problem is not None and not self.style.quiet:
                print_to_stderr(f"Error: {problem}")
        message.ack()
        self.printed += 1
        return self.printed == request.count

    async def finish(self) -> None:
        """Wait until the retained messages of --remove-retained are removed."""
        for removal in self.removals:
            await removal


def refusal(problem: Refused, topic_filter: str, connection: ConnectionOptions) -> Failure:
    """The Failure for a refused subscription, with advice if MQTT 5.0 would help."""
    advice = ""
    is_replay = problem.packet_type == SUBACK and topic_filter.startswith(STREAM_TOPICS)
    if is_replay and connection.version != MQTT5:
        # [3.1.1 §3.9.3] a SUBACK of 3.1.1 has no reason but 0x80
        advice = "; replaying a stream needs MQTT 5.0: -V 5"
    return Failure(f"{problem}{advice}", code_of(problem))


async def subscribe_all(
    client: Client, connection: ConnectionOptions, request: SubscribeRequest
) -> None:
    """Subscribe to each filter. Raises Failure if the server refuses all of them."""
    properties = connection.properties_of(SUBSCRIBE)
    pending = [client.subscribe(each, properties=properties) for each in request.subscriptions]
    refusals = []
    for subscription in request.subscriptions:
        try:
            await pending[0]
        except Refused as problem:
            refusals.append(refusal(problem, subscription.topic_filter, connection))
        # Nothing iterates over it: from now on its messages go to `client.messages()`.
        del pending[0]
    if refusals and len(refusals) == len(request.subscriptions):
        raise refusals[0]
    for each in refusals:
        if not connection.quiet:
            print_to_stderr(f"Warning: {each}")


async def read(messages: Messages, reader: MessageReader) -> None:
    """Print messages up to the last one requested."""
    async for message in messages:
        if await reader.process(message):
            break
    await reader.finish()


async def receive_all(client: Client, connection: ConnectionOptions, reader: MessageReader) -> None:
    """Subscribe and read at the same time: a session may have messages before the SUBACK."""
    request = reader.request

    async def prepare() -> None:
        if messages.subscriptions:
            await messages
        else:
            await subscribe_all(client, connection, request)
        for topic_filter in request.unsubscriptions:
            properties = connection.properties_of(UNSUBSCRIBE)
            await client.end_subscription(topic_filter, properties=properties)

    if len(request.subscriptions) == 1 and not connection.persistent:
        messages = client.subscribe(
            *request.subscriptions, auto_ack=False, properties=connection.properties_of(SUBSCRIBE)
        )
    else:
        # The server may refuse some of several; a session may have some of earlier runs.
        messages = client.messages(auto_ack=False)
    if request.only_subscribe:
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
    connection: ConnectionOptions, request: SubscribeRequest, style: MessageStyle
) -> int:
    """Connect, subscribe and print messages. Returns the exit code. Raises Failure."""
    output = standard_output()
    client, connection = await connect(connection, reconnect=True, outlives_loss=True)
    reader = MessageReader(client, output, request, style)
    reason = 0
    try:
        async with asyncio.timeout(request.seconds):
            await receive_all(client, connection, reader)
        return DONE
    except TimeoutError:
        reason = DISCONNECT_WITH_WILL_MESSAGE
        raise Failure("timed out", TIMED_OUT) from None
    except asyncio.CancelledError:
        # A signal is the usual end of a subscriber.
        reason = DISCONNECT_WITH_WILL_MESSAGE
        return DONE
    except BrokenPipeError:
        # The reader of the output has read enough.
        return DONE
    except Refused as problem:
        # Of several subscriptions, `subscribe_all` has named the refused one.
        topic_filter = request.subscriptions[0].topic_filter if request.subscriptions else ""
        raise refusal(problem, topic_filter, connection) from None
    except Disconnected as problem:
        raise Failure(str(problem), code_of(problem)) from None
    except Violation as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(f"standard output cannot be written: {problem.strerror}") from None
    finally:
        reason = reason if connection.version == MQTT5 else 0
        await disconnect(client, connection, reason)


# --- flags ----------------------------------------------------------------------------------------

REQUEST_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    grouped_option(
        "-t",
        "--topic",
        "topics",
        section=SUBSCRIPTION,
        callback=parse_filters,
        multiple=True,
        metavar="FILTER",
        help="Subscribe to this topic filter. May be repeated.",
    ),
    shared_option(
        "--qos", section=SUBSCRIPTION, type=QOS, default=0, help="The highest QoS. By default 0."
    ),
    grouped_option(
        "-U",
        "--unsubscribe",
        section=SUBSCRIPTION,
        callback=parse_filters,
        multiple=True,
        metavar="FILTER",
        help="End a subscription of the session (-c). May be repeated.",
    ),
    grouped_option(
        "--retain-as-published",
        section=SUBSCRIPTION,
        is_flag=True,
        help="Keep the retain flag of the publisher (5.0).",
    ),
    grouped_option(
        "--retain-handling",
        section=SUBSCRIPTION,
        type=click.Choice(RETAIN_HANDLING),
        help="When the server sends retained messages: for each subscription, for a new one, or"
        " never (5.0).",
    ),
    grouped_option(
        "-E",
        "only_subscribe",
        section=SUBSCRIPTION,
        is_flag=True,
        help="Exit when the server has acknowledged the subscriptions.",
    ),
    shared_option(
        "--count",
        "-C",
        section=SUBSCRIPTION,
        type=IntegerRange(min=1),
        help="Exit after this many messages.",
    ),
    shared_option(
        "--duration",
        "-W",
        section=SUBSCRIPTION,
        type=Duration(0, YEAR, min_open=True),
        help="Exit after this time, with exit code 27.",
    ),
    grouped_option(
        "-R", "no_retained", section=OUTPUT, is_flag=True, help="Do not print retained messages."
    ),
    grouped_option(
        "--retained-only",
        section=OUTPUT,
        is_flag=True,
        help="Print retained messages only, and exit at the first other message.",
    ),
    grouped_option(
        "--remove-retained",
        section=OUTPUT,
        is_flag=True,
        help="Delete each retained message that arrives from the server, except those of -T.",
    ),
    grouped_option(
        "-T",
        "--filter-out",
        "filtered_out",
        section=OUTPUT,
        callback=parse_filters,
        multiple=True,
        metavar="FILTER",
        help="Do not print messages of matching topics. May be repeated.",
    ),
    grouped_option(
        "--random-filter",
        "share",
        section=OUTPUT,
        type=NumberRange(0.1, 100.0),
        default=100.0,
        metavar="PERCENT",
        help="Print this percentage of the messages, chosen at random.",
    ),
)
STYLE_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    grouped_option(
        "-v", "--verbose", section=OUTPUT, is_flag=True, help="Print topic and payload."
    ),
    grouped_option(
        "-N", "no_end", section=OUTPUT, is_flag=True, help="Do not end messages with a newline."
    ),
    grouped_option(
        "-F",
        "form",
        section=OUTPUT,
        metavar="FORMAT",
        help="Print messages in this format: %t is the topic, %p the payload; see "
        "docs/reference/pub-sub.md.",
    ),
    grouped_option(
        "--pretty", section=OUTPUT, is_flag=True, help="Print %j and %J on several lines."
    ),
    json_option("Print one JSON object per line.", section=OUTPUT),
)


def request_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a SubscribeRequest. The function receives it as `request`."""

    @functools.wraps(function)
    def with_request(connection: ConnectionOptions, **values: Any) -> None:
        own = {name: values.pop(name) for name in REQUEST_NAMES}
        request = make_request(connection, own)
        if own["retain_as_published"] or own["retain_handling"]:
            connection = replace(connection, may_fall_back=False)
        function(connection=connection, request=request, **values)

    decorated: Callable[..., None] = with_request
    for each in reversed(REQUEST_OPTIONS):
        decorated = each(decorated)
    return decorated


def style_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a MessageStyle. The function receives it as `style`."""

    @functools.wraps(function)
    def with_style(connection: ConnectionOptions, **values: Any) -> None:
        own = {name: values.pop(name) for name in STYLE_NAMES}
        function(connection=connection, style=make_style(connection, own), **values)

    decorated: Callable[..., None] = with_style
    for each in reversed(STYLE_OPTIONS):
        decorated = each(decorated)
    return decorated


# The parameter names that click derives from the options.
REQUEST_NAMES: Final = (
    *("topics", "qos", "unsubscribe", "retain_as_published", "retain_handling", "only_subscribe"),
    *("count", "duration", "no_retained", "retained_only", "remove_retained", "filtered_out"),
    "share",
)
STYLE_NAMES: Final = ("verbose", "no_end", "form", "pretty", "is_json")


def make_request(connection: ConnectionOptions, own: dict[str, Any]) -> SubscribeRequest:
    """The flags of a subscription as one object. Raises click.UsageError."""
    topics = own["topics"]
    if connection.topic is not None:
        check_filter(connection.topic)
        topics = (*topics, connection.topic)
    if not topics and not own["unsubscribe"]:
        raise click.UsageError("the topic filter is missing: give -t FILTER, or -L with a topic")
    check_filters((*topics, *own["unsubscribe"]), connection.version)
    if own["no_retained"] and own["retained_only"]:
        raise click.UsageError("-R and --retained-only together leave nothing to print")
    if PUBLISH in connection.properties:
        raise click.UsageError("-D publish: `semel sub` publishes no message with properties")
    for name in ("retain_as_published", "retain_handling"):
        if connection.version != MQTT5 and own[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs MQTT 5.0: -V 5")
    return SubscribeRequest(
        subscriptions=tuple(
            Subscription(
                topic,
                own["qos"],
                retain_as_published=own["retain_as_published"],
                retain_handling=RETAIN_HANDLING.index(own["retain_handling"] or "always"),
            )
            for topic in dict.fromkeys(topics)
        ),
        unsubscriptions=own["unsubscribe"],
        filtered_out=own["filtered_out"],
        count=own["count"],
        seconds=own["duration"],
        only_subscribe=own["only_subscribe"],
        no_retained=own["no_retained"],
        retained_only=own["retained_only"],
        remove_retained=own["remove_retained"],
        share=own["share"],
    )


def make_style(connection: ConnectionOptions, own: dict[str, Any]) -> MessageStyle:
    """The flags of the output as one object. Raises click.UsageError."""
    if own["form"] is not None and own["is_json"]:
        raise click.UsageError("give one of -F and --json")
    is_terminal = os.isatty(STANDARD_OUTPUT)
    style = MessageStyle(
        form=own["form"],
        verbose=own["verbose"],
        end_of_line=not own["no_end"],
        pretty=own["pretty"],
        json=own["is_json"],
        is_terminal=is_terminal,
        color=use_color(is_terminal),
        identifiers=bool(connection.properties_of(SUBSCRIBE).subscription_identifiers),
        quiet=connection.quiet,
    )
    try:
        make_printer(style)
    except BadFormat as problem:
        raise click.UsageError(f"-F: {problem}") from None
    return style


@click.command(
    cls=MqttCommand,
    examples=(
        "semel sub -h localhost -t 'plant/+/temp' -v",
        "semel sub -t '#' -F '@H:@M %t %p'",
        "semel sub -c -i audit -t 'orders/#' -q 2 --json >>orders.json",
    ),
)
@connection_options
@request_options
@style_options
def command(connection: ConnectionOptions, request: SubscribeRequest, style: MessageStyle) -> None:
    """Subscribe to topics and print messages.

    The flags and exit codes are those of mosquitto_sub. On a terminal each message is a line with
    topic, QoS and properties; to a pipe or file the payload and a newline are written. A message is
    acknowledged after it is printed.
    """
    run(connection, lambda: receive(connection, request, style))
