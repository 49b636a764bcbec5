"""The rows of several tables from the messages of a stream, as one DataFrame of Spark.

    messages ─▶ node seq received topic … date │ payload │ takes_0 │ row_1 │ bad_1 │ takes_2 …

The record is read once, whatever the number of tables. Most tables need nothing of Spark but to be
told which messages are theirs, by a boolean. Their payloads are decoded by the sink: a function of
Spark would send them to Python and the columns back, only for the sink to get the columns again.

A table with expressions, or with a row for each element of an array, has two structs instead: one
with its own columns, which is null if the message is not for the table, and one that is not null if
the message is for the table but cannot be decoded. An event time that is a column of the decoder is
no expression. If an array is exploded, a message has several rows (`exploded_rows.py`).
`table_split.py` takes the rows of all tables apart.

Text is always decoded by Spark's own expressions, all other formats by whole Arrow columns
(`decoders`). The payload is there only for messages of which the sink decodes the payload or may
refuse a row, and for bad ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from semel.pipeline.column_decoding import BAD_TYPE, ColumnDecoding, decoding_of, decompressed
from semel.pipeline.errors import OptionError
from semel.pipeline.exploded_rows import (
    PART,
    ExplodedArray,
    ExplodedTable,
    exploded_rows,
    find_array,
)
from semel.pipeline.landing_errors import first_line
from semel.pipeline.landing_file import ALWAYS, EVENT_TIME, LandedTable
from semel.pipeline.sink import check_columns
from semel.pipeline.sink_options import parse_sink_options
from semel.pipeline.source_columns import COLUMNS, DATE, UTC_DATE
from semel.pipeline.spark_names import quoted_name
from semel.pipeline.topic_template import LEVEL_TYPES

LATE: Final = "late"
# By which the newest row is found.
_NEWEST_BY: Final = ("received", "seq")
TAKES: Final = "takes_"
ROW: Final = "row_"
BAD: Final = "bad_"
PAYLOAD: Final = "payload"
# Names that are values in Spark SQL.
_LITERALS: Final = ("null", "true", "false")
# The types of columns of which some values cannot be partitions.
_LIMITED: Final = (StringType, DateType, TimestampType, TimestampNTZType)
_ANSI: Final = "spark.sql.ansi.enabled"
# Columns that the record has, under names that no column of a table has.
_MESSAGE: Final = "_message_"


@dataclass(frozen=True)
class TableShape:
    """What the sink must know about a table."""

    name: str
    compression: str | None
    # The table's columns, as JSON of Spark.
    schema: str
    partition_by: tuple[str, ...]
    # The columns of the table that are not in its struct.
    shared: tuple[str, ...]
    # If given, the table has only the newest row for each value of these columns.
    latest_by: tuple[str, ...] = ()
    # Whether a message can have several rows, with `part`.
    has_parts: bool = False
    # How the sink decodes payloads: `ArrowDecoding.to_text`. None: they are decoded before.
    decoding: str | None = None
    # The template of topics, whose levels the sink finds then; the decoded column with the event
    # time; and after how many seconds a message is late.
    template: str = ""
    event_time: str | None = None
    late_after: float | None = None

    @property
    def newest_by(self) -> tuple[str, ...]:
        """The columns by which the newest row is found, if only that is to stay."""
        if not self.latest_by:
            return ()
        return (*_NEWEST_BY, PART) if self.has_parts else _NEWEST_BY

    @property
    def limited_partitions(self) -> tuple[str, ...]:
        """The columns by which the table is partitioned with values that cannot be partitions.

        Some texts and times cannot; `date` is that of `received`, which is a plausible time.
        """
        if not set(self.partition_by) - {DATE}:
            return ()
        fields = StructType.fromJson(json.loads(self.schema)).fields
        limited = {each.name for each in fields if isinstance(each.dataType, _LIMITED)} - {DATE}
        return tuple(name for name in self.partition_by if name in limited)


@dataclass(frozen=True)
class _RowSource:
    """What the row of a table is made of."""

    # Columns of the frame that no other table needs.
    own: tuple[str, ...]
    # The columns of the table, but for those of the record and expressions.
    given: Mapping[str, Column]
    # Whether there is a row.
    is_row: Column
    # Why the message cannot be decoded.
    problem: Column
    has_parts: bool = False


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
    table has them. Each message has at least one row, even if no table takes it, and more if a
    table explodes an array. Raises OptionError, which names the table and the key that is wrong.
    """
    record = messages.columns
    frame = messages.withColumn(DATE, sf.expr(UTC_DATE))
    frame = frame.select(*(sf.col(name).alias(_MESSAGE + name) for name in [*record, DATE]))
    topic, payload = sf.col(f"{_MESSAGE}topic"), sf.col(f"{_MESSAGE}{PAYLOAD}")
    decodings = [decoding_of(each) for each in tables]
    base = frame.columns
    taken = [_takes(each, landed, topic) for each in tables]
    in_sink = {
        place: taken[place].alias(f"{TAKES}{place}")
        for place, decoding in enumerate(decodings)
        if decoding.by_arrow is not None
        and not tables[place].needs_spark(_timestamps(decoding.columns))
    }
    frame = frame.select(*base, *in_sink.values())
    frame = _with_decoded(
        frame,
        {
            place: (tables[place], decodings[place], sf.when(taken[place], payload))
            for place in range(len(tables))
            if place not in in_sink
        },
    )
    of_table = [
        [f"{TAKES}{place}"] if place in in_sink else [f"{ROW}{place}", f"{BAD}{place}"]
        for place in range(len(tables))
    ]
    kinds = StructType([*messages.schema.fields, StructField(DATE, DateType())])
    shapes: dict[int, TableShape] = {}
    exploded: list[ExplodedTable] = []
    for place, (table, decoding) in enumerate(zip(tables, decodings, strict=True)):
        with _errors_of(table):
            array = None if table.explode is None else find_array(table.explode, decoding.columns)
            _check_names(table, decoding.columns, array, _shared(table, kinds.names))
            if place in in_sink:
                shapes[place] = _shape_in_sink(table, decoding, kinds)
            elif array is not None:
                exploded.append(_exploded_table(table, decoding.columns, array, place))
            else:
                source = _source_of_message(table, decoding.columns, place)
                frame, shapes[place] = _with_row(frame, table, source, place, kinds)
    if exploded:
        frame = exploded_rows(
            frame,
            exploded,
            repeated=[name for name in base if name != f"{_MESSAGE}{PAYLOAD}"],
            whole=[
                f"{_MESSAGE}{PAYLOAD}",
                *(name for place in shapes for name in of_table[place]),
            ],
            bad=BAD,
        )
    for each in exploded:
        table = tables[each.place]
        with _errors_of(table):
            source = _source_of_element(each)
            frame, shapes[each.place] = _with_row(frame, table, source, each.place, kinds)
    needs_payload = sf.lit(False)
    for place in range(len(tables)):
        if place in in_sink:
            needs_payload |= sf.col(f"{TAKES}{place}")
        else:
            needs_payload |= sf.col(f"{BAD}{place}").isNotNull()
            if shapes[place].limited_partitions:
                # The sink makes dead letters of values that cannot be partitions.
                needs_payload |= taken[place]
    shared = [name for name in [*record, DATE] if name != PAYLOAD]
    return (
        frame.select(
            *(sf.col(_MESSAGE + name).alias(name) for name in shared),
            sf.when(needs_payload, payload).alias(PAYLOAD),
            *(name for names in of_table for name in names),
        ),
        [shapes[place] for place in range(len(tables))],
    )


