"""A short run of the fuzzer that tests/long/fuzz.py runs for long."""

import pytest

from semel.mqtt import LARGEST_PACKET, MQTT5, MQTT311, RULES, Rule, Violation, rules
from semel.mqtt.packets.ping import PingReq, PingResp
from tests.long.fuzz import Disagreement, Fuzzer, compare, examine, frame_end, seeds
from tests.modes import repeats
from tests.mqtt.verdicts import framed

INPUTS = repeats(20_000, 5_000)


def test_the_parts_of_the_codec_agree_on_mutated_packets() -> None:
    fuzzer = Fuzzer(20_250_101)
    fuzzer.run(INPUTS)
    assert fuzzer.inputs == INPUTS
    # The run is worth its time only if it reaches what it is meant to reach.
    assert {kind for kind, _, broken in fuzzer.signatures if not broken} == {*range(1, 16)}
    assert len(fuzzer.signatures) > 500
    assert len(fuzzer.corpus) > len(seeds(right=True)) + len(seeds(right=False)) + 200


def test_the_parts_of_the_codec_agree_on_the_seeds_which_break_every_rule() -> None:
    broken = set()
    for right in (True, False):
        for version, data in seeds(right=right):
            for cut in (0, len(data) // 2 + 1):
                broken |= {*examine(data, version, cut, LARGEST_PACKET)[2].split(",")}
    expected = {rule.name for rule in RULES if "decode" in rule.boundaries}
    # The one rule that needs to know what the receiver takes.
    assert expected - broken == {rules.PACKET_SIZE_WITHIN_MAXIMUM.name}


def test_the_same_seed_gives_the_same_inputs() -> None:
    runs = []
    for seed in (1, 1, 2):
        fuzzer = Fuzzer(seed)
        fuzzer.run(200)
        runs.append((fuzzer.signatures, fuzzer.corpus))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_there_are_seeds_for_both_versions() -> None:
    for right in (True, False):
        assert {version for version, _ in seeds(right=right)} == {MQTT311, MQTT5}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("c000", (12, MQTT5, "")),
        ("c000 d000", (13, MQTT5, "")),
        ("c0", (0, MQTT5, "nothing")),
        ("c100", (12, MQTT5, "FIXED_HEADER_FLAGS")),
        ("c1", (12, MQTT5, "FIXED_HEADER_FLAGS")),
        ("c000 4002 0000", (4, MQTT5, "PACKET_ID_NOT_ZERO")),
        (
            "c1 8100 00",
            (12, MQTT5, "FIXED_HEADER_FLAGS,NO_SURPLUS_BYTES,VARIABLE_BYTE_INTEGER_SHORTEST"),
        ),
    ],
)
def test_an_input_is_known_by_the_rules_that_its_last_packet_breaks(
    data: str, expected: tuple[int, int, str]
) -> None:
    for cut in (0, 1, len(data)):
        assert examine(bytes.fromhex(data), MQTT5, cut, LARGEST_PACKET) == expected


def test_an_input_may_be_larger_than_the_receiver_takes() -> None:
    data = framed(0x30, "000161007878")
    expected = (3, MQTT5, rules.PACKET_SIZE_WITHIN_MAXIMUM.name)
    assert examine(data, MQTT5, 1, 7) == expected
    assert examine(data, MQTT5, 1, 8) == (3, MQTT5, "")


def test_outcomes_that_differ_are_noticed() -> None:
    def violation(rule: Rule, seen: str) -> Violation:
        return Violation(rule, seen)

    compare([PingReq()], [PingReq()])
    compare([violation(rules.QOS_NOT_3, "x")], [violation(rules.QOS_NOT_3, "x")])
    for one, other in (
        (PingReq(), PingResp()),
        (PingReq(), violation(rules.QOS_NOT_3, "x")),
        (violation(rules.QOS_NOT_3, "x"), violation(rules.QOS_NOT_3, "y")),
        (violation(rules.QOS_NOT_3, "x"), violation(rules.DUP_NEEDS_QOS, "x")),
    ):
        with pytest.raises(Disagreement):
            compare([one], [other])
    with pytest.raises(Disagreement):
        compare([PingReq()], [])


def test_the_fuzzer_reads_lengths_by_itself() -> None:
    assert frame_end(bytes.fromhex("c000"), 0) == 2
    assert frame_end(bytes.fromhex("ffc08001"), 1) == 4 + 128
    assert frame_end(bytes.fromhex("c080808001"), 0) == 5 + 2_097_152
    assert frame_end(bytes.fromhex("c08080808001"), 0) == 0
    assert frame_end(bytes.fromhex("c080"), 0) == 0
    assert frame_end(b"\xc0", 0) == 0
