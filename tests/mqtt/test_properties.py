"""The 27 properties: their table, their values, where they may stand, and their bytes."""

from collections.abc import Callable
from typing import Any

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    PACKET_NAMES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
    Will,
    properties,
    rules,
)
from semel.mqtt.properties import (
    USER_PROPERTY,
    PropertyItem,
    check_properties,
    check_properties_allowed,
    check_properties_version,
    check_property,
    check_property_known,
    encode_properties,
    is_property,
    properties_size,
    property_identifier,
    read_properties,
    read_section,
)
from semel.mqtt.properties import properties_of as section_of
from semel.mqtt.property_values import PropertyValue
from semel.mqtt.violation import Rule
from semel.mqtt.wire import Reader
from tests.mqtt.standard_tables import NOT_ZERO, PROPERTIES, properties_of
from tests.mqtt.verdicts import refuses, section

# Of each type: a value, its hex, and values of that Python type that may not be sent.
VALUES: dict[str, tuple[PropertyValue, str, tuple[PropertyValue, ...]]] = {
    "flag": (1, "01", (-1, 2, 255, 256)),
    "two": (258, "0102", (-1, 65_536, 10**30)),
    "four": (16_909_060, "01020304", (-1, 2**32, 10**30)),
    "variable": (200, "c801", (-1, 2**28, 10**30)),
    "text": ("é", "0002c3a9", ("\0", "\ud800", "a" * 65_536)),
    "binary": (b"\x00\xff", "000200ff", (bytes(65_536),)),
    "pair": (
        ("k", "v"),
        "00016b000176",
        (("\0", "v"), ("k", "\0"), ("\ud800", ""), ("", "\udfff")),
    ),
}
LARGEST: dict[str, PropertyValue] = {
    "flag": 1,
    "two": 65_535,
    "four": 2**32 - 1,
    "variable": 2**28 - 1,
    "text": "a" * 65_535,
    "binary": bytes(65_535),
    "pair": ("a" * 65_535, "b" * 65_535),
}
IDENTIFIERS = [row[0] for row in PROPERTIES]
SEVERAL = {"subscription_identifiers", "user_properties"}
EACH = pytest.mark.parametrize(
    ("identifier", "name", "kind"),
    [row[:3] for row in PROPERTIES],
    ids=[row[1] for row in PROPERTIES],
)


def by_keyword(name: str, value: Any) -> Properties:
    keywords: dict[str, Any] = {name: [value] if name in SEVERAL else value}
    return Properties(**keywords)


def written(section_of: Properties) -> str:
    return encode_properties(section_of).hex()


def received(data: str) -> Properties:
    content = bytes.fromhex(data)
    return section_of(read_section(Reader(content, 0, len(content), MQTT5)))


def read(data: str, version: int = MQTT5) -> list[PropertyItem]:
    content = bytes.fromhex(data)
    return read_properties(Reader(content, 0, len(content), version))


@EACH
def test_a_property_has_the_identifier_and_type_of_the_standard(
    identifier: int, name: str, kind: str
) -> None:
    value, data, _ = VALUES[kind]
    expected = section(f"{identifier:02x}{data}")
    one = by_keyword(name, value)
    assert one == Properties([(identifier, value)])
    assert one.items == ((identifier, value),)
    assert written(one) == expected
    assert read(expected) == [(identifier, value)]
    assert property_identifier(name) == identifier
    assert is_property(identifier)
    assert one.has(identifier)


@EACH
def test_a_property_is_read_back_by_its_name_and_absent_without_it(
    identifier: int, name: str, kind: str
) -> None:
    value, _, _ = VALUES[kind]
    one = by_keyword(name, value)
    assert getattr(one, name) == ((value,) if name in SEVERAL else value)
    for _, other, _, _ in PROPERTIES:
        if other != name:
            assert getattr(one, other) == (() if other in SEVERAL else None)
    assert not any(one.has(other) for other in IDENTIFIERS if other != identifier)


def test_a_property_is_found_wherever_it_stands() -> None:
    one = Properties([(38, ("a", "b")), (1, 1), (3, "t")])
    assert (one.payload_format_indicator, one.content_type, one.topic_alias) == (1, "t", None)


@EACH
def test_a_property_takes_its_largest_value_and_refuses_those_beyond(
    identifier: int, name: str, kind: str
) -> None:
    largest = LARGEST[kind]
    assert read(written(by_keyword(name, largest))) == [(identifier, largest)]
    for value in VALUES[kind][2]:
        with pytest.raises(Violation) as caught:
            by_keyword(name, value)
        assert caught.value.rule in {
            "flag": {rules.PROPERTY_IS_0_OR_1},
            "two": {rules.INTEGER_FITS_ITS_FIELD},
            "four": {rules.INTEGER_FITS_ITS_FIELD},
            "variable": {rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES},
            "binary": {rules.BINARY_FITS_ITS_LENGTH},
        }.get(kind, {rules.TEXT_WITHOUT_NUL, rules.TEXT_WELL_FORMED, rules.TEXT_FITS_ITS_LENGTH})


