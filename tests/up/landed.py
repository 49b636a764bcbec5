"""A record that is landed without Spark: rows become files, and one commit of the real sink."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from semel.pipeline.files import UNIQUE, TableLayout, write_files
from semel.pipeline.lake_address import table_address
from semel.pipeline.table import LandingBatch, Table
from semel.store.reading import NodeRecord

PARTITION = ("date",)


def with_date(rows: pa.Table) -> pa.Table:
    """The rows of a segment as landing writes them."""
    return rows.append_column("date", pc.cast(rows.column("received"), pa.date32()))


def land(
    lake: Path | str, record: NodeRecord, first: int, last: int, *, table: str = "messages"
) -> None:
    """Land the rows first to last."""
    rows = with_date(pa.concat_tables(record.tables(first, last)))
    land_rows(lake, rows, stream=record.stream, table=table)


def land_rows(
    lake: Path | str, rows: pa.Table, *, stream: str = "plant", table: str = "messages"
) -> None:
    """Land rows of a stream that begin with its first, or follow those that are there."""
    address = table_address(str(lake), table)
    files = write_files(rows.to_batches(), TableLayout(address, PARTITION, numbering=UNIQUE))
    schema = Schema.from_arrow(rows.schema).to_json()
    Table(address).commit(LandingBatch(files, schema, PARTITION, stream=stream))
