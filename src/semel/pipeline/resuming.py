"""Before a landing starts: do table, checkpoint and record belong together?

A commit compares each batch with what the table has, but it comes only when there are rows to land.
Until then a table that was deleted, or brought back from a backup, looks like one that is up to
date, because the checkpoint says that everything was landed. So both are compared at the start.

Before a batch begins Spark notes in `offsets/<batch>` up to where it goes, and when it is done that
in `commits/<batch>`. One that is not done is done again, from the end of the one before it.
"""

import json
import logging
from pathlib import Path
from typing import Final

from semel.pipeline.errors import DataLoss
from semel.pipeline.offsets import Offset
from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.pipeline.table import Table, positions_in, stream_id
from semel.store.reading import row_label

LOGGER: Final = logging.getLogger("semel.pipeline")


def committed_offset(checkpoint: Path) -> Offset | None:
    """Up to where the query of a checkpoint takes rows for landed.

    None: it has landed nothing, or what it says cannot be read, of which Spark tells.
    """
    planned = _batches(checkpoint / "offsets")
    if not planned:
        return None
    last = planned[-1]
    if last not in _batches(checkpoint / "commits"):
        last -= 1
    return _offset(checkpoint / "offsets" / str(last))


def _batches(folder: Path) -> list[int]:
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _offset(file: Path) -> Offset | None:
    """The last line of a note of Spark's: the offset of the one source that a landing has."""
    try:
        found = json.loads(file.read_text("utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    if not isinstance(found, dict) or not all(isinstance(each, int) for each in found.values()):
        return None
    return found


def check_resumable(
    table: Table, record: StreamRecord, stream: str, checkpoint: Path, *, may_skip: bool
) -> None:
    """Refuse a table that lacks rows which it, or the checkpoint, takes for landed.

    Raises TableError for one that was restored or whose log is damaged, DataLoss for one that was
    deleted or is older than the checkpoint. With `may_skip` rows may be missing that the record
    does not have either.
    """
    loaded = table.load()
    if loaded is not None:
        if loaded.metadata().name != stream_id(stream):
            return  # it is no table of this stream: the commit says what is wrong with it
        table.check_log()
        table.check_not_restored(loaded, stream)
    done = committed_offset(checkpoint) or {}
    landed = {} if loaded is None else positions_in(loaded, stream, done)
    for node, through in sorted(done.items()):
        at = landed.get(node)
        if through <= (at or 0):
            continue
        held = record.ranges_within(node, (at or 0) + 1, through)
        if not held and (may_skip or (at is None and loaded is not None)):
            # Nobody has them; or it had none when it was first seen, with the numbers before its
            # first row taken for done. A table that lost all rows of a node looks the same.
            LOGGER.warning(
                "%s lacks %s of stream %s, node %s, which the checkpoint takes for landed, and the"
                " record lacks them as well: landing goes on after them",
                table.shown,
                row_label((at or 0) + 1, through),
                stream,
                node,
            )
            continue
        first = held[0][0] if held and at is None else (at or 0) + 1
        # Without them in the record nothing can bring them back but a backup of the table.
        advice = (
            f"the record has {runs_label(held)} of them: remove the checkpoint, and landing goes on"
            " from what the table has"
            if held
            else "the record lacks them as well: bring the table back from a backup, or leave them"
            " out (--no-fail-on-data-loss)"
        )
        raise DataLoss(
            f"{table.shown} lacks {row_label(first, through)} of stream {stream}, node {node},"
            f" which the checkpoint {checkpoint} takes for landed: the table was deleted or is an"
            f" older copy, or the checkpoint is that of another table; {advice}"
        )
