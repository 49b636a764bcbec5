"""The columns of `format("mqtt")`: those of the record, and which of them a query reads.

Spark does not tell a Python source which columns a query uses, and reads all columns of its schema.
So a query selects columns itself: with option `columns`, or with a schema.

For a catalog table (`CREATE TABLE … USING mqtt`) Spark passes the schema to the source of each
query, but not the options of the table. So they are stored in the schema, as metadata of the first
column.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from semel.pipeline.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The columns of a segment as Spark types; they match semel.store.segments.schema().
COLUMNS: Final = {
    "seq": "bigint",
    "node": "string",
    "received": "timestamp",
    "topic": "string",
    "payload": "binary",
    "qos": "int",
    "retain": "boolean",
    "dup": "boolean",
    "client_id": "string",
    "user_name": "string",
    "packet_id": "int",
    "protocol_version": "int",
    "payload_format": "int",
    "content_type": "string",
    "response_topic": "string",
    "correlation_data": "binary",
    "message_expiry": "bigint",
    "user_properties": "array<struct<key:string,value:string>>",
}
# A column of landed tables: the day of `received` in UTC. Spark's to_date() uses the time zone of
# the session, which may be the user's.
DATE: Final = "date"
UTC_DATE: Final = """
    date_from_unix_date(cast(
        (unix_micros(received) - pmod(unix_micros(received), 86400000000)) div 86400000000 as int))
"""
# The key of the column metadata with the options of a table.
TABLE_OPTIONS: Final = "semel.options"
# Spark reads columns that are NOT NULL faster.
NEVER_NULL: Final = frozenset(
    ("seq", "node", "received", "topic", "payload", "qos", "retain", "dup")
)


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse option `columns`: names separated by commas. Raises OptionError."""
    names = tuple(each.strip() for each in text.split(","))
    if not all(names):
        raise OptionError(
            "option columns must be names separated by commas, such as topic,received"
        )
    for name in names:
        if name not in COLUMNS:
            raise OptionError(f"option columns: {_about_unknown(name)}")
        if names.count(name) > 1:
            raise OptionError(f"option columns names {name} twice")
    return names


def ddl_of(columns: Sequence[str] | None) -> str:
    """The schema of some columns, in their order; None means all."""
    return ", ".join(
        f"{name} {COLUMNS[name]}{' NOT NULL' if name in NEVER_NULL else ''}"
        for name in columns or COLUMNS
    )


def table_schema(columns: Sequence[str] | None, options: Mapping[str, str]) -> "StructType":
    """The schema of a table with these options."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from semel.store.segments import schema

    whole = from_arrow_schema(schema())
    fields = [whole[name] for name in columns or COLUMNS]
    for column in fields:
        column.nullable = column.name not in NEVER_NULL
    fields[0].metadata = {TABLE_OPTIONS: json.dumps(dict(sorted(options.items())))}
    return StructType(fields)


def table_options(schema: "StructType") -> dict[str, str]:
    """The options of the table with this schema; empty if it is not that of a table."""
    for column in schema.fields:
        kept = column.metadata.get(TABLE_OPTIONS)
        if kept is not None:
            options: dict[str, str] = json.loads(kept)
            return options
    return {}


def without_table_options(schema: "StructType") -> "StructType":
    """The schema without the options of a table that its columns may come from."""
    from pyspark.sql.types import StructField, StructType

    fields = []
    for column in schema.fields:
        kept = {key: value for key, value in column.metadata.items() if key != TABLE_OPTIONS}
        fields.append(StructField(column.name, column.dataType, column.nullable, kept))
    return StructType(fields)


def check_columns(schema: "StructType", chosen: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The columns to read. Raises OptionError for a column that the record lacks.

    `chosen` is the value of option columns, which must agree with the schema.
    """
    if not schema.fields:
        raise OptionError("the schema has no columns")
    for column in schema.fields:
        kind = COLUMNS.get(column.name)
        if kind is None:
            raise OptionError(_about_unknown(column.name))
        if column.dataType.simpleString() != kind:
            given = column.dataType.simpleString()
            raise OptionError(f"column {column.name} of the record is {kind}, not {given}")
        if not column.nullable and column.name not in NEVER_NULL:
            raise OptionError(f"column {column.name} of the record may be null: leave NOT NULL out")
    names = tuple(column.name for column in schema.fields)
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise OptionError(f"the schema has column {twice} twice")
    if chosen is not None and chosen != names:
        raise OptionError(
            f"option columns is {','.join(chosen)}, but the schema has {','.join(names)}: give one"
            " of them"
        )
    return names


def _about_unknown(name: str) -> str:
    """One sentence about a column that the record lacks."""
    meant = get_close_matches(name.lower(), COLUMNS, n=1)
    hint = f"did you mean {meant[0]}?" if meant else f"the columns are {', '.join(COLUMNS)}"
    return f"the record has no column {name}: {hint}"
