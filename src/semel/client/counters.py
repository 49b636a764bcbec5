"""The counters of a client."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientCounters:
    """What a client has sent and received so far."""

    # Messages sent and, at QoS 1 and 2, acknowledged; messages received.
    sent: int
    received: int
    # Publications that the server refused, or that were not sent: expired, or too large for it.
    refused: int
    # Received messages that no listener got: of a filter that was unsubscribed, or QoS 0 messages
    # for which there was no room.
    dropped: int
    # Attempts to connect after the first.
    reconnects: int
    # How often the server had lost the session, so that messages may have been missed; and
    # publications sent again because of that, which may be duplicates.
    sessions_lost: int
    resent: int
    # Messages in the backlog; in flight; and received, but not acknowledged by the program.
    waiting: int
    in_flight: int
    unacknowledged: int
