"""Dead letters that were deleted, damaged, or restored from an older copy, and are missed."""

import logging
import shutil
from collections import Counter

import pytest
from deltalake import DeltaTable

from semel.pipeline.errors import PipelineError
from tests.pipeline.spark.test_landing_file_spark import FILE, Place, place

__all__ = ["place"]


def letters_of(place: Place, table: str) -> Counter[int]:
    return Counter(
        each["seq"] for each in place.rows("dead_letters") if each["table_name"] == table
    )


@pytest.fixture
def landed(place: Place) -> Place:
    """Tables with 30 messages, and copies of the dead letters as they were after 20."""
    place.write("n1", 1, 20)
    place.land()
    shutil.copytree(place.lake / "dead_letters", place.lake.parent / "older")
    place.write("n1", 21, 10)
    place.land()
    return place


def refused(place: Place) -> str:
    with pytest.raises(PipelineError) as caught:
        place.land()
    return str(caught.value)


@pytest.mark.parametrize("is_older", [False, True])
def test_a_table_of_dead_letters_that_lacks_some_is_refused(landed: Place, is_older: bool) -> None:
    letters = landed.lake / "dead_letters"
    shutil.rmtree(letters)
    if is_older:
        shutil.copytree(landed.lake.parent / "older", letters)
    message = refused(landed)
    first = 18 if is_older else 1
    expected = f"dead_letters lacks dead letters of table temperature among rows {first} to 27 of"
    assert expected in message
    assert "Restore a newer copy; or delete " in message
    assert "--no-fail-on-data-loss continues without them" in message

    # The way out that the message names.
    for table in ("temperature", "counts"):
        shutil.rmtree(landed.lake / table)
    landed.land()
    landed.holds(n1=30)


def test_the_landing_continues_without_lost_dead_letters_if_that_is_wanted(
    landed: Place, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(landed.lake / "dead_letters")
    landed.write("n1", 31, 10)
    with caplog.at_level(logging.WARNING):
        landed.land(fail_on_data_loss=False)
    assert "lacks dead letters of table temperature among rows 1 to 27" in caplog.text
    assert letters_of(landed, "temperature") == Counter([37])
    # What is new since then is enough.
    landed.land()


def test_dead_letters_that_were_restored_are_refused(landed: Place) -> None:
    letters = DeltaTable(str(landed.lake / "dead_letters"))
    letters.restore(1)
    assert "dead_letters was restored to an older version by version" in refused(landed)
    letters.restore(letters.version() - 1)
    landed.land()
    landed.holds(n1=30)


def test_dead_letters_of_another_name_begin_anew(landed: Place) -> None:
    landed.describe('dead_letters = "bad"\n' + FILE.replace("\n    ", "\n"))
    landed.write("n1", 31, 10)
    landed.land()
    assert {each["seq"] for each in landed.rows("bad")} == {37, 38}


def test_a_torn_checkpoint_of_dead_letters_is_removed(
    landed: Place, caplog: pytest.LogCaptureFixture
) -> None:
    letters = DeltaTable(str(landed.lake / "dead_letters"))
    letters.create_checkpoint()
    (checkpoint,) = (landed.lake / "dead_letters" / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        landed.land()
    assert "was incomplete or missing, probably because of a power failure" in caplog.text
    landed.holds(n1=30)


def test_an_empty_entry_in_the_log_of_dead_letters_is_refused(landed: Place) -> None:
    letters = landed.lake / "dead_letters"
    entry = max((letters / "_delta_log").glob("*.json"))
    whole = entry.read_bytes()
    entry.write_bytes(b"")
    assert "its log is damaged" in refused(landed)
    entry.write_bytes(whole)
    landed.land()
    landed.holds(n1=30)
