"""The mark: the number of commits of a store, in a separate file, to detect a truncated log.

A write-ahead log that is truncated, deleted or replaced looks like a shorter one: SQLite reads what
it finds, and later commits are silently lost. So every transaction increments `commit` in the
metadata of the store, and when it is durable the same number is written to a small file:

    semel mark 1 epoch <32 digits> commit <20 digits> durability disk state open   crc <8 digits>

The mark is written after the log has been synced, and is not synced itself. So it is never ahead of
the store, whenever the process or the system dies, and a store that is behind its mark has lost
commits. After a loss of power the mark may be as old as the last write-back of the system (about
half a minute), so that the loss of less than that from the log is not detected. After kill -9 both
are complete.

The epoch distinguishes a database from its copies. A backup, a repair and an upgrade start a new
epoch, and a mark of another epoch is ignored. `state` is closed after an orderly shutdown.
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
    """The content of the mark file."""

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
    """The mark of a data folder, or None. Raises Damaged if it cannot be decoded."""
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
    """Durable commits that are missing: those after `last`, up to `known`."""

    last: int
    known: int
    durability: str

    @property
    def is_expected(self) -> bool:
        """Whether a loss of power explains it, because commits were not synced."""
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
    """The commits that a store lacks according to its mark, or None. Read the mark first."""
    if mark is None:
        return None
    epoch, last = position(connection)
    if epoch != mark.epoch:
        return None
    return Loss(last, mark.commit, mark.durability) if last < mark.commit else None


class MarkFile:
    """Writes the mark of an open store. For the writer's thread."""

    def __init__(self, folder: Path, epoch: str, commit: int, durability: str) -> None:
        self._epoch = epoch
        self._durability = durability
        before = read_mark(folder)
        if before is None or before.epoch != epoch:
            put_mark(folder, Mark(epoch, commit, durability, is_closed=False))
        self._descriptor = open_private(folder / MARK)
        self.write(commit)

    def write(self, commit: int, *, is_closed: bool = False) -> None:
        """Record that this commit, and all before it, are durable."""
        mark = Mark(self._epoch, commit, self._durability, is_closed)
        try:
            os.pwrite(self._descriptor, mark.encode(), 0)
        except OSError as problem:
            # A copy-on-write file system needs space even for this. The mark may lag behind.
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def close(self, commit: int) -> None:
        """Record an orderly shutdown."""
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
    """Create the mark of a store that is not open."""
    epoch, commit = position(connection)
    put_mark(folder, Mark(epoch, commit, durability, is_closed=True))


def position(connection: sqlite3.Connection) -> tuple[str, int]:
    """The epoch and the number of commits of a store. Raises Damaged."""
    epoch = get_metadata(connection, EPOCH)
    commit = get_number(connection, COMMIT)
    if epoch is None or commit is None:
        raise Damaged("it does not record its number of commits")
    return epoch, commit
