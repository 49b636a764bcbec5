"""Landing with a real Spark: each row once, whatever happens to checkpoint and table."""

import shutil
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from semel.pipeline.errors import PipelineError
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_errors import explain
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.landing_target import OneTable, make_target
from semel.pipeline.settings import LandSettings
from semel.store.landing_notes import landing_note_path, read_landing_notes
from semel.store.roots import open_root
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


@pytest.mark.parametrize(
    "zone",
    ["Asia/Tokyo", "America/Los_Angeles", "Australia/Lord_Howe"],
    ids=["east", "west", "half"],
)
def test_dates_and_lag_are_in_utc_whatever_time_zone_the_session_has(
    place: Place, zone: str
) -> None:
    # The last and the first microsecond of a day in UTC, where it is another day elsewhere, on
    # days around the changes of daylight saving time, and before 1970.
    midnights = [
        datetime(2026, 3, 8, tzinfo=UTC),
        datetime(2026, 4, 5, tzinfo=UTC),
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(1969, 12, 31, tzinfo=UTC),
    ]
    moment = timedelta(microseconds=1)
    expected = []
    for number, midnight in enumerate(midnights):
        first = 2 * number + 1
        write_messages(
            place.root, "all", "n1", first, 2, start=midnight - (first + 1) * moment, step=moment
        )
        expected += [midnight - moment, midnight]
    before = place.spark.conf.get("spark.sql.session.timeZone")
    place.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert place.land() == 8
    finally:
        place.spark.conf.set("spark.sql.session.timeZone", str(before))
    table = DeltaTable(str(place.table)).to_pyarrow_table().sort_by("seq")
    assert table["received"].to_pylist() == expected
    assert table["date"].to_pylist() == [each.date() for each in expected]
    (batch,) = [event for event in place.events if event["event"] == "batch"]
    age = (datetime.fromisoformat(batch["at"]) - max(expected)).total_seconds()
    assert batch["lag_seconds"] == pytest.approx(age, abs=5)


def test_how_far_a_landing_is_is_noted_under_the_root(place: Place) -> None:
    place.write("n1", 1, 20)
    place.write("n2", 1, 10)
    place.land()
    root = open_root(place.root)
    (note,) = read_landing_notes(root, "all")
    assert note.table == str(place.table)
    assert note.landed == {"n1": 20, "n2": 10}
    assert root.nodes("all") == ["n1", "n2"]
    place.write("n1", 21, 5)
    place.land()
    (note,) = read_landing_notes(root, "all")
    assert note.landed == {"n1": 25, "n2": 10}


def test_a_root_that_cannot_be_written_is_told_once_and_landing_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = LandSettings(root=str(tmp_path / "root"), lake=str(tmp_path / "lake"))
    landing = Landing(make_plan(wanted), lambda event: None)
    landing._target = make_target(landing.plan)
    landing._target.watched[0].positions["n1"] = 7
    # A folder, where the note should be.
    path = landing_note_path("all", landing._target.watched[0].table.shown)
    (tmp_path / "root" / path).mkdir(parents=True)
    for _ in range(3):
        landing._note([], is_last=True)
    assert caplog.text.count("retention does not know what") == 1
    (tmp_path / "root" / path).rmdir()
    landing._target.watched[0].positions["n2"] = 8
    landing._note([])
    assert read_landing_notes(landing.plan.root, "all") == []
    landing._note([], is_last=True)
    (note,) = read_landing_notes(landing.plan.root, "all")
    assert note.landed == {"n1": 7, "n2": 8}


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


def test_a_deleted_table_is_refused_at_the_start_and_lands_anew_without_its_checkpoint(
    place: Place,
) -> None:
    place.write("n1", 1, 100)
    place.land()
    shutil.rmtree(place.table)
    # Before anything new comes, and whatever may be left out: the record has all of these rows.
    for fail_on_data_loss in (True, False):
        with pytest.raises(PipelineError, match="lacks rows 1 to 100 of stream all") as told:
            place.land(fail_on_data_loss=fail_on_data_loss)
        assert "remove the checkpoint" in str(told.value)
        assert str(place.checkpoint) in str(told.value)
    place.write("n1", 101, 10)
    with pytest.raises(PipelineError, match="lacks rows 1 to 100"):
        place.land(fail_on_data_loss=False)
    assert not place.table.exists()
    shutil.rmtree(place.checkpoint)
    assert place.land() == 110
    place.holds(n1=110)


def test_a_table_from_a_backup_or_restored_is_refused_at_the_start_without_new_rows(
    place: Place,
) -> None:
    place.write("n1", 1, 100)
    place.land()
    shutil.copytree(place.table, place.lake / "backup")
    place.write("n1", 101, 50)
    place.land()
    version = DeltaTable(str(place.table)).version()
    DeltaTable(str(place.table)).restore(version - 1)
    with pytest.raises(PipelineError, match=f"was restored .* restore version {version}"):
        place.land()
    DeltaTable(str(place.table)).restore(version)
    assert place.land() == 0
    place.holds(n1=150)
    shutil.rmtree(place.table)
    shutil.copytree(place.lake / "backup", place.table)
    for fail_on_data_loss in (True, False):
        with pytest.raises(PipelineError, match="lacks rows 101 to 150 of stream all, node n1"):
            place.land(fail_on_data_loss=fail_on_data_loss)
    shutil.rmtree(place.checkpoint)
    assert place.land() == 50
    place.holds(n1=150)


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
    with pytest.raises(PipelineError, match="messages is not a table of stream all"):
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
    with pytest.raises(PipelineError, match="is not a root: there is no such folder"):
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


@pytest.mark.parametrize(
    "text",
    [
        FAILED + "Python worker failed to connect back. SQLSTATE: XXKST",
        "Timed out while waiting for the Python worker to connect back after 60000 ms",
        FAILED + "Python daemon failed to launch worker.",
    ],
)
def test_workers_that_never_start_in_time_are_a_sentence_with_advice(
    text: str, tmp_path: Path
) -> None:
    plan = make_plan(LandSettings(root=str(tmp_path), lake=str(tmp_path)))
    sentence = explain(RuntimeError(text), plan)
    assert "did not start in time" in sentence
    assert "--master local[1]" in sentence
    assert "nothing is lost" in sentence


def test_a_landing_tries_again_a_few_times_and_after_each_batch_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a Spark, whose own workers may be late on a machine that has much to do."""
    (tmp_path / "root").mkdir()
    wanted = LandSettings(root=str(tmp_path / "root"), lake=str(tmp_path / "lake"))
    events: list[Event] = []
    # What each query lands before its worker is late; the last one is not.
    plans: list[list[int]] = [[0, 0, 30, 0, 10], [0, 0, 0]]
    landed: list[int] = []

    def watch(self: Landing, query: Any) -> None:
        landed.append(plans[0].pop(0))
        self._landed += landed[-1]
        if plans[0]:
            raise RuntimeError(FAILED + "Python worker failed to connect back.")

    monkeypatch.setattr(OneTable, "start", lambda self, spark, once: Mock())
    monkeypatch.setattr(Landing, "_watch", watch)
    Landing(make_plan(wanted), events.append, retry_seconds=(0.0, 0.0)).run(spark=Mock())
    assert landed == [0, 0, 30, 0, 10]
    assert [each["event"] for each in events] == ["starting", "ready", "ended"]
    assert events[-1]["landed"] == 40
    del plans[0]
    plans[0].append(0)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        Landing(make_plan(wanted), events.append, retry_seconds=(0.0, 0.0)).run(spark=Mock())
    assert plans[0] == [0]
