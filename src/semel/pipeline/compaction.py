"""Compaction of a Delta table: many small files become a few large ones, and no row changes.

    plan (pure) ─▶ rewrite: read the files, write and sync new ones ─▶ one commit: remove + add

Files are merged only within a partition. In a partition that is still being written, files of
similar size are merged when there are `small_files` of them, so that each byte is rewritten only a
few times on its way to a file of the target size (a merge tree, as in an LSM store). In a partition
that has not been written for an hour all files below the target are merged.

The commit is made only as the version right after one in which all merged files are live. delta-rs
1.6 would otherwise rebase it over the commit of another program that has merged the same files, and
duplicate all of their rows: its conflict check ignores commits that change no data. With
`max_commit_retries=0` it fails instead. Then the table is read again: if the files are still live,
the commit is retried; if not, the work is discarded. A landing neither waits nor fails: an append
does not conflict with a compaction.

The originals are deleted some hours after the commit, so the new file must be correct. Rows are
used only if the checksums of their pages match, if the file has the columns of the table, and if it
has as many rows and nulls as the log says: page checksums do not cover the footer, where a flipped
bit can rename a column. Before the commit, the new file is read back and compared with a second
read of the originals. Files of earlier versions and of other programs may have no page checksums:
their pages cannot be verified.

New files and their directory entries are synced before the commit, and the commit after it. A
killed attempt leaves files that no commit names, which vacuum deletes. If a new file cannot be
written or verified, the new files of the attempt are deleted. They stay after a failed commit,
which may have succeeded after all.
"""

import json
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from semel.counts import count
from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.errors import TableError
from semel.pipeline.files import (
    GROUP_ROWS,
    TableFolder,
    open_parquet_writer,
    partition_value,
    statistics_from,
)
from semel.store.roots import without_secrets
from semel.store.segments import encode_group_bytes, group_bytes

# Sizes of files in one class differ by at most this factor.
CLASS_RATIO: Final = 16
# The maximum number of files merged into one. It bounds the work that a kill loses in a table that
# has not been maintained for a long time.
GROUP_FILES: Final = 2_000
# A partition that got no file for this long counts as complete.
CLOSED_SECONDS: Final = 3600.0
# Arrow bytes that are buffered before a row group is written, and that are read at a time.
GROUP_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 16 * 1024 * 1024
READ_ROWS: Final = 64 * 1024
# Attempts to commit when other commits are first, and the delay between them.
ATTEMPTS: Final = 20
WAIT_SECONDS: Final = 0.05
# File names that all writers encode alike in the log, except for '%'.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9=._/%-]+", re.ASCII)
# How our commits record their operation; delta-rs itself records WRITE.
OPERATION_KEY: Final = "semel.operation"
OPTIMIZE: Final = "OPTIMIZE"


@dataclass(frozen=True)
class LiveFile:
    """A live file of one version of a table."""

    # As in the log.
    path: str
    size: int
    # None if the log does not say.
    rows: int | None
    # In milliseconds.
    modified: int
    partition: tuple[tuple[str, str | None], ...]

    @property
    def disk_path(self) -> str:
        """Its path relative to the table, as it is on disk."""
        return unquote(self.path)


@dataclass(frozen=True)
class Compacted:
    """The result of one commit of a compaction."""

    version: int
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int
    rows: int


class UnmergeableFiles(TableError):
    """Some files cannot be merged, because of what they are; others of the table may be."""


class DamagedFile(UnmergeableFiles):
    """A file does not hold what was written; it was not compacted."""


class Overtaken(Exception):
    """Other programs rewrote the files first: nothing was committed, and nothing is wrong."""


# --- planning -------------------------------------------------------------------------------------


def list_files(table: DeltaTable) -> list[LiveFile]:
    """The files of the loaded version."""
    columns = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    names = actions.column_names
    parts = [actions.column(f"partition.{name}").to_pylist() for name in columns]
    if "num_records" in names:
        counts = actions.column("num_records").to_pylist()
    else:
        counts = [None] * actions.num_rows
    found = []
    for place, (path, size, rows, modified) in enumerate(
        zip(
            actions.column("path").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            counts,
            actions.column("modification_time").to_pylist(),
            strict=True,
        )
    ):
        values = (partition_value(part[place]) for part in parts)
        partition = tuple(zip(columns, values, strict=True))
        found.append(LiveFile(path, size, rows, modified, partition))
    return found


def plan_all(files: Iterable[LiveFile], target_bytes: int) -> list[list[LiveFile]]:
    """Groups of files to merge, so that as few files as possible are below the target."""
    groups = []
    for members in _by_partition(files).values():
        small = [file for file in members if file.size < target_bytes]
        groups += [each for each in _fill(small, target_bytes) if len(each) > 1]
    return groups


