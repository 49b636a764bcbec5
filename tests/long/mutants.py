"""Break the rules on purpose, one line at a time: a test must notice each time.

    python -m tests.long.mutants [--jobs 2] [--only topics] [--every 10] [--list]

A mutant is a copy of the sources, in a temporary folder, with one place changed where a rule is
judged: in the functions that judge (JUDGING and JUDGES), in every condition that guards
a `report(…)` or a `raise Violation(…)`, in all of the modules in WHOLE, at every call of a check,
and in the tables that the checks go by. What is changed: a comparison, its bound, `and` and `or`,
a `not`, a condition as a whole, a check that is called, a truth that is returned, an entry of a
table.

For each mutant the tests of its module run first, then all of tests/mqtt. A mutant that all tests
pass is a survivor: either a test is missing, or the change changes nothing, and then
tests/long/survivors.csv lists it and says why. Survivors that are not listed end the run with exit
code 1, and so do listed ones that no longer survive.

Everything runs interpreted. Each mutant has a process of its own, forked after the tools were
imported and before semel was.
"""

import argparse
import ast
import csv
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hypothesis
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# Within the project, or a copy of it.
CORE: Final = Path("src", "semel", "mqtt")
TESTS: Final = Path("tests", "mqtt")
LISTED: Final = Path(__file__).with_name("survivors.csv")

# What the tests of a slot printed last.
OUTPUT: Final = "output.txt"

# Functions that judge, by how their names begin, and by name.
JUDGING: Final = ("check_", "is_", "has_", "indicates_")
JUDGES: Final = frozenset(
    (
        *("topic_matches", "split_share", "_take", "report", "observe"),
        *("_check_field", "publish_fits"),
    )
)
# Modules that judge in every line.
WHOLE: Final = frozenset(
    (
        *("exchange.py", "session.py", "session_restore.py", "session_exchanges.py"),
        *("backlog.py", "trace.py", "side.py", "packet_ids.py", "message.py"),
    )
)
# Modules whose constants and tables are facts of the standard.
TABLES: Final = frozenset(
    (
        *("reasons.py", "properties.py", "codec.py", "wire.py", "connect.py", "subscribe.py"),
        *("exchange.py", "session.py", "packet_types.py", "topics.py"),
    )
)

OPERATORS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
# How a property is written, and another way that reads on without complaint.
KINDS: Final = {
    "_YES_OR_NO": "_TWO_BYTES",
    "_TWO_BYTES": "_FOUR_BYTES",
    "_FOUR_BYTES": "_TWO_BYTES",
    "_VARIABLE": "_TWO_BYTES",
    "_TEXT": "_BINARY",
    "_BINARY": "_TEXT",
    "_PAIR": "_TEXT",
}
# No packet but WILL and AUTH has few of them; no reason code is 0x7F.
ADDED_PACKETS: Final = ("WILL", "PUBACK", "UNSUBSCRIBE")
ADDED_REASON: Final = "0x7F"
# Local names that only serve a message.
MESSAGES: Final = frozenset(("seen", "where"))


@dataclass(frozen=True)
class Mutant:
    """`data[start:end]` of one file, named from semel/mqtt, becomes `text`."""

    file: Path
    data: bytes
    line: int
    function: str
    kind: str
    start: int
    end: int
    text: str
    change: str

    @property
    def key(self) -> tuple[str, str, str]:
        """How survivors.csv names it: without line numbers, which move."""
        return str(self.file), self.function, self.change

    def mutated(self) -> bytes:
        return self.data[: self.start] + self.text.encode() + self.data[self.end :]

    def __str__(self) -> str:
        return f"{CORE / self.file}:{self.line} {self.function}: {self.kind}: {self.change}"


