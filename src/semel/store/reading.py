"""Reading the record of a stream where it lies: segments, and rows that are only in the store yet.

Whoever reads here is a stranger to the broker: it may run or not, and goes on sealing, merging and
deleting. Nothing is locked and nothing is written. What makes it sure is the order of looking. A
row leaves the store only after a segment with it is safe, so that

    1. how far the store's numbers go
    2. the row in the store
    3. the row in a segment, by the reader's rule: of those that hold it, the one that reaches on

finds every row up to (1) in (2) or, if it had left by then, in (3). A row that is in neither is
missing, and since numbers are dense that shows: `tables` gives each row once, in order, or raises
MissingRows with the numbers. One batch of rows is in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from semel.mqtt.violation import Violation
from semel.store.facts import get_fact
from semel.store.folder import STREAMS, explained, known_version, read_only
from semel.store.gaps import Range, known_gaps
from semel.store.opening import NODE_CHARACTERS
from semel.store.retention import delete_through
from semel.store.roots import LocalRoot, Root, Segment, open_root
from semel.store.rows import check_records
from semel.store.schema import Damaged, Unusable
from semel.store.segments import (
    BATCH_ROWS,
    CHUNK_BYTES,
    COLUMNS,
    LISTINGS,
    RecordError,
    arrow,
    first_since,
    group_range,
    open_segment,
    segment_times,
    table_of,
)

_ROWS: Final = (
    f"SELECT checksum, {COLUMNS} FROM record"
    " WHERE stream = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
)


@dataclass(frozen=True)
class Choice:
    """What to read of rows, and how much at a time."""

    # The columns, in any order; None: all of them.
    columns: tuple[str, ...] | None = None
    # Rows at a time.
    rows: int = BATCH_ROWS
    # Whether a row group of a segment, by its place in the metadata, has to be looked at; what is
    # passed over counts as read.
    wanted: Callable[[Any, int], bool] | None = None
    # Segments that held the rows a moment ago, ascending: they are tried without a listing.
    likely: tuple[Range, ...] = ()


EVERYTHING: Final = Choice()


class MissingRows(RecordError):
    """Rows that are nowhere, though their numbers were given out."""

    def __init__(self, first: int, last: int, of: str, verb: str, why: str) -> None:
        """`why` goes on after the verb, "are" or "were"."""
        if first == last:
            verb = {"are": "is", "were": "was"}[verb]
        super().__init__(f"{row_label(first, last)} of {of}, {verb} {why}")
        self.first = first
        self.last = last


class RecordRow(NamedTuple):
    """A row, with the names of its columns in a segment."""

    seq: int
    node: str
    # Microseconds of the wall clock.
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
    """Some rows, for people."""
    return f"row {first}" if first == last else f"rows {first} to {last}"


def uncovered(segments: Iterable[Segment]) -> list[Segment]:
    """The segments that a reader reads, in order, whether or not rows are missing between them."""
    found: list[Segment] = []
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        if not found or segment.last > found[-1].last:
            found.append(segment)
    return found


class StoreRows:
    """The rows that a store has of its streams, by a connection of our own that cannot write."""

    def __init__(self, folder: Path) -> None:
        """Raises Unusable."""
        self.folder = folder
        with explained(folder):
            self._connection = read_only(folder)
            try:
                known_version(self._connection)
                self.identity = self._fact("id") or ""
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """No more."""
        self._connection.close()

    def _ask(self, question: str, *arguments: object) -> list[Any]:
        with explained(self.folder):
            return self._connection.execute(question, arguments).fetchall()

    def _fact(self, name: str) -> str | None:
        with explained(self.folder):
            return get_fact(self._connection, name)

    def node(self) -> str | None:
        """What the broker called its node when it last ran, if it noted that."""
        return self._fact("node")

    def streams(self) -> dict[str, int]:
        """Names and ids of all streams that ever were."""
        return dict(self._ask("SELECT name, id FROM stream ORDER BY name"))

    def extent(self, stream: int) -> tuple[int, int]:
        """The last seq that is committed, and up to which one all rows are sealed."""
        ((last, sealed),) = self._ask("SELECT last_seq, sealed FROM stream WHERE id = ?", stream)
        return last, sealed

    def ends(self, stream: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """The seq and the time of the first and the last row that is here."""
        ends = [
            self._ask(
                f"SELECT seq, received FROM record WHERE stream = ? ORDER BY seq {order} LIMIT 1",
                stream,
            )
            for order in ("ASC", "DESC")
        ]
        if not ends[0] or not ends[1]:
            return None
        return ends[0][0], ends[1][0]

    def first_since(self, stream: int, received: int) -> int | None:
        """The lowest seq here of a row that was received then (in microseconds) or later."""
        rows = self._ask(
            "SELECT seq FROM record WHERE stream = ? AND received >= ? ORDER BY seq LIMIT 1",
            stream,
            received,
        )
        return rows[0][0] if rows else None

    def rows(self, stream: int, first: int, last: int) -> list[tuple[Any, ...]]:
        """Rows without a gap from `first` on, as many as are good at a time; none: not here."""
        found: list[tuple[Any, ...]] = []
        size = 0
        with explained(self.folder):
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
        """The next row that is here after this one."""
        ((found,),) = self._ask(
            "SELECT min(seq) FROM record WHERE stream = ? AND seq > ?", stream, seq
        )
        return None if found is None else int(found)

    def table(self, rows: list[tuple[Any, ...]], node: str) -> Any:
        """Such rows as an Arrow table."""
        with explained(self.folder):
            try:
                return table_of(rows, node)
            except (ValueError, Violation) as problem:
                # Text that is not UTF-8, or properties that are none.
                raise Damaged(f"rows from {rows[0][0]} on: {problem}") from problem

    def lost(self, stream: int) -> list[Range]:
        """What a repair could not save, in order."""
        with explained(self.folder):
            return known_gaps(self._connection).get(stream, [])


@dataclass(frozen=True)
class Summary:
    """What there is of a stream on one node. Without rows, `first` is one more than `last`."""

    stream: str
    node: str
    first: int
    last: int
    # Rows up to this one are in segments, or were.
    sealed: int
    # Those that a reader reads, and those that others cover and that go by themselves.
    segments: int
    bytes: int
    covered_segments: int
    covered_bytes: int
    # When the oldest and the newest message were received, in microseconds.
    oldest: int | None
    newest: int | None
    # What is wrong with it, in one sentence.
    problem: str | None

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class _Look:
    """What there is, looked at in the order in which rows move."""

    # Of the store: the last seq, up to which one rows are sealed, and seq and time of the first
    # and the last row that is there.
    last_seq: int
    sealed: int
    ends: tuple[tuple[int, int], tuple[int, int]] | None
    segments: list[Segment]
    # Rows up to this one were deleted.
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

    def gap(self) -> int | None:
        """The first row that is missing after the first one that is there.

        Between segments, or between them and the store: whether all rows of a store are there, its
        own check tells.
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
        """`store` is given if its rows become segments of this node."""
        self.stream = stream
        self.node = node
        self._root = root
        self._store = store
        self._id = stream_id

    @property
    def name(self) -> str:
        """Which record it is, for people."""
        return f"stream {self.stream}, node {self.node}"

    @property
    def is_live(self) -> bool:
        """Whether rows show when they are committed, not only when they are sealed."""
        return self._store is not None

    # --- how far it goes --------------------------------------------------------------------------

    def _look(self) -> _Look:
        last_seq = sealed = 0
        ends = None
        if self._store is not None:
            last_seq, sealed = self._store.extent(self._id)
            ends = self._store.ends(self._id)
        segments = self._root.segments(self.stream, self.node)
        return _Look(last_seq, sealed, ends, segments, self._root.trimmed(self.stream, self.node))

    def last(self) -> int:
        """The last seq that was given out; 0: none."""
        last = 0 if self._store is None else self._store.extent(self._id)[0]
        return max(last, self._root.highest_seq(self.stream, self.node))

    def first(self) -> int:
        """The first seq that there is; one more than the last if there is none.

        MissingRows: rows before it should be there.
        """
        look = self._look()
        problem = self._lacking(look)
        if problem is not None:
            raise problem
        return look.first

    def _lacking(self, look: _Look) -> MissingRows | None:
        """What is missing before the first row. Only a store can tell that there was something."""
        first = look.first
        if self._store is None or look.trimmed >= first - 1:
            return None
        for node in self._root.nodes(self.stream):
            # The node may have had another name before, and its numbers went on.
            if node != self.node and self._root.highest_seq(self.stream, node) >= first - 1:
                if self._root.owner(self.stream, node) == self._store.identity:
                    return None
        return MissingRows(
            look.trimmed + 1,
            first - 1,
            self.name,
            "are",
            f"sealed, but not in {self._root.address}: give the --root of the broker"
            + (f", or begin with --from {first}" if first <= look.last else ""),
        )

    def first_since(self, received: int) -> int | None:
        """The lowest seq of a row that was received then (in microseconds) or later."""
        found = []
        if self._store is not None:
            found.append(self._store.first_since(self._id, received))
        with self._named():
            found.append(first_since(self._root, self.stream, self.node, received))
        return min((each for each in found if each is not None), default=None)

    def summary(self) -> Summary:
        """What there is, in numbers."""
        for _ in range(LISTINGS - 1):
            try:
                found = self._summary()
            except FileNotFoundError:
                continue
            # A listing is not one moment: one with a gap is not believed at once.
            if found.problem is None:
                return found
        return self._summary()

    def _summary(self) -> Summary:
        look = self._look()
        read = uncovered(look.segments)
        oldest = newest = None
        if look.ends is not None:
            oldest, newest = look.ends[0][1], look.ends[1][1]
        problem: Exception | None = self._lacking(look) or self._gap(look)
        try:
            if read and read[0].first == look.first:
                oldest = self._times(read[0])[0]
            if read and (look.ends is None or look.ends[1][0] < read[-1].last):
                newest = self._times(read[-1])[1]
        except RecordError as damage:
            problem = damage
        size = sum(each.size for each in read)
        return Summary(
            stream=self.stream,
            node=self.node,
            first=look.first,
            last=look.last,
            sealed=look.sealed or max([look.trimmed, *(each.last for each in read)]),
            segments=len(read),
            bytes=size,
            covered_segments=len(look.segments) - len(read),
            covered_bytes=sum(each.size for each in look.segments) - size,
            oldest=oldest,
            newest=newest,
            problem=None if problem is None else str(problem),
        )

    def _gap(self, look: _Look) -> MissingRows | None:
        """What is missing after the first row, as far as that can be told without reading all."""
        found = look.gap()
        if self._store is not None:
            for first, last in self._store.lost(self._id):
                # The record may have what the store has lost.
                if last > look.trimmed and not any(each.last >= first for each in look.segments):
                    found = min(found or first, max(first, look.trimmed + 1))
        return None if found is None else self._missing(found, look)

    def _times(self, segment: Segment) -> tuple[int, int]:
        with self._named():
            return segment_times(
                self._root, self.stream, self.node, first=segment.first, last=segment.last
            )

    # --- rows -------------------------------------------------------------------------------------

    def tables(self, first: int, last: int, choice: Choice = EVERYTHING) -> Iterator[Any]:
        """The rows first to last, each once and in order, as Arrow tables of a size that is good.

        `last` is at most what `last()` said. Raises MissingRows, or RecordError for damage.
        """
        at = first
        attempts = 0
        while at <= last:
            # What was likely is tried once: after that it is listed.
            likely = choice.likely if attempts == 0 else ()
            try:
                for through, table in self._pieces(at, last, choice, likely):
                    at = through + 1
                    attempts = 0
                    if table is not None:
                        yield table
            except OSError as problem:
                # Deleted between listing and reading: what holds the rows now is listed. For Arrow
                # it is also an OSError that a page of a file is damaged.
                attempts += 1
                if attempts == LISTINGS:
                    said = " ".join(str(problem).split())
                    raise RecordError(f"{self.name}: row {at} cannot be read: {said}") from problem

    def _pieces(
        self, first: int, last: int, choice: Choice, likely: tuple[Range, ...]
    ) -> Iterator[tuple[int, Any]]:
        """Rows from `first` on, as far as they lie in one place: up to which row, and a table.

        No table: what lies up to that row is not wanted.
        """
        if self._store is not None:
            rows = self._store.rows(self._id, first, last)
            if rows:
                table = self._store.table(rows, self.node)
                if choice.columns is not None:
                    table = table.select(list(choice.columns))
                yield rows[-1][0], table
                return
        low, high = self._place(first, likely)
        with self._named():
            opened = open_segment(self._root, self.stream, self.node, first=low, last=high)
        try:
            yield from self._groups(opened, first, min(last, high), choice)
        finally:
            opened.close(force=True)

    def _groups(
        self, opened: Any, first: int, last: int, choice: Choice
    ) -> Iterator[tuple[int, Any]]:
        """The rows first to last, all of which an open segment has."""
        metadata = opened.metadata
        columns = None if choice.columns is None else list(choice.columns)
        for group in range(metadata.num_row_groups):
            begins, ends = group_range(metadata, group)
            if ends < first or begins > last:
                continue
            if choice.wanted is not None and not choice.wanted(metadata, group):
                yield min(ends, last), None
                continue
            batches = opened.iter_batches(
                batch_size=choice.rows, row_groups=[group], columns=columns, use_threads=False
            )
            while begins <= min(ends, last):
                with self._named():
                    batch = next(batches, None)
                    if batch is None:
                        raise RecordError(f"{self.name}: row {begins} is not in its segment")
                    table = arrow().Table.from_batches([batch])
                    if columns is not None:
                        # Arrow gives them in the order of the file.
                        table = table.select(columns)
                self._check(table, begins)
                through = begins + table.num_rows - 1
                if through >= first:
                    ahead = max(first - begins, 0)
                    kept = min(through, last) - begins - ahead + 1
                    yield min(through, last), table.slice(ahead, kept)
                begins = through + 1

    def _check(self, table: Any, begins: int) -> None:
        """The rows of a table are those from `begins` on, if it can tell."""
        if "seq" not in table.column_names:
            return
        seqs = table.column("seq")
        ends = begins + table.num_rows - 1
        if seqs[0].as_py() != begins or seqs[-1].as_py() != ends:
            raise RecordError(f"{self.name}: a segment is damaged near row {begins}")

    def _place(self, seq: int, likely: tuple[Range, ...]) -> Range:
        """First and last row of the segment to read a row from."""
        for first, last in likely:
            if first <= seq <= last:
                return first, last
        return self._holder(seq).range

    def _holder(self, seq: int) -> Segment:
        """The segment to read a row from. MissingRows: there is none."""
        look = None
        for _ in range(LISTINGS):
            look = self._look()
            found = [each for each in look.segments if each.first <= seq <= each.last]
            if found:
                return max(found, key=lambda each: (each.last, -each.first))
        assert look is not None
        raise self._missing(seq, look)

    def _missing(self, seq: int, look: _Look) -> MissingRows:
        """Why row `seq`, which was there, is not."""
        later = [each.first for each in look.segments if each.first > seq]
        verb, why = "are", f"missing from {self._root.address}"
        if self._store is not None:
            why += " and from the store"
            after = self._store.next_after(self._id, seq)
            later += [] if after is None else [after]
        through = max(seq, min(later, default=look.last + 1) - 1)
        if seq <= look.trimmed:
            through = min(through, look.trimmed)
            verb, why = "were", "deleted, by retention or by `semel stream trim`"
        elif self._store is not None:
            for first, last in self._store.lost(self._id):
                if first <= seq <= last:
                    through = min(through, last)
                    verb, why = "were", "lost when the store was repaired"
        advice = f"; --from {through + 1} reads on" if through < look.last else ""
        return MissingRows(seq, through, self.name, verb, why + advice)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What is wrong with a file comes out as a RecordError that says whose it is."""
        try:
            yield
        except RecordError as problem:
            if self.stream in str(problem):
                raise
            raise RecordError(f"{self.name}: {problem}") from problem
        except OSError:
            raise
        except (arrow().ArrowException, UnicodeError) as problem:
            raise RecordError(f"{self.name}: a segment is damaged: {problem}") from problem

    # --- deleting ---------------------------------------------------------------------------------

    def before(self, *, seq: int | None = None, received: int | None = None) -> list[Segment]:
        """The segments with nothing but rows before a seq, or a time in microseconds, in order.

        Rows that the store does not know to be sealed are not among them.
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
        """When the oldest and the newest row of some segments were received."""
        return self._times(segments[0])[0], self._times(segments[-1])[1]

    def trim(self, through: int) -> list[Segment]:
        """Delete the segments up to this seq; those of them that a reader read, in order.

        That they are deleted is written down before they are, and from then on they are not there
        for any reader of ours, also if a sealer that was merging some of them writes them anew.
        """
        segments = self._root.segments(self.stream, self.node)
        leaving = [each for each in uncovered(segments) if each.last <= through]
        if leaving:
            delete_through(self._root, self.stream, self.node, segments, leaving[-1].last)
        return leaving


class Holdings:
    """Where records are: a data folder, a root, or the two that belong together."""

    def __init__(self, data: Path | None, root: str | None) -> None:
        """At least one of them. Raises Unusable, RootError and MissingExtra."""
        assert data is not None or root is not None
        arrow()
        self.store = None if data is None else StoreRows(data)
        try:
            if root is not None:
                self.root = open_root(root)
                if isinstance(self.root, LocalRoot) and not Path(self.root.address).is_dir():
                    raise Unusable(f"{self.root.address} is no root: there is no such folder")
            else:
                assert data is not None
                self.root = open_root(data / STREAMS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """No more."""
        if self.store is not None:
            self.store.close()

    def __enter__(self) -> "Holdings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.root.address if self.store is None else str(self.store.folder)

    def streams(self) -> list[str]:
        """The streams that there are, sorted."""
        known = set() if self.store is None else set(self.store.streams())
        return sorted(known | set(self.root.streams()))

    def records(self, stream: str) -> list[NodeRecord]:
        """The records of a stream, sorted by their nodes; none: there is no such stream."""
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
        """The node whose segments the store's rows become.

        If the store does not say: the one of its folders that it sealed last. A broker makes its
        folder when it starts.
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
