"""The rules about when and by which side a packet may be sent, each stated once.

Only `exchange.py` checks them. A reason of 0 means that the standard obliges the receiver to
continue in spite of the violation: a repeated QoS 2 PUBLISH must be answered [MQTT-4.3.3-10],
though its sender may not repeat it [MQTT-4.4.0-1]. Every other violation closes the connection.
"""

from typing import Final

from semel.mqtt.reasons import (
    PROTOCOL_ERROR,
    QOS_NOT_SUPPORTED,
    RECEIVE_MAXIMUM_EXCEEDED,
    RETAIN_NOT_SUPPORTED,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    SUCCESS,
    TOPIC_ALIAS_INVALID,
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
from semel.mqtt.violation import Rule

CONNECT_FIRST: Final = Rule(
    "CONNECT_FIRST",
    "The first packet on a connection is the client's CONNECT.",
    mqtt311="3.1.0-1",
    mqtt5="3.1.0-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
CONNECT_ONCE: Final = Rule(
    "CONNECT_ONCE",
    "A client sends one CONNECT on a connection.",
    mqtt311="CONNECT:3.1.0-2",
    mqtt5="CONNECT:3.1.0-2",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
PACKET_FROM_ITS_SIDE: Final = Rule(
    "PACKET_FROM_ITS_SIDE",
    "A packet flows only in the direction of its type.",
    mqtt311="U3-02",
    mqtt5="U5-02",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
REASON_CODE_FROM_ITS_SIDE: Final = Rule(
    "REASON_CODE_FROM_ITS_SIDE",
    "Some reason codes of DISCONNECT and AUTH are for one side only.",
    mqtt5="DISCONNECT:3.14.2-1 AUTH:3.15.2-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
CONNACK_FIRST: Final = Rule(
    "CONNACK_FIRST",
    "Before its CONNACK a server sends nothing except AUTH.",
    mqtt311="3.2.0-1",
    mqtt5="3.2.0-1 DISCONNECT:3.14.0-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
CONNACK_ONCE: Final = Rule(
    "CONNACK_ONCE",
    "A server sends one CONNACK on a connection.",
    mqtt5="CONNACK:3.2.0-2",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
NOTHING_AFTER_REFUSAL: Final = Rule(
    "NOTHING_AFTER_REFUSAL",
    "After a CONNACK that refuses the connection, a server closes it and sends nothing more.",
    mqtt311="3.2.2-5",
    mqtt5="3.2.2-7 4.13.2-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
NOTHING_AFTER_DISCONNECT: Final = Rule(
    "NOTHING_AFTER_DISCONNECT",
    "After DISCONNECT its sender sends nothing more.",
    mqtt311="3.14.4-2",
    mqtt5="3.14.4-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
SESSION_PRESENT_NEEDS_OLD_SESSION: Final = Rule(
    "SESSION_PRESENT_NEEDS_OLD_SESSION",
    "After a clean start Session Present is 0.",
    mqtt311="CONNACK:3.2.2-1",
    mqtt5="CONNACK:3.2.2-2",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
CLIENT_ID_ASSIGNED: Final = Rule(
    "CLIENT_ID_ASSIGNED",
    "A server that accepts an empty ClientID returns the one it assigned.",
    mqtt5="CONNACK:3.1.3-7 CONNACK:3.2.2-16",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
RESPONSE_INFORMATION_ON_REQUEST: Final = Rule(
    "RESPONSE_INFORMATION_ON_REQUEST",
    "CONNACK has Response Information only if CONNECT asked for it.",
    mqtt5="CONNACK:3.1.2-28",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
PROBLEM_INFORMATION_ON_REQUEST: Final = Rule(
    "PROBLEM_INFORMATION_ON_REQUEST",
    "With Request Problem Information 0 a server puts Reason String and User Property only into "
    "CONNACK, DISCONNECT and PUBLISH.",
    mqtt5="3.1.2-29",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
SESSION_EXPIRY_FROM_CLIENT: Final = Rule(
    "SESSION_EXPIRY_FROM_CLIENT",
    "A server's DISCONNECT has no Session Expiry Interval.",
    mqtt5="DISCONNECT:3.14.2-2",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
SESSION_EXPIRY_NOT_REVIVED: Final = Rule(
    "SESSION_EXPIRY_NOT_REVIVED",
    "If the Session Expiry Interval in CONNECT was 0, DISCONNECT does not change it.",
    mqtt5="DISCONNECT:U5-70",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
ONLY_AUTH_UNTIL_CONNACK: Final = Rule(
    "ONLY_AUTH_UNTIL_CONNACK",
    "A client that began enhanced authentication sends only AUTH or DISCONNECT until CONNACK.",
    mqtt5="3.1.2-30",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
AUTH_AS_AGREED: Final = Rule(
    "AUTH_AS_AGREED",
    "Without an Authentication Method in CONNECT neither side uses enhanced authentication.",
    mqtt5="AUTH:4.12.0-6 CONNACK:4.12.0-6 AUTH:4.12.0-7 AUTH:U5-72",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
AUTH_METHOD_KEPT: Final = Rule(
    "AUTH_METHOD_KEPT",
    "Every AUTH, and a CONNACK that accepts the connection, has the Authentication Method of "
    "CONNECT.",
    mqtt5="AUTH:4.12.0-5 CONNACK:4.12.0-5 AUTH:4.12.1-1 AUTH:U5-72",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
AUTH_IN_TURN: Final = Rule(
    "AUTH_IN_TURN",
    "A server's AUTH has code 0x18 until it ends a re-authentication with 0x00; a client answers "
    "with 0x18, and begins a re-authentication with 0x19 once connected.",
    mqtt5="AUTH:4.12.0-2 AUTH:4.12.0-3",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
QOS_WITHIN_MAXIMUM: Final = Rule(
    "QOS_WITHIN_MAXIMUM",
    "A client does not publish with a QoS above the server's Maximum QoS.",
    mqtt5="PUBLISH:3.2.2-11",
    at="exchange",
    reason=QOS_NOT_SUPPORTED,
)
RETAIN_IF_AVAILABLE: Final = Rule(
    "RETAIN_IF_AVAILABLE",
    "A client sets RETAIN only if the server supports retained messages.",
    mqtt5="PUBLISH:3.2.2-14",
    at="exchange",
    reason=RETAIN_NOT_SUPPORTED,
)
TOPIC_ALIAS_WITHIN_MAXIMUM: Final = Rule(
    "TOPIC_ALIAS_WITHIN_MAXIMUM",
    "A Topic Alias is at most the receiver's Topic Alias Maximum, which is 0 by default.",
    mqtt5="PUBLISH:3.1.2-26 PUBLISH:3.1.2-27 PUBLISH:3.2.2-17 PUBLISH:3.2.2-18 PUBLISH:3.3.2-9 "
    "PUBLISH:3.3.2-11",
    at="exchange",
    reason=TOPIC_ALIAS_INVALID,
)
TOPIC_ALIAS_MAPPED: Final = Rule(
    "TOPIC_ALIAS_MAPPED",
    "A Topic Alias without a Topic Name was mapped to one earlier on this connection.",
    mqtt5="PUBLISH:U5-59 PUBLISH:3.3.2-7",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
SUBSCRIPTION_IDENTIFIER_FROM_SERVER: Final = Rule(
    "SUBSCRIPTION_IDENTIFIER_FROM_SERVER",
    "A client's PUBLISH has no Subscription Identifier.",
    mqtt5="PUBLISH:3.3.4-6",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
WILDCARD_IF_AVAILABLE: Final = Rule(
    "WILDCARD_IF_AVAILABLE",
    "A client uses wildcard filters only if the server supports them.",
    mqtt5="SUBSCRIBE:U5-47",
    at="exchange",
    reason=WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
SUBSCRIPTION_IDENTIFIER_IF_AVAILABLE: Final = Rule(
    "SUBSCRIPTION_IDENTIFIER_IF_AVAILABLE",
    "A client uses Subscription Identifiers only if the server supports them.",
    mqtt5="SUBSCRIBE:U5-48",
    at="exchange",
    reason=SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
)
SHARED_IF_AVAILABLE: Final = Rule(
    "SHARED_IF_AVAILABLE",
    "A client uses shared subscriptions only if the server supports them.",
    mqtt5="SUBSCRIBE:U5-49",
    at="exchange",
    reason=SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
)
PACKET_ID_NOT_IN_USE: Final = Rule(
    "PACKET_ID_NOT_IN_USE",
    "A new PUBLISH, SUBSCRIBE or UNSUBSCRIBE has a Packet Identifier that its sender does not use.",
    mqtt311="2.3.1-2 PUBLISH:2.3.1-4 PUBLISH:4.3.2-1",
    mqtt5="2.2.1-3 PUBLISH:2.2.1-4 PUBLISH:4.3.2-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
QOS_2_ID_NOT_IN_USE: Final = Rule(
    "QOS_2_ID_NOT_IN_USE",
    "A new QoS 2 PUBLISH has a Packet Identifier that its sender does not use. Otherwise the "
    "receiver answers it as a repeated PUBLISH.",
    mqtt311="PUBLISH:2.3.1-2 PUBLISH:2.3.1-4 PUBLISH:4.3.3-1",
    mqtt5="PUBLISH:2.2.1-3 PUBLISH:2.2.1-4 PUBLISH:4.3.3-1",
    at="exchange",
    reason=SUCCESS,
)
NO_RESEND_WHILE_CONNECTED: Final = Rule(
    "NO_RESEND_WHILE_CONNECTED",
    "In 5.0 a PUBLISH is sent again only after a reconnect.",
    mqtt5="PUBLISH:4.4.0-1",
    at="exchange",
    reason=SUCCESS,
)
FIRST_SEND_WITHOUT_DUP: Final = Rule(
    "FIRST_SEND_WITHOUT_DUP",
    "A PUBLISH that is sent for the first time has DUP 0. The receiver treats it as new whatever "
    "its DUP flag is.",
    mqtt311="PUBLISH:4.3.2-1 PUBLISH:4.3.3-1",
    mqtt5="PUBLISH:4.3.2-2 PUBLISH:4.3.3-2",
    at="exchange",
    reason=SUCCESS,
)
RESEND_SETS_DUP: Final = Rule(
    "RESEND_SETS_DUP",
    "A PUBLISH that is sent again has DUP 1.",
    mqtt311="PUBLISH:3.3.1-1",
    mqtt5="PUBLISH:3.3.1-1",
    at="exchange",
    reason=SUCCESS,
)
RESEND_IN_ORDER: Final = Rule(
    "RESEND_IN_ORDER",
    "A client resends its PUBLISH packets in the order in which it first sent them.",
    mqtt311="PUBLISH:4.6.0-1",
    mqtt5="PUBLISH:4.6.0-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
NO_PUBLISH_AFTER_PUBREL: Final = Rule(
    "NO_PUBLISH_AFTER_PUBREL",
    "Once PUBREL has been sent, its PUBLISH is not sent again.",
    mqtt311="PUBLISH:4.3.3-1",
    mqtt5="PUBLISH:4.3.3-6",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
RECEIVE_MAXIMUM_KEPT: Final = Rule(
    "RECEIVE_MAXIMUM_KEPT",
    "At most as many QoS 1 and 2 PUBLISH packets are open as the receiver's Receive Maximum.",
    mqtt5="PUBLISH:3.3.4-7 PUBLISH:3.3.4-9 PUBLISH:4.9.0-1 PUBLISH:4.9.0-2",
    at="exchange",
    reason=RECEIVE_MAXIMUM_EXCEEDED,
)
ANSWER_FITS_REQUEST: Final = Rule(
    "ANSWER_FITS_REQUEST",
    "An acknowledgement has the Packet Identifier of an open request that it answers.",
    mqtt311="PUBACK:2.3.1-6 PUBCOMP:U3-07 SUBACK:2.3.1-7 SUBACK:3.8.4-2 UNSUBACK:2.3.1-7 "
    "UNSUBACK:3.10.4-4",
    mqtt5="PUBACK:2.2.1-5 PUBCOMP:2.2.1-5 SUBACK:2.2.1-6 SUBACK:3.8.4-2 UNSUBACK:2.2.1-6 "
    "UNSUBACK:3.10.4-5",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
RELEASE_FITS_PUBLISH: Final = Rule(
    "RELEASE_FITS_PUBLISH",
    "PUBREC and PUBREL have the Packet Identifier of an open QoS 2 PUBLISH. The receiver answers "
    "any other identifier too, in 5.0 with code 0x92.",
    mqtt311="PUBREC:2.3.1-6 PUBREL:2.3.1-6",
    mqtt5="PUBREC:2.2.1-5 PUBREL:2.2.1-5",
    at="exchange",
    reason=SUCCESS,
)
ANSWER_FITS_QOS: Final = Rule(
    "ANSWER_FITS_QOS",
    "PUBACK answers QoS 1, PUBREC answers QoS 2.",
    mqtt311="PUBACK:3.3.4-1 PUBREC:3.3.4-1",
    mqtt5="PUBACK:3.3.4-1 PUBREC:3.3.4-1",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
PUBREL_AFTER_PUBREC: Final = Rule(
    "PUBREL_AFTER_PUBREC",
    "PUBREL is sent only after PUBREC has been received.",
    mqtt311="PUBREL:4.3.3-1",
    mqtt5="PUBREL:4.3.3-4",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
ANSWERS_IN_ORDER: Final = Rule(
    "ANSWERS_IN_ORDER",
    "A client sends PUBACK, PUBREC and PUBREL in the order of the packets that they answer.",
    mqtt311="PUBACK:4.6.0-2 PUBREC:4.6.0-3 PUBREL:4.6.0-4",
    mqtt5="PUBACK:4.6.0-2 PUBREC:4.6.0-3 PUBREL:4.6.0-4",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
ONE_REASON_CODE_EACH: Final = Rule(
    "ONE_REASON_CODE_EACH",
    "SUBACK, and UNSUBACK in 5.0, has one reason code for each Topic Filter of the request.",
    mqtt311="SUBACK:3.8.4-5 SUBACK:3.8.4-4",
    mqtt5="SUBACK:3.8.4-6 SUBACK:3.8.4-5 UNSUBACK:3.11.3-2 UNSUBACK:3.10.4-6",
    at="exchange",
    reason=PROTOCOL_ERROR,
)
