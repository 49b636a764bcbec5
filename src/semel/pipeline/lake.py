"""A lake and its tables: list them, read their history, and maintain them.

    <lake>/<table>/_delta_log/…    a Delta table; names that begin with '_' or '.' are ignored

This does not need Spark: delta-rs reads and writes the tables. All of it is safe while a landing
writes to the same table. `optimize` replaces many small files by a few large ones in one commit. It
changes no row, and keeps the old files for readers of older versions. It does not conflict with a
landing; if another program rewrites the same files, it plans again (`compaction.py`). `vacuum`
deletes files that no version needs, including those of killed attempts. It keeps files younger than
7 days, because the files of a commit in progress look the same, and for readers of older versions.

The positions in the log of a table (`app_transactions`) say which rows of a stream have landed;
`node_lags` compares them with the record. Commits are read from their log entries (`delta_log`).
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

    from semel.store.reading import StreamCatalog

T = TypeVar("T")

LOG: Final = "_delta_log"
# Younger files are kept: a landing may be about to commit them.
LEAST_AGE: Final = timedelta(days=7)
TARGET_BYTES: Final = 128 * 1024 * 1024
# Attempts of a commit that other commits precede.
ATTEMPTS: Final = 5
# The number of newest partitions for which time bounds are given per file.
BOUNDED_PARTITIONS: Final = 2
# The maximum number of files that one commit of optimize adds.
GROUPS: Final = 16

_BY: Final = "a Delta table"


@dataclass(frozen=True)
class TableSummary:
    """A table in numbers; only `table` and `problem` are set if it cannot be read."""

    table: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    version: int = 0
    # When the last commit was made, in microseconds (0: unknown), and its operation, if recorded.
    committed: int = 0
    operation: str = ""
    partition_by: tuple[str, ...] = ()
    # The stream that is landed in it, if any.
    stream: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class NodeLag:
    """How far a table lags behind the record of a node."""

    node: str
    landed: int
    last: int
    # Retention has deleted the rows up to this one.
    deleted: int = 0

    @property
    def rows(self) -> int:
        """The number of existing rows that have not landed."""
        return max(0, self.last - max(self.landed, self.deleted))


@dataclass(frozen=True)
class TableCommit:
    """A commit, from its log entry."""

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
    """The result of optimize; without a version there was nothing to do."""

    version: int | None
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int
    # What is wrong with the columns by which the table says to sort rows, or an empty string.
    notice: str = ""


@dataclass(frozen=True)
class Vacuumed:
    """What vacuum deleted, or would delete."""

    is_done: bool
    files: tuple[str, ...]
    bytes: int


# --- finding --------------------------------------------------------------------------------------


def table_names(lake: str) -> list[str]:
    """The names of possible tables of a lake, sorted. Raises TableError if it is not a lake."""
    shown = without_secrets(lake)
    folder = local_folder(lake)
    if folder is not None:
        if not folder.exists():
            raise no_lake(lake)
        if not folder.is_dir():
            raise TableError(f"{shown} is not a lake but a file")
        if (folder / LOG).is_dir():
            raise TableError(
                f"{shown} is not a lake but a table: give its parent folder, {folder.parent}"
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
    """The error for a lake whose folder does not exist."""
    return TableError(f"there is no lake at {without_secrets(lake)}: there is no such folder")


def _files(address: str) -> Root:
    """The storage at an address."""
    try:
        return open_root(address)
    except RootError as problem:
        raise TableError(str(problem)) from problem


def _listed(files: Root, folder: str) -> list[Any]:
    try:
        return files.entries(folder)
    except OSError as problem:
        reason = " ".join(str(problem).split())
        raise TableError(f"{files.address} cannot be listed: {reason}") from problem


def open_table(lake: str, table: str) -> "DeltaTable":
    """The current version of a table. Raises TableError."""
    found = _open(lake, table)
    if found is None:
        raise TableError(_describe_missing(lake, table))
    return found


def _open(lake: str, table: str) -> "DeltaTable | None":
    """A table, or None if it does not exist."""
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


def _describe_missing(lake: str, table: str) -> str:
    """Why a table does not exist, and which tables do."""
    names = [each for each in table_names(lake) if each != table]
    there = f"; the tables there are {', '.join(names)}" if names else ""
    return describe_missing_table(table_address(lake, table)) + there


# --- listing --------------------------------------------------------------------------------------


def tables(lake: str) -> list[TableSummary]:
    """The tables of a lake, sorted; `problem` says why one cannot be read. Raises TableError."""
    found = []
    is_local = local_folder(lake) is not None
    for name in table_names(lake):
        try:
            opened = _open(lake, name)
            if opened is not None:
                with table_errors(table_address(lake, name)):
                    found.append(summarize(lake, name, opened))
            elif is_local:
                # It has a _delta_log folder.
                raise TableError(describe_missing_table(table_address(lake, name)))
        except TableError as problem:
            found.append(TableSummary(name, problem=str(problem)))
    return found


def summarize(lake: str, name: str, table: "DeltaTable") -> TableSummary:
    """A table in numbers."""
    rows, files, size = _contents(table)
    # The entry may have been deleted because a checkpoint covers it.
    commits = _commits(DeltaLog(_files(table_address(lake, name))), table.version())
    last = next(iter(commits), None)
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
        # Some writers record no row counts, or delete rows by deletion vectors: count by reading.
        reader = table.scan(columns=[table.schema().fields[0].name])
        rows = sum(batch.num_rows for batch in arrow.RecordBatchReader.from_stream(reader))
        return rows, actions.num_rows, size
    return sum(counts), actions.num_rows, size


def dataset_of(table: "DeltaTable") -> Any:
    """The files of a table as an Arrow dataset, with partitions and time bounds from the log.

    deltalake's own dataset uses all statistics of the log, and treats a column without statistics
    as one without values. Parquet's statistics are used instead. But to read them each file has to
    be opened, which is too slow for a query about the last hour of a year. So time columns without
    nulls also get bounds from the log: per file in the newest partitions, and per partition in
    older ones, because each expression costs time.
    """
    dataset = need("pyarrow.dataset", extra="sql", by=_BY)
    arrow = need("pyarrow", extra="sql", by=_BY)
    # Imports pyarrow, which is slow.
    from semel.pipeline.scanned_dataset import ScannedDataset

    # Selects no file: used for its check of the reader features, its file system and its format.
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
    return ScannedDataset(fragments, found.schema, found.format, found.filesystem)


def _by_age(
    groups: dict[tuple[Any, ...], list[int]],
    modified: list[int],
    bounds: dict[str, list[tuple[int, int] | None]],
) -> list[tuple[Any, ...]]:
    """The partitions from oldest to newest: by the times of their rows if known, or of their files.

    A partition is as old as its newest row or file.
    """
    times = next((each for each in bounds.values() if None not in each), None)

    def age(key: tuple[Any, ...]) -> int:
        return max(
            modified[place] if times is None else (times[place] or (0, 0))[1]
            for place in groups[key]
        )

    return sorted(groups, key=age)


def _bounds_of_times(actions: Any, schema: Any) -> dict[str, list[tuple[int, int] | None]]:
    """The lowest and highest value of each time column in each file.

    None for a file whose bounds are unknown, or whose column has nulls.
    """
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
    """`holds`, and the bounds of the times in these files: true for each of their rows."""
    arrow = need("pyarrow", extra="spark", by=_BY)
    for name, known in bounds.items():
        there = [known[place] for place in places]
        lowest = [each[0] for each in there if each is not None]
        highest = [each[1] for each in there if each is not None]
        if len(lowest) < len(there):
            continue
        kind = schema.field(name).type
        first = arrow.scalar(min(lowest), kind)
        # Writers may truncate an upper bound to milliseconds.
        last = arrow.scalar(max(highest) + 1_000, kind)
        column = dataset.field(name)
        within = (column >= first) & (column <= last)
        holds = within if holds is None else holds & within
    return holds


def stream_of(table: "DeltaTable") -> str | None:
    """The stream that is landed in a table, or None if no stream is."""
    from semel.pipeline.app_transactions import stream_id

    name = table.metadata().name or ""
    return name.removeprefix(stream_id("")) if name.startswith(stream_id("")) else None


def has_record_columns(table: "DeltaTable") -> bool:
    """Whether a table has the columns of the record; the tables of a landing file have not."""
    # Those that a landing file cannot name, and that every release has landed.
    return {field.name for field in table.schema().fields} >= {"payload", "dup", "packet_id"}


def node_lags(table: "DeltaTable | None", stream: str, catalog: "StreamCatalog") -> list[NodeLag]:
    """How far a table lags behind each node of a stream; `table` is None if it does not exist yet.

    The record is read first, then the table is updated: rows that land in between count as landed.
    """
    from semel.pipeline.app_transactions import positions_in

    last_seqs = {record.node: record.last() for record in catalog.records(stream)}
    if table is not None:
        table.update_incremental()
    landed = {} if table is None else positions_in(table, stream, last_seqs)
    root = catalog.root
    return [
        NodeLag(node, landed.get(node, 0), last, root.trimmed(stream, node))
        for node, last in last_seqs.items()
    ]


# --- history --------------------------------------------------------------------------------------


def history(lake: str, table: str, *, limit: int | None = None) -> list[TableCommit]:
    """The commits that are still in the log of a table, newest first."""
    address = table_address(lake, table)
    opened = open_table(lake, table)
    with table_errors(address):
        return list(islice(_commits(DeltaLog(_files(address)), opened.version()), limit))


def _commits(log: DeltaLog, newest: int) -> Iterator[TableCommit]:
    """The commits from `newest` backwards, as long as their entries exist."""
    for entry in log.back(newest):
        yield _commit_of(log, entry)


def _commit_of(log: DeltaLog, entry: LogEntry) -> TableCommit:
    from semel.pipeline.app_transactions import stream_id

    moment = entry.milliseconds
    return TableCommit(
        version=entry.version,
        # Without a timestamp in the entry: when its file was written.
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


# --- maintenance ----------------------------------------------------------------------------------


def optimize(lake: str, table: str, *, target_bytes: int = TARGET_BYTES) -> Optimized:
    """Merge small files into files of about `target_bytes`, partition by partition.

    Safe while a landing or another optimize runs. The small files stay on disk until a vacuum.
    Raises TableError.
    """
    opened = open_table(lake, table)
    from semel.pipeline.clustering import cluster_columns
    from semel.pipeline.compaction import compact, plan_all
    from semel.pipeline.live_files import Overtaken, list_files

    address = table_address(lake, table)
    done = []
    overtaken = 0
    groups = plan_all(list_files(opened), target_bytes)
    while groups:
        try:
            done.append(compact(address, opened, groups[:GROUPS]))
            groups = groups[GROUPS:]
            overtaken = 0
        except Overtaken:
            overtaken += 1
            if overtaken == ATTEMPTS:
                raise TableError(
                    f"{without_secrets(address)}: other programs rewrote the same files"
                    f" {ATTEMPTS} times in a row; is something else compacting this table?"
                ) from None
            groups = plan_all(list_files(opened), target_bytes)
    return Optimized(
        version=done[-1].version if done else None,
        files_added=sum(each.files_added for each in done),
        bytes_added=sum(each.bytes_added for each in done),
        files_removed=sum(each.files_removed for each in done),
        bytes_removed=sum(each.bytes_removed for each in done),
        notice=cluster_columns(opened).problem if done else "",
    )


def vacuum(
    lake: str, table: str, *, run: bool = False, older_than: timedelta = LEAST_AGE
) -> Vacuumed:
    """Delete files that no version since `older_than` needs; without `run`, only list them.

    Raises TableError if `older_than` is less than LEAST_AGE.
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

    (files, size), _ = _commit_with_retries(lake, table, clean)
    return Vacuumed(is_done=run, files=files, bytes=size)


def _sizes(address: str, paths: Iterable[str]) -> int:
    """The total size of some files of a table."""
    wanted = {unquote(path) for path in paths}
    files = _files(address)
    size = 0
    for folder in {str(PurePosixPath(path).parent) for path in wanted}:
        above = "" if folder == "." else f"{folder}/"
        for entry in _listed(files, above.rstrip("/")):
            if f"{above}{entry.name}" in wanted:
                size += entry.size
    return size


def _commit_with_retries(
    lake: str, table: str, change: "Callable[[DeltaTable], T]"
) -> tuple[T, int]:
    """Apply a change that commits, and retry it if another commit was first.

    Returns the result of the change, and the version; both are durable.
    """
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
            # A checkpoint covers it, and it was deleted.
            continue
        except OSError as problem:
            shown = without_secrets(address)
            raise TableError(
                f"{shown}: version {version} may not be on disk: {problem}"
            ) from problem


def data_folder_of(lake: str) -> Path | None:
    """The data folder that contains a lake, as `semel up` lays it out, or None."""
    from semel.store.folder import STORE

    folder = local_folder(lake)
    if folder is None or not (folder.parent / STORE).is_file():
        return None
    return folder.parent
