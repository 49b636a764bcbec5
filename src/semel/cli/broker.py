"""`semel broker`: run the broker until SIGTERM or Ctrl-C."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from semel.broker.log import LogWriter
from semel.broker.server import (
    IGNORED_SIGNALS,
    CannotListen,
    StoreFailed,
    log_signal,
    run,
)
from semel.broker.settings import BrokerSettings
from semel.cli.sections import SECTIONS
from semel.settings import Flags, describe, load, options
from semel.store.opening import open_store
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings, check_streams, parse_stream

# What a broker's own file may have.
OWN = (BrokerSettings, StoreSettings, StreamSettings)


# How long an end may take until everything is sealed; what is not by then is for the next start.
SEAL_SECONDS: Final = 5.0


@click.command
@options(BrokerSettings, StoreSettings)
@click.option(
    "--stream",
    "given_streams",
    multiple=True,
    metavar="NAME=FILTER",
    help="Record messages to topics that match the filter, such as all='#'. May be repeated.",
)
@click.option("--quiet", is_flag=True, help="Say only what is wrong: --log-level warning.")
@click.option("--check-config", is_flag=True, help="Say whether the settings are right, and exit.")
@click.option("--print-config", is_flag=True, help="Print a configuration file with all settings.")
def command(
    config: Path | None,
    flags: Flags,
    given_streams: tuple[str, ...],
    quiet: bool,
    check_config: bool,
    print_config: bool,
) -> None:
    """Run a broker for MQTT 3.1.1 and 5.0 on one port.

    Settings come from a file, the environment and these flags, each over the last. With --data an
    acknowledgement means on disk; without it sessions and retained messages are kept in memory,
    and end with the process.
    """
    if print_config:
        click.echo(describe(OWN), nl=False)
        return
    if quiet:
        if "log_level" in flags[BrokerSettings.section]:
            raise click.UsageError("choose one of --quiet and --log-level")
        flags = {**flags, BrokerSettings.section: {**flags["broker"], "log_level": "warning"}}
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    kept = settings.of(StoreSettings)
    streams = [*settings.all_of(StreamSettings), *map(parse_stream, given_streams)]
    check_streams(kept, streams)
    if check_config:
        click.echo("the settings are right")
        return
    log = LogWriter(sys.stderr.fileno())
    log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[log])
    logging.getLogger().setLevel(settings.of(BrokerSettings).log_level.upper())
    log_ignored_signals()
    try:
        if not kept.is_durable:
            run(settings.of(BrokerSettings))
            return
        opened = open_store(kept, streams)
        try:
            run(settings.of(BrokerSettings), store=opened.store, streams=opened.streams)
            if kept.seal_after < SEAL_SECONDS:
                opened.wait_until_sealed(SEAL_SECONDS)
        finally:
            opened.close()
    except (CannotListen, StoreFailed, Unusable) as problem:
        # What led to it is said before it.
        log.flush()
        raise click.ClickException(str(problem)) from None


def log_ignored_signals() -> None:
    """From now on log signals that have no meaning here yet, and go on."""
    for number in IGNORED_SIGNALS:
        # What nohup ignores stays ignored, without a word.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, log_signal)
