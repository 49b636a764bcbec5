"""The landing file: which messages of a stream land in which tables, with which columns.

    dead_letters = "dead_letters"

    [[table]]
    name = "temperature"
    topic = "site/{plant}/{line:int}/temp"
    decoder = "json"
    columns = "value DOUBLE NOT NULL, unit STRING, at TIMESTAMP"
    event_time = "at"
    computed = { fahrenheit = "value * 9 / 5 + 32" }
    where = "value > -273.15"

This reads the file and checks what can be checked without Spark. Types and expressions are Spark's
own, so that Spark checks them (`table_rows.py`).
"""

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from semel.pipeline.cluster_by import DEFAULT_CLUSTER_BY, default_cluster_by
from semel.pipeline.errors import OptionError, TableError
from semel.pipeline.lake_address import check_table_name
from semel.pipeline.settings import LEAST_RETENTION
from semel.pipeline.source_columns import COLUMNS, DATE
from semel.pipeline.topic_template import LandingTemplate, parse_template
from semel.settings_values import SECONDS, Setting, read_value, unfit

DEAD_LETTERS: Final = "dead_letters"
# Decoders, and the columns of a table that declares none; None: it must declare them.
DECODERS: Final[Mapping[str, str | None]] = {
    "raw": "payload BINARY",
    "text": "value STRING",
    "number": "value DOUBLE",
    "json": None,
    "json_text": "value STRING",
    "csv": None,
    "cbor": None,
    "msgpack": None,
    "avro": None,
    "protobuf": None,
    "struct": None,
}
# The options of decoders, which are keys of a table.
DECODER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": ("separator",),
    "avro": ("schema_file", "schema", "confluent", "single_object"),
    "protobuf": ("descriptor_file", "message"),
    "struct": ("format",),
}
COMPRESSIONS: Final = ("gzip", "zstd", "lz4")
# Columns that every table has.
ALWAYS: Final = ("node", "seq", "received", "topic")
EVENT_TIME: Final = "event_time"
# A duration of a table, in the notation of all settings.
LATE_AFTER: Final = Setting(
    section="table",
    key="late_after",
    kind=float,
    optional=False,
    default=0.0,
    help="",
    minimum=0,
    maximum=100 * 365 * 86_400,
    unit=SECONDS,
)
RETENTION: Final = replace(LATE_AFTER, key="retention", minimum=LEAST_RETENTION)
DEAD_LETTERS_RETENTION: Final = replace(RETENTION, key="dead_letters_retention")
# Columns of the record that a table can have besides.
MESSAGE_COLUMNS: Final = tuple(
    name for name in COLUMNS if name not in (*ALWAYS, "payload", "dup", "packet_id")
)
KEYS: Final = (
    *("name", "topic", "decoder", "compression", "columns", "message_columns", "event_time"),
    *("explode", "late_after", "computed", "where", "partition_by", "latest_by"),
    *("cluster_by", "retention"),
)
# Options that are files, relative to the landing file.
_FILES: Final = ("schema_file", "descriptor_file")


@dataclass(frozen=True)
class LandedTable:
    """A table of a landing file."""

    name: str
    template: LandingTemplate
    decoder: str
    # Spark's DDL.
    columns: str
    compression: str | None = None
    # Options of the decoder; paths of files are absolute.
    options: Mapping[str, object] = field(default_factory=dict)
    message_columns: tuple[str, ...] = ()
    # A column with an array: each of its elements becomes a row.
    explode: str | None = None
    # Expressions of Spark SQL.
    event_time: str | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    # Seconds from the event time to the receipt of a message, after which it is late.
    late_after: float | None = None
    partition_by: tuple[str, ...] = (DATE,)
    # If given, the table has only the newest row for each value of these columns.
    latest_by: tuple[str, ...] = ()
    # The columns by which compaction sorts rows.
    cluster_by: tuple[str, ...] = DEFAULT_CLUSTER_BY
    # How long rows stay in the table, in seconds; None: forever.
    retention: float | None = None

    def needs_spark(self, timestamps: Container[str]) -> bool:
        """Whether Spark needs the decoded columns, to evaluate expressions or to explode an array.

        An event time that is one of these columns is no expression.
        """
        if self.event_time is not None and self.event_time not in timestamps:
            return True
        return bool(self.computed or self.where or self.explode)


@dataclass(frozen=True)
class LandingFile:
    """The tables of a landing file, in its order."""

    path: Path
    tables: tuple[LandedTable, ...]
    # The table of messages that cannot be decoded.
    dead_letters: str = DEAD_LETTERS
    # How long they stay in that table, in seconds; None: forever.
    dead_letters_retention: float | None = None

    def table(self, name: str) -> LandedTable:
        """The table of this name. Raises OptionError."""
        for each in self.tables:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.tables)
        raise OptionError(f"{self.path} has no table {name}: its tables are {names}")

    def only(self, name: str) -> "LandingFile":
        """The file with only this table. Raises OptionError."""
        return replace(self, tables=(self.table(name),))


