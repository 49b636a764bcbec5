"""The rows of several tables from the messages of a stream, as one DataFrame of Spark.

    messages ─▶ node seq received topic … date │ row_0 │ bad_0 │ row_1 │ bad_1 │ payload

The record is read once, whatever the number of tables. For each table of a landing file there is a
struct with its own columns, which is null if the message is not for the table, and a struct that is
not null if the message is for the table but cannot be decoded. The sink (`tables_sink.py`) takes
the structs apart. The payload is there only for bad messages.

JSON, CSV, text and numbers are decoded by Spark's own expressions, other formats by whole Arrow
columns (`decoders`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from semel.pipeline.arrow_decoding import ArrowDecoding, Decompression
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.errors import OptionError
from semel.pipeline.json_decoding import checked_json, parsed_json
from semel.pipeline.landing_file import ALWAYS, EVENT_TIME, LandedTable
from semel.pipeline.sink import check_columns
from semel.pipeline.sink_options import parse_sink_options
from semel.pipeline.source_columns import COLUMNS, DATE, UTC_DATE

# By which the newest row is found.
NEWEST_BY: Final = ("received", "seq")
ROW: Final = "row_"
BAD: Final = "bad_"
PAYLOAD: Final = "payload"
# Where and why a message cannot be decoded. The reason is null if Spark has refused it, which gives
# no reason; the sink finds it.
BAD_TYPE: Final = "struct<reason: string, column: string, byte: int>"
NUMBER: Final = r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
# Decoders by expressions of Spark.
TEXT_DECODERS: Final = ("json", "json_text", "text", "number", "csv")
_ANSI: Final = "spark.sql.ansi.enabled"
_CORRUPT: Final = "_corrupt"
# The code that Spark appends for programs.
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_NUMERIC: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")
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
    columns_of = [_declared_columns(each) for each in tables]
    base = frame.columns
    # First which messages a table takes, then what they contain, then its row: in steps, so that
    # Spark evaluates each of them once.
    frame = frame.select(
        *base,
        *(
            sf.when(each.template.takes(topic) & _is_new(landed.get(each.name, {})), payload).alias(
                f"taken_{place}"
            )
            for place, each in enumerate(tables)
        ),
    )
    frame = frame.select(
        *base,
        *(
            _decompressed(each, sf.col(f"taken_{place}")).alias(f"plain_{place}")
            for place, each in enumerate(tables)
        ),
    )
    frame = frame.select(
        *base,
        *(
            _decoded(each, columns, sf.col(f"plain_{place}")).alias(f"decoded_{place}")
            for place, (each, columns) in enumerate(zip(tables, columns_of, strict=True))
        ),
    )
    shapes = []
    for place, (table, columns) in enumerate(zip(tables, columns_of, strict=True)):
        try:
            frame, shape = _with_row(frame, table, columns, place, record)
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


def _declared_columns(table: LandedTable) -> StructType:
    """The columns that the decoder gives. Raises OptionError."""
    try:
        found = StructType.fromDDL(table.columns)
        if not isinstance(found, StructType) or not found.fields:
            raise ValueError("there is no column")
    except (PySparkException, ValueError, TypeError) as problem:
        raise OptionError(
            f"table {table.name}: columns {table.columns!r} are not names with types of Spark,"
            f' such as "value DOUBLE NOT NULL, unit STRING": {_first_line(problem)}'
        ) from None
    for field in found.fields:
        if _has_required_part(field.dataType):
            raise OptionError(
                f"table {table.name}: columns: {field.name} has a part that is NOT NULL, which only"
                " whole columns can be"
            )
    if table.decoder in ("text", "json_text", "number"):
        kinds = _NUMERIC if table.decoder == "number" else ("string",)
        if len(found.fields) != 1 or found.fields[0].dataType.typeName() not in kinds:
            which = "numeric" if table.decoder == "number" else "STRING"
            raise OptionError(
                f"table {table.name}: decoder {table.decoder} gives one {which} column, not"
                f" {table.columns!r}"
            )
    return found


def _has_required_part(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not each.nullable or _has_required_part(each.dataType) for each in kind.fields)
    inner = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    return any(_has_required_part(each) for each in inner if each is not None)


# --- decoding -------------------------------------------------------------------------------------


def _decompressed(table: LandedTable, payload: Column) -> Column:
    """A struct of `value`, the payload without compression, and `problem`."""
    if table.compression is None:
        return sf.struct(payload.alias("value"), _no_problem().alias("problem"))
    return _arrow_function(Decompression(table.compression), "binary")(payload)


def _decoded(table: LandedTable, columns: StructType, plain: Column) -> Column:
    """A struct of `value` (null if the payload is bad) and `problem`; null for other messages."""
    payload = plain["value"]
    if table.decoder == "raw":
        value = sf.struct(payload.alias(columns.fields[0].name))
        found = sf.struct(
            sf.when(payload.isNotNull(), value).alias("value"), plain["problem"].alias("problem")
        )
    elif table.decoder in TEXT_DECODERS:
        text = sf.when(sf.is_valid_utf8(payload.cast("string")), payload.cast("string"))
        value = _parsed_text(table, columns, text)
        for field in columns.fields:
            if not field.nullable:
                value = sf.when(value[field.name].isNotNull(), value)
        unexplained = sf.when(payload.isNotNull() & value.isNull(), _unexplained())
        problem = sf.coalesce(plain["problem"], unexplained)
        found = sf.struct(value.alias("value"), problem.alias("problem"))
    else:
        made = _arrow_decoder(table, columns)(payload)
        problem = sf.coalesce(plain["problem"], made["problem"])
        found = sf.struct(made["value"].alias("value"), problem.alias("problem"))
    return sf.when(payload.isNotNull() | plain["problem"].isNotNull(), found)


def _parsed_text(table: LandedTable, columns: StructType, text: Column) -> Column:
    """The columns of a text as a struct; null if it does not fit."""
    first = columns.fields[0]
    if table.decoder == "json":
        return parsed_json(text, columns)
    if table.decoder == "json_text":
        checked = checked_json(text)
        return sf.when(checked.isNotNull(), sf.struct(checked.alias(first.name)))
    if table.decoder == "text":
        return sf.when(text.isNotNull(), sf.struct(text.alias(first.name)))
    if table.decoder == "number":
        trimmed = sf.btrim(text, sf.lit(" \t\r\n"))
        number = sf.when(trimmed.rlike(NUMBER), trimmed.try_cast(first.dataType))
        if first.dataType.typeName() in ("double", "float"):
            number = sf.when(sf.abs(number) != float("inf"), number)
        return sf.when(number.isNotNull(), sf.struct(number.alias(first.name)))
    return _parsed_csv(table, columns, text)


def _parsed_csv(table: LandedTable, columns: StructType, text: Column) -> Column:
    schema = ", ".join(
        f"`{each.name}` {each.dataType.simpleString()}"
        for each in [*columns.fields, StructField(_CORRUPT, StringType())]
    )
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "timeZone": "UTC",
        "sep": str(table.options.get("separator", ",")),
    }
    # A last line break is usual; any other would begin a second record.
    line = sf.regexp_replace(text, r"\r?\n\z", "")
    parsed = sf.from_csv(line, schema, options)
    is_good = parsed[_CORRUPT].isNull() & ~line.rlike(r"[\r\n]") & (sf.length(line) > 0)
    found = sf.struct(*(parsed[each.name].alias(each.name) for each in columns.fields))
    return sf.when(is_good, found)


def _no_problem() -> Column:
    return sf.lit(None).cast(BAD_TYPE)


def _unexplained() -> Column:
    return sf.struct(
        sf.lit(None).cast("string").alias("reason"),
        sf.lit(None).cast("string").alias("column"),
        sf.lit(None).cast("int").alias("byte"),
    )


def _arrow_decoder(table: LandedTable, columns: StructType) -> Callable[[Column], Column]:
    schema = to_arrow_schema(columns, timezone="UTC")
    try:
        made = ArrowDecoding(make_decoder(table.decoder, schema, table.options))
    except OptionError as problem:
        raise OptionError(f"table {table.name}: {problem}") from None
    value = StructType([StructField(each.name, each.dataType) for each in columns.fields])
    return _arrow_function(made, value.simpleString())


def _arrow_function(
    decode: "Decompression | ArrowDecoding", value: str
) -> Callable[[Column], Column]:
    """A function of Spark that gives a struct of `value` and `problem`, by whole Arrow columns."""

    def function(payloads: pa.Array) -> pa.Array:
        return decode(payloads)

    returned = f"struct<value: {value}, problem: {BAD_TYPE}>"
    made: Any = arrow_udf(function, returned)  # type: ignore[call-overload]
    return lambda column: made(column)


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
        raise OptionError(f"{key} {text!r}: {_first_line(problem)}") from None
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


def _first_line(problem: Exception) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return _STATE.sub("", lines[0]) if lines else "Spark gave no reason"
