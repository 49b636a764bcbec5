"""The account of several tables: what each has, by three readers, against what is expected.

delta-rs reads log and files. Polars takes the list of files from delta-rs, and reads them itself.
DuckDB reads the files that the JSON entries of the log name (`pipeline_lake`), so that this reader
shares nothing with delta-rs. All three must find the same rows: each once, and with its values.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable

from tests.kills.account import Verdict
from tests.kills.pipeline_lake import Lake
from tests.kills.pipeline_tables import COLUMNS, DEAD_LETTERS, SHARED, STREAM, Expected, Row

SHOWN = 5

Key = tuple[Any, ...]
Reader = Callable[[Lake], pa.Table]


@dataclass
class TableCounts:
    """What the account found in one table."""

    rows: int = 0
    files: int = 0
    commits: int = 0
    # Files that compaction, or a retry, has replaced; and files that no entry names.
    replaced: int = 0
    orphans: int = 0


@dataclass
class TablesCounts:
    """What the account found."""

    tables: dict[str, TableCounts] = field(default_factory=dict)
    # Rows that are missing, that are there more than once, and that nobody expects: in any table,
    # by the reader that finds the most.
    missing: int = 0
    duplicated: int = 0
    extra: int = 0


# --- readers --------------------------------------------------------------------------------------


def read_by_delta_rs(lake: Lake) -> pa.Table:
    return pa.table(DeltaTable(str(lake.table)).to_pyarrow_table())


def read_by_polars(lake: Lake) -> pa.Table:
    return polars.scan_delta(str(lake.table)).collect().to_arrow()


def read_by_duckdb(lake: Lake) -> pa.Table:
    files = [str(lake.table / unquote(path)) for path in lake.read_log().files]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = "SELECT * FROM read_parquet(?, union_by_name = true, hive_partitioning = true)"
        return connection.sql(query, params=[files]).to_arrow_table()


READERS: Mapping[str, Reader] = {
    "delta-rs": read_by_delta_rs,
    "DuckDB": read_by_duckdb,
    "Polars": read_by_polars,
}


# --- the account ----------------------------------------------------------------------------------


def settle_tables(
    folder: Path, expected: Expected, last: Mapping[str, int], verdict: Verdict
) -> TablesCounts:
    """Compare all tables of a lake with what is expected. Nothing may write to them any more."""
    counts = TablesCounts()
    for table, rows in expected.rows.items():
        lake = Lake(folder, table)
        if not lake.entry(0).exists():
            if rows:
                verdict.blame("no table", table)
                counts.missing += len(rows)
            continue
        found = counts.tables[table] = _read_log(lake, verdict)
        if table != DEAD_LETTERS:
            _check_positions(lake, last, verdict)
        faults = [
            _compare(f"{table} by {name}", table, rows, read, lake, verdict)
            for name, read in READERS.items()
        ]
        found.rows = len(rows)
        counts.missing += max(each[0] for each in faults)
        counts.duplicated += max(each[1] for each in faults)
        counts.extra += max(each[2] for each in faults)
    return counts


def _read_log(lake: Lake, verdict: Verdict) -> TableCounts:
    log = lake.read_log()
    on_disk = lake.parquet()
    for path in log.again:
        verdict.blame("log", f"{lake.table.name}: {path} is added twice")
    for text in log.backwards:
        verdict.blame("log", f"{lake.table.name}: {text}: an app transaction never goes back")
    for path in log.files:
        if unquote(path) not in on_disk:
            verdict.blame("log", f"{lake.table.name}: {path} is named, and does not exist")
    return TableCounts(
        files=len(log.files),
        commits=log.version,
        replaced=len(log.named) - len(log.files),
        orphans=len(on_disk - {unquote(path) for path in log.named}),
    )


def _check_positions(lake: Lake, last: Mapping[str, int], verdict: Verdict) -> None:
    """Each table has passed every message, also one without rows at the end."""
    for node, seq in last.items():
        found = lake.log.numbers.get(f"semel/stream/{STREAM}/{node}")
        if found != seq:
            verdict.blame("position", f"{lake.table.name}: node {node} is at {found}, not {seq}")


def _compare(
    shown: str, table: str, expected: Sequence[Row], read: Reader, lake: Lake, verdict: Verdict
) -> tuple[int, int, int]:
    """Compare row by row: how many are missing, there more than once, and not expected."""
    try:
        found = _rows(read(lake), table)
    except Exception as problem:
        # Whatever a reader raises, the table cannot be read.
        verdict.blame("cannot be read", f"{shown}: {type(problem).__name__}: {problem}"[:400])
        return len(expected), 0, 0
    wanted = {_key(row, table): row for row in expected}
    times = Counter(_key(row, table) for row in found)
    missing = [key for key in wanted if key not in times]
    again = [key for key, count in times.items() if count > 1]
    extra = [key for key in times if key not in wanted]
    for kind, keys in (("missing", missing), ("duplicated", again), ("extra", extra)):
        if keys:
            text = ", ".join(map(str, sorted(keys)[:SHOWN]))
            verdict.blame(f"rows {kind}", f"{shown}: {len(keys)}: {text} …")
    different = []
    for row in found:
        right = wanted.get(_key(row, table))
        for name in () if right is None else (*SHARED, *COLUMNS[table]):
            if right is not None and row[name] != right.get(name):
                different.append(
                    f"{_key(row, table)} {name} is {row[name]!r}, not {right.get(name)!r}"
                )
    if different:
        text = "; ".join(different[:SHOWN])
        verdict.blame("values", f"{shown}: {len(different)}: {text}"[:1_000])
    return len(missing), len(again), len(extra)


def _rows(found: pa.Table, table: str) -> list[Row]:
    """Rows with the columns that are compared; a column that a table does not have yet is null."""
    names = (*SHARED, *COLUMNS[table])
    is_late = ("room",)
    there = [name for name in names if name in found.column_names or name not in is_late]
    rows: list[Row] = found.select(there).to_pylist()
    return [{name: row.get(name) for name in names} for row in rows]


def _key(row: Row, table: str) -> Key:
    key = (row["node"], row["seq"])
    return (row["table_name"], *key) if table == DEAD_LETTERS else key
