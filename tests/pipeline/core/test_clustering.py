"""Compacted files are sorted by the columns of their table, completely, in bounded memory."""

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from semel.pipeline import clustering
from semel.pipeline.cluster_by import check_cluster_by, default_cluster_by
from semel.pipeline.clustering import (
    CLUSTER_BY,
    cluster_columns,
    cluster_property,
    is_sortable,
    sort_keys,
    sorted_pieces,
)
from semel.pipeline.compaction import Compacted, DamagedFile, MergeLimits, compact, plan_all
from semel.pipeline.errors import OptionError, TableError
from semel.pipeline.files import TableFolder, TableLayout, write_files
from semel.pipeline.lake import optimize
from semel.pipeline.live_files import list_files
from semel.store.segments import group_bytes
from tests.modes import repeats

# Values of each type that a column can have: several, the same ones again, and none.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "a/b", "ä", "𝄞", "\uffff", "z" * 70, None]),
    "long": (pa.int64(), [0, -1, 2**63 - 1, -(2**63), None]),
    "int": (pa.int32(), [7, -7, None]),
    "short": (pa.int16(), [1, 2, None]),
    "byte": (pa.int8(), [-128, 127, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), None]),
    "float": (pa.float32(), [0.0, -0.0, -2.5, float("nan"), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [date(2026, 3, 1), date(1969, 12, 31), None]),
    "time": (pa.timestamp("us", "UTC"), [datetime(2026, 3, 1, 1, 2, 3, 4, UTC), None]),
    "money": (pa.decimal128(20, 3), [Decimal("1.250"), Decimal("-99.001"), None]),
}
# These have no order, and go with their rows.
CARRIED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "payload": (pa.binary(), [b"", b"\x00\xff", b"x" * 50, None]),
    "list": (pa.list_(pa.string()), [[], ["a", None], None]),
    "struct": (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": None}, None]),
}
COLUMNS = {**VALUES, **CARRIED}


def rows_of(seed: int, count: int) -> pa.Table:
    """Rows with values of all types, of which `place` tells which is which."""
    chance = random.Random(seed)
    made = {
        name: pa.array([chance.choice(values) for _ in range(count)], kind)
        for name, (kind, values) in COLUMNS.items()
    }
    return pa.table({**made, "place": pa.array(range(count), pa.int64())})


def order_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """How a row is compared: by each value, NaN after all numbers, and none last."""
    found: list[Any] = []
    for value in values:
        is_nan = isinstance(value, float) and value != value
        text = value.encode() if isinstance(value, str) else value
        found.append((2, 0) if value is None else (1, 0) if is_nan else (0, text))
    return tuple(found)


def expected_places(rows: pa.Table, keys: Sequence[str]) -> list[int]:
    """The places of rows in their order, by Python's stable sort."""
    columns = [rows.column(name).to_pylist() for name in keys]
    return sorted(range(rows.num_rows), key=lambda at: order_of([column[at] for column in columns]))


def parts_of(rows: pa.Table, chance: random.Random) -> Iterator[pa.Table]:
    begin = 0
    while begin < rows.num_rows:
        count = chance.randrange(1, 60)
        yield rows.slice(begin, count)
        begin += count


# --- sorting --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [*([name] for name in VALUES), ["text", "double", "long"]], ids=str
)
def test_rows_are_sorted_by_every_type_and_all_of_them_are_there(keys: list[str]) -> None:
    for seed in range(repeats(12, 5)):
        chance = random.Random(seed)
        block_rows, merged_blocks = chance.choice([1, 2, 3, 7, 50]), chance.choice([1, 2, 5])
        rows = rows_of(seed, chance.randrange(1, 300))
        limit, size = chance.choice([1, 5, 32, 1_000]), chance.choice([300, 5_000, 10**9])
        pieces = list(
            sorted_pieces(
                parts_of(rows, chance),
                keys,
                piece_rows=limit,
                piece_bytes=size,
                folder=None,
                block_rows=block_rows,
                merged_blocks=merged_blocks,
            )
        )
        assert all(piece.num_rows <= limit for piece in pieces)
        assert all(piece.nbytes <= size or piece.num_rows == 1 for piece in pieces)
        places = expected_places(rows, keys)
        found = pa.concat_tables(pieces)
        assert found.column("place").to_pylist() == places
        # The values are those of their rows, to the sign of zero.
        assert repr(found.to_pylist()) == repr(rows.take(pa.array(places)).to_pylist())


