"""`semel store`: inspect, check, repair, export and back up the store in a data folder."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import DRY_RUN, QUIET, YES, shared_option
from semel.cli.flags import ONE_OBJECT as JSON
from semel.cli.groups import SuggestingGroup
from semel.cli.live_line import LiveLine
from semel.cli.locations import store_folder
from semel.cli.numbers import IntegerRange
from semel.cli.text_tables import print_table
from semel.counts import count
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import check_topic_filter
from semel.mqtt.violation import Violation
from semel.store.care import adopt as adopt_after
from semel.store.care import back_up, describe
from semel.store.care import export as export_rows
from semel.store.forensics.check import CheckReport, check_store
from semel.store.forensics.pages import Gap
from semel.store.forensics.repair import RepairReport, repair_store
from semel.store.forensics.salvage import salvage
from semel.store.gaps import Range
from semel.store.inventory import (
    SessionFilter,
    StoredMessage,
    StoredSession,
    TopicFilter,
    delete_retained,
    delete_sessions,
    list_retained,
    list_sessions,
)

# The maximum number of rows of a table for people.
MOST_ROWS = 100


@click.group(name="store", cls=SuggestingGroup)
def command() -> None:
    """Inspect, check, repair, export and back up the store in a data folder.

    DIR is the folder that `semel broker --data` uses. Only `sessions delete`, `retained delete`
    and `adopt --discard` delete anything.
    """


# --- info -----------------------------------------------------------------------------------------


@command.command(
    short_help="Print how much is in a store.", examples=("semel store info /var/lib/semel",)
)
@store_folder
@JSON
def info(folder: Path, is_json: bool) -> None:
    """Print how much is in a store. The broker may be running."""
    with one_sentence():
        found = describe(folder)
    if is_json:
        click.echo(json.dumps(found))
        return
    streams = found.pop("streams")
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        if name == "made" and isinstance(value, str) and value.isdigit():
            shown = datetime.fromtimestamp(int(value), UTC).isoformat(" ")
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<16}{shown}")
    if isinstance(streams, list) and streams:
        click.echo()
        head = ["stream", "last seq", "sealed", "not sealed", "lost"]
        rows = [
            [each["name"], each["last_seq"], each["sealed"], each["unsealed"], ranges(each["lost"])]
            for each in streams
        ]
        if any(each["breaks"] for each in streams):
            # Only the store of an ingest has breaks.
            head.append("may be missing before")
            for row, each in zip(rows, streams, strict=True):
                row.append(", ".join(map(str, each["breaks"])))
        print_table(head, rows)


def ranges(lost: Iterable[Sequence[int]]) -> str:
    return ", ".join(f"{first}-{last}" for first, last in lost)


# --- check ----------------------------------------------------------------------------------------


@command.command(
    short_help="Check a store for damage.",
    examples=("semel store check /var/lib/semel", "semel store check --config semel.toml --json"),
)
@store_folder
@JSON
def check(folder: Path, is_json: bool) -> None:
    """Check the log, the pages, the tables and every row of a store, and how they fit together.

    The broker may be running; its log grows during the check. Exits with 1 if something is wrong.
    """
    with one_sentence():
        report = check_store(folder)
    if is_json:
        click.echo(json.dumps(report_json(report)))
    else:
        print_report(report, folder)
    if not report.is_clean:
        sys.exit(1)


def report_json(report: CheckReport) -> dict[str, object]:
    return {
        "findings": [
            {"table": each.table, "row": each.row, "problem": each.problem}
            for each in report.findings
        ],
        "more": report.more,
        "rows": report.rows,
        "notes": report.notes,
    }


def print_report(report: CheckReport, folder: Path) -> None:
    for note in report.notes:
        click.echo(note)
    if report.is_clean:
        click.echo(f"nothing is wrong: {count(sum(report.rows.values()), 'row')} in {folder}")
        return
    print_table(
        ("table", "row", "problem"),
        [(each.table, each.row, each.problem) for each in report.findings],
    )
    if report.more:
        click.echo(f"and {report.more:,} more")
    click.echo(f"stop the broker and run `semel store repair {folder}`: it keeps what is intact")


# --- repair ---------------------------------------------------------------------------------------


@command.command(
    short_help="Rebuild a damaged store from what is readable.",
    examples=("semel store repair /var/lib/semel",),
)
@store_folder
@JSON
def repair(folder: Path, is_json: bool) -> None:
    """Rebuild a damaged store from what is readable, and report what is lost.

    Stop the broker first. The old files are kept, under names that end in damaged- and the time.
    Exits with 0 only if nothing is lost.
    """
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    with one_sentence():
        result = repair_store(folder, when)
    if is_json:
        click.echo(json.dumps(repair_json(result)))
    else:
        print_repair(result, folder)
    if not result.is_complete:
        sys.exit(1)


def repair_json(result: RepairReport) -> dict[str, object]:
    return {
        "saved": None if result.saved is None else str(result.saved),
        "complete": result.is_complete,
        "kept": result.kept,
        "dropped": result.dropped,
        "unreadable": result.unreadable,
        "sessions": result.sessions,
        "streams": [
            {"stream": name, "first": first, "last": last} for name, first, last in result.gaps
        ],
        "notes": result.notes,
        "details": report_json(result.details)["findings"],
    }


def print_repair(result: RepairReport, folder: Path) -> None:
    if result.saved is None:
        click.echo(f"nothing is wrong with the store in {folder}: nothing was changed")
        return
    tables = [*result.kept, *(each for each in result.unreadable if each not in result.kept)]
    print_table(
        ("table", "kept", "dropped", "unreadable parts"),
        [
            (
                table,
                result.kept.get(table, ""),
                result.dropped.get(table, 0),
                result.unreadable.get(table, 0),
            )
            for table in tables
        ],
    )
    if result.sessions:
        click.echo()
        rows = [(name, what) for name, losses in result.sessions.items() for what in losses]
        print_table(("client", "lost"), rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            click.echo(f"and {len(rows) - MOST_ROWS:,} more")
    if result.gaps:
        click.echo()
        lost = [(name, first, last, last - first + 1) for name, first, last in result.gaps]
        print_table(("stream", "first lost", "last lost", "rows"), lost)
    for note in result.notes:
        click.echo(note)
    outcome = "nothing is lost" if result.is_complete else "the rows listed above are lost"
    click.echo(f"{outcome}; the old store is {result.saved}")


# --- export ---------------------------------------------------------------------------------------


@command.command(
    short_help="Print everything in a store as JSON.",
    examples=("semel store export /var/lib/semel --out store.jsonl",),
)
@store_folder
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write to this new file, readable by its owner only, instead of standard output.",
)
@click.option(
    "--salvage",
    "is_damaged",
    is_flag=True,
    help="Read what is readable in a damaged store. Stop the broker first.",
)
def export(folder: Path, out: Path | None, is_damaged: bool) -> None:
    """Print everything in a store as JSON, one row per line. The broker may be running.

    Each object begins with the name of its table. A payload that is not UTF-8 is in a field whose
    name ends in _base64.
    """
    with one_sentence():
        if out is None:
            gaps = write_rows(folder, sys.stdout, is_damaged=is_damaged)
        else:
            with new_file(out) as file:
                gaps = write_rows(folder, file, is_damaged=is_damaged)
    if gaps:
        raise click.ClickException(f"{count(gaps, 'part')} could not be read; the rest is exported")


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.ClickException(f"{path} exists already: choose a new file") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file


def write_rows(folder: Path, file: TextIO, *, is_damaged: bool) -> int:
    """Write a line for each row. Returns how many parts could not be read."""
    gaps = 0
    for row in salvage(folder) if is_damaged else export_rows(folder):
        if isinstance(row, Gap):
            gaps += 1
        else:
            file.write(json.dumps(row))
            file.write("\n")
    return gaps


# --- backup ---------------------------------------------------------------------------------------


@command.command(
    short_help="Copy a store; the broker may be running.",
    examples=(
        "semel store backup /var/lib/semel /backup/semel",
        "semel store backup --data /var/lib/semel /backup/semel --quiet",
    ),
)
@store_folder
@click.argument("target", metavar="TARGET", required=False, type=click.Path(path_type=Path))
@JSON
@QUIET
def backup(folder: Path, target: Path | None, is_json: bool, quiet: bool) -> None:
    """Copy a store as it is now, and check the copy. The broker may be running.

    TARGET is a new or empty folder. It becomes a data folder that a broker can use. The segments
    of streams are not copied.
    """
    if target is None:
        raise click.UsageError("Missing argument 'TARGET'.")
    with one_sentence():
        report = copy_with_progress(folder, target, LiveLine(enabled=not quiet))
    if is_json:
        click.echo(json.dumps(report_json(report)))
    elif report.is_clean:
        rows = count(sum(report.rows.values()), "row")
        click.echo(f"{target} is a copy of {folder}, and nothing is wrong with it: {rows}")
    else:
        print_report(report, target)
    if not report.is_clean:
        sys.exit(1)


def copy_with_progress(folder: Path, target: Path, line: LiveLine) -> CheckReport:
    def progress(done: int, pages: int) -> None:
        line.show(f"copying {done:,} of {pages:,} pages ({done / max(1, pages):.0%})")

    try:
        back_up(folder, target, progress)
    finally:
        line.clear()
    return check_store(target)


# --- adopt ----------------------------------------------------------------------------------------


def parse_range(context: click.Context, option: click.Parameter, text: str | None) -> Range | None:
    """Parse a range of rows, FIRST-LAST."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r} is not FIRST-LAST, such as 17-42")
    return int(match[1]), int(match[2])


