"""MQTT 3.1.1 and 5.0 without I/O: bytes in, packets out, and every rule stated once.

    >>> from semel.mqtt import MQTT311, Publish, decode, encode
    >>> encode(Publish("plant/1/temp", b"21.5", qos=1, packet_id=7), MQTT311).hex()
    '3214000c706c616e742f312f74656d70000732312e35'
    >>> packet, end = decode(bytes.fromhex("30040001613f"), MQTT311)
    >>> packet.topic_name, packet.payload, end
    ('a', b'?', 6)

A packet that exists is valid: constructors check their arguments, and `decode` uses the same
constructors. A rule broken by the caller raises `Violation`; `Decoder.receive` returns a rule
broken by the peer as a value. `observe` lists every rule that a packet breaks.
"""

from semel.mqtt import exchange_rules, reasons, rules
from semel.mqtt.codec import LARGEST_PACKET, Decoder, Packet, decode, encode, packet_type_of
from semel.mqtt.delivery import Change, Delivery, Receipt
from semel.mqtt.exchange import Exchange
from semel.mqtt.message import Message, received_message
from semel.mqtt.observation import Observation, observe
from semel.mqtt.packet_types import MQTT5, MQTT311, PACKET_NAMES
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect, Will
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq, PingResp
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.session import Session
from semel.mqtt.side import CLIENT, SERVER
from semel.mqtt.topics import check_levels, split_share, topic_matches
from semel.mqtt.violation import Rule, Violation

# Every rule, in the order in which the two files state them.
RULES: tuple[Rule, ...] = tuple(
    rule
    for module in (rules, exchange_rules)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
)

__all__ = [
    "CLIENT",
    "LARGEST_PACKET",
    "MQTT5",
    "MQTT311",
    "NO_PROPERTIES",
    "PACKET_NAMES",
    "RULES",
    "SERVER",
    "Auth",
    "Change",
    "ConnAck",
    "Connect",
    "Decoder",
    "Delivery",
    "Disconnect",
    "Exchange",
    "Message",
    "Observation",
    "Packet",
    "PingReq",
    "PingResp",
    "Properties",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "Receipt",
    "Rule",
    "Session",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Violation",
    "Will",
    "check_levels",
    "decode",
    "encode",
    "exchange_rules",
    "observe",
    "packet_type_of",
    "reasons",
    "received_message",
    "rules",
    "split_share",
    "topic_matches",
]
