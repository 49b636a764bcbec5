"""`semel sql`: query the tables of a lake, and the rows that have not landed, in SQL."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TextIO

import click

from semel.cli.errors import one_sentence
from semel.cli.exits import ending_quietly
from semel.cli.flags import json_option, shared_option
from semel.cli.locations import QUERY_MEMORY, LakeLocation, lake_options
from semel.cli.option_groups import SemelCommand
from semel.cli.sql_results import print_results, sql_errors
from semel.cli.stream import CSV, JSON, TEXT
from semel.up.sql import LakeSql, RecordLocation

# An argument that begins like this is SQL that begins with a comment, not an option.
COMMENT: Final = re.compile(r"--[^=\s]*\s")
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class SqlCommand(SemelCommand):
    """A command whose argument may begin with an SQL comment."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            queries = [each for each in args if COMMENT.match(each)]
            if queries:
                args = [*(each for each in args if each not in queries), "--", *queries]
        return super().parse_args(ctx, args)


@click.command(
    cls=SqlCommand,
    examples=(
        'semel sql "select topic, count(*) from messages group by 1 order by 2 desc"',
        'semel sql "select landed, count(*) from messages_now group by 1"',
        "semel sql --csv -f report.sql >report.csv",
        "semel sql \"copy (from messages where qos = 2) to 'exact.parquet'\"",
        "semel sql",
    ),
)
@click.argument("query", required=False)
@shared_option(
    "--file",
    type=click.File(encoding="utf-8"),
    help="Read the query from this file; - is standard input.",
)
@lake_options
@json_option("Print one JSON object per row.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV with a header row.")
@QUERY_MEMORY
def command(
    query: str | None,
    file: TextIO | None,
    locate: Callable[[], LakeLocation],
    is_json: bool,
    is_csv: bool,
    memory: str,
) -> None:
    """Query the tables of a lake in SQL, with DuckDB. No table is changed.

    Each table is available by its name. If the record of the stream in table messages is known
    (--root, --data, or because the lake is in the data folder), messages_not_landed has the rows
    that have not landed, and messages_now has all rows, each once, with a column landed.

    Of several statements separated by ; the result of the last one is printed. COPY writes a file
    below the current folder: Parquet, CSV or JSON.

    Without a query, on a terminal, statements are read from a prompt.
    """
    if is_json and is_csv:
        raise click.UsageError("give one of --json and --csv")
    form = JSON if is_json else CSV if is_csv else TEXT
    with ended_by_signals(), ending_quietly(), one_sentence(), sql_errors():
        if query is None and file is None and sys.stdin.isatty() and sys.stdout.isatty():
            run_prompt(locate, form, memory=memory)
            return
        statements = read_query(query, file)
        location = locate()
        with LakeSql(location.lake, record=location.record, memory=memory) as sql:
            print_results(sql, statements, form)


def run_prompt(locate: Callable[[], LakeLocation], form: str, *, memory: str) -> None:
    """Read statements from the terminal. Raises what LakeSql raises for a lake that is not one."""
    from semel.cli.sql_prompt import SqlPrompt
    from semel.up.sql_session import SqlSession

    def locate_again() -> tuple[str, RecordLocation | None]:
        location = locate()
        return location.lake, location.record

    with SqlSession(locate_again, memory=memory) as session:
        # Fail now, rather than at each statement.
        session.tables()
        SqlPrompt(session, form).run()


def read_query(query: str | None, file: TextIO | None) -> str:
    """The query of the argument, of -f or of standard input."""
    if (query is None) == (file is None):
        if query is not None or sys.stdin.isatty():
            raise click.UsageError("give one query: as an argument, with -f FILE, or by a pipe")
        file = sys.stdin
    try:
        found = query if file is None else file.read()
        assert found is not None
        # Bytes that are not UTF-8 are surrogates in arguments, and in standard input of locale C.
        found.encode()
    except UnicodeError:
        raise click.UsageError("the query is not UTF-8") from None
    return found


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on Ctrl-C, so that temporary files are deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        # A second signal would interrupt the cleanup.
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {each: signal.getsignal(each) for each in ENDING}
    for number, handler in before.items():
        # A signal that nohup ignores stays ignored.
        if handler == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