def plan_due(
    files: Iterable[LiveFile], target_bytes: int, *, small_files: int, now: float
) -> list[list[LiveFile]]:
    """Groups of files that are worth merging now; `now` in seconds since 1970."""
    groups = []
    for members in _by_partition(files).values():
        small = [file for file in members if file.size < target_bytes / 2]
        closed = now - max(file.modified for file in members) / 1000 >= CLOSED_SECONDS
        if closed:
            groups += [each for each in _fill(small, target_bytes) if len(each) > 1]
            continue
        classes: dict[int, list[LiveFile]] = {}
        for file in small:
            classes.setdefault(_size_class(file.size, target_bytes), []).append(file)
        for alike in classes.values():
            if len(alike) >= small_files:
                groups += [each for each in _fill(alike, target_bytes) if len(each) > 1]
    return groups


def _by_partition(files: Iterable[LiveFile]) -> dict[Any, list[LiveFile]]:
    found: dict[Any, list[LiveFile]] = {}
    for file in sorted(files, key=lambda each: (each.modified, each.path)):
        found.setdefault(file.partition, []).append(file)
    return found


def _size_class(size: int, target_bytes: int) -> int:
    """0 for files of nearly the target size, higher for smaller ones."""
    found = 0
    while size * CLASS_RATIO < target_bytes:
        size = max(1, size) * CLASS_RATIO
        found += 1
    return found


def _fill(files: Sequence[LiveFile], target_bytes: int) -> list[list[LiveFile]]:
    """Groups of at most the target size and GROUP_FILES files, in order."""
    groups: list[list[LiveFile]] = []
    size = 0
    for file in files:
        is_full = groups and len(groups[-1]) == GROUP_FILES
        if not groups or is_full or size + file.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


# --- merging --------------------------------------------------------------------------------------


def check_can_compact(address: str, table: DeltaTable) -> None:
    """Raise TableError for a table whose rows are not exactly those in its files."""
    protocol = table.protocol()
    features = [*(protocol.reader_features or ())]
    if protocol.min_reader_version > 1 and not set(features) <= {"timestampNtz"}:
        names = ", ".join(features) or f"version {protocol.min_reader_version}"
        raise TableError(
            f"{without_secrets(address)} requires reader feature {names}, and semel does not "
            "compact such tables: use OPTIMIZE of the program that writes it"
        )


def compact(address: str, table: DeltaTable, groups: Sequence[Sequence[LiveFile]]) -> Compacted:
    """Merge each group into one file, with one commit, which is durable when this returns.

    Raises Overtaken if other programs have rewritten the files meanwhile, and TableError.
    """
    check_can_compact(address, table)
    removed = [file for group in groups for file in group]
    for file in removed:
        # delta-rs encodes the names of removed files itself. If the writer that added a file
        # encoded its name differently, it would stay in the table beside its replacement.
        if (
            not _PLAIN_PATH.fullmatch(file.disk_path)
            or file.disk_path.replace("%", "%25") != file.path
        ):
            raise UnmergeableFiles(
                f"{without_secrets(address)}: semel cannot compact file {file.path} because of its"
                " name: use OPTIMIZE of the program that writes the table"
            )
    folder = TableFolder(address)
    columns = pa.schema(table.schema())
    nulls = _null_counts(table, {file.path for file in removed})
    written: list[AddAction] = []
    try:
        for group in groups:
            written.append(_rewrite(_Sources(folder, group, columns, nulls)))
    except BaseException:
        for new in written:
            folder.discard(new.path)
        raise
    version = _commit(address, table, written, removed)
    return Compacted(
        version=version,
        files_added=len(written),
        bytes_added=sum(file.size for file in written),
        files_removed=len(removed),
        bytes_removed=sum(file.size for file in removed),
        rows=sum(json.loads(file.stats)["numRecords"] for file in written),
    )


def _null_counts(table: DeltaTable, paths: Collection[str]) -> dict[str, dict[str, int]]:
    """The number of nulls in each column of some files, as far as the log says."""
    actions = pa.table(table.get_add_actions(flatten=True))
    actions = actions.filter(pc.is_in(actions.column("path"), pa.array(paths, pa.string())))
    named = [
        (field.name, actions.column(f"null_count.{field.name}").to_pylist())
        for field in pa.schema(table.schema())
        if f"null_count.{field.name}" in actions.column_names
    ]
    return {
        path: {name: counts[row] for name, counts in named if counts[row] is not None}
        for row, path in enumerate(actions.column("path").to_pylist())
    }


