"""Imports between rooms point one way, as DESIGN.md section 1 draws it, and so do those of files.

The checker reads source text, so it also sees imports inside functions, under TYPE_CHECKING, and
modules named by a string in `import_module`, `__import__` and `need`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "semel"

# Top to bottom. A room may import any room of a lower layer: none beside it, none above it.
LAYERS = (
    {"cli"},
    {"web"},
    {"up", "lab", "probe"},
    {"pipeline", "broker"},
    {"client"},
    {"store"},
    {"mqtt"},
)
DEPTH = {room: depth for depth, layer in enumerate(LAYERS) for room in layer}
# Modules and data beside the rooms, open to every room but mqtt; they import no room themselves.
COMMON = {
    *("", "counts", "extras", "metrics", "processes", "settings", "settings_values"),
    *("vectors", "standard"),
}
# Rooms whose names the package lends, when they are asked for.
FRONT_DOOR = {"client", "mqtt"}
# What compiled code needs at run time: all that mqtt may import beside the standard library.
RUN_TIME = {"mypy_extensions", "librt"}
IMPORTING_CALLS = {"import_module", "__import__", "need"}
# Examines files of a damaged store without SQLite: for the command, never for a running broker.
FORENSICS = "semel.store.forensics"
MAY_IMPORT_FORENSICS = {"semel.cli.store"}
# Our own codec as a subject of the examiner: all else in that room never uses our encoder.
MAY_ENCODE = {"probe/adapters/semel_codec.py"}
# Parts of that room. Each imports what is in the room itself, and no other part; only the matrix
# imports them there.
PARTS = {f"semel.probe.{part}" for part in ("adapters", "broker", "client", "codec", "report")}
MAY_IMPORT_PARTS = {"semel.probe.matrix"}


def room_of(module: str) -> str:
    """The room of a dotted name in semel; "" is the package's own ``__init__``."""
    room = f"{module}.".split(".")[1]
    return "cli" if room == "__main__" else room


def absolute(path: Path, root: Path, node: ast.ImportFrom) -> str:
    """The absolute name of the module that `node`, in the file `path`, imports from."""
    if node.level == 0:
        return node.module or ""
    package = ("semel", *path.relative_to(root).parent.parts)
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def imported(path: Path, root: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, root, node)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            target = node.args[0]
            if name in IMPORTING_CALLS and isinstance(target, ast.Constant):
                yield node.lineno, str(target.value)


def objection(room: str, target: str, *, may_encode: bool = False) -> str | None:
    """Why `room` may not import `target`, or None if it may."""
    package = target.partition(".")[0]
    if package == "pyspark" and room != "pipeline":
        return "only pipeline imports pyspark"
    if package != "semel":
        if room == "mqtt" and package not in sys.stdlib_module_names | RUN_TIME:
            return "mqtt imports the standard library only"
        return None
    other = room_of(target)
    if other not in DEPTH and other not in COMMON:
        other = ""  # a name defined in the package's __init__, such as semel.__version__
    if other == room and room != "":
        return None
    if other in COMMON:
        return "mqtt stands alone" if room == "mqtt" else None
    if room == "" and other in FRONT_DOOR:
        return None
    if room in COMMON:
        return f"{room or '__init__'} is open to every room, so it imports none"
    if DEPTH[room] >= DEPTH[other]:
        return f"{room} may not import {other}"
    if room == "probe" and other == "mqtt" and not may_encode:
        name = target.rpartition(".")[2]
        if name == "*" or any(part.startswith("encode") for part in target.split(".")):
            return f"probe never uses our encoder ({name})"
    return None


def encoder_uses(tree: ast.AST, path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and text of `module.encode...` where `module` was imported from semel.mqtt."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name for a in node.names if room_of(a.name) == "mqtt"}
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, root, node)
            for alias in node.names:
                if f"{module}.{alias.name}.".startswith("semel.mqtt."):
                    names.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("encode"):
            text = ast.unparse(node)
            if any(text.startswith(f"{name}.") for name in names):
                yield node.lineno, text


