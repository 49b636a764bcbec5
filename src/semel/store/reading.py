"""Reads the record of a stream from outside the broker: sealed segments and unsealed rows.

A running broker may seal, merge and delete meanwhile. A reader takes no lock and writes nothing; it
is correct because of the order in which it reads. A row is deleted from the store only after a
segment that holds it is durable. So reading

    1. the last seq of the store,
    2. the row in the store,
    3. the row in a segment (of those that hold it, the one that extends furthest),

finds every row up to (1) in (2) or, if it has been sealed meanwhile, in (3). Seqs have no gaps, so
a row that is in neither is missing: `NodeRecord.tables` returns each row once, in order, or raises
MissingRows. It holds one batch of rows in memory at a time.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from semel.mqtt.violation import Violation
from semel.store.folder import STREAMS, known_version, read_only, store_errors
from semel.store.gaps import known_gaps
from semel.store.metadata import get_metadata
from semel.store.opening import NODE_CHARACTERS
from semel.store.retention import delete_through
from semel.store.roots import LocalRoot, Root, Segment, open_root
from semel.store.rows import SELECT_RECORDS, check_records
from semel.store.schema import Damaged, Unusable
from semel.store.segment_names import Range
from semel.store.segments import (
    BATCH_ROWS,
    CHUNK_BYTES,
    LISTINGS,
    RecordError,
    SegmentError,
    arrow,
    first_since,
    group_range,
    open_segment,
    segment_times,
    table_of,
)

_ROWS: Final = f"{SELECT_RECORDS} WHERE stream_id = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"


@dataclass(frozen=True)
class ReadOptions:
    """Which columns to read, and how many rows at a time."""

    # In any order; None: all columns.
    columns: tuple[str, ...] | None = None
    batch_rows: int = BATCH_ROWS
    # Ranges of segments that recently held the rows, ascending. They are tried before the folder is
    # listed.
    hinted_segments: tuple[Range, ...] = ()


READ_ALL: Final = ReadOptions()


class MissingRows(RecordError):
    """Committed rows are neither in the store nor in a segment."""

    def __init__(self, first: int, last: int, of: str, verb: str, why: str) -> None:
        """The message is "rows 4 to 6 of {of}, {verb} {why}"; `verb` is "are" or "were"."""
        if first == last:
            verb = {"are": "is", "were": "was"}[verb]
        super().__init__(f"{row_label(first, last)} of {of}, {verb} {why}")
        self.first = first
        self.last = last


class RecordRow(NamedTuple):
    """A row of the record. The fields are named as the columns of a segment."""

    seq: int
    node: str
    # Wall clock, in microseconds.
    received: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    client_id: str
    user_name: str | None
    packet_id: int | None
    protocol_version: int
    payload_format: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    message_expiry: int | None
    user_properties: list[dict[str, str]] | None


def rows_of(table: Any) -> Iterator[RecordRow]:
    """The rows of a table with the columns of a segment."""
    columns = []
    for name in RecordRow._fields:
        column = table.column(name)
        if column.null_count == table.num_rows:
            columns.append([None] * table.num_rows)
        elif name == "received":
            columns.append(column.cast(arrow().int64()).to_pylist())
        else:
            columns.append(column.to_pylist())
    return map(RecordRow._make, zip(*columns, strict=True))


def row_label(first: int, last: int) -> str:
    """The row numbers for a message: "row 5" or "rows 5 to 7"."""
    return f"row {first}" if first == last else f"rows {first} to {last}"


def uncovered(segments: Iterable[Segment]) -> list[Segment]:
    """The segments that no other segment covers, in order. Rows may be missing between them."""
    found: list[Segment] = []
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        if not found or segment.last > found[-1].last:
            found.append(segment)
    return found


class StoreRows:
    """The rows of streams in a store, read through a read-only connection."""

    def __init__(self, folder: Path) -> None:
        """Raises Unusable."""
        self.folder = folder
        with store_errors(folder):
            self._connection = read_only(folder)
            try:
                known_version(self._connection)
                self.identity = self._fact("id") or ""
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _query(self, query: str, *arguments: object) -> list[Any]:
        with store_errors(self.folder):
            return self._connection.execute(query, arguments).fetchall()

    def _fact(self, name: str) -> str | None:
        with store_errors(self.folder):
            return get_metadata(self._connection, name)

    def node(self) -> str | None:
        """The node name of the broker that ran last, or None if the store does not record it."""
        return self._fact("node")

    def streams(self) -> dict[str, int]:
        """Names and ids of all streams, including those that are no longer configured."""
        return dict(self._query("SELECT name, id FROM stream ORDER BY name"))

    def extent(self, stream: int) -> tuple[int, int]:
        """The last committed seq, and the seq up to which all rows are sealed."""
        ((last, sealed),) = self._query(
            "SELECT last_seq, sealed_seq FROM stream WHERE id = ?", stream
        )
        return last, sealed

    def ends(self, stream: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """(seq, received) of the first and the last row in the store; None: it has no rows."""
        ends = [
            self._query(
                "SELECT seq, received_at FROM record"
                f" WHERE stream_id = ? ORDER BY seq {order} LIMIT 1",
                stream,
            )
            for order in ("ASC", "DESC")
        ]
        if not ends[0] or not ends[1]:
            return None
        return ends[0][0], ends[1][0]

    def first_since(self, stream: int, received: int) -> int | None:
        """The lowest seq in the store that was received at this time (microseconds) or later."""
        rows = self._query(
            "SELECT seq FROM record WHERE stream_id = ? AND received_at >= ? ORDER BY seq LIMIT 1",
            stream,
            received,
        )
        return rows[0][0] if rows else None

    def rows(self, stream: int, first: int, last: int) -> list[tuple[Any, ...]]:
        """A batch of consecutive rows from `first` on; empty: the store does not have `first`."""
        found: list[tuple[Any, ...]] = []
        size = 0
        with store_errors(self.folder):
            cursor = self._connection.execute(_ROWS, (stream, first, last, BATCH_ROWS))
            for row in cursor:
                if row[1] != first + len(found):
                    break
                found += check_records(stream, [row])
                size += len(row[-1])
                if size >= CHUNK_BYTES:
                    break
            cursor.close()
        return found

    def next_after(self, stream: int, seq: int) -> int | None:
        """The lowest seq in the store above this one."""
        ((found,),) = self._query(
            "SELECT min(seq) FROM record WHERE stream_id = ? AND seq > ?", stream, seq
        )
        return None if found is None else int(found)

    def table(self, rows: list[tuple[Any, ...]], node: str) -> Any:
        """The result of `rows` as an Arrow table. Raises Unusable if a row is damaged."""
        with store_errors(self.folder):
            try:
                return table_of(rows, node)
            except (ValueError, Violation) as problem:
                # Text that is not UTF-8, or properties that cannot be decoded.
                raise Damaged(f"rows starting at {rows[0][0]}: {problem}") from problem

    def lost_ranges(self, stream: int) -> list[Range]:
        """The ranges of rows that a repair could not recover, in order."""
        with store_errors(self.folder):
            return known_gaps(self._connection).get(stream, [])


@dataclass(frozen=True)
class RecordSummary:
    """The record of a stream on one node, in numbers. If it is empty, `first` is `last` + 1."""

    stream: str
    node: str
    first: int
    last: int
    # Rows up to this seq have been sealed.
    sealed: int
    # Segments that a reader reads, and segments that others cover, which will be deleted.
    segments: int
    bytes: int
    covered_segments: int
    covered_bytes: int
    # When the oldest and the newest message were received, in microseconds.
    oldest: int | None
    newest: int | None
    # One sentence, or None.
    problem: str | None

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class _RecordSnapshot:
    """The extent of a record in the store and under the root, read in the order of sealing."""

    # Of the store: the last seq, the last sealed seq, and (seq, received) of its first and last
    # row.
    last_seq: int
    sealed: int
    ends: tuple[tuple[int, int], tuple[int, int]] | None
    segments: list[Segment]
    # Rows up to this seq were deleted.
    trimmed: int

    @property
    def last(self) -> int:
        return max(self.last_seq, self.trimmed, *(each.last for each in self.segments), 0)

    @property
    def first(self) -> int:
        found = [each.first for each in self.segments[:1]]
        if self.ends is not None:
            found.append(self.ends[0][0])
        return min(found, default=self.last + 1)

    def first_missing(self) -> int | None:
        """The lowest missing seq after `first`, or None.

        Finds gaps between segments, and between segments and the store. `semel store check` finds
        gaps within the store.
        """
        expected = self.first
        for segment in uncovered(self.segments):
            if segment.first > expected:
                break
            expected = segment.last + 1
        if self.ends is not None and self.ends[0][0] <= expected:
            expected = max(expected, self.ends[1][0] + 1)
        return expected if expected <= self.last else None


class NodeRecord:
    """The record of a stream on one node."""

    def __init__(
        self,
        root: Root,
        stream: str,
        node: str,
        *,
        store: StoreRows | None = None,
        stream_id: int = 0,
    ) -> None:
        """Pass `store` if its rows are sealed into segments of this node."""
        self.stream = stream
        self.node = node
        self._root = root
        self._store = store
        self._id = stream_id

    @property
    def name(self) -> str:
        """The label of this record in messages."""
        return f"stream {self.stream}, node {self.node}"

    @property
    def is_live(self) -> bool:
        """Whether committed rows are visible before they are sealed."""
        return self._store is not None

    # --- extent -----------------------------------------------------------------------------------

    def _snapshot(self) -> _RecordSnapshot:
        last_seq = sealed = 0
        ends = None
        if self._store is not None:
            last_seq, sealed = self._store.extent(self._id)
            ends = self._store.ends(self._id)
        segments = self._root.segments(self.stream, self.node)
        trimmed = self._root.trimmed(self.stream, self.node)
        return _RecordSnapshot(last_seq, sealed, ends, segments, trimmed)

    def last(self) -> int:
        """The last seq that was ever assigned; 0: none."""
        last = 0 if self._store is None else self._store.extent(self._id)[0]
        return max(last, self._root.highest_seq(self.stream, self.node))

    def first(self) -> int:
        """The first seq of the record; `last()` + 1 if it has no rows.

        Raises MissingRows if earlier rows should exist.
        """
        snapshot = self._snapshot()
        problem = self._missing_at_start(snapshot)
        if problem is not None:
            raise problem
        return snapshot.first

    def _missing_at_start(self, snapshot: _RecordSnapshot) -> MissingRows | None:
        """The error for rows missing before the first one; None: none are, or it is unknown."""
        first = snapshot.first
        if self._store is None or snapshot.trimmed >= first - 1:
            return None
        for node in self._root.nodes(self.stream):
            # A renamed node continues the seqs of its old name.
            if node != self.node and self._root.highest_seq(self.stream, node) >= first - 1:
                if self._root.owner(self.stream, node) == self._store.identity:
                    return None
        return MissingRows(
            snapshot.trimmed + 1,
            first - 1,
            self.name,
            "are",
            f"sealed, but not in {self._root.address}: give the --root of the broker"
            + (f", or begin with --from {first}" if first <= snapshot.last else ""),
        )

    def first_since(self, received: int) -> int | None:
        """The lowest seq that was received at that time (microseconds) or later."""
        found = []
        if self._store is not None:
            found.append(self._store.first_since(self._id, received))
        with self._record_errors():
            found.append(first_since(self._root, self.stream, self.node, received))
        return min((each for each in found if each is not None), default=None)

    def summary(self) -> RecordSummary:
        """The record in numbers, with a problem if rows are missing or damaged."""
        for _ in range(LISTINGS - 1):
            try:
                found = self._summary()
            except FileNotFoundError:
                continue
            # A listing is not atomic: report a gap only if it persists.
            if found.problem is None:
                return found
        return self._summary()

    def _summary(self) -> RecordSummary:
        snapshot = self._snapshot()
        read = uncovered(snapshot.segments)
        oldest = newest = None
        if snapshot.ends is not None:
            oldest, newest = snapshot.ends[0][1], snapshot.ends[1][1]
        problem: Exception | None = self._missing_at_start(snapshot) or self._gap(snapshot)
        try:
            if read and read[0].first == snapshot.first:
                oldest = self._times(read[0])[0]
            if read and (snapshot.ends is None or snapshot.ends[1][0] < read[-1].last):
                newest = self._times(read[-1])[1]
        except RecordError as damage:
            problem = damage
        size = sum(each.size for each in read)
        return RecordSummary(
            stream=self.stream,
            node=self.node,
            first=snapshot.first,
            last=snapshot.last,
            sealed=snapshot.sealed or max([snapshot.trimmed, *(each.last for each in read)]),
            segments=len(read),
            bytes=size,
            covered_segments=len(snapshot.segments) - len(read),
            covered_bytes=sum(each.size for each in snapshot.segments) - size,
            oldest=oldest,
            newest=newest,
            problem=None if problem is None else str(problem),
        )

    def _gap(self, snapshot: _RecordSnapshot) -> MissingRows | None:
        """The error for the first gap that can be found without reading every row, or None."""
        found = snapshot.first_missing()
        if self._store is not None:
            for first, last in self._store.lost_ranges(self._id):
                # The rows that the store lost may have been sealed earlier.
                is_sealed = any(each.last >= first for each in snapshot.segments)
                if last > snapshot.trimmed and not is_sealed:
                    found = min(found or first, max(first, snapshot.trimmed + 1))
        return None if found is None else self._missing_rows(found, snapshot)

    def _times(self, segment: Segment) -> tuple[int, int]:
        with self._record_errors():
            return segment_times(
                self._root, self.stream, self.node, first=segment.first, last=segment.last
            )

    # --- rows -------------------------------------------------------------------------------------

    def tables(self, first: int, last: int, options: ReadOptions = READ_ALL) -> Iterator[Any]:
        """Rows `first` to `last`, each once and in order, as Arrow tables of bounded size.

        `last` must not exceed `last()`. Raises MissingRows, or RecordError for damage.
        """
        at = first
        attempts = 0
        while at <= last:
            # Hints are tried once; after that the folder is listed.
            hints = options.hinted_segments if attempts == 0 else ()
            try:
                for through, table in self._pieces(at, last, options, hints):
                    at = through + 1
                    attempts = 0
                    yield table
            except OSError as problem:
                # The segment was deleted after the listing: list again to find the segment that has
                # its rows now. Arrow also raises OSError for a damaged page.
                attempts += 1
                if attempts == LISTINGS:
                    reason = " ".join(str(problem).split())
                    raise RecordError(
                        f"{self.name}: row {at} cannot be read: {reason}"
                    ) from problem

    def _pieces(
        self, first: int, last: int, options: ReadOptions, hints: tuple[Range, ...]
    ) -> Iterator[tuple[int, Any]]:
        """Rows from `first` on, from one batch of the store or from one segment.

        Yields (last seq, table).
        """
        if self._store is not None:
            rows = self._store.rows(self._id, first, last)
            if rows:
                table = self._store.table(rows, self.node)
                if options.columns is not None:
                    table = table.select(list(options.columns))
                yield rows[-1][0], table
                return
        low, high = self._find_range(first, hints)
        with self._record_errors():
            opened = open_segment(self._root, self.stream, self.node, first=low, last=high)
        try:
            yield from self._groups(opened, first, min(last, high), options)
        finally:
            opened.close(force=True)

    def _groups(
        self, opened: Any, first: int, last: int, options: ReadOptions
    ) -> Iterator[tuple[int, Any]]:
        """Rows `first` to `last` of the open segment, which must have all of them."""
        metadata = opened.metadata
        columns = None if options.columns is None else list(options.columns)
        for group in range(metadata.num_row_groups):
            begins, ends = group_range(metadata, group)
            if ends < first or begins > last:
                continue
            batches = opened.iter_batches(
                batch_size=options.batch_rows,
                row_groups=[group],
                columns=columns,
                use_threads=False,
            )
            while begins <= min(ends, last):
                with self._record_errors():
                    batch = next(batches, None)
                    if batch is None:
                        raise RecordError(f"row {begins} is not in its segment")
                    table = arrow().Table.from_batches([batch])
                    if columns is not None:
                        # Arrow returns columns in the order of the file.
                        table = table.select(columns)
                self._check(table, begins)
                through = begins + table.num_rows - 1
                if through >= first:
                    ahead = max(first - begins, 0)
                    kept = min(through, last) - begins - ahead + 1
                    yield min(through, last), table.slice(ahead, kept)
                begins = through + 1

    def _check(self, table: Any, begins: int) -> None:
        """Check that a table starts with row `begins`, if it has the column. Raises RecordError."""
        if "seq" not in table.column_names:
            return
        seqs = table.column("seq")
        ends = begins + table.num_rows - 1
        if seqs[0].as_py() != begins or seqs[-1].as_py() != ends:
            raise RecordError(f"{self.name}: a segment is damaged near row {begins}")

    def _find_range(self, seq: int, hints: tuple[Range, ...]) -> Range:
        """The range of the segment from which to read a row. Raises MissingRows."""
        for first, last in hints:
            if first <= seq <= last:
                return first, last
        snapshot = None
        for _ in range(LISTINGS):
            snapshot = self._snapshot()
            found = [each for each in snapshot.segments if each.first <= seq <= each.last]
            if found:
                return max(found, key=lambda each: (each.last, -each.first)).range
        assert snapshot is not None
        raise self._missing_rows(seq, snapshot)

    def _missing_rows(self, seq: int, snapshot: _RecordSnapshot) -> MissingRows:
        """The error that states how many rows are missing from `seq` on, and why."""
        later = [each.first for each in snapshot.segments if each.first > seq]
        verb, why = "are", f"missing from {self._root.address}"
        if self._store is not None:
            why += " and from the store"
            after = self._store.next_after(self._id, seq)
            later += [] if after is None else [after]
        through = max(seq, min(later, default=snapshot.last + 1) - 1)
        if seq <= snapshot.trimmed:
            through = min(through, snapshot.trimmed)
            verb, why = "were", "deleted by retention or by `semel stream trim`"
        elif self._store is not None:
            for first, last in self._store.lost_ranges(self._id):
                if first <= seq <= last:
                    through = min(through, last)
                    verb, why = "were", "lost when the store was repaired"
        advice = f"; --from {through + 1} reads on" if through < snapshot.last else ""
        return MissingRows(seq, through, self.name, verb, why + advice)

    @contextmanager
    def _record_errors(self) -> Iterator[None]:
        """A context that turns problems with a file into a RecordError that names the record."""
        try:
            yield
        except SegmentError:
            # Its message already names the file, the stream and the node.
            raise
        except RecordError as problem:
            raise RecordError(f"{self.name}: {problem}") from problem
        except OSError:
            raise
        except (arrow().ArrowException, UnicodeError) as problem:
            raise RecordError(f"{self.name}: a segment is damaged: {problem}") from problem

    # --- deleting ---------------------------------------------------------------------------------

    def segments_before(
        self, *, seq: int | None = None, received: int | None = None
    ) -> list[Segment]:
        """The segments that are entirely before a seq, or before a time in microseconds, in order.

        Leaves out segments with rows that the store has not recorded as sealed.
        """
        sealed = None if self._store is None else self._store.extent(self._id)[1]
        found: list[Segment] = []
        for segment in uncovered(self._root.segments(self.stream, self.node)):
            if sealed is not None and segment.last > sealed:
                break
            if seq is not None and segment.last >= seq:
                break
            if received is not None and self._times(segment)[1] >= received:
                break
            found.append(segment)
        return found

    def times(self, segments: list[Segment]) -> tuple[int, int]:
        """When the oldest and the newest row of consecutive segments were received."""
        return self._times(segments[0])[0], self._times(segments[-1])[1]

    def trim(self, through: int) -> list[Segment]:
        """Delete the segments up to this seq. Returns the uncovered ones among them, in order.

        The deletion is first recorded under the root. From then on readers ignore these segments,
        even if a sealer that merges some of them writes them again.
        """
        segments = self._root.segments(self.stream, self.node)
        deleted = [each for each in uncovered(segments) if each.last <= through]
        if deleted:
            delete_through(self._root, self.stream, self.node, segments, deleted[-1].last)
        return deleted


class StreamCatalog:
    """The streams and records of a data folder, of a root, or of both if they belong together."""

    def __init__(self, data: Path | None, root: str | None) -> None:
        """Pass at least one of them. Raises Unusable, RootError and MissingExtra."""
        assert data is not None or root is not None
        arrow()
        self.store = None if data is None else StoreRows(data)
        try:
            if root is not None:
                self.root = open_root(root)
                if isinstance(self.root, LocalRoot) and not Path(self.root.address).is_dir():
                    raise Unusable(f"the root {self.root.address} does not exist")
            else:
                assert data is not None
                self.root = open_root(data / STREAMS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the store, if there is one."""
        if self.store is not None:
            self.store.close()

    def __enter__(self) -> "StreamCatalog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def location(self) -> str:
        """The data folder or the root, for messages."""
        return self.root.address if self.store is None else str(self.store.folder)

    def streams(self) -> list[str]:
        """The names of all streams, sorted."""
        known = set() if self.store is None else set(self.store.streams())
        return sorted(known | set(self.root.streams()))

    def records(self, stream: str) -> list[NodeRecord]:
        """The records of a stream, sorted by node; empty if there is no such stream."""
        nodes = set(self.root.nodes(stream))
        stream_id = None if self.store is None else self.store.streams().get(stream)
        own = None
        if self.store is not None and stream_id is not None:
            own = self._own_node(self.store, stream)
            nodes.add(own)
        return [
            NodeRecord(self.root, stream, node, store=self.store, stream_id=stream_id)
            if node == own and stream_id is not None
            else NodeRecord(self.root, stream, node)
            for node in sorted(nodes)
        ]

    def _own_node(self, store: StoreRows, stream: str) -> str:
        """The node under which the store's rows are sealed.

        If the store does not record it: the one with the highest seq among those that it owns.
        """
        noted = store.node()
        if noted is not None:
            return noted
        owned = [
            node
            for node in self.root.nodes(stream)
            if self.root.owner(stream, node) == store.identity
        ]
        if not owned:
            return store.identity[:NODE_CHARACTERS]
        return max(owned, key=lambda node: self.root.highest_seq(stream, node))
