"""Option `filters`: the same rows by Arrow and by Spark, and no other files."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from semel.pipeline import read_table
from semel.pipeline.errors import OptionError
from semel.pipeline.files import TableFolder
from semel.pipeline.table_filters import (
    OPERATORS,
    bind_filters,
    filters_as_text,
    parse_filters,
)
from semel.pipeline.table_options import TableOptions, parse_table_options
from semel.pipeline.table_reading import TableBatchReader, live_files, open_version, schema_of
from tests.pipeline.sources import problem_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = date(2026, 3, 1)


def rows_of(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def by_arrow(spark: SparkSession, table: Path, filters: list[Any]) -> DataFrame:
    reader = spark.read.format("semel_delta").option("filters", filters_as_text(filters))
    return reader.load(str(table))


# --- what a comparison means ----------------------------------------------------------------------

# A column of each type: values that differ, a null, and for floats NaN and both zeros.
COLUMNS: dict[str, pa.Array] = {
    "tiny": pa.array([1, -128, None, 127, 1], pa.int8()),
    "number": pa.array([5, -7, None, 2**63 - 1, 5], pa.int64()),
    "single": pa.array([0.1, -0.0, None, float("nan"), 0.0], pa.float32()),
    "double": pa.array([0.5, -0.0, None, float("nan"), float("inf")], pa.float64()),
    "flag": pa.array([True, False, None, True, False], pa.bool_()),
    "text": pa.array(["a", "it's \\d", None, "", "ä"], pa.string()),
    "amount": pa.array([Decimal("1.50"), Decimal("-2"), None, Decimal("99.99"), Decimal("1.5")]),
    "day": pa.array([DAY, date(1969, 12, 31), None, date(2026, 3, 2), DAY], pa.date32()),
    "moment": pa.array(
        [NOON, NOON - timedelta(microseconds=1), None, NOON + timedelta(days=1), NOON],
        pa.timestamp("us", "UTC"),
    ),
    "local": pa.array(
        [datetime(2026, 3, 1), datetime(1900, 1, 1), None, datetime(2026, 3, 1, 1), None],
        pa.timestamp("us"),
    ),
}
VALUES: dict[str, list[Any]] = {
    "tiny": [1, 127],
    "number": [5, 2**63 - 1],
    "single": [0.1, 0],
    "double": [0.5, 0, 1e400],
    "flag": [True, False],
    "text": ["a", "it's \\d", ""],
    "amount": [Decimal("1.5"), "99.99", 7],
    "day": [DAY, "1969-12-31"],
    "moment": [NOON, "2026-03-01T13:00:00+01:00", "2026-03-02"],
    "local": ["2026-03-01", "2026-03-01T00:30:00"],
}


def expected(column: str, operator: str, values: list[Any]) -> list[int]:
    """The rows by Python: null compares with nothing, and NaN is greater than any number."""
    found = []
    for at, there in enumerate(COLUMNS[column].to_pylist()):
        if there is None:
            continue
        if column == "single":
            values = [pa.scalar(float(value), pa.float32()).as_py() for value in values]
        is_nan = there != there
        same = [there == value for value in values]
        less = not is_nan and there < values[0]
        holds = {
            "=": same[0],
            "!=": not same[0],
            "<": less,
            "<=": less or same[0],
            ">": not less and not same[0],
            ">=": not less,
            "in": any(same),
            "not in": not any(same),
        }
        if holds[operator]:
            found.append(at)
    return found


def as_value(column: str, given: Any) -> Any:
    """A value of a filter as Python has it in the column."""
    if column == "moment" and isinstance(given, str):
        found = datetime.fromisoformat(given)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found
    if column == "local":
        return datetime.fromisoformat(given)
    if column == "day" and isinstance(given, str):
        return date.fromisoformat(given)
    return Decimal(given) if column == "amount" else given


@pytest.fixture(scope="module")
def every_type(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = tmp_path_factory.mktemp("types") / "table"
    columns = {"id": pa.array(range(5), pa.int64()), **COLUMNS}
    write_deltalake(table, pa.table(columns))
    return table


def comparisons() -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []
    for column, operator in product(COLUMNS, OPERATORS):
        values = [value for value in VALUES[column] if value != 1e400]
        if operator in ("in", "not in"):
            found.append((column, operator, values))
        else:
            found += [(column, operator, value) for value in values]
    return found


def test_each_comparison_of_each_type_means_the_same_by_arrow(every_type: Path) -> None:
    table = open_version(TableOptions(str(every_type)))
    rows = table.to_pyarrow_table()
    for column, operator, given in comparisons():
        values = given if isinstance(given, list) else [given]
        filters = parse_filters(filters_as_text([(column, operator, given)]))
        bound = bind_filters(filters, schema_of(table))
        assert bound is not None
        found = sorted(rows.filter(bound.expression()).column("id").to_pylist())
        known = expected(column, operator, [as_value(column, value) for value in values])
        assert found == known, (column, operator, given)


def test_each_comparison_of_each_type_means_the_same_by_spark(
    spark: SparkSession, every_type: Path
) -> None:
    frame = read_table(spark, str(every_type))
    schema = frame.schema
    # One query for all: a column of flags for each comparison.
    flags = {}
    for at, (column, operator, given) in enumerate(comparisons()):
        bound = bind_filters(parse_filters(filters_as_text([(column, operator, given)])), schema)
        assert bound is not None
        flags[f"c{at}"] = bound.condition()
    found = frame.select("id", *(flag.alias(name) for name, flag in flags.items())).collect()
    for at, (column, operator, given) in enumerate(comparisons()):
        values = given if isinstance(given, list) else [given]
        known = expected(column, operator, [as_value(column, value) for value in values])
        assert sorted(row.id for row in found if row[f"c{at}"]) == known, (column, operator, given)


# Values of a row group each: NaN beside equal numbers and others, both zeros, and only NaN.
NAN: Final = float("nan")
INFINITE: Final = float("inf")
FLOAT_GROUPS: Final[list[list[float | None]]] = [
    [5.0, NAN, None],
    [1.0, 7.0, NAN],
    [-0.0, -0.0],
    [0.0, NAN],
    [NAN, NAN],
    [INFINITE, -INFINITE],
    [None, None],
    [5.0, 5.0],
]


@pytest.mark.parametrize(
    ("kind", "writer"),
    [
        ("float", "semel_delta"),
        ("double", "semel_delta"),
        ("float", "delta-rs"),
        ("double", "pyarrow"),
    ],
)
def test_no_statistics_of_a_file_hide_nan_or_a_zero(
    spark: SparkSession, tmp_path: Path, kind: str, writer: str
) -> None:
    table = str(tmp_path / "t")
    rows = [(at, value) for at, value in enumerate(value for g in FLOAT_GROUPS for value in g)]
    left = iter(rows)
    arrow_kind = pa.float32() if kind == "float" else pa.float64()
    for group in FLOAT_GROUPS:
        part = [next(left) for _ in group]
        arrow = pa.table(
            {
                "id": pa.array([each[0] for each in part], pa.int64()),
                "x": pa.array([each[1] for each in part], arrow_kind),
            }
        )
        if writer == "semel_delta":
            frame = spark.createDataFrame(part, f"id BIGINT, x {kind}").coalesce(1)
            frame.write.format("semel_delta").mode("append").save(table)
            continue
        before = set(Path(table).glob("*.parquet"))
        write_deltalake(table, arrow, mode="append")
        if writer == "pyarrow":
            (file,) = set(Path(table).glob("*.parquet")) - before
            pq.write_table(arrow, file)
    whole = read_table(spark, table)
    # Neither a file nor a cache, whose statistics hide NaN too.
    known = spark.createDataFrame(rows, f"id BIGINT, x {kind}")
    schema = schema_of(open_version(TableOptions(table)))
    for operator, value in product(OPERATORS, ["5", "0", "-0.0", "1e400"]):
        number = f"double('{value}')"
        sql = f"x {operator} ({number})"
        selected = rows_of(known.where(sql))
        text = f'[["x", "{operator}", {f"[{value}]" if "in" in operator else value}]]'
        bound = bind_filters(parse_filters(text), schema)
        assert bound is not None
        reader = TableBatchReader(parse_table_options({"path": table, "filters": text}), schema)
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        by_arrow = sorted(each for batch in found for each in batch.column("id").to_pylist())
        assert by_arrow == selected, (operator, value)
        assert rows_of(whole.where(bound.condition())) == selected, (operator, value)
        if writer == "semel_delta":
            # A condition of a user, which Spark's Parquet reader sees as it is.
            assert rows_of(whole.where(sql)) == selected, sql


def test_bounds_still_exclude_row_groups_of_floats(tmp_path: Path) -> None:
    rows = pa.table({"x": [float(at) for at in range(100)], "y": [NAN] * 100})
    write_deltalake(tmp_path / "t", rows)
    (file,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(rows, file, row_group_size=10)
    schema = schema_of(open_version(TableOptions(str(tmp_path / "t"))))

    def groups(*filters: tuple[str, str, float]) -> list[int]:
        bound = bind_filters(parse_filters(filters_as_text(filters)), schema)
        assert bound is not None
        folder = TableFolder(str(tmp_path / "t"))
        return folder.row_groups(file.name, bound.row_group_expression(), rows.schema)

    assert groups(("x", "<", 15)) == [0, 1]
    assert groups(("x", "=", 15), ("y", ">", 3)) == [1]
    assert groups(("x", ">", 85)) == list(range(10))


def test_groups_of_comparisons_are_alternatives(spark: SparkSession, every_type: Path) -> None:
    either = [[("number", "=", 5), ("flag", "=", True)], [("text", "==", "ä")]]
    for frame in (
        by_arrow(spark, every_type, either),
        read_table(spark, str(every_type), filters=either),
    ):
        assert rows_of(frame) == [0, 4]
    both = [("number", "=", 5), ("text", "NOT  IN", ["ä"])]
    assert rows_of(by_arrow(spark, every_type, both)) == [0]
    assert rows_of(read_table(spark, str(every_type), filters=both)) == [0]
    assert rows_of(read_table(spark, str(every_type), filters=[])) == [0, 1, 2, 3, 4]


def test_a_session_with_another_time_zone_reads_the_same_rows(
    spark: SparkSession, every_type: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for filters, known in (
            ([("moment", ">=", NOON)], [0, 3, 4]),
            ([("moment", "<", "2026-03-01T12:00:00")], [1]),
            ([("local", "=", "2026-03-01")], [0]),
        ):
            assert rows_of(read_table(spark, str(every_type), filters=filters)) == known
            assert rows_of(by_arrow(spark, every_type, filters)) == known
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


def test_a_compared_column_need_not_be_read(spark: SparkSession, every_type: Path) -> None:
    text = filters_as_text([("moment", "<", NOON)])
    reader = spark.read.format("semel_delta").option("filters", text)
    found = reader.schema("text STRING, id BIGINT").load(str(every_type))
    assert [tuple(row) for row in found.collect()] == [("it's \\d", 1)]


# --- what is not read -----------------------------------------------------------------------------


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Five days with two files each, of two hours; `name` is only in the last day's files."""
    table = tmp_path / "days"
    for day, hour in product(range(5), range(2)):
        moment = NOON + timedelta(days=day, hours=hour)
        columns: dict[str, pa.Array] = {
            "id": pa.array([day * 10 + hour * 2, day * 10 + hour * 2 + 1], pa.int64()),
            "received": pa.array(
                [moment, moment + timedelta(minutes=30)], pa.timestamp("us", "UTC")
            ),
            "date": pa.array([moment.date()] * 2, pa.date32()),
        }
        if day == 4:
            columns["name"] = pa.array(["x", None], pa.string())
        write_deltalake(
            table,
            pa.table(columns),
            mode="append",
            partition_by=["date"],
            schema_mode="merge",
        )
    return table


