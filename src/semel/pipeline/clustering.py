"""Clustering: the rows of a merged file, sorted by some columns of the table.

Whoever reads one device of many reads only the row groups whose bounds include it. So these must be
small, and rows of a device must be next to each other. Files themselves stay in order of time,
because files are merged in that order.

The rows of a group of files may be many times larger than memory. They are sorted in runs, which
are written, uncompressed, to a temporary file and mapped into memory; then the runs are merged:

    run 0   ▒▒▒▒░░░░▒▒▒▒░░░░            The last row of each block, of all runs, in order, tells
    run 1   ▒▒▒▒░░░░▒▒▒▒░░░░            which blocks come next. Of the key columns of a run, those
    run 2   ▒▒▒▒░░░░▒▒▒▒░░              blocks and the following one are sorted at a time.

What is in memory depends neither on the number of rows nor on their size: a run, the keys of some
blocks for each run, and a row group. Pages of the temporary file are read once, in order, and the
system can drop them.

Sorting is stable, nulls are last, and NaN is before them: the same rows in the same order give the
same pieces.
"""

import json
import mmap
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

# The table property with the columns, as a JSON list, so that every compaction finds them.
CLUSTER_BY: Final = "semel.clusterBy"
# Rows with the same values are sorted by these, if the table has them: as they were received.
THEN_BY: Final = ("node", "seq")
# Rows of a row group, chosen by the measurement in bench/README.md: with fewer, footers take longer
# to read than the rows that they save; with more, many rows are read for the sake of a few.
CLUSTER_ROWS: Final = 64 * 1024
# Rows of a run whose order is known by its last one, and how many such blocks are merged at a time.
BLOCK_ROWS: Final = 4096
MERGED_BLOCKS: Final = 256
_RUN: Final = "run"
_POSITION: Final = "position"


@dataclass(frozen=True)
class ClusterColumns:
    """The columns by which a table is clustered; none: it is not."""

    columns: tuple[str, ...] = ()
    # What is wrong with the property of the table, or an empty string.
    problem: str = ""


def cluster_columns(table: DeltaTable) -> ClusterColumns:
    """The columns by which merged files of a table are sorted.

    Columns that the table does not have (any more), or that have no order, are left out: the
    property may be older than the columns.
    """
    text = table.metadata().configuration.get(CLUSTER_BY)
    if text is None:
        return ClusterColumns()
    names = _parse(text)
    if names is None:
        return ClusterColumns(problem=f"table property {CLUSTER_BY} is not a list of columns")
    kinds = {field.name: field.type for field in pa.schema(table.schema())}
    partition = table.metadata().partition_columns
    known = tuple(name for name in names if name in kinds and is_sortable(kinds[name]))
    ignored = [name for name in names if name not in known]
    problem = ""
    if ignored:
        problem = (
            f"table property {CLUSTER_BY} names {', '.join(ignored)}, and the table has no such"
            " column by which rows can be sorted"
        )
    # All rows of a file have the same value of a partition column.
    return ClusterColumns(tuple(name for name in known if name not in partition), problem)


def _parse(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return None
    return list(dict.fromkeys(found))


def cluster_property(columns: Sequence[str], configuration: Mapping[str, str]) -> dict[str, str]:
    """The property that records the columns; none for a table that never was clustered."""
    if not columns and CLUSTER_BY not in configuration:
        return {}
    return {CLUSTER_BY: json.dumps(list(columns), ensure_ascii=False)}


def is_sortable(kind: pa.DataType) -> bool:
    """Whether rows can be sorted by a column of this type, and readers skip rows by its bounds."""
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_binary = is_binary or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or is_binary)


