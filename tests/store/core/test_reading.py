"""The record is read whole, in order and once, while it moves from the store to segments."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.store.gaps import gap_name
from semel.store.reading import (
    MissingRows,
    NodeRecord,
    RecordRow,
    StoreRows,
    StreamCatalog,
    rows_of,
)
from semel.store.roots import RootEntry, Segment
from semel.store.row_checksums import set_stream
from semel.store.schema import Unusable
from semel.store.segments import BATCH_ROWS, CHUNK_BYTES, RecordError
from tests.store.keeper import Keeper
from tests.store.memory_root import MemoryRoot, ObjectStore, object_root
from tests.store.recorded import INSERT, message, plain_row, received


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def catalog(keeper: Keeper) -> Iterator[StreamCatalog]:
    # The folder of the node is made when a broker starts.
    keeper.root.claim(keeper.stream, keeper.node, keeper.database.unique_id())
    with StreamCatalog(keeper.folder.path, None) as found:
        yield found


def only(catalog: StreamCatalog, stream: str = "plant") -> NodeRecord:
    (record,) = catalog.records(stream)
    return record


def rows(record: NodeRecord, first: int = 1, last: int | None = None) -> list[RecordRow]:
    last = record.last() if last is None else last
    return [row for table in record.tables(first, last) for row in rows_of(table)]


def seqs(record: NodeRecord, first: int = 1, last: int | None = None) -> list[int]:
    return [row.seq for row in rows(record, first, last)]


def expected(seq: int, node: str = "n1") -> RecordRow:
    """Row `seq` as it was committed."""
    was = message(seq)
    pairs = [{"key": key, "value": value} for key, value in was.properties.user_properties]
    return RecordRow(
        seq=seq,
        node=node,
        received=received(seq),
        topic=was.topic_name,
        payload=was.payload,
        qos=was.qos,
        retain=was.retain,
        dup=was.dup,
        client_id=was.client_id,
        user_name=was.user_name,
        packet_id=was.packet_id or None,
        protocol_version=was.version,
        payload_format=was.properties.payload_format_indicator,
        content_type=was.properties.content_type,
        response_topic=None,
        correlation_data=None,
        message_expiry=was.properties.message_expiry_interval,
        user_properties=pairs or None,
    )


# --- the whole record -----------------------------------------------------------------------------


def test_rows_are_the_same_whether_they_are_in_the_store_or_in_a_segment(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(30)
    wanted = [expected(seq) for seq in range(1, 31)]
    assert rows(only(catalog)) == wanted
    keeper.seal(10, 5)
    assert rows(only(catalog)) == wanted
    keeper.seal(15)
    assert rows(only(catalog)) == wanted


@pytest.mark.slow
def test_any_range_can_be_read(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(20)
    keeper.seal(5, 5, 5)
    for first in range(1, 21):
        for last in range(first - 1, 21):
            assert seqs(only(catalog), first, last) == list(range(first, last + 1))


def test_a_row_that_is_in_both_places_is_read_once(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(10)
    keeper.write_segment(6)
    assert seqs(only(catalog)) == list(range(1, 11))
    keeper.database.chunk = 2
    keeper.delete_rows(all_of_them=False)
    assert seqs(only(catalog)) == list(range(1, 11))


def test_a_segment_that_another_covers_is_not_read(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(12)
    keeper.seal(3, 3, 3)
    assert keeper.merge()
    assert keeper.names() == ["1-3", "1-9", "4-6", "7-9"]
    assert seqs(only(catalog)) == list(range(1, 13))
    # Also one that begins in the midst of the range that is asked for.
    assert seqs(only(catalog), 5) == list(range(5, 13))
    keeper.tidy()
    assert keeper.names() == ["1-9"]
    assert seqs(only(catalog)) == list(range(1, 13))


def test_not_even_the_file_of_a_segment_that_another_covers_is_opened(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(9)
    keeper.seal(3, 3, 3)
    keeper.merge()
    for path in (keeper.folder.streams / "plant" / "n1").glob("*.parquet"):
        if path.name != Segment(1, 9, 0, 0.0).name:
            path.write_bytes(b"damaged")
    assert seqs(only(catalog), 1) == list(range(1, 10))
    assert seqs(only(catalog), 4) == list(range(4, 10))


def test_long_segments_and_long_tables_come_in_pieces(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    keeper.database.connection.execute("BEGIN")
    keeper.database.connection.executemany(
        INSERT, (plain_row(1, seq, received(seq), b"x") for seq in range(1, 3 * BATCH_ROWS + 1))
    )
    keeper.database.connection.execute(
        f"UPDATE stream SET {set_stream('last_seq')}", (3 * BATCH_ROWS,)
    )
    keeper.database.connection.execute("COMMIT")
    keeper.last = 3 * BATCH_ROWS
    with StreamCatalog(keeper.folder.path, None) as catalog:
        for _ in range(2):
            tables = list(only(catalog).tables(10, 3 * BATCH_ROWS))
            assert max(table.num_rows for table in tables) <= BATCH_ROWS
            assert [row.seq for table in tables for row in rows_of(table)] == list(
                range(10, 3 * BATCH_ROWS + 1)
            )
            late = BATCH_ROWS + 50
            assert seqs(only(catalog), late, late + 2) == [late, late + 1, late + 2]
            keeper.seal(2 * BATCH_ROWS + 100)
    keeper.close()


def test_long_payloads_come_in_pieces(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    for seq in range(1, 7):
        keeper.database.connection.execute(INSERT, plain_row(1, seq, 1, bytes(CHUNK_BYTES // 2)))
    keeper.database.connection.execute(f"UPDATE stream SET {set_stream('last_seq')}", (6,))
    with StreamCatalog(keeper.folder.path, None) as catalog:
        assert [table.num_rows for table in only(catalog).tables(1, 6)] == [2, 2, 2]
    keeper.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_each_row_comes_once_and_in_order_whatever_happens_meanwhile(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    keeper = Keeper(tmp_path / "data")
    keeper.database.chunk = draw.choice([1, 3, 1000])
    keeper.commit(20)
    keeper.root.claim(keeper.stream, keeper.node, keeper.database.unique_id())

    def something_happens() -> None:
        for _ in range(draw.randrange(4)):
            draw.choice(
                [
                    lambda: keeper.commit(draw.randrange(1, 12)),
                    lambda: keeper.write_segment(draw.randrange(1, 9)),
                    lambda: keeper.delete_rows(all_of_them=False),
                    keeper.delete_rows,
                    lambda: keeper.seal(2, 1, 2),
                    keeper.merge,
                    keeper.tidy,
                ]
            )()

    with StreamCatalog(keeper.folder.path, None) as catalog:
        record = only(catalog)
        found: list[RecordRow] = []
        for _ in range(6):
            last = record.last()
            for table in record.tables(len(found) + 1, last):
                found.extend(rows_of(table))
                something_happens()
            assert len(found) == last
            something_happens()
    assert found == [expected(seq) for seq in range(1, len(found) + 1)]
    keeper.close()


class MovingRoot(MemoryRoot):
    """Something happens just before and just after somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def entries(self, folder: str) -> list[RootEntry]:
        self.before()
        found = super().entries(folder)
        self.after()
        return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rows_that_move_while_somebody_looks_are_found(tmp_path: Path, moment: str) -> None:
    root = MovingRoot()
    keeper = Keeper(tmp_path / "data", root=root)
    keeper.commit(12)
    keeper.seal(3)
    store = StoreRows(keeper.folder.path)
    record = NodeRecord(root, "plant", "n1", store=store, stream_id=keeper.row.id)
    is_busy = False
    looks = 0

    def move() -> None:
        nonlocal is_busy, looks
        if not is_busy:
            is_busy = True
            keeper.seal(2)
            looks += 1
            # Nobody could read what is always gone again when it has been listed.
            if looks % 3 == 0:
                keeper.merge()
                keeper.tidy()
            is_busy = False

    def unsealed() -> int:
        """Enough rows for whoever looks a few times."""
        keeper.commit(40)
        return keeper.last

    setattr(root, moment, move)
    unsealed()
    assert record.first() == 1
    last = unsealed()
    assert seqs(record, 1, last) == list(range(1, last + 1))
    last = unsealed()
    summary = record.summary()
    assert (summary.first, summary.last, summary.problem) == (1, last, None)
    last = unsealed()
    assert record.first_since(received(last - 38)) == last - 38
    store.close()
    keeper.close()


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 16))
def test_rows_that_all_move_at_one_moment_are_found(tmp_path: Path, nth: int) -> None:
    """Whoever looked for segments first, and then into the store, would miss them."""
    root = MovingRoot()
    keeper = Keeper(tmp_path / "data", root=root)
    keeper.commit(12)
    keeper.seal(3)
    store = StoreRows(keeper.folder.path)
    record = NodeRecord(root, "plant", "n1", store=store, stream_id=keeper.row.id)
    looks = 0

    def move() -> None:
        nonlocal looks
        looks += 1
        if looks == nth:
            keeper.seal(9)

    root.after = move
    assert seqs(record, 1, 12) == list(range(1, 13))
    assert record.first_since(received(4)) == 4
    assert record.summary().problem is None
    store.close()
    keeper.close()


