"""The options of `format("mqtt")`, parsed once into one object.

Spark passes options as strings, with case-insensitive names. An unknown or wrong option raises an
OptionError that names the option, the values that it may have, and a suggestion. `live_options`
checks the options of a live broker (`url`, `topics` …) and is loaded only if there is one. Here
they are kept as given and never shown, because a password may be among them.

A `Point` says where a query starts, or a batch read ends, on each node: at the oldest or newest
row, at a seq, or at a time.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from semel.pipeline.errors import OptionError
from semel.pipeline.source_columns import parse_columns
from semel.settings_values import FALSE, TRUE
from semel.store.roots import (
    LocalRoot,
    RootError,
    check_folder_name,
    open_root,
    read_address,
)
from semel.store.segment_names import MAXIMUM_SEQ

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# All options except those of a live broker.
KNOWN: Final = (
    "root",
    "path",
    "stream",
    "nodes",
    "columns",
    "start",
    "end",
    "maxRowsPerBatch",
    "failOnDataLoss",
    "rowsPerPartition",
    "minPartitions",
)
_NAMES: Final = {name.lower(): name for name in KNOWN}
# Options of other sources, and the options that correspond to them here.
_ELSEWHERE: Final = {
    "startingoffsets": "start",
    "startingtimestamp": "start",
    "startingposition": "start",
    "endingoffsets": "end",
    "endingtimestamp": "end",
    "maxoffsetspertrigger": "maxRowsPerBatch",
    "maxrecordspertrigger": "maxRowsPerBatch",
    "maxfilespertrigger": "maxRowsPerBatch",
    "maxrows": "maxRowsPerBatch",
    "topic": "topics",
    "subscribe": "topics",
    "brokerurl": "url",
    "host": "url",
    "failondatalost": "failOnDataLoss",
    "streams": "stream",
    "select": "columns",
    "fields": "columns",
}
# The default stream for messages of a live broker.
LIVE_STREAM: Final = "all"
ROWS_PER_PARTITION: Final = 500_000
_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_POINTS: Final = (
    "earliest, latest, a seq such as 1000, a time such as 2026-03-01T12:00:00Z, or one of these "
    'for each node as JSON: {"n1": 1000, "n2": "latest"}'
)
# The prefix of options among the properties of a table.
_TABLE_OPTION: Final = "option."
_HADOOP_FOLDER: Final = re.compile(r"^file:/+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Point:
    """A position in a node's record: `name`, the row `seq`, or the first row since `time`."""

    name: str | None = None
    seq: int | None = None
    # Microseconds since 1970.
    time: int | None = None


@dataclass(frozen=True)
class Points:
    """A position in the record of each node; `others` is for nodes that are not named."""

    others: Point
    by_node: Mapping[str, Point] = field(default_factory=dict)

    def of(self, node: str) -> Point:
        """The position in a node's record."""
        return self.by_node.get(node, self.others)


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of a source."""

    # An absolute path, or an address, which may contain keys.
    root: str = field(repr=False)
    # None: the only stream of the root.
    stream: str | None
    # None: all.
    nodes: tuple[str, ...] | None
    # None: all, or those of the query's schema.
    columns: tuple[str, ...] | None
    start: Points
    # None: the last row.
    end: Points | None
    # None: unlimited.
    max_rows: int | None
    fail_on_data_loss: bool
    rows_per_partition: int
    # The number of partitions if there are enough rows.
    min_partitions: int
    # The options of a live broker, as given: empty, or with a url.
    live: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_live(self) -> bool:
        """Whether an ingest beside the driver writes the rows."""
        return bool(self.live)


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of Spark. Raises OptionError."""
    values: dict[str, str] = {}
    live: dict[str, str] = {}
    for name, value in given.items():
        known = _NAMES.get(name.lower())
        if known is not None:
            values[known] = value
        else:
            live[_live_name(name)] = value
    if live and not live.get("url"):
        raise OptionError(
            f"option {sorted(live)[0]} is for a live broker: give its address with option url, such"
            " as mqtt://host"
        )
    root = _root(values)
    stream = _name("stream", values.get("stream")) if "stream" in values else None
    if live and stream is None:
        stream = LIVE_STREAM
    options = SourceOptions(
        root=root,
        stream=stream,
        nodes=_nodes(values),
        columns=parse_columns(values["columns"]) if "columns" in values else None,
        start=parse_points("start", values.get("start", EARLIEST)),
        end=parse_points("end", values["end"]) if "end" in values else None,
        max_rows=_number(values, "maxRowsPerBatch", None),
        fail_on_data_loss=boolean(values, "failOnDataLoss", True),
        rows_per_partition=_number(values, "rowsPerPartition", None) or ROWS_PER_PARTITION,
        min_partitions=_number(values, "minPartitions", None) or len(os.sched_getaffinity(0)),
        live=live,
    )
    _check_range(options)
    if live:
        from semel.pipeline.live_options import read_options

        assert stream is not None
        read_options(live, root=root, stream=stream)
    return options