class Finder:
    """Walks over one module and gathers its mutants."""

    def __init__(self, file: Path, data: bytes) -> None:
        self.file = file
        self.data = data
        self.tree = ast.parse(self.data)
        self.lines = [0]
        for line in self.data.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.function = "module"
        self.returns_truth = False
        self.mutants: list[Mutant] = []

    def find(self) -> list[Mutant]:
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                if self.file.name in TABLES and statement.value is not None:
                    self.look_at_table(statement)
            else:
                self.look_at_statement(statement, self.file.name in WHOLE)
        return self.mutants

    # --- places -----------------------------------------------------------------------------------

    def extent(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.lines[node.lineno - 1] + node.col_offset
        return start, self.lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.extent(node)
        return self.data[start:end].decode()

    def add(self, kind: str, node: ast.AST, text: str, shown: ast.AST | None = None) -> None:
        """`node` becomes `text`, on as many lines as before. `shown` is what the report quotes."""
        start, end = self.extent(node)
        self.add_extent(kind, start, end, text, shown or node)

    def add_extent(self, kind: str, start: int, end: int, text: str, shown: ast.AST) -> None:
        missing = self.data[start:end].count(b"\n") - text.count("\n")
        if missing > 0:
            text = f"({text}" + "\n" * missing + ")"
        first, last = self.extent(shown)
        before = self.data[first:last].decode()
        after = (self.data[first:start] + text.encode() + self.data[end:last]).decode()
        change = f"{' '.join(before.split())} → {' '.join(after.split())}"
        line = self.data[:start].count(b"\n") + 1
        self.mutants.append(
            Mutant(self.file, self.data, line, self.function, kind, start, end, text, change)
        )

    # --- statements -------------------------------------------------------------------------------

    def look_at_statement(self, node: ast.stmt, judging: bool) -> None:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                self.look_at_statement(statement, judging)
        elif isinstance(node, ast.FunctionDef):
            self.look_at_function(node, judging)
        elif isinstance(node, ast.If):
            self.look_at_if(node, judging)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call) and is_check(node.value):
                self.add("check not called", node.value, "None")
            elif judging:
                self.look_at_expression(node.value)
        elif isinstance(node, ast.Return):
            self.look_at_return(node, judging)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            serves = any(isinstance(t, ast.Name) and t.id in MESSAGES for t in targets)
            if judging and node.value is not None and not serves:
                self.look_at_expression(node.value)
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            if judging and isinstance(node, ast.While):
                self.look_at_expression(node.test)
            for part in ("body", "orelse", "finalbody"):
                for statement in getattr(node, part, []):
                    self.look_at_statement(statement, judging)
            for handler in getattr(node, "handlers", []):
                for statement in handler.body:
                    self.look_at_statement(statement, judging)

    def look_at_function(self, node: ast.FunctionDef, judging: bool) -> None:
        outer = self.function, self.returns_truth
        self.function = node.name
        self.returns_truth = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        named = node.name.startswith(JUDGING) or node.name in JUDGES
        shown_only = node.name in ("__repr__", "__str__", "__hash__")
        for statement in node.body:
            if not shown_only:
                self.look_at_statement(statement, judging or named)
        self.function, self.returns_truth = outer

    def look_at_if(self, node: ast.If, judging: bool) -> None:
        if judging or guards(node):
            self.add("condition true", node.test, "True")
            self.add("condition false", node.test, "False")
            self.look_at_expression(node.test)
        for statement in (*node.body, *node.orelse):
            self.look_at_statement(statement, judging)

    def look_at_return(self, node: ast.Return, judging: bool) -> None:
        if not judging or node.value is None:
            return
        if self.returns_truth:
            if isinstance(node.value, ast.Constant):
                self.add("other truth", node.value, str(not node.value.value), node)
            else:
                self.add("other truth", node.value, f"not ({self.text(node.value)})", node)
        self.look_at_expression(node.value)

    # --- expressions ------------------------------------------------------------------------------

    def look_at_expression(self, node: ast.expr) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Compare):
                self.look_at_comparison(part)
            elif isinstance(part, ast.BoolOp):
                self.look_at_connective(part)
            elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                self.add("not dropped", part, f"({self.text(part.operand)})")
            elif isinstance(part, ast.IfExp):
                self.add("condition true", part.test, "True", part)
                self.add("condition false", part.test, "False", part)

    def look_at_comparison(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            gap = self.extent(left)[1], self.extent(right)[0]
            self.add_extent("operator", *gap, f" {OPERATORS[type(operator)]} ", node)
            if not isinstance(operator, ast.In | ast.NotIn | ast.Is | ast.IsNot):
                for side in (left, right):
                    self.look_at_bound(side, node)
            left = right

    def look_at_bound(self, side: ast.expr, node: ast.Compare) -> None:
        is_number = isinstance(side, ast.Constant) and type(side.value) is int
        is_named = isinstance(side, ast.Name) and "MAXIMUM" in side.id
        if is_number or is_named:
            self.add("bound + 1", side, f"({self.text(side)} + 1)", node)
            self.add("bound - 1", side, f"({self.text(side)} - 1)", node)

    def look_at_connective(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        whole_start, whole_end = self.extent(node)
        parts = [f"({self.text(value)})" for value in node.values]
        self.add_extent("connective", whole_start, whole_end, f"({other.join(parts)})", node)

    # --- tables -----------------------------------------------------------------------------------

    def look_at_table(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or not target.id.isupper() or node.value is None:
            return
        self.function = target.id
        value = node.value
        if isinstance(value, ast.Constant) and type(value.value) is int:
            self.add("constant", value, f"({self.text(value)} + 1)", node)
        for part in ast.walk(value):
            if isinstance(part, ast.Tuple):
                self.look_at_tuple(part, target.id)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                if part.func.id == "_in":
                    self.look_at_packets(part)
                elif part.func.id == "frozenset" and part.args:
                    added = f"frozenset((*{self.text(part.args[0])}, {ADDED_REASON}))"
                    self.add("entry added", part, added)
            elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
                self.add("entry removed", part, self.text(part.left))
                self.add("entry removed", part, self.text(part.right))
            elif isinstance(part, ast.Name) and part.id in KINDS and target.id == "_TABLE":
                self.add("other kind", part, KINDS[part.id], row_of(value, part))
        self.function = "module"

    def look_at_tuple(self, node: ast.Tuple, table: str) -> None:
        if table == "FIXED_FLAGS":
            for element in node.elts:
                self.add("entry changed", element, f"({self.text(element)} ^ 1)", node)
            return
        for element in node.elts:
            number = isinstance(element, ast.Constant) and type(element.value) is int
            if number or (table == "_TABLE" and isinstance(element, ast.Tuple)):
                start, end = self.extent(element)
                while self.data[end : end + 1] not in (b",", b")"):
                    end += 1
                if self.data[end : end + 1] == b",":
                    end += 1
                # Whatever the element's lines were, as many are left.
                lines = self.data[start:end].count(b"\n")
                before = " ".join(self.text(element).split())
                line = self.data[:start].count(b"\n") + 1
                self.mutants.append(
                    Mutant(
                        self.file,
                        self.data,
                        line,
                        self.function,
                        "entry removed",
                        start,
                        end,
                        "\n" * lines,
                        f"{before} → (none)" if table == "_TABLE" else self.removed(node, element),
                    )
                )

    def removed(self, node: ast.Tuple, element: ast.expr) -> str:
        return f"{' '.join(self.text(node).split())} without {self.text(element)}"

    def look_at_packets(self, node: ast.Call) -> None:
        names = [self.text(argument) for argument in node.args]
        for name in names:
            rest = [other for other in names if other != name]
            self.add("entry removed", node, f"_in({', '.join(rest)})")
        for name in ADDED_PACKETS:
            if name not in names:
                self.add("entry added", node, f"_in({', '.join([*names, name])})")
                break


def is_check(call: ast.Call) -> bool:
    """Whether it is a call of a check, by its name."""
    function = call.func
    name = function.id if isinstance(function, ast.Name) else ""
    if isinstance(function, ast.Attribute):
        name = function.attr
    return name.startswith("check_")


def guards(node: ast.If) -> bool:
    """Whether what the condition guards is the report of a violation."""
    for statement in node.body:
        for part in ast.walk(statement):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                if part.func.id in ("report", "Violation"):
                    return True
    return False


def row_of(table: ast.expr, part: ast.AST) -> ast.expr:
    """The row of a table of tuples that `part` stands in."""
    assert isinstance(table, ast.Tuple)
    for row in table.elts:
        if part in ast.walk(row):
            return row
    raise AssertionError("no row has it")


def find_mutants(project: Path) -> list[Mutant]:
    """All of them, module by module."""
    found: list[Mutant] = []
    for path in sorted((project / CORE).rglob("*.py")):
        if path.name == "__init__.py":
            continue
        for mutant in Finder(path.relative_to(project / CORE), path.read_bytes()).find():
            if mutant.mutated() != mutant.data and parses(mutant.mutated()):
                found.append(mutant)
    return found


def parses(data: bytes) -> bool:
    try:
        ast.parse(data)
    except SyntaxError:
        return False
    return True


# --- running ------------------------------------------------------------------------------------


def tests_of(project: Path, file: Path) -> list[str]:
    """The test files named after a module."""
    return [str(path) for path in sorted((project / TESTS).rglob(f"test_{file.stem}.py"))]


def run_tests(copy: Path, paths: list[str]) -> int:
    """Start tests of a copy of the project; the id of a process that ends as pytest does."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(copy / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 99
    try:
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["SEMEL_TEST_MODE"] = "interpreted"
        os.environ["TEST_REPEATS"] = "full"
        sys.dont_write_bytecode = True
        ours = ("", str(ROOT), str(ROOT / "src"))
        sys.path[:] = [str(copy / "src"), str(copy), *(p for p in sys.path if p not in ours)]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        assert "semel" not in sys.modules
        code = pytest.main(
            [
                *("-x", "-q", "--no-header", "-p", "no:cacheprovider"),
                *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is imported
                *("--hypothesis-seed=0", *paths),
            ]
        )
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


@dataclass
class Run:
    """A mutant in a slot: its process, and what is left to run if that passes."""

    mutant: Mutant
    copy: Path
    pid: int
    started: float
    stages: list[list[str]]


class Runner:
    """Runs mutants, a few at a time, each slot with a copy of sources and tests of its own.

    All are copies of the first, so that whoever edits the project meanwhile changes nothing.
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
        self.limit = 600.0

    def check_unbroken(self) -> float:
        """The sources as they are pass; how long that takes."""
        copy = self.free[0]
        started = time.monotonic()
        pid = run_tests(copy, [str(copy / TESTS)])
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            print((copy / OUTPUT).read_text(encoding="utf-8", errors="replace")[-3000:])
            raise SystemExit("mutants: tests/mqtt fails without a mutation; mend that first")
        taken = time.monotonic() - started
        self.limit = 20 + 3 * taken
        return taken

    def start(self, mutant: Mutant) -> Run:
        copy = self.free.pop()
        (copy / CORE / mutant.file).write_bytes(mutant.mutated())
        first = tests_of(copy, mutant.file)
        every = [str(copy / TESTS)]
        stages = [first, every] if first else [every]
        pid = run_tests(copy, stages.pop(0))
        return Run(mutant, copy, pid, time.monotonic(), stages)

    def poll(self, run: Run) -> str:
        """ "" while it runs; then killed, timeout or survived."""
        done, status = os.waitpid(run.pid, os.WNOHANG)
        if not done:
            if time.monotonic() - run.started < self.limit:
                return ""
            os.killpg(run.pid, signal.SIGKILL)
            os.waitpid(run.pid, 0)
            return self.finish(run, "timeout")
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and run.stages:
            run.pid = run_tests(run.copy, run.stages.pop(0))
            run.started = time.monotonic()
            return ""
        # 1: a test failed; 2 to 4: semel could not be imported; below 0: a signal.
        if code > 4:
            print((run.copy / OUTPUT).read_text(encoding="utf-8", errors="replace")[-3000:])
            raise SystemExit(f"mutants: pytest ended with {code} on {run.mutant}")
        return self.finish(run, "survived" if code == 0 else "killed")

    def finish(self, run: Run, outcome: str) -> str:
        (run.copy / CORE / run.mutant.file).write_bytes(run.mutant.data)
        self.free.append(run.copy)
        return outcome


def run_all(runner: Runner, mutants: list[Mutant]) -> dict[str, list[Mutant]]:
    """Every mutant by what became of it."""
    outcomes: dict[str, list[Mutant]] = {"killed": [], "timeout": [], "survived": []}
    waiting = list(reversed(mutants))
    running: list[Run] = []
    done = 0
    while waiting or running:
        while waiting and runner.free:
            running.append(runner.start(waiting.pop()))
        for run in list(running):
            outcome = runner.poll(run)
            if outcome:
                running.remove(run)
                outcomes[outcome].append(run.mutant)
                done += 1
                if outcome != "killed" or done % 25 == 0:
                    print(f"[{done}/{len(mutants)}] {outcome}: {run.mutant}", flush=True)
        time.sleep(0.005)
    return outcomes


def listed() -> dict[tuple[str, str, str], str]:
    """survivors.csv: why it is right that a mutant survives."""
    if not LISTED.exists():
        return {}
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {
            (row["file"], row["function"], row["mutation"]): row["why"]
            for row in csv.DictReader(file)
        }


def chosen(mutants: list[Mutant], only: list[str], every: int) -> list[Mutant]:
    """Each n-th of those in modules whose path has one of `only` in it (or in all)."""
    named = [m for m in mutants if not only or any(part in str(m.file) for part in only)]
    return named[::every]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[], help="part of a module's path")
    parser.add_argument("--every", type=int, default=1, help="only each n-th mutant: a quick look")
    parser.add_argument("--list", action="store_true", help="say what would be done")
    options = parser.parse_args()
    if options.list:
        mutants = chosen(find_mutants(ROOT), options.only, options.every)
        for mutant in mutants:
            print(mutant)
        counts = Counter(mutant.kind for mutant in mutants)
        print(f"{len(mutants)} mutants: {dict(counts.most_common())}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        # Examples that hypothesis keeps would make one mutant's run depend on another's.
        hypothesis.configuration.set_hypothesis_home_dir(folder)
        runner = Runner(Path(folder), options.jobs)
        found = find_mutants(runner.free[0])
        mutants = chosen(found, options.only, options.every)
        print(f"unbroken: passes in {runner.check_unbroken():.0f} s; {len(mutants)} mutants")
        outcomes = run_all(runner, mutants)
    excused = listed()
    survived = {mutant.key for mutant in outcomes["survived"]}
    unexcused = [mutant for mutant in outcomes["survived"] if mutant.key not in excused]
    ran = {mutant.key for mutant in mutants}
    existing = {mutant.key for mutant in found}
    stale = [key for key in excused if key not in existing or (key in ran and key not in survived)]
    print({outcome: len(those) for outcome, those in outcomes.items()})
    for mutant in sorted(unexcused, key=str):
        print(f"SURVIVOR {mutant}")
    for key in stale:
        print(f"NO LONGER A SURVIVOR, yet listed: {key}")
    return 1 if unexcused or stale else 0


if __name__ == "__main__":
    sys.exit(main())
