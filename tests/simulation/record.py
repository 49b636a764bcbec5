"""The sealer and its segments, on a disk that loses what was not synced.

A segment comes about in steps, and a crash may come between any two of them:

    begin   the database notes the range            ─┐
    write   the rows, under a temporary name         │ a crash: once more, the same range
    sync    the bytes are safe                       │
    rename  the segment has its name                 │
    folder  the name is safe                        ─┘
    end     the database notes it, and deletes the rows

What the record says is then what a reader gets who goes by the ranges in the names, and behind
them the rows that the database has yet.
"""

import sqlite3
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from semel.mqtt.properties import TOPIC_ALIAS
from semel.store.database import Database
from semel.store.rows import properties_as_stored
from tests.simulation.clock import Broken, CountDown

# seq, client identifier, topic, payload
Row = tuple[int, str, str, bytes]

BEGIN: Final = 0
WRITE: Final = 1
SYNC: Final = 2
RENAME: Final = 3
FOLDER: Final = 4
END: Final = 5


def rows_of(database: Database, stream: int, after: int = 0) -> list[Row]:
    """What the database has of a stream, behind this seq."""
    found: list[Row] = []
    for *row, properties in database.connection.execute(
        "SELECT seq, client_id, topic, payload, properties FROM record WHERE stream_id = ?"
        " AND seq > ? ORDER BY seq",
        (stream, after),
    ):
        seq, client_id, topic, payload = row
        if properties and any(
            item[0] == TOPIC_ALIAS for item in properties_as_stored(properties).items
        ):
            # It means something on the publisher's connection alone.
            raise Broken(f"row {seq} of stream {stream} has a topic alias")
        found.append((seq, client_id, topic, payload))
    return found


@dataclass
class File:
    """A segment: whether its bytes, and its name, are safe."""

    rows: list[Row]
    first: int
    last: int
    named: bool = False
    bytes_safe: bool = False
    name_safe: bool = False

    @property
    def name(self) -> tuple[int, int]:
        """Its range, which is its name."""
        return self.first, self.last


class Root:
    """Where the segments of one stream are."""

    def __init__(self) -> None:
        self.files: list[File] = []

    def crash(self, chance: int) -> None:
        """Power is lost: a name that is not safe may be there or not, and bytes may be missing."""
        kept: list[File] = []
        for file in self.files:
            if file.named and (file.name_safe or chance & 1):
                if not file.bytes_safe:
                    file.rows = file.rows[: len(file.rows) // 2]
                file.bytes_safe = file.name_safe = True
                kept.append(file)
            chance >>= 1
        self.files = kept

    def segments(self) -> list[File]:
        """What a reader looks at: no file whose range another covers."""
        named = sorted(
            (file for file in self.files if file.named), key=lambda file: (file.first, -file.last)
        )
        found: list[File] = []
        for file in named:
            if not found or file.last > found[-1].last:
                found.append(file)
        return found

    def rows(self) -> list[Row]:
        """The record as far as it is sealed."""
        rows: list[Row] = []
        last = 0
        for file in self.segments():
            if file.first <= last:
                raise Broken(f"segment {file.first}-{file.last} overlaps one that ends at {last}")
            if [row[0] for row in file.rows] != list(range(file.first, file.last + 1)):
                raise Broken(f"segment {file.first}-{file.last} has not all of its rows")
            rows += file.rows
            last = file.last
        return rows

    def compact(self, chance: int) -> None:
        """Make one large segment of two small ones; or delete what was covered for long enough."""
        segments = self.segments()
        if chance & 1:
            self.files = [file for file in self.files if file in segments or not file.name_safe]
            return
        for one, other in pairwise(segments):
            if one.name_safe and other.name_safe and one.last + 1 == other.first:
                rows = one.rows + other.rows
                self.files.append(File(rows, one.first, other.last, True, True, True))
                return


class Sealer:
    """Seals one stream, a step at a time."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.root = Root()
        self.step = BEGIN
        self._file: File | None = None

    def go_on(self, database: Database, chance: int) -> None:
        """The next step."""
        step = self.step
        self.step = BEGIN if step == END else step + 1
        if step == BEGIN:
            self.begin(database, chance)
        elif step == WRITE:
            self.write(database)
        elif step == SYNC:
            self.file.bytes_safe = True
        elif step == RENAME:
            # A second attempt takes the place of the first.
            self.root.files = [
                other
                for other in self.root.files
                if other is self.file or not other.named or other.name != self.file.name
            ]
            self.file.named = True
        elif step == FOLDER:
            self.file.name_safe = True
        else:
            self.end(database)

    @property
    def file(self) -> File:
        """The segment that it is at."""
        assert self._file is not None
        return self._file

    def sealed(self, database: Database) -> tuple[int, int]:
        """Up to which row it has sealed, and up to which it is about to."""
        for row in database.streams():
            if row.id == self.stream:
                return row.sealed_seq, row.sealing_seq
        raise Broken(f"stream {self.stream} is not there")

    def begin(self, database: Database, chance: int) -> None:
        """Choose a range, and have it noted."""
        sealed, sealing = self.sealed(database)
        if sealing > sealed:
            # A crash came between: the same range again.
            return
        rows = rows_of(database, self.stream, sealed)
        if not rows:
            self.step = BEGIN
            return
        # All that there is, or less.
        through = rows[(-1, 0, len(rows) // 2, -1)[chance & 3]][0]
        database.begin_sealing(self.stream, through)

    def write(self, database: Database) -> None:
        """Write its rows."""
        sealed, sealing = self.sealed(database)
        rows = [row for row in rows_of(database, self.stream, sealed) if row[0] <= sealing]
        self._file = File(rows, sealed + 1, sealing)
        self.root.files.append(self._file)

    def end(self, database: Database) -> None:
        """Have the rows deleted."""
        database.end_sealing(self.stream, self.sealed(database)[1])

    def crash(self, database: Database, chance: int) -> None:
        """The process is gone; a crash may also come while the rows are being deleted."""
        if self.step == END and chance & 2:
            database.connection.set_progress_handler(CountDown(chance >> 2 & 7), 10)
            try:
                self.end(database)
            except sqlite3.OperationalError:
                pass
            finally:
                database.connection.set_progress_handler(None, 0)
        self.root.crash(chance >> 5)
        self.step = BEGIN
        self._file = None
        sealed, sealing = self.sealed(database)
        if sealed and sealed == sealing:
            # What was being deleted is deleted now.
            database.end_sealing(self.stream, sealed)

    def record(self, database: Database) -> list[Row]:
        """The whole record: each row once, by its seq."""
        rows = self.root.rows()
        known = {row[0]: row for row in rows}
        for row in rows_of(database, self.stream):
            if known.setdefault(row[0], row) != row:
                raise Broken(f"row {row[0]} is one in its segment and another in the database")
        return [known[seq] for seq in sorted(known)]
