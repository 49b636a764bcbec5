"""What Spark's checkpoint of a query says about its batches.

Spark writes the end offset of a batch to `offsets/<batch>` before the batch begins, and writes
`commits/<batch>` when it is done. A batch that is not done is repeated. The start of a batch is the
end of the one before it.
"""

import json
from pathlib import Path
from typing import Final

from semel.pipeline.coverage import Span
from semel.pipeline.errors import OptionError
from semel.pipeline.offsets import Offset, began_after, positions_of

# The first lines of a file in `offsets`: the version of the format, and metadata.
_HEAD_LINES: Final = 2


def committed_offset(checkpoint: Path) -> Offset | None:
    """The offset up to which a checkpoint says that rows have landed.

    None if nothing has landed, or if the checkpoint cannot be read, which Spark will report.
    """
    planned = _batches(checkpoint / "offsets")
    if not planned:
        return None
    last = planned[-1]
    if last not in _batches(checkpoint / "commits"):
        last -= 1
    try:
        offsets = _offsets(checkpoint, last)
    except (OSError, ValueError):
        return None
    return None if len(offsets) != 1 else positions_of(offsets[0])


def spans_of_batch(checkpoint: Path, batch: int) -> dict[str, Span]:
    """The rows that a batch of a query with one source, `format("mqtt")`, covers on each node.

    Raises OptionError if the checkpoint does not tell.
    """
    end = _offset_of(checkpoint, batch)
    start = _offset_of(checkpoint, batch - 1) if batch else {}
    spans = {}
    for node, last in positions_of(end).items():
        # A node that was not in the offset before begins with row 1, unless the query was told to
        # begin elsewhere.
        before = start[node] if node in start else 0 if batch else began_after(end, node)
        if last > before:
            spans[node] = (before + 1, last)
    return spans


def last_batch(checkpoint: Path) -> int | None:
    """The last batch that is done."""
    return max(_batches(checkpoint / "commits"), default=None)


def spans_since_start(checkpoint: Path, batch: int) -> dict[str, Span]:
    """The rows that a query covers on each node from where it began to the end of a batch.

    The query has one source, `format("mqtt")`. Raises OptionError if the checkpoint does not tell.
    """
    end = _offset_of(checkpoint, batch)
    return {
        node: (began_after(end, node) + 1, last)
        for node, last in positions_of(end).items()
        if last > began_after(end, node)
    }


def _offset_of(checkpoint: Path, batch: int) -> Offset:
    shown = checkpoint / "offsets" / str(batch)
    try:
        offsets = _offsets(checkpoint, batch)
    except OSError as problem:
        raise OptionError(
            f"coverage: the offsets of the query cannot be read: {problem.strerror}: {shown}"
        ) from None
    except ValueError:
        raise OptionError(
            f'coverage: {shown} has no offset of format("mqtt"): the rows of the query must come'
            " from it alone"
        ) from None
    if len(offsets) != 1:
        raise OptionError(
            f"coverage: the query has {len(offsets)} sources: the rows must come from one stream"
        )
    return offsets[0]


def _offsets(checkpoint: Path, batch: int) -> list[Offset]:
    """The end offset of each source. Raises OSError, or ValueError if one is not `{node: seq}`."""
    lines = (checkpoint / "offsets" / str(batch)).read_text("utf-8").strip().split("\n")
    found: list[Offset] = []
    for line in lines[_HEAD_LINES:]:
        offset = json.loads(line)
        if not isinstance(offset, dict) or not all(type(each) is int for each in offset.values()):
            raise ValueError(line)
        found.append(offset)
    return found


def _batches(folder: Path) -> list[int]:
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())
