"""Dead letters: messages that a table takes by its topic, but cannot decode.

They are rows of one Delta table of the lake, each with the table that it was for, the reason, the
column or byte where it failed, and the payload. So one bad payload neither stops the landing nor is
it lost.

For each table and node, an app transaction of the dead letters has the seq of the last one. They
are committed before the rows of their table, so that a repeated batch finds that it may have been
there, and compares messages:

    semel/dead/<stream>/<table>/<node>

`dead_letter_retry.py` decodes them again, after the landing file was corrected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from pyspark.sql.types import StructType

from semel.pipeline.arrow_types import with_plain_types
from semel.pipeline.files import REPEATED, DataFile, TableFolder, TableLayout, write_files
from semel.pipeline.lake import dataset_of
from semel.pipeline.landing_file import ALWAYS
from semel.pipeline.source_columns import COLUMNS as RECORD_COLUMNS
from semel.pipeline.source_columns import DATE
from semel.pipeline.table import CommitChoice, LandingBatch, cached_table

if TYPE_CHECKING:
    from semel.pipeline.decoders.outcome import Problem
    from semel.pipeline.table_rows import TableShape

# The columns of dead letters. Those of the record that tables have (`message_columns`) are added.
COLUMNS: Final = {
    "stream": "string",
    # Not called table, column or byte, which are keywords of SQL.
    "table_name": "string",
    **{name: RECORD_COLUMNS[name] for name in (*ALWAYS, "payload")},
    "reason": "string",
    "column_name": "string",
    "byte_offset": "int",
}
# Dead letters that are read at a time.
PIECE_ROWS: Final = 10_000


def dead_letters_layout(address: str) -> TableLayout:
    """How dead letters are written to files."""
    return TableLayout(address, (DATE,), numbering=REPEATED)


def dead_letters_of(rows: pa.Table, problems: str, shape: "TableShape", stream: str) -> pa.Table:
    """The dead letters of a table, from rows whose column `problems` is not null."""
    payloads = rows.column("payload").to_pylist()
    found = rows.column(problems).to_pylist()
    for place, payload in enumerate(payloads):
        if found[place]["reason"] is None:
            found[place] = asdict(explain(payload, shape))
    count = rows.num_rows
    columns = {name: rows.column(name) for name in rows.column_names if name in RECORD_COLUMNS}
    columns["stream"] = pa.array([stream] * count, pa.string())
    columns["table_name"] = pa.array([shape.name] * count, pa.string())
    columns["reason"] = pa.array([each["reason"] for each in found], pa.string())
    columns["column_name"] = pa.array([each["column"] for each in found], pa.string())
    columns["byte_offset"] = pa.array([each["byte"] for each in found], pa.int32())
    columns[DATE] = rows.column(DATE)
    names = column_names(rows.column_names)
    return pa.table([columns[name] for name in names], names=names)


def column_names(record: Iterable[str]) -> list[str]:
    """The columns of dead letters of messages that have these columns of the record."""
    added = [name for name in record if name in RECORD_COLUMNS and name not in COLUMNS]
    return [*COLUMNS, *added, DATE]


def schema_json(record: Iterable[str]) -> str:
    """The schema of dead letters, as JSON of Spark."""
    kinds = RECORD_COLUMNS | COLUMNS | {DATE: "date"}
    ddl = ", ".join(f"{name} {kinds[name]}" for name in column_names(record))
    return StructType.fromDDL(ddl).json()


def explain(payload: bytes, shape: "TableShape") -> "Problem":
    """Why Spark could not decode a payload of text."""
    from semel.pipeline.decoders.compression import decompress
    from semel.pipeline.decoders.outcome import Problem

    if shape.compression is not None:
        from semel.pipeline.arrow_decoding import DECOMPRESSED_BYTES

        plain, problems = decompress(
            pa.array([payload], pa.binary()), shape.compression, DECOMPRESSED_BYTES
        )
        if problems:
            return problems[0]
        payload = plain[0].as_py()
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError as problem:
        return Problem("the payload is not UTF-8", byte=problem.start)
    return Problem("the payload is no text that Spark can read")


# --- committing -----------------------------------------------------------------------------------


def dead_id(stream: str, table: str, node: str) -> str:
    """The app transaction whose version is the seq of the last dead letter of a table and node."""
    return f"semel/dead/{stream}/{table}/{node}"


def commit_dead_letters(
    address: str, stream: str, table: str, files: Sequence[DataFile], schema: str
) -> None:
    """Commit the dead letters of one table that are not there yet. Raises TableError.

    `schema` is that of `schema_json`.
    """

    def select(loaded: DeltaTable, files: Sequence[DataFile]) -> CommitChoice:
        nodes = {node for each in files for node in each.runs}
        landed = {
            node: loaded.transaction_version(dead_id(stream, table, node)) or 0 for node in nodes
        }
        known = _known(loaded, stream, table, files, landed)
        new = [part for each in files for part in _unknown_part(address, each, known)]
        last: dict[str, int] = {}
        for each in new:
            for node, runs in each.runs.items():
                last[node] = max(last.get(node, 0), runs[-1][1])
        transactions = [
            Transaction(dead_id(stream, table, node), seq) for node, seq in sorted(last.items())
        ]
        return (new, transactions) if new else None

    cached_table(address).commit(
        LandingBatch(
            files=files,
            schema=schema,
            partition_by=(DATE,),
            may_add_columns=True,
            select=select,
            description="Messages that a landing could not decode",
        )
    )


def _known(
    loaded: DeltaTable,
    stream: str,
    table: str,
    files: Sequence[DataFile],
    landed: Mapping[str, int],
) -> pa.Array | None:
    """The messages of the dead letters of a table up to the last of them, in the range of files.

    None if the files begin after it. Otherwise the batch is a repeated one. It may have other dead
    letters than the first time, if the landing file was changed in between: so messages are
    compared, and not only their numbers with the last one.
    """
    firsts = [
        runs[0][0]
        for each in files
        for node, runs in each.runs.items()
        if runs[0][0] <= landed[node]
    ]
    if not firsts:
        return None
    columns = ["stream", "table_name", "node", "seq"]
    within = (min(firsts), max(landed.values()))
    pieces = list(read_letters(loaded, stream, table, columns=columns, within=within))
    return message_keys(pa.concat_tables(pieces)) if pieces else None


def _unknown_part(address: str, file: DataFile, known: pa.Array | None) -> list[DataFile]:
    """The dead letters of a file that are not known: the file, nothing, or a new file."""
    if known is None:
        return [file]
    rows = TableFolder(address).read(file.path)
    is_new = pc.invert(pc.is_in(message_keys(rows), value_set=known))
    if pc.all(is_new, min_count=0).as_py():
        return [file]
    layout = TableLayout(address, numbering=REPEATED, folder=file.path.rpartition("/")[0])
    rest = write_files(rows.filter(is_new).to_batches(), layout)
    return [replace(each, partition=file.partition) for each in rest]


# --- reading --------------------------------------------------------------------------------------


def read_letters(
    loaded: DeltaTable,
    stream: str,
    table: str,
    *,
    columns: list[str] | None = None,
    within: tuple[int, int] | None = None,
) -> Iterator[pa.Table]:
    """The dead letters of a table, in pieces that are not empty; `within` is a range of seqs."""
    chosen = None
    if within is not None:
        chosen = (pc.field("seq") >= within[0]) & (pc.field("seq") <= within[1])
    batches = dataset_of(loaded).to_batches(columns=columns, filter=chosen, batch_size=PIECE_ROWS)
    for batch in batches:
        # Files that delta-rs has written have other Arrow types of text, which a filter of the
        # dataset cannot compare.
        rows = with_plain_types(pa.Table.from_batches([batch]))
        mine = pc.and_(
            pc.equal(rows.column("stream"), stream), pc.equal(rows.column("table_name"), table)
        )
        rows = rows.filter(mine)
        if rows.num_rows:
            yield rows


def message_keys(rows: pa.Table) -> pa.Array:
    """One text for each message: its node and seq."""
    seqs = pc.cast(rows.column("seq"), pa.string())
    joined = pc.binary_join_element_wise(rows.column("node"), seqs, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def count_messages(rows: pa.Table) -> int:
    """The number of messages that these rows are of. A message can have several rows."""
    return len(message_keys(rows).unique())
