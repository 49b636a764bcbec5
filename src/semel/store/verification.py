"""Verifies a record: reads every segment of a node, including covered ones."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from semel.store.roots import Root, Segment
from semel.store.segments import RecordError, list_ranges, verify_segment

OK: Final = "ok"
# Written by an earlier version: the rows can be decoded, but not verified.
UNCHECKED: Final = "without checksums"
DAMAGED: Final = "damaged"


@dataclass(frozen=True)
class SegmentFinding:
    """The state of a segment."""

    stream: str
    node: str
    first: int
    last: int
    bytes: int
    # The address of its file, for messages.
    path: str
    state: str
    # What is wrong and what to do, in one sentence; None: nothing is wrong.
    problem: str | None = None


def verify_segments(
    root: Root, stream: str, node: str, segments: Iterable[Segment]
) -> Iterator[SegmentFinding]:
    """Verify each segment. Segments that are deleted meanwhile are left out."""
    for each in segments:
        path = f"{root.address}/{root.file_path(stream, node, each.name)}"
        state, problem = OK, None
        try:
            if not verify_segment(root, stream, node, first=each.first, last=each.last):
                state = UNCHECKED
        except FileNotFoundError:
            # Deleted by compaction or retention.
            continue
        except RecordError as damage:
            state, problem = DAMAGED, str(damage)
        except OSError as failure:
            state, problem = DAMAGED, f"{path} cannot be read: {' '.join(str(failure).split())}"
        yield SegmentFinding(stream, node, each.first, each.last, each.size, path, state, problem)


def missing_rows(root: Root, stream: str, node: str) -> list[str]:
    """The first gap or overlap between segments, as a list of at most one sentence."""
    try:
        list_ranges(root, stream, node)
    except RecordError as problem:
        return [f"stream {stream}, node {node}: {problem}"]
    return []
