"""Filters that Spark pushes down to a batch read; they apply to rows and to whole row groups.

`condition_of` converts a filter of Spark to a `Condition` if it can be evaluated exactly as Spark
would: the column is a string, a number, a boolean or a timestamp, and the value has its type. Spark
evaluates all other filters itself. `Condition.mask` says which rows match: a comparison with null
is null, as in SQL, and a row is kept if the result is true. `Condition.may_hold` says whether any
row of a row group can match, given its lowest and highest value.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as spark

from semel.pipeline.source_options import microseconds
from semel.store.segment_names import MAXIMUM_SEQ, Range
from semel.store.segments import WITH_STATISTICS, chunk_of, schema

_COMPARISONS: Final = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.StringStartsWith: "starts",
    spark.StringEndsWith: "ends",
    spark.StringContains: "contains",
}
# By the names of Arrow's functions.
_COMPUTED: Final = {
    "=": "equal",
    ">": "greater",
    ">=": "greater_equal",
    "<": "less",
    "<=": "less_equal",
    "starts": "starts_with",
    "ends": "ends_with",
    "contains": "match_substring",
}
_TEXTUAL: Final = ("starts", "ends", "contains")


@dataclass(frozen=True)
class Condition:
    """A condition on a column; times are in microseconds, the values of `in` are a tuple."""

    column: str
    kind: str
    value: Any = None
    is_negated: bool = False

    def mask(self, column: Any) -> Any:
        """Which values of the column match: true, false or null."""
        # Slow to import, and not needed for streams.
        import pyarrow.compute as pc

        if self.kind == "null":
            found = pc.is_null(column)
        elif self.kind == "in":
            wanted = pa.array(self.value, _kind_of(self.column))
            none = pa.scalar(None, pa.bool_())
            found = pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=wanted), none)
        elif self.kind in _TEXTUAL:
            found = getattr(pc, _COMPUTED[self.kind])(column, self.value)
        else:
            value = pa.scalar(self.value, _kind_of(self.column))
            found = getattr(pc, _COMPUTED[self.kind])(column, value)
        return pc.invert(found) if self.is_negated else found

    def may_hold(self, least: Any, greatest: Any) -> bool:
        """Whether a value from `least` to `greatest` can match; strings are given as bytes."""
        if self.is_negated or self.kind in ("null", "ends", "contains"):
            return True
        if self.kind == "in":
            return any(least <= _raw(each) <= greatest for each in self.value)
        value = _raw(self.value)
        if self.kind == "starts":
            return bool(least[: len(value)] <= value <= greatest[: len(value)])
        if self.kind == "=":
            return bool(least <= value <= greatest)
        if self.kind in (">", ">="):
            return bool(greatest > value or (self.kind == ">=" and greatest == value))
        return bool(least < value or (self.kind == "<=" and least == value))


def condition_of(given: Any) -> Condition | None:
    """A filter of Spark as a condition, or None if Spark has to apply it."""
    if isinstance(given, spark.Not):
        found = condition_of(given.child)
        if found is None or found.is_negated or isinstance(given.child, spark.EqualNullSafe):
            return None
        return Condition(found.column, found.kind, found.value, is_negated=True)
    if len(getattr(given, "attribute", ())) != 1 or given.attribute[0] not in schema().names:
        return None
    column: str = given.attribute[0]
    if isinstance(given, spark.IsNull):
        return Condition(column, "null")
    if isinstance(given, spark.IsNotNull):
        return Condition(column, "null", is_negated=True)
    if isinstance(given, spark.In):
        values = [_value(column, each) for each in given.value]
        # With a null in the list, `in` is null instead of false for other values.
        if not values or any(each is None for each in values):
            return None
        return Condition(column, "in", tuple(values))
    kind = _COMPARISONS.get(type(given))
    value = None if kind is None else _value(column, given.value)
    if kind is None or value is None:
        return None
    if kind in _TEXTUAL and not isinstance(value, str):
        return None
    return Condition(column, kind, value)


def _value(column: str, value: Any) -> Any:
    """The value if it has the type of the column, or None."""
    kind = schema().field(column).type
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value if is_number and abs(value) <= MAXIMUM_SEQ else None
    if pa.types.is_timestamp(kind) and isinstance(value, datetime) and value.tzinfo is not None:
        return microseconds(value)
    return None


def _kind_of(column: str) -> Any:
    """The type for a comparison: a number in a condition may be too large for the column."""
    kind = schema().field(column).type
    return pa.int64() if pa.types.is_integer(kind) else kind


def _raw(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def keep(batch: Any, conditions: Iterable[Condition]) -> Any:
    """The rows of a table that match all conditions."""
    for condition in conditions:
        batch = batch.filter(condition.mask(batch.column(condition.column)))
    return batch


def seqs_that_may_hold(conditions: Iterable[Condition]) -> Range:
    """The range of seq that conditions on it allow."""
    low, high = 1, MAXIMUM_SEQ
    for each in conditions:
        if each.column != "seq" or each.is_negated:
            continue
        if each.kind == "in":
            low, high = max(low, min(each.value)), min(high, max(each.value))
        if each.kind in ("=", ">=", ">"):
            low = max(low, each.value + (each.kind == ">"))
        if each.kind in ("=", "<=", "<"):
            high = min(high, each.value - (each.kind == "<"))
    return low, high


def node_may_hold(node: str, conditions: Iterable[Condition]) -> bool:
    """Whether rows of a node match all conditions on `node`."""
    name = pa.array([node], pa.string())
    return all(each.mask(name)[0].as_py() for each in conditions if each.column == "node")


@dataclass(frozen=True)
class RowSelection:
    """Selects the row groups that have to be read."""

    conditions: tuple[Condition, ...]

    def __call__(self, metadata: Any, group: int) -> bool:
        """Whether a row of this row group can match all conditions."""
        return all(
            _group_may_hold(each, metadata.row_group(group))
            for each in self.conditions
            if each.column in WITH_STATISTICS
        )


def _group_may_hold(condition: Condition, group: Any) -> bool:
    chunk = chunk_of(group, condition.column)
    statistics = None if chunk is None else chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # Raw values: a time would become a datetime.
    limits: Sequence[Any] = (statistics.min_raw, statistics.max_raw)
    return condition.may_hold(*(_raw(each) for each in limits))
