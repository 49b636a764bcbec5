"""`Client`: the MQTT client for programs. See docs/program/client.md.

async with Client("mqtt://localhost") as client:
    await client.publish("plant/1/temp", "21.5", qos=2)
    async for message in client.subscribe("plant/+/temp", qos=2):
        print(message.topic, message.payload)
"""

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from semel.client.address import Address, BadAddress, parse_address
from semel.client.authentication import ClientAuthentication
from semel.client.connect_parameters import ConnectParameters
from semel.client.connector import Connector, open_transport
from semel.client.core import ClientCore
from semel.client.counters import ClientCounters
from semel.client.dispatcher import MessageDispatcher
from semel.client.errors import Disconnected
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.link import BrokerLink
from semel.client.messages import Channel, MessageListener, Messages, Responses
from semel.client.outbox import SESSION, Outbox, make_client_id, open_outbox
from semel.client.pending_unsubscribes import PendingUnsubscribes
from semel.client.publications import EXPIRED, Publications
from semel.client.purge import purge
from semel.client.received import Incoming, Received
from semel.client.reconnect import Backoff
from semel.client.tls import make_context
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5
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
from semel.mqtt.reasons import NORMAL_DISCONNECTION, SUCCESS
from semel.store.store import FULL, Store

# The default Session Expiry Interval in seconds: for a reconnect, and with an outbox for a week.
BRIEF_EXPIRY: Final = 300
OUTBOX_EXPIRY: Final = 7 * 86_400
# Bytes of messages in the backlog above which `publish` waits: in memory, and on disk.
MAXIMUM_QUEUED: Final = 64 * 1024 * 1024
MAXIMUM_STORED: Final = 4 * 1024 * 1024 * 1024

Payload = bytes | bytearray | memoryview | str


