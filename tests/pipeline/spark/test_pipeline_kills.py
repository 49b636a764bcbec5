"""Every part of the pipeline killed under load, and each row compared. Many more kills are in
`tests/long/pipeline_kills.py`.

One run serves all tests here. What it leaves behind is clean; the others break a copy of it in
every way that the account has to find.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.kills import pipeline_account
from tests.kills.account import DUE, Verdict
from tests.kills.pipeline_lake import COMMITTED, IDLE, PLANNED, QUERY, WRITING, WRITTEN, Lake
from tests.kills.pipeline_processes import DRIVER, JVM, MAINTENANCE, TREE
from tests.kills.pipeline_run import (
    BROKER,
    INGEST,
    SEALER,
    SPARK,
    SPARK_AIMS,
    SPARK_WAYS,
    Plan,
    Result,
    Run,
    Strike,
    make_strikes,
)
from tests.kills.pipeline_tables import (
    COUNTS,
    DEAD_LETTERS,
    EVERYTHING,
    NOTES,
    RARE,
    TEMPERATURE,
    Stage,
    expect,
)
from tests.kills.pipeline_tables_account import READERS, settle_tables
from tests.kills.pipeline_tables_lake import BETWEEN, DEAD_ONLY, TablesLake
from tests.kills.pipeline_tables_run import (
    AIMS,
    WAYS,
    make_tables_strikes,
)

pytest.importorskip("pyspark")

STRIKES = [
    Strike(INGEST),
    Strike(SPARK, TREE, WRITTEN),
    Strike(BROKER),
    Strike(SPARK, JVM, COMMITTED),
    Strike(SEALER),
    Strike(MAINTENANCE),
    Strike(SPARK, DRIVER, PLANNED),
]


class Ended:
    """A run that is over."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(Plan(STRIKES, seed=1, batches=2, echo=False), folder, lambda _: None)
        self.result: Result = self.run()

    def verdict(self, lake: Lake | None = None) -> Verdict:
        """What the account says now, of this lake or of the one that there is."""
        found = Verdict()
        fresh = Lake((lake or self.run.lake).table.parent)
        pipeline_account.settle(fresh, self.run.root, self.run.nodes(), found)
        return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("pipeline"))


def test_kills_of_every_part_lose_no_row_and_double_none(ended: Ended) -> None:
    result = ended.result
    report = result.describe()
    assert result.is_clean, report
    assert result.kills == {SPARK: 3, BROKER: 1, SEALER: 1, INGEST: 1, MAINTENANCE: 1}
    assert result.counts.compacted > 0, report
    assert (result.counts.lost, result.counts.doubled) == (0, 0)
    # It was no idle run.
    assert result.counts.rows >= result.sent > 100, report
    assert result.counts.verdicts["a"].count("acknowledged") > 50
    assert result.counts.verdicts["b"].count("acknowledged") > 50
    assert sum(map(sum, (found.values() for found in result.windows.values()))) == 3
    assert result.batches >= 4, report
    assert ended.verdict().is_clean


# --- the account finds what is wrong --------------------------------------------------------------


@pytest.fixture
def copy(ended: Ended, tmp_path: Path) -> Lake:
    """The lake of the run, to be spoiled."""
    shutil.copytree(ended.run.lake.table, tmp_path / "messages")
    return Lake(tmp_path)


