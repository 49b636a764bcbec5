"""Each promise of SECURITY.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from semel import __version__

HOME = Path(__file__).resolve().parent.parent
PAGE = (HOME / "SECURITY.md").read_text("utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def named_tests(path: Path) -> set[str]:
    """The names of the tests in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {each.name for each in functions if each.name.startswith("test_")}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_promise_is_held_by_a_test_that_exists(file: str, name: str) -> None:
    assert name in named_tests(HOME / file)


def test_every_promise_names_a_test() -> None:
    table = PAGE.partition("\n## Promises\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| **", "| promise"))]
    assert len(promises) >= 30
    for row in promises:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", row), row


def test_the_page_covers_this_version() -> None:
    version = ".".join(__version__.split(".")[:2])
    assert f"| {version} | yes |" in PAGE
