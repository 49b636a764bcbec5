"""Replay of recorded streams over MQTT: subscriptions to `$stream/<name>/<filter>`.

An MQTT 5.0 client chooses where to start with the user property `stream-offset` of its SUBSCRIBE.
It receives the record in order, each message with the topic `$stream/<name>/<original topic>` and
the user properties `stream-seq` and `stream-time`, and after the end of the record the messages
that are added to it.

    store ─ records ─▶ Cursor ─ messages that match and that the client may receive ─▶ Session
                         └──── its position ───▶ the commit with these deliveries

*Flow:* a message is taken from the record only if the session can send it at once: there is quota,
nothing is queued, and the client has read nearly everything that was sent. So a replay never fills
a queue, other messages of the session have priority, and no publisher waits for it. The cursors of
a session take turns, and one session cannot use up a tick.

*Exactly once:* the position of a durable session's cursor is in the same commit as the deliveries
that advanced it, and their packets are sent after that commit. So even after a crash QoS 2 messages
arrive exactly once, QoS 1 messages without gaps, and QoS 0 messages at most once, all in the order
of the record.

A replayed message is a new message: it has no Message Expiry Interval, RETAIN 0 and DUP 0, whatever
the recorded one had. It is neither recorded nor retained, and goes to no other client.

The standard leaves these choices open: a `stream-offset` applies to all subscriptions to streams in
its SUBSCRIBE, and not to other subscriptions; more than one `stream-offset` is refused, and so is a
shared subscription to a stream. Each of several overlapping subscriptions gets a copy, because each
has its own position. No Local and Retain As Published have no effect.
"""

from datetime import UTC, datetime, timedelta
from traceback import format_exc
from typing import Final, final

from semel.broker.broker_log import BrokerLog, source_of
from semel.broker.counters import TOO_LARGE, TOPIC_TOO_LONG
from semel.broker.cursors import STREAM_TOPICS, Cursor, Cursors
from semel.broker.router import Router
from semel.broker.send_queue import SendQueue
from semel.broker.session_state import SessionState, client_label
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
from semel.store.schema import Unusable
from semel.store.store import OPEN, RestoredState
from semel.store.streams import Stream

# The user property of a SUBSCRIBE, and its values other than a seq or a time.
OFFSET: Final = "stream-offset"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET_RULE: Final = (
    f"the user property {OFFSET} must be given at most once, as {EARLIEST}, {LATEST}, a seq such"
    " as 42, or a time with its zone such as 2026-11-16T03:00:00Z"
)
# User properties of replayed messages.
SEQ: Final = "stream-seq"
TIME: Final = "stream-time"
MISSED: Final = "stream-missed"

# The bounds of a seq.
_DIGITS: Final = 19
_LARGEST_SEQ: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# How many different problems one Reason String lists.
_LISTED_PROBLEMS: Final = 5
# How many subscriptions to streams one session may have.
MAXIMUM_CURSORS: Final = 100
# How many records a session may process in a tick. A query of the store counts as one.
_TICK_RECORDS: Final = 100
# After how many skipped records the position of a durable cursor is stored without a delivery.
_MAXIMUM_SKIPPED: Final = 1_000
# Tolerated number of ended sessions in a list of waiting ones, before the list is rebuilt.
_STALE_SESSIONS: Final = 50
# Seconds until a damaged record is read again, and between two log lines about a stream.
_RETRY_SECONDS: Final = 60.0

# The recorded properties that a replayed message keeps.
_REPLAYED_PROPERTIES: Final = (
    1 << PAYLOAD_FORMAT_INDICATOR
    | 1 << CONTENT_TYPE
    | 1 << RESPONSE_TOPIC
    | 1 << CORRELATION_DATA
    | 1 << USER_PROPERTY
)


def is_of_stream(topic_filter: str) -> bool:
    """Whether this is a filter for the record of a stream, shared or not."""
    return split_share(topic_filter)[1].startswith(STREAM_TOPICS)


