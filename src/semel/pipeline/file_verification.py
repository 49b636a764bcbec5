"""Whether a file of a Delta table still holds what was written to it.

Page checksums, which are verified whenever a file is read, cover the values of a file. They cover
neither its footer nor the headers of its pages: a flipped bit there can rename a column, or change
its type, the unit of its times or where its pages begin. Whoever would treat a column that is not
there as null loses its values then, and deletes the original. So rows are used only if

- the columns of the file are those of the table, with their types,
- a column that is not there has only nulls by the log, or no count of them there,
- the numbers of rows and of nulls are those in the log, and
- the lowest and the highest value of each column are those in the log.

The log has no nulls and bounds of nested columns, and no bounds of binary ones. Of a file with NaN
it has only the number of rows (`files.statistics_from`). So the unit of times is also compared with
the one that semel writes, in files that have the metadata of semel.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from semel.counts import count
from semel.pipeline.arrow_types import plain_field, plain_type
from semel.pipeline.delta_errors import one_line
from semel.pipeline.errors import TableError
from semel.pipeline.files import READ_ERRORS, WRITE_AGAIN, DataFile, TableFolder
from semel.pipeline.live_files import LiveFile
from semel.store.roots import without_secrets
from semel.store.segments import GROUP_BYTES_KEY

# Other writers truncate bounds to milliseconds, and those of strings from this length on.
_TRUNCATED_MICROSECONDS: Final = 1_000
_TRUNCATED_CHARACTERS: Final = 32
# The log has decimals and floats as decimal text, which not all writers write in full.
_RELATIVE_ERROR: Final = 1e-6
_RESTORE: Final = "restore it from a backup of the table; nothing was committed"


@dataclass(frozen=True)
class FileRecord:
    """What the log says about the rows of a file; what it does not say is left out."""

    rows: int | None = None
    # By column.
    nulls: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class LogRecords:
    """What the log of a table says about its files."""

    def __init__(self, table: DeltaTable) -> None:
        actions = pa.table(table.get_add_actions(flatten=False))
        paths = actions.column("path").to_pylist()
        self._places = {path: place for place, path in enumerate(paths)}
        self._rows = _column(actions, "num_records")
        self._nulls, self._lowest, self._highest = (
            _fields(actions, name) for name in ("null_count", "min", "max")
        )

    def of(self, path: str) -> FileRecord:
        """Of the file with this path in the log."""
        place = self._places[path]
        nulls = {name: values[place].as_py() for name, values in self._nulls.items()}
        bounds = {
            name: (_comparable(values[place]), _comparable(self._highest[name][place]))
            for name, values in self._lowest.items()
            if name in self._highest
        }
        return FileRecord(
            None if self._rows is None else self._rows[place].as_py(),
            {name: number for name, number in nulls.items() if number is not None},
            {name: pair for name, pair in bounds.items() if None not in pair},
        )


def _column(actions: pa.Table, name: str) -> pa.Array | None:
    return actions.column(name).combine_chunks() if name in actions.column_names else None


def _fields(actions: pa.Table, name: str) -> dict[str, pa.Array]:
    """The columns of a struct, without nested ones."""
    column = _column(actions, name)
    if column is None:
        return {}
    # `flatten` applies the nulls of the struct.
    pairs = zip(column.type, column.flatten(), strict=True)
    return {each.name: values for each, values in pairs if not pa.types.is_nested(each.type)}


def wrong_schema(file: pq.ParquetFile, expected: pa.Schema) -> str | None:
    """What is wrong with the schema of a file of a table; None: nothing."""
    found = wrong_column(file.schema_arrow, expected)
    if found is None and GROUP_BYTES_KEY in (file.metadata.metadata or {}):
        for each in file.schema_arrow:
            if _has_other_unit(each.type):
                return f"its column {each.name!r} is {each.type}, but semel writes microseconds"
    return found


def _has_other_unit(kind: pa.DataType) -> bool:
    """Whether a type has times that are not in microseconds."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit != "us")
    inner = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return any(_has_other_unit(kind.field(place).type) for place in inner)


def wrong_column(found: pa.Schema, expected: pa.Schema) -> str | None:
    """What is wrong with the columns of a file of a table; None: nothing. Some may be missing."""
    for place, each in enumerate(found):
        if each.name not in expected.names:
            return f"it has a column {each.name!r}, which the table lacks"
        if each.name in found.names[:place]:
            return f"it has two columns {each.name!r}"
        kind = plain_type(each.type)
        wanted = plain_field(expected.field(each.name)).type
        if not _is_like(kind, wanted):
            return f"its column {each.name!r} is {kind}, but {wanted} in the table"
    return None


