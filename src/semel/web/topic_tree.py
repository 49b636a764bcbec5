"""The topics of recorded messages as a tree, with counts, rates and last values.

The tree has at most `maximum_topics` topics; messages of further topics are not shown.
Rates are those of about the last ten seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from semel.mqtt.topics import topic_matches

MAXIMUM_TOPICS: Final = 100_000
# Entries of one branch, and of a search, that are shown.
SHOWN_ENTRIES: Final = 500
# Payload bytes of the last message that are kept of each topic.
KEPT_BYTES: Final = 4_096
# How quickly a rate follows: the weight of the newest second.
_WEIGHT: Final = 0.2
# A lower rate, per second, counts as 0.
_SLOWEST: Final = 0.001


@dataclass(frozen=True)
class LastMessage:
    """The newest message of a topic. Of a long payload only the beginning is kept."""

    # Seconds since 1970.
    at: float
    payload: bytes
    size: int
    qos: int
    retain: bool


@dataclass
class TopicBranch:
    """A level of topics: what is published at it, and below it."""

    level: str
    topic: str
    children: "dict[str, TopicBranch]" = field(default_factory=dict)
    last: LastMessage | None = None
    # At or below it: topics, messages, and those of the current interval.
    topics: int = 0
    messages: int = 0
    fresh: int = 0
    rate: float = 0.0

    @property
    def key(self) -> str:
        """What identifies it, also if its level is empty: the prefix of all topics below it."""
        return f"{self.topic}/"


class TopicTree:
    """All topics, and which branches have changed."""

    def __init__(self, maximum_topics: int = MAXIMUM_TOPICS) -> None:
        self.root = TopicBranch("", "")
        self._maximum_topics = maximum_topics
        # The branches whose rate is or may become more than 0, by identity.
        self._active: dict[int, TopicBranch] = {}

    def add(self, topic: str, messages: int, last: LastMessage) -> None:
        """Add messages of a topic, of which `last` is the newest."""
        path = self._path(topic)
        if path is None:
            return
        leaf = path[-1]
        is_new = leaf.last is None
        leaf.last = last
        for branch in path:
            branch.topics += is_new
            branch.messages += messages
            branch.fresh += messages
            self._active[id(branch)] = branch

    def _path(self, topic: str) -> list[TopicBranch] | None:
        """The branches from the root to a topic; None: it is new, and the tree is full."""
        at, path = self.root, [self.root]
        levels = topic.split("/")
        for number, level in enumerate(levels):
            child = at.children.get(level)
            if child is None:
                if self.root.topics >= self._maximum_topics:
                    return None
                child = TopicBranch(level, "/".join(levels[: number + 1]))
                at.children[level] = child
            path.append(child)
            at = child
        if at.last is None and self.root.topics >= self._maximum_topics:
            return None
        return path

    def end_interval(self, seconds: float) -> None:
        """Update all rates with what was added during the last `seconds`."""
        for branch in list(self._active.values()):
            rate = branch.fresh / max(seconds, 0.001)
            branch.rate += (rate - branch.rate) * min(1.0, _WEIGHT * seconds)
            branch.fresh = 0
            if branch.rate < _SLOWEST:
                branch.rate = 0.0
                del self._active[id(branch)]

    def branch(self, key: str) -> TopicBranch | None:
        """The branch of a key: "" for the root, "plant/1/" for what is below plant/1."""
        at: TopicBranch | None = self.root
        for level in key.split("/")[:-1]:
            at = None if at is None else at.children.get(level)
        return at

    def entries(self, branch: TopicBranch) -> tuple[list[TopicBranch], int]:
        """The levels directly below a branch, by name, and how many there are besides."""
        found = sorted(branch.children.values(), key=lambda each: _natural(each.level))
        return found[:SHOWN_ENTRIES], max(0, len(found) - SHOWN_ENTRIES)

    def search(self, text: str) -> tuple[list[TopicBranch], int]:
        """The topics that contain a text, or match a Topic Filter; and how many there are besides.

        A text with + or # is a filter.
        """
        is_filter = "+" in text or "#" in text
        folded = text.casefold()
        found: list[TopicBranch] = []
        more = 0
        for branch in self._all(self.root):
            if branch.last is None:
                continue
            if is_filter:
                is_found = topic_matches(text, branch.topic)
            else:
                is_found = folded in branch.topic.casefold()
            if is_found:
                if len(found) < SHOWN_ENTRIES:
                    found.append(branch)
                else:
                    more += 1
        return found, more

    def _all(self, branch: TopicBranch) -> Iterator[TopicBranch]:
        waiting = [branch]
        while waiting:
            each = waiting.pop()
            yield each
            waiting.extend(each.children.values())


def _natural(level: str) -> tuple[Any, ...]:
    """A key by which line2 is before line10."""
    parts: list[Any] = []
    digits = ""
    for character in level:
        if character.isascii() and character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((0, int(digits[:18]), digits))
            digits = ""
        parts.append((1, 0, character))
    if digits:
        parts.append((0, int(digits[:18]), digits))
    return tuple(parts)
