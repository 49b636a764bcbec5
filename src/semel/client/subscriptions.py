"""The subscriptions that a program requests, and those that the server's session has.

Each Topic Filter has its own SUBSCRIBE packet and, if the server supports them, its own
Subscription Identifier, so that a message shows which filter it matched. `requested` has the
subscriptions of the program, `in_session` those of the server's session. After a reconnect the
client sends requests for the difference, and repeats those that were not answered. It is uncertain
whether the server has the subscriptions that an earlier run stored, so they are requested again.
"""

from typing import Final, final

from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.subscribe import Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import Unsubscribe
from semel.mqtt.properties import NO_PROPERTIES, SUBSCRIPTION_IDENTIFIER, Properties
from semel.mqtt.session import Outgoing, Session
from semel.mqtt.topics import split_share, topic_matches
from semel.store.commit import Commit

# How many topics have their matching filters cached; beyond that the cache is cleared.
_CACHED_TOPICS: Final = 10_000


@final
class RequestedSubscription:
    """A subscription with its identifier, 0 for none, and the user properties of its request."""

    subscription: Final[Subscription]
    identifier: Final[int]
    properties: Final[Properties]

    def __init__(
        self, subscription: Subscription, identifier: int, properties: Properties = NO_PROPERTIES
    ) -> None:
        self.subscription = subscription
        self.identifier = identifier
        self.properties = properties


