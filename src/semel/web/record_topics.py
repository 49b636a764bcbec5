"""Follows the record of a stream, and keeps a tree of its topics.

The record is followed only while somebody looks: `follow` reads what is new, and after a pause it
begins with the newest rows again. Rows are read from segments. Rows that are not sealed are read
from the store only if they are few, because reading them costs more.

If more rows are new than may be read in the time that the page has for it, the newest of them are
read, and stand for the others: counts and rates are estimates then.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.store.reading import NodeRecord, ReadOptions, StreamCatalog
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError
from semel.web.payloads import describe_payload
from semel.web.topic_tree import KEPT_BYTES, LastMessage, TopicBranch, TopicTree

# After so long a pause the newest rows are read again, and none of those between.
PAUSE_SECONDS: Final = 60.0
# Rows of the record that are searched for one topic.
SEARCHED_ROWS: Final = 2_000_000

_COLUMNS: Final = ("seq", "received", "topic", "payload", "qos", "retain")
_HISTORY_COLUMNS: Final = (*_COLUMNS, "client_id")

Values = dict[str, Any]


@dataclass(frozen=True)
class FollowLimits:
    """How many rows of the record are read and kept."""

    # Rows that are read when somebody begins to look.
    first_rows: int = 20_000
    # The processor time that reading new rows may take, and within it, how many rows that is.
    seconds: float = 0.05
    minimum_rows: int = 1_000
    maximum_rows: int = 50_000
    # Rows that are read although they are not sealed.
    unsealed_rows: int = 500
    # Messages of one topic that are shown.
    history_rows: int = 500


LIMITS: Final = FollowLimits()


class RecordUnreadable(Exception):
    """Why the record cannot be read, in one sentence."""


class RecordTopics:
    """The topics of one stream. Its methods block, and are called one at a time."""

    def __init__(
        self,
        data: Path | None,
        root: str | None,
        stream: str,
        *,
        limits: FollowLimits = LIMITS,
    ) -> None:
        self._data = data
        self._root = root
        self._limits = limits
        self.stream = stream
        self.tree = TopicTree()
        # By node: the last row that was read.
        self._read_up_to: dict[str, int] = {}
        self._followed_at = float("-inf")
        # The processor time that the last `follow` took, and how many rows it read.
        self.follow_seconds = 0.0
        self._rows_read = 0
        # How many rows can be read in the time for it, as far as is known.
        self._affordable_rows = limits.maximum_rows

    def follow(self) -> TopicTree:
        """Read what is new, and return the tree. Raises RecordUnreadable."""
        now, began = time.monotonic(), time.thread_time()
        since = now - self._followed_at
        if since > PAUSE_SECONDS:
            self._read_up_to = {}
        self._followed_at = now
        self._rows_read = 0
        with self._catalog() as catalog:
            records = catalog.records(self.stream)
            for record in records:
                self._follow(record, max(1, self._affordable_rows // len(records)))
        self.tree.end_interval(min(since, PAUSE_SECONDS))
        self.follow_seconds = time.thread_time() - began
        limits = self._limits
        if self._rows_read >= limits.minimum_rows:
            rows = int(limits.seconds * self._rows_read / max(self.follow_seconds, 1e-6))
            self._affordable_rows = min(limits.maximum_rows, max(limits.minimum_rows, rows))
        return self.tree

    def _follow(self, record: NodeRecord, maximum_rows: int) -> None:
        summary = record.summary()
        last = summary.last
        if last - summary.sealed > self._limits.unsealed_rows:
            last = summary.sealed
        known = self._read_up_to.get(record.node)
        if known is None:
            begins = first = max(summary.first, last - self._limits.first_rows + 1)
        else:
            begins = max(summary.first, known + 1)
            first = max(begins, last - maximum_rows + 1)
        self._read_up_to[record.node] = max(last, known or 0)
        if first > last:
            return
        rows = last - first + 1
        self._rows_read += rows
        for table in record.tables(first, last, ReadOptions(columns=_COLUMNS)):
            self._add(table, (last - begins + 1) / rows)

    def _add(self, table: Any, weight: float) -> None:
        """Add rows, each of which stands for `weight` rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        grouped = table.group_by("topic").aggregate([("seq", "count"), ("seq", "max")])
        counts = dict(
            zip(
                grouped.column("topic").to_pylist(),
                grouped.column("seq_count").to_pylist(),
                strict=True,
            )
        )
        newest = table.filter(pc.is_in(table.column("seq"), grouped.column("seq_max")))
        payload = newest.column("payload")
        columns = (
            newest.column("topic"),
            newest.column("received").cast(pa.int64()),
            pc.binary_slice(payload, 0, KEPT_BYTES),
            pc.binary_length(payload),
            newest.column("qos"),
            newest.column("retain"),
        )
        # By columns, which is quicker than by rows.
        for topic, at, begins, size, qos, retain in zip(
            *(each.to_pylist() for each in columns), strict=True
        ):
            last = LastMessage(at / 1e6, begins, size, qos, retain)
            self.tree.add(topic, round(counts[topic] * weight), last)

    def history(self, topic: str, seconds: float) -> Values:
        """The newest messages of a topic during the last seconds. Raises RecordUnreadable."""
        import pyarrow.compute as pc

        history_rows = self._limits.history_rows
        since = int((time.time() - seconds) * 1e6)
        rows: list[Values] = []
        is_complete = True
        with self._catalog() as catalog:
            for record in catalog.records(self.stream):
                last = record.last()
                begins = record.first_since(since)
                if begins is None:
                    continue
                first = max(begins, last - SEARCHED_ROWS + 1)
                is_complete &= first == begins
                for table in record.tables(first, last, ReadOptions(columns=_HISTORY_COLUMNS)):
                    found = table.filter(pc.equal(table.column("topic"), topic))
                    rows += found.to_pylist()
                    if len(rows) > 2 * history_rows:
                        del rows[: len(rows) - history_rows]
                        is_complete = False
        rows.sort(key=lambda row: row["received"], reverse=True)
        return {
            "rows": [
                {
                    "at": row["received"].timestamp(),
                    "seq": row["seq"],
                    "payload": describe_payload(row["payload"]),
                    "qos": row["qos"],
                    "retain": row["retain"],
                    "client": row["client_id"],
                }
                for row in rows[:history_rows]
            ],
            "more": not is_complete or len(rows) > history_rows,
        }

    @contextmanager
    def _catalog(self) -> Iterator[StreamCatalog]:
        try:
            with StreamCatalog(self._data, self._root) as catalog:
                yield catalog
        except (RecordError, RootError, Unusable, OSError) as problem:
            raise RecordUnreadable(" ".join(str(problem).split())) from None


def describe_topic(branch: TopicBranch) -> Values:
    """A branch of the tree, as the page shows it."""
    last = branch.last
    return {
        "key": branch.key,
        "level": branch.level,
        "topic": branch.topic,
        "children": len(branch.children),
        "topics": branch.topics,
        "messages": branch.messages,
        "rate": round(branch.rate, 2),
        "last": None
        if last is None
        else {
            "at": last.at,
            "payload": {**describe_payload(last.payload), "size": last.size},
            "qos": last.qos,
            "retain": last.retain,
        },
    }
