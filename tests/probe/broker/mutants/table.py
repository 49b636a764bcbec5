"""All mutants of the broker, by name."""

from dataclasses import replace
from typing import Final

from tests.probe.broker.mutants import (
    lawful_mutants,
    message_mutants,
    property_mutants,
    qos_mutants,
    rule_mutants,
    session_mutants,
    strict_mutants,
    subscription_mutants,
)
from tests.probe.broker.mutants.form import BrokerMutant

# At least one statement is blamed, and none without an explanation.
GUILTY: Final[tuple[BrokerMutant, ...]] = (
    *rule_mutants.MUTANTS,
    *qos_mutants.MUTANTS,
    *message_mutants.MUTANTS,
    *session_mutants.MUTANTS,
    *subscription_mutants.MUTANTS,
    *property_mutants.MUTANTS,
    *(replace(mutant, is_strict=True) for mutant in strict_mutants.MUTANTS),
)
# They differ from our broker in what the standard leaves open: nothing is blamed.
LAWFUL: Final[tuple[BrokerMutant, ...]] = lawful_mutants.MUTANTS


def broker_mutant(name: str) -> BrokerMutant:
    """The mutant with this name."""
    return next(each for each in (*GUILTY, *LAWFUL, lawful_mutants.MUTE) if each.name == name)
