"""`semel quality`: what the record shows about each client and topic, the worst first."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from semel.cli.errors import one_sentence
from semel.cli.exits import ending_quietly
from semel.cli.flags import flag_names, json_option, shared_option
from semel.cli.lake import shown_lake
from semel.cli.locations import QUERY_MEMORY, LakeLocation, lake_options
from semel.cli.numbers import YEAR, Duration, IntegerRange, NumberRange
from semel.cli.option_groups import SemelCommand, grouped_option
from semel.cli.output import AsciiOutput
from semel.cli.safe_text import shown_text
from semel.cli.sql import ended_by_signals
from semel.cli.sql_results import sql_errors
from semel.cli.stream import parse_filter
from semel.cli.table_view import GAP, cut, fitting, padded, width_of
from semel.cli.text_tables import EPOCH, shown_size, shown_time
from semel.counts import count
from semel.pipeline.settings import LandSettings
from semel.up.quality import QualityTotals, find_source, measure, received_times
from semel.up.quality_sql import QualityQuery, is_json_path
from semel.up.quality_table import QUALITY_TABLE, QualityRun, append_run
from semel.up.sql import LakeSql

RANGE: Final = "Range"
MEASURES: Final = "Measures"
SINCE: Final = "24h"
DAY: Final = 86_400.0
# The first moment that a date can name.
FIRST_MOMENT: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
# Lines of the table, unless --count is given.
LINES: Final = 20
# From few messages to many; a column without a message is a space.
BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = ".:-=+*#@"
HEADER: Final = ("client", "topic", "messages", "per minute", "last", "rate", "problems")
# Which columns are aligned to the right, and which may be cut on a terminal.
RIGHT: Final = (False, False, True, True, True, False, False)
MAY_CUT: Final = (True, True, False, False, False, False, False)

Row = dict[str, Any]


# --- arguments ------------------------------------------------------------------------------------


def parse_time(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A time in microseconds; UTC if it has no zone. Raises click.BadParameter."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        # In UTC it may be outside of the years 1 to 9999.
        return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None


def parse_path(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A path to a value of a JSON payload. Raises click.BadParameter."""
    if text is None or is_json_path(text):
        return text
    raise click.BadParameter(
        f"{text!r} is not a JSON path to one value such as $.seq, $.head.seq or $.values[0]"
    )