class _Sources:
    """The files of a group, whose rows are read twice."""

    def __init__(
        self,
        folder: TableFolder,
        group: Sequence[LiveFile],
        columns: pa.Schema,
        nulls: Mapping[str, Mapping[str, int]],
    ) -> None:
        """`columns` is the schema of the table, `nulls` the null counts by path and column."""
        self.folder = folder
        self.group = group
        self.shown = without_secrets(folder.address)
        self._columns = columns
        self._nulls = nulls
        self.schema = self._common_schema()

    def _common_schema(self) -> pa.Schema:
        """The columns of all files; a column is null for the rows of files that lack it."""
        found: dict[str, pa.Schema] = {}
        for file in self.group:
            with self._damage(file), self.folder.open_parquet(file.disk_path) as opened:
                schema = pa.schema([_plain_field(field) for field in opened.schema_arrow])
            if str(schema) not in found:
                self._check_columns(file, schema)
                found[str(schema)] = schema
        try:
            return pa.unify_schemas(list(found.values()))
        except (pa.ArrowException, ValueError) as problem:
            raise UnmergeableFiles(
                f"{self.shown}: the files of a partition have different types: {one_line(problem)}"
            ) from problem

    def _check_columns(self, file: LiveFile, schema: pa.Schema) -> None:
        partition = [name for name, _ in file.partition]
        for field in schema:
            if field.name in self._columns.names:
                expected = _plain_field(self._columns.field(field.name)).type
                if pa.types.is_nested(field.type) or _is_like(field.type, expected):
                    continue
                found = f"its column {field.name!r} is {field.type}, but {expected} in the table"
            elif field.name in partition:
                continue
            else:
                found = f"it has a column {field.name!r}, which the table lacks"
            raise self._damaged(file, found)

    @contextmanager
    def _damage(self, file: LiveFile) -> Iterator[None]:
        """Turn an error while reading a file into a DamagedFile."""
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as problem:
            raise self._damaged(file, one_line(problem)) from problem

    def _damaged(self, file: LiveFile, what: str) -> DamagedFile:
        return DamagedFile(
            f"{self.shown}: file {file.path} cannot be read as it was written: {what}; it was not"
            " compacted. If it is damaged, restore it from a backup of the table"
        )

    def row_groups(self, *, verify: bool = True) -> Iterator[pa.Table]:
        """All rows, in pieces that fit into memory; the same pieces each time."""
        pending: list[pa.Table] = []
        rows = size = 0
        for file in self.group:
            for part in self._rows(file, verify=verify):
                pending.append(part)
                rows += part.num_rows
                size += part.nbytes
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    yield pa.concat_tables(pending)
                    pending, rows, size = [], 0, 0
        if pending:
            yield pa.concat_tables(pending)

    def _rows(self, file: LiveFile, *, verify: bool) -> Iterator[pa.Table]:
        """The rows of a file. Raises DamagedFile, possibly after the last row."""
        rows = 0
        nulls = dict.fromkeys(self.schema.names, 0)
        with (
            self._damage(file),
            self.folder.open_parquet(file.disk_path, verify=verify) as opened,
        ):
            for batch in opened.iter_batches(_batch_rows(opened.metadata), use_threads=False):
                part = _with_columns(pa.Table.from_batches([batch]), self.schema)
                rows += part.num_rows
                for name in nulls:
                    nulls[name] += part.column(name).null_count
                yield part
        if file.rows is not None and rows != file.rows:
            raise self._damaged(file, f"it has {count(rows, 'row')}, and the log says {file.rows}")
        for name, expected in self._nulls.get(file.path, {}).items():
            if nulls.get(name, expected) != expected:
                raise self._damaged(
                    file,
                    f"its column {name!r} has {count(nulls[name], 'null')}, and the log says"
                    f" {expected}",
                )


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """How many rows of a file are read at a time."""
    per_row = max(
        (
            size // max(1, metadata.row_group(group).num_rows)
            for group, size in enumerate(group_bytes(metadata))
        ),
        default=1,
    )
    return max(1, min(READ_ROWS, READ_BYTES // max(1, per_row)))


def _is_like(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a file may have a column of this type; some writers omit time zones."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(expected):
        return True
    return bool(found == expected)


def _rewrite(sources: _Sources) -> AddAction:
    """Write the rows of a group, in their order, to one file; durable and verified."""
    above = sources.group[0].disk_path.rpartition("/")[0]
    name = f"part-{secrets.token_hex(16)}.zstd.parquet"
    path = f"{above}/{name}" if above else name
    try:
        return _write_merged(sources, path)
    except BaseException as problem:
        sources.folder.discard(path)
        if isinstance(problem, OSError | RuntimeError | pa.ArrowException):
            raise TableError(
                f"{sources.shown} cannot be compacted: {one_line(problem)}"
            ) from problem
        raise


def _write_merged(sources: _Sources, path: str) -> AddAction:
    """Write the rows of a group to a file, and verify it. Leaves the file if an error occurs."""
    folder, schema = sources.folder, sources.schema
    footers: list[pq.FileMetaData] = []
    sizes: list[int] = []
    rows = 0
    with_nan: set[str] = set()
    floating = [field.name for field in schema if pa.types.is_floating(field.type)]
    with (
        folder.create(path) as sink,
        open_parquet_writer(sink, schema, footers) as writer,
    ):
        for part in sources.row_groups():
            writer.write_table(part, row_group_size=max(1, part.num_rows))
            sizes.append(part.nbytes)
            rows += part.num_rows
            for column in floating:
                if pc.any(pc.is_nan(part.column(column))).as_py():
                    with_nan.add(column)
        writer.add_key_value_metadata(encode_group_bytes(sizes))
    size = folder.fsync(path)
    _check_written(sources, path)
    statistics = statistics_from(footers[0], schema, rows, with_nan)
    return AddAction(
        path=path,
        size=size,
        partition_values=dict(sources.group[0].partition),
        modification_time=time.time_ns() // 1_000_000,
        data_change=False,
        stats=json.dumps(statistics, ensure_ascii=False),
    )


def _check_written(sources: _Sources, path: str) -> None:
    """Raise TableError unless a new file holds exactly the rows of its sources, in order."""
    with sources.folder.open_parquet(path) as opened:
        number = 0
        # The new file was made from verified pages: if the rows are equal, that is enough.
        for part in sources.row_groups(verify=False):
            if number < opened.num_row_groups:
                found = opened.read_row_group(number, use_threads=False)
                if _is_same(_with_columns(found, sources.schema), part):
                    number += 1
                    continue
            break
        else:
            if number == opened.num_row_groups:
                return
    raise TableError(
        f"{sources.shown} cannot be compacted: {path}, which was just written, differs from its"
        " sources; nothing was committed. Check the memory and the disks of this machine"
    )


def _is_same(found: pa.Table, expected: pa.Table) -> bool:
    """Whether two tables have the same rows. NaN equals NaN here, unlike in `equals`."""
    if found.equals(expected):
        return True
    return found.num_rows == expected.num_rows and all(
        one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
        for one, other in zip(found.columns, expected.columns, strict=True)
    )


def _plain_field(field: pa.Field) -> pa.Field:
    """A nullable column with the type of Delta that corresponds to an Arrow type."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        kind = pa.binary()
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    return pa.field(field.name, kind, nullable=True)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


# --- committing -----------------------------------------------------------------------------------


def _commit(
    address: str, table: DeltaTable, added: Sequence[AddAction], removed: Sequence[LiveFile]
) -> int:
    """Replace files by others that hold the same rows; returns the new version."""
    merged = {file.path for file in removed}
    new = {file.path for file in added}
    at = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        *added,
        *(
            RemoveAction(file.disk_path, False, at, file.size, dict(file.partition))
            for file in removed
        ),
    ]
    with table_errors(address):
        for _ in range(ATTEMPTS):
            table.update_incremental()
            live = {file.path for file in list_files(table)}
            if not merged <= live:
                if {unquote(path) for path in live} >= new:
                    # The commit succeeded, although an error was reported.
                    return _fsync(address, table.version())
                raise Overtaken
            version = table.version() + 1
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    list(table.metadata().partition_columns) or None,
                    commit_properties=CommitProperties(
                        # Only as the next version: see the module docstring.
                        max_commit_retries=0,
                        custom_metadata={OPERATION_KEY: OPTIMIZE},
                    ),
                    post_commithook_properties=PostCommitHookProperties(
                        create_checkpoint=False, cleanup_expired_logs=False
                    ),
                )
            except DeltaError as problem:
                table.update_incremental()
                if table.version() < version:
                    # No other commit was first, so a retry would fail too.
                    raise TableError(
                        f"{without_secrets(address)}: {one_line(problem)}"
                    ) from problem
                time.sleep(WAIT_SECONDS)
                continue
            return _fsync(address, version)
    raise Overtaken


def _fsync(address: str, version: int) -> int:
    try:
        fsync_commit(address, version)
    except OSError as problem:
        shown = without_secrets(address)
        raise TableError(f"{shown}: version {version} may not be on disk: {problem}") from problem
    return version
