"""The tables of the standard, typed out a second time.

The package has tables of its own; a mistake in one of them would be invisible to tests that import
it. These were written from the standard's text, section by section, and tests compare the two.
"""

# [5.0 §2.4, table 2-6] names and values of the reason codes.
REASON_NAMES_5 = (
    ("SUCCESS", 0),
    ("NORMAL_DISCONNECTION", 0),
    ("GRANTED_QOS_0", 0),
    ("GRANTED_QOS_1", 1),
    ("GRANTED_QOS_2", 2),
    ("DISCONNECT_WITH_WILL_MESSAGE", 4),
    ("NO_MATCHING_SUBSCRIBERS", 16),
    ("NO_SUBSCRIPTION_EXISTED", 17),
    ("CONTINUE_AUTHENTICATION", 24),
    ("RE_AUTHENTICATE", 25),
    ("UNSPECIFIED_ERROR", 128),
    ("MALFORMED_PACKET", 129),
    ("PROTOCOL_ERROR", 130),
    ("IMPLEMENTATION_SPECIFIC_ERROR", 131),
    ("UNSUPPORTED_PROTOCOL_VERSION", 132),
    ("CLIENT_IDENTIFIER_NOT_VALID", 133),
    ("BAD_USER_NAME_OR_PASSWORD", 134),
    ("NOT_AUTHORIZED", 135),
    ("SERVER_UNAVAILABLE", 136),
    ("SERVER_BUSY", 137),
    ("BANNED", 138),
    ("SERVER_SHUTTING_DOWN", 139),
    ("BAD_AUTHENTICATION_METHOD", 140),
    ("KEEP_ALIVE_TIMEOUT", 141),
    ("SESSION_TAKEN_OVER", 142),
    ("TOPIC_FILTER_INVALID", 143),
    ("TOPIC_NAME_INVALID", 144),
    ("PACKET_IDENTIFIER_IN_USE", 145),
    ("PACKET_IDENTIFIER_NOT_FOUND", 146),
    ("RECEIVE_MAXIMUM_EXCEEDED", 147),
    ("TOPIC_ALIAS_INVALID", 148),
    ("PACKET_TOO_LARGE", 149),
    ("MESSAGE_RATE_TOO_HIGH", 150),
    ("QUOTA_EXCEEDED", 151),
    ("ADMINISTRATIVE_ACTION", 152),
    ("PAYLOAD_FORMAT_INVALID", 153),
    ("RETAIN_NOT_SUPPORTED", 154),
    ("QOS_NOT_SUPPORTED", 155),
    ("USE_ANOTHER_SERVER", 156),
    ("SERVER_MOVED", 157),
    ("SHARED_SUBSCRIPTIONS_NOT_SUPPORTED", 158),
    ("CONNECTION_RATE_EXCEEDED", 159),
    ("MAXIMUM_CONNECT_TIME", 160),
    ("SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED", 161),
    ("WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED", 162),
)
# [3.1.1 §3.2.2.3, table 3.1]
REASON_NAMES_311 = (
    ("CONNECTION_ACCEPTED", 0),
    ("REFUSED_PROTOCOL_VERSION", 1),
    ("REFUSED_IDENTIFIER_REJECTED", 2),
    ("REFUSED_SERVER_UNAVAILABLE", 3),
    ("REFUSED_BAD_USER_NAME_OR_PASSWORD", 4),
    ("REFUSED_NOT_AUTHORIZED", 5),
)

# The codes of one packet: §3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1
# and 3.15.2.1 of 5.0. Packets that are not here carry no reason code.
REASON_CODES_5: dict[str, frozenset[int]] = {
    "CONNACK": frozenset(
        (
            *(0, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138),
            *(140, 144, 149, 151, 153, 154, 155, 156, 157, 159),
        )
    ),
    "PUBACK": frozenset((0, 16, 128, 131, 135, 144, 145, 151, 153)),
    "PUBREC": frozenset((0, 16, 128, 131, 135, 144, 145, 151, 153)),
    "PUBREL": frozenset((0, 146)),
    "PUBCOMP": frozenset((0, 146)),
    "SUBACK": frozenset((0, 1, 2, 128, 131, 135, 143, 145, 151, 158, 161, 162)),
    "UNSUBACK": frozenset((0, 17, 128, 131, 135, 143, 145)),
    "DISCONNECT": frozenset(
        (
            *(0, 4, 128, 129, 130, 131, 135, 137, 139, 141, 142, 143, 144, 147, 148, 149),
            *(150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 161, 162),
        )
    ),
    "AUTH": frozenset((0, 24, 25)),
}
# [3.1.1] Only CONNACK and SUBACK carry a code at all; the others have none to be wrong about.
REASON_CODES_311: dict[str, frozenset[int]] = {
    "CONNACK": frozenset(range(6)),
    "SUBACK": frozenset((0, 1, 2, 128)),
}

