"""Seals, merges and deletes the segments of one node, for its sealer.

`NodeSegments` is synchronous and takes the time as an argument. It is the only writer of its node's
folders, so it caches their listings; after an error the caller must drop the cache with `forget`.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from semel.store.compaction import (
    Compaction,
    NotMergeable,
    delete_covered,
    merge,
    pick_segments,
    plan_merge,
    verify_covering,
)
from semel.store.landing_notes import read_landing_notes
from semel.store.retention import Retention, delete_through, last_expired_seq
from semel.store.roots import Root, Segment
from semel.store.segment_names import Range, segment_name
from semel.store.segment_writer import seal_rows
from semel.store.segments import RecordError, segment_times, verify_segment

# Seconds between two notices that retention is waiting for the same landing.
REMINDER_INTERVAL: Final = 86_400.0
# Merged segments cover at most one of this many equal parts of the retention limit, so that
# deleting whole segments stays close to the limit.
RETENTION_PARTS: Final = 10


@dataclass(frozen=True)
class SealRequest:
    """A range of rows of a stream to seal."""

    stream: str
    id: int
    first: int
    last: int


@dataclass
class _FolderState:
    """The cached state of the folder of a stream."""

    segments: list[Segment]
    # The ranges of segments that have been verified.
    verified: set[Range] = field(default_factory=set)
    # When the oldest and the newest row of each segment were received, in microseconds.
    times: dict[Range, tuple[int, int]] = field(default_factory=dict)


class NodeSegments:
    """Seals, merges and deletes the segments of one node."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        root: Root,
        *,
        node: str,
        store: str,
        retention: dict[str, Retention] | None = None,
        compaction: Compaction | None = None,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`notify` is called with sentences for the operator."""
        self._notify = notify
        self._connection = connection
        self._root = root
        self._node = node
        self._store = store
        self._retention = retention or {}
        self._compaction = compaction or Compaction()
        self._folders: dict[str, _FolderState] = {}
        # Streams whose temporary files have been deleted.
        self._cleaned: set[str] = set()
        # By stream: segments that cannot be merged, because they are damaged or have columns of a
        # later version.
        self._unmergeable: dict[str, set[Range]] = {}
        # Sentences about damage that have been reported, because each is reported once only.
        self._reported_damage: set[str] = set()
        # By the path of a landing note: when the last notice was sent that retention waits for it.
        self._reminded_at: dict[str, float] = {}

    def streams(self) -> list[str]:
        """The streams for which this node has a folder that this store owns."""
        return [
            stream
            for stream in self._root.streams()
            if self._node in self._root.nodes(stream)
            and self._root.owner(stream, self._node) == self._store
        ]

    def _folder(self, stream: str) -> _FolderState:
        folder = self._folders.get(stream)
        if folder is None:
            self._root.claim(stream, self._node, self._store)
            if stream not in self._cleaned:
                # Once is enough: this process deletes its own when a write fails.
                self._root.delete_temporary(self._root.folder(stream, self._node))
                self._cleaned.add(stream)
            folder = _FolderState(self._root.segments(stream, self._node))
            self._folders[stream] = folder
        return folder

    def forget(self, stream: str) -> None:
        """Drop the cached listing of a stream's folder after an error."""
        self._folders.pop(stream, None)

    def seal(self, request: SealRequest, *, now: float, rewrite: bool = False) -> int:
        """Write the segment of these rows unless it exists. Returns its size in bytes.

        With `rewrite` it is written even if it exists. Pass it after a failed attempt of this
        process: once an fsync of a file or folder has failed, a later success proves nothing.
        """
        folder = self._folder(request.stream)
        if not rewrite:
            for segment in reversed(folder.segments):
                if segment.first <= request.first and request.last <= segment.last:
                    if self._is_intact(request.stream, segment):
                        return segment.size
        for segment in folder.segments:
            if segment.first < request.first <= segment.last < request.last or (
                request.first < segment.first <= request.last < segment.last
            ):
                raise RecordError(
                    f"{segment_name(request.first, request.last)} would overlap {segment.name} of "
                    f"stream {request.stream}, and neither would cover the other"
                )
        size = seal_rows(
            self._connection,
            self._root,
            request.stream,
            self._node,
            stream_id=request.id,
            first=request.first,
            last=request.last,
        )
        # Read the segment back, because the store deletes the rows next.
        verify_segment(
            self._root, request.stream, self._node, first=request.first, last=request.last
        )
        made = Segment(request.first, request.last, size, now)
        folder.segments = [each for each in folder.segments if each.range != made.range]
        folder.segments.append(made)
        return size

    def _is_intact(self, stream: str, segment: Segment) -> bool:
        """Verify a segment and make it durable. Returns False if it is damaged or deleted."""
        try:
            verify_segment(self._root, stream, self._node, first=segment.first, last=segment.last)
            self._root.fsync(self._root.file_path(stream, self._node, segment.name))
        except (RecordError, FileNotFoundError):
            return False
        return True

    def compact(self, stream: str, *, pause: Callable[[], None] = lambda: None) -> bool:
        """Merge some segments of a stream, if there are enough. Returns whether to call it again.

        Raises NotMergeable once per segment: later calls leave that segment out.
        """
        folder = self._folder(stream)
        retention = self._retention.get(stream, Retention())
        settings = self._compaction
        if retention.retain_bytes is not None:
            # Otherwise a single merged segment could exceed the limit.
            largest = min(settings.largest, max(1, retention.retain_bytes // RETENTION_PARTS))
            settings = Compaction(
                settings.files, settings.small, largest, settings.rows, settings.grace
            )
        slot: Callable[[Segment], int] | None = None
        if retention.retain_for is not None:
            width = max(1, int(retention.retain_for * 1_000_000) // RETENTION_PARTS)

            def slot_of(segment: Segment) -> int:
                return self._times(stream, segment)[1] // width

            slot = slot_of
        unmergeable = self._unmergeable.setdefault(stream, set())
        parts = plan_merge(folder.segments, settings, slot, excluded=unmergeable)
        if not parts:
            return False
        try:
            merge(self._root, stream, self._node, parts, pause=pause)
        except NotMergeable as problem:
            unmergeable.add(problem.range)
            raise
        folder.segments = self._root.segments(stream, self._node)
        return True

    def clean_up(
        self,
        stream: str,
        *,
        now: float,
        retention_now: float | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete segments that have been covered for the grace time or are beyond retention.

        `retention_now` is the time for retention, if it differs from `now`. `pause` is called
        while segments are read, and may do other work. Raises RecordError once for each damage.
        """
        folder = self._folder(stream)
        damaged = verify_covering(
            self._root,
            stream,
            self._node,
            self._root.segments(stream, self._node),
            now=now,
            grace=self._compaction.grace,
            verified=folder.verified,
            pause=pause,
        )
        # `pause` may have dropped the cached state.
        folder = self._folder(stream)
        # A command may have trimmed the stream while segments were merged.
        self._root.delete_trimmed(stream, self._node)
        # A command may have deleted files, and file times come from the clock of the root.
        folder.segments = self._root.segments(stream, self._node)
        problem: RecordError | None = None
        try:
            folder.segments = delete_covered(
                self._root,
                stream,
                self._node,
                folder.segments,
                now=now,
                grace=self._compaction.grace,
                verified=folder.verified,
                damaged=damaged,
            )
        except RecordError as found:
            # Apply retention first, then raise.
            problem = found
            folder.segments = self._root.segments(stream, self._node)
        retention_time = now if retention_now is None else min(now, retention_now)
        self._apply_retention(stream, folder, now=now, retention_time=retention_time)
        existing = {each.range for each in folder.segments}
        folder.verified &= existing
        self._unmergeable.get(stream, set()).intersection_update(existing)
        folder.times = {each: times for each, times in folder.times.items() if each in existing}
        if problem is not None and str(problem) not in self._reported_damage:
            self._reported_damage.add(str(problem))
            raise problem

    def _apply_retention(
        self, stream: str, folder: _FolderState, *, now: float, retention_time: float
    ) -> None:
        retention = self._retention.get(stream)
        if retention is None:
            return
        through = last_expired_seq(
            folder.segments,
            retention,
            lambda each: self._times(stream, each),
            now=retention_time,
        )
        if through:
            through = self._limit_to_landed(stream, folder, through, now)
        if through:
            folder.segments = delete_through(
                self._root, stream, self._node, folder.segments, through
            )

    def _limit_to_landed(self, stream: str, folder: _FolderState, through: int, now: float) -> int:
        """The last seq to delete, at most `through`, so that no landing loses rows it needs."""
        for note in read_landing_notes(self._root, stream):
            landed = note.landed.get(self._node, 0)
            if landed >= through:
                continue
            if now - self._reminded_at.get(note.path, float("-inf")) >= REMINDER_INTERVAL:
                self._reminded_at[note.path] = now
                self._notify(
                    f"retention of stream {stream}, node {self._node}, keeps rows {landed + 1} to "
                    f"{through}, which have not landed in {note.table} (as of {note.at}): resume "
                    f"the landing, or delete {note.path} if it was abandoned"
                )
            whole = [each.last for each in pick_segments(folder.segments) if each.last <= landed]
            through = max(whole, default=0)
        return through

    def newest_received(self) -> float | None:
        """When the newest row in segments was received, in seconds; None: there are no rows."""
        found = []
        for stream in self.streams():
            segments = self._root.segments(stream, self._node)
            if segments:
                found.append(self._times(stream, segments[-1])[1] / 1_000_000)
        return max(found, default=None)

    def _times(self, stream: str, segment: Segment) -> tuple[int, int]:
        times = self._folder(stream).times
        found = times.get(segment.range)
        if found is None:
            try:
                found = segment_times(
                    self._root, stream, self._node, first=segment.first, last=segment.last
                )
            except RecordError:
                # The footer is damaged. The file was written after its rows were received.
                written = int(segment.modified * 1_000_000)
                found = written, written
            times[segment.range] = found
        return found
