"""A landing looks after its table, with a real Spark."""

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from semel.pipeline.live_files import list_files
from semel.pipeline.table import Table
from tests.pipeline.spark.test_landing import Place

SMALL = 3
PATIENCE = 300.0


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def live_files(place: Place) -> int:
    table = Table(str(place.table)).load()
    return 0 if table is None else len(list_files(table))


def test_a_landing_compacts_meanwhile_and_each_row_is_there_once(place: Place) -> None:
    place.write("n1", 1, 10)
    landing = place.landing(interval=0.1, small_files=SMALL)
    running = threading.Thread(target=landing.run, kwargs={"spark": place.spark})
    running.start()
    written = 10
    deadline = time.monotonic() + PATIENCE
    while not any(event["event"] == "maintenance" for event in place.events):
        assert time.monotonic() < deadline, place.events
        place.write("n1", written + 1, 10)
        written += 10
        time.sleep(0.5)
    landing.stop()
    running.join(PATIENCE)
    assert not running.is_alive()
    place.holds(n1=written)
    (first, *_) = [event for event in place.events if event["event"] == "maintenance"]
    assert first["action"] == "compacted"
    assert first["files_removed"] >= SMALL
    assert first["text"].startswith("compacted ")
    assert place.events[-1] == {**place.events[-1], "event": "ended", "landed": written}


@pytest.mark.long
def test_a_landing_of_what_is_there_compacts_at_its_end_unless_it_is_told_not_to(
    place: Place,
) -> None:
    for number in range(SMALL + 1):
        place.write("n1", number * 10 + 1, 10)
        place.land(small_files=SMALL, maintenance=False)
    before = live_files(place)
    assert before >= SMALL
    place.land(small_files=100)
    assert live_files(place) == before
    place.land(small_files=SMALL)
    assert [event["event"] for event in place.events][-2:] == ["maintenance", "ended"]
    assert live_files(place) == 1
    place.holds(n1=10 * (SMALL + 1))
    # The landing goes on as if nothing had happened, and so does one with a new checkpoint.
    place.write("n1", 10 * (SMALL + 1) + 1, 10)
    assert place.land(small_files=SMALL) == 10
    place.holds(n1=10 * (SMALL + 2))
