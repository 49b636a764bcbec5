"""The journal of a fleet: the state of each message, one line per change.

    begin DEVICE COUNTER           it is about to be passed to the client
    done DEVICE COUNTER            it is complete: sent at QoS 0, PUBACK at 1, PUBCOMP at 2
    kept DEVICE COUNTER            the fleet has ended, and the outbox keeps it for the next run
    refused DEVICE COUNTER [CODE]  the server refused it with this reason code; without a code, it
                                   was not sent because it exceeds a limit of the server

`begin` is written before the message is sent, so a counter is never reused, even after kill -9. The
fate of a message that was begun but is not done is then unknown: it may have been stored or not, so
it arrives once or never. An incomplete line at the end was written by a process that was killed,
and is ignored.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

BEGIN: Final = "begin"
DONE: Final = "done"
KEPT: Final = "kept"
REFUSED: Final = "refused"
WORDS: Final = (BEGIN, DONE, KEPT, REFUSED)

# How many bytes are read at a time.
CHUNK: Final = 1 << 20


class JournalLine(NamedTuple):
    """One line: the state, and the message it belongs to."""

    word: str
    device: int
    counter: int


class BadJournal(Exception):
    """Why a file is not a journal, in one sentence."""


def read_journal(path: Path) -> Iterator[JournalLine]:
    """All complete lines. Raises BadJournal and OSError."""
    rest = b""
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            *lines, rest = (rest + data).split(b"\n")
            for text in lines:
                words = text.decode(errors="replace").split()
                with suppress(ValueError, IndexError):
                    if words[0] in WORDS:
                        yield JournalLine(words[0], int(words[1]), int(words[2]))
                        continue
                raise BadJournal(f"{path} is not the journal of a fleet: {text[:60]!r}")


class Journal:
    """Appends to a journal; lines are in the file after `flush`."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file, and removes an incomplete last line. Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._lines: list[str] = []
        try:
            os.ftruncate(self._file, self._complete_size())
        except BaseException:
            os.close(self._file)
            raise

    def _complete_size(self) -> int:
        """The size of the file up to the end of its last complete line."""
        end = os.fstat(self._file).st_size
        while end:
            first = max(0, end - CHUNK)
            position = os.pread(self._file, end - first, first).rfind(b"\n")
            if position >= 0:
                return first + position + 1
            end = first
        return 0

    def note(self, word: str, device: int, counter: int, reason: int | None = None) -> None:
        """Add a line."""
        code = "" if reason is None else f" {reason}"
        self._lines.append(f"{word} {device} {counter}{code}\n")

    def flush(self) -> None:
        """Write all lines to the file. Raises OSError."""
        data = "".join(self._lines).encode()
        self._lines.clear()
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._file)
