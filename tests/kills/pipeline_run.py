"""Kill every part of a pipeline under load, again and again, and account for every row.

    publishers ─▶ broker A ─▶ sealer ──────────────────────▶ node a ┐
                                                                    ├ root ─▶ semel land ─▶ table
    publishers ─▶ broker B ─▶ semel ingest ─▶ its sealer ──▶ node b ┘

The publishers are raw clients with durable sessions that come back after each kill. Both nodes are
of one stream, and land in one table, in many small batches. Every process but the publishers is
killed with SIGKILL, and Spark at moments that the lake itself shows: when a batch is planned, when
files of it are there that no entry of the Delta log names, when the entry is there that Spark has
not noted. What a kill left behind is what is counted, not what it was aimed at. The landing
compacts its table all the time, and is killed in the midst of that, too.

In the end all is sealed, `semel land --once` lands the rest, and `pipeline_account` compares.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.kills import clients, pipeline_account, pipeline_lake
from tests.kills import pipeline_processes as processes
from tests.kills.account import Verdict
from tests.kills.brokers import PATIENCE, STREAM, Broker, free_port, semel
from tests.kills.driver import Driver
from tests.kills.pipeline_account import Counts, Node
from tests.kills.pipeline_lake import COMMITTED, PLANNED, WRITTEN, Lake
from tests.kills.pipeline_processes import (
    DRIVER,
    JVM,
    MAINTENANCE,
    TREE,
    WORKERS,
    Landing,
    Recorder,
)
from tests.kills.record import sealed_through
from tests.kills.wire import V5, V311

SPARK = "Spark"
BROKER = "broker"
SEALER = "sealer"
INGEST = "ingest"
# Moments for Spark beside the windows: while it starts, and any.
STARTING = "starting"
ANY = "any"

# How often each is chosen, once every one has had its turn.
SPARK_WAYS = {TREE: 5, DRIVER: 2, JVM: 2, WORKERS: 1}
SPARK_AIMS = {WRITTEN: 4, COMMITTED: 4, PLANNED: 2, STARTING: 2, ANY: 1}
OTHERS = (BROKER, SEALER, INGEST, MAINTENANCE)
# Of 100 kills so many are of Spark, which takes its time to come back.
SPARK_SHARE = 40
# A landing compacts its table when it has made this many commits.
SMALL_FILES = 5
# A pass of maintenance takes about this many seconds: a kill comes at any moment of it.
PASS_SECONDS = 0.8
# A landing takes so many rows at most in a batch, now this and now that.
BATCH_ROWS = (20, 60, 250)
LOOK_SECONDS = 0.001
# So many seconds is the latest that a kill comes after the moment it was aimed at, if not at once.
LATE_SECONDS = 0.08


@dataclass(frozen=True)
class Strike:
    """One kill: of whom, of which part of it, and when."""

    target: str
    way: str = ""
    aim: str = ANY


@dataclass
class Plan:
    """What to do."""

    strikes: list[Strike]
    seed: int
    # Messages in a second for each of the two brokers.
    rate: float = 30.0
    # Seconds before a kill that is not aimed, at most.
    pause: float = 1.0
    # Batches that a landing makes before a kill is aimed at it, at most.
    batches: int = 6
    # Land once more in the end, without a checkpoint: nothing may come again.
    echo: bool = True


def make_strikes(kills: int, seed: int) -> list[Strike]:
    """So many kills, every kind among them if there are enough."""
    random = Random(f"strikes {seed}")
    many = max(1, round(kills * SPARK_SHARE / 100))
    ways = _dealt(SPARK_WAYS, many, random)
    aims = _dealt(SPARK_AIMS, many, random)
    spark = [
        # There are no workers yet while Spark starts.
        Strike(SPARK, TREE if (way, aim) == (WORKERS, STARTING) else way, aim)
        for way, aim in zip(ways, aims, strict=True)
    ]
    others = [Strike(OTHERS[at % len(OTHERS)]) for at in range(kills - many)]
    random.shuffle(others)
    strikes: list[Strike] = []
    for at, strike in enumerate(spark):
        share = len(others) * at // many, len(others) * (at + 1) // many
        strikes += [*others[slice(*share)], strike]
    return strikes


def _dealt(weights: dict[str, int], count: int, random: Random) -> list[str]:
    """So many of these, by their weights."""
    found: list[str] = []
    while len(found) < count:
        hand = [name for name, weight in weights.items() for _ in range(weight)]
        random.shuffle(hand)
        found += hand
    return found[:count]


@dataclass
class Result:
    """What came of it."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    # Kills of Spark: by the part that was killed and the window that this left.
    windows: dict[str, Counter[str]] = field(default_factory=dict)
    # Of the kills that were aimed at a window, those that hit it.
    aimed: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    landings: int = 0
    # Landings that found another at work on their checkpoint, and ended.
    refused: int = 0
    batches: int = 0
    sent: int = 0
    counts: Counts = field(default_factory=Counts)
    verdict: Verdict = field(default_factory=Verdict)
    # With what sentences landings ended.
    sentences: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    def in_window(self, window: str) -> int:
        return sum(found[window] for found in self.windows.values())

    def summary(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "seed": self.seed,
            "kills": sum(self.kills.values()),
            "of": dict(self.kills),
            "kills of Spark by what they left": {
                window: self.in_window(window)
                for window in (STARTING, *pipeline_lake.WINDOWS)
                if self.in_window(window)
            },
            "and by what was killed": {way: dict(found) for way, found in self.windows.items()},
            "hit, of those aimed": {
                aim: f"{self.hit[aim]} of {self.aimed[aim]}" for aim in sorted(self.aimed)
            },
            "landings": self.landings,
            "of these ended by the one before": self.refused,
            "messages sent": self.sent,
            "rows": counts.rows,
            "repeats at QoS 1": counts.repeats,
            "segments": counts.segments,
            "batches": self.batches,
            "commits": counts.commits,
            "files": counts.files,
            "files compacted": counts.compacted,
            "orphans": counts.orphans,
            "lost": counts.lost,
            "doubled": counts.doubled,
            "faults": sum(map(len, self.verdict.faults.values())),
            "seconds": round(self.seconds, 1),
            "load average": round(os.getloadavg()[0], 1),
        }

    def describe(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.summary().items()]
        lines += [f"said {times} times: {text}" for text, times in self.sentences.items()]
        for name, own in self.counts.verdicts.items():
            lines += ["", f"node {name}", *own.describe().split("\n\n")[0].splitlines()]
        return "\n".join([*lines, *self.verdict.fault_lines()])


