"""Which peers count as one, and whose oldest goes where a bound is reached."""

import random

import pytest

from semel.broker.addresses import AddressShares, address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:1883", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:999", "2001:db8:1:2::"),
        ("2001:db8:1:2:9:9:9:9:111", "2001:db8:1:2::"),
        ("[2001:db8:1:2:9:9:9:9]:111", "2001:db8:1:2::"),
        ("fe80::1%eth0:1", "fe80::"),
        ("[fe80::1%eth0]:1", "fe80::"),
        ("::ffff:192.0.2.1:5", "192.0.2.1"),
        ("test:1", "test"),
        ("unix:local#7", "unix"),
        ("not:an:address:1", "not:an:address"),
        ("?", ""),
    ],
)
def test_an_address_of_ipv6_is_its_network(peer: str, address: str) -> None:
    assert address_of(peer) == address


def put(shares: AddressShares, key: int, address: str, weight: int = 1) -> None:
    shares.count(address, weight)
    shares.make_evictable(key, address)


def test_the_oldest_of_the_address_with_the_most_goes_first() -> None:
    shares = AddressShares()
    assert shares.next_to_evict() is None
    assert not shares.has_evictable()
    for key, address in enumerate(["a", "b", "b", "b", "a"]):
        put(shares, key, address)
    assert shares.next_to_evict() == 1
    shares.protect(1, "b")
    # It counts yet, though it may not go.
    assert shares.next_to_evict() == 2
    assert shares.evictable_keys() == [0, 2, 3, 4]


def test_where_the_heaviest_has_nothing_that_may_go_the_oldest_of_all_does() -> None:
    shares = AddressShares()
    put(shares, 1, "a")
    put(shares, 2, "b")
    shares.count("c", 100)
    assert shares.next_to_evict() == 1
    shares.protect(1, "a")
    shares.protect(2, "b")
    assert shares.next_to_evict() is None


def test_withdrawing_what_is_not_offered_changes_nothing() -> None:
    shares = AddressShares()
    put(shares, 1, "a")
    shares.protect(2, "a")
    shares.protect(3, "nobody")
    assert shares.evictable_keys() == [1]


def test_an_address_that_has_lost_most_of_it_is_not_the_heaviest() -> None:
    shares = AddressShares()
    put(shares, 1, "a", 10)
    put(shares, 2, "b", 6)
    put(shares, 3, "c", 7)
    shares.count("a", -9)
    assert shares.next_to_evict() == 3
    shares.protect(1, "a")
    shares.count("a", -1)
    assert shares.weight == 13
    assert shares.next_to_evict() == 3


@pytest.mark.parametrize("seed", range(5))
def test_who_loses_has_at_least_the_average_whatever_happened_before(seed: int) -> None:
    source = random.Random(seed)
    shares = AddressShares()
    held: dict[int, tuple[str, int]] = {}
    for key in range(2_000):
        if held and source.random() < 0.45:
            gone = source.choice(list(held))
            address, weight = held.pop(gone)
            shares.protect(gone, address)
            shares.count(address, -weight)
        else:
            address, weight = source.choice("abcdefgh"), source.randint(1, 50)
            held[key] = (address, weight)
            put(shares, key, address, weight)
        if held:
            total: dict[str, int] = {}
            for address, weight in held.values():
                total[address] = total.get(address, 0) + weight
            first = shares.next_to_evict()
            assert isinstance(first, int)
            loser = held[first][0]
            assert total[loser] * len(total) >= sum(total.values()) == shares.weight
            assert first == min(each for each, kept in held.items() if kept[0] == loser)
