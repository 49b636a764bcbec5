"""mqtt5 (Rust, 5.0 only): its `read`, and its packets' `write`."""

from typing import Any

import mqtt5

from semel.mqtt import (
    MQTT5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.peers.facts import (
    ABSENT,
    ABSENT_IN_CONNACK,
    NAMES,
    Facts,
    property_facts,
    says_default,
)

VERSIONS = (MQTT5,)

# Properties of the value 0 or 1 that it has as booleans.
BOOLEANS = (
    "request_problem_info",
    "request_response_info",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_id_available",
    "shared_subscription_available",
)
# Its words for properties, where they are not semel's.
WORDS = {
    "subscription_identifiers": "subscription_ids",
    "assigned_client_identifier": "assigned_client_id",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "response_information": "response_info",
    "reason_string": "reason_str",
    "receive_maximum": "receive_max",
    "topic_alias_maximum": "topic_alias_max",
    "maximum_qos": "max_qos",
    "maximum_packet_size": "max_packet_size",
    "subscription_identifiers_available": "subscription_id_available",
}
TYPES = {
    "ConnectPacket": "Connect",
    "ConnAckPacket": "ConnAck",
    "PublishPacket": "Publish",
    "PubAckPacket": "PubAck",
    "PubRecPacket": "PubRec",
    "PubRelPacket": "PubRel",
    "PubCompPacket": "PubComp",
    "SubscribePacket": "Subscribe",
    "SubAckPacket": "SubAck",
    "UnsubscribePacket": "Unsubscribe",
    "UnsubAckPacket": "UnsubAck",
    "PingReqPacket": "PingReq",
    "PingRespPacket": "PingResp",
    "DisconnectPacket": "Disconnect",
    "AuthPacket": "Auth",
}


ACKS: dict[type, tuple[Any, Any]] = {
    PubAck: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    PubRec: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    PubRel: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    PubComp: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
}


def properties_of(packet: Any) -> dict[str, Any]:
    found = {name: getattr(packet, WORDS.get(name, name), None) for name in NAMES}
    if isinstance(packet, mqtt5.SubscribePacket):
        identifier = packet.subscription_id
        found["subscription_identifiers"] = [] if identifier is None else [identifier]
    return found


class Panic(Exception):
    """Its Rust code gave up: nothing that `except Exception` would have caught."""


def read(data: bytes) -> tuple[Any, int]:
    try:
        result: tuple[Any, int] = mqtt5.read(memoryview(data))
    except BaseException as problem:
        if isinstance(problem, Exception) or type(problem).__name__ != "PanicException":
            raise
        raise Panic(str(problem)) from None
    return result


def receives(packet_type: int, version: int) -> bool:
    """It serves clients and servers alike."""
    return True


def decode(data: bytes, version: int) -> Facts:
    """The facts of the packet; raises whatever the peer raises."""
    packet, length = read(data)
    facts: Facts = {"type": TYPES[type(packet).__name__]}
    if length != len(data):
        facts["bytes taken"] = length
    absent = ABSENT
    if isinstance(packet, mqtt5.ConnAckPacket | mqtt5.DisconnectPacket):
        absent = ABSENT_IN_CONNACK
    facts |= property_facts(properties_of(packet), absent)
    if isinstance(packet, mqtt5.PublishPacket):
        facts["topic_name"] = packet.topic
        facts["payload"] = packet.payload
        facts["qos"] = int(packet.qos)
        facts["retain"] = packet.retain
        facts["dup"] = packet.duplicate
        facts["packet_id"] = packet.packet_id or 0
    elif isinstance(packet, mqtt5.ConnectPacket):
        facts["client_id"] = packet.client_id
        facts["clean_start"] = packet.clean_start
        facts["keep_alive"] = packet.keep_alive
        facts["user_name"] = packet.username
        facts["password"] = packet.password
        facts["will"] = packet.will is not None
        if packet.will is not None:
            facts |= property_facts(properties_of(packet.will), ABSENT, "will ")
            facts["will topic_name"] = packet.will.topic
            facts["will payload"] = packet.will.payload or b""
            facts["will qos"] = int(packet.will.qos)
            facts["will retain"] = packet.will.retain
    elif isinstance(packet, mqtt5.SubscribePacket):
        facts["packet_id"] = packet.packet_id
        facts["subscriptions"] = [
            (f.pattern, int(f.max_qos), f.no_local, f.retain_as_published, int(f.retain_handling))
            for f in packet.topic_filters
        ]
    elif isinstance(packet, mqtt5.UnsubscribePacket):
        facts["packet_id"] = packet.packet_id
        facts["topic_filters"] = packet.patterns
    elif isinstance(packet, mqtt5.SubAckPacket | mqtt5.UnsubAckPacket):
        facts["packet_id"] = packet.packet_id
        facts["reasons"] = [int(reason) for reason in packet.reason_codes]
    else:
        if hasattr(packet, "packet_id"):
            facts["packet_id"] = packet.packet_id
        if hasattr(packet, "reason_code"):
            facts["reason"] = int(packet.reason_code)
        if hasattr(packet, "session_present"):
            facts["session_present"] = packet.session_present
    return facts


def properties_for(properties: Any) -> dict[str, Any]:
    """The properties as its constructors take them."""
    found: dict[str, Any] = {}
    for name in NAMES:
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        found[WORDS.get(name, name)] = list(value) if isinstance(value, tuple) else value
    for name in BOOLEANS:
        if name in found:
            found[name] = bool(found[name])
    if "max_qos" in found:
        found["max_qos"] = mqtt5.QoS(found["max_qos"])
    return found


def encode(packet: Packet, version: int) -> bytes | None:
    """Its bytes for the same packet; None if it has no way to say it."""
    if isinstance(packet, PingReq):
        return mqtt5.PingReqPacket().write()
    if isinstance(packet, PingResp):
        return mqtt5.PingRespPacket().write()
    absent = ABSENT_IN_CONNACK if isinstance(packet, ConnAck | Disconnect) else ABSENT
    if says_default(packet.properties, absent):
        return None
    arguments = properties_for(packet.properties)
    if isinstance(packet, Publish):
        return mqtt5.PublishPacket(
            packet.topic_name,
            packet.payload,
            qos=mqtt5.QoS(packet.qos),
            retain=packet.retain,
            packet_id=packet.packet_id or None,
            duplicate=packet.dup,
            **arguments,
        ).write()
    if isinstance(packet, Connect):
        will = None
        if packet.will is not None:
            if says_default(packet.will.properties, ABSENT):
                return None
            will = mqtt5.Will(
                packet.will.topic_name,
                payload=packet.will.payload,
                qos=mqtt5.QoS(packet.will.qos),
                retain=packet.will.retain,
                **properties_for(packet.will.properties),
            )
        return mqtt5.ConnectPacket(
            packet.client_id,
            username=packet.user_name,
            password=packet.password,
            clean_start=packet.clean_start,
            will=will,
            keep_alive=packet.keep_alive,
            **arguments,
        ).write()
    if isinstance(packet, ConnAck):
        return mqtt5.ConnAckPacket(
            session_present=packet.session_present,
            reason_code=mqtt5.ConnAckReasonCode(packet.reason),
            **arguments,
        ).write()
    if isinstance(packet, Subscribe):
        for identifier in arguments.pop("subscription_ids", []):
            arguments["subscription_id"] = identifier
        filters = [
            mqtt5.TopicFilter(
                s.topic_filter,
                max_qos=mqtt5.QoS(s.qos),
                no_local=s.no_local,
                retain_as_published=s.retain_as_published,
                retain_handling=mqtt5.RetainHandling(s.retain_handling),
            )
            for s in packet.subscriptions
        ]
        return mqtt5.SubscribePacket(packet.packet_id, filters, **arguments).write()
    if isinstance(packet, Unsubscribe):
        patterns = list(packet.topic_filters)
        return mqtt5.UnsubscribePacket(packet.packet_id, patterns, **arguments).write()
    if isinstance(packet, SubAck):
        codes = [mqtt5.SubAckReasonCode(reason) for reason in packet.reasons]
        return mqtt5.SubAckPacket(packet.packet_id, codes, **arguments).write()
    if isinstance(packet, UnsubAck):
        answers = [mqtt5.UnsubAckReasonCode(reason) for reason in packet.reasons]
        return mqtt5.UnsubAckPacket(packet.packet_id, answers, **arguments).write()
    if isinstance(packet, Disconnect):
        left = mqtt5.DisconnectReasonCode(packet.reason)
        return mqtt5.DisconnectPacket(reason_code=left, **arguments).write()
    if isinstance(packet, Auth):
        step = mqtt5.AuthReasonCode(packet.reason)
        return mqtt5.AuthPacket(reason_code=step, **arguments).write()
    made, codes_of = ACKS[type(packet)]
    written: bytes = made(
        packet.packet_id, reason_code=codes_of(packet.reason), **arguments
    ).write()
    return written
