"""Fixed layouts: what the module struct packs comes back; other lengths are problems."""

import math
import pickle
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError


def schema_of(*kinds: pa.DataType) -> pa.Schema:
    return pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)])


def decode(layout: str, kinds: list[pa.DataType], *payloads: bytes | None) -> Decoded:
    decoder = make_decoder("struct", schema_of(*kinds), {"format": layout})
    decoded = decoder(pa.array(payloads, type=pa.binary()))
    decoded.values.validate(full=True)
    return decoded


KINDS = [pa.int16(), pa.int16(), pa.float32()]


def test_payloads_of_the_right_length_are_decoded_and_others_are_problems() -> None:
    good = struct.pack("<hBf", -32768, 255, 1.5)
    row = {"c0": -32768, "c1": 255, "c2": 1.5}
    decoded = decode("<hBf", KINDS, good, good[:3], None, b"", good + b"x", good)
    assert decoded.values.to_pylist() == [row, None, None, None, None, row]
    assert decoded.problems == {
        1: Problem("expected 7 bytes, found 3"),
        3: Problem("the payload is empty"),
        4: Problem("expected 7 bytes, found 8"),
    }
    assert decode("<hBf", KINDS, good, good).values.to_pylist() == [row, row]
    assert decode("<hBf", KINDS).values.to_pylist() == []
    assert decode("<hBf", KINDS, None, b"x").values.to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("layout", "kind", "values"),
    [
        ("b", pa.int8(), [-128, 127]),
        ("B", pa.int16(), [0, 255]),
        ("h", pa.int16(), [-32768, 32767]),
        ("H", pa.int32(), [0, 65535]),
        ("i", pa.int32(), [-(2**31), 2**31 - 1]),
        ("l", pa.int64(), [-(2**31), 2**31 - 1]),
        ("I", pa.int64(), [0, 2**32 - 1]),
        ("L", pa.int64(), [0, 2**32 - 1]),
        ("q", pa.int64(), [-(2**63), 2**63 - 1]),
        ("Q", pa.decimal128(20, 0), [Decimal(0), Decimal(2**63), Decimal(2**64 - 1)]),
        ("Q", pa.decimal128(38, 0), [Decimal(2**64 - 1)]),
        ("e", pa.float32(), [0.5, -math.inf]),
        ("f", pa.float32(), [0.5, math.inf]),
        ("f", pa.float64(), [0.5, -1.5]),
        ("d", pa.float64(), [0.1, 1e300]),
        ("?", pa.bool_(), [True, False]),
        ("c", pa.binary(), [b"a", b"\x00"]),
        ("3s", pa.binary(), [b"a\x00\x00", b"\xff\xff\xff"]),
        ("4p", pa.binary(), [b"a", b"abc"]),
    ],
)
@pytest.mark.parametrize("order", ["<", ">", "!"])
def test_every_code_comes_back(order: str, layout: str, kind: pa.DataType, values: Any) -> None:
    sent = [int(each) if isinstance(each, Decimal) else each for each in values]
    payloads = [struct.pack(order + layout, each) for each in sent]
    decoded = decode(order + layout, [kind], *payloads)
    assert decoded.values.field("c0").to_pylist() == values
    assert not decoded.problems


def test_text_loses_the_zero_bytes_that_fill_it_and_must_be_utf_8() -> None:
    kinds = [pa.string(), pa.int8()]
    payloads = [b"ab\x00\x00\x01", b"\xff\xffab\x02", b"\xc3\xa9\x00\x00\x03", None]
    decoded = decode("<4sb", kinds, *payloads)
    assert decoded.values.to_pylist() == [
        {"c0": "ab", "c1": 1},
        None,
        {"c0": "é", "c1": 3},
        None,
    ]
    assert decoded.problems == {1: Problem("text is not UTF-8 (invalid start byte)", column="c0")}


def test_required_columns_keep_their_flag() -> None:
    schema = pa.schema([pa.field("a", pa.int8(), nullable=False)])
    decoded = make_decoder("struct", schema, {"format": "<b"})(pa.array([b"\x01", None, b"ab"]))
    decoded.values.validate(full=True)
    assert decoded.values.type == pa.struct(list(schema))
    assert decoded.values.to_pylist() == [{"a": 1}, None, None]


def test_counts_padding_and_spaces() -> None:
    payload = struct.pack("<2hx2s", 1, 2, b"ab")
    decoded = decode("< 2h x 2s", [pa.int16(), pa.int16(), pa.string()], payload)
    assert decoded.values.to_pylist() == [{"c0": 1, "c1": 2, "c2": "ab"}]


def test_random_bytes_never_raise() -> None:
    chance = random.Random(6)
    payloads = [chance.randbytes(chance.randrange(12)) for _ in range(2000)]
    kinds = [pa.bool_(), pa.float32(), pa.string()]
    decoded = decode("<?f3s", kinds, *payloads)
    failed = {i for i, value in enumerate(decoded.values) if not value.is_valid}
    assert failed == set(decoded.problems)
    assert len(failed) < len(payloads)


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("<B", pa.int8()),
        ("<H", pa.int16()),
        ("<I", pa.int32()),
        ("<Q", pa.int64()),
        ("<Q", pa.float64()),
        ("<Q", pa.decimal128(19, 0)),
        ("<Q", pa.decimal128(22, 2)),
        ("<q", pa.decimal128(20, 0)),
        ("<q", pa.int32()),
        ("<i", pa.float64()),
        ("<d", pa.float32()),
        ("<f", pa.int32()),
        ("<?", pa.int8()),
        ("<b", pa.bool_()),
        ("<s", pa.int8()),
        ("<f", pa.string()),
    ],
)
def test_a_column_that_cannot_hold_its_code_is_refused(layout: str, kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match=r"column c0 of type .* cannot hold code"):
        make_decoder("struct", schema_of(kind), {"format": layout})


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (None, "needs option format"),
        (5, "must be text"),
        ("h", "must begin with the byte order"),
        ("@h", "must begin with the byte order"),
        ("<", "not a format"),
        ("<n", "not a format"),
        ("<hh", "has 2 values, but the schema has 1 column"),
        ("<x", "has 0 values"),
        ("<0h", "0 bytes"),
        ("<999999999s", "it must be from 1 to 1,048,576"),
        ("<9999999999h", "not a format"),
    ],
)
def test_wrong_formats_are_refused(layout: object, reason: str) -> None:
    options = {} if layout is None else {"format": layout}
    with pytest.raises(OptionError, match=reason):
        make_decoder("struct", schema_of(pa.int32()), options)


def test_a_decoder_can_be_pickled() -> None:
    decoder = pickle.loads(
        pickle.dumps(make_decoder("struct", schema_of(*KINDS), {"format": "<hBf"}))
    )
    assert decoder(pa.array([struct.pack("<hBf", 1, 2, 3)])).values[0].as_py()["c1"] == 2
