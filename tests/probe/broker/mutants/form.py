"""What a mutant of the broker is: a change, and the statements that it breaks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tests.probe.broker.mutants.source import Change


@dataclass(frozen=True)
class Also:
    """Further statements that may be blamed, and why. Numbers are as in rules.py."""

    why: str
    mqtt311: str = ""
    mqtt5: str = ""


RESUMED: Final = Also(
    "a session that loses a part of its state is not resumed",
    "3.1.2-4 3.1.4-3 4.1.0-1",
    "3.1.2-5 3.1.2-23 3.1.4-4 4.1.0-1",
)


@dataclass(frozen=True)
class BrokerMutant:
    """A broker with one change. Of `mqtt311` and of `mqtt5` at least one statement must be blamed.

    Empty: in this version the change breaks nothing.
    """

    name: str
    # What the broker does, as a sentence.
    what: str
    changes: tuple[Change, ...]
    mqtt311: str = ""
    mqtt5: str = ""
    also: tuple[Also, ...] = ()
    # Patterns of slow cases that the mutant needs.
    slow: tuple[str, ...] = ()
    # Beginnings of findings. Because of the mutant a packet does not come in which a case looks at
    # something else, which is blamed then. Better: such a case is undecided.
    lost: tuple[str, ...] = ()
    # Patterns of cases that this mutant leaves undecided, because a step that must succeed fails.
    undecided: tuple[str, ...] = ()
    # Rules whose vectors examine it, beside those of a RuleRemoval.
    rules: tuple[str, ...] = ()
    # How many vectors that break the rule are run for each statement.
    vectors: int = 3
    # Whether it refuses what is right.
    is_strict: bool = False
    # The seconds that the broker gets for what it must do.
    timeout: float = 2.0

    def expected(self, version: int) -> frozenset[str]:
        """The statements of a version of which at least one must be blamed."""
        return statement_ids(self.mqtt311 if version == 4 else self.mqtt5)

    def allowed(self, version: int) -> frozenset[str]:
        """The statements of a version that may be blamed."""
        others = [each.mqtt311 if version == 4 else each.mqtt5 for each in self.also]
        return self.expected(version).union(*map(statement_ids, others))


def statement_ids(numbers: str) -> frozenset[str]:
    """Full identifiers from numbers as in rules.py."""
    return frozenset(each if each[0] == "U" else f"MQTT-{each}" for each in numbers.split())


def sorted_ids(ids: Collection[str]) -> str:
    """Identifiers for a message."""
    return " ".join(sorted(each.removeprefix("MQTT-") for each in ids)) or "nothing"
