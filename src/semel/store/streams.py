"""Streams: named topic filters whose messages are kept as an ordered record.

Seqs are assigned here when a message is accepted, without gaps and in the order of commits. If a
crash loses a commit, its seqs are assigned again, which is safe because nobody has seen them.
"""

from typing import Final, final

from semel.mqtt.topics import topic_matches

# For how many topics the streams are cached, before the cache is cleared.
_MAXIMUM_CACHED: Final = 10_000


@final
class Stream:
    """A stream, with the last seq that was assigned."""

    id: Final[int]
    name: Final[str]
    topic_filter: Final[str]
    last_seq: int

    def __init__(self, id: int, name: str, topic_filter: str, last_seq: int) -> None:
        self.id = id
        self.name = name
        self.topic_filter = topic_filter
        self.last_seq = last_seq


_NO_STREAMS: Final[list[Stream]] = []


@final
class Streams:
    """All configured streams."""

    all: Final[list[Stream]]
    _by_topic: dict[str, list[Stream]]

    def __init__(self, streams: list[Stream]) -> None:
        self.all = streams
        self._by_topic = {}

    def of(self, topic_name: str) -> list[Stream]:
        """The streams that record messages of this topic; none if it begins with $."""
        if not self.all or topic_name.startswith("$"):
            return _NO_STREAMS
        found = self._by_topic.get(topic_name)
        if found is None:
            found = [each for each in self.all if topic_matches(each.topic_filter, topic_name)]
            if len(self._by_topic) >= _MAXIMUM_CACHED:
                self._by_topic = {}
            self._by_topic[topic_name] = found
        return found

    def named(self, name: str) -> Stream | None:
        """The stream with this name, or None."""
        for each in self.all:
            if each.name == name:
                return each
        return None
