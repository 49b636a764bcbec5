"""SQL over a lake: DuckDB queries the Delta tables, and the rows that have not landed yet.

Each table of the lake is a view with its name: an Arrow dataset of the files of one version, from
which DuckDB reads the columns and rows that the query needs. Nothing is downloaded or copied. Only
tables whose names occur in the query are opened. A table that cannot be opened is left out. That is
an error only if DuckDB reports it as unknown, because the name may occur in a string or a comment.
SQL names are case-insensitive, so tables whose names differ only in case cannot be queried. A table
in which a stream is landed has three more views, if the record of the stream is known:

    messages               the rows that have landed
    messages_not_landed    the rows of the record that have not
    messages_now           both, with a column `landed`
    messages_once          the same without repeats of QoS 1 messages

Each of them has two columns beside the bytes of a payload, unless the table has columns of these
names: `text`, the payload as UTF-8, and `json`, the same as JSON. They are null where the payload
is not that. DuckDB computes them only if the query needs them.

Each (node, seq) is in `messages_now` once, while messages are recorded, sealed, merged and landed.
One version V of the table decides: its log has, for each node, the last seq P whose row is in V.
These are read in this order:

    1. L, the last row of the record, for each node
    2. the table: V, and P for each node
    3. the list of segments of the record, without those that others cover

Rows up to P are in V. Later rows are in the segments of step 3 or, after the last of these and up
to L, in the store. A row that has left the store meanwhile is in a segment newer than step 3, and
is read from there. Segments with only such rows are read in place. The other rows are few, and are
copied to a file in a temporary folder. Rows that retention has deleted before they landed are
reported in `notes`.

A query cannot write, and cannot read anything else (`sql_connection`). Of a COPY … TO the rows are
the result, and the caller writes the file (`sql_copy`). What does not fit into `memory` is written
to the temporary folder. The result is streamed in batches, and is never in memory as a whole.

DuckDB runs in a separate thread, because the main thread could not handle signals while it runs.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from semel.client.ingest_plan import DATA_FOLDER
from semel.extras import need
from semel.pipeline.delta_errors import (
    check_column_mapping,
    describe_missing_table,
    one_line,
    table_errors,
)
from semel.pipeline.errors import TableError
from semel.pipeline.lake import (
    NodeLag,
    data_folder_of,
    dataset_of,
    has_record_columns,
    node_lags,
    open_table,
    stream_of,
    table_names,
)
from semel.pipeline.lake_address import local_folder, table_address
from semel.store.folder import STORE, STREAMS
from semel.store.reading import NodeRecord, StreamCatalog
from semel.store.roots import LocalRoot, Root, open_root, without_secrets
from semel.store.segment_names import segment_name
from semel.store.segment_writer import write_tables
from semel.store.segments import list_ranges, schema
from semel.up.sql_connection import MEMORY, arrow_reader, open_connection, quoted
from semel.up.sql_copy import CopyStatement, parse_copy
from semel.up.sql_errors import SqlError as SqlError
from semel.up.sql_errors import first_line, shown_error
from semel.up.sql_files import find_target

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from semel.up.segment_files import SegmentFiles

# The maximum number of batches of a result that wait to be used.
WAITING_BATCHES: Final = 4
# How many times positions are read if retention seems to have deleted rows before they landed.
MAXIMUM_TRIES: Final = 3

NOT_LANDED: Final = "_not_landed"
NOW: Final = "_now"
ONCE: Final = "_once"
VIEWS: Final = (NOT_LANDED, NOW, ONCE)
# Whether a row is a QoS 1 message that its client has sent again: DUP is set, and the row before it
# with the same Packet Identifier of the same client is the same message [MQTT-3.3.1-1].
_IS_REPEAT: Final = """
    coalesce(dup AND qos = 1
        AND lag(qos) OVER same = 1 AND lag(topic) OVER same = topic
        AND lag(payload) OVER same = payload, false)
