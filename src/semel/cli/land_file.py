"""`semel land check`, `infer`, `retry` and `backfill`: work with a landing file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import CONFIG, ONE_OBJECT, QUIET, data_option, shared_option
from semel.cli.groups import RunnableGroup
from semel.cli.land_run import log_to_stderr, run_landing
from semel.cli.land_sparkplug import sparkplug
from semel.cli.live_line import LiveLine
from semel.cli.locations import LAKE, ROOT, landing_settings
from semel.cli.numbers import IntegerRange
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table
from semel.counts import count as counted
from semel.extras import need
from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.lake import table_names
from semel.pipeline.lake_address import local_folder
from semel.pipeline.landing_errors import spark_errors
from semel.pipeline.landing_file import LandingFile, read_landing_file
from semel.pipeline.landing_plan import (
    LANDING_FILE,
    LandingPlan,
    check_can_be_created,
    landing_table,
    make_plan,
)
from semel.pipeline.settings import LandSettings
from semel.pipeline.source_options import parse_points
from semel.pipeline.stream_check import check_recorded
from semel.pipeline.topic_template import parse_template
from semel.store.roots import LocalRoot

if TYPE_CHECKING:
    from semel.pipeline.dead_letter_retry import RetryOutcome
    from semel.pipeline.landing_check import FileCheck, InferredTable, TableCheck

# Messages that are checked without --count.
MESSAGES: Final = 1_000
# The default landing file.
FILE: Final = Path("landing.toml")

COUNT: Final = shared_option(
    "--count",
    type=IntegerRange(1, 1_000_000),
    default=MESSAGES,
    show_default=True,
    help="How many of the last recorded messages are read.",
)


def landing_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --config, --landing, --lake, --root, --stream and --data.

    The function receives `settings` of the landing, with a landing file.
    """

    @wraps(function)
    def with_settings(**values: Any) -> None:
        names = ("config", "landing", "lake", "root", "stream", "data")
        found = landing_settings(**{name: values.pop(name) for name in names})
        if found.landing is None:
            found = replace(found, landing=FILE)
        with one_sentence():
            function(settings=found, **values)

    decorated: Callable[..., None] = with_settings
    for option in (
        data_option(
            "The data folder of the broker whose messages are landed.  [or SEMEL_STORE_DATA]"
        ),
        click.option(
            "--stream", metavar="NAME", help="The stream to land.  [or SEMEL_LAND_STREAM]"
        ),
        ROOT,
        LAKE,
        shared_option(
            "--landing", help=f"The landing file.  [or SEMEL_LAND_LANDING; default: {FILE}]"
        ),
        CONFIG,
    ):
        decorated = option(decorated)
    return decorated


def add_file_commands(group: RunnableGroup) -> None:
    """Add the commands of this module, and `semel land sparkplug`, to `semel land`."""
    for command in (check, infer, retry, backfill, sparkplug):
        group.add_command(command)


# --- check ----------------------------------------------------------------------------------------


@click.command(
    cls=SemelCommand,
    short_help="Check a landing file against recorded messages.",
    examples=(
        "semel land check --landing landing.toml",
        "semel land check --explain site/a/7/temp",
    ),
)
@landing_options
@COUNT
@click.option(
    "--explain",
    metavar="TOPIC",
    help="Print which tables take this topic, and why others do not, and exit.",
)
@ONE_OBJECT
@QUIET
def check(
    settings: LandSettings, count: int, explain: str | None, is_json: bool, quiet: bool
) -> None:
    """Check a landing file, and print what its tables would get of the last recorded messages.

    Nothing is written. The exit code is 1 if the file is wrong, or if an existing table cannot take
    its rows; messages that cannot be decoded are listed, and land as dead letters.
    """
    assert settings.landing is not None
    file = read_landing_file(settings.landing)
    if explain is not None:
        _print_explanation(file, explain, is_json=is_json)
        return
    plan = make_plan(settings)
    _check_exists(plan)
    from semel.pipeline.landing_check import check_landing

    with _spark(plan, quiet=quiet or is_json) as spark:
        found = check_landing(spark, plan, count)
    if is_json:
        click.echo(json.dumps(asdict(found), default=_json_value))
    elif not quiet:
        _print_check(found)
    problems = [each.problem for each in found.tables if each.problem is not None]
    if problems:
        raise click.ClickException("; ".join(problems))


