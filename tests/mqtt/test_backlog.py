"""The queue of a session."""

from semel.mqtt import Delivery, Message
from semel.mqtt.backlog import Backlog


def delivery(
    number: int, payload: bytes = b"", share: str = "", expires_at: float | None = None
) -> Delivery:
    return Delivery(number, Message("t", payload, qos=1, expires_at=expires_at), share, 1)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [each.number for each in deliveries]


def filled(*deliveries: Delivery) -> Backlog:
    backlog = Backlog()
    for each in deliveries:
        backlog.add(each)
    return backlog


def test_it_is_empty_until_something_waits_and_again_when_all_is_taken() -> None:
    backlog = Backlog()
    assert backlog.is_empty()
    assert (len(backlog), backlog.size, backlog.in_memory()) == (0, 0, [])
    backlog.add(delivery(1, b"12"))
    assert not backlog.is_empty()
    assert (len(backlog), backlog.size) == (1, 3)
    assert backlog.take_first().number == 1
    assert backlog.is_empty()
    assert (len(backlog), backlog.size) == (0, 0)


def test_the_first_to_come_is_the_first() -> None:
    backlog = filled(delivery(4), delivery(7), delivery(9))
    assert backlog.first().number == 4
    backlog.take_first()
    assert backlog.first().number == 7
    assert numbers(backlog.in_memory()) == [7, 9]


def test_one_that_is_put_back_is_the_first_and_is_counted() -> None:
    backlog = filled(delivery(4, b"1"), delivery(7, b"12"))
    backlog.put_back(delivery(2, b"123"))
    backlog.put_back(delivery(1, b"1234"))
    assert numbers(backlog.in_memory()) == [1, 2, 4, 7]
    assert backlog.first().number == 1
    assert (len(backlog), backlog.size) == (4, 14)
    assert backlog.take_first().number == 1
    assert (len(backlog), backlog.size) == (3, 9)


def test_one_that_is_put_back_into_nothing_is_all_that_waits() -> None:
    backlog = Backlog()
    backlog.put_back(delivery(1, b"12"))
    assert numbers(backlog.in_memory()) == [1]
    assert not backlog.is_empty()
    backlog.take_first()
    assert backlog.is_empty()


def test_one_that_is_put_back_expires_in_its_time() -> None:
    backlog = filled(delivery(2, expires_at=9.0))
    backlog.put_back(delivery(1, expires_at=3.0))
    assert backlog.take_expired(2.9) == []
    assert numbers(backlog.take_expired(3.0)) == [1]
    assert numbers(backlog.in_memory()) == [2]


def test_one_that_is_put_back_is_at_hand_also_where_the_window_is_full() -> None:
    backlog = Backlog()
    backlog.window = 2
    for number in (3, 4, 5):
        backlog.add(delivery(number, b"x"))
    backlog.put_back(delivery(2, b"x"))
    assert numbers(backlog.in_memory()) == [2, 3, 4]
    assert (len(backlog), backlog.beyond, backlog.missing(), backlog.size) == (4, 1, 0, 8)
    for _ in (2, 3):
        backlog.take_first()
    assert (backlog.missing(), backlog.first_beyond) == (1, 5)


def test_those_that_have_expired_are_taken_together() -> None:
    backlog = filled(
        delivery(1, expires_at=5.0), delivery(2), delivery(3, expires_at=3.0), delivery(4, b"x")
    )
    assert backlog.take_expired(2.9) == []
    assert numbers(backlog.take_expired(3.0)) == [3]
    assert numbers(backlog.take_expired(9.0)) == [1]
    assert numbers(backlog.in_memory()) == [2, 4]
    assert backlog.size == 3
    assert backlog.take_expired(1e9) == []


def test_those_of_shared_subscriptions_are_taken_together() -> None:
    backlog = filled(delivery(1, share="g"), delivery(2), delivery(3, share="h"))
    assert backlog.take_shared({"x"}) == []
    assert numbers(backlog.take_shared({"h", "x"})) == [3]
    assert numbers(backlog.take_shared(None)) == [1]
    assert numbers(backlog.in_memory()) == [2]
    assert Backlog().take_shared(None) == []


def test_those_with_some_numbers_are_taken_together() -> None:
    backlog = filled(delivery(1), delivery(2, b"xy"), delivery(3))
    assert backlog.take_numbers(set()) == []
    assert numbers(backlog.take_numbers({2, 7})) == [2]
    assert numbers(backlog.in_memory()) == [1, 3]
    assert backlog.size == 2
    assert Backlog().take_numbers({1}) == []


def test_expiry_is_still_seen_after_others_were_taken() -> None:
    backlog = filled(delivery(1, share="g"), delivery(2, expires_at=3.0))
    backlog.take_shared(None)
    assert numbers(backlog.take_expired(3.0)) == [2]


# --- a queue that is longer than what is at hand --------------------------------------------------


def long_queue(count: int, window: int) -> Backlog:
    backlog = Backlog()
    backlog.window = window
    for number in range(1, count + 1):
        backlog.add(delivery(number, b"%d" % number))
    return backlog


def test_what_is_beyond_the_window_is_counted_and_not_kept() -> None:
    backlog = long_queue(7, 3)
    whole = long_queue(7, 0)
    assert (len(backlog), backlog.size) == (len(whole), whole.size)
    assert numbers(backlog.in_memory()) == [1, 2, 3]
    assert (backlog.beyond, backlog.first_beyond) == (4, 4)
    assert backlog.has_first()


