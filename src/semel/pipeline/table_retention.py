"""Retention of a table: files whose rows are all older are removed from it.

The age of a row is the time since it was received. A file is removed when all of its rows are
older than the retention: of a table that is partitioned by `date`, which is the day of `received`,
a whole day at once, when its end is older; of another table, by the latest time of `received` in
the statistics of the file. A file without such statistics stays. In a table with days, a file whose
statistics contradict its day stays until both are older: the log has no checksums, so that a
changed digit of a year would otherwise remove new rows.

The removal is one commit, which loses every conflict (`live_files.py`). The files themselves are
deleted later by a vacuum, so that readers of older versions can finish. Positions are not changed:
what has landed has landed, and does not land again.

What counts as now is decided by the landing (`landing_clock.py`), because a wall clock can jump.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from semel.pipeline.delta_log import RETENTION
from semel.pipeline.live_files import LiveFile, check_plain_files, list_files, replace_files
from semel.pipeline.source_columns import DATE

RECEIVED: Final = "received"
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = timedelta(days=1)
_MICROSECONDS: Final = 1_000_000
# Writers may truncate an upper bound to milliseconds.
_TRUNCATED: Final = 1_000


@dataclass(frozen=True)
class ExpiredFiles:
    """What a removal has removed."""

    version: int
    files: int
    bytes: int
    # As far as the log says.
    rows: int
    # All rows were received before this time.
    before: datetime


@dataclass(frozen=True)
class AgedFile:
    """A file, and the time in microseconds before which all of its rows were received."""

    file: LiveFile
    # None if the log does not say.
    end: int | None


def aged_files(table: DeltaTable) -> list[AgedFile]:
    """The files of the loaded version, with the ages of their rows."""
    files = list_files(table)
    kinds = {field.name: field.type for field in pa.schema(table.schema())}
    ends = _ends_by_statistics(table)
    if DATE in table.metadata().partition_columns and pa.types.is_date(kinds[DATE]):
        days = [(file, _end_of_day(dict(file.partition)[DATE])) for file in files]
        return [
            AgedFile(file, None if day is None else max(day, ends.get(file.path, day)))
            for file, day in days
        ]
    return [AgedFile(file, ends.get(file.path)) for file in files]


def _end_of_day(text: str | None) -> int | None:
    if text is None:
        return None
    return ((date.fromisoformat(text) - _EPOCH) + _DAY) // timedelta(microseconds=1)


def _ends_by_statistics(table: DeltaTable) -> dict[str, int]:
    actions = pa.table(table.get_add_actions(flatten=True))
    highest, nulls = f"max.{RECEIVED}", f"null_count.{RECEIVED}"
    if not {highest, nulls} <= set(actions.column_names):
        return {}
    if not pa.types.is_timestamp(actions.column(highest).type):
        return {}
    times = actions.column(highest).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return {
        path: time + _TRUNCATED
        for path, time, missing in zip(
            actions.column("path").to_pylist(),
            times,
            actions.column(nulls).to_pylist(),
            strict=True,
        )
        # A row without a time is neither old nor young.
        if time is not None and missing == 0
    }


def newest_received(table: DeltaTable) -> float | None:
    """When the newest row was received at the latest, in seconds since 1970; None: unknown."""
    ends = [each.end for each in aged_files(table) if each.end is not None]
    return max(ends) / _MICROSECONDS if ends else None


def expired_files(files: Iterable[AgedFile], retention: float, *, now: float) -> list[AgedFile]:
    """The files whose rows are all older than the retention; both in seconds, `now` since 1970."""
    before = round((now - retention) * _MICROSECONDS)
    return [each for each in files if each.end is not None and each.end <= before]


def remove_expired(
    address: str, table: DeltaTable, retention: float, *, now: float
) -> ExpiredFiles | None:
    """Remove the files whose rows are all older, durably; None if there are none.

    Files whose names other programs encode differently stay. Raises Overtaken if other programs
    have rewritten the files meanwhile, and TableError.
    """
    expired = [
        each
        for each in expired_files(aged_files(table), retention, now=now)
        if each.file.is_removable
    ]
    if not expired:
        return None
    check_plain_files(address, table, operation="remove old rows of such tables: use DELETE")
    files = [each.file for each in expired]
    version = replace_files(address, table, [], files, operation=RETENTION, changes_rows=True)
    return ExpiredFiles(
        version=version,
        files=len(files),
        bytes=sum(file.size for file in files),
        rows=sum(file.rows or 0 for file in files),
        before=_time(max(each.end or 0 for each in expired)),
    )


def _time(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
