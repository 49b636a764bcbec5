"""Checks, before a landing starts, that table, checkpoint and record belong together.

A commit compares each batch with the table, but there is no commit until there are rows to land.
Until then a table that was deleted or restored from a backup seems to be up to date, because the
checkpoint says that everything has landed. So both are compared at the start.

Spark writes the end offset of a batch to `offsets/<batch>` before the batch begins, and writes
`commits/<batch>` when it is done. A batch that is not done is repeated.
"""

import json
import logging
from pathlib import Path
from typing import Final

from semel.pipeline.app_transactions import positions_in, stream_id
from semel.pipeline.errors import DataLoss
from semel.pipeline.offsets import Offset
from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.pipeline.table import Table
from semel.store.reading import row_label

LOGGER: Final = logging.getLogger("semel.pipeline")


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
    return _offset(checkpoint / "offsets" / str(last))


def _batches(folder: Path) -> list[int]:
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _offset(file: Path) -> Offset | None:
    """The offset in the last line of a file in `offsets`; a landing has one source."""
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
    """Check that the table has all rows that its log and the checkpoint claim.

    Raises TableError if the table was restored or its log is damaged, DataLoss if it was deleted or
    is older than the checkpoint. With `may_skip`, rows may be missing that the record lacks too.
    """
    loaded = table.load()
    if loaded is not None:
        if loaded.metadata().name != stream_id(stream):
            return  # it is not a table of this stream: the commit reports that
        table.check_log()
        table.check_not_restored(loaded, stream)
    done = committed_offset(checkpoint) or {}
    landed = {} if loaded is None else positions_in(loaded, stream, done)
    for node, through in sorted(done.items()):
        at = landed.get(node)
        if through <= (at or 0):
            continue
        existing = record.ranges_within(node, (at or 0) + 1, through)
        if not existing and (may_skip or (at is None and loaded is not None)):
            # The rows may be skipped; or they never existed: a new node enters the checkpoint with
            # the seq before its first row. A table that lost all rows of a node looks the same.
            LOGGER.warning(
                "%s lacks %s of stream %s, node %s, which have landed according to the checkpoint,"
                " and the record lacks them as well: landing continues after them",
                table.shown,
                row_label((at or 0) + 1, through),
                stream,
                node,
            )
            continue
        first = existing[0][0] if existing and at is None else (at or 0) + 1
        # If the record lacks them, only a backup of the table has them.
        advice = (
            f"the record has {runs_label(existing)} of them: remove the checkpoint, and landing"
            " continues from what the table has"
            if existing
            else "the record lacks them as well: restore the table from a backup, or skip them"
            " (--no-fail-on-data-loss)"
        )
        raise DataLoss(
            f"{table.shown} lacks {row_label(first, through)} of stream {stream}, node {node},"
            f" which have landed according to the checkpoint {checkpoint}: the table was deleted or"
            f" is an older copy, or the checkpoint belongs to another table; {advice}"
        )
