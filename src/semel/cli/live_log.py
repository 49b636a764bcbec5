"""The log of a client program that runs for a while: lines above a live line, or in a pipe."""

import logging
import sys
from typing import Protocol, TextIO

from semel.broker.network.log import LogWriter
from semel.cli.safe_text import shown_text


class LineOwner(Protocol):
    """Something that shows a live line."""

    def clear(self) -> None:
        """Remove the live line, so that the log can be written."""


class LogLines(logging.StreamHandler[TextIO]):
    """The log, above the live line of a report. Text of a peer cannot control the terminal."""

    def __init__(self, report: LineOwner) -> None:
        super().__init__(sys.stderr)
        self.report = report

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else shown_text(text)

    def emit(self, record: logging.LogRecord) -> None:
        self.report.clear()
        super().emit(record)


class LogFile(LogWriter):
    """The log for a pipe or a file: a reader that is slow or absent does not block the program."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else shown_text(text)


def set_up_log(report: LineOwner, *, quiet: bool) -> logging.Handler:
    """Log warnings, and unless `quiet` also information."""
    is_terminal = sys.stderr.isatty()
    handler = LogLines(report) if is_terminal else LogFile(sys.stderr.fileno())
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING if quiet else logging.INFO)
    return handler
