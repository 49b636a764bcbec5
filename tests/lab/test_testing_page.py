"""The page about testing says what is true: its examples are run, all of them, by pytest."""

import re
from pathlib import Path

import pytest

from semel.lab.testing import TestBroker
from tests.lab.as_user import run

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "program" / "testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
NAMED = re.compile(r"# (\w+\.py)\n")


def test_every_example_of_the_page_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) > 14
    for number, block in enumerate(blocks):
        named = NAMED.match(block)
        name = named[1] if named else f"test_example_{number:02}.py"
        (pytester.path / name).write_text(block, "utf-8")
    # paho leaves its pair of sockets to the garbage collector.
    result = run(pytester, monkeypatch, "-p", "no:unraisableexception", "-q")
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed"}, result.stdout.str()
    assert outcomes["passed"] > 25


def test_the_page_names_every_method_and_no_other() -> None:
    text = PAGE.read_text("utf-8")
    public = {name for name in vars(TestBroker) if not name.startswith("_")} - {"close", "settings"}
    for name in public:
        assert re.search(rf"\b{name}\b", text), name
    called = set(re.findall(r"mqtt_broker\.(\w+)", text)) | set(
        re.findall(r"self\.broker\.(\w+)", text)
    )
    assert called <= public


def test_every_file_that_the_page_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8"))
    assert links
    for link in links:
        assert (PAGE.parent / link).exists(), link