def bad_arrows(root: Path) -> list[str]:
    """One sentence for each import under `root` (the folder of the package) that is not allowed."""
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        room = room_of(".".join(["semel", *place.with_suffix("").parts]))
        room = "" if room == "__init__" else room
        if room not in DEPTH and room not in COMMON:
            found.append(f"{place}: {room} is no room of DESIGN.md")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        may_encode = place.as_posix() in MAY_ENCODE
        for line, target in imported(path, root, tree):
            reason = objection(room, target, may_encode=may_encode)
            if reason is not None:
                found.append(f"{place}:{line}: {target}: {reason}")
        if room == "probe" and not may_encode:
            for line, text in encoder_uses(tree, path, root):
                found.append(f"{place}:{line}: {text}: probe never uses our encoder")
    return found


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a file; a package is its ``__init__``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(("semel", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports_of_files(root: Path) -> dict[str, set[str]]:
    """By module: the modules of the package that it imports."""
    files = {module_of(path, root): path for path in sorted(root.rglob("*.py"))}
    found = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        targets = {target for _, target in imported(path, root, tree)}
        # `from a import b` imports the module a.b, or the name b of the module a.
        found[module] = {
            name
            for target in targets
            for name in (target if target in files else target.rpartition(".")[0],)
            if name in files and name != module
        }
    return found


def cycles(root: Path) -> list[set[str]]:
    """Groups of files that import each other, directly or through others (Tarjan's algorithm)."""
    graph = imports_of_files(root)
    found: list[set[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            group = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(group)

    for module in graph:
        if module not in order:
            visit(module)
    return sorted(found, key=min)


def forensic_imports(root: Path) -> list[str]:
    """Modules that import the forensics of the store, and may not."""
    return [
        module
        for module, targets in imports_of_files(root).items()
        if not f"{module}.".startswith(f"{FORENSICS}.") and module not in MAY_IMPORT_FORENSICS
        if any(f"{target}.".startswith(f"{FORENSICS}.") for target in targets)
    ]


def part_of(module: str) -> str:
    """The part of the examiner to which a module belongs; "" for the others."""
    part = ".".join(module.split(".")[:3])
    return part if part in PARTS else ""


def imports_of_parts(root: Path) -> list[str]:
    """Imports by modules of the examiner of parts that are not their own."""
    return [
        f"{module}: {target}"
        for module, targets in imports_of_files(root).items()
        if module.startswith("semel.probe.") and module not in MAY_IMPORT_PARTS
        for target in sorted(targets)
        if part_of(target) not in ("", part_of(module))
    ]


def test_every_import_follows_the_design() -> None:
    assert bad_arrows(SOURCES) == []


def test_no_files_import_each_other() -> None:
    assert cycles(SOURCES) == []


def test_only_the_store_command_imports_forensics() -> None:
    assert forensic_imports(SOURCES) == []


def test_the_parts_of_the_examiner_do_not_import_each_other() -> None:
    assert imports_of_parts(SOURCES) == []


def plant(root: Path, place: str, text: str) -> None:
    """Write one file of a small fake package."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("mqtt/codec.py", "import semel.store"),
        ("mqtt/codec.py", "import semel.store.log as log"),
        ("mqtt/codec.py", "from semel import store"),
        ("mqtt/codec.py", "from .. import store"),
        ("mqtt/codec.py", "from ..store import log"),
        ("mqtt/codec.py", "from ..store.log import Log"),
        ("mqtt/deep/codec.py", "from ...store import log"),
        ("mqtt/__init__.py", "from ..store import log"),
        ("mqtt/codec.py", "from semel.settings import Settings"),
        ("mqtt/codec.py", "from semel.extras import need"),
        ("mqtt/codec.py", "from semel import __version__"),
        ("mqtt/codec.py", "import semel"),
        ("mqtt/codec.py", "import click"),
        ("mqtt/codec.py", "from typing_extensions import final"),
        ("mqtt/codec.py", "def f():\n    import semel.broker"),
        ("store/log.py", "from semel.client import Client"),
        ("client/run.py", "from semel.broker import serve"),
        ("broker/run.py", "from semel.pipeline import land"),
        ("pipeline/run.py", "from semel.broker import serve"),
        ("up/run.py", "from semel.web import start"),
        ("lab/run.py", "from semel.cli import main"),
        ("settings.py", "from semel.broker import Section"),
        ("extras.py", "import semel.mqtt"),
        ("__init__.py", "from semel.store import store"),
        ("__init__.py", "from .broker import core"),
        ("vectors/__init__.py", "from semel.mqtt import decode"),
        ("broker/run.py", "import pyspark"),
        ("cli/land.py", "from pyspark.sql import SparkSession"),
        ("store/log.py", "if TYPE_CHECKING:\n    from pyspark.sql import Row"),
        ("up/run.py", "import_module('pyspark.sql')"),
        ("up/run.py", "extras.need('pyspark', extra='spark', by='semel up')"),
        ("store/log.py", "importlib.import_module('semel.broker')"),
        ("probe/run.py", "from semel.mqtt import encode"),
        ("probe/run.py", "from semel.mqtt import encode as build"),
        ("probe/run.py", "from semel.mqtt.codec import encode_publish"),
        ("probe/run.py", "from semel.mqtt import *"),
        ("probe/run.py", "import semel.mqtt.codec as codec\ncodec.encode(1)"),
        ("probe/run.py", "import semel.mqtt.codec\nsemel.mqtt.codec.encode(1)"),
        ("probe/run.py", "from ..mqtt import codec\ncodec.encode(1)"),
        ("probe/adapters/other_codec.py", "from semel.mqtt import encode"),
        ("probe/adapters/semel_codec.py", "from semel import up"),
        ("tools/run.py", "import os"),
        ("tools.py", "import os"),
    ],
)
def test_a_bad_arrow_is_caught(tmp_path: Path, place: str, text: str) -> None:
    plant(tmp_path, place, text)
    assert len(bad_arrows(tmp_path)) == 1


def test_a_cycle_is_caught(tmp_path: Path) -> None:
    plant(tmp_path, "__init__.py", "")
    plant(tmp_path, "store/__init__.py", "")
    plant(tmp_path, "store/rows.py", "from semel.store.schema import Row")
    plant(tmp_path, "store/schema.py", "def f():\n    from .log import frames")
    plant(tmp_path, "store/log.py", "if TYPE_CHECKING:\n    from semel.store import rows")
    plant(tmp_path, "store/mark.py", "import semel.store.log")
    assert cycles(tmp_path) == [{"semel.store.rows", "semel.store.schema", "semel.store.log"}]
    plant(tmp_path, "store/log.py", "from semel import store")
    assert cycles(tmp_path) == []
    plant(tmp_path, "store/__init__.py", "from semel.store.mark import Mark")
    assert cycles(tmp_path) == [{"semel.store", "semel.store.log", "semel.store.mark"}]


def test_an_import_of_forensics_is_caught(tmp_path: Path) -> None:
    plant(tmp_path, "store/forensics/__init__.py", "")
    plant(tmp_path, "store/forensics/pages.py", "")
    plant(tmp_path, "store/forensics/repair.py", "from semel.store.forensics import pages")
    plant(tmp_path, "cli/store.py", "from semel.store.forensics.repair import repair_store")
    assert forensic_imports(tmp_path) == []
    plant(tmp_path, "store/folder.py", "def f():\n    from .forensics.pages import Pages")
    plant(tmp_path, "store/care.py", "from semel.store import forensics")
    assert forensic_imports(tmp_path) == ["semel.store.care", "semel.store.folder"]


def test_an_import_of_another_part_of_the_examiner_is_caught(tmp_path: Path) -> None:
    plant(tmp_path, "probe/wire.py", "")
    plant(tmp_path, "probe/broker/link.py", "from semel.probe.wire import publish")
    plant(tmp_path, "probe/broker/trial.py", "from semel.probe.broker.link import ProbeLink")
    plant(tmp_path, "probe/matrix.py", "from semel.probe.broker.trial import Trial")
    plant(tmp_path, "cli/probe.py", "from semel.probe.broker.trial import Trial")
    assert imports_of_parts(tmp_path) == []
    plant(tmp_path, "probe/client/trial.py", "from semel.probe.broker.link import ProbeLink")
    plant(tmp_path, "probe/outcomes.py", "from semel.probe.client import trial")
    assert imports_of_parts(tmp_path) == [
        "semel.probe.client.trial: semel.probe.broker.link",
        "semel.probe.outcomes: semel.probe.client.trial",
    ]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("mqtt/codec.py", "import struct, typing\nfrom collections.abc import Iterator"),
        ("mqtt/codec.py", "from mypy_extensions import i64\nfrom librt.strings import BytesWriter"),
        ("mqtt/codec.py", "from semel.mqtt.wire import Reader\nfrom . import wire"),
        ("__init__.py", "from semel.mqtt import decode\nfrom .client import Client"),
        ("mqtt/__init__.py", "from .codec import decode\nfrom semel.mqtt import codec"),
        ("store/log.py", "from semel.mqtt import encode"),
        ("client/run.py", "from semel import mqtt, store"),
        ("broker/run.py", "from semel.client import Client\nimport uvloop"),
        ("pipeline/run.py", "from ..client import Client\nimport pyspark.sql as sql"),
        ("probe/run.py", "from semel.mqtt import decode, rules\n'a'.encode()"),
        ("probe/adapters/semel_codec.py", "from semel.mqtt import decode, encode"),
        ("lab/run.py", "from semel.broker import serve\nfrom semel.mqtt import encode"),
        ("web/run.py", "from semel.up import start\nfrom semel.settings import Settings"),
        ("cli/__init__.py", "from semel import up, probe, mqtt\nimport click"),
        ("__main__.py", "from semel.cli import main"),
        ("settings.py", "from semel import __version__\nfrom semel.extras import need"),
    ],
)
def test_a_good_arrow_passes(tmp_path: Path, place: str, text: str) -> None:
    plant(tmp_path, place, text)
    assert bad_arrows(tmp_path) == []
