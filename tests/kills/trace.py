"""What a program asked of the system, as strace saw it: who was synced before who was told.

A call has the number of the line where it began and of that where it ended: of two threads, one
may begin while the other waits. "After" means: it began when the other had ended.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

READS = {"read", "readv", "recvfrom", "recvmsg"}
WRITES = {"write", "writev", "sendto", "sendmsg"}
SYNCS = {"fsync", "fdatasync"}
FILE_WRITES = {"write", "writev", "pwrite64", "pwritev", "pwritev2"}
# What gives a file its name.
NAMING = {"link", "linkat", "rename", "renameat", "renameat2"}
TRACED = READS | WRITES | SYNCS | FILE_WRITES | NAMING

# Everything as hexadecimal numbers, with the paths of open files, children and threads too.
OPTIONS = ["-f", "-y", "-xx", "-s", "100000", "-e", f"trace={','.join(sorted(TRACED))}"]

# The header of a frame of SQLite's write-ahead log: page, size of the database after the commit
# (0 in all frames of a transaction but the last), salts and checksums.
FRAME_HEADER = 24

LINE = re.compile(r"(\d+) +(.*)")
UNFINISHED = re.compile(r"(.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+).*", re.DOTALL)
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
FILE = re.compile(r"-?\w+<([^>]*)>")


class Call(NamedTuple):
    """One call that has returned."""

    start: int
    end: int
    name: str
    # Of the file or socket it is about.
    path: str
    texts: list[bytes]
    result: int

    @property
    def data(self) -> bytes:
        return b"".join(self.texts)


class Transaction(NamedTuple):
    """What SQLite wrote to its log as one transaction. `synced`: where a sync of it had ended."""

    start: int
    end: int
    data: bytes
    synced: int | None


def bytes_of(text: str) -> bytes:
    """Of hexadecimal numbers as strace writes them."""
    return bytes.fromhex(text.replace("\\x", ""))


def read_trace(lines: Iterable[str]) -> list[Call]:
    """The calls by the order in which they began."""
    calls = []
    begun: dict[str, tuple[int, str]] = {}
    for at, line in enumerate(lines):
        parts = LINE.fullmatch(line.rstrip("\n"))
        if parts is None:
            continue
        process, text = parts[1], parts[2]
        start = at
        unfinished = UNFINISHED.fullmatch(text)
        if unfinished is not None:
            begun[process] = (at, unfinished[1])
            continue
        resumed = RESUMED.fullmatch(text)
        if resumed is not None:
            start, head = begun.pop(process)
            text = head + resumed[2]
        call = CALL.fullmatch(text)
        if call is None:
            # A signal, an exit, or a call that never returned.
            continue
        file = FILE.match(call[2])
        path = file[1] if file is not None else ""
        if path.startswith("\\x"):
            path = bytes_of(path).decode()
        texts = [bytes_of(found) for found in TEXT.findall(call[2])]
        calls.append(Call(start, at, call[1], path, texts, int(call[3])))
    return sorted(calls)


def read_file(path: Path) -> list[Call]:
    with path.open() as lines:
        return read_trace(lines)


def transactions(calls: list[Call], log: str) -> list[Transaction]:
    """The transactions of the log with that path. A sync counts up to the next transaction."""
    found: list[Transaction] = []
    writes: list[Call] = []
    complete = False
    for call in calls:
        if call.path != log:
            continue
        if call.name in SYNCS and found and found[-1].synced is None and call.result == 0:
            if not writes and call.start > found[-1].end:
                found[-1] = found[-1]._replace(synced=call.end)
        elif call.name in FILE_WRITES:
            writes.append(call)
            if complete:
                # The page of the last frame.
                data = b"".join(write.data for write in writes)
                found.append(Transaction(writes[0].start, call.end, data, None))
                writes, complete = [], False
            elif len(call.data) == FRAME_HEADER and any(call.data[4:8]):
                complete = True
    return found


def is_marked_when_safe(calls: list[Call], log: str, mark: str) -> bool:
    """Whether the mark was written, and always after the log was synced: it is never ahead."""
    marked = [call for call in calls if call.path == mark and call.name in FILE_WRITES]
    return bool(marked) and all(
        each.synced is not None and each.synced < call.start
        for call in marked
        for each in transactions(calls, log)
        if each.start < call.start
    )


def is_sent_when_safe(
    calls: list[Call], log: str, cause: bytes, effect: bytes, *, row: bytes = b""
) -> bool:
    """Whether `effect` left a socket only after what `cause` brought was synced.

    That is: after the read of `cause` a transaction, with `row` in it, went to the log; a sync of
    the log began after that and ended; and only then a write of `effect` began.
    """
    calls_of_sockets = [call for call in calls if call.path.startswith("socket:")]
    asked = [call for call in calls_of_sockets if call.name in READS and cause in call.data]
    if not asked:
        raise ValueError(f"nobody has read {cause.hex()}")
    told = [
        call
        for call in calls_of_sockets
        if call.name in WRITES and effect in call.data and call.start > asked[0].start
    ]
    if not told:
        raise ValueError(f"nobody has written {effect.hex()}")
    for transaction in transactions(calls, log):
        if transaction.start > asked[0].end and row in transaction.data:
            return transaction.synced is not None and transaction.synced < told[0].start
    return False


def is_sealed_before_deleted(calls: list[Call], log: str, segment: Path) -> bool:
    """Whether a segment was safe under its name before the log heard of anything more.

    That is: a sync of a file, then the call that gave it the segment's name, then a sync of the
    folder, and no transaction between the first of these and the last.
    """
    named = [
        call
        for call in calls
        if call.name in NAMING and call.result == 0 and call.texts[-1] == str(segment).encode()
    ]
    if not named:
        raise ValueError(f"nothing was ever named {segment}")
    temporary = named[0].texts[0].decode()
    syncs = [call for call in calls if call.name in SYNCS and call.result == 0]
    files = [call for call in syncs if call.path == temporary and call.end < named[0].start]
    writes = [
        call
        for call in calls
        if call.name in FILE_WRITES and call.path == temporary and call.start < named[0].start
    ]
    folders = [
        call for call in syncs if call.path == str(segment.parent) and call.start > named[0].end
    ]
    if not writes:
        raise ValueError(f"nobody has written {temporary}")
    if not files or not folders or files[-1].start < writes[-1].end:
        return False
    return not any(
        transaction.end > files[-1].start and transaction.start < folders[0].end
        for transaction in transactions(calls, log)
    )