class Client:
    """One MQTT client. Inside `async with` it is connected, and reconnects automatically."""

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
        connector: Connector = open_transport,
    ) -> None:
        """Does no I/O: `async with` connects. Raises Violation and BadAddress."""
        self.address = url if isinstance(url, Address) else parse_address(url)
        if tls is not None and not self.address.secure:
            raise BadAddress(f"tls= needs a secure address, mqtts:// or wss://, not {self.address}")
        if isinstance(password, str):
            password = password.encode()
        self._ends_session_on_close = session_expiry is None and outbox is None
        if session_expiry is None:
            session_expiry = BRIEF_EXPIRY if outbox is None else OUTBOX_EXPIRY
            if version != MQTT5 and outbox is None:
                # [3.1.1 §3.1.2.4] a session that outlives its connection never expires
                session_expiry = 0
        own: list[PropertyItem] = [(SESSION_EXPIRY_INTERVAL, session_expiry)]
        if receive_maximum is not None:
            own.append((RECEIVE_MAXIMUM, receive_maximum))
        if maximum_packet_size is not None:
            own.append((MAXIMUM_PACKET_SIZE, maximum_packet_size))
        method = None if authentication is None else authentication.method
        self._parameters = ConnectParameters(
            version,
            keep_alive=keep_alive,
            user_name=self.address.user_name if user_name is None else user_name,
            password=self.address.password if password is None else password,
            will=will,
            properties=_connect_properties(version, own, properties, method),
            session_expiry=session_expiry,
            maximum_packet_size=maximum_packet_size,
        )
        self._client_id = client_id
        # Raise for an invalid CONNECT here, not when it is sent.
        self._parameters.connect(client_id or make_client_id(), True, None)
        self._clean_start = clean_start
        self._tls = tls
        self._authentication = authentication
        self._backoff = Backoff() if reconnect is True else reconnect or None
        self._timeout = connect_timeout
        self._outbox_path = None if outbox is None else Path(outbox)
        # What `publish` can wait for.
        self._publish_states = ("complete",) if outbox is None else ("complete", "stored")
        self._subscriptions = (
            None if subscriptions is None else [_subscription(s) for s in subscriptions]
        )
        self._connector = connector
        self._outbox: Outbox | None = None
        self._link: BrokerLink | None = None
        self._counters = ClientCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        self._connack: ConnAck | None = None
        self._publications = Publications()
        self._unsubscribes = PendingUnsubscribes()
        self._dispatcher: MessageDispatcher | None = None
        # Messages sent at QoS 0.
        self._sent = 0
        # Requests, pings and re-authentications that await an answer.
        self._awaited_answers = 0
        self._responses: dict[str, Responses] = {}
        self._response_suffix = secrets.token_hex(8)

    # --- connect and close ------------------------------------------------------------------------

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

        With an outbox it returns even if the server cannot be reached: the client keeps trying in
        the background.
        """
        if self._link is not None:
            raise RuntimeError("the client is already open")
        try:
            self._link, again = self._begin()
            self._link.flush()
            self.on_arrived(again)
            await self._link.start(offline=self._outbox is not None)
        except asyncio.CancelledError:
            await self._close(NORMAL_DISCONNECTION, NO_PROPERTIES, at_once=True)
            raise
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> tuple[BrokerLink, list[Incoming]]:
        """Prepare the link. Also returns the messages of an earlier run to hand out again."""
        if self._tls is None and self.address.secure:
            # Reading the system's certificates is slow: do it once.
            self._tls = make_context()
        client_id = self._client_id
        store = Store()
        disk = None
        if self._outbox_path is not None:
            self._outbox = open_outbox(self._outbox_path, client_id)
            client_id = self._outbox.client_id
            store = disk = self._outbox.opened.store
        elif self._parameters.version != MQTT5 and not client_id:
            client_id = make_client_id()
        core = ClientCore(
            self._parameters,
            client_id,
            run=secrets.token_hex(6),
            store=store,
            store_id=SESSION if disk is not None else 0,
        )
        again = core.restore() if disk is not None else []
        if self._subscriptions is None:
            core.subscriptions.adopt_session()
        else:
            for subscription in self._subscriptions:
                core.subscribe(subscription, NO_PROPERTIES)
        self._dispatcher = MessageDispatcher(core.subscriptions.requested)
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
            connector=self._connector,
        )
        return link, again

    async def close(
        self, reason: int = NORMAL_DISCONNECTION, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Disconnect and close. With reason 0x04 the server publishes the will.

        Raises Violation if the DISCONNECT would break a rule; the client then stays open. A Reason
        String and User Properties that exceed the server's Maximum Packet Size are not sent.
        Acknowledgements by the program are sent first. A task that waits in `publish` gets
        Disconnected; with an outbox, the next run sends the message.
        """
        await self._close(reason, properties, at_once=False)

    async def _close(self, reason: int, properties: Properties, *, at_once: bool) -> None:
        expiry = 0 if self._ends_session_on_close else None
        if self._link is not None:
            if not at_once:
                self._link.check_disconnect(reason, expiry, properties)
            self._counters = self.counters
        link, self._link = self._link, None
        try:
            if link is not None:
                await link.close(reason, expiry, at_once=at_once, properties=properties)
        finally:
            if self._dispatcher is not None:
                self._dispatcher.clear()
                self._dispatcher = None
            self._responses.clear()
            if self._outbox is not None:
                self._outbox.opened.close()
                self._outbox = None

    async def _purge(self, client_id: str) -> None:
        # Does not use the link, which may be closing when it calls this.
        await purge(
            self.address,
            client_id,
            user_name=self._parameters.user_name,
            password=self._parameters.password,
            tls=self._tls,
            timeout=self._timeout,
            connector=self._connector,
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
        """The client identifier; the one that the server assigned, if it did."""
        return self._client_id if self._link is None else self._link.core.client_id

    @property
    def connected(self) -> bool:
        """Whether the client is connected at the moment."""
        return self._link is not None and self._link.is_connected

    @property
    def session_present(self) -> bool:
        """Whether the last connection resumed a session that the server had."""
        return self._connack is not None and self._connack.session_present

    @property
    def server(self) -> Properties:
        """The properties of the server's last CONNACK."""
        return NO_PROPERTIES if self._connack is None else self._connack.properties

    @property
    def counters(self) -> ClientCounters:
        """The present counters, or the final ones of a closed client."""
        link = self._link
        if link is None:
            return self._counters
        core = link.core
        publications = self._publications
        dispatcher = self._open_dispatcher()
        return ClientCounters(
            self._sent + publications.acknowledged,
            dispatcher.received,
            publications.refused,
            dispatcher.dropped,
            link.reconnects,
            core.sessions_lost,
            core.resent,
            len(core.session.backlog),
            core.session.in_flight,
            core.unacknowledged,
        )

    async def reauthenticate(self) -> None:
        """Authenticate again, by the `authentication` of the client (5.0)."""
        link = self._open()
        with self._awaiting_answer(link):
            await link.reauthenticate()

    async def ping(self) -> None:
        """Send PINGREQ and wait for the answer: the server has read all that was sent before it.

        At QoS 0 this is the only confirmation. Raises Disconnected if there is no connection, or
        if it is lost before the answer.
        """
        link = self._open()
        with self._awaiting_answer(link):
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

        Returns the server's reason code, 0 or 0x10 (no matching subscribers). Raises Violation,
        Refused, Disconnected, and TimeoutError if its Message Expiry Interval passed before it
        could be sent. It keeps waiting over a reconnect. `until="stored"` waits only until the
        outbox has the message. Cancelling ends the wait, but not the delivery.
        """
        link = self._open()
        core = link.core
        if until not in self._publish_states:
            raise ValueError(
                f"until is {' or '.join(self._publish_states)}; stored needs outbox=PATH"
            )
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
        publications = self._publications
        waiting = publications.completing if until == "complete" else publications.storing
        number = core.publish(message, link.now())
        outcome: asyncio.Future[int] = link.loop.create_future()
        waiting[number] = outcome
        link.handed_over(message.size)
        if interval is not None:
            link.watch_expiry()
        if link.is_paused_by_reader:
            # The acknowledgement may be behind messages that the program does not read.
            link.pause_for_reader(False)
        try:
            return await outcome
        finally:
            del waiting[number]
            self._update_reading(link)

    @contextlib.contextmanager
    def _awaiting_answer(self, link: BrokerLink) -> Iterator[None]:
        """Keep reading from the server while the block awaits its answer."""
        self._awaited_answers += 1
        link.pause_for_reader(False)
        try:
            yield
        finally:
            self._awaited_answers -= 1
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
        """Publish a request and return the response [4.10] (5.0). Raises TimeoutError."""
        link = self._open()
        check_properties_version(1 << RESPONSE_TOPIC, link.core.version)
        correlation = secrets.token_bytes(16)
        with self._awaiting_answer(link):
            async with asyncio.timeout(timeout):
                await link.until(lambda: link.is_connected)
                if response_topic is None:
                    prefix = self.server.response_information or "semel/response"
                    response_topic = f"{prefix}/{self._response_suffix}"
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
        """The listener for responses on this topic, which has its own subscription."""
        responses = self._responses.get(topic)
        if responses is not None and responses.problem is not None:
            # The server refused the subscription: try again.
            self._open_dispatcher().remove(responses)
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
        """An iterator over messages of these topic filters; `$share/group/filter` is shared.

        The options apply to filters that are given as text. Raises Violation.
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
            # A task that is unsubscribing from it need not wait: it is requested again.
            self._unsubscribes.end(topic_filter)
        self._open_dispatcher().add(listener)
        # Send SUBSCRIBE before anything that the program publishes next.
        link.flush()
        link.pause_for_reader(False)

    def messages(self, *, auto_ack: bool = True) -> Messages:
        """An iterator over messages that no other iterator gets, as of a resumed session."""
        self._open()
        channel = Channel((), auto_ack=auto_ack)
        self._open_dispatcher().add_default(channel)
        return Messages(self, channel)

    async def end_subscription(
        self, topic_filter: str, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Unsubscribe from a filter of the session, whether or not an iterator uses it."""
        link = self._open()
        core = link.core
        known = core.subscriptions
        if topic_filter not in known.requested and topic_filter not in known.in_session:
            return
        core.unsubscribe(topic_filter, properties)
        await self._until_unsubscribed([topic_filter], link)

    async def unsubscribe_channel(self, channel: Channel) -> None:
        """End an iterator, and its subscriptions if no other uses them. See `Messages`."""
        link = self._link
        if link is None or link.problem is not None:
            channel.end()
            return
        filters = self._open_dispatcher().remove(channel)
        for topic_filter in filters:
            link.core.unsubscribe(topic_filter)
        self._open_dispatcher().return_undelivered(channel)
        await self._until_unsubscribed(filters, link)

    async def _until_unsubscribed(self, filters: list[str], link: BrokerLink) -> None:
        answers = []
        for topic_filter in filters:
            if link.is_connected:
                answers.append(self._unsubscribes.add(topic_filter, link.loop))
        link.flush()
        link.pause_for_reader(False)
        try:
            for answer in answers:
                await answer
        finally:
            self._update_reading(link)

    def abandon(self, channel: Channel) -> None:
        """The program has dropped an iterator; may be called in any thread."""
        link = self._link
        if link is not None and not link.loop.is_closed():
            link.loop.call_soon_threadsafe(self._on_abandoned, channel)

    def _on_abandoned(self, channel: Channel) -> None:
        """Give its messages to others; its subscriptions stay."""
        if self._dispatcher is not None:
            self._dispatcher.remove(channel)
            self._dispatcher.return_unfinished(channel)
            self._dispatcher.return_undelivered(channel)

    def return_unfinished(self, channel: Channel) -> None:
        """Give the message that the program did not finish to another iterator."""
        if self._dispatcher is not None:
            self._dispatcher.return_unfinished(channel)

    def on_taken(self, received: Received) -> None:
        """The program has taken a message from its queue."""
        if self._dispatcher is not None:
            self._dispatcher.on_taken(received)
        if self._link is not None and self._link.is_paused_by_reader:
            self._update_reading(self._link)

    def _open_dispatcher(self) -> MessageDispatcher:
        assert self._dispatcher is not None
        return self._dispatcher

    def _update_reading(self, link: BrokerLink) -> None:
        """Pause reading while the program is behind, unless it awaits an answer."""
        is_behind = self._dispatcher is not None and self._dispatcher.is_behind
        if is_behind or link.is_paused_by_reader:
            link.pause_for_reader(is_behind and not self._awaits_server(link))

    def _awaits_server(self, link: BrokerLink) -> bool:
        return bool(
            self._publications.completing
            or self._unsubscribes.by_filter
            or self._awaited_answers
            or not link.core.subscriptions.has_no_open_request
        )

    # --- events of the link -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The server has accepted the connection."""
        self._connack = packet
        if not packet.session_present:
            # A new session has no subscription to end.
            self._unsubscribes.end_all()

    def on_arrived(self, messages: list[Incoming]) -> None:
        """Messages have arrived and are stored, if there is an outbox."""
        link = self._link
        if link is None:
            # A commit completed while the client closes: the inbox has these messages.
            return
        self._open_dispatcher().on_arrived(messages, may_drop=self._awaits_server(link))
        self._update_reading(link)

    def on_stored(self, numbers: list[int]) -> None:
        """The outbox has these publications."""
        self._publications.on_stored(numbers)

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Publications are complete, or were given up."""
        self._publications.on_published(outcomes)

    def on_answered(self, answers: list[SubscriptionAnswer]) -> None:
        """The server has answered SUBSCRIBE or UNSUBSCRIBE packets."""
        for answer in answers:
            if answer.subscribed:
                listeners = self._open_dispatcher().listeners.get(answer.topic_filter, ())
                for listener in tuple(listeners):
                    listener.on_answered(answer)
            else:
                self._unsubscribes.on_answered(answer)

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is lost; the link reconnects."""
        # The client unsubscribes after the reconnect.
        self._unsubscribes.end_all()

    def on_failed(self, problem: Exception) -> None:
        """The link does not reconnect: raise the error in every waiting task."""
        self._publications.fail(problem)
        # A client that has failed has no subscriptions.
        self._unsubscribes.end_all()
        if self._link is not None:
            for listener in self._open_dispatcher().all_listeners():
                listener.fail(problem)


def _connect_properties(
    version: int, own: list[PropertyItem], more: Properties, method: str | None
) -> Properties:
    """The properties of CONNECT: `own`, those of the program, and the authentication method."""
    # Check them in 3.1.1 too, where they are not sent.
    checked = Properties(own)
    properties = Properties([*checked.items, *more.items]) if version == MQTT5 else more
    if method is not None:
        properties = Properties([*properties.items, (AUTHENTICATION_METHOD, method)])
    return properties


def _subscription(given: str | Subscription) -> Subscription:
    return given if isinstance(given, Subscription) else Subscription(given, 2)


def _bytes(payload: Payload) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload is bytes or str, not {type(payload).__name__}: encode it first")
