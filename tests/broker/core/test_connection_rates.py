"""Connections per second, for each address."""

from semel.broker.network.connection_rates import MAXIMUM_ADDRESSES, ConnectionRates


def test_a_burst_of_two_seconds_is_admitted_and_then_the_rate() -> None:
    rates = ConnectionRates(5.0)
    assert [rates.admits("a", 0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not rates.admits("a", 0.1)
    assert rates.admits("a", 0.3)
    assert not rates.admits("a", 0.3)
    # Another address has its own.
    assert rates.admits("b", 0.3)
    # After a long time it is a burst again, and no more than that.
    assert [rates.admits("a", 1000.0) for _ in range(12)] == [True] * 10 + [False] * 2


def test_a_rate_below_one_admits_one_at_a_time() -> None:
    rates = ConnectionRates(0.1)
    assert [rates.admits("a", at) for at in (0.0, 5.0, 10.0, 11.0)] == [True, False, True, False]


def test_the_address_that_was_idle_longest_is_forgotten() -> None:
    rates = ConnectionRates(0.5)
    assert [rates.admits(each, 0.0) for each in ("a", "b", "a")] == [True, True, False]
    assert all(rates.admits(f"other {number}", 0.0) for number in range(MAXIMUM_ADDRESSES - 2))
    assert rates.admits("c", 0.0)
    # b was forgotten, a and c were not.
    assert [rates.admits(each, 0.0) for each in ("a", "c", "b")] == [False, False, True]
