"""From commits to the rows of one transaction.

A `WriteBatch` merges commits in their order into what the tables have to become: a delivery that is
queued and assigned at once is one row, deliveries that are finished are ranges, and of a value
that changes several times only the last is written. So one transaction costs few statements,
however many ticks it holds.
"""

from typing import Any, Final, final
from zlib import crc32

from mypy_extensions import i64

from semel.mqtt.delivery import (
    ASSIGNED,
    ENDS,
    FINISHED,
    FREED,
    QUEUED,
    RECALLED,
    RELEASED,
    STORED,
    Change,
    Delivery,
)
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import (
    NO_PROPERTIES,
    TOPIC_ALIAS,
    Properties,
    encode_properties,
    read_properties,
)
from semel.mqtt.wire import Reader
from semel.store.commit import SHARED_PAYLOAD, Commit, RecordedMessage
from semel.store.row_checksums import (
    delivery_high,
    delivery_low,
    inbound_checksum,
    record_checksum,
    row_checksum,
    text_crc,
)
from semel.store.schema import Damaged

# Columns of `delivery`, and the places of those that a later change of the batch sets.
DELIVERY_COLUMNS: Final = 8
PARTICULAR_COLUMNS: Final = 8
RECORD_COLUMNS: Final = 12
_CHECKSUM: Final = 2
_PACKET_ID: Final = 3
# In the flags of a delivery: there is a row in `particular`.
HAS_PARTICULAR: Final = 8

# Place in the row, session and number of it.
Key = tuple[int, int]


