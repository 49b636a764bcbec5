"""JSON payloads as typed columns, by Spark's own parser; and why one of them is bad, for people.

`from_json` alone is too lenient to land data: it stops after the first value of a text, so that
`{"value": 1} {"value": 2}` would silently lose the second. Therefore a payload is parsed as the
first of two elements of an array, the second of which is known to us alone:

    {"<key>": [ PAYLOAD , {"<mark>": 1} ]}

Whatever a payload is, if it is not exactly one value, then the array has not two elements, or its
second element is not the mark, or Spark reports a corrupt record. `key` and `mark` are random, so
that no payload can contain them.
"""

import json
import secrets
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from semel.pipeline.decoders.outcome import Problem

# The column that has the text if Spark cannot read it.
CORRUPT: Final = "_corrupt"
# JSON as in RFC 8259, and times without an offset in UTC.
OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "timeZone": "UTC",
}
_INTEGERS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
# Characters of a value that a reason quotes.
_QUOTED: Final = 60


class JsonColumns:
    """Parses JSON objects to columns, in two steps, so that Spark parses each of them once."""

    def __init__(self, columns: "StructType") -> None:
        self._columns = columns
        self._key, self._mark = (f"_{secrets.token_hex(8)}" for _ in range(2))

    def parsed(self, text: "Column") -> "Column":
        """What Spark's parser makes of a text."""
        from pyspark.sql import functions
        from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

        nullable = [StructField(each.name, each.dataType) for each in self._columns.fields]
        element = StructType([*nullable, StructField(self._mark, IntegerType())])
        end = f',{{"{self._mark}":1}}]}}'
        wrapped = functions.concat(functions.lit(f'{{"{self._key}":['), text, functions.lit(end))
        return functions.from_json(wrapped, _schema(self._key, ArrayType(element)), OPTIONS)

    def fits(self, parsed: "Column") -> "Column":
        """Whether it was one object that fits the columns."""
        from pyspark.sql import functions

        elements = parsed[self._key]
        value = functions.get(elements, 0)
        found = (
            parsed[CORRUPT].isNull()
            & (functions.size(elements) == 2)
            & (functions.get(elements, 1)[self._mark] == 1)
            & value.isNotNull()
        )
        for field in self._columns.fields:
            if field.dataType.typeName() in ("double", "float"):
                # A number that is too large becomes infinite, which JSON does not have.
                is_finite = functions.abs(value[field.name]) != float("inf")
                found &= functions.coalesce(is_finite, functions.lit(True))
        return found

    def column(self, parsed: "Column", name: str) -> "Column":
        """A column of the object."""
        from pyspark.sql import functions

        return functions.get(parsed[self._key], 0)[name]


class JsonText:
    """Checks that a text is one JSON value."""

    def __init__(self) -> None:
        self._key, self._mark = (f"_{secrets.token_hex(8)}" for _ in range(2))

    def parsed(self, text: "Column") -> "Column":
        """What Spark's parser makes of a text."""
        from pyspark.sql import functions
        from pyspark.sql.types import ArrayType, StringType

        wrapped = functions.concat(
            functions.lit(f'{{"{self._key}":['), text, functions.lit(f',"{self._mark}"]}}')
        )
        return functions.from_json(wrapped, _schema(self._key, ArrayType(StringType())), OPTIONS)

    def fits(self, parsed: "Column") -> "Column":
        """Whether it was one value."""
        from pyspark.sql import functions

        elements = parsed[self._key]
        return (
            parsed[CORRUPT].isNull()
            & (functions.size(elements) == 2)
            & (functions.get(elements, 1) == functions.lit(self._mark))
        )


def _schema(key: str, kind: "DataType") -> "StructType":
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(key, kind), StructField(CORRUPT, StringType())])


# --- why a payload is bad -------------------------------------------------------------------------


def explain_json(payload: bytes, columns: "StructType | None") -> "Problem":
    """Why a payload is not a JSON object with these columns (None: not JSON at all).

    It is called for single messages that Spark has refused, and describes the first fault that it
    finds; Spark alone decides.
    """
    from semel.pipeline.decoders.outcome import Problem

    if not payload:
        return Problem("the payload is empty")
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as problem:
        return Problem("the payload is not UTF-8", byte=problem.start)
    try:
        value = json.loads(
            text, parse_float=Decimal, parse_int=_parse_integer, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as problem:
        return Problem(f"not JSON: {problem.msg}", byte=len(text[: problem.pos].encode()))
    except RecursionError:
        return Problem("not JSON that can be read: it is nested too deeply")
    except ValueError as problem:
        return Problem(f"not JSON: {problem}")
    if columns is None:
        return Problem("Spark cannot read it as JSON")
    if not isinstance(value, dict):
        return Problem(f"expected a JSON object, found {_kind(value)}")
    for field in columns.fields:
        found = value.get(field.name)
        if found is None:
            if not field.nullable:
                return Problem(f"required column {field.name} is missing", column=field.name)
            continue
        problem_found = _misfit(found, field.dataType, field.name)
        if problem_found is not None:
            return problem_found
    return Problem("Spark cannot read it with the columns of the table")


def _parse_integer(text: str) -> int | Decimal:
    # Python refuses integers of thousands of digits. No column holds one of more than 38.
    return int(text) if len(text) <= 40 else Decimal(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _misfit(value: Any, kind: "DataType", column: str) -> "Problem | None":
    """Why a value that is not null does not fit a column."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    from semel.pipeline.decoders.outcome import Problem

    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            return Problem(f"expected an object, found {_kind(value)}", column)
        for field in kind.fields:
            if value.get(field.name) is not None:
                found = _misfit(value[field.name], field.dataType, f"{column}.{field.name}")
                if found is not None:
                    return found
        return None
    if isinstance(kind, ArrayType | MapType):
        is_array = isinstance(kind, ArrayType)
        if not isinstance(value, list if is_array else dict):
            wanted = "an array" if is_array else "an object"
            return Problem(f"expected {wanted}, found {_kind(value)}", column)
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        places = enumerate(value) if isinstance(value, list) else value.items()
        for place, each in places:
            found = None if each is None else _misfit(each, inner, f"{column}[{place}]")
            if found is not None:
                return found
        return None
    return _scalar_misfit(value, kind.typeName(), column)


def _scalar_misfit(value: Any, name: str, column: str) -> "Problem | None":
    from semel.pipeline.decoders.outcome import Problem

    if name in _INTEGERS:
        bound = 2 ** (_INTEGERS[name] - 1)
        if type(value) is not int:
            return Problem(f"expected an integer, found {_kind(value)}", column)
        if not -bound <= value < bound:
            return Problem(
                f"expected an integer from {-bound} to {bound - 1}, found {_shown(value)}", column
            )
        return None
    if name in ("double", "float"):
        if type(value) not in (int, Decimal):
            return Problem(f"expected a number, found {_kind(value)}", column)
        try:
            is_finite = abs(float(value)) != float("inf")
        except OverflowError:
            is_finite = False
        return None if is_finite else Problem(f"{_shown(value)} is too large for a {name}", column)
    if name == "boolean" and type(value) is not bool:
        return Problem(f"expected true or false, found {_kind(value)}", column)
    if name in ("timestamp", "timestamp_ntz", "date") and isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return Problem(f"expected a {name}, found {_kind(value)}", column)
    return None


def _kind(value: Any) -> str:
    """A JSON value for a reason."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"text {_shown(value)}" if isinstance(value, str) else f"the number {_shown(value)}"


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"
