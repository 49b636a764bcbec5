"""Standard output and standard error that can print any text in any encoding.

By default, Python raises UnicodeEncodeError for a character that the encoding lacks, which ends a
command with a traceback in the middle of its output. Here such a character is printed as an escape
sequence: in Latin-1, ✗ is printed as \\u2717.
"""

import codecs
import io
import sys
from typing import Final, TextIO

# The error handler that writes escape sequences.
ESCAPE: Final = "backslashreplace"
# Error handlers that raise: the default, and that of the C locale except for surrogates.
RAISING: Final = ("strict", "surrogateescape")


class AsciiOutput(io.TextIOWrapper):
    """Writes ASCII although its encoding is UTF-8.

    click considers a stream whose encoding is ASCII misconfigured, and writes UTF-8 to the stream
    below it.
    """

    def write(self, text: str, /) -> int:
        super().write(text.encode("ascii", ESCAPE).decode("ascii"))
        return len(text)


def make_output_safe() -> None:
    """Replace standard output and standard error by streams that can print any character."""
    sys.stdout = safe_output(sys.stdout)
    sys.stderr = safe_output(sys.stderr)


def encoded(text: str) -> bytes:
    """The bytes that standard error would write, for writing to its descriptor directly."""
    if isinstance(sys.stderr, AsciiOutput):
        return text.encode("ascii", ESCAPE)
    return text.encode(sys.stderr.encoding or "utf-8", ESCAPE)


def safe_output(stream: TextIO) -> TextIO:
    """The stream to use instead of this one, which may be the same."""
    if not isinstance(stream, io.TextIOWrapper):
        # It is closed (None), or belongs to a test.
        return stream
    if codecs.lookup(stream.encoding).name == "ascii":
        is_buffered_by_line = stream.line_buffering
        return AsciiOutput(stream.detach(), "utf-8", line_buffering=is_buffered_by_line)
    if stream.errors in RAISING:
        stream.reconfigure(errors=ESCAPE)
    return stream
