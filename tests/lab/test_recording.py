"""What a record says of a client: every rule that it broke, with its number, and no other."""

from collections.abc import Sequence

import pytest

from semel.lab.append_log import AppendLog
from semel.lab.recording import (
    RecordedPacket,
    Recording,
    check_rule_names,
    format_bytes,
    format_packets,
    packet_type,
    side,
)
from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    ConnAck,
    Connect,
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
    encode,
)
from tests.broker.by_hand import connect, frame, publish

DURABLE = Properties(session_expiry_interval=600)


class Conversation:
    """A connection of one client with a server, both of whom say what a test lets them."""

    def __init__(self, recording: Recording, version: int = MQTT5) -> None:
        self.recording = recording
        self.version = version
        self.trace = recording.open()

    def client(self, *packets: Packet | bytes) -> list[str]:
        """The client sends these; the rules that it breaks with them."""
        return self.say(CLIENT, packets)

    def server(self, *packets: Packet | bytes, reached_client: bool = True) -> list[str]:
        return self.say(SERVER, packets, reached_client=reached_client)

    def say(
        self, sender: int, packets: Sequence[Packet | bytes], *, reached_client: bool = True
    ) -> list[str]:
        broken: list[str] = []
        for packet in packets:
            data = packet if isinstance(packet, bytes) else encode(packet, self.version)
            reading = self.trace.read(data)
            recorded = self.recording.record(
                self.trace, sender, reading, reached_client=reached_client
            )
            broken += [violation.rule.name for violation in recorded.violations]
        return broken

    def begin(
        self,
        client_id: str = "w",
        *,
        clean_start: bool = True,
        present: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """CONNECT and CONNACK, both right."""
        said = properties or Properties()
        assert not self.client(
            Connect(client_id, version=self.version, clean_start=clean_start, properties=said)
        )
        self.server(ConnAck(session_present=present))

    def end(self) -> None:
        self.trace.end()


def conversation(version: int = MQTT5) -> Conversation:
    made = Conversation(Recording(), version)
    made.begin()
    return made


# --- right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_client_that_does_everything_right_broke_nothing(version: int) -> None:
    talk = conversation(version)
    assert not talk.client(Subscribe(1, [Subscription("a/#", 2)]))
    talk.server(SubAck(1, [2]))
    assert not talk.client(Publish("a/1", b"x", 1, 2), Publish("a/2", b"y", 2, 3))
    talk.server(PubAck(2), PubRec(3))
    assert not talk.client(PubRel(3))
    talk.server(PubComp(3), Publish("a/3", b"z", 2, 1))
    assert not talk.client(PubRec(1))
    talk.server(PubRel(1))
    assert not talk.client(PubComp(1), PingReq())
    talk.server(PingResp())
    assert not talk.client(Disconnect())
    talk.end()
    assert talk.recording.findings() == []
    assert talk.recording.report() is None


def test_a_record_has_the_packets_of_both_sides_in_their_order_with_bytes_and_times() -> None:
    times = iter(range(100))
    recording = Recording(clock=lambda: float(next(times)))
    talk = Conversation(recording)
    talk.begin("me")
    first, second = recording.packets.items()
    assert (first.number, first.sender, first.kind, first.client_id) == (
        0,
        "client",
        "CONNECT",
        "me",
    )
    assert (second.number, second.sender, second.kind, second.client_id) == (
        1,
        "server",
        "CONNACK",
        "me",
    )
    assert first.packet == Connect("me")
    assert first.data == encode(Connect("me"))
    assert first.connection == second.connection == 1
    assert 0 < first.at < second.at


def test_a_client_without_an_identifier_is_called_by_the_one_that_it_was_assigned() -> None:
    talk = Conversation(Recording())
    talk.client(Connect(""))
    talk.server(ConnAck(properties=Properties(assigned_client_identifier="made-up")))
    talk.client(PingReq())
    assert [one.client_id for one in talk.recording.packets.items()] == ["", "made-up", "made-up"]


# --- wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "rule", "statement"),
    [
        (frame(0x36, b"\x00\x01a\x00\x01\x00x"), "QOS_NOT_3", "MQTT-3.3.1-4"),
        (frame(0x80, b"\x00\x01\x00\x00\x01a\x00"), "FIXED_HEADER_FLAGS", "MQTT-3.8.1-1"),
        (publish(b"a/#"), "TOPIC_NAME_WITHOUT_WILDCARDS", "MQTT-3.3.2-2"),
        (publish(b"a", qos=1, packet_id=0), "PACKET_ID_NOT_ZERO", "MQTT-2.2.1-3"),
        (publish(b"a\x00b"), "TEXT_WITHOUT_NUL", "MQTT-1.5.4-2"),
        (publish(b"\xff"), "TEXT_WELL_FORMED", "MQTT-1.5.4-1"),
        (frame(0x38, b"\x00\x01a\x00x"), "DUP_NEEDS_QOS", "MQTT-3.3.1-2"),
        (frame(0x82, b"\x00\x01\x00"), "SUBSCRIBE_NOT_EMPTY", "MQTT-3.8.3-2"),
    ],
)
def test_a_packet_that_is_wrong_in_itself_is_found_with_its_rule_and_statement(
    data: bytes, rule: str, statement: str
) -> None:
    talk = conversation()
    assert rule in talk.client(data)
    (recorded, violation), *_ = talk.recording.findings()
    assert recorded.data == data
    assert recorded.packet is None
    found = [each for _, each in talk.recording.findings() if each.rule.name == rule]
    assert statement in found[0].statements
    report = talk.recording.report()
    assert report is not None
    assert f"[{statement}" in report or f", {statement}" in report
    assert rule in report
    assert data[:60].hex(" ") in report
    assert "'w'" in report
    assert violation.version == MQTT5


