"""Load a broker with real clients, kill it at random moments, and account for every message.

`run` starts the broker, the raw clients and the paho clients; kills and restarts the broker as
often as the plan says; lets everybody finish; kills it once more, since nothing may come back;
and then holds what was acknowledged against what was taken and what was recorded.
"""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.kills import record
from tests.kills.account import DUE, MAYBE, Named, Taker, Verdict
from tests.kills.brokers import PATIENCE, STREAM, Broker, is_alive
from tests.kills.driver import Driver
from tests.kills.guests import Guest, GuestPublisher
from tests.kills.rights import Rights

ROOT = Path(__file__).parent.parent.parent
# Ways to end a broker, and how often each is chosen.
WAYS = {
    # the broker and its sealer at once
    "all": 40,
    # the broker alone: its sealer is left behind
    "broker": 20,
    # the same, but the sealer stands still until the next broker serves
    "paused": 10,
    # the sealer alone; the broker goes on
    "sealer": 10,
    # asked to end, as by an administrator
    "term": 10,
}


@dataclass
class Plan:
    """What to do. `kills` are those of a broker, by SIGKILL."""

    kills: int
    seed: int
    # seconds of load before a kill, at most
    load: float = 1.2
    paho: bool = True
    # Connections that each client cuts by itself, in each second.
    cut_rate: float = 0.0
    ways: dict[str, int] = field(default_factory=lambda: dict(WAYS))
    # Of 1: how often a broker is ended when it has just begun to serve, and how often one is
    # killed while it starts.
    fresh: float = 0.3
    starting: float = 0.2
    # When nothing has been taken for so many seconds, what is missing is lost.
    patience: float = 20.0
    # Of 1, if the broker has users: how often rights change by a reload before the broker is
    # ended, and how often just when it is.
    reloads: float = 0.6
    restarts: float = 0.4


@dataclass
class Result:
    """What came of it."""

    verdict: Verdict = field(default_factory=Verdict)
    kills: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    # seconds from the start of a process until it answered a CONNECT, after SIGKILL
    serving: list[float] = field(default_factory=list)
    messages: int = 0
    wills: int = 0
    rows: int = 0
    segments: int = 0
    retained_checks: int = 0
    # How rights were changed, and how often.
    changes: dict[str, int] = field(default_factory=dict)
    # Messages that guests did not get, and those that they got.
    withheld: int = 0
    received: int = 0
    refused: int = 0
    seconds: float = 0.0

    def summary(self) -> dict[str, object]:
        verdict = self.verdict
        return {
            "kills": self.kills,
            "ways": self.ways,
            "messages": self.messages,
            "wills": self.wills,
            "acknowledged deliveries": verdict.count("acknowledged"),
            "taken": verdict.count("taken"),
            "repeats at QoS 1": verdict.count("repeats"),
            "lost": verdict.count("lost"),
            "doubled": verdict.count("doubled"),
            "out of order": verdict.count("disordered"),
            "rows recorded": self.rows,
            "segments": self.segments,
            "retained checks": self.retained_checks,
            "changes of rights": self.changes,
            "withheld from guests": self.withheld,
            "received by guests": self.received,
            "refused from guests": self.refused,
            "serves after, median s": round(statistics.median(self.serving), 3),
            "serves after, maximum s": round(max(self.serving), 3),
            "seconds": round(self.seconds, 1),
            "load average": round(os.getloadavg()[0], 1),
        }


