"""One row for each element of an array: `explode` of a landing file.

    message 7 ─▶ whole │ part │ element
    message 7     ✓    │      │            rows of other tables, and whether the message is bad
    message 7          │ 0    │ {t: 1, …}
    message 7          │ 1    │ {t: 2, …}

Elements become rows of the query, and not arrays of rows: expressions of a landing file then find
columns of elements by name, as Spark resolves any name, and an array of any length passes through
the sink in batches of few rows.

Only the first row has what belongs to the whole message, such as the rows of other tables with its
payload: a copy of it for each element would be quadratic. What a table repeats in each of its rows
can be quadratic, too, if a message has a long array and a long text. So both are limited, and a
message beyond the limits is a dead letter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, StructType

from semel.pipeline.errors import OptionError

# The place of an element in its array.
PART: Final = "part"
# Elements of one array, and bytes of the columns that are repeated for each of them.
MAX_ELEMENTS: Final = 1_000_000
MAX_REPEATED_BYTES: Final = 256 * 1024 * 1024
# The size of repeated columns is determined for more elements than this.
_FEW_ELEMENTS: Final = 1_000
_WHOLE: Final = "_whole"
_ROW: Final = "_row"
_GIVEN: Final = "_given_"
_ARRAY: Final = "_array_"
_PART: Final = "_part_"
_ELEMENT: Final = "_element_"


@dataclass(frozen=True)
class ExplodedArray:
    """The array of a table that becomes rows."""

    name: str
    element: DataType

    @property
    def names(self) -> list[str]:
        """The columns of an element: its fields, or itself under the name of the array."""
        return list(self.element.names) if isinstance(self.element, StructType) else [self.name]

    def columns(self, element: Column) -> dict[str, Column]:
        """The columns of an element. Those of an element that is null are null."""
        if isinstance(self.element, StructType):
            return {name: element[name] for name in self.names}
        return {self.name: element}


@dataclass(frozen=True)
class ExplodedTable:
    """What the rows of a table with an array are made of; all columns are those of a message."""

    place: int
    array: ExplodedArray
    values: Column
    # Why the message cannot be decoded, or null.
    problem: Column
    # The other columns of the table.
    given: Mapping[str, Column]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `exploded_rows` that only this table needs."""
        return f"{_GIVEN}{self.place}", f"{_PART}{self.place}", f"{_ELEMENT}{self.place}"

    @property
    def part(self) -> Column:
        """The place of the element of a row of `exploded_rows`; null if it has none."""
        return sf.col(f"{_PART}{self.place}")

    def row(self) -> dict[str, Column]:
        """The columns of an element of a row of `exploded_rows`."""
        given = sf.col(f"{_GIVEN}{self.place}")
        element = sf.col(f"{_ELEMENT}{self.place}")
        return {
            **{name: given[name] for name in self.given},
            PART: self.part,
            **self.array.columns(element),
        }


def find_array(explode: str, columns: StructType) -> ExplodedArray:
    """The array of this name. Raises OptionError, which names the key."""
    found = next((each for each in columns.fields if each.name == explode), None)
    if found is None:
        names = ", ".join(columns.names)
        raise OptionError(f"explode: there is no column {explode}: the columns are {names}")
    if not isinstance(found.dataType, ArrayType):
        kind = found.dataType.simpleString()
        raise OptionError(f"explode: column {explode} is {kind}, and not an array")
    return ExplodedArray(explode, found.dataType.elementType)


