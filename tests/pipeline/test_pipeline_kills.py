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
import pyarrow.parquet as pq
import pytest

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
