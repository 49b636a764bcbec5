"""The page's files: small, readable, complete, and without what its policy forbids."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "src" / "semel" / "web" / "page"
FILES = sorted(PAGE.iterdir())
MODULES = [file for file in FILES if file.suffix == ".js"]
EVERY_FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
EVERY_MODULE = pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)


@EVERY_FILE
def test_a_file_is_short_and_narrow(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) < 700
    assert [line for line in lines if len(line) > 100] == []


@EVERY_MODULE
def test_a_module_begins_with_its_purpose(file: Path) -> None:
    assert re.match(r"// [A-Z].*[.:]?\n", file.read_text("utf-8"))


@EVERY_MODULE
def test_a_module_has_no_way_to_run_or_show_foreign_markup(file: Path) -> None:
    text = file.read_text("utf-8")
    code = re.sub(r"//.*|/\*.*?\*/", "", text, flags=re.DOTALL if "/*" in text else 0)
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, code)


@EVERY_MODULE
def test_an_import_leads_to_a_module(file: Path) -> None:
    for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
        assert name.startswith("./")
        assert (PAGE / name).is_file()


def test_every_file_is_used() -> None:
    used = {"index.html"}
    for file in FILES:
        text = file.read_text("utf-8")
        used |= set(re.findall(r'(?:from "\./|(?:href|src)="page/)([^"]+)"', text))
    assert used == {file.name for file in FILES}


def test_the_page_has_no_inline_script_or_style_and_no_other_source() -> None:
    text = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*src=)", text)
    for file in FILES:
        addresses = re.findall(r"https?://[^\s\"')]+", file.read_text("utf-8"))
        # The name of a namespace is not fetched.
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}
        assert "@import" not in file.read_text("utf-8")
        assert "url(" not in file.read_text("utf-8")
