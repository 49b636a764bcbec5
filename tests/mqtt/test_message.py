"""Messages apart from a connection."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Message,
    Properties,
    Publish,
    Violation,
    received_message,
    rules,
)
from semel.mqtt.message import message_properties, unchanged_properties, without_identifiers
from semel.mqtt.properties import NO_PROPERTIES, encode_properties


def test_a_message_becomes_a_publish_with_identifier_and_dup_of_the_session() -> None:
    message = Message("t", b"x", qos=1, retain=True)
    assert message.publish(7, 0.0, MQTT5, dup=True) == Publish(
        "t", b"x", qos=1, packet_id=7, retain=True, dup=True
    )


def test_a_received_message_keeps_what_the_publisher_said_and_drops_what_the_connection_said() -> (
    None
):
    packet = Publish(
        "",
        b"x",
        qos=2,
        packet_id=9,
        dup=True,
        properties=Properties(
            topic_alias=3,
            message_expiry_interval=60,
            content_type="text/plain",
            subscription_identifiers=[4, 5],
            user_properties=[("b", "2"), ("a", "1")],
        ),
    )
    message = received_message(packet, "plant/1", 1_000.0)
    assert message == Message(
        "plant/1",
        b"x",
        qos=2,
        properties=Properties(content_type="text/plain", user_properties=[("b", "2"), ("a", "1")]),
        expires_at=1_060.0,
    )


def test_what_belongs_to_a_connection_or_a_receiver_is_no_part_of_a_message() -> None:
    came = Properties(topic_alias=3, content_type="a", subscription_identifiers=[4])
    assert message_properties(came) == Properties(content_type="a")
    assert message_properties(Properties(topic_alias=3)) == Properties()
    assert message_properties(Properties(subscription_identifiers=[4])) == Properties()
    expiring = Properties(message_expiry_interval=9)
    assert message_properties(expiring) is expiring
    assert message_properties(Properties()) == Properties()


def test_a_received_message_without_properties_has_no_expiry() -> None:
    assert received_message(Publish("t", b"x"), "t", 5.0) == Message("t", b"x")
    plain = received_message(Publish("t", properties=Properties(content_type="a")), "t", 5.0)
    assert plain.expires_at is None


def test_the_expiry_sent_on_is_the_received_value_less_the_time_spent_waiting() -> None:
    """[MQTT-3.3.2-6]"""
    message = Message("t", expires_at=160.0, properties=Properties(content_type="a"))
    sent = message.publish(0, 100.0, MQTT5, dup=False)
    assert sent.properties.message_expiry_interval == 60
    assert sent.properties.content_type == "a"
    assert message.publish(0, 105.5, MQTT5, dup=False).properties.message_expiry_interval == 55
    assert message.publish(0, 200.0, MQTT5, dup=False).properties.message_expiry_interval == 0


def test_the_largest_expiry_interval_stays_within_its_field() -> None:
    for now in (0.1, 1_790_000_000.123_456, 0.3):
        packet = Publish("t", properties=Properties(message_expiry_interval=4_294_967_295))
        message = received_message(packet, "t", now)
        sent = message.publish(0, now, MQTT5, dup=False)
        assert sent.properties.message_expiry_interval == 4_294_967_295


def test_a_message_expires_at_its_time_and_not_before() -> None:
    message = Message("t", expires_at=10.0)
    assert not message.is_expired(9.999)
    assert message.is_expired(10.0)
    assert not Message("t").is_expired(1e18)


def test_a_receiver_that_speaks_3_1_1_gets_no_properties() -> None:
    message = Message("t", expires_at=10.0, properties=Properties(content_type="a"))
    assert message.publish(0, 0.0, MQTT311, dup=False) == Publish("t")


@pytest.mark.parametrize("topic_name", ["", "a/#", "a/+", "a\0"])
def test_a_message_has_a_topic_name_that_could_be_sent(topic_name: str) -> None:
    with pytest.raises(Violation):
        Message(topic_name, qos=1)
    Message("a/*", qos=1)


def test_an_alias_does_not_stand_for_the_topic_of_a_message() -> None:
    with pytest.raises(Violation) as caught:
        Message("", properties=Properties(topic_alias=1))
    assert caught.value.rule is rules.TOPIC_NAME_NOT_EMPTY
    assert Message("a", properties=Properties(topic_alias=1)).properties == Properties()


def test_a_message_that_says_utf8_is_utf8() -> None:
    with pytest.raises(Violation) as caught:
        Message("t", b"\xff", properties=Properties(payload_format_indicator=1))
    assert caught.value.rule is rules.PAYLOAD_IS_UTF8_AS_INDICATED
    Message("t", b"\xff", properties=Properties(payload_format_indicator=0))
    Message("t", "é".encode(), properties=Properties(payload_format_indicator=1))


def test_a_message_may_have_qos_0_1_or_2_only() -> None:
    for qos in (0, 1, 2):
        assert Message("t", qos=qos).qos == qos
    with pytest.raises(Violation) as caught:
        Message("t", qos=3)
    assert caught.value.rule is rules.QOS_NOT_3


def test_the_size_of_a_message_is_that_of_all_that_its_publisher_can_make_long() -> None:
    assert Message("plant", b"12345").size == 10
    assert Message("plant/é", b"12345").size == 13
    properties = Properties(
        content_type="é" * 100,
        correlation_data=bytes(200),
        user_properties=[("k" * 30, "v" * 40)],
        payload_format_indicator=0,
    )
    size = Message("t", properties=properties).size
    assert 1 + 200 + 200 + 70 < size < 1 + 200 + 200 + 70 + 4 * 8


def test_a_message_can_leave_its_subscription_identifiers_behind() -> None:
    items = Properties(subscription_identifiers=(1, 2), content_type="text")
    message = Message("t", b"x", qos=1, retain=True, properties=items, expires_at=5.0)
    plain = Message(
        "t", b"x", qos=1, retain=True, properties=Properties(content_type="text"), expires_at=5.0
    )
    assert without_identifiers(message) == plain
    assert without_identifiers(plain) is plain


def test_a_subscriber_gets_the_message_with_its_own_qos_retain_flag_and_identifiers() -> None:
    kept = Properties(content_type="x")
    message = Message("t", b"x", qos=2, retain=True, properties=kept, expires_at=9.0)
    assert message.variant(2, retain=True, identifiers=[]) is message
    assert message.variant(1, retain=True, identifiers=[]) == Message(
        "t", b"x", qos=1, retain=True, properties=kept, expires_at=9.0
    )
    assert message.variant(2, retain=False, identifiers=[]) == Message(
        "t", b"x", qos=2, properties=kept, expires_at=9.0
    )
    both = message.variant(2, retain=True, identifiers=[7, 8])
    assert both.properties.subscription_identifiers == (7, 8)
    assert both.properties.content_type == "x"
    assert (both.qos, both.retain, both.expires_at) == (2, True, 9.0)


def test_properties_that_a_server_sends_on_unchanged_are_told_from_others() -> None:
    """[MQTT-3.3.2-4, -15 to -18, -20]"""
    kept = Properties(content_type="a", user_properties=[("k", "v")])
    assert unchanged_properties(encode_properties(kept), 10) == kept
    assert unchanged_properties(b"\x00", 10) == NO_PROPERTIES
    # One more item than allowed; a property that counts down; bytes after the section.
    assert unchanged_properties(encode_properties(kept), 1) is None
    assert (
        unchanged_properties(encode_properties(Properties(message_expiry_interval=1)), 10) is None
    )
    assert unchanged_properties(b"\x00\x00", 10) is None
    # An unknown property, and one that is not complete.
    assert unchanged_properties(b"\x02\x05\x00", 10) is None
    assert unchanged_properties(b"\x03\x03\x00\x01", 10) is None