@final
class ClientSubscriptions:
    """The subscriptions of one client."""

    requested: Final[dict[str, RequestedSubscription]]
    in_session: Final[dict[str, RequestedSubscription]]
    # Filters whose request is due, in the order of sending.
    due: Final[dict[str, None]]
    # Unanswered requests by Packet Identifier: filter and subscription, None for UNSUBSCRIBE.
    pending: Final[dict[int, tuple[str, RequestedSubscription | None]]]
    # Filters that the server's session may have: stored by an earlier run, or in doubt.
    _unconfirmed: Final[set[str]]
    # Subscription Identifiers that the program chose itself.
    _program_identifiers: Final[set[int]]
    # Properties of UNSUBSCRIBE packets to be sent, by filter.
    _unsubscribe_properties: Final[dict[str, Properties]]
    # Changes for the store: subscriptions that the server may have, None for those it does not.
    _changes: list[tuple[str, RequestedSubscription | None]]
    _last_identifier: int
    _by_identifier: Final[dict[int, str]]
    _filters_by_topic: dict[str, list[str]]

    def __init__(self) -> None:
        self.requested = {}
        self.in_session = {}
        self.due = {}
        self.pending = {}
        self._unconfirmed = set()
        self._program_identifiers = set()
        self._unsubscribe_properties = {}
        self._changes = []
        self._last_identifier = 0
        self._by_identifier = {}
        self._filters_by_topic = {}

    def add(self, subscription: Subscription, properties: Properties = NO_PROPERTIES) -> None:
        """Request a subscription, or replace one."""
        topic_filter = subscription.topic_filter
        known = self.requested.get(topic_filter) or self.in_session.get(topic_filter)
        identifier = 0 if known is None else known.identifier
        if properties.has(SUBSCRIPTION_IDENTIFIER):
            # Several filters may share the program's identifier: the topic distinguishes them.
            self._program_identifiers.update(properties.subscription_identifiers)
            identifier = 0
        elif not identifier:
            self._last_identifier += 1
            identifier = self._last_identifier
        if identifier:
            self._by_identifier[identifier] = topic_filter
        self.requested[topic_filter] = RequestedSubscription(subscription, identifier, properties)
        self.due[topic_filter] = None
        self._filters_by_topic = {}

    def remove(self, topic_filter: str, properties: Properties = NO_PROPERTIES) -> None:
        """Withdraw the request for a filter."""
        if properties.present:
            self._unsubscribe_properties[topic_filter] = properties
        if self.requested.pop(topic_filter, None) is not None or topic_filter in self.in_session:
            self.due[topic_filter] = None
            self._filters_by_topic = {}

    def restore(self, subscription: Subscription, identifier: int) -> None:
        """Add a subscription of a stored session."""
        self.in_session[subscription.topic_filter] = RequestedSubscription(subscription, identifier)
        self._unconfirmed.add(subscription.topic_filter)
        self._last_identifier = max(self._last_identifier, identifier)
        if identifier:
            self._by_identifier[identifier] = subscription.topic_filter

    def on_connected(self, session_present: bool) -> None:
        """Decide what to request on a new connection."""
        for topic_filter, _ in self.pending.values():
            self.due[topic_filter] = None
        self.pending.clear()
        if not session_present:
            for topic_filter in self.in_session:
                self._changes.append((topic_filter, None))
            self.in_session.clear()
            self._unconfirmed.clear()
            self.due.clear()
        for topic_filter in self.in_session:
            if topic_filter not in self.requested:
                self.due[topic_filter] = None
        for topic_filter, requested in self.requested.items():
            existing = self.in_session.get(topic_filter)
            if (
                existing is None
                or existing.subscription != requested.subscription
                or topic_filter in self._unconfirmed
            ):
                self.due[topic_filter] = None

    def make_requests(
        self, session: Session, version: int, *, with_identifiers: bool
    ) -> list[Outgoing]:
        """The SUBSCRIBE and UNSUBSCRIBE packets that are due and get a Packet Identifier."""
        requests: list[Outgoing] = []
        for topic_filter in list(self.due):
            packet_id = session.reserve_id()
            if not packet_id:
                break
            requested = self._start_request(topic_filter, packet_id)
            if requested is None:
                properties = self._unsubscribe_properties.pop(topic_filter, NO_PROPERTIES)
                requests.append(Unsubscribe(packet_id, [topic_filter], properties=properties))
                continue
            properties = requested.properties
            if requested.identifier and with_identifiers and version == MQTT5:
                own = (SUBSCRIPTION_IDENTIFIER, requested.identifier)
                properties = Properties([own, *properties.items])
            subscription = self._subscription_to_send(requested, version)
            requests.append(Subscribe(packet_id, [subscription], properties=properties))
        return requests

    def store_changes(self, store_id: int, commit: Commit | None) -> None:
        """Add the changes to a commit, as those of the session `store_id`; None: discard them."""
        if commit is not None:
            for topic_filter, requested in self._changes:
                identifier = 0 if requested is None else requested.identifier
                subscription = None if requested is None else requested.subscription
                commit.subscriptions.append((store_id, topic_filter, subscription, identifier))
        self._changes = []

    def _start_request(self, topic_filter: str, packet_id: int) -> RequestedSubscription | None:
        """Mark the request of a filter as sent. Returns None if it is an UNSUBSCRIBE."""
        del self.due[topic_filter]
        requested = self.requested.get(topic_filter)
        self.pending[packet_id] = (topic_filter, requested)
        if requested is not None:
            self._changes.append((topic_filter, requested))
        return requested

    def _subscription_to_send(self, requested: RequestedSubscription, version: int) -> Subscription:
        """The subscription to send. If an earlier run may have made it, retained messages are
        requested only in case the server does not have it [MQTT-3.3.1-10]."""
        subscription = requested.subscription
        if subscription.topic_filter not in self._unconfirmed:
            return subscription
        self._unconfirmed.discard(subscription.topic_filter)
        if version != MQTT5 or subscription.retain_handling:
            return subscription
        return Subscription(
            subscription.topic_filter,
            subscription.qos,
            no_local=subscription.no_local,
            retain_as_published=subscription.retain_as_published,
            retain_handling=1,
        )

    def mark_unconfirmed(self) -> None:
        """Request every subscription again: it is uncertain which of them the server has."""
        self._unconfirmed.update(self.in_session)

    def adopt_session(self) -> None:
        """Keep the subscriptions that the session has beside the requested ones."""
        for topic_filter, requested in self.in_session.items():
            if topic_filter not in self.requested:
                self.requested[topic_filter] = requested

    def finish_request(
        self, packet_id: int, accepted: bool
    ) -> tuple[str, RequestedSubscription | None]:
        """Process SUBACK or UNSUBACK. Returns the filter, and the subscription if it was one."""
        topic_filter, requested = self.pending.pop(packet_id)
        if accepted == (requested is None):
            self._changes.append((topic_filter, None))
        if requested is None:
            if accepted:
                self.in_session.pop(topic_filter, None)
                self._forget_identifier(topic_filter)
        elif accepted:
            self.in_session[topic_filter] = requested
        elif self.requested.get(topic_filter) is requested:
            del self.requested[topic_filter]
            self._forget_identifier(topic_filter)
        self._filters_by_topic = {}
        return topic_filter, requested

    @property
    def has_no_open_request(self) -> bool:
        """Whether no request is due or unanswered."""
        return not self.due and not self.pending

    def _forget_identifier(self, topic_filter: str) -> None:
        """Free the identifier of a filter that is neither requested nor in the session."""
        if topic_filter not in self.requested and topic_filter not in self.in_session:
            for identifier, known in list(self._by_identifier.items()):
                if known == topic_filter:
                    del self._by_identifier[identifier]

    def filters_of(self, topic_name: str, identifiers: tuple[int, ...]) -> list[str]:
        """The filters that a message matched, by its identifiers or else by its topic."""
        if identifiers and self._program_identifiers.isdisjoint(identifiers):
            named: list[str] = []
            for identifier in identifiers:
                topic_filter = self._by_identifier.get(identifier)
                if topic_filter is not None:
                    named.append(topic_filter)
            if named:
                return named
        found = self._filters_by_topic.get(topic_name)
        if found is None:
            found = self._match(topic_name)
            if len(self._filters_by_topic) >= _CACHED_TOPICS:
                self._filters_by_topic = {}
            self._filters_by_topic[topic_name] = found
        return found

    def _match(self, topic_name: str) -> list[str]:
        found: list[str] = []
        for topic_filter in self.requested:
            if topic_matches(split_share(topic_filter)[1], topic_name):
                found.append(topic_filter)
        for topic_filter in self.in_session:
            if topic_filter not in self.requested:
                if topic_matches(split_share(topic_filter)[1], topic_name):
                    found.append(topic_filter)
        return found
