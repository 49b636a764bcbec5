"""Landings that remove old rows and sort what they compact, with a real Spark."""

import json
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from semel.pipeline.errors import OptionError
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_check import check_landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.maintenance_process import Maintenance
from semel.pipeline.settings import LandSettings
from semel.pipeline.table_retention import remove_expired
from semel.store.retention_clock import FILE_NAME
from tests.pipeline.core.test_landing_layout import topics_in
from tests.pipeline.made import write_messages
from tests.pipeline.spark.test_maintenance import POLICY, actions, land_many
from tests.pipeline.spark.test_table_reading import Follower

DAY = 86_400.0
FILE = """
    [[table]]
    name = "values"
    topic = "plant/{line}/#"
    decoder = "text"
    retention = "10d"
    cluster_by = ["line"]

    [[table]]
    name = "all_values"
    topic = "#"
    partition_by = []
    retention = "10d"
"""


class Place:
    """A root and a lake, and landings from one to the other."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root, self.lake, self.path = folder / "root", folder / "lake", folder / "landing.toml"
        self.events: list[Event] = []

    def write(self, first: int, count: int, *, days_ago: float) -> None:
        start = datetime.now(UTC) - timedelta(days=days_ago)
        write_messages(self.root, "all", "n1", first, count, start=start)

    def land(self, **settings: Any) -> int:
        self.events.clear()
        wanted = LandSettings(root=str(self.root), lake=str(self.lake), **settings)
        Landing(make_plan(wanted), self.events.append).run(once=True, spark=self.spark)
        landed: int = self.events[-1]["landed"]
        return landed

    def seqs(self, table: str) -> list[int]:
        found = DeltaTable(self.lake / table).to_pyarrow_table(columns=["seq"])["seq"]
        return sorted(found.to_pylist())

    def actions(self) -> list[str]:
        return [event["action"] for event in self.events if event["event"] == "maintenance"]


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_old_rows_leave_the_table_and_a_landing_continues_exactly(place: Place) -> None:
    place.write(1, 20, days_ago=30)
    place.write(21, 20, days_ago=0)
    assert place.land(retention=10 * DAY) == 40
    assert place.actions() == ["expired"]
    assert place.seqs("messages") == list(range(21, 41))
    checkpoint = place.lake / "_checkpoints" / "messages"
    assert "measured" in json.loads((checkpoint / FILE_NAME).read_text())
    # A second run has nothing to land and nothing to remove.
    assert place.land(retention=10 * DAY) == 0
    assert place.actions() == []
    place.write(41, 10, days_ago=0)
    assert place.land(retention=10 * DAY) == 10
    # With a new checkpoint it begins after what has landed, not after what is there.
    checkpoint.rename(checkpoint.with_name("old"))
    place.write(51, 10, days_ago=0)
    assert place.land(retention=10 * DAY) == 10
    assert place.seqs("messages") == list(range(21, 61))


@pytest.mark.long
def test_tables_of_a_landing_file_expire_by_date_and_by_statistics(place: Place) -> None:
    place.path.write_text(textwrap.dedent(FILE))
    place.write(1, 20, days_ago=30)
    place.land(landing=place.path, maintenance=False)
    place.write(21, 20, days_ago=0)
    place.land(landing=place.path)
    assert place.actions() == ["expired", "expired"]
    for table in ("values", "all_values"):
        assert place.seqs(table) == list(range(21, 41))
    place.write(41, 5, days_ago=0)
    place.land(landing=place.path)
    for table in ("values", "all_values"):
        assert place.seqs(table) == list(range(21, 46))


def test_columns_that_rows_cannot_be_sorted_by_are_refused_before_anything_lands(
    place: Place,
) -> None:
    place.write(1, 5, days_ago=0)
    for key, problem in {
        'cluster_by = ["line", "valeu"]': "no column valeu: did you mean value",
        'cluster_by = ["user_properties"]': "user_properties: rows cannot be sorted by a array",
        'cluster_by = ["date"]': "the table is partitioned by date",
    }.items():
        text = FILE.replace('cluster_by = ["line"]', key)
        text = text.replace('decoder = "text"', 'message_columns = ["user_properties"]', 1)
        text = text.replace("message_columns", 'decoder = "text"\n    message_columns', 1)
        place.path.write_text(textwrap.dedent(text))
        with pytest.raises(OptionError, match=rf"table values: cluster_by: .*{problem}"):
            place.land(landing=place.path)
        settings = LandSettings(root=str(place.root), lake=str(place.lake), landing=place.path)
        with pytest.raises(OptionError, match=problem):
            check_landing(place.spark, make_plan(settings), 10)
    assert not (place.lake / "values").exists()


def test_a_stream_of_the_table_goes_on_after_its_rows_were_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    follower = Follower(spark, tmp_path)

    def append(number: int, received: datetime) -> None:
        times = pa.array([received], pa.timestamp("us", "UTC"))
        rows = pa.table({"id": pa.array([number], pa.int64()), "received": times})
        write_deltalake(follower.source, rows, mode="append")

    def expire() -> None:
        table = DeltaTable(follower.source)
        assert remove_expired(str(follower.source), table, DAY, now=time.time()) is not None

    old, new = datetime(2026, 3, 1, tzinfo=UTC), datetime.now(UTC)
    append(1, old)
    append(2, new)
    assert follower.run() == [1, 2]
    # Rows that were read, and rows that were not, are removed.
    expire()
    append(3, old)
    append(4, new)
    expire()
    append(5, new)
    assert follower.run(maxVersionsPerBatch="1") == [1, 2, 3, 4, 5]
    # A query that begins now reads what is there.
    other = Follower(spark, tmp_path)
    other.target, other.checkpoint = tmp_path / "other", tmp_path / "other_checkpoint"
    assert other.run() == [2, 4, 5]


def test_a_column_that_is_gone_is_noticed_once_and_stops_nothing(address: str) -> None:
    policy = replace(POLICY, cluster_by=("gone", "topic"))
    events: list[dict[str, Any]] = []
    keeper = Maintenance(address, policy, events.append)
    for first in (1, 61, 121):
        land_many(address, first, 12)
        keeper.run_once()
    assert actions(events).count("compacted") == 3
    (notice,) = [event for event in events if event["action"] == "notice"]
    assert "semel.clusterBy names gone" in notice["text"]
    assert topics_in(address) == sorted(topics_in(address))