@EACH
def test_zero_is_refused_where_the_standard_says_so_and_only_there(
    identifier: int, name: str, kind: str
) -> None:
    if kind in {"text", "binary", "pair"}:
        return
    if identifier in NOT_ZERO:
        rule = rules.TOPIC_ALIAS_NOT_ZERO if identifier == 35 else rules.PROPERTY_NOT_ZERO
        with refuses(rule):
            by_keyword(name, 0)
        assert by_keyword(name, 1)
    else:
        assert by_keyword(name, 0).items == ((identifier, 0),)


@EACH
def test_a_value_of_another_type_is_a_type_error(identifier: int, name: str, kind: str) -> None:
    right = {"text": str, "binary": bytes, "pair": tuple}.get(kind, int)
    for value in (1, "a", b"a", ("a", "b")):
        if not isinstance(value, right):
            with pytest.raises(TypeError):
                Properties([(identifier, value)])


@EACH
def test_only_two_properties_may_be_repeated(identifier: int, name: str, kind: str) -> None:
    value = VALUES[kind][0]
    twice: list[PropertyItem] = [(identifier, value), (identifier, value)]
    if name in SEVERAL:
        assert Properties(twice).items == tuple(twice)
        assert getattr(Properties(twice), name) == (value, value)
    else:
        with refuses(rules.PROPERTY_ONCE):
            Properties(twice)


@pytest.mark.parametrize("identifier", sorted({*range(-1, 300), 10**30} - {*IDENTIFIERS}))
def test_an_identifier_that_the_standard_does_not_define_is_refused(identifier: int) -> None:
    assert not is_property(identifier)
    with refuses(rules.PROPERTY_KNOWN):
        Properties([(identifier, 0)])
    found: list[Violation] = []
    check_property_known(identifier, found)
    assert [violation.rule for violation in found] == [rules.PROPERTY_KNOWN]


def test_a_name_that_no_property_has_has_no_identifier() -> None:
    assert property_identifier("topic_name") == 0
    assert property_identifier("") == 0


# --- where each may stand -------------------------------------------------------------------------

WITH_METHOD = Properties(authentication_method="m")
CARRIERS: dict[str, Callable[[Properties], Packet | Will]] = {
    "CONNECT": lambda section_of: Connect(properties=section_of),
    "WILL": lambda section_of: Will("a", properties=section_of),
    "CONNACK": lambda section_of: ConnAck(properties=section_of),
    "PUBLISH": lambda section_of: Publish("a", properties=section_of),
    "PUBACK": lambda section_of: PubAck(1, properties=section_of),
    "PUBREC": lambda section_of: PubRec(1, properties=section_of),
    "PUBREL": lambda section_of: PubRel(1, properties=section_of),
    "PUBCOMP": lambda section_of: PubComp(1, properties=section_of),
    "SUBSCRIBE": lambda section_of: Subscribe(1, [Subscription("a")], properties=section_of),
    "SUBACK": lambda section_of: SubAck(1, [0], properties=section_of),
    "UNSUBSCRIBE": lambda section_of: Unsubscribe(1, ["a"], properties=section_of),
    "UNSUBACK": lambda section_of: UnsubAck(1, [0], properties=section_of),
    "DISCONNECT": lambda section_of: Disconnect(properties=section_of),
    "AUTH": lambda section_of: Auth(0, properties=section_of),
}


@pytest.mark.parametrize("packet", CARRIERS)
def test_a_packet_takes_exactly_the_properties_that_the_standard_lists_for_it(packet: str) -> None:
    build = CARRIERS[packet]
    for identifier, _, kind, packets in PROPERTIES:
        items: list[PropertyItem] = [(identifier, VALUES[kind][0])]
        # Two packets demand a method beside their data; that is another rule's business.
        if identifier == 22 or (packet == "AUTH" and identifier != 21):
            items.append((21, "m"))
        if packet in packets.split():
            assert build(Properties(items)).properties == Properties(items)  # type: ignore[union-attr]
        else:
            with refuses(rules.PROPERTY_IN_ITS_PACKET):
                build(Properties(items))


@pytest.mark.parametrize("packet_type", range(16))
def test_the_check_knows_every_packet_type(packet_type: int) -> None:
    allowed = properties_of(PACKET_NAMES[packet_type])
    for identifier, name, _, _ in PROPERTIES:
        found: list[Violation] = []
        check_properties_allowed(packet_type, 1 << identifier, found)
        expected = [] if identifier in allowed else [rules.PROPERTY_IN_ITS_PACKET]
        assert [violation.rule for violation in found] == expected
        assert all(violation.seen.startswith(f"{name} in ") for violation in found)


