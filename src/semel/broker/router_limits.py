"""Makes the router of a broker, with the limits of its settings."""

from semel.broker.access_control import AccessControl
from semel.broker.memory import Memory
from semel.broker.router import Router
from semel.broker.settings import EACH, BrokerSettings
from semel.store.store import Store
from semel.store.streams import Streams


def make_router(
    settings: BrokerSettings,
    access: AccessControl,
    store: Store,
    streams: Streams,
    memory: Memory,
) -> Router:
    """A router whose limits are those of the settings."""
    return Router(
        access,
        store,
        streams,
        memory,
        copies_for_each=settings.overlapping == EACH,
        maximum_subscriptions_per_user=settings.maximum_subscriptions_per_user,
        maximum_client_subscription_bytes=settings.maximum_client_subscription_bytes,
        maximum_subscription_bytes=settings.maximum_subscription_bytes,
        maximum_queued=settings.maximum_queued_messages,
        maximum_queued_bytes=settings.maximum_queued_bytes,
        maximum_outgoing=settings.maximum_outgoing_bytes,
        maximum_retained=settings.maximum_retained,
        maximum_retained_bytes=settings.maximum_retained_bytes,
        maximum_retained_per_user=settings.maximum_retained_per_user,
        maximum_retained_bytes_per_user=settings.maximum_retained_bytes_per_user,
    )
