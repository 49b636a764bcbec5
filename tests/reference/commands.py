"""The page that lists all commands, made of what their `--help` prints."""

from collections.abc import Iterable, Iterator
from typing import Final

import click

from semel import cli

HEAD: Final = """\
# Commands

This page has what `--help` prints, for every command. It is generated: `make reference` writes it
again after a change. Most options are also settings of a file or of the environment:
[settings](settings.md) says how.

Every command has `--help`. The exit code is 0 for success, 1 for a failure, with one sentence on
standard error, 2 for wrong usage, and 130 after Ctrl-C; where a command has others, its page says
so.
"""


class HelpRecorder(click.HelpFormatter):
    """Keeps what a command writes as its help, instead of formatting it for a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = ""
        self.texts: list[str] = []
        self.tables: list[tuple[str, list[tuple[str, str]]]] = []
        self.examples: list[str] = []
        self._heading = ""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.usage = f"Usage: {prog} {args}"

    def write_heading(self, heading: str) -> None:
        self._heading = heading

    def write_text(self, text: str) -> None:
        self.texts.append(text)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        self.tables.append((self._heading, list(rows)))

    def write(self, string: str) -> None:
        if self._heading == "Examples" and string.strip():
            self.examples.append(string.strip())


def all_commands() -> Iterator[tuple[click.Command, click.Context]]:
    """Each command with its context, a group before its commands."""

    def below(
        command: click.Command, context: click.Context
    ) -> Iterator[tuple[click.Command, click.Context]]:
        yield command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, click.Context(found, parent=context, info_name=name))

    for command, context in below(cli.group, click.Context(cli.group, info_name="semel")):
        if command is not cli.group:
            yield command, context


def in_table(text: str) -> str:
    """A text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def section_of(command: click.Command, context: click.Context) -> str:
    """The heading of a command, its help, its options and its examples."""
    recorder = HelpRecorder()
    command.format_help(context, recorder)
    path = context.command_path
    level = path.count(" ") + 1
    lines = [f"{'#' * level} `{path}`", ""]
    for text in recorder.texts:
        # A paragraph with \b keeps its lines.
        for paragraph in text.strip().split("\n\n"):
            if paragraph.lstrip().startswith("\b"):
                lines += ["```text", paragraph.strip("\b\n "), "```", ""]
            else:
                lines += [paragraph.strip(), ""]
    lines += ["```text", recorder.usage, "```", ""]
    for heading, rows in recorder.tables:
        rows = [row for row in rows if row[0] != "--help"]
        if not rows:
            continue
        lines += [f"| {heading} | |", "|---|---|"]
        if heading == "Commands":
            for name, summary in rows:
                anchor = f"{path} {name}".replace(" ", "-")
                lines.append(f"| [`{path} {name}`](#{anchor}) | {in_table(summary)} |")
        else:
            lines += [f"| `{in_code(flags)}` | {in_table(text)} |" for flags, text in rows]
        lines.append("")
    if recorder.examples:
        lines += ["```", *recorder.examples, "```", ""]
    return "\n".join(lines)


def in_code(flags: str) -> str:
    """The spelling of an option as code in a table."""
    return flags.replace("|", "\\|")


def commands_page() -> str:
    """The text of docs/reference/commands.md."""
    index = [
        f"| [`semel {name}`](#semel-{name}) | {in_table(summary)} |"
        for name, (_, summary) in cli.COMMANDS.items()
    ]
    parts = [HEAD, "\n".join(["| command | |", "|---|---|", *index, ""])]
    parts += [section_of(command, context) for command, context in all_commands()]
    return "\n".join(parts)
