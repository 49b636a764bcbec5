"""The file that COPY writes: below the current folder, and complete or not there.

The file is written without a name, or with a temporary name beside the target where the system has
no files without names. At the end it is flushed to disk and renamed, so that an existing file is
replaced only by a complete one.

The path is relative and has no `..`. Symbolic links may lead to other places below the current
folder. They are resolved once; then each folder is opened within the one above it, without
following links, so that a link which is created meanwhile leads nowhere.
"""

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, Self

from semel.up.sql_errors import SqlError

# Linux: a file that has no name until it is linked. It is gone if the process is killed.
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CLOEXEC
_WRITERS: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def find_target(name: str, protected: Iterable[Path]) -> Path:
    """The path of a file to write, relative to the current folder, without symbolic links.

    `protected` are folders in which nothing may be written. Raises SqlError.
    """
    path = PurePosixPath(name)
    if not path.name or "\0" in name or name.endswith("/"):
        raise SqlError(f"COPY: '{name}' is not the name of a file")
    if path.is_absolute() or ".." in path.parts:
        raise _outside(name)
    try:
        return _checked_target(name, protected)
    except OSError as problem:
        # A name that is too long, or a folder that may not be searched.
        reason = problem.strerror or problem
        raise SqlError(f"COPY: '{name}' cannot be written: {reason}") from None


def _checked_target(name: str, protected: Iterable[Path]) -> Path:
    current = Path.cwd().resolve()
    try:
        target = (current / name).resolve()
    except RuntimeError:
        # Links that lead to each other.
        raise SqlError(f"COPY: the symbolic links of '{name}' lead nowhere") from None
    if not target.is_relative_to(current) or target == current:
        raise _outside(name)
    if not target.parent.is_dir():
        raise SqlError(f"COPY: there is no folder '{PurePosixPath(name).parent}'")
    if target.exists():
        found = target.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SqlError(f"COPY: '{name}' exists and is not a file")
        if not found.st_mode & _WRITERS:
            raise SqlError(f"COPY: '{name}' is write-protected")
    # Compare files, not names: one folder may have several names.
    above = {_identity(each) for each in target.parents}
    for folder in protected:
        if folder.exists() and _identity(folder) in above:
            raise SqlError(
                f"COPY: '{name}' is in {folder}, the folder of a lake or of its record:"
                " choose another place"
            )
    return target.relative_to(current)


def _outside(name: str) -> SqlError:
    return SqlError(
        f"COPY: '{name}' is not below the current folder: give a relative path without .., such as"
        " 'messages.parquet'"
    )


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


class ReplacingFile:
    """A file that gets its name when `commit` is called; leaving the `with` block discards it."""

    def __init__(self, target: Path) -> None:
        """`target` is what find_target returned. Raises OSError."""
        self._name = target.name
        self._temporary = f".semel-copy-{secrets.token_hex(8)}"
        self._is_named = False
        self._folder = _open_folder(target.parent)
        try:
            self.file = os.fdopen(self._create(), "wb")
        except BaseException:
            os.close(self._folder)
            raise

    def _create(self) -> int:
        if _UNNAMED:
            with suppress(OSError):
                found = os.open(".", _NEW | _UNNAMED, 0o666, dir_fd=self._folder)
                if os.path.exists(_link_to(found)):
                    return found
                os.close(found)
        self._is_named = True
        return os.open(self._temporary, _NEW | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder)

    def commit(self) -> int:
        """Flush the file to disk and give it its name. Returns its size. Raises OSError."""
        self.file.flush()
        descriptor = self.file.fileno()
        with suppress(FileNotFoundError):
            replaced = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            os.fchmod(descriptor, stat.S_IMODE(replaced.st_mode))
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
        if not self._is_named:
            self._is_named = True
            # A link cannot replace a file, but a rename can.
            os.link(
                _link_to(descriptor),
                self._temporary,
                dst_dir_fd=self._folder,
                follow_symlinks=True,
            )
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._is_named:
                with suppress(FileNotFoundError):
                    os.unlink(self._temporary, dir_fd=self._folder)
        finally:
            # What is not written yet belongs to a file that is gone.
            with suppress(OSError):
                self.file.close()
            os.close(self._folder)


def _open_folder(path: Path) -> int:
    """Open a folder below the current one, without following links."""
    folder = os.open(".", _FOLDER)
    for part in path.parts:
        try:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _link_to(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
