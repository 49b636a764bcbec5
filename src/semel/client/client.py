"""`Client`: what a program uses. See docs/client.md.

async with Client("mqtt://localhost") as client:
    await client.publish("plant/1/temp", "21.5", qos=2)
    async for message in client.subscribe("plant/+/temp", qos=2):
        print(message.topic, message.payload)
"""

import asyncio
import secrets
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from semel.client.address import Address, parse_address
from semel.client.authentication import Authentication
from semel.client.core import Core
from semel.client.errors import Disconnected, Refused
from semel.client.events import Answer, Outcome
from semel.client.greeting import Greeting
from semel.client.link import Link
from semel.client.messages import Messages, Responses
from semel.client.outbox import SESSION, Outbox, made_client_id, open_outbox
from semel.client.purge import purge
from semel.client.received import Incoming, Received
from semel.client.reconnect import Backoff
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5, UNSUBACK
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import (
    AUTHENTICATION_METHOD,
    CORRELATION_DATA,
    MAXIMUM_PACKET_SIZE,
    NO_PROPERTIES,
    RECEIVE_MAXIMUM,
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    Properties,
    PropertyItem,
    check_properties_version,
)
from semel.mqtt.reasons import FAILURE, NORMAL_DISCONNECTION, SUCCESS
from semel.store.store import FULL, Store

# What a session outlives its connection by, in seconds, if nobody says: a reconnect, and with an
# outbox a long week end.
BRIEF_EXPIRY: Final = 300
OUTBOX_EXPIRY: Final = 7 * 86_400
# Bytes of messages that wait for the program, above which nothing is read from the server.
MAXIMUM_BACKLOG: Final = 16 * 1024 * 1024
# About what a message takes beside topic and payload.
MESSAGE_BYTES: Final = 200
# Bytes of messages that wait to be sent, above which `publish` waits: in memory, on disk.
MAXIMUM_QUEUED: Final = 64 * 1024 * 1024
MAXIMUM_STORED: Final = 4 * 1024 * 1024 * 1024

Payload = bytes | bytearray | memoryview | str


class Listener(Protocol):
    """A part of the program that gets messages."""

    def put(self, incoming: Incoming) -> None:
        """One for it."""


@dataclass(frozen=True)
class Counters:
    """What a client has seen so far."""

    # Connections after the first.
    reconnects: int
    # Times that the server had forgotten the session, so that messages may have been missed; and
    # publications that were sent anew because of that, which may have arrived twice.
    sessions_lost: int
    resent: int
    # Messages that wait to be sent; that were sent and are not complete; that came and were not
    # acknowledged by the program.
    waiting: int
    in_flight: int
    unacknowledged: int


