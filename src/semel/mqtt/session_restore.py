"""Rebuilds a Session from a store.

The owner creates an empty `Session` and calls, in any order, the functions for which it has rows.
The backlog is not loaded here: the session counts its deliveries, and the owner loads them with
`Backlog.refill` when they are needed.
"""

from semel.mqtt.delivery import Delivery, Receipt
from semel.mqtt.packet_ids import with_id
from semel.mqtt.session import NEVER_EXPIRES, Session


def restore_backlog(
    session: Session,
    count: int,
    size: int,
    first: int,
    next_expiry: float | None,
    last_number: int,
    *,
    has_shared: bool = False,
) -> None:
    """Restore the backlog: its count, its total size, and the number of its `first` delivery.

    `last_number` is the highest number that any delivery of this session has had. `has_shared`:
    some deliveries in the backlog are of a shared subscription.
    """
    backlog = session.backlog
    backlog.beyond = count
    backlog.beyond_size = size
    backlog.size = size
    backlog.first_beyond = first
    backlog.beyond_expiry = next_expiry
    backlog.may_be_shared_beyond = has_shared
    session.last_number = last_number


def restore_end(session: Session, ends_at: float | None, expiry_interval: int, now: float) -> None:
    """Restore the end of the session: as stored, or `expiry_interval` from now if unknown.

    The end is unknown if the session was connected when the owner stopped.
    """
    session.ends_at = ends_at
    if ends_at is None and expiry_interval != NEVER_EXPIRES:
        session.end_at(now + expiry_interval)


def restore_receipt(session: Session, packet_id: int) -> Receipt:
    """Restore an inbound QoS 2 message that the owner has stored, but not accepted yet."""
    receipt = Receipt(packet_id, 2)
    session.add_pending(receipt)
    return receipt


def restore_exchanges(session: Session, in_flight: list[Delivery], stored_ids: list[int]) -> None:
    """Restore deliveries in flight, ordered by number, and inbound QoS 2 identifiers."""
    for delivery in in_flight:
        session.put_in_flight(delivery)
        session.last_release = max(session.last_release, delivery.released)
    for packet_id in stored_ids:
        session.stored_ids = with_id(session.stored_ids, packet_id)
