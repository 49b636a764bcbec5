"""`semel decode` shows fields and all violations, for people and for programs."""

import json

import pytest
from click.testing import CliRunner, Result

from semel import cli


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.group, ["decode", *arguments], input=stdin)


def test_a_right_packet_is_shown_field_by_field_and_exits_0() -> None:
    result = run("-V", "3.1.1", "3b", "06 00:01 61 0x0007 78")
    assert result.exit_code == 0
    assert "PUBLISH" in result.output
    assert "QoS 1, DUP, RETAIN" in result.output
    assert "topic_name               'a'" in result.output
    assert "payload                  1 byte 78" in result.output


def test_every_rule_that_is_broken_is_named_and_the_exit_code_is_1() -> None:
    result = run("-V", "3.1.1", "380b000873656e736f722f2378")
    assert result.exit_code == 1
    assert "DUP_NEEDS_QOS [MQTT-3.3.1-2, MQTT-4.3.1-1]" in result.output
    assert "TOPIC_NAME_WITHOUT_WILDCARDS [MQTT-4.7.1-1, MQTT-3.3.2-2]" in result.output


def test_a_connect_sets_the_version_of_what_follows() -> None:
    stream = "100d00044d5154540402003c000161 300400016178"
    result = run("--json", stream)
    assert result.exit_code == 0
    packets = json.loads(result.output)["packets"]
    assert [(p["packet"], p["mqtt"], p["start"], p["end"]) for p in packets] == [
        ("CONNECT", "3.1.1", 0, 15),
        ("PUBLISH", "3.1.1", 15, 21),
    ]
    assert packets[1]["fields"] == [["topic_name", "a"], ["payload", {"hex": "78"}]]


def test_json_names_rule_statements_sentence_and_what_was_seen() -> None:
    (packet,) = json.loads(run("--json", "c100").output)["packets"]
    (violation,) = packet["violations"]
    assert violation["rule"] == "FIXED_HEADER_FLAGS"
    assert violation["statements"] == ["MQTT-2.1.3-1"]
    assert violation["seen"] == "PINGREQ with flags 0001"
    assert violation["sentence"].startswith("The low four bits")


def test_type_0_is_no_packet_type() -> None:
    result = run("0000")
    assert result.exit_code == 1
    assert "no packet type" in result.output
    assert json.loads(run("--json", "0000").output)["packets"][0]["packet"] is None


def test_a_violation_without_statement_number_is_shown_too() -> None:
    result = run("c00100")
    assert "NO_SURPLUS_BYTES\n" in result.output


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_a_packet_that_is_not_complete_is_said_to_be_so(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "c000", "30040001")
    assert result.exit_code == 1
    assert (
        "30040001" in result.output
        if arguments
        else "4 bytes of an incomplete packet" in result.output
    )
    assert run(*arguments, "30").exit_code == 1


def test_a_password_is_not_shown() -> None:
    result = run("-V", "3.1.1", "101500044d51545404c2003c0001610001750003626164")
    assert result.exit_code == 0
    assert "626164" not in result.output
    assert "<3 bytes>" in result.output


def test_text_of_a_peer_is_escaped() -> None:
    assert "'\\x1b[2J'" in run("3007 0004 1b5b324a 00").output


def test_standard_input_is_read_for_a_dash() -> None:
    assert run("-", stdin="c0 00\nd0 00\n").output.count("bytes, MQTT 5.0") == 2


@pytest.mark.parametrize("text", ["zz", "c00"])
def test_what_is_not_hexadecimal_is_a_usage_error_without_traceback(text: str) -> None:
    result = run(text)
    assert result.exit_code == 2
    assert "not hexadecimal bytes" in result.output
    assert ("odd number" in result.output) == (text == "c00")
