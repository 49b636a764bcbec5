"""One change in the source of semel, made while its modules are imported.

    Edit           a piece of a module's text, which occurs once, becomes another
    RuleRemoval    the one statement that raises or reports a rule becomes `pass`

`install` puts a finder before all others, which compiles the changed modules from their changed
source. Nothing on disk changes, and no cached bytecode is used for them.
"""

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[4] / "src"
# The modules that raise or report rules.
MQTT: Final = SOURCES / "semel" / "mqtt"


class CannotMutate(Exception):
    """The change does not fit the source of today: a sentence."""


@dataclass(frozen=True)
class Edit:
    """In a module, such as broker.core, replace a text that occurs exactly once."""

    module: str
    old: str
    new: str

    def changed_source(self, source: str) -> str:
        found = source.count(self.old)
        if found != 1:
            raise CannotMutate(f"semel.{self.module} has this text {found} times: {self.old!r}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class RuleRemoval:
    """Do not check a rule, which is named as in rules.py."""

    rule: str

    def find_module(self) -> str:
        """The module with the statement, such as mqtt.topics."""
        found = [
            ".".join(path.relative_to(SOURCES / "semel").with_suffix("").parts)
            for path in sorted(MQTT.rglob("*.py"))
            if f"Violation({self.rule}," in "".join(path.read_text().split())
        ]
        if len(found) != 1:
            raise CannotMutate(f"the rule {self.rule} is checked in {found or 'no module'}")
        return found[0]

    def changed_source(self, source: str) -> str:
        """The source without the statement; lines that it took are left as they are."""
        remover = _StatementRemover(self.rule)
        tree = remover.visit(ast.parse(source))
        if remover.removed != 1:
            raise CannotMutate(f"{remover.removed} statements report {self.rule}, not one")
        return ast.unparse(ast.fix_missing_locations(tree))


Change = Edit | RuleRemoval


class _StatementRemover(ast.NodeTransformer):
    """Replaces `raise Violation(RULE, …)` and `report(found, Violation(RULE, …))` by `pass`."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.removed = 0

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return self._without(node, node.exc)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "report":
                return self._without(node, call.args[1])
        return node

    def _without(self, node: ast.stmt, violation: ast.expr | None) -> ast.stmt:
        if (
            isinstance(violation, ast.Call)
            and isinstance(violation.func, ast.Name)
            and violation.func.id == "Violation"
            and isinstance(violation.args[0], ast.Name)
            and violation.args[0].id == self.rule
        ):
            self.removed += 1
            return ast.copy_location(ast.Pass(), node)
        return node


def source_path(module: str) -> Path:
    """The file of a module, which is named without semel."""
    return (SOURCES / "semel").joinpath(*module.split(".")).with_suffix(".py")


def changed_modules(changes: Iterable[Change]) -> dict[str, str]:
    """The changed source of each changed module. Raises CannotMutate."""
    sources: dict[str, str] = {}
    for change in changes:
        module = change.module if isinstance(change, Edit) else change.find_module()
        source = sources.get(module) or source_path(module).read_text()
        sources[module] = change.changed_source(source)
    return sources


class _ChangedLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code = compile(self._source, self.path, "exec", dont_inherit=True)
        assert isinstance(code, CodeType)
        return code


class _ChangedFinder(MetaPathFinder):
    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = fullname.removeprefix("semel.")
        source = self._sources.get(module)
        if source is None or module == fullname:
            return None
        file = str(source_path(module))
        return spec_from_file_location(
            fullname, file, loader=_ChangedLoader(fullname, file, source)
        )


def install(changes: Iterable[Change]) -> None:
    """Import semel with these changes from now on. No changed module may be imported already."""
    sources = changed_modules(changes)
    for module in sources:
        assert f"semel.{module}" not in sys.modules, f"{module} is already imported"
    sys.meta_path.insert(0, _ChangedFinder(sources))
