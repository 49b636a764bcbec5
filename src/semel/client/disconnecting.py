"""The DISCONNECT with which the program closes a connection of MQTT 5.0."""

from semel.mqtt.codec import encode
from semel.mqtt.exchange import Exchange
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.properties import (
    REASON_STRING,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    Properties,
    PropertyItem,
)
from semel.mqtt.reasons import NORMAL_DISCONNECTION
from semel.mqtt.rules import PACKET_SIZE_WITHIN_MAXIMUM
from semel.mqtt.side import CLIENT
from semel.mqtt.violation import Violation


def disconnect_packet(
    exchange: Exchange, reason: int, session_expiry: int | None, properties: Properties
) -> Disconnect | None:
    """The DISCONNECT to send. Raises Violation if it breaks a rule; changes nothing.

    `properties` are the program's; `session_expiry` is what the client sets if they do not. If the
    packet exceeds the server's Maximum Packet Size, it has no Reason String and User Properties
    [MQTT-3.14.2-3], and if need be no `session_expiry`. None: not even an empty DISCONNECT fits,
    and the program requests nothing else.
    """
    current = exchange.session_expiry_interval
    own: list[PropertyItem] = []
    if properties.session_expiry_interval is None and session_expiry not in (None, current):
        own.extend(Properties(session_expiry_interval=session_expiry).items)
    full: list[PropertyItem] = []
    required: list[PropertyItem] = []
    for item in properties.items:
        if item[0] == SESSION_EXPIRY_INTERVAL and item[1] == current:
            continue
        full.append(item)
        if item[0] not in (REASON_STRING, USER_PROPERTY):
            required.append(item)
    too_large: Violation | None = None
    for items in (own + full, own + required, required):
        packet = Disconnect(reason, properties=Properties(items))
        violations = exchange.check(CLIENT, packet, len(encode(packet, MQTT5)))
        if not violations:
            return packet
        for violation in violations:
            if violation.rule is not PACKET_SIZE_WITHIN_MAXIMUM:
                raise violation
            too_large = violation
    if too_large is not None and (required or reason != NORMAL_DISCONNECTION):
        raise too_large
    return None
