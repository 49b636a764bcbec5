"""What a landing leaves on disk, read by whoever kills it: the Delta log and Spark's notes.

Read without semel and without delta-rs: an entry of the log is a file of JSON lines, a batch that
Spark has planned is a file in `offsets`, one that it has done a file in `commits`. From these
follows in which *window* a landing was killed:

    idle        every batch that was planned is done
    planned     a batch is planned, and no file of it is there
    writing     a Parquet file is there, but not its end
    written     Parquet files are there that no entry of the log names
    committed   the entry of the log is there, Spark's note is not

A file that no entry names is an orphan, and stays one.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IDLE = "idle"
PLANNED = "planned"
WRITING = "writing"
WRITTEN = "written"
COMMITTED = "committed"
WINDOWS = (IDLE, PLANNED, WRITING, WRITTEN, COMMITTED)

# The end, and the beginning, of every Parquet file.
MAGIC = b"PAR1"
# App transactions whose numbers only grow: batches of queries, rows of nodes, and dead letters of
# tables and nodes.
QUERY = "semel/query/"
STREAM = "semel/stream/"
DEAD = "semel/dead/"


@dataclass
class Log:
    """All that the entries of a table's log say, as far as they were read."""

    # The version that comes next.
    version: int = 0
    # By its path below the table, the last `add` of a file that was not removed.
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Every file that an entry ever named.
    named: set[str] = field(default_factory=set)
    # Files that were added twice.
    again: list[str] = field(default_factory=list)
    # App transactions: the last number of each, and every number that was not above the last.
    numbers: dict[str, int] = field(default_factory=dict)
    backwards: list[str] = field(default_factory=list)
    # The last version with an app transaction: of those that landed, and did not only compact.
    landed_by: int = -1

    def take(self, actions: Iterable[dict[str, Any]]) -> None:
        for action in actions:
            if "add" in action:
                path = str(action["add"]["path"])
                if path in self.named:
                    self.again.append(path)
                self.named.add(path)
                self.files[path] = action["add"]
            elif "remove" in action:
                self.files.pop(str(action["remove"]["path"]), None)
            elif "txn" in action:
                app, number = str(action["txn"]["appId"]), int(action["txn"]["version"])
                self.landed_by = self.version
                if app.startswith((QUERY, STREAM, DEAD)) and number <= self.numbers.get(app, -1):
                    self.backwards.append(f"{app} from {self.numbers[app]} to {number}")
                self.numbers[app] = number


def modified(path: Path) -> float:
    """When a file was last written to; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class Lake:
    """One table of a lake and the checkpoint of its landing."""

    def __init__(self, folder: Path, table: str = "messages") -> None:
        self.table = folder / table
        self.checkpoint = folder / "_checkpoints" / table
        self.log = Log()
        # When the landing of now began: what is older is none of its doing.
        self.began = 0.0

    # --- the Delta log ----------------------------------------------------------------------------

    def entry(self, version: int) -> Path:
        return self.table / "_delta_log" / f"{version:020}.json"

    def read_log(self) -> Log:
        """Read the entries that have come since."""
        while True:
            try:
                text = self.entry(self.log.version).read_text("utf-8")
                actions = [json.loads(line) for line in text.splitlines()]
            except (FileNotFoundError, ValueError):
                # It is not there, or not there whole.
                return self.log
            self.log.take(actions)
            self.log.version += 1

    # --- the files --------------------------------------------------------------------------------

    def parquet(self) -> set[str]:
        """All Parquet files of the table, as the log names them."""
        found: set[str] = set()
        pending = [str(self.table)]
        while pending:
            try:
                entries = list(os.scandir(pending.pop()))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.endswith(".parquet"):
                    found.add(os.path.relpath(entry.path, self.table))
                elif entry.name != "_delta_log" and entry.is_dir():
                    pending.append(entry.path)
        return found

    def is_whole(self, path: str) -> bool:
        """Whether a Parquet file has its end."""
        with (self.table / path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < 2 * len(MAGIC):
                return False
            file.seek(-len(MAGIC), os.SEEK_END)
            return file.read() == MAGIC

    # --- Spark's notes ----------------------------------------------------------------------------

    def _last(self, kind: str) -> int:
        """The last batch that has a note of this kind."""
        try:
            names = os.listdir(self.checkpoint / kind)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def planned(self) -> int:
        return self._last("offsets")

    def done(self) -> int:
        return self._last("commits")

    def query(self) -> str | None:
        """The id that this checkpoint has given to its query."""
        try:
            found: str = json.loads((self.checkpoint / "metadata").read_text("utf-8"))["id"]
        except (FileNotFoundError, ValueError):
            return None
        return found

    # --- both -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A landing is about to start."""
        self.began = time.time()

    def _since(self, planned: int) -> float:
        """When work on the batch that is not done can have begun at the earliest."""
        notes = (f"offsets/{planned}", f"commits/{planned - 1}")
        return max(self.began, *(modified(self.checkpoint / note) for note in notes))

    def window(self) -> str:
        """How far the last batch has come."""
        done, planned = self.done(), self.planned()
        if planned <= done:
            return IDLE
        log = self.read_log()
        if log.numbers.get(f"{QUERY}{self.query()}", -1) >= planned:
            return COMMITTED
        since = self._since(planned)
        orphans = self.parquet() - log.named
        # A batch that is done again leaves orphans, too, if its rows were in the table before.
        new = [path for path in orphans if modified(self.table / path) >= since]
        if not new:
            return PLANNED
        return WRITTEN if all(self.is_whole(path) for path in new) else WRITING
