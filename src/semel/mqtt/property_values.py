"""The values of properties as bytes, by data type [1.5]: check, read, skip or write one of them.

`properties.py` has the table that says which property has which type.
"""

from typing import Final

from semel.mqtt.rules import PROPERTY_IS_0_OR_1
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import (
    MAXIMUM_FOUR_BYTES,
    MAXIMUM_TWO_BYTES,
    Reader,
    Writer,
    check_binary,
    check_integer,
    check_text,
    check_variable_byte_integer,
    text_size,
)

PropertyValue = int | str | bytes | tuple[str, str]

# YES_OR_NO is a byte with the value 0 or 1.
UNKNOWN: Final = 0
YES_OR_NO: Final = 1
TWO_BYTES: Final = 2
FOUR_BYTES: Final = 3
VARIABLE: Final = 4
TEXT: Final = 5
BINARY: Final = 6
PAIR: Final = 7

# Approximate bytes of a property besides its text: identifier, lengths, a number.
ITEM_SIZE: Final = 5


def check_value(kind: int, value: PropertyValue, name: str, found: list[Violation] | None) -> None:
    """Check that a value is within the range of its type.

    Raises `TypeError` for a value of the wrong Python type, which the decoder cannot produce.
    """
    if kind == TEXT:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be str")
        check_text(value, name, found)
    elif kind == BINARY:
        if not isinstance(value, bytes):
            raise TypeError(f"{name} must be bytes")
        check_binary(value, name, found)
    elif kind == PAIR:
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"{name} must be pairs of str")
        # [MQTT-1.5.7-1] both strings of a pair
        check_text(value[0], name, found)
        check_text(value[1], name, found)
    else:
        if not isinstance(value, int):
            raise TypeError(f"{name} must be int")
        check_number(kind, value, name, found)


def check_number(kind: int, value: int, name: str, found: list[Violation] | None) -> None:
    """Check that a value of one of the types before `TEXT` is within the range of its type."""
    if kind == YES_OR_NO:
        if value != 0 and value != 1:
            report(found, Violation(PROPERTY_IS_0_OR_1, f"{name} {value}"))
    elif kind == TWO_BYTES:
        check_integer(value, MAXIMUM_TWO_BYTES, name, found)
    elif kind == FOUR_BYTES:
        check_integer(value, MAXIMUM_FOUR_BYTES, name, found)
    else:
        check_variable_byte_integer(value, name)


def item_size(value: PropertyValue) -> int:
    """Approximate size of a property in bytes, which limits of memory count."""
    if isinstance(value, str):
        return ITEM_SIZE + text_size(value)
    if isinstance(value, bytes):
        return ITEM_SIZE + len(value)
    if isinstance(value, tuple):
        return ITEM_SIZE + text_size(value[0]) + text_size(value[1])
    return ITEM_SIZE


def read_number(reader: Reader, kind: int, name: str) -> int:
    """Read a value of one of the types before `TEXT`."""
    if kind == YES_OR_NO:
        return reader.byte(name)
    if kind == TWO_BYTES:
        return reader.two_bytes(name)
    if kind == FOUR_BYTES:
        return reader.four_bytes(name)
    return reader.variable_byte_integer(name)


def read_value(reader: Reader, kind: int, name: str) -> PropertyValue:
    """Read a value of any type."""
    if kind == TEXT:
        return reader.text(name)
    if kind == BINARY:
        return reader.binary(name)
    if kind == PAIR:
        return reader.text(name), reader.text(name)
    return read_number(reader, kind, name)


def skip_value(reader: Reader, kind: int, name: str) -> None:
    """Move the reader to the end of a value without creating the value."""
    if kind == TEXT or kind == BINARY:
        reader.skip_binary(name)
    elif kind == PAIR:
        reader.skip_binary(name)
        reader.skip_binary(name)
    else:
        read_number(reader, kind, name)


def check_next_text(reader: Reader, name: str, found: list[Violation] | None) -> None:
    """Check the string that the reader has next, and skip it."""
    if not reader.skip_plain_text(name):
        check_text(reader.text(name), name, found)


def write_value(writer: Writer, kind: int, value: PropertyValue) -> None:
    """Write a checked value."""
    if isinstance(value, int):
        if kind == YES_OR_NO:
            writer.byte(value)
        elif kind == TWO_BYTES:
            writer.two_bytes(value)
        elif kind == FOUR_BYTES:
            writer.four_bytes(value)
        else:
            writer.variable_byte_integer(value, "property")
    elif isinstance(value, str):
        writer.text(value)
    elif isinstance(value, bytes):
        writer.binary(value)
    else:
        writer.text(value[0])
        writer.text(value[1])
