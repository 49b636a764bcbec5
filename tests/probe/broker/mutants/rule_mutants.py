"""Mutants that do not check one rule: what a client breaks, the broker accepts.

The statements are those of the clause that the client breaks, or that obliges the broker to refuse.
"""

from typing import Final

from tests.probe.broker.mutants.form import Also, BrokerMutant
from tests.probe.broker.mutants.source import Change, Edit, RuleRemoval

GENERAL: Final = Also(
    "whoever meets a malformed packet or a protocol error must close: the rule is one of them",
    "4.8.0-1",
    "4.13.1-1 4.13.2-1",
)
CONNECT: Final = Also("a server validates CONNECT as a whole", "3.1.4-1", "3.1.4-1")
# Cases that begin with something that the broker must refuse, to see what it does then.
NEEDS_REFUSAL: Final = (
    *("packets-behind-*", "refused-connect-*", "will-refused-connect", "will-second-connect"),
    *("will-protocol-error", "will-malformed-*"),
)


def unchecked(
    rule: str,
    what: str,
    mqtt311: str = "",
    mqtt5: str = "",
    *,
    also: tuple[Also, ...] = (),
    aids: tuple[Change, ...] = (),
    slow: tuple[str, ...] = (),
    vectors: int = 3,
) -> BrokerMutant:
    """A mutant without this rule. `aids` let it ignore packets that it could not handle."""
    return BrokerMutant(
        f"unchecked-{rule.lower().replace('_', '-')}",
        what,
        (RuleRemoval(rule), *aids),
        mqtt311,
        mqtt5,
        (GENERAL, *also),
        slow=slow,
        undecided=NEEDS_REFUSAL,
        vectors=vectors,
    )


IGNORE_BEFORE_CONNECT: Final = Edit(
    "broker.core",
    "            self._connections.drop(connection, now)\n            return\n"
    "        if isinstance(packet, Disconnect):",
    "            return\n        if isinstance(packet, Disconnect):",
)
IGNORE_SECOND_CONNECT: Final = Edit(
    "broker.core",
    "        if isinstance(packet, Connect):\n",
    "        if isinstance(packet, Connect) and connection.state is not None:\n"
    "            return\n"
    "        if isinstance(packet, Connect):\n",
)
IGNORE_FOREIGN: Final = Edit(
    "broker.core",
    "        else:\n"
    '            assert isinstance(packet, PingReq), "the Exchange allows a client nothing else"\n',
    "        elif isinstance(packet, PingReq):\n",
)
IGNORE_EMPTY_TOPIC: Final = Edit(
    "broker.core",
    "        check_levels(topic_name, connection.limits.topic_levels)\n        # Before",
    "        if not topic_name:\n            return\n"
    "        check_levels(topic_name, connection.limits.topic_levels)\n        # Before",
)
IGNORE_EMPTY_SUBSCRIBE: Final = Edit(
    "broker.core",
    "        identifiers = packet.properties.subscription_identifiers\n",
    "        if not packet.subscriptions:\n            return\n"
    "        identifiers = packet.properties.subscription_identifiers\n",
)
IGNORE_EMPTY_UNSUBSCRIBE: Final = Edit(
    "broker.core",
    "        reasons: list[int] = []\n        for topic_filter in packet.topic_filters:",
    "        reasons: list[int] = []\n        if not packet.topic_filters:\n            return\n"
    "        for topic_filter in packet.topic_filters:",
)
# An AUTH without an agreed method is handled by nothing.
NO_AUTHENTICATION: Final = Edit(
    "broker.core",
    "        if isinstance(packet, Auth):\n",
    "        if isinstance(packet, Auth):\n            return\n"
    "        if isinstance(packet, Auth):\n",
)

CONNECT_PROPERTIES_ONCE: Final = (
    "U5-07 U5-08 U5-09 U5-10 U5-11 U5-12 U5-13 U5-19 U5-20 U5-21 U5-22 U5-23 U5-24"
)

