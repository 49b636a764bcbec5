"""Checks, before a landing starts, that table, checkpoint and record belong together.

A commit compares each batch with the table, but there is no commit until there are rows to land.
Until then a table that was deleted or restored from a backup seems to be up to date, because the
checkpoint says that everything has landed. So both are compared at the start.
"""

import logging
from pathlib import Path
from typing import Final

from semel.pipeline.app_transactions import position_id, positions_in, stream_id
from semel.pipeline.checkpoint import committed_offset
from semel.pipeline.errors import DataLoss
from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.pipeline.table import Table
from semel.store.reading import row_label

LOGGER: Final = logging.getLogger("semel.pipeline")


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
        table.check_not_restored(loaded, position_id(stream, ""))
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
