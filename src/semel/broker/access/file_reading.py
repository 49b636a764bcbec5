"""Reads the files of users, keys and rights: regular files of a bounded size."""

import os
import stat
from pathlib import Path
from typing import Final

# Bits of a file's mode: what users who are neither the owner nor in the group may do.
OTHERS_READ: Final = stat.S_IROTH
OTHERS_WRITE: Final = stat.S_IWOTH


class UnreadableFile(Exception):
    """Why a file cannot be used: what follows its name in a sentence."""


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises UnreadableFile."""
    return read_with_mode(path, limit)[0]


def read_with_mode(path: Path, limit: int) -> tuple[bytes, int]:
    """The same, with the mode of the file that was read."""
    try:
        # A named pipe without a writer would block the open.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise UnreadableFile("is a directory, not a file")
            if not stat.S_ISREG(mode):
                raise UnreadableFile("is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise UnreadableFile(f"cannot be read: {problem.strerror or problem}") from None
    if len(data) > limit:
        raise UnreadableFile(f"has more than {limit:,} bytes")
    return data, mode