MUTANTS: Final = (
    # --- the bytes ---
    unchecked(
        "FIXED_HEADER_FLAGS",
        "The broker ignores the reserved flags of the fixed header.",
        "2.2.2-1 2.2.2-2 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1",
        "2.1.3-1 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1 3.15.1-1",
        also=(CONNECT,),
    ),
    unchecked(
        "VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES",
        "The broker reads lengths of five bytes and more.",
        "U3-03",
        "U5-05",
    ),
    unchecked(
        "VARIABLE_BYTE_INTEGER_SHORTEST",
        "The broker accepts lengths with more bytes than needed in 5.0.",
        mqtt5="1.5.5-1",
    ),
    unchecked(
        "FIELD_WITHIN_PACKET",
        "The broker reads fields beyond the end of their packet.",
        "U3-04 3.1.2-9 3.1.2-19 3.1.2-21 3.1.3-3",
        "2.2.2-1 U5-04 3.1.2-9 3.1.2-17 3.1.2-19 3.1.3-3",
        also=(CONNECT,),
        # In most of them it finds no further bytes, which ends the connection, too.
        vectors=20,
    ),
    unchecked(
        "NO_SURPLUS_BYTES",
        "The broker ignores bytes after the last field of a packet.",
        "U3-04 3.1.2-11 3.1.2-18 3.1.2-20",
        "3.1.2-16 3.1.2-18",
        also=(CONNECT,),
    ),
    unchecked(
        "TEXT_WELL_FORMED",
        "The broker accepts ill-formed UTF-8.",
        "1.5.3-1 3.1.3-4 3.1.3-10 3.1.3-11 3.3.2-1 3.8.3-1 3.10.3-1",
        "1.5.4-1 1.5.7-1 3.1.3-4 3.1.3-11 3.1.3-12 3.3.2-1 3.3.2-13 3.3.2-19 3.8.3-1 3.10.3-1",
        also=(CONNECT,),
    ),
    unchecked(
        "TEXT_WITHOUT_NUL",
        "The broker accepts U+0000 in strings.",
        "1.5.3-2 4.7.3-2",
        "1.5.4-2 4.7.3-2",
        also=(CONNECT,),
    ),
    # --- values ---
    unchecked(
        "PACKET_ID_NOT_ZERO",
        "The broker accepts the Packet Identifier 0.",
        "2.3.1-1",
        "2.2.1-3",
        also=(Also("the rule is also that of a server's own identifiers", mqtt5="2.2.1-4"),),
    ),
    unchecked(
        "REASON_CODE_IN_TABLE",
        "The broker accepts reason codes that the packet does not have.",
        mqtt5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1 3.14.2-1 3.15.2-1",
    ),
    unchecked(
        "TOPIC_NAME_NOT_EMPTY",
        "The broker accepts and acknowledges a PUBLISH with an empty topic (origin, case 2).",
        "4.7.3-1",
        "4.7.3-1 U5-50",
        also=(CONNECT, Also("an empty Topic Name is no Topic Name", "3.3.2-1", "3.3.2-1")),
    ),
    unchecked(
        "TOPIC_NAME_WITHOUT_WILDCARDS",
        "The broker accepts wildcards in Topic Names (origin, case 1).",
        "4.7.1-1 3.3.2-2",
        "4.7.0-1 3.3.2-2 3.3.2-14",
        also=(CONNECT,),
    ),
    unchecked(
        "TOPIC_FILTER_NOT_EMPTY", "The broker accepts empty Topic Filters.", "4.7.3-1", "4.7.3-1"
    ),
    unchecked(
        "HASH_IS_LAST_LEVEL",
        "The broker accepts # anywhere in a Topic Filter.",
        "4.7.1-2",
        "4.7.1-1",
        # Those of UNSUBSCRIBE are arguable.
        vectors=8,
    ),
    unchecked(
        "PLUS_FILLS_ITS_LEVEL",
        "The broker accepts + beside other characters of a level.",
        "4.7.1-3",
        "4.7.1-2",
    ),
    unchecked("SHARE_NAME_NOT_EMPTY", "The broker accepts an empty ShareName.", mqtt5="4.8.2-1"),
    unchecked(
        "SHARE_NAME_WITHOUT_WILDCARDS",
        "The broker accepts wildcards in a ShareName.",
        mqtt5="4.8.2-2",
    ),
    unchecked(
        "SHARE_NAME_BEFORE_FILTER",
        "The broker accepts a ShareName without a Topic Filter.",
        mqtt5="4.8.2-2",
    ),
    # --- properties ---
    unchecked("PROPERTY_KNOWN", "The broker ignores unknown properties.", mqtt5="U5-03"),
    unchecked(
        "PROPERTY_IN_ITS_PACKET",
        "The broker accepts properties in packets that do not have them.",
        mqtt5="U5-03",
        also=(CONNECT,),
    ),
    unchecked(
        "PROPERTY_ONCE",
        "The broker accepts repeated properties.",
        mqtt5=f"{CONNECT_PROPERTIES_ONCE} U5-51 U5-52 U5-53 U5-54 U5-55 U5-56 U5-61 U5-62 U5-63"
        " U5-64 U5-69 U5-71 U5-73",
        also=(CONNECT,),
    ),
    unchecked(
        "PROPERTY_IS_0_OR_1",
        "The broker accepts any byte where only 0 and 1 are allowed.",
        mqtt5="U5-16 U5-17",
        also=(CONNECT,),
    ),
    unchecked(
        "PROPERTY_NOT_ZERO",
        "The broker accepts 0 as Receive Maximum, Maximum Packet Size, Subscription Identifier.",
        mqtt5="U5-14 U5-15 U5-65",
        also=(CONNECT,),
    ),
    unchecked("TOPIC_ALIAS_NOT_ZERO", "The broker accepts the Topic Alias 0.", mqtt5="3.3.2-8"),
    # --- CONNECT ---
    unchecked(
        "PROTOCOL_NAME_IS_MQTT",
        "The broker accepts any Protocol Name.",
        "3.1.2-1",
        "3.1.2-1",
        also=(CONNECT,),
    ),
    unchecked(
        "PROTOCOL_LEVEL_SUPPORTED",
        "The broker accepts any protocol level.",
        "3.1.2-2",
        "3.1.2-2",
        also=(CONNECT,),
        # Levels that bridges use are arguable.
        vectors=12,
    ),
    unchecked(
        "CONNECT_RESERVED_FLAG",
        "The broker ignores the reserved Connect Flag.",
        "3.1.2-3",
        "3.1.2-3",
        also=(CONNECT,),
    ),
    unchecked(
        "WILL_QOS_NEEDS_WILL",
        "The broker accepts a Will QoS without a will.",
        "3.1.2-11 3.1.2-13",
        "3.1.2-11",
        also=(CONNECT,),
    ),
    unchecked(
        "WILL_RETAIN_NEEDS_WILL",
        "The broker accepts Will Retain without a will.",
        "3.1.2-11 3.1.2-15",
        "3.1.2-13",
        also=(CONNECT,),
    ),
    unchecked(
        "WILL_QOS_NOT_3",
        "The broker accepts Will QoS 3.",
        "3.1.2-14",
        "3.1.2-12",
        also=(CONNECT,),
    ),
    unchecked(
        "PASSWORD_NEEDS_USER_NAME",
        "The broker accepts a password without a user name in 3.1.1.",
        "3.1.2-22",
        also=(CONNECT,),
    ),
    unchecked(
        "EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION",
        "The broker accepts an empty ClientId with CleanSession 0.",
        "3.1.3-7 3.1.3-8",
        also=(CONNECT,),
    ),
    unchecked(
        "AUTHENTICATION_DATA_NEEDS_METHOD",
        "The broker accepts Authentication Data without a method.",
        mqtt5="U5-18",
        also=(CONNECT,),
    ),
    # --- PUBLISH ---
    BrokerMutant(
        "qos-3-taken-for-2",
        "The broker reads QoS 3 as 2.",
        (
            Edit(
                "mqtt.packets.publish",
                "        flags >> 1 & 3,\n        packet_id,\n        retain",
                "        min(flags >> 1 & 3, 2),\n        packet_id,\n        retain",
            ),
        ),
        "3.3.1-4",
        "3.3.1-4",
        (GENERAL,),
        rules=("QOS_NOT_3",),
        undecided=NEEDS_REFUSAL,
    ),
    unchecked(
        "DUP_NEEDS_QOS",
        "The broker accepts DUP 1 at QoS 0 (origin, case 3).",
        "3.3.1-2 4.3.1-1",
        "3.3.1-2 4.3.1-1",
    ),
    # --- SUBSCRIBE and UNSUBSCRIBE ---
    unchecked(
        "SUBSCRIBE_NOT_EMPTY",
        "The broker ignores a SUBSCRIBE without Topic Filters.",
        "3.8.3-3",
        "3.8.3-2",
        aids=(IGNORE_EMPTY_SUBSCRIBE,),
    ),
    unchecked(
        "UNSUBSCRIBE_NOT_EMPTY",
        "The broker ignores an UNSUBSCRIBE without Topic Filters.",
        "3.10.3-2",
        "3.10.3-2",
        aids=(IGNORE_EMPTY_UNSUBSCRIBE,),
    ),
    unchecked(
        "SUBSCRIPTION_OPTIONS_RESERVED",
        "The broker ignores the reserved Subscription Options.",
        "3.8.3-4",
        "3.8.3-5",
    ),
    unchecked("RETAIN_HANDLING_NOT_3", "The broker accepts Retain Handling 3.", mqtt5="U5-68"),
    unchecked(
        "NO_LOCAL_NOT_SHARED",
        "The broker accepts No Local on a shared subscription.",
        mqtt5="3.8.3-4",
    ),
    unchecked(
        "SUBSCRIPTION_IDENTIFIER_ONCE",
        "The broker accepts two Subscription Identifiers.",
        mqtt5="U5-66",
    ),
    BrokerMutant(
        "subscription-qos-3-granted-as-2",
        "The broker reads a requested QoS 3 as 2.",
        (
            Edit(
                "mqtt.packets.subscribe",
                "        options & 3,\n        no_local",
                "        min(options & 3, 2),\n        no_local",
            ),
        ),
        "3.8.3-4",
        "U5-67",
        (GENERAL,),
        rules=("SUBSCRIPTION_QOS_NOT_3",),
    ),
    # --- the exchange ---
    unchecked(
        "CONNECT_FIRST",
        "The broker ignores packets before CONNECT.",
        "3.1.0-1",
        "3.1.0-1",
        aids=(IGNORE_BEFORE_CONNECT,),
    ),
    unchecked(
        "CONNECT_ONCE",
        "The broker ignores a second CONNECT.",
        "3.1.0-2",
        "3.1.0-2",
        aids=(IGNORE_SECOND_CONNECT,),
    ),
    unchecked(
        "PACKET_FROM_ITS_SIDE",
        "The broker ignores packets that only a server sends.",
        "U3-02",
        "U5-02",
        aids=(IGNORE_FOREIGN,),
    ),
    unchecked(
        "AUTH_AS_AGREED",
        "The broker ignores an AUTH without an agreed method.",
        mqtt5="U5-72 4.12.0-7",
        aids=(NO_AUTHENTICATION,),
    ),
    unchecked(
        "SESSION_EXPIRY_NOT_REVIVED",
        "The broker lets DISCONNECT set a Session Expiry Interval after CONNECT said 0.",
        mqtt5="U5-70",
    ),
    unchecked(
        "TOPIC_ALIAS_WITHIN_MAXIMUM",
        "The broker accepts a Topic Alias above its maximum.",
        mqtt5="3.2.2-17 3.2.2-18 3.3.2-9",
    ),
    unchecked(
        "TOPIC_ALIAS_MAPPED",
        "The broker ignores a PUBLISH with a Topic Alias that it does not know.",
        mqtt5="U5-59",
        aids=(IGNORE_EMPTY_TOPIC,),
        also=(Also("an alias of an earlier connection is one that is not known", mqtt5="3.3.2-7"),),
    ),
    unchecked(
        "SUBSCRIPTION_IDENTIFIER_FROM_SERVER",
        "The broker accepts a Subscription Identifier in a client's PUBLISH.",
        mqtt5="3.3.4-6",
    ),
    unchecked(
        "RECEIVE_MAXIMUM_KEPT",
        "The broker accepts more open messages than its Receive Maximum.",
        mqtt5="3.3.4-7",
        also=(Also("the quota is the Receive Maximum in other words", mqtt5="4.9.0-1 4.9.0-2"),),
    ),
    unchecked(
        "PACKET_SIZE_WITHIN_MAXIMUM",
        "The broker accepts packets above its Maximum Packet Size.",
        mqtt5="3.2.2-15",
    ),
)
