"""The parts of a session are plain values."""

from semel.mqtt import Change, Delivery, Message, Receipt
from semel.mqtt.delivery import DELIVERY_BYTES, ENDS, QUEUED, number_order, release_order
from semel.mqtt.properties import NO_PROPERTIES


def test_a_change_has_what_its_kind_uses_and_nothing_else() -> None:
    message = Message("t", qos=1)
    change = Change(QUEUED, number=3, message=message, share="$share/g/t")
    assert (change.kind, change.number, change.message) == (QUEUED, 3, message)
    assert (change.share, change.packet_id, change.at) == ("$share/g/t", 0, None)
    assert change == Change(QUEUED, number=3, message=message, share="$share/g/t")
    assert change != Change(QUEUED, number=3, message=message)
    assert Change(ENDS, at=1.0) != Change(ENDS)


def test_a_delivery_begins_without_an_identifier() -> None:
    message = Message("t", qos=2)
    delivery = Delivery(1, message, "", message.qos)
    assert (delivery.number, delivery.qos, delivery.message) == (1, 2, message)
    assert (delivery.packet_id, delivery.released, delivery.share) == (0, 0, "")


def test_a_receipt_is_not_accepted_at_first() -> None:
    receipt = Receipt(7, 2)
    assert (receipt.packet_id, receipt.qos, receipt.is_accepted) == (7, 2, False)
    assert (receipt.reason, receipt.properties) == (0, NO_PROPERTIES)


def test_a_delivery_knows_the_shared_subscription_that_brought_it() -> None:
    own, shared = (Delivery(1, Message("t", qos=1), share, 1) for share in ("", "$share/g/t"))
    assert not own.is_of(None)
    assert not own.is_of({""})
    assert shared.is_of(None)
    assert shared.is_of({"$share/g/t"})
    assert not shared.is_of({"$share/h/t"})


def test_a_delivery_takes_memory_until_its_pubrec() -> None:
    message = Message("t", b"1234", qos=2)
    delivery = Delivery(1, message, "", 2)
    assert delivery.memory_size == message.size + DELIVERY_BYTES
    delivery.message = None
    assert delivery.memory_size == 0


def test_deliveries_are_sorted_by_number_or_by_pubrec() -> None:
    first, second = (Delivery(number, None, "", 2) for number in (1, 2))
    first.released, second.released = 9, 8
    assert sorted((second, first), key=number_order) == [first, second]
    assert sorted((first, second), key=release_order) == [second, first]
