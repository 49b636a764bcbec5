"""Loads the session of a client from its store, and its backlog as messages are sent."""

from semel.client.subscriptions import ClientSubscriptions
from semel.mqtt.delivery import Delivery
from semel.mqtt.session import Session
from semel.mqtt.session_restore import restore_backlog, restore_exchanges
from semel.store.store import Store


def restore_session(
    store: Store, store_id: int, session: Session, subscriptions: ClientSubscriptions
) -> int | None:
    """Load the session `store_id`. Returns its expiry interval, None if the store does not have it.

    The interval is 0 until a server has accepted the client for the first time: until then the
    server has no session that could be resumed.
    """
    expiry_interval: int | None = None
    saved = store.restore()
    for each in saved.sessions:
        if each.store_id == store_id:
            expiry_interval = each.expiry_interval
            restore_backlog(
                session,
                each.waiting,
                each.waiting_bytes,
                each.first_waiting,
                each.next_expiry,
                each.last_delivery,
            )
    in_flight, stored_ids = store.exchanges(store_id)
    restore_exchanges(session, in_flight, stored_ids)
    for owner, subscription, identifier in saved.subscriptions:
        if owner == store_id:
            subscriptions.restore(subscription, identifier)
    return expiry_interval


def poll(session: Session, store: Store, store_id: int, now: float) -> list[Delivery]:
    """Send what may be sent, loading more of the backlog from the store.

    Returns the deliveries that were dropped because they are expired or too large.
    """
    given_up = session.poll(now)
    while session.backlog.missing():
        backlog = session.backlog
        deliveries = store.queue(store_id, backlog.first_beyond, backlog.missing())
        if not deliveries:
            break
        backlog.refill(deliveries)
        given_up.extend(session.poll(now))
    return given_up
