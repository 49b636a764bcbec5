"""`semel rules` lists what the package enforces."""

import json

from click.testing import CliRunner, Result

from semel import cli
from semel.mqtt import RULES


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.group, ["rules", *arguments])


def test_all_rules_are_listed_with_their_sentences() -> None:
    output = run().output
    for rule in RULES:
        assert f"{rule.name}\n  {rule.sentence}\n" in output


def test_a_pattern_chooses_by_name_sentence_or_number() -> None:
    for pattern in ("without_wildcards", "neither + nor #", "MQTT-3.3.2-14"):
        assert "TOPIC_NAME_WITHOUT_WILDCARDS" in run(pattern).output
        assert "PACKET_ID_NOT_ZERO" not in run(pattern).output


def test_json_has_every_part_of_a_rule() -> None:
    (rule,) = json.loads(run("--json", "PACKET_TYPE_KNOWN").output)
    assert rule == {
        "rule": "PACKET_TYPE_KNOWN",
        "sentence": "Packet type 0 is forbidden, and so is 15 (AUTH) in 3.1.1.",
        "mqtt311": ["U3-01"],
        "mqtt5": ["U5-01"],
        "boundaries": ["encode", "decode"],
        "reason": 0x81,
        "closes": True,
    }
    assert len(json.loads(run("--json").output)) == len(RULES)


def test_a_rule_after_which_the_receiver_goes_on_says_so() -> None:
    assert "none, the receiver continues" in run("NO_RESEND").output


def test_a_pattern_that_fits_nothing_is_an_error_in_one_sentence() -> None:
    result = run("no such rule")
    assert result.exit_code == 1
    assert (
        result.output
        == "Error: no rule has 'no such rule' in its name, sentence or statement numbers\n"
    )
