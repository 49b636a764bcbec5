"""The queue of a session."""

import pytest

from semel.mqtt import Delivery, Message
from semel.mqtt.waiting import Backlog


def delivery(
    number: int, payload: bytes = b"", share: str = "", expires_at: float | None = None
) -> Delivery:
    return Delivery(number, Message("t", payload, qos=1, expires_at=expires_at), share, 1)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [each.number for each in deliveries]


def filled(*deliveries: Delivery) -> Backlog:
    waiting = Backlog()
    for each in deliveries:
        waiting.add(each)
    return waiting


def test_it_is_empty_until_something_waits_and_again_when_all_is_taken() -> None:
    waiting = Backlog()
    assert waiting.is_empty()
    assert (len(waiting), waiting.size, waiting.listed()) == (0, 0, [])
    waiting.add(delivery(1, b"12"))
    assert not waiting.is_empty()
    assert (len(waiting), waiting.size) == (1, 3)
    assert waiting.take(1).number == 1
    assert waiting.is_empty()
    assert (len(waiting), waiting.size) == (0, 0)


def test_the_first_to_come_is_the_first() -> None:
    waiting = filled(delivery(4), delivery(7), delivery(9))
    assert waiting.first().number == 4
    waiting.take(4)
    assert waiting.first().number == 7
    assert numbers(waiting.listed()) == [7, 9]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_of_them_can_be_taken(number: int) -> None:
    waiting = filled(delivery(1, b"1"), delivery(2, b"12"), delivery(3, b"123"))
    assert waiting.take(number).number == number
    assert numbers(waiting.listed()) == [each for each in (1, 2, 3) if each != number]
    assert waiting.size == 9 - 1 - number


def test_one_that_is_put_back_is_the_first_and_is_counted() -> None:
    waiting = filled(delivery(4, b"1"), delivery(7, b"12"))
    waiting.put_back(delivery(2, b"123"))
    waiting.put_back(delivery(1, b"1234"))
    assert numbers(waiting.listed()) == [1, 2, 4, 7]
    assert waiting.first().number == 1
    assert (len(waiting), waiting.size) == (4, 14)
    assert waiting.take(1).number == 1
    assert (len(waiting), waiting.size) == (3, 9)


def test_one_that_is_put_back_into_nothing_is_all_that_waits() -> None:
    waiting = Backlog()
    waiting.put_back(delivery(1, b"12"))
    assert numbers(waiting.listed()) == [1]
    assert not waiting.is_empty()
    waiting.take(1)
    assert waiting.is_empty()


def test_one_that_is_put_back_expires_in_its_time() -> None:
    waiting = filled(delivery(2, expires_at=9.0))
    waiting.put_back(delivery(1, expires_at=3.0))
    assert waiting.take_expired(2.9) == []
    assert numbers(waiting.take_expired(3.0)) == [1]
    assert numbers(waiting.listed()) == [2]


def test_one_that_is_put_back_is_at_hand_also_where_the_window_is_full() -> None:
    waiting = Backlog()
    waiting.window = 2
    for number in (3, 4, 5):
        waiting.add(delivery(number, b"x"))
    waiting.put_back(delivery(2, b"x"))
    assert numbers(waiting.listed()) == [2, 3, 4]
    assert (len(waiting), waiting.beyond, waiting.wants(), waiting.size) == (4, 1, 0, 8)
    for number in (2, 3):
        waiting.take(number)
    assert (waiting.wants(), waiting.first_beyond) == (1, 5)


def test_those_that_have_expired_are_taken_together() -> None:
    waiting = filled(
        delivery(1, expires_at=5.0), delivery(2), delivery(3, expires_at=3.0), delivery(4, b"x")
    )
    assert waiting.take_expired(2.9) == []
    assert numbers(waiting.take_expired(3.0)) == [3]
    assert numbers(waiting.take_expired(9.0)) == [1]
    assert numbers(waiting.listed()) == [2, 4]
    assert waiting.size == 3
    assert waiting.take_expired(1e9) == []


def test_those_of_shared_subscriptions_are_taken_together() -> None:
    waiting = filled(delivery(1, share="g"), delivery(2), delivery(3, share="h"))
    assert waiting.take_shared({"x"}) == []
    assert numbers(waiting.take_shared({"h", "x"})) == [3]
    assert numbers(waiting.take_shared(None)) == [1]
    assert numbers(waiting.listed()) == [2]
    assert Backlog().take_shared(None) == []


def test_expiry_is_still_seen_after_others_were_taken() -> None:
    waiting = filled(delivery(1, share="g"), delivery(2, expires_at=3.0))
    waiting.take_shared(None)
    assert numbers(waiting.take_expired(3.0)) == [2]


# --- a queue that is longer than what is at hand --------------------------------------------------


def long_queue(count: int, window: int) -> Backlog:
    waiting = Backlog()
    waiting.window = window
    for number in range(1, count + 1):
        waiting.add(delivery(number, b"%d" % number))
    return waiting


