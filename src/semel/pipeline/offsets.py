"""Offsets of a stream: how far a query has read each node, and how far the next batch goes.

An offset is `{node: seq}`: every row up to seq is done. Nothing is done of a node that it does not
name, so a node that appears later is read from its beginning. A batch is the rows after its start
offset up to its end offset: the same rows, whatever is sealed, merged or added in the meantime.

A `NodeExtent` is what exists of a node, from a listing of its folder. `next_offset` computes the
next offset from an offset and extents. It is deterministic, and fair to all nodes if the batch is
limited. Rows that existed and are gone are a loss: `Losses` raises DataLoss, or warns and lets the
query continue after the loss.

A node whose record does not begin with row 1 (earlier rows were deleted, or had another node name)
first enters an offset with the seq before its first row, and is read by the next batch. From then
on the offset says where it began, even if more rows are deleted.

A query that is told to begin elsewhere keeps that in its offsets: `<node>/began` is the seq before
the first row that it read of a node. Spark does not store the offset at which a query begins.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from semel.pipeline.errors import DataLoss
from semel.pipeline.source_options import EARLIEST, LATEST, Point, Points
from semel.store.reading import row_label, uncovered
from semel.store.roots import Root, RootEntry, Segment, segments_in, trimmed_in
from semel.store.segment_names import Range
from semel.store.segments import LISTINGS

Offset = dict[str, int]
# Behind the name of a node, which has no slash, in the keys of an offset.
BEGAN: Final = "/began"
# The first row of an extent that was received at or after a time, or None.
Since = Callable[["NodeExtent", int], int | None]

_LOG: Final = logging.getLogger("semel.pipeline.source")


@dataclass(frozen=True)
class NodeExtent:
    """The rows of a stream that exist on one node."""

    node: str
    # Rows up to this one were deleted; 0 if none were.
    trimmed: int
    # The segments that a reader reads, ascending.
    segments: tuple[Segment, ...]

    @property
    def last(self) -> int:
        """The last row that exists or existed; 0 if there never was one."""
        return max(self.trimmed, self.segments[-1].last if self.segments else 0)

    @property
    def first(self) -> int:
        """The first row that exists; last + 1 if there is none."""
        return self.segments[0].first if self.segments else self.last + 1

    def after(self, done: int) -> list[Segment]:
        """The segments with rows after `done`, ascending."""
        return [each for each in self.segments if each.last > done]

    def next_after(self, done: int) -> int | None:
        """The first row after `done` that exists, or None."""
        following = self.after(done)
        return max(following[0].first, done + 1) if following else None

    def reach(self, done: int) -> int:
        """The last row before the first gap after `done`; `done` if the next row is missing."""
        at = done
        for segment in self.after(done):
            if segment.first > at + 1:
                break
            at = segment.last
        return at

    @property
    def has_no_gap(self) -> bool:
        """Whether all rows from the first to the last exist."""
        return self.reach(self.first - 1) == self.last

    def lost_after(self, done: int) -> tuple[int, int] | None:
        """First and last of the rows right after `done` that existed and are gone."""
        following = self.next_after(done)
        if following is None:
            return (done + 1, self.trimmed) if self.trimmed > done else None
        return (done + 1, following - 1) if following > done + 1 else None

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, Segment]]:
        """The part of rows first to last in each segment, ascending: first, last, segment."""
        at = first
        for segment in self.after(first - 1):
            begins = max(at, segment.first)
            if begins > last:
                return
            at = min(last, segment.last) + 1
            yield begins, at - 1, segment


def list_extents(root: Root, stream: str, nodes: Iterable[str]) -> dict[str, NodeExtent]:
    """The extents of these nodes of a stream, sorted; one listing per node."""
    return {node: _extent(root, stream, node) for node in sorted(nodes)}


def list_all_extents(root: Root, stream: str) -> dict[str, NodeExtent]:
    """The extents of all nodes of a stream, sorted; on an object store with one listing."""
    found = {}
    for node, entries in sorted(root.entries_by_node(stream).items()):
        extent = _extent_in(node, entries)
        found[node] = extent if extent.has_no_gap else _extent(root, stream, node)
    return found


def _extent(root: Root, stream: str, node: str) -> NodeExtent:
    """List a node. A listing is not atomic: one that shows a gap is repeated."""
    found = NodeExtent(node, 0, ())
    for _ in range(LISTINGS):
        found = _extent_in(node, root.entries(root.folder(stream, node)))
        if found.has_no_gap:
            break
    return found


def _extent_in(node: str, entries: list[RootEntry]) -> NodeExtent:
    trimmed = trimmed_in(entries)
    there = [each for each in segments_in(entries) if each.last > trimmed]
    return NodeExtent(node, trimmed, tuple(uncovered(there)))


class Losses:
    """Reports lost rows: raises DataLoss, or warns once per loss."""

    def __init__(self, stream: str, root: str, *, fail: bool) -> None:
        """`root` is its address, for messages."""
        self.stream = stream
        self.root = root
        self.fail = fail
        self._reported: set[str] = set()

    def report_missing(self, extent: NodeExtent, first: int, last: int) -> None:
        """Report that rows which a query needs were deleted or are missing."""
        rows = f"{row_label(first, last)} of stream {self.stream}, node {extent.node}"
        verb = "was" if first == last else "were"
        if last <= extent.trimmed:
            why = f"{verb} deleted, by retention or by `semel stream trim`"
        else:
            why = f"{'is' if first == last else 'are'} missing from {self.root}"
        self.report_loss(f"{rows}, which this query still needs, {why}")

    def report_ahead(self, extent: NodeExtent, done: int) -> None:
        """Report that an offset is ahead of the record: it is another record, or an older copy."""
        there = f"has only rows up to {extent.last}" if extent.last else "has none of its rows"
        self.report_loss(
            f"this query has processed the rows up to {done} of stream {self.stream}, node "
            f"{extent.node}, but {self.root} {there}: it is another root, or an older copy",
            f"waits for row {done + 1}",
        )

    def report_loss(
        self, sentence: str, otherwise: str = "continues with the next existing row"
    ) -> None:
        """Raise DataLoss, or warn once. `otherwise` says what failOnDataLoss=false does."""
        if self.fail:
            raise DataLoss(f"{sentence}; failOnDataLoss=false {otherwise}")
        if sentence not in self._reported:
            self._reported.add(sentence)
            _LOG.warning("%s; the query continues, because failOnDataLoss is false", sentence)


def positions_of(offset: Mapping[str, int]) -> Offset:
    """How far each node is done, without where it began."""
    return {key: seq for key, seq in offset.items() if not key.endswith(BEGAN)}


def began_after(offset: Mapping[str, int], node: str) -> int:
    """The seq before the first row that a query read of a node."""
    return offset.get(f"{node}{BEGAN}", 0)


def with_beginnings(positions: Mapping[str, int], start: Mapping[str, int] | None = None) -> Offset:
    """An offset with these positions that keeps where the nodes of an earlier one, `start`, began.

    Without `start` it is the first offset of a query: this is where they begin. The keys are
    sorted, because Spark compares offsets as texts.
    """
    if start is None:
        began = {f"{node}{BEGAN}": seq for node, seq in positions.items() if seq}
    else:
        began = {key: seq for key, seq in start.items() if key.endswith(BEGAN)}
    return dict(sorted({**positions, **began}.items()))


# --- where to start and to end --------------------------------------------------------------------


def first_offset(
    points: Points, extents: Mapping[str, NodeExtent], since: Since, losses: Losses
) -> Offset:
    """The first offset of a query with these starting points.

    It leaves out a node that never had rows, unless a row of that node was requested: the node
    enters later, wherever its numbers begin.
    """
    absent = {node: NodeExtent(node, 0, ()) for node in points.by_node if node not in extents}
    # A seq for all nodes: nodes that have not reached it begin with their next row.
    furthest = max((each.last for each in extents.values()), default=0)
    found = {
        node: _before(
            points.of(node),
            extent,
            since,
            losses,
            is_met=node not in points.by_node and (points.others.seq or 0) <= furthest + 1,
        )
        for node, extent in sorted({**extents, **absent}.items())
    }
    asked = {node for node, point in points.by_node.items() if point.seq is not None}
    known = {node for node, extent in extents.items() if extent.last} | asked
    return {node: done for node, done in found.items() if node in known}


def _before(point: Point, extent: NodeExtent, since: Since, losses: Losses, *, is_met: bool) -> int:
    """The seq before the starting point of a node.

    `is_met`: another node has reached the requested seq, so this one need not.
    """
    if point.name == EARLIEST:
        return extent.first - 1
    if point.name == LATEST:
        return extent.last
    if point.time is not None:
        found = since(extent, point.time)
        return extent.last if found is None else found - 1
    assert point.seq is not None
    done = point.seq - 1
    if done > extent.last and is_met:
        return extent.last
    if done > extent.last:
        there = f"the last row is {extent.last}" if extent.last else "it has no rows yet"
        losses.report_loss(
            f"option start is row {point.seq} of stream {losses.stream}, node {extent.node}, but "
            f"{there}: use earliest or latest to start with existing rows",
            "waits for that row",
        )
        return done
    if done < extent.trimmed and done < extent.first - 1:
        losses.report_missing(extent, point.seq, extent.first - 1)
    # Without a record of deletion, earlier rows never existed on this node.
    return max(done, extent.first - 1)


def last_offset(points: Points | None, extents: Mapping[str, NodeExtent], since: Since) -> Offset:
    """The offset at which a batch read ends: inclusive for a seq, exclusive for a time."""
    return {
        node: extent.last if points is None else _through(points.of(node), extent, since)
        for node, extent in sorted(extents.items())
    }


def _through(point: Point, extent: NodeExtent, since: Since) -> int:
    if point.name == EARLIEST:
        return extent.first - 1
    if point.time is not None:
        found = since(extent, point.time)
        # Rows sealed after the listing are for the next read.
        return extent.last if found is None else min(found - 1, extent.last)
    if point.seq is not None:
        return min(point.seq, extent.last)
    return extent.last


# --- the next batch -------------------------------------------------------------------------------


def spans_of(
    start: Mapping[str, int], end: Mapping[str, int], extents: Mapping[str, NodeExtent]
) -> dict[str, Range]:
    """First and last row of a batch on each node that has rows in it."""
    spans = {}
    for node, extent in extents.items():
        if node not in start and not extent.trimmed and end[node] < extent.first:
            continue  # the node enters the offset: these rows never existed on it
        first = start.get(node, 0) + 1
        if first <= end[node]:
            spans[node] = (first, end[node])
    return spans


def next_offset(
    start: Mapping[str, int],
    extents: Mapping[str, NodeExtent],
    limit: int | None,
    losses: Losses,
    target: Mapping[str, int] | None = None,
) -> Offset:
    """The end offset of the next batch; equal to `start` if there is nothing to read.

    `limit` is the maximum number of rows, or None. Nodes of `start` that are not in `extents` stay
    as they are. No node goes beyond `target`, if there is one.
    """
    ends: Offset = dict(start)
    # The rows available on each node: after the first number, up to the second.
    ready: dict[str, tuple[int, int]] = {}
    for node, extent in sorted(extents.items()):
        done = start.get(node, 0)
        if extent.last < done:
            losses.report_ahead(extent, done)
            continue
        if target is not None and node not in target:
            continue
        furthest = extent.last if target is None else min(extent.last, target[node])
        if node not in start and extent.first > 1 and extent.last:
            if extent.trimmed:
                losses.report_missing(extent, 1, extent.first - 1)
            ends[node] = min(extent.first - 1, furthest)
            continue
        lost = extent.lost_after(done)
        if lost is not None:
            losses.report_missing(extent, *lost)
            done = lost[1]
        last = min(extent.reach(done), furthest)
        if last > done:
            ready[node] = (done, last)
        elif lost is not None:
            ends[node] = max(start.get(node, 0), min(done, furthest))
    have = {node: last - done for node, (done, last) in ready.items()}
    if limit is not None:
        have = share(have, limit, turn=sum(start.values()))
    for node, count in have.items():
        if count:
            ends[node] = ready[node][0] + count
    return dict(sorted(ends.items()))


def share(have: Mapping[str, int], limit: int, *, turn: int) -> dict[str, int]:
    """Divide `limit` rows among the nodes, so that a large backlog does not displace a small one.

    A remainder is given out row by row, beginning with the node that `turn` selects: the number of
    rows done so far, so that it is another node's turn in each batch.
    """
    given = dict.fromkeys(have, 0)
    waiting = sorted(node for node in have if have[node])
    left = limit
    while waiting and left:
        each, over = divmod(left, len(waiting))
        satisfied = [node for node in waiting if have[node] <= each]
        if not satisfied:
            begin = turn % len(waiting)
            extra = {waiting[(begin + at) % len(waiting)] for at in range(over)}
            for node in waiting:
                given[node] = each + (node in extra)
            break
        for node in satisfied:
            given[node] = have[node]
            left -= have[node]
        waiting = [node for node in waiting if node not in satisfied]
    return given
