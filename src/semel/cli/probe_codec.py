"""`semel probe codec`: examine the encoder and the decoder of a library, through an adapter."""

import asyncio
import sys
from pathlib import Path

import click

from semel.cli.flags import ONE_OBJECT, QUIET, mqtt_version_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import YEAR, Duration
from semel.cli.option_groups import SemelCommand
from semel.cli.probe_options import CANNOT, NO_SUCH_CASE, ONLY, OUT, SELECTION, STATEMENT, finish
from semel.probe.codec.cases import LEVELS, codec_cases
from semel.probe.codec.examination import examine_codec, is_selected
from semel.probe.outcomes import CannotExamine


@click.command(
    cls=SemelCommand,
    examples=(
        "semel probe codec -- python -m semel.probe.adapters.paho_codec",
        "semel probe codec -V 5 --out report -- ./my-adapter",
        "semel probe codec --statement MQTT-3.3.2-2 -- python codec_adapter.py",
    ),
)
@click.argument("adapter", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@mqtt_version_option("Examine one version of MQTT only. By default both.", section=SELECTION)
@ONLY
@STATEMENT
@shared_option(
    "--timeout",
    type=Duration(0.1, YEAR),
    default=5.0,
    show_default=True,
    help="How long the adapter may take for one answer; for its start, four times as long.",
)
@OUT
@ONE_OBJECT
@QUIET
def codec(
    adapter: tuple[str, ...],
    mqtt_version: int | None,
    only: tuple[str, ...],
    statement: tuple[str, ...],
    timeout: float,
    out: Path | None,
    is_json: bool,
    quiet: bool,
) -> None:
    """Examine the codec of a library, in any language, through an adapter.

    CMD starts the adapter, a small program that encodes and decodes packets with the library. It
    reads requests from its standard input and writes answers to its standard output, as lines of
    JSON. Adapters for paho-mqtt, amqtt, gmqtt, mqtt5 and mqtt-packet come with semel.

    Exits with 1 if a statement is violated, and with 2 if the codec cannot be examined.
    """
    versions = [version for version, level in LEVELS.items() if mqtt_version in (None, level)]
    if not any(
        is_selected(case, only, statement) for each in versions for case in codec_cases(each)
    ):
        raise click.UsageError(NO_SUCH_CASE)
    line = LiveLine(enabled=not quiet)
    try:
        report = asyncio.run(
            examine_codec(
                adapter,
                versions=versions,
                only=only,
                statements=statement,
                timeout=timeout,
                progress=lambda done, total: line.show(f"{done} of {total} answers"),
                reports_when_cancelled=True,
            )
        )
    except CannotExamine as problem:
        line.clear()
        click.echo(f"Error: {problem}", err=True)
        sys.exit(CANNOT)
    finally:
        line.clear()
    finish(report, out=out, is_json=is_json)
