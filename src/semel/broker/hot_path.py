"""The hot path: ordinary packets, processed directly in the received bytes.

It makes no decisions of its own. It processes a PUBLISH if its topic has a `Route`, which the plain
path has cached, and an acknowledgement if it is the next step of its exchange. Any other packet
(RETAIN, DUP, properties that are not sent on unchanged, an unknown topic, a packet out of order)
stays in the decoder, and the plain path in `core.py` handles it.

Consecutive QoS 0 messages of one topic are a *run*: one slice of the received bytes, which is
appended to the output of each session. If a session needs other bytes (another version, a
subscription identifier, a small Maximum Packet Size) or has no room, the plain path routes these
messages to it one by one. A test feeds both paths the same bytes and compares all output.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.access_control import AccessControl
from semel.broker.connection import Connection
from semel.broker.counters import BrokerCounters
from semel.broker.durability import CommitGate
from semel.broker.router import Router, queued_bytes
from semel.broker.routes import PLAIN, Route, Routes
from semel.broker.session_state import SessionState
from semel.broker.turns import (
    COPY_SHIFT,
    HOT_DELIVERY_WORK,
    HOT_PACKET_WORK,
    HOT_PUBLISH_WORK,
)
from semel.mqtt.codec import decode
from semel.mqtt.message import (
    SENT_UNCHANGED,
    Message,
    received_message,
    unchanged_properties,
)
from semel.mqtt.ordinary import ordinary_answer, ordinary_publish
from semel.mqtt.packet_types import (
    DUP_FLAG,
    FIXED_FLAGS,
    MQTT5,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    RETAIN_FLAG,
)
from semel.mqtt.packets.publish import Publish, check_payload
from semel.mqtt.properties import NO_PROPERTIES, Properties, properties_size
from semel.mqtt.reasons import NO_MATCHING_SUBSCRIBERS, SUCCESS
from semel.mqtt.side import CLIENT
from semel.mqtt.violation import Violation


@final
class Run:
    """Consecutive QoS 0 messages of one topic, from `start` in the received bytes."""

    route: Route | None
    start: i64
    count: i64
    # Where it must end: copying the bytes up to there to all receivers is the work of one turn.
    limit: i64
    # The size of the largest packet, of all payloads, and of all properties.
    largest: i64
    payload: i64
    properties: i64

    def __init__(self) -> None:
        self.route = None
        self.start = 0
        self.limit = 0
        self.count = 0
        self.largest = 0
        self.payload = 0
        self.properties = 0

    def clear(self) -> None:
        """Discard a run that an exception may have left."""
        self.route = None

    def begin(self, route: Route, start: i64, share: i64) -> None:
        """Start an empty run, for at most this much work."""
        self.route = route
        self.start = start
        self.limit = start + (share << COPY_SHIFT) // (len(route.states) + 1)
        self.count = 0
        self.largest = 0
        self.payload = 0
        self.properties = 0

    def add(self, size: i64, payload: i64) -> None:
        """Add a message, given the sizes of its packet and of its payload."""
        self.count += 1
        self.payload += payload
        if size > self.largest:
            self.largest = size


@final
class PublishParts:
    """A QoS 1 or 2 PUBLISH, split so that each receiver only needs another Packet Identifier.

    `head` is the bytes before the identifier, `tail` those after it.
    """

    qos: int
    packet_id: int
    head: bytes
    tail: bytes
    payload: bytes
    properties: Properties

    def __init__(self) -> None:
        self.qos = 0
        self.packet_id = 0
        self.head = b""
        self.tail = b""
        self.payload = b""
        self.properties = NO_PROPERTIES


@final
class UnchangedSection:
    """The last property section that was accepted, so that equal bytes need no other check."""

    # With the Property Length.
    data: bytes
    properties: Properties
    # As `Message.size` counts it.
    size: i64
    # Whether its Payload Format Indicator says that the payload is UTF-8.
    indicates_utf8: bool

    def __init__(self) -> None:
        self.data = b""
        self.properties = NO_PROPERTIES
        self.size = 0
        self.indicates_utf8 = False

    def accepts(self, data: bytes, maximum_items: int) -> bool:
        """Whether a server sends all properties of this section on unchanged.

        `maximum_items` must be the same in all calls.
        """
        if data != self.data:
            properties = unchanged_properties(data, maximum_items)
            if properties is None:
                return False
            self.data = data
            self.properties = properties
            self.size = properties_size(properties)
            self.indicates_utf8 = properties.payload_format_indicator == 1
        return True


def is_utf8(payload: bytes) -> bool:
    """Whether a payload is UTF-8, by the rule for the Payload Format Indicator."""
    try:
        check_payload(payload, PUBLISH, None)
    except Violation:
        return False
    return True


@final
class HotPath:
    """Processes ordinary packets of all connections."""

    routes: Final[Routes]
    # How many packets were processed here.
    taken: int
    _router: Final[Router]
    _access: Final[AccessControl]
    _gate: Final[CommitGate]
    _counters: Final[BrokerCounters]
    _run: Final[Run]
    _parts: Final[PublishParts]
    _section: Final[UnchangedSection]

    def __init__(self, router: Router, route_cache: int) -> None:
        self.routes = Routes(
            router.subscriptions,
            router.access,
            router.sessions,
            router.streams,
            route_cache,
            copies_for_each=router.copies_for_each,
        )
        self.taken = 0
        self._router = router
        self._access = router.access
        self._gate = router.gate
        self._counters = router.counters
        self._run = Run()
        self._parts = PublishParts()
        self._section = UnchangedSection()

    def learn(self, state: SessionState, packet: Publish) -> None:
        """Cache the route of a message that the plain path has just routed."""
        changed = packet.properties.present & ~SENT_UNCHANGED
        if packet.topic_name and not changed and not packet.retain:
            rights = self._access.rights(state)
            matches = self._router.matches
            self.routes.learn(packet.topic_name, matches, rights=rights, qos=packet.qos)

    def take(self, connection: Connection, state: SessionState, now: float, turn_work: int) -> None:
        """Process packets from the decoder's position, up to the first one that is not ordinary, or
        to the end of the turn."""
        router = self._router
        decoder = connection.decoder
        data, start = decoder.unread()
        at: i64 = start
        available: i64 = len(data)
        maximum: i64 = decoder.maximum_packet_size
        # In 5.0 an ordinary PUBLISH has one byte of Property Length.
        properties: i64 = 1 if connection.exchange.version == MQTT5 else 0
        section = self._section
        routes = self.routes
        routes.refresh()
        rights = self._access.rights(state)
        levels = connection.limits.topic_levels
        run = self._run
        run.clear()
        packets: i64 = 0
        # The work for packets is added at the end; the work for deliveries where they are made.
        share: i64 = turn_work - router.work
        while at + 4 <= available and packets < share:
            first: i64 = data[at]
            length: i64 = data[at + 1]
            if first >> 4 != PUBLISH:
                self._end_run(state, data, at, now)
                if length != 2 or not self._answer(connection, state, data, at, first):
                    break
                router.work += HOT_DELIVERY_WORK
                at += 4
                packets += 1
                continue
            qos: i64 = first >> 1 & 3
            if first & (DUP_FLAG | RETAIN_FLAG) or qos == 3:
                break  # DUP, RETAIN, or an invalid QoS
            body: i64 = at + 2
            if length > 127:
                last: i64 = data[body]
                body += 1
                length = length & 127 | (last & 127) << 7
                if last > 127:
                    last = data[body]
                    body += 1
                    length |= last << 14
                if last == 0 or last > 127:
                    break  # not the shortest form, or 2 MiB and more
            end: i64 = body + length
            topic: i64 = body + 2
            if end > available or end - at > maximum or topic > end:
                break
            after_topic: i64 = topic + (data[body] << 8 | data[body + 1])
            payload: i64 = after_topic + properties
            if qos:
                payload += 2
            if payload > end:
                break
            section_size: i64 = 0
            if properties and data[payload - 1]:
                section_size = data[payload - 1]
                after_section = payload + section_size
                if section_size > 127 or after_section > end:
                    break
                whole = data[payload - 1 : after_section]
                if not section.accepts(whole, decoder.maximum_items):
                    break
                payload = after_section
                if section.indicates_utf8 and not is_utf8(data[payload:end]):
                    break
            route = routes.find(data[topic:after_topic])
            # Another listener, on which it was published, may allow more levels.
            if route is None or route.levels > levels or not route.allows(rights, qos):
                break
            if qos:
                self._end_run(state, data, at, now)
                if router.work >= turn_work:
                    break
                parts = self._parts
                parts.qos = qos
                parts.packet_id = data[after_topic] << 8 | data[after_topic + 1]
                parts.head = data[at:after_topic]
                parts.tail = data[after_topic + 2 : end]
                parts.payload = data[payload:end] if properties else parts.tail
                parts.properties = section.properties if section_size else NO_PROPERTIES
                if not self._publish(connection, state, route, now):
                    break
            else:
                if route.streams:
                    break  # each message has a row of its own
                if route is not run.route or at >= run.limit:
                    self._end_run(state, data, at, now)
                    if router.work >= turn_work:
                        break
                    run.begin(route, at, share)
                run.add(end - at, end - payload)
                if section_size:
                    run.properties += section.size
            at = end
            packets += 1
        self._end_run(state, data, at, now)
        router.work += packets * HOT_PACKET_WORK
        if packets:
            decoder.move_to(at)
            connection.last_packet_at = now
            self.taken += packets
            self._counters.packets_received += packets
            self._router.mark_dirty(state)

    def _answer(
        self, connection: Connection, state: SessionState, data: bytes, at: i64, first: i64
    ) -> bool:
        """Process an acknowledgement of four bytes. Returns False, unchanged, if not ordinary."""
        kind = first >> 4
        if kind < PUBACK or kind > PUBCOMP or first & 15 != FIXED_FLAGS[kind]:
            return False
        packet_id: i64 = data[at + 2] << 8 | data[at + 3]
        if not ordinary_answer(connection.exchange, CLIENT, kind, packet_id):
            return False
        answered = state.session.receive_plain_ack(kind, packet_id)
        assert answered, "Exchange and Session await the same acknowledgements"
        return True

    def _end_run(self, publisher: SessionState, data: bytes, end: i64, now: float) -> None:
        """Send the run, if there is one, to its receivers."""
        run = self._run
        route = run.route
        if route is None:
            return
        run.route = None
        version = publisher.session.version
        piece = data[run.start : end]
        # The sum of `Message.size`, as the plain path would count it.
        size = run.count * route.topic_size + run.payload + run.properties
        grants = route.grants
        plain: set[str] | None = None
        sent: i64 = 0
        states = route.states
        for at in range(len(states)):
            state = states[at]
            session = state.session
            if session.connected:
                if (
                    grants[at] & PLAIN == 0
                    and not state.uses_aliases
                    and session.version == version
                    and session.maximum_packet_size >= run.largest
                    and session.room > size
                ):
                    session.append(piece, size)
                    state.messages_sent += run.count
                    self._router.mark_dirty(state)
                    self._router.check_behind(state)
                    sent += 1
                elif plain is None:
                    plain = {state.client_id}
                else:
                    plain.add(state.client_id)
        counters = self._counters
        counters.received.add(0, messages=run.count, size=run.payload)
        counters.sent.add(0, messages=sent * run.count, size=sent * run.payload)
        counters.packets_sent += sent * run.count
        self._router.work += sent * (HOT_DELIVERY_WORK + (len(piece) >> COPY_SHIFT))
        if plain is not None:
            self._route_plainly(route, publisher, piece, plain, now)

    def _route_plainly(
        self, route: Route, publisher: SessionState, piece: bytes, only: set[str], now: float
    ) -> None:
        at = 0
        while at < len(piece):
            decoded = decode(piece, publisher.session.version, start=at)
            assert decoded is not None
            packet, at = decoded
            assert isinstance(packet, Publish)
            message = received_message(packet, route.topic_name, now)
            self._router.route(message, publisher, now, only=only)

    def _publish(
        self,
        connection: Connection,
        publisher: SessionState,
        route: Route,
        now: float,
    ) -> bool:
        """Process the QoS 1 or 2 message in `_parts`. Returns False, unchanged, if not ordinary."""
        session = publisher.session
        parts = self._parts
        qos = parts.qos
        packet_id = parts.packet_id
        if not packet_id or not session.is_new(qos, packet_id) or not self._router.has_store_room():
            return False
        if not ordinary_publish(connection.exchange, CLIENT, qos, packet_id):
            return False
        message = Message(route.topic_name, parts.payload, qos=qos, properties=parts.properties)
        is_kept = self._gate.keeps_identifier(publisher, qos)
        if route.streams:
            is_kept = True
            self._router.record(route.streams, message, publisher, packet_id=packet_id)
        grants = route.grants
        plain: set[str] | None = None
        sent: i64 = 0
        states = route.states
        for at in range(len(states)):
            state = states[at]
            receiver = state.session
            grant: i64 = grants[at]
            if (
                grant >= qos
                and grant & PLAIN == 0
                and not state.uses_aliases
                and receiver.version == session.version
                and receiver.send_encoded(message, parts.head, parts.tail)
            ):
                self._router.mark_dirty(state)
                self._router.check_behind(state)
                if state.is_durable:
                    is_kept = True
                    self._router.unwritten_bytes += queued_bytes(message)
                state.messages_sent += 1
                sent += 1
            elif plain is None:
                plain = {state.client_id}
            else:
                plain.add(state.client_id)
        reason = SUCCESS
        if plain is not None:
            matched = self._router.route(message, publisher, now, only=plain, is_kept=is_kept)
            is_kept = self._gate.message_is_kept
            if not matched and not sent:
                reason = NO_MATCHING_SUBSCRIBERS
        elif not sent:
            reason = NO_MATCHING_SUBSCRIBERS
        size = len(parts.payload)
        self._counters.received.add(qos, messages=1, size=size)
        self._counters.sent.add(qos, messages=sent, size=sent * size)
        self._counters.packets_sent += sent
        self._router.work += HOT_PUBLISH_WORK + sent * HOT_DELIVERY_WORK
        if is_kept:
            self._gate.await_kept_message(publisher, states)
        session.acknowledge(qos, packet_id, reason)
        return True