@pytest.mark.parametrize(
    ("packets", "rule"),
    [
        ([Connect("w")], "CONNECT_ONCE"),
        ([PubAck(5)], "ANSWER_FITS_REQUEST"),
        ([PubRel(5)], "RELEASE_FITS_PUBLISH"),
        ([Publish("a", qos=1, packet_id=1), Publish("b", qos=1, packet_id=1)],
         "PACKET_ID_NOT_IN_USE"),
        ([Publish("a", qos=2, packet_id=1), PubRel(1)], "PUBREL_AFTER_PUBREC"),
        ([Publish("a", qos=1, packet_id=1), Publish("a", qos=1, packet_id=1, dup=True)],
         "NO_RESEND_WHILE_CONNECTED"),
        ([Publish("a", qos=1, packet_id=1, dup=True)], "FIRST_SEND_WITHOUT_DUP"),
        ([Disconnect(), PingReq()], "NOTHING_AFTER_DISCONNECT"),
        ([PingResp()], "PACKET_FROM_ITS_SIDE"),
        ([Publish("a", properties=Properties(topic_alias=1))], "TOPIC_ALIAS_WITHIN_MAXIMUM"),
    ],
)  # fmt: skip
def test_a_packet_at_the_wrong_time_is_found(packets: list[Packet], rule: str) -> None:
    talk = conversation()
    *right, wrong = packets
    assert talk.client(*right) == []
    assert talk.client(wrong) == [rule]


def test_a_receive_maximum_that_is_exceeded_is_found() -> None:
    talk = Conversation(Recording())
    talk.client(Connect("w"))
    talk.server(ConnAck(properties=Properties(receive_maximum=2)))
    assert not talk.client(Publish("a", qos=1, packet_id=1), Publish("a", qos=2, packet_id=2))
    assert talk.client(Publish("a", qos=1, packet_id=3)) == ["RECEIVE_MAXIMUM_KEPT"]


