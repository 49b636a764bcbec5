"""The hot path of JSON repeats what the plain path decides, whatever is beside a payload."""

import json
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.pipeline.decoders import json_blocks, json_objects
from semel.pipeline.decoders.json_blocks import BlockReader, blocks_of, find_candidates
from semel.pipeline.decoders.json_objects import JsonDecoder, decode_singly
from semel.pipeline.decoders.json_values import DEPTH, parse_json, shape_of
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem

SCHEMA = pa.schema(
    [
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("i8", pa.int8()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("t", TIMESTAMP),
        ("ai", pa.list_(pa.int16())),
        ("ad", pa.list_(pa.float64())),
        (
            "r",
            pa.struct(
                [
                    ("x", pa.int32()),
                    ("y", pa.list_(pa.struct([("z", pa.float64()), ("t", TIMESTAMP)]))),
                    ("s", pa.list_(pa.string())),
                ]
            ),
        ),
        ("é", pa.string()),
        pa.field("n", pa.float64(), nullable=False),
    ]
)
SHAPE = shape_of(SCHEMA)
READER = BlockReader(SCHEMA, SHAPE)

NUMBERS = [
    *("0", "-0", "1", "-1", "1.0", "1.50", "-0.0", "0.1", "1e0", "1E+2", "1e-5", "1e5", "5e-324"),
    *("127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9007199254740993"),
    *("-9223372036854775809", "123456789012345678901234567890", "1" * 320, "16777217"),
    *("1e308", "1.7976931348623157e308", "1.7976931348623159e308", "1.8e308", "1e309", "-1e400"),
    *("1e-400", "2.4703282292062327e-324", "2.4703282292062328e-324", f"0.{'0' * 400}1"),
    *("3.4028235e38", "3.40282356e38", "3.40282357e38", "3.5e38", "1e-46", f"{'1' * 999}e-990"),
    *("1772366400", "1772366400.5", "1772366400.123456789", "-1.5", "-0.0000005", "0.0000015"),
    *("253402300799", "253402300799.9999999", "253402300800", "-62135596800", "-62135596801"),
]
TEXTS = [
    *('""', '"x"', '"é"', r'"\u00e9\"\\\/\b\f\n\r\t"', r'"\u0000"', '"\x7f"', '"\u2028"'),
    *(r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00\ud83d"', r'"\uD83D\uDE0"', r'"\ud83dx\ude00"'),
    *('"NaN"', '"Info"', '"x NaN"', '"1"', '"true"', '"null"', '"}"', '"{"', '"},{"', '"]"'),
    *('"//"', '"\'"', '"a": "b"', '"\ufeff"', '"\U0001f600"'),
]
TIMES = [
    *("2026-03-01T12:00:00Z", "2026-03-01 12:00:00Z", "2026-03-01T12:00Z", "2026-03-01T12Z"),
    *("2026-03-01T12:00:00+02:00", "2026-03-01T12:00:00-0930", "2026-03-01T12:00:00+02"),
    *("2026-03-01T12:00:00+23:59", "2026-03-01T12:00:00+24:00", "2026-03-01T12:00:00+02:00:30"),
    *("2026-03-01T12:00:00", "2026-03-01 12:00", "2026-03-01", "2026-03-01T12", "2026-03"),
    *("2026-03-01T12:00:00.1Z", "2026-03-01T12:00:00.123456Z", "2026-03-01T12:00:00.1234567Z"),
    *("2026-03-01T12:00:00.999999999", f"2026-03-01T12:00:00.{'9' * 30}Z", "2026-03-01T12:00:00."),
    *(f"2026-03-01T12:00:00.{'9' * 31}Z", "1969-12-31T23:59:59.9999999Z", "2026-03-01T12:00:00z"),
    *("0001-01-01", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.9999999", "0000-12-31"),
    *("9999-12-31T23:59:59-00:01", "10000-01-01T00:00Z", "2024-02-29", "2026-02-29", "2026-13-01"),
    *("2026-03-01T24:00:00Z", "2026-03-01T23:59:60Z", "2026-03-01T12:60:00Z", " 2026-03-01", ""),
    *("20260301T120000Z", "2026-03-01T120000Z", "2026-03-01T12:00:00 UTC", "noon", "12:00:00"),
    *("2026-03-01Z", "2026-03-01T12:00:00,5Z", r"2026-03-01\u005412:00:00Z", "2026-03-01\\nx"),
]
NESTED = [
    *("null", "true", "false", "[]", "[1]", "[1, null]", "[40000]", "[1.5, 1e400]", "[[1]]"),
    *('["a"]', '["a", 1]', "[true]", "[{}]", "{}", '{"x": 1}', '{"x": null}', '{"x": 1, "x": 2}'),
    *('{"x": null, "x": 1}', '{"x": 1, "x": null}', r'{"x": 1, "\u0078": 2}', '{"q": 1, "q": 2}'),
    *('{"y": []}', '{"y": [{}, null]}', '{"y": [{"z": 0.5, "t": "2026-03-01"}]}', '{"y": [1]}'),
    *('{"y": [{"z": 1e309}]}', '{"y": [{"t": 1}, {"t": "2026-03-01T12:00:00.5Z"}]}', '{"s": [5]}'),
    *('{"y": [{"t": 1772366400.25}, {"t": 0}]}', '{"s": ["a", null, "\\u00e9"]}', '{"": 1}'),
]
# Texts that are no values.
BROKEN = [
    *("NaN", "-NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "inf", "[NaN]", '{"q":-Inf}'),
    *("01", "-01", "00", "1.", ".5", "1e", "1e+", "+1", "-", "0x1", "1_0", "1f", "1 2", "--1"),
    *("tru", "True", "nulll", "truefalse", "'x'", "x", "", "[1,]", "[,1]", '{"x":1,}', "{,}"),
    *(
        '{"x"}',
        "{x:1}",
        "{1:1}",
        "[1 2]",
        "[",
        "]",
        "{",
        "}",
        '"',
        '"\\',
        '"\\q"',
        '"\\u12"',
        "/**/1",
    ),
    *(
        '"a\nb"',
        '"a\tb"',
        '"a\x00b"',
        '"a\x1fb"',
        "\x00",
        "1\x00",
        "\xa01",
        "\x0b1",
        "1;",
        "null null",
    ),
]
VALUES = [*NUMBERS, *TEXTS, *(f'"{each}"' for each in TIMES), *NESTED, *BROKEN]
COLUMNS = [*SCHEMA.names, "unknown"]
GOOD = (
    '{"s": "a", "b": true, "i8": 1, "i32": 2, "i64": 3, "f": 0.5, "d": 1.5, "n": 0,'
    ' "t": "2026-03-01T12:00:00Z", "ai": [1], "ad": [0.5], "r": {"y": [{"t": "2026-03-01"}]}}'
)
# Payloads that are not one object, or only together with others, or unusual in other ways.
ODD = [
    *(b"", b" ", b"\n", b"null", b"7", b"[]", b'"x"', b"true", b"{", b"}", b"{}", b"{ }", b"{}{}"),
    *(b'{"n":1}{"n":2}', b'{"n":1} {"n":2}', b'{"n":1}\n{"n":2}', b'{"n":1} null', b'{"n":1}null'),
    *(
        b'{"n":1}}',
        b'{"n":1}]',
        b'{"n":1},',
        b'{"n":1}\x00',
        b'{"n":1} 7',
        b'{"n":1}"',
        b'{"n":1}[]',
    ),
    *(b' {"n":1}', b'{"n":1} \n\r\t', b'\n{"n":1}', b'\xef\xbb\xbf{"n":1}', b'{"n":1}\xef\xbb\xbf'),
    *(
        b'{"n":1',
        b'{"n":1,"x":',
        b'"y"}',
        b'{"n":1,"x":"',
        b'","n":2}',
        b'{"n":1,"x":[',
        b"]}",
        b":1}",
    ),
    *(b'{"n":1,"x":{', b"}}", b'{"n":1,"x":"\\', b'{"n":1,"x":"\\"}', b'{"x":', b',"n":2}', b"1}"),
    *(b'{,"n":1}', b'{"n":1,}', b'{"n":1,,"s":"a"}', b'{"n" 1}', b'{"n":1 "s":"a"}', b"{null}"),
    *(
        b'{"n":1,"n":2}',
        b'{"n":null,"n":2}',
        b'{"n":2,"n":null}',
        b'{"n":1,"\\u006e":2}',
        b'{"":1}',
    ),
    *(b'{"n":1,"x":"\xff"}', b'{"n":1,"\xff":1}', b'\xff{"n":1}', b'{"n":1,"x":"\xed\xa0\x80"}'),
    *(b'{"n":1,"x":"\xc3"}', b'\xa9","n":1}', b'{"n":1,"x":"\xf4\x90\x80\x80"}', b'{"n":1}\xff'),
    *(
        b'{\n  "n": 1,\n  "s": "a"\n}',
        b'{\r\n"n":\r\n1\r\n}\r\n',
        b'{"n":1,"s":"a\nb"}',
        b'{\t"n":\t1}',
    ),
    b'{"n":1,"x":%s%s}' % (b"[" * (DEPTH - 1), b"]" * (DEPTH - 1)),
    b'{"n":1,"x":%s%s}' % (b"[" * DEPTH, b"]" * DEPTH),
    b'{"n":1,"x":%s%s}' % (b"[" * 5_000, b"]" * 5_000),
    b'{"n":1,"x":[%s0]}' % (b"[{}]," * 300),
    b'{"n":1,"x":"%s"}' % (b"[{" * 300),
    b'{"n":1,"x":%s}' % (b'{"x":' * 5_000),
    *(
        b'{"n":1}\xc2\xa0',
        b'{"n"\x0b:1}',
        b'{"n":1/**/}',
        b'{"n":1}//',
        b"{'n':1}",
        b'{"n":1,"x":1e999}',
    ),
]


def column(rows: Sequence[bytes | None]) -> pa.Array:
    return pa.array(rows, type=pa.binary())


def shown(values: pa.Array) -> list[str]:
    """Values for a comparison that tells 0.0 from -0.0."""
    return [repr(each) for each in values.to_pylist()]


def decode(rows: Sequence[bytes | None], schema: pa.Schema = SCHEMA) -> Decoded:
    """What both paths together make of payloads, which is what the plain path alone makes."""
    found = JsonDecoder(schema)(column(rows))
    found.values.validate(full=True)
    plain = decode_singly(column(rows), schema, shape_of(schema))
    assert found.values.type == plain.values.type == pa.struct(list(schema))
    assert found.problems == plain.problems
    assert shown(found.values) == shown(plain.values)
    return found


def read_hot(rows: Sequence[bytes], reader: BlockReader = READER) -> int:
    """Read payloads as one block, without help from the plain path; how many of them were read.

    Those that are no candidates are left out. What is read is what the plain path makes of it.
    """
    given = column(rows)
    block = given.filter(find_candidates(given))
    structs = reader.read_block(block) if len(block) else None
    if structs is None:
        return 0
    structs.validate(full=True)
    plain = decode_singly(block, reader.schema, reader.shape)
    missing = Problem("required column n is missing", "n")
    for place, (hot, cold) in enumerate(zip(shown(structs), shown(plain.values), strict=True)):
        if place in plain.problems:
            # The decoder leaves such rows to the plain path.
            assert plain.problems[place] == missing, block[place]
            assert structs.field("n")[place].as_py() is None
        else:
            assert hot == cold, block[place]
    return len(block)


def payloads_with(value: str) -> list[bytes]:
    """Payloads that have a value in each column, and beside columns."""
    rows = [f'{{"n": 1, "{name}": {value}}}' for name in COLUMNS if name != "n"]
    rows += [f'{{"n": {value}}}', f'{{"{COLUMNS[0]}": {value}, "n": 1, "unknown": [{value}]}}']
    return [row.encode() for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value[:40]))
def test_each_value_is_the_same_by_both_paths_in_every_column(value: str) -> None:
    rows = payloads_with(value)
    for row in rows:
        read_hot([row])
        read_hot([GOOD.encode(), row, GOOD.encode()])
    read_hot(rows)
    decode(rows)


@pytest.mark.slow
@pytest.mark.parametrize("row", ODD, ids=lambda row: ascii(row[:40]))
def test_odd_payloads_are_the_same_by_both_paths(row: bytes) -> None:
    good = GOOD.encode()
    for rows in ([row], [good, row], [row, good], [row, row], [good, row, good, row]):
        read_hot(rows)
        decode(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [b'{"n":1} {"n":2}', b" "],
        [b'{"n":1}{"n":2}', b""],
        [b" ", b'{"n":1}\n{"n":2}'],
        [b'{"n":1,"x":', b"}"],
        [b'{"n":1,"x":', b'{"n":2}}'],
        [b'{"n":1,"x":', b'{"n":2}}', b'{"n":3}{"n":4}'],
        [b'{"n":1,"x":[', b'{"n":2}', b"]}"],
        [b'{"n":1,"x":[0', b'{"n":2}]}', b'{"n":3} {"n":4}'],
        [b'{"n":1,"x":"', b'{"n":2}"}', b'{"n":3} {"n":4}'],
        [b'{"n":1,"x":"\\', b'{"n":2}', b'{"n":3} {"n":4}'],
        [b'{"n":1} null', b'{"n":2,"x":', b'{"n":3}}'],
        [b'{"n":1}{"n":2,"x":', b'{"n":3}}'],
        [b'{"n":1', b'"s":"a"}'],
        [b'{"n":1,', b'"s":"a"}'],
        [b'{"n":1}}', b'{"n":2}', b'{"n":3,"x":{'],
    ],
    ids=ascii,
)
def test_no_payload_takes_a_part_of_another(rows: list[bytes]) -> None:
    for order in (rows, rows[::-1], [*rows, *rows], [GOOD.encode(), *rows, GOOD.encode()]):
        assert read_hot(order) in (0, 1, 2)
        found = decode(order)
        for index, row in enumerate(order):
            assert (index in found.problems) == (row not in (GOOD.encode(), b'{"n":2}')), row


def test_a_payload_with_the_key_of_another_process_is_an_object_with_an_unknown_key() -> None:
    rows = [b'{"_0123456789abcdef0123456789abcdef": %d, "n": 1}' % at for at in (1, 0, 2)]
    assert read_hot(rows) == 3
    assert len(json_blocks._KEY) == 33


@pytest.mark.slow
def test_blocks_of_any_payloads_are_the_same_by_both_paths() -> None:
    chance = random.Random(2026)
    rows = [row for value in VALUES for row in payloads_with(value)] + ODD
    # Those that can stand beside others: their times are text.
    clean = [row for row in rows if read_hot([GOOD.encode(), row]) == 2]
    assert len(clean) > 500
    for _ in range(100):
        block: list[bytes] = chance.choices(clean, k=chance.randrange(2, 90))
        assert read_hot(block) == len(block)
        for _ in range(chance.randrange(1, 4)):
            block.insert(chance.randrange(len(block) + 1), chance.choice(rows))
        read_hot(block)
        decode([*block, None])


# --- random texts ---------------------------------------------------------------------------------

SPACE = st.sampled_from(["", "", "", " ", "\n", "\r\n", "\t "])
SCALARS = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS]),
    st.sampled_from(TIMES).map(lambda text: f'"{text}"'),
    st.sampled_from(["null", "true", "false"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=8).map(json.dumps),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.integers(-(10**15), 10**15).map(lambda number: f"{number // 10**6}.{number % 10**6:06}"),
)


