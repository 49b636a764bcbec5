"""Reads the file of SQLite's write-ahead log: its frames, and where its commits end.

    header   magic, format, page size, checkpoint, salt 1, salt 2, checksum 1, checksum 2
    frame    page, pages after the commit (0: not the end of a commit), salts, checksums; the page
    frame    …

SQLite reads the log up to the first frame with a wrong checksum, and silently ignores the rest.
After a loss of power this is right: an incomplete commit was never synced, and so never
acknowledged. But a bit that flipped on the disk looks the same, and loses every commit after it.
Each commit is synced before the next one begins, so that a frame after a commit proves that the
commit was once complete: if SQLite does not use it, the log is damaged. Therefore opening a store
compares the commits in the file with those that SQLite uses. `forensics.log_frames` finds which
frames are damaged.

The file of the log may be opened at any time: unlike the two other files, SQLite does not lock it.
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
FRAME_BYTES: Final = _FRAME.size
_MASK: Final = 0xFFFF_FFFF
_SMALLEST_PAGE: Final = 512
_LARGEST_PAGE: Final = 65_536

# The position of the number of valid frames in the index of the log, the -shm file.
_INDEX: Final = struct.Struct("=16xI")


def log_path(database: Path) -> Path:
    """The path of the log of a database."""
    return database.with_name(f"{database.name}-wal")


def index_path(database: Path) -> Path:
    """The path of the index of the log of a database."""
    return database.with_name(f"{database.name}-shm")


class WriteAheadLog:
    """A log, as its headers describe it; `frames` are the frames that belong to it, in order.

    SQLite ignores a log with a broken header. With `page_size` it is read nevertheless, with the
    salts of its first frame. That frame belongs to the last round of the log, or to the round
    before it, in which case the database already has the same pages.
    """

    def __init__(self, path: Path, page_size: int = 0) -> None:
        self.path = path
        # Whether the header is intact.
        self.has_header = False
        self.page_size = page_size
        # page, pages of the database if this frame ends a transaction, else 0
        self.frames: list[tuple[int, int]] = []
        self.salts = (0, 0)
        # The checksum of the header, from which the checksum of the first frame continues.
        self.header_checksum = (0, 0)
        self.is_big_endian = sys.byteorder == "big"
        with path.open("rb", buffering=0) as file:
            data = file.read(_HEADER.size)
            if len(data) < _HEADER.size:
                return
            magic, _, size, _, *rest = _HEADER.unpack(data)
            sums = log_checksum(data[:24], (0, 0), big_endian=magic & 1 == 1)
            self.has_header = (
                magic & ~1 == _MAGIC
                and _SMALLEST_PAGE <= size <= _LARGEST_PAGE
                and sums == (rest[2], rest[3])
            )
            if self.has_header:
                self.page_size = size
                self.salts = (rest[0], rest[1])
                self.header_checksum = sums
                self.is_big_endian = magic & 1 == 1
            elif page_size:
                first = read_at(file, self.offset(0), FRAME_BYTES)
                if len(first) == FRAME_BYTES:
                    _, _, *rest = _FRAME.unpack(first)
                    self.salts = (rest[0], rest[1])
            if self.page_size:
                self._read_headers(file)

    def _read_headers(self, file: FileIO) -> None:
        """Read up to the last frame with the salts of the log. Later frames are from an earlier
        round of the log; earlier frames with other salts are damaged."""
        others: list[tuple[int, int]] = []
        while True:
            data = read_at(file, self.offset(len(self.frames) + len(others)), FRAME_BYTES)
            if len(data) < FRAME_BYTES:
                return
            page, commit, *rest = _FRAME.unpack(data)
            others.append((page, commit))
            if (rest[0], rest[1]) == self.salts:
                self.frames += others
                others = []

    def offset(self, frame: int) -> int:
        """The offset of a frame, counted from 0, in the file; its page is FRAME_BYTES later."""
        return _HEADER.size + frame * (FRAME_BYTES + self.page_size)

    @property
    def committed(self) -> int:
        """The number of frames up to the last commit."""
        for at in range(len(self.frames), 0, -1):
            if self.frames[at - 1][1]:
                return at
        return 0

    @property
    def synced(self) -> int:
        """The number of frames up to the last commit that is followed by another frame."""
        for at in range(len(self.frames) - 1, 0, -1):
            if self.frames[at - 1][1]:
                return at
        return 0

    def commits(self, first: int) -> int:
        """The number of commits from this frame on."""
        return sum(commit > 0 for _, commit in self.frames[first:])


def read_at(file: FileIO, at: int, size: int) -> bytes:
    """At most `size` bytes of a file from this offset on."""
    file.seek(at)
    return file.read(size)


def log_checksum(data: bytes, before: tuple[int, int], *, big_endian: bool) -> tuple[int, int]:
    """The two checksums over `data`, continuing from `before`."""
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
    """The number of frames that SQLite uses, as recorded in the index; 0 if it is not recorded.

    Only for a process without another connection, because closing the index releases every lock
    that this process has on it.
    """
    with index.open("rb") as file:
        data = file.read(_INDEX.size)
    if len(data) < _INDEX.size:
        return 0
    frames: int = _INDEX.unpack(data)[0]
    return frames
