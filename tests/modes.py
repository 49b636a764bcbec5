"""In which of its two modes the suite runs, and how often each of them repeats what is random.

The compiled run has every test, the interpreted one those of what is compiled. What a test repeats
(random histories, examples of hypothesis, rounds that must leave nothing behind) it repeats in full
when semel is compiled: that takes a fraction of the time, and is what users run. The interpreted
run is there to measure coverage and to show that both forms behave alike, and a part of the
repetitions is enough for that. TEST_REPEATS=full makes it repeat everything in full; that is how
mutants, which are interpreted, are hunted.
"""

import os
from importlib.machinery import EXTENSION_SUFFIXES

from semel.mqtt import codec

COMPILED = str(codec.__file__).endswith(tuple(EXTENSION_SUFFIXES))
IN_FULL = COMPILED or os.environ.get("TEST_REPEATS") == "full"


def repeats(full: int, part: int) -> int:
    """How often to repeat something: `full` when compiled, `part` when interpreted."""
    return full if IN_FULL else part
