"""The files of a version of a Delta table, and commits that remove some of them.

Such a commit is made only as the version right after one in which all files that it removes are
live. delta-rs 1.6 would otherwise rebase it over the commit of another program that has merged the
same files, and duplicate all of their rows: its conflict check ignores commits that change no data.
With `max_commit_retries=0` it fails instead. Then the table is read again: if the files are still
live, the commit is retried; if not, the work is discarded. A landing neither waits nor fails: an
append does not conflict with such a commit.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.delta_log import OPERATION_KEY
from semel.pipeline.errors import TableError
from semel.pipeline.files import partition_value
from semel.store.roots import without_secrets

# Attempts to commit when other commits are first, and the delay between them.
ATTEMPTS: Final = 20
WAIT_SECONDS: Final = 0.05
# File names that all writers encode alike in the log, except for '%'.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9=._/%-]+", re.ASCII)


@dataclass(frozen=True)
class LiveFile:
    """A live file of one version of a table."""

    # As in the log.
    path: str
    size: int
    # None if the log does not say.
    rows: int | None
    # In milliseconds.
    modified: int
    partition: tuple[tuple[str, str | None], ...]

    @property
    def disk_path(self) -> str:
        """Its path relative to the table, as it is on disk."""
        return unquote(self.path)

    @property
    def is_removable(self) -> bool:
        """Whether a commit of ours can remove it.

        delta-rs encodes the names of removed files itself. If the writer that added a file encoded
        its name differently, it would stay in the table.
        """
        path = self.disk_path
        return bool(_PLAIN_PATH.fullmatch(path)) and path.replace("%", "%25") == self.path


class Overtaken(Exception):
    """Other programs rewrote the files first: nothing was committed, and nothing is wrong."""


def list_files(table: DeltaTable) -> list[LiveFile]:
    """The files of the loaded version."""
    columns = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    names = actions.column_names
    parts = [actions.column(f"partition.{name}").to_pylist() for name in columns]
    if "num_records" in names:
        counts = actions.column("num_records").to_pylist()
    else:
        counts = [None] * actions.num_rows
    found = []
    for place, (path, size, rows, modified) in enumerate(
        zip(
            actions.column("path").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            counts,
            actions.column("modification_time").to_pylist(),
            strict=True,
        )
    ):
        values = (partition_value(part[place]) for part in parts)
        partition = tuple(zip(columns, values, strict=True))
        found.append(LiveFile(path, size, rows, modified, partition))
    return found


def check_plain_files(address: str, table: DeltaTable, *, operation: str) -> None:
    """Raise TableError for a table whose rows are not exactly those in its files.

    `operation` is what semel does not do then, and what other programs call it.
    """
    protocol = table.protocol()
    features = [*(protocol.reader_features or ())]
    if protocol.min_reader_version > 1 and not set(features) <= {"timestampNtz"}:
        names = ", ".join(features) or f"version {protocol.min_reader_version}"
        raise TableError(
            f"{without_secrets(address)} requires reader feature {names}, and semel does not"
            f" {operation} of the program that writes it"
        )


def replace_files(
    address: str,
    table: DeltaTable,
    added: Sequence[AddAction],
    removed: Sequence[LiveFile],
    *,
    operation: str,
    changes_rows: bool,
    now: Callable[[], float] = time.time,
) -> int:
    """Remove files and add others, in one commit; returns its version, which is durable.

    `changes_rows` is False if the new files have the same rows. Raises Overtaken if a file is no
    longer live, and TableError.
    """
    leaving = {file.path for file in removed}
    new = {file.path for file in added}
    at = round(now() * 1000)
    actions: list[AddAction | RemoveAction] = [
        *added,
        *(
            RemoveAction(file.disk_path, changes_rows, at, file.size, dict(file.partition))
            for file in removed
        ),
    ]
    with table_errors(address):
        for _ in range(ATTEMPTS):
            table.update_incremental()
            live = {file.path for file in list_files(table)}
            if not leaving <= live:
                if new and {unquote(path) for path in live} >= new:
                    # The commit succeeded, although an error was reported.
                    return _fsync(address, table.version())
                raise Overtaken
            version = table.version() + 1
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    list(table.metadata().partition_columns) or None,
                    commit_properties=CommitProperties(
                        # Only as the next version: see the module docstring.
                        max_commit_retries=0,
                        custom_metadata={OPERATION_KEY: operation},
                    ),
                    post_commithook_properties=PostCommitHookProperties(
                        create_checkpoint=False, cleanup_expired_logs=False
                    ),
                )
            except DeltaError as problem:
                table.update_incremental()
                if table.version() < version:
                    # No other commit was first, so a retry would fail too.
                    raise TableError(
                        f"{without_secrets(address)}: {one_line(problem)}"
                    ) from problem
                time.sleep(WAIT_SECONDS)
                continue
            return _fsync(address, version)
    raise Overtaken


def _fsync(address: str, version: int) -> int:
    try:
        fsync_commit(address, version)
    except OSError as problem:
        shown = without_secrets(address)
        raise TableError(f"{shown}: version {version} may not be on disk: {problem}") from problem
    return version
