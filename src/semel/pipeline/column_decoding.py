"""Payloads to columns, as expressions of Spark in three steps.

    payload ─▶ parsed ─▶ fitting ─▶ decoded: a struct of `value` and `problem`

`parsed` is what a parser makes of the payload, `fitting` adds whether that fits the columns, and
`decoded` has the columns, or why there are none. The steps must be separate projections: Spark
evaluates an expression as often as it stands in one.

JSON, CSV, text and numbers are decoded by Spark's own expressions, which give no reason: the
problem is a struct of nulls then, and the sink finds the reason. Other formats are decoded by whole
Arrow columns.
"""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from semel.pipeline.arrow_decoding import ArrowDecoding, Decompression
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.errors import OptionError
from semel.pipeline.json_decoding import CORRUPT, JsonColumns, JsonText
from semel.pipeline.landing_errors import first_line
from semel.pipeline.landing_file import LandedTable

# Where and why a message cannot be decoded.
BAD_TYPE: Final = "struct<reason: string, column: string, byte: int>"
NUMBER: Final = r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
WHITE: Final = " \t\r\n"
_NUMERIC: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")


class ColumnDecoding:
    """A decoder that passes payloads on as they are; the base of the others.

    `plain` is a struct of `value`, a payload that is null for messages of other tables, and
    `problem`.
    """

    def __init__(self, columns: StructType) -> None:
        self.columns = columns

    def parsed(self, plain: Column) -> Column:
        return plain

    def fitting(self, parsed: Column) -> Column:
        return parsed

    def decoded(self, fitting: Column) -> Column:
        payload, problem = fitting["value"], fitting["problem"]
        value = sf.struct(payload.alias(self.columns.fields[0].name))
        return _outcome(sf.when(payload.isNotNull(), value), problem)


class TextDecoding(ColumnDecoding):
    """Text by expressions of Spark: `_parse`, `_fits` and `_column` are those of a format."""

    def parsed(self, plain: Column) -> Column:
        text = plain["value"].cast("string")
        return sf.struct(
            plain["value"].isNotNull().alias("is_ours"),
            plain["problem"].alias("problem"),
            self._parse(sf.when(sf.is_valid_utf8(text), text)).alias("found"),
        )

    def fitting(self, parsed: Column) -> Column:
        found = parsed["found"]
        fits = found.isNotNull() & self._fits(found)
        for field in self.columns.fields:
            if not field.nullable:
                fits &= self._column(found, field.name).isNotNull()
        return sf.struct(
            parsed["is_ours"].alias("is_ours"),
            parsed["problem"].alias("problem"),
            found.alias("found"),
            sf.coalesce(fits, sf.lit(False)).alias("fits"),
        )

    def decoded(self, fitting: Column) -> Column:
        found, fits = fitting["found"], fitting["fits"]
        names = [field.name for field in self.columns.fields]
        value = sf.struct(*(self._column(found, name).alias(name) for name in names))
        nothing = sf.lit(None)
        unexplained = sf.struct(
            nothing.cast("string").alias("reason"),
            nothing.cast("string").alias("column"),
            nothing.cast("int").alias("byte"),
        )
        problem = sf.coalesce(fitting["problem"], sf.when(fitting["is_ours"] & ~fits, unexplained))
        return _outcome(sf.when(fits, value), problem)

    def _parse(self, text: Column) -> Column:
        """What the parser makes of a text, which is null if it is not UTF-8."""
        return text

    def _fits(self, found: Column) -> Column:
        return sf.lit(True)

    def _column(self, found: Column, name: str) -> Column:
        return found


class JsonDecoding(TextDecoding):
    """JSON objects."""

    def __init__(self, columns: StructType) -> None:
        super().__init__(columns)
        self._json = JsonColumns(columns)

    def _parse(self, text: Column) -> Column:
        return self._json.parsed(text)

    def _fits(self, found: Column) -> Column:
        return self._json.fits(found)

    def _column(self, found: Column, name: str) -> Column:
        return self._json.column(found, name)


