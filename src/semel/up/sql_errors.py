"""What a failed query reports: DuckDB's messages, without what its user did not write."""

import re
from typing import Final

# In a message of DuckDB: a line of the query, and the indent of a continued line.
_QUOTED_QUERY: Final = re.compile(r"LINE \d+: ")
_INDENT: Final = re.compile(r"^\t+")
_NO_MEMORY: Final = "Out of Memory Error: "
# The end of what users can use: after it there are settings that are locked, or DuckDB's functions.
_DETAILS: Final = re.compile(r"^(?:Possible solutions|Stack Trace):", re.M)


class SqlError(Exception):
    """A query failed: one sentence, possibly followed by lines that point into the query."""


def first_line(problem: BaseException) -> str:
    """The first line of a message."""
    return str(problem).strip().partition("\n")[0]


def shown_error(problem: BaseException) -> str:
    """DuckDB's message without details and empty lines; its last lines may point into the query.

    Tabs would be printed as escape sequences. A tab of an indent becomes two spaces. A tab of the
    query becomes one space, because the line that points into the query counts it as one character.
    """
    text = _DETAILS.split(str(problem))[0]
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    lines = [
        line.replace("\t", " ") if _QUOTED_QUERY.match(line) else _INDENT.sub(_indented, line)
        for line in lines
    ]
    if text.startswith(_NO_MEMORY):
        lines.append("Give the query more memory, or ask for less.")
    return "\n".join(lines) or type(problem).__name__


def _indented(tabs: re.Match[str]) -> str:
    return "  " * len(tabs[0])
