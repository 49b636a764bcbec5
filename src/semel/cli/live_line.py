"""The one line of a terminal that is updated in place."""

import os
import sys
from typing import TextIO

from semel.cli.safe_text import CLEAR_LINE, MOST_COLUMNS, shown_text


class LiveLine:
    """A status line that each `show` overwrites. Without a terminal, or if disabled, nothing is.

    Whoever writes other lines to the same terminal calls `clear` first, or `print`. The text may
    come from a peer: what is not printable is escaped. The methods raise OSError if the terminal
    is closed.
    """

    def __init__(self, stream: TextIO | None = None, *, enabled: bool = True) -> None:
        """By default the line is on standard error."""
        self._stream = sys.stderr if stream is None else stream
        self.is_enabled = enabled and self._stream is not None and self._stream.isatty()
        self._is_shown = False

    def show(self, text: str) -> None:
        """Replace the line. It is cut to the width of the terminal: a wrapped line would stay."""
        if not self.is_enabled:
            return
        self._stream.write(f"{CLEAR_LINE}{shown_text(text)[: self._columns() - 1]}")
        self._stream.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Remove the line, so that other text can be written."""
        if self._is_shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._is_shown = False

    def print(self, text: str) -> None:
        """Write a line that stays, also where there is no terminal."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _columns(self) -> int:
        return os.get_terminal_size(self._stream.fileno()).columns or MOST_COLUMNS