@final
class WriteBatch:
    """The rows of one transaction. `add` commits in their order, then `close`."""

    # The highest numbers that were given out before; they go on from there.
    last_body: int
    last_release: int
    last_place: int
    # The lowest number that no session of these commits has.
    next_session: int
    commits: Final[list[Commit]]
    # Values of all rows one after the other, as a statement with many rows wants them.
    deliveries: list[object]
    particulars: list[object]
    records: Final[list[object]]
    # packet_id, session, number
    assigned: Final[list[tuple[int, int, int]]]
    # released, session, number, low part of the checksum
    moved: Final[list[tuple[int, int, int, int]]]
    # session, first and last number
    finished: Final[list[tuple[int, int, int]]]
    ended: Final[list[int]]
    # number, checksum, client_id, expiry
    sessions: Final[list[tuple[int, int, str, int]]]
    # ends_at, session
    ends: Final[list[tuple[float | None, int]]]
    # session, packet_id, checksum; session, first and last packet_id
    stored: Final[list[tuple[int, int, int]]]
    freed: Final[list[tuple[int, int, int]]]
    # session, filter, checksum, options, identifier
    subscribed: Final[list[tuple[int, str, int, int, int]]]
    unsubscribed: Final[list[tuple[int, str]]]
    # seq, session, filter
    cursors: Final[list[tuple[int, int, str]]]
    # client_id, checksum, user_name, due_at, qos, retain, topic, properties, payload
    wills: Final[list[tuple[object, ...]]]
    willless: Final[list[tuple[str]]]
    # place, checksum, topic, qos, expires_at, properties, payload
    retained: Final[list[tuple[object, ...]]]
    not_retained: Final[list[tuple[str]]]
    # id, checksum, uses, payload
    bodies: Final[list[tuple[int, int, int, bytes]]]
    # last_seq, id
    streams: Final[list[tuple[int, int]]]
    # session, number, checksum, key, flags, packet_id, version, topic, properties, payload
    inbox: Final[list[tuple[object, ...]]]
    # session, number
    taken: Final[list[Key]]
    # name, value
    facts: Final[list[tuple[str, str]]]
    _rows: Final[dict[Key, int]]
    _assigned: Final[dict[Key, int]]
    _inbox: Final[dict[Key, tuple[str, RecordedMessage] | None]]
    _dead: Final[set[Key]]
    # Those of the rows that have a large payload elsewhere.
    _with_body: Final[dict[Key, int]]
    _finished: Final[dict[int, list[int]]]
    _sessions: Final[dict[int, tuple[str, int]]]
    _ends: Final[dict[int, float | None]]
    _inbound: Final[dict[Key, bool]]
    _subscriptions: Final[dict[tuple[int, str], tuple[Subscription, int]]]
    _unsubscribed: Final[set[tuple[int, str]]]
    _cursors: Final[dict[tuple[int, str], int]]
    _wills: Final[dict[str, tuple[str | None, Will, float | None] | None]]
    _retained: Final[dict[str, Message]]
    # By the identity of a payload that one of the commits holds: its body; by body: its uses.
    _bodies: Final[dict[int, int]]
    _uses: Final[dict[int, int]]
    _payloads: Final[dict[int, bytes]]
    _streams: Final[dict[int, int]]
    # By text: its CRC-32.
    _crcs: Final[dict[str, int]]

    def __init__(self, last_body: int, last_release: int, last_place: int) -> None:
        self.last_body = last_body
        self.last_release = last_release
        self.last_place = last_place
        self.next_session = 1
        self.commits = []
        self.deliveries = []
        self.particulars = []
        self.records = []
        self.assigned = []
        self.moved = []
        self.finished = []
        self.ended = []
        self.sessions = []
        self.ends = []
        self.stored = []
        self.freed = []
        self.subscribed = []
        self.unsubscribed = []
        self.cursors = []
        self.wills = []
        self.willless = []
        self.retained = []
        self.not_retained = []
        self.bodies = []
        self.streams = []
        self.inbox = []
        self.taken = []
        self.facts = []
        self._rows = {}
        self._assigned = {}
        self._inbox = {}
        self._dead = set()
        self._with_body = {}
        self._finished = {}
        self._sessions = {}
        self._ends = {}
        self._inbound = {}
        self._subscriptions = {}
        self._unsubscribed = set()
        self._cursors = {}
        self._wills = {}
        self._retained = {}
        self._bodies = {}
        self._uses = {}
        self._payloads = {}
        self._streams = {}
        self._crcs = {}

    def add(self, commit: Commit) -> None:
        """The next commit."""
        self.commits.append(commit)
        for number, client_id, expiry in commit.sessions:
            self._sessions[number] = (client_id, expiry)
            self.next_session = max(self.next_session, number + 1)
        for session, change in commit.changes:
            self._change(session, change)
        for session, topic_filter, subscription, identifier in commit.subscriptions:
            key = (session, topic_filter)
            if subscription is None:
                # A later one for this filter has no cursor yet.
                self._unsubscribed.add(key)
                self._subscriptions.pop(key, None)
                self._cursors.pop(key, None)
            else:
                self._subscriptions[key] = (subscription, identifier)
        for session, topic_filter, seq in commit.cursors:
            self._cursors[(session, topic_filter)] = seq
        for client_id, user_name, will, due_at in commit.wills:
            self._wills[client_id] = None if will is None else (user_name, will, due_at)
        for topic_name, message in commit.retained:
            if message is None:
                # A later one for this topic has a new place.
                self.not_retained.append((topic_name,))
                self._retained.pop(topic_name, None)
            else:
                self._retained[topic_name] = message
        if commit.records:
            received = int(commit.at * 1_000_000)
            for record in commit.records:
                self._record(record, received)
        for session, number, name, held in commit.inbox:
            self._inbox[(session, number)] = None if held is None else (name, held)
        self.facts.extend(commit.facts)
        self.ended.extend(commit.ended)

    def close(self) -> None:
        """All commits are added: work out what is left to write."""
        ended = set(self.ended)
        if self._dead or ended:
            self._drop_rows(ended)
        self._write_checksums()
        for session, numbers in self._finished.items():
            if session not in ended:
                _ranges(session, numbers, self.finished)
        for number, (client_id, expiry) in self._sessions.items():
            if number not in ended:
                # When it ends is written apart, into the high part.
                checksum = row_checksum("session", (number, client_id, expiry, None))
                self.sessions.append((number, checksum, client_id, expiry))
        for session, at in self._ends.items():
            if session not in ended:
                self.ends.append((at, session))
        freed: dict[int, list[int]] = {}
        for key, present in self._inbound.items():
            session, packet_id = key
            if session in ended:
                continue
            if present:
                self.stored.append((session, packet_id, inbound_checksum(session, packet_id)))
            else:
                freed.setdefault(session, []).append(packet_id)
        for session, packet_ids in freed.items():
            _ranges(session, packet_ids, self.freed)
        for session, topic_filter in self._unsubscribed:
            if session not in ended:
                self.unsubscribed.append((session, topic_filter))
        for (session, topic_filter), (subscription, identifier) in self._subscriptions.items():
            if session not in ended:
                options = subscription.options
                content = (session, topic_filter, options, identifier, None)
                checksum = row_checksum("subscription", content)
                self.subscribed.append((session, topic_filter, checksum, options, identifier))
        for (session, topic_filter), seq in self._cursors.items():
            if session not in ended:
                self.cursors.append((seq, session, topic_filter))
        for client_id, kept in self._wills.items():
            if kept is None:
                self.willless.append((client_id,))
            else:
                self.wills.append(_will_row(client_id, kept[0], kept[1], kept[2]))
        for topic_name, kept_message in self._retained.items():
            # A topic that has a message keeps its place.
            self.last_place += 1
            self.retained.append(_retained_row(self.last_place, topic_name, kept_message))
        for (session, number), packet_id in self._assigned.items():
            self.assigned.append((packet_id, session, number))
        for place, kept_record in self._inbox.items():
            if place[0] in ended:
                continue
            if kept_record is None:
                self.taken.append(place)
            else:
                self.inbox.append(_inbox_row(place, kept_record[0], kept_record[1]))
        for body, uses in self._uses.items():
            if uses:
                payload = self._payloads[body]
                checksum = row_checksum("body", (body, uses, payload))
                self.bodies.append((body, checksum, uses, payload))
        for stream, seq in self._streams.items():
            self.streams.append((seq, stream))

    def _change(self, session: int, change: Change) -> None:
        kind = change.kind
        if kind == QUEUED:
            message = change.message
            assert message is not None
            self._queue(session, change.number, message, change.share)
        elif kind == ASSIGNED:
            self._assign(session, change.number, change.packet_id)
        elif kind == RECALLED:
            self._assign(session, change.number, 0)
        elif kind == RELEASED:
            self.last_release += 1
            low = delivery_low(session, change.number, 0, None)
            self.moved.append((self.last_release, session, change.number, low))
        elif kind == FINISHED:
            if (session, change.number) in self._rows:
                # It never was on disk.
                self._dead.add((session, change.number))
            else:
                numbers = self._finished.get(session)
                if numbers is None:
                    numbers = self._finished[session] = []
                numbers.append(change.number)
        elif kind == STORED:
            self._inbound[(session, change.packet_id)] = True
        elif kind == FREED:
            self._inbound[(session, change.packet_id)] = False
        else:
            assert kind == ENDS
            self._ends[session] = change.at

    def _assign(self, session: int, number: int, packet_id: int) -> None:
        at = self._rows.get((session, number), -1)
        if at >= 0:
            self.deliveries[at * DELIVERY_COLUMNS + _PACKET_ID] = packet_id
        else:
            self._assigned[(session, number)] = packet_id

    def _queue(self, session: int, number: int, message: Message, share: str) -> None:
        key = (session, number)
        payload: bytes | None = message.payload
        body: int | None = None
        if len(message.payload) >= SHARED_PAYLOAD:
            body = self._with_body[key] = self._body(message.payload)
            payload = None
        self._rows[key] = len(self._rows)
        flags = message.qos | message.retain << 2
        if (
            body is not None
            or share
            or message.properties.present
            or message.expires_at is not None
        ):
            flags |= HAS_PARTICULAR
            values: list[object] = [message.size, message.expires_at, share if share else None]
            values += [body, properties_value(message.properties)]
            content: list[object] = [session, number]
            content += values
            self.particulars += [session, number, row_checksum("particular", content)]
            self.particulars += values
        row: list[object] = [session, number, 0, 0, 0, flags, message.topic_name, payload]
        self.deliveries.extend(row)

    def _write_checksums(self) -> None:
        """Of deliveries that stay, as they are in the end."""
        flat = self.deliveries
        for at in range(0, len(flat), DELIVERY_COLUMNS):
            session, number, packet_id = flat[at], flat[at + 1], flat[at + _PACKET_ID]
            flags, topic, payload = flat[at + 5], flat[at + 6], flat[at + 7]
            assert isinstance(session, int)
            assert isinstance(number, int)
            assert isinstance(packet_id, int)
            assert isinstance(flags, int)
            assert isinstance(topic, str)
            assert payload is None or isinstance(payload, bytes)
            low: i64 = delivery_low(session, number, self._crc(topic), payload)
            high: i64 = delivery_high(session, number, packet_id, 0, flags)
            flat[at + _CHECKSUM] = low | high << 32

    def _crc(self, text: str) -> int:
        """Topics and client identifiers come again and again."""
        crc = self._crcs.get(text, -1)
        if crc < 0:
            crc = self._crcs[text] = text_crc(text)
        return crc

    def _body(self, payload: bytes) -> int:
        # The commits keep the payloads alive, so that no two have the same identity.
        body = self._bodies.get(id(payload), 0)
        if not body:
            self.last_body += 1
            body = self.last_body
            self._bodies[id(payload)] = body
            self._payloads[body] = payload
            self._uses[body] = 0
        self._uses[body] += 1
        return body

    def _drop_rows(self, ended: set[int]) -> None:
        """Take out what is over already."""
        for key in self._rows:
            if key[0] in ended:
                self._dead.add(key)
        self.deliveries = self._alive(self.deliveries, DELIVERY_COLUMNS)
        self.particulars = self._alive(self.particulars, PARTICULAR_COLUMNS)
        for key in self._dead:
            body = self._with_body.get(key, 0)
            if body:
                self._uses[body] -= 1

    def _alive(self, flat: list[object], columns: int) -> list[object]:
        kept: list[object] = []
        for start in range(0, len(flat), columns):
            row = flat[start : start + columns]
            session, number = row[0], row[1]
            assert isinstance(session, int)
            assert isinstance(number, int)
            if (session, number) not in self._dead:
                kept.extend(row)
        return kept

    def _record(self, record: RecordedMessage, received: int) -> None:
        self._streams[record.stream] = record.seq
        flags = _flags(record)
        user_name = record.user_name
        properties = properties_value(record.properties)
        checksum = record_checksum(
            record.stream,
            record.seq,
            received,
            flags,
            record.packet_id,
            record.version,
            self._crc(record.client_id),
            -1 if user_name is None else self._crc(user_name),
            self._crc(record.topic_name),
            properties,
            record.payload,
        )
        row: list[object] = [
            record.stream,
            record.seq,
            checksum,
            received,
            flags,
            record.packet_id,
            record.version,
            record.client_id,
            user_name,
            record.topic_name,
            properties,
            record.payload,
        ]
        self.records.extend(row)


