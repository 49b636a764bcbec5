"""Bytes to packets and back: framing, streams in pieces, and what holds for every packet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.mqtt import (
    LARGEST_PACKET,
    MQTT5,
    MQTT311,
    PACKET_NAMES,
    Auth,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    decode,
    encode,
    packet_type_of,
    rules,
)
from semel.mqtt.codec import check_fixed_flags, check_packet_size, read_frame
from semel.mqtt.packet_types import first_byte
from tests.modes import repeats
from tests.mqtt.standard_tables import PACKETS
from tests.mqtt.strategies import inputs, packets, streams, with_version
from tests.mqtt.verdicts import BOTH, check_refused, framed, refuses, variable

ONE_OF_EACH: dict[str, tuple[Packet, str, str]] = {
    "CONNECT": (Connect("a", version=MQTT311), "100d00044d51545404020000000161", ""),
    "CONNACK": (ConnAck(), "20020000", "2003000000"),
    "PUBLISH": (Publish("a", b"x"), "300400016178", "30050001610078"),
    "PUBACK": (PubAck(7), "40020007", "40020007"),
    "PUBREC": (PubRec(7), "50020007", "50020007"),
    "PUBREL": (PubRel(7), "62020007", "62020007"),
    "PUBCOMP": (PubComp(7), "70020007", "70020007"),
    "SUBSCRIBE": (Subscribe(7, [Subscription("a", 1)]), "8206000700016101", "820700070000016101"),
    "SUBACK": (SubAck(7, [1]), "9003000701", "900400070001"),
    "UNSUBSCRIBE": (Unsubscribe(7, ["a"]), "a2050007000161", "a206000700000161"),
    "UNSUBACK": (UnsubAck(7), "b0020007", ""),
    "PINGREQ": (PingReq(), "c000", "c000"),
    "PINGRESP": (PingResp(), "d000", "d000"),
    "DISCONNECT": (Disconnect(), "e000", "e000"),
    "AUTH": (Auth(0x18, properties=Properties(authentication_method="m")), "", "f00618041500016d"),
}


# --- one packet -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_each_packet_has_its_type_and_its_bytes(name: str) -> None:
    packet, in_311, in_5 = ONE_OF_EACH[name]
    assert PACKET_NAMES[packet_type_of(packet)] == name
    for version, data in ((MQTT311, in_311), (MQTT5, in_5)):
        if data:
            assert encode(packet, version).hex() == data
            assert decode(bytes.fromhex(data), version) == (packet, len(data) // 2)


def test_5_is_the_version_unless_another_is_named() -> None:
    assert encode(ConnAck()).hex() == "2003000000"
    assert decode(bytes.fromhex("2003000000")) == (ConnAck(), 5)
    assert Decoder().receive(bytes.fromhex("2003000000")) == [ConnAck()]


@pytest.mark.parametrize("version", BOTH)
def test_type_0_is_refused_and_type_15_in_311(version: int) -> None:
    check_refused(b"\x00\x00", version, rules.PACKET_TYPE_KNOWN)
    if version == MQTT311:
        check_refused(b"\xf0\x00", version, rules.PACKET_TYPE_KNOWN)


@pytest.mark.parametrize(("packet_type", "name", "flags"), PACKETS)
def test_the_flags_of_a_type_are_those_of_the_standard(
    packet_type: int, name: str, flags: int | None
) -> None:
    assert PACKET_NAMES[packet_type] == name
    if flags is not None:
        assert first_byte(packet_type) == packet_type << 4 | flags
    for others in range(16):
        found: list[Violation] = []
        check_fixed_flags(packet_type, others, found)
        right = flags is None or others == flags
        assert [each.rule for each in found] == ([] if right else [rules.FIXED_HEADER_FLAGS])
        if not right:
            with refuses(rules.FIXED_HEADER_FLAGS):
                decode(bytes((packet_type << 4 | others,)), MQTT5)


@pytest.mark.parametrize("version", BOTH)
def test_a_first_byte_that_is_wrong_is_refused_before_anything_follows(version: int) -> None:
    with refuses(rules.PACKET_TYPE_KNOWN):
        decode(b"\x0f", version)
    with refuses(rules.FIXED_HEADER_FLAGS):
        decode(b"\xc1", version)
    assert decode(b"\xc0", version) is None


@pytest.mark.parametrize("first", [0xC0, 0xD0])
@pytest.mark.parametrize("version", BOTH)
def test_a_packet_without_fields_has_no_body(version: int, first: int) -> None:
    assert decode(bytes((first, 0)), version) is not None
    check_refused(framed(first, "00"), version, rules.NO_SURPLUS_BYTES)


# --- Remaining Length -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_remaining_length_says_where_a_packet_ends(size: int) -> None:
    header = b"\x30" + variable(size)
    assert read_frame(header, 0) == (0x30, len(header), len(header) + size, False)
    assert read_frame(b"\xff" + header, 1) == (0x30, len(header) + 1, len(header) + size + 1, False)


def test_a_header_that_is_not_all_there_says_nothing_yet() -> None:
    assert read_frame(b"", 0) == (0, 0, 0, False)
    for data in ("30", "3080", "308080", "30808080"):
        assert read_frame(bytes.fromhex(data), 0) == (0x30, 0, 0, False)
        assert decode(bytes.fromhex(data), MQTT311) is None
    assert decode(b"", MQTT5) is None
    assert decode(b"\xc0\x00", MQTT5, start=2) is None
    assert decode(b"\xc0\x00", MQTT5, start=9) is None


@pytest.mark.parametrize("version", BOTH)
def test_a_remaining_length_of_five_bytes_is_refused_at_its_fourth(version: int) -> None:
    assert decode(bytes.fromhex("30ffffff"), version) is None
    assert decode(bytes.fromhex("30ffffff7f"), version) is None
    for data in ("30ffffffff", "3080808080", "308080808001"):
        check_refused(bytes.fromhex(data), version, rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES)


@pytest.mark.parametrize("data", ["c08000", "c0808000", "c080808000", "30848000 00016178"])
def test_a_remaining_length_longer_than_needed_is_refused_in_5_and_read_in_311(data: str) -> None:
    content = bytes.fromhex(data)
    packet: Packet = Publish("a", b"x") if content[0] == 0x30 else PingReq()
    assert decode(content, MQTT311) == (packet, len(content))
    if content[0] != 0x30:
        check_refused(content, MQTT5, rules.VARIABLE_BYTE_INTEGER_SHORTEST)
    in_5 = framed(0x30, "0001610078")
    stretched = in_5[:1] + bytes((in_5[1] | 0x80, 0)) + in_5[2:]
    check_refused(stretched, MQTT5, rules.VARIABLE_BYTE_INTEGER_SHORTEST)


def test_the_length_of_a_connect_is_judged_by_the_version_that_it_names() -> None:
    for version in BOTH:
        packet = Connect("a", version=version)
        data = encode(packet)
        stretched = data[:1] + bytes((data[1] | 0x80, 0)) + data[2:]
        for told in BOTH:
            if version == MQTT311:
                assert decode(stretched, told) == (packet, len(stretched))
            else:
                check_refused(stretched, told, rules.VARIABLE_BYTE_INTEGER_SHORTEST)


def test_the_largest_packet_is_five_bytes_and_the_longest_body() -> None:
    assert LARGEST_PACKET == 1 + 4 + 268_435_455


# --- positions ------------------------------------------------------------------------------------


def test_decode_begins_where_it_is_told_and_says_where_it_ended() -> None:
    data = bytes.fromhex("ff c000 40020007 d0")
    assert decode(data, MQTT5, start=1) == (PingReq(), 3)
    assert decode(data, MQTT5, start=3) == (PubAck(7), 7)
    assert decode(data, MQTT5, start=7) is None


@pytest.mark.parametrize("version", BOTH)
def test_a_field_cannot_reach_into_the_next_packet(version: int) -> None:
    with refuses(rules.FIELD_WITHIN_PACKET):
        decode(bytes.fromhex("3003 0005 61 30040001"), version)


# --- violations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_violation_knows_version_and_packet_type(version: int) -> None:
    for data, packet_type in (("40020000", 4), ("0000", 0), ("c1", 12), ("30 01 00", 3)):
        with pytest.raises(Violation) as caught:
            decode(bytes.fromhex(data), version)
        assert (caught.value.version, caught.value.packet_type) == (version, packet_type)


def test_a_violation_in_a_connect_has_the_version_of_the_connect() -> None:
    for version in BOTH:
        data = bytearray(encode(Connect("a", version=version)))
        data[-1] = 0
        for told in BOTH:
            with pytest.raises(Violation) as caught:
                decode(bytes(data), told)
            assert caught.value.rule is rules.TEXT_WITHOUT_NUL
            assert caught.value.version == version


def test_a_violation_of_encode_knows_version_and_packet_type() -> None:
    packet = PubAck(7, 0x87)
    with pytest.raises(Violation) as caught:
        encode(packet, MQTT311)
    assert caught.value.rule is rules.REASON_CODE_IN_TABLE
    assert (caught.value.version, caught.value.packet_type) == (MQTT311, 4)
    assert caught.value.statements == ()
    assert encode(packet, MQTT5).hex() == "4003000787"


# --- size -----------------------------------------------------------------------------------------


def test_a_packet_of_exactly_the_maximum_is_taken() -> None:
    data = bytes.fromhex("300400016178")
    assert decode(data, MQTT311, maximum_packet_size=6) == (Publish("a", b"x"), 6)
    with refuses(rules.PACKET_SIZE_WITHIN_MAXIMUM):
        decode(data, MQTT311, maximum_packet_size=5)
    assert decode(b"\xc0" + data, MQTT311, start=1, maximum_packet_size=6) is not None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**28 - 1), st.integers(1, 2**28 + 10))
def test_a_packet_too_large_is_refused_from_its_header_alone(size: int, maximum: int) -> None:
    header = b"\x30" + variable(size)
    if len(header) + size > maximum:
        with refuses(rules.PACKET_SIZE_WITHIN_MAXIMUM):
            decode(header, MQTT5, maximum_packet_size=maximum)
    elif size:
        assert decode(header, MQTT5, maximum_packet_size=maximum) is None


def test_sizes_can_be_checked_alone() -> None:
    check_packet_size(5, 5, None)
    found: list[Violation] = []
    check_packet_size(6, 5, found)
    assert [each.rule for each in found] == [rules.PACKET_SIZE_WITHIN_MAXIMUM]


# --- Decoder --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_decoder_gives_packets_as_they_become_complete(version: int) -> None:
    decoder = Decoder(version)
    assert decoder.receive(b"") == []
    assert decoder.receive(bytes.fromhex("c0")) == []
    assert decoder.receive(bytes.fromhex("00 4002")) == [PingReq()]
    assert decoder.receive(bytes.fromhex("00")) == []
    assert decoder.receive(bytes.fromhex("07 d000 c000 e0")) == [PubAck(7), PingResp(), PingReq()]
    assert decoder.receive(b"\x00") == [Disconnect()]


def test_a_connect_sets_the_version_of_what_follows() -> None:
    for version in BOTH:
        for told in BOTH:
            publish = Publish("a", b"x")
            decoder = Decoder(told)
            connect = Connect("a", version=version)
            data = encode(connect) + encode(publish, version)
            assert decoder.receive(data) == [connect, publish]
            assert decoder.version == version


def test_a_violation_is_the_last_that_a_decoder_gives() -> None:
    decoder = Decoder(MQTT5)
    first, second = decoder.receive(bytes.fromhex("c000 c100 c000"))
    assert first == PingReq()
    assert isinstance(second, Violation)
    assert second.rule is rules.FIXED_HEADER_FLAGS
    assert decoder.receive(bytes.fromhex("c000")) == []
    assert decoder.receive(b"") == []


def test_a_decoder_refuses_a_packet_above_its_maximum_once_its_length_is_known() -> None:
    decoder = Decoder(MQTT311, maximum_packet_size=6)
    assert decoder.receive(bytes.fromhex("300400016178 30")) == [Publish("a", b"x")]
    (violation,) = decoder.receive(b"\x05")
    assert isinstance(violation, Violation)
    assert violation.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM


@settings(max_examples=100, deadline=None, derandomize=True)
@given(with_version(inputs), st.data())
def test_a_decoder_keeps_no_more_than_its_maximum(
    drawn: tuple[int, bytes], data: st.DataObject
) -> None:
    version, content = drawn
    maximum = data.draw(st.integers(5, 40))
    decoder = Decoder(version, maximum_packet_size=maximum)
    at = 0
    while at < len(content):
        size = data.draw(st.integers(1, 20))
        decoder.receive(content[at : at + size])
        at += size
        assert decoder.unfinished < maximum


def test_a_large_packet_in_many_pieces_costs_time_in_proportion() -> None:
    # Joined anew at each piece, 2 MB in pieces of 64 bytes would mean copying 32 GB.
    packet = Publish("a", bytes(2_000_000))
    data = encode(packet)
    decoder = Decoder(MQTT5)
    received: list[Packet | Violation] = []
    for at in range(0, len(data), 64):
        received += decoder.receive(data[at : at + 64])
    assert received == [packet]


# --- what holds for all ---------------------------------------------------------------------------


def told(outcomes: list[Packet | Violation]) -> list[object]:
    """Packets as they are; of a violation, all that it says."""
    return [
        (each.rule, each.seen, each.version, each.packet_type)
        if isinstance(each, Violation)
        else each
        for each in outcomes
    ]


def received(version: int, pieces: list[bytes]) -> list[object]:
    decoder = Decoder(version)
    outcomes: list[Packet | Violation] = []
    for piece in pieces:
        outcomes += decoder.receive(piece)
    return told(outcomes)


@settings(max_examples=repeats(400, 100), deadline=None, derandomize=True)
@given(with_version(packets))
def test_what_was_encoded_is_decoded_to_the_same(drawn: tuple[int, Packet]) -> None:
    version, packet = drawn
    data = encode(packet, version)
    assert decode(data, version) == (packet, len(data))
    assert decode(data[:-1], version) is None
    assert decode(data + b"\xff", version) == (packet, len(data))


@settings(max_examples=repeats(200, 100), deadline=None, derandomize=True)
@given(with_version(lambda version: st.lists(packets(version), max_size=4)))
def test_a_stream_is_its_packets_however_it_is_cut(drawn: tuple[int, list[Packet]]) -> None:
    version, expected = drawn
    # A CONNECT in mid-stream speaks the version of the stream here, so that nothing changes.
    data = b"".join(encode(packet, version) for packet in expected)
    assert received(version, [data]) == expected
    assert received(version, [data[at : at + 1] for at in range(len(data))]) == expected


@settings(max_examples=repeats(500, 150), deadline=None, derandomize=True)
@given(with_version(inputs), st.data())
def test_any_bytes_are_packets_or_nothing_yet_or_a_violation(
    drawn: tuple[int, bytes], data: st.DataObject
) -> None:
    version, content = drawn
    expected: list[object] = []
    at = 0
    current = version
    while True:
        try:
            result = decode(content, current, start=at)
        except Violation as violation:
            expected += told([violation])
            break
        if result is None:
            break
        packet, end = result
        assert at < end <= len(content)
        at = end
        expected.append(packet)
        if isinstance(packet, Connect):
            current = packet.version
        again = encode(packet, current)
        assert decode(again, current) == (packet, len(again))
    assert received(version, [content]) == expected
    assert received(version, [content[i : i + 1] for i in range(len(content))]) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert received(version, pieces) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(with_version(streams))
def test_a_stream_cut_short_waits_and_never_complains(drawn: tuple[int, bytes]) -> None:
    version, data = drawn
    for end in range(len(data)):
        for outcome in Decoder(version).receive(data[:end]):
            assert not isinstance(outcome, Violation)


def test_a_smaller_bound_holds_until_a_connect_has_come() -> None:
    connect = encode(Connect("a"))
    large = encode(Publish("t", bytes(1_000)))
    decoder = Decoder(maximum_packet_size=2_000, before_connect=len(connect))
    assert decoder.receive(connect + large) == [Connect("a"), Publish("t", bytes(1_000))]
    early = Decoder(maximum_packet_size=2_000, before_connect=len(connect))
    (violation,) = early.receive(large)
    assert isinstance(violation, Violation)
    assert violation.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM


def test_a_decoder_gives_packets_one_by_one_and_lets_the_caller_skip() -> None:
    pings = encode(PingReq()) * 3
    decoder = Decoder(MQTT5)
    decoder.feed(pings + b"\xc0")
    assert decoder.next() == PingReq()
    assert decoder.unread() == (pings + b"\xc0", 2)
    assert decoder.position == 2
    decoder.move_to(4)
    assert decoder.next() == PingReq()
    assert decoder.next() is None
    assert decoder.unread() == (b"", 0)
    decoder.feed(b"\x00")
    assert decoder.next() == PingReq()
    assert decoder.next() is None


def test_a_packet_that_the_caller_moved_back_to_comes_before_what_is_fed_next() -> None:
    decoder = Decoder(MQTT5)
    assert not decoder.has_unread()
    decoder.feed(encode(PubAck(1)))
    assert decoder.has_unread()
    assert decoder.next() == PubAck(1)
    assert not decoder.has_unread()
    decoder.move_to(0)
    decoder.feed(encode(PubAck(2)))
    assert (decoder.next(), decoder.next(), decoder.next()) == (PubAck(1), PubAck(2), None)


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Subscribe(1, [Subscription("t")] * 5), MQTT311),
        (Subscribe(1, [Subscription("t")] * 5), MQTT5),
        (Unsubscribe(1, ["t"] * 5), MQTT311),
        (Publish("t", properties=Properties(user_properties=[("k", "v")] * 5)), MQTT5),
        (
            Subscribe(
                1, [Subscription("t")] * 2, properties=Properties(user_properties=[("", "")] * 3)
            ),
            MQTT5,
        ),
    ],
)
def test_a_receiver_may_bound_the_filters_and_properties_of_a_packet(
    packet: Packet, version: int
) -> None:
    """Each is an object of its own: a megabyte of them costs a tenth of a second."""
    data = encode(packet, version)
    assert Decoder(version, maximum_items=5).receive(data) == [packet]
    (violation,) = Decoder(version, maximum_items=4).receive(data)
    assert isinstance(violation, Violation)
    assert violation.rule is rules.PACKET_ITEMS_WITHIN_LIMIT
    assert violation.seen == "more than 4"
    with pytest.raises(Violation):
        decode(data, version, maximum_items=4)


def test_a_decoder_tells_what_it_keeps_of_a_packet_that_is_not_complete() -> None:
    decoder = Decoder()
    packet = encode(Publish("t", bytes(200)))
    assert (decoder.unfinished, decoder.begun, decoder.needed) == (0, 0, 0)
    assert decoder.receive(packet + packet[:1]) == [Publish("t", bytes(200))]
    assert (decoder.unfinished, decoder.begun, decoder.needed) == (1, 1, 0)
    assert decoder.receive(packet[1:100]) == []
    assert (decoder.unfinished, decoder.begun, decoder.needed) == (100, 2, len(packet))
    assert decoder.receive(packet[100:150]) == []
    assert (decoder.unfinished, decoder.begun) == (150, 2)
    assert decoder.receive(packet[150:] + packet[:10]) == [Publish("t", bytes(200))]
    assert (decoder.unfinished, decoder.begun) == (10, 3)
    assert decoder.receive(packet[10:]) == [Publish("t", bytes(200))]
    assert (decoder.unfinished, decoder.begun) == (0, 3)


def test_a_decoder_that_is_given_up_keeps_nothing_and_takes_nothing() -> None:
    decoder = Decoder()
    packet = encode(Publish("t", bytes(200)))
    decoder.feed(packet * 3 + packet[:50])
    assert decoder.next() == Publish("t", bytes(200))
    decoder.give_up()
    assert (decoder.next(), decoder.unfinished, decoder.unread()) == (None, 0, (b"", 0))
    assert decoder.receive(packet) == []