class HastyRoot(MemoryRoot):
    """Its first listings are not of one moment: what was renamed meanwhile is not in them."""

    def __init__(self) -> None:
        super().__init__()
        self.incomplete = 0

    def entries(self, folder: str) -> list[RootEntry]:
        found = super().entries(folder)
        if self.incomplete and folder == "plant/n1":
            self.incomplete -= 1
            return [each for each in found if "0004-" not in each.name]
        return found


def test_a_listing_that_lacks_a_segment_is_not_believed_at_once(tmp_path: Path) -> None:
    root = HastyRoot()
    keeper = Keeper(tmp_path / "data", root=root)
    keeper.commit(9)
    keeper.seal(3, 3, 3)
    record = NodeRecord(root, "plant", "n1")
    root.incomplete = 3
    assert seqs(record, 1, 9) == list(range(1, 10))
    root.incomplete = 3
    assert record.summary().problem is None
    root.incomplete = 1000
    with pytest.raises(MissingRows, match="rows 4 to 6 "):
        seqs(record, 1, 9)
    assert record.summary().problem is not None
    keeper.close()


def test_a_segment_that_is_deleted_before_it_is_opened_is_looked_for_again(
    tmp_path: Path,
) -> None:
    root = MemoryRoot()
    keeper = Keeper(tmp_path / "data", root=root)
    keeper.commit(9)
    keeper.seal(3, 3, 3)

    def delete_it(what: str, path: str) -> None:
        if what == "read" and path.endswith(".parquet"):
            root.hook = lambda what, path: None
            keeper.merge()
            keeper.tidy()

    root.hook = delete_it
    assert seqs(NodeRecord(root, "plant", "n1")) == list(range(1, 10))
    assert keeper.names() == ["1-9"]
    keeper.close()


