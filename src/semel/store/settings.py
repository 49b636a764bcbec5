"""The [store] section: what lasts, where, and how much may wait; and [[stream]], what is recorded.

Nothing that waits is without a bound. Each help text says what happens there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.mqtt.topics import check_topic_filter, is_shared, quoted
from semel.mqtt.violation import Violation
from semel.settings import BYTES, SECONDS, SettingsError, check, read_one, required, setting

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB

# What an acknowledgement promises; see `StoreSettings.durability`.
DISK: Final = "disk"
OS: Final = "os"
MEMORY: Final = "memory"

# Both are names of folders below the root.
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
STREAM_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def _about_node(name: str) -> str | None:
    """What is wrong with the name of a node."""
    if NODE_NAME.fullmatch(name):
        return None
    return "must be 1 to 64 letters, digits, -, _ and ., of which the first is a letter or a digit"


def about_stream_name(name: str) -> str | None:
    """What is wrong with the name of a stream."""
    if STREAM_NAME.fullmatch(name):
        return None
    return "must be 1 to 64 small letters, digits, - and _, of which - and _ are not the first"


def _about_filter(topic_filter: str) -> str | None:
    """What is wrong with the filter of a stream."""
    if is_shared(topic_filter):
        return "a stream takes every message: write the filter without $share and its group"
    if topic_filter.startswith("$"):
        return "topics that begin with $ are the broker's own, and not recorded"
    try:
        check_topic_filter(topic_filter, None)
    except Violation as violation:
        return f"is no topic filter: {violation.rule.sentence.removesuffix('.')}"
    return None


@dataclass(frozen=True)
class StoreSettings:
    """The store: what outlives the process, and where it is kept."""

    section: ClassVar[str] = "store"

    data: Path | None = setting(  # noqa: RUF009
        None,
        "The folder of the store, which one process at a time may use; it is made if it is not "
        "there. Without it everything is in memory and ends with the process.",
    )
    durability: str = setting(
        DISK,
        "What an acknowledgement means. disk: written and synced, so that it survives loss of "
        "power. os: handed to the operating system, so that it survives the end of the process, "
        "kill -9 included, but not loss of power. memory: nothing survives, as without data.",
        choices=(DISK, OS, MEMORY),
    )
    node: str | None = setting(
        None,
        "The name of this node in the record, the same at every start: letters, digits, -, _ and "
        "., at most 64 of them, the first a letter or digit. By default it is an id that is kept "
        "in the store. No two nodes below one root may have the same.",
        rule=_about_node,
    )
    root: str | None = setting(
        None,
        "Where the segments of streams are kept: a folder, or the address of an object store. By "
        "default it is the folder streams in the data folder.",
    )
    seal_rows: int = setting(
        500_000,
        "Rows of a stream that are enough for a segment. With so many it is sealed at once.",
        minimum=1,
    )
    seal_bytes: int = setting(
        64 * MIB,
        "Bytes of a stream's rows, not compressed, that are enough for a segment. With so many it "
        "is sealed at once.",
        unit=BYTES,
        minimum=1,
    )
    seal_after: float = setting(
        1.0,
        "How long a row of a stream waits for others before it is sealed with those that there "
        "are.",
        unit=SECONDS,
        minimum=0.01,
        maximum=86_400,
    )
    maximum_unsealed_rows: int = setting(
        20_000_000,
        "Rows of all streams together that wait to be sealed. At the bound, publishers whose "
        "messages are recorded are not read from until there are fewer.",
        minimum=1,
    )
    maximum_unsealed_bytes: int = setting(
        8 * GIB,
        "Bytes of all rows that wait to be sealed. At the bound, publishers whose messages are "
        "recorded are not read from until there are fewer.",
        unit=BYTES,
        minimum=1,
    )
    maximum_unwritten_bytes: int = setting(
        64 * MIB,
        "Bytes that wait in memory to be written to the disk. At the bound, publishers whose "
        "messages last are not read from until there are fewer.",
        unit=BYTES,
        minimum=1,
    )
    compact_below: int = setting(
        64 * MIB,
        "Segments smaller than this are merged into larger ones. 0 merges none.",
        unit=BYTES,
    )
    compact_to: int = setting(
        256 * MIB,
        "The size at which a merged segment is large enough, and no further one is added to it.",
        unit=BYTES,
        minimum=1,
    )
    compact_grace: float = setting(
        3600.0,
        "How long segments stay after they were merged, for those who are still reading them. "
        "After that they are deleted.",
        unit=SECONDS,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def lasts(self) -> bool:
        """Whether anything outlives the process."""
        return self.data is not None and self.durability != MEMORY


@dataclass(frozen=True)
class StreamSettings:
    """A stream: a topic filter whose messages are kept as an ordered record."""

    section: ClassVar[str] = "stream"
    repeated: ClassVar[str] = "name"

    name: str = required(
        "all",
        "What it is called: small letters, digits, - and _, at most 64 of them, the first a "
        "letter or a digit. No two streams may have the same.",
        rule=about_stream_name,
    )
    filter: str = required(
        "#",
        "Messages to topics that this topic filter matches are recorded. It is not shared and "
        "does not begin with $. A message that two streams match is recorded in each.",
        rule=_about_filter,
    )
    retain_for: float | None = setting(
        None,
        "How long messages are kept after they were received. A segment whose newest message is "
        "older is deleted, but never the newest segment, and none that has not landed. Without it, "
        "age deletes nothing.",
        unit=SECONDS,
        minimum=1,
    )
    retain_bytes: int | None = setting(
        None,
        "Bytes of this node's segments that are kept. Above it the oldest segments are deleted, "
        "but never the newest, and none that has not landed. Without it, size deletes nothing.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)


def parse_stream(text: str) -> StreamSettings:
    """What the flag --stream says: NAME=FILTER. Raises SettingsError."""
    name, equals, topic_filter = text.partition("=")
    if not equals:
        raise SettingsError([f"flag --stream: {quoted(text)} must be NAME=FILTER, such as all=#"])
    given = {"name": name, "filter": topic_filter}
    return read_one(StreamSettings, given, source="flag --stream")


def check_streams(store: StoreSettings, streams: Iterable[StreamSettings]) -> None:
    """Streams that may be recorded together, in this store. Raises SettingsError."""
    names = [stream.name for stream in streams]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems = [f"two streams are named {name}: give one of them another name" for name in twice]
    if names and store.data is None:
        problems.append("streams need a folder to be kept in: give one by --data or [store] data")
    elif names and not store.lasts:
        problems.append(
            f"streams are kept, but [store] durability {MEMORY} keeps nothing: "
            f"choose {DISK} or {OS}, or leave out the streams"
        )
    if problems:
        raise SettingsError(problems)
