"""A trace finds every rule that a side broke, and carries a session to its next connection."""

import pytest

from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    ConnAck,
    Connect,
    Packet,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from semel.mqtt.packet_types import CONNECT, PUBACK
from semel.mqtt.trace import ConnectionTrace, SessionTraces


def sent(trace: ConnectionTrace, sender: int, *packets: Packet | bytes) -> list[str]:
    """Names of the rules that these packets break."""
    broken: list[str] = []
    for packet in packets:
        data = packet if isinstance(packet, bytes) else encode(packet, trace.version or MQTT5)
        violations = trace.check(sender, trace.read(data))
        broken += [violation.rule.name for violation in violations]
    return broken


def connected(
    client_id: str = "a", sessions: SessionTraces | None = None, *, resumed: bool = False
) -> ConnectionTrace:
    trace = ConnectionTrace(1, sessions or SessionTraces())
    assert not sent(trace, CLIENT, Connect(client_id, clean_start=not resumed))
    assert not sent(trace, SERVER, ConnAck(session_present=resumed))
    return trace


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_packets_that_are_right_break_nothing(version: int) -> None:
    trace = ConnectionTrace(7, SessionTraces())
    assert not sent(trace, CLIENT, Connect("a", version=version))
    assert (trace.number, trace.client_id, trace.version) == (7, "a", version)
    assert not sent(trace, SERVER, ConnAck())
    assert not sent(trace, CLIENT, Publish("t", qos=1, packet_id=1))
    assert not sent(trace, SERVER, PubAck(1))


def test_a_packet_is_read_as_its_type_packet_and_bytes() -> None:
    trace = connected()
    observed = trace.read(encode(PubAck(9)))
    assert (observed.packet_type, observed.packet, observed.violations, observed.data) == (
        PUBACK,
        PubAck(9),
        (),
        encode(PubAck(9)),
    )


def test_both_sides_are_checked() -> None:
    trace = connected()
    assert sent(trace, CLIENT, PubAck(5)) == ["ANSWER_FITS_REQUEST"]
    assert sent(trace, SERVER, PubAck(5)) == ["ANSWER_FITS_REQUEST"]
    assert sent(trace, SERVER, Subscribe(1, [Subscription("t")])) == ["PACKET_FROM_ITS_SIDE"]


def test_a_malformed_packet_breaks_all_its_rules_and_ends_the_check_of_the_order() -> None:
    trace = connected()
    assert sent(trace, CLIENT, bytes.fromhex("3805 0003612f2b")) == [
        "FIELD_WITHIN_PACKET",
        "DUP_NEEDS_QOS",
        "TOPIC_NAME_WITHOUT_WILDCARDS",
    ]
    assert trace.is_lost
    assert not sent(trace, CLIENT, PubAck(5))
    assert not sent(trace, SERVER, PubAck(5))
    assert sent(trace, CLIENT, b"\xc1\x00") == ["FIXED_HEADER_FLAGS"]


def test_a_malformed_packet_of_the_server_leaves_the_client_checked() -> None:
    trace = connected()
    assert sent(trace, SERVER, b"\xd1\x00") == ["FIXED_HEADER_FLAGS"]
    assert sent(trace, CLIENT, PubAck(5)) == ["ANSWER_FITS_REQUEST"]


def test_bytes_that_begin_no_packet_break_one_rule() -> None:
    trace = connected()
    assert sent(trace, CLIENT, b"\x00") == ["PACKET_TYPE_KNOWN"]


def test_a_client_that_does_not_begin_with_connect_is_lost() -> None:
    trace = ConnectionTrace(1, SessionTraces())
    assert sent(trace, CLIENT, b"\xc0\x00") == ["CONNECT_FIRST"]
    assert trace.is_lost
    assert not sent(trace, CLIENT, Connect("a"))


def test_a_server_that_speaks_first_does_not_end_the_check() -> None:
    trace = ConnectionTrace(1, SessionTraces())
    assert sent(trace, SERVER, PingResp()) == ["CONNECT_FIRST"]
    assert sent(trace, SERVER, Connect("b")) == ["CONNECT_FIRST"]
    assert not sent(trace, CLIENT, Connect("a"))
    assert trace.client_id == "a"


