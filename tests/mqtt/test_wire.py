"""The data types of section 1.5: what a Reader takes, what a Writer gives, what may travel."""

import sys

import pytest

from semel.mqtt import MQTT5, MQTT311, Violation, rules
from semel.mqtt.wire import (
    MAXIMUM_FOUR_BYTES,
    MAXIMUM_TWO_BYTES,
    MAXIMUM_VARIABLE_BYTE_INTEGER,
    FieldValue,
    Reader,
    Writer,
    check_binary,
    check_integer,
    check_text,
    check_variable_byte_integer,
    frame,
    memory_size,
    text_size,
)
from tests.mqtt.verdicts import refuses


def reader(data: str, version: int = MQTT5) -> Reader:
    content = bytes.fromhex(data)
    return Reader(content, 0, len(content), version)


# [5.0 §1.5.5, table 1-1] the ends of each length, as the standard prints them.
VARIABLE_BYTE_INTEGERS = (
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2_097_151, "ffff7f"),
    (2_097_152, "80808001"),
    (268_435_455, "ffffff7f"),
)


@pytest.mark.parametrize(("value", "data"), VARIABLE_BYTE_INTEGERS)
def test_a_variable_byte_integer_is_written_and_read_as_the_standard_prints_it(
    value: int, data: str
) -> None:
    writer = Writer()
    writer.variable_byte_integer(value, "size")
    assert writer.value().hex() == data
    assert reader(data).variable_byte_integer("size") == value


@pytest.mark.parametrize("value", [-1, 268_435_456, 10**30])
def test_a_number_outside_four_times_seven_bits_is_no_variable_byte_integer(value: int) -> None:
    with refuses(rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES):
        check_variable_byte_integer(value, "size")
    with refuses(rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES):
        Writer().variable_byte_integer(value, "size")


@pytest.mark.parametrize("data", ["80808080", "8080808000", "ffffffff7f"])
def test_a_variable_byte_integer_of_five_bytes_is_refused_at_its_fourth(data: str) -> None:
    with refuses(rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES):
        reader(data).variable_byte_integer("size")


@pytest.mark.parametrize(("data", "value"), [("8000", 0), ("818000", 1), ("ffff8000", 16_383)])
def test_a_variable_byte_integer_longer_than_needed_is_refused_in_5_and_read_in_311(
    data: str, value: int
) -> None:
    with refuses(rules.VARIABLE_BYTE_INTEGER_SHORTEST):
        reader(data).variable_byte_integer("size")
    assert reader(data, MQTT311).variable_byte_integer("size") == value


@pytest.mark.parametrize(("value", "data"), [(0, "0000"), (258, "0102"), (65_535, "ffff")])
def test_a_two_byte_integer_is_big_endian(value: int, data: str) -> None:
    writer = Writer()
    writer.two_bytes(value)
    assert writer.value().hex() == data
    assert reader(data).two_bytes("number") == value


@pytest.mark.parametrize(
    ("value", "data"), [(0, "00000000"), (16_909_060, "01020304"), (4_294_967_295, "ffffffff")]
)
def test_a_four_byte_integer_is_big_endian(value: int, data: str) -> None:
    writer = Writer()
    writer.four_bytes(value)
    assert writer.value().hex() == data
    assert reader(data).four_bytes("number") == value


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255])
def test_a_byte_is_itself(value: int) -> None:
    writer = Writer()
    writer.byte(value)
    assert writer.value() == bytes((value,))
    assert reader(f"{value:02x}").byte("number") == value


# [1.5.4] "A" followed by U+2A6D4, the standard's own example; U+FEFF is kept [1.5.4-3].
@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("", "0000"),
        ("A\U0002a6d4", "0005 41f0aa9b94"),
        ("\ufeffa", "0004 efbbbf61"),
        ("\u0001\u009f\uffff", "0006 01 c29f efbfbf"),
    ],
)
def test_a_string_is_its_length_and_its_utf8(value: str, data: str) -> None:
    writer = Writer()
    writer.text(value)
    assert writer.value() == bytes.fromhex(data)
    assert reader(data).text("string") == value
    check_text(value, "string", None)


@pytest.mark.parametrize(
    "data",
    ["0001 ff", "0002 c080", "0003 eda080", "0003 edbfbf", "0004 f4908080", "0001 c3", "0002 6180"],
    ids=["stray", "overlong", "D800", "DFFF", "110000", "cut", "continuation"],
)
def test_ill_formed_utf8_is_read_as_a_string_that_may_not_travel(data: str) -> None:
    value = reader(data).text("string")
    with refuses(rules.TEXT_WELL_FORMED):
        check_text(value, "string", None)


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb"])
def test_a_string_with_a_surrogate_may_not_travel(value: str) -> None:
    with refuses(rules.TEXT_WELL_FORMED):
        check_text(value, "string", None)


def test_a_string_with_nul_may_not_travel() -> None:
    with refuses(rules.TEXT_WITHOUT_NUL):
        check_text("a\0b", "string", None)
    assert reader("0003 610062").text("string") == "a\0b"


def test_a_string_takes_at_most_65535_bytes_of_utf8() -> None:
    check_text("a" * 65_535, "string", None)
    check_text("é" * 32_767 + "a", "string", None)
    with refuses(rules.TEXT_FITS_ITS_LENGTH):
        check_text("a" * 65_536, "string", None)
    with refuses(rules.TEXT_FITS_ITS_LENGTH):
        check_text("é" * 32_768, "string", None)