class Publishers(Driver):
    """Raw publishers at one broker, who keep a pace. Who takes from them is for others to say."""

    def __init__(self, name: str, port: int, seed: int, journal: Path, rate: float) -> None:
        super().__init__(port, seed, journal, cut_rate=0.0, patience=PATIENCE)
        self.ledger.takers.clear()
        self.rate = rate
        self.began = 0.0
        kinds = ((V311, (1,)), (V5, (1,)), (V311, (2,)), (V5, (2,)), (V5, (1, 2)))
        self.clients = [
            clients.Publisher(
                self, f"{name}-{''.join(map(str, qos))}-{version}", version, qos, window=10
            )
            for version, qos in kinds
        ]

    def may_submit(self) -> bool:
        self.began = self.began or self.now
        return self.submitted < (self.now - self.began) * self.rate


class Run:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.say = say
        self.random = Random(plan.seed)
        self.result = Result(plan.seed)
        self.root = folder / "root"
        self.lake = Lake(folder / "lake")
        for name in ("a", "b"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # Rows are sealed at once and merged often; merged ones go after a while.
        sealing = ("--seal-after", "250ms", "--compact-grace", "1m")
        into = ("--root", str(self.root), "--node", "a")
        self.a = semel(free_port(), folder / "a", *into, *sealing)
        self.b = semel(free_port(), folder / "b", streams=False)
        self.recorder = Recorder(self.b.port, folder / "ingest", self.root, "--node", "b", *sealing)
        self.publishers = {
            broker: Publishers(name, broker.port, plan.seed, broker.folder / "journal", plan.rate)
            for name, broker in (("a", self.a), ("b", self.b))
        }
        self.landing: Landing | None = None
        self.landings: list[Landing] = []
        # Whether something of an earlier landing still ran when the one of now was started.
        self.overlaps = False
        # How long a landing takes until it is ready: what the last one took.
        self.usual = 8.0

    def __call__(self) -> Result:
        began = time.monotonic()
        try:
            self.start()
            with self.publishers[self.a] as first, self.publishers[self.b] as second:
                first.loading = second.loading = True
                for strike in self.plan.strikes:
                    self.strike(strike)
                    self.tell()
                self.say("finishing")
                self.finish()
            self.seal()
            self.land_the_rest()
            self.settle()
        finally:
            self.end()
        self.result.seconds = time.monotonic() - began
        return self.result

    # --- the parts --------------------------------------------------------------------------------

    def start(self) -> None:
        for broker in (self.a, self.b):
            self.publishers[broker].ledger.life = 1
            broker.start()
        for broker in (self.a, self.b):
            broker.serve_seconds()
        self.recorder.start()
        # From when it has subscribed on, each message is for it.
        self.wait(self.is_recording, self.recorder.tail)

    def is_recording(self) -> bool:
        assert self.recorder.running.poll() is None, self.recorder.tail()
        log = self.recorder.log
        return log.exists() and "at QoS 2" in log.read_text(errors="replace")

    def start_landing(self) -> Landing:
        """Start it, if none is there."""
        if self.landing is None:
            self.overlaps = any(landing.survivors() for landing in self.landings)
            self.lake.begin()
            rows = self.random.choice(BATCH_ROWS)
            self.landing = self.make_landing("--interval", "100ms", "--max-rows", str(rows))
        return self.landing

    def make_landing(self, *arguments: str) -> Landing:
        self.result.landings += 1
        places = ["--root", str(self.root), "--lake", str(self.folder / "lake")]
        given = [*places, "--stream", STREAM, "--master", "local[2]"]
        given += ["--small-files", str(SMALL_FILES), *arguments]
        landing = Landing(self.folder, self.result.landings, given)
        self.landings.append(landing)
        return landing

    def wait(
        self, reached: Callable[[], bool], what: Callable[[], str], patience: float = PATIENCE
    ) -> None:
        until = time.monotonic() + patience
        while not reached():
            self.check()
            assert time.monotonic() < until, what()
            time.sleep(0.01)

    def check(self) -> None:
        """Everybody who should be at work is."""
        for driver in self.publishers.values():
            driver.check()
        for part in (self.a, self.b, self.recorder):
            assert part.running.poll() is None, f"it has ended by itself:\n{part.tail()}"

    def tell(self) -> None:
        kills = sum(self.result.kills.values())
        rows = sum(
            number
            for app, number in self.lake.read_log().numbers.items()
            if app.startswith(pipeline_lake.STREAM)
        )
        sent = sum(len(driver.ledger.sent) for driver in self.publishers.values())
        self.say(
            f"{kills} kills, {sent} messages, {rows} rows in {self.lake.log.version} commits,"
            f" {sum(map(len, self.result.verdict.faults.values()))} faults"
        )

    # --- kills ------------------------------------------------------------------------------------

    def strike(self, strike: Strike) -> None:
        self.start_landing()
        if strike.target == SPARK:
            self.strike_spark(strike)
            return
        if self.random.random() < 0.5:
            # When it is at work; else while it starts.
            self.until_batch()
        if strike.target == MAINTENANCE:
            self.strike_maintenance()
            return
        if strike.target == SEALER:
            self.strike_sealer(self.random.choice((self.a, self.recorder)))
            return
        part = self.random.choice((self.a, self.b)) if strike.target == BROKER else self.recorder
        time.sleep(self.random.random() * self.plan.pause)
        self.check()
        if self.random.random() < 0.5:
            part.kill_all()
        else:
            # Its sealer is left behind, and ends by itself.
            part.kill()
        self.result.kills[strike.target] += 1
        if part in self.publishers:
            self.publishers[part].ledger.life += 1
        part.start()
        if part in self.publishers:
            part.serve_seconds()

    def strike_sealer(self, part: Broker) -> None:
        """Kill it alone: who has started it goes on, and starts another."""
        self.wait(lambda: bool(part.sealers()), part.tail)
        time.sleep(self.random.random() * self.plan.pause)
        # It may have ended by itself, having nothing to do.
        self.wait(lambda: bool(part.sealers()), part.tail)
        sealers = part.sealers()
        processes.kill(sealers)
        self.result.kills[SEALER] += bool(sealers)

    def strike_maintenance(self) -> None:
        """Kill who compacts the table, alone or with the whole landing, somewhere in a pass."""
        while True:
            landing = self.until_maintenance()
            time.sleep(self.random.random() * PASS_SECONDS)
            targets = landing.targets(MAINTENANCE)
            if targets:
                break  # it was not done by then
        # One whose maintenance was killed alone waits for a minute before the next pass.
        is_alone = self.random.random() < 0.3
        if is_alone:
            processes.kill(targets)
        else:
            processes.kill([*targets, *landing.targets(TREE)])
            landing.finish_tree()
            landing.process.wait()
            self.result.batches += landing.count("batch")
            self.landing = None
        self.result.kills[MAINTENANCE] += 1

    def strike_spark(self, strike: Strike) -> None:
        """Wait for the moment that it is aimed at, kill, and see what is left behind."""
        landing = self.until_moment(strike.aim)
        window = self.kill_spark(landing, strike.way)
        self.result.kills[SPARK] += 1
        self.result.windows.setdefault(strike.way, Counter())[window] += 1
        if strike.aim != ANY:
            self.result.aimed[strike.aim] += 1
            self.result.hit[strike.aim] += window == strike.aim
        self.result.batches += landing.count("batch")
        if strike.way == WORKERS:
            self.after_workers(landing)
        elif strike.way == JVM:
            self.wait(lambda: not landing.is_alive(), landing.tail, processes.PATIENCE)
            self.hear_sentence(landing)
            self.landing = None
        else:
            self.landing = None
        # Now and then the next one begins beside what is left of the last.
        if self.landing is None and strike.way != TREE and self.random.random() < 0.5:
            self.wait(lambda: not landing.survivors(), landing.tail, processes.PATIENCE)

    def kill_spark(self, landing: Landing, way: str) -> str:
        """Kill this part of it: the window that is found afterwards."""
        targets = landing.targets(way)
        if way != TREE and not targets:
            # It has none of these yet.
            self.wait(
                lambda: bool(landing.targets(way)) or not landing.is_alive(),
                landing.tail,
                processes.PATIENCE,
            )
            targets = landing.targets(way)
        assert landing.is_alive(), f"it has ended by itself:\n{landing.tail()}"
        processes.kill(targets)
        if way == TREE:
            landing.finish_tree()
        window = self.lake.window()
        if window == pipeline_lake.IDLE and not landing.count("ready"):
            window = STARTING
        if way in (TREE, DRIVER):
            landing.process.wait()
        return window

    def after_workers(self, landing: Landing) -> None:
        """A landing whose workers are killed goes on with others, or says that it has failed."""
        before = landing.count("batch")
        self.wait(
            lambda: not landing.is_alive() or landing.count("batch") > before,
            landing.tail,
            processes.PATIENCE,
        )
        if not landing.is_alive():
            self.hear_sentence(landing)
            self.landing = None

    def hear_sentence(self, landing: Landing) -> None:
        """It had to end, and has to say why."""
        code = landing.process.returncode
        told = [event for event in landing.events() if event["event"] == "failed"]
        if code != 1 or len(told) != 1:
            self.result.verdict.blame("end", f"exit code {code}, told {told}:\n{landing.tail()}")
            return
        sentence = told[0]["problem"]
        self.result.sentences[sentence] += 1
        if any(
            word in sentence
            for word in ("STREAM_FAILED", "SQLSTATE", "Errno", "None.None", "Traceback")
        ):
            # What Spark says to programs does not tell anybody what to do.
            self.result.verdict.blame("sentence", sentence)

    # --- moments ----------------------------------------------------------------------------------

    def until_batch(self, wanted: int = 1) -> Landing:
        """Wait until a landing has made so many batches since its start."""
        while True:
            landing = self.start_landing()
            self.wait_batches(landing, wanted)
            if landing.is_alive():
                self.usual = landing.ready_seconds()
                return landing
            self.was_refused(landing)

    def wait_batches(self, landing: Landing, wanted: int) -> None:
        """Wait until it has made so many batches, or has ended."""
        self.wait(
            lambda: landing.count("batch") >= wanted or not landing.is_alive(),
            landing.tail,
            processes.PATIENCE,
        )

    def until_maintenance(self) -> Landing:
        """Wait until a landing maintains its table."""
        landing = self.until_batch()
        self.wait(
            lambda: not landing.is_alive() or bool(landing.targets(MAINTENANCE)),
            landing.tail,
            processes.PATIENCE,
        )
        return landing if landing.is_alive() else self.until_maintenance()

    def was_refused(self, landing: Landing) -> None:
        """It has ended by itself, which only one that overlaps another may do."""
        assert self.overlaps, f"it has ended by itself:\n{landing.tail()}"
        self.hear_sentence(landing)
        self.result.refused += 1
        self.landing = None

    def until_moment(self, aim: str) -> Landing:
        if aim == STARTING:
            landing = self.start_landing()
            if landing.count("ready"):
                return landing
            due = landing.started + self.random.random() * self.usual
            self.wait(lambda: time.monotonic() >= due or bool(landing.count("ready")), landing.tail)
            return landing if landing.is_alive() else self.until_batch()
        landing = self.until_batch(self.random.randrange(self.plan.batches) + 1)
        if aim == ANY:
            time.sleep(self.random.random() * self.plan.pause)
            return landing if landing.is_alive() else self.until_batch()
        while not self.is_moment(landing, aim):
            landing = self.until_batch()
        return landing

    def is_moment(self, landing: Landing, aim: str) -> bool:
        """Wait for a batch that is now in this window; False if the landing ended before."""
        until = time.monotonic() + processes.PATIENCE
        late = self.random.random() * LATE_SECONDS if self.random.random() < 0.3 else 0.0
        # Not a batch that is far on its way already: the next one.
        first = self.lake.planned() + (aim != COMMITTED)
        while landing.is_alive():
            assert time.monotonic() < until, f"no batch is {aim}:\n{landing.tail()}"
            if self.lake.planned() >= first and self.lake.window() == aim:
                if aim != COMMITTED:
                    time.sleep(late)
                return landing.is_alive()
            time.sleep(LOOK_SECONDS)
        return False

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """No new messages; what is under way comes to its end."""
        for driver in self.publishers.values():
            driver.loading = False
        for driver in self.publishers.values():
            self.wait(driver.is_done, lambda: "publishers wait for what was never acknowledged")
            self.result.sent += len(driver.ledger.sent)

    def seal(self) -> None:
        """Wait until everything is in segments, and end who has sealed."""
        wanted = len(self.publishers[self.b].ledger.sent)
        # At QoS 1 a message may be there twice, and be counted for another: then it is quiet that
        # tells that nothing more comes.
        stored, since = -1, time.monotonic()

        def is_recorded() -> bool:
            nonlocal stored, since
            now = sealed_through(self.recorder.folder / "data", STREAM)[1]
            if now != stored:
                stored, since = now, time.monotonic()
            return stored >= wanted and time.monotonic() - since > 1.0

        self.wait(is_recorded, lambda: f"{stored} of {wanted}\n{self.recorder.tail()}")
        for part in (self.a, self.recorder):
            assert part.data is not None
            data = part.data

            def is_sealed(data: Path = data) -> bool:
                sealed, last = sealed_through(data, STREAM)
                return sealed == last

            self.wait(is_sealed, part.tail)
        for part in (self.recorder, self.a, self.b):
            code = part.terminate()
            if code:
                self.result.verdict.blame("end", f"SIGTERM ends it with {code}:\n{part.tail()}")

    def land_the_rest(self) -> None:
        """One that is left runs on and is told to end; then all that is left lands."""
        if self.landing is not None and self.landing.is_alive():
            self.landing.process.terminate()
            self.wait_landing(self.landing)
            self.result.batches += self.landing.count("batch")
        for landing in self.landings:
            self.wait_survivors(landing)
        self.lake.begin()
        last = self.make_landing("--once")
        self.wait_landing(last)
        self.result.batches += last.count("batch")
        if self.plan.echo:
            # A new checkpoint knows of no batch; the table knows of every row.
            self.lake.checkpoint.rename(self.lake.checkpoint.with_name("old"))
            again = self.make_landing("--once")
            self.wait_landing(again)
            landed = [event["landed"] for event in again.events() if event["event"] == "ended"]
            if landed != [0]:
                self.result.verdict.blame("echo", f"without a checkpoint {landed} rows land again")

    def wait_landing(self, landing: Landing) -> None:
        until = time.monotonic() + processes.PATIENCE
        while landing.is_alive():
            assert time.monotonic() < until, f"it does not end:\n{landing.tail()}"
            time.sleep(0.05)
        code = landing.process.returncode
        if code:
            self.result.verdict.blame("end", f"it ends with {code}:\n{landing.tail()}")
        self.wait_survivors(landing)

    def wait_survivors(self, landing: Landing) -> None:
        """Nobody who worked for a landing stays when it is gone."""
        until = time.monotonic() + PATIENCE
        while left := landing.survivors():
            if time.monotonic() > until:
                found = processes.members(landing.mark)
                self.result.verdict.blame("left behind", f"{[found.get(pid) for pid in left]}")
                return
            time.sleep(0.05)

    def nodes(self) -> list[Node]:
        """Who has sealed, and what their publishers know."""
        assert self.recorder.data is not None
        assert self.a.data is not None
        a, b = (self.publishers[broker].ledger for broker in (self.a, self.b))
        return [
            Node("a", a, self.a.data, is_first_hand=True),
            Node("b", b, self.recorder.data, is_first_hand=False),
        ]

    def settle(self) -> None:
        verdict = self.result.verdict
        self.result.counts = pipeline_account.settle(self.lake, self.root, self.nodes(), verdict)
        logs = [part.log for part in (self.a, self.b, self.recorder)]
        logs += [landing.log for landing in self.landings]
        pipeline_account.tracebacks(logs, verdict)

    def end(self) -> None:
        """Whatever happened, nobody is left."""
        for landing in self.landings:
            landing.end()
        left = [pid for part in (self.recorder, self.a, self.b) for pid in part.end()]
        if left:
            self.result.verdict.blame("left behind", f"{len(left)} sealers never ended")


def run(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> Result:
    return Run(plan, folder, say)()