def _flags(record: RecordedMessage) -> int:
    return record.qos | record.retain << 2 | record.dup << 3


def _inbox_row(place: Key, key: str, held: RecordedMessage) -> tuple[object, ...]:
    content: list[object] = [place[0], place[1], key, _flags(held), held.packet_id, held.version]
    content += [held.topic_name, properties_value(held.properties), held.payload]
    return (place[0], place[1], row_checksum("inbox", content), *content[2:])


def _retained_row(place: int, topic_name: str, message: Message) -> tuple[object, ...]:
    content: list[object] = [place, topic_name, message.qos, message.expires_at]
    content += [properties_value(message.properties), message.payload]
    return (place, row_checksum("retained", content), *content[1:])


def held_from(row: tuple[object, ...]) -> tuple[int, str, RecordedMessage]:
    """number, key, flags, packet_id, version, topic, properties, payload"""
    number, key, flags, packet_id, version, topic, properties, payload = row
    assert isinstance(number, int)
    assert isinstance(key, str)
    assert isinstance(flags, int)
    assert isinstance(packet_id, int)
    assert isinstance(version, int)
    assert isinstance(topic, str)
    assert isinstance(payload, bytes)
    kept = properties_from(properties if isinstance(properties, bytes) else None)
    # What could not be sent is no message.
    message = Message(topic, payload, qos=flags & 3, retain=bool(flags & 4), properties=kept)
    held = RecordedMessage(
        0,
        0,
        message.topic_name,
        message.payload,
        qos=message.qos,
        retain=message.retain,
        dup=bool(flags & 8),
        packet_id=packet_id,
        version=version,
        properties=kept,
    )
    return number, key, held


