"""Log records as entries of systemd's journal, by its native protocol: one datagram per entry.

Each entry has MESSAGE, PRIORITY and SYSLOG_IDENTIFIER, and fields of semel by which
`journalctl SEMEL_CLIENT=press-7` finds it: SEMEL_EVENT, SEMEL_CLIENT and SEMEL_ADDRESS, and one for
each further key of the event.
"""

import ast
import errno
import logging
import re
import socket
from pathlib import Path
from typing import Final

JOURNAL_SOCKET: Final = Path("/run/systemd/journal/socket")

# Priorities of syslog.
ERROR: Final = 3
WARNING: Final = 4
INFO: Final = 6

# Bytes of a field: journald accepts datagrams of about 200 KiB.
MAXIMUM_FIELD: Final = 32 * 1024

# How lines about a connected client begin: its client identifier, as `ascii` quotes it, and its
# address.
_CLIENT: Final = re.compile(
    r"""(?P<client>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") \((?P<address>[^\s()]+)\) """
)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Z0-9_]")


class JournalUnusable(Exception):
    """Why the journal cannot be written, in one sentence."""


class SystemJournal:
    """The socket of the journal."""

    def __init__(self, path: Path = JOURNAL_SOCKET) -> None:
        """Raises JournalUnusable."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.connect(str(path))
        except OSError as problem:
            self._socket.close()
            raise JournalUnusable(
                f"[broker] log_format is journald, but {path} cannot be used: {problem.strerror}. "
                "Run the broker where systemd-journald is, or choose text or json"
            ) from None
        self._path = path

    def send(self, data: bytes) -> None:
        """Send one entry; it is lost if the journal does not run. May block for a while."""
        try:
            self._socket.send(data)
        except OSError as problem:
            if problem.errno not in (errno.ECONNREFUSED, errno.ENOTCONN):
                return
            # The journal was restarted: its socket is another one.
            try:
                self._socket.connect(str(self._path))
                self._socket.send(data)
            except OSError:
                return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def encode_entry(record: logging.LogRecord, text: str) -> bytes:
    """The datagram of a record, whose formatted text is the message."""
    event = dict(getattr(record, "event", {"event": "log"}))
    found = _CLIENT.match(text)
    if found is not None:
        event.setdefault("client", ast.literal_eval(found["client"]))
        event.setdefault("address", found["address"])
    fields = [
        _field("MESSAGE", text),
        _field("PRIORITY", str(priority(record.levelno))),
        _field("SYSLOG_IDENTIFIER", "semel"),
    ]
    for key, value in event.items():
        fields.append(_field(f"SEMEL_{_NOT_IN_NAMES.sub('_', key.upper())}", str(value)))
    return b"".join(fields)


def priority(level: int) -> int:
    """The syslog priority of a level."""
    if level >= logging.ERROR:
        return ERROR
    return WARNING if level >= logging.WARNING else INFO


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")[:MAXIMUM_FIELD]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    # A value of several lines has its length before it.
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