def test_a_packet_larger_than_the_server_takes_is_found() -> None:
    talk = Conversation(Recording())
    talk.client(Connect("w"))
    talk.server(ConnAck(properties=Properties(maximum_packet_size=30)))
    assert not talk.client(Publish("a", bytes(10)))
    assert talk.client(Publish("a", bytes(40))) == ["PACKET_SIZE_WITHIN_MAXIMUM"]


def test_what_the_server_does_wrong_is_not_the_clients_fault() -> None:
    talk = conversation()
    assert not talk.server(PubAck(77), SubAck(5, [0]), ConnAck())
    assert talk.recording.findings() == []


def test_who_does_not_begin_with_connect_is_found_once() -> None:
    talk = Conversation(Recording())
    assert talk.client(PingReq()) == ["CONNECT_FIRST"]
    assert talk.client(PingReq(), PingReq()) == []


def test_after_an_invalid_packet_others_are_checked_one_by_one() -> None:
    talk = conversation()
    assert talk.client(publish(b"a/#"))
    # It would be wrong in its place, but nobody knows its place any more.
    assert not talk.client(PubAck(5))
    assert talk.client(publish(b"b/+")) == ["TOPIC_NAME_WITHOUT_WILDCARDS"]


def test_an_invalid_connect_is_reported_with_its_client_identifier() -> None:
    talk = Conversation(Recording())
    assert talk.client(connect(b"me", flags=0x03)) == ["CONNECT_RESERVED_FLAG"]
    (recorded,) = talk.recording.packets.items()
    assert recorded.client_id == "me"
    assert "'me'" in str(talk.recording.report())


def test_a_length_that_is_wrong_is_found() -> None:
    talk = conversation()
    assert talk.client(b"\x30\xff\xff\xff\xff\x01rest") == ["VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES"]


# --- sessions -------------------------------------------------------------------------------------


def lasting(recording: Recording, *, present: bool) -> Conversation:
    """The next connection of a session that is to last."""
    talk = Conversation(recording)
    talk.begin(clean_start=False, present=present, properties=DURABLE)
    return talk


def test_what_is_sent_again_in_a_session_must_have_dup() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1), Publish("a", qos=2, packet_id=2))
    talk.end()
    talk = lasting(recording, present=True)
    assert not talk.client(Publish("a", qos=1, packet_id=1, dup=True))
    assert talk.client(Publish("a", qos=2, packet_id=2)) == ["RESEND_SETS_DUP"]


def test_a_new_session_begins_with_nothing_open() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1))
    talk.end()
    talk = lasting(recording, present=False)
    assert not talk.client(Publish("b", qos=1, packet_id=1))


def test_an_identifier_that_is_open_in_the_session_may_not_be_used_for_a_subscribe() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1))
    talk.end()
    talk = lasting(recording, present=True)
    assert talk.client(Subscribe(1, [Subscription("a")])) == ["PACKET_ID_NOT_IN_USE"]


def test_the_session_passes_on_before_the_old_connection_is_seen_to_end() -> None:
    recording = Recording()
    old = lasting(recording, present=False)
    old.client(Publish("a", qos=1, packet_id=1))
    new = lasting(recording, present=True)
    old.end()
    assert new.client(Publish("a", qos=1, packet_id=1)) == ["RESEND_SETS_DUP"]
    new.server(PubAck(1))
    new.end()
    last = lasting(recording, present=True)
    assert not last.client(Publish("b", qos=1, packet_id=1))


def test_a_refused_connect_leaves_the_session_as_it_was() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1))
    talk.end()
    refused = Conversation(recording)
    refused.client(Connect("w"))
    refused.server(ConnAck(0x89))
    refused.end()
    talk = lasting(recording, present=True)
    assert talk.client(Publish("a", qos=1, packet_id=1)) == ["RESEND_SETS_DUP"]


