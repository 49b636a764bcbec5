"""How far an examination by cases is, for those who wait for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far the examination is; `violated` counts cases."""

    done: int
    total: int
    violated: int
    case: str