def parse_client_id(
    context: click.Context, option: click.Parameter, text: str | None
) -> str | None:
    """A client identifier. Raises click.BadParameter if it is not UTF-8."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!a} is not UTF-8") from None
    return text


def find_range(
    since: float | None, start: int | None, end: int | None, *, now: int
) -> tuple[int, int]:
    """The range in microseconds. It ends now at the latest. Raises click.UsageError."""
    if since is not None and start is not None:
        raise click.UsageError("give one of --since and --from")
    last = now if end is None else min(end, now)
    if start is None:
        first = max(last - round((DAY if since is None else since) * 1e6), FIRST_MOMENT)
    else:
        first = start
    if first >= last:
        raise click.UsageError(
            f"the range is empty: it begins at {shown_time(first, 'seconds')} and ends at"
            f" {shown_time(last, 'seconds')}"
        )
    return first, last


@click.command(
    cls=SemelCommand,
    examples=(
        "semel quality",
        "semel quality --since 1h --topic 'plant/#' --sequence '$.seq' --event-time '$.at'",
        "semel quality --from 2026-03-01 --to 2026-03-02 --json",
        "semel quality --client-id pump-17",
        "semel quality --save",
    ),
)
@grouped_option(
    "--since",
    section=RANGE,
    type=Duration(min=0, min_open=True, max=100 * YEAR),
    metavar="DURATION",
    help=f"Messages of this time before now, or before --to.  [default: {SINCE}]",
)
@grouped_option(
    "--from",
    "start",
    section=RANGE,
    callback=parse_time,
    metavar="TIME",
    help="Messages received at this time or later, instead of --since.",
)
@grouped_option(
    "--to",
    "end",
    section=RANGE,
    callback=parse_time,
    metavar="TIME",
    help="Messages received before this time.  [default: now]",
)
@grouped_option(
    *flag_names("--topic"),
    section=RANGE,
    callback=parse_filter,
    metavar="FILTER",
    help="Messages whose topic matches this filter.",
)
@shared_option(
    "--client-id",
    section=RANGE,
    callback=parse_client_id,
    help="Messages of this client, with all measures of each topic.",
)
@grouped_option(
    "--sequence",
    section=MEASURES,
    callback=parse_path,
    metavar="PATH",
    help="JSON path of the number that a device counts up in its payloads, such as $.seq. Finds"
    " missing numbers, restarts and messages out of order.",
)
@grouped_option(
    "--event-time",
    section=MEASURES,
    callback=parse_path,
    metavar="PATH",
    help="JSON path of the time in a payload, such as $.at: ISO 8601, or seconds or milliseconds"
    " since 1970. Finds late messages.",
)
@grouped_option(
    "--late-after",
    section=MEASURES,
    type=Duration(min=0, max=YEAR),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="A message is late if it is received later than this after its event time.",
)
@grouped_option(
    "--repeat-within",
    section=MEASURES,
    type=Duration(min=0, max=YEAR),
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="A message with the payload of the one before is a repeat if it is received within less"
    " than this.",
)
@grouped_option(
    "--silence",
    section=MEASURES,
    type=NumberRange(min=1, max=1e6),
    default=5.0,
    show_default=True,
    metavar="N",
    help="A device is silent after this many times its usual interval.",
)
@grouped_option(
    "--deviations",
    section=MEASURES,
    type=NumberRange(min=0, min_open=True, max=1e6),
    default=5.0,
    show_default=True,
    metavar="N",
    help="A size or rate is an outlier if it is more than this many median absolute deviations"
    " from the median.",
)
@lake_options
@shared_option(
    "--table",
    help="The table in which the stream is landed.  [default: that of the settings, messages]",
)
@shared_option(
    "--count",
    "limit",
    type=IntegerRange(min=1),
    help=f"Print at most this many clients and topics.  [default: {LINES}; all with --json]",
)
@click.option("--save", is_flag=True, help=f"Append the measures to table {QUALITY_TABLE}.")
@json_option("Print one JSON object with all measures.")
@QUERY_MEMORY
def command(
    since: float | None,
    start: int | None,
    end: int | None,
    limit: int | None,
    locate: Callable[[], LakeLocation],
    table: str | None,
    save: bool,
    is_json: bool,
    memory: str,
    **options: Any,
) -> None:
    """Measure the quality of devices: silence, gaps, lateness, repeats, outliers.

    Each client and topic of a stream is a line, the worst first: those that are silent now, then by
    missing numbers, late messages, repeats and outliers. Messages that have landed and those that
    have not are measured.

    --save appends the measures to a table, so that semel sql can query the quality over time.
    """
    now = round(time.time() * 1e6)
    begin, last = find_range(since, start, end, now=now)
    query = QualityQuery(begin, last, **options)
    with ended_by_signals(), ending_quietly(), one_sentence(), sql_errors():
        location = locate()
        if table is None:
            table = LandSettings().table if location.record is None else location.record.table
        run = QualityRun(EPOCH + timedelta(microseconds=now), table, query)
        with LakeSql(location.lake, record=location.record, memory=memory) as sql:
            source, note = find_source(sql, location.lake, table)
            with measure(sql, source, query) as result:
                print_notes([*sql.notes, *([] if note is None else [note])])
                view = QualityView(run, limit=limit, is_json=is_json)
                batches: Iterable[Any] = result.batches
                if save:
                    batches = list(batches)
                    view.saved = save_rows(location.lake, run, batches)
                view.print(batches)
        if not view.totals.devices:
            with LakeSql(location.lake, record=location.record, memory=memory) as sql:
                times = received_times(sql, source)
            click.echo(why_empty(query, table, first=times.first, last=times.last), err=True)
        if view.saved is not None and not is_json:
            where = f"{QUALITY_TABLE} of {shown_lake(location.lake)}"
            rows = count(view.totals.devices, "row")
            click.echo(f"saved {rows} to table {where}, version {view.saved}")


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"Note: {shown_text(note)}", err=True)


def save_rows(lake: str, run: QualityRun, batches: list[Any]) -> int | None:
    """Save what was measured. Returns the version of the table; None: there was nothing to save."""
    if not sum(batch.num_rows for batch in batches):
        return None
    return append_run(lake, run, batches)


def why_empty(query: QualityQuery, table: str, *, first: int | None, last: int | None) -> str:
    """One sentence about a range without messages."""
    if first is None or last is None:
        return f"the stream of table {shown_text(table)} has no messages yet"
    which = ""
    if query.client_id is not None:
        which += f" of client {shown_text(query.client_id)}"
    if query.topic is not None:
        which += f" with a topic that matches {shown_text(query.topic)}"
    return (
        f"no message{which} was received from {shown_time(query.begin, 'seconds')} to"
        f" {shown_time(query.end, 'seconds')}; the stream has messages from"
        f" {shown_time(first, 'seconds')} to {shown_time(last, 'seconds')}"
    )


# --- output ---------------------------------------------------------------------------------------


class QualityView:
    """Prints what was measured: as JSON, as one line per client and topic, or in detail."""

    def __init__(self, run: QualityRun, *, limit: int | None, is_json: bool) -> None:
        self.totals = QualityTotals()
        # The version of table `quality` with these rows.
        self.saved: int | None = None
        self._run = run
        self._limit = limit
        self._is_json = is_json

    def print(self, batches: Iterable[Any]) -> None:
        """Print the rows, and the totals below them."""
        if self._is_json:
            self._print_json(self._rows(batches, self._limit))
            return
        rows = list(self._rows(batches, self._limit or LINES))
        if not rows:
            return
        if self._run.query.client_id is None:
            print_lines(rows, self._run.query)
        else:
            for row in rows:
                print_details(row, self._run.query)
        for line in self._total_lines(len(rows)):
            click.echo(line)

    def _rows(self, batches: Iterable[Any], limit: int | None) -> Iterator[Row]:
        """The first rows; all are added to the totals."""
        left = limit
        for batch in batches:
            self.totals.add(batch)
            chosen = batch if left is None else batch.slice(0, left)
            yield from chosen.to_pylist()
            if left is not None:
                left -= chosen.num_rows

    def _print_json(self, rows: Iterable[Row]) -> None:
        query = asdict(self._run.query)
        head = {
            "table": self._run.source,
            "run": shown_time(microseconds_of(self._run.at)),
            "from": shown_time(query.pop("begin")),
            "to": shown_time(query.pop("end")),
            "options": query,
            "saved": self.saved,
        }
        # Row by row, because there may be many devices.
        click.echo(json.dumps(head)[:-1] + ', "devices": [', nl=False)
        for number, row in enumerate(rows):
            click.echo((", " if number else "") + json.dumps(row_json(row)), nl=False)
        click.echo('], "totals": ' + json.dumps(self.totals.measures()) + "}")

    def _total_lines(self, shown: int) -> Iterator[str]:
        totals, sums, query = self.totals, self.totals.sums, self._run.query
        if totals.devices > shown:
            yield f"and {totals.devices - shown:,} more: --count prints them"
        if query.client_id is None:
            yield ""
        yield (
            f"{count(sums['messages'] or 0, 'message')} ({shown_size(sums['bytes'] or 0)}) of"
            f" {count(totals.clients, 'client')},"
            f" {count(totals.devices, 'pair')} of client and topic,"
            f" from {shown_time(query.begin, 'seconds')} to {shown_time(query.end, 'seconds')}"
        )
        row = {**dict.fromkeys(("lateness_p99", "longest_silence")), **sums, "is_silent": None}
        found = problems_of(row)
        if totals.silent:
            found.insert(0, f"{totals.silent:,} silent now")
        share = f"{totals.with_problems:,} of {totals.devices:,} have problems"
        yield f"{share}: {', '.join(found)}" if found else "no problems"


def microseconds_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def row_json(row: Row) -> dict[str, object]:
    """A row with times as text."""
    return {
        name: shown_time(microseconds_of(value)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def problems_of(row: Row) -> list[str]:
    """What is wrong with a device, the worst first."""
    found = []
    if row["is_silent"]:
        found.append(f"silent for {shown_seconds(row['since_last'])}")
    for name, one, several in (
        ("missing", "missing", "missing"),
        ("late", "late", "late"),
        ("repeats", "repeat", "repeats"),
        ("size_outliers", "unusual size", "unusual sizes"),
        ("rate_outliers", "unusual rate", "unusual rates"),
        ("restarts", "restart", "restarts"),
        ("out_of_order", "out of order", "out of order"),
        ("from_future", "from the future", "from the future"),
        ("silences", "silence", "silences"),
    ):
        if row[name]:
            text = count(row[name], one, several)
            if name == "late" and row["lateness_p99"] is not None:
                text += f" (99 %: {shown_seconds(row['lateness_p99'])})"
            if name == "silences" and row["longest_silence"] is not None:
                text += f" (up to {shown_seconds(row['longest_silence'])})"
            found.append(text)
    return found


def print_lines(rows: Sequence[Row], query: QualityQuery) -> None:
    """Print one line per client and topic."""
    lines = []
    for row in rows:
        lines.append(
            [
                shown_name(row["client_id"]),
                shown_name(row["topic"]),
                f"{row['messages']:,}",
                shown_number(row["per_minute"]),
                f"{shown_seconds(row['since_last'])} ago",
                chart_of(row["chart"], printable_blocks()),
                ", ".join(problems_of(row)) or "none",
            ]
        )
    header = list(HEADER)
    header[-2] = f"over {shown_seconds((query.end - query.begin) / 1e6)}"
    widths = [max(map(width_of, column)) for column in zip(header, *lines, strict=True)]
    if sys.stdout.isatty():
        widths = fitting(widths, MAY_CUT, shutil.get_terminal_size().columns) or widths
    click.secho(joined(header, widths).rstrip(), bold=True)
    for line, row in zip(lines, rows, strict=True):
        *cells, problems = line
        color = "red" if row["is_silent"] else "yellow" if problems_of(row) else "green"
        click.echo(joined(cells, widths) + GAP + click.style(problems, fg=color))


def joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells of a line, each cut or padded to the width of its column."""
    return GAP.join(
        padded(cut(cell, width), width, right=right)
        for cell, width, right in zip(cells, widths, RIGHT, strict=False)
    )


