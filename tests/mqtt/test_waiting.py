"""The queue of a session."""

import pytest

from semel.mqtt import Delivery, Message
from semel.mqtt.waiting import Waiting


def delivery(
    number: int, payload: bytes = b"", share: str = "", expires_at: float | None = None
) -> Delivery:
    return Delivery(number, Message("t", payload, qos=1, expires_at=expires_at), share, 1)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [each.number for each in deliveries]


def filled(*deliveries: Delivery) -> Waiting:
    waiting = Waiting()
    for each in deliveries:
        waiting.add(each)
    return waiting


def test_it_is_empty_until_something_waits_and_again_when_all_is_taken() -> None:
    waiting = Waiting()
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
    assert Waiting().take_shared(None) == []


def test_expiry_is_still_seen_after_others_were_taken() -> None:
    waiting = filled(delivery(1, share="g"), delivery(2, expires_at=3.0))
    waiting.take_shared(None)
    assert numbers(waiting.take_expired(3.0)) == [2]
