"""A cursor continues where its stored value says."""

import pytest

from semel.broker.cursors import Cursor
from semel.store.streams import Stream


@pytest.mark.parametrize(
    ("value", "position", "since"), [(0, 1, 0), (1, 2, 0), (9, 10, 0), (-1, 0, 1), (-70, 0, 70)]
)
def test_a_stored_value_is_the_last_seq_or_a_time(value: int, position: int, since: int) -> None:
    cursor = Cursor("$stream/plant/#", Stream(1, "plant", "#", 0), "#")
    cursor.restore(value)
    assert (cursor.position, cursor.since) == (position, since)
    assert cursor.value == cursor.stored == value
