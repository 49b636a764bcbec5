"""A lake and its tables: what there is, how it came to be, and keeping it in good order.

    <lake>/<table>/_delta_log/…    a Delta table; folders that begin with '_' or '.' are none

No Spark is needed: delta-rs reads and writes the tables. Everything here may be done while a
landing writes to the same table. `optimize` replaces many small files by a few large ones in one
commit, which changes no row and leaves the old files where they are, so that whoever reads an
older version can go on. A landing that appends meanwhile does not stand in its way, nor it in the
landing's; whoever else rewrites the same files makes it begin anew (`compaction.py`). `vacuum`
deletes the files that no version needs any more, or ever did (those of attempts that were killed):
but never one younger than 7 days, because files of a commit that is under way look just like those,
and because readers of older versions want their time.

The positions in a table's log (`semel.pipeline.table`) tell which rows of a stream are landed;
`behind` compares them with the record.

What a commit was is read from its entry in the log (`semel.pipeline.delta_log`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from semel.extras import need
from semel.pipeline.delta_errors import describe_missing_table, table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.delta_log import DeltaLog, LogEntry
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import check_table_name, local_folder, split_address, table_address
from semel.store.roots import Root, RootError, open_root, without_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from semel.store.reading import Holdings

T = TypeVar("T")

LOG: Final = "_delta_log"
# Younger files are never deleted: a landing may be about to commit them.
LEAST_AGE: Final = timedelta(days=7)
TARGET_BYTES: Final = 128 * 1024 * 1024
# How often a commit is tried that others came before.
ATTEMPTS: Final = 5
# Of so many partitions, the newest, it is told for each file what times it has.
BOUNDED_PARTITIONS: Final = 2
# Files that one commit of optimize adds at most.
GROUPS: Final = 16

_BY: Final = "a Delta table"


@dataclass(frozen=True)
class TableSummary:
    """A table in numbers. With a problem there are none."""

    table: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    version: int = 0
    # When the last commit was made, in microseconds (0: unknown), and what it did, if it says so.
    committed: int = 0
    operation: str = ""
    partition_by: tuple[str, ...] = ()
    # The stream whose rows it takes, if it takes one's.
    stream: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class NodeLag:
    """How far a table is with the rows of a node."""

    node: str
    landed: int
    last: int
    # Rows up to this one were deleted, by retention.
    deleted: int = 0

    @property
    def rows(self) -> int:
        """How many rows there are that are not landed."""
        return max(0, self.last - max(self.landed, self.deleted))


@dataclass(frozen=True)
class TableCommit:
    """A commit."""

    version: int
    # In microseconds.
    committed: int
    operation: str
    files_added: int
    rows_added: int
    bytes_added: int
    files_removed: int
    # Of a landing: the last seq landed, by stream and node ("all/n1").
    positions: dict[str, int]


@dataclass(frozen=True)
class Optimized:
    """What optimize did. Without a version there was nothing to do."""

    version: int | None
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int


@dataclass(frozen=True)
class Vacuumed:
    """What vacuum deleted, or would delete."""

    is_done: bool
    files: tuple[str, ...]
    bytes: int


# --- finding --------------------------------------------------------------------------------------


def table_names(lake: str) -> list[str]:
    """The names of what could be tables of a lake, sorted. Raises TableError: it is no lake."""
    shown = without_secrets(lake)
    folder = local_folder(lake)
    if folder is not None:
        if not folder.exists():
            raise no_lake(lake)
        if not folder.is_dir():
            raise TableError(f"{shown} is no lake but a file")
        if (folder / LOG).is_dir():
            raise TableError(
                f"{shown} is no lake but a table: give the folder that it is in, {folder.parent}"
            )
    else:
        split_address(lake)
    names = []
    for entry in _listed(_files(lake), ""):
        if not entry.is_folder or entry.name.startswith((".", "_")):
            continue
        if folder is not None and not (folder / entry.name / LOG).is_dir():
            continue
        try:
            check_table_name(entry.name)
        except TableError:
            continue
        names.append(entry.name)
    return sorted(names)


def no_lake(lake: str) -> TableError:
    """That a folder is not there."""
    return TableError(f"there is no lake at {without_secrets(lake)}: there is no such folder")


def _files(address: str) -> Root:
    """What is at an address, file by file."""
    try:
        return open_root(address)
    except RootError as problem:
        raise TableError(str(problem)) from problem


def _listed(files: Root, folder: str) -> list[Any]:
    try:
        return files.entries(folder)
    except OSError as problem:
        said = " ".join(str(problem).split())
        raise TableError(f"{files.address} cannot be listed: {said}") from problem


def open_table(lake: str, table: str) -> "DeltaTable":
    """A table as it is now. Raises TableError."""
    found = _open(lake, table)
    if found is None:
        raise TableError(_not_there(lake, table))
    return found


def _open(lake: str, table: str) -> "DeltaTable | None":
    """A table, or None if there is none."""
    address = table_address(lake, table)
    deltalake = need("deltalake", extra="sql", by=_BY)
    uri, options = split_address(address)
    folder = local_folder(address)
    if folder is not None and not folder.is_dir():
        return None
    with table_errors(address):
        try:
            found: DeltaTable = deltalake.DeltaTable(uri, storage_options=options or None)
        except deltalake.exceptions.TableNotFoundError:
            return None
    return found


def _not_there(lake: str, table: str) -> str:
    """Why there is no such table, and which there are."""
    names = [each for each in table_names(lake) if each != table]
    there = f"; the tables there are {', '.join(names)}" if names else ""
    return describe_missing_table(table_address(lake, table)) + there


# --- what there is --------------------------------------------------------------------------------


def tables(lake: str) -> list[TableSummary]:
    """The tables of a lake, sorted. One that cannot be read says why. Raises TableError."""
    found = []
    is_local = local_folder(lake) is not None
    for name in table_names(lake):
        try:
            opened = _open(lake, name)
            if opened is not None:
                with table_errors(table_address(lake, name)):
                    found.append(facts(lake, name, opened))
            elif is_local:
                # It has the folder of a log.
                raise TableError(describe_missing_table(table_address(lake, name)))
        except TableError as problem:
            found.append(TableSummary(name, problem=str(problem)))
    return found


def facts(lake: str, name: str, table: "DeltaTable") -> TableSummary:
    """A table in numbers."""
    rows, files, size = _contents(table)
    # Nothing of the entry is left if a checkpoint holds what it said.
    steps = _steps(DeltaLog(_files(table_address(lake, name))), table.version())
    last = next(iter(steps), None)
    metadata = table.metadata()
    return TableSummary(
        table=name,
        rows=rows,
        files=files,
        bytes=size,
        version=table.version(),
        committed=0 if last is None else last.committed,
        operation="" if last is None else last.operation,
        partition_by=tuple(metadata.partition_columns),
        stream=stream_of(table),
    )


def _contents(table: "DeltaTable") -> tuple[int, int, int]:
    """Rows, files, bytes."""
    arrow = need("pyarrow", extra="sql", by=_BY)
    actions = arrow.table(table.get_add_actions(flatten=True))
    size = sum(actions.column("size_bytes").to_pylist())
    counts = actions.column("num_records").to_pylist() if actions.num_rows else []
    if None in counts or "deletionVectors" in (table.protocol().reader_features or ()):
        # Not every writer counts, and some delete rows without writing a file anew: these are read.
        reader = table.scan(columns=[table.schema().fields[0].name])
        rows = sum(batch.num_rows for batch in arrow.RecordBatchReader.from_stream(reader))
        return rows, actions.num_rows, size
    return sum(counts), actions.num_rows, size


def dataset_of(table: "DeltaTable") -> Any:
    """The files of a table as an Arrow dataset, of which the log tells partitions and times.

    deltalake's own goes by all statistics in the log, and takes a column that has none there for
    one without values. Parquet's own statistics serve instead; but to read them each file has to be
    opened, and who asks after the last hour of a year wants no others opened. So the bounds of
    columns of times are told as well, where no value is missing: for each file of the newest
    partitions, and for each older partition as a whole, because each is an expression to be made.
    """
    dataset = need("pyarrow.dataset", extra="sql", by=_BY)
    arrow = need("pyarrow", extra="sql", by=_BY)
    # It checks what the table asks of its readers, and knows how files are opened.
    found = table.to_pyarrow_dataset(file_pruning_predicate="1 = 0")
    actions = arrow.table(table.get_add_actions(flatten=True))
    # Pages that have checksums are verified as they are read.
    found.format.default_fragment_scan_options = dataset.ParquetFragmentScanOptions(
        pre_buffer=True, page_checksum_verification=True
    )
    names = table.metadata().partition_columns
    keys = list(
        zip(*(actions.column(f"partition.{name}").to_pylist() for name in names), strict=True)
    ) or [()] * len(actions)
    paths = [unquote(path) for path in actions.column("path").to_pylist()]
    bounds = _bounds_of_times(actions, found.schema)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    newest = _by_age(groups, actions.column("modification_time").to_pylist(), bounds)
    fragments = []
    for key, places in groups.items():
        holds = None
        for name, value in zip(names, key, strict=True):
            column = dataset.field(name)
            same = column.is_null() if value is None else column == value
            holds = same if holds is None else holds & same
        apart = key in newest[-BOUNDED_PARTITIONS:]
        for part in ([each] for each in places) if apart else (places,):
            holds_part = _between(dataset, found.schema, bounds, part, holds)
            for place in part:
                fragments.append(
                    found.format.make_fragment(
                        paths[place], found.filesystem, partition_expression=holds_part
                    )
                )
    return dataset.FileSystemDataset(fragments, found.schema, found.format, found.filesystem)


def _by_age(
    groups: dict[tuple[Any, ...], list[int]],
    modified: list[int],
    bounds: dict[str, list[tuple[int, int] | None]],
) -> list[tuple[Any, ...]]:
    """The partitions, those with the newest rows last; if nobody knows, with the newest files."""
    times = next((each for each in bounds.values() if None not in each), None)

    def age(key: tuple[Any, ...]) -> int:
        return max(
            modified[place] if times is None else (times[place] or (0, 0))[1]
            for place in groups[key]
        )

    return sorted(groups, key=age)


def _bounds_of_times(actions: Any, schema: Any) -> dict[str, list[tuple[int, int] | None]]:
    """By column of times and file: lowest and highest, as numbers; None: unknown, or nulls."""
    arrow = need("pyarrow", extra="spark", by=_BY)
    found: dict[str, list[tuple[int, int] | None]] = {}
    for field in schema:
        columns = [f"{kind}.{field.name}" for kind in ("min", "max", "null_count")]
        if not arrow.types.is_timestamp(field.type):
            continue
        if not set(columns) <= set(actions.column_names):
            continue
        low, high, nulls = (actions.column(name) for name in columns)
        if low.type != field.type or high.type != field.type:
            continue
        found[field.name] = [
            None if first is None or last is None or missing != 0 else (first, last)
            for first, last, missing in zip(
                low.cast("int64").to_pylist(),
                high.cast("int64").to_pylist(),
                nulls.to_pylist(),
                strict=True,
            )
        ]
    return found


def _between(
    dataset: Any,
    schema: Any,
    bounds: dict[str, list[tuple[int, int] | None]],
    places: list[int],
    holds: Any,
) -> Any:
    """What holds of all rows of some files, besides what is given."""
    arrow = need("pyarrow", extra="spark", by=_BY)
    for name, known in bounds.items():
        there = [known[place] for place in places]
        firsts = [each[0] for each in there if each is not None]
        lasts = [each[1] for each in there if each is not None]
        if len(firsts) < len(there):
            continue
        kind = schema.field(name).type
        first = arrow.scalar(min(firsts), kind)
        # Writers may cut an upper bound to whole milliseconds.
        last = arrow.scalar(max(lasts) + 1_000, kind)
        column = dataset.field(name)
        within = (column >= first) & (column <= last)
        holds = within if holds is None else holds & within
    return holds


def stream_of(table: "DeltaTable") -> str | None:
    """The stream whose rows a table takes, by its own numbers; None: it takes anything."""
    from semel.pipeline.table import stream_id

    name = table.metadata().name or ""
    return name.removeprefix(stream_id("")) if name.startswith(stream_id("")) else None


def behind(table: "DeltaTable | None", stream: str, holdings: "Holdings") -> list[NodeLag]:
    """How far a table (None: one that is not made yet) is with each node of a stream.

    The record is looked at first, and then the table, which is brought up to date: what it has
    landed by then is not counted.
    """
    from semel.pipeline.table import positions_in

    lasts = {record.node: record.last() for record in holdings.records(stream)}
    if table is not None:
        table.update_incremental()
    landed = {} if table is None else positions_in(table, stream, lasts)
    root = holdings.root
    return [
        NodeLag(node, landed.get(node, 0), last, root.trimmed(stream, node))
        for node, last in lasts.items()
    ]


# --- how it came to be ----------------------------------------------------------------------------


def history(lake: str, table: str, *, limit: int | None = None) -> list[TableCommit]:
    """The commits that a table's log still has, newest first."""
    address = table_address(lake, table)
    opened = open_table(lake, table)
    with table_errors(address):
        return list(islice(_steps(DeltaLog(_files(address)), opened.version()), limit))