def arrays(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, max_size=3).map(lambda each: f"[{', '.join(each)}]")


def objects(
    items: st.SearchStrategy[str], names: Sequence[str], max_size: int
) -> st.SearchStrategy[str]:
    member = st.tuples(SPACE, st.sampled_from(names), SPACE, items, SPACE).map(
        lambda parts: f'{parts[0]}"{parts[1]}":{parts[2]}{parts[3]}{parts[4]}'
    )
    return st.lists(member, max_size=max_size).map(lambda each: f"{{{','.join(each)}}}")


ANY = st.recursive(
    SCALARS, lambda items: arrays(items) | objects(items, ["x", "y", "z", "t", "s", "q"], 3)
)
FITTING = {
    "s": st.text(max_size=5).map(json.dumps),
    "b": st.sampled_from(["true", "false"]),
    "i8": st.integers(-128, 127).map(str),
    "i32": st.integers(-(2**31), 2**31 - 1).map(str),
    "i64": st.integers(-(2**63), 2**63 - 1).map(str),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "t": st.datetimes().map(lambda time: f'"{time.isoformat()}Z"'),
    "n": st.integers(-9, 9).map(str),
    "unknown": ANY,
}
ROWS = st.one_of(
    st.fixed_dictionaries({}, optional=FITTING).map(
        lambda row: f"{{{','.join(f'{json.dumps(key)}:{text}' for key, text in row.items())}}}"
    ),
    objects(ANY, [*COLUMNS, r"\u0073"], 5),
)
SIGNS = st.sampled_from(list(b'{}[]",:\\ \t\n\r\x00-+.eE019nulltrueNaInf\xff\xc3\xa9\x1f'))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A payload in which a few bytes were changed."""
    text = bytearray(draw(ROWS).encode())
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(text)))
        change = draw(st.sampled_from(["insert", "remove", "cut", "append"]))
        if change == "insert":
            text.insert(place, draw(SIGNS))
        elif change == "remove":
            del text[place : place + 1]
        elif change == "cut":
            del text[place:]
        else:
            text += draw(st.sampled_from([b"}", b" {}", b" null", b",", b"]", b"\n"]))
    return bytes(text)


@pytest.mark.slow
@given(st.lists(st.none() | ROWS.map(str.encode) | damaged(), min_size=1, max_size=12))
def test_random_payloads_are_the_same_by_both_paths(rows: list[bytes | None]) -> None:
    given_rows = [row for row in rows if row is not None]
    read_hot(given_rows)
    for row in given_rows:
        read_hot([row])
    together = decode(rows)
    for index, each in enumerate(rows):
        alone = decode([each])
        assert together.problems.get(index) == alone.problems.get(0)
        assert shown(together.values)[index] == shown(alone.values)[0]


# --- how much takes the hot path ------------------------------------------------------------------


def clean_rows(count: int) -> list[bytes]:
    rows: list[dict[str, Any]] = [
        {
            "n": index / 8,
            "s": f"Info {index}",
            "i32": index,
            "f": 0.5,
            "t": f"2026-03-01T12:00:{index % 60:02}.5+01:00",
            "r": {"x": None, "y": [{"z": index, "t": 1772366400 + index}, {}]},
            "unknown": {"text": "NaN", "none": [None, 1e300]},
        }
        for index in range(count)
    ]
    return [
        json.dumps(row, indent=None if index % 5 else 2).encode() for index, row in enumerate(rows)
    ]


class PlainPath:
    """Counts the payloads that take the plain path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(payload: bytes) -> tuple[str, Any]:
            self.count += 1
            return parse_json(payload)

        monkeypatch.setattr(json_objects, "parse_json", counted)

    def of(self, rows: Sequence[bytes | None], schema: pa.Schema = SCHEMA) -> int:
        """How many of these do."""
        self.count = 0
        found = JsonDecoder(schema)(column(rows))
        taken, self.count = self.count, 0
        assert shown(found.values) == shown(decode_singly(column(rows), schema, SHAPE).values)
        return taken


