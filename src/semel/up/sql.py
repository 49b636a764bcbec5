"""SQL over a lake: DuckDB asks the Delta tables, and the rows that are not landed yet.

Each table of the lake is a view of its own name: an Arrow dataset of the files of one version,
from which DuckDB takes the columns and rows that a question is about. Nothing is downloaded and
nothing is copied. Only tables whose names occur in the question are opened. What cannot be opened
or made is left out, and is an error if DuckDB misses it: a name may occur in a text or a comment.
SQL does not tell capitals from small letters, so that of tables whose names differ in nothing else
none can be asked. For a table that takes the rows of a stream there are two views more, if the
record of the stream is known:

    messages               the rows that are landed
    messages_not_landed    the rows of the record that are not
    messages_now           both, with a column `landed`

Each (node, seq) is in `messages_now` once, while messages come, are sealed, merged and landed. One
version V of the table decides: the log of V says up to which seq P the rows of a node are in V.
What is looked at, in this order, is

    1. how far the record of each node goes, up to L
    2. the table: V, and P of each node
    3. the segments of the record, by the reader's rule

Rows up to P are in V. Rows from P + 1 on are in the segments of (3) or, after the last of them and
up to L, in the store; one that has left the store by then is in a segment that came after (3), and
is taken from there. Segments that hold nothing but such rows are read where they lie; the rest,
which is little, is copied to a file in a temporary folder. What retention has deleted before it
was landed is told in `notes`, never passed over silently.

A question cannot write, and cannot read anything else: DuckDB's access to files and to the network
is off before the question is looked at, and stays off. What does not fit into `memory` goes to the
temporary folder. The answer comes in batches, as it is found: it is never in memory as a whole.
Of types that Arrow cannot hold without loss (times with a zone, bits, numbers without bounds) it
has DuckDB's text.

DuckDB works on a thread of its own, because while it works no signal would be heard.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from semel.client.ingest_plan import DATA_FOLDER
from semel.extras import need
from semel.pipeline.delta_errors import describe_missing_table, one_line, table_errors
from semel.pipeline.errors import TableError
from semel.pipeline.lake import (
    NodeLag,
    data_folder_of,
    dataset_of,
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

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from semel.up.segment_files import SegmentFiles

MEMORY: Final = "1GB"
# Rows of a batch of the answer, and batches that wait for who prints them.
BATCH_ROWS: Final = 2_048
WAITING_BATCHES: Final = 4
# How often a table is read again if retention seems to have outrun it.
MAXIMUM_TRIES: Final = 3

NOT_LANDED: Final = "_not_landed"
NOW: Final = "_now"
LANDED: Final = "landed"

# Questions about all tables: these open every one.
_ABOUT_ALL: Final = re.compile(
    r"\b(show|information_schema|duckdb_\w+|pg_catalog|pg_\w+|sqlite_master|pragma)\b", re.I
)
# What DuckDB quotes of a query, and how it indents what goes on with a line before.
_QUOTED_QUERY: Final = re.compile(r"LINE \d+: ")
_INDENT: Final = re.compile(r"^\t+")
_UNKNOWN: Final = re.compile(r"Table with name (.+?) does not exist", re.DOTALL)
_READING: Final = re.compile(r"reading the stream registered as '(.*?)' failed: (.*)", re.DOTALL)
# Arrow drops the zone of the first, and takes the others for bytes.
_AS_TEXT: Final = frozenset(["time with time zone", "bit", "bignum"])
_TEXT: Final = "VARCHAR"
_DATE: Final = "DATE '1970-01-01' + CAST(epoch_us(received) // 86400000000 AS INTEGER)"


class SqlError(Exception):
    """A question cannot be answered: a sentence, and maybe the place in the question below it."""


@dataclass(frozen=True)
class RecordLocation:
    """Where the record of the streams is that are landed; at least one of them is given."""

    root: str | None
    data: Path | None
    # What is landed where, as long as there is no table to tell.
    stream: str = "all"
    table: str = "messages"


def record_beside(
    lake: str, *, root: str | None, data: Path | None, stream: str, table: str
) -> RecordLocation | None:
    """The record that belongs to a lake, by what is said and by how things lie; None: unknown.

    `semel up` has the lake in the data folder of its broker, `semel ingest` its store in the root.
    """
    if data is None and root is None:
        data = data_folder_of(lake)
    elif data is None and root is not None:
        place = open_root(root)
        if isinstance(place, LocalRoot):
            folder = Path(place.address)
            for found in (folder / DATA_FOLDER / stream, folder.parent):
                if (found / STORE).is_file() and (found != folder.parent or folder.name == STREAMS):
                    data = found
                    break
    if data is None and root is None:
        return None
    return RecordLocation(root, data, stream, table)


class QueryResult:
    """The rows that a question gave: a schema, and Arrow batches, which are read once.

    Whoever does not read them all leaves the `with`: the query ends then.
    """

    def __init__(self, columns: Any, batches: Iterator[Any], stop: Callable[[], None]) -> None:
        self.schema = columns
        self.batches = batches
        self._stop = stop

    def __enter__(self) -> "QueryResult":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


class LakeSql:
    """Asks the tables of one lake."""

    def __init__(
        self, lake: str, *, record: RecordLocation | None = None, memory: str = MEMORY
    ) -> None:
        """Raises TableError, MissingExtra, and what StreamCatalog raises."""
        self._duckdb = need("duckdb", extra="sql", by="semel sql")
        need("deltalake", extra="sql", by="semel sql")
        self._lake = lake
        self._record = record
        # What is worth to be said beside an answer.
        self.notes: list[str] = []
        self._catalog = None if record is None else StreamCatalog(record.data, record.root)
        self._segments = None if self._catalog is None else segment_files(self._catalog.root)
        self._temporary = Path(tempfile.mkdtemp(prefix="semel-sql-"))
        try:
            self._tables, self._alike = _distinct_names(self._known_tables())
            self._connection = self._connect(memory)
        except BaseException:
            self._clean()
            raise
        self._opened: dict[str, DeltaTable] = {}
        # Why tables and views are not there that could be, by what SQL makes of their names.
        self._left_out: dict[str, Exception] = {}

    def _connect(self, memory: str) -> Any:
        if not _is_text(memory):
            raise SqlError(f"--memory {memory} is not UTF-8: give a size such as {MEMORY}")
        try:
            connection = self._duckdb.connect(":memory:", config={"memory_limit": memory})
        except self._duckdb.Error as problem:
            raise SqlError(f"--memory {memory}: {_first_line(problem)}") from None
        spilled = str(self._temporary / "spilled")
        if not _is_text(spilled):
            raise SqlError(f"the temporary folder {spilled} is not UTF-8: set TMPDIR to another")
        connection.execute("SET temp_directory = '" + spilled.replace("'", "''") + "'")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        return connection

    def _known_tables(self) -> list[str]:
        folder = local_folder(self._lake)
        if folder is not None and not folder.exists() and self._catalog is not None:
            # Nothing is landed yet. Whoever names a lake has been asked whether it is there.
            return []
        return table_names(self._lake)

    def close(self) -> None:
        """No more."""
        self._connection.close()
        self._clean()

    def _clean(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> "LakeSql":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what there is to ask ---------------------------------------------------------------------

    def names(self) -> list[str]:
        """The tables and views that a question may name."""
        found = list(self._tables)
        for table in self._streamed():
            found += [f"{table}{NOT_LANDED}", f"{table}{NOW}"]
        return found

    def _streamed(self, is_wanted: Callable[[str], bool] = bool) -> dict[str, str]:
        """The tables whose record is known, and their streams.

        Of those of which a view is wanted, and unless a table has the name of such a view.
        """
        if self._catalog is None or self._record is None:
            return {}
        found = {}
        tables = list(self._tables)
        taken = {_folded(name) for name in tables} | self._alike.keys()
        if _folded(self._record.table) not in taken:
            tables.append(self._record.table)
        for table in sorted(tables):
            views = {f"{table}{NOT_LANDED}", f"{table}{NOW}"}
            if taken & {_folded(view) for view in views} or not any(map(is_wanted, views)):
                continue
            if table in self._tables:
                try:
                    found[table] = stream_of(self._open(table))
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

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, question: str) -> QueryResult:
        """Ask one or more statements; the answer is the last one's. Once for each object.

        Raises SqlError, TableError, and what reading a record raises.
        """
        try:
            statements = self._connection.extract_statements(question)
        except self._duckdb.Error as problem:
            raise SqlError(_shown(problem)) from None
        if not statements:
            raise SqlError("there is no statement in it")
        self._register(question)
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        return self._answer(statements)

    def _register(self, question: str) -> None:
        wants_all = self._is_about_all(question)

        def is_named(name: str) -> bool:
            written = "|".join(map(re.escape, {name, name.replace('"', '""')}))
            pattern = rf"(?<!\w)(?:{written})(?!\w)"
            return wants_all or re.search(pattern, question, re.I) is not None

        for folded, names in self._alike.items():
            sentence = (
                f"{' and '.join(names)} are one name in SQL: rename the folder of one of them"
            )
            if is_named(folded):
                self.notes.append(sentence)
            for suffix in ("", NOT_LANDED, NOW):
                self._left_out[folded + suffix] = SqlError(sentence)
        composed = self._streamed(is_named)
        # First: these bring their tables to the version that decides.
        for table, stream in composed.items():
            self._register_not_landed(table, stream)
        for table in self._tables:
            if is_named(table) or table in composed:
                with self._left_out_if_wrong(table):
                    self._register_table(table)
        for table in composed:
            if _folded(table) in self._left_out:
                self._left_out[_folded(table + NOW)] = self._left_out[_folded(table)]
                continue
            with self._left_out_if_wrong(table + NOW):
                self._make_now(table)

    def _is_about_all(self, question: str) -> bool:
        """Whether it asks which tables there are: texts and comments do not."""
        kinds = self._duckdb.token_type
        # Tokens are told by where they begin, in bytes.
        data = question.encode()
        tokens = self._duckdb.tokenize(question)
        ends = [begins for begins, _ in tokens[1:]] + [len(data)]
        asked = b" ".join(
            data[begins:end]
            for (begins, kind), end in zip(tokens, ends, strict=True)
            if kind not in (kinds.string_const, kinds.comment)
        )
        return _ABOUT_ALL.search(asked.decode()) is not None

    @contextmanager
    def _left_out_if_wrong(self, name: str) -> Iterator[None]:
        """What cannot be made is missed only by a question that is about it."""
        try:
            yield
        except (TableError, SqlError) as problem:
            self._left_out[_folded(name)] = problem
        except self._duckdb.Error as problem:
            sentence = f"{name} cannot be asked: {_first_line(problem)}"
            self._left_out[_folded(name)] = SqlError(sentence)

    def _register_table(self, table: str) -> None:
        opened = self._open(table)
        with table_errors(table_address(self._lake, table)):
            self._connection.register(table, dataset_of(opened))

    # --- rows that are not landed -----------------------------------------------------------------

    def _register_not_landed(self, table: str, stream: str) -> None:
        assert self._catalog is not None
        opened = self._open(table) if table in self._tables else None
        nodes, deleted = self._read_positions(opened, stream)
        for _ in range(MAXIMUM_TRIES - 1):
            if all(deleted[each.node] <= each.landed for each in nodes):
                break
            # What was landed and then deleted between two looks is in the table by the next.
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
        rows = dataset.FileSystemDataset(fragments, schema(), dataset.ParquetFileFormat())
        if opened is None:
            self.notes.append(f"nothing is landed in {self._shown(table)} yet")
        self._connection.register(f"{table}{NOT_LANDED}", rows)

    def _read_positions(
        self, opened: "DeltaTable | None", stream: str
    ) -> tuple[list[NodeLag], dict[str, int]]:
        """How far the table is with each node, and up to which row retention has deleted rows."""
        assert self._catalog is not None
        nodes = node_lags(opened, stream, self._catalog)
        return nodes, {each.node: each.deleted for each in nodes}

    def _shown(self, table: str) -> str:
        """A table of the lake, for people."""
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
        """A segment, which is opened only if a question wants something of it."""
        assert self._segments is not None
        fs = need("pyarrow.fs", extra="sql", by="semel sql")
        place = self._segments.root.file_path(record.stream, record.node, segment_name(first, last))
        return self._fragment(place, fs.PyFileSystem(self._segments), record, first, last)

    def _copied(self, record: NodeRecord, first: int, last: int) -> Any:
        """A copy of rows that lie with others that are landed, or in the store."""
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

    def _make_now(self, table: str) -> None:
        """The view of all rows, with the columns of the table and `landed`."""
        own = [*schema().names, "date"]
        new = f"SELECT *, {_DATE} AS date FROM {_quoted(table + NOT_LANDED)}"
        if table in self._opened:
            own = [field.name for field in self._opened[table].schema().fields]
            if LANDED in map(_folded, own):
                raise SqlError(f"there is no {table}{NOW}: {table} has a column {LANDED} itself")
        chosen = ", ".join(_quoted(name) for name in own if name in (*schema().names, "date"))
        text = f"SELECT {chosen}, false AS landed FROM ({new})"
        if table in self._opened:
            text = f"SELECT *, true AS landed FROM {_quoted(table)} UNION ALL BY NAME {text}"
        self._connection.execute(f"CREATE TEMP VIEW {_quoted(table + NOW)} AS {text}")

    # --- the answer -------------------------------------------------------------------------------

    def _answer(self, statements: list[Any]) -> QueryResult:
        found: Queue[Any] = Queue(WAITING_BATCHES)
        enough = Event()
        worker = Thread(target=self._work, args=(statements, found, enough), daemon=True)
        worker.start()

        def stop() -> None:
            enough.set()
            while worker.is_alive():
                # One that has not begun yet does not hear it: it is told again.
                self._connection.interrupt()
                with suppress(Empty):
                    found.get(timeout=0.05)

        try:
            columns = self._next(found)
        except BaseException:
            stop()
            raise
        return QueryResult(columns, self._batches(found), stop)

    def _work(self, statements: list[Any], found: "Queue[Any]", enough: Event) -> None:
        reader = None
        try:
            for statement in statements[:-1]:
                for _ in self._reader(statement):
                    if enough.is_set():
                        return
            reader = self._reader(statements[-1])
            found.put(reader.schema)
            for batch in reader:
                if enough.is_set():
                    break
                found.put(batch)
            found.put(None)
        except BaseException as problem:
            found.put(problem)
        finally:
            # The reader keeps the connection busy.
            del reader

    def _reader(self, statement: Any) -> Any:
        found = self._connection.sql(statement.query)
        types = [_as_text(each) for each in found.types]
        if any(types):
            # By number: two columns may have one name.
            found = found.project(
                ", ".join(
                    (f"#{number}" if kind is None else f"CAST(#{number} AS {kind})")
                    + f" AS {_quoted(name)}"
                    for number, (name, kind) in enumerate(zip(found.columns, types, strict=True), 1)
                )
            )
        return found.to_arrow_reader(BATCH_ROWS)

    def _batches(self, found: "Queue[Any]") -> Iterator[Any]:
        while (batch := self._next(found)) is not None:
            yield batch

    def _next(self, found: "Queue[Any]") -> Any:
        given = found.get()
        if isinstance(given, BaseException):
            raise self._query_error(given) from None
        return given

    def _query_error(self, problem: BaseException) -> BaseException:
        """What DuckDB or pyarrow raised, in its words and in ours."""
        if not isinstance(problem, (self._duckdb.Error, OSError, RuntimeError, ValueError)):
            return problem
        if self._segments is not None and self._segments.damage is not None:
            return SqlError(self._segments.damage)
        reading = _READING.search(str(problem))
        if reading is not None:
            why = one_line(OSError(reading[2].partition(". Detail: Python exception")[0]))
            return SqlError(
                f"{reading[1]}: a file cannot be read: {why}; if files were merged or deleted "
                "meanwhile, asking again helps"
            )
        unknown = _UNKNOWN.search(str(problem))
        if unknown is None:
            return SqlError(_shown(problem))
        if _folded(unknown[1]) in self._left_out:
            return self._left_out[_folded(unknown[1])]
        names = self.names()
        if self._record is not None and unknown[1].lower() == self._record.table.lower():
            view = f"{self._record.table}{NOW}"
            if view in names:
                return SqlError(f"nothing is landed in {unknown[1]} yet: ask {view}")
        place = [line for line in _shown(problem).splitlines()[1:] if not _is_advice(line)]
        near = get_close_matches(unknown[1].lower(), names, n=1)
        advice = f"did you mean {near[0]}? " if near else ""
        there = f"there are {', '.join(names)}" if names else absent_tables(self._lake)
        return SqlError("\n".join([f"there is no table {unknown[1]}: {advice}{there}", *place]))


def segment_files(root: Root) -> "SegmentFiles":
    """The segments of a root for datasets."""
    # It is made of pyarrow, which is slow to import.
    from semel.up.segment_files import SegmentFiles

    return SegmentFiles(root)


def absent_tables(lake: str) -> str:
    """That a lake is empty."""
    folder = local_folder(lake)
    if folder is not None and not folder.exists():
        return describe_missing_table(lake).replace("table", "lake", 1)
    return "the lake has none"


def _folded(name: str) -> str:
    """What SQL makes of a name: DuckDB does not tell A to Z from a to z, but other letters."""
    return name.encode("utf-8", "surrogateescape").lower().decode("utf-8", "surrogateescape")


def _distinct_names(names: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The names that are one of a kind in SQL, and those that are not."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_folded(name), []).append(name)
    single = [kind[0] for kind in found.values() if len(kind) == 1]
    return single, {folded: kind for folded, kind in found.items() if len(kind) > 1}


def _as_text(kind: Any) -> str | None:
    """The type to cast to, so that Arrow can hold what is in it; None: it can hold it as it is."""
    name = kind.id
    if name in _AS_TEXT:
        return _TEXT
    if name not in ("list", "array", "struct", "map", "union"):
        return None
    # NodeLag the type of an array there is its size.
    parts = [(label, each) for label, each in kind.children if not isinstance(each, int)]
    inner = [_as_text(each) for _, each in parts]
    if not any(inner):
        return None
    texts = [text or str(each) for text, (_, each) in zip(inner, parts, strict=True)]
    if name == "list":
        return f"{texts[0]}[]"
    if name == "array":
        return f"{texts[0]}[{dict(kind.children)['size']}]"
    if name == "map":
        return f"MAP({', '.join(texts)})"
    if name == "struct":
        fields = (f"{_quoted(each)} {text}" for (each, _), text in zip(parts, texts, strict=True))
        return f"STRUCT({', '.join(fields)})"
    return _TEXT


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0]


def _is_advice(line: str) -> bool:
    return line.startswith("Did you mean")


def _indented(tabs: re.Match[str]) -> str:
    return "  " * len(tabs[0])


def _shown(problem: BaseException) -> str:
    """DuckDB's message without empty lines; its last lines may point to a place.

    Tabs would be shown as escape sequences. Those that indent become two spaces, and those of the
    query one: its place is pointed to by a line that counts each as one character.
    """
    lines = [line.rstrip() for line in str(problem).splitlines() if line.strip()]
    lines = [
        line.replace("\t", " ") if _QUOTED_QUERY.match(line) else _INDENT.sub(_indented, line)
        for line in lines
    ]
    return "\n".join(lines) or type(problem).__name__
