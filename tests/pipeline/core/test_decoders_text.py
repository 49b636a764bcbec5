"""Numbers and records of CSV: what is right is exact, and what is wrong has its reason."""

import pickle
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.pipeline.decoders import text_fields
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CENTS = pa.decimal128(10, 2)


def decode(name: str, kinds: list[pa.DataType], *payloads: bytes | None, **options: str) -> Decoded:
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    decoder = pickle.loads(pickle.dumps(make_decoder(name, schema, options)))
    found: Decoded = decoder(pa.array(payloads, pa.binary()))
    found.values.validate(full=True)
    return found


def values(found: Decoded) -> list[Any]:
    assert not found.problems
    return list(found.values[0].as_py().values())


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        (pa.float64(), b"21.5", 21.5),
        (pa.float64(), b" +.5\r\n", 0.5),
        (pa.float64(), b"5.", 5.0),
        (pa.float64(), b"1e-400", 0.0),
        (pa.float32(), b"3.4e38", 3.3999999521443642e38),
        (pa.int64(), b"-9223372036854775808", -(2**63)),
        (pa.int8(), b"+" + b"0" * 30 + b"127", 127),
        (pa.int32(), b"-0", 0),
        (CENTS, b"12.3400", Decimal("12.34")),
        (CENTS, b"1e3", Decimal("1000.00")),
        (CENTS, b"-99999999.99", Decimal("-99999999.99")),
    ],
)
def test_a_number_is_exact_or_the_nearest(kind: pa.DataType, payload: bytes, expected: Any) -> None:
    assert values(decode("number", [kind], payload)) == [expected]
    if payload.strip() == payload:
        assert values(decode("csv", [kind], payload)) == [expected]


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        # Java accepts the first four, and Python the next two.
        (pa.float64(), b"1d", 'expected a number, found text "1d"'),
        (pa.float64(), b"0x1p3", 'expected a number, found text "0x1p3"'),
        (pa.float64(), b"NaN", 'expected a number, found text "NaN"'),
        (pa.int32(), "١٢".encode(), 'expected an integer, found text "\\u0661\\u0662"'),
        (pa.float64(), b"inf", 'expected a number, found text "inf"'),
        (pa.int64(), b"1_000", 'expected an integer, found text "1_000"'),
        (pa.float64(), b"1e400", "1e400 is too large for a double"),
        (pa.float32(), b"1e39", "1e39 is too large for a float"),
        (pa.int8(), b"128", "expected an integer from -128 to 127, found 128"),
        (pa.int64(), b"9223372036854775808", "expected an integer from -9223372036854775808"),
        (pa.int64(), b"+1.05", "expected an integer, found the number 1.05"),
        # By a pattern that tries each way to divide its digits, this would take hours.
        (pa.int64(), b"0" * 1_000_000 + b"x", "expected an integer, found text"),
        (CENTS, b"1.005", "expected a decimal with at most 10 digits, 2 after the point"),
        (CENTS, b"1e-400", "expected a decimal with at most 10 digits, 2 after the point"),
        (CENTS, b"100000000", "expected a decimal with at most 10 digits, 2 after the point"),
    ],
)
def test_a_number_is_never_rounded_or_guessed(
    kind: pa.DataType, payload: bytes, reason: str
) -> None:
    for name in ("number", "csv"):
        problem = decode(name, [kind], payload).problems[0]
        assert (problem.reason.startswith(reason), problem.column) == (True, "c0"), problem


@pytest.mark.parametrize(
    ("kind", "field", "expected"),
    [
        (pa.string(), b" a ", " a "),
        (pa.string(), b'"a""b"', 'a"b'),
        (pa.string(), rb'"C:\new\"', r"C:\new" + "\\"),
        (pa.string(), b'"a,b\r\nc"', "a,b\r\nc"),
        (pa.string(), b'5"', '5"'),
        (pa.string(), b'""', None),
        (pa.binary(), "é".encode(), "é".encode()),
        (pa.bool_(), b" TRUE", True),
        (pa.bool_(), b'"false"', False),
        (pa.date32(), b"2026-03-01", date(2026, 3, 1)),
        (TIMESTAMP, b"2026-03-01 12:00", NOON),
        (TIMESTAMP, b"2026-03-01T14:00:00.0+02:00", NOON),
        (pa.timestamp("us"), b"2026-03-01T12:00:00", NOON.replace(tzinfo=None)),
        (pa.int32(), b"", None),
        (pa.float64(), b" 1.5\t", 1.5),
    ],
)
def test_a_field_of_csv_becomes_a_column(kind: pa.DataType, field: bytes, expected: Any) -> None:
    for end in (b"", b"\n", b"\r\n"):
        payload = b"7," + field + b",x" + end
        assert values(decode("csv", [pa.int32(), kind, pa.string()], payload)) == [
            *(7, expected, "x"),
        ]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", Problem("the payload is empty")),
        (b"\n", Problem("the record is empty")),
        (b"1", Problem("expected 2 fields, found 1")),
        (b"1,a,b", Problem("expected 2 fields, found 3")),
        (b'1,"a",b', Problem("expected 2 fields, found more")),
        (b'"1"', Problem("expected 2 fields, found 1")),
        (b"," * 1_000_000, Problem("expected 2 fields, found 1,000,001")),
        (b"1,a\n2,b", Problem("expected one record, found a line break", byte=3)),
        (b'"1\n",a\nb', Problem("expected one record, found a line break", byte=6)),
        (b"1,a\n\n", Problem("expected one record, found a line break", byte=3)),
        ('é,"a'.encode(), Problem("the record ends inside quotation marks", byte=3)),
        (
            b'1,"a"b',
            Problem("expected a separator after quotation marks, found other text", byte=5),
        ),
        (b"1,\xff", Problem("the payload is not UTF-8", byte=2)),
        (b"\xef\xbb\xbf1,a", Problem('expected an integer, found text "\\ufeff1"', column="c0")),
    ],
)
def test_what_is_no_record_has_a_reason(payload: bytes, problem: Problem) -> None:
    found = decode("csv", [pa.int32(), pa.string()], b"1,a", payload, None, b"2,b")
    assert found.problems == {1: problem}
    assert [each and each["c1"] for each in found.values.to_pylist()] == ["a", None, None, "b"]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (pa.bool_(), b"1"),
        (pa.date32(), b"2026"),
        (pa.date32(), b"2026-03-01T12:00"),
        (TIMESTAMP, b"2026-3-1"),
        (TIMESTAMP, b"99999-01-01"),
        (TIMESTAMP, b"2026-03-01T12:00 Europe/Paris"),
        (pa.timestamp("us"), b"2026-03-01T12:00Z"),
    ],
)
def test_a_field_that_is_no_value_of_its_column_is_a_problem(
    kind: pa.DataType, field: bytes
) -> None:
    assert decode("csv", [kind], field).problems[0].column == "c0"


