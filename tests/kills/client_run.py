"""Kill the client again and again under load, and account for every message.

The program is `client_worker`; what it knows is in its journal. The witness, who subscribes to what
it publishes, and the publishers of what it takes are the raw clients of the other kills, and the
broker is semel with a disk, or Mosquitto.

On the way out: what the outbox had said to be stored reaches the witness, exactly once at QoS 2 and
at least once at QoS 1, and in the order of its publishing. What was begun and not stored when the
process was killed may come, at QoS 2 once. On the way in: what the broker had acknowledged to its
publisher is handed out at least once, each message of QoS 2 under one key, and no key is that of
two messages.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from semel.store.forensics.check import check_store
from tests.kills import clients
from tests.kills.account import DUE, Key, Taker
from tests.kills.brokers import PATIENCE, Broker
from tests.kills.client_worker import NAME
from tests.kills.driver import Driver
from tests.kills.ingesting import Cutter
from tests.kills.wire import V311

ROOT = Path(__file__).parent.parent.parent
# So many messages of one fault are shown; the rest is counted.
SHOWN = 10


@dataclass
class Plan:
    """What to do."""

    kills: int
    seed: int
    version: int = 5
    # seconds of work before a kill, at most
    load: float = 0.5
    # Of 1: how often a client is killed while it starts, and how often the broker with it.
    starting: float = 0.2
    broker: float = 0.0
    # Whether connections of the client are cut at any byte, by a proxy.
    cuts: bool = False
    # Break what is kept on purpose, to see that it is found: called with the outbox after a kill.
    spoil: Callable[[Path], None] | None = None
    # When nothing has happened for so many seconds, what is missing is lost.
    patience: float = 20.0


@dataclass
class Result:
    """What came of it."""

    kills: int = 0
    broker_kills: int = 0
    cuts: int = 0
    begun: int = 0
    stored: int = 0
    arrived: int = 0
    # At QoS 1.
    repeats: int = 0
    published: int = 0
    handed_out: int = 0
    again: int = 0
    seconds: float = 0.0
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.faults

    def blame(self, kind: str, text: str) -> None:
        self.faults.setdefault(kind, []).append(text)

    def summary(self) -> dict[str, object]:
        lost = len(self.faults.get("lost", ())) + len(self.faults.get("never handed out", ()))
        return {
            "kills of the client": self.kills,
            "kills of the broker": self.broker_kills,
            "connections cut": self.cuts,
            "publications begun": self.begun,
            "publications stored": self.stored,
            "arrived": self.arrived,
            "arrived again, at QoS 1": self.repeats,
            "messages for the client": self.published,
            "handed out": self.handed_out,
            "handed out again": self.again,
            "lost": lost,
            "doubled": len(self.faults.get("doubled", ())),
            "out of order": len(self.faults.get("out of order", ())),
            "seconds": round(self.seconds, 1),
            "load average": round(os.getloadavg()[0], 1),
        }

    def describe(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.summary().items()]
        for kind, found in self.faults.items():
            lines += ["", f"{kind}: {len(found)}", *(f"  {text}" for text in found[:SHOWN])]
        return "\n".join(lines)


class Known:
    """The journal of the program, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.subscribed = False
        self.begun: dict[int, tuple[int, str]] = {}
        self.stored: set[int] = set()
        # Each time that a message was handed out: its key and its name.
        self.got: list[tuple[str, Key]] = []
        self.done: set[str] = set()
        self._read = 0
        self._keys: dict[str, Key] = {}
        self._names: set[Key] = set()

    def update(self) -> int:
        """Read what is new: how many messages were acknowledged, each counted once."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            # A reader can come between the two pages that one write reaches over: the rest of a
            # line comes later.
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode().splitlines():
                self._take(line)
        return len(self._names)

    def _take(self, line: str) -> None:
        word, *rest = line.split()
        if word == "begin":
            self.begun[int(rest[0])] = (int(rest[1]), rest[2])
        elif word in ("stored", "complete"):
            self.stored.add(int(rest[0]))
        elif word == "got":
            name = (rest[1], int(rest[2]))
            self.got.append((rest[0], name))
            self._keys[rest[0]] = name
        elif word == "done":
            self.done.add(rest[0])
            self._names.add(self._keys[rest[0]])
        else:
            assert word == "subscribed", line
            self.subscribed = True


class Run:
    """One run of a plan against one broker."""

    def __init__(self, plan: Plan, broker: Broker, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.broker = broker
        self.say = say
        self.random = Random(plan.seed)
        self.result = Result()
        self.outbox = broker.folder / "outbox"
        self.log = broker.folder / "client.log"
        self.known = Known(broker.folder / "journal.client")
        self.driver = Driver(
            broker.port,
            plan.seed,
            broker.folder / "journal",
            cut_rate=0.0,
            patience=plan.patience,
        )
        self.witness = self.driver.taker("witness", 2, "up/")
        # Mosquitto 2.0.11 exceeds the Receive Maximum of a 5.0 client, and lets messages overtake
        # those that wait for it: the raw clients are not what is tested here.
        version = plan.version if broker.data is not None else V311
        self.driver.clients = [
            clients.Subscriber(self.driver, "witness", version, [("up/#", 2)], self.witness),
            clients.Publisher(self.driver, "p1", version, (1,), window=10),
            clients.Publisher(self.driver, "p2", version, (2,), window=10),
        ]
        # Publishers do not run away from who takes.
        self.driver.pace = {NAME: 0}
        self.cutter: Cutter | None = None
        self.process: subprocess.Popen[str] | None = None
        # Whether a kill has hit a client that had a message and had not acknowledged it.
        self.has_hit_work = False

    def __call__(self) -> Result:
        began = time.monotonic()
        try:
            self.driver.ledger.life = 1
            self.broker.start()
            self.broker.serve_seconds()
            if self.plan.cuts:
                self.cutter = Cutter(
                    self.broker.port,
                    self.plan.seed,
                    cut_bytes=100_000,
                    gentle=self.broker.command[0] == "mosquitto",
                )
                self.cutter.__enter__()
            with self.driver:
                self.wait(self.driver.is_ready, "the witness has not subscribed")
                self.first()
                self.driver.loading = True
                while self.result.kills < self.plan.kills:
                    self.strike()
                    self.say(f"{self.result.kills} kills, {self.driver.pace[NAME]} acknowledged")
                self.finish()
                # What is over must not come back in another run either.
                self.finish()
            self.settle()
        finally:
            if self.cutter is not None:
                self.result.cuts = self.cutter.cuts
                self.cutter.__exit__(None, None, None)
            if self.process is not None:
                # Also after a fault: a pipe left open would be blamed on a later test.
                with self.process:
                    self.process.kill()
            self.broker.end()
        self.result.seconds = time.monotonic() - began
        return self.result

    # --- the client -------------------------------------------------------------------------------

    def start(self) -> subprocess.Popen[str]:
        port = self.broker.port if self.cutter is None else self.cutter.port
        arguments = [str(port), str(self.outbox), str(self.known.path), str(self.plan.version)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.kills.client_worker"),
                    *(*arguments, str(self.plan.seed)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        return self.process

    def first(self) -> None:
        """From when it has subscribed on, each message is for the client."""
        process = self.start()
        self.wait(lambda: self.look() and self.known.subscribed, "it has not subscribed")
        self.kill(process)

    def strike(self) -> None:
        """Let a client live for a while, and kill it."""
        process = self.start()
        if self.has_hit_work and self.random.random() < self.plan.starting:
            time.sleep(self.random.random())
        else:
            before = len(self.known.begun)
            self.wait(lambda: self.look() and len(self.known.begun) > before, "it does nothing")
            time.sleep(self.random.random() * self.plan.load)
        if self.random.random() < self.plan.broker:
            self.restart_broker()
        if not self.has_hit_work:
            self.stop_at_work(process)
            self.has_hit_work = True
        self.kill(process)
        self.result.kills += 1
        if self.plan.spoil is not None:
            self.plan.spoil(self.outbox)

    def stop_at_work(self, process: subprocess.Popen[str]) -> None:
        """Stop a client that has a message and has not acknowledged it: it must get it again."""

        def stopped_at_work() -> bool:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.look()
            if {key for key, _ in self.known.got} > self.known.done:
                return True
            process.send_signal(signal.SIGCONT)
            return False

        self.wait(stopped_at_work, "it acknowledges each message at once")

    def kill(self, process: subprocess.Popen[str]) -> None:
        assert process.poll() is None, f"it has ended by itself:\n{self.tail()}"
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        self.look()

    def restart_broker(self) -> None:
        """Kill the broker, and start the next one, before or after the client's end."""
        self.broker.kill_all()
        self.result.broker_kills += 1
        self.driver.ledger.life += 1
        self.broker.start()
        self.broker.serve_seconds()
        time.sleep(self.random.random() * 0.3)

    def look(self) -> bool:
        """Read the journal; whether the client lives."""
        self.driver.check()
        self.driver.pace[NAME] = self.known.update()
        return self.process is not None and self.process.poll() is None

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < until, f"{what}:\n{self.tail()}"
            time.sleep(0.005)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-30:])

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """One more run, which is not killed, does all that is left."""
        if self.cutter is not None:
            self.cutter.is_cutting = False
        process = self.start()
        self.driver.loading = False
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("finish\n")
        process.stdin.flush()
        self.until_quiet(lambda: self.is_finished(process))
        if not self.is_finished(process):
            self.result.blame("unfinished", f"the outbox is never empty\n{self.tail()}")
        self.until_quiet(self.is_done)
        process.stdin.close()
        code = process.wait(PATIENCE)
        process.stdout.close()
        self.look()
        if code:
            self.result.blame("exit code", f"{code}\n{self.tail()}")

    def is_finished(self, process: subprocess.Popen[str]) -> bool:
        """Whether the program has said that its outbox is empty, or has ended."""
        self.look()
        assert process.stdout is not None
        return bool(select.select([process.stdout], [], [], 0)[0])

    def is_done(self) -> bool:
        """Whether everything has got where it should."""
        self.look()
        taken = {key[1] for key in self.witness.takes}
        names = {name for _, name in self.known.got}
        keys = {key for key, _ in self.known.got}
        return (
            self.known.stored <= taken
            and self.driver.is_done()
            and set(self.driver.ledger.sent) <= names
            and keys <= self.known.done
        )

    def until_quiet(self, reached: Callable[[], bool]) -> None:
        """Wait until it is so, or nothing more happens."""
        moved, seen = time.monotonic(), -1
        while not reached() and time.monotonic() - moved < self.plan.patience:
            now = len(self.witness.takes) + len(self.known.got) + len(self.known.done)
            if now != seen:
                moved, seen = time.monotonic(), now
            time.sleep(0.02)
        # What is over must not come back.
        time.sleep(0.3)
        self.look()

    # --- the account ------------------------------------------------------------------------------

    def settle(self) -> None:
        for kind, text in self.driver.ledger.seen:
            self.result.blame(kind, text)
        self.settle_out(self.witness)
        self.settle_in()
        self.settle_outbox()
        log = self.log.read_text(errors="replace")
        if "Traceback" in log or "Exception in callback" in log:
            self.result.blame("traceback", log[log.find("Traceback") :][:3_000])

    def settle_out(self, witness: Taker) -> None:
        """What the program published, and what the witness has taken."""
        result, known = self.result, self.known
        result.begun = len(known.begun)
        result.stored = len(known.stored)
        result.arrived = len(witness.takes)
        for number, (qos, topic) in known.begun.items():
            key = (NAME, number)
            what = f"{number} at QoS {qos} on {topic}"
            if number in known.stored and key not in witness.takes:
                result.blame("lost", what)
            repeats = witness.repeats(key)
            if repeats and qos == 2:
                result.blame("doubled", f"{what}, {repeats + 1} times")
            elif repeats:
                result.repeats += repeats
        for key in witness.takes:
            if key[0] != NAME or key[1] not in known.begun:
                result.blame("never published", str(key))
        for key, before in witness.disorder:
            result.blame("out of order", f"{key[1]} after {before}")

    def settle_in(self) -> None:
        """What was published for the program, and what it was handed out."""
        result, known = self.result, self.known
        sent = self.driver.ledger.sent
        names: dict[str, Key] = {}
        keys: dict[Key, set[str]] = {}
        for key, name in known.got:
            if names.setdefault(key, name) != name:
                result.blame("one key for two", f"{key}: {names[key]} and {name}")
            keys.setdefault(name, set()).add(key)
        result.published = len(sent)
        result.handed_out = len(keys)
        result.again = len(known.got) - len(keys)
        for name, each in sent.items():
            if each.fate is DUE and name not in keys:
                result.blame("never handed out", f"{name} at QoS {each.qos}")
            if each.qos == 2 and len(keys.get(name, ())) > 1:
                result.blame("doubled", f"{name} at QoS 2 has the keys {keys[name]}")
        for name in keys:
            if name not in sent:
                result.blame("never published", str(name))
        for key, name in names.items():
            if key not in known.done:
                result.blame("never acknowledged", f"{key}: {name}")
        if self.broker.data is None:
            # Mosquitto 2.0.11: what is published while a session is resumed overtakes its queue.
            return
        last: Counter[str] = Counter()
        for _, (publisher, number) in dict.fromkeys((name, name) for _, name in known.got):
            if number < last[publisher]:
                result.blame("out of order", f"{publisher} {number} after {last[publisher]}")
            last[publisher] = max(last[publisher], number)

    def settle_outbox(self) -> None:
        """Nothing is left in the outbox, and nothing is wrong with it."""
        report = check_store(self.outbox)
        for finding in report.findings:
            self.result.blame("outbox", f"{finding.table} {finding.row}: {finding.problem}")
        for table in ("delivery", "delivery_extra", "shared_payload", "inbox", "inbound"):
            if report.rows[table]:
                self.result.blame("outbox", f"{report.rows[table]} rows left in {table}")


def run(plan: Plan, broker: Broker, say: Callable[[str], None] = lambda _: None) -> Result:
    return Run(plan, broker, say)()
