"""The write-ahead log of SQLite as it lies in its file: what it holds, and where it is broken.

    header   magic, format, page size, checkpoint, salt 1, salt 2, checksum 1, checksum 2
    frame    page, pages after the commit (0: no commit yet), salts, checksums; then the page
    frame    …

SQLite itself reads the log up to the first frame whose checksum is wrong, and forgets what comes
after it without a word: after a loss of power that is right, because what is not whole was never
synced, and so never acknowledged. A bit that flipped on the disk looks the same to it, and would
cost every commit after it. But we sync each commit before the next one begins. So a frame that
begins after a commit tells that this commit was whole once: if it is not now, the log is damaged.

The checksum of a frame goes on from that of the frame before, as that frame states it. So damage in
one frame does not make the next look damaged, and `Log.intact` can tell each for itself.

The file of the log may be opened at any time: unlike the two others, SQLite does not lock it.
"""

import struct
import sys
from array import array
from io import FileIO
from pathlib import Path
from typing import Final

_MAGIC: Final = 0x377F0682
_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MASK: Final = 0xFFFF_FFFF
_SMALLEST_PAGE: Final = 512
_LARGEST_PAGE: Final = 65_536
_AGAIN: Final = 2

# Where the index of the log, the file -shm, has the number of frames that count.
_INDEX: Final = struct.Struct("=16xI")


def log_of(database: Path) -> Path:
    """Where the log of a database is, if it has one."""
    return database.with_name(f"{database.name}-wal")


def index_of(database: Path) -> Path:
    """Where the index of the log is."""
    return database.with_name(f"{database.name}-shm")


class Log:
    """A log as its headers tell: `frames` are those that belong to it, in their order.

    Of a log whose header is broken, SQLite reads nothing. With `page_size`, and the salts of its
    first frame, we do: that one is of the log's last round, or of the round before it, and then all
    of its pages are in the database, as they are here.
    """

    def __init__(self, path: Path, page_size: int = 0) -> None:
        self.path = path
        # Whether the header is whole.
        self.is_readable = False
        self.page_size = page_size
        # page, pages of the database if this frame ends a transaction, else 0
        self.frames: list[tuple[int, int]] = []
        self.salts = (0, 0)
        self._checksum = (0, 0)
        self._big_endian = sys.byteorder == "big"
        with path.open("rb", buffering=0) as file:
            data = file.read(_HEADER.size)
            if len(data) < _HEADER.size:
                return
            magic, _, size, _, *rest = _HEADER.unpack(data)
            sums = checksum(data[:24], (0, 0), big_endian=magic & 1 == 1)
            self.is_readable = (
                magic & ~1 == _MAGIC
                and _SMALLEST_PAGE <= size <= _LARGEST_PAGE
                and sums == (rest[2], rest[3])
            )
            if self.is_readable:
                self.page_size = size
                self.salts = (rest[0], rest[1])
                self._checksum = sums
                self._big_endian = magic & 1 == 1
            elif page_size:
                first = _read_at(file, self.place(0), _FRAME.size)
                if len(first) == _FRAME.size:
                    _, _, *rest = _FRAME.unpack(first)
                    self.salts = (rest[0], rest[1])
            if self.page_size:
                self._read_headers(file)

    def _read_headers(self, file: FileIO) -> None:
        """Up to the last frame with our salts. What comes after is of an earlier round of the log;
        one before it that has others is damaged."""
        others: list[tuple[int, int]] = []
        while True:
            data = _read_at(file, self.place(len(self.frames) + len(others)), _FRAME.size)
            if len(data) < _FRAME.size:
                return
            page, commit, *rest = _FRAME.unpack(data)
            others.append((page, commit))
            if (rest[0], rest[1]) == self.salts:
                self.frames += others
                others = []

    def place(self, frame: int) -> int:
        """Where a frame begins in the file, counted from 0; its page comes 24 bytes later."""
        return _HEADER.size + frame * (_FRAME.size + self.page_size)

    @property
    def committed(self) -> int:
        """How many frames there are up to the last commit."""
        for at in range(len(self.frames), 0, -1):
            if self.frames[at - 1][1]:
                return at
        return 0

    @property
    def synced(self) -> int:
        """How many frames there are up to the last commit that something was written after."""
        for at in range(len(self.frames) - 1, 0, -1):
            if self.frames[at - 1][1]:
                return at
        return 0

    def commits(self, first: int) -> int:
        """How many commits there are from that frame on."""
        return sum(commit > 0 for _, commit in self.frames[first:])

    def intact(self) -> list[bool]:
        """Of each frame, whether it is as it was written. Takes a second for some 40 MB."""
        found: list[bool] = []
        stated = self._checksum
        with self.path.open("rb", buffering=0) as file:
            for frame in range(len(self.frames)):
                right, now = self._sums(file, frame, stated)
                for _ in range(_AGAIN):
                    # A broker may be writing it just now.
                    if not right:
                        right, now = self._sums(file, frame, stated)
                found.append(right)
                stated = now
        return found

    def _sums(
        self, file: FileIO, frame: int, stated: tuple[int, int]
    ) -> tuple[bool, tuple[int, int]]:
        """Whether a frame is as it was written, and its checksum as it stands."""
        size = _FRAME.size + self.page_size
        data = _read_at(file, self.place(frame), size)
        if len(data) < size:
            return False, (0, 0)
        sums = checksum(data[:8], stated, big_endian=self._big_endian)
        sums = checksum(data[24:], sums, big_endian=self._big_endian)
        now = (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
        # The sums are not over the salts.
        salts = (int.from_bytes(data[8:12], "big"), int.from_bytes(data[12:16], "big"))
        return sums == now and salts == self.salts, now


def _read_at(file: FileIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def checksum(data: bytes, before: tuple[int, int], *, big_endian: bool) -> tuple[int, int]:
    """The two sums over `data`, going on from those before."""
    words = array("I", data)
    if big_endian == (sys.byteorder == "little"):
        words.byteswap()
    first, second = before
    each = iter(words)
    for one, other in zip(each, each, strict=True):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second


def frames_in_use(index: Path) -> int:
    """How many frames count, as SQLite noted when it opened the log; 0 if it has not.

    Only for a process that has no connection of its own at work: closing the file of the index
    lets go of every lock that this process has on it.
    """
    with index.open("rb") as file:
        data = file.read(_INDEX.size)
    if len(data) < _INDEX.size:
        return 0
    frames: int = _INDEX.unpack(data)[0]
    return frames
