"""Merges commits into the rows of one transaction.

A `WriteBatch` merges commits, in order, into the rows to write: a delivery that is queued and
assigned in one batch is one row, finished deliveries become ranges, and of a value that changes
several times only the last is written. So one transaction needs few statements, however many ticks
it contains.
"""

from typing import Final, final

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
)
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.store.commit import SHARED_PAYLOAD, Commit, RecordedMessage
from semel.store.row_checksums import (
    delivery_high,
    delivery_low,
    inbound_checksum,
    record_checksum,
    row_checksum,
    text_crc,
)
from semel.store.row_flags import delivery_flags, received_flags
from semel.store.rows import SessionKey, inbox_row, properties_value, retained_row, will_row
from semel.store.schema import CHECKSUM, TABLES

# The number of values per row in the flat lists of deliveries, extras and records.
DELIVERY_COLUMNS: Final[int] = len(TABLES["delivery"].columns)
EXTRA_COLUMNS: Final[int] = len(TABLES["delivery_extra"].columns)
RECORD_COLUMNS: Final[int] = len(TABLES["record"].columns)
# The positions of columns in a row of a delivery.
_CHECKSUM: Final[int] = TABLES["delivery"].column_names.index(CHECKSUM)
_PACKET_ID: Final[int] = TABLES["delivery"].column_names.index("packet_id")
_FLAGS: Final[int] = TABLES["delivery"].column_names.index("flags")
_TOPIC: Final[int] = TABLES["delivery"].column_names.index("topic")
_PAYLOAD: Final[int] = TABLES["delivery"].column_names.index("payload")


