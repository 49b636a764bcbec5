"""CBOR and MessagePack: what their encoders write comes back; everything else is a problem."""

import pickle
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import cbor2
import msgpack  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import extras
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

SCHEMA = pa.schema(
    [
        pa.field("device", pa.string(), nullable=False),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("long", pa.int64()),
        ("ratio", pa.float64()),
        ("raw", pa.binary()),
        ("at", TIMESTAMP),
        ("reading", pa.struct([("values", pa.list_(pa.float32())), ("unit", pa.string())])),
        ("tags", pa.map_(pa.string(), pa.string())),
    ]
)
ROW: dict[str, Any] = {
    "device": "sensor-17",
    "flag": True,
    "tiny": -128,
    "long": 2**63 - 1,
    "ratio": 21.5,
    "raw": b"\x00\xff",
    "at": datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC),
    "reading": {"values": [1.5, None, 2.5], "unit": "C"},
    "tags": {"room": "7", "floor": "1"},
}
RESULT = ROW | {"tags": [("room", "7"), ("floor", "1")]}


def pack(value: object) -> bytes:
    return bytes(msgpack.packb(value, datetime=True))


ENCODERS: dict[str, Callable[[Any], bytes]] = {"cbor": cbor2.dumps, "msgpack": pack}
both = pytest.mark.parametrize("name", ["cbor", "msgpack"])


def decode(name: str, *payloads: bytes | None, schema: pa.Schema = SCHEMA) -> Decoded:
    decoded = make_decoder(name, schema, {})(pa.array(payloads, type=pa.binary()))
    decoded.values.validate(full=True)
    failed = {i for i, value in enumerate(decoded.values) if not value.is_valid}
    absent = {i for i, payload in enumerate(payloads) if payload is None}
    assert failed == absent | set(decoded.problems)
    assert not absent & set(decoded.problems)
    return decoded


def problem_of(name: str, payload: bytes) -> Problem:
    """The problem of a payload between two good ones, which must not suffer."""
    good = ENCODERS[name](ROW)
    decoded = make_decoder(name, SCHEMA, {})(pa.array([good, payload, good]))
    assert decoded.values.to_pylist() == [RESULT, None, RESULT]
    return decoded.problems[1]


@both
def test_every_type_comes_back(name: str) -> None:
    decoded = decode(name, ENCODERS[name](ROW), None, ENCODERS[name]({"device": "x", "more": [1]}))
    assert not decoded.problems
    assert decoded.values.type == pa.struct(list(SCHEMA))
    empty = dict.fromkeys(SCHEMA.names) | {"device": "x"}
    assert decoded.values.to_pylist() == [RESULT, None, empty]


@both
def test_a_value_beyond_its_bounds_names_the_column(name: str) -> None:
    problem = problem_of(name, ENCODERS[name](ROW | {"tiny": -129}))
    assert problem == Problem("expected an int from -128 to 127, found -129", column="tiny")
    assert problem_of(name, ENCODERS[name](ROW | {"long": 2**63})).column == "long"
    assert problem_of(name, ENCODERS[name](ROW | {"device": 5})).reason == "expected text, found 5"
    assert problem_of(name, ENCODERS[name](ROW | {"raw": "text"})).column == "raw"
    missing = {key: value for key, value in ROW.items() if key != "device"}
    assert problem_of(name, ENCODERS[name](missing)).reason == "required column device is missing"
    for other in (None, 5, [ROW], "text"):
        reason = problem_of(name, ENCODERS[name](other)).reason
        assert reason.startswith("expected a map of columns, found ")


@both
def test_a_payload_truncated_at_any_byte_is_a_problem(name: str) -> None:
    whole = ENCODERS[name](ROW)
    assert problem_of(name, b"") == Problem("the payload is empty")
    for size in range(1, len(whole)):
        assert problem_of(name, whole[:size]) == Problem("the payload is truncated", byte=size)


