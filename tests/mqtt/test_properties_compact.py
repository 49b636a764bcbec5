"""A section that is kept as bytes is the same section, and takes little memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.mqtt import NO_PROPERTIES, Message, Properties
from semel.mqtt.properties import (
    TOPIC_ALIAS,
    USER_PROPERTY,
    encode_properties,
    properties_size,
)
from semel.mqtt.rules import PROPERTY_ONCE
from tests.broker.by_hand import memory
from tests.modes import repeats
from tests.mqtt.strategies import properties
from tests.mqtt.verdicts import refuses

MANY = Properties(
    content_type="text/plain",
    correlation_data=b"\x00\xff",
    payload_format_indicator=1,
    topic_alias=7,
    subscription_identifiers=[1, 300],
    user_properties=[("unit", "°C"), ("", ""), ("unit", "°C")],
)


def copied(section: Properties) -> Properties:
    return Properties(section.items)


def compacted(section: Properties) -> Properties:
    return copied(section).compact()


def check_same(found: Properties, expected: Properties) -> None:
    assert found == expected
    assert hash(found) == hash(expected)
    assert repr(found) == repr(expected)
    assert found.items == expected.items
    assert found.present == expected.present
    assert encode_properties(found) == encode_properties(expected)
    assert properties_size(found) == properties_size(expected)


@settings(max_examples=repeats(300, 60))
@given(st.sampled_from(["PUBLISH", "CONNECT", "CONNACK", "WILL"]).flatmap(properties))
def test_a_compact_section_says_what_it_said(section: Properties) -> None:
    check_same(compacted(section), section)


def test_each_property_of_a_compact_section_can_be_asked_for() -> None:
    compact = compacted(MANY)
    assert compact.content_type == "text/plain"
    assert compact.correlation_data == b"\x00\xff"
    assert compact.topic_alias == 7
    assert compact.subscription_identifiers == (1, 300)
    assert compact.user_properties == (("unit", "°C"), ("", ""), ("unit", "°C"))
    assert compact.reason_string is None
    assert compact.has(TOPIC_ALIAS)


def test_compacting_again_changes_nothing() -> None:
    compact = compacted(MANY)
    assert compact.compact() is compact
    few = Properties(content_type="x")
    assert few.compact() is few


@pytest.mark.parametrize("section", [NO_PROPERTIES, Properties(content_type="x"), MANY])
def test_a_section_before_another_is_one_section(section: Properties) -> None:
    first = [(USER_PROPERTY, (f"{number}", "first")) for number in range(6)]
    whole = Properties([*first, *section.items])
    for second in (copied(section), compacted(section)):
        joined = Properties(first, before=second)
        check_same(joined, whole)
        check_same(joined.compact(), whole)
        check_same(Properties(first, before=second, as_bytes=True), whole)
        check_same(second, section)


def test_neither_part_may_repeat_what_the_other_has() -> None:
    for second in (copied(MANY), compacted(MANY)):
        with refuses(PROPERTY_ONCE):
            Properties(topic_alias=1, before=second)
    assert Properties(user_properties=[("a", "b")], before=MANY).has(TOPIC_ALIAS)


@pytest.mark.parametrize("count", [4, 5, 1_000])
def test_a_message_counts_its_properties_alike_however_they_are_kept(count: int) -> None:
    """What a store has counted is what the message has that comes back from it."""
    pairs = [("key", f"{number}") for number in range(count)]
    message = Message("t", b"x", qos=1, properties=Properties(user_properties=pairs))
    again = Message("t", b"x", qos=1, properties=copied(message.properties))
    joined = Message("t", b"x", qos=1, properties=Properties(before=message.properties))
    assert message.size == again.size == joined.size
    assert message == again


@pytest.mark.slow
def test_a_message_takes_about_what_its_properties_have_as_bytes() -> None:
    """As objects, empty user properties take 26 times as much"""
    with memory() as held:
        kept = [
            Message("t", properties=Properties(user_properties=[("", "")] * 2_000))
            for _ in range(repeats(100, 20))
        ]
        size = sum(message.size for message in kept)
        assert held() < 2 * size
        expiring = [
            message.publish(0, 0.0, 5, dup=False)
            for message in (
                Message("t", properties=message.properties, expires_at=9.0) for message in kept
            )
        ]
        assert len(expiring) == len(kept)
        assert held() < 3 * size