def test_what_is_beyond_the_window_is_counted_and_not_kept() -> None:
    waiting = long_queue(7, 3)
    whole = long_queue(7, 0)
    assert (len(waiting), waiting.size) == (len(whole), whole.size)
    assert numbers(waiting.listed()) == [1, 2, 3]
    assert (waiting.beyond, waiting.first_beyond) == (4, 4)
    assert waiting.is_at_hand()


def test_nothing_overtakes_what_is_beyond_the_window() -> None:
    waiting = long_queue(5, 3)
    for number in (1, 2, 3):
        waiting.take(number)
    assert not waiting.is_at_hand()
    assert not waiting.is_empty()
    waiting.add(delivery(6))
    assert numbers(waiting.listed()) == []
    assert (waiting.beyond, waiting.first_beyond) == (3, 4)


def test_deliveries_come_back_when_half_of_the_window_is_free() -> None:
    waiting = long_queue(9, 4)
    assert waiting.wants() == 0
    waiting.take(1)
    assert waiting.wants() == 0
    waiting.take(2)
    assert waiting.wants() == 2
    waiting.refill([delivery(5, b"5"), delivery(6, b"6")])
    assert numbers(waiting.listed()) == [3, 4, 5, 6]
    assert (waiting.beyond, waiting.first_beyond, len(waiting)) == (3, 7, 7)
    whole = long_queue(9, 0)
    whole.take(1)
    whole.take(2)
    assert waiting.size == whole.size


def test_a_queue_that_is_back_whole_takes_new_ones_at_hand_again() -> None:
    waiting = long_queue(4, 3)
    for number in (1, 2, 3):
        waiting.take(number)
    waiting.refill([delivery(4, b"4")])
    assert (waiting.beyond, waiting.wants()) == (0, 0)
    waiting.add(delivery(5))
    assert numbers(waiting.listed()) == [4, 5]


def test_what_is_given_up_beyond_the_window_is_given_up_once() -> None:
    waiting = long_queue(6, 2)
    size = waiting.size
    assert waiting.give_up_beyond([(4, 2), (5, 2)]) == [4, 5]
    assert waiting.give_up_beyond([(4, 2), (5, 2)]) == []
    assert (len(waiting), waiting.size) == (4, size - 4)
    waiting.take(1)
    # The store may not know it yet when it is asked.
    waiting.refill([delivery(3, b"3"), delivery(4, b"4")])
    assert numbers(waiting.listed()) == [2, 3]
    assert (waiting.beyond, waiting.first_beyond) == (1, 5)
    waiting.refill([delivery(5, b"5"), delivery(6, b"6")])
    assert numbers(waiting.listed()) == [2, 3, 6]
    assert waiting.beyond == 0


def test_a_queue_whose_rest_is_all_given_up_is_whole() -> None:
    waiting = long_queue(3, 2)
    assert waiting.give_up_beyond([(3, 2)]) == [3]
    assert (waiting.beyond, waiting.beyond_expiry) == (0, None)
    waiting.take(1)
    waiting.add(delivery(4))
    assert numbers(waiting.listed()) == [2, 4]


def test_the_first_expiry_beyond_the_window_is_known() -> None:
    assert long_queue(3, 2).beyond_expiry is None
    waiting = long_queue(2, 2)
    waiting.add(delivery(3, expires_at=9.0))
    waiting.add(delivery(4, expires_at=7.0))
    waiting.add(delivery(5, expires_at=8.0))
    waiting.add(delivery(6))
    assert waiting.beyond_expiry == 7.0
    later = long_queue(3, 2)
    later.add(delivery(4, expires_at=5.0))
    assert later.beyond_expiry == 5.0


def test_taking_out_at_hand_leaves_what_is_beyond() -> None:
    waiting = long_queue(2, 4)
    waiting.add(delivery(3, expires_at=1.0))
    waiting.add(delivery(4, share="$share/g/t"))
    waiting.add(delivery(5, b"12345"))
    assert numbers(waiting.take_expired(2.0)) == [3]
    assert numbers(waiting.take_shared(None)) == [4]
    assert numbers(waiting.listed()) == [1, 2]
    assert (len(waiting), waiting.beyond_size) == (3, waiting.size - 4)
    assert numbers(waiting.take_all()) == [1, 2]
    assert waiting.size == waiting.beyond_size


def test_what_has_left_the_store_is_forgotten() -> None:
    """Numbers of what was given up are kept only while the store could bring them back."""
    waiting = long_queue(6, 2)
    assert waiting.give_up_beyond([(4, 2), (5, 2)]) == [4, 5]
    # The store has deleted the first by now, and then both.
    assert waiting.give_up_beyond([(5, 2)]) == []
    assert waiting.give_up_beyond([]) == []
    assert waiting.beyond == 2
    waiting.take(1)
    waiting.refill([delivery(3, b"3"), delivery(6, b"6")])
    assert numbers(waiting.listed()) == [2, 3, 6]
    assert waiting.beyond == 0
