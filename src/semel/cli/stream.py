"""`semel stream`: list the record of streams, read it, watch it grow, check it and trim it."""

import base64
import csv
import io
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from pathlib import Path
from typing import Final

import click

from semel.cli.flags import DRY_RUN, ONE_OBJECT, YES, json_option, shared_option
from semel.cli.groups import SuggestingGroup
from semel.cli.safe_text import shown_text
from semel.cli.stream_places import named, opened, places
from semel.cli.stream_verify import verify
from semel.cli.text_tables import EPOCH, print_table, shown_size, shown_time
from semel.counts import count
from semel.mqtt.topics import check_topic_filter, is_shared, topic_matches
from semel.mqtt.violation import Violation
from semel.store.reading import (
    NodeRecord,
    RecordRow,
    Summary,
    rows_of,
    said_rows,
)
from semel.store.roots import Segment
from semel.store.segments import MAXIMUM_SEQ

EARLIEST: Final = "earliest"
SEQ: Final = re.compile(r"[0-9]{1,19}", re.ASCII)

# How often `tail` looks for more, in seconds: at a store, and at segments alone.
STORE_LOOKS: Final = 0.2
ROOT_LOOKS: Final = 2.0
# Characters of a payload on a terminal; all of it is in JSON and CSV.
SHOWN_PAYLOAD: Final = 160
# Output is written in pieces of so many characters.
PIECE: Final = 64 * 1024
# What the shell says of a program that Ctrl-C ended before it was done.
INTERRUPTED: Final = 130

TEXT: Final = "text"
JSON: Final = "json"
CSV: Final = "csv"
# Bytes: where they are no text they stand in a field of their own.
BINARY: Final = ("payload", "correlation_data")


# --- what people type -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeOffset:
    """A time, in microseconds."""

    received: int


Point = int | TimeOffset


def parse_point(context: click.Context, option: click.Parameter, text: str | None) -> Point | None:
    """A seq, 0 for the earliest, or a time. One without a zone is UTC, as are all that we print."""
    if text is None:
        return None
    if text == EARLIEST and option.default == EARLIEST:
        return 0
    if SEQ.fullmatch(text):
        if not 1 <= int(text) <= MAXIMUM_SEQ:
            raise click.BadParameter(f"numbers of rows go from 1 to {MAXIMUM_SEQ}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return TimeOffset((moment - EPOCH) // timedelta(microseconds=1))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither the number of a row nor a time such as 2026-01-31T12:00:00Z"
        ) from None


