"""Finding mutants: copies of a module with one change that a test should notice.

A change affects a comparison, its bound, `and` and `or`, a `not`, a whole condition, the call of a
check, a returned bool, or an entry of a table. In a room that `drops_statements`, a statement that
is only a call is left out, or a `raise`, too.

semel.mqtt is changed where a rule is checked: in the functions that check (CHECK_PREFIXES and
CHECK_FUNCTIONS), in every condition that guards a `report(…)` or a `raise Violation(…)`, at every
call of a check, and in the tables that checks use. Modules in a room's `everywhere` are changed in
every statement.
"""

import ast
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.long.mutated_rooms import Room

# Relative to the project, or to a copy of it.
SOURCES: Final = Path("src", "semel")

# Functions that check, by prefix and by name.
CHECK_PREFIXES: Final = ("check_", "is_", "has_", "indicates_")
CHECK_FUNCTIONS: Final = frozenset(
    (
        *("topic_matches", "split_share", "_take", "report", "observe"),
        *("_check_field", "publish_fits"),
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
    """`data[start:end]` of one file, named from src/semel, becomes `text`."""

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
        return f"{SOURCES / self.file}:{self.line} {self.function}: {self.kind}: {self.change}"


class Finder:
    """Finds the mutants of one module."""

    def __init__(self, room: Room, file: Path, data: bytes) -> None:
        self.room = room
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
                if self.file.name in self.room.tables and statement.value is not None:
                    self.visit_table(statement)
            else:
                self.visit_statement(statement, self.file.name in self.room.everywhere)
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
                if self.room.drops_statements and isinstance(node.value, ast.Call):
                    self.add("call dropped", node.value, "None")
                self.visit_expression(node.value)
        elif isinstance(node, ast.Raise):
            if in_check and self.room.drops_statements:
                self.add("raise dropped", node, "None")
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


def find_mutants(project: Path, room: Room) -> list[Mutant]:
    """All mutants of a room, module by module."""
    found: list[Mutant] = []
    for path in sorted((project / SOURCES / room.name).rglob("*.py")):
        if path.name == "__init__.py":
            continue
        if not room.checks_elsewhere and path.name not in room.everywhere:
            continue
        for mutant in Finder(room, path.relative_to(project / SOURCES), path.read_bytes()).find():
            if mutant.mutated() != mutant.data and parses(mutant.mutated()):
                found.append(mutant)
    return found


def parses(data: bytes) -> bool:
    try:
        ast.parse(data)
    except SyntaxError:
        return False
    return True


def is_in_sample(mutant: Mutant, every: int) -> bool:
    """Whether it is one of the `every`-th part that runs.

    That depends on the mutant alone, so that edits elsewhere leave the sample as it is.
    """
    return zlib.crc32("|".join(mutant.key).encode()) % every == 0


def number_equals(mutants: list[Mutant]) -> list[tuple[Mutant, int]]:
    """Each mutant, in the order of the sources, and how many before it have the same key."""
    seen: Counter[tuple[str, str, str]] = Counter()
    numbered: list[tuple[Mutant, int]] = []
    for mutant in sorted(mutants, key=lambda each: (each.file, each.start)):
        numbered.append((mutant, seen[mutant.key]))
        seen[mutant.key] += 1
    return numbered
