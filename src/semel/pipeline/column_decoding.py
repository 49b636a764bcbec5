"""Payloads to columns, as expressions of Spark in two steps.

    payload ─▶ parsed ─▶ decoded: a struct of `value` and `problem`

`parsed` is what a parser makes of the payload, `decoded` has the columns, or why there are none.
The steps must be separate projections: Spark evaluates an expression as often as it stands in one.

Text is decoded by Spark's own expressions, which give no reason: the problem is a struct of nulls
then, and the sink finds the reason. All other formats are decoded by whole Arrow columns
(`decoders`): by a function of Spark, as here, or by the sink (`table_rows.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from semel.pipeline.arrow_decoding import ArrowDecoding, Decompression
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.errors import OptionError
from semel.pipeline.landing_errors import first_line
from semel.pipeline.landing_file import LandedTable

# Where and why a message cannot be decoded.
BAD_TYPE: Final = StructType(
    [
        StructField("reason", StringType()),
        StructField("column", StringType()),
        StructField("byte", IntegerType()),
    ]
)
_NUMERIC: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")


class ColumnDecoding:
    """A decoder that passes payloads on as they are; the base of the others.

    `plain` is a struct of `value`, a payload that is null for messages of other tables, and
    `problem`.
    """

    # How whole Arrow columns of payloads are decoded, if the format can be. They may be compressed;
    # other decodings take them without compression.
    by_arrow: ArrowDecoding | None = None

    def __init__(self, columns: StructType) -> None:
        self.columns = columns

    def parsed(self, plain: Column) -> Column:
        return plain

    def decoded(self, parsed: Column) -> Column:
        payload, problem = parsed["value"], parsed["problem"]
        value = sf.struct(payload.alias(self.columns.fields[0].name))
        return _outcome(sf.when(payload.isNotNull(), value), problem)


class TextDecoding(ColumnDecoding):
    """Text in UTF-8."""

    def parsed(self, plain: Column) -> Column:
        text = plain["value"].cast("string")
        return sf.struct(
            plain["value"].isNotNull().alias("is_ours"),
            plain["problem"].alias("problem"),
            sf.when(sf.is_valid_utf8(text), text).alias("found"),
        )

    def decoded(self, parsed: Column) -> Column:
        found = parsed["found"]
        value = sf.struct(found.alias(self.columns.fields[0].name))
        nothing = sf.lit(None)
        unexplained = sf.struct(
            nothing.cast("string").alias("reason"),
            nothing.cast("string").alias("column"),
            nothing.cast("int").alias("byte"),
        )
        is_bad = parsed["is_ours"] & found.isNull()
        problem = sf.coalesce(parsed["problem"], sf.when(is_bad, unexplained))
        return _outcome(sf.when(found.isNotNull(), value), problem)


class ArrowColumnsDecoding(ColumnDecoding):
    """A format that is decoded by whole Arrow columns, and decompressed there."""

    def __init__(self, table: LandedTable, columns: StructType) -> None:
        super().__init__(columns)
        schema = to_arrow_schema(columns, timezone="UTC")
        decoder = make_decoder(table.decoder, schema, table.options)
        self.by_arrow = ArrowDecoding(decoder, table.compression)
        value = StructType([StructField(each.name, each.dataType) for each in columns.fields])
        self._decode = _decoding_function(self.by_arrow, value)

    def parsed(self, plain: Column) -> Column:
        return self._decode(plain["value"])

    def decoded(self, parsed: Column) -> Column:
        return parsed


def _outcome(value: Column, problem: Column) -> Column:
    return sf.struct(value.alias("value"), problem.alias("problem"))


def decoding_of(table: LandedTable) -> ColumnDecoding:
    """The decoding of a table. Raises OptionError, which names the table."""
    columns = _declared_columns(table)
    if table.decoder == "raw":
        return ColumnDecoding(columns)
    if table.decoder == "text":
        return TextDecoding(columns)
    try:
        return ArrowColumnsDecoding(table, columns)
    except OptionError as problem:
        raise OptionError(f"table {table.name}: {problem}") from None
    except PySparkException as problem:
        reason = first_line(str(problem))
        raise OptionError(f"table {table.name}: columns {table.columns!r}: {reason}") from None


def _decoding_function(decoding: ArrowDecoding, value: DataType) -> Callable[[Column], Column]:
    """A function of Spark that gives a struct of `value` and `problem`, by whole Arrow columns."""

    def function(payloads: pa.Array) -> pa.Array:
        return decoding(payloads)

    made: Any = arrow_udf(function, _outcome_type(value))  # type: ignore[call-overload]
    return lambda column: made(column)


def decompressed(payload: Column, codec: str) -> Column:
    """A struct of `value`, the decompressed payload, and `problem`."""
    decompress = Decompression(codec)

    # Spark takes as many arrays as it is given: a batch of payloads can become too long for one.
    def function(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return decompress(batches)

    made: Any = arrow_udf(function, _outcome_type(BinaryType()))  # type: ignore[call-overload]
    found: Column = made(payload)
    return found


def _outcome_type(value: DataType) -> StructType:
    # A type, and not its text: names of columns may need quotes.
    return StructType([StructField("value", value), StructField("problem", BAD_TYPE)])


def _declared_columns(table: LandedTable) -> StructType:
    """The columns that the decoder gives. Raises OptionError."""
    try:
        found = StructType.fromDDL(table.columns)
        if not isinstance(found, StructType) or not found.fields:
            raise ValueError("there is no column")
    except (PySparkException, ValueError, TypeError) as problem:
        raise OptionError(
            f"table {table.name}: columns {table.columns!r} are not names with types of Spark,"
            f' such as "value DOUBLE NOT NULL, unit STRING": {first_line(str(problem))}'
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
