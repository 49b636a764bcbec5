"""Decoders by whole Arrow columns, as functions of Spark.

Each takes a column of payloads, and gives a struct of `value` (null if the payload is bad) and
`problem` (null if it is good). They are pickled, and travel to the workers of Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from semel.pipeline.decoders.formats import PayloadDecoder
    from semel.pipeline.decoders.outcome import Problem

# Decompressed bytes of one payload: as many as the largest packet of MQTT has.
DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
PROBLEM: Final = pa.struct([("reason", pa.string()), ("column", pa.string()), ("byte", pa.int32())])


@dataclass
class ArrowDecoding:
    """Decodes payloads to the columns of a table."""

    decode: "PayloadDecoder"

    def __call__(self, payloads: pa.Array) -> pa.Array:
        found = self.decode(payloads)
        return with_problems(found.values, found.problems)


@dataclass
class Decompression:
    """Decompresses payloads."""

    codec: str

    def __call__(self, payloads: pa.Array) -> pa.Array:
        from semel.pipeline.decoders.compression import decompress

        return with_problems(*decompress(payloads, self.codec, DECOMPRESSED_BYTES))


def with_problems(values: pa.Array, problems: "Mapping[int, Problem]") -> pa.Array:
    """A struct of `value` and `problem` for each payload."""
    if problems:
        found: list[dict[str, Any] | None] = [None] * len(values)
        for place, each in problems.items():
            found[place] = {"reason": each.reason, "column": each.column, "byte": each.byte}
        why = pa.array(found, PROBLEM)
    else:
        why = pa.nulls(len(values), PROBLEM)
    fields = [pa.field("value", values.type), pa.field("problem", PROBLEM)]
    return pa.StructArray.from_arrays([values, why], fields=fields)
