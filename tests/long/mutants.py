"""Mutation tests: breaks the sources in one place at a time; a test must fail each time.

    python -m tests.long.mutants [--room broker] [--only topics] [--every 10 | --all] [--list]
                                 [--jobs 2] [--results FILE] [--again FILE]

A mutant is a copy of the sources, in a temporary directory, with one change: see mutations.py. Of
semel.mqtt all mutants run, of the other rooms a sample, which depends only on the mutants
themselves: see mutated_rooms.py, also for the tests.

For each mutant the tests named after its module run first, then the others of its room. A mutant
that passes all tests is a survivor: either a test is missing, or the change has no effect that a
test should see, and then tests/long/survivors.csv lists it with the reason. Survivors that are not
listed cause exit code 1, and so do listed ones that no longer survive.

`--results` writes the outcome of each mutant and the test that noticed it. After tests were
removed, `--again` takes such a file and runs only the mutants that survived, that the file does not
have, or whose test is no longer there, by its name; it takes the other outcomes from the file. A
test that is still there and checks less is not noticed: then run all of them.

Everything runs interpreted. Each mutant has its own process, forked after the tools were imported
and before semel is.
"""

import argparse
import csv
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tests.long.mutated_rooms import ROOMS, Room
from tests.long.mutations import SOURCES, Mutant, find_mutants, is_in_sample, number_equals

ROOT: Final = Path(__file__).resolve().parents[2]
LISTED: Final = Path(__file__).with_name("survivors.csv")

