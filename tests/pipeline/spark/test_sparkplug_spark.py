"""Landing Sparkplug messages with a real Spark: exact over restarts, and failures of a commit."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Transaction
from pyspark.sql import SparkSession

from semel.pipeline.coverage import Span
from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_plan import SparkplugTables, make_plan, sparkplug_plan
from semel.pipeline.settings import LandSettings
from semel.pipeline.sparkplug.batches import StateKey, StateTable
from semel.pipeline.sparkplug.state import EdgeNodeState
from semel.store.landing_notes import read_landing_notes
from semel.store.roots import open_root
from tests.pipeline.core.test_sparkplug_batches import MESSAGES, TABLES, BatchPlace
from tests.pipeline.made import write_messages


class SparkplugPlace:
    """A root and a lake."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.lake = folder / "lake"
        self.events: list[Event] = []

    def write(self, node: str, first: int, last: int | None = None) -> None:
        there = MESSAGES[node]
        write_messages(
            self.root,
            "all",
            node,
            first,
            (last or len(there)) - first + 1,
            topic=lambda seq: there[seq - 1][0],
            payload=lambda seq: there[seq - 1][1],
        )

    def land(self, max_rows: int) -> int:
        """Land what is there; how many batches it took."""
        self.events.clear()
        settings = LandSettings(
            root=str(self.root), lake=str(self.lake), maintenance=False, max_rows=max_rows
        )
        plan = sparkplug_plan(make_plan(settings), SparkplugTables())
        Landing(plan, self.events.append).run(once=True, spark=self.spark)
        return sum(each["event"] == "batch" for each in self.events)

    def all_rows(self) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table in TABLES:
            rows = DeltaTable(str(self.lake / table)).to_pyarrow_table().to_pylist()
            found[table] = sorted(rows, key=lambda row: [str(each) for each in row.values()])
        return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of one batch with all messages, without Spark."""
    place = BatchPlace(tmp_path_factory.mktemp("once"), MESSAGES)
    spans = {node: (1, len(there)) for node, there in MESSAGES.items()}
    place.start().land(place.batch(spans), spans)
    return place.all_rows()


def test_a_landing_continues_exactly_after_each_restart(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    place = SparkplugPlace(spark, tmp_path)
    # The first session has no end yet.
    place.write("n1", 1, 31)
    assert place.land(20) == 2
    place.write("n1", 32)
    place.write("n2", 1)
    assert place.land(100) == 3
    assert place.all_rows() == expected
    batches = [each for each in place.events if each["event"] == "batch"]
    ends = {node: len(there) for node, there in MESSAGES.items()}
    assert batches[-1]["positions"] == ends
    assert set(batches[-1]["tables"]) == {*TABLES, "sparkplug_state"}
    notes = read_landing_notes(open_root(str(place.root)), "all")
    assert [note.landed for note in notes] == [ends] * 4
    # No checkpoint of an ended run stays.
    folder = place.lake / "_checkpoints" / "_sparkplug-all"
    assert [each.name for each in folder.iterdir()] == ["lock"]


def test_a_landing_whose_state_could_not_be_committed_is_repeated(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, list[dict[str, Any]]],
) -> None:
    """As after a kill: the other tables have rows that the state does not."""
    place = SparkplugPlace(spark, tmp_path)
    place.write("n1", 1)
    place.write("n2", 1)
    commit = StateTable.commit
    calls = 0

    def fail_once(
        self: StateTable,
        changed: Mapping[StateKey, EdgeNodeState],
        covers: Mapping[str, Span],
        records: Sequence[Transaction],
    ) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise TableError("the state could not be committed")
        commit(self, changed, covers, records)

    monkeypatch.setattr(StateTable, "commit", fail_once)
    with pytest.raises(PipelineError, match="the state could not be committed"):
        place.land(70)
    metrics = DeltaTable(str(place.lake / "sparkplug_metrics"))
    state = DeltaTable(str(place.lake / "sparkplug_state"))
    name = "semel/stream/all/n1"
    behind, ahead = state.transaction_version(name), metrics.transaction_version(name)
    assert behind is not None
    assert ahead is not None
    assert behind < ahead
    # Other batches than before.
    place.land(1_000)
    assert place.all_rows() == expected


def test_lost_dead_letters_are_missed_and_come_again_with_the_state(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    place = SparkplugPlace(spark, tmp_path)
    place.write("n1", 1)
    place.write("n2", 1)
    place.land(1_000)
    assert expected["dead_letters"]
    shutil.rmtree(place.lake / "dead_letters")
    with pytest.raises(PipelineError, match="or delete sparkplug_state, too, and its messages"):
        place.land(1_000)
    shutil.rmtree(place.lake / "sparkplug_state")
    place.land(1_000)
    assert place.all_rows() == expected