@both
def test_trailing_bytes_are_a_problem(name: str) -> None:
    whole = ENCODERS[name](ROW)
    for extra in (b"\x00", b"\xf6", b"\xff", whole):
        problem = problem_of(name, whole + extra)
        total = len(whole) + len(extra)
        assert problem == Problem(
            f"the value ends after {len(whole)} of {total} bytes", byte=len(whole)
        )


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("cbor", b"\x81"),
        ("cbor", b"\x9f"),
        ("cbor", b"\xa1\x61a"),
        ("cbor", b"\xc1"),
        ("cbor", b"\xd8\x63"),
        ("msgpack", b"\x91"),
        ("msgpack", b"\x81\xa1a"),
    ],
)
def test_deep_nesting_is_a_problem(name: str, unit: bytes) -> None:
    end = {"cbor": b"\xf6", "msgpack": b"\xc0"}[name]
    assert problem_of(name, unit * 10_000 + end).column is None
    shallow = {"device": "x", "unknown": [[[[[[{"a": [[1]]}]]]]]]}
    assert not decode(name, ENCODERS[name](shallow)).problems


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("cbor", b"\xa2\x66device\x61a\x66device\x61b"),
        ("msgpack", b"\x82\xa6device\xa1a\xa6device\xa1b"),
    ],
)
def test_the_last_of_duplicate_keys_wins(name: str, payload: bytes) -> None:
    assert decode(name, payload).values[0].as_py()["device"] == "b"


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("cbor", b"\xa1\x66device\x62\xff\xfe"),
        ("cbor", b"\xa1\x66device\x1c"),
        ("cbor", b"\xff"),
        ("cbor", b"\xa1\x01\x02"),
        ("cbor", b"\x9b\x7f" + b"\xff" * 7),
        ("cbor", b"\xbb\x7f" + b"\xff" * 7),
        ("cbor", b"\x5b\x00\x00\x7f" + b"\xff" * 5),
        ("cbor", b"\xc0\x63bad"),
        ("cbor", b"\xc1\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c"),
        ("msgpack", b"\x81\xa6device\xa2\xff\xfe"),
        ("msgpack", b"\xc1"),
        ("msgpack", b"\x81\x01\x02"),
        ("msgpack", b"\xdd\xff\xff\xff\xff"),
        ("msgpack", b"\xdf\xff\xff\xff\xff"),
        ("msgpack", b"\xc6\xff\xff\xff\xff"),
        ("msgpack", b"\xc7\x0c\xff\x00\x00\x00\x00\x7f" + b"\xff" * 7),
        ("msgpack", b"\xd7\xff" + b"\xff" * 8),
    ],
)
def test_malformed_payloads_are_problems(name: str, payload: bytes) -> None:
    assert problem_of(name, payload).reason


@both
def test_random_and_damaged_bytes_never_raise(name: str) -> None:
    chance = random.Random(3)
    whole = ENCODERS[name](ROW)
    payloads = [chance.randbytes(chance.randrange(40)) for _ in range(3000)]
    for _ in range(3000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payloads.append(bytes(damaged))
    decode(name, *payloads)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(SCHEMA.names, VALUES))))
def test_any_values_in_the_columns_never_raise(rows: list[dict[str, Any]]) -> None:
    for name, encode in ENCODERS.items():
        together = decode(name, *map(encode, rows))
        for index, row in enumerate(rows):
            alone = decode(name, encode(row))
            assert together.problems.get(index) == alone.problems.get(0)
            assert str(together.values[index]) == str(alone.values[0])


CBOR_SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("price", pa.decimal128(30, 2)),
        ("long", pa.int64()),
        ("at", TIMESTAMP),
        ("text", pa.string()),
    ]
)


def cbor(value: dict[str, Any]) -> Decoded:
    return decode("cbor", cbor2.dumps(value), schema=CBOR_SCHEMA)


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        (date(2024, 2, 29), "day", date(2024, 2, 29)),
        (cbor2.CBORTag(100, 19782), "day", date(2024, 2, 29)),
        ("2024-02-29", "day", date(2024, 2, 29)),
        (Decimal("12.34"), "price", Decimal("12.34")),
        (2**80, "price", Decimal(2**80)),
        (cbor2.CBORTag(2, b"\x00" * 20 + b"\x05"), "long", 5),
        (cbor2.CBORTag(1, 1.5), "at", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (cbor2.CBORTag(0, "1970-01-01T00:00:01Z"), "at", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (cbor2.undefined, "text", None),
        (UUID(int=5), "text", str(UUID(int=5))),
        (cbor2.CBORTag(55799, "self"), "text", "self"),
        (cbor2.CBORTag(4, [-2, 1234]), "price", Decimal("12.34")),
        (cbor2.CBORTag(4, [-100, 5 * 10**99]), "price", Decimal("0.50")),
        (cbor2.CBORTag(4, [1 << 70, 0]), "price", Decimal(0)),
    ],
)
def test_tags_of_cbor(value: object, column: str, expected: object) -> None:
    decoded = cbor({column: value})
    assert not decoded.problems
    assert decoded.values[0].as_py()[column] == expected


