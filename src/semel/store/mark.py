"""The mark: how far a store had come, in a file beside it, so that a log that lost its end is seen.

A write-ahead log that is cut, deleted or replaced looks like a shorter one: SQLite reads what is
there, and the commits after it are gone without a word. So every transaction counts itself, by fact
`commit` of the store, and when it is safe the same number goes into a small file:

    semel mark 1 epoch <32 digits> commit <20 digits> durability disk state open   crc <8 digits>

The mark is written after the log has been synced, and is never synced itself: it is behind the
store, never ahead, whatever dies when. A store that is behind its mark has lost commits. After a
loss of power the mark may be as old as the last write-back of the system (mostly half a minute),
so that a log which lost less than that *as well* is not noticed; kill -9 takes nothing of either.

The epoch tells a database from its copies. A backup, a repair and a new format begin another one,
and a mark of another epoch says nothing. `state` is closed after an end in good order.
"""

import errno
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from semel.store.facts import COMMIT, EPOCH, get_fact, get_number
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
    """What the file says."""

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
        raise Damaged(f"{MARK}, which says how far it had come, cannot be read")
    return Mark(
        match[1].decode(),
        int(match[2]),
        match[3].decode().strip(),
        match[4] == b"closed",
    )


@dataclass(frozen=True)
class Loss:
    """Commits that were safe and are not there: those after `last`, up to `known`."""

    last: int
    known: int
    durability: str

    @property
    def is_expected(self) -> bool:
        """Whether that is what a loss of power does."""
        return self.durability == OS

    def __str__(self) -> str:
        count = self.known - self.last
        lost = f"commit {self.known}" if count == 1 else f"commits {self.last + 1} to {self.known}"
        return (
            f"the end of its log is missing: {lost} of it {'is' if count == 1 else 'are'} lost,"
            " which had been acknowledged"
        )


def loss_of(connection: sqlite3.Connection, mark: Mark | None) -> Loss | None:
    """What a store has lost by its mark, which was read before; None: nothing that it tells."""
    if mark is None:
        return None
    epoch, last = position(connection)
    if epoch != mark.epoch:
        return None
    return Loss(last, mark.commit, mark.durability) if last < mark.commit else None


class MarkFile:
    """The mark of a store that is open. For the thread that writes."""

    def __init__(self, folder: Path, epoch: str, commit: int, durability: str) -> None:
        self._epoch = epoch
        self._durability = durability
        before = read_mark(folder)
        if before is None or before.epoch != epoch:
            put_mark(folder, Mark(epoch, commit, durability, is_closed=False))
        self._descriptor = open_private(folder / MARK)
        self.write(commit)

    def write(self, commit: int, *, is_closed: bool = False) -> None:
        """This commit is safe, and all before it."""
        mark = Mark(self._epoch, commit, self._durability, is_closed)
        try:
            os.pwrite(self._descriptor, mark.encode(), 0)
        except OSError as problem:
            # A file system that never writes in place needs space for it. It may stay behind.
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def close(self, commit: int) -> None:
        """The end in good order."""
        try:
            self.write(commit, is_closed=True)
        finally:
            os.close(self._descriptor)


def put_mark(folder: Path, mark: Mark) -> None:
    """Make a mark, whole or not at all."""
    path = folder / MARK
    part = path.with_name(f"{MARK}.part")
    write_private(part, mark.encode())
    part.rename(path)
    sync(folder)


def make_mark(folder: Path, connection: sqlite3.Connection, durability: str) -> None:
    """A mark for a store that nobody has open."""
    epoch, commit = position(connection)
    put_mark(folder, Mark(epoch, commit, durability, is_closed=True))


def position(connection: sqlite3.Connection) -> tuple[str, int]:
    """The epoch of a store, and how many commits it has. Raises Damaged."""
    epoch = get_fact(connection, EPOCH)
    commit = get_number(connection, COMMIT)
    if epoch is None or commit is None:
        raise Damaged("it does not say how many commits it has")
    return epoch, commit
