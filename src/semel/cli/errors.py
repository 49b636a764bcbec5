"""Expected errors end a command with one sentence on standard error and exit code 1."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from semel.cli.safe_text import shown_text
from semel.extras import MissingExtra
from semel.pipeline.errors import PipelineError
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError


@contextmanager
def one_sentence() -> Iterator[None]:
    """Report what is wrong with a store, a record, a root or a lake as one sentence.

    BrokenPipeError is not caught: a reader that has read enough is not an error to report.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (MissingExtra, OSError, PipelineError, RecordError, RootError, Unusable) as problem:
        raise click.ClickException(sentence_of(problem)) from None


def sentence_of(problem: BaseException) -> str:
    """The text of an exception on one line, safe for a terminal."""
    return shown_text(" ".join(str(problem).split()))