def exploded_rows(
    frame: DataFrame,
    tables: Sequence[ExplodedTable],
    *,
    repeated: Sequence[str],
    whole: Sequence[str],
    bad: str,
) -> DataFrame:
    """One row for each message, and one for each element of the arrays of these tables.

    All rows of a message have the columns `repeated`. The first has those of `whole`, and for each
    table a struct, named by `bad` and its place, that is not null if the message cannot be decoded.
    The other rows have an element of one table.
    """
    places = [each.place for each in tables]
    given = [f"{_GIVEN}{place}" for place in places]
    # In steps, because Spark evaluates an expression as often as it stands in one of them.
    frame = frame.select(
        *(*repeated, *whole),
        *(_struct(each.given).alias(f"{_GIVEN}{each.place}") for each in tables),
        *(each.values.alias(f"{_ARRAY}{each.place}") for each in tables),
        *(each.problem.alias(f"{bad}{each.place}") for each in tables),
    )
    frame = frame.select(
        *(*repeated, *whole, *given, *(f"{_ARRAY}{place}" for place in places)),
        *(_problem(each, repeated, bad).alias(f"{bad}{each.place}") for each in tables),
    )
    is_good = {place: sf.col(f"{bad}{place}").isNull() for place in places}
    frame = frame.select(
        *(*repeated, *given),
        sf.struct(*whole, *(f"{bad}{place}" for place in places)).alias(_WHOLE),
        *(
            sf.when(is_good[place], sf.col(f"{_ARRAY}{place}")).alias(f"{_ARRAY}{place}")
            for place in places
        ),
    )
    # Of the columns that Spark copies for each element, none has an array or a payload.
    frame = frame.select(*repeated, *given, sf.explode_outer(_rows(frame, places)).alias(_ROW))
    row = sf.col(_ROW)
    return frame.select(
        *(*repeated, *given),
        *(row[_WHOLE][name].alias(name) for name in [*whole, *(f"{bad}{at}" for at in places)]),
        *(row[f"{kind}{at}"].alias(f"{kind}{at}") for at in places for kind in (_PART, _ELEMENT)),
    )


def _struct(columns: Mapping[str, Column]) -> Column:
    return sf.struct(*(each.alias(name) for name, each in columns.items()))


def _rows(frame: DataFrame, places: Sequence[int]) -> Column:
    """An array with the rows of a message."""
    arrays = {place: frame.schema[f"{_ARRAY}{place}"].dataType for place in places}

    def row(found: Mapping[str, Column]) -> Column:
        kinds: dict[str, DataType | str] = {_WHOLE: frame.schema[_WHOLE].dataType}
        for place, kind in arrays.items():
            assert isinstance(kind, ArrayType)
            kinds |= {f"{_PART}{place}": "int", f"{_ELEMENT}{place}": kind.elementType}
        nothing = sf.lit(None)
        return _struct({name: found.get(name, nothing.cast(kind)) for name, kind in kinds.items()})

    def rows_of(place: int) -> Column:
        # Spark joins no array with null.
        array = sf.coalesce(sf.col(f"{_ARRAY}{place}"), sf.array().cast(arrays[place]))
        return sf.transform(
            array,
            lambda element, part: row({f"{_PART}{place}": part, f"{_ELEMENT}{place}": element}),
        )

    return sf.concat(sf.array(row({_WHOLE: sf.col(_WHOLE)})), *map(rows_of, places))


def _problem(table: ExplodedTable, repeated: Sequence[str], bad: str) -> Column:
    """Why the message cannot be decoded or has too many elements, or null."""
    found = sf.col(f"{bad}{table.place}")
    elements = sf.array_size(sf.col(f"{_ARRAY}{table.place}"))
    number = sf.format_number(elements, 0)
    columns = sf.struct(*repeated, f"{_GIVEN}{table.place}").cast("string")
    size = elements * sf.octet_length(columns).cast("long")
    limit = f"{MAX_REPEATED_BYTES // 1024**2} MiB"
    too_many = sf.lit(f"expected at most {MAX_ELEMENTS:,} elements, found ")
    too_large = sf.lit(f"the other columns would have more than {limit} in all rows of ")
    reason = sf.when(elements > MAX_ELEMENTS, sf.concat(too_many, number)).when(
        (elements > _FEW_ELEMENTS) & (size > MAX_REPEATED_BYTES),
        sf.concat(too_large, number, sf.lit(" elements")),
    )
    nothing = sf.lit(None).cast("int")
    oversize = sf.struct(
        reason.alias("reason"), sf.lit(table.array.name).alias("column"), nothing.alias("byte")
    )
    return sf.coalesce(found, sf.when(reason.isNotNull(), oversize))