def _ranges(session: int, numbers: list[int], found: list[tuple[int, int, int]]) -> None:
    """The numbers as ranges: acknowledgements mostly come in the order of the messages."""
    numbers.sort()
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            found.append((session, first, last))
            first = number
        last = number
    found.append((session, first, last))


def _will_row(
    client_id: str, user_name: str | None, will: Will, due_at: float | None
) -> tuple[object, ...]:
    content: list[object] = [client_id, user_name, due_at, will.qos, will.retain, will.topic_name]
    content += [properties_value(will.properties), will.payload]
    return (client_id, row_checksum("will", content), *content[1:])


def properties_value(properties: Properties) -> bytes | None:
    """Properties for a column."""
    return encode_properties(properties) if properties.present else None


def properties_from(value: bytes | None) -> Properties:
    """Properties out of a column.

    A store of an older semel may have rows with a Topic Alias, which is no part of a message.
    """
    if value is None:
        return NO_PROPERTIES
    properties = properties_as_stored(value)
    if properties.has(TOPIC_ALIAS):
        return Properties([item for item in properties.items if item[0] != TOPIC_ALIAS])
    return properties


def properties_as_stored(value: bytes) -> Properties:
    """Properties out of a column, with all that the column has."""
    return Properties(read_properties(Reader(value, 0, len(value), MQTT5)))


