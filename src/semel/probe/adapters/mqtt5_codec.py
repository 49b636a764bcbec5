"""mqtt5 (Rust, 5.0 only) as a subject: its `read`, and its packets' `write`."""

from collections.abc import Mapping
from importlib.metadata import version as version_of
from typing import Any, Final

from semel.probe.adapters.adapter import (
    ALL_TYPES,
    Cannot,
    LibraryPanic,
    end_without,
    every_version,
    read_binary,
    read_password,
    serve,
    single_properties,
    write_values,
)

try:
    import mqtt5
except ImportError:
    end_without("mqtt5", "mqtt5")

# Properties of the value 0 or 1 that it has as booleans.
BOOLEANS: Final = (
    "request_problem_information",
    "request_response_information",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_identifiers_available",
    "shared_subscription_available",
)
# Its words for properties, where they are others.
WORDS: Final = {
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
NAMES: Final = (
    *("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic"),
    *("correlation_data", "session_expiry_interval", "server_keep_alive", "authentication_method"),
    *("authentication_data", "will_delay_interval", "server_reference", "topic_alias"),
    *("retain_available", "user_properties", "wildcard_subscription_available"),
    *("shared_subscription_available", *WORDS),
)
ACKS: Final[Mapping[str, tuple[Any, Any]]] = {
    "PubAck": (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    "PubRec": (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    "PubRel": (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    "PubComp": (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
}


class Mqtt5Library:
    """mqtt5, as a subject. Its panics are no `Exception`, so they end programs."""

    def hello(self) -> dict[str, Any]:
        types = every_version(ALL_TYPES, three=False)
        version = version_of("mqtt5")
        return {"name": "mqtt5", "version": version, "decode": types, "encode": types}

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        try:
            packet, length = mqtt5.read(memoryview(data))
        except BaseException as problem:
            raise_panic(problem)
            raise
        return {"packet": describe(packet), "taken": length}

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        try:
            return bytes(build(packet).write())
        except BaseException as problem:
            raise_panic(problem)
            raise


def raise_panic(problem: BaseException) -> None:
    if type(problem).__name__ == "PanicException":
        raise LibraryPanic(f"a panic of its Rust code: {problem}") from None


def describe_properties(packet: Any) -> dict[str, Any]:
    found = {name: getattr(packet, WORDS.get(name, name), None) for name in NAMES}
    if isinstance(packet, mqtt5.SubscribePacket):
        identifier = packet.subscription_id
        found["subscription_identifiers"] = [] if identifier is None else [identifier]
    form = {name: write_values(value) for name, value in found.items() if value is not None}
    if "maximum_qos" in form:
        form["maximum_qos"] = int(form["maximum_qos"])
    return form


def describe(packet: Any) -> dict[str, Any]:
    """What it decoded."""
    form: dict[str, Any] = {"type": type(packet).__name__.removesuffix("Packet")}
    form["properties"] = describe_properties(packet)
    if isinstance(packet, mqtt5.PublishPacket):
        form["topic_name"] = packet.topic
        form["payload"] = write_values(packet.payload)
        form["qos"] = int(packet.qos)
        form["retain"] = packet.retain
        form["dup"] = packet.duplicate
        form["packet_id"] = packet.packet_id
    elif isinstance(packet, mqtt5.ConnectPacket):
        form["client_id"] = packet.client_id
        form["clean_start"] = packet.clean_start
        form["keep_alive"] = packet.keep_alive
        form["user_name"] = packet.username
        form["password"] = write_values(packet.password)
        form["will"] = None
        if packet.will is not None:
            form["will"] = {
                "topic_name": packet.will.topic,
                "payload": write_values(packet.will.payload or b""),
                "qos": int(packet.will.qos),
                "retain": packet.will.retain,
                "properties": describe_properties(packet.will),
            }
    elif isinstance(packet, mqtt5.SubscribePacket):
        form["packet_id"] = packet.packet_id
        form["subscriptions"] = [
            {
                "topic_filter": each.pattern,
                "qos": int(each.max_qos),
                "no_local": each.no_local,
                "retain_as_published": each.retain_as_published,
                "retain_handling": int(each.retain_handling),
            }
            for each in packet.topic_filters
        ]
    elif isinstance(packet, mqtt5.UnsubscribePacket):
        form["packet_id"] = packet.packet_id
        form["topic_filters"] = list(packet.patterns)
    elif isinstance(packet, mqtt5.SubAckPacket | mqtt5.UnsubAckPacket):
        form["packet_id"] = packet.packet_id
        form["reasons"] = [int(reason) for reason in packet.reason_codes]
    else:
        if hasattr(packet, "packet_id"):
            form["packet_id"] = packet.packet_id
        if hasattr(packet, "reason_code"):
            form["reason"] = int(packet.reason_code)
        if hasattr(packet, "session_present"):
            form["session_present"] = packet.session_present
    return form


def properties_for(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as its constructors take them."""
    found: dict[str, Any] = {}
    for name, value in single_properties(holder).items():
        if name in BOOLEANS:
            if value not in (0, 1):
                raise Cannot(f"{name} is a boolean")
            value = bool(value)
        if name == "maximum_qos":
            value = mqtt5.QoS(value)
        if name == "user_properties":
            value = [tuple(pair) for pair in value]
        found[WORDS.get(name, name)] = value
    return found


def build(packet: Mapping[str, Any]) -> Any:
    """The packet; a property that its constructor does not have is a TypeError, thus a refusal."""
    kind = packet["type"]
    if kind in ("PingReq", "PingResp"):
        return mqtt5.PingReqPacket() if kind == "PingReq" else mqtt5.PingRespPacket()
    arguments = properties_for(packet)
    if kind == "Publish":
        return mqtt5.PublishPacket(
            packet["topic_name"],
            read_binary(packet.get("payload", "hex:")),
            qos=mqtt5.QoS(packet.get("qos", 0)),
            retain=packet.get("retain", False),
            packet_id=packet.get("packet_id"),
            duplicate=packet.get("dup", False),
            **arguments,
        )
    if kind == "Connect":
        return build_connect(packet, arguments)
    if kind == "ConnAck":
        return mqtt5.ConnAckPacket(
            session_present=packet.get("session_present", False),
            reason_code=mqtt5.ConnAckReasonCode(packet.get("reason", 0)),
            **arguments,
        )
    if kind == "Subscribe":
        identifiers = arguments.pop("subscription_ids", [])
        if len(identifiers) > 1:
            raise Cannot("a SUBSCRIBE has one Subscription Identifier")
        if identifiers:
            arguments["subscription_id"] = identifiers[0]
        filters = [
            mqtt5.TopicFilter(
                each["topic_filter"],
                max_qos=mqtt5.QoS(each.get("qos", 0)),
                no_local=each.get("no_local", False),
                retain_as_published=each.get("retain_as_published", False),
                retain_handling=mqtt5.RetainHandling(each.get("retain_handling", 0)),
            )
            for each in packet["subscriptions"]
        ]
        return mqtt5.SubscribePacket(packet["packet_id"], filters, **arguments)
    if kind == "Unsubscribe":
        patterns = list(packet["topic_filters"])
        return mqtt5.UnsubscribePacket(packet["packet_id"], patterns, **arguments)
    if kind == "SubAck":
        codes = [mqtt5.SubAckReasonCode(reason) for reason in packet["reasons"]]
        return mqtt5.SubAckPacket(packet["packet_id"], codes, **arguments)
    if kind == "UnsubAck":
        answers = [mqtt5.UnsubAckReasonCode(reason) for reason in packet.get("reasons", [])]
        return mqtt5.UnsubAckPacket(packet["packet_id"], answers, **arguments)
    if kind == "Disconnect":
        left = mqtt5.DisconnectReasonCode(packet.get("reason", 0))
        return mqtt5.DisconnectPacket(reason_code=left, **arguments)
    if kind == "Auth":
        step = mqtt5.AuthReasonCode(packet["reason"])
        return mqtt5.AuthPacket(reason_code=step, **arguments)
    made, codes_of = ACKS[kind]
    reason = codes_of(packet.get("reason", 0))
    return made(packet["packet_id"], reason_code=reason, **arguments)


def build_connect(packet: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
    if packet.get("version", 5) != 5:
        raise Cannot("it has level 5 only")
    will = packet.get("will")
    built = None
    if will is not None:
        built = mqtt5.Will(
            will["topic_name"],
            payload=read_binary(will.get("payload", "hex:")),
            qos=mqtt5.QoS(will.get("qos", 0)),
            retain=will.get("retain", False),
            **properties_for(will),
        )
    return mqtt5.ConnectPacket(
        packet.get("client_id", ""),
        username=packet.get("user_name"),
        password=read_password(packet),
        clean_start=packet.get("clean_start", True),
        will=built,
        keep_alive=packet.get("keep_alive", 0),
        **arguments,
    )


if __name__ == "__main__":
    serve(Mqtt5Library())
