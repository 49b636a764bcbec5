"""Rows that can never be sent, written to a Delta table: each once, and with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from semel.pipeline.errors import TableError
from semel.pipeline.files import TableLayout, write_files
from semel.pipeline.publish_rows import CHUNK_SCHEMA
from semel.pipeline.table import LandingBatch, cached_table

_MESSAGE_FIELDS: Final = [each for each in CHUNK_SCHEMA if each.name not in ("row", "problem")]
FAILURES_SCHEMA: Final = pa.schema(
    [
        ("query", pa.string()),
        ("batch", pa.int64()),
        ("row", pa.int64()),
        ("failed_at", pa.timestamp("us", tz="UTC")),
        # The reason code of MQTT; null if the row was not sent.
        ("reason_code", pa.int32()),
        ("reason", pa.string()),
        *_MESSAGE_FIELDS,
    ]
)


@dataclass(frozen=True)
class FailedRow:
    """A row that was not sent, or that the server refused."""

    row: dict[str, Any]
    reason: str
    reason_code: int | None = None


def report_failures(
    address: str, failed: Sequence[FailedRow], *, query: str, batch: int, report: tuple[str, int]
) -> None:
    """Append rows to the table, unless it has this report: a name, and a number that increases.

    Raises TableError.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    now = datetime.now(UTC)
    rows = [
        {
            **{each.name: found.row[each.name] for each in _MESSAGE_FIELDS},
            "query": query,
            "batch": batch,
            "row": found.row["row"],
            "failed_at": now,
            "reason_code": found.reason_code,
            "reason": found.reason,
        }
        for found in failed
    ]
    made = pa.RecordBatch.from_pylist(rows, schema=FAILURES_SCHEMA)
    table = cached_table(address)
    batch_of_rows = LandingBatch(
        files=(),
        schema=from_arrow_schema(FAILURES_SCHEMA).json(),
        query=report[0],
        number=report[1],
        description="Rows that could not be published",
    )
    try:
        missing = table.new_columns_for(batch_of_rows)
        if missing:
            raise TableError(
                f"{table.shown} has no column {', '.join(missing)}, so it is not a table of failed"
                " rows: give another one"
            )
        # Not before: each restart would leave another file.
        table.commit(replace(batch_of_rows, files=write_files([made], TableLayout(address))))
    except TableError as problem:
        raise TableError(
            f"the rows that failed cannot be written to the table of option failures: {problem}."
            " Nothing is lost: a restart writes them"
        ) from problem
