"""Rows of a stream in a Delta table by the sink's own functions, as batches without Spark."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from semel.pipeline.files import UNIQUE, TableLayout, write_files
from semel.pipeline.table import LandingBatch, Table
from semel.store.segments import table_of

# 2026-03-01, 12:00 UTC, in microseconds; a day of them.
NOON = 1_772_366_400_000_000
DAY = 86_400_000_000


def rows_of(first: int, last: int, *, node: str = "n1", day: int = 0, size: int = 20) -> pa.Table:
    """The rows first to last, as landing writes them; each payload is as long and its own."""
    made = table_of(
        [
            (
                seq,
                NOON + day * DAY + seq,
                1,
                seq % 65_535 + 1,
                5,
                f"sensor-{seq % 4}",
                None,
                f"plant/{seq % 5}/temperature",
                None,
                f"{seq:0{size}}".encode(),
            )
            for seq in range(first, last + 1)
        ],
        node,
    )
    return made.append_column("date", pc.cast(made.column("received"), pa.date32()))


def batch_of_rows(
    address: str, first: int, last: int, *, day: int = 0, stream: str = "plant", size: int = 20
) -> LandingBatch:
    """Files with these rows, and the batch that commits them."""
    rows = rows_of(first, last, day=day, size=size)
    files = write_files(rows.to_batches(), TableLayout(address, ("date",), numbering=UNIQUE))
    schema = Schema.from_arrow(rows.schema).to_json()
    return LandingBatch(files, schema, ("date",), stream=stream)


def land_seqs(
    address: str,
    first: int,
    last: int,
    *,
    table: Table | None = None,
    day: int = 0,
    stream: str = "plant",
    size: int = 20,
) -> None:
    """Land the rows first to last in one commit."""
    found = Table(address) if table is None else table
    found.commit(batch_of_rows(address, first, last, day=day, stream=stream, size=size))
