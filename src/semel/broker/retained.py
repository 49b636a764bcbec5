"""The last message of each topic, kept for later subscribers [3.3.1.3].

    topic_name ─▶ RetainedNode              a filter without a wildcard: one lookup
    level ─▶ level ─▶ … ─▶ RetainedNode     a filter with one: down the tree, level by level

Each message is in the node where its topic ends, and a node exists only while it or a node below
it has a message. There are two trees: names that begin with `$` have their own tree, in which only
filters that begin with `$` are looked up, so that [MQTT-4.7.2-1] holds by construction. Nothing
recurses. A name has one node per level, a number that the caller bounds with `check_levels`.

A filter may match a hundred thousand messages. So a `RetainedSearch` traverses the tree in steps,
when its owner has time, and the tree may change between steps. It returns the messages that were
retained when it started and still are; later messages reach the subscriber when they are published.

An expired message is never returned. It takes up memory until a search or `sweep` finds it.
"""

import sys
from collections import OrderedDict
from itertools import islice
from typing import Final, final

from semel.broker.retained_shares import NOBODY, RetainedShares
from semel.mqtt.message import Message
from semel.mqtt.topics import has_wildcard

# Approximate memory of a retained message besides its own bytes, and of each further node of the
# tree. Measured, see tests/broker/core/test_retained.py.
RETAINED_BYTES: Final = 400
LEVEL_BYTES: Final = 350

# How many messages one sweep checks for expiry.
CHECKED_PER_SWEEP: Final = 1_000

# How many nodes one step of a search visits at most, and how many children it fetches at a time.
_STEP_NODES: Final = 100
_BATCH: Final = 1_000


@final
class RetainedNode:
    """A node of the tree: the levels of a name up to here, and the message with this name."""

    children: Final[dict[str, "RetainedNode"]]  # in the order of their births
    birth: Final[int]
    message: Message | None
    put: int  # the value of `Retained.last_put` when the message was put
    owner: str  # for whom the message counts, as in `RetainedShares`

    def __init__(self, birth: int) -> None:
        self.children = {}
        self.birth = birth
        self.message = None
        self.put = 0
        self.owner = NOBODY


@final
class Branch:
    """The children of a node, which a search visits in batches.

    Between two batches children may be added and removed. They are ordered by birth, so that the
    search continues after the last one that it has visited.
    """

    depth: Final[int]  # the level of the filter with which the children are compared
    _node: Final[RetainedNode]
    _batch: list[RetainedNode]
    _at: int
    _position: int
    _last_birth: int

    def __init__(self, node: RetainedNode, depth: int) -> None:
        self.depth = depth
        self._node = node
        self._batch = []
        self._at = 0
        self._position = 0
        self._last_birth = 0

    def next(self) -> RetainedNode | None:
        """The next child, None after the last."""
        if self._at == len(self._batch):
            self._fetch()
            if not self._batch:
                return None
        node = self._batch[self._at]
        self._at += 1
        return node

    def _fetch(self) -> None:
        start = self._position
        if start:
            # Include the last child of the previous batch, to see if it is still in its position.
            batch = list(islice(self._node.children.values(), start - 1, start + _BATCH))
            if batch and batch[0].birth == self._last_birth:
                del batch[0]
            else:
                start = 0
                for child in self._node.children.values():
                    if child.birth > self._last_birth:
                        break
                    start += 1
                batch = list(islice(self._node.children.values(), start, start + _BATCH))
        else:
            batch = list(islice(self._node.children.values(), 0, _BATCH))
        self._batch = batch
        self._at = 0
        self._position = start + len(batch)
        if batch:
            self._last_birth = batch[-1].birth


