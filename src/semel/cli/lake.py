"""`semel lake`: compact a table, delete files that it no longer needs, and list its commits."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import CONFIG, DRY_RUN, ONE_OBJECT, YES, json_option, shared_option
from semel.cli.groups import SuggestingGroup
from semel.cli.locations import LAKE, lake_address
from semel.cli.numbers import IntegerRange
from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table, shown_size, shown_time
from semel.counts import count
from semel.pipeline.lake import LEAST_AGE, TARGET_BYTES, TableCommit
from semel.pipeline.lake import history as history_of
from semel.pipeline.lake import optimize as optimize_table
from semel.pipeline.lake import vacuum as vacuum_table
from semel.settings_values import BYTES, QUANTITY, SECONDS, UNITS
from semel.store.roots import without_secrets

# Commits that are listed without --count.
COMMITS = 20
# Larger files are of no use, and delta-rs does not accept much larger numbers.
LARGEST = 2**40

TABLE = click.argument("table")


def quantity(unit: str) -> Callable[[click.Context, click.Parameter, str], Fraction]:
    """A callback for an option that is an amount, such as 64MiB or 7d."""

    def parse(context: click.Context, option: click.Parameter, text: str) -> Fraction:
        found = QUANTITY.fullmatch(text)
        units = UNITS["bytes" if unit == BYTES else "seconds"]
        if found is None or (found[2] and found[2] not in units) or not Fraction(found[1]):
            raise click.BadParameter(f"{text!r} is not an amount with one of {', '.join(units)}")
        return Fraction(found[1]) * units.get(found[2], 1)

    return parse


@click.group(name="lake", cls=SuggestingGroup)
def command() -> None:
    """Compact a table, delete files that it no longer needs, and list its commits.

    `semel land` may write to the table at the same time. `semel tables` lists the tables.
    """


@command.command(
    short_help="Compact small files of a table into large ones.",
    examples=("semel lake optimize messages", "semel lake optimize messages --target-size 256MiB"),
)
@TABLE
@CONFIG
@LAKE
@click.option(
    "--target-size",
    metavar="SIZE",
    default=f"{TARGET_BYTES // 2**20}MiB",
    show_default=True,
    callback=quantity(BYTES),
    help="The approximate size of compacted files, at most 1TiB.",
)
@ONE_OBJECT
def optimize(
    table: str, config: Path | None, lake: str | None, target_size: Fraction, is_json: bool
) -> None:
    """Compact small files of TABLE into large ones, which are faster to query.

    Rows are sorted by the columns of the table property semel.clusterBy, if it has one. No row
    changes. The small files stay, for readers of older versions, until `semel lake vacuum`.
    """
    if not 1 <= target_size <= LARGEST:
        raise click.BadParameter("at least 1B, and at most 1TiB", param_hint="--target-size")
    with one_sentence():
        done = optimize_table(lake_address(config, lake), table, target_bytes=int(target_size))
    if is_json:
        click.echo(json.dumps({"table": table, **asdict(done)}))
    elif done.version is None:
        click.echo(f"{table}: nothing to compact")
    else:
        click.echo(
            f"{table}: compacted {count(done.files_removed, 'file')} "
            f"({shown_size(done.bytes_removed)}) into {done.files_added:,} "
            f"({shown_size(done.bytes_added)}), version {done.version}"
        )
    if done.notice and not is_json:
        click.echo(f"{table}: {shown_text(done.notice)}", err=True)


@command.command(
    short_help="Delete files that no recent version of a table needs.",
    examples=(
        "semel lake vacuum messages --dry-run",
        "semel lake vacuum messages --older-than 30d --yes",
    ),
)
@TABLE
@CONFIG
@LAKE
@click.option(
    "--older-than",
    metavar="DURATION",
    default=f"{LEAST_AGE.days}d",
    show_default=True,
    callback=quantity(SECONDS),
    help="Keep the files that versions of this time need. At least 7d.",
)
@DRY_RUN
@YES
@ONE_OBJECT
def vacuum(
    table: str,
    config: Path | None,
    lake: str | None,
    older_than: Fraction,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Delete the files of TABLE that no recent version needs.

    These are files that were compacted or replaced, and files of attempts without a commit. Files
    younger than 7 days stay: a landing may be about to commit them. Lists the files and asks
    before it deletes them, unless --yes is given.
    """
    age = parse_age(older_than)
    with one_sentence():
        address = lake_address(config, lake)
        found = vacuum_table(address, table, run=False, older_than=age)
    if not (is_json or yes):
        for name in found.files:
            click.echo(shown_text(name))
    if found.files and not dry_run:
        if not yes:
            files = f"{count(len(found.files), 'file')} ({shown_size(found.bytes)})"
            click.confirm(f"Delete {files}?", abort=True, err=True)
        with one_sentence():
            found = vacuum_table(address, table, run=True, older_than=age)
    if is_json:
        result = {"table": table, "deleted": found.is_done, "bytes": found.bytes}
        click.echo(json.dumps({**result, "files": list(found.files)}))
        return
    files = f"{count(len(found.files), 'file')} ({shown_size(found.bytes)})"
    if not found.files:
        click.echo(f"{table}: nothing to delete", err=True)
    elif dry_run:
        click.echo(f"{table}: {files} can be deleted", err=True)
    else:
        click.echo(f"{table}: deleted {files}")


def parse_age(older_than: Fraction) -> timedelta:
    """The age of --older-than. Raises click.BadParameter."""
    try:
        age = timedelta(seconds=float(older_than))
    except OverflowError:
        raise click.BadParameter("no file is that old", param_hint="--older-than") from None
    if age < LEAST_AGE:
        raise click.BadParameter(
            f"at least {LEAST_AGE.days}d: a landing may be about to commit younger files",
            param_hint="--older-than",
        )
    return age


@command.command(
    short_help="List the commits of a table, newest first.",
    examples=("semel lake history messages", "semel lake history messages --count 3 --json"),
)
@TABLE
@CONFIG
@LAKE
@shared_option(
    "--count",
    "limit",
    type=IntegerRange(min=1),
    default=COMMITS,
    show_default=True,
    help="List at most this many commits.",
)
@json_option("Print a JSON list.")
def history(table: str, config: Path | None, lake: str | None, limit: int, is_json: bool) -> None:
    """List the commits of TABLE, newest first: the operation, and how far a landing got.

    A commit of a landing records up to which row of each stream and node the table is complete.
    The log of a table that a landing maintains keeps the newest 1,000 commits; other tables keep
    30 days, or what their delta.logRetentionDuration says.
    """
    with one_sentence():
        steps = history_of(lake_address(config, lake), table, limit=limit)
    if is_json:
        found = [{**asdict(step), "committed": commit_time(step.committed)} for step in steps]
        click.echo(json.dumps(found))
        return
    print_table(
        ("version", "time", "operation", "rows added", "files added", "removed", "landed up to"),
        [_step_row(step) for step in steps],
    )


def _step_row(step: TableCommit) -> tuple[object, ...]:
    return (
        step.version,
        shown_time(step.committed, "seconds") if step.committed else "",
        shown_text(step.operation),
        step.rows_added,
        step.files_added,
        step.files_removed,
        ", ".join(f"{shown_text(name)}: {seq}" for name, seq in sorted(step.positions.items())),
    )


def commit_time(committed: int) -> str | None:
    """The time of a commit for JSON; None if the table does not have it."""
    return shown_time(committed) if committed else None


def shown_lake(lake: str) -> str:
    """The address of a lake for people, without secrets."""
    return shown_text(without_secrets(lake))
