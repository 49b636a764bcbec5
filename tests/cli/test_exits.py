"""Ctrl-C and a closed pipe end every command without a word; bounds are stated in words."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from semel import cli
from semel.cli.numbers import IntegerRange, NumberRange
from tests.broker.broker_process import PATIENCE


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 0), (None, 0)]
)
def test_every_command_ends_quietly(
    raised: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def command() -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: command)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    result = CliRunner().invoke(cli.group, ["version"])
    assert (result.exit_code, result.output) == (code, "")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    """`semel rules | head -1`"""
    with subprocess.Popen(
        [sys.executable, "-m", "semel", "rules"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path: Path) -> None:
    """A program that interrupts itself at the import stands for the user who does."""
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'semel.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from semel.__main__ import main\n"
        "main()\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=tmp_path, timeout=PATIENCE
    )
    assert (found.returncode, found.stdout, found.stderr) == (128 + signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (IntegerRange(0, 2), "from 0 to 2"),
        (IntegerRange(min=1), "at least 1"),
        (IntegerRange(0, 2**63 - 1), "at least 0"),
        (IntegerRange(max=5), "at most 5"),
        (IntegerRange(1, 10_000_000), "from 1 to 10,000,000"),
        (NumberRange(0, 31_622_400.0, min_open=True), "more than 0, at most 31,622,400"),
        (NumberRange(0, min_open=True), "more than 0"),
        (NumberRange(0.1, 100.0), "from 0.1 to 100"),
    ],
)
def test_bounds_are_stated_in_words(kind: Any, words: str) -> None:
    option = click.Option(["--number"], type=kind)
    record = option.get_help_record(click.Context(click.Command("test")))
    assert record is not None
    assert record[1] == f"[{words}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("3", "3 is not from 0 to 2."), ("-1", "-1 is not from 0 to 2."), ("a", "valid integer.")],
)
def test_a_number_beyond_its_bounds_is_refused_in_words(text: str, problem: str) -> None:
    kind = IntegerRange(0, 2)
    assert [kind.convert(each, None, None) for each in ("0", 1, "2")] == [0, 1, 2]
    with pytest.raises(click.BadParameter, match=problem):
        kind.convert(text, None, None)
