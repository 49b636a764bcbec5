"""The rows of a stream that a root has, for commits: listed per node, and only when needed.

Usually a commit needs no listing: the last seq of a node in the table is right before the first row
of the batch. Only the owner of each node in the batch is read for every commit, from a small file.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from semel.pipeline.errors import PipelineError
from semel.pipeline.files import Run
from semel.store.reading import row_label, uncovered
from semel.store.roots import LocalRoot, Root, RootError, open_root

# Concurrent requests to an object store.
REQUESTS: Final = 16
# The maximum number of runs that a message lists.
SHOWN_RUNS: Final = 3


def runs_label(runs: Sequence[Run]) -> str:
    """Row ranges for a message."""
    shown = ", ".join(row_label(*each) for each in runs[:SHOWN_RUNS])
    return f"{shown} and more" if len(runs) > SHOWN_RUNS else shown


class StreamRecord:
    """The record of a stream under a root."""

    def __init__(self, root: str, stream: str) -> None:
        """`root` is an address. Reads nothing yet."""
        self._address = root
        self._stream = stream
        self._root: Root | None = None
        self._known: dict[str, list[Run]] = {}

    def ranges(self, node: str) -> list[Run]:
        """The rows of a node, ascending: first and last of each segment."""
        if node not in self._known:
            try:
                segments = uncovered(self._open().segments(self._stream, node))
            except (RootError, OSError) as problem:
                raise self._error(problem) from None
            self._known[node] = [each.range for each in segments]
        return self._known[node]

    def ranges_within(self, node: str, first: int, last: int) -> list[Run]:
        """The existing rows between first and last, ascending."""
        found: list[Run] = []
        for begins, ends in self.ranges(node):
            if ends >= first and begins <= last:
                low, high = max(begins, first), min(ends, last)
                if found and found[-1][1] >= low - 1:
                    low = found.pop()[0]
                found.append((low, high))
        return found

    def owners(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """The IDs of the stores that numbered the rows of each node, the last one first."""
        names = list(nodes)
        try:
            root = self._open()
            if isinstance(root, LocalRoot):
                return {node: root.owners(self._stream, node) for node in names}
            with ThreadPoolExecutor(REQUESTS) as pool:
                found = pool.map(lambda node: root.owners(self._stream, node), names)
                return dict(zip(names, found, strict=True))
        except (RootError, OSError) as problem:
            raise self._error(problem) from None

    def _open(self) -> Root:
        if self._root is None:
            self._root = open_root(self._address)
        return self._root

    def _error(self, problem: Exception) -> PipelineError:
        reason = " ".join(str(problem).split())
        return PipelineError(f"the root of stream {self._stream}: {reason}")
