"""What became of each message of a fleet, on disk, one line after another.

    begin DEVICE COUNTER           it is about to be handed to the client
    done DEVICE COUNTER            it is complete: sent at QoS 0, PUBACK at 1, PUBCOMP at 2
    kept DEVICE COUNTER            the fleet has ended, and the outbox has it for the next run
    refused DEVICE COUNTER [CODE]  the server said no, with this reason code; without one, it was
                                   not sent, for it breaks a rule that the server has set

`begin` is in the file before the message leaves, whatever becomes of the process. Numbers that were
begun are never used again. After kill -9 a message that was begun and is not done is not known: it
may have been stored or not, and so it may arrive, once, or never. A part of a line at the end of
the file was written by a process that was killed, and says nothing.
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

# Bytes that are read at a time.
CHUNK: Final = 1 << 20


class JournalLine(NamedTuple):
    """One line: the word, and the message that it is about."""

    word: str
    device: int
    counter: int


class BadJournal(Exception):
    """A file that is no journal, in one sentence."""


def read_journal(path: Path) -> Iterator[JournalLine]:
    """All whole lines. Raises BadJournal, and OSError."""
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
                raise BadJournal(f"{path} is no journal of a fleet: {text[:60]!r}")


class Journal:
    """A journal to write to. What is given to it is in the file after `flush`."""

    def __init__(self, path: Path) -> None:
        """Goes on with the file, without a part of a line at its end. Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._lines: list[str] = []
        try:
            os.ftruncate(self._file, self._whole_lines())
        except BaseException:
            os.close(self._file)
            raise

    def _whole_lines(self) -> int:
        """The size of the file up to the end of its last whole line."""
        end = os.fstat(self._file).st_size
        while end:
            first = max(0, end - CHUNK)
            place = os.pread(self._file, end - first, first).rfind(b"\n")
            if place >= 0:
                return first + place + 1
            end = first
        return 0

    def note(self, word: str, device: int, counter: int, reason: int | None = None) -> None:
        """A line more."""
        code = "" if reason is None else f" {reason}"
        self._lines.append(f"{word} {device} {counter}{code}\n")

    def flush(self) -> None:
        """Everything is in the file. Raises OSError."""
        data = "".join(self._lines).encode()
        self._lines.clear()
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Flush, and no more."""
        try:
            self.flush()
        finally:
            os.close(self._file)
