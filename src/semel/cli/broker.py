"""`semel broker`: run a broker until SIGTERM or Ctrl-C."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from semel.broker.access.loading import load_access
from semel.broker.access.rights_settings import RightsSettings
from semel.broker.access.users_settings import UsersSettings
from semel.broker.network.administration import Administration, AdministrationUnusable
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.journal import JournalUnusable, SystemJournal
from semel.broker.network.listener_settings import ListenerSettings, choose_listeners
from semel.broker.network.listeners import CannotListen, check_listeners
from semel.broker.network.log import JsonFormatter, LogWriter
from semel.broker.network.reloading import LoadedSettings
from semel.broker.network.server import StoreFailed, run
from semel.broker.network.signals import watch_signals
from semel.broker.settings import JOURNALD, JSON, TEXT, BrokerSettings
from semel.cli.config_check import check_settings
from semel.cli.flags import json_option
from semel.cli.option_groups import CONNECTION, SemelCommand, grouped_option
from semel.cli.safe_text import print_warnings
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import options
from semel.extras import MissingExtra, missing
from semel.metrics.endpoint import CannotServeMetrics
from semel.settings import Flags, Settings, describe, load
from semel.store.opening import open_store
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings, check_streams, parse_stream
from semel.web.page_process import PageProcess

LOG: Final = logging.getLogger("semel.broker")

# The sections that --print-config prints.
OWN = (
    *(BrokerSettings, ListenerSettings, UsersSettings, RightsSettings),
    *(StoreSettings, StreamSettings, ControlSettings, AuditSettings),
)


# How long a shutdown may wait for sealing. The next start seals the remaining rows.
SEAL_SECONDS: Final = 5.0


@click.command(
    cls=SemelCommand,
    examples=(
        "semel broker",
        "semel broker --data /var/lib/semel --stream all='#'",
        "semel broker --listener mqtt://127.0.0.1 --listener ws://127.0.0.1:8083/mqtt",
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
@grouped_option(
    "--listener",
    "urls",
    section=CONNECTION,
    multiple=True,
    metavar="URL",
    help="Listen here instead of at --host and --port: mqtt, mqtts, ws or wss://host:port, or "
    "unix:path, with further keys of [[listener]] after a ?, such as "
    "'mqtts://[::1]?certfile=a.pem&keyfile=b.pem'. May be repeated.",
)
@click.option(
    "--web",
    "serves_page",
    is_flag=True,
    help="Serve the page, as [web] says: http://127.0.0.1:8080. It needs --data.",
)
@json_option("Print the log to standard output as JSON, one object per line.")
@click.option("--quiet", is_flag=True, help="Report problems only: --log-level warning.")
@click.option("--check-config", is_flag=True, help="Check the settings and exit.")
@click.option("--print-config", is_flag=True, help="Print a file with all settings and exit.")
def command(
    config: Path | None,
    flags: Flags,
    given_streams: tuple[str, ...],
    urls: tuple[str, ...],
    serves_page: bool,
    is_json: bool,
    quiet: bool,
    check_config: bool,
    print_config: bool,
) -> None:
    """Run a broker for MQTT 3.1.1 and 5.0.

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
    more_streams = [parse_stream(each) for each in given_streams]
    if check_config:
        print_warnings(check_settings(settings, listener_urls=urls, more_streams=more_streams))
        click.echo("the settings are valid")
        return
    kept = settings.of(StoreSettings)
    if serves_page:
        check_page(kept)
    streams = [*settings.all_of(StreamSettings), *more_streams]
    check_streams(kept, streams)
    loaded = loaded_settings(settings, urls)
    log = make_log(settings.of(BrokerSettings).log_format, is_json=is_json)
    logging.basicConfig(handlers=[log])
    logging.getLogger().setLevel(settings.of(BrokerSettings).log_level.upper())
    watch_signals()
    authority = loaded.access.authority(LOG.warning)

    def load_again() -> LoadedSettings:
        again = load(SECTIONS, path=config, environ=os.environ, flags=flags)
        return loaded_settings(again, urls)

    page = PageProcess(page_arguments(config, kept)) if serves_page else None
    try:
        if page is not None:
            page.start()
        if not kept.is_durable:
            with administered(settings, None) as administration:
                run(
                    loaded.broker,
                    authority,
                    listeners=loaded.listeners,
                    load_settings=load_again,
                    administration=administration,
                )
            return
        opened = open_store(kept, streams)
        try:
            with administered(settings, kept.data) as administration:
                run(
                    loaded.broker,
                    authority,
                    opened.store,
                    opened.streams,
                    listeners=loaded.listeners,
                    load_settings=load_again,
                    administration=administration,
                )
            if kept.seal_after < SEAL_SECONDS:
                opened.wait_until_sealed(SEAL_SECONDS)
        finally:
            opened.close()
    except (
        *(AdministrationUnusable, CannotListen, CannotServeMetrics, StoreFailed, Unusable),
    ) as problem:
        if is_json:
            failed = {"event": "failed", "problem": str(problem)}
            LOG.error("%s", problem, extra={"event": failed})
        # Log what led to the problem first.
        log.flush()
        raise click.ClickException(str(problem)) from None
    finally:
        if page is not None:
            page.stop()


def check_page(store: StoreSettings) -> None:
    """Raise UsageError or MissingExtra if the page cannot be served."""
    if store.data is None:
        raise click.UsageError("--web needs --data: the page asks the control socket there")
    absent = missing("web")
    if absent:
        raise MissingExtra(f"--web needs {', '.join(absent)}: pip install 'semel[web]'")


def page_arguments(config: Path | None, store: StoreSettings) -> list[str]:
    """The arguments of `semel web` for the page of this broker."""
    found = [] if config is None else ["--config", str(config)]
    return [*found, "--data", str(store.data)]


def loaded_settings(settings: Settings, urls: tuple[str, ...]) -> LoadedSettings:
    """What a start and a reload need. Reads the files that settings name. Raises SettingsError."""
    broker = settings.of(BrokerSettings)
    listeners = choose_listeners(settings, broker, urls)
    access = load_access(settings, [(each.name, each.anonymous) for each in listeners])
    check_listeners(listeners, has_users=access.has_users)
    return LoadedSettings(broker, listeners, access)


def make_log(log_format: str = TEXT, *, is_json: bool) -> LogWriter:
    """A handler for the log; `is_json`: JSON objects on standard output, whatever the format.

    Raises ClickException if there is no journal.
    """
    if log_format == JOURNALD and not is_json:
        try:
            journal = SystemJournal()
        except JournalUnusable as problem:
            raise click.ClickException(str(problem)) from None
        # The journal has the time of each entry.
        return LogWriter(sys.stderr.fileno(), journal=journal)
    log = LogWriter(sys.stdout.fileno() if is_json else sys.stderr.fileno())
    if is_json or log_format == JSON:
        log.setFormatter(JsonFormatter())
    else:
        log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return log


@contextmanager
def administered(settings: Settings, data: Path | None) -> Iterator[Administration]:
    """Bans, audit log and control socket, closed at the end. Raises AdministrationUnusable."""
    made = Administration(settings.of(ControlSettings), settings.of(AuditSettings), data)
    try:
        yield made
    finally:
        made.close()
