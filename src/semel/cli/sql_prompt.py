r"""The prompt of `semel sql`: statements that end with `;`, and commands that begin with `\`.

Each statement sees the tables as they are when it begins. An error ends the statement, not the
prompt. Ctrl-C discards the statement that is being typed, or interrupts the one that is running;
Ctrl-D leaves.

Lines are edited with Python's `readline`. Where it is missing the prompt works without editing,
completion and history.
"""

import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, ModuleType
from typing import Final

import click

from semel.cli.errors import one_sentence
from semel.cli.safe_text import print_warnings, shown_text
from semel.cli.sql_history import PromptHistory
from semel.cli.sql_results import print_results, sql_errors
from semel.cli.table_view import print_answer
from semel.cli.text_tables import print_table
from semel.up.sql_connection import quoted
from semel.up.sql_errors import SqlError
from semel.up.sql_session import SqlSession

FIRST: Final = "semel> "
CONTINUED: Final = "    -> "
COMMANDS: Final = {
    "\\d": "list the tables and views",
    "\\d NAME": "list the columns of a table or view",
    "\\timing": "show how long each statement takes, or stop showing it",
    "\\?": "show this help",
    "\\q": "leave, as Ctrl-D does",
}
ADVICE: Final = "\\? lists the commands"
LEAVING: Final = ("\\q", "exit", "quit")

KEYWORDS: Final = (
    *("all", "and", "any", "as", "asc", "between", "by", "case", "cast", "copy", "count"),
    *("create", "cross", "current_date", "describe", "desc", "distinct", "else", "end", "except"),
    *("exclude", "exists", "explain", "false", "filter", "from", "full", "group", "having"),
    *("ilike", "in", "inner", "intersect", "interval", "is", "join", "lateral", "left", "like"),
    *("limit", "macro", "not", "null", "offset", "on", "or", "order", "outer", "over"),
    *("partition", "pivot", "qualify", "recursive", "replace", "right", "select", "set", "show"),
    *("summarize", "table", "tables", "then", "to", "true", "union", "unnest", "unpivot"),
    *("using", "values", "view", "when", "where", "window", "with"),
)
# After one of these words there is the name of a table.
BEFORE_TABLE: Final = frozenset(["from", "join", "describe", "summarize", "copy"])
# What ends a word. A dot does, so that the columns of `messages.` are completed.
DELIMITERS: Final = " \t\n\"'`~!@#$%^&*()-=+[{]}|;:,.<>/?"
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


# --- completion -----------------------------------------------------------------------------------


def completions(before: str, word: str, tables: Mapping[str, list[str]]) -> list[str]:
    """What `word` can become, which follows the text `before`. `tables` has their columns."""
    if before.startswith("\\"):
        return _matching(word, tables, before) if before.split()[0] == "\\d" else []
    if word.startswith("\\") and not before.strip():
        return [each for each in COMMANDS if each.startswith(word) and " " not in each]
    words = re.findall(r"\w+", before)
    if (
        words
        and words[-1].lower() in BEFORE_TABLE
        and not before.rstrip().endswith(words[-1] + ".")
    ):
        return _matching(word, tables, before)
    if not word and not before.endswith("."):
        return []
    named = [table for table in tables if _is_named(table, before)]
    if before.endswith(".") and words and words[-1] in tables:
        named = [words[-1]]
    columns = sorted({each for table in named or tables for each in tables[table]})
    found = _matching(word, columns, before)
    if before.endswith("."):
        return found
    found += [each for each in _matching(word, tables, before) if each not in found]
    if before.endswith('"'):
        return found
    spelled = (each.upper() if word.isupper() else each for each in KEYWORDS)
    return found + [each for each in spelled if each.startswith(word) and each not in found]


def _is_named(table: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(table)}(?!\w)", text, re.I) is not None


def _matching(word: str, names: Mapping[str, object] | list[str], before: str) -> list[str]:
    """Names that begin with the word, in quotes if SQL needs them."""
    found = [name for name in names if name.lower().startswith(word.lower())]
    if before.endswith('"'):
        return [quoted(name)[1:] for name in found]
    return [name if _PLAIN_NAME.fullmatch(name) else quoted(name) for name in found]


# --- the prompt -----------------------------------------------------------------------------------


