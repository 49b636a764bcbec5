"""Device quality: what the record of a stream shows about each client and topic.

DuckDB measures all rows of the view `<table>_now`, landed or not, with the statements of
`quality_sql`. This module finds the view, returns the measures as Arrow batches, one row per client
and topic, and sums them up. No message is handled in Python.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from semel.extras import need
from semel.pipeline.lake import has_record_columns, open_table
from semel.up.quality_sql import QualityQuery, statements
from semel.up.sql import NOW, LakeSql, QueryResult
from semel.up.sql_connection import quoted
from semel.up.sql_errors import SqlError

# The counts that are summed up for all devices.
COUNTS: Final = (
    *("messages", "bytes", "missing", "restarts", "out_of_order", "without_number", "repeats"),
    *("dup", "late", "from_future", "without_time", "silences", "size_outliers", "rate_outliers"),
)
# What makes a device one with a problem, the worst first.
PROBLEMS: Final = (
    *("is_silent", "missing", "late", "repeats", "size_outliers", "rate_outliers"),
    *("restarts", "out_of_order", "from_future", "silences"),
)


def find_source(sql: LakeSql, lake: str, table: str) -> tuple[str, str | None]:
    """The view or table with the messages of a table's stream, and a note if some are unknown.

    Raises SqlError if there is none, or if the table does not have messages as they were received,
    and TableError if the table cannot be opened.
    """
    kinds = dict(sql.named_kinds())
    if kinds.get(table) == "table" and not has_record_columns(open_table(lake, table)):
        raise SqlError(
            f"table {table} does not contain messages as they were received: it has no columns"
            " payload and dup; name another with --table"
        )
    if f"{table}{NOW}" in kinds:
        return f"{table}{NOW}", None
    if table in kinds:
        return table, (
            f"the record of {table} is not known, so only messages that have landed are measured:"
            " name it with --data or --root"
        )
    known = [name.removesuffix(NOW) for name in kinds if name.endswith(NOW)]
    near = get_close_matches(table, known, n=1)
    advice = f"did you mean {near[0]}? " if near else ""
    choice = f"there are {', '.join(known)}" if known else "the lake and the record have none"
    raise SqlError(f"there is no stream in a table {table}: {advice}{choice}")


def measure(sql: LakeSql, source: str, query: QualityQuery) -> QueryResult:
    """Measure each client and topic, the worst first. Raises what `LakeSql.query` raises."""
    return sql.query(statements(query, source))


@dataclass(frozen=True)
class ReceivedTimes:
    """When the messages of a stream were received, in microseconds; None: there are none."""

    first: int | None
    last: int | None


def received_times(sql: LakeSql, source: str) -> ReceivedTimes:
    """The first and last time of all rows. Raises what `LakeSql.query` raises."""
    text = (
        "SELECT min(epoch_us(received)) AS first, max(epoch_us(received)) AS last"
        f" FROM {quoted(source)}"
    )
    with sql.query(text) as result:
        (row,) = [row for batch in result.batches for row in batch.to_pylist()]
    return ReceivedTimes(row["first"], row["last"])


@dataclass
class QualityTotals:
    """The sums over all clients and topics."""

    devices: int = 0
    silent: int = 0
    with_problems: int = 0
    # None: not measured.
    sums: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(COUNTS))
    _clients: set[str | None] = field(default_factory=set)

    @property
    def clients(self) -> int:
        """How many different clients there are."""
        return len(self._clients)

    def add(self, batch: Any) -> None:
        """Add the rows of a batch."""
        compute = need("pyarrow.compute", extra="sql", by="semel quality")
        self.devices += batch.num_rows
        self._clients.update(compute.unique(batch.column("client_id")).to_pylist())
        for name in COUNTS:
            total = compute.sum(batch.column(name)).as_py()
            if total is not None:
                self.sums[name] = (self.sums[name] or 0) + int(total)
        self.silent += compute.sum(batch.column("is_silent")).as_py() or 0
        columns = [compute.fill_null(batch.column(name), 0) for name in PROBLEMS[1:]]
        has_problem = compute.fill_null(batch.column(PROBLEMS[0]), False)
        for column in columns:
            has_problem = compute.or_(has_problem, compute.greater(column, 0))
        self.with_problems += compute.sum(has_problem).as_py() or 0

    def measures(self) -> dict[str, object]:
        """The totals by name."""
        return {
            "clients": self.clients,
            "devices": self.devices,
            "with_problems": self.with_problems,
            "silent": self.silent,
            **self.sums,
        }