def test_only_5_has_properties() -> None:
    check_properties_version(WITH_METHOD.present, MQTT5)
    check_properties_version(NO_PROPERTIES.present, MQTT311)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        check_properties_version(WITH_METHOD.present, MQTT311)


# --- Response Topic is a Topic Name ---------------------------------------------------------------


def test_a_response_topic_is_a_topic_name() -> None:
    assert Properties(response_topic="a/*").response_topic == "a/*"
    with refuses(rules.TOPIC_NAME_NOT_EMPTY):
        Properties(response_topic="")
    for name in ("a/+", "#"):
        with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
            Properties(response_topic=name)
        assert Properties(content_type=name).content_type == name


# --- sections as bytes ----------------------------------------------------------------------------


def test_an_empty_section_is_one_zero_byte() -> None:
    assert written(NO_PROPERTIES) == "00"
    assert read("00") == []


def test_311_has_no_section_to_read() -> None:
    assert read("0103", MQTT311) == []


def test_a_section_of_128_bytes_has_a_length_of_two() -> None:
    one = Properties(content_type="a" * 125)
    assert written(one) == "800103007d" + "61" * 125
    assert read(written(one)) == list(one.items)


def test_the_order_of_a_section_is_kept() -> None:
    items: list[PropertyItem] = [(38, ("a", "1")), (1, 0), (38, ("a", "2")), (38, ("a", "1"))]
    assert read(written(Properties(items))) == items


def test_keywords_come_after_items_the_repeatable_ones_last() -> None:
    one = Properties(
        [(3, "t")],
        user_properties=[("a", "1")],
        subscription_identifiers=[5, 1],
        topic_alias=2,
    )
    assert one.items == ((3, "t"), (35, 2), (11, 5), (11, 1), (38, ("a", "1")))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("", rules.FIELD_WITHIN_PACKET),
        ("02 01", rules.FIELD_WITHIN_PACKET),
        ("01 01 00", rules.FIELD_WITHIN_PACKET),
        ("02 02 00 000000", rules.FIELD_WITHIN_PACKET),
        ("03 03 0001 61", rules.FIELD_WITHIN_PACKET),
        ("02 0b 80 01", rules.FIELD_WITHIN_PACKET),
        ("02 04 00", rules.PROPERTY_KNOWN),
        ("02 00 00", rules.PROPERTY_KNOWN),
        ("03 ac02 00", rules.PROPERTY_KNOWN),
        ("03 8100 01", rules.VARIABLE_BYTE_INTEGER_SHORTEST),
        ("8200 01 01", rules.VARIABLE_BYTE_INTEGER_SHORTEST),
        ("03 0b 8100", rules.VARIABLE_BYTE_INTEGER_SHORTEST),
        ("80808080 01", rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES),
        ("05 0b 80808080 01", rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES),
    ],
)
def test_a_section_that_cannot_be_read_is_refused(data: str, rule: Any) -> None:
    with refuses(rule):
        read(data)


def test_an_observer_reads_on_after_a_section_with_an_unknown_property() -> None:
    found: list[Violation] = []
    content = bytes.fromhex("06 0101 04 010101 ff")
    reader = Reader(content, 0, len(content), MQTT5, found)
    assert read_properties(reader) == [(1, 1)]
    assert [violation.rule for violation in found] == [rules.PROPERTY_KNOWN]
    assert reader.rest("rest") == b"\xff"


def test_an_observer_hears_of_every_fault_of_a_section() -> None:
    found: list[Violation] = []
    items: list[PropertyItem] = [(1, 2), (1, 1), (33, 0), (35, 0), (8, "+"), (3, "\0"), (11, 0)]
    assert check_properties(items, found) == sum(1 << number for number in (1, 33, 35, 8, 3, 11))
    assert [violation.rule for violation in found] == [
        rules.PROPERTY_IS_0_OR_1,
        rules.PROPERTY_ONCE,
        rules.PROPERTY_NOT_ZERO,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.TOPIC_NAME_WITHOUT_WILDCARDS,
        rules.TEXT_WITHOUT_NUL,
        rules.PROPERTY_NOT_ZERO,
    ]


def test_one_value_can_be_checked_alone() -> None:
    check_property(33, 1, None)
    with refuses(rules.PROPERTY_NOT_ZERO):
        check_property(33, 0, None)


# --- the class ------------------------------------------------------------------------------------