def _print_explanation(file: LandingFile, topic: str, *, is_json: bool) -> None:
    from semel.mqtt.topics import check_topic_name
    from semel.mqtt.violation import Violation

    try:
        check_topic_name(topic, "topic", None)
    except Violation as problem:
        raise click.BadParameter(str(problem), param_hint="--explain") from None
    reasons = {each.name: each.template.explain(topic) for each in file.tables}
    if is_json:
        tables = [
            {"table": name, "takes": reason is None, "reason": reason}
            for name, reason in reasons.items()
        ]
        click.echo(json.dumps({"topic": topic, "tables": tables}))
        return
    rows = [
        (each.name, each.template.text, "yes" if reason is None else "no", reason or "")
        for each, reason in zip(file.tables, reasons.values(), strict=True)
    ]
    print_table(("table", "topic", "takes it", "why not"), rows)


def _print_check(found: "FileCheck") -> None:
    click.echo(f"the last {counted(found.messages, 'message')}:")
    rows = [
        (each.table, each.topic, each.taken, each.rows, each.left_out, _bad(each))
        for each in found.tables
    ]
    print_table(("table", "topic", "taken", "rows", "left out", "bad"), rows)
    for each in found.tables:
        _print_table_check(each)
    if found.unmatched:
        topics = ", ".join(found.unmatched_topics)
        click.echo()
        click.echo(
            shown_text(
                f"{counted(found.unmatched, 'message')} for no table, with topics such as {topics}"
            )
        )


def _print_table_check(found: "TableCheck") -> None:
    click.echo()
    click.secho(found.table, bold=True)
    columns = ", ".join(f"{name} {kind}" for name, kind in found.columns.items())
    click.echo(f"  columns: {columns}")
    if found.new_columns:
        click.echo(f"  new in the existing table: {', '.join(found.new_columns)}")
    for row in found.sample[:1]:
        click.echo(shown_text(f"  a row: {json.dumps(row, default=_json_value)}"))
    for bad in found.bad:
        where = "" if bad.column is None else f" (column {bad.column})"
        click.echo(
            shown_text(
                f"  cannot be decoded: {bad.count:,} × {bad.reason}{where}, for instance row"
                f" {bad.seq} of {bad.node}, {bad.topic}"
            )
        )


def _bad(found: "TableCheck") -> int:
    return sum(each.count for each in found.bad)


