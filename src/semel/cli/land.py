"""`semel land`: land a stream in Delta tables until SIGTERM or Ctrl-C."""

import os
from pathlib import Path

import click

from semel import __version__
from semel.cli.flags import QUIET, json_option
from semel.cli.groups import RunnableGroup
from semel.cli.land_file import add_file_commands
from semel.cli.land_run import log_to_stderr, run_landing
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import options
from semel.pipeline.settings import LandSettings
from semel.settings import Flags, load


@click.group(
    cls=RunnableGroup,
    examples=(
        "semel land --root /var/lib/semel/streams --lake /var/lib/semel/lake",
        "semel land --root s3://bucket/root --stream plant --lake s3://bucket/lake --once",
        "semel land --root /var/lib/semel/streams --landing landing.toml",
    ),
)
@options(LandSettings)
@click.option("--once", is_flag=True, help="Land the rows that are sealed now, and exit.")
@json_option("Print events as JSON, one object per line.")
@QUIET
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
@click.pass_context
def command(
    context: click.Context,
    config: Path | None,
    flags: Flags,
    once: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Land the messages of a stream in Delta tables, each exactly once.

    Spark reads the segments in --root and appends them to the table messages in --lake, or to the
    tables of a landing file (--landing), with typed columns. A table itself records which rows it
    has, so each message lands once even if a landing is killed, moved or started twice. SIGTERM and
    Ctrl-C land the sealed rows first; a second signal exits at once, which loses nothing either.
    """
    if context.invoked_subcommand is not None:
        if any(flags.values()) or config is not None or once:
            raise click.UsageError(f"give options after {context.invoked_subcommand}", context)
        return
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    log_to_stderr()
    run_landing(settings.of(LandSettings), once=once, is_json=is_json, quiet=quiet)


# The commands about landing files, which are `semel land check` and others.
add_file_commands(command)
