"""Binds a Unix socket to its file, and removes the file at the end."""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

# How long a process that has the socket may take to accept a connection.
PROBE_SECONDS: Final = 1.0
BACKLOG: Final = 100


class SocketFileUnusable(Exception):
    """Why a socket cannot be bound to a path, to follow the path in a sentence."""


class UnixSocket:
    """A socket that listens at a path."""

    def __init__(self, path: Path, mode: int) -> None:
        """Bind and listen. Raises SocketFileUnusable.

        The file of a process that has ended is replaced. A socket in use, and any other kind of
        file, is left alone.
        """
        self.path = path
        _remove_stale_file(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind(bytes(path))
            # Nobody can connect before `listen`.
            os.chmod(path, mode)
            self.socket.listen(BACKLOG)
            found = os.stat(path)
        except OSError as problem:
            self.socket.close()
            raise SocketFileUnusable(f"{problem.strerror}") from None
        self._file = (found.st_dev, found.st_ino)

    def remove_file(self) -> None:
        """Remove the file, unless another process has replaced it."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._file:
                os.unlink(self.path)


def _remove_stale_file(path: Path) -> None:
    """Remove the socket file of a process that has ended. Raises SocketFileUnusable."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as problem:
        raise SocketFileUnusable(f"{problem.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise SocketFileUnusable("there is another file, not a socket: choose another path")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(PROBE_SECONDS)
        probe.connect(bytes(path))
    except FileNotFoundError:
        return
    except OSError as problem:
        if problem.errno != errno.ECONNREFUSED:
            # A full queue, or no permission: somebody may be there.
            raise SocketFileUnusable("it is in use by another program") from None
    else:
        raise SocketFileUnusable("it is in use by another program")
    finally:
        probe.close()
    try:
        os.unlink(path)
    except OSError as problem:
        raise SocketFileUnusable(
            f"its old socket file cannot be removed: {problem.strerror}"
        ) from None
