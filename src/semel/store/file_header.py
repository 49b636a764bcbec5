"""The header of a SQLite database file: the first 100 bytes of page 1.

Fields and offsets: https://sqlite.org/fileformat2.html#the_database_header
"""

from typing import Final

HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"


class FileHeader:
    """The fields of the header. If the file is shorter, the missing bytes count as zero."""

    def __init__(self, data: bytes) -> None:
        """`data` is the beginning of a file, or its first page."""
        self.is_complete = len(data) >= HEADER_BYTES
        header = data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
        self.is_sqlite = header.startswith(_MAGIC)
        size = int.from_bytes(header[16:18], "big")
        self.page_size = 65_536 if size == 1 else size
        self.reserved_bytes = header[20]
        # The page count is valid only if the last writer has set it.
        self.has_page_count = header[24:28] == header[92:96]
        self.page_count = int.from_bytes(header[28:32], "big")
        self.first_free_page = int.from_bytes(header[32:36], "big")
        self.free_page_count = int.from_bytes(header[36:40], "big")
        self.user_version = int.from_bytes(header[60:64], "big")
