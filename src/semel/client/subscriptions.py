"""What a client wants from its server, and what the server has promised.

Each Topic Filter has a SUBSCRIBE of its own, with a Subscription Identifier of its own where the
server takes them, so that a message tells by which filter it came. `wanted` is what the program
asks for, `held` what the server's session has: after a reconnect the difference is requested, and
whatever was not answered before. What a store has of an earlier run is what the server *may* have:
it is requested again, so that both know.
"""

from typing import Final, final

from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.subscribe import Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import Unsubscribe
from semel.mqtt.properties import NO_PROPERTIES, SUBSCRIPTION_IDENTIFIER, Properties
from semel.mqtt.session import Outgoing, Session
from semel.mqtt.topics import split_share, topic_matches

# Topics whose filters are remembered; then all are forgotten, and found again.
_REMEMBERED: Final = 10_000


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
    """Of one client."""

    wanted: Final[dict[str, RequestedSubscription]]
    held: Final[dict[str, RequestedSubscription]]
    # Filters whose wish is to be told to the server, in their order.
    due: Final[dict[str, None]]
    # Requests that are not answered, by Packet Identifier: filter, wish; None: UNSUBSCRIBE.
    asked: Final[dict[int, tuple[str, RequestedSubscription | None]]]
    # Those of an earlier run that were not requested yet.
    _unsure: Final[set[str]]
    # Identifiers that the program has chosen itself, and what is to be said with an UNSUBSCRIBE.
    _given: Final[set[int]]
    _parting: Final[dict[str, Properties]]
    _noted: list[tuple[str, RequestedSubscription | None]]
    _last_identifier: int
    _by_identifier: Final[dict[int, str]]
    _found: dict[str, list[str]]

    def __init__(self) -> None:
        self.wanted = {}
        self.held = {}
        self.due = {}
        self.asked = {}
        self._unsure = set()
        self._given = set()
        self._parting = {}
        self._noted = []
        self._last_identifier = 0
        self._by_identifier = {}
        self._found = {}

    def want(self, subscription: Subscription, properties: Properties = NO_PROPERTIES) -> None:
        """The program asks for this, anew or once more."""
        topic_filter = subscription.topic_filter
        known = self.wanted.get(topic_filter) or self.held.get(topic_filter)
        identifier = 0 if known is None else known.identifier
        if properties.has(SUBSCRIPTION_IDENTIFIER):
            # The program's own, which several filters may share: they are told apart by topic.
            self._given.update(properties.subscription_identifiers)
            identifier = 0
        elif not identifier:
            self._last_identifier += 1
            identifier = self._last_identifier
        if identifier:
            self._by_identifier[identifier] = topic_filter
        self.wanted[topic_filter] = RequestedSubscription(subscription, identifier, properties)
        self.due[topic_filter] = None
        self._found = {}

    def give_up(self, topic_filter: str, properties: Properties = NO_PROPERTIES) -> None:
        """The program asks for this no more."""
        if properties.present:
            self._parting[topic_filter] = properties
        if self.wanted.pop(topic_filter, None) is not None or topic_filter in self.held:
            self.due[topic_filter] = None
            self._found = {}

    def restore(self, subscription: Subscription, identifier: int) -> None:
        """A session that was stored has this."""
        self.held[subscription.topic_filter] = RequestedSubscription(subscription, identifier)
        self._unsure.add(subscription.topic_filter)
        self._last_identifier = max(self._last_identifier, identifier)
        if identifier:
            self._by_identifier[identifier] = subscription.topic_filter

    def connected(self, session_present: bool) -> None:
        """A connection begins: find out what to request."""
        for topic_filter, _ in self.asked.values():
            self.due[topic_filter] = None
        self.asked.clear()
        if not session_present:
            for topic_filter in self.held:
                self._noted.append((topic_filter, None))
            self.held.clear()
            self._unsure.clear()
            self.due.clear()
        for topic_filter in self.held:
            if topic_filter not in self.wanted:
                self.due[topic_filter] = None
        for topic_filter, requested in self.wanted.items():
            held = self.held.get(topic_filter)
            if (
                held is None
                or held.subscription != requested.subscription
                or topic_filter in self._unsure
            ):
                self.due[topic_filter] = None

    def requests(self, session: Session, version: int, *, with_identifiers: bool) -> list[Outgoing]:
        """What the server is to be told, as far as there are Packet Identifiers."""
        requests: list[Outgoing] = []
        for topic_filter in list(self.due):
            packet_id = session.reserve_id()
            if not packet_id:
                break
            requested = self.ask(topic_filter, packet_id)
            if requested is None:
                properties = self._parting.pop(topic_filter, NO_PROPERTIES)
                requests.append(Unsubscribe(packet_id, [topic_filter], properties=properties))
                continue
            properties = requested.properties
            if requested.identifier and with_identifiers and version == MQTT5:
                own = (SUBSCRIPTION_IDENTIFIER, requested.identifier)
                properties = Properties([own, *properties.items])
            subscription = self.request(requested, version)
            requests.append(Subscribe(packet_id, [subscription], properties=properties))
        return requests

    def take_noted(self) -> list[tuple[str, RequestedSubscription | None]]:
        """Subscriptions that the server may have, or (None) has no more, for a store."""
        noted = self._noted
        self._noted = []
        return noted

    def ask(self, topic_filter: str, packet_id: int) -> RequestedSubscription | None:
        """A request for it leaves now; None: an UNSUBSCRIBE."""
        del self.due[topic_filter]
        requested = self.wanted.get(topic_filter)
        self.asked[packet_id] = (topic_filter, requested)
        if requested is not None:
            self._noted.append((topic_filter, requested))
        return requested

    def request(self, requested: RequestedSubscription, version: int) -> Subscription:
        """The subscription to ask for. What an earlier run had brings no retained messages again,
        unless the server does not have it [MQTT-3.3.1-10]."""
        subscription = requested.subscription
        if subscription.topic_filter not in self._unsure:
            return subscription
        self._unsure.discard(subscription.topic_filter)
        if version != MQTT5 or subscription.retain_handling:
            return subscription
        return Subscription(
            subscription.topic_filter,
            subscription.qos,
            no_local=subscription.no_local,
            retain_as_published=subscription.retain_as_published,
            retain_handling=1,
        )

    def doubt(self) -> None:
        """Nobody knows any more what the server has."""
        self._unsure.update(self.held)

    def keep(self) -> None:
        """Whatever the session has beside it, the program wants it too."""
        for topic_filter, requested in self.held.items():
            if topic_filter not in self.wanted:
                self.wanted[topic_filter] = requested

    def answered(self, packet_id: int, accepted: bool) -> tuple[str, RequestedSubscription | None]:
        """SUBACK or UNSUBACK has come: filter, and what was wished for it."""
        topic_filter, requested = self.asked.pop(packet_id)
        if accepted == (requested is None):
            self._noted.append((topic_filter, None))
        if requested is None:
            if accepted:
                self.held.pop(topic_filter, None)
                self._forget(topic_filter)
        elif accepted:
            self.held[topic_filter] = requested
        elif self.wanted.get(topic_filter) is requested:
            del self.wanted[topic_filter]
            self._forget(topic_filter)
        self._found = {}
        return topic_filter, requested

    @property
    def has_no_open_request(self) -> bool:
        """Whether the server owes no answer."""
        return not self.due and not self.asked

    def _forget(self, topic_filter: str) -> None:
        """Nobody has it any more, nor its identifier."""
        if topic_filter not in self.wanted and topic_filter not in self.held:
            for identifier, known in list(self._by_identifier.items()):
                if known == topic_filter:
                    del self._by_identifier[identifier]

    def of(self, topic_name: str, identifiers: tuple[int, ...]) -> list[str]:
        """The filters by which a message came."""
        if identifiers and self._given.isdisjoint(identifiers):
            named: list[str] = []
            for identifier in identifiers:
                topic_filter = self._by_identifier.get(identifier)
                if topic_filter is not None:
                    named.append(topic_filter)
            if named:
                return named
        found = self._found.get(topic_name)
        if found is None:
            found = self._match(topic_name)
            if len(self._found) >= _REMEMBERED:
                self._found = {}
            self._found[topic_name] = found
        return found

    def _match(self, topic_name: str) -> list[str]:
        found: list[str] = []
        for topic_filter in self.wanted:
            if topic_matches(split_share(topic_filter)[1], topic_name):
                found.append(topic_filter)
        for topic_filter in self.held:
            if topic_filter not in self.wanted:
                if topic_matches(split_share(topic_filter)[1], topic_name):
                    found.append(topic_filter)
        return found
