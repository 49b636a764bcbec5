"""Kill a landing with a landing file again and again, and account for every row of every table.

    segments of two nodes, written all the time ─▶ semel land --landing ─▶ tables, dead letters
                                                   semel land retry ──────▶ tables, dead letters

There is no commit over several tables, so the moments that matter are between two commits of one
batch: many kills are aimed there. The logs of the tables and Spark's notes show when it is, and
what a kill left behind (`pipeline_tables_lake.py`). What is counted is what it left, not what it
was aimed at.

Half of the kills are of a landing with the first landing file. Then a column and a table are added,
and the other half follows. All messages land, and the account is taken. Then the file is corrected,
and `semel land retry` is killed while the landing runs; a last retry ends, and the account is taken
again (`pipeline_tables_account.py`). The expected rows are in `pipeline_tables.py`.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.kills import pipeline_account
from tests.kills import pipeline_processes as processes
from tests.kills.account import Verdict
from tests.kills.pipeline_lake import COMMITTED, IDLE, PLANNED
from tests.kills.pipeline_processes import DRIVER, JVM, MAINTENANCE, TREE, WORKERS, Landing
from tests.kills.pipeline_run import ANY, LATE_SECONDS, LOOK_SECONDS, PASS_SECONDS, STARTING
from tests.kills.pipeline_tables import (
    ADDED,
    BUSY_TABLES,
    CORRECTED,
    DEAD_LETTERS,
    FILE,
    FIRST_TABLES,
    NOTES,
    STREAM,
    TEMPERATURE,
    Stage,
    expect,
)
from tests.kills.pipeline_tables_account import TablesCounts, settle_tables
from tests.kills.pipeline_tables_lake import BETWEEN, DEAD_ONLY, RetryEntries, Segments, TablesLake

WINDOWS = (STARTING, IDLE, PLANNED, DEAD_ONLY, BETWEEN, COMMITTED)
# Windows of a retry: nothing is committed, rows are but dead letters are not deleted, and both.
RETRY_BEFORE = "before its rows"
RETRY_BETWEEN = "between rows and dead letters"
RETRY_AFTER = "after its dead letters"

# How often each is chosen, once every one has had its turn.
WAYS = {TREE: 5, DRIVER: 2, JVM: 2, WORKERS: 2, MAINTENANCE: 3}
AIMS = {BETWEEN: 6, DEAD_ONLY: 2, COMMITTED: 1, PLANNED: 1, STARTING: 1, ANY: 2}
RETRY_AIMS = (RETRY_BETWEEN, RETRY_BEFORE, ANY)
SMALL_FILES = 4
BATCH_ROWS = (60, 250, 1_000)


@dataclass(frozen=True)
class TablesStrike:
    """One kill: of which part of a landing, and when."""

    way: str
    aim: str = ANY


@dataclass
class TablesRunPlan:
    """What to do."""

    strikes: list[TablesStrike]
    seed: int
    # Kills of `semel land retry`.
    retry_kills: int = 3
    # Messages in a second, of both nodes together.
    rate: float = 20.0
    # Batches that a landing makes before a kill is aimed at it, at most.
    batches: int = 4
    # Whether the account is also taken before the retry, and whether the last retry and the last
    # landing are repeated: nothing may come again.
    is_thorough: bool = True


def make_tables_strikes(kills: int, seed: int) -> list[TablesStrike]:
    """So many kills, every kind among them if there are enough."""
    random = Random(f"tables {seed}")
    ways, aims = _shuffled(WAYS, kills, random), _shuffled(AIMS, kills, random)
    found = []
    for way, aim in zip(ways, aims, strict=True):
        if way == MAINTENANCE:
            aim = ANY
        elif (way, aim) == (WORKERS, STARTING):
            # There are no workers yet while Spark starts.
            way = TREE
        found.append(TablesStrike(way, aim))
    return found


def _shuffled(weights: dict[str, int], count: int, random: Random) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        hand = [name for name, weight in weights.items() for _ in range(weight)]
        random.shuffle(hand)
        found += hand
    return found[:count]


@dataclass
class TablesResult:
    """What came of it."""

    seed: int
    # By the part that was killed, and the window that this left.
    windows: dict[str, Counter[str]] = field(default_factory=dict)
    aimed: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    # What the last retry of the corrected table did.
    retried: dict[str, Any] = field(default_factory=dict)
    landings: int = 0
    refused: int = 0
    batches: int = 0
    messages: int = 0
    # The account before the retry, and at the end.
    before: TablesCounts | None = None
    counts: TablesCounts = field(default_factory=TablesCounts)
    verdict: Verdict = field(default_factory=Verdict)
    sentences: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    @property
    def kills(self) -> int:
        return sum(sum(found.values()) for found in self.windows.values())

    def in_window(self, window: str) -> int:
        return sum(found[window] for found in self.windows.values())

    def summary(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "seed": self.seed,
            "kills": self.kills + sum(self.retries.values()),
            "of the landing, by what was killed": {
                way: sum(found.values()) for way, found in self.windows.items()
            },
            "and by what they left": {
                window: self.in_window(window) for window in WINDOWS if self.in_window(window)
            },
            "hit, of those aimed": {
                aim: f"{self.hit[aim]} of {self.aimed[aim]}" for aim in sorted(self.aimed)
            },
            "of the retry, by what they left": dict(self.retries),
            "last retry": self.retried,
            "landings": self.landings,
            "of these ended by the one before": self.refused,
            "messages": self.messages,
            "batches": self.batches,
            "tables": {
                name: f"{each.rows} rows, {each.commits} commits, {each.files} files,"
                f" {each.replaced} replaced, {each.orphans} orphans"
                for name, each in counts.tables.items()
            },
            "missing": counts.missing,
            "duplicated": counts.duplicated,
            "extra": counts.extra,
            "faults": sum(map(len, self.verdict.faults.values())),
            "seconds": round(self.seconds, 1),
            "load average": round(os.getloadavg()[0], 1),
        }

    def describe(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.summary().items()]
        lines += [f"said {times} times: {text}" for text, times in self.sentences.items()]
        return "\n".join([*lines, *self.verdict.fault_lines()])


class TablesRun:
    """One run of a plan."""

    def __init__(self, plan: TablesRunPlan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.say = say
        self.random = Random(plan.seed)
        self.result = TablesResult(plan.seed)
        self.root = folder / "root"
        self.file = folder / "landing.toml"
        self.lake = TablesLake(folder / "lake")
        self.segments = Segments(self.root, plan.seed, plan.rate)
        self.stage = Stage()
        # Busy tables of the landing file in use.
        self.busy = tuple(name for name in BUSY_TABLES if name != NOTES)
        self.landing: Landing | None = None
        self.landings: list[Landing] = []
        self.overlaps = False
        self.usual = 10.0

    def __call__(self) -> TablesResult:
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(FILE)
        try:
            self.segments.start()
            half = len(self.plan.strikes) // 2
            for at, strike in enumerate(self.plan.strikes):
                if at == half:
                    self.add_column_and_table()
                self.strike(strike)
                self.report()
            if self.stage.room_after is None:
                self.add_column_and_table()
            if self.plan.is_thorough:
                self.land_all()
                self.result.before = self.settle()
            self.retry()
            self.land_all()
            self.finish_retry()
            if self.plan.is_thorough:
                self.land_nothing()
            self.result.counts = self.settle()
            logs = [landing.log for landing in self.landings]
            pipeline_account.tracebacks(logs, self.result.verdict)
        finally:
            self.segments.stop()
            for landing in self.landings:
                landing.end()
        self.result.messages = sum(self.segments.last.values())
        self.result.seconds = time.monotonic() - began
        return self.result

    # --- the parts --------------------------------------------------------------------------------

    def start_landing(self) -> Landing:
        """Start a landing, if none runs."""
        if self.landing is None:
            self.overlaps = any(landing.survivors() for landing in self.landings)
            rows = self.random.choice(BATCH_ROWS)
            self.landing = self.make_landing("--interval", "100ms", "--max-rows", str(rows))
        return self.landing

    def make_landing(self, *arguments: str) -> Landing:
        given = ["--master", "local[2]", "--small-files", str(SMALL_FILES)]
        # All entries of the logs stay, so that they can be read without checkpoints.
        given += ["--log-entries", "1000000", *arguments]
        return self.make_process(given)

    def make_process(self, arguments: list[str], command: tuple[str, ...] = ()) -> Landing:
        self.result.landings += not command
        places = ["--root", str(self.root), "--lake", str(self.lake.folder)]
        places += ["--stream", STREAM, "--landing", str(self.file)]
        made = Landing(self.folder, len(self.landings) + 1, [*places, *arguments], command)
        self.landings.append(made)
        return made

    def wait(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        until = time.monotonic() + processes.PATIENCE
        while not reached():
            self.segments.check()
            assert time.monotonic() < until, what()
            time.sleep(0.01)

    def report(self) -> None:
        written = sum(self.segments.last.values())
        landed = [sum(self.lake.positions(name).values()) for name in (*FIRST_TABLES, NOTES)]
        least = min(landed[: len(landed) - (self.stage.room_after is None)])
        faults = sum(map(len, self.result.verdict.faults.values()))
        self.say(
            f"{self.result.kills} kills ({self.result.in_window(BETWEEN)} between two tables),"
            f" {sum(self.result.retries.values())} of retries, {written} messages,"
            f" {least} to {max(landed)} landed, {faults} faults"
        )

    # --- kills of a landing -----------------------------------------------------------------------

    def strike(self, strike: TablesStrike) -> None:
        """Wait for the moment that a kill is aimed at, kill, and find what is left behind."""
        if strike.way == MAINTENANCE:
            self.strike_maintenance()
            return
        landing = self.until_moment(strike.aim)
        window = self.kill(landing, strike.way)
        self.count(strike.way, strike.aim, window)
        if strike.way == WORKERS:
            self.after_workers(landing)
        elif strike.way == JVM:
            self.wait(lambda: not landing.is_alive(), landing.tail)
            self.check_end(landing)
            self.forget(landing)
        else:
            self.forget(landing)
        # Now and then the next one begins beside what is left of the last.
        if strike.way in (DRIVER, JVM) and self.random.random() < 0.5:
            self.wait(lambda: not landing.survivors(), landing.tail)

    def strike_maintenance(self) -> None:
        """Kill the process that compacts a table, alone or with the landing, during a pass."""
        while True:
            landing = self.until_batch()
            self.wait(
                lambda: not landing.is_alive() or bool(landing.targets(MAINTENANCE)),  # noqa: B023
                landing.tail,
            )
            time.sleep(self.random.random() * PASS_SECONDS)
            targets = landing.targets(MAINTENANCE)
            if targets and landing.is_alive():
                break
        # One whose maintenance was killed alone waits for a minute before the next pass.
        if self.random.random() < 0.3:
            processes.kill(targets)
            self.count(MAINTENANCE, ANY, self.lake.window(self.busy)[0])
            return
        processes.kill([*targets, *landing.targets(TREE)])
        landing.finish_tree()
        self.count(MAINTENANCE, ANY, self.lake.window(self.busy)[0])
        landing.process.wait()
        self.forget(landing)

    def kill(self, landing: Landing, way: str) -> str:
        """Kill this part of a landing; returns the window that it left."""
        targets = landing.targets(way)
        if not targets:
            self.wait(lambda: bool(landing.targets(way)) or not landing.is_alive(), landing.tail)
            targets = landing.targets(way)
        assert landing.is_alive(), f"it has ended by itself:\n{landing.tail()}"
        processes.kill(targets)
        if way == TREE:
            landing.finish_tree()
        window = self.lake.window(self.busy)[0]
        if way in (TREE, DRIVER):
            landing.process.wait()
        return window if landing.count("ready") else STARTING

    def count(self, way: str, aim: str, window: str) -> None:
        self.result.windows.setdefault(way, Counter())[window] += 1
        if aim != ANY:
            self.result.aimed[aim] += 1
            self.result.hit[aim] += window == aim

    def forget(self, landing: Landing) -> None:
        self.result.batches += landing.count("batch")
        self.landing = None

    def after_workers(self, landing: Landing) -> None:
        """A landing whose workers are killed continues with others, or ends and says why."""
        before = landing.count("batch")
        self.wait(lambda: not landing.is_alive() or landing.count("batch") > before, landing.tail)
        if not landing.is_alive():
            self.check_end(landing)
            self.forget(landing)

    def check_end(self, landing: Landing) -> None:
        """It had to end, and must say why in one sentence."""
        code = landing.process.returncode
        found = [event for event in landing.events() if event["event"] == "failed"]
        if code != 1 or len(found) != 1:
            self.result.verdict.blame("end", f"exit code {code}, {found}:\n{landing.tail()}")
            return
        sentence = found[0]["problem"]
        self.result.sentences[sentence] += 1
        if any(
            word in sentence
            for word in ("STREAM_FAILED", "SQLSTATE", "Errno", "None.None", "Traceback")
        ):
            self.result.verdict.blame("sentence", sentence)

    # --- moments ----------------------------------------------------------------------------------

    def until_batch(self, wanted: int = 1) -> Landing:
        """Wait until a landing has made this many batches since its start."""
        while True:
            landing = self.start_landing()
            self.wait(
                lambda: landing.count("batch") >= wanted or not landing.is_alive(),  # noqa: B023
                landing.tail,
            )
            if landing.is_alive():
                self.usual = landing.ready_seconds()
                return landing
            # Only one that overlaps another may end by itself.
            assert self.overlaps, f"it has ended by itself:\n{landing.tail()}"
            self.check_end(landing)
            self.result.refused += 1
            self.forget(landing)

    def until_moment(self, aim: str) -> Landing:
        if aim == STARTING:
            landing = self.start_landing()
            due = landing.started + self.random.random() * self.usual
            self.wait(lambda: time.monotonic() >= due or landing.count("ready") > 0, landing.tail)
            return landing if landing.is_alive() else self.until_batch()
        landing = self.until_batch(self.random.randrange(self.plan.batches) + 1)
        if aim == ANY:
            time.sleep(self.random.random())
            return landing if landing.is_alive() else self.until_batch()
        while not self.is_moment(landing, aim):
            landing = self.until_batch()
        return landing

    def is_moment(self, landing: Landing, aim: str) -> bool:
        """Wait for a new batch that is in this window; False if the landing has ended before."""
        until = time.monotonic() + processes.PATIENCE
        late = self.random.random() * LATE_SECONDS if self.random.random() < 0.3 else 0.0
        _, old = self.lake.window(self.busy)
        while landing.is_alive():
            assert time.monotonic() < until, f"no batch is {aim}:\n{landing.tail()}"
            window, batch = self.lake.window(self.busy)
            if window == aim and batch != old:
                if aim in (PLANNED, BETWEEN):
                    time.sleep(late)
                return landing.is_alive()
            time.sleep(LOOK_SECONDS)
        return False

    # --- the landing file changes -----------------------------------------------------------------

    def add_column_and_table(self) -> None:
        """Change the landing file after a kill between two tables."""
        self.strike(TablesStrike(TREE, BETWEEN))
        for landing in self.landings:
            self.wait_survivors(landing)
        self.stage.room_after = self.lake.positions(TEMPERATURE)
        self.file.write_text(ADDED)
        self.busy = BUSY_TABLES
        self.say(f"a column and a table are added; {TEMPERATURE} is at {self.stage.room_after}")

    def retry(self) -> None:
        """Correct the landing file, and kill retries while the landing runs."""
        self.end_landing()
        self.file.write_text(CORRECTED)
        self.segments.resume()
        for at in range(self.plan.retry_kills):
            self.until_batch()
            self.kill_retry(RETRY_AIMS[at % len(RETRY_AIMS)])
            self.report()

    def kill_retry(self, aim: str) -> None:
        """Kill a whole `semel land retry` at a moment, and find what it left."""
        rows, letters = self.lake.lakes[TEMPERATURE], self.lake.lakes[DEAD_LETTERS]
        retries = self.make_process([TEMPERATURE], ("retry",))
        begun = time.time()
        changed, deleted = RetryEntries(rows), RetryEntries(letters)
        due = begun + self.random.random() * (self.usual + 4) if aim == ANY else None

        def is_due() -> bool:
            if not retries.is_alive():
                return True
            if aim == RETRY_BETWEEN:
                return changed.is_seen()
            if aim == RETRY_BEFORE:
                # Spark has started, and has its workers.
                return bool(retries.targets(WORKERS))
            return due is not None and time.time() >= due

        until = time.monotonic() + processes.PATIENCE
        while not is_due():
            assert time.monotonic() < until, retries.tail()
            time.sleep(LOOK_SECONDS)
        if not retries.is_alive():
            if retries.process.returncode:
                self.result.verdict.blame("retry", f"it has failed:\n{retries.tail()}")
            self.result.retries["it had ended"] += 1
            return
        processes.kill(retries.targets(TREE))
        retries.finish_tree()
        window = RETRY_BEFORE
        if deleted.is_seen():
            window = RETRY_AFTER
        elif changed.is_seen():
            window = RETRY_BETWEEN
        self.result.retries[window] += 1

    def finish_retry(self) -> None:
        """Retry to the end, all tables; perhaps once more, which must find nothing to do."""
        self.stage.is_corrected = True
        for is_again in (False, True) if self.plan.is_thorough else (False,):
            last = self.make_process([], ("retry",))
            self.wait(lambda: not last.is_alive(), last.tail)  # noqa: B023
            if last.process.returncode:
                self.result.verdict.blame("retry", f"it has failed:\n{last.tail()}")
                return
            found = {each["table"]: each for each in json.loads(last.said.read_text())["tables"]}
            if not is_again:
                self.result.retried = found[TEMPERATURE]
            elif any(each["landed"] or each["known"] for each in found.values()):
                self.result.verdict.blame("retry", f"a second one lands again: {found}")

    # --- the end ----------------------------------------------------------------------------------

    def end_landing(self) -> None:
        """End a landing that runs by SIGTERM: what is sealed lands."""
        if self.landing is not None and self.landing.is_alive():
            landing = self.landing
            landing.process.terminate()
            self.wait_end(landing)
            self.forget(landing)
        for landing in self.landings:
            self.wait_survivors(landing)

    def land_all(self) -> None:
        """Write no more messages, and land all of them."""
        self.segments.pause()
        self.end_landing()
        last = self.make_landing("--once")
        self.wait_end(last)
        self.result.batches += last.count("batch")

    def land_nothing(self) -> None:
        """Land once more: every row is in its table."""
        again = self.make_landing("--once")
        self.wait_end(again)
        landed = [event["landed"] for event in again.events() if event["event"] == "ended"]
        if landed != [0]:
            self.result.verdict.blame("echo", f"{landed} rows land again")

    def settle(self) -> TablesCounts:
        self.say("comparing all rows by three readers")
        last = self.segments.last
        return settle_tables(self.lake.folder, expect(last, self.stage), last, self.result.verdict)

    def wait_end(self, landing: Landing) -> None:
        self.wait(lambda: not landing.is_alive(), landing.tail)
        code = landing.process.returncode
        if code:
            self.result.verdict.blame("end", f"it ends with {code}:\n{landing.tail()}")
        self.wait_survivors(landing)

    def wait_survivors(self, landing: Landing) -> None:
        """Nothing that worked for a landing stays when it is gone."""
        until = time.monotonic() + processes.PATIENCE
        while left := landing.survivors():
            if time.monotonic() > until:
                found = processes.members(landing.mark)
                self.result.verdict.blame("left behind", f"{[found.get(pid) for pid in left]}")
                return
            time.sleep(0.05)


def run_tables(
    plan: TablesRunPlan, folder: Path, say: Callable[[str], None] = lambda _: None
) -> TablesResult:
    return TablesRun(plan, folder, say)()
