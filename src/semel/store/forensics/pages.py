"""Reads the rows of a SQLite database page by page, without SQLite.

SQLite stops at the first damaged page, but a repair needs the rows after it, too. Each b-tree is
walked from its root down, and an unreadable page costs only the pages below it. These pages are
neither reached nor free: they are `strays`, and their rows are read as well, though it is unknown
to which table they belong.

    page 1          100 bytes of file header, then the root page of sqlite_schema
    a page          type, free block, cells, their start, fragments, (last child,) cell pointers
    a cell          (child,) (size of payload,) (rowid,) payload (, overflow page)
    a payload       size of header, types …, values …

Nothing in the file is trusted: every offset is checked against its page, and no page is visited
twice. If the log has a newer version of a page, that is used.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from semel.store.file_header import HEADER_BYTES, FileHeader
from semel.store.forensics.log_frames import intact_frames
from semel.store.schema import PAGE_BYTES, VERSION, Value
from semel.store.wal import FRAME_BYTES, WriteAheadLog, log_path

INDEX_INTERIOR: Final = 2
TABLE_INTERIOR: Final = 5
INDEX_LEAF: Final = 10
TABLE_LEAF: Final = 13
_INTERIOR: Final = (INDEX_INTERIOR, TABLE_INTERIOR)
_LEAVES: Final = (INDEX_LEAF, TABLE_LEAF)
_TABLE: Final = (TABLE_INTERIOR, TABLE_LEAF)

# A limit above the depth of any b-tree that fits into a file.
_DEPTH: Final = 40
# The size of an integer in bytes, by its serial type.
_INTEGERS: Final = (0, 1, 2, 3, 4, 6, 8)
_REAL: Final = 7
_ZERO: Final = 8
_ONE: Final = 9
_FIRST_BLOB: Final = 12


class Unreadable(Exception):
    """A page or a cell is damaged."""


class PageRow:
    """A row as it is stored. In a table with a rowid, the value of that column is None."""

    def __init__(self, values: tuple[Value, ...], rowid: int | None) -> None:
        self.values = values
        self.rowid = rowid


class Gap:
    """A place where rows may be missing: a page that cannot be read, and why."""

    def __init__(self, page: int, why: str) -> None:
        self.page = page
        self.why = why


class Pages:
    """The pages of a database file and its log. Nobody may write these files meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._log: BinaryIO | None = None
        header = FileHeader(self._file.read(HEADER_BYTES))
        self.page_size = header.page_size
        if self.page_size < 512 or self.page_size & (self.page_size - 1):
            # The header is damaged: assume our own page size.
            self.page_size = PAGE_BYTES
        # By page number: the offset of its last version in the log.
        self._log_offsets: dict[int, int] = {}
        # The number of frames that are used although their checksums are wrong.
        self.broken_frames = 0
        # The number of commits in the log that are not used: the last one, if it is incomplete.
        self.lost_commits = 0
        pages = 0
        log = log_path(path)
        if log.exists() and log.stat().st_size:
            self._log = log.open("rb")
            pages = self._use_log(WriteAheadLog(log, self.page_size))
        self.count = pages or -(-path.stat().st_size // self.page_size)
        # Pages that have been visited, including overflow pages.
        self.used: set[int] = set()
        # The size of a page without the bytes that are reserved at its end.
        reserved = header.reserved_bytes if header.is_complete else 0
        self.usable = self.page_size - reserved if reserved <= 32 else self.page_size

    def _use_log(self, log: WriteAheadLog) -> int:
        """Use all commits, except an incomplete last one, because nothing proves that it was ever
        synced. Returns the number of pages of the database after the last used commit."""
        self.page_size = log.page_size
        intact = intact_frames(log)
        through = log.committed
        if not all(intact[log.synced : through]):
            through = log.synced
            self.lost_commits = log.commits(through)
        count = 0
        for frame in range(through):
            page, pages = log.frames[frame]
            self.broken_frames += not intact[frame]
            self._log_offsets[page] = log.offset(frame) + FRAME_BYTES
            if pages and intact[frame]:
                count = pages
        return count

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> "Pages":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def page(self, number: int) -> bytes:
        """The page with this number, from 1. Raises Unreadable."""
        if not 1 <= number <= self.count:
            raise Unreadable(f"there is no page {number}")
        offset = self._log_offsets.get(number)
        if offset is not None and self._log is not None:
            self._log.seek(offset)
            data = self._log.read(self.page_size)
        else:
            self._file.seek((number - 1) * self.page_size)
            data = self._file.read(self.page_size)
        if len(data) < self.page_size:
            raise Unreadable(f"page {number} is incomplete")
        return data

    @property
    def version(self) -> int | None:
        """The format of the store, if the first page can be read."""
        try:
            header = FileHeader(self.page(1))
        except Unreadable:
            return None
        is_store = header.is_sqlite and 1 <= header.user_version <= VERSION
        return header.user_version if is_store else None

    def free(self) -> set[int]:
        """The pages on the freelist. Raises Unreadable if it is damaged."""
        header = FileHeader(self.page(1))
        if not header.is_sqlite:
            raise Unreadable("page 1 is not the first page of a database")
        found: set[int] = set()
        trunk, stated = header.first_free_page, header.free_page_count
        while trunk:
            data = self.page(trunk)
            following, count = struct.unpack_from(">II", data)
            if trunk in found or count > self.page_size // 4 - 2:
                raise Unreadable(f"page {trunk} is not a page of the freelist")
            found.add(trunk)
            found.update(struct.unpack_from(f">{count}I", data, 8))
            trunk = following
        if len(found) != stated:
            raise Unreadable(f"the freelist has {len(found)} pages instead of {stated}")
        return found

    def tables(self) -> Iterator[tuple[str, str, int]]:
        """Type, name and root page of each readable entry of sqlite_schema."""
        for found in self.walk(1):
            if isinstance(found, PageRow) and len(found.values) == 5:
                kind, name, _, root, _ = found.values
                if isinstance(kind, str) and isinstance(name, str) and isinstance(root, int):
                    yield kind, name, root

    def walk(self, root: int) -> Iterator[PageRow | Gap]:
        """The rows of a b-tree in its order, and the gaps between them."""
        yield from self._walk(root, None, 0)

    def _walk(self, number: int, of_table: bool | None, depth: int) -> Iterator[PageRow | Gap]:
        if number in self.used or depth > _DEPTH:
            yield Gap(number, f"page {number} is used twice")
            return
        try:
            page = Page(self, number)
            if of_table is not None and of_table != page.is_table:
                raise Unreadable(f"page {number} belongs to another type of b-tree")
        except Unreadable as problem:
            yield Gap(number, str(problem))
            return
        self.used.add(number)
        for cell in range(page.cells):
            try:
                child = page.child(cell)
            except Unreadable as problem:
                yield Gap(number, str(problem))
                continue
            if child:
                yield from self._walk(child, page.is_table, depth + 1)
            if page.has_rows:
                try:
                    yield page.row(cell)
                except Unreadable as problem:
                    yield Gap(number, str(problem))
        if page.last_child:
            yield from self._walk(page.last_child, page.is_table, depth + 1)

    def strays(self, free: set[int]) -> Iterator[tuple[bool, PageRow | Gap]]:
        """The rows of pages that are neither visited nor free, and whether their table has a rowid.
        Call it after all b-trees have been walked."""
        for number in range(2, self.count + 1):
            if number in self.used or number in free:
                continue
            try:
                page = Page(self, number)
            except Unreadable:
                # Most likely an overflow page.
                continue
            if not page.has_rows:
                continue
            self.used.add(number)
            for cell in range(page.cells):
                try:
                    yield page.is_table, page.row(cell)
                except Unreadable as problem:
                    yield page.is_table, Gap(number, str(problem))

    def overflow(self, first: int, size: int) -> bytes:
        """The remaining `size` bytes of a payload, from its overflow pages."""
        parts: list[bytes] = []
        number = first
        while size > 0:
            data = self.page(number)
            if number in self.used:
                raise Unreadable(f"page {number} is used twice")
            self.used.add(number)
            part = data[4 : min(self.usable, size + 4)]
            parts.append(part)
            size -= len(part)
            number = int.from_bytes(data[:4], "big")
        return b"".join(parts)


class Page:
    """One page of a b-tree, and its cells."""

    def __init__(self, pages: Pages, number: int) -> None:
        self._pages = pages
        self._number = number
        self._data = pages.page(number)
        self._start = HEADER_BYTES if number == 1 else 0
        kind = self._data[self._start]
        self.is_table = kind in _TABLE
        self.is_interior = kind in _INTERIOR
        if not self.is_interior and kind not in _LEAVES:
            raise Unreadable(f"page {number} is not a page of a b-tree")
        # A table with rowids has rows in its leaves only.
        self.has_rows = kind != TABLE_INTERIOR
        self.cells = self._two(self._start + 3)
        self._pointers = self._start + (12 if self.is_interior else 8)
        if self._pointers + 2 * self.cells > len(self._data):
            raise Unreadable(f"page {number} cannot have {self.cells} cells")
        self.last_child = 0
        if self.is_interior:
            self.last_child = self._four(self._start + 8)

    def _two(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 2], "big")

    def _four(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 4], "big")

    def _cell(self, cell: int) -> int:
        at = self._two(self._pointers + 2 * cell)
        if not self._pointers + 2 * self.cells <= at <= len(self._data) - 4:
            raise Unreadable(f"a cell of page {self._number} points outside the page")
        return at

    def child(self, cell: int) -> int:
        """The child page before a cell; 0 in a leaf."""
        return self._four(self._cell(cell)) if self.is_interior else 0

    def row(self, cell: int) -> PageRow:
        """The row in a cell."""
        at = self._cell(cell)
        if self.is_interior:
            at += 4
        size, at = varint(self._data, at)
        rowid: int | None = None
        if self.is_table:
            rowid, at = varint(self._data, at)
            rowid -= (rowid >> 63) << 64
        local = self._local(size)
        if at + local > len(self._data) or size > self._pages.count * self._pages.page_size:
            raise Unreadable(f"a cell of page {self._number} is too long")
        payload = self._data[at : at + local]
        if local < size:
            at += local
            if at + 4 > len(self._data):
                raise Unreadable(f"a cell of page {self._number} lacks its overflow page")
            payload += self._pages.overflow(self._four(at), size - local)
        return PageRow(read_payload(payload), rowid)

    def _local(self, size: int) -> int:
        """How many bytes of a payload are in the page itself."""
        usable = self._pages.usable
        least = (usable - 12) * 32 // 255 - 23
        most = usable - 35 if self.is_table else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        local = least + (size - least) % (usable - 4)
        return local if local <= most else least


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer of one to nine bytes, and the offset after it."""
    value = 0
    for index in range(9):
        if at + index >= len(data):
            raise Unreadable("an integer extends beyond its page")
        byte = data[at + index]
        if index == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    raise AssertionError


def read_payload(payload: bytes) -> tuple[Value, ...]:
    """The values of a row. Text that is not UTF-8 is decoded with surrogates."""
    header, at = varint(payload, 0)
    if header > len(payload):
        raise Unreadable("the header of a row is longer than the row")
    types: list[int] = []
    while at < header:
        kind, at = varint(payload, at)
        types.append(kind)
    if at != header:
        raise Unreadable("the header of a row has another length than it states")
    values: list[Value] = []
    for kind in types:
        value, at = _read_value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise Unreadable("a row is longer than its values")
    return tuple(values)


def _read_value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in (_ZERO, _ONE):
        return kind - _ZERO, at
    if kind < _REAL:
        size = _INTEGERS[kind]
    elif kind == _REAL:
        size = 8
    elif kind < _FIRST_BLOB:
        raise Unreadable(f"type {kind} does not exist")
    else:
        size = (kind - _FIRST_BLOB) // 2
    data = payload[at : at + size]
    if len(data) < size:
        raise Unreadable("a row is shorter than its values")
    if kind < _REAL:
        return int.from_bytes(data, "big", signed=True), at + size
    if kind == _REAL:
        real: float = struct.unpack(">d", data)[0]
        return real, at + size
    if kind % 2:
        return data.decode("utf-8", "surrogateescape"), at + size
    return data, at + size
