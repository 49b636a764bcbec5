"""The data types of section 1.5 of the standard, as bytes.

    Reader   reads the body of one packet. A field that ends beyond the packet is a violation, never
             a reason to wait for more bytes. It checks framing only; the `check_*` functions, which
             the constructors of packets also call, check values.
    Writer   collects the bytes of a packet.

Ill-formed UTF-8 is decoded with each bad byte as a lone surrogate. `check_text` refuses surrogates,
so that one check covers both strings to send and received bytes. If packets are observed rather
than decoded, a Reader also records the fields that it has read, under the standard's names, to show
what precedes a violation.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr, u8

from semel.mqtt.packet_types import MQTT5
from semel.mqtt.rules import (
    BINARY_FITS_ITS_LENGTH,
    FIELD_WITHIN_PACKET,
    INTEGER_FITS_ITS_FIELD,
    NO_SURPLUS_BYTES,
    PACKET_ITEMS_WITHIN_LIMIT,
    TEXT_FITS_ITS_LENGTH,
    TEXT_WELL_FORMED,
    TEXT_WITHOUT_NUL,
    VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES,
    VARIABLE_BYTE_INTEGER_SHORTEST,
)
from semel.mqtt.violation import Violation, report

MAXIMUM_VARIABLE_BYTE_INTEGER: Final = 268_435_455
MAXIMUM_TWO_BYTES: Final = 65_535
MAXIMUM_FOUR_BYTES: Final = 4_294_967_295

_LAST_ASCII: Final = 0x7F

# No limit: more topic filters and properties than a packet of any size can have.
ANY_NUMBER_OF_ITEMS: Final = MAXIMUM_VARIABLE_BYTE_INTEGER

FieldValue = int | str | bytes


def check_text(value: str, name: str, found: list[Violation] | None) -> None:
    """Check that a string is well-formed, has no NUL, and takes at most 65,535 bytes."""
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        where = f"{name} has {value[error.start]!a} at character {error.start}"
        report(found, Violation(TEXT_WELL_FORMED, where))
        return
    if size > MAXIMUM_TWO_BYTES:
        report(found, Violation(TEXT_FITS_ITS_LENGTH, f"{name} of {size} bytes"))
    if "\0" in value:
        report(found, Violation(TEXT_WITHOUT_NUL, f"{name} has U+0000 at {value.index(chr(0))}"))


# Approximate memory of an empty string and its entry in a dictionary.
_TEXT_BYTES: Final = 100


def memory_size(text: str) -> int:
    """Approximate memory of a string; one character beyond ASCII widens all of them."""
    return _TEXT_BYTES + (len(text) if text.isascii() else 4 * len(text))


def text_size(value: str) -> int:
    """The size of a string on the wire, without its length field."""
    return len(value) if value.isascii() else len(value.encode("utf-8"))


def check_binary(value: bytes, name: str, found: list[Violation] | None) -> None:
    """Check that binary data takes at most 65,535 bytes."""
    if len(value) > MAXIMUM_TWO_BYTES:
        report(found, Violation(BINARY_FITS_ITS_LENGTH, f"{name} of {len(value)} bytes"))


def check_integer(value: int, maximum: int, name: str, found: list[Violation] | None) -> None:
    """Check that a number is in the range 0 to `maximum`."""
    if value < 0 or value > maximum:
        report(found, Violation(INTEGER_FITS_ITS_FIELD, f"{name} {value}, at most {maximum}"))


def check_variable_byte_integer(value: int, name: str) -> None:
    """Check that a number fits into four bytes with seven bits each."""
    if value < 0 or value > MAXIMUM_VARIABLE_BYTE_INTEGER:
        raise Violation(VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES, name)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Reader:
    """A cursor over `data[start:end]`, the body of one packet under one version."""

    data: Final[bytes]
    version: int
    at: i64
    end: i64
    maximum_items: Final[int]
    # The number of topic filters and properties read so far.
    _items: i64
    found: Final[list[Violation] | None]
    fields: Final[list[tuple[str, FieldValue]] | None]

    def __init__(
        self,
        data: bytes,
        start: int,
        end: int,
        version: int,
        found: list[Violation] | None = None,
        fields: list[tuple[str, FieldValue]] | None = None,
        maximum_items: int = ANY_NUMBER_OF_ITEMS,
    ) -> None:
        self.data = data
        self.version = version
        self.at = start
        self.end = end
        self.maximum_items = maximum_items
        self._items = 0
        self.found = found
        self.fields = fields

    def left(self) -> int:
        """The number of bytes that have not been read."""
        return self.end - self.at

    def count_item(self) -> None:
        """Count a topic filter or a property: each costs an object, not only its bytes.

        Raises `Violation` if there are more than `maximum_items`.
        """
        self._items += 1
        if self._items > self.maximum_items:
            raise Violation(PACKET_ITEMS_WITHIN_LIMIT, f"more than {self.maximum_items}")

    def _take(self, size: i64, name: str) -> i64:
        start = self.at
        if size > self.end - start:
            missing = size - (self.end - start)
            raise Violation(
                FIELD_WITHIN_PACKET,
                f"{name} lacks {missing} of {size} byte{'' if size == 1 else 's'}",
            )
        self.at = start + size
        return start

    def byte(self, name: str) -> int:
        """One byte."""
        value = self.data[self._take(1, name)]
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def two_bytes(self, name: str) -> int:
        """A Two Byte Integer [1.5.2]."""
        at = self._take(2, name)
        value = self.data[at] << 8 | self.data[at + 1]
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def four_bytes(self, name: str) -> int:
        """A Four Byte Integer [1.5.3]."""
        at = self._take(4, name)
        data = self.data
        value = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def variable_byte_integer(self, name: str) -> int:
        """A Variable Byte Integer [1.5.5]."""
        value: i64 = 0
        shift: i64 = 0
        while True:
            digit: i64 = self.data[self._take(1, name)]
            value |= (digit & 127) << shift
            if digit < 128:
                break
            shift += 7
            if shift == 28:
                check_variable_byte_integer(MAXIMUM_VARIABLE_BYTE_INTEGER + 1, name)
        if digit == 0 and shift:
            self.check_shortest_form(name)
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def check_shortest_form(self, name: str) -> None:
        """Report a Variable Byte Integer that took more bytes than needed; only 5.0 forbids it."""
        if self.version == MQTT5:
            report(self.found, Violation(VARIABLE_BYTE_INTEGER_SHORTEST, name))

    def text(self, name: str) -> str:
        """A UTF-8 Encoded String [1.5.4]; ill-formed bytes become lone surrogates."""
        head = self._take(2, name)
        high: i64 = self.data[head]
        low: i64 = self.data[head + 1]
        size = high << 8 | low
        at = self._take(size, name)
        raw = self.data[at : at + size]
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError:
            value = raw.decode("utf-8", "surrogateescape")
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def binary(self, name: str) -> bytes:
        """Binary Data [1.5.6]."""
        size = self._size(name)
        at = self._take(size, name)
        value = self.data[at : at + size]
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def _size(self, name: str) -> i64:
        head = self._take(2, name)
        high: i64 = self.data[head]
        low: i64 = self.data[head + 1]
        return high << 8 | low

    def skip_binary(self, name: str) -> None:
        """Skip Binary Data, or a UTF-8 Encoded String whose value is not needed."""
        if self.fields is not None:
            self.binary(name)
        else:
            self._take(self._size(name), name)

    def skip_plain_text(self, name: str) -> bool:
        """Skip a UTF-8 Encoded String of ASCII characters without NUL: `check_text` accepts it.

        Returns False, and skips nothing, if it has other bytes, or if fields are recorded.
        """
        if self.fields is not None:
            return False
        start = self.at
        size = self._size(name)
        at = self._take(size, name)
        end = at + size
        data = self.data
        while at < end:
            byte: i64 = data[at]
            if byte == 0 or byte > _LAST_ASCII:
                self.at = start
                return False
            at += 1
        return True

    def rest(self, name: str) -> bytes:
        """The remaining bytes: the payload of a message."""
        at = self.at
        self.at = self.end
        value = self.data[at : self.end]
        if self.fields is not None:
            self.fields.append((name, value))
        return value

    def narrow(self, size: int, name: str) -> int:
        """Limit the reader to the next `size` bytes. Returns the argument for `widen`."""
        end = self.end
        at = self._take(size, name)
        self.end = self.at
        self.at = at
        return end

    def widen(self, end: int) -> None:
        """Skip to the end of the narrowed part, and remove its limit."""
        self.at = self.end
        self.end = end

    def check_end(self) -> None:
        """Check that no bytes are left."""
        if self.at < self.end:
            surplus = self.end - self.at
            report(
                self.found,
                Violation(NO_SURPLUS_BYTES, f"{surplus} byte{'' if surplus == 1 else 's'} more"),
            )


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Writer:
    """Collects the bytes of a packet. The caller must have checked the values."""

    _bytes: Final[BytesWriter]

    def __init__(self) -> None:
        self._bytes = BytesWriter()

    def byte(self, value: i64) -> None:
        self._bytes.append(u8(value))

    def two_bytes(self, value: i64) -> None:
        self._bytes.append(u8(value >> 8))
        self._bytes.append(u8(value & 255))

    def four_bytes(self, value: int) -> None:
        self.two_bytes(value >> 16)
        self.two_bytes(value & 65_535)

    def variable_byte_integer(self, value: int, name: str) -> None:
        check_variable_byte_integer(value, name)
        rest: i64 = value
        while rest > 127:
            self._bytes.append(u8(rest & 127 | 128))
            rest >>= 7
        self._bytes.append(u8(rest))

    def text(self, value: str) -> None:
        self.binary(value.encode("utf-8"))

    def binary(self, value: bytes) -> None:
        self.two_bytes(len(value))
        self._bytes.write(value)

    def raw(self, value: bytes) -> None:
        self._bytes.write(value)

    def value(self) -> bytes:
        """The bytes collected so far."""
        return self._bytes.getvalue()


def frame(first: int, body: bytes) -> bytes:
    """A whole packet: first byte, Remaining Length, body."""
    writer = Writer()
    writer.byte(first)
    writer.variable_byte_integer(len(body), "Remaining Length")
    writer.raw(body)
    return writer.value()
