"""Python values to typed Arrow structs: strict, and by whole columns where that is possible.

A value is checked against the type of its column, and never converted to fit:

    boolean          true, false
    int8 to int64    ints within the bounds
    float32, float64 floats, rounded to the nearest; ints that the float represents exactly
    decimal128       decimals, ints, and text such as "12.50", if precision and scale suffice
    string           text; UUIDs in their usual notation
    binary           bytes
    date32           dates, and text such as "2024-01-31"
    timestamp        times with an offset from UTC; ISO 8601 text with an offset; numbers, as
                     seconds since 1970. Years 1 to 9999. Floats are rounded to the nearest
                     microsecond; further digits of text are dropped.
    list             lists
    struct           maps; unknown keys are ignored
    map              maps with text keys

A missing or null value is null. In a column that is not nullable it is a problem.

Each column is first tried as a whole: if all its values have the one Python type that Arrow
converts strictly, Arrow converts them. Otherwise each value is checked alone. Both ways give the
same result for the same value.
"""

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from semel.pipeline.decoders.leaves import (
    NONE,
    Rejected,
    WrongValue,
    checked_value,
    convert_at_once,
    describe,
    describe_type,
    is_leaf,
    shortened,
    storage_type,
)
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

# Stands for the value of a payload that is null or could not be decoded.
NO_VALUE: Final = object()
_NO_FIELDS: Final[dict[str, object]] = {}

# Python values; the parts of structs; or an array without nulls, of the type of the column.
Column: TypeAlias = "list[Any] | SplitStructs | pa.Array"


@dataclass(frozen=True)
class _Misfit:
    """A value that does not fit, on its way from the value to the column of the schema."""

    # None: a required value is missing.
    reason: str | None
    path: str = ""

    def inside(self, step: str) -> "_Misfit":
        return _Misfit(self.reason, step + self.path)

    def problem(self) -> Problem:
        column = self.path.removeprefix(".")
        return Problem(self.reason or f"required column {column} is missing", column=column)


_MISSING: Final = _Misfit(None)
# By index of the value.
_Misfits = dict[int, _Misfit]


def check_schema(schema: pa.Schema) -> None:
    """Raises OptionError if a column has a type that decoders do not support."""
    _check_fields(list(schema), "")


def _check_fields(fields: list[pa.Field], prefix: str) -> None:
    if not fields:
        where = f"column {prefix.removesuffix('.')}" if prefix else "the schema"
        raise OptionError(f"{where} has no columns: a decoder needs at least one")
    # Delta ignores the case of names.
    names = [field.name.lower() for field in fields]
    for field in fields:
        if names.count(field.name.lower()) > 1:
            raise OptionError(f"column {prefix}{field.name} appears twice in the schema")
        _check_type(field.type, f"{prefix}{field.name}")


def _check_type(kind: pa.DataType, path: str) -> None:
    if pt.is_struct(kind):
        _check_fields(list(kind), f"{path}.")
    elif pt.is_list(kind):
        _check_type(kind.value_type, f"{path}[]")
    elif pt.is_map(kind):
        if not pt.is_string(kind.key_type):
            raise OptionError(f"column {path} is a map with {kind.key_type} keys: use string")
        _check_type(kind.item_type, f"{path}[]")
    elif not is_leaf(kind):
        raise OptionError(f"column {path} has type {kind}, which decoders do not support")


def structs_of_rows(
    rows: Sequence[Any], schema: pa.Schema, problems: dict[int, Problem]
) -> Decoded:
    """Structs of rows that are maps from column names to values.

    A row is NO_VALUE if its payload is null or, with an entry in `problems`, has failed already.
    """
    absent: set[int] = set()
    if set(map(type, rows)) != {dict}:
        for index, row in enumerate(rows):
            if type(row) is not dict:
                absent.add(index)
                if row is not NO_VALUE:
                    problems[index] = Problem(_expected("a map of columns", row))
        rows = [_NO_FIELDS if index in absent else row for index, row in enumerate(rows)]
    columns = ([row.get(name) for row in rows] for name in schema.names)
    return structs_of_columns(columns, schema, absent=absent, problems=problems)


@dataclass(frozen=True)
class SplitStructs:
    """Values of a struct column, none of them null, as a column for each part."""

    columns: Sequence["Column"]


def structs_of_columns(
    columns: Iterable[Column],
    schema: pa.Schema,
    *,
    absent: Collection[int],
    problems: dict[int, Problem],
) -> Decoded:
    """Structs of columns, in the order of the schema.

    `absent` are the indexes without a value, whose payload is null or has failed already.
    """
    misfits: _Misfits = {}
    values = _join_columns(columns, list(schema), absent=absent, misfits=misfits)
    for index, misfit in sorted(misfits.items()):
        problems[index] = misfit.problem()
    return Decoded(values, problems)


