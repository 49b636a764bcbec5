"""`semel broker`: run a broker until SIGTERM or Ctrl-C."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from semel.broker.log import JsonFormatter, LogWriter
from semel.broker.server import (
    IGNORED_SIGNALS,
    CannotListen,
    StoreFailed,
    log_signal,
    run,
)
from semel.broker.settings import BrokerSettings
from semel.cli.flags import json_option
from semel.cli.option_groups import SemelCommand
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import options
from semel.settings import Flags, describe, load
from semel.store.opening import open_store
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings, check_streams, parse_stream

LOG: Final = logging.getLogger("semel.broker")

# The sections that --print-config prints.
OWN = (BrokerSettings, StoreSettings, StreamSettings)


# How long a shutdown may wait for sealing. The next start seals the remaining rows.
SEAL_SECONDS: Final = 5.0


@click.command(
    cls=SemelCommand,
    examples=(
        "semel broker",
        "semel broker --data /var/lib/semel --stream all='#' --host 0.0.0.0",
        "semel broker --config semel.toml --check-config",
    ),
)
@options(BrokerSettings, StoreSettings)
@click.option(
    "--stream",
    "given_streams",
    multiple=True,
    metavar="NAME=FILTER",
    help="Record the messages whose topics match the filter, such as all='#'. May be repeated.",
)
@json_option("Print the log to standard output as JSON, one object per line.")
@click.option("--quiet", is_flag=True, help="Report problems only: --log-level warning.")
@click.option("--check-config", is_flag=True, help="Check the settings and exit.")
@click.option("--print-config", is_flag=True, help="Print a file with all settings and exit.")
def command(
    config: Path | None,
    flags: Flags,
    given_streams: tuple[str, ...],
    is_json: bool,
    quiet: bool,
    check_config: bool,
    print_config: bool,
) -> None:
    """Run a broker for MQTT 3.1.1 and 5.0 on one port.

    Settings come from a file, the environment and these flags; a later source overrides an earlier
    one. With --data an acknowledgement is sent after the commit to disk. Without it, sessions and
    retained messages are in memory and end with the process.
    """
    if print_config:
        click.echo(describe(OWN), nl=False)
        return
    if quiet:
        if "log_level" in flags[BrokerSettings.section]:
            raise click.UsageError("give one of --quiet and --log-level")
        flags = {**flags, BrokerSettings.section: {**flags["broker"], "log_level": "warning"}}
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    kept = settings.of(StoreSettings)
    streams = [*settings.all_of(StreamSettings), *map(parse_stream, given_streams)]
    check_streams(kept, streams)
    if check_config:
        click.echo("the settings are valid")
        return
    log = make_log(is_json=is_json)
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
        if is_json:
            failed = {"event": "failed", "problem": str(problem)}
            LOG.error("%s", problem, extra={"event": failed})
        # Log what led to the problem first.
        log.flush()
        raise click.ClickException(str(problem)) from None


def make_log(*, is_json: bool) -> LogWriter:
    """A handler that writes lines to standard error, or JSON objects to standard output."""
    log = LogWriter(sys.stdout.fileno() if is_json else sys.stderr.fileno())
    log.setFormatter(JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(message)s"))
    return log


def log_ignored_signals() -> None:
    """From now on, log the signals that a broker ignores."""
    for number in IGNORED_SIGNALS:
        # A signal that nohup ignores is not logged either.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, log_signal)
