"""All subscriptions, and which of them match a Topic Name.

    client_id ─▶ topic_filter ─▶ SubscriptionEntry   the subscriptions of a client, by full filter
    topic_name ────────────────▶ Leaf                filters without a wildcard: one lookup
    level ─▶ level ─▶ FilterNode ─▶ … ─▶ Leaf        filters with one: a tree, level by level

A `Leaf` has the subscriptions with one filter: the entry of each client, and for each ShareName a
`ShareGroup`. There are two trees: filters that begin with `$` have their own tree, in which nothing
begins with a wildcard, and names that begin with `$` are looked up only there, so that
[MQTT-4.7.2-1] holds by construction. Levels are compared as strings, character by character
[MQTT-4.7.3-4].

A lookup descends level by level with the nodes that match so far: its cost grows with the matching
branches, not with the number of filters, and nothing recurses. A filter has one node per level, a
number that the caller bounds with `check_levels`. Nodes that no filter needs are pruned at once.

A cached result of `match` is invalid if `generation` has changed, or if `take_changed_topics`
returns its topic name.
"""

from collections import OrderedDict
from collections.abc import ValuesView
from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.topics import SHARE_PREFIX, has_wildcard, split_share
from semel.mqtt.wire import memory_size

# Approximate memory of a subscription besides its filter, of a share group, and of a node of the
# tree. Measured, see tests/broker/core/test_subscriptions.py.
ENTRY_BYTES: Final = 500
GROUP_BYTES: Final = 350
NODE_BYTES: Final = 350

# If more topic names than this have changed, all cached matches are invalidated.
MAXIMUM_CHANGED_TOPICS: Final = 1_024


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class SubscriptionEntry:
    """One subscription of one client.

    `topic_filter` is as the client wrote it; `share_name` is "" if it is not shared; `identifier`
    is the Subscription Identifier, 0 if there is none.
    """

    client_id: Final[str]
    topic_filter: Final[str]
    share_name: Final[str]
    qos: Final[int]
    no_local: Final[bool]
    retain_as_published: Final[bool]
    identifier: Final[int]

    def __init__(self, client_id: str, subscription: Subscription, identifier: int = 0) -> None:
        share_name, _ = split_share(subscription.topic_filter)
        self.client_id = client_id
        self.topic_filter = subscription.topic_filter
        self.share_name = share_name
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifier = identifier


@final
class ShareGroup:
    """The clients that share a subscription: same ShareName, same filter [4.8.2].

    Connected members take turns, and so do offline ones, in the order in which they joined or
    connected: a new member is last in the round, one that changes its options keeps its turn, and
    one that is skipped waits for the next round. The caller chooses a member from `connected`, or
    else from `offline`, and calls `advance` with it.

    A cached group may outlive its last member; it is then empty.
    """

    share_name: Final[str]
    topic_filter: Final[str]  # without $share/ShareName/
    # The first member is the next; one that had its turn moves to the end.
    _connected: Final[OrderedDict[str, SubscriptionEntry]]
    _offline: Final[OrderedDict[str, SubscriptionEntry]]

    def __init__(self, share_name: str, topic_filter: str) -> None:
        self.share_name = share_name
        self.topic_filter = topic_filter
        self._connected = OrderedDict()
        self._offline = OrderedDict()

    def connected(self) -> ValuesView[SubscriptionEntry]:
        """Connected members, starting with the next one. A live view: do not iterate over it after
        `advance`."""
        return self._connected.values()

    def offline(self) -> ValuesView[SubscriptionEntry]:
        """Offline members, in the same way."""
        return self._offline.values()

    def members(self) -> list[SubscriptionEntry]:
        """All members."""
        return [*self._connected.values(), *self._offline.values()]

    def advance(self, entry: SubscriptionEntry) -> None:
        """This member had its turn: the one after it is next.

        Nothing changes if it has left the group meanwhile.
        """
        members = self._connected if entry.client_id in self._connected else self._offline
        for _ in range(len(members)):
            client_id = next(iter(members))
            members.move_to_end(client_id)
            if client_id == entry.client_id:
                return

    def is_empty(self) -> bool:
        """Whether the last member has left."""
        return not self._connected and not self._offline

    def put(self, entry: SubscriptionEntry, is_connected: bool) -> None:
        """Add or update a member: it joins, changes its options, connects or disconnects."""
        members, others = self._connected, self._offline
        if not is_connected:
            members, others = others, members
        others.pop(entry.client_id, None)
        members[entry.client_id] = entry

    def remove(self, client_id: str) -> None:
        """Remove a member."""
        if self._connected.pop(client_id, None) is None:
            del self._offline[client_id]


