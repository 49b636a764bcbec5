"""The 27 properties of 5.0: one table, one class, one reader, one writer.

A `Properties` is one property section, in order. Its constructor checks what holds in every packet
(type, range, no repetition); the constructor of a packet checks which properties it may have.
Programs and the decoder use the same constructor: a program passes keywords, the decoder passes the
pairs that it has read.

As objects, small properties take up to fifty times as many bytes as on the wire. Whoever keeps a
section for long keeps the result of `compact`: a long section as bytes, which are parsed on access.

    >>> Properties(message_expiry_interval=60, user_properties=[("unit", "°C")])
    Properties(message_expiry_interval=60, user_properties=(('unit', '°C'),))
"""

from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import mypyc_attr

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
from semel.mqtt.rules import (
    PROPERTIES_NEED_MQTT5,
    PROPERTY_IN_ITS_PACKET,
    PROPERTY_IS_0_OR_1,
    PROPERTY_KNOWN,
    PROPERTY_NOT_ZERO,
    PROPERTY_ONCE,
    TOPIC_ALIAS_NOT_ZERO,
)
from semel.mqtt.topics import check_topic_name
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

# Data types of the values [1.5]. _YES_OR_NO is a byte with the value 0 or 1.
_UNKNOWN: Final = 0
_YES_OR_NO: Final = 1
_TWO_BYTES: Final = 2
_FOUR_BYTES: Final = 3
_VARIABLE: Final = 4
_TEXT: Final = 5
_BINARY: Final = 6
_PAIR: Final = 7

# Approximate bytes of a property besides its text: identifier, lengths, a number.
_ITEM_SIZE: Final = 5

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
    (PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator", _YES_OR_NO, _MESSAGE),
    (MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval", _FOUR_BYTES, _MESSAGE),
    (CONTENT_TYPE, "content_type", _TEXT, _MESSAGE),
    (RESPONSE_TOPIC, "response_topic", _TEXT, _MESSAGE),
    (CORRELATION_DATA, "correlation_data", _BINARY, _MESSAGE),
    (SUBSCRIPTION_IDENTIFIER, "subscription_identifiers", _VARIABLE, _in(PUBLISH, SUBSCRIBE)),
    (SESSION_EXPIRY_INTERVAL, "session_expiry_interval", _FOUR_BYTES, _LIMITS | _in(DISCONNECT)),
    (ASSIGNED_CLIENT_IDENTIFIER, "assigned_client_identifier", _TEXT, _in(CONNACK)),
    (SERVER_KEEP_ALIVE, "server_keep_alive", _TWO_BYTES, _in(CONNACK)),
    (AUTHENTICATION_METHOD, "authentication_method", _TEXT, _ENHANCED),
    (AUTHENTICATION_DATA, "authentication_data", _BINARY, _ENHANCED),
    (REQUEST_PROBLEM_INFORMATION, "request_problem_information", _YES_OR_NO, _in(CONNECT)),
    (WILL_DELAY_INTERVAL, "will_delay_interval", _FOUR_BYTES, _in(WILL)),
    (REQUEST_RESPONSE_INFORMATION, "request_response_information", _YES_OR_NO, _in(CONNECT)),
    (RESPONSE_INFORMATION, "response_information", _TEXT, _in(CONNACK)),
    (SERVER_REFERENCE, "server_reference", _TEXT, _in(CONNACK, DISCONNECT)),
    (REASON_STRING, "reason_string", _TEXT, _REASONED),
    (RECEIVE_MAXIMUM, "receive_maximum", _TWO_BYTES, _LIMITS),
    (TOPIC_ALIAS_MAXIMUM, "topic_alias_maximum", _TWO_BYTES, _LIMITS),
    (TOPIC_ALIAS, "topic_alias", _TWO_BYTES, _in(PUBLISH)),
    (MAXIMUM_QOS, "maximum_qos", _YES_OR_NO, _in(CONNACK)),
    (RETAIN_AVAILABLE, "retain_available", _YES_OR_NO, _in(CONNACK)),
    (USER_PROPERTY, "user_properties", _PAIR, _ALL),
    (MAXIMUM_PACKET_SIZE, "maximum_packet_size", _FOUR_BYTES, _LIMITS),
    (WILDCARD_SUBSCRIPTION_AVAILABLE, "wildcard_subscription_available", _YES_OR_NO, _in(CONNACK)),
    (
        SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        "subscription_identifiers_available",
        _YES_OR_NO,
        _in(CONNACK),
    ),
    (SHARED_SUBSCRIPTION_AVAILABLE, "shared_subscription_available", _YES_OR_NO, _in(CONNACK)),
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
    return 0 < identifier <= _LAST and _TYPES[identifier] != _UNKNOWN


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
    kind = _TYPES[identifier]
    name = _NAMES[identifier]
    if kind == _TEXT:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be str")
        if identifier == RESPONSE_TOPIC:
            check_topic_name(value, name, found)
        else:
            check_text(value, name, found)
    elif kind == _BINARY:
        if not isinstance(value, bytes):
            raise TypeError(f"{name} must be bytes")
        check_binary(value, name, found)
    elif kind == _PAIR:
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"{name} must be pairs of str")
        # [MQTT-1.5.7-1] both strings of a pair
        check_text(value[0], name, found)
        check_text(value[1], name, found)
    else:
        if not isinstance(value, int):
            raise TypeError(f"{name} must be int")
        if kind == _YES_OR_NO:
            if value != 0 and value != 1:
                report(found, Violation(PROPERTY_IS_0_OR_1, f"{name} {value}"))
        elif kind == _TWO_BYTES:
            check_integer(value, MAXIMUM_TWO_BYTES, name, found)
        elif kind == _FOUR_BYTES:
            check_integer(value, MAXIMUM_FOUR_BYTES, name, found)
        else:
            check_variable_byte_integer(value, name)
        if value == 0:
            if _NOT_ZERO >> identifier & 1:
                report(found, Violation(PROPERTY_NOT_ZERO, f"{name} 0"))
            elif identifier == TOPIC_ALIAS:
                report(found, Violation(TOPIC_ALIAS_NOT_ZERO, f"{name} 0"))


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
        before: "Properties | None" = None,
        as_bytes: bool = False,
    ) -> None:
        gathered: list[PropertyItem] = list(items)
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
        for number in subscription_identifiers:
            gathered.append((SUBSCRIPTION_IDENTIFIER, number))
        for pair in user_properties:
            gathered.append((USER_PROPERTY, pair))
        present = check_properties(gathered, None)
        rest = b""
        size = 0
        if before is not None:
            # Each part is valid by itself; neither may repeat a property of the other.
            repeated = present & before.present & ~_REPEATABLE
            if repeated:
                _report_repeated(repeated.bit_length() - 1, None)
            present |= before.present
            gathered.extend(before._first)
            rest = before._rest
            size = before._rest_size
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
        rest = _read_items(Reader(self._rest, 0, len(self._rest), MQTT5))
        return (*self._first, *rest)

    def compact(self) -> "Properties":
        """An equal section that takes little memory, however many properties it has."""
        return self if len(self._first) <= _FEW else Properties(before=self, as_bytes=True)

    def has(self, identifier: int) -> bool:
        """Whether the section has this property."""
        return bool(self.present >> identifier & 1)

    def _find(self, identifier: int) -> PropertyValue | None:
        for other, value in self.items:
            if other == identifier:
                return value
        return None

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
        return tuple(
            value
            for identifier, value in self.items
            if identifier == SUBSCRIPTION_IDENTIFIER and isinstance(value, int)
        )

    @property
    def user_properties(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            value
            for identifier, value in self.items
            if identifier == USER_PROPERTY and isinstance(value, tuple)
        )

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