@pytest.fixture
def plain_path(monkeypatch: pytest.MonkeyPatch) -> PlainPath:
    return PlainPath(monkeypatch)


def test_clean_payloads_take_the_hot_path(plain_path: PlainPath) -> None:
    rows = clean_rows(1_000)
    assert plain_path.of(rows) == 0
    assert plain_path.of([row if index % 7 else None for index, row in enumerate(rows)]) == 0
    assert plain_path.of([]) == 0
    assert plain_path.of([None, None]) == 0


@pytest.mark.parametrize(
    "times",
    [
        ["2026-03-01", "2026-03-01T12:00:00", "2026-03-01 12:00"],
        ["2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00"],
        [1772366400, 1772366400.25],
        [*[None] * 20, 1772366400.25],
        [*[None] * 20, "2026-03-01T12:00:00Z"],
    ],
    ids=ascii,
)
def test_times_of_every_notation_take_the_hot_path(times: list[Any], plain_path: PlainPath) -> None:
    rows = [json.dumps({"n": 1, "t": time}).encode() for time in times * 5]
    assert plain_path.of(rows) == 0


def test_only_pieces_with_unusual_payloads_take_the_plain_path(plain_path: PlainPath) -> None:
    rows = clean_rows(1_600)
    # No candidates: the others are not affected.
    rows[100] = b'{"n": NaN}'
    rows[200] = b' {"n": 1}'
    rows[300] = b'{"n": "\xff"}'
    assert plain_path.of(rows) == 3
    rows[400] = b'{"n": 1, "s": 5}'
    assert plain_path.of(rows) == 3 + 100
    rows[1_500] = b'{"n": 1} {"n": 2}'
    assert plain_path.of(rows) == 3 + 200
    # Rows without a required column are read by blocks, and then explained.
    missing = clean_rows(1_600)
    missing[7] = b'{"s": "x"}'
    assert plain_path.of(missing) == 1
    few = clean_rows(10)
    few[3] = b"{"
    assert plain_path.of(few) == 10