@final
class WriteBatch:
    """The rows of one transaction. Call `add` for each commit in order, then `close`."""

    # The highest numbers in use; new ones follow.
    last_shared_payload: int
    last_release: int
    last_position: int
    # The lowest id that no session of these commits has.
    next_session: int
    commits: Final[list[Commit]]
    # The values of all rows in one flat list, as a statement with many rows expects them.
    deliveries: list[object]
    extras: list[object]
    records: Final[list[object]]
    # packet_id, session_id, number
    assigned: Final[list[tuple[int, int, int]]]
    # release_number, session_id, number, low part of the checksum
    released: Final[list[tuple[int, int, int, int]]]
    # session_id, first and last number
    finished: Final[list[tuple[int, int, int]]]
    ended: Final[list[int]]
    # id, checksum, client_id, expiry_interval, identity
    sessions: Final[list[tuple[int, int, str, int, str]]]
    # ends_at, session_id
    ends: Final[list[tuple[float | None, int]]]
    # session_id, packet_id, checksum; session_id, first and last packet_id
    stored: Final[list[tuple[int, int, int]]]
    freed: Final[list[tuple[int, int, int]]]
    # session_id, topic_filter, checksum, options, identifier
    subscribed: Final[list[tuple[int, str, int, int, int]]]
    unsubscribed: Final[list[tuple[int, str]]]
    # cursor, session_id, topic_filter
    cursors: Final[list[tuple[int, int, str]]]
    # rows of `will`
    wills: Final[list[tuple[object, ...]]]
    wills_to_delete: Final[list[tuple[str]]]
    # rows of `retained`
    retained: Final[list[tuple[object, ...]]]
    retained_to_delete: Final[list[tuple[str]]]
    # rows of `shared_payload`
    shared_payloads: Final[list[tuple[int, int, int, bytes]]]
    # last_seq, id
    streams: Final[list[tuple[int, int]]]
    # rows of `inbox`
    inbox: Final[list[tuple[object, ...]]]
    # keys of rows of `inbox`
    acknowledged: Final[list[SessionKey]]
    # name, value
    metadata: Final[list[tuple[str, str]]]
    _rows: Final[dict[SessionKey, int]]
    _assigned: Final[dict[SessionKey, int]]
    _inbox: Final[dict[SessionKey, tuple[str, RecordedMessage] | None]]
    _skipped: Final[set[SessionKey]]
    # By the key of a delivery: the id of its shared payload.
    _shared_payload_of: Final[dict[SessionKey, int]]
    _finished: Final[dict[int, list[int]]]
    _sessions: Final[dict[int, tuple[str, int, str]]]
    _ends: Final[dict[int, float | None]]
    _inbound: Final[dict[SessionKey, bool]]
    _subscriptions: Final[dict[tuple[int, str], tuple[Subscription, int]]]
    _unsubscribed: Final[set[tuple[int, str]]]
    _cursors: Final[dict[tuple[int, str], int]]
    _wills: Final[dict[str, tuple[str, Will, float | None] | None]]
    _retained: Final[dict[str, Message]]
    # By the identity of a payload in one of the commits: its id; by this id: its uses.
    _payload_ids: Final[dict[int, int]]
    _use_counts: Final[dict[int, int]]
    _payloads: Final[dict[int, bytes]]
    _streams: Final[dict[int, int]]
    # CRC-32 of each text.
    _text_crcs: Final[dict[str, int]]

    def __init__(self, last_shared_payload: int, last_release: int, last_position: int) -> None:
        self.last_shared_payload = last_shared_payload
        self.last_release = last_release
        self.last_position = last_position
        self.next_session = 1
        self.commits = []
        self.deliveries = []
        self.extras = []
        self.records = []
        self.assigned = []
        self.released = []
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
        self.wills_to_delete = []
        self.retained = []
        self.retained_to_delete = []
        self.shared_payloads = []
        self.streams = []
        self.inbox = []
        self.acknowledged = []
        self.metadata = []
        self._rows = {}
        self._assigned = {}
        self._inbox = {}
        self._skipped = set()
        self._shared_payload_of = {}
        self._finished = {}
        self._sessions = {}
        self._ends = {}
        self._inbound = {}
        self._subscriptions = {}
        self._unsubscribed = set()
        self._cursors = {}
        self._wills = {}
        self._retained = {}
        self._payload_ids = {}
        self._use_counts = {}
        self._payloads = {}
        self._streams = {}
        self._text_crcs = {}

    def add(self, commit: Commit) -> None:
        """Merge the next commit."""
        self.commits.append(commit)
        for session, client_id, expiry_interval, identity in commit.sessions:
            self._sessions[session] = (client_id, expiry_interval, identity)
            self.next_session = max(self.next_session, session + 1)
        for session, change in commit.changes:
            self._change(session, change)
        for session, topic_filter, subscription, identifier in commit.subscriptions:
            key = (session, topic_filter)
            if subscription is None:
                # A later subscription to this filter starts without a cursor.
                self._unsubscribed.add(key)
                self._subscriptions.pop(key, None)
                self._cursors.pop(key, None)
            else:
                self._subscriptions[key] = (subscription, identifier)
        for session, topic_filter, seq in commit.cursors:
            self._cursors[(session, topic_filter)] = seq
        for client_id, identity, will, due_at in commit.wills:
            self._wills[client_id] = None if will is None else (identity, will, due_at)
        for topic_name, message in commit.retained:
            if message is None:
                # A later message to this topic gets a new position.
                self.retained_to_delete.append((topic_name,))
                self._retained.pop(topic_name, None)
            else:
                self._retained[topic_name] = message
        if commit.records:
            received_at = int(commit.at * 1_000_000)
            for record in commit.records:
                self._record(record, received_at)
        for session, number, name, received in commit.inbox:
            self._inbox[(session, number)] = None if received is None else (name, received)
        self.metadata.extend(commit.metadata)
        self.ended.extend(commit.ended)

    def close(self) -> None:
        """Compute the rows, after all commits were added."""
        ended = set(self.ended)
        if self._skipped or ended:
            self._drop_rows(ended)
        self._write_checksums()
        self._close_sessions(ended)
        self._close_subscriptions(ended)
        for client_id, kept_will in self._wills.items():
            if kept_will is None:
                self.wills_to_delete.append((client_id,))
            else:
                self.wills.append(will_row(client_id, kept_will[0], kept_will[1], kept_will[2]))
        for topic_name, message in self._retained.items():
            # The new position is used only if the topic has no message yet: see Database.
            self.last_position += 1
            self.retained.append(retained_row(self.last_position, topic_name, message))
        for row_key, kept_message in self._inbox.items():
            if row_key[0] in ended:
                continue
            if kept_message is None:
                self.acknowledged.append(row_key)
            else:
                self.inbox.append(inbox_row(row_key, kept_message[0], kept_message[1]))
        for payload_id, use_count in self._use_counts.items():
            if use_count:
                payload = self._payloads[payload_id]
                checksum = row_checksum("shared_payload", (payload_id, use_count, payload))
                self.shared_payloads.append((payload_id, checksum, use_count, payload))
        for stream, seq in self._streams.items():
            self.streams.append((seq, stream))

    def _close_sessions(self, ended: set[int]) -> None:
        for session, numbers in self._finished.items():
            if session not in ended:
                _ranges(session, numbers, self.finished)
        for session, (client_id, expiry_interval, identity) in self._sessions.items():
            if session not in ended:
                # A separate statement sets `ends_at`, and with it the high part.
                content = (session, client_id, expiry_interval, None, identity)
                checksum = row_checksum("session", content)
                self.sessions.append((session, checksum, client_id, expiry_interval, identity))
        for session, at in self._ends.items():
            if session not in ended:
                self.ends.append((at, session))
        freed: dict[int, list[int]] = {}
        for (session, packet_id), is_stored in self._inbound.items():
            if session in ended:
                continue
            if is_stored:
                self.stored.append((session, packet_id, inbound_checksum(session, packet_id)))
            else:
                freed.setdefault(session, []).append(packet_id)
        for session, packet_ids in freed.items():
            _ranges(session, packet_ids, self.freed)
        for (session, number), packet_id in self._assigned.items():
            self.assigned.append((packet_id, session, number))

    def _close_subscriptions(self, ended: set[int]) -> None:
        for session, topic_filter in self._unsubscribed:
            if session not in ended:
                self.unsubscribed.append((session, topic_filter))
        for (session, topic_filter), (subscription, identifier) in self._subscriptions.items():
            if session not in ended:
                options = subscription.options
                content = (session, topic_filter, options, identifier, None)
                checksum = row_checksum("subscription", content)
                self.subscribed.append((session, topic_filter, checksum, options, identifier))
        for (session, topic_filter), cursor in self._cursors.items():
            if session not in ended:
                self.cursors.append((cursor, session, topic_filter))

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
            self.released.append((self.last_release, session, change.number, low))
        elif kind == FINISHED:
            if (session, change.number) in self._rows:
                # The delivery was queued in this batch, and is not on disk.
                self._skipped.add((session, change.number))
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
        payload_id: int | None = None
        if len(message.payload) >= SHARED_PAYLOAD:
            payload_id = self._shared_payload_of[key] = self._share(message.payload)
            payload = None
        self._rows[key] = len(self._rows)
        has_extra = (
            payload_id is not None
            or share != ""
            or message.properties.present != 0
            or message.expires_at is not None
        )
        if has_extra:
            values: list[object] = [message.size, message.expires_at, share if share else None]
            values += [payload_id, properties_value(message.properties)]
            content: list[object] = [session, number]
            content += values
            self.extras += [session, number, row_checksum("delivery_extra", content)]
            self.extras += values
        flags = delivery_flags(message.qos, retain=message.retain, has_extra=has_extra)
        row: list[object] = [session, number, 0, 0, 0, flags, message.topic_name, payload]
        self.deliveries.extend(row)

    def _write_checksums(self) -> None:
        """Set the checksums of the deliveries, whose other columns are final now."""
        flat = self.deliveries
        for at in range(0, len(flat), DELIVERY_COLUMNS):
            session, number, packet_id = flat[at], flat[at + 1], flat[at + _PACKET_ID]
            flags, topic, payload = flat[at + _FLAGS], flat[at + _TOPIC], flat[at + _PAYLOAD]
            assert isinstance(session, int)
            assert isinstance(number, int)
            assert isinstance(packet_id, int)
            assert isinstance(flags, int)
            assert isinstance(topic, str)
            assert payload is None or isinstance(payload, bytes)
            low: i64 = delivery_low(session, number, self._cached_crc(topic), payload)
            high: i64 = delivery_high(session, number, packet_id, 0, flags)
            flat[at + _CHECKSUM] = low | high << 32

    def _cached_crc(self, text: str) -> int:
        """The CRC-32 of a text, cached because topics and client identifiers repeat."""
        crc = self._text_crcs.get(text, -1)
        if crc < 0:
            crc = self._text_crcs[text] = text_crc(text)
        return crc

    def _share(self, payload: bytes) -> int:
        """Count one more use of a shared payload. Returns its id."""
        # The commits keep the payloads alive, so that id() is unique among them.
        payload_id = self._payload_ids.get(id(payload), 0)
        if not payload_id:
            self.last_shared_payload += 1
            payload_id = self.last_shared_payload
            self._payload_ids[id(payload)] = payload_id
            self._payloads[payload_id] = payload
            self._use_counts[payload_id] = 0
        self._use_counts[payload_id] += 1
        return payload_id

    def _drop_rows(self, ended: set[int]) -> None:
        """Remove deliveries that were queued and finished within this batch."""
        for key in self._rows:
            if key[0] in ended:
                self._skipped.add(key)
        self.deliveries = self._without_skipped(self.deliveries, DELIVERY_COLUMNS)
        self.extras = self._without_skipped(self.extras, EXTRA_COLUMNS)
        for key in self._skipped:
            payload_id = self._shared_payload_of.get(key, 0)
            if payload_id:
                self._use_counts[payload_id] -= 1

    def _without_skipped(self, flat: list[object], columns: int) -> list[object]:
        kept: list[object] = []
        for start in range(0, len(flat), columns):
            row = flat[start : start + columns]
            session, number = row[0], row[1]
            assert isinstance(session, int)
            assert isinstance(number, int)
            if (session, number) not in self._skipped:
                kept.extend(row)
        return kept

    def _record(self, record: RecordedMessage, received_at: int) -> None:
        self._streams[record.stream] = record.seq
        flags = received_flags(record.qos, retain=record.retain, dup=record.dup)
        user_name = record.user_name
        properties = properties_value(record.properties)
        checksum = record_checksum(
            record.stream,
            record.seq,
            received_at,
            flags,
            record.packet_id,
            record.version,
            self._cached_crc(record.client_id),
            -1 if user_name is None else self._cached_crc(user_name),
            self._cached_crc(record.topic_name),
            properties,
            record.payload,
        )
        row: list[object] = [
            record.stream,
            record.seq,
            checksum,
            received_at,
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


def _ranges(session: int, numbers: list[int], found: list[tuple[int, int, int]]) -> None:
    """Append the numbers as ranges, which are few, because acknowledgements are mostly in order."""
    numbers.sort()
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            found.append((session, first, last))
            first = number
        last = number
    found.append((session, first, last))
