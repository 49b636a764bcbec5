"""The mark: the number of commits of a store, in a file beside it, to detect a log without its end.

A write-ahead log that is truncated, deleted or replaced looks like a shorter one: SQLite reads what
it finds, and the commits after that are silently lost. So every transaction increments `commit` in
the metadata of the store, and when it is safe the same number goes into a small file:

    semel mark 1 epoch <32 digits> commit <20 digits> durability disk state open   crc <8 digits>

The mark is written after the log has been synced, and is never synced itself: whenever the process
or the system dies, it is never ahead of the store. A store that is behind its mark has lost
commits. After a loss of power the mark may be as old as the last write-back of the system (about
half a minute), so a log that lost less than that *as well* is not detected; kill -9 loses nothing
of either.

The epoch distinguishes a database from its copies. A backup, a repair and an upgrade begin a new
one, and a mark of another epoch is ignored. `state` is closed after an orderly end.
"""

import errno
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from semel.store.metadata import COMMIT, EPOCH, get_metadata, get_number
from semel.store.private_files import check_private, open_private, sync, write_private
from semel.store.schema import Damaged
from semel.store.settings import OS

MARK: Final = "store.mark"

_LINE: Final = re.compile(
    rb"semel mark 1 epoch ([0-9a-f]{32}) commit ([0-9]{20}) durability (disk|os  ) "
    rb"state (open  |closed) crc ([0-9a-f]{8})\n"
)


@dataclass(frozen=True)
class Mark:
    """The content of the file."""

    epoch: str
    commit: int
    durability: str
    is_closed: bool

    def encode(self) -> bytes:
        """The line, which always has the same length."""
        state = "closed" if self.is_closed else "open"
        line = (
            f"semel mark 1 epoch {self.epoch} commit {self.commit:020}"
            f" durability {self.durability:<4} state {state:<6}"
        ).encode("ascii")
        return line + b" crc %08x\n" % crc32(line)


def read_mark(folder: Path) -> Mark | None:
    """The mark of a data folder, if there is one. Raises Damaged if it cannot be read."""
    path = folder / MARK
    check_private(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(data)
    if match is None or crc32(data[: match.start(5) - 5]) != int(match[5], 16):
        raise Damaged(f"{MARK}, which records its commits, is damaged")
    return Mark(
        match[1].decode(),
        int(match[2]),
        match[3].decode().strip(),
        match[4] == b"closed",
    )


@dataclass(frozen=True)
class Loss:
    """Commits that were safe and are missing: those after `last`, up to `known`."""

    last: int
    known: int
    durability: str

    @property
    def is_expected(self) -> bool:
        """Whether a loss of power explains it."""
        return self.durability == OS

    def __str__(self) -> str:
        count = self.known - self.last
        lost = (
            f"commit {self.known}, which was acknowledged, is"
            if count == 1
            else f"commits {self.last + 1} to {self.known}, which were acknowledged, are"
        )
        return f"the end of its log is missing: {lost} lost"


def loss_of(connection: sqlite3.Connection, mark: Mark | None) -> Loss | None:
    """The commits that a store lacks by its mark, which was read before; None: none."""
    if mark is None:
        return None
    epoch, last = position(connection)
    if epoch != mark.epoch:
        return None
    return Loss(last, mark.commit, mark.durability) if last < mark.commit else None


class MarkFile:
    """The mark of an open store. For the thread that writes."""

    def __init__(self, folder: Path, epoch: str, commit: int, durability: str) -> None:
        self._epoch = epoch
        self._durability = durability
        before = read_mark(folder)
        if before is None or before.epoch != epoch:
            put_mark(folder, Mark(epoch, commit, durability, is_closed=False))
        self._descriptor = open_private(folder / MARK)
        self.write(commit)

    def write(self, commit: int, *, is_closed: bool = False) -> None:
        """Record that this commit is safe, and all before it."""
        mark = Mark(self._epoch, commit, self._durability, is_closed)
        try:
            os.pwrite(self._descriptor, mark.encode(), 0)
        except OSError as problem:
            # A copy-on-write file system needs space for it. The mark may stay behind.
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def close(self, commit: int) -> None:
        """Record an orderly end."""
        try:
            self.write(commit, is_closed=True)
        finally:
            os.close(self._descriptor)


def put_mark(folder: Path, mark: Mark) -> None:
    """Create a mark atomically."""
    path = folder / MARK
    part = path.with_name(f"{MARK}.part")
    write_private(part, mark.encode())
    part.rename(path)
    sync(folder)


def make_mark(folder: Path, connection: sqlite3.Connection, durability: str) -> None:
    """Create the mark of a store that nobody has open."""
    epoch, commit = position(connection)
    put_mark(folder, Mark(epoch, commit, durability, is_closed=True))


def position(connection: sqlite3.Connection) -> tuple[str, int]:
    """The epoch of a store, and its number of commits. Raises Damaged."""
    epoch = get_metadata(connection, EPOCH)
    commit = get_number(connection, COMMIT)
    if epoch is None or commit is None:
        raise Damaged("it does not record its number of commits")
    return epoch, commit
