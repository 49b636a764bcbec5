"""Rows that a store lacks: what is missing, and what of it is not known yet."""

import sqlite3

from semel.store.gaps import missing, without


def record(*seqs: float) -> sqlite3.Connection:
    """A record with these seqs in stream 1, and with others in stream 2."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE record (stream_id, seq)")
    connection.executemany("INSERT INTO record VALUES (1, ?)", [(seq,) for seq in seqs])
    connection.executemany("INSERT INTO record VALUES (2, ?)", [(seq,) for seq in range(1, 20)])
    return connection


def test_missing_rows_are_found_at_both_ends_and_between() -> None:
    assert missing(record(3, 4, 7), 1, 1, 9) == [(1, 2), (5, 6), (8, 9)]
    assert missing(record(1, 2, 3), 1, 1, 3) == []
    assert missing(record(1, 2), 1, 1, 3) == [(3, 3)]
    assert missing(record(), 1, 4, 6) == [(4, 6)]


def test_a_row_whose_seq_is_not_a_whole_number_is_missing() -> None:
    assert missing(record(1, 2.5, 3), 1, 1, 3) == [(2, 2)]


def test_known_losses_are_taken_out_of_what_is_missing() -> None:
    assert without([(1, 9)], [(3, 4), (7, 7)]) == [(1, 2), (5, 6), (8, 9)]
    assert without([(3, 4), (8, 9)], [(1, 3), (9, 12)]) == [(4, 4), (8, 8)]
    assert without([(3, 4)], [(1, 2), (5, 6)]) == [(3, 4)]
    assert without([(3, 4)], [(1, 6)]) == []
