"""gmqtt as a subject: the builders of its packets, and the handler of what its client receives.

The handler has no decoder apart from it: what a packet causes (a callback, an answer) shows what it
was read as. A packet that causes nothing is dropped, and counts as refused.
"""

import asyncio
from collections.abc import Mapping
from importlib.metadata import version as version_of
from types import SimpleNamespace
from typing import Any, Final

from semel.probe.adapters.adapter import (
    Cannot,
    Incomplete,
    end_without,
    every_version,
    property_pairs,
    read_binary,
    read_password,
    serve,
    single_properties,
    write_values,
)

try:
    from gmqtt.client import Message
    from gmqtt.mqtt import package
    from gmqtt.mqtt.constants import MQTTCommands
    from gmqtt.mqtt.handler import MqttPackageHandler
    from gmqtt.mqtt.protocol import MQTTProtocol
    from gmqtt.mqtt.utils import ConnectionState, IdGenerator
    from gmqtt.subscription import Subscription
except ImportError:
    end_without("gmqtt", "gmqtt")

LEVELS: Final = {"3.1.1": 4, "5.0": 5}
READ: Final = {
    0x20: "ConnAck",
    0x30: "Publish",
    0x40: "PubAck",
    0x50: "PubRec",
    0x60: "PubRel",
    0x70: "PubComp",
    0x90: "SubAck",
    0xB0: "UnsubAck",
    0xD0: "PingResp",
}
WRITTEN: Final = (
    *("Connect", "Publish", "PubAck", "PubRec", "PubRel", "PubComp", "Subscribe", "Unsubscribe"),
    *("PingReq", "Disconnect"),
)
COMMANDS: Final = {
    "PubAck": MQTTCommands.PUBACK,
    "PubRec": MQTTCommands.PUBREC,
    "PubRel": MQTTCommands.PUBREL | 2,
    "PubComp": MQTTCommands.PUBCOMP,
}
# Its words for properties, where they are others.
WORDS: Final = {
    "payload_format_indicator": "payload_format_id",
    "subscription_identifiers": "subscription_identifier",
    "authentication_method": "auth_method",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "response_information": "response_info",
    "maximum_qos": "max_qos",
    "user_properties": "user_property",
    "subscription_identifiers_available": "sub_id_available",
}
NAMES: Final = {word: name for name, word in WORDS.items()}
REPEATED: Final = ("user_properties", "subscription_identifiers")


class GmqttLibrary:
    """gmqtt, as a subject."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def hello(self) -> dict[str, Any]:
        return {
            "name": "gmqtt",
            "version": version_of("gmqtt"),
            # Of a DISCONNECT it reads nothing.
            "decode": every_version(list(READ.values())),
            "encode": every_version(WRITTEN),
        }

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        found: list[Any] = []
        connection = SimpleNamespace(put_package=found.append)
        taken = MQTTProtocol._read_packet(SimpleNamespace(_connection=connection), data)
        if taken == -1:
            raise ValueError("Malformed Remaining Length")
        if not found:
            raise Incomplete
        form = self.loop.run_until_complete(handle(found[0], LEVELS[version]))
        return {"packet": form, "taken": taken}

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        identifiers = IdGenerator()
        protocol = SimpleNamespace(
            proto_name=b"MQTT", proto_ver=LEVELS[version], id_generator=identifiers
        )
        kind = packet["type"]
        if kind in ("Subscribe", "Unsubscribe") or (kind == "Publish" and packet.get("qos")):
            identifier = packet.get("packet_id", 0)
            if not 0 < identifier < 65_536:
                raise Cannot("the library numbers its packets itself")
            identifiers._last_used_id = identifier - 1
        return bytes(build(packet, protocol))


async def handle(found: Any, level: int) -> dict[str, Any]:
    """What the handler of the client makes of a packet; raises what it raises."""
    kind = READ.get(found.cmd & 0xF0)
    seen: dict[str, Any] = {}

    async def later(*arguments: Any, **others: Any) -> None:
        return None

    def answer(command: int, identifier: int, dup: bool, reason_code: int = 0) -> None:
        seen["packet_id"] = identifier

    handler = MqttPackageHandler(
        connack_event=asyncio.Event(),
        connection_lost_event=asyncio.Event(),
        connection_state=ConnectionState(protocol_version=level),
        reconnect_callback=later,
        disconnect_callback=later,
        resend_qos_callback=later,
        clear_qos_callback=lambda: None,
        connect_properties={},
        subscriptions_getter=list,
        remove_message_callback=lambda identifier: seen.update(packet_id=identifier),
        store_message_callback=lambda identifier, data: None,
        send_command_with_mid_callback=answer,
    )

    def on_message(topic: Any, payload: bytes, qos: int, properties: dict[str, Any]) -> None:
        seen.update(topic_name=topic, payload=write_values(payload), qos=qos)
        seen["dup"], seen["retain"] = properties.pop("dup"), properties.pop("retain")
        seen["properties"] = properties

    def on_connect(session_present: int, result: int, properties: dict[str, Any]) -> None:
        seen.update(session_present=session_present, reason=result)
        seen["properties"] = handler._connack_properties

    handler.on_message = on_message
    handler.on_connect = on_connect
    handler.on_subscribe = lambda identifier, reasons, properties: seen.update(
        packet_id=identifier, reasons=list(reasons), properties=properties
    )
    handler.on_unsubscribe = lambda identifier, reasons: seen.update(
        packet_id=identifier, reasons=list(reasons)
    )
    handler._handle_packet(found.cmd, found.data)
    await asyncio.sleep(0)
    if kind == "ConnAck" and handler._error is not None:
        if handler._error._code == 10:
            raise ValueError(str(handler._error))
        seen["reason"] = handler._error._code
    if kind == "ConnAck" and found.data[1:2] == b"\1" and level == 5:
        # It connects again with 3.1.1.
        seen["reason"] = 1
    if not seen and kind != "PingResp":
        raise ValueError("the packet is dropped")
    if "properties" in seen:
        seen["properties"] = describe_properties(seen["properties"])
    if not isinstance(seen.get("topic_name", ""), str):
        # Ill-formed text is handed over as bytes.
        seen["topic_name"] = repr(seen["topic_name"])
    return {"type": kind, **seen}


def describe_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Its properties, of which each has a list of values."""
    form = {}
    for word, values in properties.items():
        name = NAMES.get(word, word)
        several = name in REPEATED or len(values) > 1
        form[name] = write_values(values if several else values[0])
    return form


