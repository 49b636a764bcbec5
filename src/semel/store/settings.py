"""The [store] section: durability, location and bounds. [[stream]]: which messages are recorded.

Everything that waits is bounded. Each help text says what happens at the bound.
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

# The meaning of an acknowledgement; see `StoreSettings.durability`.
DISK: Final = "disk"
OS: Final = "os"
MEMORY: Final = "memory"

# Both become names of folders below the root.
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
STREAM_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def _node_problem(name: str) -> str | None:
    """What is wrong with the name of a node, or None."""
    if NODE_NAME.fullmatch(name):
        return None
    return "must be 1 to 64 letters, digits, -, _ and ., and begin with a letter or digit"


def stream_name_problem(name: str) -> str | None:
    """What is wrong with the name of a stream, or None."""
    if STREAM_NAME.fullmatch(name):
        return None
    return "must be 1 to 64 lowercase letters, digits, - and _, and begin with a letter or digit"


def _filter_problem(topic_filter: str) -> str | None:
    """What is wrong with the filter of a stream, or None."""
    if is_shared(topic_filter):
        return "a stream records every message: give the filter without $share and its group"
    if topic_filter.startswith("$"):
        return "topics that begin with $ belong to the broker and are not recorded"
    try:
        check_topic_filter(topic_filter, None)
    except Violation as violation:
        return f"is not a topic filter: {violation.rule.sentence.removesuffix('.')}"
    return None


@dataclass(frozen=True)
class StoreSettings:
    """The store: what outlives the process, and where it is."""

    section: ClassVar[str] = "store"

    data: Path | None = setting(  # noqa: RUF009
        None,
        "The folder of the store, created if it is missing. One process at a time may use it. "
        "Without it a broker keeps everything in memory until it ends, and an ingest uses a folder "
        "in its root.",
    )
    durability: str = setting(
        DISK,
        "What an acknowledgement means. disk: written and synced, so that it survives loss of "
        "power. os: written to the operating system, so that it survives the end of the process, "
        "kill -9 included, but not loss of power. memory: nothing survives, as without data.",
        choices=(DISK, OS, MEMORY),
    )
    node: str | None = setting(
        None,
        "The name of this node in the record, the same at every start: at most 64 letters, digits, "
        "-, _ and ., beginning with a letter or digit. The default is an id that is kept in the "
        "store. Node names must be unique below one root.",
        rule=_node_problem,
    )
    root: str | None = setting(
        None,
        "Where the segments of streams are kept: a folder, or the address of an object store. The "
        "default is the folder streams in the data folder.",
    )
    seal_rows: int = setting(
        500_000,
        "A segment is sealed as soon as a stream has this many unsealed rows.",
        minimum=1,
    )
    seal_bytes: int = setting(
        64 * MIB,
        "A segment is sealed as soon as the unsealed rows of a stream have this many bytes, "
        "uncompressed.",
        unit=BYTES,
        minimum=1,
    )
    seal_after: float = setting(
        1.0,
        "How long a row of a stream waits for more rows before it is sealed.",
        unit=SECONDS,
        minimum=0.01,
        maximum=86_400,
    )
    maximum_unsealed_rows: int = setting(
        20_000_000,
        "Unsealed rows of all streams together, at most. At the limit, publishers whose messages "
        "are recorded are paused until there are fewer.",
        minimum=1,
    )
    maximum_unsealed_bytes: int = setting(
        8 * GIB,
        "Bytes of all unsealed rows, at most. At the limit, publishers whose messages are "
        "recorded are paused until there are fewer.",
        unit=BYTES,
        minimum=1,
    )
    maximum_unwritten_bytes: int = setting(
        64 * MIB,
        "Bytes in memory that wait to be written to the disk, at most. At the limit, publishers "
        "of durable messages are paused until there are fewer.",
        unit=BYTES,
        minimum=1,
    )
    compact_below: int = setting(
        64 * MIB,
        "Segments smaller than this are merged into larger ones; 0 turns merging off.",
        unit=BYTES,
    )
    compact_to: int = setting(
        256 * MIB,
        "The size at which a merged segment is complete, so that nothing more is added to it.",
        unit=BYTES,
        minimum=1,
    )
    compact_grace: float = setting(
        3600.0,
        "How long segments are kept after they were merged, for readers that still use them.",
        unit=SECONDS,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_durable(self) -> bool:
        """Whether anything outlives the process."""
        return self.data is not None and self.durability != MEMORY


@dataclass(frozen=True)
class StreamSettings:
    """A stream: a topic filter whose messages are kept as an ordered record."""

    section: ClassVar[str] = "stream"
    repeated: ClassVar[str] = "name"

    name: str = required(
        "all",
        "Its name: at most 64 lowercase letters, digits, - and _, beginning with a letter or "
        "digit. Names must be unique.",
        rule=stream_name_problem,
    )
    filter: str = required(
        "#",
        "Messages of topics that match this topic filter are recorded. It must not be shared or "
        "begin with $. A message that matches two streams is recorded in each.",
        rule=_filter_problem,
    )
    retain_for: float | None = setting(
        None,
        "How long messages are kept after they were received. A segment whose newest message is "
        "older is deleted, except the newest segment and segments that have not landed. Without "
        "it, nothing is deleted because of its age.",
        unit=SECONDS,
        minimum=1,
    )
    retain_bytes: int | None = setting(
        None,
        "Bytes of this node's segments, at most. Above this limit the oldest segments are "
        "deleted, except the newest segment and segments that have not landed. Without it, "
        "nothing is deleted because of its size.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)


def parse_stream(text: str) -> StreamSettings:
    """Parse the value of --stream: NAME=FILTER. Raises SettingsError."""
    name, equals, topic_filter = text.partition("=")
    if not equals:
        raise SettingsError([f"flag --stream: {quoted(text)} must be NAME=FILTER, such as all=#"])
    given = {"name": name, "filter": topic_filter}
    return read_one(StreamSettings, given, source="flag --stream")


def check_streams(store: StoreSettings, streams: Iterable[StreamSettings]) -> None:
    """Check that these streams may be recorded in this store. Raises SettingsError."""
    names = [stream.name for stream in streams]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems = [f"two streams are named {name}: rename one of them" for name in twice]
    if names and store.data is None:
        problems.append("streams need a data folder: set --data or [store] data")
    elif names and not store.is_durable:
        problems.append(
            f"[store] durability {MEMORY} keeps nothing, so streams cannot be recorded: "
            f"choose {DISK} or {OS}, or remove the streams"
        )
    if problems:
        raise SettingsError(problems)
