"""Checksums of a segment: every byte of the file is covered, and none is used unchecked.

Parquet has checksums of pages, but none of the headers of pages nor of the footer, and a bit that
flips there can make other rows of good pages. So a segment carries checksums of its own, between
its data and its footer, where no reader of Parquet looks:

    PAR1 | column chunk | column chunk | …    data, in ranges
    end and CRC-32 of each range              the checksums
    number of ranges, CRC-32 of what follows
    CRC-32 of the checksums, MAGIC
    footer | its length | PAR1                what follows

A range is a column chunk, which is what Arrow reads at a time: so what is read is checked at little
cost, once, in the memory from which it is decoded, and a reader of few columns reads no more than
before. The footer is checked before it is parsed. It says that there are checksums (KEY), so that
a file which has lost them is not taken for one that never had any: earlier versions wrote none.
"""

import io
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final

from semel.extras import need

# In the footer: which checksums there are.
KEY: Final = b"semel.checksums"
VERSION: Final = b"1"
MAGIC: Final = b"semelCRC"
_PARQUET: Final = b"PAR1"

_RANGE: Final = struct.Struct("<QI")
# Ranges, checksum of what follows; checksum of all before it, MAGIC.
_END: Final = struct.Struct("<III8s")
_OWN_BYTES: Final = 12
_LENGTH: Final = struct.Struct("<I4s")
# The footer of most segments and their checksums are in the last bytes, which one read brings.
TAIL_BYTES: Final = 64 * 1024
# What is read at a time to check a whole file.
_PIECE: Final = 4 * 1024 * 1024
# What is read from a file of this machine at a time: it is in the processor's cache when its
# checksum is computed. From an object store a range comes by one request.
_HOT: Final = 256 * 1024
# Bytes for which memory is taken from Arrow.
_LARGE: Final = 1024 * 1024


