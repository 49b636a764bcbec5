"""The simulation can fail: it detects each world that is broken on purpose.

A variant breaks an interface (the store, the sealer, the authority, the output, the log, the calls
of the server), never the core. `python -m tests.long.simulate --variants` prints how many seeds
each one takes.
"""

from pathlib import Path

import pytest

from tests.simulation.broken_variants import BROKEN
from tests.simulation.runs import seeds_to_notice
from tests.simulation.variants import FAITHFUL, Blind, Variant

# The maximum number of seeds to detect a variant; most take only a few.
SEEDS = 1_500
# Variants that are detected without queries of the database, from deliveries and the record.
BLIND_SEEDS = 1_000
SEEN_BLINDLY = (
    "early ack",
    "early PUBREC",
    "early SUBACK",
    "no inbound",
    "no in flight",
    "lost will",
    "lost retained",
    "lost subscriptions",
    "skipped message",
    "lost commit",
    "unsynced bytes",
    "unsynced name",
    "rash sealer",
    "seq gap",
    "unlisted sessions",
    "no sweep",
    "rights unnoticed",
    "will unasked",
    "publish unasked",
    "theft",
)


def name_of(variant: Variant) -> str:
    return variant.name


@pytest.mark.slow
@pytest.mark.parametrize("variant", BROKEN, ids=name_of)
def test_a_broken_world_is_noticed(variant: Variant) -> None:
    assert seeds_to_notice(variant, SEEDS) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [each for each in BROKEN if each.name in SEEN_BLINDLY], ids=name_of
)
def test_a_broken_world_is_noticed_by_its_outcome_alone(variant: Variant) -> None:
    assert seeds_to_notice(Blind(variant), BLIND_SEEDS) is not None


def test_each_variant_has_a_name_and_a_fault_of_its_own() -> None:
    assert len({variant.name for variant in BROKEN}) == len(BROKEN) >= 10
    assert all(variant.fault for variant in BROKEN)
    assert set(SEEN_BLINDLY) <= {variant.name for variant in BROKEN}


def test_the_page_on_tests_says_how_many_there_are() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "prove" / "tests.md"
    words = f"{len(BROKEN)} worlds that are broken on purpose"
    assert words in " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.slow
def test_a_faithful_world_is_not_taken_for_a_broken_one() -> None:
    assert seeds_to_notice(FAITHFUL, 50) is None
