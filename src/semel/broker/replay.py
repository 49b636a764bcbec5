"""Replay of recorded streams over MQTT itself: subscriptions to `$stream/<name>/<filter>`.

A client of MQTT 5.0 says with the user property `stream-offset` of its SUBSCRIBE where to begin,
and gets the record in its order, each message under `$stream/<name>/<its topic>` and with the user
properties `stream-seq` and `stream-time`, up to the end of the record and then what is added to it.

    store ─ records ─▶ Cursor ─ what the filter matches, and its client may receive ─▶ Session
                         └──── its place ───▶ the commit that has these deliveries

*Flow:* a message is taken from the record when the session can put it on the wire at once: there
is quota of the Receive Maximum, nothing waits, and its client has read nearly all that was sent.
So a replay never fills a queue, the other messages of a session go before it, and no publisher
waits for it. The cursors of a session take turns, and a session does not take a tick for itself.

*Once:* the place of a durable session's cursor is in the same commit as the deliveries that moved
it, and their packets leave after that commit: after a crash QoS 2 messages come exactly once, QoS 1
messages without a gap, and QoS 0 messages at most once. In the order of the record all of them.

A message that is replayed is a new one: it has no Message Expiry Interval, whatever the recorded
one had, RETAIN 0 and DUP 0. It is neither recorded nor retained, and nobody else gets it.

Choices where the standard has nothing to say: a `stream-offset` is for all subscriptions to streams
in its SUBSCRIBE, and means nothing to the others; more than one are refused; so is a shared
subscription to a stream. Overlapping subscriptions get a copy each: each has a place of its own.
No Local and Retain As Published mean nothing here.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from traceback import format_exc
from typing import Final, final

from semel.broker.cursors import STREAM_TOPICS, Cursor, Cursors
from semel.broker.router import Router
from semel.broker.send_queue import SendQueue
from semel.broker.session_state import SessionState, shown
from semel.mqtt.codec import encode
from semel.mqtt.exchange import Exchange
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.subscribe import SubAck, Subscribe, Subscription
from semel.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
    Properties,
    PropertyItem,
)
from semel.mqtt.reasons import (
    FAILURE,
    IMPLEMENTATION_SPECIFIC_ERROR,
    QUOTA_EXCEEDED,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    TOPIC_FILTER_INVALID,
)
from semel.mqtt.topics import has_wildcard, quoted, split_share, topic_matches
from semel.mqtt.wire import MAXIMUM_TWO_BYTES, text_size
from semel.store.commit import Commit, RecordedMessage
from semel.store.store import OPEN, Saved
from semel.store.streams import Stream

# The user property of a SUBSCRIBE, and what it may say beside a seq and a time.
OFFSET: Final = "stream-offset"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET_RULE: Final = (
    f"the user property {OFFSET} must be given once at the most, as {EARLIEST}, {LATEST}, a seq"
    " such as 42, or a time with its zone such as 2026-11-16T03:00:00Z"
)
# User properties of what is replayed.
SEQ: Final = "stream-seq"
TIME: Final = "stream-time"
MISSED: Final = "stream-missed"

# A seq has no more digits, and is not larger.
_DIGITS: Final = 19
_LARGEST_SEQ: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# Different reasons that one SUBACK tells.
_REASONS: Final = 5
# Subscriptions to streams that one session may have.
MOST_CURSORS: Final = 100
# Records that it may deal with in a tick; so much is each question to the store, too.
_TURN: Final = 100
# Records that are passed over before the place of a durable cursor is kept for that alone.
_UNNOTED: Final = 1_000
# Sessions that are no more and are listed as asleep: beyond so many, the list is made anew.
_STALE: Final = 50

# What a replayed message has of the recorded properties.
_KEPT: Final = (
    1 << PAYLOAD_FORMAT_INDICATOR
    | 1 << CONTENT_TYPE
    | 1 << RESPONSE_TOPIC
    | 1 << CORRELATION_DATA
    | 1 << USER_PROPERTY
)


def is_of_stream(topic_filter: str) -> bool:
    """Whether it asks for the record of a stream, shared or not."""
    return split_share(topic_filter)[1].startswith(STREAM_TOPICS)


def split_stream(topic_filter: str) -> tuple[str, str]:
    """Name and inner filter of `$stream/<name>/<filter>`; ("", "") if it has not that form."""
    name, _, inner_filter = topic_filter[len(STREAM_TOPICS) :].partition("/")
    return ("", "") if has_wildcard(name) or not inner_filter else (name, inner_filter)


def given_offsets(properties: Properties) -> list[str]:
    """What the user properties of a SUBSCRIBE say about where to begin."""
    found: list[str] = []
    for _, value in properties.items:
        if isinstance(value, tuple) and value[0] == OFFSET:
            found.append(value[1])
    return found


def parse_offset(text: str, stream: Stream) -> tuple[int, int] | None:
    """Where a cursor begins: its position and `since`; None if this is no offset."""
    if text == EARLIEST:
        return 1, 0
    if text == LATEST:
        return stream.last_seq + 1, 0
    if text.isascii() and text.isdigit():
        seq = int(text) if len(text) <= _DIGITS else _LARGEST_SEQ + 1
        return None if seq > _LARGEST_SEQ else (max(1, seq), 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = (moment - _EPOCH) // _MICROSECOND
    return (0, since) if since > 0 else (1, 0)


def suback(exchange: Exchange, packet: Subscribe, reasons: list[int], why: list[str]) -> SubAck:
    """The answer to a SUBSCRIBE; with reasons for people, if they are wanted and fit in."""
    plain = SubAck(packet.packet_id, reasons)
    # [MQTT-3.1.2-29] only if it asked for it
    if not why or exchange.version != MQTT5 or not exchange.wants_problem_information:
        return plain
    text = _reason_string(why)
    told = SubAck(packet.packet_id, reasons, properties=Properties(reason_string=text))
    # [MQTT-3.9.2-1] only if it fits
    return told if len(encode(told)) <= exchange.client.maximum_packet_size else plain


def _reason_string(why: list[str]) -> str:
    """The first sentences, each once: a SUBSCRIBE may bring more than a string can hold."""
    distinct = list(dict.fromkeys(why))
    text = "; ".join(distinct[:_REASONS])
    return text if len(distinct) <= _REASONS else f"{text}; and {len(distinct) - _REASONS} more"


def replayed(record: RecordedMessage, cursor: Cursor, qos: int) -> Message | None:
    """The message for a record; None if its topic is too long to have something before it."""
    topic_name = cursor.prefix + record.topic_name
    if text_size(topic_name) > MAXIMUM_TWO_BYTES:
        return None
    items: list[PropertyItem] = []
    if cursor.identifier:
        items.append((SUBSCRIPTION_IDENTIFIER, cursor.identifier))
    received = _EPOCH + record.received * _MICROSECOND
    items.append((USER_PROPERTY, (SEQ, f"{record.seq}")))
    items.append((USER_PROPERTY, (TIME, f"{received:%Y-%m-%dT%H:%M:%S.%f}Z")))
    if cursor.missed_first:
        items.append((USER_PROPERTY, (MISSED, f"{cursor.missed_first}-{cursor.missed_last}")))
    for item in record.properties.items:
        if _KEPT >> item[0] & 1:
            items.append(item)
    return Message(topic_name, record.payload, qos=qos, properties=Properties(items))


@final
class Replays:
    """All subscriptions to streams, of all sessions."""

    _router: Final[Router]
    _send_queue: Final[SendQueue]
    _log: Final[Callable[[str], None]]
    # By stream, and by client identifier: sessions with a cursor that has come to the end of the
    # record, and those with one whose next records are being read.
    _at_end: Final[dict[int, dict[str, SessionState]]]
    _reading: Final[dict[int, dict[str, SessionState]]]

    def __init__(
        self,
        router: Router,
        send_queue: SendQueue,
        log: Callable[[str], None],
    ) -> None:
        self._router = router
        self._send_queue = send_queue
        self._log = log
        self._at_end = {}
        self._reading = {}

    # --- subscriptions ----------------------------------------------------------------------------

    def restore(self, saved: Saved) -> None:
        """The cursors of sessions that the store has, after the sessions are restored."""
        kept: dict[tuple[int, str], int] = {}
        for number, topic_filter, value in saved.cursors:
            kept[(number, topic_filter)] = value
        states: dict[int, SessionState] = {}
        for state in self._router.sessions.values():
            states[state.store_id] = state
        unknown: set[str] = set()
        for number, subscription, identifier in saved.subscriptions:
            topic_filter = subscription.topic_filter
            owner = states.get(number)
            if owner is None or not is_of_stream(topic_filter):
                continue
            name, inner_filter = split_stream(topic_filter)
            stream = self._router.streams.named(name)
            if stream is None:
                # The place is kept, for when the stream is there again.
                unknown.add(name)
                continue
            cursor = self._cursor(owner, topic_filter, stream, inner_filter)
            cursor.qos = subscription.qos
            cursor.identifier = identifier
            if (number, topic_filter) not in kept:
                # It was made when `$stream` meant nothing.
                kept[(number, topic_filter)] = stream.last_seq
                self._router.commit.cursors.append((number, topic_filter, stream.last_seq))
            cursor.restore(kept[(number, topic_filter)])
        for name in sorted(unknown):
            self._log(f"there is no stream {quoted(name)} any more: who subscribes to it waits")

    def subscribe(
        self,
        state: SessionState,
        subscription: Subscription,
        packet: Subscribe,
        why: list[str],
        now: float,
    ) -> int:
        """Subscribe to a stream, or move there. A reason code; for people, `why` has a sentence."""
        router = self._router
        topic_filter = subscription.topic_filter
        refused = router.authority.subscribe(state.client_id, topic_filter)
        if refused:
            return refused
        if state.session.version != MQTT5:
            return FAILURE
        if not topic_filter.startswith(STREAM_TOPICS):
            why.append("a subscription to a stream cannot be shared")
            return SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        name, inner_filter = split_stream(topic_filter)
        stream = router.streams.named(name)
        if stream is None:
            if name:
                why.append(f"there is no stream {quoted(name)}")
            else:
                why.append(f"a stream is subscribed to by {STREAM_TOPICS}<name>/<filter>")
            return TOPIC_FILTER_INVALID
        offsets = given_offsets(packet.properties)
        begins: tuple[int, int] | None = None
        if offsets:
            begins = parse_offset(offsets[0], stream) if len(offsets) == 1 else None
            if begins is None:
                why.append(OFFSET_RULE)
                return IMPLEMENTATION_SPECIFIC_ERROR
        cursors = state.cursors
        cursor = None if cursors is None else cursors.all.get(topic_filter)
        if cursor is None and cursors is not None and len(cursors.all) >= MOST_CURSORS:
            why.append(f"a session has {MOST_CURSORS} subscriptions to streams at the most")
            return QUOTA_EXCEEDED
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        granted = router.add_subscription(state, subscription, identifier, now)
        if granted >= FAILURE:
            return granted
        if cursor is None:
            cursor = self._cursor(state, topic_filter, stream, inner_filter)
            if begins is None:
                begins = (stream.last_seq + 1, 0)
        cursor.qos = subscription.qos
        cursor.identifier = identifier
        if begins is not None:
            cursor.seek(begins[0], begins[1])
            cursor.stored = cursor.value
            if state.is_durable:
                router.commit.cursors.append((state.store_id, topic_filter, cursor.stored))
        return granted

    def _cursor(
        self, state: SessionState, topic_filter: str, stream: Stream, inner_filter: str
    ) -> Cursor:
        cursors = state.cursors
        if cursors is None:
            cursors = state.cursors = Cursors()
        cursor = Cursor(topic_filter, stream, inner_filter)
        cursors.all[topic_filter] = cursor
        return cursor

    def unsubscribe(self, state: SessionState, topic_filter: str) -> None:
        """Forget its place; what is in flight goes on [MQTT-3.10.4-3]."""
        cursors = state.cursors
        if cursors is not None:
            cursors.all.pop(topic_filter, None)
            if not cursors.all:
                state.cursors = None

    # --- what wakes them --------------------------------------------------------------------------

    def recorded(self, commit: Commit) -> None:
        """These records are safe: who has come to the end of their streams goes on."""
        if self._at_end:
            for record in commit.records:
                self._wake(self._at_end.pop(record.stream, None))
                if not self._at_end:
                    return

    def read(self, stream: int) -> None:
        """The store has read something of a stream: who waits for it asks again."""
        self._wake(self._reading.pop(stream, None))

    def released(self, state: SessionState | None, commit: Commit) -> None:
        """What waited for this commit on the session's connection has left."""
        if (
            state is not None
            and state.cursors is not None
            and state.cursors.awaited_commit is commit
        ):
            state.cursors.awaited_commit = None
            self._router.mark_dirty(state)

    def written(self, state: SessionState) -> None:
        """The session's client has read something."""
        cursors = state.cursors
        if cursors is not None and cursors.awaits_reader and self._router.has_caught_up(state):
            self._router.mark_dirty(state)

    def _wake(self, asleep: dict[str, SessionState] | None) -> None:
        if asleep is not None:
            for state in asleep.values():
                if state.session.connected and not state.has_ended:
                    self._router.mark_dirty(state)

    def _await(
        self, where: dict[int, dict[str, SessionState]], stream: Stream, state: SessionState
    ) -> None:
        asleep = where.get(stream.id)
        if asleep is None:
            asleep = where[stream.id] = {}
        asleep[state.client_id] = state
        if len(asleep) > 2 * len(self._router.sessions) + _STALE:
            there = {each.client_id: each for each in asleep.values() if not each.has_ended}
            where[stream.id] = there

    # --- sending ----------------------------------------------------------------------------------

    def send(self, state: SessionState, now: float) -> None:
        """Send what a session takes now, from each of its cursors in turn."""
        cursors = state.cursors
        assert cursors is not None
        if not state.session.connected:
            cursors.clear()
            return
        if cursors.connection != state.connection:
            cursors.connection = state.connection
            cursors.awaited_commit = None
        cursors.sent = cursors.sent_unacknowledged = cursors.awaits_reader = False
        try:
            self._take_turns(state, cursors, now)
        except Exception:
            # The fault domain of one client: it pays with its connection, and nobody else does.
            self._router.faults.setdefault(state.client_id, format_exc())
            self._router.mark_dirty(state)
        self._store_positions(state, cursors)

    def _take_turns(self, state: SessionState, cursors: Cursors, now: float) -> None:
        cursors.work_left = _TURN
        turns = list(cursors.all.values())
        while turns:
            going: list[Cursor] = []
            for cursor in turns:
                if cursors.work_left <= 0:
                    # The rest of the tick is for others.
                    self._router.mark_dirty(state)
                    return
                if self._step(state, cursors, cursor, now):
                    cursors.work_left -= 1
                    cursors.all.move_to_end(cursor.topic_filter)
                    going.append(cursor)
            turns = going

    def _step(self, state: SessionState, cursors: Cursors, cursor: Cursor, now: float) -> bool:
        """Deal with one record. False: there is none for now, or its session cannot take it."""
        record = self._next(state, cursors, cursor)
        if record is None:
            return False
        if cursor.since and record.received >= cursor.since:
            cursor.since = 0
        if not cursor.since and topic_matches(cursor.inner_filter, record.topic_name):
            # [MQTT-3.8.4-8]
            qos = min(record.qos, cursor.qos)
            if not self._can_send(state, cursors, qos):
                cursor.shrink()
                return False
            if self._router.may_receive(state.client_id, record.topic_name):
                self._send_record(state, cursors, cursor, record, qos, now)
            elif state.client_id in self._router.faults:
                # It is not known whether it may: its connection ends, and it is asked again.
                self._router.mark_dirty(state)
                return False
        cursor.advance()
        return True

    def _next(
        self, state: SessionState, cursors: Cursors, cursor: Cursor
    ) -> RecordedMessage | None:
        record = cursor.record()
        if record is not None:
            return record
        store = self._router.store
        stream = cursor.stream
        if not cursor.position:
            cursors.work_left -= 1
            found = store.seek(stream.id, cursor.since)
            if found is None:
                self._await(self._reading, stream, state)
                return None
            cursor.position = found
        records: list[RecordedMessage] | None = []
        if cursor.position <= stream.last_seq:
            cursors.work_left -= 1
            records = store.records(stream.id, cursor.position, cursor.limit)
        if records is None:
            self._await(self._reading, stream, state)
            return None
        if not records:
            self._await(self._at_end, stream, state)
            return None
        missed = cursor.missed_last
        cursor.put(records)
        if cursor.missed_last != missed:
            self._log(
                f"{shown(state.client_id)} was to go on with message {cursor.missed_first} of"
                f" stream {stream.name}, but its record begins with {records[0].seq} now"
            )
        return cursor.record()

    def _can_send(self, state: SessionState, cursors: Cursors, qos: int) -> bool:
        """Whether the session can send a message at once, and its client reads what it is sent."""
        if not self._router.has_caught_up(state):
            cursors.awaits_reader = True
            return False
        if not qos and cursors.awaited_commit is not None:
            # Such messages wait already, and nothing else bounds how many.
            return False
        return state.session.can_send(qos)

    def _send_record(
        self,
        state: SessionState,
        cursors: Cursors,
        cursor: Cursor,
        record: RecordedMessage,
        qos: int,
        now: float,
    ) -> None:
        message = replayed(record, cursor, qos)
        if message is None:
            self._router.dropped += 1
            return
        session = state.session
        session.send(message, now)
        if session.waiting:
            # [MQTT-3.1.2-25] its client takes no packet of this size: given up here
            session.poll(now)
        cursor.missed_first = cursor.missed_last = 0
        cursors.sent = True
        if not qos:
            cursors.sent_unacknowledged = True

    def _store_positions(self, state: SessionState, cursors: Cursors) -> None:
        """Let the store have the places of a durable session's cursors, with what moved them."""
        router = self._router
        if state.is_durable:
            if cursors.sent:
                router.gate.await_commit(state)
            for cursor in cursors.all.values():
                value = cursor.value
                if value != cursor.stored and (
                    cursors.sent
                    or (value - cursor.stored >= _UNNOTED and router.store.condition == OPEN)
                ):
                    cursor.stored = value
                    router.commit.cursors.append((state.store_id, cursor.topic_filter, value))
        if cursors.sent_unacknowledged and router.gate.has_store and self._send_queue.delays(state):
            cursors.awaited_commit = router.commit
