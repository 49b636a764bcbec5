"""What goes wrong in a pipeline, in a sentence that survives the way through Spark.

Spark runs our readers and writers in processes of its own, and what they raise comes back to the
user's program as text: Spark's words around the traceback of the process. `sentence_of` finds our
sentence in there, so that a command can say it and nothing else.
"""

import re
from typing import Final

# The last line of a traceback; Spark indents it, or puts its own words after it.
_SENTENCE: Final = re.compile(r"^\s*semel\.pipeline\.errors\.[A-Za-z]+: (.+?)\s*$", re.MULTILINE)


class PipelineError(Exception):
    """Something that a user can cause or mend; the text is one sentence, in one line."""


class OptionError(PipelineError):
    """An option that a reader or writer was given is wrong: the text names it."""


class DataLoss(PipelineError):
    """Rows that a query still needs are gone."""


class TableError(PipelineError):
    """A Delta table cannot be written or read as asked."""


def sentence_of(problem: BaseException | str) -> str | None:
    """The sentence of a PipelineError in what Spark raised or said; None: there is none."""
    if isinstance(problem, PipelineError):
        return str(problem)
    found = _SENTENCE.findall(str(problem))
    return found[-1] if found else None