def parse_filter(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A topic filter."""
    if text is None:
        return None
    if is_shared(text):
        raise click.BadParameter("write the filter without $share and its group")
    try:
        check_topic_filter(text, None)
    except Violation as violation:
        raise click.BadParameter(
            f"{text!r} is no topic filter: {violation.rule.sentence}"
        ) from None
    return text


def formats(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say how rows are printed."""
    for form, what in (
        (TEXT, "Print a line for people. The default on a terminal."),
        (CSV, "Print CSV with a header row."),
        (JSON, "Print one JSON object per row. The default for a file or pipe."),
    ):
        function = click.option(f"--{form}", f"{form}_wanted", is_flag=True, help=what)(function)
    return function


def chosen_format(**wanted: bool) -> str:
    """The one that is wanted."""
    forms = [name.removesuffix("_wanted") for name, is_wanted in wanted.items() if is_wanted]
    if len(forms) > 1:
        raise click.UsageError(f"choose one of {' and '.join(f'--{form}' for form in forms)}")
    if forms:
        return forms[0]
    return TEXT if sys.stdout.isatty() else JSON


# --- showing --------------------------------------------------------------------------------------


def shown_payload(payload: bytes) -> str:
    """A payload on a terminal: text if it is text, else hexadecimal."""
    if not payload:
        return "(empty)"
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        text = f"0x{payload[:SHOWN_PAYLOAD].hex()}"
    if len(text) <= SHOWN_PAYLOAD:
        return shown_text(text)
    return f"{shown_text(text[:SHOWN_PAYLOAD])}… ({count(len(payload), 'byte')})"


def shown_properties(row: RecordRow) -> str:
    """What else there is to a message."""
    found = [name for name in ("retain", "dup") if getattr(row, name)]
    for name in ("payload_format", "content_type", "response_topic", "message_expiry"):
        value = getattr(row, name)
        if value is not None:
            found.append(f"{name}={shown_text(str(value))}")
    if row.correlation_data is not None:
        found.append(f"correlation_data={shown_payload(row.correlation_data)}")
    for pair in row.user_properties or ():
        found.append(f"{shown_text(pair['key'])}={shown_text(pair['value'])}")
    return f"  [{', '.join(found)}]" if found else ""


def as_text(row: RecordRow, *, with_node: bool) -> str:
    """A row for people."""
    node = f"  {row.node}" if with_node else ""
    return (
        f"{row.seq:>8}{node}  {shown_time(row.received)}  q{row.qos}  {shown_text(row.topic)}"
        f"  {shown_payload(row.payload)}{shown_properties(row)}\n"
    )


def fields_of(row: RecordRow) -> dict[str, object]:
    """A row for programs: the columns of a segment. Bytes are text, or else Base64."""
    found: dict[str, object] = row._asdict()
    found["received"] = shown_time(row.received)
    for name in BINARY:
        value = found[name]
        if isinstance(value, bytes):
            try:
                found[name] = value.decode("utf-8")
            except UnicodeDecodeError:
                found[name] = None
                found[f"{name}_base64"] = base64.b64encode(value).decode("ascii")
    return found


def csv_columns() -> list[str]:
    """The columns of a segment, and beside those that hold bytes one for Base64."""
    found = []
    for name in RecordRow._fields:
        found.append(name)
        if name in BINARY:
            found.append(f"{name}_base64")
    return found


def as_csv(values: Iterable[object]) -> str:
    """A line of CSV."""
    line = io.StringIO()
    plain = [str(value).lower() if isinstance(value, bool) else value for value in values]
    csv.writer(line, lineterminator="\n").writerow(plain)
    return line.getvalue()


class RowOutput:
    """Rows on their way to standard output, in one of the formats."""

    def __init__(self, form: str, *, with_node: bool) -> None:
        self._form = form
        # In lines for people: there is more than one.
        self.with_node = with_node
        self._lines: list[str] = []
        self._size = 0
        self._stream = sys.stdout.buffer
        if form == CSV:
            self._add(as_csv(csv_columns()))

    def write(self, row: RecordRow) -> None:
        """Print a row, soon."""
        if self._form == TEXT:
            self._add(as_text(row, with_node=self.with_node))
            return
        fields = fields_of(row)
        if self._form == JSON:
            self._add(json.dumps(fields, ensure_ascii=False) + "\n")
            return
        pairs = fields["user_properties"]
        if pairs is not None:
            fields["user_properties"] = json.dumps(pairs, ensure_ascii=False)
        self._add(as_csv(fields.get(name) for name in csv_columns()))

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Print what is there now."""
        lines, self._lines, self._size = self._lines, [], 0
        if lines:
            if self._form == TEXT:
                # Lines for people are in the encoding of their terminal, data is UTF-8.
                sys.stdout.write("".join(lines))
                sys.stdout.flush()
                return
            self._stream.write("".join(lines).encode("utf-8"))
            self._stream.flush()


@contextmanager
def ending_quietly(code: int) -> Iterator[None]:
    """Ctrl-C ends with this code, and a reader of ours that has enough with 0: nothing is said."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(code)
    except BrokenPipeError:
        # Nobody reads what Python would still write when it ends.
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, 1)
        os.close(nobody)
        sys.exit(0)