@contextmanager
def _errors_of(table: LandedTable) -> Iterator[None]:
    """Name the table in an OptionError of the block."""
    try:
        yield
    except OptionError as problem:
        raise OptionError(f"table {table.name}: {problem}") from None


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


def _takes(table: LandedTable, landed: Mapping[str, Mapping[str, int]], topic: Column) -> Column:
    """Whether a message is for the table."""
    return table.template.takes(topic) & _is_new(landed.get(table.name, {}))


# --- tables that the sink decodes -----------------------------------------------------------------


def _shape_in_sink(table: LandedTable, decoding: ColumnDecoding, kinds: StructType) -> TableShape:
    """The shape of a table, from the types of the record. Raises OptionError."""
    assert decoding.by_arrow is not None
    levels = [
        StructField(each.column, DataType.fromDDL(LEVEL_TYPES[each.kind]))
        for each in table.template.named
    ]
    own = [*levels, *decoding.columns.fields]
    if table.event_time is not None:
        own.append(StructField(EVENT_TIME, TimestampType()))
    if table.late_after is not None:
        own.append(StructField(LATE, BooleanType()))
    shared = _shared(table, kinds.names)
    schema = _table_schema(shared, kinds, StructType(own))
    _check_columns(table, schema)
    return TableShape(
        name=table.name,
        compression=table.compression,
        schema=schema.json(),
        partition_by=table.partition_by,
        shared=tuple(shared),
        latest_by=table.latest_by,
        decoding=decoding.by_arrow.to_text(),
        template=table.template.text,
        event_time=table.event_time,
        late_after=table.late_after,
    )


