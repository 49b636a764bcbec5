"""What a landing of several tables works on: segments that are written, tables that it leaves.

The tables are read without semel and without delta-rs, as in `pipeline_lake.py`. From their logs
and from Spark's notes follows in which *window* a landing was killed:

    idle                 every batch that was planned is done
    planned              a batch is planned, and nothing of it is committed
    dead letters only    dead letters are committed, and no table is
    between two tables   some tables are committed, and others are not
    committed            all tables are committed, Spark's note is not there

Only tables that nearly every batch has rows for are taken into account.
"""

import json
import os
import threading
from pathlib import Path
from random import Random

from tests.kills.pipeline_lake import COMMITTED, IDLE, PLANNED, Lake, modified
from tests.kills.pipeline_tables import (
    DEAD_LETTERS,
    FIRST_TABLES,
    NODES,
    NOTES,
    START,
    STEP,
    STREAM,
    payload_of,
    topic_of,
)
from tests.pipeline.made import write_messages

# Windows of a batch, beside those of one table.
DEAD_ONLY = "dead letters only"
BETWEEN = "between two tables"
# Rows of a segment, at most.
SEGMENT_ROWS = 40


class TablesLake:
    """The tables of a lake, and Spark's notes of the landing that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lakes = {name: Lake(folder, name) for name in (*FIRST_TABLES, NOTES, DEAD_LETTERS)}
        self.checkpoints = folder / "_checkpoints" / f"_landing-{STREAM}"

    def positions(self, table: str) -> dict[str, int]:
        """The last seq of each node that the log of a table claims."""
        numbers = self.lakes[table].read_log().numbers
        found = {node: numbers.get(f"semel/stream/{STREAM}/{node}", 0) for node in NODES}
        return {node: seq for node, seq in found.items() if seq}

    def run(self) -> Path | None:
        """The checkpoint of the last landing; each has its own."""
        runs = [each for each in self.checkpoints.glob("run-*") if (each / "offsets").is_dir()]
        return max(runs, key=lambda each: int(each.name[4:]), default=None)

    def window(self, tables: tuple[str, ...]) -> tuple[str, str]:
        """How far the last batch has come, and which batch that is."""
        run = self.run()
        planned = -1 if run is None else _last(run / "offsets")
        if run is None or planned <= _last(run / "commits"):
            return IDLE, ""
        offsets = run / "offsets" / str(planned)
        try:
            end = json.loads(offsets.read_text("utf-8").splitlines()[2])
        except (OSError, IndexError, ValueError):
            return PLANNED, ""  # it is being written
        since = modified(offsets)
        committed = [name for name in tables if self._landed_since(name, since)]
        lacking = [
            name
            for name in tables
            if any(self.positions(name).get(node, 0) < end.get(node, 0) for node in NODES)
        ]
        batch = f"{run.name} {planned}"
        if committed:
            return (BETWEEN if lacking else COMMITTED), batch
        return (DEAD_ONLY if self._landed_since(DEAD_LETTERS, since) else PLANNED), batch

    def _landed_since(self, table: str, since: float) -> bool:
        lake = self.lakes[table]
        log = lake.read_log()
        return log.landed_by >= 0 and modified(lake.entry(log.landed_by)) >= since


def _last(folder: Path) -> int:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


class Segments:
    """Writes segments of both nodes all the time, from a thread of its own."""

    def __init__(self, root: Path, seed: int, rate: float) -> None:
        self.root = root
        self.last = dict.fromkeys(NODES, 0)
        self._random = Random(f"segments {seed}")
        self._rate = rate
        self._paused = threading.Event()
        self._idle = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """Write nothing more until `resume`; returns when nothing is being written."""
        self._idle.clear()
        self._paused.set()
        assert self._idle.wait(60), "it does not pause"

    def resume(self) -> None:
        self._paused.clear()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._paused.is_set():
                    self._idle.set()
                    self._stopping.wait(0.05)
                    continue
                self._write()
        except Exception as problem:
            self._problem = problem

    def _write(self) -> None:
        node = self._random.choice(NODES)
        count = self._random.randint(1, SEGMENT_ROWS)
        write_messages(
            self.root,
            STREAM,
            node,
            self.last[node] + 1,
            count,
            start=START,
            step=STEP,
            topic=lambda seq: topic_of(node, seq),
            payload=lambda seq: payload_of(node, seq),
        )
        self.last[node] += count
        self._stopping.wait(count / self._rate)


class RetryEntries:
    """Whether the log of a table has an entry of a retry: one that is not of a landing.

    A retry adds rows, or deletes dead letters, without an app transaction; a compaction, which has
    none either, changes no data.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._version = lake.read_log().version
        self._is_seen = False

    def is_seen(self) -> bool:
        while not self._is_seen:
            try:
                lines = self._lake.entry(self._version).read_text("utf-8").splitlines()
                actions = [json.loads(line) for line in lines]
            except (FileNotFoundError, ValueError):
                return False
            self._version += 1
            changes = [each.get("add") or each.get("remove") for each in actions]
            is_change = any(each is not None and each["dataChange"] for each in changes)
            self._is_seen = is_change and not any("txn" in each for each in actions)
        return True
