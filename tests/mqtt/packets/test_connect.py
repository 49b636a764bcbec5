"""CONNECT [3.1], and the will that it can carry."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Connect,
    Properties,
    Rule,
    Violation,
    Will,
    decode,
    encode,
    observe,
    rules,
)
from tests.mqtt.verdicts import (
    BOTH,
    check_both_ways,
    check_refused,
    framed,
    observed,
    refuses,
    section,
    text,
)

MQTT = "0004 4d515454"


def connect(
    level: int, flags: int, payload: str, *, keep_alive: int = 60, properties: str = ""
) -> bytes:
    """The bytes of a CONNECT; `properties` is the hex of what is in its section."""
    in_5 = section(properties) if level == 5 else ""
    return framed(0x10, f"{MQTT} {level:02x} {flags:02x} {keep_alive:04x} {in_5} {payload}")


def will_section(level: int, properties: str = "") -> str:
    return section(properties) if level == 5 else ""


# --- what is legal --------------------------------------------------------------------------------


def test_the_smallest_connect_of_each_version() -> None:
    data = bytes.fromhex("100d00044d5154540402003c000161")
    check_both_ways(data, MQTT311, Connect("a", version=MQTT311, keep_alive=60))
    data = bytes.fromhex("100e00044d5154540502003c00000161")
    check_both_ways(data, MQTT5, Connect("a", keep_alive=60))


@pytest.mark.parametrize("told", BOTH)
@pytest.mark.parametrize("version", BOTH)
def test_a_connect_is_of_the_version_that_it_names_whatever_one_was_told(
    version: int, told: int
) -> None:
    packet = Connect("a", version=version, keep_alive=60)
    check_both_ways(connect(version, 0x02, text("a")), told, packet)
    observation = observe(connect(version, 0x02, text("a")), told)
    assert observation is not None
    assert observation.version == version


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_connect_with_everything(version: int, qos: int, retain: bool) -> None:
    will = Will("w/t", b"\x00\xff", qos=qos, retain=retain)
    packet = Connect(
        "c",
        version=version,
        clean_start=False,
        keep_alive=65_535,
        user_name="ü",
        password=b"\x00p",
        will=will,
    )
    flags = 0xC4 | qos << 3 | (0x20 if retain else 0)
    payload = text("c") + will_section(version) + text("w/t") + "000200ff" + text("ü") + "00020070"
    check_both_ways(connect(version, flags, payload, keep_alive=65_535), version, packet)


@pytest.mark.parametrize("version", BOTH)
def test_a_user_name_needs_no_password(version: int) -> None:
    packet = Connect("c", version=version, keep_alive=60, user_name="")
    check_both_ways(connect(version, 0x82, text("c") + text("")), version, packet)


def test_a_password_without_user_name_is_legal_in_5_and_refused_in_311() -> None:
    payload = text("c") + text("secret")
    packet = Connect("c", keep_alive=60, password=b"secret")
    check_both_ways(connect(5, 0x42, payload), MQTT5, packet)
    check_refused(connect(4, 0x42, payload), MQTT311, rules.PASSWORD_NEEDS_USER_NAME)
    with refuses(rules.PASSWORD_NEEDS_USER_NAME):
        Connect("c", version=MQTT311, password=b"secret")
    assert Connect("c", version=MQTT311, user_name="u", password=b"secret").password == b"secret"


def test_an_empty_client_id_is_legal_but_in_311_only_with_a_clean_session() -> None:
    check_both_ways(connect(4, 0x02, text("")), MQTT311, Connect(version=MQTT311, keep_alive=60))
    check_both_ways(connect(5, 0x02, text("")), MQTT5, Connect(keep_alive=60))
    check_both_ways(connect(5, 0x00, text("")), MQTT5, Connect(keep_alive=60, clean_start=False))
    data = connect(4, 0x00, text(""))
    check_refused(data, MQTT311, rules.EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION)
    with refuses(rules.EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION):
        Connect(version=MQTT311, clean_start=False)
    packet = Connect("c", version=MQTT311, keep_alive=60, clean_start=False)
    check_both_ways(connect(4, 0x00, text("c")), MQTT311, packet)


def test_a_client_id_may_be_longer_than_23_characters() -> None:
    packet = Connect("é" * 100, version=MQTT311, keep_alive=60)
    check_both_ways(connect(4, 0x02, text("é" * 100)), MQTT311, packet)


def test_a_connect_carries_properties_and_so_does_its_will() -> None:
    packet = Connect(
        "c",
        keep_alive=60,
        will=Will(
            "w",
            b"x",
            properties=Properties(
                will_delay_interval=5, payload_format_indicator=1, response_topic="r"
            ),
        ),
        properties=Properties(
            session_expiry_interval=60,
            receive_maximum=5,
            authentication_method="m",
            authentication_data=b"d",
        ),
    )
    own = "11 0000003c 15 00016d 16 000164 21 0005"
    will = "0101 08 000172 18 00000005"
    payload = text("c") + section(will) + text("w") + text("x")
    check_both_ways(connect(5, 0x06, payload, properties=own), MQTT5, packet)


# --- protocol name and level ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MQIsdp", "mqtt", "MQT", "MQTTT", "", "MQTT\0"])
def test_another_protocol_name_is_refused(name: str) -> None:
    body = text(name) + "04 02 003c 0001 61"
    expected = [rules.PROTOCOL_NAME_IS_MQTT]
    if "\0" in name:
        expected.append(rules.TEXT_WITHOUT_NUL)
    for version in BOTH:
        check_refused(framed(0x10, body), version, *expected)


@pytest.mark.parametrize("level", [0, 1, 3, 6, 0x84, 255])
def test_another_protocol_level_is_refused(level: int) -> None:
    data = framed(0x10, f"{MQTT} {level:02x} 02 003c 0001 61")
    for version in BOTH:
        check_refused(data, version, rules.PROTOCOL_LEVEL_SUPPORTED)
    with refuses(rules.PROTOCOL_LEVEL_SUPPORTED):
        Connect("a", version=level)


def test_what_was_told_stands_until_the_level_is_known() -> None:
    for version in BOTH:
        with pytest.raises(Violation) as caught:
            decode(framed(0x10, f"{MQTT} 03 02 003c 0001 61"), version)
        assert caught.value.version == version


# --- flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (0x03, rules.CONNECT_RESERVED_FLAG),
        (0x0A, rules.WILL_QOS_NEEDS_WILL),
        (0x12, rules.WILL_QOS_NEEDS_WILL),
        (0x1A, rules.WILL_QOS_NEEDS_WILL),
        (0x22, rules.WILL_RETAIN_NEEDS_WILL),
    ],
)
@pytest.mark.parametrize("version", BOTH)
def test_flags_that_disagree_are_refused(version: int, flags: int, rule: Rule) -> None:
    check_refused(connect(version, flags, text("a")), version, rule)


@pytest.mark.parametrize("version", BOTH)
def test_several_flags_can_disagree_at_once(version: int) -> None:
    check_refused(
        connect(version, 0x3B, text("a")),
        version,
        rules.CONNECT_RESERVED_FLAG,
        rules.WILL_QOS_NEEDS_WILL,
        rules.WILL_RETAIN_NEEDS_WILL,
    )


@pytest.mark.parametrize("version", BOTH)
def test_will_qos_3_is_refused(version: int) -> None:
    payload = text("a") + will_section(version) + text("w") + text("")
    check_refused(connect(version, 0x1E, payload), version, rules.WILL_QOS_NOT_3)
    for qos in (3, -1, 10**30):
        with refuses(rules.WILL_QOS_NOT_3):
            Will("w", qos=qos)


@pytest.mark.parametrize("version", BOTH)
def test_flags_promise_fields_and_fields_need_flags(version: int) -> None:
    a = text("a")
    for flags in (0x82, 0xC2, 0x06):
        check_refused(connect(version, flags, a), version, rules.FIELD_WITHIN_PACKET)
    check_refused(connect(version, 0xC2, a + text("u")), version, rules.FIELD_WITHIN_PACKET)
    check_refused(connect(version, 0x82, a + text("u") * 2), version, rules.NO_SURPLUS_BYTES)
    check_refused(connect(version, 0x02, a + "00"), version, rules.NO_SURPLUS_BYTES)


def test_other_flags_in_the_first_byte_are_refused() -> None:
    data = connect(4, 0x02, text("a"))
    for flags in range(1, 16):
        changed = bytes((0x10 | flags,)) + data[1:]
        check_refused(changed, MQTT311, rules.FIXED_HEADER_FLAGS)


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "",
        "00",
        "0004 4d5154",
        MQTT,
        f"{MQTT} 04",
        f"{MQTT} 04 02",
        f"{MQTT} 04 02 00",
        f"{MQTT} 04 02 003c",
    ],
)
def test_a_connect_that_ends_before_its_client_id_is_refused(body: str) -> None:
    check_refused(framed(0x10, body), MQTT311, rules.FIELD_WITHIN_PACKET)


def test_a_connect_of_5_without_property_length_is_refused() -> None:
    check_refused(framed(0x10, f"{MQTT} 05 02 003c"), MQTT5, rules.FIELD_WITHIN_PACKET)


@pytest.mark.parametrize("keep_alive", [-1, 65_536, 10**30])
def test_keep_alive_fits_two_bytes(keep_alive: int) -> None:
    with refuses(rules.INTEGER_FITS_ITS_FIELD):
        Connect("a", keep_alive=keep_alive)
    assert Connect("a", keep_alive=65_535).keep_alive == 65_535


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ("\0", rules.TEXT_WITHOUT_NUL),
        ("\ud800", rules.TEXT_WELL_FORMED),
        ("a" * 65_536, rules.TEXT_FITS_ITS_LENGTH),
    ],
    ids=["nul", "surrogate", "long"],
)
def test_strings_that_may_not_travel_cannot_be_encoded(bad: str, rule: Rule) -> None:
    with refuses(rule):
        Connect(bad)
    with refuses(rule):
        Connect("a", user_name=bad)
    with refuses(rule):
        Will(bad)


def test_binary_fields_take_65535_bytes_and_no_more() -> None:
    packet = Connect("a", password=bytes(65_535), will=Will("w", bytes(65_535)))
    data = encode(packet)
    assert decode(data) == (packet, len(data))
    with refuses(rules.BINARY_FITS_ITS_LENGTH):
        Connect("a", password=bytes(65_536))
    with refuses(rules.BINARY_FITS_ITS_LENGTH):
        Will("w", bytes(65_536))


@pytest.mark.parametrize("version", BOTH)
def test_strings_that_nobody_may_send_are_refused(version: int) -> None:
    will = will_section(version) + text("w") + text("")
    check_refused(connect(version, 0x02, "0001 00"), version, rules.TEXT_WITHOUT_NUL)
    check_refused(connect(version, 0x02, "0001 ff"), version, rules.TEXT_WELL_FORMED)
    check_refused(connect(version, 0x82, text("a") + "0001 00"), version, rules.TEXT_WITHOUT_NUL)
    check_refused(
        connect(version, 0x86, text("a") + will + "0001 ff"), version, rules.TEXT_WELL_FORMED
    )


# --- the will -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_will_topic_is_a_topic_name(version: int) -> None:
    start = text("a") + will_section(version)
    for name in ("w/+", "#"):
        data = connect(version, 0x06, start + text(name) + text(""))
        check_refused(data, version, rules.TOPIC_NAME_WITHOUT_WILDCARDS)
        with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
            Will(name)
    data = connect(version, 0x06, start + text("") + text(""))
    check_refused(data, version, rules.TOPIC_NAME_NOT_EMPTY)
    with refuses(rules.TOPIC_NAME_NOT_EMPTY):
        Will("")
    packet = Connect("a", version=version, keep_alive=60, will=Will("*"))
    check_both_ways(connect(version, 0x06, start + text("*") + text("")), version, packet)


def test_a_will_said_to_be_utf8_is_utf8() -> None:
    said = Properties(payload_format_indicator=1)
    with refuses(rules.PAYLOAD_IS_UTF8_AS_INDICATED):
        Will("w", b"\xff", properties=said)
    start = text("a") + section("0101") + text("w")
    check_refused(connect(5, 0x06, start + "0001 ff"), MQTT5, rules.PAYLOAD_IS_UTF8_AS_INDICATED)
    packet = Connect("a", keep_alive=60, will=Will("w", "é".encode(), properties=said))
    check_both_ways(connect(5, 0x06, start + "0002 c3a9"), MQTT5, packet)
    unsaid = Properties(payload_format_indicator=0)
    assert Will("w", b"\xff", properties=unsaid).payload == b"\xff"


# --- properties -----------------------------------------------------------------------------------


def test_311_has_no_properties_neither_its_own_nor_its_wills() -> None:
    expiry = Properties(session_expiry_interval=1)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        Connect("a", version=MQTT311, properties=expiry)
    delayed = Will("w", properties=Properties(will_delay_interval=1))
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        Connect("a", version=MQTT311, will=delayed)
    assert Connect("a", properties=expiry, will=delayed).will == delayed
    assert Connect("a", version=MQTT311, will=Will("w")).will == Will("w")


def test_authentication_data_needs_a_method() -> None:
    alone = Properties(authentication_data=b"d")
    with refuses(rules.AUTHENTICATION_DATA_NEEDS_METHOD):
        Connect("a", properties=alone)
    data = connect(5, 0x02, text("a"), properties="16 000164")
    check_refused(data, MQTT5, rules.AUTHENTICATION_DATA_NEEDS_METHOD)
    method = Properties(authentication_method="m")
    packet = Connect("a", keep_alive=60, properties=method)
    check_both_ways(connect(5, 0x02, text("a"), properties="15 00016d"), MQTT5, packet)


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        ("21 0000", rules.PROPERTY_NOT_ZERO),
        ("27 00000000", rules.PROPERTY_NOT_ZERO),
        ("17 02", rules.PROPERTY_IS_0_OR_1),
        ("19 02", rules.PROPERTY_IS_0_OR_1),
        ("1700 1700", rules.PROPERTY_ONCE),
        ("23 0001", rules.PROPERTY_IN_ITS_PACKET),
        ("18 00000001", rules.PROPERTY_IN_ITS_PACKET),
        ("04 00", rules.PROPERTY_KNOWN),
    ],
)
def test_a_connect_with_a_wrong_property_is_refused(properties: str, rule: Rule) -> None:
    check_refused(connect(5, 0x02, text("a"), properties=properties), MQTT5, rule)


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        ("01 02", rules.PROPERTY_IS_0_OR_1),
        ("18 00000001 18 00000001", rules.PROPERTY_ONCE),
        ("21 0001", rules.PROPERTY_IN_ITS_PACKET),
        ("08 000123", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("7f 00", rules.PROPERTY_KNOWN),
    ],
)
def test_a_will_with_a_wrong_property_is_refused(properties: str, rule: Rule) -> None:
    payload = text("a") + section(properties) + text("w") + text("")
    check_refused(connect(5, 0x06, payload), MQTT5, rule)


def test_a_property_of_another_packet_cannot_be_encoded() -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Connect("a", properties=Properties(will_delay_interval=1))
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        Will("w", properties=Properties(session_expiry_interval=1))


# --- what an observer sees ------------------------------------------------------------------------


def test_an_observer_sees_every_fault_of_a_connect() -> None:
    payload = "0000" + section("0101") + text("#") + "0001 ff" + "0001 00" + text("p")
    data = connect(5, 0xDD, payload + "00", properties="16 000164 23 0000")
    assert observed(data, MQTT5) == [
        rules.NO_SURPLUS_BYTES,
        rules.CONNECT_RESERVED_FLAG,
        rules.WILL_QOS_NOT_3,
        rules.TOPIC_NAME_WITHOUT_WILDCARDS,
        rules.PAYLOAD_IS_UTF8_AS_INDICATED,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.TEXT_WITHOUT_NUL,
        rules.PROPERTY_IN_ITS_PACKET,
        rules.AUTHENTICATION_DATA_NEEDS_METHOD,
    ]


def test_an_observer_sees_the_fields_but_not_the_password() -> None:
    observation = observe(connect(4, 0xC2, text("a") + text("u") + text("secret")), MQTT311)
    assert observation is not None
    assert observation.fields == (
        ("protocol_name", "MQTT"),
        ("version", 4),
        ("connect_flags", 0xC2),
        ("keep_alive", 60),
        ("client_id", "a"),
        ("user_name", "u"),
        ("password", "<6 bytes>"),
    )


# --- the classes ----------------------------------------------------------------------------------


def test_a_connect_needs_nothing() -> None:
    packet = Connect()
    assert (packet.client_id, packet.version, packet.clean_start) == ("", MQTT5, True)
    assert (packet.keep_alive, packet.user_name, packet.password) == (0, None, None)
    assert (packet.will, packet.properties) == (None, NO_PROPERTIES)


def test_connects_are_equal_when_every_field_is() -> None:
    assert Connect("a") == Connect("a")
    for other in (
        Connect("b"),
        Connect("a", version=MQTT311),
        Connect("a", clean_start=False),
        Connect("a", keep_alive=1),
        Connect("a", user_name=""),
        Connect("a", password=b""),
        Connect("a", will=Will("w")),
        Connect("a", properties=Properties(receive_maximum=1)),
    ):
        assert Connect("a") != other


def test_wills_are_equal_when_every_field_is() -> None:
    assert Will("w") == Will("w", b"")
    for other in (
        Will("v"),
        Will("w", b"x"),
        Will("w", qos=1),
        Will("w", retain=True),
        Will("w", properties=Properties(will_delay_interval=1)),
    ):
        assert Will("w") != other


def test_the_repr_of_a_connect_says_whether_there_is_a_password_and_not_which() -> None:
    shown = repr(Connect("a", user_name="u", password=b"secret", keep_alive=5))
    assert shown == (
        "Connect('a', version=5, clean_start=True, keep_alive=5, user_name='u', "
        "password=<hidden>, will=None, properties=Properties())"
    )
    assert "password=None" in repr(Connect("a"))
