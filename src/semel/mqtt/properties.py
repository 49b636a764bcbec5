"""The 27 properties of 5.0: one table, one class, one reader, one writer.

A `Properties` is one property section, in order. Its constructor checks what holds in every packet
(type, range, no repetition); the constructor of a packet checks which properties it may have.
Programs and the decoder use the same constructor: a program passes keywords, the decoder passes the
bytes that it has read.

As objects, small properties take up to fifty times as many bytes as on the wire, and more time than
their checks. So a received section stays bytes, which are parsed on access. Whoever keeps a section
for long keeps the result of `compact`: a long section is bytes, whoever has created it.

    >>> Properties(message_expiry_interval=60, user_properties=[("unit", "°C")])
    Properties(message_expiry_interval=60, user_properties=(('unit', '°C'),))
"""

from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from semel.mqtt.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT5,
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from semel.mqtt.property_values import (
    BINARY,
    FOUR_BYTES,
    ITEM_SIZE,
    PAIR,
    TEXT,
    TWO_BYTES,
    UNKNOWN,
    VARIABLE,
    YES_OR_NO,
    PropertyValue,
    check_next_text,
    check_number,
    check_value,
    item_size,
    read_number,
    read_value,
    skip_value,
    write_value,
)
from semel.mqtt.rules import (
    PROPERTIES_NEED_MQTT5,
    PROPERTY_IN_ITS_PACKET,
    PROPERTY_KNOWN,
    PROPERTY_NOT_ZERO,
    PROPERTY_ONCE,
    TOPIC_ALIAS_NOT_ZERO,
)
from semel.mqtt.topics import check_topic_name
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import ANY_NUMBER_OF_ITEMS, Reader, Writer

PropertyItem = tuple[int, PropertyValue]

# [2.2.2.2] Property identifiers.
PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

# Up to this many properties stay objects: `compact` keeps a longer section as bytes.
_FEW: Final = 4


def _in(*packet_types: int) -> int:
    bits = 0
    for packet_type in packet_types:
        bits |= 1 << packet_type
    return bits