def add_checksums(file: Any, starts: list[int]) -> None:
    """Add checksums to a Parquet file that was just written, and is open for reading too.

    `starts` are the places where ranges begin, ascending.
    """
    size = file.seek(0, 2)
    file.seek(size - _LENGTH.size)
    length, _ = _LENGTH.unpack(file.read(_LENGTH.size))
    place = size - _LENGTH.size - length
    file.seek(place)
    footer = file.read()
    file.seek(0)
    ranges = b""
    begins = 0
    for end in [*starts, place]:
        if end > begins:
            ranges += _RANGE.pack(end, _checksum(file, end - begins))
            begins = end
    checksums = ranges + struct.pack("<II", len(ranges) // _RANGE.size, zlib.crc32(footer))
    file.seek(place)
    file.write(checksums + struct.pack("<I8s", zlib.crc32(checksums), MAGIC) + footer)


def _checksum(file: Any, size: int) -> int:
    found = 0
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            raise OSError("the file is shorter than it was")
        found = zlib.crc32(data, found)
        size -= len(data)
    return found


class CheckedFile:
    """A segment, open for reading by Arrow: what `read` returns is what was written.

    `damaged` makes the exception of a sentence. A file without checksums is read as it is. Arrow
    calls it from one thread at a time.
    """

    def __init__(
        self,
        source: Any,
        damaged: Callable[[str], Exception],
    ) -> None:
        """Takes over `source`, which can seek. Raises what `damaged` makes, and OSError."""
        self._source = source
        self._is_file = isinstance(source, io.IOBase)
        self._arrow = need("pyarrow", extra="broker", by="the record of a stream")
        self._damaged = damaged
        # Why the source could not be read: no damage, the next attempt may succeed.
        self.failure: OSError | None = None
        self._at = 0
        self._size = source.seek(0, 2)
        # Where ranges end, and their checksums.
        self._ends: list[int] = []
        self._sums: list[int] = []
        # The end of the file from `_checked` on, which is in memory and checked.
        self._checked = self._size
        self._tail = b""
        # The footer with its length and its magic; empty: there are no checksums.
        self.footer = b""
        self._read_checksums()

    def _read_checksums(self) -> None:
        tail = self._last(min(self._size, TAIL_BYTES))
        if len(tail) < _LENGTH.size or not tail.endswith(_PARQUET):
            return  # Arrow says what is wrong with it
        length, _ = _LENGTH.unpack(tail[-_LENGTH.size :])
        footer = length + _LENGTH.size
        if footer + _END.size > self._size:
            return
        if footer + _END.size > len(tail):
            tail = self._last(min(self._size, footer + max(TAIL_BYTES, _END.size)))
        count, follows, own, magic = _END.unpack(tail[-footer - _END.size : -footer])
        if magic != MAGIC:
            return
        before = count * _RANGE.size + _END.size
        if footer + before > self._size:
            raise self._damaged("the checksums are damaged")
        if footer + before > len(tail):
            tail = self._last(footer + before)
        checksums = tail[-footer - before : -footer]
        if zlib.crc32(checksums[:-_OWN_BYTES]) != own:
            raise self._damaged("the checksums are damaged")
        if zlib.crc32(tail[-footer:]) != follows:
            raise self._damaged("the footer is not what was written (checksum)")
        for end, found in _RANGE.iter_unpack(checksums[: -_END.size]):
            self._ends.append(end)
            self._sums.append(found)
        self._checked = self._size - footer - before
        self._tail = tail[-footer - before :]
        self.footer = tail[-footer:]
        if not self._ends or self._ends[-1] != self._checked:
            raise self._damaged("the file is not as long as it was")

    def _last(self, size: int) -> bytes:
        return bytes(self._exactly(self._size - size, size))

    def _exactly(self, place: int, size: int) -> memoryview:
        memory = self._allocate(size)
        self._fill(memory, place)
        return memory

    def _allocate(self, size: int) -> memoryview:
        """Memory for this many bytes.

        It is Arrow's, which keeps what was freed: to get new memory from the system, and to have it
        zeroed, takes as long as to fill it.
        """
        if size < _LARGE:
            return memoryview(bytearray(size))
        return memoryview(self._arrow.allocate_buffer(size))

    def _fill(self, memory: memoryview, place: int) -> None:
        filled = 0
        try:
            self._source.seek(place)
            while filled < len(memory):
                count = self._source.readinto(memory[filled:])
                if not count:
                    raise self._damaged(f"it ends at byte {place + filled}: it was longer")
                filled += count
        except OSError as problem:
            self.failure = problem
            raise

    def _ranges(self, first: int, last: int) -> memoryview:
        """Some ranges that lie side by side, read and checked."""
        low = self._ends[first - 1] if first else 0
        memory = self._allocate(self._ends[last] - low)
        if not self._is_file:
            self._fill(memory, low)
        for place in range(first, last + 1):
            begins = self._ends[place - 1] if place else 0
            found = 0
            while begins < self._ends[place]:
                end = min(begins + _HOT, self._ends[place])
                piece = memory[begins - low : end - low]
                if self._is_file:
                    self._fill(piece, begins)
                found = zlib.crc32(piece, found)
                begins = end
            self._compare(place, found)
        return memory

    @property
    def has_checksums(self) -> bool:
        """Whether what is read is checked."""
        return bool(self._ends)

    def check_all(self, pause: Callable[[], None] = lambda: None) -> None:
        """Read all that `read` has not yet; `pause` is called in between. Raises `damaged`."""
        for place in range(len(self._ends)):
            begins = self._ends[place - 1] if place else 0
            found = 0
            while begins < self._ends[place]:
                size = min(_PIECE, self._ends[place] - begins)
                found = zlib.crc32(self._exactly(begins, size), found)
                begins += size
                pause()
            self._compare(place, found)

    def _compare(self, place: int, found: int) -> None:
        if found != self._sums[place]:
            begins = self._ends[place - 1] if place else 0
            raise self._damaged(
                f"bytes {begins} to {self._ends[place] - 1} are not what was written (checksum)"
            )

    # --- what Arrow calls -------------------------------------------------------------------------

    def read(self, size: int = -1) -> bytes | memoryview:
        """The next bytes, as many as there are up to `size`."""
        begins = self._at
        end = self._size if size < 0 else min(self._size, begins + size)
        if begins >= end:
            return b""
        self._at = end
        if not self._ends:
            return self._exactly(begins, end - begins)
        if begins >= self._checked:
            return self._tail[begins - self._checked : end - self._checked]
        # Whole ranges: Arrow asks for one, or for some that lie side by side.
        first = bisect_right(self._ends, begins)
        last = bisect_left(self._ends, min(end, self._checked))
        low = self._ends[first - 1] if first else 0
        data = self._ranges(first, last)
        found = data[begins - low : end - low]
        if end > self._checked:
            return bytes(found) + self._tail[: end - self._checked]
        return found

    def seek(self, place: int, whence: int = 0) -> int:
        """Where the next `read` begins."""
        self._at = place + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Where the next `read` begins."""
        return self._at

    def close(self) -> None:
        """Close the file below."""
        self._source.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._source.closed)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False
