"""Groups of commands that suggest a command for a misspelled one."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from semel.cli.option_groups import SemelCommand


class SuggestingGroup(click.Group):
    """A group whose error for an unknown command lists commands with a similar name.

    Recent releases of click do this too, but only for commands that are already imported.
    """

    command_class = SemelCommand
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_option = name.startswith("-")
        if not is_option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            sentence = f"No such command {name!r}."
            similar = get_close_matches(name, self.list_commands(ctx))
            if similar:
                sentence += f" Did you mean {' or '.join(map(repr, similar))}?"
            raise click.UsageError(sentence, ctx)
        return super().resolve_command(ctx, args)


class RunnableGroup(SemelCommand, SuggestingGroup):
    """A command that has commands of its own, such as `semel land` and `semel land check`."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **others: Any) -> None:
        super().__init__(
            *arguments,
            examples=examples,
            invoke_without_command=True,
            subcommand_metavar="[COMMAND]",
            **others,
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
