"""`semel sql`: ask the tables of a lake, and the rows that are not landed yet, in SQL."""

import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

import click

from semel.cli.lake import CONFIG, DATA, LAKE, ROOT, one_sentence, where
from semel.cli.safe_text import shown_text
from semel.cli.stream import CSV, INTERRUPTED, JSON, TEXT, ending_quietly
from semel.cli.table_view import print_answer
from semel.up.sql import MEMORY, LakeSql

# An argument that begins so is no option but SQL that begins with a comment.
COMMENT: Final = re.compile(r"--[^=\s]*\s")
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Asking(click.Command):
    """A command whose argument may begin with a comment."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            questions = [each for each in args if COMMENT.match(each)]
            if questions:
                args = [*(each for each in args if each not in questions), "--", *questions]
        return super().parse_args(ctx, args)


@click.command(cls=Asking)
@click.argument("query", required=False)
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    help="Read the query from this file; - is standard input.",
)
@CONFIG
@LAKE
@ROOT
@DATA
@click.option("--json", "json_wanted", is_flag=True, help="Print a JSON object for each row.")
@click.option("--csv", "csv_wanted", is_flag=True, help="Print CSV, with a head line.")
@click.option(
    "--memory",
    metavar="SIZE",
    default=MEMORY,
    show_default=True,
    help="How much memory the query may use; what does not fit goes to temporary files.",
)
def command(
    query: str | None,
    file: TextIO | None,
    config: Path | None,
    lake: str | None,
    root: str | None,
    data: Path | None,
    json_wanted: bool,
    csv_wanted: bool,
    memory: str,
) -> None:
    """Ask the tables of a lake in SQL, by DuckDB. Nothing is changed.

    Each table has its name. If the record is known that table messages is landed from (--root,
    --data, or because the lake is in the data folder), then messages_not_landed has the rows that
    are not landed yet, and messages_now all of them, each once, with a column landed.

    \b
    semel sql "select topic, count(*) from messages group by 1 order by 2 desc"
    semel sql "select landed, count(*) from messages_now group by 1"

    Of several statements, with ; between them, the last one's result is printed.
    """
    if json_wanted and csv_wanted:
        raise click.UsageError("choose one of --json and --csv")
    form = JSON if json_wanted else CSV if csv_wanted else TEXT
    with ended_by_signals(), ending_quietly(INTERRUPTED), one_sentence():
        question = asked(query, file)
        place = where(config, lake, root, data)
        with LakeSql(place.lake, record=place.record, memory=memory) as sql:
            answer = sql.ask(question)
            for note in sql.notes:
                click.echo(f"Note: {shown_text(note)}", err=True)
            with answer:
                print_answer(answer.schema, answer.batches, form)


def asked(query: str | None, file: TextIO | None) -> str:
    """The question, from where it is given."""
    if (query is None) == (file is None):
        if query is not None or sys.stdin.isatty():
            raise click.UsageError("give one query: as an argument, with -f FILE, or by a pipe")
        file = sys.stdin
    try:
        found = query if file is None else file.read()
        assert found is not None
        # Arguments, and standard input where the locale is C, have what is no UTF-8 escaped.
        found.encode()
    except UnicodeError:
        raise click.UsageError("the query is not UTF-8") from None
    return found


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does: what was spilled to the disk goes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        # Another one would interrupt the cleaning.
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {each: signal.getsignal(each) for each in ENDING}
    for number, handler in before.items():
        # What nohup has made deaf stays so.
        if handler == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