def _timestamps(columns: StructType) -> set[str]:
    """The columns that an event time may be without being an expression."""
    return {
        each.name
        for each in columns
        if isinstance(each.dataType, TimestampType)
        # `null` would be a value, and a space or a dot ends a name.
        and each.name.isidentifier()
        and each.name.lower() not in _LITERALS
    }


def _table_schema(shared: Sequence[str], kinds: StructType, own: StructType) -> StructType:
    """The columns of a table: those of the record, its own ones, and the date."""
    from semel.pipeline.table_schema import nullable

    found = StructType(
        [
            *(StructField(name, kinds[name].dataType) for name in shared if name != DATE),
            *own.fields,
            StructField(DATE, kinds[DATE].dataType),
        ]
    )
    return StructType.fromJson(nullable(json.loads(found.json())))


# --- tables that are decoded before ---------------------------------------------------------------


def _with_decoded(
    frame: DataFrame, tables: Mapping[int, tuple[LandedTable, ColumnDecoding, Column]]
) -> DataFrame:
    """The frame with a column `decoded` for each of these tables, by place.

    Each comes with the payload of its messages, which is null for others.
    """
    if not tables:
        return frame
    base = frame.columns
    # The payloads that a table takes; these without compression; what a parser makes of them; and
    # the columns. In steps, because Spark evaluates an expression as often as it stands in one.
    steps: list[tuple[str, Callable[[LandedTable, ColumnDecoding, Column], Column]]] = [
        ("plain", _plain_payload),
        ("parsed", lambda _, decoding, before: decoding.parsed(before)),
        ("decoded", lambda _, decoding, before: decoding.decoded(before)),
    ]
    name = "taken"
    frame = frame.select(
        *base, *(payload.alias(f"{name}_{at}") for at, (_, _, payload) in tables.items())
    )
    for made, make in steps:
        columns = [
            make(table, decoding, sf.col(f"{name}_{at}")).alias(f"{made}_{at}")
            for at, (table, decoding, _) in tables.items()
        ]
        frame, name = frame.select(*base, *columns), made
    return frame


def _plain_payload(table: LandedTable, decoding: ColumnDecoding, payload: Column) -> Column:
    """A struct of `value`, the payload as the decoding takes it, and `problem`."""
    if table.compression is None or decoding.by_arrow is not None:
        return sf.struct(payload.alias("value"), sf.lit(None).cast(BAD_TYPE).alias("problem"))
    return decompressed(payload, table.compression)


def _source_of_message(table: LandedTable, columns: StructType, place: int) -> _RowSource:
    """A row for each message."""
    decoded = sf.col(f"decoded_{place}")
    return _RowSource(
        own=(f"decoded_{place}",),
        given=_given(table, decoded, columns.names),
        is_row=decoded["value"].isNotNull(),
        problem=decoded["problem"],
    )


def _exploded_table(
    table: LandedTable, columns: StructType, array: ExplodedArray, place: int
) -> ExplodedTable:
    decoded = sf.col(f"decoded_{place}")
    return ExplodedTable(
        place=place,
        array=array,
        values=decoded["value"][array.name],
        problem=decoded["problem"],
        given=_given(table, decoded, [name for name in columns.names if name != array.name]),
    )


def _source_of_element(exploded: ExplodedTable) -> _RowSource:
    """A row for each element of an array."""
    bad = f"{BAD}{exploded.place}"
    return _RowSource(
        own=(*exploded.columns, bad),
        given=exploded.row(),
        is_row=exploded.part.isNotNull(),
        problem=sf.col(bad),
        has_parts=True,
    )


def _shared(table: LandedTable, names: Sequence[str]) -> list[str]:
    """Those of these columns of the record that a table has, and the date."""
    return [name for name in names if name in (*ALWAYS, *table.message_columns, DATE)]


def _given(table: LandedTable, decoded: Column, names: Sequence[str]) -> dict[str, Column]:
    """The columns of the topic, and these of the decoder."""
    given = table.template.columns(sf.col(f"{_MESSAGE}topic"))
    return given | {name: decoded["value"][name] for name in names}