"""
LANDED: Final = "landed"

PAYLOAD: Final = "payload"
# Columns that a view has beside the payload: `TRY` makes an error null.
_AS_UTF8: Final = "TRY(decode(payload))"
COMPUTED: Final = {"text": _AS_UTF8, "json": f"TRY_CAST({_AS_UTF8} AS JSON)"}

# Queries about the catalog, which open every table.
_CATALOG: Final = re.compile(
    r"\b(show|information_schema|duckdb_\w+|pg_catalog|pg_\w+|sqlite_master|pragma)\b", re.I
)
_UNKNOWN: Final = re.compile(r"Table with name (.+?) does not exist", re.DOTALL)
# A view with computed columns has no name there.
_READING: Final = re.compile(
    r"reading the (?:stream registered as '(.*?)'|Arrow source) failed: (.*)", re.DOTALL
)
_DATE: Final = "DATE '1970-01-01' + CAST(epoch_us(received) // 86400000000 AS INTEGER)"


@dataclass(frozen=True)
class RecordLocation:
    """The location of the record of the lake's streams; `root`, `data` or both are given."""

    root: str | None
    data: Path | None
    # The stream to be landed and its table, for the time before this table exists.
    stream: str = "all"
    table: str = "messages"


def record_beside(
    lake: str, *, root: str | None, data: Path | None, stream: str, table: str
) -> RecordLocation | None:
    """The record of a lake, from the settings or from the folders around it; None: unknown.

    `semel up` puts the lake into the data folder of its broker; `semel ingest` puts its store into
    the root.
    """
    if data is None and root is None:
        data = data_folder_of(lake)
    elif data is None and root is not None:
        opened = open_root(root)
        if isinstance(opened, LocalRoot):
            folder = Path(opened.address)
            for found in (folder / DATA_FOLDER / stream, folder.parent):
                if (found / STORE).is_file() and (found != folder.parent or folder.name == STREAMS):
                    data = found
                    break
    if data is None and root is None:
        return None
    return RecordLocation(root, data, stream, table)


class QueryResult:
    """The result of a query: a schema, and Arrow batches, which can be read once.

    Leaving the `with` block ends the query, even if not all batches were read.
    """

    def __init__(
        self,
        columns: Any,
        batches: Iterator[Any],
        *,
        copy: CopyStatement | None,
        stop: Callable[[], None],
    ) -> None:
        self.schema = columns
        self.batches = batches
        # If this is set, the rows are to be written to its file.
        self.copy = copy
        self._stop = stop

    def __enter__(self) -> "QueryResult":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


