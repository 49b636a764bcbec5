"""The rows of several tables from the messages of a stream, as one DataFrame of Spark.

    messages ─▶ node seq received topic … date │ row_0 │ bad_0 │ row_1 │ bad_1 │ payload

The record is read once, whatever the number of tables. For each table of a landing file there is a
struct with its own columns, which is null if the message is not for the table, and a struct that is
not null if the message is for the table but cannot be decoded. The sink (`tables_sink.py`) takes
the structs apart. The payload is there only for bad messages.

JSON, CSV, text and numbers are decoded by Spark's own expressions, other formats by whole Arrow
columns (`decoders`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from semel.pipeline.arrow_decoding import Decompression
from semel.pipeline.column_decoding import BAD_TYPE, arrow_function, decoding_of
from semel.pipeline.errors import OptionError
from semel.pipeline.landing_errors import first_line
from semel.pipeline.landing_file import ALWAYS, EVENT_TIME, LandedTable
from semel.pipeline.sink import check_columns
from semel.pipeline.sink_options import parse_sink_options
from semel.pipeline.source_columns import COLUMNS, DATE, UTC_DATE

# By which the newest row is found.
NEWEST_BY: Final = ("received", "seq")
ROW: Final = "row_"
BAD: Final = "bad_"
PAYLOAD: Final = "payload"
_ANSI: Final = "spark.sql.ansi.enabled"
# Columns that the record has, under names that no column of a table has.
_MESSAGE: Final = "_message_"


@dataclass(frozen=True)
class TableShape:
    """What the sink must know about a table."""

    name: str
    decoder: str
    compression: str | None
    # The table's columns, as JSON of Spark; and those that the decoder gives.
    schema: str
    decoded: str
    partition_by: tuple[str, ...]
    # The columns of the table that are not in its struct.
    shared: tuple[str, ...]
    # If given, the table has only the newest row for each value of these columns.
    latest_by: tuple[str, ...] = ()


def needed_columns(tables: Sequence[LandedTable]) -> list[str]:
    """The columns of the record that these tables need."""
    wanted = {name for each in tables for name in each.message_columns}
    return [name for name in COLUMNS if name in (*ALWAYS, PAYLOAD) or name in wanted]


def rows_of_tables(
    messages: DataFrame,
    tables: Sequence[LandedTable],
    landed: Mapping[str, Mapping[str, int]],
) -> tuple[DataFrame, list[TableShape]]:
    """The rows of these tables, from messages with `needed_columns`; and the shape of each table.

    `landed` has the positions of tables by name: messages up to them are left out, because the
    table has them. Raises OptionError, which names the table and the key that is wrong.
    """
    record = messages.columns
    frame = messages.withColumn(DATE, sf.expr(UTC_DATE))
    frame = frame.select(*(sf.col(name).alias(_MESSAGE + name) for name in [*record, DATE]))
    topic, payload = sf.col(f"{_MESSAGE}topic"), sf.col(f"{_MESSAGE}{PAYLOAD}")
    decodings = [decoding_of(each) for each in tables]
    base = frame.columns
    # Which messages a table takes; their payloads without compression; what Spark's parsers make of
    # them; whether that fits; and the columns. In steps, because Spark evaluates an expression as
    # often as it stands in one of them.
    taken = [_taken(each, landed, topic, payload) for each in tables]
    frame = frame.select(*base, *_numbered("taken", taken))
    plain = [_decompressed(each, sf.col(f"taken_{at}")) for at, each in enumerate(tables)]
    frame = frame.select(*base, *_numbered("plain", plain))
    parsed = [each.parsed(sf.col(f"plain_{at}")) for at, each in enumerate(decodings)]
    frame = frame.select(*base, *_numbered("parsed", parsed))
    fitting = [each.fitting(sf.col(f"parsed_{at}")) for at, each in enumerate(decodings)]
    frame = frame.select(*base, *_numbered("fitting", fitting))
    decoded = [each.decoded(sf.col(f"fitting_{at}")) for at, each in enumerate(decodings)]
    frame = frame.select(*base, *_numbered("decoded", decoded))
    shapes = []
    for place, (table, decoding) in enumerate(zip(tables, decodings, strict=True)):
        try:
            frame, shape = _with_row(frame, table, decoding.columns, place, record)
        except OptionError as problem:
            raise OptionError(f"table {table.name}: {problem}") from None
        shapes.append(shape)
    is_bad = sf.lit(False)
    for place in range(len(tables)):
        is_bad |= sf.col(f"{BAD}{place}").isNotNull()
    shared = [name for name in [*record, DATE] if name != PAYLOAD]
    return (
        frame.select(
            *(sf.col(_MESSAGE + name).alias(name) for name in shared),
            sf.when(is_bad, payload).alias(PAYLOAD),
            *(f"{kind}{place}" for place in range(len(tables)) for kind in (ROW, BAD)),
        ),
        shapes,
    )


def _numbered(name: str, columns: Sequence[Column]) -> list[Column]:
    return [each.alias(f"{name}_{at}") for at, each in enumerate(columns)]


@contextmanager
def without_ansi(spark: SparkSession) -> Iterator[None]:
    """During the block, an expression that cannot be evaluated gives null, and not an error.

    An error would end the query, again and again. A query keeps what it was started with.
    """
    before = spark.conf.get(_ANSI)
    spark.conf.set(_ANSI, "false")
    try:
        yield
    finally:
        spark.conf.set(_ANSI, before or "true")


def _is_new(landed: Mapping[str, int]) -> Column:
    """Whether a message is after the positions of a table."""
    if not landed:
        return sf.lit(True)
    positions = sf.create_map(*(sf.lit(each) for pair in sorted(landed.items()) for each in pair))
    at = sf.try_element_at(positions, sf.col(f"{_MESSAGE}node"))
    return sf.col(f"{_MESSAGE}seq") > sf.coalesce(at, sf.lit(0))


def _taken(
    table: LandedTable,
    landed: Mapping[str, Mapping[str, int]],
    topic: Column,
    payload: Column,
) -> Column:
    """The payload of a message that is for the table, and null for others."""
    return sf.when(table.template.takes(topic) & _is_new(landed.get(table.name, {})), payload)


def _decompressed(table: LandedTable, payload: Column) -> Column:
    """A struct of `value`, the payload without compression, and `problem`."""
    if table.compression is None:
        return sf.struct(payload.alias("value"), sf.lit(None).cast(BAD_TYPE).alias("problem"))
    return arrow_function(Decompression(table.compression), "binary")(payload)


# --- rows -----------------------------------------------------------------------------------------


def _with_row(
    frame: DataFrame, table: LandedTable, columns: StructType, place: int, record: list[str]
) -> tuple[DataFrame, TableShape]:
    """The frame with the row of one table instead of what was decoded. Raises OptionError."""
    kept = frame.columns
    kept.remove(f"decoded_{place}")
    decoded = sf.col(f"decoded_{place}")
    shared = [name for name in [*record, DATE] if name in (*ALWAYS, *table.message_columns, DATE)]
    visible = {name: sf.col(_MESSAGE + name) for name in shared}
    given = table.template.columns(sf.col(f"{_MESSAGE}topic"))
    given |= {each.name: decoded["value"][each.name] for each in columns.fields}
    _check_names(table, columns, shared)
    # The names that expressions can use. Nothing but `kept` is in the frame besides.
    named = frame.select(
        *kept,
        decoded,
        *(each.alias(name) for name, each in (visible | given).items()),
    )
    added = dict(table.computed)
    if table.event_time is not None:
        added[EVENT_TIME] = table.event_time
    fields = [sf.col(f"`{name}`") for name in given]
    for name, text in added.items():
        key = "event_time" if name == EVENT_TIME else f"computed.{name}"
        value = sf.expr(text).cast("timestamp") if name == EVENT_TIME else sf.expr(text)
        fields.append(_checked(named, value.alias(name), key, text))
    takes = sf.col(f"decoded_{place}")["value"].isNotNull()
    if table.where is not None:
        where = sf.expr(table.where).cast("boolean")
        takes &= sf.coalesce(_checked(named, where, "where", table.where), sf.lit(False))
    row = sf.when(takes, sf.struct(*fields)).alias(f"{ROW}{place}")
    bad = decoded["problem"].alias(f"{BAD}{place}")
    made = named.select(*kept, row, bad)
    own = made.schema[f"{ROW}{place}"].dataType
    assert isinstance(own, StructType)
    by_name = {name: made.schema[_MESSAGE + name].dataType for name in shared}
    ordered = [name for name in shared if name != DATE]
    schema = StructType(
        [
            *(StructField(name, by_name[name]) for name in ordered),
            *(StructField(each.name, each.dataType) for each in own.fields),
            StructField(DATE, by_name[DATE]),
        ]
    )
    _check_columns(table, schema)
    return made, TableShape(
        name=table.name,
        decoder=table.decoder,
        compression=table.compression,
        schema=schema.json(),
        decoded=columns.json(),
        partition_by=table.partition_by,
        shared=tuple(shared),
        latest_by=table.latest_by,
    )


def _checked(frame: DataFrame, column: Column, key: str, text: str) -> Column:
    """The column, if Spark can evaluate it. Raises OptionError, which names the key."""
    try:
        frame.select(column)
    except PySparkException as problem:
        raise OptionError(f"{key} {text!r}: {first_line(str(problem))}") from None
    return column


def _check_columns(table: LandedTable, schema: StructType) -> None:
    """Raise OptionError for columns that Delta does not have, or cannot partition by."""
    partition_by = ",".join(table.partition_by)
    key = ",".join(table.latest_by)
    options = parse_sink_options({"path": table.name, "partitionBy": partition_by, "key": key})
    try:
        check_columns(options, schema, overwrite=False)
    except OptionError as problem:
        text = str(problem).replace("partitionBy", "partition_by")
        raise OptionError(text.replace("option key", "latest_by")) from None


def _check_names(table: LandedTable, columns: StructType, shared: list[str]) -> None:
    """Raise OptionError if two columns have the same name; Delta ignores case."""
    names = [
        *shared,
        *(each.column for each in table.template.named),
        *(each.name for each in columns.fields),
        *table.computed,
        *([] if table.event_time is None else [EVENT_TIME]),
    ]
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise OptionError(f"two columns are called {name}: rename one of them")
