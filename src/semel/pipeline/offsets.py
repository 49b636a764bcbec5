"""Offsets of a stream: how far a query has come on each node, and how far it may go next.

An offset is `{node: seq}`: every row up to seq is done. A node that it does not name has nothing
done, and so one that appears later is read from its beginning. A batch is the rows after its start
and up to its end, and whatever is sealed, merged or added meanwhile, these are the same rows.

What there is of a node is an `NodeExtent`, from a listing of its folder. From an offset and extents
`next_offset` makes the next offset: fairly, if not all rows may be taken, and without a clock or
chance. Rows that are not there although they were, are a loss: it is told to the `Losses` that the
caller gives, which raises DataLoss, or warns and lets reading go on behind the loss.

A node whose record does not begin with row 1 (its rows before were deleted, or it had another name
then) enters an offset first with what comes before its first row, and is read by the next batch:
from then on the offset says where it began, also if more is deleted.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from semel.pipeline.errors import DataLoss
from semel.pipeline.source_options import EARLIEST, LATEST, Point, Points
from semel.store.reading import row_label, uncovered
from semel.store.roots import Root, RootEntry, Segment, segments_in, trimmed_in
from semel.store.segments import LISTINGS, Range

Offset = dict[str, int]
# The first row of what there is of a node that was received at a time or later, or None.
Since = Callable[["NodeExtent", int], int | None]

_LOG: Final = logging.getLogger("semel.pipeline.source")


@dataclass(frozen=True)
class NodeExtent:
    """What there is of a stream on one node."""

    node: str
    # Rows up to this one were deleted; 0: none.
    trimmed: int
    # Those that a reader reads, ascending.
    segments: tuple[Segment, ...]

    @property
    def last(self) -> int:
        """The last row that there is or was; 0: none."""
        return max(self.trimmed, self.segments[-1].last if self.segments else 0)

    @property
    def first(self) -> int:
        """The first row that there is; one more than the last if there is none."""
        return self.segments[0].first if self.segments else self.last + 1

    def after(self, done: int) -> list[Segment]:
        """The segments with rows after `done`, ascending."""
        return [each for each in self.segments if each.last > done]

    def next_after(self, done: int) -> int | None:
        """The first row after `done` that there is; None: there is none."""
        following = self.after(done)
        return max(following[0].first, done + 1) if following else None

    def reach(self, done: int) -> int:
        """Up to which row all rows after `done` are there; `done`: not even the next one."""
        at = done
        for segment in self.after(done):
            if segment.first > at + 1:
                break
            at = segment.last
        return at

    @property
    def has_no_gap(self) -> bool:
        """Whether all rows from the first to the last are there."""
        return self.reach(self.first - 1) == self.last

    def lost_after(self, done: int) -> tuple[int, int] | None:
        """First and last of the rows right after `done` that were there and are not."""
        following = self.next_after(done)
        if following is None:
            return (done + 1, self.trimmed) if self.trimmed > done else None
        return (done + 1, following - 1) if following > done + 1 else None

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, Segment]]:
        """What each segment has of the rows first to last, ascending: first, last, segment."""
        at = first
        for segment in self.after(first - 1):
            begins = max(at, segment.first)
            if begins > last:
                return
            at = min(last, segment.last) + 1
            yield begins, at - 1, segment


def list_extents(root: Root, stream: str, nodes: Iterable[str]) -> dict[str, NodeExtent]:
    """What there is of a stream on these nodes, sorted; one listing for each."""
    return {node: _extent(root, stream, node) for node in sorted(nodes)}


def list_all_extents(root: Root, stream: str) -> dict[str, NodeExtent]:
    """What there is of a stream on all of its nodes, sorted; on an object store in one listing."""
    found = {}
    for node, entries in sorted(root.entries_by_node(stream).items()):
        extent = _extent_in(node, entries)
        found[node] = extent if extent.has_no_gap else _extent(root, stream, node)
    return found


def _extent(root: Root, stream: str, node: str) -> NodeExtent:
    """One listing. It is not one moment: one with a gap is not believed at once."""
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
    """What happens when rows are gone: DataLoss, or a warning, once for each loss."""

    def __init__(self, stream: str, place: str, *, fail: bool) -> None:
        self.stream = stream
        self.place = place
        self.fail = fail
        self._reported: set[str] = set()

    def report_missing(self, extent: NodeExtent, first: int, last: int) -> None:
        """Rows that a query needs were deleted, or are missing."""
        rows = f"{row_label(first, last)} of stream {self.stream}, node {extent.node}"
        verb = "was" if first == last else "were"
        if last <= extent.trimmed:
            why = f"{verb} deleted, by retention or by `semel stream trim`"
        else:
            why = f"{'is' if first == last else 'are'} missing from {self.place}"
        self.report_loss(f"{rows}, which this query still needs, {why}")

    def report_ahead(self, extent: NodeExtent, done: int) -> None:
        """An offset is ahead of the record: it is another record, or an older copy of it."""
        there = f"has its rows up to {extent.last} only" if extent.last else "has nothing of it"
        self.report_loss(
            f"this query has done the rows up to {done} of stream {self.stream}, node "
            f"{extent.node}, but {self.place} {there}: it is another root, or an older copy",
            f"waits for row {done + 1}",
        )

    def report_loss(
        self, sentence: str, otherwise: str = "reads on with the first row there is"
    ) -> None:
        """Raise DataLoss with what to do, or warn."""
        if self.fail:
            raise DataLoss(f"{sentence}; failOnDataLoss=false {otherwise}")
        if sentence not in self._reported:
            self._reported.add(sentence)
            _LOG.warning("%s; reading goes on, because failOnDataLoss is false", sentence)


# --- where to begin and to end --------------------------------------------------------------------


def first_offset(
    points: Points, extents: Mapping[str, NodeExtent], since: Since, losses: Losses
) -> Offset:
    """The offset of a query that begins at these places.

    A node that has had no rows is not in it, unless a row of its own was asked for: it enters when
    it has some, wherever its numbers begin.
    """
    absent = {node: NodeExtent(node, 0, ()) for node in points.by_node if node not in extents}
    # A number that is for all nodes: those that have not come so far yet begin with what comes.
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
    """What is done if a query begins at a place of a node.

    `is_met`: a number that this node has not reached was meant for another one.
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
        there = f"there are rows up to {extent.last} only" if extent.last else "there are none yet"
        losses.report_loss(
            f"option start is row {point.seq} of stream {losses.stream}, node {extent.node}, but "
            f"{there}: earliest and latest begin with what there is",
            "waits for that row",
        )
        return done
    if done < extent.trimmed and done < extent.first - 1:
        losses.report_missing(extent, point.seq, extent.first - 1)
    # Without a note that they were deleted: rows before the first never were on this node.
    return max(done, extent.first - 1)


