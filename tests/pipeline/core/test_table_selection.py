"""Which rows of a batch a commit takes, and what it says of those that it refuses."""

from pathlib import Path

import pytest

from semel.pipeline.errors import DataLoss, TableError
from tests.pipeline.core.test_table import land, of, record, rows


def test_files_may_come_in_any_order(tmp_path: Path) -> None:
    assert land(tmp_path, ("n1", 6, 10), ("n1", 1, 5)).rows == 10
    assert rows(tmp_path) == of("n1", 1, 10)


def test_rows_of_a_node_that_the_root_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the root has no node n1 of stream all: give the root"):
        land(tmp_path, ("n1", 1, 5), record=record(n2=[(1, 5)]))


def test_a_root_is_asked_for_only_where_rows_may_be_skipped(tmp_path: Path) -> None:
    land(tmp_path, ("n1", 1, 5))
    with pytest.raises(DataLoss, match="lacks rows 6 to 7 of stream all") as refused:
        land(tmp_path, ("n1", 8, 9))
    assert "give option root" not in str(refused.value)
    with pytest.raises(DataLoss, match=r"lacks rows 6 to 7 .*: give option root, so that"):
        land(tmp_path, ("n1", 8, 9), may_skip=True)
