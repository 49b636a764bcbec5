"""Reason codes: their names, and which packet may have which code in which version.

Only `packets.fields.check_reason` checks codes by these tables.
"""

from typing import Final

# [2.4] Reason codes of 5.0. A number may have several names, for different packets.
SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00
GRANTED_QOS_0: Final = 0x00
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL_MESSAGE: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
RE_AUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

# [3.1.1 §3.2.2.3] CONNACK return codes of 3.1.1.
CONNECTION_ACCEPTED: Final = 0x00
REFUSED_PROTOCOL_VERSION: Final = 0x01
REFUSED_IDENTIFIER_REJECTED: Final = 0x02
REFUSED_SERVER_UNAVAILABLE: Final = 0x03
REFUSED_BAD_USER_NAME_OR_PASSWORD: Final = 0x04
REFUSED_NOT_AUTHORIZED: Final = 0x05

_PUBLISH_ANSWERS: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_ANSWERS: Final = frozenset((0x00, 0x92))
_NONE: Final[frozenset[int]] = frozenset()
_ONLY_SUCCESS: Final = frozenset((0x00,))

# Indexed by packet type.
REASONS_5: Final = [
    _NONE,
    _NONE,
    frozenset(
        (
            *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A),
            *(0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
        )
    ),
    _NONE,
    _PUBLISH_ANSWERS,
    _PUBLISH_ANSWERS,
    _RELEASE_ANSWERS,
    _RELEASE_ANSWERS,
    _NONE,
    frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    _NONE,
    frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    _NONE,
    _NONE,
    # [3.14.2.1] omits 0x8C (Bad authentication method), though section 2.4 lists it for DISCONNECT.
    # The table of 3.14.2.1 is binding [MQTT-3.14.2-1].
    frozenset(
        (
            *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90),
            *(0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F),
            *(0xA0, 0xA1, 0xA2),
        )
    ),
    frozenset((0x00, 0x18, 0x19)),
]
REASONS_311: Final = [
    _NONE,
    _NONE,
    frozenset((0x00, 0x01, 0x02, 0x03, 0x04, 0x05)),
    _NONE,
    _ONLY_SUCCESS,
    _ONLY_SUCCESS,
    _ONLY_SUCCESS,
    _ONLY_SUCCESS,
    _NONE,
    frozenset((0x00, 0x01, 0x02, 0x80)),
    _NONE,
    _NONE,
    _NONE,
    _NONE,
    _ONLY_SUCCESS,
    _NONE,
]

# [3.14.2.1] DISCONNECT codes that only one side may send; [3.15.2.1] the same for AUTH.
DISCONNECT_ONLY_CLIENT: Final = frozenset((DISCONNECT_WITH_WILL_MESSAGE,))
DISCONNECT_ONLY_SERVER: Final = frozenset(
    (
        *(0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F),
        *(0xA0, 0xA1, 0xA2),
    )
)

# Codes from 0x80 on report a failure [2.4]; in 3.1.1 this holds for SUBACK only.
FAILURE: Final = 0x80
