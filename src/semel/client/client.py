"""`Client`: what a program uses. See docs/program/client.md.

async with Client("mqtt://localhost") as client:
    await client.publish("plant/1/temp", "21.5", qos=2)
    async for message in client.subscribe("plant/+/temp", qos=2):
        print(message.topic, message.payload)
"""

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from semel.client.address import Address, BadAddress, parse_address
from semel.client.authentication import ClientAuthentication
from semel.client.core import Core
from semel.client.counters import ClientCounters
from semel.client.distribution import Distribution
from semel.client.errors import Disconnected, Refused
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.greeting import Greeting
from semel.client.link import BrokerLink
from semel.client.messages import Channel, MessageListener, Messages, Responses
from semel.client.opening import Opening, open_transport
from semel.client.outbox import SESSION, Outbox, made_client_id, open_outbox
from semel.client.purge import purge
from semel.client.received import Incoming, Received
from semel.client.reconnect import Backoff
from semel.client.tls import make_context
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

LOG: Final = logging.getLogger("semel.client")

# What a session outlives its connection by, in seconds, if nobody says: a reconnect, and with an
# outbox a long week end.
BRIEF_EXPIRY: Final = 300
OUTBOX_EXPIRY: Final = 7 * 86_400
# Bytes of messages that wait to be sent, above which `publish` waits: in memory, on disk.
MAXIMUM_QUEUED: Final = 64 * 1024 * 1024
MAXIMUM_STORED: Final = 4 * 1024 * 1024 * 1024

EXPIRED: Final = "the message expired before it could be sent"