class Paho:
    """The process of the paho clients."""

    def __init__(self, port: int, seed: int, log: Path) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kills.paho_worker", str(port), str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )

    def ask(self, word: str) -> Any:
        self.tell(word)
        return self.answer()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Run:
    """One run of a plan against one broker."""

    def __init__(
        self, plan: Plan, broker: Broker, say: Callable[[str], None], rights: Rights | None
    ) -> None:
        self.plan = plan
        self.broker = broker
        self.rights = rights
        self.say = say
        self.random = Random(plan.seed)
        self.result = Result()
        journal = broker.folder / "journal"
        self.driver = Driver(
            broker.port,
            plan.seed,
            journal,
            cut_rate=plan.cut_rate,
            patience=plan.patience,
            rights=rights,
        )
        self.driver.populate()
        self.guests = [each for each in self.driver.clients if isinstance(each, Guest)]
        # All whose rights change.
        self.subjects = [
            each for each in self.driver.clients if isinstance(each, Guest | GuestPublisher)
        ]
        self.ledger = self.driver.ledger
        self.paho: Paho | None = None
        # Each way once; after that they are chosen by chance.
        self.agenda = list(plan.ways)
        self.random.shuffle(self.agenda)

    def __call__(self) -> Result:
        began = time.monotonic()
        try:
            self.start()
            with self.driver:
                self.load()
                while self.result.kills < self.plan.kills:
                    self.strike()
                if not self.plan.kills:
                    time.sleep(self.plan.load)
                self.restore_rights()
                self.finish()
                self.echo()
            self.settle()
        finally:
            if self.paho is not None:
                self.paho.end()
            left = self.broker.end()
        if left:
            self.result.verdict.blame("left behind", f"{len(left)} sealers never ended")
        self.result.seconds = time.monotonic() - began
        return self.result

    # --- the broker ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a new life, and wait until it serves."""
        self.ledger.life += 1
        self.broker.start()
        self.result.serving.append(self.broker.serve_seconds())

    def strike(self) -> None:
        """Wait for the moment, end the broker in one of the ways, and start the next."""
        self.driver.check()
        way = self.random.choices(list(self.plan.ways), list(self.plan.ways.values()))[0]
        # Shortly after it began to serve, or under load.
        fresh = self.random.random() < self.plan.fresh
        is_due = bool(self.agenda)
        if is_due:
            way, fresh = self.agenda.pop(), False
            if self.broker.data is not None:
                self.wait(lambda: bool(self.broker.sealers()), "no sealer was started")
        self.reload_rights(self.users_to_change("reload", self.plan.reloads))
        time.sleep(self.random.random() * (0.05 if fresh else self.plan.load))
        sealers = self.broker.sealers()
        if way in ("paused", "sealer") and not sealers:
            # The sealer has ended meanwhile. What was due is due the next time.
            if is_due:
                self.agenda.append(way)
            way = "all"
        assert self.broker.running.poll() is None, f"it has ended by itself:\n{self.broker.tail()}"
        self.count(way)
        if way == "sealer":
            for pid in sealers:
                os.kill(pid, signal.SIGKILL)
            return
        self.change_at_the_end(self.users_to_change("restart", self.plan.restarts))
        if way == "term":
            code = self.broker.terminate()
            assert code == 0, f"SIGTERM ends it with {code}:\n{self.broker.tail()}"
        elif way == "all":
            self.broker.kill_all()
        else:
            for pid in sealers:
                if way == "paused":
                    os.kill(pid, signal.SIGSTOP)
            self.broker.kill()
        if self.rights is not None:
            # Whatever answers from now on has read the files.
            self.rights.applied()
        self.result.kills += way != "term"
        while self.random.random() < self.plan.starting and self.result.kills < self.plan.kills:
            self.kill_starting()
        self.start()
        if way == "paused":
            for pid in filter(is_alive, sealers):
                os.kill(pid, signal.SIGCONT)
        self.say(f"{self.result.kills} kills, {len(self.ledger.sent)} messages")

    def kill_starting(self) -> None:
        """Start it, and kill it before, or just when, it serves."""
        usual = statistics.median(self.result.serving)
        self.ledger.life += 1
        self.broker.start()
        time.sleep(self.random.random() * usual * 1.1)
        self.count("starting")
        self.result.kills += 1
        self.broker.kill_all()

    def count(self, way: str) -> None:
        self.result.ways[way] = self.result.ways.get(way, 0) + 1

    # --- rights --------------------------------------------------------------------------------

    def users_to_change(self, way: str, chance: float) -> list[str]:
        """Some of the users whose rights may change now. The first time it is all of them."""
        if self.rights is None:
            return []
        if way not in self.result.changes:
            self.wait_for_subjects("users with rights do not get or send messages")
            return [each.user for each in self.subjects]
        if self.random.random() >= chance:
            return []
        found = [each.user for each in self.subjects if each.is_changeable()]
        return self.random.sample(found, self.random.randrange(len(found) + 1))

    def wait_for_subjects(self, what: str) -> None:
        """Wait until everyone has seen the rights that it has now."""
        self.wait(lambda: all(each.is_changeable() for each in self.subjects), what)

    def reload_rights(self, users: list[str]) -> None:
        """Change the rights of users, and wait until the broker has said that it has them."""
        if self.rights is None or not users:
            return
        for user in users:
            self.rights.change(user)
            self.count_change("reload")
        before = self.reloads_logged()
        self.broker.running.send_signal(signal.SIGHUP)
        self.wait(lambda: self.reloads_logged() > before, "it does not reload")
        self.rights.applied()

    def reloads_logged(self) -> int:
        return self.broker.log.read_bytes().count(b"reloaded users, rights")

    def change_at_the_end(self, users: list[str]) -> None:
        """Change rights just before a broker ends, which may be while it reloads them."""
        if self.rights is None or not users:
            return
        for user in users:
            self.rights.change(user)
            self.count_change("restart")
        if self.random.random() < 0.7:
            self.broker.running.send_signal(signal.SIGHUP)
            time.sleep(self.random.random() * 0.05)

    def restore_rights(self) -> None:
        """Give all users their rights back, and wait until they get messages again."""
        if self.rights is None:
            return
        self.wait_for_subjects("users without rights are not refused")
        self.reload_rights([user for user, kind in self.rights.kinds.items() if kind])
        self.wait_for_subjects("users get nothing after their rights were given back")

    def count_change(self, way: str) -> None:
        self.result.changes[way] = self.result.changes.get(way, 0) + 1

    # --- the clients ---------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            self.driver.check()
            assert time.monotonic() < until, f"{what}\n{self.broker.tail()}"
            time.sleep(0.01)

    def load(self) -> None:
        """Everyone subscribes; then the publishers begin."""
        self.wait(self.driver.is_ready, "not every subscription was made")
        if self.plan.paho:
            port, folder = self.broker.port, self.broker.folder
            self.paho = Paho(port, self.plan.seed, folder / "paho.log")
            self.paho.ask("load")
        self.driver.loading = True

    def finish(self) -> None:
        """No new messages; what is under way comes to its end, if it ever does."""
        self.say("finishing")
        self.driver.loading = False
        if self.paho is not None:
            self.paho.tell("finish")
        moved, left = time.monotonic(), -1
        # A little more patience than who looks for retained messages has.
        while not self.driver.is_done() and time.monotonic() - moved < self.plan.patience + 2:
            self.driver.check()
            now = sum(len(client.flights) for client in self.driver.clients)
            if now != left:
                moved, left = time.monotonic(), now
            time.sleep(0.01)
        if not self.driver.is_done():
            self.ledger.fault("unfinished", f"by {', '.join(self.driver.unfinished())}")
        if self.paho is not None:
            self.enter_paho(self.paho.answer())
        self.drain()

    def enter_paho(self, published: dict[str, dict[str, Any]]) -> None:
        """What paho's publishers sent, into the account."""
        for name, facts in published.items():
            for n, done in enumerate(facts["acknowledged"], 1):
                fate = DUE if done else MAYBE
                topic = f"load/{name}/{n % 3}"
                sent = self.ledger.submit((name, n), topic, facts["qos"], fate=fate)
                sent.begun = math.inf

    def drain(self) -> None:
        """Wait until everyone has taken what is owed, or gets nothing more."""
        moved, taken = time.monotonic(), -1
        while time.monotonic() - moved < self.plan.patience:
            self.driver.check()
            now = sum(len(taker.takes) for taker in self.ledger.takers.values())
            owed = any(self.ledger.owed(taker) for taker in self.ledger.takers.values())
            now += sum(len(guest.own.takes) for guest in self.guests)
            owed = owed or any(guest.owed() for guest in self.guests)
            if self.paho is not None:
                counts = self.paho.ask("count")
                now += sum(counts.values())
                due = sum(
                    sent.fate is DUE and sent.topic.startswith(("load/", "will/"))
                    for sent in self.ledger.sent.values()
                )
                owed = owed or any(count < due for count in counts.values())
            if not owed:
                return
            if now != taken:
                moved, taken = time.monotonic(), now
            time.sleep(0.05)

    def echo(self) -> None:
        """One end more of either kind: what is over must not come back."""
        if self.plan.kills:
            self.broker.kill_all()
            self.result.kills += 1
            self.count("all")
            self.start()
            self.wait(self.driver.is_back, "not everyone came back")
        time.sleep(0.5)
        if self.paho is not None:
            answer = self.paho.ask("report")
            for fault in answer["faults"]:
                self.ledger.fault("paho", fault)
            for name, taken in answer["taken"].items():
                taker = Taker(name, 2, ("load/", "will/"))
                self.ledger.takers[name] = taker
                for publisher, n, qos in taken:
                    taker.take(Named((publisher, n), qos), self.ledger.life)
        self.driver.check()
        self.seal()
        code = self.broker.terminate()
        assert code == 0, f"SIGTERM ends it with {code}:\n{self.broker.tail()}"

    def seal(self) -> None:
        """Wait until everything is in segments, whatever became of the sealers."""
        if self.broker.data is None:
            return
        sealed, last_seq = 0, 0
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            sealed, last_seq = record.sealed_through(self.broker.data, STREAM)
            if sealed == last_seq:
                return
            time.sleep(0.05)
        self.ledger.fault("sealing", f"{last_seq - sealed} of {last_seq} rows are never sealed")

    # --- the account ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Hear the ledger, the record and the broker's log."""
        result = self.result
        found: list[record.Record] = []
        verdict = Verdict()
        if self.broker.data is not None:
            found.append(record.read_record(self.broker.data, STREAM))
            record.settle(found[0], self.ledger, verdict)
            result.rows = found[0].last_seq
            result.segments = found[0].segments
        result.verdict = self.ledger.verdict()
        for guest in self.guests:
            guest.settle(result.verdict)
            result.withheld += guest.withheld()
            result.received += len(guest.own.takes)
        for subject in self.subjects:
            if isinstance(subject, GuestPublisher):
                result.refused += subject.refusals
        for kind, texts in verdict.faults.items():
            for text in texts:
                result.verdict.blame(kind, text)
        self.read_log()
        result.messages = sum("will" not in sent.lives for sent in self.ledger.sent.values())
        result.wills = len(self.ledger.sent) - result.messages
        result.retained_checks = sum(getattr(client, "checks", 0) for client in self.driver.clients)

    def read_log(self) -> None:
        """No client of ours breaks a rule, and the broker never fails to answer one."""
        log = self.broker.log.read_text(errors="replace")
        if "Traceback" in log:
            self.result.verdict.blame("traceback", log[log.index("Traceback") :][:2000])
        for line in log.splitlines():
            if "broke a rule" in line or "cannot be sent" in line:
                self.result.verdict.blame("said by the broker", line)


def run(
    plan: Plan,
    broker: Broker,
    say: Callable[[str], None] = lambda _: None,
    *,
    rights: Rights | None = None,
) -> Result:
    """With `rights`, those of some users change; the broker must have been started with them."""
    return Run(plan, broker, say, rights)()
