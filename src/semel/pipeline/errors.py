"""Errors of the pipeline, each with a one-sentence message that can be recovered from Spark.

Spark runs our readers and writers in its own processes. Their exceptions reach the user's program
as text: a traceback inside Spark's message. `sentence_of` finds our sentence in it, so that a
command can print that alone.
"""

import re
from typing import Final

# Messages of Java, Rust and Python about a full disk.
NO_SPACE: Final = ("No space left on device", "ENOSPC", "Disk quota exceeded")
# The last line of a traceback; Spark indents it, or appends its own text.
_SENTENCE: Final = re.compile(r"^\s*semel\.pipeline\.errors\.[A-Za-z]+: (.+?)\s*$", re.MULTILINE)


class PipelineError(Exception):
    """An error that a user can cause or fix; the message is one sentence in one line."""


class OptionError(PipelineError):
    """An option of a reader or writer is wrong; the message names it."""


class DataLoss(PipelineError):
    """Rows that a query needs are gone."""


class TableError(PipelineError):
    """A Delta table cannot be read or written."""


class UnfitRows(TableError):
    """A table exists and cannot take some rows.

    The message is `fact`, and advice for those who have called the sink.
    """

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(fact, advice)
        self.fact = fact

    def __str__(self) -> str:
        return ": ".join(self.args)


def sentence_of(problem: BaseException | str) -> str | None:
    """The message of a PipelineError inside an error or message of Spark, or None."""
    if isinstance(problem, PipelineError):
        return str(problem)
    found = _SENTENCE.findall(str(problem))
    return found[-1] if found else None
