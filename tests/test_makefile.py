"""`make run` and `make demo` make an environment of their own, with what running needs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="not installed: make")


def make(folder: Path, *arguments: str) -> str:
    """What make prints in a folder that has nothing but what it is told by."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    # The suite may be run by make itself.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    result = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("target", ["run", "demo"])
def test_what_is_run_needs_no_tools_and_every_step_says_what_it_does(
    tmp_path: Path, target: str
) -> None:
    steps = make(tmp_path, "--dry-run", target)
    assert ".venv-run/bin/semel" in steps
    assert "--group" not in steps
    assert not re.search(r"\.venv(-wheel)?/", steps)
    said = re.findall(r'echo "make: (\w+)', steps)
    assert said == ["making", "installing", "installing", "building", "semel"]
    assert "SEMEL_PURE=1" in steps
    assert "SEMEL_PURE=1" not in make(tmp_path, "--dry-run", target, "COMPILE=1")


def test_what_is_run_has_what_the_extra_all_brings(tmp_path: Path) -> None:
    program = make(tmp_path, "--eval", 'show: ; @echo "$$REQUIREMENTS"', "show")
    listed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {each for extra in extras.values() for each in extra if not each.startswith("semel")}
    assert set(listed) == {*project["dependencies"], *wanted}


def test_the_site_is_built_strictly_in_an_environment_that_has_nothing_else(
    tmp_path: Path,
) -> None:
    steps = make(tmp_path, "--dry-run", "docs")
    assert "mkdocs --quiet build --strict" in steps
    assert re.findall(r"--group (\w+)", steps) == ["docs"]
    assert not re.search(r"\.venv(-wheel|-run)?/", steps)


def test_what_make_makes_is_ignored_and_cleaned() -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    cleaned = (ROOT / "Makefile").read_text("utf-8").partition("\nclean:")[2].partition("\n\n")[0]
    for folder in (".venv", ".venv-wheel", ".venv-run", ".venv-docs", ".build", "dist"):
        assert f"/{folder}/" in ignored
        assert f" {folder} " in cleaned
