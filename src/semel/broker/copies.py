"""The copy of a message that one client gets."""

from typing import final

from semel.broker.subscriptions import SubscriptionEntry


@final
class Copy:
    """One client's copy of a message, while its matching subscriptions are collected."""

    qos: int
    retain_as_published: bool
    identifiers: list[int]

    def __init__(self) -> None:
        self.qos = 0
        self.retain_as_published = False
        self.identifiers = []

    def add(self, entry: SubscriptionEntry) -> None:
        """Add a matching subscription."""
        self.qos = max(self.qos, entry.qos)
        if entry.retain_as_published:
            self.retain_as_published = True
        if entry.identifier:
            self.identifiers.append(entry.identifier)