# --- commands -------------------------------------------------------------------------------------


@click.group(name="stream", cls=SuggestingGroup)
def command() -> None:
    """List the record of streams, read it, watch it grow, check it, and delete its beginning.

    A broker may run meanwhile. With --data all that is committed is seen, with --root what is
    sealed into segments.
    """


command.add_command(verify)


@command.command(
    "list",
    examples=(
        "semel stream list --data /var/lib/semel",
        "semel stream list --root s3://bucket/root",
    ),
)
@places
@json_option("Print a JSON list.")
def list_streams(
    data: Path | None, root: str | None, nodes: tuple[str, ...], is_json: bool
) -> None:
    """List streams, and which rows there are of each.

    Exits with 1 if rows are missing.
    """
    with opened(data, root) as holdings:
        found = [
            record.summary()
            for stream in holdings.streams()
            for record in holdings.records(stream)
            if not nodes or record.node in nodes
        ]
        if is_json:
            click.echo(json.dumps([summary_json(each) for each in found]))
        elif found:
            print_summaries(found)
        else:
            whose = f" of node {', '.join(nodes)}" if nodes else ""
            click.echo(f"{holdings.place} has no stream{whose}", err=True)
    problems = [each.problem for each in found if each.problem is not None]
    if problems:
        raise click.ClickException("\nError: ".join(problems))


def summary_json(summary: Summary) -> dict[str, object]:
    return {
        "stream": summary.stream,
        "node": summary.node,
        "first": summary.first,
        "last": summary.last,
        "rows": summary.rows,
        "sealed": summary.sealed,
        "segments": summary.segments,
        "bytes": summary.bytes,
        "covered_segments": summary.covered_segments,
        "covered_bytes": summary.covered_bytes,
        "oldest": None if summary.oldest is None else shown_time(summary.oldest),
        "newest": None if summary.newest is None else shown_time(summary.newest),
        "problem": summary.problem,
    }


def print_summaries(found: list[Summary]) -> None:
    head = (
        "stream",
        "node",
        "first",
        "last",
        "rows",
        "sealed",
        "segments",
        "bytes",
        "oldest",
        "newest",
    )
    print_table(
        head,
        [
            (
                each.stream,
                each.node,
                each.first if each.rows else "",
                each.last,
                each.rows,
                each.sealed,
                each.segments,
                shown_size(each.bytes),
                "" if each.oldest is None else shown_time(each.oldest, "seconds"),
                "" if each.newest is None else shown_time(each.newest, "seconds"),
            )
            for each in found
        ],
    )


def matching(rows: Iterable[RecordRow], topic: str | None) -> Iterable[RecordRow]:
    """The rows whose topic a filter matches."""
    if topic is None:
        return rows
    return (row for row in rows if topic_matches(topic, row.topic))


def rows_between(record: NodeRecord, first: int, last: int) -> Iterator[RecordRow]:
    """The rows of one node, in order."""
    for table in record.tables(first, last):
        yield from rows_of(table)


def in_order(sources: list[Iterator[RecordRow]]) -> Iterator[RecordRow]:
    """The rows of several nodes: those of one in their order, among nodes by their time."""
    return merge(*sources, key=lambda row: row.received)


def before(rows: Iterator[RecordRow], moment: TimeOffset) -> Iterator[RecordRow]:
    """The rows up to the first that was received then or later."""
    for row in rows:
        if row.received >= moment.received:
            return
        yield row


def selected(record: NodeRecord, start: Point, end: Point | None) -> Iterator[RecordRow]:
    """The rows of one node that are asked for. What comes after now is not among them."""
    last = record.last()
    if isinstance(start, TimeOffset):
        first = record.first_since(start.received) or last + 1
    else:
        first = start or record.first()
    if isinstance(end, int):
        last = min(last, end)
    rows = rows_between(record, first, last)
    return before(rows, end) if isinstance(end, TimeOffset) else rows


