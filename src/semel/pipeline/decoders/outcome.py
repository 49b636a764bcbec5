"""What a decoder returns: a struct for each payload, and a problem for each that failed."""

from collections.abc import Sequence
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


def joined(pieces: Sequence[Decoded]) -> Decoded:
    """The structs and problems of consecutive pieces, of which there is at least one."""
    if len(pieces) == 1:
        return pieces[0]
    problems: dict[int, Problem] = {}
    first = 0
    for each in pieces:
        for index, problem in each.problems.items():
            problems[first + index] = problem
        first += len(each.values)
    return Decoded(pa.concat_arrays([each.values for each in pieces]), problems)
