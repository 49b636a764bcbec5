"""`semel version` says what is installed, for people and for programs."""

import json
import os
import platform

import pytest
from click.testing import CliRunner

from semel import __version__, cli
from semel.cli import version
from semel.extras import EXTRAS


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.group, ["version", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.skipif("SEMEL_TEST_MODE" not in os.environ, reason="the mode is not known")
def test_the_mode_is_the_one_under_test() -> None:
    assert json.loads(run("--json"))["mode"] == os.environ["SEMEL_TEST_MODE"]


def test_the_text_names_version_mode_python_and_every_extra() -> None:
    first, *others = run().splitlines()
    assert first.startswith(f"semel {__version__} (")
    assert platform.python_version() in first
    assert len(others) == len(EXTRAS)
    for extra, line in zip(EXTRAS, others, strict=True):
        assert line.startswith(f"extra {extra}: ")


def test_an_extra_with_a_missing_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = dict.fromkeys(EXTRAS, ()) | {"spark": ("pyspark", "pytz")}
    monkeypatch.setattr(version, "missing", absent.__getitem__)
    assert "extra broker: installed\n" in run()
    assert "extra spark: not installed, lacks pyspark, pytz\n" in run()
    found = json.loads(run("--json"))["extras"]
    assert found.pop("spark") == {"installed": False, "missing": ["pyspark", "pytz"]}
    assert set(found) == set(EXTRAS) - {"spark"}
    assert all(each == {"installed": True, "missing": []} for each in found.values())


def test_json_is_one_object() -> None:
    facts = json.loads(run("--json"))
    assert list(facts) == ["version", "mode", "python", "extras"]
    assert facts["version"] == __version__
    assert facts["mode"] in {"compiled", "interpreted"}