def _join_columns(
    columns: Iterable[Column],
    fields: list[pa.Field],
    *,
    absent: Collection[int],
    misfits: _Misfits,
) -> pa.StructArray:
    """The struct array of columns; null at `absent`, and where a value does not fit."""
    children = []
    for field, column in zip(fields, columns, strict=True):
        child, wrong = _convert(column, field, absent)
        children.append(child)
        for index, misfit in wrong.items():
            misfits.setdefault(index, misfit.inside(f".{field.name}"))
    mask = None
    if absent or misfits:
        size = len(children[0])
        mask = pa.array([index in absent or index in misfits for index in range(size)])
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _convert(values: Column, field: pa.Field, absent: Collection[int]) -> tuple[pa.Array, _Misfits]:
    """The array of one column, and what does not fit it. Null is permitted at `absent`."""
    misfits: _Misfits = {}
    if isinstance(values, SplitStructs):
        parts = list(field.type)
        return _join_columns(values.columns, parts, absent=(), misfits=misfits), misfits
    if isinstance(values, pa.Array):
        assert values.type == field.type
        assert not values.null_count
        return values, misfits
    kinds = set(map(type, values))
    if not field.nullable and NONE in kinds:
        for index, value in enumerate(values):
            if value is None and index not in absent:
                misfits[index] = _MISSING
    kinds.discard(NONE)
    kind = field.type
    if pt.is_struct(kind):
        return _convert_structs(values, kinds, kind=kind, misfits=misfits), misfits
    if pt.is_list(kind):
        return _convert_lists(values, kinds, kind=kind, misfits=misfits), misfits
    if pt.is_map(kind):
        return _convert_maps(values, kinds, kind=kind, misfits=misfits), misfits
    array = convert_at_once(values, kinds, kind)
    if array is None:
        array = _convert_singly(values, kind, misfits)
    return array, misfits


def _convert_singly(values: list[Any], kind: pa.DataType, misfits: _Misfits) -> pa.Array:
    checked: list[object] = []
    for index, value in enumerate(values):
        fit = None
        if value is not None:
            try:
                fit = checked_value(value, kind)
            except WrongValue as wrong:
                misfits[index] = _Misfit(str(wrong))
        checked.append(fit)
    return pa.array(checked, type=storage_type(kind)).cast(kind)


def _expected(expectation: str, value: object) -> str:
    if isinstance(value, Rejected):
        return value.reason
    return f"expected {expectation}, found {describe(value)}"


def _without_others(
    values: list[Any], wanted: type, kind: pa.DataType, misfits: _Misfits
) -> list[Any]:
    """The values with null for those that are not of the Python type `wanted`."""
    for index, value in enumerate(values):
        if value is not None and type(value) is not wanted:
            misfits[index] = _Misfit(_expected(describe_type(kind), value))
    return [value if type(value) is wanted else None for value in values]


def _null_mask(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], type=pa.bool_())


def _convert_structs(
    values: list[Any], kinds: set[type], *, kind: pa.DataType, misfits: _Misfits
) -> pa.StructArray:
    if not kinds <= {dict}:
        values = _without_others(values, dict, kind, misfits)
    absent = {index for index, value in enumerate(values) if value is None}
    rows = [_NO_FIELDS if value is None else value for value in values] if absent else values
    columns = ([row.get(field.name) for row in rows] for field in kind)
    return _join_columns(columns, list(kind), absent=absent, misfits=misfits)


def _convert_lists(
    values: list[Any], kinds: set[type], *, kind: pa.DataType, misfits: _Misfits
) -> pa.Array:
    if not kinds <= {list}:
        values = _without_others(values, list, kind, misfits)
    lists = [value or () for value in values]
    offsets = [0, *accumulate(map(len, lists))]
    items, wrong = _convert(list(chain.from_iterable(lists)), kind.value_field, ())
    for position in sorted(wrong):
        index = bisect_right(offsets, position) - 1
        misfits.setdefault(index, wrong[position].inside(f"[{position - offsets[index]}]"))
    return pa.ListArray.from_arrays(
        pa.array(offsets, type=pa.int32()), items, type=kind, mask=_null_mask(values)
    )


def _convert_maps(
    values: list[Any], kinds: set[type], *, kind: pa.DataType, misfits: _Misfits
) -> pa.Array:
    if not kinds <= {dict}:
        values = _without_others(values, dict, kind, misfits)
    maps = [_NO_FIELDS if value is None else value for value in values]
    if not set(map(type, chain.from_iterable(maps))) <= {str}:
        maps = [_with_text_keys(given, index, misfits) for index, given in enumerate(maps)]
    offsets = [0, *accumulate(map(len, maps))]
    keys = list(chain.from_iterable(maps))
    contents = [item for given in maps for item in given.values()]
    items, wrong = _convert(contents, kind.item_field, ())
    for position in sorted(wrong):
        index = bisect_right(offsets, position) - 1
        key_label = json.dumps(shortened(keys[position]), ensure_ascii=False)
        misfits.setdefault(index, wrong[position].inside(f"[{key_label}]"))
    return pa.MapArray.from_arrays(
        pa.array(offsets, type=pa.int32()),
        pa.array(keys, type=pa.string()),
        items,
        type=kind,
        mask=_null_mask(values),
    )


def _with_text_keys(given: dict[Any, Any], index: int, misfits: _Misfits) -> dict[str, Any]:
    """The map, or an empty one and a misfit if a key is not text."""
    for key in given:
        if type(key) is not str:
            misfits[index] = _Misfit(_expected("text keys", key))
            return _NO_FIELDS
    return given
