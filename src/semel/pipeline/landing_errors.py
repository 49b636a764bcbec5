"""Errors of Spark during a landing, as one sentence that says why it ended and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from semel.pipeline.errors import NO_SPACE, PipelineError, sentence_of

if TYPE_CHECKING:
    from semel.pipeline.landing_plan import LandingPlan

SHOWN_CHARACTERS: Final = 300

# Messages of Spark: two queries use one checkpoint; a checkpoint cannot be parsed.
_OTHER_LANDING: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "CONCURRENT_QUERY",
    "Multiple streaming queries are concurrently using",
)
_DAMAGED: Final = (
    "Incomplete log file",
    "MALFORMED_LOG_FILE",
    "Failed to read log file",
    "JsonEOFException",
    "JsonParseException",
    "metadata file",
)
# The worker of a reader has 10 seconds to connect, that of a task 60. Neither can be configured.
_LATE: Final = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "Python daemon failed to launch worker",
)
_ENDING: Final = ("SparkContext was shut down", "stopped SparkContext", "cleanupQueryJobs")
# Messages of Java about a Python process that has ended; some have only an SQLSTATE.
_CUT: Final = re.compile(
    r"\s*(SQLSTATE|Stream closed|Broken pipe|Connection reset|Socket closed|Socket is closed"
    r"|Python worker exited unexpectedly|java\.io\.EOFException|java\.net\.SocketException)"
)
# Java compiles a regular expression that is a constant when a task begins, and not before.
_PATTERN: Final = re.compile(r"\bPatternSyntaxException: (.+)")
# The code that Spark appends for programs.
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
# Spark's prefix of the error that ended a query.
_ENDED: Final = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)


@contextmanager
def spark_errors(plan: "LandingPlan") -> Iterator[None]:
    """Turn errors of Spark into a PipelineError with one sentence."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as problem:
        raise PipelineError(explain(problem, plan)) from problem


def explain(problem: BaseException, plan: "LandingPlan") -> str:
    """One sentence that says why a query ended and what to do."""
    text = _ENDED.sub("", str(problem), count=1)
    if any(sign in text for sign in NO_SPACE):
        return (
            f"no space is left for {plan.shown}, its checkpoint or Spark's temporary files: free"
            " space, and landing continues; nothing is lost"
        )
    sentence = sentence_of(text)
    if sentence is not None:
        return sentence
    if any(sign in text for sign in _OTHER_LANDING):
        return f"another landing uses the checkpoint {plan.checkpoint}: give one of them another"
    if any(sign in text for sign in _DAMAGED):
        return (
            f"the checkpoint {plan.checkpoint} cannot be read: remove it, and landing continues"
            f" from what {plan.shown} has ({first_line(text)})"
        )
    pattern = _PATTERN.search(text)
    if pattern is not None:
        return (
            "an expression of the landing file (computed, where or event_time) has an invalid"
            f" regular expression: {pattern[1]}; correct it, and start the landing again"
        )
    if is_worker_late(problem):
        return (
            "a Python worker of Spark did not start in time, repeatedly: the machine lacks CPU time"
            " or memory; give Spark fewer cores (--master local[1]) or reduce the load, and start"
            " the landing again: nothing is lost"
        )
    if is_java_dead(problem):
        return "the Java process of Spark has ended: nothing is lost, start the landing again"
    if _CUT.match(text):
        return "the processes of Spark have ended: nothing is lost, start the landing again"
    return first_line(text)


def is_worker_late(problem: BaseException) -> bool:
    """Whether a Python worker of Spark did not start in time."""
    return any(sign in str(problem) for sign in _LATE)


def is_spark_gone(problem: BaseException) -> bool:
    """Whether Spark ended while a query was running."""
    return is_java_dead(problem) or any(sign in str(problem) for sign in _ENDING)


def is_java_dead(problem: BaseException) -> bool:
    """Whether the Java process of Spark no longer answers."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(problem, PySparkException | Py4JJavaError):
        return False
    return isinstance(problem, Py4JError | ConnectionError | EOFError)


def first_line(text: str) -> str:
    """The first line of an error of Spark, without its code for programs."""
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        # The message of Java follows that of Py4J.
        lines = lines[1:]
    return _STATE.sub("", lines[0])[:SHOWN_CHARACTERS] if lines else "Spark gave no reason"