def test_nothing_overtakes_what_is_beyond_the_window() -> None:
    backlog = long_queue(5, 3)
    for _ in (1, 2, 3):
        backlog.take_first()
    assert not backlog.has_first()
    assert not backlog.is_empty()
    backlog.add(delivery(6))
    assert numbers(backlog.in_memory()) == []
    assert (backlog.beyond, backlog.first_beyond) == (3, 4)


def test_deliveries_come_back_when_half_of_the_window_is_free() -> None:
    backlog = long_queue(9, 4)
    assert backlog.missing() == 0
    backlog.take_first()
    assert backlog.missing() == 0
    backlog.take_first()
    assert backlog.missing() == 2
    backlog.refill([delivery(5, b"5"), delivery(6, b"6")])
    assert numbers(backlog.in_memory()) == [3, 4, 5, 6]
    assert (backlog.beyond, backlog.first_beyond, len(backlog)) == (3, 7, 7)
    whole = long_queue(9, 0)
    whole.take_first()
    whole.take_first()
    assert backlog.size == whole.size


def test_a_queue_that_is_back_whole_takes_new_ones_at_hand_again() -> None:
    backlog = long_queue(4, 3)
    for _ in (1, 2, 3):
        backlog.take_first()
    backlog.refill([delivery(4, b"4")])
    assert (backlog.beyond, backlog.missing()) == (0, 0)
    backlog.add(delivery(5))
    assert numbers(backlog.in_memory()) == [4, 5]


def test_what_is_given_up_beyond_the_window_is_given_up_once() -> None:
    backlog = long_queue(6, 2)
    size = backlog.size
    assert backlog.expire_beyond([(4, 2), (5, 2)]) == [4, 5]
    assert backlog.expire_beyond([(4, 2), (5, 2)]) == []
    assert (len(backlog), backlog.size) == (4, size - 4)
    backlog.take_first()
    # The store may not know it yet when it is asked.
    backlog.refill([delivery(3, b"3"), delivery(4, b"4")])
    assert numbers(backlog.in_memory()) == [2, 3]
    assert (backlog.beyond, backlog.first_beyond) == (1, 5)
    backlog.refill([delivery(5, b"5"), delivery(6, b"6")])
    assert numbers(backlog.in_memory()) == [2, 3, 6]
    assert backlog.beyond == 0


def test_a_queue_whose_rest_is_all_given_up_is_whole() -> None:
    backlog = long_queue(3, 2)
    assert backlog.expire_beyond([(3, 2)]) == [3]
    assert (backlog.beyond, backlog.beyond_expiry) == (0, None)
    backlog.take_first()
    backlog.add(delivery(4))
    assert numbers(backlog.in_memory()) == [2, 4]


def test_the_first_expiry_beyond_the_window_is_known() -> None:
    assert long_queue(3, 2).beyond_expiry is None
    backlog = long_queue(2, 2)
    backlog.add(delivery(3, expires_at=9.0))
    backlog.add(delivery(4, expires_at=7.0))
    backlog.add(delivery(5, expires_at=8.0))
    backlog.add(delivery(6))
    assert backlog.beyond_expiry == 7.0
    later = long_queue(3, 2)
    later.add(delivery(4, expires_at=5.0))
    assert later.beyond_expiry == 5.0


def test_taking_out_at_hand_leaves_what_is_beyond() -> None:
    backlog = long_queue(2, 4)
    backlog.add(delivery(3, expires_at=1.0))
    backlog.add(delivery(4, share="$share/g/t"))
    backlog.add(delivery(5, b"12345"))
    assert numbers(backlog.take_expired(2.0)) == [3]
    assert numbers(backlog.take_shared(None)) == [4]
    assert numbers(backlog.in_memory()) == [1, 2]
    assert (len(backlog), backlog.beyond_size) == (3, backlog.size - 4)
    assert numbers(backlog.take_all()) == [1, 2]
    assert backlog.size == backlog.beyond_size


def test_what_has_left_the_store_is_forgotten() -> None:
    """Numbers of what was given up are kept only while the store could bring them back."""
    backlog = long_queue(6, 2)
    assert backlog.expire_beyond([(4, 2), (5, 2)]) == [4, 5]
    # The store has deleted the first by now, and then both.
    assert backlog.expire_beyond([(5, 2)]) == []
    assert backlog.expire_beyond([]) == []
    assert backlog.beyond == 2
    backlog.take_first()
    backlog.refill([delivery(3, b"3"), delivery(6, b"6")])
    assert numbers(backlog.in_memory()) == [2, 3, 6]
    assert backlog.beyond == 0


def test_it_knows_whether_some_beyond_the_window_may_be_shared() -> None:
    backlog = Backlog()
    backlog.window = 1
    found: list[bool] = []
    # The first one stays in memory, where it can be seen.
    for number, share in enumerate(("$share/g/t", "", "$share/g/t", ""), 1):
        backlog.add(delivery(number, share=share))
        found.append(backlog.may_be_shared_beyond)
    assert found == [False, False, True, True]
    backlog.take_first()
    backlog.refill([delivery(2), delivery(3, share="$share/g/t"), delivery(4)])
    # Everything is in memory: the next one is the first beyond the window again.
    backlog.add(delivery(5))
    assert (backlog.beyond, backlog.may_be_shared_beyond) == (1, False)
