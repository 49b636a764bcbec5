"""Who subscribes to what, and which subscriptions a Topic Name meets.

    client_id ─▶ topic_filter ─▶ SubscriptionEntry   what a client holds, as it wrote it
    topic_name ────────────────▶ Leaf                filters without a wildcard: one look-up
    level ─▶ level ─▶ FilterNode ─▶ … ─▶ Leaf        filters with one: a tree, a level at a time

A `Leaf` holds what was subscribed with one filter: the entry of each client, and for each ShareName
a `ShareGroup`. There are two trees. Filters that begin with `$` have a tree of their own, and a
name that begins with `$` is looked up in that tree alone, where nothing begins with a wildcard: so
[MQTT-4.7.2-1] holds by construction. Levels are compared as strings, character by character
[MQTT-4.7.3-4].

A look-up goes down level by level with the nodes that match so far, so its cost grows with the
matching branches, not with the filters, and nothing recurses. A filter of many levels takes a node
for each: `semel.mqtt.check_levels` is for the caller to bound that. What no filter needs any more
is pruned at once.

For whoever caches the outcome of `match`: it is out of date when `generation` has changed, or when
its topic name comes out of `take_changed_topics`.
"""

from collections import OrderedDict
from collections.abc import ValuesView
from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.topics import SHARE_PREFIX, has_wildcard, split_share
from semel.mqtt.wire import memory_size

# About what a subscription takes beside its filter, one that is shared, and a place in the tree.
# Measured, see tests/broker/test_subscriptions.py.
ENTRY_BYTES: Final = 500
GROUP_BYTES: Final = 350
NODE_BYTES: Final = 350

# More changed topic names than this are not worth a list: all that is cached goes.
MOST_CHANGED_TOPICS: Final = 1_024


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

    Those that are connected take turns, and those that are not, in the order in which they joined
    or came: who comes is last in the round, who changes its options keeps its turn, and who is
    passed over waits for the next round. The caller looks through `connected`, and then `offline`,
    for one that will do, and says with `advance` which it took.

    A group may outlive its last member in what a caller has cached; it is then without members.
    """

    share_name: Final[str]
    topic_filter: Final[str]  # without $share/ShareName/
    # The first is the next; who had its turn goes last.
    _connected: Final[OrderedDict[str, SubscriptionEntry]]
    _offline: Final[OrderedDict[str, SubscriptionEntry]]

    def __init__(self, share_name: str, topic_filter: str) -> None:
        self.share_name = share_name
        self.topic_filter = topic_filter
        self._connected = OrderedDict()
        self._offline = OrderedDict()

    def connected(self) -> ValuesView[SubscriptionEntry]:
        """Members with a connection, from the one whose turn it is: not a copy, so stop before
        `advance`."""
        return self._connected.values()

    def offline(self) -> ValuesView[SubscriptionEntry]:
        """Likewise those without one."""
        return self._offline.values()

    def members(self) -> list[SubscriptionEntry]:
        """All of them."""
        return [*self._connected.values(), *self._offline.values()]

    def advance(self, entry: SubscriptionEntry) -> None:
        """This member had its turn: the next is the one after it.

        One that has left meanwhile passes no turn on.
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
        """Let its client join, or change its options, or come, or go offline."""
        members, others = self._connected, self._offline
        if not is_connected:
            members, others = others, members
        others.pop(entry.client_id, None)
        members[entry.client_id] = entry

    def remove(self, client_id: str) -> None:
        """Let a member leave."""
        if self._connected.pop(client_id, None) is None:
            del self._offline[client_id]


@final
class Matches:
    """What a Topic Name meets: every entry that is not shared, every group.

    A client with overlapping filters has several entries; merging them is the caller's.
    """

    entries: Final[list[SubscriptionEntry]]
    groups: Final[list[ShareGroup]]
    visited: int  # nodes of the tree that were looked at: what the search cost

    def __init__(self) -> None:
        self.entries = []
        self.groups = []
        self.visited = 0


@final
class Leaf:
    """All that was subscribed with one filter."""

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
        """Take out an entry that is here."""
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
        """Whether nobody subscribes with this filter any more."""
        return not self.entries and self.groups is None

    def collect(self, matches: Matches) -> None:
        """Add all that is here."""
        entries = matches.entries
        for entry in self.entries.values():  # compiled, quicker than extend for the usual few
            entries.append(entry)
        groups = self.groups
        if groups is not None:
            matches.groups.extend(groups.values())


