"""Rows of a stream that are lost: what a repair could not read, noted so that nobody wonders.

The numbers of a stream are dense, and whoever reads or seals it refuses a gap: that is how a loss
would be found. A repair that has lost rows keeps the numbers of the others, which readers may have
seen, and notes each range that is gone as a fact of the store

    gap:<id of the stream>:<first>-<last>

whose value says when. So a gap that is noted is a loss that somebody was told of; one that is not
is a fault. The note says that the store does not have these rows. The record may: what was given to
the sealer before the damage may be in a segment that the store had not been told of yet.
"""

import re
import sqlite3
from collections.abc import Iterable
from typing import Final

from semel.store.facts import facts

# First and last seq, both included.
Range = tuple[int, int]

_FACT: Final = re.compile(r"gap:([0-9]{1,18}):([0-9]{1,19})-([0-9]{1,19})", re.ASCII)


def gap_fact(stream: int, first: int, last: int) -> str:
    """The name of the fact that these rows are lost."""
    return f"gap:{stream}:{first}-{last}"


def known_gaps(connection: sqlite3.Connection) -> dict[int, list[Range]]:
    """What is noted as lost, by stream, in the order of the rows. Raises Damaged."""
    found: dict[int, list[Range]] = {}
    for name, _ in facts(connection, "gap:"):
        match = _FACT.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append((int(match[2]), int(match[3])))
    for ranges in found.values():
        ranges.sort()
    return found


def missing(connection: sqlite3.Connection, stream: int, first: int, last: int) -> list[Range]:
    """Which of the rows first to last of a stream are not in the store."""
    found: list[Range] = []
    expected = first
    rows = connection.execute(
        "SELECT seq FROM record WHERE stream = ? AND seq BETWEEN ? AND ? ORDER BY seq",
        (stream, first, last),
    )
    for (seq,) in rows:
        if not isinstance(seq, int):
            # A damaged row is not there.
            continue
        if seq > expected:
            found.append((expected, seq - 1))
        expected = seq + 1
    if expected <= last:
        found.append((expected, last))
    return found


def without(ranges: Iterable[Range], known: Iterable[Range]) -> list[Range]:
    """What is left of ranges without those that are known; both in order."""
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
