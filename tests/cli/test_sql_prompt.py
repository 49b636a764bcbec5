"""The prompt of `semel sql` on a real terminal: statements, commands, completion and history."""

import fcntl
import os
import re
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import semel
from semel.cli.sql_history import MOST_CHARACTERS, MOST_ENTRIES, PromptHistory, history_path
from semel.cli.sql_prompt import COMMANDS, completions
from semel.store.reading import NodeRecord
from tests.store.keeper import Keeper
from tests.terminals import open_terminal
from tests.up.landed import land

PROGRAM = "from semel.cli.sql import command; command(prog_name='semel sql')"
WITHOUT_READLINE = "import sys; sys.modules['readline'] = None\n" + PROGRAM
TIMEOUT = 120.0
FIRST = "semel> "
CONTINUED = "    -> "
LONG_QUERY = "select count(*) from range(1000000) a, range(1000000) b where hash(a, b) = 1;"


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """As `semel up` lays things out: ten rows, of which 1 to 5 are landed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Keeper(tmp_path / "semel-data", stream="all")
    made.commit(10)
    made.seal(5)
    land(tmp_path / "semel-data" / "lake", NodeRecord(made.root, "all", "n1"), 1, 5)
    yield made
    made.close()


class Terminal:
    """`semel sql` on a terminal: what is typed, and what the screen shows."""

    def __init__(self, *arguments: str, program: str = PROGRAM) -> None:
        self._ours, theirs = open_terminal()
        self.shown = ""
        # Where the part of `shown` begins that nothing has waited for.
        self._read = 0
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(semel.__file__).parents[1]),
            "TERM": "dumb",
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "INPUTRC": "/dev/null",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            # So that Ctrl-C is a signal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        os.close(self._ours)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, text: str) -> str:
        """Wait until the screen shows a text, and return what it showed up to it."""
        return self._until(lambda: self.shown.find(text, self._read), len(text))

    def ask(self, line: str, prompt: str = FIRST) -> str:
        """Type a line at the prompt, and return what is printed before the next one."""
        self.type(f"{line}\n")
        self.until(line.splitlines()[-1])
        return self.until(f"\n{prompt}").strip()

    def interrupt(self, text: str) -> None:
        """Type Ctrl-C until the screen shows a text, as people do.

        Python's prompt can miss one that arrives just before it waits for the next key.
        """
        ends = time.monotonic() + TIMEOUT
        while self.shown.find(text, self._read) < 0:
            assert time.monotonic() < ends, self.shown[self._read :]
            self.type("\x03")
            for _ in range(5):
                self._receive()
                if self.shown.find(text, self._read) >= 0:
                    break
        self.until(text)

    def end_by(self, number: int) -> int:
        """Send a signal until the process ends, for the reason above; returns its exit code."""
        ends = time.monotonic() + TIMEOUT
        while self.process.poll() is None:
            assert time.monotonic() < ends
            os.kill(self.process.pid, number)
            for _ in range(5):
                if not self._receive():
                    break
        return self.end()

    def end(self) -> int:
        """Wait until the process ends; returns its exit code."""
        ends = time.monotonic() + TIMEOUT
        while self._receive():
            assert time.monotonic() < ends
        return self.process.wait(TIMEOUT)

    def _until(self, find: Callable[[], int], length: int) -> str:
        ends = time.monotonic() + TIMEOUT
        while (at := find()) < 0:
            assert time.monotonic() < ends, self.shown[self._read :]
            assert self._receive(), self.shown[self._read :]
        found = self.shown[self._read : at]
        self._read = at + length
        return found

    def _receive(self) -> bool:
        if not select.select([self._ours], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


@pytest.fixture
def terminal(keeper: Keeper) -> Iterator[Terminal]:
    with Terminal() as made:
        made.until(FIRST)
        yield made


# --- statements -----------------------------------------------------------------------------------


def test_a_statement_may_have_several_lines_and_ends_with_a_semicolon(terminal: Terminal) -> None:
    terminal.type("select landed, ';' as s, count(*) as n\n")
    terminal.until(f"\n{CONTINUED}")
    printed = terminal.ask("from messages_now group by all order by all;")
    assert printed.splitlines() == ["landed  s  n", "false   ;  5", "true    ;  5", "(2 rows)"]


def test_each_statement_sees_the_lake_as_it_is_then(terminal: Terminal, keeper: Keeper) -> None:
    query = "select count(*) as n from messages_now;"
    assert "10" in terminal.ask(query).split()
    keeper.commit(5)
    assert "15" in terminal.ask(query).split()


def test_statements_build_on_each_other(terminal: Terminal) -> None:
    assert terminal.ask("create table hot as select seq from messages;") == "done"
    assert terminal.ask("select max(seq) as m from hot; select 7 as s;").splitlines() == [
        *("m", "5", "(1 row)"),
        *("s", "7", "(1 row)"),
    ]


def test_an_error_is_printed_and_the_prompt_goes_on(terminal: Terminal) -> None:
    assert terminal.ask("select * from mesages;").splitlines()[0] == (
        "Error: there is no table mesages: did you mean messages? "
        "there are messages, messages_not_landed, messages_now, messages_once"
    )
    assert terminal.ask("selec 1;").startswith("Error: Parser Error: syntax error")
    assert terminal.ask("begin;").startswith("Error: a session has no transactions")
    assert terminal.ask("copy messages to '/x.csv';").startswith("Error: COPY: '/x.csv' is not")
    assert terminal.ask(";") == ""
    terminal.type("\n")
    terminal.until(FIRST)
    assert "1" in terminal.ask("select 1 as a;").split()


def test_a_copy_writes_its_file(terminal: Terminal, tmp_path: Path) -> None:
    assert terminal.ask("copy messages_now to 'm.parquet';").startswith("copied 10 rows to m.")
    assert pq.read_metadata(tmp_path / "m.parquet").num_rows == 10


# --- commands -------------------------------------------------------------------------------------


def test_commands_list_tables_and_columns(terminal: Terminal, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "semel-data" / "lake" / "my table", pa.table({"a b": [1]}))
    header, *names = [line.split()[0] for line in terminal.ask("\\d").splitlines()]
    assert "name" in header
    assert names == ["messages", "my", "messages_not_landed", "messages_now", "messages_once"]
    assert "a b          BIGINT" in terminal.ask("\\d my table;").splitlines()
    assert "a b          BIGINT" in terminal.ask('\\d "my table"').splitlines()
    assert re.search(r"^landed +BOOLEAN$", terminal.ask("\\d messages_now"), re.MULTILINE)
    assert terminal.ask("\\d nothing").startswith("Error: there is no table nothing: there are ")
    assert "LINE" not in terminal.shown


def test_timing_is_shown_until_it_is_switched_off(terminal: Terminal) -> None:
    timed = re.compile(r"^\(\d+\.\d{3} s\)$", re.MULTILINE)
    assert terminal.ask("\\timing") == "Timing is on."
    assert timed.search(terminal.ask("select 1 as a;"))
    assert timed.search(terminal.ask("select nothing;"))
    assert terminal.ask("\\timing") == "Timing is off."
    assert not timed.search(terminal.ask("select 2 as a;"))


def test_help_lists_the_commands(terminal: Terminal) -> None:
    shown = terminal.ask("\\?")
    assert all(f"{name} " in shown for name in COMMANDS)
    assert terminal.ask("\\x") == "Error: there is no command \\x: \\? lists the commands"
    assert terminal.ask("\\q 1") == "Error: there is no command \\q 1: \\? lists the commands"


@pytest.mark.parametrize("keys", ["\\q\n", "exit\n", "QUIT;\n", "\x04", "select 1\n\x04"])
def test_it_is_left_with_a_command_or_ctrl_d(terminal: Terminal, keys: str) -> None:
    for key in keys.split("\n"):
        terminal.type(key if key in ("", "\x04") else f"{key}\n")
        if key == "select 1":
            terminal.until(CONTINUED)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.shown


# --- interrupts -----------------------------------------------------------------------------------


def test_ctrl_c_discards_what_is_being_typed(terminal: Terminal) -> None:
    terminal.type("select 'a\n")
    terminal.until(CONTINUED)
    terminal.type("and more")
    terminal.until("and more")
    terminal.interrupt(f"\n{FIRST}")
    assert "7" in terminal.ask("select 7 as n;").split()


def test_ctrl_c_interrupts_the_running_query_and_no_more(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.type(f"{LONG_QUERY}\n")
        until_busy(terminal.process.pid)
        # Several, as impatient people type them.
        terminal.type("\x03\x03\x03")
        terminal.until("interrupted\n")
        terminal.until(FIRST)
        # Those that arrived late discard a line that is empty.
        assert "10" in terminal.ask("select count(*) as n from messages_now;").split()


def test_a_copy_that_is_interrupted_leaves_no_file(terminal: Terminal, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    terminal.type("copy (from range(100000000000)) to 'a.csv';\n")
    until_busy(terminal.process.pid)
    terminal.type("\x03")
    terminal.until("interrupted\n")
    terminal.until(FIRST)
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "state"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_signal_ends_it(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_busy: bool
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with Terminal() as terminal:
        terminal.until(FIRST)
        assert any(temporary.iterdir())
        if is_busy:
            terminal.type(f"{LONG_QUERY}\n")
            until_busy(terminal.process.pid)
        assert terminal.end_by(number) == 128 + number
    assert list(temporary.iterdir()) == []


def until_busy(pid: int) -> None:
    """Return when the process has computed for a while."""

    def used() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[11:13]))

    ends = time.monotonic() + TIMEOUT
    begins = used()
    while used() < begins + os.sysconf("SC_CLK_TCK"):
        assert time.monotonic() < ends
        time.sleep(0.05)


# --- editing --------------------------------------------------------------------------------------


def test_the_tab_key_completes_names(terminal: Terminal) -> None:
    terminal.type("select count(topi\t")
    terminal.until("count(topic")
    terminal.type(") as n from messages_no\tw;\n")
    # What is common to the names is completed, and the rest is typed.
    terminal.until("w;\n")
    assert "10" in terminal.until(FIRST).split()


def test_without_readline_it_works_too(keeper: Keeper) -> None:
    with Terminal(program=WITHOUT_READLINE) as terminal:
        terminal.until(FIRST)
        assert "10" in terminal.ask("select count(*) as n from messages_now;").split()
        terminal.type("\x04")
        assert terminal.end() == 0
    assert not history_path().exists()


def test_results_are_in_the_form_of_the_options(keeper: Keeper) -> None:
    with Terminal("--json") as terminal:
        terminal.until(FIRST)
        assert terminal.ask("select 1 as a, 2 as b;") == '{"a": 1, "b": 2}'


def test_a_lake_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with Terminal("--lake", str(tmp_path / "none")) as terminal:
        assert terminal.end() == 1
        assert terminal.shown.startswith("Error: there is no lake at ")
        assert FIRST not in terminal.shown


def test_the_example_of_the_page_is_what_the_terminal_shows(terminal: Terminal) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "data" / "sql.md"
    example = page.read_text("utf-8").partition("$ semel sql\n")[2].partition("```")[0]
    for prompt, line in re.findall(rf"^({FIRST}|{CONTINUED})(.*)$", example, re.MULTILINE):
        if prompt == CONTINUED:
            terminal.until(CONTINUED)
        terminal.type(f"{line}\n")
        if line.endswith(";"):
            terminal.until(f"\n{FIRST}")
    assert terminal.end() == 0
    assert terminal.shown == example


TABLES = {
    "messages": ["payload", "seq", "topic"],
    "messages_now": ["landed", "payload", "seq", "topic"],
    "my table": ["a b", "topping"],
}


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("select ", "to", ["topic", "topping", "to"]),
        ("select ", "TO", ["topic", "topping", "TO"]),
        ("select ", "", []),
        ("select * from ", "", ["messages", "messages_now", '"my table"']),
        ("select * from ", "mes", ["messages", "messages_now"]),
        ("select * from ", "MES", ["messages", "messages_now"]),
        ("select * from ", "my", ['"my table"']),
        ('select * from "', "my", ['my table"']),
        ("select * from messages\nwhere ", "top", ["topic"]),
        ("select * from messages where ", "wh", ["when", "where"]),
        ("from messages_now where ", "la", ["landed", "lateral"]),
        ("from messages where ", "la", ["lateral"]),
        ("select messages.", "", ["payload", "seq", "topic"]),
        ("select messages.", "se", ["seq"]),
        ("", "sel", ["select"]),
        ("", "SEL", ["SELECT"]),
        ("", "\\t", ["\\timing"]),
        ("", "\\", ["\\d", "\\timing", "\\?", "\\q"]),
        ("\\d ", "messages_", ["messages_now"]),
        ("\\timing ", "m", []),
        ("select ", "nothing", []),
    ],
)
def test_a_word_is_completed_by_what_may_stand_there(
    before: str, word: str, expected: list[str]
) -> None:
    assert completions(before, word, TABLES) == expected


# --- history --------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PromptHistory:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return PromptHistory()


def test_a_later_prompt_has_the_statements_of_an_earlier_one(keeper: Keeper) -> None:
    with Terminal() as terminal:
        terminal.until(FIRST)
        terminal.type("select 6 * 7\n")
        terminal.until(CONTINUED)
        assert "42" in terminal.ask("as answer;").split()
        terminal.type("\\q\n")
        assert terminal.end() == 0
    assert PromptHistory().load() == ["select 6 * 7\nas answer;", "\\q"]
    with Terminal() as terminal:
        terminal.until(FIRST)
        # Two up.
        terminal.type("\x10\x10\n")
        terminal.until("answer;")
        assert "42" in terminal.until(f"\n{FIRST}").split()


def test_the_file_is_private_and_in_the_state_folder(
    history: PromptHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.add("select 1;")
    path = tmp_path / "state" / "semel" / "sql_history"
    assert history_path() == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["sql_history"]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert history_path() == tmp_path / "home/.local/state/semel/sql_history"


def test_the_file_keeps_the_newest_entries(history: PromptHistory) -> None:
    history.add("select 0;")
    path = history_path()
    path.write_text("".join(f"select {n};\n" for n in range(MOST_ENTRIES + 50)))
    entries = history.load()
    assert (len(entries), entries[-1]) == (MOST_ENTRIES, f"select {MOST_ENTRIES + 49};")
    history.add("select 'new';")
    assert history.load() == [*entries[1:], "select 'new';"]
    assert len(path.read_text().splitlines()) == MOST_ENTRIES


@pytest.mark.parametrize("entry", ["a\nb\\nc\\", "\\d", "ü\r\n\\\\", "\x85\u2028\x0b"])
def test_an_entry_stays_what_it_is(history: PromptHistory, entry: str) -> None:
    history.add("before")
    history.add(entry)
    history.add(entry)
    assert history.load() == ["before", entry]


def test_a_long_statement_is_not_kept(history: PromptHistory) -> None:
    history.add("x" * MOST_CHARACTERS)
    history.add("y" * (MOST_CHARACTERS + 1))
    assert history.load() == ["x" * MOST_CHARACTERS]


def test_two_prompts_keep_the_entries_of_each_other(history: PromptHistory) -> None:
    other = PromptHistory()
    history.add("a")
    other.add("b")
    history.add("c")
    assert PromptHistory().load() == ["a", "b", "c"]


def test_an_entry_that_readline_does_not_accept_is_left_out(keeper: Keeper) -> None:
    PromptHistory().add("select 6 * 7 as answer;")
    with history_path().open("ab") as file:
        file.write(b"select '\0';\n\xff\x1b[31m;\n")
    with Terminal() as terminal:
        assert "Traceback" not in terminal.until(FIRST)
        # Two up.
        terminal.type("\x10\x10\n")
        assert "42" in terminal.until(f"\n{FIRST}").split()
        terminal.type("\\q\n")
        assert terminal.end() == 0


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_history_that_is_not_a_file_stays_as_it_is(history: PromptHistory, kind: str) -> None:
    path = history_path()
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()
    assert history.load() == []
    assert history.warning == f"the history of the prompt is not kept: {path} is not a file"
    PromptHistory().add("select 1;")
    assert not path.is_file()
    assert [each.name for each in path.parent.iterdir()] == ["sql_history"]


def test_a_folder_that_cannot_be_written_is_a_warning(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    with Terminal() as terminal:
        shown = terminal.until(FIRST)
        assert "Warning: the history of the prompt is not kept: " in shown
        assert "7" in terminal.ask("select 7 as a;").split()
        assert terminal.shown.count("Warning") == 1
        terminal.type("\\q\n")
        assert terminal.end() == 0
