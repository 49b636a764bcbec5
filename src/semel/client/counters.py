"""What a client can tell of what it did."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientCounters:
    """What a client has seen so far."""

    # Messages that were sent and, at QoS 1 and 2, acknowledged; messages that were received.
    sent: int
    received: int
    # Publications that the server refused, or that were given up: expired, or more than it takes.
    refused: int
    # Messages that came and that nobody wanted: of a filter that was given up, or of QoS 0 when
    # there was no room for them.
    dropped: int
    # Attempts to connect after the first.
    reconnects: int
    # Times that the server had forgotten the session, so that messages may have been missed; and
    # publications that were sent anew because of that, which may have arrived twice.
    sessions_lost: int
    resent: int
    # Messages that wait to be sent; that were sent and are not complete; that came and were not
    # acknowledged by the program.
    waiting: int
    in_flight: int
    unacknowledged: int