def _steps(log: DeltaLog, newest: int) -> Iterator[TableCommit]:
    """The commits from `newest` back, as long as their entries are there."""
    for entry in log.back(newest):
        yield _step(log, entry)


def _step(log: DeltaLog, entry: LogEntry) -> TableCommit:
    from semel.pipeline.table import stream_id

    moment = entry.milliseconds
    return TableCommit(
        version=entry.version,
        # If it does not say when it was made: when it was written.
        committed=int(log.written(entry.version) * 1e6) if moment is None else moment * 1000,
        operation=entry.operation,
        files_added=len(entry.added),
        rows_added=sum(
            int(json.loads(each.get("stats") or "{}").get("numRecords", 0)) for each in entry.added
        ),
        bytes_added=sum(int(each.get("size", 0)) for each in entry.added),
        files_removed=len(entry.removed),
        positions={
            name.removeprefix(stream_id("")): seq
            for name, seq in entry.transactions.items()
            if name.startswith(stream_id(""))
        },
    )


# --- keeping it in order --------------------------------------------------------------------------


def optimize(lake: str, table: str, *, target_bytes: int = TARGET_BYTES) -> Optimized:
    """Merge small files into such of about `target_bytes`, partition by partition.

    Safe beside a landing and beside itself. What it merged stays until a vacuum. Raises TableError.
    """
    opened = open_table(lake, table)
    from semel.pipeline.compaction import Overtaken, compact, list_files, plan_all

    address = table_address(lake, table)
    done = []
    overtaken = 0
    groups = plan_all(list_files(opened), target_bytes)
    while groups:
        try:
            done.append(compact(address, opened, groups[:GROUPS]))
            groups = groups[GROUPS:]
        except Overtaken:
            overtaken += 1
            if overtaken == ATTEMPTS:
                raise TableError(
                    f"{without_secrets(address)}: other programs rewrote the same files"
                    f" {ATTEMPTS} times meanwhile; is something else compacting this table?"
                ) from None
            groups = plan_all(list_files(opened), target_bytes)
    return Optimized(
        version=done[-1].version if done else None,
        files_added=sum(each.files_added for each in done),
        bytes_added=sum(each.bytes_added for each in done),
        files_removed=sum(each.files_removed for each in done),
        bytes_removed=sum(each.bytes_removed for each in done),
    )


