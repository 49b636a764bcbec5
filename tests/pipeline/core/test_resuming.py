"""Before a landing starts: whether table, checkpoint and record belong together."""

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from semel.pipeline.checkpoint import committed_offset
from semel.pipeline.errors import DataLoss, TableError
from semel.pipeline.files import Run
from semel.pipeline.resuming import check_resumable
from semel.pipeline.table import Table
from tests.pipeline.core.test_table import land, record


def write_checkpoint(folder: Path, *offsets: dict[str, int], done: int) -> Path:
    """As Spark writes it: what each batch goes up to, and which of them are done."""
    for number, offset in enumerate(offsets):
        note = folder / "offsets" / str(number)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"v1\n{json.dumps({'batchWatermarkMs': 0})}\n{json.dumps(offset)}")
        (note.parent / f".{number}.crc").write_bytes(b"crc")
    for number in range(done):
        note = folder / "commits" / str(number)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def check(table: Path, checkpoint: Path, *, may_skip: bool = False, **held: list[Run]) -> None:
    check_resumable(Table(str(table)), record(**held), "all", checkpoint, may_skip=may_skip)


def test_what_is_done_is_the_end_of_the_last_batch_that_is_done(tmp_path: Path) -> None:
    offsets = ({"a": 10}, {"a": 20, "b": 5})
    assert committed_offset(write_checkpoint(tmp_path / "2", *offsets, done=2)) == offsets[1]
    # The last one was begun: it is done again, after the one before.
    assert committed_offset(write_checkpoint(tmp_path / "1", *offsets, done=1)) == offsets[0]
    assert committed_offset(write_checkpoint(tmp_path / "0", {"a": 10}, done=0)) is None
    assert committed_offset(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}\n{", 'v1\n{}\n{"a": "x"}', "v1\n{}\n7", "\0\0"])
def test_a_checkpoint_that_cannot_be_read_is_left_to_spark(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path, {"a": 10}, done=1)
    (tmp_path / "offsets" / "0").write_text(text)
    assert committed_offset(tmp_path) is None


def test_a_table_that_is_behind_its_checkpoint_is_refused_whatever_may_be_skipped(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    land(table, ("a", 1, 10))
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 25}, done=1)
    for may_skip in (False, True):
        with pytest.raises(DataLoss, match=r"lacks rows 11 to 25 .* has rows 12 to 25 of") as told:
            check(table, checkpoint, may_skip=may_skip, a=[(1, 5), (12, 20), (21, 30)])
        assert "remove the checkpoint" in str(told.value)
    land(table, ("a", 11, 25))
    check(table, checkpoint, a=[(1, 30)])
    shutil.rmtree(table)
    with pytest.raises(DataLoss, match=r"lacks rows 1 to 25 of stream all, node a"):
        check(table, checkpoint, may_skip=True, a=[(1, 30)])


def test_rows_that_the_record_lacks_as_well_may_be_skipped(tmp_path: Path) -> None:
    table = tmp_path / "t"
    land(table, ("a", 1, 10))
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 25}, done=1)
    with pytest.raises(DataLoss, match="the record lacks them as well"):
        check(table, checkpoint, a=[(26, 30)])
    check(table, checkpoint, may_skip=True, a=[(26, 30)])


def test_a_deleted_table_is_refused_also_if_the_record_lacks_its_rows(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 25}, done=1)
    with pytest.raises(DataLoss, match=r"lacks rows 1 to 25 .* the record lacks them as well"):
        check(tmp_path / "t", checkpoint, a=[(26, 30)])
    check(tmp_path / "t", checkpoint, may_skip=True, a=[(26, 30)])
    # Nothing was landed yet.
    check(tmp_path / "t", write_checkpoint(tmp_path / "empty", {"a": 0}, done=1))
    check(tmp_path / "t", write_checkpoint(tmp_path / "new", {"a": 25}, done=0), a=[(26, 30)])


def test_a_node_that_began_later_or_left_nothing_lacks_nothing(tmp_path: Path) -> None:
    """It enters an offset with the number before its first row."""
    table = tmp_path / "t"
    land(table, ("a", 1, 10))
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 10, "b": 100, "c": 7}, done=1)
    check(table, checkpoint, a=[(1, 10)], b=[(101, 120)])
    with pytest.raises(DataLoss, match="lacks rows 90 to 100 of stream all, node b"):
        check(table, checkpoint, a=[(1, 10)], b=[(90, 120)])


def test_rows_that_neither_table_nor_record_has_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that began at 501 looks the same as one whose first 500 rows are lost."""
    table = tmp_path / "t"
    land(table, ("a", 1, 10))
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 10, "b": 500}, done=1)
    with caplog.at_level("WARNING", "semel.pipeline"):
        check(table, checkpoint, a=[(1, 10)], b=[(501, 520)])
    (told,) = caplog.messages
    assert "lacks rows 1 to 500 of stream all, node b" in told
    assert "the record lacks them as well" in told
    # Of a node without such rows nothing is said.
    caplog.clear()
    land(table, ("b", 501, 520))
    check(table, checkpoint, a=[(1, 10)], b=[(501, 520)])
    assert not caplog.messages


def test_a_table_that_was_restored_is_refused_with_and_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    land(table, ("a", 1, 10))
    land(table, ("a", 11, 25))
    checkpoint = write_checkpoint(tmp_path / "c", {"a": 25}, done=1)
    check(table, checkpoint)
    DeltaTable(str(table)).restore(1)
    for each in (checkpoint, tmp_path / "none"):
        with pytest.raises(TableError, match=r"was restored .* restore version 2"):
            check(table, each, a=[(1, 25)])
    DeltaTable(str(table)).restore(2)
    check(table, checkpoint)
