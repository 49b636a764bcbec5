"""Runs a module whose log then says of each line how serious it is.

    python -m semel.up.levels -m semel broker …     is    python -m semel broker …

A line begins as one that a service writes for systemd's journal does: `<3>` something failed, `<4>`
something is wrong, `<6>` all is well. Each line of a traceback has its sign. What comes from
elsewhere, such as the last traceback of all or a process that the module has started, has none, and
is nothing that is said when all is well.

A log that is set up already is left as it is by `logging.basicConfig`, and so by the module.
"""

import logging
import re
import runpy
import sys
from typing import Final

from semel.broker.log import LogWriter

MODULE: Final = "semel.up.levels"

FAILED: Final = "error"
WRONG: Final = "warning"
WELL: Final = "info"

_NAMES: Final = {"3": FAILED, "4": WRONG, "6": WELL}
_SIGN: Final = re.compile(r"<([346])>")


def split(line: str) -> tuple[str | None, str]:
    """How serious a line is, or None if it does not say, and the line without its sign."""
    found = _SIGN.match(line)
    return (None, line) if found is None else (_NAMES[found[1]], line[found.end() :])


class Signs(logging.Formatter):
    """Puts the sign before each line."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        number = 3 if record.levelno >= logging.ERROR else 4
        if record.levelno < logging.WARNING:
            number = 6
        return "\n".join(f"<{number}>{line}" for line in super().format(record).splitlines())


def main() -> None:
    """Run what the command line says, which begins with -m."""
    handler = LogWriter(sys.stderr.fileno())
    handler.setFormatter(Signs("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
