"""Rows by key: a batch replaces the rows of a table that have the same key.

Files that hold such rows are written again without them, by us and synced before the commit, as all
other files are; the commit adds and removes files at once. To find them, the key columns of all
files of the table are read. The keys of a batch are in memory on the driver. Files of the table are
verified whenever they are read (`file_verification.py`), because what was misread would replace the
original.

Other writers store the same times in other units: Spark's INT96 has nanoseconds and no zone. So
times are compared, and written again, in the type of the table.

If a key has a newest row (`newest_by`), an older one never replaces it: of all rows with a key, in
the batch and in the table, the newest stays.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from semel.pipeline.errors import TableError
from semel.pipeline.file_verification import FileReader
from semel.pipeline.files import DataFile, TableLayout, write_files
from semel.pipeline.live_files import LiveFile, list_files
from semel.store.roots import without_secrets

_SEPARATOR: Final = "\x1f"
_NULL: Final = "\x00"
_KEY: Final = "_key"
_PLACE: Final = "_place"


def upserted_files(
    address: str,
    table: DeltaTable,
    files: Sequence[DataFile],
    key: Sequence[str],
    newest_by: Sequence[str] = (),
) -> tuple[list[DataFile], list[RemoveAction]]:
    """The files that the commit of a batch adds, and those that it removes.

    Raises TableError if the batch has a key twice without `newest_by`, if a file of the table is
    damaged, or if the table has deletion vectors, which files that are written again would lose.
    """
    shown = without_secrets(address)
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise TableError(
            f"{shown} has deletion vectors, so that its files cannot be written again: rewrite the"
            " table without them"
        )
    reader = FileReader(address, table)
    kinds = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    names = [*key, *newest_by]
    batch = [
        _KeyedRows(
            reader.read(file, [each for each in names if each not in file.partition]),
            file.partition,
            key,
            kinds,
            newest_by,
        )
        for file in files
    ]
    if not batch:
        return [], []
    keys = pa.concat_arrays([each.keys for each in batch])
    if not newest_by and len(pc.unique(keys)) < len(keys):
        raise TableError(
            f"{shown}: a batch has two rows with the same key ({', '.join(key)}); nothing was"
            " committed"
        )
    live: list[tuple[LiveFile, _KeyedRows]] = []
    for live_file in list_files(table):
        partition = dict(live_file.partition)
        rows = reader.read(live_file, [each for each in names if each not in partition])
        part = _KeyedRows(rows, partition, key, kinds, newest_by)
        if pc.any(pc.is_in(part.keys, value_set=keys), min_count=0).as_py():
            live.append((live_file, part))
    stays = _newest([*batch, *(part for _, part in live)], newest_by) if newest_by else None
    added: list[DataFile] = []
    for place, file in enumerate(files):
        kept = None if stays is None else stays[place]
        if kept is None or pc.all(kept, min_count=0).as_py():
            added.append(file)
        elif pc.any(kept, min_count=0).as_py():
            rows = reader.read(file).filter(kept)
            added += _written_again(address, file.path, file.partition, rows)
    removed: list[RemoveAction] = []
    now = time.time_ns() // 1_000_000
    for place, (live_file, part) in enumerate(live):
        if stays is None:
            kept = pc.invert(pc.is_in(part.keys, value_set=keys))
        else:
            kept = stays[len(batch) + place]
            if pc.all(kept, min_count=0).as_py():
                continue
        partition = dict(live_file.partition)
        rows = _with_times_of(reader.read(live_file).filter(kept), kinds)
        added += _written_again(address, live_file.disk_path, partition, rows)
        removed.append(RemoveAction(live_file.disk_path, True, now, live_file.size, partition))
    return added, removed


class _KeyedRows:
    """The keys of a file, and by what the newest of them is found."""

    def __init__(
        self,
        rows: pa.Table,
        partition: Mapping[str, str | None],
        key: Sequence[str],
        kinds: Mapping[str, Any],
        newest_by: Sequence[str],
    ) -> None:
        rows = _with_times_of(rows, kinds)
        self.keys = _keys(rows, partition, key, kinds)
        self.order = [rows.column(name) for name in newest_by]


def _newest(parts: Sequence[_KeyedRows], newest_by: Sequence[str]) -> list[pa.Array]:
    """For each row of each part, whether it is the newest of its key."""
    keys = pa.concat_arrays([each.keys for each in parts])
    count = len(keys)
    columns = [keys, pa.array(range(count), pa.int64())]
    for place in range(len(newest_by)):
        chunks = [chunk for each in parts for chunk in each.order[place].chunks]
        columns.append(pa.chunked_array(chunks))
    rows = pa.table(columns, names=[_KEY, _PLACE, *newest_by])
    winners = pc.is_in(rows.column(_PLACE), value_set=_places_of_newest(rows, newest_by))
    found = []
    at = 0
    for each in parts:
        found.append(winners.slice(at, len(each.keys)).combine_chunks())
        at += len(each.keys)
    return found


def newest_rows(rows: pa.Table, key: Sequence[str], newest_by: Sequence[str]) -> pa.Table:
    """The newest row of each key."""
    names = _keys(rows, {}, key, {field.name: field.type for field in rows.schema})
    marked = rows.append_column(_KEY, names)
    marked = marked.append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(_places_of_newest(marked, newest_by))


def _places_of_newest(rows: pa.Table, newest_by: Sequence[str]) -> pa.Array:
    order = [(name, "descending") for name in newest_by]
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[*order, (_PLACE, "ascending")]))
    first = ordered.group_by(_KEY, use_threads=False).aggregate([(_PLACE, "first")])
    return first.column(f"{_PLACE}_first").combine_chunks()


def _with_times_of(rows: pa.Table, kinds: Mapping[str, Any]) -> pa.Table:
    """The same rows, with times of the types that the table has, which are in microseconds."""
    for place, field in enumerate(rows.schema):
        kind = kinds.get(field.name, field.type)
        if field.type != kind and _has_times(kind):
            # Delta has no nanoseconds.
            column = rows.column(place).cast(kind, safe=False)
            rows = rows.set_column(place, field.with_type(kind), column)
    return rows


def _has_times(kind: Any) -> bool:
    if pa.types.is_timestamp(kind):
        return True
    inner = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return any(_has_times(kind.field(each).type) for each in inner)


def _written_again(
    address: str, path: str, partition: dict[str, str | None], rows: pa.Table
) -> Iterator[DataFile]:
    layout = TableLayout(address, folder=path.rpartition("/")[0])
    for each in write_files(rows.to_batches(), layout):
        yield replace(each, partition=partition)


def _keys(
    rows: pa.Table,
    partition: Mapping[str, str | None],
    key: Sequence[str],
    kinds: Mapping[str, Any],
) -> pa.Array:
    """One text for each key. Null equals null. Partition columns are not in `rows`."""
    texts = []
    for name in key:
        if name in partition:
            value = pa.scalar(partition[name], pa.string())
            if pa.types.is_timestamp(kinds[name]):
                # The log has them in UTC, without a zone.
                value = value.cast(pa.timestamp("us"))
            column = pa.repeat(value.cast(kinds[name]), rows.num_rows)
        else:
            column = rows.column(name)
        text = pc.cast(column, pa.string())
        # So that no value contains the separator or looks like null.
        text = pc.replace_substring(text, "\\", "\\\\")
        text = pc.replace_substring(text, _SEPARATOR, "\\s")
        text = pc.replace_substring(text, _NULL, "\\0")
        texts.append(pc.fill_null(text, _NULL))
    joined = pc.binary_join_element_wise(*texts, _SEPARATOR)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
