"""The table `quality`: what `semel quality` measured, one row per run, client and topic."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from semel.extras import need
from semel.pipeline.lake_address import table_address
from semel.pipeline.run_table import PARTITION, append_run_rows
from semel.up.quality_sql import EPOCH, QualityQuery

QUALITY_TABLE: Final = "quality"
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
    return append_run_rows(
        table_address(lake, QUALITY_TABLE),
        run_rows(run, batches),
        command="semel quality",
        way_out="measure without --save",
    )


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