_MESSAGE: Final = _in(PUBLISH, WILL)
_LIMITS: Final = _in(CONNECT, CONNACK)
_ENHANCED: Final = _in(CONNECT, CONNACK, AUTH)
_REASONED: Final = _in(CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ALL: Final = _REASONED | _in(WILL, CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE)

# [Table 2-4] identifier, name as in the constructor, data type, packets that may have it.
_TABLE: Final = (
    (PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator", YES_OR_NO, _MESSAGE),
    (MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval", FOUR_BYTES, _MESSAGE),
    (CONTENT_TYPE, "content_type", TEXT, _MESSAGE),
    (RESPONSE_TOPIC, "response_topic", TEXT, _MESSAGE),
    (CORRELATION_DATA, "correlation_data", BINARY, _MESSAGE),
    (SUBSCRIPTION_IDENTIFIER, "subscription_identifiers", VARIABLE, _in(PUBLISH, SUBSCRIBE)),
    (SESSION_EXPIRY_INTERVAL, "session_expiry_interval", FOUR_BYTES, _LIMITS | _in(DISCONNECT)),
    (ASSIGNED_CLIENT_IDENTIFIER, "assigned_client_identifier", TEXT, _in(CONNACK)),
    (SERVER_KEEP_ALIVE, "server_keep_alive", TWO_BYTES, _in(CONNACK)),
    (AUTHENTICATION_METHOD, "authentication_method", TEXT, _ENHANCED),
    (AUTHENTICATION_DATA, "authentication_data", BINARY, _ENHANCED),
    (REQUEST_PROBLEM_INFORMATION, "request_problem_information", YES_OR_NO, _in(CONNECT)),
    (WILL_DELAY_INTERVAL, "will_delay_interval", FOUR_BYTES, _in(WILL)),
    (REQUEST_RESPONSE_INFORMATION, "request_response_information", YES_OR_NO, _in(CONNECT)),
    (RESPONSE_INFORMATION, "response_information", TEXT, _in(CONNACK)),
    (SERVER_REFERENCE, "server_reference", TEXT, _in(CONNACK, DISCONNECT)),
    (REASON_STRING, "reason_string", TEXT, _REASONED),
    (RECEIVE_MAXIMUM, "receive_maximum", TWO_BYTES, _LIMITS),
    (TOPIC_ALIAS_MAXIMUM, "topic_alias_maximum", TWO_BYTES, _LIMITS),
    (TOPIC_ALIAS, "topic_alias", TWO_BYTES, _in(PUBLISH)),
    (MAXIMUM_QOS, "maximum_qos", YES_OR_NO, _in(CONNACK)),
    (RETAIN_AVAILABLE, "retain_available", YES_OR_NO, _in(CONNACK)),
    (USER_PROPERTY, "user_properties", PAIR, _ALL),
    (MAXIMUM_PACKET_SIZE, "maximum_packet_size", FOUR_BYTES, _LIMITS),
    (WILDCARD_SUBSCRIPTION_AVAILABLE, "wildcard_subscription_available", YES_OR_NO, _in(CONNACK)),
    (
        SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        "subscription_identifiers_available",
        YES_OR_NO,
        _in(CONNACK),
    ),
    (SHARED_SUBSCRIPTION_AVAILABLE, "shared_subscription_available", YES_OR_NO, _in(CONNACK)),
)
_LAST: Final = 0x2A

# The same table by identifier, and by packet type: bit n of _ALLOWED[t] is set if packet type t may
# have property n.
_types = bytearray(_LAST + 1)
_NAMES: Final = [""] * (_LAST + 1)
_ALLOWED: Final = [0] * len(PACKET_NAMES)
for _identifier, _name, _type, _packets in _TABLE:
    _types[_identifier] = _type
    _NAMES[_identifier] = _name
    for _packet_type in range(len(PACKET_NAMES)):
        if _packets >> _packet_type & 1:
            _ALLOWED[_packet_type] |= 1 << _identifier
_TYPES: Final = bytes(_types)

_NOT_ZERO: Final = 1 << RECEIVE_MAXIMUM | 1 << MAXIMUM_PACKET_SIZE | 1 << SUBSCRIPTION_IDENTIFIER
_REPEATABLE: Final = 1 << USER_PROPERTY | 1 << SUBSCRIPTION_IDENTIFIER


def is_property(identifier: int) -> bool:
    """Whether 5.0 defines `identifier`."""
    return 0 < identifier <= _LAST and _TYPES[identifier] != UNKNOWN


def property_identifier(name: str) -> int:
    """The identifier of the property with this name, 0 if there is none."""
    return _NAMES.index(name) if name in _NAMES else 0


def check_property_known(identifier: int, found: list[Violation] | None) -> None:
    """Check that 5.0 defines the identifier; otherwise the length of its value is unknown."""
    if not is_property(identifier):
        report(found, Violation(PROPERTY_KNOWN, f"0x{identifier:02x}"))


def check_property(identifier: int, value: PropertyValue, found: list[Violation] | None) -> None:
    """Check that a value is within the range of its property.

    Raises `TypeError` for a value of the wrong Python type, which the decoder cannot produce.
    """
    name = _NAMES[identifier]
    if identifier == RESPONSE_TOPIC and isinstance(value, str):
        check_topic_name(value, name, found)
    else:
        check_value(_TYPES[identifier], value, name, found)
    if isinstance(value, int) and value == 0:
        _check_zero(identifier, found)


def _check_zero(identifier: int, found: list[Violation] | None) -> None:
    if _NOT_ZERO >> identifier & 1:
        report(found, Violation(PROPERTY_NOT_ZERO, f"{_NAMES[identifier]} 0"))
    elif identifier == TOPIC_ALIAS:
        report(found, Violation(TOPIC_ALIAS_NOT_ZERO, f"{_NAMES[identifier]} 0"))


def check_properties(items: list[PropertyItem], found: list[Violation] | None) -> int:
    """Check the rules that hold in every packet. Returns a bit for each identifier present."""
    present = 0
    for identifier, value in items:
        check_property_known(identifier, found)
        check_property(identifier, value, found)
        bit = 1 << identifier
        if present & bit and not _REPEATABLE & bit:
            _report_repeated(identifier, found)
        present |= bit
    return present


def _report_repeated(identifier: int, found: list[Violation] | None) -> None:
    report(found, Violation(PROPERTY_ONCE, f"{_NAMES[identifier]} again"))


def check_properties_allowed(packet_type: int, present: int, found: list[Violation] | None) -> None:
    """Check that this packet may have each property that is present."""
    misplaced = present & ~_ALLOWED[packet_type]
    if misplaced:
        names = [
            _NAMES[identifier] for identifier in range(_LAST + 1) if misplaced >> identifier & 1
        ]
        seen = f"{', '.join(names)} in {PACKET_NAMES[packet_type]}"
        report(found, Violation(PROPERTY_IN_ITS_PACKET, seen, packet_type))


def check_properties_version(present: int, version: int) -> None:
    """Check that a packet for 3.1.1, which has no properties, has none."""
    if present and version != MQTT5:
        raise Violation(PROPERTIES_NEED_MQTT5, "properties in a packet for 3.1.1")


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class PropertySection:
    """A property section as bytes [2.2.2], read and checked by the rules that hold in every packet.

    A packet is read to its end before a value is refused: `found` has the violations until then,
    and `Properties` raises the first. After an unknown identifier the rest is skipped.
    """

    # Without the Property Length; a bit for each identifier; what `properties_size` counts.
    data: Final[bytes]
    present: Final[int]
    size: Final[int]
    found: Final[list[Violation]]

    def __init__(self, reader: Reader, length: int) -> None:
        packet_end = reader.narrow(length, "properties")
        found: list[Violation] = []
        present: i64 = 0
        size: i64 = 0
        start = reader.at
        end = start
        while end < reader.end:
            reader.count_item()
            identifier: i64 = reader.variable_byte_integer("property_identifier")
            if not is_property(identifier):
                check_property_known(identifier, reader.found)
                break
            kind = _TYPES[identifier]
            name = _NAMES[identifier]
            value_start = reader.at
            size += ITEM_SIZE
            if kind == PAIR:
                # [MQTT-1.5.7-1] both strings of a pair
                check_next_text(reader, name, found)
                check_next_text(reader, name, found)
                size += reader.at - value_start - 4
            elif kind == BINARY:
                # No value that its length field can express is too long.
                reader.skip_binary(name)
                size += reader.at - value_start - 2
            elif kind != TEXT:
                number = read_number(reader, kind, name)
                check_number(kind, number, name, found)
                if not number:
                    _check_zero(identifier, found)
            else:
                if identifier == RESPONSE_TOPIC:
                    check_property(identifier, reader.text(name), found)
                else:
                    check_next_text(reader, name, found)
                size += reader.at - value_start - 2
            bit: i64 = 1  # not in the next line: a literal has 32 bits in compiled code
            bit <<= identifier
            if present & bit and not _REPEATABLE & bit:
                _report_repeated(identifier, found)
            present |= bit
            end = reader.at
        reader.widen(packet_end)
        self.data = reader.data[start:end]
        self.present = present
        self.size = size
        self.found = found


@final
@mypyc_attr(acyclic=True)
class Properties:
    """A property section: (identifier, value) pairs in the order in which they are sent."""

    # A bit for each identifier in the section.
    present: Final[int]
    # The first pairs as objects; the remaining ones as wire bytes; and the size of the latter as
    # `properties_size` counts it.
    _first: Final[tuple[PropertyItem, ...]]
    _rest: Final[bytes]
    _rest_size: Final[int]

    def __init__(
        self,
        items: Iterable[PropertyItem] = (),
        *,
        # Properties of messages come first, because compiled code parses keywords in this order.
        payload_format_indicator: int | None = None,
        message_expiry_interval: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        user_properties: Iterable[tuple[str, str]] = (),
        topic_alias: int | None = None,
        subscription_identifiers: Iterable[int] = (),
        session_expiry_interval: int | None = None,
        assigned_client_identifier: str | None = None,
        server_keep_alive: int | None = None,
        authentication_method: str | None = None,
        authentication_data: bytes | None = None,
        request_problem_information: int | None = None,
        will_delay_interval: int | None = None,
        request_response_information: int | None = None,
        response_information: str | None = None,
        server_reference: str | None = None,
        reason_string: str | None = None,
        receive_maximum: int | None = None,
        topic_alias_maximum: int | None = None,
        maximum_qos: int | None = None,
        retain_available: int | None = None,
        maximum_packet_size: int | None = None,
        wildcard_subscription_available: int | None = None,
        subscription_identifiers_available: int | None = None,
        shared_subscription_available: int | None = None,
        # A whole section that comes after all of these; whether to keep everything as bytes.
        before: "Properties | PropertySection | None" = None,
        as_bytes: bool = False,
    ) -> None:
        gathered: list[PropertyItem] = []
        # In compiled code it takes less time to see that something is empty than to iterate it.
        if items:
            gathered.extend(items)
        if payload_format_indicator is not None:
            gathered.append((PAYLOAD_FORMAT_INDICATOR, payload_format_indicator))
        if message_expiry_interval is not None:
            gathered.append((MESSAGE_EXPIRY_INTERVAL, message_expiry_interval))
        if content_type is not None:
            gathered.append((CONTENT_TYPE, content_type))
        if response_topic is not None:
            gathered.append((RESPONSE_TOPIC, response_topic))
        if correlation_data is not None:
            gathered.append((CORRELATION_DATA, correlation_data))
        if session_expiry_interval is not None:
            gathered.append((SESSION_EXPIRY_INTERVAL, session_expiry_interval))
        if assigned_client_identifier is not None:
            gathered.append((ASSIGNED_CLIENT_IDENTIFIER, assigned_client_identifier))
        if server_keep_alive is not None:
            gathered.append((SERVER_KEEP_ALIVE, server_keep_alive))
        if authentication_method is not None:
            gathered.append((AUTHENTICATION_METHOD, authentication_method))
        if authentication_data is not None:
            gathered.append((AUTHENTICATION_DATA, authentication_data))
        if request_problem_information is not None:
            gathered.append((REQUEST_PROBLEM_INFORMATION, request_problem_information))
        if will_delay_interval is not None:
            gathered.append((WILL_DELAY_INTERVAL, will_delay_interval))
        if request_response_information is not None:
            gathered.append((REQUEST_RESPONSE_INFORMATION, request_response_information))
        if response_information is not None:
            gathered.append((RESPONSE_INFORMATION, response_information))
        if server_reference is not None:
            gathered.append((SERVER_REFERENCE, server_reference))
        if reason_string is not None:
            gathered.append((REASON_STRING, reason_string))
        if receive_maximum is not None:
            gathered.append((RECEIVE_MAXIMUM, receive_maximum))
        if topic_alias_maximum is not None:
            gathered.append((TOPIC_ALIAS_MAXIMUM, topic_alias_maximum))
        if topic_alias is not None:
            gathered.append((TOPIC_ALIAS, topic_alias))
        if maximum_qos is not None:
            gathered.append((MAXIMUM_QOS, maximum_qos))
        if retain_available is not None:
            gathered.append((RETAIN_AVAILABLE, retain_available))
        if maximum_packet_size is not None:
            gathered.append((MAXIMUM_PACKET_SIZE, maximum_packet_size))
        if wildcard_subscription_available is not None:
            gathered.append((WILDCARD_SUBSCRIPTION_AVAILABLE, wildcard_subscription_available))
        if subscription_identifiers_available is not None:
            gathered.append(
                (SUBSCRIPTION_IDENTIFIERS_AVAILABLE, subscription_identifiers_available)
            )
        if shared_subscription_available is not None:
            gathered.append((SHARED_SUBSCRIPTION_AVAILABLE, shared_subscription_available))
        if subscription_identifiers:
            for number in subscription_identifiers:
                gathered.append((SUBSCRIPTION_IDENTIFIER, number))
        if user_properties:
            for pair in user_properties:
                gathered.append((USER_PROPERTY, pair))
        present = check_properties(gathered, None)
        rest = b""
        size = 0
        if before is not None:
            if isinstance(before, PropertySection):
                if before.found:
                    raise before.found[0]
                rest = before.data
                size = before.size
            else:
                gathered.extend(before._first)
                rest = before._rest
                size = before._rest_size
            # Each part is valid by itself; neither may repeat a property of the other.
            repeated = present & before.present & ~_REPEATABLE
            if repeated:
                _report_repeated(repeated.bit_length() - 1, None)
            present |= before.present
        first = tuple(gathered)
        if as_bytes:
            writer = Writer()
            _write_items(writer, first)
            writer.raw(rest)
            rest = writer.value()
            size += _items_size(first)
            first = ()
        self.present = present
        self._first = first
        self._rest = rest
        self._rest_size = size

    @property
    def items(self) -> tuple[PropertyItem, ...]:
        """All pairs, in the order in which they are sent."""
        if not self._rest:
            return self._first
        return (*self._first, *section_items(self._rest))

    def compact(self) -> "Properties":
        """An equal section that takes little memory, however many properties it has."""
        return self if len(self._first) <= _FEW else Properties(before=self, as_bytes=True)

    def has(self, identifier: int) -> bool:
        """Whether the section has this property."""
        return bool(self.present >> identifier & 1)

    def _values(self, identifier: int, most: int) -> list[PropertyValue]:
        """The values of a property, at most `most` of them, without creating those of others."""
        values: list[PropertyValue] = []
        if self.has(identifier):
            for other, value in self._first:
                if other == identifier:
                    values.append(value)
            reader = Reader(self._rest, 0, len(self._rest), MQTT5)
            while reader.left() and len(values) < most:
                other = reader.variable_byte_integer("property_identifier")
                if other == identifier:
                    values.append(read_value(reader, _TYPES[other], _NAMES[other]))
                else:
                    skip_value(reader, _TYPES[other], _NAMES[other])
        return values

    def _find(self, identifier: int) -> PropertyValue | None:
        values = self._values(identifier, 1)
        return values[0] if values else None

    def _integer(self, identifier: int) -> int | None:
        value = self._find(identifier)
        return value if isinstance(value, int) else None

    def _text(self, identifier: int) -> str | None:
        value = self._find(identifier)
        return value if isinstance(value, str) else None

    def _binary(self, identifier: int) -> bytes | None:
        value = self._find(identifier)
        return value if isinstance(value, bytes) else None

    @property
    def payload_format_indicator(self) -> int | None:
        return self._integer(PAYLOAD_FORMAT_INDICATOR)

    @property
    def message_expiry_interval(self) -> int | None:
        return self._integer(MESSAGE_EXPIRY_INTERVAL)

    @property
    def content_type(self) -> str | None:
        return self._text(CONTENT_TYPE)

    @property
    def response_topic(self) -> str | None:
        return self._text(RESPONSE_TOPIC)

    @property
    def correlation_data(self) -> bytes | None:
        return self._binary(CORRELATION_DATA)

    @property
    def session_expiry_interval(self) -> int | None:
        return self._integer(SESSION_EXPIRY_INTERVAL)

    @property
    def assigned_client_identifier(self) -> str | None:
        return self._text(ASSIGNED_CLIENT_IDENTIFIER)

    @property
    def server_keep_alive(self) -> int | None:
        return self._integer(SERVER_KEEP_ALIVE)

    @property
    def authentication_method(self) -> str | None:
        return self._text(AUTHENTICATION_METHOD)

    @property
    def authentication_data(self) -> bytes | None:
        return self._binary(AUTHENTICATION_DATA)

    @property
    def request_problem_information(self) -> int | None:
        return self._integer(REQUEST_PROBLEM_INFORMATION)

    @property
    def will_delay_interval(self) -> int | None:
        return self._integer(WILL_DELAY_INTERVAL)

    @property
    def request_response_information(self) -> int | None:
        return self._integer(REQUEST_RESPONSE_INFORMATION)

    @property
    def response_information(self) -> str | None:
        return self._text(RESPONSE_INFORMATION)

    @property
    def server_reference(self) -> str | None:
        return self._text(SERVER_REFERENCE)

    @property
    def reason_string(self) -> str | None:
        return self._text(REASON_STRING)

    @property
    def receive_maximum(self) -> int | None:
        return self._integer(RECEIVE_MAXIMUM)

    @property
    def topic_alias_maximum(self) -> int | None:
        return self._integer(TOPIC_ALIAS_MAXIMUM)

    @property
    def topic_alias(self) -> int | None:
        return self._integer(TOPIC_ALIAS)

    @property
    def maximum_qos(self) -> int | None:
        return self._integer(MAXIMUM_QOS)

    @property
    def retain_available(self) -> int | None:
        return self._integer(RETAIN_AVAILABLE)

    @property
    def maximum_packet_size(self) -> int | None:
        return self._integer(MAXIMUM_PACKET_SIZE)

    @property
    def wildcard_subscription_available(self) -> int | None:
        return self._integer(WILDCARD_SUBSCRIPTION_AVAILABLE)

    @property
    def subscription_identifiers_available(self) -> int | None:
        return self._integer(SUBSCRIPTION_IDENTIFIERS_AVAILABLE)

    @property
    def shared_subscription_available(self) -> int | None:
        return self._integer(SHARED_SUBSCRIPTION_AVAILABLE)

    @property
    def subscription_identifiers(self) -> tuple[int, ...]:
        values = self._values(SUBSCRIPTION_IDENTIFIER, ANY_NUMBER_OF_ITEMS)
        return tuple([value for value in values if isinstance(value, int)])

    @property
    def user_properties(self) -> tuple[tuple[str, str], ...]:
        values = self._values(USER_PROPERTY, ANY_NUMBER_OF_ITEMS)
        return tuple([value for value in values if isinstance(value, tuple)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        parts: list[str] = []
        for identifier, value in self.items:
            if identifier == AUTHENTICATION_DATA and isinstance(value, bytes):
                parts.append(f"authentication_data=<{len(value)} bytes>")
            elif not _REPEATABLE >> identifier & 1:
                parts.append(f"{_NAMES[identifier]}={value!r}")
        if self.has(SUBSCRIPTION_IDENTIFIER):
            parts.append(f"subscription_identifiers={self.subscription_identifiers!r}")
        if self.has(USER_PROPERTY):
            parts.append(f"user_properties={self.user_properties!r}")
        return f"Properties({', '.join(parts)})"


NO_PROPERTIES: Final = Properties()


# The section of a packet that has no properties.
NO_SECTION: Final = PropertySection(Reader(b"", 0, 0, MQTT5), 0)


def properties_of(section: PropertySection) -> Properties:
    """Checked `Properties` from the section that was read. Raises `Violation`."""
    return Properties(before=section) if section.present else NO_PROPERTIES


def read_section(reader: Reader) -> PropertySection:
    """Read the property section of a packet. The caller must raise or report what it found."""
    if reader.version != MQTT5:
        return NO_SECTION
    length = reader.variable_byte_integer("property_length")
    return PropertySection(reader, length) if length else NO_SECTION


def check_section(section: PropertySection, found: list[Violation]) -> int:
    """Report what is wrong with the section. Returns a bit for each identifier present."""
    found.extend(section.found)
    return section.present


def section_items(section: bytes) -> list[PropertyItem]:
    """The pairs of the bytes of a section."""
    items: list[PropertyItem] = []
    # With a list for what was already reported: numbers that take more bytes than needed.
    reader = Reader(section, 0, len(section), MQTT5, [])
    while reader.left():
        identifier = reader.variable_byte_integer("property_identifier")
        items.append((identifier, read_value(reader, _TYPES[identifier], _NAMES[identifier])))
    return items


def read_properties(reader: Reader) -> list[PropertyItem]:
    """Read a property section [2.2.2] with its Property Length. Returns unchecked pairs."""
    return section_items(read_section(reader).data)


def properties_size(properties: Properties) -> int:
    """Approximate size in bytes: text and binary data, and a few bytes for each property."""
    return properties._rest_size + _items_size(properties._first)


def _items_size(items: tuple[PropertyItem, ...]) -> int:
    size = 0
    for _, value in items:
        size += item_size(value)
    return size


def encode_properties(properties: Properties) -> bytes:
    """The bytes of a property section, including the Property Length [MQTT-2.2.2-1]."""
    if not properties.present:
        return b"\0"
    section = Writer()
    _write_items(section, properties._first)
    section.raw(properties._rest)
    body = section.value()
    writer = Writer()
    writer.variable_byte_integer(len(body), "Property Length")
    writer.raw(body)
    return writer.value()


def _write_items(section: Writer, items: tuple[PropertyItem, ...]) -> None:
    for identifier, value in items:
        section.byte(identifier)
        write_value(section, _TYPES[identifier], value)
