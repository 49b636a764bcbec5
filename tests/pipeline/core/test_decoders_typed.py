"""Python values become typed Arrow structs, or problems that name the column."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.pipeline.decoders.leaves import TIMESTAMP, Rejected
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.typed import NO_VALUE, check_schema, structs_of_rows
from semel.pipeline.errors import OptionError

# Fits no column, so a column that contains it is converted value by value.
ODD = object()


def typed(kind: pa.DataType, *values: object, nullable: bool = True) -> Decoded:
    schema = pa.schema([pa.field("v", kind, nullable=nullable)])
    decoded = structs_of_rows([{"v": value} for value in values], schema, {})
    decoded.values.validate(full=True)
    return decoded


def accepted(kind: pa.DataType, value: object) -> object:
    """The value in Arrow, which must be the same as a whole column and value by value."""
    at_once = typed(kind, value, None)
    assert not at_once.problems, at_once.problems
    singly = typed(kind, value, ODD)
    assert list(singly.problems) == [1]
    (found, alone) = (at_once.values.field("v")[0], singly.values.field("v")[0])
    assert found == alone or str(found) == str(alone)
    return alone.value if kind == TIMESTAMP else alone.as_py()


def refused(kind: pa.DataType, value: object) -> str:
    """The reason why a value is refused, alone and beside one that fits."""
    decoded = typed(kind, value, None)
    assert list(decoded.problems) == [0]
    assert decoded.values.to_pylist() == [None, {"v": None}]
    assert decoded.problems[0].column == "v"
    return decoded.problems[0].reason


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_ints_are_accepted_up_to_their_bounds(kind: pa.DataType) -> None:
    bound = 1 << (kind.bit_width - 1)
    for value in (0, -bound, bound - 1):
        assert accepted(kind, value) == value
    for value in (-bound - 1, bound, 1 << 70):
        expected = f"expected an int from {-bound} to {bound - 1}, found {value}"
        assert refused(kind, value) == expected
    assert "found an int of 100,001 bits" in refused(kind, 1 << 100_000)
    for other in (True, 1.0, "1", b"1", Decimal(1), [1], {"a": 1}):
        refused(kind, other)


def test_booleans_are_not_ints() -> None:
    assert accepted(pa.bool_(), True) is True
    assert accepted(pa.bool_(), False) is False
    assert refused(pa.bool_(), 1) == "expected a boolean, found 1"
    assert refused(pa.bool_(), "true") == "expected a boolean, found text 'true'"


def test_floats_are_rounded_and_ints_must_be_exact() -> None:
    assert accepted(pa.float64(), 0.1) == 0.1
    assert accepted(pa.float32(), 0.1) == pytest.approx(0.1, abs=1e-8)
    for kind in (pa.float32(), pa.float64()):
        assert accepted(kind, 5) == 5.0
        assert accepted(kind, math.inf) == math.inf
        assert accepted(kind, -math.inf) == -math.inf
        assert math.isnan(accepted(kind, math.nan))  # type: ignore[arg-type]
        for other in (True, "1.5", b"1", Decimal("1.5"), 10**400):
            refused(kind, other)
    assert accepted(pa.float64(), 2**53) == 2.0**53
    assert accepted(pa.float64(), 2**70) == 2.0**70
    assert "float64" in refused(pa.float64(), 2**53 + 1)
    assert accepted(pa.float32(), 2**24) == 2.0**24
    assert "float32" in refused(pa.float32(), 2**24 + 1)
    assert accepted(pa.float32(), 3.4e38) == pytest.approx(3.4e38)
    assert "float32" in refused(pa.float32(), 3.5e38)
    assert typed(pa.float64(), 1, 2.5, None).values.field("v").to_pylist() == [1.0, 2.5, None]


def test_decimals_keep_all_their_digits() -> None:
    kind = pa.decimal128(10, 2)
    for value in ("1.5", "-0.01", "99999999.99", "1E+3", "1.5000"):
        assert accepted(kind, Decimal(value)) == Decimal(value)
    assert accepted(kind, 7) == Decimal(7)
    assert accepted(kind, "12.50") == Decimal("12.50")
    reason = refused(kind, Decimal("1.234"))
    assert reason == "expected a decimal with at most 10 digits, 2 after the point, found 1.234"
    for other in (
        "100000000",
        "NaN",
        "sNaN",
        "Infinity",
        "1E-77",
        "1E-1000000000",
        "1E+1000000000",
    ):
        refused(kind, Decimal(other))
    for wrong in (1.5, True, "1e3", " 1", "1_0", "", "NaN", 10**9, 10**100, "9" * 61):
        refused(kind, wrong)


def test_text_and_bytes_are_different() -> None:
    assert accepted(pa.string(), "Grüße €") == "Grüße €"
    assert accepted(pa.string(), "") == ""
    assert accepted(pa.binary(), b"\x00\xff") == b"\x00\xff"
    unique = "00112233-4455-6677-8899-aabbccddeeff"
    assert accepted(pa.string(), UUID(unique)) == unique
    assert refused(pa.string(), b"abc") == "expected text, found 3 bytes"
    assert refused(pa.string(), 5) == "expected text, found 5"
    assert refused(pa.string(), "\ud800") == "expected text, found text '\\ud800'"
    assert refused(pa.binary(), "abc") == "expected bytes, found text 'abc'"
    assert len(refused(pa.binary(), "a" * 10_000)) < 100


def test_dates() -> None:
    assert accepted(pa.date32(), date(2024, 2, 29)) == date(2024, 2, 29)
    assert accepted(pa.date32(), "0001-01-01") == date(1, 1, 1)
    assert refused(pa.date32(), "2023-02-29") == "expected a date, found text '2023-02-29'"
    for other in (datetime(2024, 1, 1, tzinfo=UTC), 5, "20240229", "2024-W01-1", "٢٠٢٤-01-01"):
        refused(pa.date32(), other)


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T12:34:56Z",
        "2024-02-29 12:34Z",
        "2024-02-29T12:34:56.123456+02:00",
        "2024-02-29T12:34:56.1-0130",
        "2024-02-29T12:34:56+05",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "1969-12-31T23:59:59.999999Z",
    ],
)
def test_times_with_an_offset_are_accepted(text: str) -> None:
    assert accepted(TIMESTAMP, text) == micros(text)
    assert accepted(TIMESTAMP, datetime.fromisoformat(text)) == micros(text)


@pytest.mark.parametrize(
    "value",
    [
        "2024-02-29T12:34:56",
        "2024-02-30T12:34:56Z",
        "2024-02-29T24:00:00Z",
        "2024-02-29T23:59:60Z",
        "2024-02-29",
        "2024-02-29x12:34:56Z",
        "2024-02-29T12:34:56Z\n",
        "2024-02-29T12:34:56+24:00",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "now",
        "",
        datetime(2024, 2, 29),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        date(2024, 2, 29),
        253_402_300_800,
        -62_135_596_801,
        253_402_300_800.0,
        1 << 80,
        math.nan,
        math.inf,
        True,
        b"2024-02-29T12:34:56Z",
    ],
    ids=repr,
)
def test_other_times_are_refused(value: object) -> None:
    assert refused(TIMESTAMP, value).startswith("expected a time with an offset from UTC")


def test_numbers_are_seconds_since_1970_exact_to_the_microsecond() -> None:
    assert accepted(TIMESTAMP, 1_700_000_000) == 1_700_000_000_000_000
    assert accepted(TIMESTAMP, 1_700_000_000.123457) == 1_700_000_000_123_457
    assert accepted(TIMESTAMP, -0.000001) == -1
    assert accepted(TIMESTAMP, 253_402_300_799) == 253_402_300_799_000_000
    assert accepted(TIMESTAMP, "2024-02-29T12:34:56.123456789Z") == micros(
        "2024-02-29T12:34:56.123456Z"
    )


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_every_time_is_the_same_by_each_way(moment: int) -> None:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    assert accepted(TIMESTAMP, time) == moment
    assert accepted(TIMESTAMP, time.isoformat()) == moment
    if abs(moment) < 2**50:
        assert accepted(TIMESTAMP, moment / 1_000_000) == moment


@given(st.one_of(st.floats(), st.integers(), st.decimals(), st.text(), st.datetimes(), st.dates()))
def test_a_value_does_not_depend_on_its_neighbors(value: object) -> None:
    kinds = [pa.int16(), pa.float32(), pa.float64(), pa.decimal128(12, 3), pa.string(), TIMESTAMP]
    for kind in [*kinds, pa.date32(), pa.bool_(), pa.binary()]:
        alone = typed(kind, value)
        beside = typed(kind, value, ODD)
        assert alone.problems.get(0) == beside.problems.get(0)
        assert str(alone.values[0]) == str(beside.values[0])


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field(
            "reading",
            pa.struct(
                [
                    pa.field("values", pa.list_(pa.float64())),
                    pa.field("unit", pa.string(), nullable=False),
                ]
            ),
        ),
        pa.field("tags", pa.map_(pa.string(), pa.int64())),
        pa.field("parts", pa.list_(pa.struct([("n", pa.int8())]))),
    ]
)


def nested(*rows: Any) -> Decoded:
    decoded = structs_of_rows(rows, SCHEMA, {})
    decoded.values.validate(full=True)
    return decoded


GOOD: dict[str, Any] = {
    "id": 1,
    "reading": {"values": [1.5, None, 2], "unit": "C", "unknown": ODD},
    "tags": {"a": 1, "b": None},
    "parts": [{"n": 1}, {}, None],
    "unknown": ODD,
}
GOOD_RESULT: dict[str, Any] = {
    "id": 1,
    "reading": {"values": [1.5, None, 2.0], "unit": "C"},
    "tags": [("a", 1), ("b", None)],
    "parts": [{"n": 1}, {"n": None}, None],
}


def test_nested_values_are_accepted_and_unknown_keys_are_ignored() -> None:
    empty: dict[str, Any] = {"id": 2, "reading": None, "tags": {}, "parts": []}
    bare = {"id": 3}
    decoded = nested(GOOD, empty, bare)
    assert not decoded.problems
    assert decoded.values.to_pylist() == [
        GOOD_RESULT,
        {"id": 2, "reading": None, "tags": [], "parts": []},
        {"id": 3, "reading": None, "tags": None, "parts": None},
    ]


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        ({"id": None}, "id", "required column id is missing"),
        ({"reading": {}}, "reading.unit", "required column reading.unit is missing"),
        ({"reading": [1]}, "reading", "expected a map, found a list"),
        ({"reading": {"unit": 5}}, "reading.unit", "expected text, found 5"),
        (
            {"reading": {"unit": "C", "values": [1.0, 2.0, "x"]}},
            "reading.values[2]",
            "expected a number that a float64 represents, found text 'x'",
        ),
        ({"tags": {"a": 1, "b": 1.5}}, 'tags["b"]', "found 1.5"),
        ({"tags": {'"' * 99: 1.5}}, 'tags["' + '\\"' * 40 + '…"]', "found 1.5"),
        ({"tags": {b"a": 1}}, "tags", "expected text keys, found 1 byte"),
        ({"tags": 7}, "tags", "expected a map, found 7"),
        ({"parts": [{"n": 1}, {"n": 128}]}, "parts[1].n", "found 128"),
        ({"parts": [{"n": 1}, 5]}, "parts[1]", "expected a map, found 5"),
        ({"parts": "ab"}, "parts", "expected a list, found text 'ab'"),
        ({"parts": Rejected("found a strange value")}, "parts", "found a strange value"),
        ({"id": Rejected("found a strange value")}, "id", "found a strange value"),
    ],
)
def test_one_bad_row_harms_only_itself(change: dict[str, Any], column: str, reason: str) -> None:
    decoded = nested(GOOD, GOOD | change, GOOD, NO_VALUE)
    assert list(decoded.problems) == [1]
    assert decoded.problems[1].column == column
    assert decoded.problems[1].reason.endswith(reason)
    assert decoded.values.to_pylist() == [GOOD_RESULT, None, GOOD_RESULT, None]


@pytest.mark.parametrize(
    "row",
    [None, 5, "text", [GOOD], b"", True],
    ids=["null", "number", "text", "list", "bytes", "boolean"],
)
def test_a_row_that_is_not_a_map_is_a_problem(row: object) -> None:
    decoded = nested(GOOD, row)
    assert decoded.problems[1].reason.startswith("expected a map of columns, found ")
    assert decoded.values.to_pylist() == [GOOD_RESULT, None]


def test_the_first_column_that_fails_is_reported() -> None:
    decoded = nested({"id": 1, "tags": 5, "reading": 5})
    assert decoded.problems[0].column == "reading"


def test_required_items_of_a_list_are_named() -> None:
    kind = pa.list_(pa.field("item", pa.int32(), nullable=False))
    decoded = typed(kind, [1, 2], [1, None])
    assert decoded.problems[1].reason == "required column v[1] is missing"
    assert decoded.values.to_pylist() == [{"v": [1, 2]}, None]


def test_types_of_spark_keep_the_names_and_flags_of_their_parts() -> None:
    inner = pa.struct([pa.field("n", pa.int8(), nullable=False)])
    listed = pa.list_(pa.field("element", inner, nullable=False))
    mapped = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    schema = pa.schema([pa.field("l", listed, nullable=False), pa.field("m", mapped)])
    rows = [{"l": [{"n": 1}], "m": {"a": 1}}, {"l": [{}], "m": {}}, {"l": [], "m": {"a": None}}]
    decoded = structs_of_rows([*rows, NO_VALUE], schema, {})
    decoded.values.validate(full=True)
    assert decoded.values.type == pa.struct(list(schema))
    assert decoded.values.to_pylist() == [{"l": [{"n": 1}], "m": [("a", 1)]}, None, None, None]
    reasons = {index: problem.reason for index, problem in decoded.problems.items()}
    assert reasons == {
        1: "required column l[0].n is missing",
        2: 'required column m["a"] is missing',
    }


def test_no_rows_and_only_absent_rows() -> None:
    assert nested().values.to_pylist() == []
    assert nested().values.type == pa.struct(list(SCHEMA))
    assert nested(NO_VALUE, NO_VALUE).values.to_pylist() == [None, None]
    assert not nested(NO_VALUE).problems


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("a", pa.uint8())], "column a has type uint8"),
        ([("a", pa.timestamp("us"))], "column a has type"),
        ([("a", pa.list_(pa.float16()))], r"column a\[\] has type"),
        ([("a", pa.struct([("b", pa.duration("s"))]))], "column a.b has type"),
        ([("a", pa.map_(pa.int32(), pa.int32()))], "map with int32 keys"),
        ([("a", pa.int8()), ("a", pa.int8())], "column a appears twice"),
        (
            [("r", pa.struct([("a", pa.int8()), ("A", pa.int8())]))],
            "column r.a appears twice",
        ),
        ([("a", pa.struct([]))], "column a has no columns"),
        ([], "the schema has no columns"),
    ],
)
def test_a_schema_that_cannot_be_decoded_is_refused(fields: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        check_schema(pa.schema(fields))
    check_schema(SCHEMA)
