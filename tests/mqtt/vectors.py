"""The vectors of semel.vectors, with packets built from their descriptions."""

from dataclasses import dataclass
from typing import Any

from semel import vectors
from semel.mqtt import (
    LARGEST_PACKET,
    MQTT5,
    MQTT311,
    RULES,
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
    Rule,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from semel.mqtt.properties import property_identifier

VERSIONS = {"3.1.1": MQTT311, "5.0": MQTT5}
RULE_BY_NAME = {rule.name: rule for rule in RULES}
CLASSES: dict[str, Any] = {
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


@dataclass
class Vector:
    """One vector of a packet's file. Either `data` or `build` is there, and `packet` or `rule`."""

    file: str
    name: str
    statements: list[str]
    version: int
    data: bytes | None
    build: dict[str, Any] | None
    packet: dict[str, Any] | None
    rule: Rule | None
    encodes_to: bytes
    maximum_packet_size: int

    def __str__(self) -> str:
        version = "5.0" if self.version == MQTT5 else "3.1.1"
        return f"{self.file} {version} {self.name}".replace("\\", "/")


@dataclass
class Trace:
    """One vector of the file "exchange"."""

    name: str
    statements: list[str]
    version: int
    steps: list[tuple[str, bytes]]
    carried: list[tuple[str, int, str]]
    rule: Rule | None

    def __str__(self) -> str:
        version = "5.0" if self.version == MQTT5 else "3.1.1"
        return f"exchange {version} {self.name}"


def read_value(value: Any) -> Any:
    """A value of a description as a constructor takes it."""
    if isinstance(value, str) and value.startswith("hex:"):
        return vectors.parse_bytes(value.removeprefix("hex:"))
    if isinstance(value, str) and value.startswith("text:"):
        text, _, times = value.removeprefix("text:").rpartition("*")
        return text * int(times)
    if isinstance(value, list):
        return tuple(read_value(entry) for entry in value)
    return value


def build_properties(description: Any) -> Properties:
    if isinstance(description, dict):
        return Properties(**{name: read_value(value) for name, value in description.items()})
    items = []
    for key, value in description:
        identifier = property_identifier(key) if isinstance(key, str) else key
        items.append((identifier, read_value(value)))
    return Properties(items)


def build_packet(description: dict[str, Any]) -> Packet:
    """The packet that a description describes; raises `Violation` if there can be none."""
    arguments: dict[str, Any] = {}
    for name, value in description.items():
        if name == "properties":
            arguments[name] = build_properties(value)
        elif name == "will":
            will = {key: read_value(entry) for key, entry in value.items() if key != "properties"}
            if "properties" in value:
                will["properties"] = build_properties(value["properties"])
            arguments[name] = Will(**will)
        elif name == "subscriptions":
            entries = [{key: read_value(v) for key, v in entry.items()} for entry in value]
            arguments[name] = [Subscription(**entry) for entry in entries]
        elif name != "type":
            arguments[name] = read_value(value)
    packet: Packet = CLASSES[description["type"]](**arguments)
    return packet


def load_vectors() -> list[Vector]:
    """Every vector of every packet's file."""
    loaded = []
    for file in vectors.names():
        if file == vectors.EXCHANGE:
            continue
        for entry in vectors.load(file):
            raw: dict[str, Any] = entry
            data = vectors.parse_bytes(raw["bytes"]) if "bytes" in raw else None
            vector = Vector(
                file,
                raw["name"],
                raw["statements"],
                VERSIONS[raw["version"]],
                data,
                raw.get("build"),
                raw.get("packet"),
                RULE_BY_NAME[raw["rule"]] if "rule" in raw else None,
                vectors.parse_bytes(raw["encodes_to"]) if "encodes_to" in raw else data or b"",
                raw.get("maximum_packet_size", LARGEST_PACKET),
            )
            loaded.append(vector)
    return loaded


def load_traces() -> list[Trace]:
    """Every trace of the file "exchange"."""
    loaded = []
    for entry in vectors.load(vectors.EXCHANGE):
        raw: dict[str, Any] = entry
        trace = Trace(
            raw["name"],
            raw["statements"],
            VERSIONS[raw["version"]],
            [(sender, vectors.parse_bytes(data)) for sender, data in raw["steps"]],
            [(sender, packet_id, stage) for sender, packet_id, stage in raw.get("carried", [])],
            RULE_BY_NAME[raw["rule"]] if "rule" in raw else None,
        )
        loaded.append(trace)
    return loaded
