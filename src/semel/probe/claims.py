"""How a case ends that does not show that the subject is right."""

from typing import Final

VERSION_NAMES: Final = {4: "3.1.1", 5: "5.0"}


class ClaimRefuted(Exception):
    """The subject did what the case forbids, or failed to do what it requires: a sentence."""


class ControlFailed(Exception):
    """What must succeed with every subject did not, so that the case shows nothing: a sentence."""


class CaseInapplicable(Exception):
    """The subject said in this run that it has no such feature: a sentence."""


class ClaimArguable(Exception):
    """What the subject did is right in one reading of the standard: the reading."""
