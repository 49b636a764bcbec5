"""Decompresses payloads, each on its own, with a limit on what one may become.

The codecs are those of pyarrow. A payload may consist of several gzip members, zstd frames or lz4
frames, as the three formats define it: their contents are joined. Bytes after the last one that do
not begin another are a problem.

Memory: at most `limit` + 1 bytes of one payload are ever decompressed. Beside that, zstd allocates
the window that a frame announces, at most 128 MB, and lz4 a block of at most 4 MB.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from semel.counts import count
from semel.pipeline.decoders.outcome import Problem
from semel.pipeline.errors import OptionError

CODECS: Final = ("gzip", "zstd", "lz4")
# Most payloads are smaller; more is read only if this is not enough.
_FIRST_READ: Final = 16 * 1024
_LARGEST_READ: Final = 1024 * 1024
# What 32-bit offsets can address.
_BINARY_BYTES: Final = 2**31 - 1


def check_compression(codec: str, limit: int) -> None:
    """Raises OptionError if there is no such codec, or the limit is not positive."""
    if codec not in CODECS:
        raise OptionError(f"there is no compression {codec!r}: choose {', '.join(CODECS)}")
    if limit < 1:
        raise OptionError(f"the limit of decompressed bytes must be at least 1, not {limit}")


def decompress(payloads: pa.Array, codec: str, limit: int) -> tuple[pa.Array, dict[int, Problem]]:
    """The decompressed payloads, and a problem for each that failed; null stays null.

    A payload that failed is null in the result. A result of 2 GB or more is large_binary. Raises
    OptionError for a wrong codec or limit.
    """
    ((plain, problems),) = decompress_pieces(payloads, codec, limit=limit, piece_bytes=None)
    return plain, problems


def decompress_pieces(
    payloads: pa.Array, codec: str, *, limit: int, piece_bytes: int | None
) -> Iterator[tuple[pa.Array, dict[int, Problem]]]:
    """What `decompress` gives, in pieces that end as soon as they have `piece_bytes`.

    There is at least one piece. Problems are by index in their piece. Raises OptionError for a
    wrong codec or limit.
    """
    check_compression(codec, limit)
    results: list[bytes | None] = []
    problems: dict[int, Problem] = {}
    size = 0
    # Not as a list: all payloads would be there twice.
    for each in payloads:
        payload = each.as_py()
        result = None
        if payload is not None:
            opened = _decompress_one(payload, codec, limit)
            if isinstance(opened, Problem):
                problems[len(results)] = opened
            else:
                result = opened
                size += len(result)
        results.append(result)
        if piece_bytes is not None and size >= piece_bytes:
            yield _binary(results, size), problems
            results, problems, size = [], {}, 0
    if results or not len(payloads):
        yield _binary(results, size), problems


def _binary(values: list[bytes | None], size: int) -> pa.Array:
    return pa.array(values, type=pa.binary() if size <= _BINARY_BYTES else pa.large_binary())


def _decompress_one(payload: bytes, codec: str, limit: int) -> bytes | Problem:
    if not payload:
        return Problem("the payload is empty")
    chunks: list[bytes] = []
    size = 0
    step = _FIRST_READ
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(payload), codec)
        # Only an empty read shows that the input ended where its format says.
        while chunk := stream.read(min(step, limit + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                return Problem(f"the decompressed payload exceeds {count(limit, 'byte')}")
            step = min(2 * step, _LARGEST_READ)
    except (OSError, pa.ArrowException) as problem:
        if "Truncated" in str(problem):
            return Problem(f"the {codec} data is truncated, or followed by other bytes")
        return Problem(f"the payload is not valid {codec} data ({problem})")
    return b"".join(chunks)
