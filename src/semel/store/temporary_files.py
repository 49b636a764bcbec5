"""Temporary files: what a write fills before it renames it, and how unfinished ones are found.

A process that is killed leaves its temporary file behind. Another process may be writing to the
same folder: `semel stream trim` records what it deletes while the sealer starts. So a writer locks
its file with flock, which ends with the process, and only files that are not locked are deleted.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp-"
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def create_temporary(target: Path) -> tuple[Path, int]:
    """Create a file beside the target. Returns its path and an open descriptor, which locks it.

    The caller renames or deletes the file before it closes the descriptor.
    """
    while True:
        path = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{target.name}")
        descriptor = os.open(path, _CREATE, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        # It was deleted as unfinished before it was locked.
        os.close(descriptor)


def delete_unlocked(path: Path) -> None:
    """Delete a temporary file, unless its writer is still alive."""
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        return
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
