"""Durable commits: delta-rs does not call fsync, so this module does.

In a local folder a commit is durable when the files that it adds, its log entry and the
folders of both are on disk, in this order. On an object store a completed PUT is durable.
"""

import os
from contextlib import suppress
from pathlib import Path

from semel.extras import need
from semel.pipeline.delta_log import log_entry, parse_entry
from semel.pipeline.lake_address import local_folder


def entry_fingerprint(address: str, version: int) -> tuple[int, ...] | None:
    """A value that changes if the file of a log entry is replaced; None: there is no entry."""
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
    """Make a commit durable. Does nothing on an object store, where a completed PUT is durable.

    With `files`, the files that the commit added are synced first; this is needed for those that
    delta-rs wrote. A checkpoint of the version is synced too, because a torn one would make the
    table unreadable. Raises OSError. A failed fsync is not retried: the kernel may have dropped
    the dirty pages.
    """
    folder = local_folder(address)
    if folder is None:
        return
    log = folder / "_delta_log"
    entry = log / log_entry(version)
    if files:
        added = [folder / path for path in _added(entry, version)]
        for path in (*added, *{path.parent for path in added}):
            # It may have been removed by a later commit and vacuumed.
            with suppress(FileNotFoundError):
                fsync_path(path)
    fsync_path(entry)
    for checkpoint in log.glob(f"{version:020}.checkpoint*"):
        with suppress(FileNotFoundError):
            fsync_path(checkpoint)
    with suppress(FileNotFoundError):
        fsync_path(log / "_last_checkpoint")
    # The table and the lake may be new.
    for each in (log, folder, folder.parent):
        fsync_path(each)


def _added(entry: Path, version: int) -> list[str]:
    try:
        return parse_entry(entry.read_text("utf-8"), version).added_paths
    except ValueError as problem:
        raise OSError(f"{entry} is damaged: {problem}") from problem


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to disk. Raises OSError; the caller must not retry."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
