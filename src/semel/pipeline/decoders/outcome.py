"""What a decoder returns: a struct for each payload, and a problem for each that failed."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Problem:
    """Why one payload could not be decoded."""

    # A fragment of a sentence: "the payload is empty".
    reason: str
    # Path of the column that failed: `reading.values[2]`, `tags["unit"]`.
    column: str | None = None
    # Offset in the decompressed payload, from 0.
    byte: int | None = None


@dataclass(frozen=True)
class Decoded:
    """The structs of a column of payloads, in order."""

    # Null where the payload was null or failed.
    values: pa.StructArray
    # By index of the payload.
    problems: dict[int, Problem]