@final
class Matches:
    """The subscriptions that match a Topic Name: entries that are not shared, and groups.

    A client with overlapping filters has several entries, which the caller merges.
    """

    entries: Final[list[SubscriptionEntry]]
    groups: Final[list[ShareGroup]]
    visited: int  # nodes of the tree that the search has visited

    def __init__(self) -> None:
        self.entries = []
        self.groups = []
        self.visited = 0


@final
class Leaf:
    """All subscriptions with one filter."""

    entries: Final[dict[str, SubscriptionEntry]]  # by client
    groups: dict[str, ShareGroup] | None  # by ShareName; most filters are never shared

    def __init__(self) -> None:
        self.entries = {}
        self.groups = None

    def put(self, entry: SubscriptionEntry, topic_filter: str, is_connected: bool) -> None:
        """Add an entry, or replace the one of the same client and ShareName."""
        if not entry.share_name:
            self.entries[entry.client_id] = entry
            return
        groups = self.groups
        if groups is None:
            groups = {}
            self.groups = groups
        group = groups.get(entry.share_name)
        if group is None:
            group = ShareGroup(entry.share_name, topic_filter)
            groups[entry.share_name] = group
        group.put(entry, is_connected)

    def remove(self, entry: SubscriptionEntry) -> None:
        """Remove an entry, which must exist."""
        if not entry.share_name:
            del self.entries[entry.client_id]
            return
        groups = self.groups
        assert groups is not None
        group = groups[entry.share_name]
        group.remove(entry.client_id)
        if group.is_empty():
            del groups[entry.share_name]
            if not groups:
                self.groups = None

    def is_empty(self) -> bool:
        """Whether there is no subscription with this filter."""
        return not self.entries and self.groups is None

    def collect(self, matches: Matches) -> None:
        """Add all entries and groups to the matches."""
        entries = matches.entries
        for entry in self.entries.values():  # compiled, this is faster than extend for a few
            entries.append(entry)
        groups = self.groups
        if groups is not None:
            matches.groups.extend(groups.values())


@final
class FilterNode:
    """A node of the tree: the levels of a filter up to here."""

    children: Final[dict[str, "FilterNode"]]
    plus: "FilterNode | None"  # the next level is +
    here: Leaf | None  # the filter ends here
    below: Leaf | None  # the filter ends with # after this level

    def __init__(self) -> None:
        self.children = {}
        self.plus = None
        self.here = None
        self.below = None

    def is_empty(self) -> bool:
        """Whether no filter needs it."""
        return not self.children and self.plus is None and self.here is None and self.below is None