def test_an_object_store_that_fails_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    objects = ObjectStore()
    keeper = Keeper(tmp_path / "data", root=object_root(objects))
    keeper.commit(9)
    keeper.seal(3, 3, 3)
    troubles = 2

    def fail(step: str, path: str) -> None:
        nonlocal troubles
        if step == "get" and path.endswith("4-00000000000000000006.parquet") and troubles:
            troubles -= 1
            raise OSError("connection reset")

    objects.trouble = fail
    assert seqs(NodeRecord(keeper.root, "plant", "n1")) == list(range(1, 10))
    assert not troubles
    troubles = 100
    with pytest.raises(RecordError, match=r"^stream plant, node n1: row 4 cannot be read: conn"):
        seqs(NodeRecord(keeper.root, "plant", "n1"))
    keeper.close()


# --- what is missing ------------------------------------------------------------------------------


def remove(keeper: Keeper, first: int, last: int) -> None:
    keeper.root.delete(keeper.root.file_path("plant", "n1", Segment(first, last, 0, 0.0).name))


def test_a_gap_is_an_error_that_names_the_rows(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(20)
    keeper.seal(5, 5, 5)
    remove(keeper, 6, 10)
    record = only(catalog)
    tables = record.tables(1, 20)
    assert [row.seq for row in rows_of(next(tables))] == [1, 2, 3, 4, 5]
    with pytest.raises(MissingRows, match=r"^rows 6 to 10 of stream plant, node n1, are") as caught:
        next(tables)
    # What is before the gap, and what is after it, can be read.
    assert (caught.value.first, caught.value.last) == (6, 10)
    assert "--from 11 reads on" in str(caught.value)
    assert seqs(record, 11) == list(range(11, 21))
    problem = record.summary().problem
    assert problem is not None
    assert problem.startswith("rows 6 to 10 of stream plant, node n1, are missing")
    # The same for who has segments only.
    with pytest.raises(MissingRows, match="rows 6 to 10 of stream plant, node n1, are missing"):
        seqs(NodeRecord(keeper.root, "plant", "n1"))


def test_a_gap_between_segments_and_store_is_an_error(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(20)
    keeper.seal(5, 5)
    remove(keeper, 6, 10)
    with pytest.raises(MissingRows, match="rows 6 to 10 "):
        seqs(only(catalog))
    problem = only(catalog).summary().problem
    assert problem is not None
    assert problem.startswith("rows 6 to 10 ")


def test_a_gap_at_the_end_is_an_error_if_there_is_a_store(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(10)
    keeper.seal(5, 5)
    remove(keeper, 6, 10)
    with pytest.raises(MissingRows, match=r"rows 6 to 10 .* and from the store$"):
        seqs(only(catalog))
    assert seqs(NodeRecord(keeper.root, "plant", "n1")) == [1, 2, 3, 4, 5]


def test_one_row_in_the_store_that_is_missing_is_named(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(10)
    keeper.database.connection.execute("DELETE FROM record WHERE seq = 4")
    with pytest.raises(MissingRows, match=r"^row 4 of stream plant, node n1, is missing"):
        seqs(only(catalog))
    assert seqs(only(catalog), 5) == list(range(5, 11))


def test_rows_that_a_repair_lost_are_called_so(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(10)
    keeper.database.connection.execute("DELETE FROM record WHERE seq IN (4, 5, 6)")
    keeper.database.set_metadata(gap_name(keeper.row.id, 4, 6), "2026-01-31")
    record = only(catalog)
    with pytest.raises(MissingRows, match=r"^rows 4 to 6 .* lost when the store was repaired; "):
        seqs(record)
    assert "rows 4 to 6 of" in (record.summary().problem or "")


def test_rows_that_a_repair_lost_may_be_in_a_segment(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(10)
    keeper.write_segment(6)
    keeper.database.connection.execute("DELETE FROM record WHERE seq IN (4, 5, 6)")
    keeper.database.set_metadata(gap_name(keeper.row.id, 4, 6), "2026-01-31")
    assert seqs(only(catalog)) == list(range(1, 11))
    assert only(catalog).summary().problem is None


def test_a_beginning_that_is_not_in_the_root_is_an_error(keeper: Keeper, tmp_path: Path) -> None:
    keeper.commit(10)
    keeper.seal(6)
    (tmp_path / "other").mkdir()
    with StreamCatalog(keeper.folder.path, str(tmp_path / "other")) as catalog:
        record = only(catalog)
        with pytest.raises(MissingRows, match=r"rows 1 to 6 .*give the --root of the broker"):
            record.first()
        # It can be read if that is what one wants.
        assert seqs(record, 7) == [7, 8, 9, 10]
        assert record.summary().problem is not None


def test_a_beginning_that_another_store_has_is_missing(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    other = Keeper(tmp_path / "other", node="n2", root=keeper.root)
    for each in (keeper, other):
        each.commit(10)
        each.seal(6)
    remove(keeper, 1, 6)
    with StreamCatalog(tmp_path / "data", None) as catalog:
        record = catalog.records("plant")[0]
        with pytest.raises(MissingRows, match="rows 1 to 6 of stream plant, node n1, are sealed"):
            record.first()
    keeper.close()
    other.close()


def test_a_beginning_that_retention_deleted_is_none(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(10)
    keeper.seal(3, 3)
    record = only(catalog)
    record.trim(3)
    assert record.first() == 4
    assert record.summary().problem is None
    with pytest.raises(MissingRows, match=r"^rows 1 to 3 .* were deleted by retention or by"):
        seqs(record)


def test_a_node_that_was_renamed_goes_on_with_its_numbers(tmp_path: Path) -> None:
    first = Keeper(tmp_path / "data", node="old")
    first.commit(10)
    first.seal(10)
    first.close()
    second = Keeper(tmp_path / "data", node="new")
    second.commit(10)
    second.seal(5)
    with StreamCatalog(tmp_path / "data", None) as catalog:
        new, old = catalog.records("plant")
        assert (old.node, old.first(), old.last(), old.is_live) == ("old", 1, 10, False)
        assert (new.node, new.first(), new.last(), new.is_live) == ("new", 11, 20, True)
        assert seqs(old, 1) == list(range(1, 11))
        assert seqs(new, 11) == list(range(11, 21))
        assert (new.summary().problem, old.summary().problem) == (None, None)
    second.close()


def test_a_file_that_is_no_segment_inside_is_an_error_that_names_it(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(10)
    keeper.seal(5)
    path = keeper.folder.streams / "plant" / "n1" / Segment(1, 5, 0, 0.0).name
    path.write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(RecordError, match=r"0001-0+5\.parquet of stream plant, node n1"):
        seqs(only(catalog))
    problem = only(catalog).summary().problem
    assert problem is not None
    assert "plant" in problem


def test_a_segment_with_damaged_pages_is_an_error_that_names_the_stream(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(10)
    keeper.seal(10)
    path = keeper.folder.streams / "plant" / "n1" / Segment(1, 10, 0, 0.0).name
    data = bytearray(path.read_bytes())
    # Its footer is whole.
    data[4:300] = bytes(296)
    path.write_bytes(data)
    with pytest.raises(RecordError, match=f"{path} of stream plant, node n1, is damaged"):
        seqs(only(catalog))


def test_a_row_that_is_not_text_is_damage_of_the_store(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    keeper.commit(3)
    keeper.database.connection.execute(
        "UPDATE record SET topic = CAST(x'ff' AS TEXT) WHERE seq = 2"
    )
    with pytest.raises(Unusable, match=r"is damaged .*semel store check"):
        seqs(only(catalog))


# --- how far it goes ------------------------------------------------------------------------------


def test_a_stream_without_rows_begins_with_the_next_one(
    keeper: Keeper, catalog: StreamCatalog
) -> None:
    record = only(catalog)
    assert (record.first(), record.last(), seqs(record)) == (1, 0, [])
    summary = record.summary()
    assert (summary.rows, summary.oldest, summary.newest, summary.problem) == (0, None, None, None)
    keeper.commit(4)
    keeper.seal(4)
    record.trim(4)
    assert (record.first(), record.last()) == (5, 4)
    assert only(catalog).summary().rows == 0


@pytest.mark.parametrize("sealed", [[], [4], [4, 4], [4, 4, 2]])
def test_the_first_row_since_a_time_is_found_wherever_it_is(
    keeper: Keeper, catalog: StreamCatalog, sealed: list[int]
) -> None:
    keeper.commit(10)
    keeper.seal(*sealed)
    record = only(catalog)
    assert record.first_since(0) == 1
    for seq in range(1, 11):
        assert record.first_since(received(seq)) == seq
        assert record.first_since(received(seq) - 1) == seq
    assert record.first_since(received(10) + 1) is None


def test_a_summary_has_all_in_numbers(keeper: Keeper, catalog: StreamCatalog) -> None:
    keeper.commit(12)
    keeper.seal(3, 3, 3)
    keeper.merge()
    keeper.seal(1)
    found = only(catalog).summary()
    sizes = {each.name: each.size for each in keeper.root.segments("plant", "n1")}
    read = [Segment(1, 9, 0, 0.0).name, Segment(10, 10, 0, 0.0).name]
    assert (found.stream, found.node) == ("plant", "n1")
    assert (found.first, found.last, found.rows, found.sealed) == (1, 12, 12, 10)
    assert (found.segments, found.bytes) == (2, sum(sizes[name] for name in read))
    assert (found.covered_segments, found.covered_bytes) == (3, sum(sizes.values()) - found.bytes)
    assert (found.oldest, found.newest) == (received(1), received(12))
    assert found.problem is None
    keeper.seal(2)
    assert only(catalog).summary().newest == received(12)
    other = NodeRecord(keeper.root, "plant", "n1").summary()
    assert (other.first, other.last, other.sealed, other.newest) == (1, 12, 12, received(12))


def test_records_are_found_by_root_by_data_and_by_both(tmp_path: Path) -> None:
    first = Keeper(tmp_path / "data", node="n1")
    first.commit(5)
    first.seal(3)
    second = Keeper(tmp_path / "other", node="n2", root=first.root)
    second.commit(7)
    second.seal(6)
    root = str(first.folder.streams)
    with StreamCatalog(tmp_path / "data", None) as catalog:
        assert [(each.node, each.last()) for each in catalog.records("plant")] == [
            ("n1", 5),
            ("n2", 6),
        ]
    with StreamCatalog(None, root) as catalog:
        assert [(each.node, each.last()) for each in catalog.records("plant")] == [
            ("n1", 3),
            ("n2", 6),
        ]
    with StreamCatalog(tmp_path / "other", root) as catalog:
        assert catalog.streams() == ["plant"]
        assert [(each.node, each.last()) for each in catalog.records("plant")] == [
            ("n1", 3),
            ("n2", 7),
        ]
        assert seqs(catalog.records("plant")[1]) == list(range(1, 8))
        assert catalog.records("nothing") == []
    first.close()
    second.close()


def test_a_store_that_was_never_sealed_is_of_the_node_that_it_names(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    keeper.commit(3)
    with StreamCatalog(tmp_path / "data", None) as catalog:
        assert only(catalog).node == keeper.database.unique_id()[:12]
        keeper.database.set_metadata("node", "hall-7")
        assert only(catalog).node == "hall-7"
        assert [row.node for row in rows(only(catalog))] == ["hall-7"] * 3
    keeper.close()


def test_a_store_of_another_format_is_one_sentence(keeper: Keeper) -> None:
    keeper.database.connection.execute("PRAGMA user_version = 99")
    keeper.database.connection.execute("CREATE TABLE novelty (name TEXT)")
    with pytest.raises(Unusable, match="newer semel"):
        StreamCatalog(keeper.folder.path, None)
