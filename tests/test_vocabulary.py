"""One thing has one name, and no name uses a word that the glossary has replaced."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from semel.store.schema import TABLES

HOME = Path(__file__).resolve().parent.parent
SOURCES = sorted((HOME / "src").rglob("*.py"))
GLOSSARY = HOME / "docs" / "reference" / "glossary.md"
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def replaced_words() -> frozenset[str]:
    """The words on the left of the second table of the glossary."""
    table = GLOSSARY.read_text().partition("## Replaced words")[2]
    rows = re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE)
    words = {word for row in rows for word in row.split(", ")} - {"not"}
    return frozenset(words)


def words_of(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


def names_in(text: str) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something, and its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def replaced_names(text: str) -> list[str]:
    """`line: name` for every name of a module that has a replaced word."""
    replaced = replaced_words()
    return sorted(
        {f"{line}: {name}" for name, line in names_in(text) if replaced & set(words_of(name))}
    )


def test_the_glossary_has_a_table_of_replaced_words() -> None:
    assert {"lasts", "said", "told", "judge"} <= replaced_words()
    assert "durable" not in replaced_words()


def test_no_name_uses_a_replaced_word() -> None:
    replaced = replaced_words()
    wrong = {str(path): replaced_names(path.read_text()) for path in SOURCES}
    assert not [path for path in SOURCES if replaced & set(words_of(path.stem))]
    assert not {path: names for path, names in wrong.items() if names}


def test_a_replaced_word_is_noticed_in_every_kind_of_name() -> None:
    text = "class Told: pass\ndef is_told(look_at):\n    x.said = heard = 1\n"
    assert replaced_names(text) == ["1: Told", "2: is_told", "2: look_at", "3: heard", "3: said"]
    assert not replaced_names("class Reported: pass\ndef is_durable(outlook): pass\n")


def test_no_table_or_column_of_the_store_uses_a_replaced_word() -> None:
    for table in TABLES.values():
        for name in (table.name, *table.column_names):
            assert not set(words_of(name)) & replaced_words(), name


def test_no_two_classes_have_the_same_name() -> None:
    """PySpark looks for a `DefaultSource` in each of the two packages beside semel."""
    homes = defaultdict(list)
    for path in (HOME / "src" / "semel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(HOME / "src")))
    assert not {name: places for name, places in homes.items() if len(places) > 1}
