"""Commands whose `--help` lists options under headings and ends with examples."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

# The headings that several commands share.
CONNECTION: Final = "Connection"
SESSION: Final = "Session"
TLS: Final = "TLS"
LIMITS: Final = "Limits"
STORAGE: Final = "Storage"
LOGGING: Final = "Logging"
OUTPUT: Final = "Output"
WILL: Final = "Will"
# Options without a heading come last.
GENERAL: Final = "General"
# The order of the shared headings; those that only one command has come before them.
ORDER: Final = (CONNECTION, SESSION, WILL, TLS, STORAGE, LIMITS, LOGGING)


class GroupedOption(click.Option):
    """An option that `--help` lists under a heading."""

    def __init__(self, *arguments: Any, section: str = GENERAL, **others: Any) -> None:
        self.section = section
        super().__init__(*arguments, **others)


def grouped_option(*names: str, section: str, **others: Any) -> Callable[[Any], Any]:
    """`click.option` under a heading."""
    return click.option(*names, cls=GroupedOption, section=section, **others)


class SemelCommand(click.Command):
    """A command whose help groups its options and ends with examples."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **others: Any) -> None:
        self.examples = tuple(examples)
        super().__init__(*arguments, **others)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by heading; a command without headings has one list, as click prints it."""
        sections: dict[str, list[tuple[str, str]]] = {}
        general: list[tuple[str, str]] = []
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is None:
                continue
            if isinstance(each, GroupedOption) and each.section != GENERAL:
                sections.setdefault(each.section, []).append(record)
            else:
                general.append(record)
        own = [name for name in sections if name not in ORDER]
        for name in [*own, *(name for name in ORDER if name in sections)]:
            with formatter.section(name):
                formatter.write_dl(sections[name])
        with formatter.section(GENERAL if sections else "Options"):
            formatter.write_dl(general)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, not wrapped, so that they can be copied to a shell."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