@pytest.mark.parametrize(
    ("filters", "files", "rows"),
    [
        ([("date", "=", "2026-03-02")], 2, [10, 11, 12, 13]),
        ([("date", "in", ["2026-03-01", "2026-03-05"])], 4, [0, 1, 2, 3, 40, 41, 42, 43]),
        ([("date", "!=", DAY), ("date", "<", "2026-03-03")], 2, [10, 11, 12, 13]),
        # By the times of the two newest days, and of the rows of the others.
        ([("received", ">=", NOON + timedelta(days=4, hours=1))], 1, [42, 43]),
        ([("received", "<", NOON + timedelta(minutes=10))], 2, [0]),
        ([("date", ">", "2027-01-01")], 0, []),
        ([("name", "=", "x")], 10, [40, 42]),
    ],
)
def test_files_that_cannot_have_such_rows_are_not_opened(
    spark: SparkSession, days: Path, filters: list[Any], files: int, rows: list[int]
) -> None:
    table = open_version(TableOptions(str(days)))
    bound = bind_filters(parse_filters(filters_as_text(filters)), schema_of(table))
    kept = live_files(table, bound)
    assert len(kept) == files
    for each in days.rglob("*.parquet"):
        if each.relative_to(days).as_posix() not in {file.path for file in kept}:
            each.write_bytes(b"whoever opens this fails")
    assert rows_of(by_arrow(spark, days, filters)) == rows
    assert rows_of(read_table(spark, str(days), filters=filters)) == rows


