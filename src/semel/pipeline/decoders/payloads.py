"""The loop over payloads that cbor, msgpack and avro share, and pieces of many payloads."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from semel.pipeline.decoders.outcome import Decoded, Problem, joined
from semel.pipeline.decoders.typed import NO_VALUE, structs_of_rows

EMPTY: Final = Problem("the payload is empty")
# The Python objects of so few payloads stay in the caches of a processor: with ten times as many,
# Protobuf takes twice as long.
PIECE_ROWS: Final = 1_000
_REASON_CHARACTERS: Final = 200


class Undecodable(Exception):
    """A payload cannot be decoded; carries the problem."""

    def __init__(self, reason: str, byte: int | None = None) -> None:
        super().__init__(reason)
        # A reason may quote the message of a package, which may quote the payload.
        line = " ".join(reason.split())[:_REASON_CHARACTERS]
        self.problem = Problem(line, byte=byte)


def decode_in_pieces(payloads: pa.Array, decode: Callable[[pa.Array], Decoded]) -> Decoded:
    """Decode a column of payloads, some at a time, with a `decode` that makes Python objects."""
    starts = range(0, len(payloads), PIECE_ROWS) or (0,)
    return joined([decode(payloads.slice(first, PIECE_ROWS)) for first in starts])


def decode_each(
    payloads: pa.Array, schema: pa.Schema, decode: Callable[[bytes], object]
) -> Decoded:
    """Decode each payload with `decode`, which raises Undecodable, and type the results."""
    return decode_in_pieces(payloads, lambda piece: _decode_piece(piece, schema, decode))


def _decode_piece(
    payloads: pa.Array, schema: pa.Schema, decode: Callable[[bytes], object]
) -> Decoded:
    rows: list[object] = []
    problems: dict[int, Problem] = {}
    for index, payload in enumerate(payloads.to_pylist()):
        if payload:
            try:
                rows.append(decode(payload))
                continue
            except Undecodable as failed:
                problems[index] = failed.problem
        elif payload is not None:
            problems[index] = EMPTY
        rows.append(NO_VALUE)
    return structs_of_rows(rows, schema, problems)


def trailing_bytes(byte: int, size: int) -> Undecodable:
    """The error for bytes after the end of a value, which begin at `byte` of `size` bytes."""
    return Undecodable(f"the value ends after {byte} of {size} bytes", byte)


def truncated(payload: bytes) -> Undecodable:
    """The error for a payload that ends inside a value."""
    return Undecodable("the payload is truncated", len(payload))
