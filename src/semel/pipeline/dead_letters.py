"""Dead letters: messages that a table takes by its topic, but cannot decode.

They are rows of one Delta table of the lake, each with the table that it was for, the reason, the
column or byte where it failed, and the payload. So one bad payload neither stops the landing nor is
it lost.

For each table and node, an app transaction of the dead letters has the seq of the last one. They
are committed before the rows of their table, so that a repeated batch finds that it may have been
there, and compares messages. The commit of the rows records the same number, so that dead letters
which were lost since then are missed (`check_letters`).

`dead_letter_retry.py` decodes them again, after the landing file was corrected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from pyspark.sql.types import StructType

from semel.pipeline.app_transactions import dead_id, letters_id
from semel.pipeline.arrow_types import with_plain_types
from semel.pipeline.errors import DataLoss
from semel.pipeline.files import REPEATED, DataFile, TableFolder, TableLayout, write_files
from semel.pipeline.lake import dataset_of
from semel.pipeline.landing_file import ALWAYS
from semel.pipeline.source_columns import COLUMNS as RECORD_COLUMNS
from semel.pipeline.source_columns import DATE
from semel.pipeline.table import CommitChoice, LandingBatch, cached_table
from semel.store.reading import row_label

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
        transactions = [
            # A repeated batch may add one before the last, if the landing file became stricter.
            Transaction(dead_id(stream, table, node), max(seq, landed[node]))
            for node, seq in sorted(last_letters(new).items())
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


def last_letters(files: Iterable[DataFile]) -> dict[str, int]:
    """The seq of the last dead letter of each node in some files."""
    last: dict[str, int] = {}
    for file in files:
        for node, runs in file.runs.items():
            last[node] = max(last.get(node, 0), runs[-1][1])
    return last


def letters_transactions(
    dead_letters: str, stream: str, files: Iterable[DataFile]
) -> list[Transaction]:
    """What a table records about the dead letters that were committed before its rows.

    `dead_letters` is the name of their table.
    """
    return [
        Transaction(letters_id(dead_letters, stream, node), seq)
        for node, seq in sorted(last_letters(files).items())
    ]


def check_letters(
    dead_letters: str,
    letters: DeltaTable | None,
    table: DeltaTable,
    stream: str,
    nodes: Iterable[str],
    *,
    of: str,
    source: str,
) -> None:
    """Raise DataLoss if dead letters are missing on which a table relies.

    They are those of `of`, and would be made again without the table `source`. What it covers does
    not land again, so nobody else would notice.
    """
    for node in nodes:
        last = table.transaction_version(letters_id(dead_letters, stream, node)) or 0
        there = letters and letters.transaction_version(dead_id(stream, of, node))
        if (there or 0) < last:
            lost = row_label((there or 0) + 1, last)
            raise DataLoss(
                f"{dead_letters} lacks dead letters of table {of} among {lost} of stream {stream},"
                f" node {node}: it was deleted, or is a copy that is older than {source}. Restore a"
                f" newer copy; or delete {source}, too, and its messages land again"
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


def count_letters(loaded: DeltaTable, stream: str, tables: Sequence[str]) -> int:
    """How many dead letters these tables have."""
    names = pa.array(tables, pa.string())
    found = 0
    for batch in dataset_of(loaded).to_batches(columns=["stream", "table_name"]):
        # As in `read_letters`.
        rows = with_plain_types(pa.Table.from_batches([batch]))
        is_ours = pc.and_(
            pc.equal(rows.column("stream"), stream),
            pc.is_in(rows.column("table_name"), value_set=names),
        )
        found += pc.sum(is_ours, min_count=0).as_py()
    return found


def message_keys(rows: pa.Table) -> pa.Array:
    """One text for each message: its node and seq."""
    seqs = pc.cast(rows.column("seq"), pa.string())
    joined = pc.binary_join_element_wise(rows.column("node"), seqs, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def count_messages(rows: pa.Table) -> int:
    """The number of messages that these rows are of. A message can have several rows."""
    return len(message_keys(rows).unique())
