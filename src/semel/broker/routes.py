"""Caches the decisions of the plain path about topics, for the hot path.

    topic bytes ─▶ Route      these bytes are a valid Topic Name, these sessions get its messages,
                              and publishers with these rights may publish them

The plain path adds a route after it has handled a message; nothing is decided here. A change of a
subscription without a wildcard invalidates one route. A change of a subscription with a wildcard,
or of rights, invalidates all.

Publishers choose topics, so the cache is bounded by entries: one for each route and one for each
session in it. It has two generations. When the young dictionary is full, it becomes the old one. A
route that is found in the old one moves to the young one, so that a flood of new topics evicts
unused routes.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.access_control import AccessControl
from semel.broker.session_state import SessionState
from semel.broker.subscriptions import Matches, SubscriptionTree
from semel.mqtt.wire import text_size
from semel.store.streams import Stream, Streams

# A flag in the grant of a session: the plain path delivers its copy.
PLAIN: Final = 4

# Longer names are not cached, because the cache counts entries, not bytes.
_LONGEST_NAME: Final = 512


@final
class Route:
    """The receivers of the messages of one topic, and the rights that may publish them."""

    topic_name: Final[str]
    topic_size: Final[int]
    levels: Final[int]
    # The receivers, and for each the highest QoS of its matching subscriptions | PLAIN or 0.
    states: Final[list[SessionState]]
    grants: Final[bytes]
    # The streams that record its messages.
    streams: Final[list[Stream]]
    # Rights that may publish to this topic, and up to which QoS: usually all publishers have the
    # same rights.
    allowed: str
    maximum_qos: int
    others: dict[str, int] | None

    def __init__(
        self,
        topic_name: str,
        states: list[SessionState],
        grants: bytes,
        streams: list[Stream],
        *,
        rights: str,
        qos: int,
    ) -> None:
        self.topic_name = topic_name
        self.topic_size = text_size(topic_name)
        self.levels = topic_name.count("/") + 1
        self.states = states
        self.grants = grants
        self.streams = streams
        self.allowed = rights
        self.maximum_qos = qos
        self.others = None

    def allows(self, rights: str, qos: i64) -> bool:
        """Whether a publisher with these rights may publish to this topic with this QoS."""
        if self.allowed == rights:
            return qos <= self.maximum_qos
        return self.others is not None and qos <= self.others.get(rights, -1)

    def entry_count(self) -> int:
        """How many entries of the cache it counts as."""
        return 1 + len(self.states) + (0 if self.others is None else len(self.others))

    def allow(self, rights: str, qos: int) -> bool:
        """Add rights that may publish to this topic with this QoS, or raise their QoS.

        Returns whether that is one more entry.
        """
        if self.allowed == rights:
            self.maximum_qos = qos
            return False
        if self.others is None:
            self.others = {}
        is_new = rights not in self.others
        self.others[rights] = qos
        return is_new


@final
class Routes:
    """The cache of routes, with at most `maximum` entries; 0 caches nothing."""

    _subscriptions: Final[SubscriptionTree]
    _access: Final[AccessControl]
    _sessions: Final[dict[str, SessionState]]
    _streams: Final[Streams]
    _copies_for_each: Final[bool]
    _generation: int
    _access_version: int
    _maximum: Final[int]
    _young: dict[bytes, Route]
    _old: dict[bytes, Route]
    # The number of entries in the young dictionary.
    _entries: int

    def __init__(
        self,
        subscriptions: SubscriptionTree,
        access: AccessControl,
        sessions: dict[str, SessionState],
        streams: Streams,
        maximum: int,
        *,
        copies_for_each: bool,
    ) -> None:
        self._subscriptions = subscriptions
        self._access = access
        self._sessions = sessions
        self._streams = streams
        self._copies_for_each = copies_for_each
        self._generation = subscriptions.generation
        self._access_version = access.version()
        self._maximum = maximum // 2
        self._young = {}
        self._old = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def refresh(self) -> None:
        """Drop the routes that have become invalid since the last call."""
        subscriptions = self._subscriptions
        changed = subscriptions.take_changed_topics()
        version = self._access.version()
        if subscriptions.generation != self._generation or version != self._access_version:
            self._generation = subscriptions.generation
            self._access_version = version
            self._young = {}
            self._old = {}
            self._entries = 0
            return
        for topic_name in changed:
            topic = topic_name.encode("utf-8")
            route = self._young.pop(topic, None)
            if route is not None:
                self._entries -= route.entry_count()
            self._old.pop(topic, None)

    def find(self, topic: bytes) -> Route | None:
        """The route of this topic, or None. The caller must call `refresh` first, once for many."""
        route = self._young.get(topic)
        if route is None:
            route = self._old.get(topic)
            if route is not None:
                del self._old[topic]
                self._put(topic, route)
        return route

    def learn(self, topic_name: str, matches: Matches, *, rights: str, qos: int) -> None:
        """Cache that the plain path has allowed these rights to publish to this topic with this
        QoS, and has found these subscriptions.

        A route with a client for which the authority has failed is not cached, so that the next
        message asks again.
        """
        self.refresh()
        faults = self._access.faults
        topic = topic_name.encode("utf-8")
        route = self.find(topic)
        if route is None:
            # A shared subscription chooses another member for each message: not cached.
            if not matches.groups and len(topic) <= _LONGEST_NAME:
                route = self._route(topic_name, matches, rights=rights, qos=qos)
                if not faults or not any(each.client_id in faults for each in matches.entries):
                    self._put(topic, route)
        elif not route.allows(rights, qos) and route.allow(rights, qos):
            self._entries += 1

    def _route(self, topic_name: str, matches: Matches, *, rights: str, qos: int) -> Route:
        grants: dict[str, int] = {}
        for entry in matches.entries:
            client_id = entry.client_id
            plain = PLAIN if entry.no_local or entry.identifier else 0
            if self._copies_for_each and client_id in grants:
                plain = PLAIN
            grant = grants.get(client_id, 0)
            grants[client_id] = max(grant & 3, entry.qos) | (grant & PLAIN) | plain
        states: list[SessionState] = []
        values: list[int] = []
        for client_id, grant in grants.items():
            state = self._sessions[client_id]
            if self._access.receive(state, topic_name):
                states.append(state)
                values.append(grant)
        streams = self._streams.of(topic_name)
        return Route(topic_name, states, bytes(values), streams, rights=rights, qos=qos)

    def _put(self, topic: bytes, route: Route) -> None:
        size = route.entry_count()
        if size > self._maximum:
            return
        if self._entries + size > self._maximum:
            self._old = self._young
            self._young = {}
            self._entries = 0
        self._young[topic] = route
        self._entries += size
