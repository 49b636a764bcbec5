"""`semel lake`: merge the files of a table, delete those that nothing needs, and tell its history.

What says where a lake is, and the record that it is landed from, is here for all commands that
look at lakes.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import click

from semel.cli.groups import SuggestingGroup
from semel.cli.safe_text import shown_text
from semel.cli.sections import SECTIONS
from semel.cli.store import print_table
from semel.cli.stream import shown_size, shown_time
from semel.counts import count
from semel.extras import MissingExtra
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake import LEAST_AGE, TARGET_BYTES, TableCommit, no_lake
from semel.pipeline.lake import history as history_of
from semel.pipeline.lake import optimize as optimize_table
from semel.pipeline.lake import vacuum as vacuum_table
from semel.pipeline.lake_address import local_folder
from semel.pipeline.settings import LandSettings
from semel.settings import CONFIG_VARIABLE, load
from semel.settings_values import BYTES, QUANTITY, SECONDS, UNITS
from semel.store.roots import RootError, without_secrets
from semel.store.schema import Unusable
from semel.store.segments import RecordError
from semel.store.settings import StoreSettings
from semel.up.parts import DATA as DATA_FOLDER
from semel.up.parts import LAKE as NO_LAKE
from semel.up.parts import LAKE_FOLDER, UpLandSettings, sections
from semel.up.sql import RecordLocation, SqlError, record_beside

# Commits that are told if nobody says how many.
COMMITS = 20
# Files beyond this are of no use, and numbers far beyond it are none for delta-rs.
LARGEST = 2**40

TABLE = click.argument("table")
JSON = click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object.")
CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Read settings from this file.  [or {CONFIG_VARIABLE}]",
)
LAKE = click.option(
    "--lake",
    metavar="ADDRESS",
    help="Where the tables are: a folder, or the address of an object store.  "
    f"[or SEMEL_LAND_LAKE; default: {LAKE_FOLDER} in the data folder, {LandSettings().lake}]",
)
ROOT = click.option(
    "--root",
    metavar="ADDRESS",
    help="Where the segments are that are landed: a folder, or the address of an object store.  "
    "[or SEMEL_LAND_ROOT]",
)
DATA = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The data folder of the broker whose messages are landed. By default the one that the "
    "lake is in.  [or SEMEL_STORE_DATA]",
)


@dataclass(frozen=True)
class Where:
    """Where the lake is, and its record, if that is known."""

    lake: str
    record: RecordLocation | None

    @property
    def is_there(self) -> bool:
        """Whether there is a folder, as far as this machine can tell."""
        folder = local_folder(self.lake)
        return folder is None or folder.exists()


def where(config: Path | None, lake: str | None, root: str | None, data: Path | None) -> Where:
    """What flags, environment and file say together.

    Before anything is landed there is no lake, though there is a record. But one that somebody
    names has to be there: rows of a lake that is mistyped would count as not landed. Only where
    `semel up` has it in its data folder it may come. Raises TableError, and what is wrong with the
    record.
    """
    land, store, place = _settled(config, lake, root, data)
    record = record_beside(
        place,
        root=land.root or store.root,
        data=store.data,
        stream=land.stream,
        table=land.table,
    )
    found = Where(place, record)
    if land.lake == NO_LAKE or found.is_there:
        return found
    folder = local_folder(place)
    assert folder is not None
    if record is None or record.data is None:
        raise no_lake(place)
    if folder.resolve() != _lake_in(record.data).resolve():
        raise no_lake(place)
    return found


def where_lake(config: Path | None, lake: str | None) -> str:
    """Where the lake is, for those whom its record does not concern."""
    return _settled(config, lake, None, None)[-1]


def _settled(
    config: Path | None, lake: str | None, root: str | None, data: Path | None
) -> tuple[LandSettings, StoreSettings, str]:
    """The settings, and the lake: that of the data folder if nobody names one."""
    flags: dict[str, dict[str, object]] = {"land": {}, "store": {}}
    if lake is not None:
        flags["land"]["lake"] = lake
    if root is not None:
        flags["land"]["root"] = root
    if data is not None:
        flags["store"]["data"] = str(data)
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    land, store = settings.of(UpLandSettings), settings.of(StoreSettings)
    if land.lake != NO_LAKE:
        return land, store, land.lake
    return land, store, str(_lake_in(Path(DATA_FOLDER) if store.data is None else store.data))


def _lake_in(data: Path) -> Path:
    return data / LAKE_FOLDER


@contextmanager
def one_sentence() -> Iterator[None]:
    """What is wrong with a lake, its record or a question ends the command, with exit code 1."""
    try:
        yield
    except BrokenPipeError:
        raise
    except SqlError as problem:
        lines = [shown_text(line) for line in str(problem).splitlines()]
        raise click.ClickException("\n".join(lines)) from None
    except (MissingExtra, OSError, PipelineError, RecordError, RootError, Unusable) as problem:
        sentence = shown_text(" ".join(str(problem).split()))
        raise click.ClickException(sentence) from None


def quantity(unit: str) -> Callable[[click.Context, click.Parameter, str], Fraction]:
    """A callback for an option that is an amount, such as 64MiB or 7d."""

    def parse(context: click.Context, option: click.Parameter, text: str) -> Fraction:
        found = QUANTITY.fullmatch(text)
        units = UNITS["bytes" if unit == BYTES else "seconds"]
        if found is None or (found[2] and found[2] not in units) or not Fraction(found[1]):
            raise click.BadParameter(f"{text!r} is no amount with one of {', '.join(units)}")
        return Fraction(found[1]) * units.get(found[2], 1)

    return parse


@click.group(name="lake", cls=SuggestingGroup)
def command() -> None:
    """Merge the files of a table, delete those that nothing needs, and tell its history.

    All of it may be done while `semel land` writes to the table. `semel tables` lists the tables.
    """


@command.command(short_help="Merge small files of a table into large ones.")
@TABLE
@CONFIG
@LAKE
@click.option(
    "--target-size",
    metavar="BYTES",
    default=f"{TARGET_BYTES // 2**20}MiB",
    show_default=True,
    callback=quantity(BYTES),
    help="How large the merged files are to be, about; 1TiB at most.",
)
@JSON
def optimize(
    table: str, config: Path | None, lake: str | None, target_size: Fraction, json_wanted: bool
) -> None:
    """Merge small files of TABLE into large ones, which are faster to ask.

    No row changes. The small files stay, for those who read older versions, until
    `semel lake vacuum`.
    """
    if not 1 <= target_size <= LARGEST:
        raise click.BadParameter("at least 1B, and at most 1TiB", param_hint="--target-size")
    with one_sentence():
        done = optimize_table(where_lake(config, lake), table, target_bytes=int(target_size))
    if json_wanted:
        click.echo(json.dumps({"table": table, **asdict(done)}))
    elif done.version is None:
        click.echo(f"{table}: nothing to merge")
    else:
        click.echo(
            f"{table}: merged {count(done.files_removed, 'file')} "
            f"({shown_size(done.bytes_removed)}) into {done.files_added:,} "
            f"({shown_size(done.bytes_added)}), version {done.version}"
        )


@command.command(short_help="Delete files that no recent version of a table needs.")
@TABLE
@CONFIG
@LAKE
@click.option("--run", is_flag=True, help="Delete them. Without this they are only listed.")
@click.option(
    "--older-than",
    metavar="TIME",
    default=f"{LEAST_AGE.days}d",
    show_default=True,
    callback=quantity(SECONDS),
    help="Keep what versions of this time need. Less than 7d is refused.",
)
@JSON
def vacuum(
    table: str,
    config: Path | None,
    lake: str | None,
    run: bool,
    older_than: Fraction,
    json_wanted: bool,
) -> None:
    """Say which files of TABLE no version of the last days needs; with --run, delete them.

    These are files that were merged or replaced, and those of attempts that never became a commit.
    A file younger than 7 days is never among them: a landing may be about to commit it.
    """
    try:
        age = timedelta(seconds=float(older_than))
    except OverflowError:
        raise click.BadParameter("no file is that old", param_hint="--older-than") from None
    if age < LEAST_AGE:
        raise click.BadParameter(
            f"at least {LEAST_AGE.days}d: a landing may be about to commit younger files",
            param_hint="--older-than",
        )
    with one_sentence():
        done = vacuum_table(where_lake(config, lake), table, run=run, older_than=age)
    if json_wanted:
        said = {"table": table, "deleted": done.is_done, "bytes": done.bytes}
        click.echo(json.dumps({**said, "files": list(done.files)}))
        return
    if not run:
        for name in done.files:
            click.echo(shown_text(name))
    files = f"{count(len(done.files), 'file')} ({shown_size(done.bytes)})"
    if run:
        click.echo(f"{table}: deleted {files}")
    elif done.files:
        click.echo(f"{table}: {files} can be deleted; --run does it", err=True)
    else:
        click.echo(f"{table}: nothing to delete", err=True)


@command.command(short_help="Tell the commits of a table, newest first.")
@TABLE
@CONFIG
@LAKE
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=COMMITS,
    show_default=True,
    help="So many commits at most.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print a JSON list.")
def history(
    table: str, config: Path | None, lake: str | None, limit: int, json_wanted: bool
) -> None:
    """Tell the commits of TABLE, newest first: what each did, and how far a landing got.

    A landing's commit says up to which row of each stream and node the table is complete. The log
    of a table that a landing maintains keeps the newest 1,000 commits, that of other tables those
    of 30 days or what their delta.logRetentionDuration says.
    """
    with one_sentence():
        steps = history_of(where_lake(config, lake), table, limit=limit)
    if json_wanted:
        found = [{**asdict(step), "committed": shown_moment(step.committed)} for step in steps]
        click.echo(json.dumps(found))
        return
    print_table(
        ("version", "time", "operation", "rows added", "files added", "removed", "landed up to"),
        [_shown_step(step) for step in steps],
    )


def _shown_step(step: TableCommit) -> tuple[object, ...]:
    return (
        step.version,
        shown_time(step.committed, "seconds") if step.committed else "",
        shown_text(step.operation),
        step.rows_added,
        step.files_added,
        step.files_removed,
        ", ".join(f"{shown_text(name)}: {seq}" for name, seq in sorted(step.positions.items())),
    )


def shown_moment(committed: int) -> str | None:
    """When a commit was made, for programs; None: nobody knows."""
    return shown_time(committed) if committed else None


def shown_lake(lake: str) -> str:
    """A lake, for people."""
    return shown_text(without_secrets(lake))