def has_root(given: Mapping[str, str]) -> bool:
    """Whether options say where the record is."""
    return any(name.lower() in ("root", "path") for name in given)


# --- tables ---------------------------------------------------------------------------------------


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of CREATE TABLE, or None if this is not a table. Raises OptionError.

    Spark passes all properties of the table: its own (`provider`, `owner`, `comment` …), those of
    TBLPROPERTIES, and the options twice, with and without the prefix `option.`. Only those with the
    prefix can be distinguished from the rest. LOCATION, or option path, is the property `location`.
    """
    properties = {name.lower(): value for name, value in given.items()}
    if "provider" not in properties:
        return None
    options = {
        name.removeprefix(_TABLE_OPTION): value
        for name, value in properties.items()
        if name.startswith(_TABLE_OPTION)
    }
    location = properties.get("location")
    if location is not None:
        options["path"] = _local_path(location)
    return options


def _local_path(location: str) -> str:
    """A location as a root: Hadoop writes a folder as file:/folder, without escapes."""
    folder = _HADOOP_FOLDER.sub("/", location)
    if not folder.startswith("/") and "://" not in folder:
        raise OptionError(f"LOCATION {location}: give the absolute path of the folder")
    return folder


def kept_options(given: Mapping[str, str], parsed: SourceOptions) -> dict[str, str]:
    """The options to store in the schema of a table, which is public.

    Raises OptionError for secrets, and for options that do not apply to a table.
    """
    if parsed.is_live:
        raise OptionError(
            "option url is not for a table: read a live broker by readStream.format('mqtt')"
        )
    if _has_key(parsed.root):
        raise OptionError(
            "option root: users who can read a table can see its options: leave the key out of the"
            " address, and give it by environment variables"
        )
    rest = {name: value for name, value in given.items() if name not in ("root", "path")}
    return rest | {"root": parsed.root}


def _has_key(root: str) -> bool:
    """Whether the address of a root contains a key."""
    if "://" not in root:
        return False
    parts = read_address(root)
    user = parts.netloc.rpartition("@")[0].lower()
    return (
        ":" in user
        or "%3a" in user
        or any(word in parts.query.lower() for word in ("key", "secret", "token"))
    )


def _check_range(options: SourceOptions) -> None:
    """Raise OptionError for contradictory options."""
    for option, points in (("start", options.start), ("end", options.end)):
        for node in () if points is None else points.by_node:
            if options.nodes is not None and node not in options.nodes:
                raise OptionError(f"option {option}: node {node} is not one of option nodes")
    if options.end is None:
        return
    start, end = options.start.others, options.end.others
    for first, last in ((start.seq, end.seq), (start.time, end.time)):
        if first is not None and last is not None and last < first:
            raise OptionError("option end is before option start")


def near(name: str, names: Mapping[str, str]) -> str | None:
    """The most similar name, or None; the keys of `names` are lowercase."""
    found = get_close_matches(name.lower(), names, n=1)
    return names[found[0]] if found else None


def _live_name(name: str) -> str:
    """The spelling of an option of a live broker. Raises OptionError if there is none."""
    from semel.pipeline.live_options import OPTIONS

    names = {each.lower(): each for each in OPTIONS}
    if name.lower() in names:
        return names[name.lower()]
    meant = _ELSEWHERE.get(name.lower()) or near(name, {**names, **_NAMES})
    hint = (
        f"did you mean {meant}?"
        if meant
        else f"the options are {', '.join(KNOWN)}, and for a live "
    )
    if not meant:
        hint += f"broker {', '.join(sorted(OPTIONS))}"
    raise OptionError(f"mqtt has no option {name}: {hint}")


def _root(values: Mapping[str, str]) -> str:
    both = [name for name in ("root", "path") if name in values]
    if not both:
        raise OptionError(
            "option root is missing: give the location of the segments, a folder or an address "
            "such as s3://bucket/root; for a table, give it in CREATE TABLE without a list of "
            "columns, because Spark drops the options of a table that has such a list"
        )
    if len(both) == 2 and values["root"] != values["path"]:
        raise OptionError("option root and the path of load() differ: give one of them")
    name = both[0]
    text = values[name].strip()
    if not text:
        raise OptionError(f"option {name} is empty: give a folder or an address")
    try:
        root = open_root(text)
    except RootError as problem:
        raise OptionError(f"option {name}: {problem}") from None
    # Processes of one Spark may have different working directories.
    return os.path.abspath(root.address) if isinstance(root, LocalRoot) else text


def _name(option: str, text: str | None) -> str:
    try:
        check_folder_name(option.removesuffix("s"), text or "")
    except RootError as problem:
        raise OptionError(f"option {option}: {problem}") from None
    assert text
    return text


def _nodes(values: Mapping[str, str]) -> tuple[str, ...] | None:
    if "nodes" not in values:
        return None
    names = [each.strip() for each in values["nodes"].split(",")]
    if not all(names):
        raise OptionError("option nodes must be names separated by commas, such as n1,n2")
    return tuple(sorted({_name("nodes", each) for each in names}))


def _number(values: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = values.get(name)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text.strip()) or not 1 <= int(text) <= MAXIMUM_SEQ:
        raise OptionError(f"option {name} must be a whole number of at least 1, not {text!r}")
    return int(text)


def boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false. Raises OptionError."""
    text = values.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in (*TRUE, *FALSE):
        raise OptionError(f"option {name} must be true or false, not {text!r}")
    return word in TRUE