def test_blocks_have_a_limited_size(plain_path: PlainPath, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = clean_rows(40)
    monkeypatch.setattr(json_blocks, "BLOCK_BYTES", 1_000)
    parts = list(blocks_of(column(rows)))
    lengths = [len(part) for _, part in parts]
    assert [first for first, _ in parts] == [0, *accumulate(lengths)][:-1]
    assert all(pc.sum(pc.binary_length(part)).as_py() <= 1_000 for _, part in parts)
    assert len(parts) > 5
    assert plain_path.of(rows) == 0
    # One that is larger takes the plain path.
    rows[20] = json.dumps({"n": 1, "s": "x" * 1_000}).encode()
    assert plain_path.of(rows) == 1


def test_a_part_of_a_column_is_read_alone(plain_path: PlainPath) -> None:
    rows = [b'{"n": NaN}', *clean_rows(70), b"{"]
    whole = column(rows)
    found = JsonDecoder(SCHEMA)(whole.slice(1, 70))
    assert shown(found.values) == shown(JsonDecoder(SCHEMA)(column(rows[1:71])).values)
    assert plain_path.count == 0
    large = JsonDecoder(SCHEMA)(pa.array(rows, type=pa.large_binary()).slice(1, 70))
    assert shown(large.values) == shown(found.values)
    assert plain_path.count == 0


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.decimal128(10, 2), pa.date32(), pa.binary(), pa.timestamp("us")),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.field("item", pa.int64(), nullable=False)),
        pa.struct([pa.field("x", pa.int64(), nullable=False)]),
    ],
    ids=str,
)
def test_columns_that_arrow_does_not_read_strictly_take_the_plain_path(kind: pa.DataType) -> None:
    schema = pa.schema([("n", pa.int64()), ("v", kind)])
    assert not BlockReader(schema, shape_of(schema)).supports_shape
    rows = [b'{"n": 1}', b'{"n": 2, "v": null}', b'{"n": 3, "v": {"x": null}}', b'{"v": [null]}']
    decode(rows, schema)
