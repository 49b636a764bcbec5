"""Streams: named topic filters whose messages are kept as an ordered record.

Numbers are given out here, when a message is accepted, dense and in the order of commits: whoever
crashes before a commit gives the same numbers again, and nobody has seen them.
"""

from typing import Final, final

from semel.mqtt.topics import topic_matches

# Topics whose streams are remembered; then all are forgotten, and found again.
_REMEMBERED: Final = 10_000


@final
class Stream:
    """One of them, with the last number that it has given out."""

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
    """All that are configured."""

    all: Final[list[Stream]]
    _found: dict[str, list[Stream]]

    def __init__(self, streams: list[Stream]) -> None:
        self.all = streams
        self._found = {}

    def of(self, topic_name: str) -> list[Stream]:
        """Those that record messages to this topic: none does to one that begins with $."""
        if not self.all or topic_name.startswith("$"):
            return _NO_STREAMS
        found = self._found.get(topic_name)
        if found is None:
            found = [each for each in self.all if topic_matches(each.topic_filter, topic_name)]
            if len(self._found) >= _REMEMBERED:
                self._found = {}
            self._found[topic_name] = found
        return found

    def named(self, name: str) -> Stream | None:
        """The stream of that name, if there is one."""
        for each in self.all:
            if each.name == name:
                return each
        return None