def sort_keys(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """The columns to sort by: those of the table that a schema has, then those of the record."""
    names = dict.fromkeys((*columns, *THEN_BY))
    known = [name for name in names if name in schema.names]
    return tuple(name for name in known if is_sortable(schema.field(name).type))


# --- sorting --------------------------------------------------------------------------------------


def sorted_pieces(
    parts: Iterator[pa.Table],
    keys: Sequence[str],
    *,
    piece_rows: int,
    piece_bytes: int,
    folder: Path | None,
    block_rows: int = BLOCK_ROWS,
    merged_blocks: int = MERGED_BLOCKS,
) -> Generator[pa.Table, None, None]:
    """All rows, sorted, in pieces of at most this many rows and bytes, or of one row.

    `parts` are the rows in their original order; each is sorted in memory. If there are several,
    they go through a temporary file in `folder` (None: the system's folder for such files), which
    never has a name, so that a killed process leaves nothing.
    """
    first = next(parts, None)
    if first is None:
        return
    second = next(parts, None)
    if second is None:
        yield from _slices(_sorted(first, keys), piece_rows, piece_bytes)
        return
    with TemporaryFile(dir=folder) as file:
        with pa.ipc.new_file(file, first.schema) as writer:
            for part in (first, second):
                writer.write_table(_sorted(part, keys))
            del first, second, part
            for part in parts:
                writer.write_table(_sorted(part, keys))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        runs = [
            pa.Table.from_batches([reader.get_batch(number)])
            for number in range(reader.num_record_batches)
        ]
        places = _merged_places(
            [run.select(list(keys)) for run in runs], keys, block_rows, merged_blocks
        )
        yield from _merged_pieces(runs, places, piece_rows, piece_bytes)


def _order(rows: pa.Table, keys: Sequence[str]) -> Any:
    """The places of rows in sorted order."""
    # Arrow's sort is stable, and puts nulls last unless told otherwise.
    ascending = [(name, "ascending") for name in keys]
    return pc.sort_indices(rows.select(list(keys)), sort_keys=ascending)


def _sorted(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    # In one chunk, because `take` would join all chunks for each column anyway.
    whole = rows.combine_chunks()
    return whole.take(_order(whole, keys))


def _slices(rows: pa.Table, piece_rows: int, piece_bytes: int) -> Iterator[pa.Table]:
    begin = 0
    while begin < rows.num_rows:
        piece = rows.slice(begin, piece_rows)
        while piece.nbytes > piece_bytes and piece.num_rows > 1:
            piece = piece.slice(0, piece.num_rows // 2)
        yield piece
        begin += piece.num_rows


def _merged_pieces(
    runs: Sequence[pa.Table], places: Iterator[pa.Table], piece_rows: int, piece_bytes: int
) -> Iterator[pa.Table]:
    """The rows of sorted runs at these places, in pieces."""
    # The next row of each run. A piece has consecutive rows of each run, because runs are sorted.
    at = [0] * len(runs)
    pending: pa.Table | None = None
    for merged in places:
        pending = merged if pending is None else pa.concat_tables([pending, merged])
        while pending.num_rows >= piece_rows:
            piece, taken = _piece(runs, at, pending.slice(0, piece_rows), piece_bytes)
            yield piece
            pending = pending.slice(taken)
    while pending is not None and pending.num_rows:
        piece, taken = _piece(runs, at, pending, piece_bytes)
        yield piece
        pending = pending.slice(taken)


def _piece(
    runs: Sequence[pa.Table], at: list[int], places: pa.Table, piece_bytes: int
) -> tuple[pa.Table, int]:
    """The rows at the first places, and how many there are. Moves `at` on."""
    while True:
        counts = _counts(places.column(_RUN))
        slices = [runs[run].slice(at[run], counts[run]) for run in sorted(counts)]
        rows = pa.concat_tables(slices)
        if rows.nbytes <= piece_bytes or places.num_rows == 1:
            break
        places = places.slice(0, places.num_rows // 2)
    for run, count in counts.items():
        at[run] += count
    # The slices have these rows in ascending order of their positions.
    positions = places.column(_POSITION).combine_chunks()
    local = pc.subtract(pc.rank(positions, tiebreaker="first"), pa.scalar(1, pa.uint64()))
    return rows.combine_chunks().take(local), places.num_rows


def _merged_places(
    runs: Sequence[pa.Table], keys: Sequence[str], block_rows: int, merged_blocks: int
) -> Iterator[pa.Table]:
    """Run and position of all rows of sorted runs, in sorted order.

    `runs` have only the keys. The position of a row is its number among the rows of all runs.
    """
    starts = [0, *accumulate(run.num_rows for run in runs)]
    # Run and row of the last row of each block, in sorted order. Blocks of a run are in order.
    ends = [
        [min(begin + block_rows, run.num_rows) - 1 for begin in range(0, run.num_rows, block_rows)]
        for run in runs
    ]
    last_rows = pa.concat_tables(
        run.take(pa.array(rows, pa.int64())) for run, rows in zip(runs, ends, strict=True)
    )
    listed = [(number, row) for number, rows in enumerate(ends) for row in rows]
    ordered = [listed[place] for place in _order(last_rows, keys).to_pylist()]
    step = max(merged_blocks, len(runs))
    at = [0] * len(runs)
    blocks = [0] * len(runs)
    for begin in range(0, len(ordered), step):
        chosen = ordered[begin : begin + step]
        for run, _ in chosen:
            blocks[run] += 1
        # Rows before the last of these ends can also be in the block that follows in each run.
        counts = [
            min(run.num_rows, (blocks[number] + 1) * block_rows) - at[number]
            for number, run in enumerate(runs)
        ]
        offsets = [0, *accumulate(counts)]
        loaded = pa.concat_tables(
            run.slice(at[number], counts[number]) for number, run in enumerate(runs)
        )
        order = _order(loaded, keys)
        run, row = chosen[-1]
        through = pc.index(order, offsets[run] + row - at[run]).as_py()
        firsts = [start + row for start, row in zip(starts, at, strict=False)]
        places = _places(firsts, counts).take(order.slice(0, through + 1))
        for number, count in _counts(places.column(_RUN)).items():
            at[number] += count
        yield places


def _places(firsts: Sequence[int], counts: Sequence[int]) -> pa.Table:
    """Run and position of consecutive rows of each run, from a first position on."""
    runs = [pa.repeat(pa.scalar(run, pa.int32()), count) for run, count in enumerate(counts)]
    positions = [
        pa.arange(first, first + count).cast(pa.uint64())
        for first, count in zip(firsts, counts, strict=True)
    ]
    return pa.table({_RUN: pa.concat_arrays(runs), _POSITION: pa.concat_arrays(positions)})


def _counts(runs: Any) -> dict[int, int]:
    """How often each run occurs."""
    return {each["values"]: each["counts"] for each in pc.value_counts(runs).to_pylist()}