def print_details(row: Row, query: QualityQuery) -> None:
    """Print all measures of one client and topic."""
    title = f"{shown_name(row['client_id'])}  {shown_name(row['topic'])}"
    click.secho(title, bold=True)
    for name, text in details_of(row, query):
        click.echo(f"  {name:<9} {text}")
    click.echo("")


def details_of(row: Row, query: QualityQuery) -> Iterator[tuple[str, str]]:
    """Names and texts of the measures of one client and topic."""
    messages = f"{count(row['messages'], 'message')}, {shown_size(row['bytes'])}"
    yield "received", f"{messages}, {shown_number(row['per_minute'])} per minute"
    first, last = (microseconds_of(row[f"{name}_received"]) for name in ("first", "last"))
    yield "", f"from {shown_time(first, 'milliseconds')} to {shown_time(last, 'milliseconds')}"
    yield "chart", f"|{chart_of(row['chart'], printable_blocks())}|"
    if row["rhythm"] is None:
        yield "rhythm", "unknown"
    else:
        yield (
            "rhythm",
            f"every {shown_seconds(row['rhythm'])}, {count(row['silences'], 'silence')}, the"
            f" longest {shown_seconds(row['longest_silence'])}",
        )
    state = "silent now: " if row["is_silent"] else ""
    yield "last", f"{state}{shown_seconds(row['since_last'])} before the end of the range"
    if query.sequence is not None:
        yield (
            "sequence",
            f"{row['missing']:,} missing, {count(row['restarts'], 'restart')},"
            f" {row['out_of_order']:,} out of order, {row['without_number']:,} without a number",
        )
    yield "repeats", f"{row['repeats']:,}, and {row['dup']:,} with DUP"
    if query.event_time is not None:
        if row["lateness_median"] is not None:
            yield (
                "lateness",
                f"median {shown_seconds(row['lateness_median'])}, 99 %"
                f" {shown_seconds(row['lateness_p99'])}, at most"
                f" {shown_seconds(row['lateness_maximum'])}",
            )
        yield (
            "" if row["lateness_median"] is not None else "lateness",
            f"{row['late']:,} late, {row['from_future']:,} from the future,"
            f" {row['without_time']:,} without a time",
        )
    yield (
        "size",
        f"usually {shown_size(round(row['size_median']))}, {row['size_outliers']:,} unusual",
    )
    if row["rate_median"] is not None:
        rate = shown_number(row["rate_median"])
        outliers = count(row["rate_outliers"], "minute")
        yield "rate", f"usually {rate} in a minute, {outliers} unusual"


# --- values ---------------------------------------------------------------------------------------


def shown_name(text: str | None) -> str:
    """A client or topic; a client that is not known, or empty, as a dash."""
    return shown_text(text) if text else "-"


def shown_number(number: float | None) -> str:
    """A number with few digits."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def shown_seconds(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    sign = "-" if seconds < 0 else ""
    size = abs(seconds)
    if size < 0.9995:
        return f"{sign}{size * 1e3:.3g} ms" if size else "0 s"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if size >= unit:
            return f"{sign}{shown_number(size / unit)} {name}"
    return f"{sign}{size:.3g} s"


def chart_of(counts: Sequence[int], blocks: str) -> str:
    """Counts as blocks, each relative to the highest."""
    highest = max(counts)
    return "".join(blocks[(each * len(blocks) - 1) // highest] if each else " " for each in counts)


def printable_blocks() -> str:
    """The blocks that standard output can print."""
    if isinstance(sys.stdout, AsciiOutput):
        return ASCII_BLOCKS
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_BLOCKS
    return BLOCKS