Payload = bytes | bytearray | memoryview | str


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
        receive_maximum: int | None = None,
        maximum_packet_size: int | None = None,
        properties: Properties = NO_PROPERTIES,
        tls: ssl.SSLContext | None = None,
        authentication: ClientAuthentication | None = None,
        reconnect: bool | Backoff = True,
        connect_timeout: float = 30.0,
        outbox: str | PathLike[str] | None = None,
        subscriptions: Iterable[str | Subscription] | None = None,
        opening: Opening = open_transport,
    ) -> None:
        """Nothing happens before `async with`. Raises Violation and BadAddress."""
        self.address = url if isinstance(url, Address) else parse_address(url)
        if tls is not None and not self.address.secure:
            raise BadAddress(f"{self.address} is not secure: with tls=, use mqtts:// or wss://")
        if isinstance(password, str):
            password = password.encode()
        self._is_brief = session_expiry is None and outbox is None
        if session_expiry is None:
            session_expiry = BRIEF_EXPIRY if outbox is None else OUTBOX_EXPIRY
            if version != MQTT5 and outbox is None:
                # [3.1.1 §3.1.2.4] a session that outlives its connection would never end
                session_expiry = 0
        given: list[PropertyItem] = [(SESSION_EXPIRY_INTERVAL, session_expiry)]
        if receive_maximum is not None:
            given.append((RECEIVE_MAXIMUM, receive_maximum))
        if maximum_packet_size is not None:
            given.append((MAXIMUM_PACKET_SIZE, maximum_packet_size))
        if version == MQTT5:
            properties = Properties([*given, *properties.items])
        else:
            # In 3.1.1 they bind nobody but us; what is wrong with them is wrong there, too.
            Properties(given)
        if authentication is not None:
            method: PropertyItem = (AUTHENTICATION_METHOD, authentication.method)
            properties = Properties([*properties.items, method])
        self._greeting = Greeting(
            version,
            keep_alive=keep_alive,
            user_name=self.address.user_name if user_name is None else user_name,
            password=self.address.password if password is None else password,
            will=will,
            properties=properties,
            session_expiry=session_expiry,
            maximum_packet_size=maximum_packet_size,
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
        # What a publication can be waited for.
        self._ends = ("complete",) if outbox is None else ("complete", "stored")
        self._list = None if subscriptions is None else [_subscription(s) for s in subscriptions]
        self._opening = opening
        self._outbox: Outbox | None = None
        self._link: BrokerLink | None = None
        self._counters = ClientCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        self._connack: ConnAck | None = None
        self._publishing: dict[int, asyncio.Future[int]] = {}
        self._storing: dict[int, asyncio.Future[int]] = {}
        self._unsubscribing: dict[str, list[asyncio.Future[None]]] = {}
        self._distribution: Distribution | None = None
        self._sent = 0
        self._refused = 0
        # Requests and re-authentications that are not answered yet.
        self._expecting = 0
        self._responses: dict[str, Responses] = {}
        self._response_word = secrets.token_hex(8)

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
        except asyncio.CancelledError:
            await self._close(NORMAL_DISCONNECTION, NO_PROPERTIES, at_once=True)
            raise
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> tuple[BrokerLink, list[Incoming]]:
        """All but the connection, and messages of an earlier run that are handed out again."""
        if self._tls is None and self.address.secure:
            # Reading the system's certificates takes its time: once is enough.
            self._tls = make_context()
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
        self._distribution = Distribution(core.subscriptions.wanted)
        link = BrokerLink(
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
            opening=self._opening,
        )
        return link, again

    async def close(
        self, reason: int = NORMAL_DISCONNECTION, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Disconnect, and end everything. With reason 0x04 the server publishes the will.

        Acknowledgements that were given leave first. Whoever waits in `publish` gets Disconnected;
        with an outbox, the message is sent by the next run.
        """
        await self._close(reason, properties, at_once=False)

    async def _close(self, reason: int, properties: Properties, *, at_once: bool) -> None:
        if self._link is not None:
            self._counters = self.counters
        link, self._link = self._link, None
        try:
            if link is not None:
                expiry = properties.session_expiry_interval
                if expiry is None and self._is_brief:
                    expiry = 0
                others = [each for each in properties.items if each[0] != SESSION_EXPIRY_INTERVAL]
                await link.close(reason, expiry, at_once=at_once, properties=Properties(others))
        finally:
            if self._distribution is not None:
                self._distribution.clear()
                self._distribution = None
            self._responses.clear()
            if self._outbox is not None:
                self._outbox.opened.close()
                self._outbox = None

    async def _purge(self, client_id: str) -> None:
        # The link asks for it, and may do so for the last time while it is being closed.
        await purge(
            self.address,
            client_id,
            user_name=self._greeting.user_name,
            password=self._greeting.password,
            tls=self._tls,
            timeout=self._timeout,
            opening=self._opening,
        )

    def _open(self) -> BrokerLink:
        link = self._link
        if link is None:
            raise Disconnected("the client is not open: use it inside `async with`")
        if link.problem is not None:
            raise link.problem.with_traceback(None)
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
    def counters(self) -> ClientCounters:
        """What has happened so far, or until the client was closed."""
        link = self._link
        if link is None:
            return self._counters
        core = link.core
        parts = self._parts()
        return ClientCounters(
            self._sent,
            parts.received,
            self._refused,
            parts.dropped,
            link.reconnects,
            core.sessions_lost,
            core.resent,
            len(core.session.backlog),
            core.session.in_flight,
            core.unacknowledged,
        )

    async def reauthenticate(self) -> None:
        """Authenticate anew by the method that the client was made with (5.0)."""
        link = self._open()
        with self._expected(link):
            await link.reauthenticate()

    async def ping(self) -> None:
        """Wait for the answer to a PINGREQ: the server has read all that was sent before it.

        At QoS 0 there is no other sign of that. Raises Disconnected if there is no connection, or
        it is lost before the answer.
        """
        link = self._open()
        with self._expected(link):
            await link.ping()

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

        Returns the server's reason code, 0 or 0x10 (nobody had subscribed). Raises Violation,
        Refused, Disconnected, and TimeoutError if its Message Expiry Interval passed before it
        could be sent. Over a reconnect it goes on by itself. `until="stored"` waits only until the
        outbox has it. Cancelling ends the waiting, and never the message.
        """
        link = self._open()
        core = link.core
        if until not in self._ends:
            raise ValueError(f"until is {' or '.join(self._ends)}; stored needs outbox=PATH")
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
                if message.is_expired(link.now()):
                    raise TimeoutError(EXPIRED)
            core.publish_now(message, link.now())
            self._sent += 1
            if link.handed_over(message.size):
                await asyncio.sleep(0)
            return SUCCESS
        if self._is_full(link):
            await link.until(lambda: not self._is_full(link))
        waiting = self._publishing if until == "complete" else self._storing
        number = core.publish(message, link.now())
        outcome: asyncio.Future[int] = link.loop.create_future()
        waiting[number] = outcome
        link.handed_over(message.size)
        if interval is not None:
            link.watch_expiry()
        if link.is_held:
            # The answer may be behind what the program does not read.
            link.hold(False)
        try:
            return await outcome
        finally:
            del waiting[number]
            self._update_reading(link)

    @contextlib.contextmanager
    def _expected(self, link: BrokerLink) -> Iterator[None]:
        """An answer of the server is waited for in here: what it sends has to be read."""
        self._expecting += 1
        link.hold(False)
        try:
            yield
        finally:
            self._expecting -= 1
            self._update_reading(link)

    def _is_full(self, link: BrokerLink) -> bool:
        if self._outbox is None:
            return link.core.session.backlog.size > MAXIMUM_QUEUED
        store = self._outbox.opened.store
        return store.condition == FULL or link.core.session.backlog.size > MAXIMUM_STORED

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
        check_properties_version(1 << RESPONSE_TOPIC, link.core.version)
        correlation = secrets.token_bytes(16)
        with self._expected(link):
            async with asyncio.timeout(timeout):
                await link.until(lambda: link.is_connected)
                if response_topic is None:
                    prefix = self.server.response_information or "semel/response"
                    response_topic = f"{prefix}/{self._response_word}"
                own: list[PropertyItem] = [
                    (RESPONSE_TOPIC, response_topic),
                    (CORRELATION_DATA, correlation),
                ]
                asked = Properties([*own, *properties.items])
                responses = self._responses_at(response_topic, qos, link)
                answer = responses.expect(correlation)
                try:
                    await responses.until_granted()
                    await self.publish(topic, payload, qos, properties=asked)
                    return await answer
                finally:
                    responses.forget(correlation)

    def _responses_at(self, topic: str, qos: int, link: BrokerLink) -> Responses:
        """Answers come by a subscription of their own."""
        responses = self._responses.get(topic)
        if responses is not None and responses.problem is not None:
            # It was refused; it may not be again.
            self._parts().remove(responses)
            responses = None
        if responses is None:
            responses = self._responses[topic] = Responses(topic, qos, self)
            self._listen(responses, NO_PROPERTIES, link)
        return responses

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
        channel = Channel(asked, auto_ack=auto_ack)
        self._listen(channel, properties, link)
        return Messages(self, channel)

    def _listen(self, listener: MessageListener, properties: Properties, link: BrokerLink) -> None:
        for topic_filter, subscription in listener.subscriptions.items():
            link.core.subscribe(subscription, properties)
            # Whoever was about to unsubscribe need not wait: it is wanted again.
            self._end_unsubscribing(topic_filter)
        self._parts().add(listener)
        # It leaves before whatever the program publishes next.
        link.flush()
        link.hold(False)

    def messages(self, *, auto_ack: bool = True) -> Messages:
        """Messages that no iterator of `subscribe` takes, such as those of a resumed session."""
        self._open()
        channel = Channel((), auto_ack=auto_ack)
        self._parts().add_other(channel)
        return Messages(self, channel)

    async def end_subscription(
        self, topic_filter: str, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Unsubscribe from what the session has, whether or not anybody iterates over it."""
        link = self._open()
        core = link.core
        known = core.subscriptions
        if topic_filter not in known.wanted and topic_filter not in known.held:
            return
        core.unsubscribe(topic_filter, properties)
        await self._until_unsubscribed([topic_filter], link)

    async def unsubscribe(self, channel: Channel) -> None:
        """End an iterator, and its subscriptions if no other has them. See `Messages`."""
        link = self._link
        if link is None or link.problem is not None:
            channel.end()
            return
        filters = self._parts().remove(channel)
        for topic_filter in filters:
            link.core.unsubscribe(topic_filter)
        self._parts().take_over(channel)
        await self._until_unsubscribed(filters, link)

    async def _until_unsubscribed(self, filters: list[str], link: BrokerLink) -> None:
        answers = []
        for topic_filter in filters:
            if link.is_connected:
                answer: asyncio.Future[None] = link.loop.create_future()
                self._unsubscribing.setdefault(topic_filter, []).append(answer)
                answers.append(answer)
        link.flush()
        link.hold(False)
        try:
            for answer in answers:
                await answer
        finally:
            self._update_reading(link)

    def let_go(self, channel: Channel) -> None:
        """The program has let go of an iterator, in any thread and at any moment."""
        link = self._link
        if link is not None and not link.loop.is_closed():
            link.loop.call_soon_threadsafe(self._abandoned, channel)

    def _abandoned(self, channel: Channel) -> None:
        """Its subscriptions stay, for another one."""
        if self._distribution is not None:
            self._distribution.remove(channel)
            self._distribution.unfinished(channel)
            self._distribution.take_over(channel)

    def unfinished(self, channel: Channel) -> None:
        """The program will not finish with the message that it is at."""
        if self._distribution is not None:
            self._distribution.unfinished(channel)

    def taken(self, received: Received) -> None:
        """A message has left its queue."""
        if self._distribution is not None:
            self._distribution.taken(received)
        if self._link is not None and self._link.is_held:
            self._update_reading(self._link)

    def _parts(self) -> Distribution:
        assert self._distribution is not None
        return self._distribution

    def _update_reading(self, link: BrokerLink) -> None:
        """Read no more while the program has more to read than it should, and wants no answer."""
        is_behind = self._distribution is not None and self._distribution.is_behind
        if is_behind or link.is_held:
            link.hold(is_behind and not self._awaits_server(link))

    def _awaits_server(self, link: BrokerLink) -> bool:
        return bool(
            self._publishing
            or self._unsubscribing
            or self._expecting
            or not link.core.subscriptions.has_no_open_request
        )

    # --- what the link says -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The connection may be used."""
        self._connack = packet
        if not packet.session_present:
            # There is nothing to be unsubscribed from.
            self._end_all_unsubscribing()

    def arrived(self, messages: list[Incoming]) -> None:
        """Messages have come, and are safe."""
        link = self._link
        if link is None:
            # It is closing, and a commit with messages was on its way: the inbox has them.
            return
        self._parts().arrived(messages, may_drop=self._awaits_server(link))
        self._update_reading(link)

    def stored(self, numbers: list[int]) -> None:
        """Publications are on disk."""
        for number in numbers:
            waiting = self._storing.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(SUCCESS)

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Publications are complete, or will not be."""
        for outcome in outcomes:
            problem = _problem_of(outcome)
            if problem is None:
                self._sent += 1
            else:
                self._refused += 1
            waiting = self._publishing.get(outcome.number)
            if waiting is None or waiting.done():
                if problem is not None:
                    LOG.warning("a message that nobody waits for is given up: %s", problem)
            elif problem is None:
                waiting.set_result(outcome.reason)
            else:
                waiting.set_exception(problem)

    def answered(self, answers: list[SubscriptionAnswer]) -> None:
        """SUBSCRIBE and UNSUBSCRIBE are answered."""
        for answer in answers:
            topic_filter = answer.topic_filter
            if answer.subscribed:
                for listener in tuple(self._parts().listeners.get(topic_filter, ())):
                    listener.answered(answer)
            elif answer.reason < FAILURE:
                self._end_unsubscribing(topic_filter)
            else:
                about = f"to end the subscription to {topic_filter}"
                problem = Refused(
                    answer.reason, UNSUBACK, about=about, properties=answer.properties
                )
                self._end_unsubscribing(topic_filter, problem)

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is gone; another will be tried."""
        # The server is told of what it has too much when it is there again.
        self._end_all_unsubscribing()

    def _end_all_unsubscribing(self, problem: Exception | None = None) -> None:
        for topic_filter in tuple(self._unsubscribing):
            self._end_unsubscribing(topic_filter, problem)

    def _end_unsubscribing(self, topic_filter: str, problem: Exception | None = None) -> None:
        for answer in self._unsubscribing.pop(topic_filter, ()):
            if answer.done():
                continue
            if problem is None:
                answer.set_result(None)
            else:
                answer.set_exception(problem)

    def failed(self, problem: Exception) -> None:
        """There will be no other connection: nobody need wait any more."""
        for waiting in (*self._publishing.values(), *self._storing.values()):
            if not waiting.done():
                waiting.set_exception(problem)
        # A client that has failed is subscribed to nothing.
        self._end_all_unsubscribing()
        if self._link is not None:
            for listener in self._parts().everybody():
                listener.fail(problem)


def _problem_of(outcome: PublishOutcome) -> Exception | None:
    """Why a publication was not sent, or not accepted."""
    if outcome.violation is not None:
        return outcome.violation
    if outcome.expired:
        return TimeoutError(EXPIRED)
    if outcome.reason < FAILURE:
        return None
    about = "the message"
    return Refused(outcome.reason, outcome.packet_type, about=about, properties=outcome.properties)


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