def test_all_that_is_wrong_with_a_string_is_gathered_where_someone_gathers() -> None:
    found: list[Violation] = []
    check_text("\0" + "a" * 65_535, "string", found)
    assert [violation.rule for violation in found] == [
        rules.TEXT_FITS_ITS_LENGTH,
        rules.TEXT_WITHOUT_NUL,
    ]
    found = []
    check_text("\0\ud800", "string", found)
    assert [violation.rule for violation in found] == [rules.TEXT_WELL_FORMED]


def test_binary_data_takes_at_most_65535_bytes() -> None:
    check_binary(bytes(65_535), "data", None)
    with refuses(rules.BINARY_FITS_ITS_LENGTH):
        check_binary(bytes(65_536), "data", None)


@pytest.mark.parametrize("maximum", [MAXIMUM_TWO_BYTES, MAXIMUM_FOUR_BYTES])
def test_a_number_fits_its_field(maximum: int) -> None:
    check_integer(0, maximum, "number", None)
    check_integer(maximum, maximum, "number", None)
    for value in (-1, maximum + 1, 10**30, -(10**30)):
        with refuses(rules.INTEGER_FITS_ITS_FIELD):
            check_integer(value, maximum, "number", None)


def test_the_largest_numbers_are_those_of_the_standard() -> None:
    assert MAXIMUM_TWO_BYTES == 2**16 - 1
    assert MAXIMUM_FOUR_BYTES == 2**32 - 1
    assert MAXIMUM_VARIABLE_BYTE_INTEGER == 2**28 - 1


def test_binary_data_is_its_length_and_its_bytes() -> None:
    writer = Writer()
    writer.binary(b"\x00\xff")
    writer.raw(b"\x07")
    assert writer.value() == b"\x00\x02\x00\xff\x07"
    cursor = reader("000200ff07")
    assert cursor.binary("data") == b"\x00\xff"
    assert cursor.rest("rest") == b"\x07"
    assert cursor.rest("rest") == b""


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("byte", ""),
        ("two_bytes", "01"),
        ("four_bytes", "010203"),
        ("variable_byte_integer", ""),
        ("variable_byte_integer", "80"),
        ("text", "00"),
        ("text", "000261"),
        ("binary", "00"),
        ("binary", "000100"[:4]),
    ],
)
def test_a_field_that_ends_past_its_packet_is_refused(method: str, data: str) -> None:
    content = bytes.fromhex(data)
    # More bytes follow, but they belong to another packet.
    cursor = Reader(content + b"\x00\x00\x00\x00\x00", 0, len(content), MQTT5)
    with refuses(rules.FIELD_WITHIN_PACKET):
        getattr(cursor, method)("field")


def test_a_reader_begins_and_ends_where_it_is_told_to() -> None:
    cursor = Reader(bytes.fromhex("ff 0001 41 ff"), 1, 4, MQTT5)
    assert cursor.left() == 3
    assert cursor.text("string") == "A"
    assert cursor.left() == 0
    cursor.check_end()


def test_a_part_is_bounded_and_passed_over() -> None:
    cursor = reader("0102030405")
    end = cursor.narrow(2, "part")
    assert cursor.left() == 2
    assert cursor.byte("number") == 1
    with refuses(rules.FIELD_WITHIN_PACKET):
        cursor.two_bytes("number")
    cursor.widen(end)
    assert cursor.left() == 3
    assert cursor.byte("number") == 3
    with refuses(rules.FIELD_WITHIN_PACKET):
        cursor.narrow(3, "part")
    cursor.narrow(2, "part")
    assert cursor.left() == 2


def test_bytes_after_the_last_field_are_refused() -> None:
    cursor = reader("0102")
    cursor.byte("number")
    with refuses(rules.NO_SURPLUS_BYTES):
        cursor.check_end()
    cursor.byte("number")
    cursor.check_end()


def test_an_observing_reader_keeps_each_field_under_its_name() -> None:
    fields: list[tuple[str, FieldValue]] = []
    found: list[Violation] = []
    data = bytes.fromhex("01 0203 04050607 8000 000141 000142 09 0a")
    cursor = Reader(data, 0, len(data), MQTT5, found, fields)
    cursor.byte("a")
    cursor.two_bytes("b")
    cursor.four_bytes("c")
    cursor.variable_byte_integer("d")
    cursor.text("e")
    cursor.binary("f")
    end = cursor.narrow(1, "g")
    cursor.byte("h")
    cursor.widen(end)
    cursor.check_end()
    cursor.rest("i")
    assert fields == [
        ("a", 1),
        ("b", 0x0203),
        ("c", 0x04050607),
        ("d", 0),
        ("e", "A"),
        ("f", b"B"),
        ("h", 9),
        ("i", b"\x0a"),
    ]
    assert [violation.rule for violation in found] == [
        rules.VARIABLE_BYTE_INTEGER_SHORTEST,
        rules.NO_SURPLUS_BYTES,
    ]


@pytest.mark.parametrize(
    ("size", "header"), [(0, "c000"), (127, "c07f"), (128, "c08001"), (16_384, "c0808001")]
)
def test_a_frame_is_first_byte_remaining_length_and_body(size: int, header: str) -> None:
    assert frame(0xC0, bytes(size)) == bytes.fromhex(header) + bytes(size)


def test_the_size_of_a_text_is_that_of_its_bytes() -> None:
    assert text_size("") == 0
    assert text_size("abc") == 3
    assert text_size("é\U0001f600") == 6


@pytest.mark.parametrize("text", ["", "t" * 1_000, "t" * 1_000 + "\U0001f600", "\u4e2d" * 500])
def test_a_text_takes_no_more_memory_than_is_said(text: str) -> None:
    assert sys.getsizeof(text) <= memory_size(text) <= 2 * sys.getsizeof(text) + 100