@command.command(
    short_help="Continue a stream after the end of its record.",
    examples=(
        "semel store adopt /var/lib/semel --stream plant --after 5000",
        "semel store adopt --stream plant --after 5000 --discard 4990-5010 --dry-run",
    ),
)
@store_folder
@click.option("--stream", metavar="NAME", required=True, help="The name of the stream.")
@click.option(
    "--after",
    required=True,
    type=IntegerRange(0, 2**63 - 2),
    metavar="SEQ",
    help="The last row of the record; the next row gets the number after it.",
)
@click.option(
    "--discard",
    callback=parse_range,
    metavar="FIRST-LAST",
    help="Rows of the store to discard, because the record or an export has them.",
)
@DRY_RUN
@YES
@JSON
def adopt(
    folder: Path,
    stream: str,
    after: int,
    discard: Range | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Continue a stream after a row that its record has and its store does not know.

    This is the state of a store that was restored from a backup: the record continued without it,
    and the broker refuses to start. Rows of the store that are in no segment are never dropped
    silently: name them with --discard. Stop the broker first.
    """
    with one_sentence():
        adopt_after(folder, stream, after, discard, dry_run=True)
    if discard is not None and not dry_run:
        confirm(f"rows {discard[0]} to {discard[1]} of stream {stream}", yes=yes)
    if not dry_run:
        with one_sentence():
            adopt_after(folder, stream, after, discard)
    if is_json:
        adopted = {"stream": stream, "next": after + 1, "discarded": discard, "done": not dry_run}
        click.echo(json.dumps(adopted))
        return
    would = "would continue" if dry_run else "continues"
    click.echo(f"stream {stream} {would} with row {after + 1}")


# --- sessions -------------------------------------------------------------------------------------

CLIENT_IDS = shared_option(
    "--client-id", "client_ids", multiple=True, help="The session of this client. May be repeated."
)
PATTERNS = click.option(
    "--match",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Sessions whose client identifier matches: * is any text, ? one character. May be "
    "repeated.",
)
ALL = click.option("--all", "everything", is_flag=True, help="Select everything.")


@command.group(short_help="List or delete the sessions in a store.")
def sessions() -> None:
    """List or delete the sessions in a store.

    A session that never expires stays until its client ends it. The sessions of clients that will
    not return can be deleted here, with their subscriptions and queued messages.
    """


@sessions.command(
    name="list",
    short_help="List sessions.",
    examples=("semel store sessions list /var/lib/semel --match 'sensor-*'",),
)
@store_folder
@CLIENT_IDS
@PATTERNS
@JSON
def list_of_sessions(
    folder: Path, client_ids: tuple[str, ...], patterns: tuple[str, ...], is_json: bool
) -> None:
    """List sessions and what is stored for each. The broker may be running."""
    with one_sentence():
        found = list_sessions(folder, SessionFilter(client_ids, patterns))
    print_sessions(found, is_json=is_json)


@sessions.command(
    name="delete",
    short_help="Delete sessions.",
    examples=(
        "semel store sessions delete /var/lib/semel --match 'test-*' --dry-run",
        "semel store sessions delete /var/lib/semel --client-id old --yes",
    ),
)
@store_folder
@CLIENT_IDS
@PATTERNS
@ALL
@DRY_RUN
@YES
@JSON
def delete_of_sessions(
    folder: Path,
    client_ids: tuple[str, ...],
    patterns: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Delete sessions with their subscriptions and queued messages.

    Stop the broker first. A will stays, and is published when the broker starts. Exits with 1 if
    no session matches.
    """
    check_choice(client_ids or patterns, everything, "--client-id, --match or --all")
    selection = SessionFilter(client_ids, patterns)
    with one_sentence():
        found = list_sessions(folder, selection)
    if not found:
        raise click.ClickException(f"no session in {folder} matches: nothing was deleted")
    if not is_json and not yes:
        print_sessions(found, is_json=False)
    if not dry_run:
        confirm(count(len(found), "session"), yes=yes)
        with one_sentence():
            found = delete_sessions(folder, selection)
    if is_json:
        print_sessions(found, is_json=True)
    if not is_json:
        would = "would be deleted" if dry_run else "deleted"
        click.echo(f"{count(len(found), 'session')} {would}")


def check_choice(chosen: object, everything: bool, options: str) -> None:
    """Require a selection, so that a forgotten option deletes nothing."""
    if bool(chosen) == everything:
        problem = "not both" if everything else "none is given"
        raise click.UsageError(f"select what to delete by {options}: {problem}")


def confirm(what: str, *, yes: bool) -> None:
    """Ask before something is deleted, unless --yes is given. Aborts with exit code 1."""
    if not yes:
        click.confirm(f"Delete {what}?", abort=True, err=True)


def print_sessions(found: Sequence[StoredSession], *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps({"sessions": [asdict(each) for each in found]}))
        return
    print_table(
        ("client", "user", "expires", "subscriptions", "queued", "in flight"),
        [
            (
                ascii(each.client_id),
                "" if each.user_name is None else ascii(each.user_name),
                shown_end(each),
                each.subscriptions,
                each.queued,
                each.in_flight,
            )
            for each in found
        ],
    )


def shown_end(session: StoredSession) -> str:
    if session.ends_at is not None:
        return shown_time(session.ends_at)
    if session.expiry == NEVER_EXPIRES:
        return "never"
    return f"{session.expiry:,} s after its connection"


def shown_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds")


# --- retained messages ----------------------------------------------------------------------------

TOPICS = click.option(
    "-t",
    "--topic",
    "filters",
    multiple=True,
    metavar="FILTER",
    callback=lambda context, option, values: parse_filters(values),
    help="Messages whose topic matches this topic filter. May be repeated.",
)


def parse_filters(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check topic filters. Raises click.BadParameter."""
    for each in values:
        try:
            check_topic_filter(each, None)
        except Violation as violation:
            raise click.BadParameter(str(violation)) from None
    return values


@command.group(short_help="List or delete the retained messages in a store.")
def retained() -> None:
    """List or delete the retained messages in a store."""


@retained.command(
    name="list",
    short_help="List retained messages.",
    examples=("semel store retained list /var/lib/semel --topic 'plant/#'",),
)
@store_folder
@TOPICS
@JSON
def list_of_retained(folder: Path, filters: tuple[str, ...], is_json: bool) -> None:
    """List retained messages: topic, QoS and payload size. The broker may be running."""
    with one_sentence():
        found = list_retained(folder, TopicFilter(filters))
    print_retained(found, is_json=is_json)


@retained.command(
    name="delete",
    short_help="Delete retained messages.",
    examples=(
        "semel store retained delete /var/lib/semel --topic 'old/#' --dry-run",
        "semel store retained delete /var/lib/semel --all --yes",
    ),
)
@store_folder
@TOPICS
@ALL
@DRY_RUN
@YES
@JSON
def delete_of_retained(
    folder: Path,
    filters: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Delete retained messages. Stop the broker first. Exits with 1 if no message matches."""
    check_choice(filters, everything, "--topic or --all")
    selection = TopicFilter(filters)
    with one_sentence():
        found = list_retained(folder, selection)
    if not found:
        raise click.ClickException(f"no retained message in {folder} matches: nothing was deleted")
    if not is_json and not yes:
        print_retained(found, is_json=False)
    if not dry_run:
        confirm(count(len(found), "retained message"), yes=yes)
        with one_sentence():
            found = delete_retained(folder, selection)
    if is_json:
        print_retained(found, is_json=True)
    if not is_json:
        would = "would be deleted" if dry_run else "deleted"
        click.echo(f"{count(len(found), 'retained message')} {would}")


def print_retained(found: Sequence[StoredMessage], *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps({"retained": [asdict(each) for each in found]}))
        return
    print_table(
        ("topic", "qos", "bytes", "expires"),
        [
            (
                ascii(each.topic),
                each.qos,
                each.bytes,
                "never" if each.expires_at is None else shown_time(each.expires_at),
            )
            for each in found
        ],
    )
