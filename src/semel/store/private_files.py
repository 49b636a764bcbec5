"""Creates and opens the files of a data folder, private to their owner, and without links.

Whoever may write to a folder can create a link there with a name that we are about to use, to make
us write to another file. So no symbolic link is followed, a file with a second hard link is not
touched, and a temporary file is always a new one. If this process runs as root, it changes the
owner of files only if it has created them.
"""

import errno
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from semel.store.schema import Unusable

FILE_MODE: Final = 0o600


def open_private(path: Path) -> int:
    """Open a file for reading and writing, created if it is missing, private to its owner.

    Raises Unusable if it is a link.
    """
    while True:
        try:
            return _make(path)
        except FileExistsError:
            pass
        try:
            # O_NONBLOCK, because opening a pipe could block otherwise.
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise Unusable(_is_link(path)) from None
            raise
        try:
            found = os.fstat(descriptor)
            _check(found, path)
            if stat.S_IMODE(found.st_mode) != FILE_MODE:
                with suppress(PermissionError):
                    os.fchmod(descriptor, FILE_MODE)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def new_private(path: Path) -> int:
    """Create an empty file, private to its owner, and open it. Deletes an existing file first."""
    path.unlink(missing_ok=True)
    return _make(path)


def open_new_database(path: Path, descriptor: int) -> sqlite3.Connection:
    """Open a new file with SQLite. The caller must close `descriptor` after the connection.

    SQLite opens files by name, and somebody may have replaced the file by a link meanwhile. So this
    checks that SQLite has opened the file of `descriptor`. Raises Unusable if not.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    made = os.fstat(descriptor)
    opened = 0
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            opened += os.path.samestat(os.fstat(int(name)), made)
    if opened < 2:
        connection.close()
        raise Unusable(f"{path} was replaced while it was made: see who else may write there")
    return connection


def write_private(path: Path, data: bytes) -> None:
    """Create a file with this content, private to its owner, and sync it."""
    path.unlink(missing_ok=True)
    descriptor = _make(path)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> int:
    """Create a file. O_EXCL does not follow links."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        made = os.fstat(descriptor)
        # The umask may have removed more bits.
        if made.st_mode & 0o777 != FILE_MODE:
            os.fchmod(descriptor, FILE_MODE)
        if os.geteuid() == 0:
            # So that a broker that runs as the folder's owner can use the file.
            folder = path.parent.stat()
            if (folder.st_uid, folder.st_gid) != (made.st_uid, made.st_gid):
                os.fchown(descriptor, folder.st_uid, folder.st_gid)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_private(path: Path) -> None:
    """Check that a file, if it exists, is not a link. Raises Unusable."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check(found, path)


def _check(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Unusable(_is_link(path))
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise Unusable(
            f"{path} has a second hard link, and may be another user's file: delete the link, or "
            "replace it by a copy"
        )
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise Unusable(f"{path} is not a regular file: delete it, or choose another folder")


def _is_link(path: Path) -> str:
    return (
        f"{path} is a symbolic link, which is not followed: put the file itself there, or give the "
        "folder that contains it"
    )


def tighten(path: Path) -> bool:
    """Make a file private to its owner. Returns False if its mode cannot be changed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_nlink > 1:
            return False
        os.fchmod(descriptor, FILE_MODE)
    except PermissionError:
        return False
    finally:
        os.close(descriptor)
    return True


def sync(path: Path) -> None:
    """Sync the content of a file, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