@pytest.mark.parametrize("tag", [5, 25, 28, 29, 30, 35, 36, 52, 54, 256, 258, 260, 999, 43000])
def test_other_tags_of_cbor_fit_no_column_and_are_ignored_elsewhere(tag: int) -> None:
    tagged = cbor2.CBORTag(tag, [0, 1])
    problem = cbor({"text": tagged}).problems[0]
    assert problem.column == "text"
    assert f"CBOR tag {tag}" in problem.reason
    assert not cbor({"unknown": tagged}).problems


def test_a_huge_number_has_a_short_message() -> None:
    problem = cbor({"long": 1 << 1_000_000}).problems[0]
    assert problem.reason.endswith("found an int of 1,000,001 bits")
    assert len(cbor({"price": Decimal("1E-1000000000")}).problems) == 1


@pytest.mark.parametrize(
    ("fraction", "reason"),
    [
        ([0, 1 << 8_000_000], "a decimal fraction of 8,000,001 bits"),
        ([1 << 70, 1], "an exponent beyond 1,000"),
        ([-(1 << 70), -1], "an exponent beyond 1,000"),
        ([0.5, 1], "expected an exponent and an integer"),
        ([1, 1, 1], "expected an exponent and an integer"),
        ("1.5", "expected an exponent and an integer"),
    ],
)
def test_a_decimal_fraction_that_fits_no_column_is_refused_at_once(
    fraction: object, reason: str
) -> None:
    # Converted to a decimal, the first would take minutes.
    tagged = cbor2.CBORTag(4, fraction)
    problem = cbor({"price": tagged}).problems[0]
    assert (reason in problem.reason, problem.column) == (True, "price")
    assert not cbor({"unknown": tagged}).problems


@pytest.mark.parametrize("mark", ["d9d9f7", "da0000d9f7", "d9d9f7d9d9f7"])
def test_cbor_that_marks_itself_is_decoded(mark: str) -> None:
    schema = pa.schema(
        [("r", pa.struct([("x", pa.list_(pa.int64()))])), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    begin = bytes.fromhex(mark)
    inner = begin + cbor2.dumps({"x": [1, cbor2.undefined]})
    payload = begin + b"\xa2\x61r" + inner + b"\x61m" + begin + cbor2.dumps({"k": 2})
    decoded = decode("cbor", payload, schema=schema)
    assert not decoded.problems
    assert decoded.values[0].as_py() == {"r": {"x": [1, None]}, "m": [("k", 2)]}
    assert decode("cbor", begin, schema=schema).problems[0].reason == "the payload is truncated"


def test_indefinite_lengths_of_cbor_are_accepted() -> None:
    payload = b"\xbf\x64text\x7f\x61a\x61b\xff\x64more\x9f\x01\xff\xff"
    assert decode("cbor", payload, schema=CBOR_SCHEMA).values[0].as_py()["text"] == "ab"


def test_extension_types_of_msgpack_fit_no_column() -> None:
    odd = msgpack.ExtType(5, b"abc")
    assert "extension type 5" in problem_of("msgpack", pack(ROW | {"device": odd})).reason
    assert not decode("msgpack", pack(ROW | {"unknown": odd})).problems
    early = msgpack.Timestamp(-1, 999_999_999)
    decoded = decode("msgpack", pack(ROW | {"at": early}))
    assert decoded.values.field("at")[0].value == -1


@both
def test_a_decoder_can_be_pickled(name: str) -> None:
    decoder = pickle.loads(pickle.dumps(make_decoder(name, SCHEMA, {})))
    assert decoder(pa.array([ENCODERS[name](ROW)])).values.to_pylist() == [RESULT]


@both
def test_no_payloads_and_slices(name: str) -> None:
    assert len(decode(name).values) == 0
    good = ENCODERS[name](ROW)
    sliced = pa.array([b"bad", good, good, b"bad"]).slice(1, 2)
    decoded = make_decoder(name, SCHEMA, {})(sliced)
    assert decoded.values.to_pylist() == [RESULT, RESULT]


@both
def test_options_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"decoder {name} has no option x: it has none"):
        make_decoder(name, SCHEMA, {"x": 1})
    with pytest.raises(OptionError, match="no decoder 'xml': choose cbor, msgpack"):
        make_decoder("xml", SCHEMA, {})


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    needed = "decoder cbor needs cbor2: pip install 'semel\\[decoders\\]'"
    with pytest.raises(OptionError, match=needed):
        make_decoder("cbor", SCHEMA, {})