def _json_value(value: object) -> object:
    """What JSON does not have: bytes as hexadecimal digits, times as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


# --- infer ----------------------------------------------------------------------------------------


@click.command(
    cls=SemelCommand,
    short_help="Write a table of a landing file from recorded messages.",
    examples=(
        "semel land infer 'site/{plant}/{line:int}/temp' >> landing.toml",
        "semel land infer 'site/+/+/temp' --count 10000",
    ),
)
@click.argument("topic")
@landing_options
@COUNT
@ONE_OBJECT
@QUIET
def infer(topic: str, settings: LandSettings, count: int, is_json: bool, quiet: bool) -> None:
    """Print a [[table]] for the recorded messages of TOPIC, a template, to add to a landing file.

    Columns and types are those that Spark infers from the last messages. Read them before you land
    with them: a number that was always whole becomes BIGINT.
    """
    template = parse_template(topic)
    plan = make_plan(replace(settings, landing=None))
    _check_exists(plan)
    from semel.pipeline.landing_check import infer_table

    with _spark(plan, quiet=quiet or is_json) as spark:
        found = infer_table(spark, plan, template, count)
    if is_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(found.as_toml(), nl=False)
    if not quiet:
        click.echo(f"from {counted(found.messages, 'message')}", err=True)
    if found.others:
        click.echo(f"warning: {others_line(found)}", err=True)


def others_line(found: "InferredTable") -> str:
    """What becomes of the messages that look like another format than most."""
    verb = "looks" if found.others == 1 else "look"
    kinds = " or ".join(found.other_decoders)
    line = f"{found.others:,} of them {verb} like another format ({kinds})"
    if not found.undecodable:
        return f"{line}, which {found.decoder} takes, too"
    which = "it" if found.others == 1 else "them"
    if found.undecodable < found.others:
        which = f"{found.undecodable:,} of these"
    return f"{line}; {found.decoder} cannot decode {which}"


# --- retry ----------------------------------------------------------------------------------------


@click.command(
    cls=SemelCommand,
    short_help="Decode dead letters again, and land them.",
    examples=("semel land retry", "semel land retry temperature --landing landing.toml"),
)
@click.argument("tables", metavar="[TABLE]…", nargs=-1)
@landing_options
@ONE_OBJECT
@QUIET
def retry(tables: tuple[str, ...], settings: LandSettings, is_json: bool, quiet: bool) -> None:
    """Decode dead letters of TABLEs again, by default of all tables, and land them, each once.

    Do this after the landing file was corrected and the landing was restarted with it. Dead letters
    that have landed are deleted from the table of dead letters; the others stay there. The landing
    may run meanwhile.
    """
    plan = make_plan(settings)
    assert plan.file is not None
    chosen = [plan.file.table(name) for name in tables] or list(plan.file.tables)
    # With a mistyped lake there would be nothing to retry. Raises TableError.
    table_names(plan.lake)
    from semel.pipeline.dead_letter_retry import retry_dead_letters

    with _spark(plan, quiet=quiet or is_json) as spark:
        line = LiveLine()

        def report(outcome: "RetryOutcome") -> None:
            if line.is_enabled and not (quiet or is_json):
                line.show(f"{outcome.table}: {counted(outcome.landed, 'message')} landed")

        outcomes = retry_dead_letters(spark, plan, chosen, report)
        line.clear()
    if is_json:
        click.echo(json.dumps({"tables": [asdict(each) for each in outcomes]}))
    elif not quiet:
        print_table(
            ("table", "landed", "there already", "left out", "still bad", "not passed yet"),
            [
                (each.table, each.landed, each.known, each.left_out, each.bad, each.waiting)
                for each in outcomes
            ],
        )


# --- backfill -------------------------------------------------------------------------------------


@click.command(
    cls=SemelCommand,
    short_help="Fill a new table from the record, while a landing runs.",
    examples=(
        "semel land backfill temperature_2",
        "semel land backfill temperature_2 --from 1000000",
    ),
)
@click.argument("table")
@landing_options
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|SEQ|TIME",
    help="Begin a new table with this row of each node, or with the first row at or after a time.",
)
@ONE_OBJECT
@QUIET
def backfill(table: str, settings: LandSettings, start: str, is_json: bool, quiet: bool) -> None:
    """Land TABLE of a landing file from the record, until it has all sealed messages.

    A running landing is not stopped. When this is done, restart the landing with the new file: it
    continues where this has ended.
    """
    log_to_stderr()
    try:
        parse_points("start", start)
    except OptionError as problem:
        sentence = str(problem).removeprefix("option start").lstrip(" :,")
        raise click.BadParameter(sentence, param_hint="--from") from None

    def only_table(plan: LandingPlan) -> LandingPlan:
        assert plan.file is not None
        file = plan.file.only(table)
        if start != "earliest":
            _check_is_new(plan, table)
        if settings.checkpoint is None:
            checkpoint = plan.checkpoint.with_name(f"{LANDING_FILE}-backfill-{table}")
        else:
            # That of the landing, which may be running.
            checkpoint = plan.checkpoint / f"backfill-{table}"
        return replace(
            plan,
            file=file,
            checkpoint=checkpoint,
            begin_at=None if start == "earliest" else start,
        )

    run_landing(settings, once=True, is_json=is_json, quiet=quiet, change=only_table)


def _check_is_new(plan: LandingPlan, table: str) -> None:
    """Raise PipelineError if a table has messages, so that it cannot begin anywhere else."""
    need("deltalake", extra="spark", by="semel land")
    # Slow to import.
    from semel.pipeline.table import Table

    found = Table(landing_table(plan.lake, table))
    if found.positions(plan.stream, plan.root.nodes(plan.stream)):
        raise PipelineError(
            f"table {table} exists, and a backfill continues after the messages that it has: leave"
            " --from out, or give the table another name in the landing file"
        )


# --- Spark ----------------------------------------------------------------------------------------


def _check_exists(plan: LandingPlan) -> None:
    """Raise PipelineError, before Spark starts, if there is nothing to read for a check."""
    root = plan.root
    if isinstance(root, LocalRoot) and not Path(root.address).is_dir():
        raise PipelineError(f"{root.address} is not a root: there is no such folder")
    check_recorded(root, plan.stream)
    lake = local_folder(plan.lake)
    if lake is not None:
        check_can_be_created(lake)


@contextmanager
def _spark(plan: LandingPlan, *, quiet: bool) -> Iterator[Any]:
    """A session of Spark during the block. Its errors become one sentence."""
    need("deltalake", extra="spark", by="semel land")
    # Slow to import.
    from semel.pipeline.session import temporary_session

    log_to_stderr()
    if not quiet:
        click.echo("starting Spark", err=True)
    with temporary_session("semel land", master=plan.master) as spark, spark_errors(plan):
        yield spark