class SqlPrompt:
    """Reads statements from the terminal and runs them, until the user leaves."""

    def __init__(self, session: SqlSession, form: str) -> None:
        self._session = session
        self._form = form
        self._is_timed = False
        # The lines of a statement that has not ended.
        self._typed: list[str] = []
        # For completion; None: not read since the last statement.
        self._columns: dict[str, list[str]] | None = None
        self._offered: list[str] = []
        self._readline = find_readline()
        self._history = None if self._readline is None else PromptHistory()

    def run(self) -> None:
        """Read and run until the end of the input. Raises what is not to be expected."""
        self._edit_lines()
        click.echo(f"Statements end with ; and {ADVICE}.")
        while True:
            is_running = False
            try:
                line = input(CONTINUED if self._typed else FIRST)
                is_running = True
                with _interrupted_once():
                    if not self._take(line):
                        return
            except KeyboardInterrupt:
                self._typed = []
                click.echo("interrupted" if is_running else "", err=is_running)
            except EOFError:
                click.echo()
                return
            except UnicodeError:
                self._typed = []
                click.echo("Error: the statement is not UTF-8", err=True)

    def _take(self, line: str) -> bool:
        """Take a line, which may have several. Returns whether to go on."""
        line.encode()
        word = line.strip().rstrip(";").rstrip()
        if not self._typed and (word.startswith("\\") or word.lower() in LEAVING):
            self._remember(line.strip())
            if word.lower() in LEAVING:
                return False
            with _shown_errors():
                self._command(word)
            return True
        if not self._typed and not word:
            return True
        self._typed.append(line)
        text = "\n".join(self._typed)
        if self._session.is_complete(text):
            self._typed = []
            self._remember(text)
            self._run_text(text)
        return True

    def _run_text(self, text: str) -> None:
        began = time.monotonic()
        with _shown_errors():
            for statement in self._session.statements(text):
                self._columns = None
                with self._session.opened(statement) as sql:
                    if self._session.returns_rows(statement):
                        print_results(sql, statement.query, self._form)
                        continue
                    with sql.query(statement.query) as answer:
                        for _ in answer.batches:
                            pass
                click.echo("done")
        if self._is_timed:
            click.echo(f"({time.monotonic() - began:.3f} s)")

    # --- commands ---------------------------------------------------------------------------------

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name == "\\d" and argument:
            self._list_columns(argument)
        elif name == "\\d":
            rows = [(shown_text(table), kind) for table, kind in self._session.tables()]
            print_table(["name", "kind"], rows)
        elif argument or name not in COMMANDS:
            raise SqlError(f"there is no command {line}: {ADVICE}")
        elif name == "\\timing":
            self._is_timed = not self._is_timed
            click.echo("Timing is on." if self._is_timed else "Timing is off.")
        else:
            for each, meaning in COMMANDS.items():
                click.echo(f"{each:<8}  {meaning}")
            click.echo("Other lines are SQL, up to a ; at the end of a line. Ctrl-C interrupts.")

    def _list_columns(self, name: str) -> None:
        if name.startswith('"') and name.endswith('"') and len(name) > 1:
            name = name[1:-1].replace('""', '"')
        query = f"SELECT column_name, column_type FROM (DESCRIBE {quoted(name)})"
        (statement,) = self._session.statements(query)
        try:
            with self._session.opened(statement) as sql, sql.query(query) as answer:
                print_answer(answer.schema, answer.batches, self._form)
        except SqlError as problem:
            # The lines that follow point into a query that the user did not write.
            raise SqlError(str(problem).partition("\n")[0]) from None

    # --- lines ------------------------------------------------------------------------------------

    def _edit_lines(self) -> None:
        if self._readline is None or self._history is None:
            return
        self._readline.set_auto_history(False)
        self._readline.set_completer(self._complete)
        self._readline.set_completer_delims(DELIMITERS)
        is_libedit = "libedit" in (self._readline.__doc__ or "")
        self._readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        self._readline.clear_history()
        for entry in self._history.load():
            self._offer_again(entry)
        self._print_history_warning()

    def _remember(self, text: str) -> None:
        if self._readline is None or self._history is None:
            return
        self._offer_again(text)
        self._history.add(text)
        self._print_history_warning()

    def _offer_again(self, entry: str) -> None:
        """Add an entry to those that readline offers."""
        assert self._readline is not None
        # It accepts neither NUL nor what the encoding of the terminal lacks.
        with suppress(ValueError):
            self._readline.add_history(entry)

    def _print_history_warning(self) -> None:
        if self._history is not None and self._history.warning:
            print_warnings([self._history.warning])
            self._history.warning = ""

    def _complete(self, word: str, number: int) -> str | None:
        """For readline: the completion of this number, None after the last."""
        assert self._readline is not None
        if number == 0:
            line = self._readline.get_line_buffer()[: self._readline.get_begidx()]
            before = "\n".join([*self._typed, line])
            self._offered = completions(before, word, self._known_columns())
        return self._offered[number] if number < len(self._offered) else None

    def _known_columns(self) -> dict[str, list[str]]:
        if self._columns is None:
            # Whatever is wrong with a table is reported when it is queried.
            self._columns = {}
            try:
                with one_sentence(), sql_errors():
                    self._columns = self._session.columns()
            except click.ClickException:
                pass
        return self._columns


def find_readline() -> ModuleType | None:
    """The module `readline`, if this Python has it."""
    # Not at the top: its import changes how `input` reads lines.
    try:
        import readline
    except ImportError:
        return None
    return readline


@contextmanager
def _shown_errors() -> Iterator[None]:
    """Print an expected error, and go on."""
    try:
        with one_sentence(), sql_errors():
            yield
    except click.ClickException as problem:
        problem.show()


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Ctrl-C interrupts the block once: more of them would interrupt its cleanup."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
