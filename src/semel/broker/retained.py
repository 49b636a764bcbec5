"""The last message of each topic, kept for those who subscribe later [3.3.1.3].

    topic_name ─▶ Node                      a filter without a wildcard: one look-up
    level ─▶ level ─▶ … ─▶ Node             a filter with one: down the tree, a level at a time

Each message sits in the node where its topic ends, and a node stays only while a message sits in
it or below it. There are two trees. Names that begin with `$` are in a tree of their own, and only
a filter that begins with `$` is looked up there: so [MQTT-4.7.2-1] holds by construction. Nothing
recurses. A name of many levels takes a node for each: `semel.mqtt.check_levels` is for the caller
to bound that.

A message that has expired is never given out. It takes up room until `match` or `sweep` meets it.
"""

import sys
from collections import OrderedDict
from typing import Final, final

from semel.mqtt.message import Message
from semel.mqtt.topics import has_wildcard

# About what a retained message takes beside its bytes, and what each further place in the tree: a
# message to a deep topic may need many. Measured, see tests/broker/test_retained.py.
RETAINED_BYTES: Final = 400
LEVEL_BYTES: Final = 350


@final
class Node:
    """A place in the tree: the levels of a name up to here, and the message of that name."""

    children: Final[dict[str, "Node"]]
    message: Message | None
    place: int  # among all messages, by when the topic got its first one

    def __init__(self) -> None:
        self.children = {}
        self.message = None
        self.place = 0


@final
class Retained:
    """Retained messages, of at most `maximum` topics and at most `maximum_bytes` in all."""

    maximum: Final[int]
    maximum_bytes: Final[int]
    size: int  # what all of them cost, in bytes
    _by_name: Final[dict[str, Node]]
    _expiring: Final[OrderedDict[str, Node]]  # those with an expiry; the first is swept next
    _root: Final[Node]
    _dollar_root: Final[Node]
    _last_place: int
    # Topics whose message has expired and was dropped: for the owner to take.
    expired: list[str]

    def __init__(self, maximum: int, maximum_bytes: int = sys.maxsize) -> None:
        self.maximum = maximum
        self.maximum_bytes = maximum_bytes
        self.size = 0
        self._by_name = {}
        self._expiring = OrderedDict()
        self._root = Node()
        self._dollar_root = Node()
        self._last_place = 0
        self.expired = []

    def __len__(self) -> int:
        return len(self._by_name)

    def put(self, topic_name: str, message: Message) -> bool:
        """Keep the message in place of the one that the topic has; False if there is no room.

        A topic that has a message counts once, so that only bytes can keep out the next one. Then
        the topic has none: the old one is not its last any more [MQTT-3.3.1-5]. A message with an
        empty payload is not for keeping: it asks the caller to `delete` [MQTT-3.3.1-6].
        """
        assert topic_name == message.topic_name
        node = self._by_name.get(topic_name)
        size = self.size + cost(message)
        if node is not None:
            assert node.message is not None
            size -= cost(node.message)
        if size > self.maximum_bytes:
            self.delete(topic_name)
            return False
        if node is None:
            if len(self._by_name) >= self.maximum:
                return False
            node = self._new_node(topic_name)
            self._by_name[topic_name] = node
        node.message = message
        self.size = size
        if message.expires_at is not None:
            self._expiring[topic_name] = node
        elif topic_name in self._expiring:
            del self._expiring[topic_name]
        return True

    def get(self, topic_name: str) -> Message | None:
        """The message of the topic, if it has one."""
        node = self._by_name.get(topic_name)
        return None if node is None else node.message

    def delete(self, topic_name: str) -> None:
        """Let the topic have no message, whether it had one or not."""
        node = self._by_name.get(topic_name)
        if node is None:
            return
        del self._by_name[topic_name]
        if topic_name in self._expiring:
            del self._expiring[topic_name]
        assert node.message is not None
        self.size -= cost(node.message)
        node.message = None
        self._prune(topic_name)

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """The messages whose topic a valid, not shared filter matches.

        They come in the order in which their topics got a first message. Those that have expired
        are dropped instead.
        """
        if has_wildcard(topic_filter):
            nodes = matching_nodes(self._root_for(topic_filter), topic_filter)
        else:
            node = self._by_name.get(topic_filter)
            nodes = [] if node is None else [node]
        found: list[tuple[int, Message]] = []
        for node in nodes:
            message = node.message
            assert message is not None
            if message.is_expired(now):
                self._expire(message.topic_name)
            else:
                found.append((node.place, message))
        found.sort()  # no two places are equal, so messages are not compared
        return [message for _, message in found]

    def sweep(self, now: float, limit: int) -> int:
        """Look at the next `limit` messages that can expire, and drop those that have.

        Returns how many were dropped. Calls go round: each goes on where the last one stopped.
        """
        dropped = 0
        for _ in range(min(limit, len(self._expiring))):
            topic_name = next(iter(self._expiring))
            message = self._expiring[topic_name].message
            assert message is not None
            if message.is_expired(now):
                self._expire(topic_name)
                dropped += 1
            else:
                self._expiring.move_to_end(topic_name)
        return dropped

    def _expire(self, topic_name: str) -> None:
        self.delete(topic_name)
        self.expired.append(topic_name)

    def _root_for(self, topic: str) -> Node:
        return self._dollar_root if topic.startswith("$") else self._root

    def _new_node(self, topic_name: str) -> Node:
        node = self._root_for(topic_name)
        for level in topic_name.split("/"):
            child = node.children.get(level)
            if child is None:
                child = Node()
                node.children[level] = child
            node = child
        self._last_place += 1
        node.place = self._last_place
        return node

    def _prune(self, topic_name: str) -> None:
        levels = topic_name.split("/")
        node = self._root_for(topic_name)
        above: list[Node] = []
        for level in levels:
            above.append(node)
            node = node.children[level]
        while above and node.message is None and not node.children:
            node = above.pop()
            del node.children[levels.pop()]


def matching_nodes(root: Node, topic_filter: str) -> list[Node]:
    """The nodes of a tree that have a message and whose name the filter matches."""
    nodes = [root]
    for level in topic_filter.split("/"):
        if level == "#":  # the last [MQTT-4.7.1-2]
            return nodes_from(nodes)
        following: list[Node] = []
        for node in nodes:
            if level == "+":
                following.extend(node.children.values())
            else:
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
        if not following:
            return []
        nodes = following
    return [node for node in nodes if node.message is not None]


def nodes_from(nodes: list[Node]) -> list[Node]:
    """Those that have a message, of these nodes and all below them: # may stand for no level."""
    found: list[Node] = []
    waiting = nodes.copy()
    while waiting:
        node = waiting.pop()
        if node.message is not None:
            found.append(node)
        waiting.extend(node.children.values())
    return found


def cost(message: Message) -> int:
    """What a retained message takes, with the places that the levels of its topic need."""
    topic_name = message.topic_name
    # The levels are texts of their own. One character beyond ASCII makes all of them wide.
    levels = len(topic_name) if topic_name.isascii() else 4 * len(topic_name)
    return message.size + levels + RETAINED_BYTES + LEVEL_BYTES * topic_name.count("/")