# [5.0 §3.14.2.1, table 3-10, column "Sent by"]
DISCONNECT_SENT_BY = {
    0: "both",
    4: "client",
    128: "both",
    129: "both",
    130: "both",
    131: "both",
    135: "server",
    137: "server",
    139: "server",
    141: "server",
    142: "server",
    143: "server",
    144: "both",
    147: "both",
    148: "both",
    149: "both",
    150: "both",
    151: "both",
    152: "both",
    153: "both",
    154: "server",
    155: "server",
    156: "server",
    157: "server",
    158: "server",
    159: "server",
    160: "server",
    161: "server",
    162: "server",
}

# [5.0 §2.2.2.2, table 2-4] identifier, keyword of `Properties`, type, packets. The types are the
# standard's, but that "flag" is a Byte whose only values are 0 and 1.
PROPERTIES = (
    (1, "payload_format_indicator", "flag", "PUBLISH WILL"),
    (2, "message_expiry_interval", "four", "PUBLISH WILL"),
    (3, "content_type", "text", "PUBLISH WILL"),
    (8, "response_topic", "text", "PUBLISH WILL"),
    (9, "correlation_data", "binary", "PUBLISH WILL"),
    (11, "subscription_identifiers", "variable", "PUBLISH SUBSCRIBE"),
    (17, "session_expiry_interval", "four", "CONNECT CONNACK DISCONNECT"),
    (18, "assigned_client_identifier", "text", "CONNACK"),
    (19, "server_keep_alive", "two", "CONNACK"),
    (21, "authentication_method", "text", "CONNECT CONNACK AUTH"),
    (22, "authentication_data", "binary", "CONNECT CONNACK AUTH"),
    (23, "request_problem_information", "flag", "CONNECT"),
    (24, "will_delay_interval", "four", "WILL"),
    (25, "request_response_information", "flag", "CONNECT"),
    (26, "response_information", "text", "CONNACK"),
    (28, "server_reference", "text", "CONNACK DISCONNECT"),
    (
        31,
        "reason_string",
        "text",
        "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    ),
    (33, "receive_maximum", "two", "CONNECT CONNACK"),
    (34, "topic_alias_maximum", "two", "CONNECT CONNACK"),
    (35, "topic_alias", "two", "PUBLISH"),
    (36, "maximum_qos", "flag", "CONNACK"),
    (37, "retain_available", "flag", "CONNACK"),
    (
        38,
        "user_properties",
        "pair",
        "CONNECT CONNACK PUBLISH WILL PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE "
        "UNSUBACK DISCONNECT AUTH",
    ),
    (39, "maximum_packet_size", "four", "CONNECT CONNACK"),
    (40, "wildcard_subscription_available", "flag", "CONNACK"),
    (41, "subscription_identifiers_available", "flag", "CONNACK"),
    (42, "shared_subscription_available", "flag", "CONNACK"),
)

# Those of which 5.0 says that 0 is an error: §3.1.2.11.3 and .4, 3.3.2.3.4 and .8, 3.8.2.1.2.
NOT_ZERO = frozenset((11, 33, 35, 39))

# [§2.1.2 and 2.1.3] type, name, the four flag bits (None: PUBLISH uses them).
PACKETS = (
    (1, "CONNECT", 0),
    (2, "CONNACK", 0),
    (3, "PUBLISH", None),
    (4, "PUBACK", 0),
    (5, "PUBREC", 0),
    (6, "PUBREL", 2),
    (7, "PUBCOMP", 0),
    (8, "SUBSCRIBE", 2),
    (9, "SUBACK", 0),
    (10, "UNSUBSCRIBE", 2),
    (11, "UNSUBACK", 0),
    (12, "PINGREQ", 0),
    (13, "PINGRESP", 0),
    (14, "DISCONNECT", 0),
    (15, "AUTH", 0),
)


def properties_of(packet: str) -> tuple[int, ...]:
    """The identifiers that may stand in a packet, or in a WILL."""
    return tuple(row[0] for row in PROPERTIES if packet in row[3].split())


# Everything that has a property section: PACKETS without the pings, and the WILL.
CARRIERS = (
    *("CONNECT", "WILL", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "DISCONNECT", "AUTH"),
)
