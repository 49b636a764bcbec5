"""How far a landing is behind, as it is now and not as it was."""

import pytest

from semel.pipeline.lag import MOST_NOTES, RECENT_SECONDS, Lag


def test_the_latency_of_a_batch_is_told_while_it_is_recent() -> None:
    lag = Lag()
    assert lag.latency(0.0) is None
    lag.note_batch(23.8, 100.0)
    assert lag.latency(100.0) == 23.8
    assert lag.latency(100.0 + RECENT_SECONDS) == 23.8
    assert lag.latency(100.1 + RECENT_SECONDS) is None
    lag.note_batch(None, 120.0)
    assert lag.latency(120.0) is None


def test_rows_wait_since_they_were_first_seen_until_they_have_landed() -> None:
    lag = Lag()
    lag.note_record(10, 10, 0.0)
    assert lag.waiting(1.0) == 0.0
    lag.note_record(12, 10, 2.0)
    lag.note_record(12, 10, 3.0)
    lag.note_record(20, 10, 4.0)
    assert lag.waiting(9.0) == 7.0
    # Rows 11 and 12 have landed; 13 came with the next note.
    lag.note_record(20, 12, 9.0)
    assert lag.waiting(9.0) == 5.0
    lag.note_record(20, 20, 10.0)
    assert lag.waiting(10.0) == 0.0


def test_rows_wait_before_it_is_known_what_has_landed() -> None:
    lag = Lag()
    lag.note_record(5, None, 1.0)
    lag.note_record(9, None, 2.0)
    assert lag.waiting(4.0) == 3.0
    lag.note_record(9, 5, 4.0)
    assert lag.waiting(4.0) == 2.0


@pytest.mark.slow
def test_a_long_wait_takes_little_memory_and_is_known_to_the_second() -> None:
    lag = Lag()
    for second in range(100_000):
        lag.note_record(second + 1, 0, float(second))
    assert lag.waiting(100_000.0) == 100_000.0
    assert len(lag._notes) <= MOST_NOTES
