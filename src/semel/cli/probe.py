"""`semel probe`: examine an MQTT implementation, statement by statement.

The commands of the group are in modules of their own. An address in the place of a command stands
for `semel probe broker ADDRESS`.
"""

from importlib import import_module
from typing import Final

import click

from semel.cli.groups import SuggestingGroup

# Name: (module that has it, the function's name there).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "broker": ("semel.cli.probe_broker", "broker"),
    "client": ("semel.cli.probe_client", "client"),
    "codec": ("semel.cli.probe_codec", "codec"),
    "combine": ("semel.cli.probe_combine", "combine"),
    "compare": ("semel.cli.probe_compare", "compare"),
    "matrix": ("semel.cli.probe_matrix", "matrix"),
    "page": ("semel.cli.probe_compare", "page"),
}
DEFAULT: Final = "broker"


class ProbeGroup(SuggestingGroup):
    """The commands, imported when one is invoked; `broker` where an address is given instead."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), function)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any("://" in word or word.startswith("unix:") for word in args[:1]) or (
            args and args[0].startswith("-") and args[0] not in ("--help", "-h")
        ):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(name="probe", cls=ProbeGroup)
def command() -> None:
    """Examine a broker, a client or a codec: every statement of MQTT 3.1.1 and 5.0.

    `semel probe mqtt://host:port` is short for `semel probe broker mqtt://host:port`.
    """
