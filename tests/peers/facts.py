"""What a packet says, as a flat dictionary: the form in which semel and its peers are compared.

A peer gives the facts that its own packet lets one see; those it has no word for are left out.
Properties appear as `property <name>`. Some peers cannot tell a property that is absent from one
that has its default value, so values that mean the same as absence are left out on both sides.
"""

from typing import Any

from semel.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from semel.mqtt.properties import property_identifier

Facts = dict[str, Any]

# [3.1.2.11, 3.2.2.3, 3.3.2.3] what the absence of a property means, where it means a value.
ABSENT: dict[str, Any] = {
    "payload_format_indicator": 0,
    "session_expiry_interval": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "request_problem_information": 1,
    "request_response_information": 0,
    "will_delay_interval": 0,
    "maximum_qos": 2,
    "retain_available": 1,
    "wildcard_subscription_available": 1,
    "subscription_identifiers_available": 1,
    "shared_subscription_available": 1,
}
# A CONNACK without it leaves the value of the CONNECT: absence is no value there.
ABSENT_IN_CONNACK: dict[str, Any] = {**ABSENT, "session_expiry_interval": None}

NAMES = (
    *("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic"),
    *("correlation_data", "subscription_identifiers", "session_expiry_interval"),
    *("assigned_client_identifier", "server_keep_alive", "authentication_method"),
    *("authentication_data", "request_problem_information", "will_delay_interval"),
    *("request_response_information", "response_information", "server_reference"),
    *("reason_string", "receive_maximum", "topic_alias_maximum", "topic_alias", "maximum_qos"),
    *("retain_available", "user_properties", "maximum_packet_size"),
    *("wildcard_subscription_available", "subscription_identifiers_available"),
    *("shared_subscription_available",),
)


def property_facts(found: dict[str, Any], absent: dict[str, Any], prefix: str = "") -> Facts:
    """Facts from properties by semel's names; what means the same as absence is left out."""
    facts: Facts = {}
    for name, value in found.items():
        if isinstance(value, list | tuple):
            if value:
                pairs = [tuple(each) if isinstance(each, list | tuple) else each for each in value]
                facts[f"{prefix}property {name}"] = pairs
        elif value is not None and value != absent.get(name):
            facts[f"{prefix}property {name}"] = int(value) if isinstance(value, int) else value
    return facts


def our_properties(properties: Properties, absent: dict[str, Any], prefix: str = "") -> Facts:
    return property_facts({name: getattr(properties, name) for name in NAMES}, absent, prefix)


def says_default(properties: Properties, absent: dict[str, Any]) -> bool:
    """Whether the section spells out a value that its absence would mean as well."""
    return any(
        properties.has(property_identifier(name)) and getattr(properties, name) == value
        for name, value in absent.items()
    )


def our_facts(packet: Packet) -> Facts:
    """All that a packet of semel says."""
    facts: Facts = {"type": type(packet).__name__}
    if isinstance(packet, PingReq | PingResp):
        return facts
    absent = ABSENT_IN_CONNACK if isinstance(packet, ConnAck | Disconnect) else ABSENT
    facts |= our_properties(packet.properties, absent)
    if isinstance(packet, Publish):
        for name in ("topic_name", "payload", "qos", "retain", "dup", "packet_id"):
            facts[name] = getattr(packet, name)
    elif isinstance(packet, Connect):
        for name in ("client_id", "clean_start", "keep_alive", "user_name", "password"):
            facts[name] = getattr(packet, name)
        facts["will"] = packet.will is not None
        if packet.will is not None:
            facts |= our_properties(packet.will.properties, ABSENT, "will ")
            for name in ("topic_name", "payload", "qos", "retain"):
                facts[f"will {name}"] = getattr(packet.will, name)
    elif isinstance(packet, ConnAck):
        facts["reason"] = packet.reason
        facts["session_present"] = packet.session_present
    elif isinstance(packet, Subscribe):
        facts["packet_id"] = packet.packet_id
        facts["subscriptions"] = [
            (s.topic_filter, s.qos, s.no_local, s.retain_as_published, s.retain_handling)
            for s in packet.subscriptions
        ]
    elif isinstance(packet, Unsubscribe):
        facts["packet_id"] = packet.packet_id
        facts["topic_filters"] = list(packet.topic_filters)
    elif isinstance(packet, SubAck | UnsubAck):
        facts["packet_id"] = packet.packet_id
        facts["reasons"] = list(packet.reasons)
    elif isinstance(packet, Disconnect | Auth):
        facts["reason"] = packet.reason
    else:
        facts["packet_id"] = packet.packet_id
        facts["reason"] = packet.reason
    return facts
