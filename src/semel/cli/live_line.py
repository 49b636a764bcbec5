"""The one line of a terminal that is updated in place."""

import os
import sys
from collections.abc import Callable
from typing import Final, TextIO

from semel.cli.safe_text import shown_text

# Moves to the start of the line and clears it.
_CLEAR_LINE: Final = "\r\x1b[K"
# The width of a terminal that does not report one.
_DEFAULT_COLUMNS: Final = 200


class LiveLine:
    """A status line that each `show` overwrites. Without a terminal, or if disabled, not shown.

    Before other lines are written to the same terminal, `clear` must be called; `print` does so.
    Unprintable characters are escaped, because the text may come from a peer. The methods raise
    OSError if the terminal is closed.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        write: Callable[[str], bool] | None = None,
    ) -> None:
        """By default the line is on standard error.

        `write` replaces writing to the stream, for a program that a slow terminal must not block.
        It returns False if the text is dropped.
        """
        self._stream = sys.stderr if stream is None else stream
        self._write = self._write_stream if write is None else write
        self.is_enabled = enabled and self._stream is not None and self._stream.isatty()
        self._is_shown = False

    def show(self, text: str) -> None:
        """Replace the line. It is cut to the width of the terminal: a wrapped line would remain."""
        if self.is_enabled:
            shown = shown_text(text)[: self._columns() - 1]
            self._is_shown = self._write(f"{_CLEAR_LINE}{shown}") or self._is_shown

    def clear(self) -> None:
        """Remove the line, so that other text can be written."""
        if self._is_shown and self._write(_CLEAR_LINE):
            self._is_shown = False

    def print(self, text: str) -> None:
        """Write a permanent line, even without a terminal."""
        if self._write(f"{_CLEAR_LINE if self._is_shown else ''}{text}\n"):
            self._is_shown = False

    def _columns(self) -> int:
        return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_COLUMNS

    def _write_stream(self, text: str) -> bool:
        self._stream.write(text)
        self._stream.flush()
        return True
