"""Resets a Session whose peer has lost its own."""

from semel.mqtt.delivery import Delivery, number_order
from semel.mqtt.session import Session


def reset_session(session: Session) -> tuple[list[Delivery], list[Delivery]]:
    """Discard every open exchange, because the peer has lost the session [MQTT-3.2.2-5].

    Returns two lists: the deliveries that are complete, because the peer has acknowledged their
    messages, and those that return to the head of the backlog as new messages, which may already
    have reached the peer. Accepting a Receipt of the old session has no effect.
    """
    complete: list[Delivery] = []
    again: list[Delivery] = []
    for delivery in session.deliveries_in_flight():
        if delivery.released:
            session.finish(delivery)
            complete.append(delivery)
        else:
            again.append(delivery)
    again.sort(key=number_order)
    for delivery in reversed(again):
        session.recall(delivery)
    if session.stored_ids is not None:
        for packet_id in session.stored_ids.listed():
            session.free(packet_id)
    session.pending = None
    return complete, again
