"""What a case claims of its subject, and how a case ends that does not show that it is right.

In the control arm, which must succeed with every subject, a claim that does not hold shows nothing
about the one that is examined.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from semel.probe.evidence import CONTROL, TEST
from semel.probe.recorder import CaseRecorder
from semel.probe.verdicts import ARGUABLE, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED

VERSION_NAMES: Final = {4: "3.1.1", 5: "5.0"}


class ClaimRefuted(Exception):
    """The subject did what the case forbids, or failed to do what it requires: a sentence."""


class ControlFailed(Exception):
    """What must succeed with every subject did not, so that the case shows nothing: a sentence."""


class CaseInapplicable(Exception):
    """The subject said in this run that it has no such feature: a sentence."""


class ClaimArguable(Exception):
    """What the subject did is right in one reading of the standard: the reading."""


# What a case raises, unless the subject is right.
CASE_ENDINGS: Final = (ClaimRefuted, ControlFailed, CaseInapplicable, ClaimArguable)


def verdict_of(ending: Exception) -> tuple[str, str]:
    """The verdict of a case that raised one of CASE_ENDINGS, and what was found."""
    if isinstance(ending, ClaimRefuted):
        return VIOLATED, str(ending)
    if isinstance(ending, ControlFailed):
        return INCONCLUSIVE, f"a step that must succeed failed: {ending}"
    if isinstance(ending, CaseInapplicable):
        return NOT_APPLICABLE, str(ending)
    assert isinstance(ending, ClaimArguable)
    return ARGUABLE, str(ending)


class CaseClaims:
    """The claims of one run of a case, whose recorder knows the arm."""

    def __init__(self, recorder: CaseRecorder) -> None:
        self._recorder = recorder

    @contextmanager
    def control(self) -> Iterator[None]:
        """The control arm: what is in it must succeed with every subject."""
        self._recorder.arm = CONTROL
        try:
            yield
        finally:
            self._recorder.arm = TEST

    def must(self, holds: object, sentence: str) -> None:
        """Claim that `holds`; `sentence` says what was found if it does not."""
        if not holds:
            self.refute(sentence)

    def refute(self, sentence: str) -> NoReturn:
        """Raise ClaimRefuted; in the control arm, ControlFailed."""
        if self._recorder.arm == CONTROL:
            raise ControlFailed(sentence)
        raise ClaimRefuted(sentence)
