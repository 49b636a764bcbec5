"""Counts since the start of the broker.

On the hot path a count is one addition per run of messages, or per QoS 1 or 2 message.
"""

from typing import Final, final

from semel.mqtt.delivery import Delivery
from semel.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    BANNED,
    NOT_AUTHORIZED,
)
from semel.mqtt.violation import Rule

# Why a message was dropped: the index of its count, and the name that metrics have for it.
QUEUE_FULL: Final = 0
SLOW_READER: Final = 1
MEMORY_SHORT: Final = 2
RETAINED_FULL: Final = 3
TOPIC_TOO_LONG: Final = 4
EXPIRED: Final = 5
TOO_LARGE: Final = 6
REVOKED: Final = 7
DROP_REASONS: Final = (
    "queue_full",
    "slow_reader",
    "memory_short",
    "retained_full",
    "topic_too_long",
    "expired",
    "too_large",
    "rights_revoked",
)
# Those before this one are dropped by the broker's own limits. The others are dropped as their
# publisher, their receiver or the operator has requested.
_FIRST_REQUESTED: Final = EXPIRED

# Reason codes with which a client that could not prove who it is, or may not connect, is refused.
AUTHENTICATION_CODES: Final = frozenset(
    (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, BANNED, BAD_AUTHENTICATION_METHOD)
)


@final
class Drops:
    """How many messages were dropped, by reason."""

    by_reason: Final[list[int]]

    def __init__(self) -> None:
        self.by_reason = [0] * len(DROP_REASONS)

    def add(self, reason: int, count: int = 1) -> None:
        """Count dropped messages, if there are any."""
        if count:
            self.by_reason[reason] += count

    def add_given_up(self, deliveries: list[Delivery], now: float) -> None:
        """Count deliveries that a session gave up: they expired, or exceed its packet size."""
        for delivery in deliveries:
            message = delivery.message
            assert message is not None
            self.add(EXPIRED if message.is_expired(now) else TOO_LARGE)

    @property
    def by_limits(self) -> int:
        """How many were dropped by limits of the broker, without those that expired, exceed the
        Maximum Packet Size of their receiver, or may no longer be received."""
        return sum(self.by_reason[:_FIRST_REQUESTED])


@final
class MessageCounts:
    """Messages of one direction by QoS, with the bytes of their payloads."""

    messages_0: int
    messages_1: int
    messages_2: int
    bytes_0: int
    bytes_1: int
    bytes_2: int

    def __init__(self) -> None:
        self.messages_0 = 0
        self.messages_1 = 0
        self.messages_2 = 0
        self.bytes_0 = 0
        self.bytes_1 = 0
        self.bytes_2 = 0

    def add(self, qos: int, *, messages: int, size: int) -> None:
        """Count messages of one QoS, and the bytes of their payloads."""
        if qos == 0:
            self.messages_0 += messages
            self.bytes_0 += size
        elif qos == 1:
            self.messages_1 += messages
            self.bytes_1 += size
        else:
            self.messages_2 += messages
            self.bytes_2 += size

    @property
    def total(self) -> int:
        """The number of messages of all QoS."""
        return self.messages_0 + self.messages_1 + self.messages_2

    def messages(self) -> tuple[int, int, int]:
        """The number of messages of each QoS."""
        return self.messages_0, self.messages_1, self.messages_2

    def payload_bytes(self) -> tuple[int, int, int]:
        """The bytes of the payloads of each QoS."""
        return self.bytes_0, self.bytes_1, self.bytes_2


@final
class BrokerCounters:
    """Counts of everything that passes through the broker."""

    bytes_received: int
    bytes_sent: int
    packets_received: int
    packets_sent: int
    received: Final[MessageCounts]
    sent: Final[MessageCounts]
    drops: Final[Drops]
    sessions_expired: int
    reauthentication_failures: int
    # Refused CONNECT and PUBLISH packets, by the reason code of 5.0.
    refused_connects: Final[dict[int, int]]
    refused_publishes: Final[dict[int, int]]
    # Rules that clients broke, by name.
    violations: Final[dict[str, int]]

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0
        self.packets_sent = 0
        self.received = MessageCounts()
        self.sent = MessageCounts()
        self.drops = Drops()
        self.sessions_expired = 0
        self.reauthentication_failures = 0
        self.refused_connects = {}
        self.refused_publishes = {}
        self.violations = {}

    @property
    def messages_received(self) -> int:
        """Received messages of all QoS."""
        return self.received.total

    @property
    def messages_sent(self) -> int:
        """Sent messages of all QoS."""
        return self.sent.total

    @property
    def authentication_failures(self) -> int:
        """How often a client failed to prove who it is, or may not connect."""
        refused = self.refused_connects
        return self.reauthentication_failures + sum(
            [refused.get(code, 0) for code in AUTHENTICATION_CODES]
        )

    def refuse_connect(self, reason: int) -> None:
        """Count a refused CONNECT."""
        self.refused_connects[reason] = self.refused_connects.get(reason, 0) + 1

    def refuse_publish(self, reason: int) -> None:
        """Count a refused PUBLISH or will."""
        self.refused_publishes[reason] = self.refused_publishes.get(reason, 0) + 1

    def break_rule(self, rule: Rule) -> None:
        """Count a rule that a client broke."""
        self.violations[rule.name] = self.violations.get(rule.name, 0) + 1