def last_offset(points: Points | None, extents: Mapping[str, NodeExtent], since: Since) -> Offset:
    """The offset at which a batch read ends; a row is included, a time is not."""
    return {
        node: extent.last if points is None else _through(points.of(node), extent, since)
        for node, extent in sorted(extents.items())
    }


def _through(point: Point, extent: NodeExtent, since: Since) -> int:
    if point.name == EARLIEST:
        return extent.first - 1
    if point.time is not None:
        found = since(extent, point.time)
        # What was sealed since the look at it is for the next read.
        return extent.last if found is None else min(found - 1, extent.last)
    if point.seq is not None:
        return min(point.seq, extent.last)
    return extent.last


# --- the next batch -------------------------------------------------------------------------------


def spans_of(
    start: Mapping[str, int], end: Mapping[str, int], extents: Mapping[str, NodeExtent]
) -> dict[str, Range]:
    """First and last row of a batch on each node that has any in it."""
    spans = {}
    for node, extent in extents.items():
        if node not in start and not extent.trimmed and end[node] < extent.first:
            continue  # it enters the offset: these rows never were on this node
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
    """The offset to which the next batch goes; equal to `start` if there is nothing to read.

    `limit` is the rows that it may have; None: all. Nodes of `start` that are not in `extents` are
    left as they are. With a target, nothing goes beyond it.
    """
    ends: Offset = dict(start)
    # What each node could give: the rows after the first number, up to the second.
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
    """Up to `limit` rows, shared so that no node gets fewer because another has more.

    What is left over when all want more goes to one after another, from the node that `turn` says:
    the number of rows done so far, so that it is another one's turn with each batch.
    """
    given = dict.fromkeys(have, 0)
    hungry = sorted(node for node in have if have[node])
    left = limit
    while hungry and left:
        each, over = divmod(left, len(hungry))
        content = [node for node in hungry if have[node] <= each]
        if not content:
            begin = turn % len(hungry)
            lucky = {hungry[(begin + at) % len(hungry)] for at in range(over)}
            for node in hungry:
                given[node] = each + (node in lucky)
            break
        for node in content:
            given[node] = have[node]
            left -= have[node]
        hungry = [node for node in hungry if node not in content]
    return given