@final
class SubscriptionTree:
    """All subscriptions of all clients."""

    generation: int  # changes whenever a filter with a wildcard is added, changed or removed
    size: int  # approximate memory of all subscriptions
    count: int  # all subscriptions
    shared_count: int  # those of them that are shared
    _clients: Final[dict[str, dict[str, SubscriptionEntry]]]
    _exact: Final[dict[str, Leaf]]
    _root: Final[FilterNode]
    _dollar_root: Final[FilterNode]
    _changed_topics: list[str]

    def __init__(self) -> None:
        self.generation = 0
        self.size = 0
        self.count = 0
        self.shared_count = 0
        self._clients = {}
        self._exact = {}
        self._root = FilterNode()
        self._dollar_root = FilterNode()
        self._changed_topics = []

    def subscribe(
        self,
        client_id: str,
        subscription: Subscription,
        identifier: int = 0,
        *,
        is_connected: bool = False,
    ) -> SubscriptionEntry | None:
        """Add a subscription of a client that is connected or not. Returns the one that it
        replaces, with the same filter, if any.

        [MQTT-3.8.4-3] An identical subscription, which many clients send whenever they connect,
        does not invalidate caches.
        """
        entry = SubscriptionEntry(client_id, subscription, identifier)
        entries = self._clients.get(client_id)
        if entries is None:
            entries = {}
            self._clients[client_id] = entries
        replaced = entries.get(entry.topic_filter)
        if replaced is not None and replaced == entry:
            return replaced
        entries[entry.topic_filter] = entry
        if replaced is None:
            self.size += _entry_cost(entry.topic_filter)
            self._count(entry, 1)
        _, topic_filter = split_share(entry.topic_filter)
        if has_wildcard(topic_filter):
            self._put_in_tree(entry, topic_filter, is_connected)
        else:
            leaf = self._exact.get(topic_filter)
            if leaf is None:
                leaf = Leaf()
                self._exact[topic_filter] = leaf
            leaf.put(entry, topic_filter, is_connected)
            self._note_topic(topic_filter)
        return replaced

    def set_connected(self, client_id: str, *, is_connected: bool) -> None:
        """Record for its shared subscriptions that a client has connected or disconnected."""
        entries = self._clients.get(client_id)
        if entries is None:
            return
        for entry in entries.values():
            if entry.share_name:
                group = self.group(entry.topic_filter)
                assert group is not None
                group.put(entry, is_connected)

    def unsubscribe(self, client_id: str, topic_filter: str) -> SubscriptionEntry | None:
        """Remove and return the client's subscription with this filter, if any [MQTT-3.10.4-1]."""
        entries = self._clients.get(client_id)
        if entries is None:
            return None
        entry = entries.get(topic_filter)
        if entry is None:
            return None
        del entries[topic_filter]
        if not entries:
            del self._clients[client_id]
        self._remove(entry)
        return entry

    def forget(self, client_id: str) -> None:
        """Remove all subscriptions of a client whose session has ended."""
        entries = self._clients.get(client_id)
        if entries is None:
            return
        del self._clients[client_id]
        for entry in entries.values():
            self._remove(entry)

    def has(self, client_id: str, topic_filter: str) -> bool:
        """Whether the client has a subscription with exactly this filter."""
        entries = self._clients.get(client_id)
        return entries is not None and topic_filter in entries

    def entry(self, client_id: str, topic_filter: str) -> SubscriptionEntry:
        """The client's subscription with exactly this filter, which it must have."""
        return self._clients[client_id][topic_filter]

    def of(self, client_id: str) -> list[SubscriptionEntry]:
        """All subscriptions of a client, in the order in which it first subscribed."""
        entries = self._clients.get(client_id)
        return [] if entries is None else list(entries.values())

    def group(self, topic_filter: str) -> ShareGroup | None:
        """The group of a shared filter `$share/ShareName/…`."""
        share_name, inner = split_share(topic_filter)
        leaf = self._leaf(inner)
        if leaf is None or leaf.groups is None:
            return None
        return leaf.groups.get(share_name)

    def _leaf(self, topic_filter: str) -> Leaf | None:
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        node = self._root_for(topic_filter)
        for level in topic_filter.split("/"):
            if level == "#":
                return node.below
            following = node.plus if level == "+" else node.children.get(level)
            if following is None:
                return None
            node = following
        return node.here

    def match(self, topic_name: str) -> Matches:
        """The subscriptions that match this Topic Name, in lists that the caller may keep."""
        matches = Matches()
        leaf = self._exact.get(topic_name)
        if leaf is not None:
            leaf.collect(matches)
        root = self._root_for(topic_name)
        if not root.is_empty():
            collect_from_tree(root, topic_name, matches)
        return matches

    def take_changed_topics(self) -> list[str]:
        """Take the topic names whose matches have changed, by filters without a wildcard.

        There may be duplicates. If there would be too many names, `generation` changes instead.
        """
        changed = self._changed_topics
        self._changed_topics = []
        return changed

    def _root_for(self, topic: str) -> FilterNode:
        return self._dollar_root if topic.startswith("$") else self._root

    def _note_topic(self, topic_name: str) -> None:
        if len(self._changed_topics) == MAXIMUM_CHANGED_TOPICS:
            self._changed_topics = []
            self.generation += 1
            return
        self._changed_topics.append(topic_name)

    def _put_in_tree(self, entry: SubscriptionEntry, topic_filter: str, is_connected: bool) -> None:
        node = self._root_for(topic_filter)
        leaf: Leaf | None = None
        for level in topic_filter.split("/"):
            if level == "#":  # the last level [MQTT-4.7.1-2]
                leaf = node.below
                if leaf is None:
                    leaf = Leaf()
                    node.below = leaf
            elif level == "+":
                following = node.plus
                if following is None:
                    following = FilterNode()
                    self.size += NODE_BYTES
                    node.plus = following
                node = following
            else:
                following = node.children.get(level)
                if following is None:
                    following = FilterNode()
                    self.size += NODE_BYTES + len(level)
                    node.children[level] = following
                node = following
        if leaf is None:
            leaf = node.here
            if leaf is None:
                leaf = Leaf()
                node.here = leaf
        leaf.put(entry, topic_filter, is_connected)
        self.generation += 1

    def _count(self, entry: SubscriptionEntry, more: int) -> None:
        self.count += more
        if entry.share_name:
            self.shared_count += more

    def _remove(self, entry: SubscriptionEntry) -> None:
        self.size -= _entry_cost(entry.topic_filter)
        self._count(entry, -1)
        _, topic_filter = split_share(entry.topic_filter)
        if has_wildcard(topic_filter):
            self._remove_from_tree(entry, topic_filter)
            return
        leaf = self._exact[topic_filter]
        leaf.remove(entry)
        if leaf.is_empty():
            del self._exact[topic_filter]
        self._note_topic(topic_filter)

    def _remove_from_tree(self, entry: SubscriptionEntry, topic_filter: str) -> None:
        levels = topic_filter.split("/")
        ends_below = levels[-1] == "#"
        if ends_below:
            levels.pop()
        node = self._root_for(topic_filter)
        above: list[FilterNode] = []
        for level in levels:
            above.append(node)
            following = node.plus if level == "+" else node.children[level]
            assert following is not None
            node = following
        leaf = node.below if ends_below else node.here
        assert leaf is not None
        leaf.remove(entry)
        if leaf.is_empty():
            if ends_below:
                node.below = None
            else:
                node.here = None
        while above and node.is_empty():
            node = above.pop()
            level = levels.pop()
            self.size -= NODE_BYTES
            if level == "+":
                node.plus = None
            else:
                self.size -= len(level)
                del node.children[level]
        self.generation += 1


