"""Compaction of a Delta table: many small files become a few large ones, and no row changes.

    plan (pure) ─▶ rewrite: read the files, write and sync new ones ─▶ one commit: remove + add

Files are merged only within a partition. In a partition that is still being written, files of
similar size are merged when there are `small_files` of them, so that each byte is rewritten only a
few times on its way to a file of the target size (a merge tree, as in an LSM store). In a partition
that has not been written for an hour all files below the target are merged.

Rows keep their order, or are sorted by the columns of the table property `semel.clusterBy`
(`clustering.py`). The commit loses every conflict (`live_files.py`).

The originals are deleted some hours after the commit, so the new file must be correct. Rows are
used only if the checksums of their pages match, and if the file has the columns, rows, nulls and
bounds that the table and its log say (`file_verification.py`). Before the commit, the new file is
read back and compared with a second read of the originals. Files of earlier versions and of other
programs may have no page checksums: their pages cannot be verified.

New files and their directory entries are synced before the commit, and the commit after it. A
killed attempt leaves files that no commit names, which vacuum deletes. If a new file cannot be
written or verified, the new files of the attempt are deleted. They stay after a failed commit,
which may have succeeded after all.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from semel.pipeline.arrow_types import plain_field
from semel.pipeline.clustering import CLUSTER_ROWS, cluster_columns, sort_keys, sorted_pieces
from semel.pipeline.delta_errors import one_line
from semel.pipeline.errors import TableError
from semel.pipeline.file_verification import LogRecords, RowCheck, wrong_schema
from semel.pipeline.files import (
    GROUP_ROWS,
    READ_ERRORS,
    FloatStatistics,
    TableFolder,
    open_parquet_writer,
    statistics_from,
)
from semel.pipeline.live_files import LiveFile, check_plain_files, replace_files
from semel.store.roots import without_secrets
from semel.store.segments import encode_group_bytes, group_bytes

# Sizes of files in one class differ by at most this factor.
CLASS_RATIO: Final = 16
# The maximum number of files merged into one. It bounds the work that a kill loses in a table that
# has not been maintained for a long time.
GROUP_FILES: Final = 2_000
# A partition that got no file for this long counts as complete.
CLOSED_SECONDS: Final = 3600.0
READ_ROWS: Final = 64 * 1024
OPTIMIZE: Final = "OPTIMIZE"


@dataclass(frozen=True)
class MergeLimits:
    """How much of a group is in memory at a time."""

    # Arrow bytes that are buffered before a row group is written, and that are read at a time.
    group_bytes: int = 64 * 1024 * 1024
    read_bytes: int = 16 * 1024 * 1024
    # Rows of a row group, if rows are sorted.
    cluster_rows: int = CLUSTER_ROWS


LIMITS: Final = MergeLimits()


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


# --- planning -------------------------------------------------------------------------------------


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


def compact(
    address: str,
    table: DeltaTable,
    groups: Sequence[Sequence[LiveFile]],
    *,
    limits: MergeLimits = LIMITS,
    folder: TableFolder | None = None,
    now: Callable[[], float] = time.time,
) -> Compacted:
    """Merge each group into one file, with one commit, which is durable when this returns.

    `folder` has the files of the table (None: those at its address). Raises Overtaken if other
    programs have rewritten the files meanwhile, and TableError.
    """
    check_plain_files(address, table, operation="compact such tables: use OPTIMIZE")
    removed = [file for group in groups for file in group]
    for file in removed:
        if not file.is_removable:
            raise UnmergeableFiles(
                f"{without_secrets(address)}: semel cannot compact file {file.path} because of its"
                " name: use OPTIMIZE of the program that writes the table"
            )
    folder = folder or TableFolder(address)
    columns = pa.schema(table.schema())
    records = LogRecords(table)
    clustered = cluster_columns(table)
    written: list[AddAction] = []
    try:
        for group in groups:
            sources = _Sources(folder, group, columns, records, limits, clustered.columns)
            written.append(_rewrite(sources, now))
    except BaseException:
        for new in written:
            folder.discard(new.path)
        raise
    version = replace_files(
        address, table, written, removed, operation=OPTIMIZE, changes_rows=False, now=now
    )
    return Compacted(
        version=version,
        files_added=len(written),
        bytes_added=sum(file.size for file in written),
        files_removed=len(removed),
        bytes_removed=sum(file.size for file in removed),
        rows=sum(json.loads(file.stats)["numRecords"] for file in written),
    )


class _Sources:
    """The files of a group, whose rows are read twice."""

    def __init__(
        self,
        folder: TableFolder,
        group: Sequence[LiveFile],
        columns: pa.Schema,
        records: LogRecords,
        limits: MergeLimits,
        cluster_by: Sequence[str] = (),
    ) -> None:
        """`columns` is the schema of the table, `records` what its log says.

        With `cluster_by`, rows are sorted by these columns, as far as the files have them.
        """
        self.folder = folder
        self.group = group
        self.shown = without_secrets(folder.address)
        self._columns = columns
        self._records = records
        self._limits = limits
        self.schema = self._common_schema()
        self._keys = sort_keys(cluster_by, self.schema) if cluster_by else ()

    def _common_schema(self) -> pa.Schema:
        """The columns of all files; a column is null for the rows of files that lack it."""
        found: dict[str, pa.Schema] = {}
        for file in self.group:
            with self._damage(file), self.folder.open_parquet(file.disk_path) as opened:
                self._check(file, wrong_schema(opened, self._columns))
                schema = pa.schema([plain_field(field) for field in opened.schema_arrow])
            found.setdefault(str(schema), schema)
        try:
            return pa.unify_schemas(list(found.values()))
        except (pa.ArrowException, ValueError) as problem:
            raise UnmergeableFiles(
                f"{self.shown}: the files of a partition have different types: {one_line(problem)}"
            ) from problem

    @contextmanager
    def _damage(self, file: LiveFile) -> Iterator[None]:
        """Turn an error while reading a file into a DamagedFile."""
        try:
            yield
        except READ_ERRORS as problem:
            self._check(file, one_line(problem), problem)

    def _check(self, file: LiveFile, what: str | None, cause: Exception | None = None) -> None:
        if what is not None:
            raise DamagedFile(
                f"{self.shown}: file {file.path} cannot be read as it was written: {what}; it was"
                " not compacted. If it is damaged, restore it from a backup of the table"
            ) from cause

    def row_groups(self, *, verify: bool = True) -> Iterator[pa.Table]:
        """All rows, in pieces that fit into memory; the same pieces each time."""
        if not self._keys:
            return self._pieces(verify=verify)
        return sorted_pieces(
            self._pieces(verify=verify),
            self._keys,
            piece_rows=self._limits.cluster_rows,
            piece_bytes=self._limits.group_bytes,
            # Beside the table, because the folder for temporary files may be in memory.
            folder=self.folder.local,
        )

    def _pieces(self, *, verify: bool) -> Iterator[pa.Table]:
        """All rows in the order of the files."""
        pending: list[pa.Table] = []
        rows = size = 0
        for file in self.group:
            for part in self._rows(file, verify=verify):
                pending.append(part)
                rows += part.num_rows
                size += part.nbytes
                if rows >= GROUP_ROWS or size >= self._limits.group_bytes:
                    yield pa.concat_tables(pending)
                    pending, rows, size = [], 0, 0
        if pending:
            yield pa.concat_tables(pending)

    def _rows(self, file: LiveFile, *, verify: bool) -> Iterator[pa.Table]:
        """The rows of a file. Raises DamagedFile, possibly after the last row."""
        record = self._records.of(file.path)
        # The second read is compared with the first one.
        checked = RowCheck(record if verify else replace(record, bounds={}))
        with (
            self._damage(file),
            self.folder.open_parquet(file.disk_path, verify=verify) as opened,
        ):
            batch_rows = _batch_rows(opened.metadata, self._limits.read_bytes)
            for batch in opened.iter_batches(batch_rows, use_threads=False):
                part = pa.Table.from_batches([batch])
                checked.add(part)
                yield _with_columns(part, self.schema)
        self._check(file, checked.damage())


def _batch_rows(metadata: pq.FileMetaData, read_bytes: int) -> int:
    """How many rows of a file are read at a time."""
    per_row = max(
        (
            size // max(1, metadata.row_group(group).num_rows)
            for group, size in enumerate(group_bytes(metadata))
        ),
        default=1,
    )
    return max(1, min(READ_ROWS, read_bytes // max(1, per_row)))


def _rewrite(sources: _Sources, now: Callable[[], float]) -> AddAction:
    """Write the rows of a group to one file; durable and verified."""
    above = sources.group[0].disk_path.rpartition("/")[0]
    name = f"part-{secrets.token_hex(16)}.zstd.parquet"
    path = f"{above}/{name}" if above else name
    try:
        return _write_merged(sources, path, now)
    except BaseException as problem:
        sources.folder.discard(path)
        if isinstance(problem, OSError | RuntimeError | pa.ArrowException):
            raise TableError(
                f"{sources.shown} cannot be compacted: {one_line(problem)}"
            ) from problem
        raise


def _write_merged(sources: _Sources, path: str, now: Callable[[], float]) -> AddAction:
    """Write the rows of a group to a file, and verify it. Leaves the file if an error occurs."""
    folder, schema = sources.folder, sources.schema
    footers: list[pq.FileMetaData] = []
    sizes: list[int] = []
    rows = 0
    floats = FloatStatistics(schema)
    with (
        folder.create(path) as sink,
        open_parquet_writer(sink, schema, footers) as writer,
    ):
        for part in sources.row_groups():
            writer.write_table(part, row_group_size=max(1, part.num_rows))
            sizes.append(part.nbytes)
            rows += part.num_rows
            floats.add(part)
        writer.add_key_value_metadata(encode_group_bytes(sizes))
    size = folder.fsync(path)
    _check_written(sources, path)
    statistics = statistics_from(footers[0], schema, rows, floats)
    return AddAction(
        path=path,
        size=size,
        partition_values=dict(sources.group[0].partition),
        modification_time=round(now() * 1000),
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
