"""Schemas of Delta tables and of the rows that a batch brings, compared without nullability.

In files everything is nullable, whatever Spark says of the rows.
"""

import json
from typing import Any

from deltalake import Schema
from deltalake.schema import Field


def rows_schema(schema: str) -> Schema:
    """The columns of the rows of a batch, all nullable; `schema` is JSON of Spark."""
    return Schema.from_json(json.dumps(nullable(json.loads(schema))))


def new_columns(table: Schema, rows: Schema) -> list[Field]:
    """The columns that a table lacks, as nullable columns."""
    names = {field.name for field in table.fields}
    return [
        Field(field.name, field.type, nullable=True)
        for field in rows.fields
        if field.name not in names
    ]


def plain_type(field: Field) -> Any:
    """The type of a column, without nullability."""
    return nullable(json.loads(field.type.to_json()))


def type_name(field: Field) -> str:
    """The type of a column, for messages."""
    return str(json.loads(field.type.to_json()))


def nullable(kind: Any) -> Any:
    """A type or schema of Spark in which everything is nullable, as in files."""
    if isinstance(kind, list):
        return [nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    free = ("nullable", "containsNull", "valueContainsNull")
    return {
        name: True if name in free else {} if name == "metadata" else nullable(value)
        for name, value in kind.items()
    }
