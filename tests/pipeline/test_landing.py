"""Landing with a real Spark: each row once, whatever happens to checkpoint and table."""

import shutil
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from semel.pipeline.errors import PipelineError
from semel.pipeline.landing import Event, Landing, explain, make_plan
from semel.pipeline.settings import LandSettings
from semel.store.segments import schema
from tests.pipeline.made import received_at, write_messages


class Place:
    """A root and a lake, and a landing from one to the other."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.lake = folder / "lake"
        self.table = self.lake / "messages"
        self.checkpoint = self.lake / "_checkpoints" / "messages"
        self.events: list[Event] = []

    def write(self, node: str, first: int, count: int) -> None:
        write_messages(self.root, "all", node, first, count)

    def landing(self, **settings: Any) -> Landing:
        wanted = LandSettings(root=str(self.root), lake=str(self.lake), **settings)
        return Landing(make_plan(wanted), self.events.append)

    def land(self, **settings: Any) -> int:
        """Land what is there; how many rows landed."""
        self.events.clear()
        self.landing(**settings).run(once=True, spark=self.spark)
        assert self.events[-1]["event"] == "ended"
        landed: int = self.events[-1]["landed"]
        return landed

    def rows(self) -> Counter[tuple[str, int]]:
        table = DeltaTable(str(self.table)).to_pyarrow_table(columns=["node", "seq"])
        return Counter(zip(table["node"].to_pylist(), table["seq"].to_pylist(), strict=True))

    def holds(self, **last: int) -> None:
        """Each node's rows from 1 to its last are there, each once, and nothing else."""
        expected = {
            (node, seq): 1 for node, through in last.items() for seq in range(1, through + 1)
        }
        assert self.rows() == expected


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_every_column_lands_and_the_date_is_the_partition(place: Place) -> None:
    place.write("n1", 1, 2_000)
    place.write("n1", 2_001, 500)
    place.write("n2", 1, 300)
    assert place.land(max_rows=1_000) == 2_800
    place.holds(n1=2_500, n2=300)
    batches = [event for event in place.events if event["event"] == "batch"]
    assert [event["rows"] for event in batches] == [1_000, 1_000, 800]
    assert batches[0]["lag_rows"] == 1_800
    assert batches[-1]["lag_rows"] == 0
    assert batches[-1]["landed"] == 2_800
    assert batches[-1]["lag_seconds"] > 0
    delta = DeltaTable(str(place.table))
    assert delta.metadata().partition_columns == ["date"]
    table = delta.to_pyarrow_table().sort_by([("node", "ascending"), ("seq", "ascending")])
    assert set(table.column_names) == {*schema().names, "date"}
    first = table.slice(0, 1).to_pylist()[0]
    assert first["received"] == received_at(1)
    assert first["date"] == received_at(1).astimezone(UTC).date()
    assert first["payload"] == b"value 1 of n1"
    assert first["user_properties"] == [{"key": "n", "value": "1"}, {"key": "n", "value": "again"}]
    assert place.land() == 0
    place.holds(n1=2_500, n2=300)


def test_a_lost_a_copied_and_a_foreign_checkpoint_neither_skip_nor_double(place: Place) -> None:
    place.write("n1", 1, 100)
    place.land()
    old = place.lake / "old"
    shutil.copytree(place.checkpoint, old)
    # Lost: a new one begins after what the table has.
    shutil.rmtree(place.checkpoint)
    place.write("n1", 101, 100)
    assert place.land() == 100
    place.holds(n1=200)
    # Back from a backup, with the numbers of batches that the table knows for other rows.
    shutil.rmtree(place.checkpoint)
    shutil.copytree(old, place.checkpoint)
    place.write("n2", 1, 50)
    place.write("n1", 201, 30)
    assert place.land(max_rows=90) == 80
    place.holds(n1=230, n2=50)
    # Another landing's, which is behind.
    assert place.land(checkpoint=old) == 0
    place.holds(n1=230, n2=50)


