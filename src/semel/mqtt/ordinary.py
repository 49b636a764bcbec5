"""The ordinary step of an exchange, checked and applied in one call.

Almost every packet with a Packet Identifier is the next step of its exchange, in order, on a
connected client. For these packets, the functions here change an `Exchange` as `observe` would,
from two numbers instead of a packet. For anything else they return False and change nothing, and
the caller uses `observe`, which knows all rules. A table test compares both in every state.
"""

from semel.mqtt.exchange import CONNECTED, Exchange
from semel.mqtt.packet_types import MQTT5, PUBACK, PUBCOMP, PUBREC
from semel.mqtt.side import CLIENT, MANY_OPEN, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2


def ordinary_publish(exchange: Exchange, sender: int, qos: int, packet_id: int) -> bool:
    """Apply a QoS 1 or 2 PUBLISH with DUP 0, without properties, and with a free identifier.

    Returns False, and changes nothing, if it is not ordinary.
    """
    side = exchange.client if sender == CLIENT else exchange.server
    if exchange.phase != CONNECTED or side.disconnected or side.stage(packet_id):
        return False
    if sender == CLIENT and (side.request(packet_id) or qos > exchange.maximum_qos):
        return False
    if exchange.version != MQTT5:
        side.use(packet_id)
    elif side.quota <= 0:
        return False
    side.quota -= 1
    side.put(packet_id, SENT_QOS_1 if qos == 1 else SENT_QOS_2)
    return True


def ordinary_answer(exchange: Exchange, sender: int, packet_type: int, packet_id: int) -> bool:
    """Apply a PUBACK, PUBREC, PUBREL or PUBCOMP without a reason code, if it is the next step.

    Returns False, and changes nothing, if it is not ordinary.
    """
    from_client = sender == CLIENT
    me = exchange.client if from_client else exchange.server
    if exchange.phase != CONNECTED or me.disconnected:
        return False
    other = exchange.server if from_client else exchange.client
    # PUBREL comes from the publisher, the others from its peer.
    publisher = other
    awaited = SENT_QOS_2
    last = 0
    if packet_type == PUBACK:
        awaited = SENT_QOS_1
        last = publisher.last_puback
    elif packet_type == PUBREC:
        last = publisher.last_pubrec
    elif packet_type == PUBCOMP:
        awaited = RELEASED
    else:
        publisher = me
        awaited = RECEIVED
        last = publisher.last_pubrel
    opened = publisher.opened
    if opened is None:
        return False
    value = opened.get(packet_id, 0)
    order = value >> 4
    if value & 15 != awaited or order <= publisher.carried_until:
        return False
    if from_client and order < last:
        return False
    if packet_type == PUBACK:
        publisher.last_puback = order
        publisher.free(packet_id, me.receive_maximum)
    elif packet_type == PUBCOMP:
        publisher.free(packet_id, me.receive_maximum)
    elif packet_type == PUBREC:
        publisher.last_pubrec = order
        if len(opened) > MANY_OPEN:
            publisher.move(packet_id, RECEIVED)
        else:
            publisher.put(packet_id, RECEIVED)
    else:
        publisher.last_pubrel = order
        publisher.put(packet_id, RELEASED)
    return True
