"""Durable commits: delta-rs does not call fsync, so this module does.

In a local directory a commit is durable when the files that it adds, its log entry and the
directories of both are on disk, in this order. On an object store a completed PUT is durable.
"""

import os
from contextlib import suppress
from pathlib import Path

from semel.extras import need
from semel.pipeline.delta_log import log_entry, parse_entry
from semel.pipeline.lake_address import local_folder


def entry_fingerprint(address: str, version: int) -> tuple[int, ...] | None:
    """What tells the entry of a commit from another one of that name; None: there is none."""
    folder = local_folder(address)
    if folder is not None:
        try:
            found = (folder / "_delta_log" / log_entry(version)).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
    fs = need("pyarrow.fs", extra="sql", by="a lake on an object store")
    try:
        remote, path = fs.FileSystem.from_uri(address)
        info = remote.get_file_info(f"{path.rstrip('/')}/_delta_log/{log_entry(version)}")
    except (OSError, ValueError):
        return None
    return None if info.mtime_ns is None else (info.size, info.mtime_ns)


def fsync_commit(address: str, version: int, *, files: bool = False) -> None:
    """A commit of a table in a folder is to last; on an object store what was put lasts already.

    With `files` those that the commit has added are synced first: who wrote them with delta-rs
    needs that, who synced them does not. A checkpoint that was made after the commit is synced
    too: a torn one would hide the log. Raises OSError; an fsync that fails is never retried.
    """
    folder = local_folder(address)
    if folder is None:
        return
    log = folder / "_delta_log"
    entry = log / log_entry(version)
    if files:
        added = [folder / path for path in _added(entry, version)]
        for path in (*added, *{path.parent for path in added}):
            # Another commit may have removed it since, and a vacuum deleted it.
            with suppress(FileNotFoundError):
                fsync_path(path)
    fsync_path(entry)
    for checkpoint in log.glob(f"{version:020}.checkpoint*"):
        with suppress(FileNotFoundError):
            fsync_path(checkpoint)
    with suppress(FileNotFoundError):
        fsync_path(log / "_last_checkpoint")
    # The table may be new, and so may be the lake.
    for each in (log, folder, folder.parent):
        fsync_path(each)


def _added(entry: Path, version: int) -> list[str]:
    try:
        return parse_entry(entry.read_text("utf-8"), version).added_paths
    except ValueError as problem:
        raise OSError(f"{entry} is damaged: {problem}") from problem


def fsync_path(path: Path) -> None:
    """Let a file or a folder last. An error of this is never tried again: it comes out."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