def test_row_groups_that_cannot_have_such_rows_are_not_read(tmp_path: Path) -> None:
    rows = pa.table({"topic": [f"t{at // 100}" for at in range(1000)], "id": range(1000)})
    write_deltalake(tmp_path / "t", rows)
    (file,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(rows, file, row_group_size=100)
    table = open_version(TableOptions(str(tmp_path / "t")))
    bound = bind_filters(parse_filters('[["topic", "=", "t3"]]'), schema_of(table))
    assert bound is not None
    folder = TableFolder(str(tmp_path / "t"))
    assert folder.row_groups(file.name, bound.row_group_expression(), rows.schema) == [3]
    # A page of another row group is damaged, and nobody notices.
    damaged = bytearray(file.read_bytes())
    start = pq.ParquetFile(file).metadata.row_group(7).column(1).data_page_offset
    damaged[start : start + 40] = bytes(40)
    file.write_bytes(damaged)
    reader = TableBatchReader(
        parse_table_options({"path": str(tmp_path / "t"), "filters": '[["topic","=","t3"]]'}),
        schema_of(table),
    )
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in found) == 100


def test_a_stream_reads_only_such_rows(spark: SparkSession, days: Path, tmp_path: Path) -> None:
    def follow(filters: str) -> list[int]:
        query = (
            spark.readStream.format("semel_delta")
            .option("filters", filters)
            .load(str(days))
            .select("id")
            .writeStream.format("semel_delta")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(120)
        found: list[int] = DeltaTable(tmp_path / "target").to_pyarrow_table().column(0).to_pylist()
        return sorted(found)

    filters = '[["date", ">=", "2026-03-05"], ["id", ">", 40]]'
    assert follow(filters) == [41, 42, 43]
    appended = {"id": [7, 77], "received": [NOON, NOON], "date": [DAY, date(2026, 3, 9)]}
    write_deltalake(
        days,
        pa.table(appended).cast(
            pa.schema(
                [
                    ("id", pa.int64()),
                    ("received", pa.timestamp("us", "UTC")),
                    ("date", pa.date32()),
                ]
            )
        ),
        mode="append",
        partition_by=["date"],
        schema_mode="merge",
    )
    assert follow(filters) == [41, 42, 43, 77]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("date > 3", "must be a list such as"),
        ("{}", "must be a list such as"),
        ("[1]", "must be a list such as"),
        ("[" * 100_000, "must be a list such as"),
        ("[[]]", "expected a list such as"),
        ('[[["a", "=", 1]], []]', "expected a list such as"),
        ('[["a", "="]]', r"expected \[column, operator, value\]"),
        ('[["a", 1, 1]]', r"expected \[column, operator, value\]"),
        ('[["a", "like", "x"]]', "'like' is not an operator; they are =, !=, <"),
        ('[["a", "in", "x"]]', "in needs a list of values"),
        ('[["a", "in", []]]', "in needs a list of values"),
        ('[["a", "=", null]]', "no comparison with null is true"),
        ('[["a", "not in", [1, null]]]', "no comparison with null is true"),
        ('[["a", "=", NaN]]', "NaN is not a number of JSON"),
    ],
)
def test_filters_of_another_form_are_refused(given: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_table_options({"path": "t", "filters": given})


SCHEMA = StructType.fromJson(
    json.loads(
        '{"type": "struct", "fields": ['
        + ", ".join(
            f'{{"name": "{name}", "type": "{kind}", "nullable": true, "metadata": {{}}}}'
            for name, kind in (
                ("tiny", "byte"),
                ("double", "double"),
                ("flag", "boolean"),
                ("text", "string"),
                ("amount", "decimal(4,2)"),
                ("day", "date"),
                ("moment", "timestamp"),
                ("local", "timestamp_ntz"),
                ("bytes", "binary"),
            )
        )
        + "]}"
    )
)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("Tiny", 1, "the table has no column Tiny; did you mean tiny?"),
        ("nothing", 1, "the table has no column nothing$"),
        ("tiny", 128, "column tiny is tinyint, but 128 is not"),
        ("tiny", 1.5, "column tiny is tinyint, but"),
        ("tiny", True, "but true is not"),
        ("tiny", "1", 'but "1" is not'),
        ("double", "1.5", "column double is double"),
        ("double", False, "but false is not"),
        ("flag", 1, "column flag is boolean"),
        ("text", 7, "column text is string, but 7 is not"),
        ("text", ["a"], "column text is string"),
        ("text", {"a": 1}, "column text is string"),
        ("amount", "1.555", r"column amount is decimal\(4,2\)"),
        ("amount", 100, r"column amount is decimal\(4,2\)"),
        ("amount", "NaN", r"column amount is decimal\(4,2\)"),
        ("amount", "x", r"column amount is decimal\(4,2\)"),
        ("day", "noon", "column day is date"),
        ("day", 7, "column day is date"),
        ("moment", "2026-03-01T12:00:00.0000005Z", "column moment is timestamp"),
        ("moment", "soon", "column moment is timestamp"),
        ("local", "2026-03-01T12:00:00Z", "column local is timestamp_ntz"),
        ("bytes", "AA==", "column bytes is binary, which no filter compares"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(
    column: str, value: Any, said: str
) -> None:
    filters = parse_filters(json.dumps([[column, "=", value]]))
    with pytest.raises(OptionError, match=said):
        bind_filters(filters, SCHEMA)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tiny", -128),
        ("double", 1),
        ("amount", 0),
        ("amount", "-99.99"),
        ("amount", 1.5),
        ("moment", "2026-03-01"),
        ("local", "2026-03-01T12:00:00.123456"),
    ],
)
def test_a_value_that_just_fits_its_column_is_accepted(column: str, value: Any) -> None:
    assert bind_filters(parse_filters(json.dumps([[column, "=", value]])), SCHEMA) is not None


