"""`semel stream`: list the record of streams, read it, watch it grow, check it and trim it."""

import base64
import csv
import io
import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from pathlib import Path
from typing import Final

import click

from semel.cli.exits import ending_quietly
from semel.cli.flags import DRY_RUN, ONE_OBJECT, YES, json_option, shared_option
from semel.cli.groups import SuggestingGroup
from semel.cli.numbers import IntegerRange
from semel.cli.safe_text import shown_text
from semel.cli.stream_options import open_catalog, stream_options, stream_records
from semel.cli.stream_verify import verify
from semel.cli.text_tables import EPOCH, print_table, shown_size, shown_time
from semel.counts import count
from semel.mqtt.topics import check_topic_filter, is_shared, topic_matches
from semel.mqtt.violation import Violation
from semel.store.reading import (
    NodeRecord,
    RecordRow,
    RecordSummary,
    row_label,
    rows_of,
)
from semel.store.roots import Segment
from semel.store.segment_names import MAXIMUM_SEQ

EARLIEST: Final = "earliest"
SEQ: Final = re.compile(r"[0-9]{1,19}", re.ASCII)

# Seconds between two polls of `tail`: of a store, and of a root alone.
STORE_POLL: Final = 0.2
ROOT_POLL: Final = 2.0
# Characters of a payload on a terminal; JSON and CSV have all of it.
SHOWN_PAYLOAD: Final = 160
# Characters of output to write at a time.
PIECE: Final = 64 * 1024

TEXT: Final = "text"
JSON: Final = "json"
CSV: Final = "csv"
# Columns of bytes: a value that is not UTF-8 is printed as Base64 in a separate field.
BINARY: Final = ("payload", "correlation_data")


# --- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeOffset:
    """A time, in microseconds."""

    received: int


Point = int | TimeOffset


def parse_point(context: click.Context, option: click.Parameter, text: str | None) -> Point | None:
    """A seq, 0 for the earliest, or a time; UTC if it has no zone, like all times in the output."""
    if text is None:
        return None
    if text == EARLIEST and option.default == EARLIEST:
        return 0
    if SEQ.fullmatch(text):
        if not 1 <= int(text) <= MAXIMUM_SEQ:
            raise click.BadParameter(f"a row number is between 1 and {MAXIMUM_SEQ}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return TimeOffset((moment - EPOCH) // timedelta(microseconds=1))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a row number nor a time such as 2026-01-31T12:00:00Z"
        ) from None


