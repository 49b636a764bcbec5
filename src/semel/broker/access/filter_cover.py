"""Relations between topic filters: whether one covers another, and whether two overlap.

A filter is a tuple of levels here. A *covers* B if A matches every topic name that B matches. They
*overlap* if some topic name matches both. Both relations are exact: a level can have any name, so
only `+` and `#` cover a `+`; `#` also matches its parent level; and a wildcard in the first level
does not match a name that begins with `$` [4.7.2-1].
"""

from collections.abc import Sequence
from typing import Final, TypeVar

PLUS: Final = "+"
HASH: Final = "#"
DOLLAR: Final = "$"

# A level, or a template of one.
L = TypeVar("L")


def split_levels(topic: str) -> tuple[str, ...]:
    """The levels of a valid topic name or filter; filters that match the same names are equal."""
    return normalize(tuple(topic.split("/")))


def normalize(levels: tuple[L, ...]) -> tuple[L | str, ...]:
    """Levels of which equal ones match the same names: `+/#` for `#`, and `/+/#` for `/#`.

    Elsewhere `#` differs from `+/#`, because it also matches its parent level. Here the parent
    level is empty, and no topic name is.
    """
    return (*levels[:-1], PLUS, HASH) if levels in ((HASH,), ("", HASH)) else levels


def covers(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Whether `outer` matches every name that `inner` matches; both are from `split_levels`."""
    if _differ_in_dollar(outer, inner):
        return False
    for at, level in enumerate(outer):
        if level == HASH:
            return True
        if at == len(inner) or inner[at] == HASH:
            return False
        if level not in (PLUS, inner[at]):
            return False
    return len(outer) == len(inner)


def overlaps(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether some topic name matches both filters, which are from `split_levels`."""
    if _differ_in_dollar(one, other) or _differ_in_dollar(other, one):
        return False
    for level, beside in zip(one, other, strict=False):
        if HASH in (level, beside):
            return True
        if level != beside and PLUS not in (level, beside):
            return False
    if len(one) == len(other):
        return True
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer[len(shorter)] == HASH


def _differ_in_dollar(wildcards: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one begins with a wildcard, and the other one with a $."""
    return wildcards[0] in (PLUS, HASH) and other[0].startswith(DOLLAR)