def test_without_a_connack_the_state_of_a_session_is_no_violation() -> None:
    recording = Recording()
    talk = Conversation(recording)
    talk.client(Connect("w", clean_start=False, properties=DURABLE))
    talk.client(Publish("a", qos=2, packet_id=1))
    talk.server(ConnAck(), PubRec(1), reached_client=False)
    talk.end()
    talk = lasting(recording, present=True)
    assert not talk.client(Publish("a", qos=2, packet_id=1, dup=True))


def test_a_clean_start_without_a_connack_may_have_ended_the_session() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1))
    talk.end()
    cut_off = Conversation(recording)
    cut_off.client(Connect("w", properties=DURABLE))
    cut_off.end()
    talk = lasting(recording, present=True)
    assert not talk.client(Publish("b", qos=1, packet_id=1))


def test_what_did_not_reach_the_client_is_recorded_and_changes_nothing_for_it() -> None:
    recording = Recording()
    talk = lasting(recording, present=False)
    talk.client(Publish("a", qos=1, packet_id=1))
    talk.server(PubAck(1), reached_client=False)
    assert talk.client(Publish("b", qos=1, packet_id=1)) == ["PACKET_ID_NOT_IN_USE"]
    assert [one.kind for one in recording.packets.items()][-2:] == ["PUBACK", "PUBLISH"]


def test_an_acknowledgement_that_comes_twice_is_answered_twice_without_blame() -> None:
    talk = conversation()
    talk.client(Publish("a", qos=2, packet_id=1))
    talk.server(PubRec(1), PubRec(1))
    assert not talk.client(PubRel(1), PubRel(1))
    talk.server(PubComp(1), PubComp(1))
    talk.server(Publish("b", qos=2, packet_id=9), Publish("b", qos=2, packet_id=9))
    assert not talk.client(PubRec(9), PubRec(9))
    talk.server(PubRel(9), PubRel(9))
    assert not talk.client(PubComp(9), PubComp(9))


# --- the report -----------------------------------------------------------------------------------


def test_rules_can_be_left_out_of_the_report_and_only_those_that_there_are() -> None:
    talk = conversation()
    talk.client(PubAck(5), Connect("w"))
    assert len(talk.recording.findings()) == 2
    assert [each.rule.name for _, each in talk.recording.findings(ignore=["CONNECT_ONCE"])] == [
        "ANSWER_FITS_REQUEST"
    ]
    assert talk.recording.report(ignore=["CONNECT_ONCE", "ANSWER_FITS_REQUEST"]) is None
    with pytest.raises(ValueError, match="there is no rule 'CONNECT_TWICE'; `semel rules`"):
        check_rule_names(["CONNECT_TWICE"])


def test_the_report_can_be_about_one_client() -> None:
    recording = Recording()
    for client_id in ("good", "bad"):
        talk = Conversation(recording)
        talk.begin(client_id)
        if client_id == "bad":
            talk.client(PubAck(5))
    assert recording.report("good") is None
    assert "ANSWER_FITS_REQUEST" in str(recording.report("bad"))


def test_findings_beyond_the_bound_are_counted() -> None:
    recording = Recording(most_findings=1)
    talk = Conversation(recording)
    talk.begin()
    talk.client(PubAck(5), PubAck(6), PubAck(7))
    report = str(recording.report())
    assert "the program broke the standard, 3 times" in report
    assert "ANSWER_FITS_REQUEST: 2 more" in report
    assert recording.report(ignore=["ANSWER_FITS_REQUEST"]) is None


def test_no_password_is_shown() -> None:
    recording = Recording()
    talk = Conversation(recording)
    secret = Connect("w", user_name="ann", password=b"swordfish")
    talk.client(Connect("w"), secret)
    assert "CONNECT_ONCE" in str(recording.report())
    assert b"swordfish".hex(" ") not in str(recording.report())
    assert "swordfish" not in format_packets(recording.packets.items(), 10)
    broken = encode(secret)[:-1] + b"\xff"
    other = Conversation(recording)
    other.client(bytes([0x11]) + broken[1:])
    assert "FIXED_HEADER_FLAGS" in str(recording.report())
    assert b"swordfi".hex(" ") not in str(recording.report())
    plain = recording.packets.items()[0]
    assert format_bytes(plain) == encode(Connect("w")).hex(" ")


