"""Lists the open exchanges of a session, with which the `Exchange` of a connection starts."""

from semel.mqtt.session import Session
from semel.mqtt.side import PLACE_UNKNOWN, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2, Open


def open_exchanges(session: Session, me: int, peer: int) -> list[Open]:
    """All open exchanges of the session; `me` and `peer` are CLIENT and SERVER, or vice versa."""
    opened = open_deliveries(session, me)
    if session.stored_ids is not None:
        for packet_id in session.stored_ids.listed():
            # The set does not keep the order of the identifiers.
            opened.append((peer, packet_id, RECEIVED | PLACE_UNKNOWN))
    return opened


def open_deliveries(session: Session, me: int) -> list[Open]:
    """The open exchanges in which `me` is the sender of the message."""
    opened: list[Open] = []
    for delivery in session.deliveries_in_flight():
        if delivery.released:
            opened.append((me, delivery.packet_id, RELEASED))
        else:
            stage = SENT_QOS_1 if delivery.qos == 1 else SENT_QOS_2
            opened.append((me, delivery.packet_id, stage))
    return opened
