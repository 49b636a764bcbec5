"""Checksums of a segment. They cover every byte of the file, and no byte is used unverified.

Parquet has checksums of pages, but not of page headers or the footer, where a flipped bit can turn
intact pages into other rows. So a segment has its own checksums, between its data and its footer,
in a part that Parquet readers skip:

    PAR1 | column chunk | column chunk | …    data, in ranges
    end and CRC-32 of each range              the checksums
    number of ranges, CRC-32 of what follows
    CRC-32 of the checksums, MAGIC
    footer | its length | PAR1                what follows

A range is a column chunk, which is the unit that Arrow reads. So data is verified cheaply: once, in
the memory from which it is decoded, and a reader of few columns reads no more than it would without
checksums. The footer is verified before it is parsed. It records that there are checksums (KEY), so
that a file which has lost them is not mistaken for one of an earlier version, which wrote none.
"""

import io
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final

from semel.extras import need

# In the footer: the version of the checksums.
KEY: Final = b"semel.checksums"
VERSION: Final = b"1"
MAGIC: Final = b"semelCRC"
_PARQUET: Final = b"PAR1"

_RANGE: Final = struct.Struct("<QI")
# Number of ranges, CRC-32 of what follows, CRC-32 of the checksums, MAGIC.
_END: Final = struct.Struct("<III8s")
_OWN_BYTES: Final = 12
_LENGTH: Final = struct.Struct("<I4s")
# How many bytes to read from the end; they include footer and checksums of most segments.
TAIL_BYTES: Final = 64 * 1024
# Bytes to read at a time when verifying a whole file.
_PIECE: Final = 4 * 1024 * 1024
# Bytes to read at a time from a local file, few enough to be still in the processor's cache when
# the checksum is computed. From an object store, a range is read with one request.
_CACHED: Final = 256 * 1024
# Arrow allocates buffers of at least this size.
_LARGE: Final = 1024 * 1024