def test_a_malformed_connect_names_its_client_and_version() -> None:
    trace = ConnectionTrace(1, SessionTraces())
    data = bytearray(encode(Connect("me", version=MQTT311)))
    data[9] |= 1
    assert sent(trace, CLIENT, bytes(data)) == ["CONNECT_RESERVED_FLAG"]
    assert (trace.client_id, trace.version) == ("me", MQTT311)
    # A second one does not change them.
    data[9:] = data[9:].replace(b"me", b"us")
    assert trace.read(bytes(data)).packet_type == CONNECT
    assert trace.client_id == "me"


def test_a_client_identifier_that_is_no_text_can_be_shown() -> None:
    trace = ConnectionTrace(1, SessionTraces())
    data = encode(Connect("me")).replace(b"me", b"m\xff")
    assert sent(trace, CLIENT, data) == ["TEXT_WELL_FORMED"]
    assert trace.client_id == "m?"


def test_an_assigned_client_identifier_names_the_connection() -> None:
    trace = ConnectionTrace(1, SessionTraces())
    assert not sent(trace, CLIENT, Connect(""))
    assert trace.client_id == ""
    connack = ConnAck(properties=Properties(assigned_client_identifier="x"))
    assert not sent(trace, SERVER, connack)
    assert trace.client_id == "x"


def test_a_refused_connection_has_no_session() -> None:
    sessions = SessionTraces()
    trace = ConnectionTrace(1, sessions)
    sent(trace, CLIENT, Connect("a"))
    sent(trace, SERVER, ConnAck(0x87))
    trace.end()
    assert sessions.open_exchanges("a") == []


def test_what_is_open_passes_to_the_next_connection() -> None:
    sessions = SessionTraces()
    first = connected("a", sessions)
    assert not sent(first, CLIENT, Publish("t", qos=1, packet_id=1))
    first.end()
    second = connected("a", sessions, resumed=True)
    again = Publish("t", qos=1, packet_id=1)
    assert sent(second, CLIENT, again) == ["RESEND_SETS_DUP"]


def test_a_client_that_is_back_early_takes_what_its_earlier_connection_has_open() -> None:
    sessions = SessionTraces()
    first = connected("a", sessions)
    sent(first, CLIENT, Publish("t", qos=1, packet_id=1))
    assert sessions.open_exchanges("a") == first.exchange.carry() != []
    second = connected("a", sessions, resumed=True)
    # Now it ends, after its client has connected again.
    first.end()
    assert sessions.open_exchanges("a") == second.exchange.carry()
    first.is_lost = second.is_lost = True
    assert sessions.open_exchanges("a") is None
    second.end()
    assert sessions.open_exchanges("a") is None


def test_without_connack_what_is_open_is_unknown() -> None:
    sessions = SessionTraces()
    trace = ConnectionTrace(1, sessions)
    sent(trace, CLIENT, Connect("a"))
    assert sessions.open_exchanges("a") == []
    trace.end()
    assert sessions.open_exchanges("a") is None


def test_an_attempt_without_connack_leaves_an_established_connection_alone() -> None:
    sessions = SessionTraces()
    established = connected("a", sessions)
    attempt = ConnectionTrace(2, sessions)
    sent(attempt, CLIENT, Connect("a", clean_start=False))
    attempt.end()
    assert sessions.open_exchanges("a") == established.exchange.carry()


def test_sessions_beyond_the_maximum_are_unknown_the_oldest_first() -> None:
    sessions = SessionTraces(2)
    for client_id in ("a", "b", "a", "c"):
        trace = connected(client_id, sessions)
        sent(trace, CLIENT, Publish("t", qos=1, packet_id=1))
        trace.end()
    assert sessions.open_exchanges("a")
    assert sessions.open_exchanges("b") is None
    assert sessions.open_exchanges("c")
    assert sessions.open_exchanges("new") is None
    assert SessionTraces().open_exchanges("new") == []
