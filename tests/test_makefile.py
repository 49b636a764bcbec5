"""What make refuses, what it makes again, and what it removes, in folders that have little else.

No test installs anything: where make would begin to, it calls a Python that only says so.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MADE = (".venv", ".venv-wheel", ".venv-run", ".venv-docs", ".build", "dist")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="not installed: make")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository without sources."""
    root = tmp_path / "repository"
    (root / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/needs.py"):
        shutil.copy(ROOT / name, root / name)
    for name in ("src", "tests"):
        (root / name).mkdir()
    for name in ("setup.py", "README.md", "LICENSE"):
        (root / name).touch()
    return root


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # The suite may be run by make itself.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def other_python(path: Path, change: str) -> str:
    """This Python, but for a change; it makes no environments, and says so."""
    return script(
        path,
        'if [ "$1 $2" = "-m venv" ]; then echo "an environment is made"; exit 1; fi',
        "program=$1; shift",
        f'exec {sys.executable} -c "import sys; {change}; exec(open(\'$program\').read())" "$@"',
    )


@pytest.mark.parametrize(
    ("compiler", "missing"),
    [
        ("exit 1", "a C compiler that works (Debian's package gcc)"),
        (
            'for last; do :; done; ! grep -q Python.h "$last"',
            "Python's headers, Python.h (Debian's package python3-dev)",
        ),
    ],
    ids=["no compiler", "no headers"],
)
def test_only_what_is_compiled_needs_a_compiler(
    folder: Path, tmp_path: Path, compiler: str, missing: str
) -> None:
    python = other_python(tmp_path / "python", "pass")
    compiler = script(tmp_path / "cc", compiler)
    for target in ("test", "wheel"):
        refused = make(folder, target, PYTHON=python, CC=compiler)
        assert refused.returncode != 0
        assert refused.stdout == ""
        assert refused.stderr.startswith(f"make: this needs {missing}")
    for target in ("run", "test-interpreted"):
        assert "an environment is made" in make(folder, target, PYTHON=python, CC=compiler).stdout


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (
            "sys.modules['ensurepip'] = None",
            "venv with ensurepip (Debian's package python3-venv) and a C compiler that works",
        ),
        ("sys.version_info = (3, 9, 2)", "Python 3.11 or newer ("),
    ],
    ids=["no venv", "old Python"],
)
def test_make_says_in_one_sentence_all_that_is_missing(
    folder: Path, tmp_path: Path, change: str, missing: str
) -> None:
    python = other_python(tmp_path / "python", change)
    refused = make(folder, "test", PYTHON=python, CC=script(tmp_path / "cc", "exit 1"))
    sentence, *others = refused.stderr.splitlines()
    assert sentence.startswith(f"make: this needs {missing}")
    assert all(line.startswith("make: ***") for line in others)
    assert refused.stdout == ""
    assert "newer (Debian's package python3)" in make(folder, "test", PYTHON="no-python").stderr


def test_another_python_or_compiler_is_noticed_and_the_same_is_not(
    folder: Path, tmp_path: Path
) -> None:
    def described(version: str, compiler: str) -> list[int]:
        """When each description was written."""
        python = other_python(tmp_path / "python", f"sys.version = '{version}'")
        script(tmp_path / "cc", f"echo {compiler}")
        names = (".build/python", ".build/compiler")
        result = make(folder, *names, PYTHON=python, CC=str(tmp_path / "cc"))
        assert result.returncode == 0, result.stderr
        return [(folder / name).stat().st_mtime_ns for name in names]

    first = described("3.11.1", "cc 1")
    assert described("3.11.1", "cc 1") == first
    second = described("3.11.1", "cc 2")
    assert (second[0], second[1] > first[1]) == (first[0], True)
    third = described("3.11.2", "cc 2")
    assert third[0] > second[0]


def test_what_is_run_has_what_the_extra_all_brings(folder: Path) -> None:
    shown = make(folder, "--eval", 'show: ; @echo "$$REQUIREMENTS"', "show").stdout
    listed = subprocess.run(
        [sys.executable, "-c", shown], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {each for extra in extras.values() for each in extra if not each.startswith("semel")}
    assert set(listed) == {*project["dependencies"], *wanted}


def test_what_make_makes_is_ignored_and_cleaned(folder: Path) -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    for name in MADE:
        assert f"/{name}/" in ignored
        (folder / name).mkdir()
    assert make(folder, "clean").returncode == 0
    assert not [name for name in MADE if (folder / name).exists()]
