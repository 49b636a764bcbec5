"""`semel bridge`: move messages between two brokers until SIGTERM or Ctrl-C."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from semel.cli.errors import sentence_of
from semel.cli.flags import QUIET, json_option
from semel.cli.live_line import LiveLine
from semel.cli.live_log import set_up_log
from semel.cli.option_groups import SemelCommand
from semel.cli.pipes import PipeOutput
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import options
from semel.client.bridge import Bridge
from semel.client.bridge_metrics import BridgeMetrics
from semel.client.bridge_plan import BridgePlan, make_bridge_plans
from semel.client.bridge_settings import BridgeSettings, SharedBridgeSettings
from semel.client.bridge_status import BridgeStatus, status_line
from semel.client.errors import Disconnected, Refused
from semel.counts import count
from semel.extras import MissingExtra
from semel.metrics.endpoint import CannotServeMetrics, MetricsEndpoint
from semel.mqtt.violation import Violation
from semel.settings import Flags, load
from semel.store.schema import Unusable

LOG: Final = logging.getLogger("semel.bridge")

REPORT_SECONDS: Final = 1.0


@click.command(
    cls=SemelCommand,
    examples=(
        "semel bridge --config semel.toml",
        "semel bridge site --config semel.toml --json",
        "semel bridge --config semel.toml --metrics-port 9885",
        "semel bridge --config semel.toml --check-config",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options(SharedBridgeSettings)
@click.option(
    "--start-clean",
    is_flag=True,
    help="Begin new sessions, and discard what the brokers have queued in the old ones.",
)
@json_option("Print the status of each bridge every second as JSON.")
@QUIET
@click.option("--check-config", is_flag=True, help="Check the settings and exit.")
def command(
    names: tuple[str, ...],
    config: Path | None,
    flags: Flags,
    start_clean: bool,
    is_json: bool,
    quiet: bool,
    check_config: bool,
) -> None:
    """Move messages between two brokers, at QoS 2 each once.

    Each [[bridge]] section of the settings is one bridge. All of them run, or those with the given
    NAMEs; a bridge that fails does not affect the others. A message and its packet identifier are
    committed in one transaction before the message is acknowledged. SIGTERM and Ctrl-C first store
    and acknowledge what was received; the brokers keep the sessions.
    """
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    plans = make_bridge_plans(settings.all_of(BridgeSettings), names)
    if check_config:
        click.echo("the settings are valid")
        return
    report = BridgeReport(is_json=is_json, quiet=quiet)
    log = set_up_log(report, quiet=quiet)
    shared = settings.of(SharedBridgeSettings)
    try:
        problems = run(plans, report, shared=shared, start_clean=start_clean)
    except CannotServeMetrics as problem:
        raise click.ClickException(str(problem)) from None
    if problems:
        # Write the log first: it has the events that led to the problem.
        log.flush()
        raise click.ClickException("; ".join(problems))


# --- running --------------------------------------------------------------------------------------


def run(
    plans: Sequence[BridgePlan],
    report: "BridgeReport",
    *,
    shared: SharedBridgeSettings,
    start_clean: bool,
) -> list[str]:
    """Run the bridges, on uvloop if it is installed. Returns why bridges failed, if any did.

    Raises CannotServeMetrics.
    """
    running = run_all(plans, report, shared=shared, start_clean=start_clean)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        return asyncio.run(running)
    problems: list[str] = uvloop.run(running)
    return problems


async def run_all(
    plans: Sequence[BridgePlan],
    report: "BridgeReport",
    *,
    shared: SharedBridgeSettings,
    start_clean: bool,
) -> list[str]:
    """Run the bridges until a signal arrives, or all of them have failed.

    Raises CannotServeMetrics before any of them has connected.
    """
    bridges = [Bridge(plan, start_clean=start_clean) for plan in plans]
    endpoint = await start_metrics(bridges, shared)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for bridge in bridges:
            bridge.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    reporting = loop.create_task(keep_reporting(bridges, report))
    try:
        is_only = len(bridges) == 1
        problems = await asyncio.gather(*(run_one(each, is_only=is_only) for each in bridges))
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
        await report.end([bridge.status for bridge in bridges])
        if endpoint is not None:
            await endpoint.stop()
    return [problem for problem in problems if problem]


async def start_metrics(
    bridges: Sequence[Bridge], shared: SharedBridgeSettings
) -> MetricsEndpoint | None:
    """Serve the metrics of the bridges, if the settings say so. Raises CannotServeMetrics."""
    if shared.metrics_port is None:
        return None
    endpoint = MetricsEndpoint(BridgeMetrics(bridges))
    host, port = await endpoint.start(shared.metrics_host, shared.metrics_port)
    LOG.info("serving metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
    return endpoint


async def run_one(bridge: Bridge, *, is_only: bool) -> str:
    """Run one bridge to its end. Returns why it failed, "" if it was stopped."""
    name = bridge.plan.name
    try:
        await bridge.run()
    except (Refused, Disconnected, Unusable, MissingExtra, Violation, OSError) as problem:
        side = f", {bridge.failed_side}" if bridge.failed_side else ""
        sentence = f"bridge {name}{side}: {sentence_of(problem)}"
        if isinstance(problem, Disconnected) and problem.is_final:
            sentence += (
                ". --start-clean begins new sessions and discards what the brokers have queued in"
                " the old ones"
            )
    except Exception as problem:
        # A fault of one bridge must not end the others.
        LOG.exception("bridge %s failed", name)
        return f"bridge {name} failed: {problem!r}"
    else:
        return ""
    if not is_only:
        # The command ends, and prints it, when the others end.
        LOG.error("%s", sentence)
    return sentence


async def keep_reporting(bridges: Sequence[Bridge], report: "BridgeReport") -> None:
    """Report every second."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        try:
            await report.show([bridge.status for bridge in bridges])
        except OSError:
            # The reader has closed the pipe or terminal: stop.
            for bridge in bridges:
                bridge.stop()
            return