def read_landing_file(path: Path) -> LandingFile:
    """Read a landing file. Raises OptionError, which names the file, the table and the key."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise OptionError(f"{path} cannot be read: {problem.strerror}") from None
    try:
        found = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise OptionError(f"{path} is not UTF-8, from byte {problem.start}") from None
    except tomllib.TOMLDecodeError as problem:
        raise OptionError(f"{path} is not TOML: {problem}") from None
    except RecursionError:
        raise OptionError(f"{path} cannot be read: its values are nested too deeply") from None
    try:
        return _parse(path, found)
    except (OptionError, TableError) as problem:
        raise OptionError(f"{path}: {problem}") from None


def _parse(path: Path, found: dict[str, Any]) -> LandingFile:
    _check_keys(found, ("dead_letters", DEAD_LETTERS_RETENTION.key, "table"))
    dead_letters = _text(found, "dead_letters") or DEAD_LETTERS
    check_table_name(dead_letters)
    tables = found.get("table")
    if not isinstance(tables, list) or not tables:
        raise OptionError("there is no table: add a [[table]] with a name and a topic")
    made = []
    for place, each in enumerate(tables):
        if not isinstance(each, dict):
            raise OptionError("table is not a list of tables: write [[table]]")
        name = each.get("name")
        which = f"table {name}" if isinstance(name, str) and name else f"table {place + 1}"
        try:
            made.append(_parse_table(each, path.absolute().parent))
        except (OptionError, TableError) as problem:
            raise OptionError(f"{which}: {problem}") from None
    names = [each.name.lower() for each in made] + [dead_letters.lower()]
    for each in made:
        if names.count(each.name.lower()) > 1:
            is_theirs = each.name.lower() == dead_letters.lower()
            other = "the table of dead letters" if is_theirs else "another table"
            raise OptionError(f"table {each.name}: {other} has the same name")
    return LandingFile(path, tuple(made), dead_letters, _seconds(found, DEAD_LETTERS_RETENTION))


def _parse_table(found: dict[str, Any], folder: Path) -> LandedTable:
    name, topic = _text(found, "name"), _text(found, "topic")
    if name is None:
        raise OptionError("name is missing")
    check_table_name(name)
    if topic is None:
        raise OptionError("topic is missing: give a template such as site/{plant}/+/temp")
    decoder = _text(found, "decoder") or "raw"
    if decoder not in DECODERS:
        raise OptionError(f"there is no decoder {decoder}: {_hint(decoder, DECODERS)}")
    _check_keys(found, (*KEYS, *DECODER_OPTIONS.get(decoder, ())))
    compression = _text(found, "compression")
    if compression is not None and compression not in COMPRESSIONS:
        raise OptionError(f"compression is {compression!r}: {_hint(compression, COMPRESSIONS)}")
    columns = _text(found, "columns") or DECODERS[decoder]
    if columns is None:
        raise OptionError(f"columns are missing: decoder {decoder} needs them, with types of Spark")
    if decoder == "raw" and "columns" in found:
        raise OptionError("decoder raw has one column, payload BINARY: leave columns out")
    message_columns = _texts(found, "message_columns")
    for each in message_columns:
        if each in ALWAYS:
            raise OptionError(f"message_columns: every table has {each}")
        if each not in MESSAGE_COLUMNS:
            raise OptionError(
                f"message_columns: there is no column {each}: {_hint(each, MESSAGE_COLUMNS)}"
            )
    computed = found.get("computed", {})
    if not isinstance(computed, dict) or not all(type(each) is str for each in computed.values()):
        raise OptionError("computed must be names with expressions: { column = 'expression' }")
    event_time, late_after = _text(found, "event_time"), _seconds(found, LATE_AFTER)
    if late_after is not None and event_time is None:
        raise OptionError("late_after needs event_time, the time that `received` is compared with")
    latest_by = _texts(found, "latest_by")
    # The rows of a table with the newest of each are few, and change their date.
    partition_by: tuple[str, ...] = () if latest_by else (DATE,)
    if "partition_by" in found:
        partition_by = _texts(found, "partition_by")
    for each in partition_by:
        # Files have them in their rows, by which a commit finds what is new.
        if each in ("node", "seq"):
            raise OptionError(f"partition_by: a table cannot be partitioned by {each}")
    cluster_by = default_cluster_by(partition_by)
    if "cluster_by" in found:
        cluster_by = _texts(found, "cluster_by")
    retention = _seconds(found, RETENTION)
    if retention is not None and latest_by:
        raise OptionError(
            "retention cannot be used with latest_by: such a table has the newest row for each"
            " value, however old it is; land into a second table for rows that expire"
        )
    return LandedTable(
        name=name,
        template=parse_template(topic),
        decoder=decoder,
        columns=columns,
        compression=compression,
        options=_decoder_options(found, decoder, folder),
        message_columns=message_columns,
        explode=_text(found, "explode"),
        event_time=event_time,
        computed=computed,
        where=_text(found, "where"),
        late_after=late_after,
        partition_by=partition_by,
        latest_by=latest_by,
        cluster_by=cluster_by,
        retention=retention,
    )


def _decoder_options(found: dict[str, Any], decoder: str, folder: Path) -> dict[str, object]:
    options: dict[str, object] = {}
    for key in DECODER_OPTIONS.get(decoder, ()):
        if key not in found:
            continue
        value = found[key]
        options[key] = value
        if key in _FILES:
            text = _text(found, key)
            assert text is not None
            options[key] = str(folder / text)
    separator = options.get("separator", ",")
    if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
        raise OptionError("separator must be one character, but no quotation mark or line break")
    return options


def _check_keys(found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            raise OptionError(f"there is no key {key}: {_hint(key, known)}")


def _hint(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"


def _text(found: Mapping[str, Any], key: str) -> str | None:
    """The text of a key; None if it is missing."""
    value = found.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{key} must be text in quotation marks, and not empty")
    return value


def _seconds(found: Mapping[str, Any], declared: Setting) -> float | None:
    """The duration of a key; None if it is missing."""
    if declared.key not in found:
        return None
    value = found[declared.key]
    try:
        seconds = read_value(declared, value)
    except ValueError:
        raise OptionError(unfit("", declared, value).lstrip()) from None
    assert isinstance(seconds, float)
    return seconds


def _texts(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = found.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise OptionError(f'{key} must be a list of texts, such as ["qos", "client_id"]')
    if len(set(value)) < len(value):
        raise OptionError(f"{key} names something twice")
    return tuple(value)
