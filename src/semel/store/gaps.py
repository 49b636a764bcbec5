"""Rows of a stream that a repair has lost, recorded in the metadata of the store.

The seqs of a stream have no gaps. Readers and the sealer refuse a gap, so that a loss is detected.
A repair that loses rows keeps the seqs of the others, which readers may already know, and records
each lost range in the metadata

    gap:<id of the stream>:<first>-<last>

with the time as its value. So a recorded gap is a reported loss, and any other gap is an error. A
recorded gap means that the store lacks these rows. The record may still have them: the sealer may
have written them to a segment that the store did not know yet.
"""

import re
import sqlite3
from collections.abc import Iterable
from typing import Final

from semel.store.metadata import all_metadata

# First and last seq, both included.
Range = tuple[int, int]

_GAP: Final = re.compile(r"gap:([0-9]{1,18}):([0-9]{1,19})-([0-9]{1,19})", re.ASCII)


def gap_name(stream: int, first: int, last: int) -> str:
    """The name in the metadata for these lost rows."""
    return f"gap:{stream}:{first}-{last}"


def known_gaps(connection: sqlite3.Connection) -> dict[int, list[Range]]:
    """The recorded gaps by stream, in order. Raises Damaged."""
    found: dict[int, list[Range]] = {}
    for name, _ in all_metadata(connection, "gap:"):
        match = _GAP.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append((int(match[2]), int(match[3])))
    for ranges in found.values():
        ranges.sort()
    return found


def missing(connection: sqlite3.Connection, stream: int, first: int, last: int) -> list[Range]:
    """The ranges of rows between `first` and `last` of a stream that the store lacks."""
    found: list[Range] = []
    expected = first
    rows = connection.execute(
        "SELECT seq FROM record WHERE stream_id = ? AND seq BETWEEN ? AND ? ORDER BY seq",
        (stream, first, last),
    )
    for (seq,) in rows:
        if not isinstance(seq, int):
            # A damaged row counts as missing.
            continue
        if seq > expected:
            found.append((expected, seq - 1))
        expected = seq + 1
    if expected <= last:
        found.append((expected, last))
    return found


def without(ranges: Iterable[Range], known: Iterable[Range]) -> list[Range]:
    """The ranges minus the known ones. Both must be sorted."""
    left = list(ranges)
    for low, high in known:
        rest: list[Range] = []
        for first, last in left:
            if last < low or first > high:
                rest.append((first, last))
                continue
            if first < low:
                rest.append((first, low - 1))
            if last > high:
                rest.append((high + 1, last))
        left = rest
    return left
