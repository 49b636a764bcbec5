"""Counts for people have a singular and a plural."""

import pytest

from semel.counts import count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_only_one_is_singular(number: int, text: str) -> None:
    assert count(number, "row") == text


def test_a_plural_may_be_irregular() -> None:
    assert count(1, "process", "processes") == "1 process"
    assert count(3, "process", "processes") == "3 processes"
