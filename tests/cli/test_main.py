"""The command line: help, lazy sub-commands, and exit codes without tracebacks."""

import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from semel import __version__, cli
from semel.extras import MissingExtra


def semel(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "semel", *arguments], capture_output=True, text=True, check=False
    )


def test_help_lists_every_command_and_exits_0() -> None:
    result = semel("--help")
    assert result.returncode == 0
    for name, (_, summary) in cli.COMMANDS.items():
        assert name in result.stdout
        assert summary.split(maxsplit=1)[0] in result.stdout


def test_the_version_option_prints_the_version() -> None:
    assert semel("--version").stdout == f"semel {__version__}\n"


@pytest.mark.parametrize("arguments", [("no-such-command",), ("--no-such-option",)])
def test_wrong_usage_exits_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    result = semel(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Usage: semel" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_in_the_table_can_be_loaded_and_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli.group, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: group {name}")


def failing(problem: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise problem

    return fail


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (MissingExtra("semel x needs y: pip install 'semel[z]'"), "semel x needs y"),
        (FileNotFoundError(2, "No such file or directory", "here.json"), "here.json"),
        (click.ClickException("it did not work"), "it did not work"),
    ],
)
def test_a_failure_is_one_sentence_and_exit_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: Exception,
    sentence: str,
) -> None:
    monkeypatch.setattr(cli, "group", click.command("fail")(failing(problem)))
    monkeypatch.setattr(sys, "argv", ["semel"])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Error: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("brokr",), "No such command 'brokr'. Did you mean 'broker'?"),
        (("store", "chek"), "No such command 'chek'. Did you mean 'check'?"),
        (("stream", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("lake", "vacum"), "No such command 'vacum'. Did you mean 'vacuum'?"),
        (("xyzzy",), "No such command 'xyzzy'."),
    ],
)
def test_a_misspelled_command_is_answered_with_a_suggestion(
    arguments: tuple[str, ...], sentence: str
) -> None:
    result = semel(*arguments)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == f"Error: {sentence}"


def test_an_option_before_the_command_is_still_an_option() -> None:
    assert semel("lake", "--help").returncode == 0
    assert "No such option" in semel("lake", "--hepl").stderr
