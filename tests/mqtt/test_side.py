"""One side of a connection: identifiers with their stages, order and quota."""

import pytest

from semel.mqtt.packet_ids import PacketIds, with_id
from semel.mqtt.side import (
    MANY_OPEN,
    PLACE_UNKNOWN,
    RECEIVED,
    RELEASED,
    SENT_QOS_1,
    SENT_QOS_2,
    Side,
)
from semel.mqtt.wire import memory_size
from tests.mqtt.snapshots import side_snapshot


def test_an_identifier_moves_through_its_stages_and_is_free_again() -> None:
    side = Side()
    assert side.stage(7) == 0
    for stage in (SENT_QOS_2, RECEIVED, RELEASED):
        side.move(7, stage)
        assert side.stage(7) == stage
    side.free(7, 65_535)
    assert side.stage(7) == 0
    assert side.opened == {}


def test_of_two_steps_the_later_has_the_larger_serial() -> None:
    side = Side()
    side.move(9, SENT_QOS_1)
    side.move(3, SENT_QOS_1)
    assert 0 < side.order(9) < side.order(3)
    side.move(9, RECEIVED)
    assert side.order(3) < side.order(9)
    assert side.order(1) == 0


def test_the_quota_grows_with_each_freed_identifier_up_to_the_receive_maximum() -> None:
    side = Side()
    side.quota = 1
    for packet_id in (1, 2):
        side.move(packet_id, SENT_QOS_1)
        side.free(packet_id, 2)
    assert side.quota == 2


def test_what_an_earlier_connection_left_open_is_told_from_what_this_one_sent() -> None:
    side = Side()
    side.move(1, SENT_QOS_1)
    side.move(2, SENT_QOS_2)
    side.carried_until = side.serial
    side.move(3, SENT_QOS_1)
    side.move(2, SENT_QOS_2)
    assert [side.is_carried(packet_id) for packet_id in (1, 2, 3, 4)] == [True, False, False, False]
    assert side.sent_here() == 2
    side.forget_carried()
    assert list(side.opened or ()) == [2, 3]


def test_an_unknown_place_stays_unknown() -> None:
    side = Side()
    side.move(1, SENT_QOS_2 | PLACE_UNKNOWN)
    side.move(2, SENT_QOS_2)
    side.move(1, RECEIVED)
    assert not side.has_place(1)
    assert side.has_place(2)
    assert side.stage(1) == RECEIVED


def test_each_repeat_allows_one_more_answer() -> None:
    side = Side()
    side.repeat(5)
    side.repeat(5)
    side.answer_repeat(5)
    assert side.is_repeated(5)
    side.answer_repeat(5)
    side.answer_repeat(5)
    assert not side.is_repeated(5)
    assert side_snapshot(side) == side_snapshot(Side())


def test_of_many_that_wait_for_pubrel_only_the_first_keep_their_order() -> None:
    side = Side()
    for packet_id in range(1, MANY_OPEN + 100):
        side.move(packet_id, SENT_QOS_2)
        side.move(packet_id, RECEIVED)
    last = MANY_OPEN + 99
    assert len(side.opened or ()) == MANY_OPEN
    assert (side.stage(1), side.stage(last)) == (RECEIVED, RECEIVED)
    assert side.order(1) > 0
    assert side.order(last) == 0
    before = side_snapshot(side)
    side.move(last, RELEASED)
    assert side_snapshot(side) != before
    assert side.stage(last) == RELEASED
    side.free(last, 65_535)
    assert side.stage(last) == 0
    side.forget_carried()
    assert side.stage(last - 1) == 0


def test_what_was_received_before_is_told_from_what_is_received_here_though_there_are_many() -> (
    None
):
    side = Side()
    for packet_id in range(1, MANY_OPEN + 100):
        side.move(packet_id, RECEIVED)
    last = MANY_OPEN + 99
    assert not side.is_carried(1)
    assert not side.is_carried(last)
    side.begin()
    assert side.is_carried(1)
    assert side.is_carried(last)
    assert side.has_place(1)
    assert not side.has_place(last)
    # What happens to it here makes it this connection's.
    side.move(last, SENT_QOS_2)
    assert not side.is_carried(last)
    side.move(last, RECEIVED)
    assert not side.is_carried(last)
    side.forget_carried()
    assert (side.stage(1), side.stage(last - 1), side.is_carried(last - 1)) == (0, 0, False)