def properties_for(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as its functions take them."""
    found = {}
    for name, value in single_properties(holder).items():
        if name == "authentication_data":
            raise Cannot("it has no Authentication Data")
        if name == "subscription_identifiers":
            if len(value) > 1:
                raise Cannot("a property has one value")
            value = value[0]
        if name == "user_properties":
            value = [tuple(pair) for pair in value]
        found[WORDS.get(name, name)] = value
    return found


def build(packet: Mapping[str, Any], protocol: Any) -> bytes:
    kind = packet["type"]
    if kind == "Publish":
        return build_publish(packet, protocol)
    if kind == "Connect":
        return build_connect(packet, protocol)
    if kind == "PingReq":
        return bytes(package.SimpleCommandPacket.build_package(MQTTCommands.PINGREQ))
    if kind == "Subscribe":
        entries = [
            Subscription(
                each["topic_filter"],
                each.get("qos", 0),
                each.get("no_local", False),
                each.get("retain_as_published", False),
                each.get("retain_handling", 0),
            )
            for each in packet["subscriptions"]
        ]
        arguments = properties_for(packet)
        return bytes(package.SubscribePacket.build_package(entries, protocol, **arguments)[1])
    if kind == "Unsubscribe":
        filters = list(packet["topic_filters"])
        arguments = properties_for(packet)
        return bytes(package.UnsubscribePacket.build_package(filters, protocol, **arguments)[1])
    if kind == "Disconnect":
        arguments = properties_for(packet)
        reason = packet.get("reason", 0)
        return bytes(package.DisconnectPacket.build_package(protocol, reason, **arguments))
    if property_pairs(packet):
        raise Cannot("it acknowledges without properties")
    if not 0 < packet["packet_id"] < 65_536:
        raise Cannot("it acknowledges what it received")
    return bytes(
        package.CommandWithMidPacket.build_package(
            COMMANDS[kind],
            packet["packet_id"],
            False,
            reason_code=packet.get("reason", 0),
            proto_ver=protocol.proto_ver,
        )
    )


def build_publish(packet: Mapping[str, Any], protocol: Any) -> bytes:
    message = Message(
        packet["topic_name"],
        read_binary(packet.get("payload", "hex:")),
        packet.get("qos", 0),
        packet.get("retain", False),
        **properties_for(packet),
    )
    if packet.get("dup"):
        if not message.qos:
            raise Cannot("DUP is not the caller's")
        message.dup = True
    if not message.qos and packet.get("packet_id"):
        raise Cannot("the library numbers its packets itself")
    return bytes(package.PublishPacket.build_package(message, protocol)[1])


def build_connect(packet: Mapping[str, Any], protocol: Any) -> bytes:
    if packet.get("version", 5) != protocol.proto_ver:
        raise Cannot("the level follows the version")
    if not packet.get("client_id"):
        raise Cannot("it invents a ClientId where there is none")
    password = read_password(packet)
    if password is not None:
        if packet.get("user_name") is None:
            raise Cannot("its passwords come with a user name")
        try:
            password.decode()
        except UnicodeDecodeError:
            raise Cannot("it has passwords as text") from None
    will = packet.get("will")
    message = None
    if will is not None:
        message = Message(
            will["topic_name"],
            read_binary(will.get("payload", "hex:")),
            will.get("qos", 0),
            will.get("retain", False),
            **properties_for(will),
        )
    user_name = packet.get("user_name")
    return bytes(
        package.LoginPackageFactor.build_package(
            packet["client_id"],
            None if user_name is None else user_name.encode(),
            password,
            packet.get("clean_start", True),
            packet.get("keep_alive", 0),
            protocol,
            will_message=message,
            **properties_for(packet),
        )
    )


if __name__ == "__main__":
    serve(GmqttLibrary())