def parse_points(option: str, text: str) -> Points:
    """Where a query starts or ends on each node. Raises OptionError, which names the option."""
    stripped = text.strip()
    # By default, other nodes are read from their beginning to their end.
    others = Point(name=EARLIEST if option == "start" else LATEST)
    if not stripped.startswith("{"):
        return Points(_point(option, stripped, text))
    try:
        given = json.loads(stripped, object_pairs_hook=_once)
    except (ValueError, RecursionError) as problem:
        raise OptionError(
            f"option {option} is not valid JSON: {problem}; it must be {_POINTS}"
        ) from None
    found = {}
    for node, value in given.items():
        _name(option, node)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise OptionError(f"option {option}, node {node}: {value!r} is not {_POINTS}")
        found[node] = _point(option, str(value).strip(), str(value))
    return Points(others, found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a node is named twice")
    return found


def _point(option: str, word: str, shown: str) -> Point:
    if word.lower() in (EARLIEST, LATEST):
        return Point(name=word.lower())
    if _DIGITS.fullmatch(word):
        if 1 <= int(word) <= MAXIMUM_SEQ:
            return Point(seq=int(word))
        raise OptionError(
            f"option {option}: a row number is between 1 and {MAXIMUM_SEQ}, not {shown!r}"
        )
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise OptionError(f"option {option} must be {_POINTS}, not {shown!r}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Point(time=microseconds(time))


def microseconds(time: datetime) -> int:
    """A time as in rows: microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)