@command.command(
    short_help="Print the record of a stream.",
    examples=(
        "semel stream read plant --data /var/lib/semel --from 2026-01-31 --topic 'plant/1/#'",
        "semel stream read plant --root s3://bucket/root --count 10 --csv",
    ),
)
@click.argument("name")
@places
@click.option(
    "--from",
    "start",
    callback=parse_point,
    metavar="earliest|SEQ|TIME",
    default=EARLIEST,
    show_default=True,
    help="Begin with this row, or with the first that was received at this time or later.",
)
@click.option(
    "--to",
    "end",
    callback=parse_point,
    metavar="SEQ|TIME",
    help="End with this row, or before the first that was received at this time or later.",
)
@click.option(
    "-t",
    "--topic",
    callback=parse_filter,
    metavar="FILTER",
    help="Print rows whose topic matches this filter.",
)
@shared_option("--count", "limit", type=click.IntRange(min=1), help="Print at most this many rows.")
@formats
def read(
    name: str,
    data: Path | None,
    root: str | None,
    nodes: tuple[str, ...],
    start: Point,
    end: Point | None,
    topic: str | None,
    limit: int | None,
    **wanted: bool,
) -> None:
    """Print the record of stream NAME, each row once and in order, as far as it goes now.

    A time is written as in 2026-01-31T12:00:00Z. Rows of several nodes are printed by the time they
    were received; numbers count for each node alone. Exits with 1 if a row is missing.
    """
    form = chosen_format(**wanted)
    with ending_quietly(INTERRUPTED), opened(data, root) as holdings:
        records = named(holdings, name, nodes)
        output = RowOutput(form, with_node=len(records) > 1)
        rows = matching(in_order([selected(each, start, end) for each in records]), topic)
        try:
            for number, row in enumerate(rows, 1):
                output.write(row)
                if number == limit:
                    break
        finally:
            output.flush()


@command.command(
    short_help="Print the last rows of a stream, and those that come.",
    examples=("semel stream tail plant --data /var/lib/semel -n 100 --topic 'plant/+/temp'",),
)
@click.argument("name")
@places
@shared_option(
    "--count",
    "-n",
    "size",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Begin with this many of the last rows.",
)
@click.option(
    "-f/",
    "--follow/--no-follow",
    default=True,
    help="Go on with what comes, which is the default, or end.",
)
@click.option(
    "-t",
    "--topic",
    callback=parse_filter,
    metavar="FILTER",
    help="Print rows whose topic matches this filter.",
)
@formats
def tail(
    name: str,
    data: Path | None,
    root: str | None,
    nodes: tuple[str, ...],
    size: int,
    follow: bool,
    topic: str | None,
    **wanted: bool,
) -> None:
    """Print the last rows of stream NAME, and then those that come, until Ctrl-C.

    With --data a row shows when it is committed, with --root alone when it is sealed. --topic
    chooses among the last rows, and among those that come.
    """
    form = chosen_format(**wanted)
    with ending_quietly(0), opened(data, root) as holdings:
        records = named(holdings, name, nodes)
        output = RowOutput(form, with_node=len(records) > 1)
        at = {each.node: each.last() for each in records}
        sources = [
            rows_between(each, max(each.first(), at[each.node] - size + 1), at[each.node])
            for each in records
        ]
        for row in matching(deque(in_order(sources), size), topic):
            output.write(row)
        output.flush()
        looked = time.monotonic()
        while follow:
            is_live = any(each.is_live for each in records)
            time.sleep(STORE_LOOKS if is_live else ROOT_LOOKS)
            if time.monotonic() - looked >= ROOT_LOOKS:
                looked = time.monotonic()
                records = named(holdings, name, nodes)
                output.with_node = len(records) > 1
            for row in matching(news(records, at), topic):
                output.write(row)
            output.flush()