class JsonTextDecoding(TextDecoding):
    """Any JSON value, as its text."""

    def __init__(self, columns: StructType) -> None:
        super().__init__(columns)
        self._json = JsonText()

    def _parse(self, text: Column) -> Column:
        return sf.when(
            text.isNotNull(),
            sf.struct(text.alias("text"), self._json.parsed(text).alias("json")),
        )

    def _fits(self, found: Column) -> Column:
        return self._json.fits(found["json"])

    def _column(self, found: Column, name: str) -> Column:
        return found["text"]


class NumberDecoding(TextDecoding):
    """A number as text."""

    def _parse(self, text: Column) -> Column:
        kind = self.columns.fields[0].dataType
        trimmed = sf.btrim(text, sf.lit(WHITE))
        return sf.when(trimmed.rlike(NUMBER), trimmed.try_cast(kind))

    def _fits(self, found: Column) -> Column:
        if self.columns.fields[0].dataType.typeName() in ("double", "float"):
            return sf.abs(found) != float("inf")
        return sf.lit(True)


class CsvDecoding(TextDecoding):
    """One record of CSV."""

    def __init__(self, columns: StructType, separator: str) -> None:
        super().__init__(columns)
        self._options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            "timeZone": "UTC",
            "sep": separator,
        }

    def _parse(self, text: Column) -> Column:
        fields = [*self.columns.fields, StructField(CORRUPT, StringType())]
        schema = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in fields)
        # A last line break is usual; any other would begin a second record.
        line = sf.regexp_replace(text, r"\r?\n\z", "")
        is_one = ~line.rlike(r"[\r\n]") & (sf.length(line) > 0)
        return sf.when(is_one, sf.from_csv(line, schema, self._options))

    def _fits(self, found: Column) -> Column:
        return found[CORRUPT].isNull()

    def _column(self, found: Column, name: str) -> Column:
        return found[name]


class ArrowColumnsDecoding(ColumnDecoding):
    """A format that is decoded by whole Arrow columns."""

    def __init__(self, table: LandedTable, columns: StructType) -> None:
        super().__init__(columns)
        schema = to_arrow_schema(columns, timezone="UTC")
        made = ArrowDecoding(make_decoder(table.decoder, schema, table.options))
        value = StructType([StructField(each.name, each.dataType) for each in columns.fields])
        self._decode = arrow_function(made, value.simpleString())

    def parsed(self, plain: Column) -> Column:
        return sf.struct(
            plain["problem"].alias("problem"), self._decode(plain["value"]).alias("found")
        )

    def decoded(self, fitting: Column) -> Column:
        found = fitting["found"]
        return _outcome(found["value"], sf.coalesce(fitting["problem"], found["problem"]))


def _outcome(value: Column, problem: Column) -> Column:
    return sf.struct(value.alias("value"), problem.alias("problem"))


def decoding_of(table: LandedTable) -> ColumnDecoding:
    """The decoding of a table. Raises OptionError, which names the table."""
    columns = _declared_columns(table)
    if table.decoder == "raw":
        return ColumnDecoding(columns)
    if table.decoder == "text":
        return TextDecoding(columns)
    if table.decoder == "number":
        return NumberDecoding(columns)
    if table.decoder == "json":
        return JsonDecoding(columns)
    if table.decoder == "json_text":
        return JsonTextDecoding(columns)
    if table.decoder == "csv":
        return CsvDecoding(columns, str(table.options.get("separator", ",")))
    try:
        return ArrowColumnsDecoding(table, columns)
    except OptionError as problem:
        raise OptionError(f"table {table.name}: {problem}") from None


def arrow_function(
    decode: "Decompression | ArrowDecoding", value: str
) -> Callable[[Column], Column]:
    """A function of Spark that gives a struct of `value` and `problem`, by whole Arrow columns."""

    def function(payloads: pa.Array) -> pa.Array:
        return decode(payloads)

    returned = f"struct<value: {value}, problem: {BAD_TYPE}>"
    made: Any = arrow_udf(function, returned)  # type: ignore[call-overload]
    return lambda column: made(column)


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
