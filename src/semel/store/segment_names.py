"""The name of a segment's file, which states the rows that the segment holds.

    00000000000000000001-00000000000000000500.parquet

Names sort in the order of their rows, and a listing of a folder returns all ranges without opening
a file. A file with any other name is not a segment.
"""

import re
from typing import Final

# First and last seq, both included.
Range = tuple[int, int]

MAXIMUM_SEQ: Final = 2**63 - 1
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet", re.ASCII)


def segment_name(first: int, last: int) -> str:
    """The file name of the segment with these rows. Raises ValueError for an invalid range."""
    if not 1 <= first <= last <= MAXIMUM_SEQ:
        raise ValueError(f"rows {first} to {last} are not a valid range for a segment")
    return f"{first:020}-{last:020}.parquet"


def parse_segment_name(name: str) -> Range | None:
    """The first and last seq, or None if this is not the name of a segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return (first, last) if 1 <= first <= last <= MAXIMUM_SEQ else None
