"""Filters of a table to read: the rows, and so the files and row groups, that a query needs.

They are written as in pandas, pyarrow and delta-rs: a list of comparisons `(column, operator,
value)`, which must all be true, or a list of such lists, of which one must be. They mean what the
same comparisons mean in Spark SQL: a comparison with null is not true, and NaN is greater than any
number. `format("semel_delta")` evaluates them by Arrow, and `read_table` by Spark's own reader.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, Inexact, localcontext
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DecimalType, StructType

from semel.pipeline.errors import OptionError
from semel.pipeline.source_options import near
from semel.pipeline.spark_names import quoted_name

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import Column

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "in", "not in")
FORM: Final = 'a list such as [["date", ">=", "2026-03-01"], ["topic", "in", ["a", "b"]]]'
# Arrow evaluates them recursively, and crashes if there are tens of thousands. `in` has no limit.
MOST_COMPARISONS: Final = 1_000
# Arrow and Spark keep microseconds; Python would drop digits beyond.
_BEYOND_MICROSECONDS: Final = re.compile(r"\.\d{7}")
# Types that filters compare; integers with the first number that is too large.
_INTEGERS: Final = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}
_FLOATS: Final = ("float", "double")
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")
_COMPARED: Final = (*_INTEGERS, *_TIMES, *_FLOATS, "string", "boolean", "decimal")
# What is true of NaN, which is greater than any number.
_TRUE_OF_NAN: Final = (">", ">=", "!=", "not in")


@dataclass(frozen=True)
class ColumnFilter:
    """One comparison of a column: with one value, or with some by `in` and `not in`."""

    column: str
    operator: str
    values: tuple[Any, ...]


# A row is read if all comparisons of one of the groups are true.
Filters = tuple[tuple[ColumnFilter, ...], ...]


def filters_as_text(given: Sequence[Any]) -> str:
    """Filters with Python's dates, times and decimals as text for option `filters`."""

    def plain(value: Any) -> str:
        if isinstance(value, (date, datetime)):
            return value.isoformat()
        if isinstance(value, Decimal):
            return str(value)
        raise OptionError(f"filters: {value!r} cannot be compared with a column")

    return json.dumps(given, default=plain)


def parse_filters(text: str) -> Filters:
    """Parse option `filters`. Raises OptionError."""

    def refuse(constant: str) -> Any:
        raise OptionError(f"option filters: {constant} is not a number of JSON")

    try:
        given = json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise OptionError(f"option filters must be {FORM}, as JSON, not {text!r}") from None
    if not isinstance(given, list) or not all(isinstance(each, list) for each in given):
        raise OptionError(f"option filters must be {FORM}, not {text!r}")
    if not given:
        return ()
    is_flat = all(each and isinstance(each[0], str) for each in given)
    groups = [given] if is_flat else given
    if sum(map(len, groups)) > MOST_COMPARISONS:
        raise OptionError(
            f"option filters has more than {MOST_COMPARISONS:,} comparisons: compare a column with"
            " many values by in"
        )
    return tuple(tuple(_comparison(each) for each in _group(group)) for group in groups)


def _group(group: Any) -> list[Any]:
    if isinstance(group, list) and group and all(isinstance(each, list) for each in group):
        return group
    raise OptionError(f"option filters: expected {FORM}, found {json.dumps(group, default=str)}")


def _comparison(given: list[Any]) -> ColumnFilter:
    shown = json.dumps(given, default=str)
    if len(given) != 3 or not isinstance(given[0], str) or not isinstance(given[1], str):
        raise OptionError(f"option filters: expected [column, operator, value], found {shown}")
    column, operator, value = given
    operator = " ".join(operator.lower().split())
    operator = "=" if operator == "==" else operator
    if operator not in OPERATORS:
        allowed = ", ".join(OPERATORS)
        raise OptionError(f"option filters: {given[1]!r} is not an operator; they are {allowed}")
    if operator in ("in", "not in"):
        if not isinstance(value, list) or not value:
            raise OptionError(f"option filters: {operator} needs a list of values: {shown}")
        values = tuple(value)
    else:
        values = (value,)
    if None in values:
        raise OptionError(f"option filters: no comparison with null is true: {shown}")
    return ColumnFilter(column, operator, values)