def parse_filter(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check a topic filter. Raises click.BadParameter."""
    if text is None:
        return None
    if is_shared(text):
        raise click.BadParameter("write the topic filter without $share/ and the group name")
    try:
        check_topic_filter(text, None)
    except Violation as violation:
        raise click.BadParameter(
            f"{text!r} is not a topic filter: {violation.rule.sentence}"
        ) from None
    return text


def formats(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose the output format."""
    for form, what in (
        (TEXT, "Print one readable line per row. The default on a terminal."),
        (CSV, "Print CSV with a header row."),
        (JSON, "Print one JSON object per line. The default if the output is a file or a pipe."),
    ):
        function = click.option(f"--{form}", form, is_flag=True, help=what)(function)
    return function


def chosen_format(**flags: bool) -> str:
    """The format whose flag is set, or the default."""
    forms = [name for name, is_set in flags.items() if is_set]
    if len(forms) > 1:
        raise click.UsageError(f"choose one of {' and '.join(f'--{form}' for form in forms)}")
    if forms:
        return forms[0]
    return TEXT if sys.stdout.isatty() else JSON


# --- output ---------------------------------------------------------------------------------------


def shown_payload(payload: bytes) -> str:
    """A payload on a terminal: text if it is UTF-8, else hexadecimal."""
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
    """The flags and properties of a message, in brackets; empty if it has none."""
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
    """A row as one readable line."""
    node = f"  {row.node}" if with_node else ""
    return (
        f"{row.seq:>8}{node}  {shown_time(row.received)}  q{row.qos}  {shown_text(row.topic)}"
        f"  {shown_payload(row.payload)}{shown_properties(row)}\n"
    )


def fields_of(row: RecordRow) -> dict[str, object]:
    """A row as a dictionary of the columns of a segment. Bytes become text, or else Base64."""
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
    """The columns of a segment, with a Base64 column beside each column of bytes."""
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
    """Writes rows to standard output in one of the formats, buffered."""

    def __init__(self, form: str, *, with_node: bool) -> None:
        self._form = form
        # Whether readable lines include the node: if the stream has several.
        self.with_node = with_node
        self._lines: list[str] = []
        self._size = 0
        self._stream = sys.stdout.buffer
        if form == CSV:
            self._add(as_csv(csv_columns()))

    def write(self, row: RecordRow) -> None:
        """Add a row to the buffer."""
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
        """Write the buffer."""
        lines, self._lines, self._size = self._lines, [], 0
        if lines:
            if self._form == TEXT:
                # Readable lines use the encoding of the terminal, data is UTF-8.
                sys.stdout.write("".join(lines))
                sys.stdout.flush()
                return
            self._stream.write("".join(lines).encode("utf-8"))
            self._stream.flush()


# --- commands -------------------------------------------------------------------------------------


@click.group(name="stream", cls=SuggestingGroup)
def command() -> None:
    """List, print, follow, verify and trim the records of streams.

    The broker may be running. With --data the commands see every committed message, with --root
    alone only those that are sealed into segments.
    """


command.add_command(verify)


@command.command(
    "list",
    examples=(
        "semel stream list --data /var/lib/semel",
        "semel stream list --root s3://bucket/root",
    ),
)
@stream_options
@json_option("Print a JSON list.")
def list_streams(
    data: Path | None, root: str | None, nodes: tuple[str, ...], is_json: bool
) -> None:
    """List streams and the extent of their records.

    Exits with 1 if rows are missing.
    """
    with open_catalog(data, root) as catalog:
        found = [
            record.summary()
            for stream in catalog.streams()
            for record in catalog.records(stream)
            if not nodes or record.node in nodes
        ]
        if is_json:
            click.echo(json.dumps([summary_json(each) for each in found]))
        elif found:
            print_summaries(found)
        else:
            whose = f" of node {', '.join(nodes)}" if nodes else ""
            click.echo(f"{catalog.location} has no stream{whose}", err=True)
    problems = [each.problem for each in found if each.problem is not None]
    if problems:
        raise click.ClickException("\nError: ".join(problems))


def summary_json(summary: RecordSummary) -> dict[str, object]:
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


def print_summaries(found: list[RecordSummary]) -> None:
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
    """The rows whose topic matches the filter."""
    if topic is None:
        return rows
    return (row for row in rows if topic_matches(topic, row.topic))


def rows_between(record: NodeRecord, first: int, last: int) -> Iterator[RecordRow]:
    """The rows of one node, in order."""
    for table in record.tables(first, last):
        yield from rows_of(table)


def in_order(sources: list[Iterator[RecordRow]]) -> Iterator[RecordRow]:
    """The rows of several nodes, merged by time; the rows of each node keep their order."""
    return merge(*sources, key=lambda row: row.received)


def before(rows: Iterator[RecordRow], moment: TimeOffset) -> Iterator[RecordRow]:
    """The rows before the first that was received at that time or later."""
    for row in rows:
        if row.received >= moment.received:
            return
        yield row


def selected(record: NodeRecord, start: Point, end: Point | None) -> Iterator[RecordRow]:
    """The rows of one node between two points, up to the last row at the time of the call."""
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
@stream_options
@click.option(
    "--from",
    "start",
    callback=parse_point,
    metavar="earliest|SEQ|TIME",
    default=EARLIEST,
    show_default=True,
    help="Start with this row, or with the first received at this time or later.",
)
@click.option(
    "--to",
    "end",
    callback=parse_point,
    metavar="SEQ|TIME",
    help="Stop after this row, or before the first received at this time or later.",
)
@click.option(
    "-t",
    "--topic",
    callback=parse_filter,
    metavar="FILTER",
    help="Print rows whose topic matches this filter.",
)
@shared_option("--count", "limit", type=IntegerRange(min=1), help="Print at most this many rows.")
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
    **flags: bool,
) -> None:
    """Print the record of stream NAME up to now, each row once and in order.

    A time is written as in 2026-01-31T12:00:00Z. The rows of several nodes are merged by the time
    they were received; each node numbers its own rows. Exits with 1 if a row is missing.
    """
    form = chosen_format(**flags)
    with ending_quietly(), open_catalog(data, root) as catalog:
        records = stream_records(catalog, name, nodes)
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
    short_help="Print the last rows of a stream, and follow it.",
    examples=("semel stream tail plant --data /var/lib/semel -n 100 --topic 'plant/+/temp'",),
)
@click.argument("name")
@stream_options
@shared_option(
    "--count",
    "-n",
    "size",
    type=IntegerRange(min=0),
    default=10,
    show_default=True,
    help="Start with the last N rows.",
)
@click.option(
    "-f/",
    "--follow/--no-follow",
    default=True,
    help="Print new rows as they arrive (the default), or exit.",
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
    **flags: bool,
) -> None:
    """Print the last rows of stream NAME, then new rows as they arrive, until Ctrl-C.

    With --data a row is printed when it is committed, with --root alone when it is sealed. --topic
    filters both the last rows and the new ones.
    """
    form = chosen_format(**flags)
    with ending_quietly(0), open_catalog(data, root) as catalog:
        records = stream_records(catalog, name, nodes)
        output = RowOutput(form, with_node=len(records) > 1)
        at = {each.node: each.last() for each in records}
        sources = [
            rows_between(each, max(each.first(), at[each.node] - size + 1), at[each.node])
            for each in records
        ]
        for row in matching(deque(in_order(sources), size), topic):
            output.write(row)
        output.flush()
        listed_at = time.monotonic()
        while follow:
            is_live = any(each.is_live for each in records)
            time.sleep(STORE_POLL if is_live else ROOT_POLL)
            if time.monotonic() - listed_at >= ROOT_POLL:
                listed_at = time.monotonic()
                records = stream_records(catalog, name, nodes)
                output.with_node = len(records) > 1
            for row in matching(new_rows(records, at), topic):
                output.write(row)
            output.flush()


