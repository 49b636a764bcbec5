"""The line of a terminal that is updated in place."""

import io
import os
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from semel.cli.live_line import LiveLine
from tests.terminals import open_terminal

CLEAR = "\r\x1b[K"


class Terminal:
    """A terminal of some width, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self._reading, writing = open_terminal()
        termios.tcsetwinsize(writing, (24, columns))
        self.stream: TextIO = os.fdopen(writing, "w")

    def read(self) -> str:
        """What was written, up to the last byte: a terminal may hand it out in pieces."""
        self.stream.write("\0")
        self.stream.flush()
        found = b""
        while not found.endswith(b"\0"):
            found += os.read(self._reading, 4096)
        return found[:-1].decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._reading)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(20)
    yield made
    made.close()


def test_a_line_replaces_the_one_before_and_is_cut_to_the_terminal(terminal: Terminal) -> None:
    line = LiveLine(terminal.stream)
    line.show("one")
    assert terminal.read() == f"{CLEAR}one"
    line.show("x" * 50)
    assert terminal.read() == f"{CLEAR}{'x' * 19}"


def test_text_of_a_peer_cannot_control_the_terminal(terminal: Terminal) -> None:
    LiveLine(terminal.stream).show("a\x1b[2Jb")
    assert terminal.read() == f"{CLEAR}a\\x1b[2Jb"


def test_a_terminal_that_reports_no_width_has_one(terminal: Terminal) -> None:
    termios.tcsetwinsize(terminal.stream.fileno(), (0, 0))
    LiveLine(terminal.stream).show("x" * 300)
    assert terminal.read() == f"{CLEAR}{'x' * 199}"


def test_a_line_is_removed_once_before_other_text(terminal: Terminal) -> None:
    line = LiveLine(terminal.stream)
    line.clear()
    line.show("one")
    line.clear()
    line.clear()
    line.print("two")
    line.show("three")
    line.print("four")
    expected = f"{CLEAR}one{CLEAR}two\r\n{CLEAR}three{CLEAR}four\r\n"
    assert terminal.read() == expected


def test_without_a_terminal_only_printed_lines_are_written() -> None:
    stream = io.StringIO()
    line = LiveLine(stream)
    line.show("one")
    line.print("two")
    line.clear()
    assert stream.getvalue() == "two\n"
    assert not line.is_enabled


def test_a_disabled_line_is_not_shown(terminal: Terminal) -> None:
    line = LiveLine(terminal.stream, enabled=False)
    line.show("one")
    line.print("two")
    assert terminal.read() == "two\r\n"


def test_a_program_may_queue_the_text_itself(terminal: Terminal) -> None:
    written: list[str] = []
    has_room = True

    def write(text: str) -> bool:
        if has_room:
            written.append(text)
        return has_room

    line = LiveLine(terminal.stream, write=write)
    line.show("one")
    line.print("two")
    assert written == [f"{CLEAR}one", f"{CLEAR}two\n"]
    line.show("three")
    has_room = False
    line.print("dropped")
    line.show("dropped")
    line.clear()
    has_room = True
    # The line is still shown: nothing has replaced it.
    line.print("four")
    line.clear()
    assert written[2:] == [f"{CLEAR}three", f"{CLEAR}four\n"]
    assert terminal.read() == ""
