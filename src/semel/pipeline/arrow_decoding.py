"""Decoders by whole Arrow columns, for the sink and as functions of Spark.

They are pickled, and travel to the workers of Spark. What is decompressed at a time is limited in
bytes, whatever the number of payloads.
"""

import base64
import pickle  # nosec B403 # as Spark itself passes functions to its workers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.pipeline.decoders.compression import decompress_pieces
from semel.pipeline.decoders.outcome import Decoded, joined

if TYPE_CHECKING:
    from semel.pipeline.decoders.formats import PayloadDecoder
    from semel.pipeline.decoders.outcome import Problem

# Decompressed bytes of one payload: as many as the largest packet of MQTT has.
DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
# Decompressed bytes after which payloads are passed on: a compressed payload can become thousands
# of times as long.
PIECE_BYTES: Final = 32 * 1024 * 1024
PROBLEM: Final = pa.struct([("reason", pa.string()), ("column", pa.string()), ("byte", pa.int32())])


@dataclass(frozen=True)
class ArrowDecoding:
    """Decodes payloads, which may be compressed, to the columns of a table."""

    decode: "PayloadDecoder"
    # None: payloads are not compressed.
    codec: str | None = None

    def decoded(self, payloads: pa.Array) -> Decoded:
        """A struct for each payload; null if it is null or cannot be decoded."""
        if not payloads.null_count:
            return self._decoded(payloads)
        # Payloads of other tables are null: these are most, if there are many tables.
        is_given = payloads.is_valid()
        found = self._decoded(payloads.filter(is_given))
        order = pc.subtract(pc.cumulative_sum(is_given.cast(pa.int32())), 1)
        places = pc.indices_nonzero(is_given)
        return Decoded(
            found.values.take(pc.if_else(is_given, order, None)),
            {places[index].as_py(): problem for index, problem in found.problems.items()},
        )

    def _decoded(self, payloads: pa.Array) -> Decoded:
        if self.codec is None:
            return self.decode(payloads)
        pieces = []
        for plain, problems in decompress_pieces(
            payloads, self.codec, limit=DECOMPRESSED_BYTES, piece_bytes=PIECE_BYTES
        ):
            found = self.decode(plain)
            pieces.append(Decoded(found.values, found.problems | problems))
        return joined(pieces)

    def __call__(self, payloads: pa.Array) -> pa.Array:
        """A struct of `value` and `problem` for each payload."""
        found = self.decoded(payloads)
        return with_problems(found.values, found.problems)

    def to_text(self) -> str:
        """This decoding, for `from_text` in another process."""
        return base64.b64encode(pickle.dumps(self)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> "ArrowDecoding":
        # The text is made by the driver, in an option of its own sink, and is never stored. Whoever
        # can set options of a sink runs code in the driver anyway.
        found = pickle.loads(base64.b64decode(text))  # nosec B301
        assert isinstance(found, cls)
        return found


@dataclass(frozen=True)
class Decompression:
    """Decompresses payloads."""

    codec: str

    def __call__(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """A struct of `value` and `problem` for each payload, in arrays of limited size."""
        for payloads in batches:
            for plain, failed in decompress_pieces(
                payloads, self.codec, limit=DECOMPRESSED_BYTES, piece_bytes=PIECE_BYTES
            ):
                yield with_problems(plain, failed)


def with_problems(values: pa.Array, problems: "Mapping[int, Problem]") -> pa.Array:
    """A struct of `value` and `problem` for each payload."""
    fields = [pa.field("value", values.type), pa.field("problem", PROBLEM)]
    return pa.StructArray.from_arrays([values, problem_array(problems, len(values))], fields=fields)


def problem_array(problems: "Mapping[int, Problem]", count: int) -> pa.Array:
    """A struct for each of `count` payloads; null if it has no problem."""
    if not problems:
        return pa.nulls(count, PROBLEM)
    found: list[dict[str, Any] | None] = [None] * count
    for place, each in problems.items():
        found[place] = {"reason": each.reason, "column": each.column, "byte": each.byte}
    return pa.array(found, PROBLEM)
