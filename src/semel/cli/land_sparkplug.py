"""`semel land sparkplug`: land Sparkplug B messages as metrics, births and gaps."""

from dataclasses import replace
from pathlib import Path

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import CONFIG, QUIET, data_option, json_option, shared_option
from semel.cli.land_run import log_to_stderr, run_landing
from semel.cli.locations import LAKE, ROOT, landing_settings
from semel.cli.numbers import YEAR, Duration
from semel.cli.option_groups import SemelCommand
from semel.pipeline.landing_plan import SPARKPLUG, SparkplugTables, sparkplug_plan


@click.command(
    cls=SemelCommand,
    short_help="Land Sparkplug B messages as metrics, births and gaps.",
    examples=(
        "semel land sparkplug --data /var/lib/semel",
        "semel land sparkplug --root s3://bucket/root --lake s3://bucket/lake --checkpoint spark",
    ),
)
@CONFIG
@LAKE
@ROOT
@click.option("--stream", metavar="NAME", help="The stream to land.  [or SEMEL_LAND_STREAM]")
@data_option("The data folder of the broker whose messages are landed.  [or SEMEL_STORE_DATA]")
@shared_option(
    "--table",
    default=SPARKPLUG,
    show_default=True,
    help="The first part of the names of the tables: NAME_metrics, NAME_nodes, NAME_gaps and"
    " NAME_state.",
)
@click.option(
    "--checkpoint",
    metavar="ADDRESS",
    type=click.Path(path_type=Path),
    help="A folder for Spark's checkpoint, if the lake is none. It may be lost."
    "  [or SEMEL_LAND_CHECKPOINT]",
)
@shared_option(
    "--interval",
    type=Duration(min=0, max=YEAR),
    help="The minimum time from the start of one batch to the start of the next."
    "  [or SEMEL_LAND_INTERVAL]",
)
@click.option("--once", is_flag=True, help="Land the rows that are sealed now, and exit.")
@json_option("Print events as JSON, one object per line.")
@QUIET
def sparkplug(
    config: Path | None,
    lake: str | None,
    root: str | None,
    stream: str | None,
    data: Path | None,
    table: str,
    checkpoint: Path | None,
    interval: float | None,
    once: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Land the messages of Sparkplug B edge nodes (spBv1.0/#) in Delta tables, each exactly once.

    Each metric becomes a row, with its name and data type from the birth of its node or device.
    Births, deaths and the state of hosts become rows of a second table; missing messages, births
    and aliases become rows of a third. Payloads that cannot be decoded are dead letters. A killed
    landing continues exactly where it was.
    """
    settings = replace(
        landing_settings(
            config=config, landing=None, lake=lake, root=root, stream=stream, data=data
        ),
        landing=None,
    )
    if checkpoint is not None:
        settings = replace(settings, checkpoint=checkpoint)
    if interval is not None:
        settings = replace(settings, interval=interval)
    log_to_stderr()
    tables = SparkplugTables(table)
    with one_sentence():
        run_landing(
            settings,
            once=once,
            is_json=is_json,
            quiet=quiet,
            change=lambda plan: sparkplug_plan(plan, tables),
        )
