"""The rules that one packet can break, each stated once, as data.

`violation.py` explains the parts of a rule. `exchange_rules.py` has the rules that depend on
earlier packets of the connection. Exactly one line of this package raises each rule; a test checks
that.
"""

from typing import Final

from semel.mqtt.reasons import (
    MALFORMED_PACKET,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    REFUSED_IDENTIFIER_REJECTED,
    REFUSED_PROTOCOL_VERSION,
    TOPIC_ALIAS_INVALID,
    TOPIC_NAME_INVALID,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from semel.mqtt.violation import Rule

# --- the bytes: framing, lengths, strings ---------------------------------------------------------

PACKET_TYPE_KNOWN: Final = Rule(
    "PACKET_TYPE_KNOWN",
    "Packet type 0 is forbidden, and so is 15 (AUTH) in 3.1.1.",
    mqtt311="U3-01",
    mqtt5="U5-01",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
FIXED_HEADER_FLAGS: Final = Rule(
    "FIXED_HEADER_FLAGS",
    "The low four bits of the first byte are 0010 in PUBREL, SUBSCRIBE and UNSUBSCRIBE, "
    "and 0000 in every other packet except PUBLISH.",
    mqtt311="2.2.2-1 PUBREL:3.6.1-1 SUBSCRIBE:3.8.1-1 UNSUBSCRIBE:3.10.1-1 DISCONNECT:3.14.1-1",
    mqtt5="2.1.3-1 PUBREL:3.6.1-1 SUBSCRIBE:3.8.1-1 UNSUBSCRIBE:3.10.1-1 DISCONNECT:3.14.1-1 "
    "AUTH:3.15.1-1",
    at="decode",
    reason=MALFORMED_PACKET,
)
VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES: Final = Rule(
    "VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES",
    "A Variable Byte Integer takes at most four bytes, so it is at most 268,435,455.",
    mqtt311="U3-03",
    mqtt5="U5-05",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
VARIABLE_BYTE_INTEGER_SHORTEST: Final = Rule(
    "VARIABLE_BYTE_INTEGER_SHORTEST",
    "In 5.0 a Variable Byte Integer uses the minimum number of bytes.",
    mqtt5="1.5.5-1",
    at="decode",
    reason=MALFORMED_PACKET,
)
PACKET_SIZE_WITHIN_MAXIMUM: Final = Rule(
    "PACKET_SIZE_WITHIN_MAXIMUM",
    "A packet is not larger than its receiver accepts.",
    mqtt5="3.1.2-24 3.2.2-15 CONNACK:3.2.2-19 CONNACK:3.2.2-20 PUBACK:3.4.2-2 PUBACK:3.4.2-3 "
    "PUBREC:3.5.2-2 PUBREC:3.5.2-3 PUBREL:3.6.2-2 PUBREL:3.6.2-3 PUBCOMP:3.7.2-2 PUBCOMP:3.7.2-3 "
    "SUBACK:3.9.2-1 SUBACK:3.9.2-2 UNSUBACK:3.11.2-1 UNSUBACK:3.11.2-2 DISCONNECT:3.14.2-3 "
    "DISCONNECT:3.14.2-4 AUTH:3.15.2-2 AUTH:3.15.2-3",
    at="decode exchange",
    reason=PACKET_TOO_LARGE,
)
FIELD_WITHIN_PACKET: Final = Rule(
    "FIELD_WITHIN_PACKET",
    "Every required field is present and ends within the packet.",
    mqtt311="U3-04 CONNECT:3.1.2-9 CONNECT:3.1.2-19 CONNECT:3.1.2-21 CONNECT:3.1.3-3",
    mqtt5="2.2.2-1 U5-04 CONNECT:3.1.2-9 CONNECT:3.1.2-17 CONNECT:3.1.2-19 CONNECT:3.1.3-3",
    at="decode",
    reason=MALFORMED_PACKET,
)
NO_SURPLUS_BYTES: Final = Rule(
    "NO_SURPLUS_BYTES",
    "A packet ends with its last field.",
    mqtt311="U3-04 CONNECT:3.1.2-11 CONNECT:3.1.2-18 CONNECT:3.1.2-20",
    mqtt5="CONNECT:3.1.2-16 CONNECT:3.1.2-18",
    at="decode",
    reason=MALFORMED_PACKET,
)
TEXT_WELL_FORMED: Final = Rule(
    "TEXT_WELL_FORMED",
    "A string is well-formed UTF-8, without surrogates.",
    mqtt311="1.5.3-1 CONNECT:3.1.3-4 CONNECT:3.1.3-10 CONNECT:3.1.3-11 PUBLISH:3.3.2-1 "
    "SUBSCRIBE:3.8.3-1 UNSUBSCRIBE:3.10.3-1",
    mqtt5="1.5.4-1 1.5.7-1 CONNECT:3.1.3-4 CONNECT:3.1.3-11 CONNECT:3.1.3-12 PUBLISH:3.3.2-1 "
    "PUBLISH:3.3.2-13 PUBLISH:3.3.2-19 SUBSCRIBE:3.8.3-1 UNSUBSCRIBE:3.10.3-1",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
TEXT_WITHOUT_NUL: Final = Rule(
    "TEXT_WITHOUT_NUL",
    "A string has no U+0000.",
    mqtt311="1.5.3-2 PUBLISH:4.7.3-2 SUBSCRIBE:4.7.3-2 UNSUBSCRIBE:4.7.3-2 CONNECT:4.7.3-2",
    mqtt5="1.5.4-2 PUBLISH:4.7.3-2 SUBSCRIBE:4.7.3-2 UNSUBSCRIBE:4.7.3-2 CONNECT:4.7.3-2",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
TEXT_FITS_ITS_LENGTH: Final = Rule(
    "TEXT_FITS_ITS_LENGTH",
    "A string takes at most 65,535 bytes in UTF-8.",
    mqtt311="4.7.3-3",
    mqtt5="4.7.3-3",
    at="encode",
    reason=MALFORMED_PACKET,
)
BINARY_FITS_ITS_LENGTH: Final = Rule(
    "BINARY_FITS_ITS_LENGTH",
    "Binary data other than a PUBLISH payload takes at most 65,535 bytes.",
    at="encode",
    reason=MALFORMED_PACKET,
)
INTEGER_FITS_ITS_FIELD: Final = Rule(
    "INTEGER_FITS_ITS_FIELD",
    "A number is not negative and fits the bytes of its field.",
    at="encode",
    reason=MALFORMED_PACKET,
)

# --- values that several packets share ------------------------------------------------------------

PACKET_ID_NOT_ZERO: Final = Rule(
    "PACKET_ID_NOT_ZERO",
    "A Packet Identifier is a number from 1 to 65,535.",
    mqtt311="2.3.1-1",
    mqtt5="2.2.1-3 2.2.1-4",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
REASON_CODE_IN_TABLE: Final = Rule(
    "REASON_CODE_IN_TABLE",
    "A reason code is one that the standard lists for the packet.",
    mqtt311="CONNACK:3.2.2-6 SUBACK:3.9.3-2",
    mqtt5="CONNACK:3.2.2-8 PUBACK:3.4.2-1 PUBREC:3.5.2-1 PUBREL:3.6.2-1 PUBCOMP:3.7.2-1 "
    "SUBACK:3.9.3-2 UNSUBACK:3.11.3-2 DISCONNECT:3.14.2-1 AUTH:3.15.2-1",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
TOPIC_NAME_NOT_EMPTY: Final = Rule(
    "TOPIC_NAME_NOT_EMPTY",
    "A Topic Name has at least one character, unless a PUBLISH has a Topic Alias instead.",
    mqtt311="4.7.3-1",
    mqtt5="4.7.3-1 PUBLISH:U5-50",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
TOPIC_NAME_WITHOUT_WILDCARDS: Final = Rule(
    "TOPIC_NAME_WITHOUT_WILDCARDS",
    "A Topic Name has neither + nor #.",
    mqtt311="4.7.1-1 PUBLISH:3.3.2-2",
    mqtt5="4.7.0-1 PUBLISH:3.3.2-2 PUBLISH:3.3.2-14",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
TOPIC_FILTER_NOT_EMPTY: Final = Rule(
    "TOPIC_FILTER_NOT_EMPTY",
    "A Topic Filter has at least one character.",
    mqtt311="4.7.3-1",
    mqtt5="4.7.3-1",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
HASH_IS_LAST_LEVEL: Final = Rule(
    "HASH_IS_LAST_LEVEL",
    "# is the last character of a Topic Filter and occupies a whole level.",
    mqtt311="4.7.1-2",
    mqtt5="4.7.1-1",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
PLUS_FILLS_ITS_LEVEL: Final = Rule(
    "PLUS_FILLS_ITS_LEVEL",
    "+ occupies a whole level of a Topic Filter.",
    mqtt311="4.7.1-3",
    mqtt5="4.7.1-2",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
SHARE_NAME_NOT_EMPTY: Final = Rule(
    "SHARE_NAME_NOT_EMPTY",
    "$share/ is followed by a ShareName of at least one character.",
    mqtt5="SUBSCRIBE:4.8.2-1",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
SHARE_NAME_WITHOUT_WILDCARDS: Final = Rule(
    "SHARE_NAME_WITHOUT_WILDCARDS",
    "A ShareName has neither + nor #.",
    mqtt5="SUBSCRIBE:4.8.2-2",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
SHARE_NAME_BEFORE_FILTER: Final = Rule(
    "SHARE_NAME_BEFORE_FILTER",
    "A ShareName is followed by / and a Topic Filter.",
    mqtt5="SUBSCRIBE:4.8.2-2",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
TOPIC_LEVELS_WITHIN_LIMIT: Final = Rule(
    "TOPIC_LEVELS_WITHIN_LIMIT",
    "A topic has at most as many levels as this receiver accepts (our limit, not the standard's).",
    at="limit",
    reason=TOPIC_NAME_INVALID,
)

PACKET_ITEMS_WITHIN_LIMIT: Final = Rule(
    "PACKET_ITEMS_WITHIN_LIMIT",
    "A packet has at most as many topic filters and properties as this receiver accepts (our "
    "limit, not the standard's).",
    at="limit",
    reason=QUOTA_EXCEEDED,
)

# --- properties -----------------------------------------------------------------------------------

PROPERTY_KNOWN: Final = Rule(
    "PROPERTY_KNOWN",
    "A property identifier is one of the 27 that 5.0 defines.",
    mqtt5="U5-03",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
PROPERTY_IN_ITS_PACKET: Final = Rule(
    "PROPERTY_IN_ITS_PACKET",
    "A property is used only in the packets for which 5.0 lists it.",
    mqtt5="U5-03",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
PROPERTY_ONCE: Final = Rule(
    "PROPERTY_ONCE",
    "Only User Property, and in PUBLISH Subscription Identifier, may be repeated.",
    mqtt5="CONNECT:U5-07 CONNECT:U5-08 CONNECT:U5-09 CONNECT:U5-10 CONNECT:U5-11 CONNECT:U5-12 "
    "CONNECT:U5-13 CONNECT:U5-19 CONNECT:U5-20 CONNECT:U5-21 CONNECT:U5-22 CONNECT:U5-23 "
    "CONNECT:U5-24 CONNACK:U5-26 CONNACK:U5-27 CONNACK:U5-28 CONNACK:U5-29 CONNACK:U5-30 "
    "CONNACK:U5-31 CONNACK:U5-32 CONNACK:U5-33 CONNACK:U5-34 CONNACK:U5-35 CONNACK:U5-36 "
    "CONNACK:U5-37 CONNACK:U5-38 CONNACK:U5-39 CONNACK:U5-40 PUBLISH:U5-51 PUBLISH:U5-52 "
    "PUBLISH:U5-53 PUBLISH:U5-54 PUBLISH:U5-55 PUBLISH:U5-56 PUBACK:U5-61 PUBREC:U5-62 "
    "PUBREL:U5-63 PUBCOMP:U5-64 DISCONNECT:U5-69 DISCONNECT:U5-71 AUTH:U5-73",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
PROPERTY_IS_0_OR_1: Final = Rule(
    "PROPERTY_IS_0_OR_1",
    "A yes-or-no property has the value 0 or 1, and so have Maximum QoS and Payload Format "
    "Indicator.",
    mqtt5="CONNECT:U5-16 CONNECT:U5-17 CONNACK:U5-41 CONNACK:U5-42 CONNACK:U5-43 CONNACK:U5-44 "
    "CONNACK:U5-45",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
PROPERTY_NOT_ZERO: Final = Rule(
    "PROPERTY_NOT_ZERO",
    "Receive Maximum, Maximum Packet Size and Subscription Identifier are not 0.",
    mqtt5="CONNECT:U5-14 CONNECT:U5-15 CONNACK:U5-46 PUBLISH:U5-58 SUBSCRIBE:U5-65",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
TOPIC_ALIAS_NOT_ZERO: Final = Rule(
    "TOPIC_ALIAS_NOT_ZERO",
    "A Topic Alias is not 0.",
    mqtt5="PUBLISH:3.3.2-8",
    at="encode decode",
    reason=TOPIC_ALIAS_INVALID,
)
PROPERTIES_NEED_MQTT5: Final = Rule(
    "PROPERTIES_NEED_MQTT5",
    "3.1.1 has no properties.",
    at="encode",
    reason=PROTOCOL_ERROR,
)

# --- CONNECT and CONNACK --------------------------------------------------------------------------

PROTOCOL_NAME_IS_MQTT: Final = Rule(
    "PROTOCOL_NAME_IS_MQTT",
    "The Protocol Name is MQTT.",
    mqtt311="CONNECT:3.1.2-1",
    mqtt5="CONNECT:3.1.2-1",
    at="decode",
    reason=UNSUPPORTED_PROTOCOL_VERSION,
)
PROTOCOL_LEVEL_SUPPORTED: Final = Rule(
    "PROTOCOL_LEVEL_SUPPORTED",
    "The protocol level is 4 (3.1.1) or 5 (5.0).",
    mqtt311="CONNECT:3.1.2-2",
    mqtt5="CONNECT:3.1.2-2",
    at="encode decode",
    reason=UNSUPPORTED_PROTOCOL_VERSION,
    return_code=REFUSED_PROTOCOL_VERSION,
)
CONNECT_RESERVED_FLAG: Final = Rule(
    "CONNECT_RESERVED_FLAG",
    "Bit 0 of the Connect Flags is 0.",
    mqtt311="CONNECT:3.1.2-3",
    mqtt5="CONNECT:3.1.2-3",
    at="decode",
    reason=MALFORMED_PACKET,
)
WILL_QOS_NEEDS_WILL: Final = Rule(
    "WILL_QOS_NEEDS_WILL",
    "Without a will the Will QoS is 0.",
    mqtt311="CONNECT:3.1.2-11 CONNECT:3.1.2-13",
    mqtt5="CONNECT:3.1.2-11",
    at="decode",
    reason=MALFORMED_PACKET,
)
WILL_RETAIN_NEEDS_WILL: Final = Rule(
    "WILL_RETAIN_NEEDS_WILL",
    "Without a will the Will Retain flag is 0.",
    mqtt311="CONNECT:3.1.2-11 CONNECT:3.1.2-15",
    mqtt5="CONNECT:3.1.2-13",
    at="decode",
    reason=MALFORMED_PACKET,
)
WILL_QOS_NOT_3: Final = Rule(
    "WILL_QOS_NOT_3",
    "The Will QoS is 0, 1 or 2.",
    mqtt311="CONNECT:3.1.2-14",
    mqtt5="CONNECT:3.1.2-12",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
PASSWORD_NEEDS_USER_NAME: Final = Rule(
    "PASSWORD_NEEDS_USER_NAME",
    "In 3.1.1 a password requires a user name.",
    mqtt311="CONNECT:3.1.2-22",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION: Final = Rule(
    "EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION",
    "In 3.1.1 an empty ClientId requires CleanSession 1.",
    mqtt311="CONNECT:3.1.3-7",
    at="encode decode",
    reason=PROTOCOL_ERROR,
    return_code=REFUSED_IDENTIFIER_REJECTED,
)
AUTHENTICATION_DATA_NEEDS_METHOD: Final = Rule(
    "AUTHENTICATION_DATA_NEEDS_METHOD",
    "Authentication Data requires an Authentication Method.",
    mqtt5="CONNECT:U5-18",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
CONNACK_RESERVED_FLAGS: Final = Rule(
    "CONNACK_RESERVED_FLAGS",
    "Bits 7 to 1 of the Connect Acknowledge Flags are 0.",
    mqtt311="CONNACK:U3-05",
    mqtt5="CONNACK:3.2.2-1",
    at="decode",
    reason=MALFORMED_PACKET,
)
SESSION_PRESENT_NEEDS_SUCCESS: Final = Rule(
    "SESSION_PRESENT_NEEDS_SUCCESS",
    "A CONNACK that refuses the connection has Session Present 0.",
    mqtt311="CONNACK:3.2.2-4",
    mqtt5="CONNACK:3.2.2-6",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)

# --- PUBLISH --------------------------------------------------------------------------------------

QOS_NOT_3: Final = Rule(
    "QOS_NOT_3",
    "The QoS of a PUBLISH is 0, 1 or 2.",
    mqtt311="PUBLISH:3.3.1-4",
    mqtt5="PUBLISH:3.3.1-4",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
DUP_NEEDS_QOS: Final = Rule(
    "DUP_NEEDS_QOS",
    "At QoS 0 the DUP flag is 0.",
    mqtt311="PUBLISH:3.3.1-2 PUBLISH:4.3.1-1",
    mqtt5="PUBLISH:3.3.1-2 PUBLISH:4.3.1-1",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
QOS_0_WITHOUT_PACKET_ID: Final = Rule(
    "QOS_0_WITHOUT_PACKET_ID",
    "A QoS 0 PUBLISH has no Packet Identifier.",
    mqtt311="PUBLISH:2.3.1-5",
    mqtt5="PUBLISH:2.2.1-2",
    at="encode",
    reason=PROTOCOL_ERROR,
)
PAYLOAD_IS_UTF8_AS_INDICATED: Final = Rule(
    "PAYLOAD_IS_UTF8_AS_INDICATED",
    "With Payload Format Indicator 1 the payload is well-formed UTF-8.",
    mqtt5="CONNECT:U5-25 PUBLISH:U5-57",
    at="encode decode",
    reason=PAYLOAD_FORMAT_INVALID,
)

# --- SUBSCRIBE, UNSUBSCRIBE and their answers -----------------------------------------------------

SUBSCRIBE_NOT_EMPTY: Final = Rule(
    "SUBSCRIBE_NOT_EMPTY",
    "A SUBSCRIBE has at least one Topic Filter.",
    mqtt311="SUBSCRIBE:3.8.3-3",
    mqtt5="SUBSCRIBE:3.8.3-2",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
UNSUBSCRIBE_NOT_EMPTY: Final = Rule(
    "UNSUBSCRIBE_NOT_EMPTY",
    "An UNSUBSCRIBE has at least one Topic Filter.",
    mqtt311="UNSUBSCRIBE:3.10.3-2",
    mqtt5="UNSUBSCRIBE:3.10.3-2",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
SUBSCRIPTION_OPTIONS_RESERVED: Final = Rule(
    "SUBSCRIPTION_OPTIONS_RESERVED",
    "The reserved bits of the Subscription Options are 0: bits 7 and 6 in 5.0, 7 to 2 in 3.1.1, "
    "where the QoS is the only option.",
    mqtt311="SUBSCRIBE:3.8.3-4",
    mqtt5="SUBSCRIBE:3.8.3-5",
    at="encode decode",
    reason=MALFORMED_PACKET,
)
SUBSCRIPTION_QOS_NOT_3: Final = Rule(
    "SUBSCRIPTION_QOS_NOT_3",
    "The QoS that a SUBSCRIBE requests is 0, 1 or 2.",
    mqtt311="SUBSCRIBE:3.8.3-4",
    mqtt5="SUBSCRIBE:U5-67",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
RETAIN_HANDLING_NOT_3: Final = Rule(
    "RETAIN_HANDLING_NOT_3",
    "Retain Handling is 0, 1 or 2.",
    mqtt5="SUBSCRIBE:U5-68",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
NO_LOCAL_NOT_SHARED: Final = Rule(
    "NO_LOCAL_NOT_SHARED",
    "A shared subscription does not have the option No Local.",
    mqtt5="SUBSCRIBE:3.8.3-4",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
SUBSCRIPTION_IDENTIFIER_ONCE: Final = Rule(
    "SUBSCRIPTION_IDENTIFIER_ONCE",
    "A SUBSCRIBE has at most one Subscription Identifier.",
    mqtt5="SUBSCRIBE:U5-66",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
REASON_CODES_PRESENT: Final = Rule(
    "REASON_CODES_PRESENT",
    "SUBACK has at least one reason code, and so has UNSUBACK in 5.0. In 3.1.1 UNSUBACK has none.",
    mqtt311="SUBACK:3.8.4-5 UNSUBACK:U3-04",
    mqtt5="SUBACK:3.8.4-6 UNSUBACK:3.11.3-2",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)

# --- AUTH -----------------------------------------------------------------------------------------

AUTH_HAS_METHOD: Final = Rule(
    "AUTH_HAS_METHOD",
    "An AUTH has an Authentication Method.",
    mqtt5="AUTH:U5-73",
    at="encode decode",
    reason=PROTOCOL_ERROR,
)
