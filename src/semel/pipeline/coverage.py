"""What a batch covers, and what the table makes of it: the decision behind every commit.

A batch covers a span of rows of each node: all rows of the record from its first to its last. What
it brings for them is another matter: a query may have left rows out, or made many of one. The
decision depends only on spans and on the positions of the table, so it holds for every table
format, and is tested by all histories of three batches.

    position of the table     3
    span of the batch            4 5 6        take: it follows
                             3 4 5 6          trim: rows up to 3 are in the table already
                         2 3                  trim: nothing is new
                                5 6           refuse: neither the table nor the batch has row 4
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# First and last seq of consecutive rows, inclusive.
Span = tuple[int, int]

TAKE: Final = "take"
TRIM: Final = "trim"
REFUSE: Final = "refuse"


@dataclass(frozen=True)
class BatchDecision:
    """Whether a batch is committed, and which part of it."""

    # TAKE, TRIM or REFUSE.
    verdict: str
    # By node of the batch: rows up to this seq are in the table, and are left out; 0: none is.
    landed: Mapping[str, int]
    # By node: the position after the commit. Nodes that do not advance are left out.
    positions: Mapping[str, int]
    # By node: rows that neither the table nor the batch has. They may be skipped only if they no
    # longer exist.
    gaps: Mapping[str, Span]


def decide(
    positions: Mapping[str, int], spans: Mapping[str, Span], beginnings: Mapping[str, int]
) -> BatchDecision:
    """Compare the spans of a batch with the positions of a table.

    `beginnings` has the first row of the record for each node that the table does not know.
    """
    landed: dict[str, int] = {}
    advanced: dict[str, int] = {}
    gaps: dict[str, Span] = {}
    verdict = TAKE
    for node, (first, last) in sorted(spans.items()):
        at = positions.get(node)
        expected = beginnings[node] if at is None else at + 1
        landed[node] = at or 0
        if first > expected:
            gaps[node] = (expected, first - 1)
        elif at is not None and first <= at:
            verdict = TRIM
        if at is None or last > at:
            advanced[node] = last
    return BatchDecision(REFUSE if gaps else verdict, landed, advanced, gaps)