# What the last tests in a slot printed, and the last test that they started.
OUTPUT: Final = "output.txt"
LAST_TEST: Final = "last_test.txt"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: killed, timeout or survived; the test that noticed; seconds."""

    mutant: Mutant
    outcome: str
    killer: str
    seconds: float


class LastTest:
    """A plugin of pytest that writes down which test runs; with -x the last one is that failed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.file.write_text(nodeid, encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.file.write_text(report.nodeid, encoding="utf-8")


def run_tests(copy: Path, room: Room, paths: list[Path], *, writes_bytecode: bool = False) -> int:
    """Start tests of a copy of the project; returns the process id. It exits like pytest."""
    (copy / LAST_TEST).write_text("", encoding="utf-8")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(copy / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    left_out = ("-k", f"not ({' or '.join(room.slow)})") if room.slow else ()
    code = 99
    try:
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["SEMEL_TEST_MODE"] = "interpreted"
        os.environ["TEST_REPEATS"] = "full" if room.in_full else ""
        # Two mutants of one second may have one size, and then Python takes one for the other.
        sys.dont_write_bytecode = not writes_bytecode
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if writes_bytecode else "1"
        ours = ("", str(ROOT), str(ROOT / "src"))
        sys.path[:] = [str(copy / "src"), str(copy), *(p for p in sys.path if p not in ours)]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        assert "semel" not in sys.modules
        code = pytest.main(
            [
                *("-x", "-q", "--no-header", "-p", "no:cacheprovider"),
                *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is imported
                *("--basetemp", str(copy / "temporary")),
                *("--hypothesis-seed=0", *left_out, *(str(path) for path in paths)),
            ],
            plugins=[LastTest(copy / LAST_TEST)],
        )
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


@dataclass
class Run:
    """A mutant in a slot: its process, and the tests that follow if these pass."""

    room: Room
    mutant: Mutant
    copy: Path
    pid: int
    began: float
    stages: list[list[Path]]


class Runner:
    """Runs mutants, a few at a time; each slot has its own copy of sources and tests.

    All are copies of the first, so that edits of the project meanwhile have no effect.
    """

    def __init__(self, folder: Path, jobs: int) -> None:
        self.free: list[Path] = []
        ignored = shutil.ignore_patterns("__pycache__")
        project = ROOT
        for slot in range(jobs):
            copy = folder / str(slot)
            for part in ("src", "tests"):
                shutil.copytree(project / part, copy / part, ignore=ignored)
            shutil.copy(project / "pyproject.toml", copy)
            project = copy
            self.free.append(copy)
        # Seconds that one test may take, by room.
        self.limits: dict[str, float] = {}

    def check_unbroken(self, room: Room, mutants: list[Mutant]) -> float:
        """Run the tests without a mutation; returns how long they take. Raises SystemExit.

        The bytecode that they write makes the runs of the mutants quicker, in all slots.
        """
        copy, *others = self.free
        began = time.monotonic()
        modules = sorted({mutant.file.stem for mutant in mutants})
        tests = {path for name in modules for stage in room.stages(copy, name) for path in stage}
        pid = run_tests(copy, room, sorted(tests), writes_bytecode=True)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            print((copy / OUTPUT).read_text(encoding="utf-8", errors="replace")[-3000:])
            raise SystemExit(
                f"mutants: the tests of {room.name} fail without a mutation; fix that first"
            )
        taken = time.monotonic() - began
        # What loops forever does so in one test.
        self.limits[room.name] = 60 + taken
        for other in others:
            for part in ("src", "tests"):
                shutil.copytree(copy / part, other / part, dirs_exist_ok=True)
        return taken

    def start(self, room: Room, mutant: Mutant) -> Run:
        copy = self.free.pop()
        (copy / SOURCES / mutant.file).write_bytes(mutant.mutated())
        stages = room.stages(copy, mutant.file.stem)
        pid = run_tests(copy, room, stages.pop(0))
        return Run(room, mutant, copy, pid, time.monotonic(), stages)

    def poll(self, run: Run) -> Outcome | None:
        """None while it runs."""
        done, status = os.waitpid(run.pid, os.WNOHANG)
        if not done:
            since = (run.copy / LAST_TEST).stat().st_mtime
            if time.time() - since < self.limits[run.room.name]:
                return None
            os.killpg(run.pid, signal.SIGKILL)
            os.waitpid(run.pid, 0)
            return self.finish(run, "timeout")
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and run.stages:
            run.pid = run_tests(run.copy, run.room, run.stages.pop(0))
            return None
        # 1: a test failed; 2 to 4: semel could not be imported; below 0: a signal.
        if code > 4:
            print((run.copy / OUTPUT).read_text(encoding="utf-8", errors="replace")[-3000:])
            raise SystemExit(f"mutants: pytest ended with {code} on {run.mutant}")
        return self.finish(run, "survived" if code == 0 else "killed")

    def finish(self, run: Run, outcome: str) -> Outcome:
        (run.copy / SOURCES / run.mutant.file).write_bytes(run.mutant.data)
        self.free.append(run.copy)
        killer = "" if outcome == "survived" else (run.copy / LAST_TEST).read_text(encoding="utf-8")
        return Outcome(run.mutant, outcome, killer, time.monotonic() - run.began)


def run_all(runner: Runner, room: Room, mutants: list[Mutant]) -> Iterator[Outcome]:
    """Run mutants of a room; their outcomes as they come."""
    waiting = list(reversed(mutants))
    running: list[Run] = []
    done = 0
    while waiting or running:
        while waiting and runner.free:
            running.append(runner.start(room, waiting.pop()))
        for run in list(running):
            outcome = runner.poll(run)
            if outcome is not None:
                running.remove(run)
                done += 1
                if outcome.outcome != "killed" or done % 25 == 0:
                    print(f"[{done}/{len(mutants)}] {outcome.outcome}: {run.mutant}", flush=True)
                yield outcome
        time.sleep(0.005)


# --- results --------------------------------------------------------------------------------------

COLUMNS: Final = ("file", "line", "function", "kind", "mutation", "outcome", "killer", "seconds")


def write_results(file: Path, outcomes: list[Outcome]) -> None:
    """Write outcomes in the order of the sources, whenever they came."""
    found = {each.mutant: each for each in outcomes}
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(COLUMNS)
        for mutant, _ in number_equals(list(found)):
            each = found[mutant]
            what = (mutant.key[0], mutant.line, mutant.function, mutant.kind, mutant.change)
            writer.writerow((*what, each.outcome, each.killer, f"{each.seconds:.1f}"))


def read_results(file: Path) -> dict[tuple[tuple[str, str, str], int], tuple[str, str, float]]:
    """Outcome, killer and seconds by a mutant's key, and how many before it had the same."""
    found: dict[tuple[tuple[str, str, str], int], tuple[str, str, float]] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            key = row["file"], row["function"], row["mutation"]
            found[key, seen[key]] = row["outcome"], row["killer"], float(row["seconds"])
            seen[key] += 1
    return found


def defines(files: list[Path], test: str) -> bool:
    """Whether one of `files` has a test of this id, in whichever folder; "" is an import of semel.

    An id without a function is a file that could not be imported.
    """
    file, _, function = test.partition("::")
    definition = f"def {function.split('[')[0].split('::')[-1]}(" if function else ""
    return not test or any(
        path.name == Path(file).name and definition in path.read_text(encoding="utf-8")
        for path in files
    )


def divide(earlier: Path, room: Room, mutants: list[Mutant]) -> tuple[list[Outcome], list[Mutant]]:
    """What `earlier` results still show about `mutants`, and those that must run."""
    results = read_results(earlier)
    known: list[Outcome] = []
    again: list[Mutant] = []
    for mutant, nth in number_equals(mutants):
        outcome, killer, seconds = results.get((mutant.key, nth), ("survived", "", 0.0))
        files = [path for stage in room.stages(ROOT, mutant.file.stem) for path in stage]
        if outcome != "survived" and defines(files, killer):
            known.append(Outcome(mutant, outcome, killer, seconds))
        else:
            again.append(mutant)
    return known, again


def accepted_survivors() -> dict[tuple[str, str, str], str]:
    """survivors.csv: why a mutant may survive."""
    if not LISTED.exists():
        return {}
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {
            (row["file"], row["function"], row["mutation"]): row["why"]
            for row in csv.DictReader(file)
        }


def report(room: Room, outcomes: list[Outcome]) -> None:
    """One line per room: how many mutants, and the share that the tests caught."""
    counts = Counter(each.outcome for each in outcomes if each.mutant.file.parts[0] == room.name)
    total = counts.total()
    caught = counts["killed"] + counts["timeout"]
    share = caught / max(1, total)
    print(
        f"{room.name}: {total} mutants, {caught} caught ({counts['timeout']} by timeout), "
        f"{counts['survived']} survived, share {share:.1%}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--room", action="append", choices=[room.name for room in ROOMS])
    parser.add_argument("--only", action="append", default=[], help="part of a module's path")
    parser.add_argument("--every", type=int, help="one in so many mutants instead of the sample")
    parser.add_argument("--all", dest="every", action="store_const", const=1, help="no sample")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--results", type=Path, help="write the outcome of each mutant to a file")
    parser.add_argument("--again", type=Path, help="run what earlier results leave open")
    options = parser.parse_args()
    rooms = [room for room in ROOMS if not options.room or room.name in options.room]

    def selected(room: Room, found: list[Mutant]) -> list[Mutant]:
        return [
            mutant
            for mutant in found
            if is_in_sample(mutant, options.every or room.sample)
            and (not options.only or any(part in str(mutant.file) for part in options.only))
        ]

    if options.list:
        for room in rooms:
            mutants = selected(room, find_mutants(ROOT, room))
            for mutant in mutants:
                print(mutant)
            counts = Counter(mutant.kind for mutant in mutants)
            print(f"{room.name}: {len(mutants)} mutants: {dict(counts.most_common())}")
        return 0
    outcomes: list[Outcome] = []
    existing: set[tuple[str, str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        # Stored examples of hypothesis would make one mutant's run depend on another's.
        hypothesis.configuration.set_hypothesis_home_dir(folder)
        runner = Runner(Path(folder), options.jobs)
        for room in rooms:
            found = find_mutants(runner.free[0], room)
            existing.update(mutant.key for mutant in found)
            known: list[Outcome] = []
            mutants = selected(room, found)
            if options.again:
                known, mutants = divide(options.again, room, mutants)
            if mutants:
                taken = runner.check_unbroken(room, mutants)
                print(f"{room.name}: passes without a mutation in {taken:.0f} s", flush=True)
            outcomes += known
            for outcome in run_all(runner, room, mutants):
                outcomes.append(outcome)
                if options.results:
                    write_results(options.results, outcomes)
            report(room, outcomes)
    return compare_with_list(rooms, outcomes, existing)


def compare_with_list(
    rooms: list[Room], outcomes: list[Outcome], existing: set[tuple[str, str, str]]
) -> int:
    """Print where survivors.csv is wrong about these rooms; the exit code."""
    accepted = accepted_survivors()
    survived = {each.mutant.key for each in outcomes if each.outcome == "survived"}
    ran = {each.mutant.key for each in outcomes}
    names = [room.name for room in rooms]
    stale = [
        key
        for key in accepted
        if Path(key[0]).parts[0] in names
        and (key not in existing or (key in ran and key not in survived))
    ]
    unlisted = [
        each.mutant
        for each in outcomes
        if each.outcome == "survived" and each.mutant.key not in accepted
    ]
    for mutant in sorted(unlisted, key=str):
        print(f"SURVIVOR {mutant}")
    for key in stale:
        print(f"NO LONGER A SURVIVOR, yet listed: {key}")
    return 1 if unlisted or stale else 0


if __name__ == "__main__":
    sys.exit(main())
