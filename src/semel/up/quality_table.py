"""The table `quality`: what `semel quality` measured, one row per run, client and topic.

A run is appended in one commit, so that a query sees all of it or nothing. The table is partitioned
by `date`, the day of the run in UTC.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from semel.extras import need
from semel.pipeline.delta_errors import table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import split_address, table_address
from semel.store.roots import without_secrets
from semel.up.quality_sql import EPOCH, QualityQuery

QUALITY_TABLE: Final = "quality"
PARTITION: Final = "date"
# The chart can be computed from the messages, and takes more space than all else.
LEFT_OUT: Final = ("chart",)
_BY: Final = "semel quality --save"


@dataclass(frozen=True)
class QualityRun:
    """When devices were measured, of which table, and in which range."""

    at: datetime
    source: str
    query: QualityQuery


def append_run(lake: str, run: QualityRun, batches: list[Any]) -> int:
    """Append the rows of a run to the table. Returns its version. Raises TableError."""
    deltalake = need("deltalake", extra="sql", by=_BY)
    address = table_address(lake, QUALITY_TABLE)
    rows = run_rows(run, batches)
    location, options = split_address(address)
    with table_errors(address):
        try:
            existing = deltalake.DeltaTable(location, storage_options=options or None)
        except deltalake.exceptions.TableNotFoundError:
            existing = None
    if existing is not None:
        _check_columns(address, existing, rows.schema)
    with table_errors(address):
        deltalake.write_deltalake(
            location,
            rows,
            mode="append",
            # A table may have more columns, which are null in these rows.
            schema_mode=None if existing is None else "merge",
            partition_by=[PARTITION],
            storage_options=options or None,
        )
        version: int = deltalake.DeltaTable(location, storage_options=options or None).version()
    for each in range(0 if existing is None else existing.version() + 1, version + 1):
        try:
            fsync_commit(address, each, files=True)
        except OSError as problem:
            raise TableError(
                f"{without_secrets(address)}: version {each} may not be on disk: {problem}"
            ) from problem
    return version


def run_rows(run: QualityRun, batches: list[Any]) -> Any:
    """The rows of a run, with its range and time, as an Arrow table."""
    pyarrow = need("pyarrow", extra="sql", by=_BY)
    measured = pyarrow.Table.from_batches(batches).drop_columns(list(LEFT_OUT))
    moment = pyarrow.timestamp("us", tz="UTC")
    constants = {
        "run": pyarrow.scalar(run.at, moment),
        PARTITION: pyarrow.scalar(run.at.date(), pyarrow.date32()),
        "source": pyarrow.scalar(run.source, pyarrow.string()),
        "range_from": pyarrow.scalar(EPOCH + timedelta(microseconds=run.query.begin), moment),
        "range_to": pyarrow.scalar(EPOCH + timedelta(microseconds=run.query.end), moment),
    }
    columns = {name: pyarrow.repeat(value, measured.num_rows) for name, value in constants.items()}
    columns |= {name: measured.column(name) for name in measured.column_names}
    return pyarrow.table(columns)


def _check_columns(address: str, existing: Any, schema: Any) -> None:
    """Raise TableError if another program has made the table."""
    deltalake = need("deltalake", extra="sql", by=_BY)
    expected = {each.name: each.type for each in deltalake.Schema.from_arrow(schema).fields}
    found = {each.name: each.type for each in existing.schema().fields}
    different = sorted(name for name, kind in expected.items() if found.get(name) != kind)
    if different or list(existing.metadata().partition_columns) != [PARTITION]:
        what = f"columns {', '.join(different)}" if different else f"partitions by {PARTITION}"
        raise TableError(
            f"{without_secrets(address)} is not a table of semel quality: it lacks {what}; rename"
            " it, or measure without --save"
        )