def split_stream(topic_filter: str) -> tuple[str, str]:
    """Name and inner filter of `$stream/<name>/<filter>`; ("", "") if it has another form."""
    name, _, inner_filter = topic_filter[len(STREAM_TOPICS) :].partition("/")
    return ("", "") if has_wildcard(name) or not inner_filter else (name, inner_filter)


def given_offsets(properties: Properties) -> list[str]:
    """The offsets in the user properties of a SUBSCRIBE."""
    found: list[str] = []
    for _, value in properties.items:
        if isinstance(value, tuple) and value[0] == OFFSET:
            found.append(value[1])
    return found


def parse_offset(text: str, stream: Stream) -> tuple[int, int] | None:
    """Position and `since` of a cursor that starts at this offset; None if it is invalid."""
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


def suback(
    exchange: Exchange, packet: Subscribe, reasons: list[int], problems: list[str]
) -> SubAck:
    """The answer to a SUBSCRIBE, with the problems as Reason String if the client accepts one."""
    plain = SubAck(packet.packet_id, reasons)
    # [MQTT-3.1.2-29] only with Request Problem Information
    if not problems or exchange.version != MQTT5 or not exchange.wants_problem_information:
        return plain
    text = _reason_string(problems)
    detailed = SubAck(packet.packet_id, reasons, properties=Properties(reason_string=text))
    # [MQTT-3.9.2-1] only if it fits
    return detailed if len(encode(detailed)) <= exchange.client.maximum_packet_size else plain


def _reason_string(problems: list[str]) -> str:
    """The first distinct problems: a SUBSCRIBE may have more than fit into a string."""
    distinct = list(dict.fromkeys(problems))
    text = "; ".join(distinct[:_LISTED_PROBLEMS])
    more = len(distinct) - _LISTED_PROBLEMS
    return text if more <= 0 else f"{text}; and {more} more"


def replayed(record: RecordedMessage, cursor: Cursor, qos: int) -> Message | None:
    """The message for a record; None if its topic would be too long with the prefix."""
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
        if _REPLAYED_PROPERTIES >> item[0] & 1:
            items.append(item)
    return Message(topic_name, record.payload, qos=qos, properties=Properties(items))


