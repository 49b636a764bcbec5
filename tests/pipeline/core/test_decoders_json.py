"""JSON: what fits a column becomes its value; everything else is a problem that says where."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.json_values import DEPTH, is_too_deep
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

NTZ = pa.timestamp("us")
ONE = pa.schema([("v", pa.int64())])


def decode(schema: pa.Schema, *payloads: bytes | None, name: str = "json") -> Decoded:
    decoded = make_decoder(name, schema, {})(pa.array(payloads, type=pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == pa.struct(list(schema))
    assert len(decoded.values) == len(payloads)
    return decoded


def accepted(kind: pa.DataType, text: str) -> Any:
    """The value of a column for this JSON text."""
    decoded = decode(pa.schema([("v", kind)]), f'{{"v": {text}}}'.encode())
    assert not decoded.problems
    return decoded.values.field("v")[0].as_py()


def refused(kind: pa.DataType, text: str) -> str:
    """The reason why a column refuses this JSON text."""
    decoded = decode(pa.schema([("v", kind)]), f'{{"v": {text}}}'.encode())
    assert decoded.problems[0].column == "v"
    assert not decoded.values[0].is_valid
    return decoded.problems[0].reason


def problem(payload: bytes, schema: pa.Schema = ONE) -> Problem:
    decoded = decode(schema, payload)
    assert list(decoded.problems) == [0]
    assert not decoded.values[0].is_valid
    return decoded.problems[0]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_integers_are_accepted_up_to_their_bounds(kind: pa.DataType) -> None:
    bound = 1 << (kind.bit_width - 1)
    for value in (0, -bound, bound - 1):
        assert accepted(kind, str(value)) == value
    assert accepted(kind, "-0") == 0
    for value in (-bound - 1, bound, 10**19, -(10**30)):
        expected = f"expected an integer from {-bound} to {bound - 1}, found {value}"
        assert refused(kind, str(value)) == expected
    assert refused(kind, "9" * 5_000).endswith(f"found {'9' * 60}…")
    for text in ("1.0", "1e0", "true", '"1"', "[]", "{}"):
        assert refused(kind, text).startswith("expected an integer, found ")


def test_numbers_are_rounded_to_the_nearest_float_unless_they_are_too_large() -> None:
    for kind in (pa.float32(), pa.float64()):
        for text in ("1", "0.5", "-2.25", "1e2", "-0.0", "0.1"):
            expected = pa.scalar(float(text), pa.float64()).cast(kind).as_py()
            assert accepted(kind, text) == expected
        assert str(accepted(kind, "-0")) == "-0.0"
        assert accepted(kind, "1e-400") == 0
        for text in ("true", '"1"', '"NaN"', "[]"):
            assert refused(kind, text).startswith("expected a number, found ")
    assert accepted(pa.float64(), "9007199254740993") == 2.0**53
    assert accepted(pa.float64(), "1.7976931348623158e308") == 1.7976931348623157e308
    assert accepted(pa.float64(), "1" * 300 + "e-299") == pytest.approx(10 / 9)
    for text in ("1.8e308", "-1e309", "1e400", "1" * 310):
        assert refused(pa.float64(), text) == f"{shortened(text)} is too large for a double"
    assert accepted(pa.float32(), "3.4028235e38") == 3.4028234663852886e38
    assert refused(pa.float32(), "3.4028236e38") == "3.4028236e38 is too large for a float"
    for kind in (pa.list_(pa.float64()), pa.map_(pa.string(), pa.float64())):
        text = '{"k": 1e999}' if pa.types.is_map(kind) else "[1e999]"
        found = problem(f'{{"v": {text}}}'.encode(), pa.schema([("v", kind)]))
        assert found.reason == "1e999 is too large for a double"


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def test_a_decimal_keeps_all_digits_or_is_refused() -> None:
    kind = pa.decimal128(10, 2)
    for text in ("12345678.91", "-0.01", "1.500", "1e2", "7", '"12.50"'):
        assert accepted(kind, text) == Decimal(text.strip('"'))
    for text in ("1.005", "123456789", "1e-3", "1e9", "1e99999999999999999999", "true", '"1e2"'):
        reason = refused(kind, text)
        assert reason.startswith("expected a decimal with at most 10 digits, 2 after the point")


def test_a_text_column_takes_any_value_as_it_is_written() -> None:
    assert accepted(pa.string(), r'"\u00e9\u0000\ud83d\ude00\/"') == "é\x00😀/"
    for text in ("5", "1.50", "-0", "1e400", "1E+2", "123456789012345678901234567890", "true"):
        assert accepted(pa.string(), text) == text
    assert accepted(pa.string(), "null") is None
    spaced = r'{"a": [1.50, null, true, "\u00e9\n"], "b" : {}, "b": []}'
    assert accepted(pa.string(), spaced) == r'{"a":[1.50,null,true,"é\n"],"b":[]}'


def test_a_lone_surrogate_is_no_text_but_may_be_in_what_is_ignored() -> None:
    reason = r'expected text, found "a\ud800", which has a lone surrogate'
    assert refused(pa.string(), r'"a\ud800"') == reason
    assert "lone surrogate" in refused(pa.string(), r'["\ude00\ud83d"]')
    assert "lone surrogate" in refused(pa.map_(pa.string(), pa.int8()), r'{"\ud800": 1}')
    assert refused(TIMESTAMP, r'"\ud800"').startswith("expected a timestamp")
    found = decode(ONE, rb'{"v": 1, "other\ud800": "\udfff"}')
    assert found.values.to_pylist() == [{"v": 1}]


def test_bytes_are_base64_and_dates_and_booleans_have_one_notation() -> None:
    assert accepted(pa.binary(), '"YWI="') == b"ab"
    assert accepted(pa.binary(), '""') == b""
    for text in ('"YWI"', '"YW Jj"', '"YW-_"', '"a==="', '"é"', "1", "[1]"):
        assert refused(pa.binary(), text).startswith("expected Base64 text, found ")
    assert accepted(pa.date32(), '"2024-02-29"') == date(2024, 2, 29)
    for text in ('"2026-02-29"', '"2026-3-1"', '"2026-03-01T12:00:00Z"', '"20260301"', "1"):
        assert refused(pa.date32(), text).startswith("expected a date, found ")
    assert accepted(pa.bool_(), "false") is False
    assert refused(pa.bool_(), "1") == "expected true or false, found the number 1"
    assert refused(pa.bool_(), '"true"') == 'expected true or false, found text "true"'


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"2026-03-01T12:00:00Z"', NOON),
        ('"2026-03-01 12:00:00"', NOON),
        ('"2026-03-01T12:00"', NOON),
        ('"2026-03-01"', NOON.replace(hour=0)),
        ('"2026-03-01T14:00:00.5+02:00"', NOON.replace(microsecond=500_000)),
        ('"2026-03-01T12:00:00.123456789Z"', NOON.replace(microsecond=123_456)),
        ('"2026-03-01T12:00:00.1234569"', NOON.replace(microsecond=123_456)),
        (r'"2026-03-01\u005412:00:00Z"', NOON),
        ("1772366400", NOON),
        ("1772366400.25", NOON.replace(microsecond=250_000)),
        ("1.7723664e9", NOON),
        ("-62135596800", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_iso_8601_in_utc_or_seconds(text: str, expected: datetime) -> None:
    assert accepted(TIMESTAMP, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *('"noon"', '""', '"2026"', '"2026-03"', '"12:00:00"', '"T12:00:00"', '"2026-03-01T12"'),
        *('"2026-03-01T12:00:00 UTC"', '" 2026-03-01"', '"2026-02-30T00:00:00"', '"20260301"'),
        *('"2026-03-01T24:00:00Z"', '"2026-03-01T23:59:60Z"', '"10000-01-01T00:00:00Z"'),
        *('"0001-01-01T00:00:00+00:01"', '"1772366400"', "true", "[]"),
    ],
)
def test_other_texts_are_no_times(text: str) -> None:
    shown = f"text {text}" if text.startswith('"') else {"true": "true", "[]": "an array"}[text]
    assert refused(TIMESTAMP, text) == f"expected a timestamp, found {shown}"


def test_a_number_must_be_a_time_of_our_calendar() -> None:
    for text in ("253402300800", "1772366400000", "-62135596801", "1e300", "1e999"):
        reason = f"expected a timestamp in the years 1 to 9999, found the number {text}"
        assert refused(TIMESTAMP, text) == reason


def test_a_time_without_a_zone_has_no_offset() -> None:
    assert accepted(NTZ, '"2026-03-01T12:00:00.5"') == datetime(2026, 3, 1, 12, 0, 0, 500_000)
    assert accepted(NTZ, '"2026-03-01"') == datetime(2026, 3, 1)
    nested = pa.list_(pa.struct([("t", NTZ)]))
    assert accepted(nested, '[{"t": "2026-03-01"}, null]') == [{"t": datetime(2026, 3, 1)}, None]
    for text in ('"2026-03-01T12:00:00Z"', "1772366400", '"noon"'):
        assert refused(NTZ, text).startswith("expected a timestamp_ntz, found ")


def test_times_in_columns_of_every_kind() -> None:
    parts = [pa.field("t", TIMESTAMP, nullable=False), ("l", pa.list_(NTZ))]
    schema = pa.schema([*parts, ("m", pa.map_(pa.string(), pa.struct(parts)))])
    good = b'{"t": 0, "l": ["2026-03-01", null], "m": {"k": {"t": 1}, "n": null}}'
    found = decode(schema, good, b"{}", b'{"t": 1, "m": {"k": {}}}', None, b'{"t": 1, "l": [1]}')
    first, second = (datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (0, 1))
    assert found.values.to_pylist() == [
        {
            "t": first,
            "l": [datetime(2026, 3, 1), None],
            "m": [("k", {"t": second, "l": None}), ("n", None)],
        },
        *(None,) * 4,
    ]
    assert found.problems == {
        1: Problem("required column t is missing", "t"),
        2: Problem('required column m["k"].t is missing', 'm["k"].t'),
        4: Problem("expected a timestamp_ntz, found the number 1", "l[0]"),
    }


def test_problems_in_nested_columns_have_their_path() -> None:
    schema = pa.schema(
        [
            ("r", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.bool_())])))])),
            ("m", pa.map_(pa.string(), pa.int32())),
        ]
    )
    good = decode(
        schema, b'{"r": {"x": 1, "y": [{"z": true}, {}, null]}, "m": {"k": 1, "l": null}}'
    )
    assert good.values.to_pylist() == [
        {
            "r": {"x": 1, "y": [{"z": True}, {"z": None}, None]},
            "m": [("k", 1), ("l", None)],
        }
    ]
    assert decode(schema, b'{"m": {"k": 1, "k": 2}}').values.to_pylist()[0]["m"] == [("k", 2)]
    for payload, reason, column in (
        (b'{"r": [1]}', "expected an object, found an array", "r"),
        (b'{"r": {"y": {}}}', "expected an array, found an object", "r.y"),
        (b'{"r": {"y": [{"z": 0}]}}', "expected true or false, found the number 0", "r.y[0].z"),
        (b'{"m": {"k": "v"}}', 'expected an integer, found text "v"', 'm["k"]'),
        (b'{"m": 1}', "expected an object, found the number 1", "m"),
        (b'{"m": null, "r": true}', "expected an object, found true", "r"),
    ):
        assert problem(payload, schema) == Problem(reason, column)


def test_required_columns_must_be_given_and_others_may_be_missing_or_null() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    found = decode(
        schema, b'{"a": 1}', b"{}", b'{"a": null, "b": "x"}', None, b'{"a": 2, "b": "y"}'
    )
    missing = Problem("required column a is missing", "a")
    assert found.problems == {1: missing, 2: missing}
    rows = [{"a": 1, "b": None}, None, None, None, {"a": 2, "b": "y"}]
    assert found.values.to_pylist() == rows


@pytest.mark.parametrize(
    ("payload", "reason", "byte"),
    [
        (b"", "the payload is empty", None),
        (b"  ", "not JSON: Expecting value", 2),
        (b"\xff", "the payload is not UTF-8", 0),
        (b'{"u": "\xc3"}', "the payload is not UTF-8", 7),
        (b'{"u": "\xed\xa0\x80"}', "the payload is not UTF-8", 7),
        (b"\xef\xbb\xbf{}", "not JSON: Expecting value", 0),
        (b'{"v": 1} {"v": 2}', "not JSON: Extra data", 9),
        ('{"é": 1}}'.encode(), "not JSON: Extra data", 9),
        (b'{"u": NaN}', "not JSON: NaN is not a JSON value", None),
        (b'{"u": [-Infinity]}', "not JSON: -Infinity is not a JSON value", None),
        (b'{"u": 01}', "not JSON: Expecting ',' delimiter", 7),
        (b'{"u": "\t"}', "not JSON: Invalid control character at", 7),
        (b"null", "expected a JSON object, found null", None),
        (b"-0.0", "expected a JSON object, found the number -0.0", None),
        (b'"' + b"x" * 100 + b'"', f'expected a JSON object, found text "{"x" * 59}…', None),
        (b"[{}]", "expected a JSON object, found an array", None),
        (b'{"v": "' + b"x" * 100 + b'"}', f'expected an integer, found text "{"x" * 59}…', None),
    ],
)
def test_what_is_not_one_object_is_refused_with_reason_and_place(
    payload: bytes, reason: str, byte: int | None
) -> None:
    found = problem(payload)
    assert (found.reason, found.byte) == (reason, byte)


def test_values_may_be_nested_up_to_a_limit_wherever_they_are() -> None:
    def nested(depth: int) -> bytes:
        return b'{"v": 1, "u": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    too_deep = "not JSON that can be read: it is nested too deeply"
    assert not decode(ONE, nested(DEPTH)).problems
    assert problem(nested(DEPTH + 1)).reason == too_deep
    assert problem(b'{"u":' * 100_000).reason == too_deep
    # Also where a column gets all of it as text.
    lists, maps = b"[" * 99 + b"]" * 99, b'{"k":' * 99 + b"0" + b"}" * 99
    for value in (lists.replace(b"[]", b"[%s]" % maps), maps.replace(b"0", lists)):
        assert accepted(pa.string(), value.decode()) == value.decode()
    # Beside each other they are no deeper, and in text they are none.
    wide = b'{"v": 1, "u": [' + b"[{}]," * 1_000 + b"0]}"
    text = b'{"v": 1, "u": "\\"' + b"[{" * 1_000 + b'\\\\"}'
    assert decode(ONE, wide, text).problems == {}
    # A text without an end is none of the deep ones.
    assert problem(b'{"u": "' + b"[" * 1_000).reason.startswith("not JSON: Unterminated string")
    assert is_too_deep(b"[" * 1_000)
    assert not is_too_deep(b'"' + b"[" * 1_000)


def test_a_decoder_can_be_pickled() -> None:
    decoder = pickle.loads(pickle.dumps(make_decoder("json", ONE, {})))
    assert decoder(pa.array([b'{"v": 7}'])).values.to_pylist() == [{"v": 7}]


def test_types_and_options_that_json_does_not_have_are_refused() -> None:
    for kind in (pa.timestamp("ns"), pa.time64("us"), pa.map_(pa.int32(), pa.int32())):
        with pytest.raises(OptionError, match="column v"):
            make_decoder("json", pa.schema([("v", kind)]), {})
    with pytest.raises(OptionError, match="decoder json has no option strict"):
        make_decoder("json", ONE, {"strict": False})
    with pytest.raises(OptionError, match="decoder json_text has no option"):
        make_decoder("json_text", pa.schema([("v", pa.string())]), {"x": 1})


def test_json_text_is_any_value_as_it_is_written() -> None:
    schema = pa.schema([pa.field("doc", pa.string(), nullable=False)])
    texts = [' {"a": [1.50, {"b": null}]}\n', "7", "null", '"é"', r'"\ud800"', "[]"]
    payloads = [*(text.encode() for text in texts), None, b"{} {}", b"", b"nul", b"\xff"]
    found = decode(schema, *payloads, name="json_text")
    assert found.values.to_pylist()[:6] == [{"doc": text} for text in texts]
    assert found.values.null_count == 5
    assert found.problems == {
        7: Problem("not JSON: Extra data", byte=3),
        8: Problem("the payload is empty"),
        9: Problem("not JSON: Expecting value", byte=0),
        10: Problem("the payload is not UTF-8", byte=0),
    }


def test_what_python_writes_comes_back() -> None:
    schema = pa.schema([("d", pa.float64()), ("s", pa.string()), ("a", pa.list_(pa.int64()))])
    rows = [{"d": index / 7, "s": f"é{index}", "a": list(range(index % 4))} for index in range(99)]
    payloads = [
        json.dumps(row, indent=index % 3 or None).encode() for index, row in enumerate(rows)
    ]
    assert decode(schema, *payloads).values.to_pylist() == rows