class Client:
    """One MQTT client: connected while its `async with` block lasts, over all reconnects."""

    def __init__(
        self,
        url: str | Address,
        *,
        client_id: str = "",
        version: int = MQTT5,
        session_expiry: int | None = None,
        clean_start: bool | None = None,
        keep_alive: int = 60,
        user_name: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        receive_maximum: int = 100,
        maximum_packet_size: int | None = None,
        properties: Properties = NO_PROPERTIES,
        tls: ssl.SSLContext | None = None,
        authentication: Authentication | None = None,
        reconnect: bool | Backoff = True,
        connect_timeout: float = 30.0,
        outbox: str | PathLike[str] | None = None,
        subscriptions: Iterable[str | Subscription] | None = None,
    ) -> None:
        """Nothing happens before `async with`. Raises Violation and BadAddress."""
        self.address = url if isinstance(url, Address) else parse_address(url)
        if isinstance(password, str):
            password = password.encode()
        self._is_brief = session_expiry is None and outbox is None
        if session_expiry is None:
            session_expiry = BRIEF_EXPIRY if outbox is None else OUTBOX_EXPIRY
            if version != MQTT5 and outbox is None:
                # [3.1.1 §3.1.2.4] a session that outlives its connection would never end
                session_expiry = 0
        if version == MQTT5:
            given: list[PropertyItem] = [
                (SESSION_EXPIRY_INTERVAL, session_expiry),
                (RECEIVE_MAXIMUM, receive_maximum),
            ]
            if maximum_packet_size is not None:
                given.append((MAXIMUM_PACKET_SIZE, maximum_packet_size))
            if authentication is not None:
                given.append((AUTHENTICATION_METHOD, authentication.method))
            properties = Properties([*given, *properties.items])
        self._greeting = Greeting(
            version,
            keep_alive=keep_alive,
            user_name=self.address.user_name if user_name is None else user_name,
            password=self.address.password if password is None else password,
            will=will,
            properties=properties,
            session_expiry=session_expiry,
        )
        self._client_id = client_id
        # What is wrong with it is wrong now.
        self._greeting.connect(client_id or made_client_id(), True, None)
        self._clean_start = clean_start
        self._tls = tls
        self._authentication = authentication
        self._backoff = Backoff() if reconnect is True else reconnect or None
        self._timeout = connect_timeout
        self._outbox_path = None if outbox is None else Path(outbox)
        self._list = None if subscriptions is None else [_subscription(s) for s in subscriptions]
        self._outbox: Outbox | None = None
        self._link: Link | None = None
        self._connack: ConnAck | None = None
        self._publishing: dict[int, asyncio.Future[int]] = {}
        self._storing: dict[int, asyncio.Future[int]] = {}
        self._unsubscribing: dict[str, list[asyncio.Future[None]]] = {}
        self._listeners: dict[str, list[Messages | Responses]] = {}
        self._others: list[Messages] = []
        self._iterators: list[Messages] = []
        self._unclaimed: deque[Incoming] = deque()
        self._backlog = 0
        self._responses: dict[str, Responses] = {}
        self._requests = 0

    # --- its life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect. Raises Refused, Disconnected, and Unusable for an outbox.

        With an outbox, a server that cannot be reached is tried again while the program goes on.
        """
        if self._link is not None:
            raise RuntimeError("the client is open already")
        try:
            self._link, again = self._begin()
            self._link.flush()
            self.arrived(again)
            await self._link.start(offline=self._outbox is not None)
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> tuple[Link, list[Incoming]]:
        """All but the connection, and messages of an earlier run that are handed out again."""
        client_id = self._client_id
        store = Store()
        disk = None
        if self._outbox_path is not None:
            self._outbox = open_outbox(self._outbox_path, client_id)
            client_id = self._outbox.client_id
            store = disk = self._outbox.opened.store
        elif self._greeting.version != MQTT5 and not client_id:
            client_id = made_client_id()
        core = Core(
            self._greeting,
            client_id,
            run=secrets.token_hex(6),
            store=store,
            number=SESSION if disk is not None else 0,
        )
        again = core.restore() if disk is not None else []
        if self._list is None:
            core.subscriptions.keep()
        else:
            for subscription in self._list:
                core.subscribe(subscription, NO_PROPERTIES)
        link = Link(
            core,
            self.address,
            self,
            tls=self._tls,
            timeout=self._timeout,
            backoff=self._backoff,
            clean_start=self._clean_start,
            purge=self._purge,
            store=disk,
            authentication=self._authentication,
        )
        return link, again

    async def close(self, reason: int = NORMAL_DISCONNECTION) -> None:
        """Disconnect, and end everything. With reason 0x04 the server publishes the will.

        Acknowledgements that were given leave first. Whoever waits in `publish` gets Disconnected;
        with an outbox, the message is sent by the next run.
        """
        link, self._link = self._link, None
        try:
            if link is not None:
                await link.close(reason, 0 if self._is_brief else None)
        finally:
            for messages in self._iterators:
                messages.end()
            self._iterators.clear()
            self._listeners.clear()
            self._others.clear()
            self._unclaimed.clear()
            self._responses.clear()
            self._backlog = 0
            if self._outbox is not None:
                self._outbox.opened.close()
                self._outbox = None

    async def _purge(self) -> None:
        assert self._link is not None
        await purge(
            self.address,
            self._link.core.client_id,
            user_name=self._greeting.user_name,
            password=self._greeting.password,
            tls=self._tls,
            timeout=self._timeout,
        )

    def _open(self) -> Link:
        link = self._link
        if link is None:
            raise Disconnected("the client is not open: use it inside `async with`")
        if link.problem is not None:
            raise link.problem
        return link

    @property
    def client_id(self) -> str:
        """The client identifier, the one that the server has assigned included."""
        return self._client_id if self._link is None else self._link.core.client_id

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link is not None and self._link.is_connected

    @property
    def session_present(self) -> bool:
        """Whether the last connection resumed a session that the server had."""
        return self._connack is not None and self._connack.session_present

    @property
    def server(self) -> Properties:
        """What the server said of itself in its last CONNACK."""
        return NO_PROPERTIES if self._connack is None else self._connack.properties

    @property
    def counters(self) -> Counters:
        """What has happened so far."""
        link = self._open()
        core = link.core
        return Counters(
            link.reconnects,
            core.sessions_lost,
            core.resent,
            core.session.waiting,
            core.session.in_flight,
            core.unacknowledged,
        )

    async def reauthenticate(self) -> None:
        """Authenticate anew by the method that the client was made with."""
        await self._open().reauthenticate()

    # --- publishing -------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        until: Literal["complete", "stored"] = "complete",
    ) -> int:
        """Publish a message, and wait until it is sent (QoS 0), or acknowledged (QoS 1 and 2).

        Returns the server's reason code, 0 or 0x10 (nobody has subscribed). Raises Violation,
        Refused, Disconnected, and TimeoutError if its Message Expiry Interval passed before it
        could be sent. Over a reconnect it goes on by itself. `until="stored"` waits only until the
        outbox has it. Cancelling ends the waiting, and never the message.
        """
        link = self._open()
        core = link.core
        interval = None
        if properties.present:
            check_properties_version(properties.present, core.version)
            interval = properties.message_expiry_interval
        message = Message(
            topic,
            _bytes(payload),
            qos=qos,
            retain=retain,
            properties=properties,
            expires_at=None if interval is None else link.now() + interval,
        )
        if qos == 0:
            if not (link.is_writable and core.is_connected):
                await link.until(lambda: link.is_writable and core.is_connected)
            core.publish_now(message, link.now())
            if link.handed_over(message.size):
                await asyncio.sleep(0)
            return SUCCESS
        if until == "stored" and self._outbox is None:
            raise ValueError('until="stored" needs an outbox: make the client with outbox=PATH')
        if self._is_full(link):
            await link.until(lambda: not self._is_full(link))
        waiting = self._publishing if until == "complete" else self._storing
        number = core.publish(message, link.now())
        outcome: asyncio.Future[int] = link.loop.create_future()
        waiting[number] = outcome
        link.handed_over(message.size)
        if link.is_held:
            # The answer may be behind what the program does not read.
            link.hold(False)
        try:
            return await outcome
        finally:
            del waiting[number]

    def _is_full(self, link: Link) -> bool:
        if self._outbox is None:
            return link.core.session.waiting_bytes > MAXIMUM_QUEUED
        store = self._outbox.opened.store
        return store.condition == FULL or link.core.session.waiting_bytes > MAXIMUM_STORED

    async def request(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 1,
        *,
        timeout: float = 30.0,
        response_topic: str | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> Received:
        """Publish a request and wait for its answer [4.10] (5.0). Raises TimeoutError."""
        link = self._open()
        core = link.core
        if response_topic is None:
            await link.until(lambda: core.is_connected)
            prefix = self.server.response_information or "semel/response"
            response_topic = f"{prefix}/{self.client_id}"
        responses = self._responses.get(response_topic)
        if responses is None:
            responses = Responses(self.taken)
            await self._subscribe_responses(response_topic, qos, responses)
        self._requests += 1
        correlation = self._requests.to_bytes(8, "big")
        answer = responses.expect(correlation)
        own: list[PropertyItem] = [
            (RESPONSE_TOPIC, response_topic),
            (CORRELATION_DATA, correlation),
        ]
        try:
            async with asyncio.timeout(timeout):
                asked = Properties([*own, *properties.items])
                await self.publish(topic, payload, qos, properties=asked)
                await asyncio.wait((answer,))
            return answer.result()
        finally:
            responses.forget(correlation)

    async def _subscribe_responses(self, topic: str, qos: int, responses: Responses) -> None:
        """Answers come by a subscription of their own."""
        messages = self.subscribe(topic, qos=qos)
        await messages
        self._listeners[topic] = [responses]
        self._responses[topic] = responses

    # --- receiving --------------------------------------------------------------------------------

    def subscribe(
        self,
        *filters: str | Subscription,
        qos: int = 0,
        auto_ack: bool = True,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> Messages:
        """Messages of these topic filters, `$share/group/filter` for a shared one.

        The options are those of filters that are given as text. Raises Violation.
        """
        link = self._open()
        if not filters:
            raise ValueError("subscribe needs a topic filter")
        check_properties_version(properties.present, link.core.version)
        asked = [
            each
            if isinstance(each, Subscription)
            else Subscription(
                each,
                qos,
                no_local=no_local,
                retain_as_published=retain_as_published,
                retain_handling=retain_handling,
            )
            for each in filters
        ]
        messages = Messages(self, asked, auto_ack)
        self._iterators.append(messages)
        for subscription in asked:
            self._listeners.setdefault(subscription.topic_filter, []).append(messages)
            link.core.subscribe(subscription, properties)
        self._offer_unclaimed()
        link.schedule()
        if link.is_held:
            link.hold(False)
        return messages

    def messages(self, *, auto_ack: bool = True) -> Messages:
        """Messages that no iterator of `subscribe` takes, such as those of a resumed session."""
        self._open()
        messages = Messages(self, (), auto_ack)
        self._iterators.append(messages)
        self._others.append(messages)
        self._offer_unclaimed()
        return messages

    async def unsubscribe(self, messages: Messages) -> None:
        """End an iterator, and its subscriptions if no other has them. See `Messages`."""
        link = self._open()
        if messages in self._others:
            self._others.remove(messages)
        answers = []
        for subscription in messages.subscriptions:
            topic_filter = subscription.topic_filter
            listeners = self._listeners.get(topic_filter, [])
            if messages in listeners:
                listeners.remove(messages)
                if not listeners:
                    del self._listeners[topic_filter]
                    link.core.unsubscribe(topic_filter)
                    answer: asyncio.Future[None] = link.loop.create_future()
                    self._unsubscribing.setdefault(topic_filter, []).append(answer)
                    answers.append(answer)
        if messages in self._iterators:
            self._iterators.remove(messages)
        for incoming in messages.end():
            self._backlog -= _size(incoming)
            if incoming.holders == 0:
                self._dispatch(incoming)
        link.schedule()
        for answer in answers:
            await answer

    def taken(self, received: Received) -> None:
        """A message has left its queue."""
        self._backlog -= len(received.payload) + len(received.topic) + MESSAGE_BYTES
        if self._link is not None and self._link.is_held:
            self._link.hold(self._is_behind())

    def _is_behind(self) -> bool:
        """Whether the program has more to read than it should, and waits for no answer."""
        return self._backlog > MAXIMUM_BACKLOG and not (self._publishing or self._unsubscribing)

    def _dispatch(self, incoming: Incoming) -> None:
        size = _size(incoming)
        targets: list[Messages | Responses] = []
        for topic_filter in incoming.filters:
            for listener in self._listeners.get(topic_filter, ()):
                if listener not in targets:
                    targets.append(listener)
        if not targets and self._others:
            targets.append(self._others[0])
        if not targets:
            self._backlog += size
            self._unclaimed.append(incoming)
            return
        self._backlog += size * len(targets)
        # All have it before one of them may acknowledge it.
        incoming.holders += 1
        for listener in targets:
            listener.put(incoming)
        incoming.release()

    def _offer_unclaimed(self) -> None:
        for _ in range(len(self._unclaimed)):
            incoming = self._unclaimed.popleft()
            self._backlog -= _size(incoming)
            self._dispatch(incoming)

    # --- what the link says -----------------------------------------------------------------------

    def greeted(self, packet: ConnAck) -> None:
        """The connection may be used."""
        self._connack = packet
        if not packet.session_present:
            # There is nothing to be unsubscribed from.
            self._end_unsubscribing()

    def arrived(self, messages: list[Incoming]) -> None:
        """Messages have come, and are safe."""
        for incoming in messages:
            self._dispatch(incoming)
        if self._backlog > MAXIMUM_BACKLOG and self._link is not None:
            self._link.hold(self._is_behind())

    def stored(self, numbers: list[int]) -> None:
        """Publications are on disk."""
        for number in numbers:
            waiting = self._storing.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(SUCCESS)

    def settled(self, outcomes: list[Outcome]) -> None:
        """Publications are complete, or will not be."""
        for outcome in outcomes:
            waiting = self._publishing.get(outcome.number)
            if waiting is None or waiting.done():
                continue
            if outcome.violation is not None:
                waiting.set_exception(outcome.violation)
            elif outcome.expired:
                waiting.set_exception(TimeoutError("the message expired before it could be sent"))
            elif outcome.reason >= FAILURE:
                waiting.set_exception(
                    Refused(
                        outcome.reason,
                        outcome.packet_type,
                        about="the message",
                        properties=outcome.properties,
                    )
                )
            else:
                waiting.set_result(outcome.reason)

    def answered(self, answers: list[Answer]) -> None:
        """SUBSCRIBE and UNSUBSCRIBE are answered."""
        for answer in answers:
            if answer.subscribed:
                for listener in self._listeners.get(answer.topic_filter, ()):
                    if isinstance(listener, Messages):
                        listener.answered(answer)
                continue
            for waiting in self._unsubscribing.pop(answer.topic_filter, ()):
                if waiting.done():
                    continue
                if answer.reason >= FAILURE:
                    about = f"to end the subscription to {answer.topic_filter}"
                    waiting.set_exception(
                        Refused(answer.reason, UNSUBACK, about=about, properties=answer.properties)
                    )
                else:
                    waiting.set_result(None)

    def parted(self, problem: Exception) -> None:
        """The connection is gone; another will be tried."""
        # The server is told of what it has too much when it is there again.
        self._end_unsubscribing()

    def _end_unsubscribing(self) -> None:
        for answers in self._unsubscribing.values():
            for waiting in answers:
                if not waiting.done():
                    waiting.set_result(None)
        self._unsubscribing.clear()

    def failed(self, problem: Exception) -> None:
        """There will be no other connection: nobody need wait any more."""
        for waiting in (*self._publishing.values(), *self._storing.values()):
            if not waiting.done():
                waiting.set_exception(problem)
        for answers in self._unsubscribing.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(problem)
        self._unsubscribing.clear()
        for messages in self._iterators:
            if self._link is not None:
                messages.fail(problem)


def _subscription(given: str | Subscription) -> Subscription:
    return given if isinstance(given, Subscription) else Subscription(given, 2)


def _bytes(payload: Payload) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload is bytes or text, not {type(payload).__name__}: encode it first")


def _size(incoming: Incoming) -> int:
    return len(incoming.payload) + len(incoming.topic) + MESSAGE_BYTES