def add_checksums(file: Any, starts: list[int]) -> None:
    """Add checksums to a Parquet file, which must be open for reading and writing.

    `starts` are the offsets at which ranges begin, ascending.
    """
    size = file.seek(0, 2)
    file.seek(size - _LENGTH.size)
    length, _ = _LENGTH.unpack(file.read(_LENGTH.size))
    footer_at = size - _LENGTH.size - length
    file.seek(footer_at)
    footer = file.read()
    file.seek(0)
    ranges = b""
    begins = 0
    for end in [*starts, footer_at]:
        if end > begins:
            ranges += _RANGE.pack(end, _checksum(file, end - begins))
            begins = end
    checksums = ranges + struct.pack("<II", len(ranges) // _RANGE.size, zlib.crc32(footer))
    file.seek(footer_at)
    file.write(checksums + struct.pack("<I8s", zlib.crc32(checksums), MAGIC) + footer)


def _checksum(file: Any, size: int) -> int:
    found = 0
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            raise OSError("the file became shorter while it was read")
        found = zlib.crc32(data, found)
        size -= len(data)
    return found


class CheckedFile:
    """A segment, open for reading by Arrow: `read` returns only verified bytes.

    `damaged` creates an exception from a sentence. A file without checksums is read unverified.
    Arrow calls it from one thread at a time.
    """

    def __init__(
        self,
        source: Any,
        damaged: Callable[[str], Exception],
    ) -> None:
        """Takes ownership of `source`, which must be seekable. Raises OSError and the exception
        that `damaged` creates."""
        self._source = source
        self._is_file = isinstance(source, io.IOBase)
        self._arrow = need("pyarrow", extra="broker", by="the record of a stream")
        self._damaged = damaged
        # The error of the last failed read, which is not damage: the next attempt may succeed.
        self.failure: OSError | None = None
        self._at = 0
        self._size = source.seek(0, 2)
        # The end offsets of the ranges, and their checksums.
        self._ends: list[int] = []
        self._sums: list[int] = []
        # The end of the file from offset `_checked` on, verified and in memory.
        self._checked = self._size
        self._tail = b""
        # The footer with its length and magic number; empty: the file has no checksums.
        self.footer = b""
        self._read_checksums()

    def _read_checksums(self) -> None:
        tail = self._last(min(self._size, TAIL_BYTES))
        if len(tail) < _LENGTH.size or not tail.endswith(_PARQUET):
            return  # Arrow will report what is wrong.
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
            raise self._damaged("the checksum of the footer does not match")
        for end, found in _RANGE.iter_unpack(checksums[: -_END.size]):
            self._ends.append(end)
            self._sums.append(found)
        self._checked = self._size - footer - before
        self._tail = tail[-footer - before :]
        self.footer = tail[-footer:]
        if not self._ends or self._ends[-1] != self._checked:
            raise self._damaged("its length has changed")

    def _last(self, size: int) -> bytes:
        return bytes(self._exactly(self._size - size, size))

    def _exactly(self, offset: int, size: int) -> memoryview:
        memory = self._allocate(size)
        self._fill(memory, offset)
        return memory

    def _allocate(self, size: int) -> memoryview:
        """Memory for this many bytes.

        Arrow allocates large buffers, because it reuses freed memory: getting new, zeroed memory
        from the system takes as long as filling it.
        """
        if size < _LARGE:
            return memoryview(bytearray(size))
        return memoryview(self._arrow.allocate_buffer(size))

    def _fill(self, memory: memoryview, offset: int) -> None:
        filled = 0
        try:
            self._source.seek(offset)
            while filled < len(memory):
                count = self._source.readinto(memory[filled:])
                if not count:
                    raise self._damaged(f"it is cut off at byte {offset + filled}")
                filled += count
        except OSError as problem:
            self.failure = problem
            raise

    def _ranges(self, first: int, last: int) -> memoryview:
        """Read and verify adjacent ranges."""
        low = self._ends[first - 1] if first else 0
        memory = self._allocate(self._ends[last] - low)
        if not self._is_file:
            self._fill(memory, low)
        for index in range(first, last + 1):
            begins = self._ends[index - 1] if index else 0
            found = 0
            while begins < self._ends[index]:
                end = min(begins + _CACHED, self._ends[index])
                piece = memory[begins - low : end - low]
                if self._is_file:
                    self._fill(piece, begins)
                found = zlib.crc32(piece, found)
                begins = end
            self._compare(index, found)
        return memory

    @property
    def has_checksums(self) -> bool:
        """Whether the file has checksums, so that reads are verified."""
        return bool(self._ends)

    def check_all(self, pause: Callable[[], None] = lambda: None) -> None:
        """Verify the whole file, calling `pause` between reads. Raises what `damaged` creates."""
        for index in range(len(self._ends)):
            begins = self._ends[index - 1] if index else 0
            found = 0
            while begins < self._ends[index]:
                size = min(_PIECE, self._ends[index] - begins)
                found = zlib.crc32(self._exactly(begins, size), found)
                begins += size
                pause()
            self._compare(index, found)

    def _compare(self, index: int, found: int) -> None:
        if found != self._sums[index]:
            begins = self._ends[index - 1] if index else 0
            raise self._damaged(
                f"the checksum of bytes {begins} to {self._ends[index] - 1} does not match"
            )

    # --- called by Arrow --------------------------------------------------------------------------

    def read(self, size: int = -1) -> bytes | memoryview:
        """The next bytes, at most `size`."""
        begins = self._at
        end = self._size if size < 0 else min(self._size, begins + size)
        if begins >= end:
            return b""
        self._at = end
        if not self._ends:
            return self._exactly(begins, end - begins)
        if begins >= self._checked:
            return self._tail[begins - self._checked : end - self._checked]
        # Verify whole ranges: Arrow reads one, or several adjacent ones.
        first = bisect_right(self._ends, begins)
        last = bisect_left(self._ends, min(end, self._checked))
        low = self._ends[first - 1] if first else 0
        data = self._ranges(first, last)
        found = data[begins - low : end - low]
        if end > self._checked:
            return bytes(found) + self._tail[: end - self._checked]
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the offset of the next `read`, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """The offset of the next `read`."""
        return self._at

    def close(self) -> None:
        """Close the underlying file."""
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
