"""In which of its two modes the suite runs, and how often each of them repeats what is random.

The compiled run has every test, the interpreted one those of what is compiled. What a test repeats
(random histories, examples of hypothesis, rounds that must leave nothing behind) it repeats in full
when semel is compiled: that takes a fraction of the time, and is what users run. The interpreted
run is there to measure coverage and to show that both forms behave alike, and a part of the
repetitions is enough for that. TEST_REPEATS=full makes it repeat everything in full; that is how
mutants, which are interpreted, are hunted.
"""

import os
from collections.abc import Callable, Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

from semel.mqtt import codec

Parameter = TypeVar("Parameter")

COMPILED = str(codec.__file__).endswith(tuple(EXTENSION_SUFFIXES))
IN_FULL = COMPILED or os.environ.get("TEST_REPEATS") == "full"


def repeats(full: int, part: int) -> int:
    """How often to repeat something: `full` when compiled, `part` when interpreted."""
    return full if IN_FULL else part


def some(
    parameters: Iterable[Parameter],
    every: int,
    keep: Callable[[Parameter], bool] = lambda parameter: False,
) -> list[ParameterSet]:
    """Parameters of a test, of which `make test` has every n-th and those to keep."""
    return [
        pytest.param(parameter, marks=() if n % every == 0 or keep(parameter) else pytest.mark.long)
        for n, parameter in enumerate(parameters)
    ]
