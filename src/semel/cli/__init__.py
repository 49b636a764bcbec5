"""The `semel` command: parse, call, print.

Each command is a click command named `command` in a separate module, which is imported when the
command is invoked: `semel --help` reads COMMANDS only, so it starts quickly and works without any
extra. To add a command, write the module and add its line to COMMANDS; test_conventions.py
checks that all commands have the same flags for the same things.

Exit codes: 0 success; 1 failure, with one sentence on stderr; 2 wrong usage; 130 Ctrl-C. A user
error never causes a traceback.
"""

import sys
from importlib import import_module
from typing import Final

import click

from semel import __version__
from semel.cli.exits import ending_quietly
from semel.cli.groups import SuggestingGroup
from semel.cli.output import make_output_safe
from semel.extras import MissingExtra
from semel.settings import SettingsError

# Name: (module that has `command`, summary in `semel --help`).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("semel.cli.up", "Run broker, record and landing: MQTT into tables, in one command."),
    "broker": ("semel.cli.broker", "Run a broker for MQTT 3.1.1 and 5.0."),
    "web": ("semel.cli.web", "Serve the page of a running broker."),
    "ctl": ("semel.cli.ctl", "Inspect and manage a running broker."),
    "ingest": ("semel.cli.ingest", "Record the messages of any broker in a stream."),
    "config": ("semel.cli.config", "Show and check the settings, and convert a mosquitto.conf."),
    "bridge": ("semel.cli.bridge", "Move messages between two brokers, at QoS 2 each once."),
    "land": ("semel.cli.land", "Land the messages of a stream in Delta tables, each once."),
    "sql": ("semel.cli.sql", "Query the tables of a lake, and what has not landed yet."),
    "quality": ("semel.cli.quality", "Find devices that are silent, lose messages or are late."),
    "tables": ("semel.cli.tables", "List the tables of a lake."),
    "lake": ("semel.cli.lake", "Compact and clean the tables of a lake, and list their commits."),
    "stream": ("semel.cli.stream", "List, read, follow and trim the record of streams."),
    "store": ("semel.cli.store", "Check, repair, export or back up the store of a broker."),
    "passwd": ("semel.cli.passwd", "Add, remove, check and list the users of a password file."),
    "acl": ("semel.cli.acl", "Check the rights of clients, and explain what they allow."),
    "pub": ("semel.cli.pub", "Publish messages, with the flags of mosquitto_pub."),
    "sub": ("semel.cli.sub", "Subscribe and print messages, with the flags of mosquitto_sub."),
    "load": ("semel.cli.load", "Put a load on a broker, and count every message."),
    "fleet": ("semel.cli.fleet", "Publish the numbered messages of simulated devices."),
    "demo": ("semel.cli.demo", "Land a simulated fleet while everything is killed."),
    "probe": ("semel.cli.probe", "Examine a broker, client or codec by every statement of MQTT."),
    "decode": ("semel.cli.decode", "Print MQTT packets, and the rules that they break."),
    "rules": ("semel.cli.rules", "List the rules of the standard as semel states them."),
    "doctor": ("semel.cli.doctor", "Check what this machine has, what it lacks, and what to do."),
    "version": ("semel.cli.version", "Print the version and the installed extras."),
    "completion": ("semel.cli.completion", "Print the script that completes commands in a shell."),
}

# Where to begin, in `semel --help`.
FIRST_STEPS: Final = (
    ("semel up", "run everything; the page is at http://127.0.0.1:8080"),
    ("semel pub -t plant/1/temp -m 21.5 -q 2", "publish, in another shell in the same directory"),
    ('semel sql "from messages_now"', "see the message as a row"),
    ("semel demo", "see that nothing is lost while everything is killed"),
)


class LazyGroup(SuggestingGroup):
    """A group that has its commands in a table and imports only the one invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Ctrl-C and a closed pipe end it silently, where click would print
        "Aborted!" or exit with 1."""
        with ending_quietly():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
        with formatter.section("Begin with"):
            formatter.write_dl(FIRST_STEPS, col_max=42)


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def group() -> None:
    """An MQTT 3.1.1 and 5.0 broker and client, and a pipeline into Delta tables, exactly once."""


def main() -> None:
    """Run the command line and exit."""
    make_output_safe()
    try:
        group(prog_name="semel")
    except (MissingExtra, OSError, SettingsError) as problem:
        click.echo(f"Error: {problem}", err=True)
        sys.exit(1)