def test_a_pubrel_answers_a_pubrec_that_nothing_waited_for() -> None:
    side = Side()
    assert not side.answers_stray(1)
    side.add_stray(1)
    assert side.answers_stray(1)
    side.add_stray_pubrel(1)
    assert side.answers_stray(1)
    side.complete_stray(1)
    assert not side.answers_stray(1)


@pytest.mark.parametrize("count", [0, 1, MANY_OPEN, MANY_OPEN + 1, MANY_OPEN + 2, 65_535])
def test_received_identifiers_are_carried_at_once_as_they_are_one_by_one(count: int) -> None:
    ids = PacketIds()
    one_by_one, at_once = Side(), Side()
    for packet_id in range(1, count + 1):
        ids.add(packet_id)
        one_by_one.move(packet_id, RECEIVED | PLACE_UNKNOWN)
    one_by_one.begin()
    at_once.carry_received(ids)
    assert side_snapshot(at_once) == side_snapshot(one_by_one)
    # and the set that they came from stays as it is
    at_once.move(count, RELEASED)
    assert len(ids) == count


def test_an_idle_side_has_no_sets_and_maps() -> None:
    side = Side()
    side.begin()
    side.forget_carried()
    side.answer_repeat(1)
    side.answer_stray(1)
    side.end_request(1)
    assert (side.order(1), side.has_place(1), side.is_carried(1)) == (0, False, False)
    assert (side.sent_here(), side.carry(0), side.request(1)) == (0, [], 0)
    assert (side.has_used(1), side.is_repeated(1), side.has_stray_pubrel(1)) == (False,) * 3
    assert (side.aliased_topic(1), side.alias_count, side.alias_bytes) == ("", 0, 0)
    assert (side.opened, side.used, side.rare, side.requests, side.aliases) == (None,) * 5


def test_the_map_of_requests_exists_while_one_is_open() -> None:
    side = Side()
    side.begin_request(1, 3)
    side.begin_request(2, -2)
    side.end_request(1)
    assert (side.request(1), side.request(2)) == (0, -2)
    side.end_request(2)
    assert side.requests is None


def test_the_memory_of_a_replaced_alias_is_given_back() -> None:
    side = Side()
    side.set_alias(1, "a" * 100)
    side.set_alias(2, "b")
    side.set_alias(1, "c")
    assert (side.aliased_topic(1), side.aliased_topic(2), side.aliased_topic(3)) == ("c", "b", "")
    assert side.alias_count == 2
    assert side.alias_bytes == memory_size("b") + memory_size("c")


def test_only_a_publish_with_a_known_place_can_be_sent_again_out_of_order() -> None:
    side = Side()
    for packet_id in (1, 2):
        side.move(packet_id, SENT_QOS_1)
    side.move(3, SENT_QOS_1 | PLACE_UNKNOWN)
    side.begin()
    assert side.resends_in_order(1)
    side.resend(3)
    assert side.resends_in_order(1)
    side.resend(2)
    assert not side.resends_in_order(1)
    assert side.resends_in_order(2)
    assert side.resends_in_order(3)


def test_a_used_identifier_is_known() -> None:
    side = Side()
    side.use(4)
    assert (side.has_used(4), side.has_used(5)) == (True, False)


def test_a_pubrec_may_be_answered_within_an_open_exchange() -> None:
    side = Side()
    side.add_stray(1)
    side.answer_stray(1)
    assert not side.answers_stray(1)


def test_the_exchanges_of_a_side_are_carried_to_the_next_connection() -> None:
    side = Side()
    side.move(7, SENT_QOS_2 | PLACE_UNKNOWN)
    side.move(3, SENT_QOS_1)
    side.rare_steps().received = with_id(None, 9)
    assert side.carry(1) == [
        (1, 7, SENT_QOS_2 | PLACE_UNKNOWN),
        (1, 3, SENT_QOS_1),
        (1, 9, RECEIVED | PLACE_UNKNOWN),
    ]
