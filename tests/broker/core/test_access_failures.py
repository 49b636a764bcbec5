"""Failed authentications: counted, logged once per address and minute, limited per address."""

from semel.broker.access.failures import (
    BAD_CREDENTIALS,
    BAD_TOKEN,
    MAXIMUM_ADDRESSES,
    FailureLog,
    FailureRate,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_address_has_its_failures_and_gets_them_back() -> None:
    clock = Clock()
    rate = FailureRate(3, clock=clock)
    assert rate.per_minute == 3
    for _ in range(3):
        assert not rate.is_exceeded("a")
        rate.count("a")
    assert rate.is_exceeded("a")
    assert not rate.is_exceeded("b")
    # Further failures do not make it wait longer.
    rate.count("a")
    clock.now += 19
    assert rate.is_exceeded("a")
    clock.now += 1.5
    assert not rate.is_exceeded("a")
    rate.count("a")
    assert rate.is_exceeded("a")
    clock.now += 3600
    for _ in range(3):
        assert not rate.is_exceeded("a")
        rate.count("a")
    assert rate.is_exceeded("a")


def test_the_limit_can_be_changed_and_switched_off() -> None:
    rate = FailureRate(1, clock=Clock())
    rate.count("a")
    assert rate.is_exceeded("a")
    rate.set_limit(0)
    assert not rate.is_exceeded("a")
    for _ in range(10):
        rate.count("b")
    rate.set_limit(1)
    assert rate.is_exceeded("a")
    assert not rate.is_exceeded("b")


def test_only_so_many_addresses_are_remembered() -> None:
    others = [f"other {number}" for number in range(MAXIMUM_ADDRESSES - 2)]
    rate = FailureRate(1, clock=Clock())
    for address in ("a", "b", "a", *others, "c"):
        rate.count(address)
    assert [rate.is_exceeded(address) for address in "abc"] == [True, False, True]


def test_one_line_per_address_and_minute_and_a_count_of_the_rest() -> None:
    clock = Clock()
    lines: list[str] = []
    log = FailureLog(lines.append, clock=clock)
    for number in range(5):
        log.record(BAD_CREDENTIALS, f"a failed {number}", address="a")
    log.record(BAD_TOKEN, "b failed", address="b")
    assert lines == ["a failed 0", "b failed"]
    clock.now += 59
    log.flush()
    assert len(lines) == 2
    clock.now += 1
    log.flush()
    assert lines[2:] == ["a failed 4 (4 times in 60 s)"]
    # It was just logged, so its next line is a minute away; b begins again.
    log.record(BAD_CREDENTIALS, "a failed 5", address="a")
    log.record(BAD_TOKEN, "b failed again", address="b")
    assert lines[3:] == ["b failed again"]
    clock.now += 60
    log.record(BAD_TOKEN, "c failed", address="c")
    assert lines[4:] == ["a failed 5", "c failed"]
    assert log.counts[BAD_CREDENTIALS] == 6
    assert log.counts[BAD_TOKEN] == 3
    assert sum(log.counts.values()) == 9


def test_beyond_the_bound_all_addresses_share_a_line() -> None:
    known = [f"known {number}" for number in range(MAXIMUM_ADDRESSES)]
    clock = Clock()
    lines: list[str] = []
    log = FailureLog(lines.append, clock=clock)
    for address in (*known, "c", "d", "e"):
        log.record(BAD_TOKEN, f"{address} failed", address=address)
    assert lines == [f"{address} failed" for address in (*known, "c")]
    clock.now += 60
    log.flush()
    assert lines[len(known) + 1 :] == ["e failed (2 times in 60 s)"]