def news(records: list[NodeRecord], at: dict[str, int]) -> Iterator[RecordRow]:
    """The rows after those up to `at`, by node; `at` becomes the last of them."""
    sources = []
    for record in records:
        last = record.last()
        # A node that was not there before is read from its beginning.
        first = at[record.node] + 1 if record.node in at else record.first()
        sources.append(rows_between(record, first, last))
        at[record.node] = last
    return in_order(sources)


@command.command(
    short_help="Delete the beginning of the record of a stream.",
    examples=(
        "semel stream trim plant --data /var/lib/semel --before 2026-01-31 --dry-run",
        "semel stream trim plant --data /var/lib/semel --before 50000 --yes",
    ),
)
@click.argument("name")
@places
@click.option(
    "--before",
    "end",
    callback=parse_point,
    metavar="SEQ|TIME",
    required=True,
    help="Delete segments with nothing but rows before this one, or received before this time.",
)
@DRY_RUN
@YES
@ONE_OBJECT
def trim(
    name: str,
    data: Path | None,
    root: str | None,
    nodes: tuple[str, ...],
    end: Point,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Delete the beginning of the record of stream NAME, for good.

    Only whole segments are deleted, and never rows that are not sealed. A broker may run meanwhile,
    and numbers go on. To delete by age or size all the time, set retain_for or retain_bytes of the
    stream.
    """
    with opened(data, root) as holdings:
        records = named(holdings, name, nodes)
        if isinstance(end, int) and len(records) > 1:
            known = ", ".join(each.node for each in records)
            raise click.UsageError(f"numbers are of one node: choose one by --node ({known})")
        leaving = [(each, ending_before(each, end)) for each in records]
        leaving = [(record, segments) for record, segments in leaving if segments]
        if not is_json:
            for record, segments in leaving:
                click.echo(f"{record.name}: {shown_segments(record, segments)}")
        if leaving and not (dry_run or yes):
            click.confirm("Delete them? Nothing brings them back.", abort=True, err=is_json)
        if is_json:
            click.echo(json.dumps(trimmed_json(leaving, dry_run=dry_run)))
        elif not leaving:
            click.echo("nothing to delete: no segment ends before that")
        elif not dry_run:
            for record, segments in leaving:
                click.echo(trimmed_line(record, segments))


def trimmed_json(
    leaving: list[tuple[NodeRecord, list[Segment]]], *, dry_run: bool
) -> dict[str, object]:
    """Delete the segments unless it is a dry run: what is deleted, or would be."""
    nodes = []
    for record, segments in leaving:
        gone = segments if dry_run else record.trim(segments[-1].last)
        if gone:
            rows = {"first": gone[0].first, "last": gone[-1].last, "segments": len(gone)}
            nodes.append({"stream": record.stream, "node": record.node, **rows})
    return {"deleted": not dry_run, "nodes": nodes}


def trimmed_line(record: NodeRecord, segments: list[Segment]) -> str:
    """Delete the segments: what was deleted."""
    gone = record.trim(segments[-1].last)
    kept = segments[-1].last - (gone[-1].last if gone else 0)
    line = f"{record.name}: deleted {count(len(gone), 'segment')}"
    if gone:
        line += f", {said_rows(gone[0].first, gone[-1].last)}"
    if kept:
        line += "; the others were merged with later ones meanwhile, and stay"
    return line


def ending_before(record: NodeRecord, end: Point) -> list[Segment]:
    if isinstance(end, TimeOffset):
        return record.before(received=end.received)
    return record.before(seq=end)


def shown_segments(record: NodeRecord, segments: list[Segment]) -> str:
    oldest, newest = record.times(segments)
    size = shown_size(sum(each.size for each in segments))
    return (
        f"{count(len(segments), 'segment')}, {said_rows(segments[0].first, segments[-1].last)}, "
        f"{size}, received {shown_time(oldest, 'seconds')} to {shown_time(newest, 'seconds')}"
    )