def test_a_deleted_table_is_refused_and_lands_anew_without_its_checkpoint(place: Place) -> None:
    place.write("n1", 1, 100)
    place.land()
    shutil.rmtree(place.table)
    place.write("n1", 101, 10)
    with pytest.raises(PipelineError, match="lacks rows 1 to 100 of stream all, node n1") as told:
        place.land()
    assert "remove the checkpoint" in str(told.value)
    shutil.rmtree(place.checkpoint)
    assert place.land() == 110
    place.holds(n1=110)


def test_two_landings_at_once_land_each_row_once(place: Place) -> None:
    place.write("n1", 1, 500)
    landings = [
        place.landing(interval=0.1, max_rows=rows, checkpoint=place.lake / f"c{rows}")
        for rows in (170, 230)
    ]
    problems: list[BaseException] = []

    def run(landing: Landing) -> None:
        try:
            landing.run(spark=place.spark)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(each,)) for each in landings]
    for thread in threads:
        thread.start()
    for part in range(5):
        place.write("n1", 501 + 100 * part, 100)
        place.write("n2", 1 + 70 * part, 70)
    for landing in landings:
        landing.stop()
    for thread in threads:
        thread.join(120)
    assert problems == []
    place.land()
    place.holds(n1=1_000, n2=350)


def test_a_table_that_is_something_else_is_refused_by_name(place: Place) -> None:
    write_deltalake(str(place.table), pa.table({"seq": ["a"]}))
    place.write("n1", 1, 10)
    with pytest.raises(PipelineError, match="messages is no table of stream all"):
        place.land()
    place.write("n1", 11, 10)
    assert place.land(table="others") == 20


def test_rows_that_retention_deleted_are_a_failure_or_are_left_out(place: Place) -> None:
    from semel.store.retention import delete_through
    from semel.store.roots import open_root

    place.write("n1", 1, 100)
    place.land()
    place.write("n1", 101, 100)
    place.write("n1", 201, 100)
    root = open_root(place.root)
    delete_through(root, "all", "n1", root.segments("all", "n1"), 200)
    with pytest.raises(PipelineError, match="101"):
        place.land()
    assert place.land(fail_on_data_loss=False) > 0
    assert place.rows() == {("n1", seq): 1 for seq in (*range(1, 101), *range(201, 301))}


def test_a_root_that_is_not_there_is_a_sentence(place: Place) -> None:
    with pytest.raises(PipelineError, match="is no root: there is no such folder"):
        place.land()


def test_a_plan_needs_a_root_and_a_checkpoint_where_spark_is() -> None:
    with pytest.raises(PipelineError, match="--root"):
        make_plan(LandSettings())
    with pytest.raises(PipelineError, match="--checkpoint"):
        make_plan(LandSettings(root="r", lake="s3://bucket/lake?region=eu-1"))
    plan = make_plan(
        LandSettings(root="r", lake="s3://bucket/lake?region=eu-1", checkpoint=Path("c"), table="t")
    )
    assert plan.table == "s3://bucket/lake/t?region=eu-1"
    assert plan.checkpoint.is_absolute()


def test_the_time_of_an_event_is_a_moment(place: Place) -> None:
    place.write("n1", 1, 10)
    place.land()
    assert all(datetime.fromisoformat(event["at"]).tzinfo for event in place.events)
    assert [event["event"] for event in place.events] == ["starting", "ready", "batch", "ended"]


FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "


@pytest.mark.parametrize(
    "text",
    [
        FAILED + "Stream closed SQLSTATE: XXKST",
        FAILED + "Broken pipe SQLSTATE: XXKST",
        FAILED + " SQLSTATE: XXKST",
        "Python worker exited unexpectedly (crashed)",
    ],
)
def test_a_spark_whose_processes_were_killed_says_what_to_do(text: str, tmp_path: Path) -> None:
    plan = make_plan(LandSettings(root=str(tmp_path), lake=str(tmp_path)))
    assert explain(RuntimeError(text), plan) == (
        "the processes of Spark have ended: nothing is lost, start the landing again"
    )


def test_what_spark_says_else_is_told_without_its_codes(tmp_path: Path) -> None:
    plan = make_plan(LandSettings(root=str(tmp_path), lake=str(tmp_path)))
    problem = RuntimeError(FAILED + "The broken pipe of hall 7 SQLSTATE: XXKST")
    assert explain(problem, plan) == "The broken pipe of hall 7"