def _is_like(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a file may have a column of this plain type; some writers omit time zones."""
    types = pa.types
    if types.is_timestamp(found) and types.is_timestamp(expected):
        return True
    if types.is_list(found) and types.is_list(expected):
        # Writers name the elements differently.
        return _is_like(found.value_type, expected.value_type)
    if types.is_map(found) and types.is_map(expected):
        return _is_like(found.key_type, expected.key_type) and _is_like(
            found.item_type, expected.item_type
        )
    if types.is_struct(found) and types.is_struct(expected):
        return wrong_column(_inner(found), _inner(expected)) is None
    return bool(found == expected)


def _inner(kind: pa.DataType) -> pa.Schema:
    return pa.schema([kind.field(place) for place in range(kind.num_fields)])


class RowCheck:
    """Compares rows of a file, as they are read, with what the log says about the file."""

    def __init__(self, record: FileRecord) -> None:
        self._record = record
        self._rows = 0
        self._nulls = dict.fromkeys(record.nulls, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._missing: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """Add the next rows of the file. All of them have the same columns."""
        self._rows += rows.num_rows
        names = set(rows.column_names)
        for name in self._nulls:
            if name in names:
                self._nulls[name] += rows.column(name).null_count
            else:
                self._missing.add(name)
                self._nulls[name] += rows.num_rows
        for name in self._record.bounds:
            if name in names and rows.num_rows:
                self._widen(name, rows.column(name))

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        plain = plain_type(column.type)
        if plain != column.type:
            # Delta has no nanoseconds.
            column = column.cast(plain, safe=False)
        found = pc.min_max(column)
        low, high = _comparable(found["min"]), _comparable(found["max"])
        if low is not None:
            before = self._bounds.get(name, (low, high))
            self._bounds[name] = (min(low, before[0]), max(high, before[1]))

    def damage(self, columns: Collection[str] | None = None) -> str | None:
        """What is wrong with the rows, which have only these columns; None: nothing."""
        record = self._record
        if record.rows is not None and self._rows != record.rows:
            return f"it has {count(self._rows, 'row')}, and the log says {record.rows}"
        for name, expected in record.nulls.items():
            if (columns is None or name in columns) and self._nulls[name] != expected:
                if name in self._missing:
                    return f"it lacks column {name!r}, of which it has values by the log"
                return (
                    f"its column {name!r} has {count(self._nulls[name], 'null')}, and the log says"
                    f" {expected}"
                )
        for name, (low, high) in record.bounds.items():
            if name in self._missing or (columns is not None and name not in columns):
                continue
            found = self._bounds.get(name)
            if found is None or not (
                _is_bound(low, found[0], is_upper=False)
                and _is_bound(high, found[1], is_upper=True)
            ):
                return (
                    f"the lowest and highest value of its column {name!r} are not those in the log"
                )
        return None


@dataclass(frozen=True, order=True)
class _Time:
    microseconds: int


def _comparable(value: pa.Scalar) -> Any:
    """A value of a bound, or None; times as numbers, because Python lacks some years."""
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type):
        return _Time(value.cast(pa.timestamp("us", value.type.tz), safe=False).value)
    if pa.types.is_date(value.type):
        return value.value
    if pa.types.is_decimal(value.type):
        return float(value.as_py())
    return value.as_py()


def _is_bound(bound: Any, found: Any, *, is_upper: bool) -> bool:
    """Whether a value can be the lowest or highest one by the log."""
    if isinstance(bound, _Time) and isinstance(found, _Time):
        return abs(bound.microseconds - found.microseconds) <= _TRUNCATED_MICROSECONDS
    if type(bound) is not type(found):
        return False
    if isinstance(bound, float):
        return isclose(bound, found, rel_tol=_RELATIVE_ERROR)
    if isinstance(bound, str) and len(found) >= _TRUNCATED_CHARACTERS:
        return bool(found <= bound) if is_upper else bool(bound <= found)
    return bool(bound == found)


class FileReader:
    """Reads files of one version of a table, and those of the next commit, and verifies them."""

    def __init__(self, address: str, table: DeltaTable, *, advice: str = _RESTORE) -> None:
        """`advice` says what to do about a damaged file of the table."""
        self._folder = TableFolder(address)
        self._shown = without_secrets(address)
        self._columns = pa.schema(table.schema().to_arrow())
        self._records = LogRecords(table)
        self._advice = advice

    def read(self, file: LiveFile | DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file, without partition columns; or some columns of them.

        Of these columns, those that the table got after the file was written are null. Raises
        TableError for a file that does not hold what was written.
        """
        if isinstance(file, LiveFile):
            path, record = file.disk_path, self._records.of(file.path)
        else:
            nulls = json.loads(file.statistics).get("nullCount", {})
            path, record = file.path, FileRecord(file.rows, nulls)
        checked = RowCheck(record)
        try:
            with self._folder.open_parquet(path) as opened:
                there = opened.schema_arrow
                self._check(file, wrong_schema(opened, self._columns))
                names = (
                    None if columns is None else [name for name in columns if name in there.names]
                )
                rows = opened.read(columns=names)
            checked.add(rows)
        except READ_ERRORS as problem:
            self._check(file, one_line(problem), problem)
            raise
        self._check(file, checked.damage(columns))
        for name in columns or ():
            if name not in rows.column_names:
                kind = self._columns.field(name).type
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows

    def _check(
        self, file: LiveFile | DataFile, what: str | None, cause: Exception | None = None
    ) -> None:
        """Raise TableError if something is wrong with a file."""
        if what is not None:
            advice = self._advice if isinstance(file, LiveFile) else WRITE_AGAIN
            raise TableError(
                f"{self._shown}: file {file.path} cannot be read as it was written: {what};"
                f" {advice}"
            ) from cause