def vacuum(
    lake: str, table: str, *, run: bool = False, older_than: timedelta = LEAST_AGE
) -> Vacuumed:
    """Delete the files that no version of the table of the last days needs, or say which.

    Raises TableError if files younger than LEAST_AGE are to go.
    """
    if older_than < LEAST_AGE:
        raise TableError(
            f"vacuum keeps files of the last {LEAST_AGE.days} days: a landing may be about to "
            "commit them"
        )
    hours = -(-older_than // timedelta(hours=1))
    address = table_address(lake, table)

    def clean(opened: "DeltaTable") -> tuple[tuple[str, ...], int]:
        leaving = tuple(sorted(opened.vacuum(retention_hours=hours, dry_run=True, full=True)))
        size = _sizes(address, leaving)
        if run:
            leaving = tuple(sorted(opened.vacuum(retention_hours=hours, dry_run=False, full=True)))
        return leaving, size

    (files, size), _ = _committing(lake, table, clean)
    return Vacuumed(is_done=run, files=files, bytes=size)


def _sizes(address: str, paths: Iterable[str]) -> int:
    """The bytes of files of a table."""
    wanted = {unquote(path) for path in paths}
    files = _files(address)
    size = 0
    for folder in {str(PurePosixPath(path).parent) for path in wanted}:
        above = "" if folder == "." else f"{folder}/"
        for entry in _listed(files, above.rstrip("/")):
            if f"{above}{entry.name}" in wanted:
                size += entry.size
    return size


def _committing(lake: str, table: str, change: "Callable[[DeltaTable], T]") -> tuple[T, int]:
    """Do what commits to a table, again if others came first; the commits are on disk then."""
    deltalake = need("deltalake", extra="sql", by=_BY)
    address = table_address(lake, table)
    for attempt in range(1, ATTEMPTS + 1):
        opened = open_table(lake, table)
        before = opened.version()
        with table_errors(address):
            try:
                done = change(opened)
            except deltalake.exceptions.CommitFailedError:
                if attempt == ATTEMPTS:
                    raise
                continue
            opened.update_incremental()
        _fsync_versions(address, before + 1, opened.version())
        return done, opened.version()
    raise AssertionError


def _fsync_versions(address: str, first: int, last: int) -> None:
    for version in range(first, last + 1):
        try:
            fsync_commit(address, version, files=True)
        except FileNotFoundError:
            # A checkpoint holds what it says, and it was cleaned away.
            continue
        except OSError as problem:
            shown = without_secrets(address)
            raise TableError(f"{shown}: version {version} may not last: {problem}") from problem


def beside(lake: str) -> Path | None:
    """The data folder that a lake lies in, as `semel up` lays them out; None: in none."""
    from semel.store.folder import STORE

    folder = local_folder(lake)
    if folder is None or not (folder.parent / STORE).is_file():
        return None
    return folder.parent
