"""Arrow types of files that other programs have written, as the types of Delta.

Text and bytes can also be large, views or dictionaries in Arrow, and times can have other units.
Rows of different files can be compared and merged once their types are plain.
"""

import pyarrow as pa


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type with the same values, also inside of lists, maps and structs."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_inner(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain_inner(kind.key_field), _plain_inner(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_inner(kind.field(place)) for place in range(kind.num_fields)])
    return kind


def plain_field(field: pa.Field) -> pa.Field:
    """A nullable column of the plain type."""
    return pa.field(field.name, plain_type(field.type), nullable=True)


def with_plain_types(rows: pa.Table) -> pa.Table:
    """The same rows with plain types."""
    return rows.cast(pa.schema([_plain_inner(field) for field in rows.schema]))


def _plain_inner(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))
