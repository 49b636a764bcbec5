"""Runs pytest in its own process, with the plugin as a user has it."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

import semel

PLUGIN = "semel.lab.pytest_plugin"
SOURCES = Path(semel.__file__).resolve().parent.parent


def arguments() -> list[str]:
    """The arguments that load the plugin: none if semel is installed, else its module."""
    installed = [point.value for point in entry_points(group="pytest11")]
    return [] if PLUGIN in installed else ["-p", PLUGIN]


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *given: str
) -> pytest.RunResult:
    """Run the tests of `pytester`, with warnings as errors."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    return pytester.runpytest_subprocess("-W", "error", *arguments(), *given, timeout=120)
