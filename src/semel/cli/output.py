"""Standard output and standard error that can print any text, whatever encoding they have.

Python's default is to raise UnicodeEncodeError for a character that the encoding lacks, which ends
a command with a traceback in the middle of its output. Here such a character is printed as an
escape sequence: ✗ as \\u2717 where the encoding is Latin-1.
"""

import codecs
import io
import sys
from typing import Final, TextIO

# What the handler is called that writes escape sequences.
ESCAPE: Final = "backslashreplace"
# Handlers that raise: the default, and the one of the C locale for what is no surrogate.
RAISING: Final = ("strict", "surrogateescape")


class AsciiOutput(io.TextIOWrapper):
    """Writes ASCII, though it is called UTF-8.

    click takes a stream whose encoding is ASCII for misconfigured, and writes UTF-8 to what is
    below it.
    """

    def write(self, text: str, /) -> int:
        super().write(text.encode("ascii", ESCAPE).decode("ascii"))
        return len(text)


def make_output_safe() -> None:
    """Let no character raise an error that is printed from here on."""
    sys.stdout = safe_output(sys.stdout)
    sys.stderr = safe_output(sys.stderr)


def encoded(text: str) -> bytes:
    """The bytes that standard error would write of this text, for who writes to its descriptor."""
    if isinstance(sys.stderr, AsciiOutput):
        return text.encode("ascii", ESCAPE)
    return text.encode(sys.stderr.encoding or "utf-8", ESCAPE)


def safe_output(stream: TextIO) -> TextIO:
    """The stream to print to instead of this one, which may be the same."""
    if not isinstance(stream, io.TextIOWrapper):
        # It is closed (None), or a test's.
        return stream
    if codecs.lookup(stream.encoding).name == "ascii":
        is_buffered_by_line = stream.line_buffering
        return AsciiOutput(stream.detach(), "utf-8", line_buffering=is_buffered_by_line)
    if stream.errors in RAISING:
        stream.reconfigure(errors=ESCAPE)
    return stream
