"""The positions of a session in the streams that it subscribes to.

A `Cursor` is one subscription `$stream/<name>/<filter>`. It reads only a few records ahead, and
drops them when there is no connection: the record itself is the queue.
"""

from collections import OrderedDict
from typing import Final, final

from semel.store.commit import Commit, RecordedMessage
from semel.store.streams import Stream

# The prefix of subscriptions to streams, and of the topics of replayed messages.
STREAM_TOPICS: Final = "$stream/"

# Records read at a time: at first, and at most. The number doubles while all are used or skipped.
FIRST_READ: Final = 16
LARGEST_READ: Final = 512


@final
class Cursor:
    """The position of one subscription in the record of its stream."""

    topic_filter: Final[str]
    stream: Final[Stream]
    # The filter for the topics of the record, and the prefix of the topics of replayed messages.
    inner_filter: Final[str]
    prefix: Final[str]
    qos: int
    identifier: int
    # The next seq; 0: not known yet, `since` has to be found.
    position: int
    # Records received before this time, in microseconds, are skipped, up to the first that was
    # not; 0: none is.
    since: int
    # The value that the store has, or will have.
    stored: int
    # The first and the last seq that it missed, because they are no longer kept; 0: none.
    missed_first: int
    missed_last: int
    # Until then its next record, which is damaged, is not read again.
    retry_at: float
    # Records that were read, and how many of them were processed.
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
        """What the store keeps: the last seq that was processed, or minus the time."""
        return -self.since if self.since else self.position - 1

    def restore(self, value: int) -> None:
        """Continue from a stored value."""
        self.stored = value
        if value < 0:
            self.seek(0, -value)
        else:
            self.seek(value + 1, 0)

    def seek(self, position: int, since: int) -> None:
        """Continue from there."""
        self.position = position
        self.since = since
        self.missed_first = self.missed_last = 0
        self.retry_at = 0.0
        self.clear()

    def clear(self) -> None:
        """Drop the records that were read."""
        self._records = []
        self._at = 0
        self.limit = FIRST_READ

    def put(self, records: list[RecordedMessage]) -> None:
        """Take records from `position` on, or from later if those are no longer kept."""
        first = records[0].seq
        # A cursor that begins at the beginning, or at a time, misses nothing.
        if first > self.position > 1 and not self.since:
            if not self.missed_first:
                self.missed_first = self.position
            self.missed_last = first - 1
        self.position = first
        self._records = records
        self._at = 0

    def record(self) -> RecordedMessage | None:
        """The next record, if it has been read."""
        if self._at < len(self._records):
            return self._records[self._at]
        if self._records:
            self._records = []
            self._at = 0
            self.limit = min(LARGEST_READ, self.limit * 2)
        return None

    def shrink(self) -> None:
        """Its session can take no more now: keep only a few of the records that were read."""
        self.limit = FIRST_READ
        if len(self._records) > FIRST_READ:
            self._records = self._records[self._at : self._at + FIRST_READ]
            self._at = 0

    def advance(self) -> None:
        """The record was sent or skipped."""
        self._at += 1
        self.position += 1


@final
class Cursors:
    """The cursors of one session."""

    # By filter, in the order of their turns: a cursor that has processed a record goes last.
    all: Final[OrderedDict[str, Cursor]]
    # Records that it may still process in this tick.
    work_left: int
    # Whether this tick has sent messages, and messages at QoS 0.
    sent: bool
    sent_unacknowledged: bool
    # QoS 0 messages await this commit, on the connection with this number.
    awaited_commit: Commit | None
    connection: int
    # It continues when its client has read more.
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
        """There is no connection: keep only the positions."""
        self.awaited_commit = None
        self.awaits_reader = False
        for cursor in self.all.values():
            cursor.clear()