@pytest.mark.parametrize("separator", [";", "\t", "|", "\\", "é", "\0", " "])
def test_fields_have_any_separator(separator: str) -> None:
    kinds = [pa.int32(), pa.string()]
    for text, expected in (
        (f"1{separator}a", "a"),
        (f'1{separator}"a{separator}"', "a" + separator),
    ):
        assert values(decode("csv", kinds, text.encode(), separator=separator)) == [1, expected]


@pytest.mark.parametrize("field", ["", " ", "\t \t", '""', '" "'])
def test_a_field_of_spaces_is_null_except_in_text(field: str) -> None:
    kinds = [
        *(pa.int32(), pa.float64(), pa.decimal128(5, 2), pa.bool_(), pa.date32()),
        *(TIMESTAMP, pa.timestamp("us"), pa.string(), pa.binary()),
    ]
    text = field.strip('"') or None
    sent = ",".join([field] * len(kinds)).encode()
    expected = [*([None] * 7), text, None if text is None else text.encode()]
    assert values(decode("csv", kinds, sent)) == expected
    required = pa.schema([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())])
    found = make_decoder("csv", required, {})(pa.array([f"{field},a".encode()]))
    assert found.problems == {0: Problem("required column x is missing", column="x")}


def test_a_required_field_that_is_empty_is_a_problem() -> None:
    schema = pa.schema([pa.field("x", pa.string(), nullable=False), ("y", pa.string())])
    found = make_decoder("csv", schema, {})(pa.array([b",a", b"a,"]))
    assert found.problems == {0: Problem("required column x is missing", column="x")}
    assert found.values.to_pylist() == [None, {"x": "a", "y": None}]


def test_nested_columns_are_refused() -> None:
    for kind in (pa.list_(pa.int32()), pa.struct([("x", pa.int32())])):
        with pytest.raises(OptionError, match="column c0 is nested"):
            decode("csv", [kind], b"1")
    with pytest.raises(OptionError, match="decoder number has no option separator"):
        decode("number", [pa.int32()], b"1", separator=";")


@pytest.mark.slow
def test_payloads_are_the_same_at_once_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [
        *(
            "1",
            "-0",
            "007",
            "1.5",
            "-1.50",
            "1e3",
            "9" * 18,
            "9" * 19,
            "128",
            " 1",
            "\t2 ",
            "",
            " ",
        ),
        *("x", "é", '"', '""', '"1"', '"a,b"', "NaN", "+1", ".5", "5.", "\x0b1", "1\0", "16777217"),
        *("0.1", "123456789012345678.123456789012345678", "1\n", "\r", "1\u2028", "-", "--1"),
    ]
    chance = random.Random(7)
    schema = pa.schema(
        [
            ("i", pa.int8()),
            ("l", pa.int64()),
            ("f", pa.float32()),
            pa.field("d", pa.float64(), nullable=False),
            ("s", pa.string()),
        ]
    )
    for name, columns in (("csv", schema), *(("number", pa.schema([each])) for each in schema)):
        if columns.names == ["s"]:
            continue
        for _ in range(300):
            good = chance.choice((3, 12, len(fields)))
            payloads = pa.array(
                [
                    (
                        ",".join(chance.choice(fields[:good]) for _ in columns)
                        + chance.choice(("", "", "\n", "\r\n"))
                    ).encode()
                    for _ in range(chance.randrange(1, 4))
                ]
            )
            decoder = make_decoder(name, columns, {})
            at_once = decoder(payloads)
            with monkeypatch.context() as patched:
                patched.setattr(text_fields, "_PLAIN_INTEGER", "x")
                patched.setattr(text_fields, "_PLAIN_NUMBER", "x")
                alone = decoder(payloads)
            assert at_once.problems == alone.problems
            assert str(at_once.values) == str(alone.values)


def test_plain_payloads_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(text_fields, "_decode_singly")
    assert values(decode("number", [pa.float64()], b" -1.5\n", b"2")) == [-1.5]
    kinds = [pa.float64(), pa.string(), pa.int32()]
    assert values(decode("csv", kinds, b" 1.5,a ,7\r\n", b",,")) == [1.5, "a ", 7]
