"""The README's commands have the options it shows; its figures are those of bench/README.md."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from semel import cli

HOME = Path(__file__).resolve().parent.parent
README = HOME / "README.md"
TEXT = README.read_text("utf-8")
COMMANDS = re.findall(r"^\$ semel (.*?)(?:\s+#.*)?$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_readme_is_one_with_options_that_it_has(line: str) -> None:
    """`--help` behind the arguments: click parses what stands before it, and runs nothing."""
    name, *arguments = shlex.split(line)
    command = cli.group.get_command(click.Context(cli.group), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("-")} <= known
    assert CliRunner().invoke(cli.group, [name, *arguments, "--help"]).exit_code == 0


def test_the_readme_shows_four_commands_and_begins_with_what_starts_all() -> None:
    assert len(COMMANDS) == 4
    assert COMMANDS[0] == "up"


def test_every_python_example_of_the_readme_is_python() -> None:
    """The client's is also run, in tests/client/test_page.py; the others are only parsed."""
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        ast.parse(example)


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        ("QoS 0, 16 B, pipelined", ("| a: 1→1 QoS 0, 16 B", "0.086", "13.2")),
        ("QoS 1, durable sessions, 200 B", ("| durable1: ", "5.89", "23.4")),
        ("QoS 0, one message at a time", ("| p50: 50 pairs QoS 0", "13.0", "14.3")),
        ("a new connection", ("| connections: 5,000 idle", "202 / 4.39", "114 / 0.73")),
        ("client, publish QoS 1", ("| publish, QoS 1 ", "11.4", "97.3")),
    ],
)
def test_the_figures_of_the_comparison_are_those_of_the_bench(
    row: str, figures: tuple[str, str, str]
) -> None:
    bench = (HOME / "bench" / "README.md").read_text("utf-8")
    start, *measured = figures
    (line,) = (each for each in bench.splitlines() if each.startswith(start))
    (compared,) = (each for each in TEXT.splitlines() if each.startswith(f"| {row}"))
    for figure in measured:
        assert figure in line
    rounded = [
        str(round(float(part), 1 if float(part) > 0.1 else 3))
        for figure in measured
        for part in figure.split(" / ")
    ]
    for figure in rounded:
        assert figure.removesuffix(".0") in compared