def test_long_packets_are_shown_by_their_beginning() -> None:
    talk = conversation()
    talk.client(Publish("a", bytes(500), qos=1, packet_id=1, dup=True))
    assert "… 509 bytes" in str(talk.recording.report())


def test_a_line_says_what_a_packet_is() -> None:
    talk = conversation()
    talk.client(
        Subscribe(4, [Subscription("a/+")]),
        Publish("a/b", b"xyz", 1, 5, retain=True),
        PubAck(9),
        Disconnect(0x04),
        b"\xf0\x02\x99\x00",
    )
    lines = format_packets(talk.recording.packets.items(), 5).splitlines()
    assert lines[0] == "… 2 packets before these"
    assert "'w' ──▶ SUBSCRIBE id 4 'a/+'" in lines[1]
    assert "'w' ──▶ PUBLISH 'a/b' QoS 1 id 5 RETAIN, 3 bytes" in lines[2]
    assert "PUBACK id 9 broke ANSWER_FITS_REQUEST" in lines[3]
    assert "DISCONNECT 0x04" in lines[4]
    assert "AUTH broke" in lines[5]


def test_packets_are_named_by_names_and_classes() -> None:
    assert packet_type("PUBACK") == packet_type("puback") == packet_type(PubAck) == 4
    assert packet_type(None) == 0
    for wrong in ("PUBLISHED", "WILL", int):
        with pytest.raises(ValueError, match="is not a packet type: use one of CONNECT, CONNACK"):
            packet_type(wrong)
    assert (side("client"), side("server"), side(None)) == (CLIENT, SERVER, None)
    with pytest.raises(ValueError, match="must be 'client' or 'server'"):
        side("broker")


# --- the list -------------------------------------------------------------------------------------


def test_a_list_forgets_its_first_items_and_goes_on_counting() -> None:
    numbers: AppendLog[int] = AppendLog(most_items=3)
    for _ in range(5):
        numbers.add(lambda number: number)
    assert numbers.items() == [2, 3, 4]
    assert numbers.items(first=4) == [4]
    assert len(numbers) == 5


def test_a_list_forgets_its_first_items_when_they_are_large() -> None:
    numbers: AppendLog[int] = AppendLog(most_bytes=100)
    for size in (60, 30, 30, 500):
        numbers.add(lambda number: number, size)
    assert numbers.items() == [3]


def test_who_waits_gets_what_was_there_or_comes() -> None:
    numbers: AppendLog[int] = AppendLog()
    for _ in range(3):
        numbers.add(lambda number: number)
    assert numbers.watch(lambda number: number > 0).result(0) == 1
    assert numbers.watch(lambda number: number > 0, count=2).result(0) == 2
    waiting = numbers.watch(lambda number: number > 0, first=3, count=2)
    given_up = numbers.watch(lambda number: True, first=3)
    assert given_up.cancel()
    numbers.add(lambda number: number)
    assert not waiting.done()
    numbers.add(lambda number: number)
    assert waiting.result(0) == 4


def test_an_exception_of_a_predicate_reaches_its_caller() -> None:
    numbers: AppendLog[int] = AppendLog()
    waiting = numbers.watch(lambda number: 1 // number > 0)
    numbers.add(lambda number: number)
    with pytest.raises(ZeroDivisionError):
        waiting.result(0)


def test_a_recorded_packet_cannot_be_changed() -> None:
    talk = conversation()
    recorded: RecordedPacket = talk.recording.packets.items()[0]
    with pytest.raises(AttributeError):
        recorded.at = 0.0  # type: ignore[misc]