class LakeSql:
    """Queries the tables of one lake."""

    def __init__(
        self,
        lake: str,
        *,
        record: RecordLocation | None = None,
        memory: str = MEMORY,
        connection: Any = None,
        definitions: Iterable[str] = (),
    ) -> None:
        """Raises TableError, MissingExtra, and what StreamCatalog raises.

        A `connection` that is given stays open, without the views of the lake; `memory` does not
        apply to it. Tables that are named in `definitions`, statements that it has executed before,
        are opened, too.
        """
        self._duckdb = need("duckdb", extra="sql", by="semel sql")
        need("deltalake", extra="sql", by="semel sql")
        self._lake = lake
        self._record = record
        # Sentences to print beside the result.
        self.notes: list[str] = []
        self._catalog = None if record is None else StreamCatalog(record.data, record.root)
        self._segments = None if self._catalog is None else segment_files(self._catalog.root)
        self._temporary = Path(tempfile.mkdtemp(prefix="semel-sql-"))
        try:
            self._tables, self._ambiguous = _distinct_names(self._known_tables())
            self._connection = connection or open_connection(memory, self._temporary)
        except BaseException:
            self._clean()
            raise
        self._owns_connection = connection is None
        self._definitions = tuple(definitions)
        self._opened: dict[str, DeltaTable] = {}
        # The views of the connection.
        self._created: list[str] = []
        # By view: the columns that are computed of its payload.
        self._computed: dict[str, list[str]] = {}
        # Why a table or view is not available, by its folded name (`_folded`).
        self._left_out: dict[str, Exception] = {}

    def _known_tables(self) -> list[str]:
        folder = local_folder(self._lake)
        if folder is not None and not folder.exists() and self._catalog is not None:
            # Nothing has landed yet. If the user named a lake, the caller has checked it.
            return []
        return table_names(self._lake)

    def close(self) -> None:
        """Close the connection or drop the views of the lake, and delete temporary files."""
        if self._owns_connection:
            self._connection.close()
        else:
            self._drop_views()
        self._clean()

    def _drop_views(self) -> None:
        for view in self._created:
            self._connection.unregister(view)
            # One that is registered is dropped with that; the others are not.
            with suppress(self._duckdb.Error):
                self._connection.execute(f"DROP VIEW IF EXISTS {quoted(view)}")

    def _clean(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> "LakeSql":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- tables and views -------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The tables and views that can be queried."""
        return [name for name, _ in self.named_kinds()]

    def named_kinds(self) -> list[tuple[str, str]]:
        """The tables and views that can be queried, and what each is."""
        found = [(table, "table") for table in self._tables]
        for table in self._landed_streams():
            found.append((f"{table}{NOT_LANDED}", "rows that have not landed"))
            found.append((f"{table}{NOW}", "all rows, with a column landed"))
            found.append((f"{table}{ONCE}", "all rows, without repeats of QoS 1 messages"))
        return found

    def _landed_streams(self, is_wanted: Callable[[str], bool] = bool) -> dict[str, str]:
        """The stream of each table whose record is known.

        Leaves out a table if `is_wanted` rejects all of its views, or if another table has the
        name of a view.
        """
        if self._catalog is None or self._record is None:
            return {}
        found = {}
        tables = list(self._tables)
        taken = {_folded(name) for name in tables} | self._ambiguous.keys()
        if _folded(self._record.table) not in taken:
            tables.append(self._record.table)
        for table in sorted(tables):
            views = {table + suffix for suffix in VIEWS}
            if taken & {_folded(view) for view in views} or not any(map(is_wanted, views)):
                continue
            if table in self._tables:
                try:
                    opened = self._open(table)
                    found[table] = stream_of(opened) if has_record_columns(opened) else None
                except TableError as problem:
                    self._left_out.update({_folded(view): problem for view in views})
            else:
                found[table] = self._record.stream
        known = set(self._catalog.streams())
        return {table: stream for table, stream in found.items() if stream in known}

    def _open(self, table: str) -> "DeltaTable":
        if table not in self._opened:
            self._opened[table] = open_table(self._lake, table)
        return self._opened[table]

    # --- the query --------------------------------------------------------------------------------

    def query(self, query: str) -> QueryResult:
        """Run one or more statements, and return the result of the last. May be called once.

        Raises SqlError, TableError, and what reading a record raises.
        """
        steps = self._steps(query, may_copy=False)
        return self._run(steps[0][0])

    def results(self, query: str) -> Iterator[QueryResult]:
        """Run one or more statements. Yields the results of each COPY, and of the last statement.

        May be called once. The caller leaves the `with` block of a result before the next one, and
        writes the files of copies. Raises as `query` does.
        """
        for statements, copy in self._steps(query, may_copy=True):
            yield self._run(statements, copy)

    def protected_folders(self) -> list[Path]:
        """The folders of the lake and of its record: the caller must not write there."""
        found = [local_folder(self._lake)]
        if self._record is not None:
            found.append(self._record.data)
        if self._catalog is not None and isinstance(self._catalog.root, LocalRoot):
            found.append(Path(self._catalog.root.address))
        return [each for each in found if each is not None]

    def _steps(self, query: str, *, may_copy: bool) -> list[tuple[list[str], CopyStatement | None]]:
        """The statements up to each COPY, and the rest. Registers the views that they need."""
        try:
            parsed = self._connection.extract_statements(query)
        except self._duckdb.Error as problem:
            raise SqlError(shown_error(problem)) from None
        if not parsed:
            raise SqlError("the query contains no statement")
        steps: list[tuple[list[str], CopyStatement | None]] = []
        gathered: list[str] = []
        for statement in parsed:
            if statement.type == self._duckdb.StatementType.COPY:
                copy = parse_copy(statement.query, self._connection)
                if not may_copy:
                    # Before looking for the file: whoever asks may not know which files exist.
                    raise SqlError("COPY … TO writes a file, which only the command semel sql does")
                # Refuse it before any statement runs.
                find_target(copy.file, self.protected_folders())
                steps.append(([*gathered, copy.query], copy))
                gathered = []
            else:
                gathered.append(statement.query)
        if gathered:
            steps.append((gathered, None))
        self._register_views("\n;\n".join([*self._definitions, query]))
        return steps

    def _register_views(self, query: str) -> None:
        wants_all = self._reads_catalog(query)

        def is_named(name: str) -> bool:
            written = "|".join(map(re.escape, {name, name.replace('"', '""')}))
            pattern = rf"(?<!\w)(?:{written})(?!\w)"
            return wants_all or re.search(pattern, query, re.I) is not None

        for folded, names in self._ambiguous.items():
            sentence = (
                f"{' and '.join(names)} are the same name in SQL: rename the folder of one of them"
            )
            if is_named(folded):
                self.notes.append(sentence)
            for suffix in ("", *VIEWS):
                self._left_out[folded + suffix] = SqlError(sentence)
        composed = self._landed_streams(is_named)
        # Do this first: it updates the tables to the version that decides which rows have landed.
        for table, stream in composed.items():
            self._register_not_landed(table, stream)
        for table in self._tables:
            if is_named(table) or table in composed:
                with self._left_out_on_error(table):
                    self._register_table(table)
        for table in composed:
            if _folded(table) in self._left_out:
                for suffix in (NOW, ONCE):
                    self._left_out[_folded(table + suffix)] = self._left_out[_folded(table)]
                continue
            with self._left_out_on_error(table + NOW):
                self._create_now_view(table)
                self._create_once_view(table)

    def _reads_catalog(self, query: str) -> bool:
        """Whether a query reads the catalog of tables; strings and comments are ignored."""
        kinds = self._duckdb.token_type
        # DuckDB gives the offsets of tokens in bytes.
        data = query.encode()
        tokens = self._duckdb.tokenize(query)
        ends = [begins for begins, _ in tokens[1:]] + [len(data)]
        code = b" ".join(
            data[begins:end]
            for (begins, kind), end in zip(tokens, ends, strict=True)
            if kind not in (kinds.string_const, kinds.comment)
        )
        return _CATALOG.search(code.decode()) is not None

    @contextmanager
    def _left_out_on_error(self, name: str) -> Iterator[None]:
        """Leave out a view that cannot be created, so that only a query that uses it fails."""
        try:
            yield
        except (TableError, SqlError) as problem:
            self._left_out[_folded(name)] = problem
        except self._duckdb.Error as problem:
            sentence = f"{name} cannot be queried: {first_line(problem)}"
            self._left_out[_folded(name)] = SqlError(sentence)

    def _register_table(self, table: str) -> None:
        opened = self._open(table)
        address = table_address(self._lake, table)
        check_column_mapping(address, opened)
        with table_errors(address):
            self._create_view(table, dataset_of(opened))

    def _create_view(self, name: str, rows: Any) -> None:
        """Create a view of an Arrow dataset, with the columns that are computed of its payload."""
        computed = self._computed[name] = _computed_columns(rows.schema)
        if computed:
            columns = "".join(f", {COMPUTED[each]} AS {quoted(each)}" for each in computed)
            self._connection.from_arrow(rows).project(f"*{columns}").create_view(name)
        else:
            self._connection.register(name, rows)
        self._created.append(name)

    # --- rows that have not landed ----------------------------------------------------------------

    def _register_not_landed(self, table: str, stream: str) -> None:
        assert self._catalog is not None
        opened = self._open(table) if table in self._tables else None
        nodes, deleted = self._read_positions(opened, stream)
        for _ in range(MAXIMUM_TRIES - 1):
            if all(deleted[each.node] <= each.landed for each in nodes):
                break
            # Rows that landed and were deleted between the two reads are in the table now.
            nodes, deleted = self._read_positions(opened, stream)
        records = {each.node: each for each in self._catalog.records(stream)}
        fragments: list[Any] = []
        for each in nodes:
            begins = max(each.landed, deleted[each.node]) + 1
            if opened is not None and begins > each.landed + 1:
                self.notes.append(
                    f"rows {each.landed + 1} to {begins - 1} of stream {stream}, node {each.node}, "
                    f"were deleted before they were landed in {table}"
                )
            if each.node in records:
                fragments += self._fragments(records[each.node], begins, each.last)
        dataset = need("pyarrow.dataset", extra="sql", by="semel sql")
        # Imports pyarrow, which is slow.
        from semel.pipeline.scanned_dataset import ScannedDataset

        rows = ScannedDataset(fragments, schema(), dataset.ParquetFileFormat())
        if opened is None:
            self.notes.append(f"nothing has landed in {self._shown_address(table)} yet")
        self._create_view(f"{table}{NOT_LANDED}", rows)

    def _read_positions(
        self, opened: "DeltaTable | None", stream: str
    ) -> tuple[list[NodeLag], dict[str, int]]:
        """The lag of each node, and the last of its rows that retention has deleted."""
        assert self._catalog is not None
        nodes = node_lags(opened, stream, self._catalog)
        return nodes, {each.node: each.deleted for each in nodes}

    def _shown_address(self, table: str) -> str:
        """The address of a table, without secrets."""
        return without_secrets(table_address(self._lake, table))

    def _fragments(self, record: NodeRecord, begins: int, last: int) -> Iterator[Any]:
        """Files with the rows of a node from `begins` on."""
        assert self._catalog is not None
        at = begins
        for first, through in list_ranges(self._catalog.root, record.stream, record.node):
            if through < begins:
                continue
            if first < begins:
                yield self._copied(record, begins, through)
            else:
                yield self._in_place(record, first, through)
            at = through + 1
        if at <= last:
            yield self._copied(record, at, last)

    def _in_place(self, record: NodeRecord, first: int, last: int) -> Any:
        """A segment, read in place; it is opened only if the query needs its rows."""
        assert self._segments is not None
        fs = need("pyarrow.fs", extra="sql", by="semel sql")
        path = self._segments.root.file_path(record.stream, record.node, segment_name(first, last))
        return self._fragment(path, fs.PyFileSystem(self._segments), record, first, last)

    def _copied(self, record: NodeRecord, first: int, last: int) -> Any:
        """A copy of rows that are in the store, or in a segment with rows that have landed."""
        fs = need("pyarrow.fs", extra="sql", by="semel sql")
        path = self._temporary / f"rows-{len(list(self._temporary.iterdir()))}.parquet"
        with open(path, "wb") as file:
            write_tables(file, record.tables(first, last))
        return self._fragment(str(path), fs.LocalFileSystem(), record, first, last)

    @staticmethod
    def _fragment(path: str, filesystem: Any, record: NodeRecord, first: int, last: int) -> Any:
        dataset = need("pyarrow.dataset", extra="sql", by="semel sql")
        holds = (
            (dataset.field("node") == record.node)
            & (dataset.field("seq") >= first)
            & (dataset.field("seq") <= last)
        )
        return dataset.ParquetFileFormat().make_fragment(
            path, filesystem, partition_expression=holds
        )

    def _create_now_view(self, table: str) -> None:
        """Create the view of all rows, with the columns of the table and `landed`."""
        own = [*schema().names, "date"]
        new = f"SELECT *, {_DATE} AS date FROM {quoted(table + NOT_LANDED)}"
        if table in self._opened:
            own = [field.name for field in self._opened[table].schema().fields]
            if LANDED in map(_folded, own):
                raise SqlError(f"there is no {table}{NOW}: {table} has a column {LANDED} itself")
        names = [name for name in own if name in (*schema().names, "date")]
        names += self._computed[table if table in self._opened else table + NOT_LANDED]
        chosen = ", ".join(map(quoted, names))
        text = f"SELECT {chosen}, false AS landed FROM ({new})"
        if table in self._opened:
            text = f"SELECT *, true AS landed FROM {quoted(table)} UNION ALL BY NAME {text}"
        self._connection.execute(f"CREATE TEMP VIEW {quoted(table + NOW)} AS {text}")
        self._created.append(table + NOW)

    def _create_once_view(self, table: str) -> None:
        """Create the view of all messages, without those that a client has sent again."""
        text = (
            f"SELECT * EXCLUDE (is_repeat) FROM (SELECT *, {_IS_REPEAT} AS is_repeat"
            f" FROM {quoted(table + NOW)}"
            " WINDOW same AS (PARTITION BY node, client_id, packet_id ORDER BY seq))"
            " WHERE NOT is_repeat"
        )
        self._connection.execute(f"CREATE TEMP VIEW {quoted(table + ONCE)} AS {text}")
        self._created.append(table + ONCE)

    # --- the result -------------------------------------------------------------------------------

    def _run(self, statements: list[str], copy: CopyStatement | None = None) -> QueryResult:
        found: Queue[Any] = Queue(WAITING_BATCHES)
        enough = Event()
        worker = Thread(target=self._work, args=(statements, found, enough), daemon=True)
        worker.start()

        def stop() -> None:
            enough.set()
            while worker.is_alive():
                # Repeat this, because a query that has not begun yet ignores it.
                self._connection.interrupt()
                with suppress(Empty):
                    found.get(timeout=0.05)

        try:
            columns = self._next(found)
        except BaseException:
            stop()
            raise
        return QueryResult(columns, self._batches(found), copy=copy, stop=stop)

    def _work(self, statements: list[str], found: "Queue[Any]", enough: Event) -> None:
        reader = None
        try:
            for statement in statements[:-1]:
                for _ in arrow_reader(self._connection, statement):
                    if enough.is_set():
                        return
            reader = arrow_reader(self._connection, statements[-1])
            found.put(reader.schema)
            for batch in reader:
                if enough.is_set():
                    break
                found.put(batch)
            found.put(None)
        except BaseException as problem:
            found.put(problem)
        finally:
            # As long as the reader exists, the connection is busy.
            del reader

    def _batches(self, found: "Queue[Any]") -> Iterator[Any]:
        while (batch := self._next(found)) is not None:
            yield batch

    def _next(self, found: "Queue[Any]") -> Any:
        given = found.get()
        if isinstance(given, BaseException):
            raise self._query_error(given) from None
        return given

    def _query_error(self, problem: BaseException) -> BaseException:
        """The error to raise for an error of DuckDB or pyarrow."""
        if not isinstance(problem, (self._duckdb.Error, OSError, RuntimeError, ValueError)):
            return problem
        if self._segments is not None and self._segments.damage is not None:
            return SqlError(self._segments.damage)
        reading = _READING.search(str(problem))
        if reading is not None:
            why = one_line(OSError(reading[2].partition(". Detail: Python exception")[0]))
            unnamed = [view for view, computed in self._computed.items() if computed]
            return SqlError(
                f"{reading[1] or ' or '.join(unnamed)}: a file cannot be read: {why}; if files were"
                " merged or deleted meanwhile, run the query again"
            )
        unknown = _UNKNOWN.search(str(problem))
        if unknown is None:
            return SqlError(shown_error(problem))
        if _folded(unknown[1]) in self._left_out:
            return self._left_out[_folded(unknown[1])]
        names = self.names()
        if self._record is not None and unknown[1].lower() == self._record.table.lower():
            view = f"{self._record.table}{NOW}"
            if view in names:
                return SqlError(f"nothing has landed in {unknown[1]} yet: query {view}")
        pointer = [line for line in shown_error(problem).splitlines()[1:] if not _is_advice(line)]
        near = get_close_matches(unknown[1].lower(), names, n=1)
        advice = f"did you mean {near[0]}? " if near else ""
        known = f"there are {', '.join(names)}" if names else absent_tables(self._lake)
        return SqlError("\n".join([f"there is no table {unknown[1]}: {advice}{known}", *pointer]))


def segment_files(root: Root) -> "SegmentFiles":
    """The segments of a root as a file system for datasets."""
    # Imports pyarrow, which is slow.
    from semel.up.segment_files import SegmentFiles

    return SegmentFiles(root)


def absent_tables(lake: str) -> str:
    """Why a lake has no tables, as the end of a sentence."""
    folder = local_folder(lake)
    if folder is not None and not folder.exists():
        return describe_missing_table(lake).replace("table", "lake", 1)
    return "the lake has none"


def _folded(name: str) -> str:
    """A name as SQL compares it: DuckDB ignores the case of ASCII letters only."""
    return name.encode("utf-8", "surrogateescape").lower().decode("utf-8", "surrogateescape")


def _distinct_names(names: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The names that are unique in SQL, and the others, by their folded name."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_folded(name), []).append(name)
    single = [kind[0] for kind in found.values() if len(kind) == 1]
    return single, {folded: kind for folded, kind in found.items() if len(kind) > 1}


def _computed_columns(rows: Any) -> list[str]:
    """The names of the columns that a view of rows with this Arrow schema gets."""
    names = list(map(_folded, rows.names))
    if names.count(PAYLOAD) != 1 or PAYLOAD not in rows.names:
        return []
    if str(rows.field(PAYLOAD).type) not in ("binary", "large_binary", "binary_view"):
        return []
    return [each for each in COMPUTED if each not in names]


def _is_advice(line: str) -> bool:
    return line.startswith("Did you mean")
