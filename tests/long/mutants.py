"""Mutation tests of semel.mqtt: breaks its checks one at a time; a test must fail each time.

    python -m tests.long.mutants [--jobs 2] [--only topics] [--every 10] [--list]

A mutant is a copy of the sources, in a temporary directory, with one change where a rule is
checked: in the functions that check (CHECK_PREFIXES and CHECK_FUNCTIONS), in every condition that
guards a `report(…)` or a `raise Violation(…)`, anywhere in the modules in WHOLE, at every call of a
check, and in the tables that checks use. A change affects a comparison, its bound, `and` and `or`,
a `not`, a whole condition, the call of a check, a returned bool, or an entry of a table.

For each mutant the tests of its module run first, then all of tests/mqtt. A mutant that passes all
tests is a survivor: either a test is missing, or the change has no effect, and then
tests/long/survivors.csv lists it with the reason. Survivors that are not listed cause exit code 1,
and so do listed ones that no longer survive.

Everything runs interpreted. Each mutant has its own process, forked after the tools were imported
and before semel is.
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
# Relative to the project, or to a copy of it.
CORE: Final = Path("src", "semel", "mqtt")
TESTS: Final = Path("tests", "mqtt")
LISTED: Final = Path(__file__).with_name("survivors.csv")

# The output of the last tests in a slot.
OUTPUT: Final = "output.txt"

# Functions that check, by prefix and by name.
CHECK_PREFIXES: Final = ("check_", "is_", "has_", "indicates_")
CHECK_FUNCTIONS: Final = frozenset(
    (
        *("topic_matches", "split_share", "_take", "report", "observe"),
        *("_check_field", "publish_fits"),
    )
)
# Modules that are mutated everywhere.
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
# The type of a property, and another one that also parses.
KINDS: Final = {
    "_YES_OR_NO": "_TWO_BYTES",
    "_TWO_BYTES": "_FOUR_BYTES",
    "_FOUR_BYTES": "_TWO_BYTES",
    "_VARIABLE": "_TWO_BYTES",
    "_TEXT": "_BINARY",
    "_BINARY": "_TEXT",
    "_PAIR": "_TEXT",
}
# Packets to add to a property's entry; a value that is not a reason code.
ADDED_PACKETS: Final = ("WILL", "PUBACK", "UNSUBSCRIBE")
ADDED_REASON: Final = "0x7F"
# Local names that are only used in messages.
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
        """Its key in survivors.csv: without line numbers, which change."""
        return str(self.file), self.function, self.change

    def mutated(self) -> bytes:
        return self.data[: self.start] + self.text.encode() + self.data[self.end :]

    def __str__(self) -> str:
        return f"{CORE / self.file}:{self.line} {self.function}: {self.kind}: {self.change}"


class Finder:
    """Finds the mutants of one module."""

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
                    self.visit_table(statement)
            else:
                self.visit_statement(statement, self.file.name in WHOLE)
        return self.mutants

    # --- positions --------------------------------------------------------------------------------

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
        """Replace `node` by `text`, with the same number of lines. The report quotes `shown`."""
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

    def visit_statement(self, node: ast.stmt, in_check: bool) -> None:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                self.visit_statement(statement, in_check)
        elif isinstance(node, ast.FunctionDef):
            self.visit_function(node, in_check)
        elif isinstance(node, ast.If):
            self.visit_if(node, in_check)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call) and calls_check(node.value):
                self.add("check not called", node.value, "None")
            elif in_check:
                self.visit_expression(node.value)
        elif isinstance(node, ast.Return):
            self.visit_return(node, in_check)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            serves = any(isinstance(t, ast.Name) and t.id in MESSAGES for t in targets)
            if in_check and node.value is not None and not serves:
                self.visit_expression(node.value)
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            if in_check and isinstance(node, ast.While):
                self.visit_expression(node.test)
            for part in ("body", "orelse", "finalbody"):
                for statement in getattr(node, part, []):
                    self.visit_statement(statement, in_check)
            for handler in getattr(node, "handlers", []):
                for statement in handler.body:
                    self.visit_statement(statement, in_check)

    def visit_function(self, node: ast.FunctionDef, in_check: bool) -> None:
        outer = self.function, self.returns_truth
        self.function = node.name
        self.returns_truth = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        named = node.name.startswith(CHECK_PREFIXES) or node.name in CHECK_FUNCTIONS
        shown_only = node.name in ("__repr__", "__str__", "__hash__")
        for statement in node.body:
            if not shown_only:
                self.visit_statement(statement, in_check or named)
        self.function, self.returns_truth = outer

    def visit_if(self, node: ast.If, in_check: bool) -> None:
        if in_check or guards(node):
            self.add("condition true", node.test, "True")
            self.add("condition false", node.test, "False")
            self.visit_expression(node.test)
        for statement in (*node.body, *node.orelse):
            self.visit_statement(statement, in_check)

    def visit_return(self, node: ast.Return, in_check: bool) -> None:
        if not in_check or node.value is None:
            return
        if self.returns_truth:
            if isinstance(node.value, ast.Constant):
                self.add("other truth", node.value, str(not node.value.value), node)
            else:
                self.add("other truth", node.value, f"not ({self.text(node.value)})", node)
        self.visit_expression(node.value)

    # --- expressions ------------------------------------------------------------------------------

    def visit_expression(self, node: ast.expr) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Compare):
                self.visit_comparison(part)
            elif isinstance(part, ast.BoolOp):
                self.visit_connective(part)
            elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                self.add("not dropped", part, f"({self.text(part.operand)})")
            elif isinstance(part, ast.IfExp):
                self.add("condition true", part.test, "True", part)
                self.add("condition false", part.test, "False", part)

    def visit_comparison(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            gap = self.extent(left)[1], self.extent(right)[0]
            self.add_extent("operator", *gap, f" {OPERATORS[type(operator)]} ", node)
            if not isinstance(operator, ast.In | ast.NotIn | ast.Is | ast.IsNot):
                for side in (left, right):
                    self.visit_bound(side, node)
            left = right

    def visit_bound(self, side: ast.expr, node: ast.Compare) -> None:
        is_number = isinstance(side, ast.Constant) and type(side.value) is int
        is_named = isinstance(side, ast.Name) and "MAXIMUM" in side.id
        if is_number or is_named:
            self.add("bound + 1", side, f"({self.text(side)} + 1)", node)
            self.add("bound - 1", side, f"({self.text(side)} - 1)", node)

    def visit_connective(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        whole_start, whole_end = self.extent(node)
        parts = [f"({self.text(value)})" for value in node.values]
        self.add_extent("connective", whole_start, whole_end, f"({other.join(parts)})", node)

    # --- tables -----------------------------------------------------------------------------------

    def visit_table(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or not target.id.isupper() or node.value is None:
            return
        self.function = target.id
        value = node.value
        if isinstance(value, ast.Constant) and type(value.value) is int:
            self.add("constant", value, f"({self.text(value)} + 1)", node)
        for part in ast.walk(value):
            if isinstance(part, ast.Tuple):
                self.visit_tuple(part, target.id)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                if part.func.id == "_in":
                    self.visit_packets(part)
                elif part.func.id == "frozenset" and part.args:
                    added = f"frozenset((*{self.text(part.args[0])}, {ADDED_REASON}))"
                    self.add("entry added", part, added)
            elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
                self.add("entry removed", part, self.text(part.left))
                self.add("entry removed", part, self.text(part.right))
            elif isinstance(part, ast.Name) and part.id in KINDS and target.id == "_TABLE":
                self.add("other kind", part, KINDS[part.id], row_of(value, part))
        self.function = "module"

    def visit_tuple(self, node: ast.Tuple, table: str) -> None:
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
                # Keep the number of lines.
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

    def visit_packets(self, node: ast.Call) -> None:
        names = [self.text(argument) for argument in node.args]
        for name in names:
            rest = [other for other in names if other != name]
            self.add("entry removed", node, f"_in({', '.join(rest)})")
        for name in ADDED_PACKETS:
            if name not in names:
                self.add("entry added", node, f"_in({', '.join([*names, name])})")
                break


def calls_check(call: ast.Call) -> bool:
    """Whether the called function is a check, by its name."""
    function = call.func
    name = function.id if isinstance(function, ast.Name) else ""
    if isinstance(function, ast.Attribute):
        name = function.attr
    return name.startswith("check_")


def guards(node: ast.If) -> bool:
    """Whether the condition guards the report of a violation."""
    for statement in node.body:
        for part in ast.walk(statement):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                if part.func.id in ("report", "Violation"):
                    return True
    return False


def row_of(table: ast.expr, part: ast.AST) -> ast.expr:
    """The row of a table of tuples that contains `part`."""
    assert isinstance(table, ast.Tuple)
    for row in table.elts:
        if part in ast.walk(row):
            return row
    raise AssertionError("no row has it")


def find_mutants(project: Path) -> list[Mutant]:
    """All mutants, module by module."""
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
    """Start tests of a copy of the project; returns the process id. It exits like pytest."""
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
    """A mutant in a slot: its process, and the tests that follow if these pass."""

    mutant: Mutant
    copy: Path
    pid: int
    started: float
    stages: list[list[str]]


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
        self.limit = 600.0

    def check_unbroken(self) -> float:
        """Run the tests without a mutation; returns how long they take. Raises SystemExit."""
        copy = self.free[0]
        started = time.monotonic()
        pid = run_tests(copy, [str(copy / TESTS)])
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            print((copy / OUTPUT).read_text(encoding="utf-8", errors="replace")[-3000:])
            raise SystemExit("mutants: tests/mqtt fails without a mutation; fix that first")
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
    """All mutants by outcome."""
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


def accepted_survivors() -> dict[tuple[str, str, str], str]:
    """survivors.csv: why a mutant may survive."""
    if not LISTED.exists():
        return {}
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {
            (row["file"], row["function"], row["mutation"]): row["why"]
            for row in csv.DictReader(file)
        }


def select(mutants: list[Mutant], only: list[str], every: int) -> list[Mutant]:
    """Every n-th mutant of the modules whose path contains one of `only`; or of all."""
    named = [m for m in mutants if not only or any(part in str(m.file) for part in only)]
    return named[::every]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[], help="part of a module's path")
    parser.add_argument(
        "--every", type=int, default=1, help="only every n-th mutant, for a quick check"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    options = parser.parse_args()
    if options.list:
        mutants = select(find_mutants(ROOT), options.only, options.every)
        for mutant in mutants:
            print(mutant)
        counts = Counter(mutant.kind for mutant in mutants)
        print(f"{len(mutants)} mutants: {dict(counts.most_common())}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        # Stored examples of hypothesis would make one mutant's run depend on another's.
        hypothesis.configuration.set_hypothesis_home_dir(folder)
        runner = Runner(Path(folder), options.jobs)
        found = find_mutants(runner.free[0])
        mutants = select(found, options.only, options.every)
        print(
            f"without a mutation: passes in {runner.check_unbroken():.0f} s; {len(mutants)} mutants"
        )
        outcomes = run_all(runner, mutants)
    accepted = accepted_survivors()
    survived = {mutant.key for mutant in outcomes["survived"]}
    unaccepted = [mutant for mutant in outcomes["survived"] if mutant.key not in accepted]
    ran = {mutant.key for mutant in mutants}
    existing = {mutant.key for mutant in found}
    stale = [key for key in accepted if key not in existing or (key in ran and key not in survived)]
    print({outcome: len(those) for outcome, those in outcomes.items()})
    for mutant in sorted(unaccepted, key=str):
        print(f"SURVIVOR {mutant}")
    for key in stale:
        print(f"NO LONGER A SURVIVOR, yet listed: {key}")
    return 1 if unaccepted or stale else 0


if __name__ == "__main__":
    sys.exit(main())
