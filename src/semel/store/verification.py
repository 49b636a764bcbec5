"""Verification of a record: each segment of a node is read whole, the covered ones too."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from semel.store.roots import Root, Segment
from semel.store.segments import RecordError, list_ranges, verify_segment

OK: Final = "ok"
# Of an earlier version: it can be decoded, and nobody can tell more.
UNCHECKED: Final = "without checksums"
DAMAGED: Final = "damaged"


@dataclass(frozen=True)
class SegmentFinding:
    """How a segment is."""

    stream: str
    node: str
    first: int
    last: int
    bytes: int
    # Its file, for people.
    path: str
    state: str
    # What is wrong with it and what to do, in one sentence.
    problem: str | None = None


def verify_segments(
    root: Root, stream: str, node: str, segments: Iterable[Segment]
) -> Iterator[SegmentFinding]:
    """How these are, one after the other. What is deleted meanwhile is left out."""
    for each in segments:
        path = f"{root.address}/{root.file_path(stream, node, each.name)}"
        state, problem = OK, None
        try:
            if not verify_segment(root, stream, node, first=each.first, last=each.last):
                state = UNCHECKED
        except FileNotFoundError:
            # Merged with others, or deleted by retention.
            continue
        except RecordError as damage:
            state, problem = DAMAGED, str(damage)
        except OSError as failure:
            state, problem = DAMAGED, f"{path} cannot be read: {' '.join(str(failure).split())}"
        yield SegmentFinding(stream, node, each.first, each.last, each.size, path, state, problem)


def missing_rows(root: Root, stream: str, node: str) -> list[str]:
    """Which rows are missing between segments, in a sentence, if there are any."""
    try:
        list_ranges(root, stream, node)
    except RecordError as problem:
        return [f"stream {stream}, node {node}: {problem}"]
    return []