def add_entry(lake: Lake, *actions: dict[str, Any]) -> None:
    """One entry more in the log."""
    version = 0
    while lake.entry(version).exists():
        version += 1
    lake.entry(version).write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def change_log(lake: Lake, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Each action of the log as it comes back; None leaves it out."""
    version = 0
    while lake.entry(version).exists():
        actions = [json.loads(line) for line in lake.entry(version).read_text().splitlines()]
        changed = [new for new in map(change, actions) if new is not None]
        lake.entry(version).write_text("".join(f"{json.dumps(action)}\n" for action in changed))
        version += 1
    # They would say what the entries said.
    for checkpoint in lake.entry(0).parent.glob("*checkpoint*"):
        checkpoint.unlink()


def last_file(lake: Lake) -> dict[str, Any]:
    """The `add` of a file, as it is in the log."""
    return dict(list(lake.read_log().files.values())[-1])


def test_rows_that_no_entry_names_are_missing_and_their_messages_lost(
    ended: Ended, copy: Lake
) -> None:
    path = last_file(copy)["path"]
    change_log(copy, lambda action: None if action.get("add", {}).get("path") == path else action)
    faults = ended.verdict(copy).faults
    assert {"rows missing", "lost"} <= set(faults)


def test_an_attempt_that_is_committed_twice_doubles_its_rows(ended: Ended, copy: Lake) -> None:
    add = last_file(copy)
    again = f"{add['path']}.again.parquet"
    shutil.copy(copy.table / add["path"], copy.table / again)
    assert ended.verdict(copy).is_clean  # an orphan is none of the table
    add_entry(copy, {"add": {**add, "path": again}})
    faults = ended.verdict(copy).faults
    assert "rows there twice" in faults
    add_entry(copy, {"add": add})
    assert "added twice" in str(ended.verdict(copy).faults["log"])


def test_a_file_that_is_named_and_is_gone_or_cut_is_found(ended: Ended, copy: Lake) -> None:
    path = copy.table / last_file(copy)["path"]
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert "not whole" in str(ended.verdict(copy).faults["log"])
    path.unlink()
    assert "is not there" in str(ended.verdict(copy).faults["log"])


def test_a_row_that_differs_from_the_record_is_found(ended: Ended, copy: Lake) -> None:
    path = copy.table / last_file(copy)["path"]
    rows = pq.ParquetFile(path).read()
    at = rows.schema.get_field_index("user_name")
    changed = pa.array(["nobody"] * rows.num_rows)
    pq.write_table(rows.set_column(at, "user_name", changed), path)
    faults = ended.verdict(copy).faults
    assert "user_name" in faults["rows differ"][0]
    assert "bytes" in str(faults["log"])


def test_a_position_that_is_not_the_last_seq_is_found(ended: Ended, copy: Lake) -> None:
    add_entry(copy, {"txn": {"appId": "semel/stream/all/b", "version": 1}})
    faults = ended.verdict(copy).faults
    assert "node b is at 1" in faults["position"][0]
    assert "never goes back" in str(faults["log"])


def test_a_message_that_is_acknowledged_and_nowhere_is_lost(ended: Ended) -> None:
    ledger = ended.run.nodes()[1].ledger
    ledger.submit(("b-2-5", 99_999), "load/b-2-5/0", 2, fate=DUE)
    try:
        assert "b-2-5 99999" in ended.verdict().faults["lost"][0]
    finally:
        del ledger.sent["b-2-5", 99_999]
    assert ended.verdict().is_clean


# --- the windows ----------------------------------------------------------------------------------


def test_the_window_is_told_by_what_is_on_disk(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.window() == IDLE
    for folder in (lake.checkpoint / "offsets", lake.checkpoint / "commits"):
        folder.mkdir(parents=True)
    lake.entry(0).parent.mkdir(parents=True)
    (lake.checkpoint / "metadata").write_text('{"id": "q"}')
    lake.begin()
    (lake.checkpoint / "offsets" / "0").touch()
    (lake.checkpoint / "offsets" / ".1.tmp").touch()
    assert lake.window() == PLANNED
    file = lake.table / "date=2026-11-16" / "part-1.parquet"
    file.parent.mkdir()
    file.write_bytes(b"PAR1 not at its end yet")
    assert lake.window() == WRITING
    file.write_bytes(b"PAR1 and its end PAR1")
    assert lake.window() == WRITTEN
    # What is older than the batch is of another.
    os.utime(file, (1, 1))
    assert lake.window() == PLANNED
    os.utime(file)
    add = {"add": {"path": "date=2026-11-16/part-1.parquet"}}
    lake.entry(0).write_text(json.dumps(add)[:-5])
    assert lake.window() == WRITTEN
    txn = {"txn": {"appId": f"{QUERY}q", "version": 0}}
    lake.entry(0).write_text(f"{json.dumps(add)}\n{json.dumps(txn)}\n")
    assert lake.window() == COMMITTED
    (lake.checkpoint / "commits" / "0").touch()
    assert lake.window() == IDLE


def test_a_hundred_kills_are_of_every_kind_and_many_are_sparks() -> None:
    strikes = make_strikes(100, seed=3)
    assert len(strikes) == 100
    assert {strike.target for strike in strikes} == {SPARK, BROKER, SEALER, INGEST, MAINTENANCE}
    spark = [strike for strike in strikes if strike.target == SPARK]
    assert len(spark) >= 35
    assert {strike.way for strike in spark} == set(SPARK_WAYS)
    assert {strike.aim for strike in spark} == set(SPARK_AIMS)
    assert strikes == make_strikes(100, seed=3) != make_strikes(100, seed=4)


# --- several tables -------------------------------------------------------------------------------


LAST = {"n1": 900, "n2": 500}
STAGE = Stage(room_after={"n1": 300, "n2": 200}, is_corrected=True)


def write_rows(folder: Path, table: str, rows: pa.Table, *numbers: tuple[str, int]) -> None:
    """Append rows to a table in one commit, by delta-rs alone."""
    transactions = [Transaction(f"semel/stream/all/{node}", seq) for node, seq in numbers]
    properties = CommitProperties(app_transactions=transactions)
    write_deltalake(str(folder / table), rows, mode="append", commit_properties=properties)


def read_rows(folder: Path, table: str) -> pa.Table:
    return DeltaTable(str(folder / table)).to_pyarrow_table()


def tables_faults(folder: Path) -> dict[str, list[str]]:
    found = Verdict()
    settle_tables(folder, expect(LAST, STAGE), LAST, found)
    return found.faults


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A lake with what is expected, in two files of each table."""
    for table, rows in expect(LAST, STAGE).rows.items():
        made = pa.Table.from_pylist(rows)
        half = made.num_rows // 2
        write_rows(tmp_path, table, made.slice(0, half))
        numbers = () if table == DEAD_LETTERS else tuple(LAST.items())
        write_rows(tmp_path, table, made.slice(half), *numbers)
    assert tables_faults(tmp_path) == {}
    return tmp_path


def by_each_reader(table: str, texts: list[str]) -> bool:
    """Whether each of the three readers has found a fault of this table, and no other."""
    return [text.partition(":")[0] for text in texts] == [f"{table} by {name}" for name in READERS]


def test_expected_rows_are_of_every_kind() -> None:
    before, after = (expect(LAST, stage).rows for stage in (Stage(), STAGE))
    assert len(after[EVERYTHING]) == 1_400
    assert 0 < len(after[RARE]) < 10
    assert NOTES not in before
    assert len(after[NOTES]) == 350
    # The corrected file lands dead letters of one table, and leaves others out.
    assert len(after[TEMPERATURE]) > len(before[TEMPERATURE])
    left = len(before[DEAD_LETTERS]) - len(after[DEAD_LETTERS])
    assert left > len(after[TEMPERATURE]) - len(before[TEMPERATURE])
    assert {row["table_name"] for row in after[DEAD_LETTERS]} >= {TEMPERATURE, COUNTS, "packed"}
    rooms = {row["room"] is None for row in after[TEMPERATURE]}
    assert rooms == {True, False}


def test_a_file_that_the_log_removes_is_missing_by_each_reader(tables: Path) -> None:
    lake = Lake(tables, COUNTS)
    add_entry(lake, {"remove": {"path": last_file(lake)["path"], "dataChange": True}})
    faults = tables_faults(tables)
    assert set(faults) == {"rows missing"}
    assert by_each_reader(COUNTS, faults["rows missing"])


@pytest.mark.parametrize("table", [TEMPERATURE, RARE, EVERYTHING, DEAD_LETTERS])
def test_a_row_that_is_appended_again_is_found_by_each_reader(tables: Path, table: str) -> None:
    write_rows(tables, table, read_rows(tables, table).slice(1, 1))
    faults = tables_faults(tables)
    assert set(faults) == {"rows duplicated"}
    assert by_each_reader(table, faults["rows duplicated"])


@pytest.mark.parametrize("table", [COUNTS, DEAD_LETTERS])
def test_a_row_that_nobody_expects_is_found_by_each_reader(tables: Path, table: str) -> None:
    row = read_rows(tables, table).slice(0, 1)
    other = row.set_column(row.schema.get_field_index("seq"), "seq", pa.array([4]))
    write_rows(tables, table, other)
    faults = tables_faults(tables)
    assert set(faults) == {"rows extra"}
    assert by_each_reader(table, faults["rows extra"])


@pytest.mark.parametrize("column", ["fahrenheit", "room", "received", "line"])
def test_a_value_that_differs_is_found_by_each_reader(tables: Path, column: str) -> None:
    rows = read_rows(tables, TEMPERATURE)
    values = rows.column(column)
    shifted = pa.chunked_array([values.slice(1), values.slice(0, 1)])
    assert not pc.all(pc.equal(values.drop_null(), shifted.drop_null())).as_py()
    rows = rows.set_column(rows.schema.get_field_index(column), column, shifted)
    write_deltalake(str(tables / TEMPERATURE), rows, mode="overwrite")
    faults = tables_faults(tables)
    assert set(faults) == {"values"}
    assert by_each_reader(TEMPERATURE, faults["values"])
    assert f" {column} is " in faults["values"][0]


def test_a_table_that_has_not_passed_the_last_message_is_found(tables: Path) -> None:
    add_entry(Lake(tables, RARE), {"txn": {"appId": "semel/stream/all/n1", "version": 899}})
    faults = tables_faults(tables)
    assert faults["position"] == [f"{RARE}: node n1 is at 899, not 900"]
    assert "never goes back" in faults["log"][0]


def test_a_file_or_a_table_that_does_not_exist_is_found(tables: Path) -> None:
    lake = Lake(tables, COUNTS)
    (lake.table / last_file(lake)["path"]).unlink()
    shutil.rmtree(tables / NOTES)
    faults = tables_faults(tables)
    assert "does not exist" in faults["log"][0]
    assert by_each_reader(COUNTS, faults["cannot be read"])
    assert faults["no table"] == [NOTES]


def test_the_window_of_several_tables_is_told_by_what_is_on_disk(tmp_path: Path) -> None:
    lake = TablesLake(tmp_path)
    busy = (TEMPERATURE, COUNTS)
    assert lake.window(busy)[0] == IDLE
    run = lake.checkpoints / "run-17"
    for folder in (run / "offsets", run / "commits"):
        folder.mkdir(parents=True)
    (run / "offsets" / "0").write_text('v1\n{}\n{"n1": 10}')
    assert lake.window(busy) == (PLANNED, "run-17 0")
    for table, app, window in (
        (DEAD_LETTERS, "semel/dead/all/temperature/n1", DEAD_ONLY),
        (TEMPERATURE, "semel/stream/all/n1", BETWEEN),
        (COUNTS, "semel/stream/all/n1", COMMITTED),
    ):
        entry = lake.lakes[table].entry(0)
        entry.parent.mkdir(parents=True)
        entry.write_text(json.dumps({"txn": {"appId": app, "version": 10}}) + "\n")
        assert lake.window(busy) == (window, "run-17 0")
    (run / "commits" / "0").touch()
    assert lake.window(busy)[0] == IDLE


def test_fifty_kills_of_several_tables_are_of_every_kind() -> None:
    strikes = make_tables_strikes(50, seed=3)
    assert {strike.way for strike in strikes} == set(WAYS)
    assert {strike.aim for strike in strikes} == set(AIMS)
    assert sum(strike.aim == BETWEEN for strike in strikes) >= 10
    assert strikes == make_tables_strikes(50, seed=3) != make_tables_strikes(50, seed=4)
