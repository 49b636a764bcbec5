"""Table `quality` has one row per run, client and topic, and SQL can query it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.pipeline.errors import TableError
from semel.up.quality import measure
from semel.up.quality_sql import QualityQuery
from semel.up.quality_table import QualityRun, append_run
from tests.up.asked import ask
from tests.up.test_quality import BEGIN, HOUR, MadeRecord, numbered

QUERY = QualityQuery(BEGIN, BEGIN + HOUR, sequence="$.seq")
PLAIN = QualityQuery(BEGIN, BEGIN + HOUR)


def batches_of(made: MadeRecord, query: QualityQuery = QUERY) -> list[Any]:
    with made.sql() as sql, measure(sql, "messages_now", query) as result:
        return list(result.batches)


def run_on(day: int, query: QualityQuery = QUERY) -> QualityRun:
    return QualityRun(datetime(2026, 3, day, 13, tzinfo=UTC), "messages", query)


@pytest.fixture
def made(tmp_path: Path) -> MadeRecord:
    record = MadeRecord(tmp_path)
    record.add(numbered(1, 2, 5), client_id="a")
    record.add(numbered(1, 2, 3), client_id="b")
    record.seal()
    return record


def test_runs_are_appended_and_can_be_queried(made: MadeRecord) -> None:
    assert append_run(str(made.lake), run_on(1), batches_of(made)) == 0
    # Without a sequence the columns are the same, and empty.
    assert append_run(str(made.lake), run_on(2, PLAIN), batches_of(made, PLAIN)) == 1
    rows = ask(
        made.sql(),
        "select date, run, source, client_id, topic, missing, messages, range_from, range_to"
        " from quality order by run, client_id",
    )
    assert [(str(row["date"]), row["client_id"], row["missing"]) for row in rows] == [
        ("2026-03-01", "a", 2),
        ("2026-03-01", "b", 0),
        ("2026-03-02", "a", None),
        ("2026-03-02", "b", None),
    ]
    assert rows[0]["run"] == datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert rows[0]["range_from"] == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert rows[0]["range_to"] == datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert (rows[0]["source"], rows[0]["messages"]) == ("messages", 3)
    table = DeltaTable(made.lake / "quality")
    assert table.metadata().partition_columns == ["date"]
    assert table.version() == 1


def test_the_lake_may_not_exist_yet(made: MadeRecord, tmp_path: Path) -> None:
    lake = tmp_path / "another" / "lake"
    append_run(str(lake), run_on(1), batches_of(made))
    assert DeltaTable(lake / "quality").to_pyarrow_table().num_rows == 2


def test_a_table_of_another_program_is_not_touched(made: MadeRecord) -> None:
    write_deltalake(made.lake / "quality", pa.table({"client_id": ["x"]}))
    with pytest.raises(TableError, match=r"quality is not a table of semel quality: it lacks"):
        append_run(str(made.lake), run_on(1), batches_of(made))
    assert DeltaTable(made.lake / "quality").version() == 0


def test_a_table_with_more_columns_is_appended_to(made: MadeRecord) -> None:
    append_run(str(made.lake), run_on(1), batches_of(made))
    rows = DeltaTable(made.lake / "quality").to_pyarrow_table()
    more = rows.append_column("comment", pa.array(["x", "y"]))
    write_deltalake(
        made.lake / "quality", more, mode="append", schema_mode="merge", partition_by=["date"]
    )
    append_run(str(made.lake), run_on(2), batches_of(made))
    found = ask(made.sql(), "select count(*) as n, count(comment) as c from quality")
    assert found == [{"n": 6, "c": 2}]