@final
class FilterNode:
    """A place in the tree: the levels of a filter up to here."""

    children: Final[dict[str, "FilterNode"]]
    plus: "FilterNode | None"  # the next level is +
    here: Leaf | None  # the filter ends here
    below: Leaf | None  # the filter goes on with # and ends

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

    generation: int  # another one whenever a filter with a wildcard comes, changes or goes
    size: int  # about how many bytes all of them take
    _clients: Final[dict[str, dict[str, SubscriptionEntry]]]
    _connected: Final[set[str]]
    _exact: Final[dict[str, Leaf]]
    _root: Final[FilterNode]
    _dollar_root: Final[FilterNode]
    _changed_topics: list[str]

    def __init__(self) -> None:
        self.generation = 0
        self.size = 0
        self._clients = {}
        self._connected = set()
        self._exact = {}
        self._root = FilterNode()
        self._dollar_root = FilterNode()
        self._changed_topics = []

    def subscribe(
        self, client_id: str, subscription: Subscription, identifier: int = 0
    ) -> SubscriptionEntry | None:
        """Add a subscription; the one with the same filter that it replaces [MQTT-3.8.4-3].

        A client that repeats a subscription word for word, as many do whenever they connect,
        changes nothing that is cached.
        """
        entry = SubscriptionEntry(client_id, subscription, identifier)
        held = self._clients.get(client_id)
        if held is None:
            held = {}
            self._clients[client_id] = held
        replaced = held.get(entry.topic_filter)
        if replaced is not None and replaced == entry:
            return replaced
        held[entry.topic_filter] = entry
        if replaced is None:
            self.size += _entry_cost(entry.topic_filter)
        _, topic_filter = split_share(entry.topic_filter)
        if has_wildcard(topic_filter):
            self._put_in_tree(entry, topic_filter)
        else:
            leaf = self._exact.get(topic_filter)
            if leaf is None:
                leaf = Leaf()
                self._exact[topic_filter] = leaf
            leaf.put(entry, topic_filter, client_id in self._connected)
            self._note_topic(topic_filter)
        return replaced

    def set_connected(self, client_id: str, is_connected: bool) -> None:
        """A client has come, or gone offline: shared subscriptions go by that."""
        if is_connected:
            self._connected.add(client_id)
        else:
            self._connected.discard(client_id)
        held = self._clients.get(client_id)
        if held is None:
            return
        for entry in held.values():
            if entry.share_name:
                group = self.group(entry.topic_filter)
                assert group is not None
                group.put(entry, is_connected)

    def unsubscribe(self, client_id: str, topic_filter: str) -> SubscriptionEntry | None:
        """Take out the client's subscription with this very filter, if any [MQTT-3.10.4-1]."""
        held = self._clients.get(client_id)
        if held is None:
            return None
        entry = held.get(topic_filter)
        if entry is None:
            return None
        del held[topic_filter]
        if not held:
            del self._clients[client_id]
        self._remove(entry)
        return entry

    def forget(self, client_id: str) -> None:
        """Take out all that a client holds: its session is over."""
        held = self._clients.get(client_id)
        if held is None:
            return
        del self._clients[client_id]
        for entry in held.values():
            self._remove(entry)

    def has(self, client_id: str, topic_filter: str) -> bool:
        """Whether the client holds a subscription with this very filter."""
        held = self._clients.get(client_id)
        return held is not None and topic_filter in held

    def entry(self, client_id: str, topic_filter: str) -> SubscriptionEntry:
        """The client's subscription with this very filter, which it must hold."""
        return self._clients[client_id][topic_filter]

    def of(self, client_id: str) -> list[SubscriptionEntry]:
        """All that a client holds, in the order in which it first asked."""
        held = self._clients.get(client_id)
        return [] if held is None else list(held.values())

    def group(self, topic_filter: str) -> ShareGroup | None:
        """Who shares this filter, which is given with its `$share/ShareName/`."""
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
        """What a message with this Topic Name is for. The lists are the caller's to keep."""
        matches = Matches()
        leaf = self._exact.get(topic_name)
        if leaf is not None:
            leaf.collect(matches)
        root = self._root_for(topic_name)
        if not root.is_empty():
            collect_from_tree(root, topic_name, matches)
        return matches

    def take_changed_topics(self) -> list[str]:
        """Names whose matches were changed, since the last call, by filters without a wildcard.

        There may be repetitions. Where there would be very many names, `generation` has changed
        in their stead.
        """
        changed = self._changed_topics
        self._changed_topics = []
        return changed

    def _root_for(self, topic: str) -> FilterNode:
        return self._dollar_root if topic.startswith("$") else self._root

    def _note_topic(self, topic_name: str) -> None:
        if len(self._changed_topics) == MOST_CHANGED_TOPICS:
            self._changed_topics = []
            self.generation += 1
            return
        self._changed_topics.append(topic_name)

    def _put_in_tree(self, entry: SubscriptionEntry, topic_filter: str) -> None:
        node = self._root_for(topic_filter)
        leaf: Leaf | None = None
        for level in topic_filter.split("/"):
            if level == "#":  # the last [MQTT-4.7.1-2]
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
        leaf.put(entry, topic_filter, entry.client_id in self._connected)
        self.generation += 1

    def _remove(self, entry: SubscriptionEntry) -> None:
        self.size -= _entry_cost(entry.topic_filter)
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
    """The most that a subscription can take: if no other filter begins like it."""
    cost = _entry_cost(topic_filter)
    _, inner = split_share(topic_filter)
    if has_wildcard(inner):
        cost += NODE_BYTES * (1 + inner.count("/")) + len(inner)
    return cost


def _entry_cost(topic_filter: str) -> int:
    """The same without its places in the tree."""
    cost = ENTRY_BYTES + memory_size(topic_filter)
    if topic_filter.startswith(SHARE_PREFIX):
        # The filter without its prefix is another text.
        cost += GROUP_BYTES + memory_size(topic_filter)
    return cost


def collect_from_tree(root: FilterNode, topic_name: str, matches: Matches) -> None:
    """Add what the filters of a tree that match the name hold."""
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
        # [4.7.1.2] # also stands for no level at all: a/# matches a
        below = node.below
        if below is not None:
            below.collect(matches)
