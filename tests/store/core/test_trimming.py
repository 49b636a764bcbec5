"""The beginning of a record is deleted beside a broker: nothing else goes, nothing comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.store.compaction import merge
from semel.store.reading import NodeRecord, StreamCatalog, rows_of
from semel.store.roots import Segment
from tests.store.keeper import LATER, Keeper
from tests.store.memory_root import MemoryRoot
from tests.store.recorded import received


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def record(keeper: Keeper) -> Iterator[NodeRecord]:
    keeper.root.claim(keeper.stream, keeper.node, keeper.database.unique_id())
    with StreamCatalog(keeper.folder.path, None) as catalog:
        (found,) = catalog.records("plant")
        yield found


def seqs(record: NodeRecord, first: int = 1) -> list[int]:
    return [row.seq for table in record.tables(first, record.last()) for row in rows_of(table)]


def test_whole_segments_before_a_row_can_go(keeper: Keeper, record: NodeRecord) -> None:
    keeper.commit(20)
    keeper.seal(5, 5, 5)

    def before(**limit: int) -> list[str]:
        return [f"{each.first}-{each.last}" for each in record.segments_before(**limit)]

    assert before(seq=5) == []
    assert before(seq=6) == ["1-5"]
    assert before(seq=15) == ["1-5", "6-10"]
    assert before(seq=16) == before(seq=1000) == ["1-5", "6-10", "11-15"]
    assert before(received=received(5)) == []
    assert before(received=received(5) + 1) == ["1-5"]
    assert before(received=received(1000)) == ["1-5", "6-10", "11-15"]


def test_rows_that_the_store_does_not_know_to_be_sealed_stay(
    keeper: Keeper, record: NodeRecord
) -> None:
    """Their segment would be written again, if the sealer had to try again."""
    keeper.commit(10)
    keeper.seal(4)
    keeper.write_segment(4)
    assert [each.last for each in record.segments_before(seq=100)] == [4]
    keeper.delete_rows()
    assert [each.last for each in record.segments_before(seq=100)] == [4, 8]


def test_what_is_trimmed_is_gone_and_the_rest_is_there(keeper: Keeper, record: NodeRecord) -> None:
    keeper.commit(20)
    keeper.seal(3, 3, 3)
    keeper.merge()
    keeper.seal(5)
    gone = record.trim(record.segments_before(seq=12)[-1].last)
    assert [(each.first, each.last) for each in gone] == [(1, 9)]
    assert keeper.names() == ["10-14"]
    assert record.first() == 10
    assert seqs(record, 10) == list(range(10, 21))
    keeper.commit(1)
    assert record.last() == 21


def test_what_was_merged_with_later_rows_meanwhile_stays(
    keeper: Keeper, record: NodeRecord
) -> None:
    keeper.commit(9)
    keeper.seal(3, 3, 3)
    chosen = record.segments_before(seq=5)
    assert [each.last for each in chosen] == [3]
    keeper.merge()
    assert record.trim(chosen[-1].last) == []
    assert seqs(record) == list(range(1, 10))


def test_a_merge_that_ends_after_a_trim_brings_no_row_back(tmp_path: Path) -> None:
    """1-3 is merged while 1-6 is deleted: 1-3 comes back, 4-6 does not, and would be a gap."""
    root = MemoryRoot()
    keeper = Keeper(tmp_path / "data", root=root)
    keeper.commit(9)
    keeper.seal(1, 1, 1, 3, 3)
    record = NodeRecord(root, "plant", "n1")
    parts = root.segments("plant", "n1")[:3]

    def trim_now(what: str, path: str) -> None:
        if what == "write":
            root.hook = lambda what, path: None
            record.trim(6)

    root.hook = trim_now
    merge(root, "plant", "n1", parts)
    assert record.first() == 7
    assert seqs(record, 7) == [7, 8, 9]
    assert record.summary().problem is None
    # The sealer deletes it when it looks after the folder next.
    keeper.sealer.clean_up("plant", now=LATER)
    assert not [path for path in root.files if "-0000000000000000000" in path and "0003." in path]
    assert seqs(record, 7) == [7, 8, 9]
    keeper.close()


def test_a_record_with_a_gap_can_be_trimmed_up_to_it(keeper: Keeper, record: NodeRecord) -> None:
    keeper.commit(20)
    keeper.seal(5, 5, 5, 5)
    keeper.root.delete(keeper.root.file_path("plant", "n1", Segment(6, 10, 0, 0.0).name))
    record.trim(15)
    assert keeper.names() == ["16-20"]
    assert record.first() == 16
    assert record.summary().problem is None