def test_sections_are_equal_when_they_say_the_same_in_the_same_order() -> None:
    one = Properties(topic_alias=1, content_type="t")
    same = Properties([(3, "t"), (35, 1)])
    assert one == same
    assert hash(one) == hash(same)
    assert one != Properties([(35, 1), (3, "t")])
    assert one != Properties(topic_alias=1)
    assert one != "Properties"
    assert Properties() == NO_PROPERTIES


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (NO_PROPERTIES, "Properties()"),
        (Properties(topic_alias=1), "Properties(topic_alias=1)"),
        (
            Properties(
                user_properties=[("a", "b")], subscription_identifiers=[1, 2], content_type="t"
            ),
            "Properties(content_type='t', subscription_identifiers=(1, 2), "
            "user_properties=(('a', 'b'),))",
        ),
        (
            Properties(authentication_method="m", authentication_data=b"secret"),
            "Properties(authentication_method='m', authentication_data=<6 bytes>)",
        ),
        (Properties(correlation_data=b"\x01"), "Properties(correlation_data=b'\\x01')"),
    ],
)
def test_the_repr_is_the_call_that_makes_it_but_for_secrets(one: Properties, expected: str) -> None:
    assert repr(one) == expected


def test_every_identifier_has_a_constant_of_its_name() -> None:
    for identifier, name, _, _ in PROPERTIES:
        constant = {
            "subscription_identifiers": "SUBSCRIPTION_IDENTIFIER",
            "user_properties": "USER_PROPERTY",
        }.get(name, name.upper())
        assert getattr(properties, constant) == identifier


@pytest.mark.parametrize("value", ["ab", ("a",), ("a", "b", "c"), 7])
def test_a_user_property_is_a_pair_and_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError):
        Properties([(USER_PROPERTY, value)])
    assert Properties([(USER_PROPERTY, ("a", "b"))]).user_properties == (("a", "b"),)


def test_a_section_that_was_read_becomes_properties_and_an_empty_one_none() -> None:
    assert received("00") is NO_PROPERTIES
    assert received("03230003") == Properties(topic_alias=3)
    with refuses(rules.TOPIC_ALIAS_NOT_ZERO):
        received("03230000")


@EACH
def test_a_received_property_has_the_value_and_the_size_of_a_constructed_one(
    identifier: int, name: str, kind: str
) -> None:
    value, data, _ = VALUES[kind]
    one = by_keyword(name, value)
    other = received(section(f"{identifier:02x}{data}"))
    assert other == one
    assert getattr(other, name) == getattr(one, name)
    assert properties_size(other) == properties_size(one)
    assert written(other) == written(one)


def test_each_property_of_a_received_section_is_found_behind_the_others() -> None:
    every = Properties([(identifier, VALUES[kind][0]) for identifier, _, kind, *_ in PROPERTIES])
    other = received(written(every))
    assert other == every
    assert other.present == every.present
    assert properties_size(other) == properties_size(every)
    for _, name, *_ in PROPERTIES:
        assert getattr(other, name) == getattr(every, name)


@pytest.mark.parametrize("text", ["", " ", "~\x01\x7f", "é", "\U0001f600", "a" * 65_535])
def test_a_received_text_is_valid(text: str) -> None:
    one = Properties(reason_string=text, user_properties=[(text, "v"), ("k", text)])
    assert received(written(one)) == one


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("00", rules.TEXT_WITHOUT_NUL),
        ("6100", rules.TEXT_WITHOUT_NUL),
        ("c3a900", rules.TEXT_WITHOUT_NUL),
        ("80", rules.TEXT_WELL_FORMED),
        ("eda080", rules.TEXT_WELL_FORMED),
        ("c080", rules.TEXT_WELL_FORMED),
    ],
)
def test_a_received_text_is_refused_in_each_place(text: str, rule: Rule) -> None:
    bad = f"{len(text) // 2:04x}{text}"
    for data in (f"1f{bad}", f"26{bad}000176", f"2600016b{bad}"):
        with refuses(rule):
            received(section(data))


def test_a_packet_is_read_to_its_end_before_a_property_is_refused() -> None:
    with refuses(rules.FIELD_WITHIN_PACKET):
        received("0523000023ff")
    with refuses(rules.TOPIC_ALIAS_NOT_ZERO):
        received("0623000023ffff")
    with refuses(rules.PROPERTY_ONCE):
        received("0623000123ffff")


def test_the_size_of_properties_grows_with_every_text_and_every_item() -> None:
    assert properties_size(Properties()) == 0
    short = properties_size(Properties(content_type="a"))
    assert properties_size(Properties(content_type="a" * 100)) == short + 99
    assert properties_size(Properties(content_type="é" * 100)) == short + 199
    assert properties_size(Properties(correlation_data=bytes(100))) == short + 99
    assert properties_size(Properties(user_properties=[("ab", "c")])) == short + 2
    assert 0 < properties_size(Properties(topic_alias=1)) < short
