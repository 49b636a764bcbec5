"""The positions of a session in the streams to which it subscribes.

A `Cursor` is the position of one subscription `$stream/<name>/<filter>`. It reads only a few
records ahead, and drops them when the client disconnects: the record itself is the queue.
"""

from collections import OrderedDict
from typing import Final, final

from semel.store.commit import Commit, RecordedMessage
from semel.store.streams import Stream

# The prefix of subscriptions to streams, and of the topics of replayed messages.
STREAM_TOPICS: Final = "$stream/"

# Records per read: the first time, and at most. The number doubles while all of them are used.
FIRST_READ: Final = 16
LARGEST_READ: Final = 512


@final
class Cursor:
    """The position of one subscription in the record of its stream."""

    topic_filter: Final[str]
    stream: Final[Stream]
    # The filter for recorded topics, and the prefix for the topics of replayed messages.
    inner_filter: Final[str]
    prefix: Final[str]
    qos: int
    identifier: int
    # The next seq; 0: unknown, the store has to find the first record for `since`.
    position: int
    # Skip records up to the first that was received at this time, in microseconds, or later; 0:
    # skip none.
    since: int
    # The last value that was written to the store, or is in a commit.
    stored: int
    # The first and last seq that were missed, because they are no longer kept; 0: none.
    missed_first: int
    missed_last: int
    # When to read its next record again, which is damaged.
    retry_at: float
    # Records that were read ahead, and how many of them were processed.
    _records: list[RecordedMessage]
    _at: int
    limit: int

    def __init__(self, topic_filter: str, stream: Stream, inner_filter: str) -> None:
        self.topic_filter = topic_filter
        self.stream = stream
        self.inner_filter = inner_filter
        self.prefix = f"{STREAM_TOPICS}{stream.name}/"
        self.qos = 0
        self.identifier = 0
        self.position = 1
        self.since = 0
        self.stored = 0
        self.missed_first = 0
        self.missed_last = 0
        self.retry_at = 0.0
        self._records = []
        self._at = 0
        self.limit = FIRST_READ

    @property
    def value(self) -> int:
        """The value for the store: the last processed seq, or `since` as a negative number."""
        return -self.since if self.since else self.position - 1

    def restore(self, value: int) -> None:
        """Continue from a stored value."""
        self.stored = value
        if value < 0:
            self.seek(0, -value)
        else:
            self.seek(value + 1, 0)

    def seek(self, position: int, since: int) -> None:
        """Continue at this position, or (position 0) at this time."""
        self.position = position
        self.since = since
        self.missed_first = self.missed_last = 0
        self.retry_at = 0.0
        self.clear()

    def clear(self) -> None:
        """Drop the records that were read ahead."""
        self._records = []
        self._at = 0
        self.limit = FIRST_READ

    def put(self, records: list[RecordedMessage]) -> None:
        """Add records that were read, from `position` on or, if those are gone, from later."""
        first = records[0].seq
        # A cursor that starts with the earliest record, or at a time, misses nothing.
        if first > self.position > 1 and not self.since:
            if not self.missed_first:
                self.missed_first = self.position
            self.missed_last = first - 1
        self.position = first
        self._records = records
        self._at = 0

    def record(self) -> RecordedMessage | None:
        """The next record, None if it has not been read ahead."""
        if self._at < len(self._records):
            return self._records[self._at]
        if self._records:
            self._records = []
            self._at = 0
            self.limit = min(LARGEST_READ, self.limit * 2)
        return None

    def shrink(self) -> None:
        """Keep only a few records in memory, because the session can send no more now."""
        self.limit = FIRST_READ
        if len(self._records) > FIRST_READ:
            self._records = self._records[self._at : self._at + FIRST_READ]
            self._at = 0

    def advance(self) -> None:
        """Move past a record that was sent or skipped."""
        self._at += 1
        self.position += 1


@final
class Cursors:
    """The cursors of one session."""

    # By filter, in the order of their turns: a cursor that has processed a record moves to the end.
    all: Final[OrderedDict[str, Cursor]]
    # How many records the session may still process in this tick.
    work_left: int
    # Whether this tick has sent messages, and messages at QoS 0.
    sent: bool
    sent_unacknowledged: bool
    # The commit that QoS 0 messages await, and the number of their connection.
    awaited_commit: Commit | None
    connection: int
    # Whether it continues only when its client has read more.
    awaits_reader: bool

    def __init__(self) -> None:
        self.all = OrderedDict()
        self.work_left = 0
        self.sent = False
        self.sent_unacknowledged = False
        self.awaited_commit = None
        self.connection = 0
        self.awaits_reader = False

    def clear(self) -> None:
        """Keep only the positions, because there is no connection."""
        self.awaited_commit = None
        self.awaits_reader = False
        for cursor in self.all.values():
            cursor.clear()
