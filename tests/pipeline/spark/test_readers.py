"""What readers find in a table by a filter is what they find without: no bound misleads them."""

import operator
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from semel.pipeline.files import TableLayout, write_files
from semel.pipeline.lake import dataset_of
from semel.pipeline.live_files import list_files
from semel.pipeline.table import LandingBatch, Table
from tests.pipeline.core.test_table import schema
from tests.pipeline.delta_dataset import delta_dataset
from tests.pipeline.landing_rows import land_seqs

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LETTERS = ["", "a", "ä", "😀", "\U00020000", "\U0010ffff", "\ud7ff", '"', "\\", "\n", "z" * 64]
LONG = ["a" * 65, "z" * 63 + "😀x", "\U0010ffff" * 70, "b" * 5_000]

# Delta's name of a type: Arrow's, DuckDB's, usual values, and rare ones that are hard to bound.
TYPES: dict[str, tuple[pa.DataType, str, list[Any], list[Any]]] = {
    "long": (pa.int64(), "BIGINT", [-3, 0, 2, 2**53, 2**53 + 1], [-(2**63), 2**63 - 1]),
    "short": (pa.int16(), "SMALLINT", [-3, 0, 2], [2**15 - 1]),
    "double": (
        pa.float64(),
        "DOUBLE",
        [0.0, -0.0, 0.1, -1.5],
        [float("nan"), float("inf"), -float("inf"), 5e-324],
    ),
    "string": (pa.string(), "VARCHAR", LETTERS, LONG),
    "boolean": (pa.bool_(), "BOOLEAN", [True, False], []),
    "date": (pa.date32(), "DATE", [date(2026, 1, 1), date(1969, 12, 31)], [date(1000, 1, 1)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        "TIMESTAMPTZ",
        [NOON, NOON + MICROSECOND, NOON - MICROSECOND],
        [datetime(500, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    ),
    "decimal(10,5)": (
        pa.decimal128(10, 5),
        "DECIMAL(10, 5)",
        [Decimal("1.10000"), Decimal("0.00001"), Decimal("0.00000")],
        [],
    ),
    "decimal(20,2)": (
        pa.decimal128(20, 2),
        "DECIMAL(20, 2)",
        [Decimal("1.10"), Decimal("-2.20"), Decimal("0.00")],
        [Decimal("123456789012345678.90"), Decimal("0.01")],
    ),
}
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_a_filter_finds_what_is_there(tmp_path: Path, kind: str, seed: int) -> None:
    arrow, sql, usual, rare = TYPES[kind]
    choose = random.Random(f"{kind} {seed}")

    def value() -> Any:
        if choose.random() < 0.15:
            return None
        return choose.choice(rare if rare and choose.random() < 0.15 else usual)

    number = 0
    for _ in range(6):
        values = [value() for _ in range(choose.randint(1, 4))]
        rows = pa.table({"i": range(number, number + len(values)), "v": pa.array(values, arrow)})
        number += len(values)
        files = write_files(rows.to_batches(), TableLayout(str(tmp_path)))
        batch = LandingBatch(files, schema(("i", "long"), ("v", kind)))
        Table(str(tmp_path)).commit(batch)
    if choose.random() < 0.5:
        DeltaTable(str(tmp_path)).create_checkpoint()

    table = DeltaTable(str(tmp_path))
    whole = table.to_pyarrow_table()
    in_memory = polars.from_arrow(whole)
    assert isinstance(in_memory, polars.DataFrame)
    lazy = polars.scan_delta(str(tmp_path))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("whole", whole)
    connection.register("own", dataset_of(table))
    connection.register("theirs", delta_dataset(table))

    def found(view: str, where: str, *given: Any) -> list[int]:
        text = f"SELECT i FROM {view} WHERE {where} ORDER BY i"
        return [row[0] for row in connection.execute(text, given).fetchall()]

    for where in ("v IS NULL", "v IS NOT NULL"):
        expected = found("whole", where)
        assert found("own", where) == expected
        assert found("theirs", where) == expected
    for _ in range(12):
        sought = choose.choice([*usual, *rare])
        sign = choose.choice(list(SIGNS))
        where = f"v {sign} CAST(? AS {sql})"
        expected = found("whole", where, sought)
        assert found("own", where, sought) == expected, (where, sought)
        assert found("theirs", where, sought) == expected, (where, sought)
        by_arrow = SIGNS[sign](ds.field("v"), pa.scalar(sought, arrow))
        assert sorted(
            table.to_pyarrow_dataset().to_table(filter=by_arrow)["i"].to_pylist()
        ) == sorted(whole.filter(by_arrow)["i"].to_pylist()), (where, sought)
        by_polars = SIGNS[sign](polars.col("v"), polars.lit(sought, dtype=in_memory.schema["v"]))
        assert sorted(lazy.filter(by_polars).collect()["i"].to_list()) == sorted(
            in_memory.filter(by_polars)["i"].to_list()
        ), (where, sought)


def test_a_column_that_came_later_is_null_in_older_files(tmp_path: Path) -> None:
    narrow = write_files(pa.table({"a": [1, 2]}).to_batches(), TableLayout(str(tmp_path)))
    Table(str(tmp_path)).commit(LandingBatch(narrow, schema(("a", "long"))))
    wide = write_files(pa.table({"a": [3], "v": ["x"]}).to_batches(), TableLayout(str(tmp_path)))
    both = schema(("a", "long"), ("v", "string"))
    Table(str(tmp_path)).commit(LandingBatch(wide, both, may_add_columns=True))
    found = dataset_of(DeltaTable(str(tmp_path))).to_table(filter=ds.field("v").is_null())
    assert sorted(found["a"].to_pylist()) == [1, 2]


def test_a_question_about_the_newest_rows_opens_no_other_files(tmp_path: Path) -> None:
    place = tmp_path / "messages"
    for day in range(4):
        for number in range(2):
            first = day * 20 + number * 10 + 1
            land_seqs(str(place), first, first + 9, day=day)
    dataset = dataset_of(DeltaTable(str(place)))
    received = sorted(dataset.to_table(columns=["received"])["received"].to_pylist())
    column = ds.field("received")

    def seqs(condition: ds.Expression) -> list[int]:
        return sorted(dataset.to_table(columns=["seq"], filter=condition)["seq"].to_pylist())

    # What is not opened may as well not be there.
    for file in list_files(DeltaTable(str(place))):
        if not 71 <= seq_of(place / file.disk_path) <= 80:
            (place / file.disk_path).unlink()
    assert seqs(column >= pa.scalar(received[-10], KIND)) == list(range(71, 81))
    assert seqs(column > pa.scalar(received[-1], KIND)) == []
    with pytest.raises(FileNotFoundError):
        seqs(column >= pa.scalar(received[0], KIND))


KIND = pa.timestamp("us", "UTC")


def seq_of(path: Path) -> int:
    """The first seq of a file."""
    return int(pq.read_table(path, columns=["seq"])["seq"][0].as_py())