def _with_row(
    frame: DataFrame, table: LandedTable, source: _RowSource, place: int, kinds: StructType
) -> tuple[DataFrame, TableShape]:
    """The frame with the row of one table instead of its source. Raises OptionError.

    `kinds` are the columns of the record, and the date.
    """
    kept = [name for name in frame.columns if name not in source.own]
    shared = _shared(table, kinds.names)
    visible = {name: sf.col(_MESSAGE + name) for name in shared}
    # The names that expressions can use. Nothing but `kept` and `own` is in the frame besides.
    named = frame.select(
        *(*kept, *source.own),
        *(each.alias(name) for name, each in (visible | dict(source.given)).items()),
    )
    added = dict(table.computed)
    if table.event_time is not None:
        added[EVENT_TIME] = table.event_time
    fields = [sf.col(quoted_name(name)) for name in source.given]
    for name, text in added.items():
        key = "event_time" if name == EVENT_TIME else f"computed.{name}"
        value = sf.expr(text).cast("timestamp") if name == EVENT_TIME else sf.expr(text)
        fields.append(_checked(named, value, key, text).alias(name))
    if table.late_after is not None:
        assert table.event_time is not None
        time = sf.expr(table.event_time).cast("timestamp")
        time = _null_on_error(named.sparkSession, time)
        fields.append(_is_late(time, table.late_after).alias(LATE))
    takes = source.is_row
    if table.where is not None:
        where = _checked(named, sf.expr(table.where).cast("boolean"), "where", table.where)
        # Spark evaluates what several expressions have in common before them, where an error would
        # not be caught; but nothing of what is evaluated for some rows only, as here.
        takes &= sf.coalesce(sf.when(source.is_row, where), sf.lit(False))
    row, own = _nullable(named, sf.when(takes, sf.struct(*fields)))
    bad = source.problem.alias(f"{BAD}{place}")
    made = named.select(*kept, row.alias(f"{ROW}{place}"), bad)
    schema = _table_schema(shared, kinds, own)
    _check_columns(table, schema)
    return made, TableShape(
        name=table.name,
        compression=table.compression,
        schema=schema.json(),
        partition_by=table.partition_by,
        shared=tuple(shared),
        latest_by=table.latest_by,
        has_parts=source.has_parts,
    )


def _nullable(frame: DataFrame, row: Column) -> tuple[Column, StructType]:
    """The row with a type in which everything may be null, and that type.

    Arrow refuses a row that is null, of another message, if a column of it is not nullable.
    """
    from semel.pipeline.table_schema import nullable

    own = frame.select(row.alias("row")).schema["row"].dataType
    kind = StructType.fromJson(nullable(json.loads(own.json())))
    return (row if own == kind else row.cast(kind)), kind


def _is_late(event_time: Column, late_after: float) -> Column:
    """Whether a message was received more than some seconds after its event time."""
    # Compared with `received`, which is a plausible time: a difference to any time can overflow.
    latest = sf.unix_micros(sf.col(f"{_MESSAGE}received")) - round(late_after * 1_000_000)
    return sf.unix_micros(event_time) < latest


def _checked(frame: DataFrame, column: Column, key: str, text: str) -> Column:
    """The column, null in rows in which Spark cannot evaluate it.

    Raises OptionError, which names the key, if Spark can evaluate it in no row.
    """
    try:
        frame.select(column)
        # Of expressions, a filter takes only those of one row: no aggregates, windows or explode().
        frame.where(sf.struct(column).isNotNull())
    except (PySparkException, Py4JError) as problem:
        raise OptionError(f"{key} {text!r}: {first_line(str(problem))}") from None
    return _null_on_error(frame.sparkSession, column)


def _null_on_error(spark: SparkSession, column: Column) -> Column:
    """The column, null where Spark raises an error.

    Without ANSI mode some functions still do, such as `timestamp_seconds` of a number that is too
    large. Spark's functions `try_…` are made with this expression, too.
    """
    java: Any = spark._jvm
    columns = java.org.apache.spark.sql.classic.ExpressionUtils
    expression = columns.expression(column._jc)
    attempt = java.org.apache.spark.sql.catalyst.expressions.TryEval(expression)
    return Column(columns.column(attempt))


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


def _check_names(
    table: LandedTable, columns: StructType, array: ExplodedArray | None, shared: list[str]
) -> None:
    """Raise OptionError if two columns have the same name; Delta ignores case."""
    of_element = [] if array is None else [PART, *array.names]
    names = [
        *shared,
        *(each.column for each in table.template.named),
        *(name for name in columns.names if array is None or name != array.name),
        *of_element,
        *table.computed,
        *([] if table.event_time is None else [EVENT_TIME]),
        *([] if table.late_after is None else [LATE]),
    ]
    lower = [name.lower() for name in names]
    if "" in names:
        raise OptionError("a column has an empty name: give it another")
    for name in names:
        if lower.count(name.lower()) < 2:
            continue
        if name.lower() in map(str.lower, of_element):
            raise OptionError(
                f"explode: two columns are called {name}, one of them of the elements of"
                f" {table.explode}: rename one, or leave it out of columns"
            )
        raise OptionError(f"two columns are called {name}: rename one of them")
