"""Where a session stands in the records of the streams that it subscribes to.

A `Cursor` is one subscription `$stream/<name>/<filter>`. What it has read of the record and not
sent yet is little, and forgotten when there is no connection: the record itself is the queue.
"""

from collections import OrderedDict
from typing import Final, final

from semel.store.commit import Commit, RecordedMessage
from semel.store.streams import Stream

# What a subscription to a stream begins with, and the topics of what is sent to it.
STREAM_TOPICS: Final = "$stream/"

# Records that are asked for at a time. Who takes them all, or passes them over, is given more.
FIRST_READ: Final = 16
LARGEST_READ: Final = 512


@final
class Cursor:
    """The place of one subscription in the record of its stream."""

    topic_filter: Final[str]
    stream: Final[Stream]
    # What the topics of the record are compared with, and what is put before them.
    inner_filter: Final[str]
    prefix: Final[str]
    qos: int
    identifier: int
    # The seq that is looked at next; 0: it is not known yet where `since` is.
    position: int
    # What was received before this time, in microseconds, is passed over, until something was
    # not; 0: nothing is.
    since: int
    # The cursor as the store has it, or will have it.
    stored: int
    # The first and the last seq that it was to have and that are not kept any more; 0: none.
    missed_first: int
    missed_last: int
    # What was read, and how much of that has been dealt with.
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
        self._records = []
        self._at = 0
        self.limit = FIRST_READ

    @property
    def value(self) -> int:
        """What is kept of it: the last seq that it is done with, or the time with a minus."""
        return -self.since if self.since else self.position - 1

    def restore(self, value: int) -> None:
        """Go on from what was kept."""
        self.stored = value
        if value < 0:
            self.seek(0, -value)
        else:
            self.seek(value + 1, 0)

    def seek(self, position: int, since: int) -> None:
        """Go on from there, whatever was before."""
        self.position = position
        self.since = since
        self.missed_first = self.missed_last = 0
        self.clear()

    def clear(self) -> None:
        """Forget what was read."""
        self._records = []
        self._at = 0
        self.limit = FIRST_READ

    def put(self, records: list[RecordedMessage]) -> None:
        """What the store has from `position` on, or from later on if that is no longer kept."""
        first = records[0].seq
        # Who begins at the beginning, or by a time, takes what there is.
        if first > self.position > 1 and not self.since:
            if not self.missed_first:
                self.missed_first = self.position
            self.missed_last = first - 1
        self.position = first
        self._records = records
        self._at = 0

    def record(self) -> RecordedMessage | None:
        """The record that is next, if it has been read."""
        if self._at < len(self._records):
            return self._records[self._at]
        if self._records:
            self._records = []
            self._at = 0
            self.limit = min(LARGEST_READ, self.limit * 2)
        return None

    def shrink(self) -> None:
        """Its session takes no more for now: what was read is cut down to little."""
        self.limit = FIRST_READ
        if len(self._records) > FIRST_READ:
            self._records = self._records[self._at : self._at + FIRST_READ]
            self._at = 0

    def advance(self) -> None:
        """That record was sent, or passed over."""
        self._at += 1
        self.position += 1


@final
class Cursors:
    """Those of one session."""

    # By filter, in the order of their turns: who has dealt with a record goes last.
    all: Final[OrderedDict[str, Cursor]]
    # How much more it may do in this tick.
    work_left: int
    # Whether this tick has sent anything, and anything at QoS 0.
    sent: bool
    sent_unacknowledged: bool
    # QoS 0 messages wait for this commit, on the connection with this number.
    awaited_commit: Commit | None
    connection: int
    # It waits until its client has read more.
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
        """There is no connection: keep the places alone."""
        self.awaited_commit = None
        self.awaits_reader = False
        for cursor in self.all.values():
            cursor.clear()
