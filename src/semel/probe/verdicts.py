"""The verdicts on a statement, and how those of several cases become one."""

from collections.abc import Iterable
from typing import Final

SATISFIED: Final = "satisfied"
VIOLATED: Final = "violated"
# Satisfied in some cases or on some paths, and violated in others.
PARTLY: Final = "partly"
# The standard can be read in two ways; the reading is given with it.
ARGUABLE: Final = "arguable"
# A control failed, or repeats of a case disagreed.
INCONCLUSIVE: Final = "inconclusive"
NOT_OBSERVABLE: Final = "not observable"
# Because the subject said so in this run, or because the statement binds the other side.
NOT_APPLICABLE: Final = "not applicable"
# No case was run: it was not selected, it needs an option, or none exists.
NOT_EXAMINED: Final = "not examined"

VERDICTS: Final = (
    SATISFIED,
    VIOLATED,
    PARTLY,
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_OBSERVABLE,
    NOT_EXAMINED,
)
# Verdicts with which a subject fails.
FAILED: Final = frozenset((VIOLATED, PARTLY))

# The paths on which an implementation can keep or break a rule: what it writes, what it reads,
# what it sends on a connection, and how it reacts to what it receives.
ENCODE: Final = "encode"
DECODE: Final = "decode"
SEND: Final = "send"
RECEIVE: Final = "receive"
PATHS: Final = (ENCODE, DECODE, SEND, RECEIVE)


def combine(verdicts: Iterable[str]) -> str:
    """One verdict of several, which may be in any order. NOT_EXAMINED if there are none.

    A violation stays visible beside anything else; a case that could not be decided is visible
    only where nothing was violated, and makes the whole undecided.
    """
    found = set(verdicts)
    if VIOLATED in found or PARTLY in found:
        return PARTLY if PARTLY in found or SATISFIED in found else VIOLATED
    for verdict in (INCONCLUSIVE, ARGUABLE, SATISFIED, NOT_APPLICABLE, NOT_OBSERVABLE):
        if verdict in found:
            return verdict
    return NOT_EXAMINED
