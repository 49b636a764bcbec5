"""Drops deliveries of a Session: messages that have expired, or that go to other sessions.

Each is recorded as FINISHED. The functions return the dropped deliveries, for the owner's counters.
"""

from semel.mqtt.delivery import FINISHED, Change, Delivery
from semel.mqtt.session import Session


def give_up_expired(session: Session, now: float) -> list[Delivery]:
    """Drop the messages of the backlog that have expired, and return them [MQTT-3.3.2-5].

    The owner finds those beyond the window in its store, and calls `give_up_beyond`.
    """
    expired = session.backlog.take_expired(now)
    _record_finished(session, expired)
    return expired


def give_up_beyond(
    session: Session, expired: list[tuple[int, int]], next_expiry: float | None
) -> None:
    """Drop the deliveries (number, size) beyond the window that have expired in the store.

    `next_expiry` is when the next delivery in the store expires; None: none does.
    """
    session.backlog.beyond_expiry = next_expiry
    for number in session.backlog.expire_beyond(expired):
        session.record(Change(FINISHED, number=number))


def give_up_shared(session: Session, shares: set[str] | None, *, sent: bool) -> list[Delivery]:
    """Drop messages of these shared subscriptions (None: all), for other sessions [4.8.2].

    Returns the dropped deliveries: those never sent and, with `sent`, QoS 1 messages in flight,
    which may go to another session only after this one has ended. A QoS 2 message that was sent
    must not go to another session [MQTT-4.8.2-5].
    """
    given_up: list[Delivery] = []
    if sent:
        for delivery in session.deliveries_in_flight():
            if delivery.qos == 1 and delivery.is_of(shares):
                session.finish(delivery)
                given_up.append(delivery)
    waiting = session.backlog.take_shared(shares)
    _record_finished(session, waiting)
    given_up.extend(waiting)
    return given_up


def give_up_queued(session: Session, numbers: set[int]) -> list[Delivery]:
    """Drop the deliveries of the backlog in memory that have these numbers."""
    dropped = session.backlog.take_numbers(numbers)
    _record_finished(session, dropped)
    return dropped


def _record_finished(session: Session, unsent: list[Delivery]) -> None:
    """Record FINISHED for deliveries that were taken from the backlog."""
    if session.durable:
        for delivery in unsent:
            session.record(Change(FINISHED, number=delivery.number))
