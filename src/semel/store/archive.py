"""From rows to segments: what the writer's thread asks, and what the sealer's process answers.

    commit ─▶ Planner: a range is due ─▶ noted in the database ─▶ SealerProcess ─▶ segment
    rows deleted ◀─ writer ◀─────────────────────────── sealed ◀──────┘

The writer notes a range before anybody seals it, so that whoever comes after a crash seals the
same rows under the same name. It deletes them when the segment is safe.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from semel.store.commit import CHANGE_BYTES, Commit
from semel.store.compaction import Compaction
from semel.store.database import Database
from semel.store.record import NodeSegments
from semel.store.retention import Retention
from semel.store.sealing import Planner, SealerProcess
from semel.store.settings import StoreSettings

LOG: Final = logging.getLogger("semel.store")


class Archive:
    """The streams of one store and their segments."""

    def __init__(
        self,
        database: Database,
        path: Path,
        settings: StoreSettings,
        *,
        root: str,
        node: str,
        retention: Mapping[str, Retention],
    ) -> None:
        """Streams that are no longer configured are here too: their rows are sealed yet."""
        self.streams = {row.id: row for row in database.streams()}
        self.shelf = NodeSegments(
            path,
            root=root,
            node=node,
            store=database.identity(),
            names={row.id: row.name for row in self.streams.values()},
        )
        self.planner = Planner(
            rows=settings.seal_rows,
            size=settings.seal_bytes,
            age=settings.seal_after,
            maximum_unsealed_rows=settings.maximum_unsealed_rows,
            maximum_unsealed_bytes=settings.maximum_unsealed_bytes,
        )
        self.process = SealerProcess(
            path,
            root,
            node=node,
            store=database.identity(),
            on_answer=self.answered,
            retention=retention,
            compaction=Compaction(
                small=settings.compact_below,
                largest=settings.compact_to,
                grace=settings.compact_grace,
            ),
        )
        self.is_behind = False
        self.sealed: Callable[[int, int], None] | None = None
        self.behind: Callable[[bool], None] | None = None

    def start(
        self,
        database: Database,
        now: float,
        *,
        sealed: Callable[[int, int], None],
        behind: Callable[[bool], None],
    ) -> None:
        """Begin with what is there. Both are called on any thread: `sealed` with a stream and the
        seq up to which its rows may go, `behind` when too much is not sealed, or no longer."""
        self.sealed = sealed
        self.behind = behind
        for row in self.streams.values():
            # A crash may have left rows that are sealed.
            database.end_sealing(row.id, row.sealed_seq)
            self.planner.restored(
                row.id,
                sealed=row.sealed_seq,
                sealing=row.sealing_seq,
                last_seq=row.last_seq,
                size=database.unsealed_size(row),
                now=now,
            )
        self.process.start()

    def stop(self) -> None:
        """End the sealer; what is not sealed will be."""
        self.process.stop()

    # --- on the writer's thread -------------------------------------------------------------------

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        """These are safe: their records may be sealed."""
        rows: dict[int, int] = {}
        sizes: dict[int, int] = {}
        last: dict[int, int] = {}
        for commit in commits:
            for record in commit.records:
                stream = record.stream
                rows[stream] = rows.get(stream, 0) + 1
                size = CHANGE_BYTES + len(record.topic_name) + len(record.payload)
                sizes[stream] = sizes.get(stream, 0) + size
                last[stream] = record.seq
        for stream, count in rows.items():
            self.planner.committed(stream, last[stream], count, sizes[stream], now)
        self._judge()

    def due(self, now: float) -> list[tuple[int, int, int]]:
        """Streams with the ranges that are to be sealed now."""
        return self.planner.due(now)

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """These ranges are noted in the database: seal them."""
        for stream, first, last in ranges:
            self.process.seal(self.streams[stream].name, stream, first, last)

    def wait(self, now: float) -> float | None:
        """In how many seconds something will be due; None: nothing until there is a commit."""
        due = self.planner.next_due()
        return None if due is None else max(0.0, due - now)

    def done(self, stream: int, through: int) -> None:
        """The rows up to this seq are in segments, and the store knows it."""
        self.planner.sealed(stream, through)
        self._judge()

    def _judge(self) -> None:
        is_behind = self.planner.is_behind()
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            if self.behind is not None:
                self.behind(self.is_behind)

    # --- on the sealer's thread -------------------------------------------------------------------

    def answered(self, kind: str, about: dict[str, Any]) -> None:
        """The sealer says something."""
        if kind == "sealed":
            assert self.sealed is not None
            self.sealed(about["id"], about["last"])
        elif kind == "ended":
            LOG.warning("the sealer ended and is started anew: %s", about.get("why", "unknown"))
        else:
            LOG.warning("the sealer: %s", about.get("why", about))