def new_rows(records: list[NodeRecord], at: dict[str, int]) -> Iterator[RecordRow]:
    """The rows after `at`, the last printed seq of each node, which is updated."""
    sources = []
    for record in records:
        last = record.last()
        # A new node is read from its first row.
        first = at[record.node] + 1 if record.node in at else record.first()
        sources.append(rows_between(record, first, last))
        at[record.node] = last
    return in_order(sources)


@command.command(
    short_help="Delete the oldest segments of a stream.",
    examples=(
        "semel stream trim plant --data /var/lib/semel --before 2026-01-31 --dry-run",
        "semel stream trim plant --data /var/lib/semel --before 50000 --yes",
    ),
)
@click.argument("name")
@stream_options
@click.option(
    "--before",
    "end",
    callback=parse_point,
    metavar="SEQ|TIME",
    required=True,
    help="Delete the segments that end before this row, or before this time.",
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
    """Permanently delete the oldest segments of stream NAME.

    Only whole segments are deleted, and never rows that are not sealed yet. The broker may be
    running, and row numbers continue. To delete by age or size regularly, set retain_for or
    retain_bytes of the stream.
    """
    with open_catalog(data, root) as catalog:
        records = stream_records(catalog, name, nodes)
        if isinstance(end, int) and len(records) > 1:
            known = ", ".join(each.node for each in records)
            raise click.UsageError(
                f"each node numbers its own rows: choose one with --node ({known})"
            )
        found = [(each, segments_before(each, end)) for each in records]
        to_delete = [(record, segments) for record, segments in found if segments]
        if not is_json:
            for record, segments in to_delete:
                click.echo(f"{record.name}: {shown_segments(record, segments)}")
        if to_delete and not (dry_run or yes):
            click.confirm("Delete them permanently?", abort=True, err=is_json)
        if is_json:
            click.echo(json.dumps(trimmed_json(to_delete, dry_run=dry_run)))
        elif not to_delete:
            click.echo("nothing to delete: no segment ends before this point")
        elif not dry_run:
            for record, segments in to_delete:
                click.echo(trimmed_line(record, segments))


def trimmed_json(
    to_delete: list[tuple[NodeRecord, list[Segment]]], *, dry_run: bool
) -> dict[str, object]:
    """Delete the segments, unless it is a dry run. Returns what was, or would be, deleted."""
    nodes = []
    for record, segments in to_delete:
        deleted = segments if dry_run else record.trim(segments[-1].last)
        if deleted:
            rows = {"first": deleted[0].first, "last": deleted[-1].last, "segments": len(deleted)}
            nodes.append({"stream": record.stream, "node": record.node, **rows})
    return {"deleted": not dry_run, "nodes": nodes}


def trimmed_line(record: NodeRecord, segments: list[Segment]) -> str:
    """Delete the segments. Returns a line that reports what was deleted."""
    deleted = record.trim(segments[-1].last)
    kept = segments[-1].last - (deleted[-1].last if deleted else 0)
    line = f"{record.name}: deleted {count(len(deleted), 'segment')}"
    if deleted:
        line += f", {row_label(deleted[0].first, deleted[-1].last)}"
    if kept:
        line += "; kept the others, which were merged with later segments meanwhile"
    return line


def segments_before(record: NodeRecord, end: Point) -> list[Segment]:
    if isinstance(end, TimeOffset):
        return record.segments_before(received=end.received)
    return record.segments_before(seq=end)


def shown_segments(record: NodeRecord, segments: list[Segment]) -> str:
    oldest, newest = record.times(segments)
    size = shown_size(sum(each.size for each in segments))
    return (
        f"{count(len(segments), 'segment')}, {row_label(segments[0].first, segments[-1].last)}, "
        f"{size}, received {shown_time(oldest, 'seconds')} to {shown_time(newest, 'seconds')}"
    )
