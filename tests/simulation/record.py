"""The sealer and its segments, on a disk that loses unsynced data.

A segment is created in steps, and a crash may occur between any two of them:

    begin   the database stores the range           ─┐
    write   the rows, under a temporary name         │ after a crash: again, with the same range
    sync    the bytes are durable                    │
    rename  the segment has its name                 │
    folder  the name is durable                     ─┘
    end     the database marks the range as sealed, and deletes the rows

The record is what a reader gets: the segments, selected by the ranges in their names, followed by
the rows that are still in the database.
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
    """The rows of a stream in the database, after this seq."""
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
            # An alias is only valid on the publisher's connection.
            raise Broken(f"row {seq} of stream {stream} has a topic alias")
        found.append((seq, client_id, topic, payload))
    return found


@dataclass
class File:
    """A segment; whether its bytes and its name are durable."""

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
    """The segments of one stream."""

    def __init__(self) -> None:
        self.files: list[File] = []

    def crash(self, chance: int) -> None:
        """Lose power: a name that is not durable may be lost, and bytes may be missing."""
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
        """The segments that a reader selects: none whose range another covers."""
        named = sorted(
            (file for file in self.files if file.named), key=lambda file: (file.first, -file.last)
        )
        found: list[File] = []
        for file in named:
            if not found or file.last > found[-1].last:
                found.append(file)
        return found

    def rows(self) -> list[Row]:
        """The sealed rows."""
        rows: list[Row] = []
        last = 0
        for file in self.segments():
            if file.first <= last:
                raise Broken(f"segment {file.first}-{file.last} overlaps one that ends at {last}")
            if [row[0] for row in file.rows] != list(range(file.first, file.last + 1)):
                raise Broken(f"segment {file.first}-{file.last} lacks some of its rows")
            rows += file.rows
            last = file.last
        return rows

    def compact(self, chance: int) -> None:
        """Merge two small segments into a large one, or delete covered segments."""
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
        """Execute the next step."""
        step = self.step
        self.step = BEGIN if step == END else step + 1
        if step == BEGIN:
            self.begin(database, chance)
        elif step == WRITE:
            self.write(database)
        elif step == SYNC:
            self.file.bytes_safe = True
        elif step == RENAME:
            # A second attempt replaces the first.
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
        """The segment in progress."""
        assert self._file is not None
        return self._file

    def sealed(self, database: Database) -> tuple[int, int]:
        """The last sealed seq, and the last seq of the range that is being sealed."""
        for row in database.streams():
            if row.id == self.stream:
                return row.sealed_seq, row.sealing_seq
        raise Broken(f"stream {self.stream} does not exist")

    def begin(self, database: Database, chance: int) -> None:
        """Choose a range, and store it in the database."""
        sealed, sealing = self.sealed(database)
        if sealing > sealed:
            # After a crash: the same range again.
            return
        rows = rows_of(database, self.stream, sealed)
        if not rows:
            self.step = BEGIN
            return
        # All rows, or fewer.
        through = rows[(-1, 0, len(rows) // 2, -1)[chance & 3]][0]
        database.begin_sealing(self.stream, through)

    def write(self, database: Database) -> None:
        """Write its rows."""
        sealed, sealing = self.sealed(database)
        rows = [row for row in rows_of(database, self.stream, sealed) if row[0] <= sealing]
        self._file = File(rows, sealed + 1, sealing)
        self.root.files.append(self._file)

    def end(self, database: Database) -> None:
        """Delete the sealed rows from the database."""
        database.end_sealing(self.stream, self.sealed(database)[1])

    def crash(self, database: Database, chance: int) -> None:
        """Crash the process, possibly while it deletes rows."""
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
            # Finish the interrupted deletion.
            database.end_sealing(self.stream, sealed)

    def record(self, database: Database) -> list[Row]:
        """The whole record: each row once, by seq."""
        rows = self.root.rows()
        known = {row[0]: row for row in rows}
        for row in rows_of(database, self.stream):
            if known.setdefault(row[0], row) != row:
                raise Broken(f"row {row[0]} differs between its segment and the database")
        return [known[seq] for seq in sorted(known)]
