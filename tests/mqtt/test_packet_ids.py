"""A compact set of packet identifiers."""

import random

from semel.mqtt.packet_ids import PacketIds, has_id, with_id, without_id


def test_it_behaves_as_a_set_of_integers_does() -> None:
    ids = PacketIds()
    reference: set[int] = set()
    choose = random.Random(7)
    for _ in range(5_000):
        packet_id = choose.choice((choose.randint(1, 40), choose.randint(1, 65_535), 65_535))
        if choose.random() < 0.5:
            ids.add(packet_id)
            reference.add(packet_id)
        else:
            ids.discard(packet_id)
            reference.discard(packet_id)
        assert len(ids) == len(reference)
        assert (packet_id in ids) == (packet_id in reference)
    assert ids.listed() == sorted(reference)
    assert 0 not in ids


def test_all_65535_identifiers_fit_and_are_kept_apart() -> None:
    ids = PacketIds()
    for packet_id in range(1, 65_536):
        assert packet_id not in ids
        ids.add(packet_id)
    assert ids.listed() == list(range(1, 65_536))
    for packet_id in range(1, 65_536):
        ids.discard(packet_id)
        assert packet_id not in ids
    assert len(ids) == 0
    assert ids.listed() == []


def test_all_65535_identifiers_take_8_kib() -> None:
    ids = PacketIds()
    assert ids.size == 0
    ids.add(8)
    assert ids.size == 2
    for packet_id in range(1, 65_536):
        ids.add(packet_id)
    assert ids.size == 8_192
    for packet_id in range(1, 65_536):
        ids.discard(packet_id)
    assert ids.size == 0


def test_the_first_of_them_are_the_lowest_and_a_copy_is_a_set_of_its_own() -> None:
    ids = PacketIds()
    for packet_id in (65_535, 9, 8, 7, 300):
        ids.add(packet_id)
    assert [ids.first(count) for count in (0, 1, 3, 9)] == [
        [],
        [7],
        [7, 8, 9],
        [7, 8, 9, 300, 65_535],
    ]
    copied = ids.copy()
    copied.discard(7)
    ids.add(1)
    assert copied.listed() == [8, 9, 300, 65_535]
    assert (len(copied), len(ids)) == (4, 6)


def test_none_is_an_empty_set() -> None:
    assert not has_id(None, 7)
    assert without_id(None, 7) is None
    ids = with_id(None, 7)
    assert with_id(ids, 8) is ids
    assert (has_id(ids, 7), has_id(ids, 8), has_id(ids, 9)) == (True, True, False)
    assert without_id(ids, 7) is ids
    assert without_id(ids, 8) is None