# --- reporting ------------------------------------------------------------------------------------


class BridgeReport:
    """Reports the status of bridges: as a live line, or as JSON objects."""

    def __init__(self, *, is_json: bool, quiet: bool) -> None:
        # PipeOutput, so that a slow reader delays only the status.
        self._output = PipeOutput(sys.stdout.fileno()) if is_json else None
        shares_terminal = is_json and sys.stdout.isatty()
        self._line = LiveLine(enabled=not quiet and not shares_terminal)

    async def show(self, found: Sequence[BridgeStatus]) -> None:
        """Report the status. Raises OSError if the reader has closed the output."""
        self._line.show("  |  ".join(as_line(each) for each in found))
        if self._output is not None:
            await self._output.write(b"".join(status_line(each) for each in found))

    def clear(self) -> None:
        """Remove the live line, so that the log can be written."""
        self._line.clear()

    async def end(self, found: Sequence[BridgeStatus]) -> None:
        """Report the status at the end."""
        for each in found:
            LOG.info("bridge %s", as_line(each))
        self.clear()
        if self._output is not None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._output.write(b"".join(status_line(each) for each in found))


def as_line(status: BridgeStatus) -> str:
    """The status as a line for a terminal."""
    parts = [f"{status.bridge}: {status.state}"]
    for name, side in (("local", status.local), ("remote", status.remote)):
        if not side.is_connected and status.state == "running":
            parts.append(f"{name} not connected")
    for name, direction in (("to remote", status.to_remote), ("to local", status.to_local)):
        parts.append(f"{direction.moved:,} {name}")
        if direction.queued or direction.held:
            parts.append(f"{direction.queued + direction.held:,} queued")
        if direction.refused:
            parts.append(f"{direction.refused:,} refused")
    lost = status.local.sessions_lost + status.remote.sessions_lost
    if lost:
        parts.append(f"session lost {count(lost, 'time')}")
    if status.store != "open":
        parts.append(f"the store is {status.store}")
    return "  ".join(parts)
