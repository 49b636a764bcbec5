"""semel's own codec as a subject: the one place of this room that uses our encoder."""

from collections.abc import Mapping
from typing import Any, Final

from semel import __version__
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    decode,
    encode,
)
from semel.mqtt.properties import property_identifier
from semel.probe.adapters.adapter import (
    ALL_TYPES,
    Incomplete,
    every_version,
    property_pairs,
    read_values,
    serve,
)
from semel.probe.packet_form import describe_packet

LEVELS: Final = {"3.1.1": MQTT311, "5.0": MQTT5}
CLASSES: Final[Mapping[str, Any]] = {
    "Auth": Auth,
    "ConnAck": ConnAck,
    "Connect": Connect,
    "Disconnect": Disconnect,
    "PingReq": PingReq,
    "PingResp": PingResp,
    "PubAck": PubAck,
    "PubComp": PubComp,
    "PubRec": PubRec,
    "PubRel": PubRel,
    "Publish": Publish,
    "SubAck": SubAck,
    "Subscribe": Subscribe,
    "UnsubAck": UnsubAck,
    "Unsubscribe": Unsubscribe,
}


def build_properties(holder: Mapping[str, Any]) -> Properties:
    """The properties of a packet or will; raises Violation."""
    items = []
    for key, value in property_pairs(holder):
        identifier = property_identifier(key) if isinstance(key, str) else key
        items.append((identifier, tuple(value) if isinstance(value, list) else value))
    return Properties(items)


def build_packet(form: Mapping[str, Any]) -> Packet:
    """The packet of ours that a description describes; raises Violation if there can be none."""
    arguments: dict[str, Any] = {}
    for name, value in form.items():
        if name == "properties":
            arguments[name] = build_properties(form)
        elif name == "will" and value is not None:
            fields = {key: read_values(each) for key, each in value.items() if key != "properties"}
            arguments[name] = Will(**fields, properties=build_properties(value))
        elif name == "subscriptions":
            arguments[name] = [Subscription(**read_values(entry)) for entry in value]
        elif name != "type":
            arguments[name] = read_values(value)
    packet: Packet = CLASSES[form["type"]](**arguments)
    return packet


class SemelLibrary:
    """semel.mqtt, as a subject."""

    def hello(self) -> dict[str, Any]:
        types = every_version(ALL_TYPES)
        return {"name": "semel", "version": __version__, "decode": types, "encode": types}

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        decoded = decode(data, LEVELS[version])
        if decoded is None:
            raise Incomplete
        packet, end = decoded
        return {"packet": describe_packet(packet), "taken": end}

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        return encode(build_packet(packet), LEVELS[version])


if __name__ == "__main__":
    serve(SemelLibrary())
