"""Connects the writer's thread to the sealer's process, which turns rows into segments.

    commit ─▶ Planner: a range is due ─▶ recorded in the database ─▶ SealerProcess ─▶ segment
    rows deleted ◀─ writer ◀────────────────────────────── sealed ◀──────┘

The writer records a range before it is sealed, so that after a crash the same rows are sealed under
the same name. It deletes the rows when the segment is durable.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from semel.store.commit import CHANGE_BYTES, Commit
from semel.store.compaction import Compaction
from semel.store.database import Database
from semel.store.record import ReplaySegments
from semel.store.retention import Retention
from semel.store.sealing import Planner, SealerProcess
from semel.store.settings import StoreSettings
from semel.store.statistics import StreamSealing

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
        """Includes streams that are no longer configured: their rows must still be sealed."""
        self.streams = {row.id: row for row in database.streams()}
        self.shelf = ReplaySegments(
            path,
            root=root,
            node=node,
            store=database.unique_id(),
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
            store=database.unique_id(),
            on_event=self.handle_sealer_event,
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
        """Start the sealer with the rows that are not sealed yet.

        Both callbacks may be called on any thread: `sealed` with a stream and the seq up to which
        its rows can be deleted, `behind` with True when too many rows are unsealed, and with False
        when that is over.
        """
        self.sealed = sealed
        self.behind = behind
        for row in self.streams.values():
            # A crash may have left rows that are already sealed.
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

    def progress(self, now: float) -> tuple[StreamSealing, ...]:
        """How far each stream is sealed. May be called on any thread."""
        found = self.planner.progress(now)
        names = {stream_id: row.name for stream_id, row in self.streams.items()}
        return tuple(
            StreamSealing(names[stream_id], sealed, unsealed, oldest)
            for stream_id, (sealed, unsealed, oldest) in sorted(found.items())
        )

    def stop(self) -> None:
        """End the sealer. Unsealed rows are sealed after the next start."""
        self.process.stop()

    # --- on the writer's thread -------------------------------------------------------------------

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        """These commits are durable: their records can be sealed."""
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
        self._update_is_behind()

    def due(self, now: float) -> list[tuple[int, int, int]]:
        """Stream, first and last seq of each range to seal now."""
        return self.planner.due(now)

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Seal these ranges. They must be recorded in the database."""
        for stream, first, last in ranges:
            self.process.seal(self.streams[stream].name, stream, first, last)

    def wait(self, now: float) -> float | None:
        """Seconds until a range is due; None: none is due until the next commit."""
        due = self.planner.next_due()
        return None if due is None else max(0.0, due - now)

    def done(self, stream: int, through: int) -> None:
        """The store has recorded that the rows up to this seq are in segments."""
        self.planner.sealed(stream, through)
        self._update_is_behind()

    def _update_is_behind(self) -> None:
        is_behind = self.planner.is_behind()
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            if self.behind is not None:
                self.behind(self.is_behind)

    # --- on the sealer's thread -------------------------------------------------------------------

    def handle_sealer_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Report sealed rows to the writer, and log everything else."""
        if kind == "sealed":
            assert self.sealed is not None
            self.sealed(fields["id"], fields["last"])
        elif kind == "ended":
            LOG.warning("the sealer ended and is restarted: %s", fields.get("why", "unknown"))
        else:
            LOG.warning("the sealer: %s", fields.get("why", fields))