def test_no_rows_make_no_piece() -> None:
    assert not list(sorted_pieces(iter(()), ["x"], piece_rows=1, piece_bytes=1, folder=None))


def test_the_same_rows_make_the_same_pieces() -> None:
    rows = rows_of(1, 500)

    def pieces() -> list[str]:
        parts = parts_of(rows, random.Random(3))
        made = sorted_pieces(
            parts, ["text"], piece_rows=40, piece_bytes=4_000, folder=None, block_rows=16
        )
        return [repr(piece.to_pylist()) for piece in made]

    assert len(pieces()) > 500 // 40
    assert pieces() == pieces()


def test_runs_that_do_not_overlap_are_merged_without_loading_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if a table were clustered by a time."""
    sorted_rows: list[int] = []
    really = clustering._order

    def count(rows: pa.Table, keys: Sequence[str]) -> Any:
        sorted_rows.append(rows.num_rows)
        return really(rows, keys)

    monkeypatch.setattr(clustering, "_order", count)
    runs = [pa.table({"x": range(begin, begin + 500)}) for begin in range(0, 10_000, 500)]
    pieces = sorted_pieces(
        iter(runs),
        ["x"],
        piece_rows=1_000,
        piece_bytes=10**9,
        folder=None,
        block_rows=10,
        merged_blocks=4,
    )
    assert pa.concat_tables(pieces).column("x").to_pylist() == list(range(10_000))
    # Each run once, the ends of blocks, and then twice as many blocks at a time as there are runs.
    assert max(sorted_rows[20:]) <= max(2 * 20 * 10 + 20 * 10, 1_000)
    assert sum(sorted_rows[21:]) <= 3 * 10_000


def test_the_temporary_file_has_no_name_and_lives_no_longer_than_the_rows(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return [os.readlink(each) for each in links if os.path.islink(each)]

    def here() -> list[str]:
        return [name for name in open_files() if name.startswith(str(tmp_path))]

    parts = parts_of(rows_of(2, 200), random.Random(2))
    pieces = sorted_pieces(parts, ["text"], piece_rows=10, piece_bytes=10**9, folder=tmp_path)
    next(pieces)
    assert len(set(here())) == 1
    assert not list(tmp_path.iterdir())
    pieces.close()
    assert not here()

    def broken() -> Iterator[pa.Table]:
        yield from parts_of(rows_of(2, 200), random.Random(2))
        raise OSError("the disk is broken")

    pieces = sorted_pieces(broken(), ["text"], piece_rows=10, piece_bytes=10**9, folder=tmp_path)
    with pytest.raises(OSError, match="the disk is broken"):
        next(pieces)
    assert not here()
    assert not list(tmp_path.iterdir())


# --- columns --------------------------------------------------------------------------------------


def test_columns_without_an_order_are_refused_and_all_others_are_not() -> None:
    assert all(is_sortable(kind) for kind, _ in VALUES.values())
    assert not any(is_sortable(kind) for kind, _ in CARRIED.values())
    schema = pa.schema(
        [(name, kind) for name, (kind, _) in COLUMNS.items()] + [("seq", pa.int64())]
    )
    assert sort_keys(["text", "absent"], schema) == ("text", "seq")
    assert sort_keys(["seq"], schema) == ("seq",)


def test_the_option_names_columns_of_the_table_that_have_an_order() -> None:
    kinds = {"topic": "string", "x": "double", "payload": "binary", "l": "array<int>", "d": "date"}
    check_cluster_by(["topic", "x"], kinds, ["d"])
    check_cluster_by([], kinds, [])
    for name, problem in {
        "payload": "cluster_by: payload: rows cannot be sorted by a binary column",
        "l": "cluster_by: l: rows cannot be sorted by a array<int> column",
        "topik": "cluster_by: there is no column topik: did you mean topic\\?",
        "q": "cluster_by: there is no column q: choose of topic, x, payload, l, d",
        "d": "cluster_by: the table is partitioned by d",
    }.items():
        with pytest.raises(OptionError, match=problem):
            check_cluster_by(["topic", name], kinds, ["d"])
    assert default_cluster_by(["date"]) == ("topic",)
    assert default_cluster_by(["topic"]) == ()


def clustered(place: Path, *columns: str, files: int = 4, rows: int = 50) -> None:
    """A table with files of random rows, and the property that says how they are sorted."""
    for number in range(files):
        write_deltalake(place, rows_of(number, rows), mode="append")
    set_property(place, json.dumps(columns))


def set_property(place: Path, value: str) -> None:
    DeltaTable(place).alter.set_table_properties({CLUSTER_BY: value}, raise_if_not_exists=False)


def merge_all(place: Path, **named: Any) -> Compacted:
    table = DeltaTable(place)
    return compact(str(place), table, plan_all(list_files(table), 2**30), **named)


def rows_in(place: Path) -> pa.Table:
    """The rows of the only file of a table, as they are in it."""
    (one,) = list_files(DeltaTable(place))
    return pq.read_table(place / one.path)


def test_columns_that_the_table_does_not_have_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "t"
    clustered(place, "gone", "text", "payload")
    found = cluster_columns(DeltaTable(place))
    assert found.columns == ("text",)
    assert "semel.clusterBy names gone, payload, and the table has no such column" in found.problem
    merge_all(place)
    rows = rows_in(place)
    assert rows.column("text").to_pylist() == [
        rows.column("text")[at].as_py() for at in expected_places(rows, ["text"])
    ]
    for value in ("topic", "3", "[3]", "{"):
        set_property(place, value)
        found = cluster_columns(DeltaTable(place))
        assert found.columns == ()
        assert "is not a list of columns" in found.problem
    set_property(place, "[]")
    assert cluster_columns(DeltaTable(place)) == clustering.ClusterColumns()


def test_a_partition_column_is_no_column_to_sort_by(tmp_path: Path) -> None:
    rows = rows_of(1, 10).append_column("plant", pa.array(["x"] * 10))
    write_deltalake(tmp_path / "t", rows, partition_by=["plant"])
    set_property(tmp_path / "t", '["plant", "text"]')
    assert cluster_columns(DeltaTable(tmp_path / "t")) == clustering.ClusterColumns(("text",))


def test_a_table_that_was_never_clustered_gets_no_property() -> None:
    assert cluster_property((), {}) == {}
    assert cluster_property((), {CLUSTER_BY: '["a"]'}) == {CLUSTER_BY: "[]"}
    assert cluster_property(("a", "ü"), {}) == {CLUSTER_BY: '["a", "ü"]'}


# --- compaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True], ids=["in memory", "in runs"])
def test_a_merged_file_is_sorted_and_has_every_row(tmp_path: Path, is_large: bool) -> None:
    place = tmp_path / "t"
    clustered(place, "text", "double")
    before = sorted(repr(row) for row in DeltaTable(place).to_pyarrow_table().to_pylist())
    limits = MergeLimits(cluster_rows=30)
    if is_large:
        limits = replace(limits, group_bytes=4_000, read_bytes=2_000)
    done = merge_all(place, limits=limits)
    assert (done.files_removed, done.files_added, done.rows) == (4, 1, 200)
    rows = rows_in(place)
    assert expected_places(rows, ["text", "double"]) == list(range(200))
    assert sorted(repr(row) for row in rows.to_pylist()) == before
    (one,) = list_files(DeltaTable(place))
    footer = pq.read_metadata(place / one.path)
    assert footer.num_row_groups >= 7
    assert all(footer.row_group(each).num_rows <= 30 for each in range(footer.num_row_groups))
    assert set(place.rglob("*")) >= {place / one.path}
    assert not [path for path in place.iterdir() if path.name.startswith("tmp")]


def test_rows_of_one_value_stay_as_they_were_received(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for first in (200, 100, 0):
        seqs = list(range(first, first + 100))
        random.Random(first).shuffle(seqs)
        rows = {"topic": [f"t/{seq % 3}" for seq in seqs], "node": ["n"] * 100, "seq": seqs}
        write_deltalake(place, pa.table(rows), mode="append")
    set_property(place, '["topic"]')
    merge_all(place)
    rows = rows_in(place)
    assert rows.column("topic").to_pylist() == ["t/0"] * 100 + ["t/1"] * 100 + ["t/2"] * 100
    assert rows.column("seq").to_pylist() == [
        *range(0, 300, 3),
        *range(1, 300, 3),
        *range(2, 300, 3),
    ]


def test_a_reader_skips_row_groups_by_their_bounds(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for first in range(0, 5_000, 1_000):
        topics = [f"device/{seq * 7_919 % 500:03}" for seq in range(first, first + 1_000)]
        write_deltalake(
            place, pa.table({"topic": topics, "seq": range(first, first + 1_000)}), mode="append"
        )
    set_property(place, '["topic"]')
    merge_all(place, limits=MergeLimits(cluster_rows=100))
    (one,) = list_files(DeltaTable(place))
    import pyarrow.dataset as ds

    (fragment,) = ds.dataset(place / one.path).get_fragments()
    assert len(fragment.row_groups) == 50
    chosen = fragment.subset(ds.field("topic") == "device/123")
    assert len(chosen.row_groups) <= 2
    assert chosen.count_rows(filter=ds.field("topic") == "device/123") == 10


def test_payloads_larger_than_a_row_group_are_merged_one_by_one(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(4):
        payloads = [os.urandom(200_000 if at == 5 else 8_000) for at in range(10)]
        names = [f"{(at * 3 + number) % 10}" for at in range(10)]
        write_deltalake(place, pa.table({"a": names, "p": payloads}), mode="append")
    set_property(place, '["a"]')
    before = DeltaTable(place).to_pyarrow_table()
    merge_all(place, limits=MergeLimits(group_bytes=50_000, read_bytes=20_000))
    rows = rows_in(place)
    assert rows.column("a").to_pylist() == sorted(before.column("a").to_pylist())
    assert sorted(rows.column("p").to_pylist()) == sorted(before.column("p").to_pylist())
    (one,) = list_files(DeltaTable(place))
    sizes = sorted(group_bytes(pq.read_metadata(place / one.path)))
    assert len(sizes) >= 12
    assert sizes[-5] <= 50_000 < sizes[-4] < 201_000


def test_files_of_other_columns_and_types_are_sorted_together(tmp_path: Path) -> None:
    place = tmp_path / "t"
    write_deltalake(place, pa.table({"a": [3, 1]}), mode="append")
    later = pa.table({"a": [2, 0], "name": pa.array(["y", "x"], pa.large_string())})
    write_deltalake(place, later, mode="append", schema_mode="merge")
    set_property(place, '["name", "a"]')
    merge_all(place)
    found = rows_in(place).to_pylist()
    assert [(row["name"], row["a"]) for row in found] == [
        ("x", 0),
        ("y", 2),
        (None, 1),
        (None, 3),
    ]
    # Files that lack all of the columns stay as they are.
    other = tmp_path / "u"
    for values in ([5, 4], [3, 2]):
        write_deltalake(other, pa.table({"a": values}), mode="append")
    write_deltalake(other, pa.table({"a": [1], "b": ["x"]}), mode="append", schema_mode="merge")
    set_property(other, '["b"]')
    table = DeltaTable(other)
    compact(str(other), table, plan_all(list_files(table)[1:], 2**30))
    assert sorted(DeltaTable(other).to_pyarrow_table().column("a").to_pylist()) == [1, 2, 3, 4, 5]


def test_semel_lake_optimize_sorts_as_the_table_says(tmp_path: Path) -> None:
    clustered(tmp_path / "t", "gone", "long")
    assert "semel.clusterBy names gone, and" in optimize(str(tmp_path), "t").notice
    assert expected_places(rows_in(tmp_path / "t"), ["long"]) == list(range(200))
    # Another order holds for what is merged from then on.
    set_property(tmp_path / "t", '["text"]')
    assert optimize(str(tmp_path), "t").version is None
    for number in range(2):
        write_deltalake(tmp_path / "t", rows_of(number, 10), mode="append")
    assert optimize(str(tmp_path), "t").notice == ""
    assert expected_places(rows_in(tmp_path / "t"), ["text"]) == list(range(220))


# --- damage and kills -----------------------------------------------------------------------------


def landed(place: Path, numbers: range) -> None:
    """A file as a landing writes it."""
    made = random.Random(numbers.start)
    rows = pa.record_batch(
        {
            "a": list(numbers),
            "topic": [made.choice("abc") * 3 for _ in numbers],
            "x": [float("nan"), *(made.random() for _ in numbers[1:])],
            "payload": [made.randbytes(20) for _ in numbers],
        }
    )
    if not place.exists():
        DeltaTable.create(place, rows.schema)
        set_property(place, '["topic"]')
    table = DeltaTable(place)
    table.create_write_transaction(
        [
            AddAction(each.path, each.size, each.partition, each.modified, True, each.statistics)
            for each in write_files([rows], TableLayout(str(place)))
        ],
        "append",
        table.schema(),
    )


@pytest.mark.slow
def test_no_flipped_bit_is_sorted_into_a_merged_file(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for start in (0, 100, 200):
        landed(place, range(start, start + 100))
    before = repr(DeltaTable(place).to_pyarrow_table().sort_by("a").to_pylist())
    path = place / list_files(DeltaTable(place))[0].path
    data = path.read_bytes()
    chosen = random.Random(12)
    refused = 0
    for _ in range(40):
        bit = chosen.randrange(len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        copy = tmp_path / "copy"
        shutil.copytree(place, copy)
        (copy / path.name).write_bytes(damaged)
        try:
            merge_all(copy)
            found = DeltaTable(copy).to_pyarrow_table().sort_by("a").to_pylist()
            assert repr(found) == before, f"bit {bit} of {len(data)} bytes"
        except DamagedFile:
            assert DeltaTable(copy).version() == 4
            refused += 1
        shutil.rmtree(copy)
    assert refused > 20
    assert merge_all(place).rows == 300


@pytest.mark.parametrize("how", ["other values", "other order"])
def test_a_sorted_file_that_reads_otherwise_than_it_was_written_is_not_committed(
    tmp_path: Path, how: str
) -> None:
    place = tmp_path / "t"
    clustered(place, "text")

    class DamagingFolder(TableFolder):
        def fsync(self, path: str) -> int:
            rows = pq.read_table(place / path)
            if how == "other values":
                rows = rows.set_column(1, "long", pc.bit_wise_xor(rows["long"], 1))
            else:
                rows = rows.take(list(range(rows.num_rows))[::-1])
            pq.write_table(rows, place / path)
            return super().fsync(path)

    before = set(place.rglob("*.parquet"))
    version = DeltaTable(place).version()
    with pytest.raises(TableError, match=r"just written, differs from .*nothing was committed"):
        merge_all(place, folder=DamagingFolder(str(place)))
    assert DeltaTable(place).version() == version
    assert set(place.rglob("*.parquet")) == before
