"""`semel broker`: run the broker until SIGTERM or Ctrl-C."""

import logging
import os
import sys
from pathlib import Path

import click

from semel.broker.server import CannotListen, run
from semel.broker.settings import BrokerSettings
from semel.settings import Flags, describe, load, options

SECTIONS = (BrokerSettings,)


@click.command
@options(BrokerSettings)
@click.option("--check-config", is_flag=True, help="Say whether the settings are right, and exit.")
@click.option("--print-config", is_flag=True, help="Print a configuration file with all settings.")
def command(config: Path | None, flags: Flags, check_config: bool, print_config: bool) -> None:
    """Run a broker for MQTT 3.1.1 and 5.0 on one port.

    Settings come from a file, the environment and these flags, each over the last. Sessions and
    retained messages are kept in memory: they end with the process.
    """
    if print_config:
        click.echo(describe(SECTIONS), nl=False)
        return
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags).of(BrokerSettings)
    if check_config:
        click.echo("the settings are right")
        return
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        run(settings)
    except CannotListen as problem:
        raise click.ClickException(str(problem)) from None
