"""JSON: one object of columns, or the text of one value, for each payload.

    payloads ─▶ candidates ─▶ blocks ─▶ Arrow's JSON reader ─▶ structs
                    └────────────┴────▶ Python's parser ─────▶ structs and problems

All rules are in the plain path (`json_values`), which takes one payload at a time. The hot path
(`json_blocks`) repeats its decisions for whole blocks of payloads that have nothing unusual. A
block that it declines is tried again in pieces, so that one odd payload does not slow down
thousands of others. What becomes of a payload depends neither on the path, nor on the payloads
around it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.pipeline.decoders.json_blocks import BlockReader, blocks_of, find_candidates
from semel.pipeline.decoders.json_values import (
    JsonShape,
    fit_object,
    from_storage,
    parse_json,
    shape_of,
    storage_schema,
)
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.payloads import decode_each
from semel.pipeline.decoders.typed import check_schema

# A block that was declined is tried again in at most this many pieces, unless they would have
# fewer payloads than that: then the plain path is as fast.
PIECES: Final = 16
PIECE_ROWS: Final = 64


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects into structs of `schema`."""

    schema: pa.Schema

    @cached_property
    def _shape(self) -> JsonShape:
        return shape_of(self.schema)

    @cached_property
    def _reader(self) -> BlockReader | None:
        """None if columns of these types cannot be read by blocks."""
        reader = BlockReader(self.schema, self._shape)
        return reader if reader.supports_shape else None

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        shape, reader = self._shape, self._reader
        if reader is None:
            return decode_singly(payloads, self.schema, shape)
        read = list(_read_blocks(payloads, reader))
        if len(read) == 1 and len(read[0][1]) == len(payloads):
            return Decoded(read[0][1], {})
        places = [each for each, _ in read]
        structs = [each for _, each in read]
        valid = pc.indices_nonzero(payloads.is_valid())
        known = pa.concat_arrays([*places, valid.slice(0, 0)])
        rest = valid.filter(pc.invert(pc.is_in(valid, value_set=known)))
        plain = decode_singly(payloads.take(rest), self.schema, shape)
        empty = pc.indices_nonzero(payloads.is_null())
        nulls = pa.nulls(len(empty), type=plain.values.type)
        order = pa.concat_arrays([*places, rest, empty])
        values = pa.concat_arrays([*structs, plain.values, nulls])
        by_place = rest.to_pylist()
        return Decoded(
            values.take(pc.array_sort_indices(order)),
            {by_place[index]: problem for index, problem in plain.problems.items()},
        )


def _read_blocks(
    payloads: pa.Array, reader: BlockReader
) -> Iterator[tuple[pa.Array, pa.StructArray]]:
    """What the hot path reads: structs, and the indexes of their payloads."""
    places = pc.indices_nonzero(find_candidates(payloads))
    if not places:
        return
    candidates = payloads if len(places) == len(payloads) else payloads.take(places)
    for first, block in blocks_of(candidates):
        structs = reader.read_block(block)
        if structs is not None:
            yield _complete_rows(places.slice(first, len(block)), structs)
            continue
        size = max(PIECE_ROWS, -(-len(block) // PIECES))
        if size >= len(block):
            continue
        for start in range(0, len(block), size):
            piece = block.slice(start, size)
            structs = reader.read_block(piece)
            if structs is not None:
                yield _complete_rows(places.slice(first + start, len(piece)), structs)


def _complete_rows(places: pa.Array, structs: pa.StructArray) -> tuple[pa.Array, pa.StructArray]:
    """Those that have all required columns. The plain path says what is wrong with the others."""
    for index, field in enumerate(structs.type):
        column = structs.field(index)
        if not field.nullable and column.null_count:
            is_given = column.is_valid()
            places, structs = places.filter(is_given), structs.filter(is_given)
    return places, structs


def decode_singly(payloads: pa.Array, schema: pa.Schema, shape: JsonShape) -> Decoded:
    """Decode each payload by the plain path."""

    def decode(payload: bytes) -> object:
        _, value = parse_json(payload)
        return fit_object(value, shape)

    found = decode_each(payloads, storage_schema(schema), decode)
    return Decoded(from_storage(found.values, pa.struct(list(schema))), found.problems)


@dataclass(frozen=True)
class JsonTextDecoder:
    """Decodes JSON values, of any kind, into structs of one column with their text."""

    schema: pa.Schema

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        (name,) = self.schema.names

        def decode(payload: bytes) -> object:
            text, _ = parse_json(payload)
            return {name: text}

        return decode_each(payloads, self.schema, decode)


def make_json_decoder(schema: pa.Schema) -> JsonDecoder:
    """Raises OptionError if a column has a type that the decoder does not support."""
    check_schema(storage_schema(schema))
    return JsonDecoder(schema)