def delivery_from(row: tuple[object, ...]) -> Delivery:
    """A delivery, what is particular about it, and its body. Raises Damaged.

    session, number, checksum, packet_id, released, flags, topic, payload; checksum, size,
    expires_at, share, body, properties; checksum, uses, payload
    """
    session, number, checksum, packet_id, released, flags, topic, payload = row[:8]
    content = (session, number, packet_id, released, flags, topic, payload)
    if checksum != row_checksum("delivery", content):
        raise Damaged(_wrong_delivery(session, number))
    assert isinstance(number, int)
    assert isinstance(packet_id, int)
    assert isinstance(released, int)
    assert isinstance(flags, int)
    expires_at: object = None
    share: object = None
    properties: object = None
    if flags & HAS_PARTICULAR:
        checksum, size, expires_at, share, body, properties = row[8:14]
        content = (session, number, size, expires_at, share, body, properties)
        if checksum != row_checksum("particular", content):
            raise Damaged(_wrong_delivery(session, number))
        if body is not None:
            checksum, uses, payload = row[14:]
            if checksum != row_checksum("body", (body, uses, payload)):
                raise Damaged(_wrong_delivery(session, number))
    qos = flags & 3
    message: Message | None = None
    if not released:
        assert isinstance(topic, str)
        assert isinstance(payload, bytes)
        message = Message(
            topic,
            payload,
            qos=qos,
            retain=bool(flags & 4),
            properties=properties_from(properties if isinstance(properties, bytes) else None),
            expires_at=expires_at if isinstance(expires_at, float) else None,
        )
    delivery = Delivery(number, message, share if isinstance(share, str) else "", qos)
    delivery.packet_id = packet_id
    delivery.released = released
    return delivery


def _wrong_delivery(session: object, number: object) -> str:
    return (
        f"delivery, session {session}, number {number}: it is not what was written (its checksum is"
        " wrong)"
    )


def check_records(stream: int, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of a stream without their checksums, which come first in each. Raises Damaged.

    checksum, seq, received, flags, packet_id, version, client_id, user_name, topic, properties,
    payload. Texts may be str, or bytes in UTF-8.
    """
    found: list[tuple[Any, ...]] = []
    for row in rows:
        if not _is_record(stream, row):
            raise Damaged(
                f"record, stream {stream}, seq {row[1]}: it is not what was written (its checksum"
                " is wrong)"
            )
        found.append(row[1:])
    return found


def _is_record(stream: int, row: tuple[object, ...]) -> bool:
    checksum, seq, received, flags, packet_id, version, client_id, user_name, topic = row[:9]
    if isinstance(topic, str):
        return checksum == row_checksum("record", (stream, *row[1:]))
    properties, payload = row[9:]
    return (
        isinstance(seq, int)
        and isinstance(received, int)
        and isinstance(flags, int)
        and isinstance(packet_id, int)
        and isinstance(version, int)
        and isinstance(client_id, bytes)
        and (user_name is None or isinstance(user_name, bytes))
        and isinstance(topic, bytes)
        and (properties is None or isinstance(properties, bytes))
        and isinstance(payload, bytes)
        and checksum
        == record_checksum(
            stream,
            seq,
            received,
            flags,
            packet_id,
            version,
            crc32(client_id),
            -1 if user_name is None else crc32(user_name),
            crc32(topic),
            properties,
            payload,
        )
    )


def subscription_from(topic_filter: str, options: int) -> Subscription:
    """A subscription out of its Subscription Options byte [3.8.3.1]."""
    return Subscription(
        topic_filter,
        options & 3,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        retain_handling=options >> 4 & 3,
    )
