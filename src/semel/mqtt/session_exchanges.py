"""The open exchanges of a session, which the `Exchange` of its next connection starts with."""

from semel.mqtt.session import Session
from semel.mqtt.side import PLACE_UNKNOWN, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2, Open


def open_exchanges(session: Session, me: int, peer: int) -> list[Open]:
    """The exchanges between `me`, whose session it is, and `peer`."""
    opened = open_deliveries(session, me)
    for packet_id in session.stored_ids.listed():
        # The set does not keep their order.
        opened.append((peer, packet_id, RECEIVED | PLACE_UNKNOWN))
    return opened


def open_deliveries(session: Session, me: int) -> list[Open]:
    """The exchanges that `me` has begun, as the sender of a message."""
    opened: list[Open] = []
    for packet_id, delivery in session.flights.items():
        if delivery.released:
            opened.append((me, packet_id, RELEASED))
        else:
            opened.append((me, packet_id, SENT_QOS_1 if delivery.qos == 1 else SENT_QOS_2))
    return opened