def subscription_cost(topic_filter: str) -> int:
    """Approximate memory of a subscription if it shares no nodes with other filters."""
    cost = _entry_cost(topic_filter)
    _, inner = split_share(topic_filter)
    if has_wildcard(inner):
        cost += NODE_BYTES * (1 + inner.count("/")) + len(inner)
    return cost


def _entry_cost(topic_filter: str) -> int:
    """Approximate memory of a subscription without the nodes of the tree."""
    cost = ENTRY_BYTES + memory_size(topic_filter)
    if topic_filter.startswith(SHARE_PREFIX):
        # The filter without its prefix is a separate string.
        cost += GROUP_BYTES + memory_size(topic_filter)
    return cost


def collect_from_tree(root: FilterNode, topic_name: str, matches: Matches) -> None:
    """Add the subscriptions of a tree that match the name to `matches`."""
    nodes = [root]
    visited = 1
    for level in topic_name.split("/"):
        following: list[FilterNode] = []
        for node in nodes:
            below = node.below
            if below is not None:
                below.collect(matches)
            plus = node.plus
            if plus is not None:
                following.append(plus)
            child = node.children.get(level)
            if child is not None:
                following.append(child)
        visited += len(following)
        matches.visited = visited
        if not following:
            return
        nodes = following
    for node in nodes:
        here = node.here
        if here is not None:
            here.collect(matches)
        # [4.7.1.2] # also matches zero levels: a/# matches a
        below = node.below
        if below is not None:
            below.collect(matches)