@final
class Replays:
    """All subscriptions to streams, of all sessions."""

    _router: Final[Router]
    _send_queue: Final[SendQueue]
    _log: Final[BrokerLog]
    # By stream and client identifier: sessions with a cursor at the end of the record, and sessions
    # whose next records are being read.
    _at_end: Final[dict[int, dict[str, SessionState]]]
    _reading: Final[dict[int, dict[str, SessionState]]]
    # The same for sessions whose next record is damaged; by stream, when that is logged again.
    _damaged: Final[dict[int, dict[str, SessionState]]]
    _quiet_until: Final[dict[int, float]]

    def __init__(
        self,
        router: Router,
        send_queue: SendQueue,
        log: BrokerLog,
    ) -> None:
        self._router = router
        self._send_queue = send_queue
        self._log = log
        self._at_end = {}
        self._reading = {}
        self._damaged = {}
        self._quiet_until = {}

    # --- subscriptions ----------------------------------------------------------------------------

    def restore(self, saved: RestoredState) -> None:
        """Restore the cursors. The sessions must have been restored before."""
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
                # The position is kept, in case the stream is configured again.
                unknown.add(name)
                continue
            cursor = self._cursor(owner, topic_filter, stream, inner_filter)
            cursor.qos = subscription.qos
            cursor.identifier = identifier
            if (number, topic_filter) not in kept:
                # The subscription is older than the replay of streams.
                kept[(number, topic_filter)] = stream.last_seq
                self._router.commit.cursors.append((number, topic_filter, stream.last_seq))
            cursor.restore(kept[(number, topic_filter)])
        for name in sorted(unknown):
            self._log.fault(f"stream {quoted(name)} is no longer configured: its subscribers wait")

    def subscribe(
        self,
        state: SessionState,
        subscription: Subscription,
        packet: Subscribe,
        problems: list[str],
        now: float,
    ) -> int:
        """Subscribe to a stream, or move the cursor of a subscription. Returns the reason code.

        If it is refused, appends the reason to `problems`.
        """
        router = self._router
        topic_filter = subscription.topic_filter
        allowed = router.allowed_subscription(state, subscription)
        if isinstance(allowed, int):
            return allowed
        subscription = allowed
        if state.session.version != MQTT5:
            return FAILURE
        if not topic_filter.startswith(STREAM_TOPICS):
            problems.append("a subscription to a stream cannot be shared")
            return SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        name, inner_filter = split_stream(topic_filter)
        stream = router.streams.named(name)
        if stream is None:
            if name:
                problems.append(f"there is no stream {quoted(name)}")
            else:
                problems.append(f"the filter for a stream is {STREAM_TOPICS}<name>/<filter>")
            return TOPIC_FILTER_INVALID
        offsets = given_offsets(packet.properties)
        begins: tuple[int, int] | None = None
        if offsets:
            begins = parse_offset(offsets[0], stream) if len(offsets) == 1 else None
            if begins is None:
                problems.append(OFFSET_RULE)
                return IMPLEMENTATION_SPECIFIC_ERROR
        cursors = state.cursors
        cursor = None if cursors is None else cursors.all.get(topic_filter)
        if cursor is None and cursors is not None and len(cursors.all) >= MAXIMUM_CURSORS:
            problems.append(f"a session has at most {MAXIMUM_CURSORS} subscriptions to streams")
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
        """Delete the cursor. Messages in flight are still completed [MQTT-3.10.4-3]."""
        cursors = state.cursors
        if cursors is not None:
            cursors.all.pop(topic_filter, None)
            if not cursors.all:
                state.cursors = None

    # --- waking cursors ---------------------------------------------------------------------------

    def recorded(self, commit: Commit) -> None:
        """Continue the cursors at the end of a stream to which this commit has added records."""
        if self._at_end:
            for record in commit.records:
                self._wake(self._at_end.pop(record.stream, None))
                if not self._at_end:
                    return

    def read(self, stream: int) -> None:
        """Continue the cursors that wait for records of a stream, which the store has read."""
        self._wake(self._reading.pop(stream, None))

    def retry(self) -> None:
        """Once a second: let cursors whose next record is damaged retry when it is time."""
        while self._damaged:
            self._wake(self._damaged.popitem()[1])

    def released(self, state: SessionState | None, commit: Commit) -> None:
        """Packets that awaited this commit were sent on the connection of this session."""
        if (
            state is not None
            and state.cursors is not None
            and state.cursors.awaited_commit is commit
        ):
            state.cursors.awaited_commit = None
            self._router.mark_dirty(state)

    def written(self, state: SessionState) -> None:
        """The client of this session has read some of its output."""
        cursors = state.cursors
        if cursors is not None and cursors.awaits_reader and self._router.has_caught_up(state):
            self._router.mark_dirty(state)

    def _wake(self, waiting: dict[str, SessionState] | None) -> None:
        if waiting is not None:
            for state in waiting.values():
                if state.session.connected and not state.has_ended:
                    self._router.mark_dirty(state)

    def _await(
        self, lists: dict[int, dict[str, SessionState]], stream: Stream, state: SessionState
    ) -> None:
        waiting = lists.get(stream.id)
        if waiting is None:
            waiting = lists[stream.id] = {}
        waiting[state.client_id] = state
        if len(waiting) > 2 * len(self._router.sessions) + _STALE_SESSIONS:
            lists[stream.id] = {
                each.client_id: each for each in waiting.values() if not each.has_ended
            }

    # --- sending ----------------------------------------------------------------------------------

    def send(self, state: SessionState, now: float) -> None:
        """Send as many records as the session can send now, from each of its cursors in turn."""
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
            # The failure closes the connection of this client only.
            self._router.access.faults.setdefault(state.client_id, format_exc())
            self._router.mark_dirty(state)
        self._store_positions(state, cursors)

    def _take_turns(self, state: SessionState, cursors: Cursors, now: float) -> None:
        cursors.work_left = _TICK_RECORDS
        turns = list(cursors.all.values())
        while turns:
            going: list[Cursor] = []
            for cursor in turns:
                if cursors.work_left <= 0:
                    # The rest of the tick is for other sessions.
                    self._router.mark_dirty(state)
                    return
                if self._step(state, cursors, cursor, now):
                    cursors.work_left -= 1
                    cursors.all.move_to_end(cursor.topic_filter)
                    going.append(cursor)
            turns = going

    def _step(self, state: SessionState, cursors: Cursors, cursor: Cursor, now: float) -> bool:
        """Process one record. Returns False if there is none now, or it cannot be sent now."""
        try:
            record = None if now < cursor.retry_at else self._next(state, cursors, cursor, now)
        except Unusable as problem:
            # The client and its other subscriptions continue.
            record = None
            cursor.retry_at = now + _RETRY_SECONDS
            self._log_damage(cursor.stream, problem, now)
        if now < cursor.retry_at:
            self._await(self._damaged, cursor.stream, state)
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
            if self._router.access.receive(state, record.topic_name):
                self._send_record(state, cursors, cursor, record, qos, now)
            elif state.client_id in self._router.access.faults:
                # The authority failed: the connection will be closed, and the next one retries.
                self._router.mark_dirty(state)
                return False
        cursor.advance()
        return True

    def _next(
        self, state: SessionState, cursors: Cursors, cursor: Cursor, now: float
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
            line = (
                f"{client_label(state.client_id)} missed messages of stream {stream.name}, which"
                f" are no longer kept: {cursor.missed_first} to {cursor.missed_last}"
            )
            self._log.problem(source_of(state.identity), line, now)
        return cursor.record()

    def _log_damage(self, stream: Stream, problem: Unusable, now: float) -> None:
        if now >= self._quiet_until.get(stream.id, now):
            self._quiet_until[stream.id] = now + _RETRY_SECONDS
            self._log.fault(
                f"stream {stream.name} cannot be replayed now and will be retried: {problem}"
            )

    def _can_send(self, state: SessionState, cursors: Cursors, qos: int) -> bool:
        """Whether the session can send a message at once, and its client has caught up."""
        if not self._router.has_caught_up(state):
            cursors.awaits_reader = True
            return False
        if not qos and cursors.awaited_commit is not None:
            # QoS 0 messages already await a commit, and nothing else bounds their number.
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
            self._router.counters.drops.add(TOPIC_TOO_LONG)
            return
        session = state.session
        too_large = session.too_large
        session.send(message, now)
        self._router.counters.drops.add(TOO_LARGE, session.too_large - too_large)
        if not session.backlog.is_empty():
            # [MQTT-3.1.2-25] it exceeds the client's Maximum Packet Size: `poll` drops it
            self._router.counters.drops.add_given_up(session.poll(now), now)
        cursor.missed_first = cursor.missed_last = 0
        cursors.sent = True
        if not qos:
            cursors.sent_unacknowledged = True

    def _store_positions(self, state: SessionState, cursors: Cursors) -> None:
        """Commit the positions of a durable session with the deliveries that advanced them."""
        router = self._router
        if state.is_durable:
            if cursors.sent:
                router.gate.await_commit(state)
            for cursor in cursors.all.values():
                value = cursor.value
                if value != cursor.stored and (
                    cursors.sent
                    or (
                        value - cursor.stored >= _MAXIMUM_SKIPPED and router.store.condition == OPEN
                    )
                ):
                    cursor.stored = value
                    router.commit.cursors.append((state.store_id, cursor.topic_filter, value))
        if cursors.sent_unacknowledged and router.gate.has_store and self._send_queue.delays(state):
            cursors.awaited_commit = router.commit