@dataclass(frozen=True)
class BoundFilters:
    """Filters whose values have the types of the columns of a table."""

    groups: Filters
    # The columns that are compared.
    columns: StructType

    def expression(self) -> "ds.Expression":
        """The filters for rows in Arrow. To select row groups, use `row_group_expression`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        types = to_arrow_schema(self.columns, timezone="UTC")

        def compare(each: ColumnFilter) -> Any:
            column, kind = pc.field(each.column), types.field(each.column).type
            holds = _compare(column, each.operator, [pa.scalar(x, kind) for x in each.values])
            if each.operator == "not in":
                # Null is in no list of values.
                return column.is_valid() & holds
            is_greater = each.operator in (">", ">=") and pa.types.is_floating(kind)
            return holds | column.is_nan() if is_greater else holds

        return _any_of_all(self.groups, compare)

    def row_group_expression(self) -> "ds.Expression":
        """True of all rows of a row group if its statistics do not exclude the rows of the filters.

        Bounds say nothing about NaN. Arrow takes a column whose bounds are equal for a constant.
        """
        import pyarrow.compute as pc

        groups = tuple(
            tuple(each for each in group if not self._is_true_of_nan(each)) for group in self.groups
        )
        if not all(groups):
            # One of the groups selects rows with NaN, which may be anywhere.
            return pc.scalar(True)
        return BoundFilters(groups, self.columns).expression()

    def condition(self) -> "Column":
        """The filters for Spark, whose Parquet reader skips no row that they select.

        Other writers' files have bounds without NaN, and dictionaries in which -0.0 is not 0.0.
        """
        from pyspark.sql import functions

        def compare(each: ColumnFilter) -> Any:
            kind = self.columns[each.column].dataType
            column = functions.col(quoted_name(each.column))
            # As text, because Spark takes a time of Python for one of its own zone.
            values = [functions.lit(_text(value)).cast(kind) for value in each.values]
            holds = _compare(column, each.operator, values)
            # Spark's Parquet reader knows neither isnan nor abs, so it does not see these.
            if self._is_true_of_nan(each):
                return holds | functions.isnan(column)
            is_zero = each.operator in ("=", "in") and 0.0 in each.values
            if is_zero and kind.typeName() in _FLOATS:
                return holds | (functions.abs(column) == 0)
            return holds

        found: Column = _any_of_all(self.groups, compare)
        return found

    def _is_true_of_nan(self, comparison: ColumnFilter) -> bool:
        is_float = self.columns[comparison.column].dataType.typeName() in _FLOATS
        return is_float and comparison.operator in _TRUE_OF_NAN


def _any_of_all(groups: Filters, compare: Callable[[ColumnFilter], Any]) -> Any:
    return reduce(or_, (reduce(and_, map(compare, group)) for group in groups))


def _compare(column: Any, operator: str, values: list[Any]) -> Any:
    """A comparison of a column of Arrow or of Spark, which have the same operators."""
    if operator == "in":
        return column.isin(values)
    if operator == "not in":
        return ~column.isin(values)
    (value,) = values
    if operator == "=":
        return column == value
    if operator == "!=":
        return column != value
    if operator == "<":
        return column < value
    if operator == "<=":
        return column <= value
    return column > value if operator == ">" else column >= value


def bind_filters(filters: Filters, schema: StructType) -> BoundFilters | None:
    """The filters for a table with this schema; None if there are none. Raises OptionError."""
    if not filters:
        return None
    known = {field.name: field for field in schema.fields}
    groups = tuple(tuple(_bind(each, known) for each in group) for group in filters)
    compared = {each.column for group in groups for each in group}
    return BoundFilters(
        groups, StructType([field for field in schema.fields if field.name in compared])
    )


def _bind(given: ColumnFilter, known: Mapping[str, Any]) -> ColumnFilter:
    field = known.get(given.column)
    if field is None:
        meant = near(given.column, {name.lower(): name for name in known})
        hint = f"; did you mean {meant}?" if meant else ""
        raise OptionError(f"option filters: the table has no column {given.column}{hint}")
    values = tuple(_typed(value, given.column, field.dataType) for value in given.values)
    if given.operator in ("in", "not in") and 0.0 in values and isinstance(values[0], float):
        # Lists tell 0.0 from -0.0, comparisons do not.
        values += (0.0, -0.0)
    return ColumnFilter(given.column, given.operator, values)


def _typed(value: Any, column: str, kind: DataType) -> Any:
    """A value of JSON as one of the type of a column. Raises OptionError."""
    name = kind.typeName()
    if name not in _COMPARED:
        raise OptionError(
            f"option filters: column {column} is {kind.simpleString()}, which no filter compares"
        )
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    is_text = isinstance(value, str)
    try:
        if (name == "string" and is_text) or (name == "boolean" and isinstance(value, bool)):
            return value
        if name in _INTEGERS and isinstance(value, int) and is_number:
            if -_INTEGERS[name] <= value < _INTEGERS[name]:
                return value
        if name in _FLOATS and is_number:
            # 0.0 for -0.0, which Spark's Parquet reader puts below 0.0.
            return float(value) + 0.0
        if isinstance(kind, DecimalType) and (is_number or is_text):
            return _decimal(value, kind)
        if name == "date" and is_text:
            return date.fromisoformat(value)
        if name in ("timestamp", "timestamp_ntz") and is_text:
            return _time(value, has_zone=name == "timestamp")
    except (ArithmeticError, ValueError):
        pass
    shown = json.dumps(value, default=str)
    raise OptionError(
        f"option filters: column {column} is {kind.simpleString()}, but {shown} is not"
    )


def _decimal(value: int | str | Decimal, kind: DecimalType) -> Decimal:
    """Raises ArithmeticError or ValueError if the value does not fit the type exactly."""
    found = Decimal(value)
    if not found.is_finite() or abs(found) >= Decimal(10) ** (kind.precision - kind.scale):
        raise ValueError
    with localcontext(prec=2 * kind.precision + 1) as context:
        context.traps[Inexact] = True
        return found.quantize(Decimal(1).scaleb(-kind.scale))


def _time(text: str, *, has_zone: bool) -> datetime:
    """Raises ValueError."""
    found = datetime.fromisoformat(text)
    if _BEYOND_MICROSECONDS.search(text) or (found.tzinfo is not None and not has_zone):
        raise ValueError
    return found.replace(tzinfo=UTC) if has_zone and found.tzinfo is None else found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)