@final
class RetainedSearch:
    """Finds the retained messages for one subscription, one by one."""

    qos: Final[int]
    identifier: Final[int]
    # Messages with a lower QoS are skipped: they were lost with the connection that subscribed.
    minimum_qos: int
    visited: int  # nodes that the last step visited
    _retained: Final["Retained"]
    _levels: Final[list[str]]
    _last_put: Final[int]
    _branches: Final[list[Branch]]
    _first: RetainedNode | None

    def __init__(
        self,
        retained: "Retained",
        first: RetainedNode | None,
        levels: list[str],
        qos: int,
        identifier: int,
    ) -> None:
        self.qos = qos
        self.identifier = identifier
        self.minimum_qos = 0
        self.visited = 0
        self._retained = retained
        self._levels = levels
        self._last_put = retained.last_put
        self._branches = []
        self._first = first

    def next(self, now: float) -> Message | None:
        """The next message, or None if this step found none; then check `is_done`."""
        self.visited = 0
        first = self._first
        if first is not None:
            self._first = None
            message = self._visit(first, 0, now)
            if message is not None:
                return message
        while self._branches and self.visited < _STEP_NODES:
            branch = self._branches[-1]
            node = branch.next()
            if node is None:
                self._branches.pop()
                continue
            message = self._visit(node, branch.depth, now)
            if message is not None:
                return message
        return None

    def is_done(self) -> bool:
        """Whether there are no more messages."""
        return self._first is None and not self._branches

    def _visit(self, node: RetainedNode, depth: int, now: float) -> Message | None:
        """Descend from a node that matches `depth` levels of the filter. Returns the message of the
        node that matches the whole filter, if any."""
        levels = self._levels
        # A level without a wildcard matches at most one child.
        while depth < len(levels) and levels[depth] != "#" and levels[depth] != "+":
            self.visited += 1
            child = node.children.get(levels[depth])
            if child is None:
                return None
            node = child
            depth += 1
        self.visited += 1
        if depth < len(levels):
            # [MQTT-4.7.1-2] # matches any number of levels, including none; + matches one
            below = levels[depth] == "#"
            if node.children:
                self._branches.append(Branch(node, depth if below else depth + 1))
            if not below:
                return None
        message = node.message
        if message is None or node.put > self._last_put:
            return None
        if message.is_expired(now):
            self._retained.expire(message.topic_name)
            return None
        return message