# The pairs of an empty section, shared to avoid creating lists. Must not be modified.
NO_ITEMS: Final[list[PropertyItem]] = []


def properties_of(items: list[PropertyItem]) -> Properties:
    """Checked `Properties` from the pairs that were read."""
    return Properties(items) if items else NO_PROPERTIES


def read_properties(reader: Reader) -> list[PropertyItem]:
    """Read a property section [2.2.2] with its Property Length. Returns unchecked pairs.

    After an unknown identifier the rest of the section is skipped, and the packet is read on.
    """
    if reader.version != MQTT5:
        return NO_ITEMS
    size = reader.variable_byte_integer("property_length")
    if not size:
        return NO_ITEMS
    packet_end = reader.narrow(size, "properties")
    items = _read_items(reader)
    reader.widen(packet_end)
    return items


def _read_items(reader: Reader) -> list[PropertyItem]:
    items: list[PropertyItem] = []
    while reader.left():
        reader.count_item()
        identifier = reader.variable_byte_integer("property_identifier")
        check_property_known(identifier, reader.found)
        if not is_property(identifier):
            break
        items.append((identifier, _read_value(reader, identifier)))
    return items


def _read_value(reader: Reader, identifier: int) -> PropertyValue:
    kind = _TYPES[identifier]
    name = _NAMES[identifier]
    if kind == _YES_OR_NO:
        return reader.byte(name)
    if kind == _TWO_BYTES:
        return reader.two_bytes(name)
    if kind == _FOUR_BYTES:
        return reader.four_bytes(name)
    if kind == _VARIABLE:
        return reader.variable_byte_integer(name)
    if kind == _TEXT:
        return reader.text(name)
    if kind == _BINARY:
        return reader.binary(name)
    return reader.text(name), reader.text(name)


def properties_size(properties: Properties) -> int:
    """Approximate size in bytes: text and binary data, and a few bytes for each property."""
    return properties._rest_size + _items_size(properties._first)


def _items_size(items: tuple[PropertyItem, ...]) -> int:
    size = 0
    for _, value in items:
        size += _ITEM_SIZE
        if isinstance(value, str):
            size += text_size(value)
        elif isinstance(value, bytes):
            size += len(value)
        elif isinstance(value, tuple):
            size += text_size(value[0]) + text_size(value[1])
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
        if isinstance(value, int):
            kind = _TYPES[identifier]
            if kind == _YES_OR_NO:
                section.byte(value)
            elif kind == _TWO_BYTES:
                section.two_bytes(value)
            elif kind == _FOUR_BYTES:
                section.four_bytes(value)
            else:
                section.variable_byte_integer(value, _NAMES[identifier])
        elif isinstance(value, str):
            section.text(value)
        elif isinstance(value, bytes):
            section.binary(value)
        else:
            section.text(value[0])
            section.text(value[1])
