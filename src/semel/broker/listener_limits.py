"""The limits of the connections of one listener.

They are values of `[[listener]]`, or of `[broker]` where the listener has none. 0 means no limit
for the keys that only a listener has.
"""

from typing import Final, final

from semel.broker.identity import DEFAULT_LISTENER
from semel.broker.settings import BrokerSettings


@final
class ListenerLimits:
    """The limits of one listener."""

    listener: Final[str]
    # Connected clients of this listener, in total and per address; 0: no limit.
    maximum_connections: Final[int]
    maximum_connections_per_address: Final[int]
    connect_timeout: Final[float]
    packet_timeout: Final[float]
    maximum_packet_size: Final[int]
    before_connect_packet_size: Final[int]
    receive_maximum: Final[int]
    topic_alias_maximum: Final[int]
    maximum_keep_alive: Final[int]
    topic_levels: Final[int]
    # Per client: subscriptions, and messages that are sent to it and not complete.
    maximum_subscriptions: Final[int]
    maximum_inflight_messages: Final[int]
    # Per connection; 0: no limit.
    messages_per_second: Final[int]
    bytes_per_second: Final[int]

    def __init__(
        self,
        listener: str,
        *,
        maximum_connections: int,
        maximum_connections_per_address: int,
        connect_timeout: float,
        packet_timeout: float,
        maximum_packet_size: int,
        before_connect_packet_size: int,
        receive_maximum: int,
        topic_alias_maximum: int,
        maximum_keep_alive: int,
        topic_levels: int,
        maximum_subscriptions: int,
        maximum_inflight_messages: int,
        messages_per_second: int,
        bytes_per_second: int,
    ) -> None:
        self.listener = listener
        self.maximum_connections = maximum_connections
        self.maximum_connections_per_address = maximum_connections_per_address
        self.connect_timeout = connect_timeout
        self.packet_timeout = packet_timeout
        self.maximum_packet_size = maximum_packet_size
        self.before_connect_packet_size = before_connect_packet_size
        self.receive_maximum = receive_maximum
        self.topic_alias_maximum = topic_alias_maximum
        self.maximum_keep_alive = maximum_keep_alive
        self.topic_levels = topic_levels
        self.maximum_subscriptions = maximum_subscriptions
        self.maximum_inflight_messages = maximum_inflight_messages
        self.messages_per_second = messages_per_second
        self.bytes_per_second = bytes_per_second


def default_limits(settings: BrokerSettings) -> ListenerLimits:
    """The limits of a listener that sets none of its own."""
    return ListenerLimits(
        DEFAULT_LISTENER,
        maximum_connections=0,
        maximum_connections_per_address=0,
        connect_timeout=settings.connect_timeout,
        packet_timeout=settings.packet_timeout,
        maximum_packet_size=settings.maximum_packet_size,
        before_connect_packet_size=settings.before_connect_packet_size,
        receive_maximum=settings.receive_maximum,
        topic_alias_maximum=settings.topic_alias_maximum,
        maximum_keep_alive=settings.maximum_keep_alive,
        topic_levels=settings.topic_levels,
        maximum_subscriptions=settings.maximum_subscriptions,
        maximum_inflight_messages=settings.maximum_inflight_messages,
        messages_per_second=0,
        bytes_per_second=0,
    )