def test_more_comparisons_than_can_be_evaluated_are_refused() -> None:
    most = [[["tiny", "=", 1]]] * 1_000
    bound = bind_filters(parse_filters(json.dumps(most)), SCHEMA)
    assert bound is not None
    assert pa.table({"tiny": pa.array([1, 2], pa.int8())}).filter(bound.expression()).num_rows == 1
    with pytest.raises(OptionError, match="more than 1,000 comparisons"):
        parse_filters(json.dumps([*most, [["tiny", "=", 2]]]))


def test_a_value_that_no_column_has_is_refused() -> None:
    with pytest.raises(OptionError, match="filters: b'x' cannot be compared with a column"):
        filters_as_text([("a", "=", b"x")])


def test_a_mistake_reaches_the_user_as_a_sentence(spark: SparkSession, every_type: Path) -> None:
    said = problem_of(lambda: by_arrow(spark, every_type, [("Day", "=", 1)]).collect())
    assert "the table has no column Day; did you mean day?" in said
    with pytest.raises(OptionError, match="column day is date, but 1 is not"):
        read_table(spark, str(every_type), filters=[("day", "=", 1)])


def test_many_values_are_compared(every_type: Path) -> None:
    table = open_version(TableOptions(str(every_type)))
    for operator, known in (("in", [0, 1, 4]), ("not in", [3])):
        # Of a tree with as many comparisons, Arrow would run out of stack.
        filters = parse_filters(json.dumps([["number", operator, list(range(-50_000, 50_000))]]))
        bound = bind_filters(filters, schema_of(table))
        assert bound is not None
        rows = table.to_pyarrow_table().filter(bound.expression())
        assert sorted(rows.column("id").to_pylist()) == known