@final
class Retained:
    """Retained messages, of at most `maximum` topics and at most `maximum_bytes` in total."""

    maximum: Final[int]
    maximum_bytes: Final[int]
    shares: Final[RetainedShares]
    size: int  # memory of all messages
    _by_name: Final[dict[str, RetainedNode]]
    _expiring: Final[
        OrderedDict[str, RetainedNode]
    ]  # messages with an expiry; the first is swept next
    _root: Final[RetainedNode]
    _dollar_root: Final[RetainedNode]
    _last_birth: int
    last_put: int  # how many messages were ever put
    # Topics whose message was deleted because it expired: the owner takes this list.
    expired: list[str]

    def __init__(
        self,
        maximum: int,
        maximum_bytes: int = sys.maxsize,
        shares: RetainedShares | None = None,
    ) -> None:
        """`shares` limits what each user retains; without it users have no limits."""
        self.maximum = maximum
        self.maximum_bytes = maximum_bytes
        self.shares = RetainedShares() if shares is None else shares
        self.size = 0
        self._by_name = {}
        self._expiring = OrderedDict()
        self._root = RetainedNode(0)
        self._dollar_root = RetainedNode(0)
        self._last_birth = 0
        self.last_put = 0
        self.expired = []

    def __len__(self) -> int:
        return len(self._by_name)

    def put(self, topic_name: str, message: Message, owner: str = NOBODY) -> bool:
        """Set the message of the topic, which counts for `owner`. Returns False if there is no
        room, for any message or for those of this owner.

        Then a message that the topic already has is deleted, because it is no longer the last one
        [MQTT-3.3.1-5]. For a message with an empty payload the caller must call `delete` instead
        [MQTT-3.3.1-6].
        """
        assert topic_name == message.topic_name
        node = self._by_name.get(topic_name)
        new_cost = cost(message)
        old_cost = 0
        old_owner = NOBODY
        if node is not None:
            assert node.message is not None
            old_cost = cost(node.message)
            old_owner = node.owner
        size = self.size + new_cost - old_cost
        replaces_own = node is not None and old_owner == owner
        if size > self.maximum_bytes or not self.shares.has_room(
            owner,
            messages=0 if replaces_own else 1,
            size=new_cost - old_cost if replaces_own else new_cost,
        ):
            self.delete(topic_name)
            return False
        if node is None:
            if len(self._by_name) >= self.maximum:
                return False
            node = self._new_node(topic_name)
            self._by_name[topic_name] = node
        else:
            self.shares.count(old_owner, messages=-1, size=-old_cost)
        self.shares.count(owner, messages=1, size=new_cost)
        node.message = message
        node.owner = owner
        self.last_put += 1
        node.put = self.last_put
        self.size = size
        if message.expires_at is not None:
            self._expiring[topic_name] = node
        elif topic_name in self._expiring:
            del self._expiring[topic_name]
        return True

    def topic_names(self) -> list[str]:
        """All topics that have a message, which may be expired."""
        return list(self._by_name)

    def get(self, topic_name: str) -> Message | None:
        """The message of the topic, or None."""
        node = self._by_name.get(topic_name)
        return None if node is None else node.message

    def delete(self, topic_name: str) -> None:
        """Delete the message of the topic, if it has one."""
        node = self._by_name.get(topic_name)
        if node is None:
            return
        del self._by_name[topic_name]
        if topic_name in self._expiring:
            del self._expiring[topic_name]
        assert node.message is not None
        old_cost = cost(node.message)
        self.size -= old_cost
        self.shares.count(node.owner, messages=-1, size=-old_cost)
        node.message = None
        node.owner = NOBODY
        self._prune(topic_name)

    def search(self, topic_filter: str, qos: int, identifier: int) -> RetainedSearch:
        """Start a search for the messages that match a valid filter, which must not be shared."""
        if has_wildcard(topic_filter):
            root = self._root_for(topic_filter)
            return RetainedSearch(self, root, topic_filter.split("/"), qos, identifier)
        return RetainedSearch(self, self._by_name.get(topic_filter), [], qos, identifier)

    def sweep(self, now: float, limit: int = CHECKED_PER_SWEEP) -> int:
        """Check the next `limit` messages that can expire, and delete the expired ones.

        Returns how many were deleted. Each call continues where the last one stopped.
        """
        deleted = 0
        for _ in range(min(limit, len(self._expiring))):
            topic_name = next(iter(self._expiring))
            message = self._expiring[topic_name].message
            assert message is not None
            if message.is_expired(now):
                self.expire(topic_name)
                deleted += 1
            else:
                self._expiring.move_to_end(topic_name)
        return deleted

    def expire(self, topic_name: str) -> None:
        """Delete the expired message of the topic."""
        self.delete(topic_name)
        self.expired.append(topic_name)

    def _root_for(self, topic: str) -> RetainedNode:
        return self._dollar_root if topic.startswith("$") else self._root

    def _new_node(self, topic_name: str) -> RetainedNode:
        node = self._root_for(topic_name)
        for level in topic_name.split("/"):
            child = node.children.get(level)
            if child is None:
                self._last_birth += 1
                child = RetainedNode(self._last_birth)
                node.children[level] = child
            node = child
        return node

    def _prune(self, topic_name: str) -> None:
        levels = topic_name.split("/")
        node = self._root_for(topic_name)
        above: list[RetainedNode] = []
        for level in levels:
            above.append(node)
            node = node.children[level]
        while above and node.message is None and not node.children:
            node = above.pop()
            del node.children[levels.pop()]


def cost(message: Message) -> int:
    """Approximate memory of a retained message, with the nodes of its topic."""
    topic_name = message.topic_name
    # Each level is a separate string. One character beyond ASCII widens all characters.
    levels = len(topic_name) if topic_name.isascii() else 4 * len(topic_name)
    return message.size + levels + RETAINED_BYTES + LEVEL_BYTES * topic_name.count("/")
