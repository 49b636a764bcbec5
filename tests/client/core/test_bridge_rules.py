"""The rules of a bridge: how they are written, and what they make of a topic."""

import pytest

from semel.client.bridge_rules import (
    BadRule,
    TopicRule,
    check_direction,
    find_returning,
    parse_rule,
    to_local,
    to_remote,
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("plant/#", TopicRule("plant/#")),
        ("  plant/#  qos  1 ", TopicRule("plant/#", qos=1)),
        ("# local plant/ remote site-7/", TopicRule("#", "plant/", "site-7/")),
        ("# remote site-7/ local plant/ qos 0", TopicRule("#", "plant/", "site-7/", 0)),
        ("'two words/#' local \"a b/\"", TopicRule("two words/#", "a b/")),
        ("a/+ remote x", TopicRule("a/+", "", "x")),
        ("local remote remote/", TopicRule("local", "", "remote/")),
        ("$SYS/# remote site/", TopicRule("$SYS/#", "", "site/")),
    ],
)
def test_a_rule_is_a_filter_and_its_options(text: str, rule: TopicRule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ", "has no topic filter"),
        ("a b", "'b' is not a keyword; a rule is FILTER"),
        ("a qos", "has nothing after qos"),
        ("a qos 3", "the QoS is '3', but must be 0, 1 or 2"),
        ("a qos 1 qos 2", "has qos twice"),
        ("a local 'b", "has an open quotation mark"),
        ("a local b#/", "the local prefix is not valid"),
        ("a remote +/", "the remote prefix is not valid"),
        ("a#", "'a#' is not a topic filter"),
        ("# local plant", "'plant#' is not a topic filter"),
        # Prefix and wildcard would be one level.
        ("+/temp remote x", "'x+/temp' is not a topic filter"),
        ("$share/g/a", "has no shared subscription"),
        ("g/a local $share/", "has no shared subscription"),
        ("''", "'' is not a topic filter"),
    ],
)
def test_a_bad_rule_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(BadRule) as caught:
        parse_rule(text)
    assert words in str(caught.value).replace('"', "'")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "local", "remote"),
    [
        ("plant/#", "plant/1", "plant/1"),
        ("# local plant/ remote site/", "plant/1/t", "site/1/t"),
        ("1/# local plant/", "plant/1/t", "1/t"),
        ("1 remote site/", "1", "site/1"),
    ],
)
def test_prefixes_are_replaced(rule: str, local: str, remote: str) -> None:
    parsed = parse_rule(rule)
    out, inward = to_remote(parsed), to_local(parsed)
    assert out.destination_topic(local) == remote
    assert inward.destination_topic(remote) == local
    assert out.source_topic(remote) == local
    assert inward.source_topic(local) == remote


@pytest.mark.parametrize("topic", ["plant", "plant/", "other/1", "plantation/1", "plant/2/t"])
def test_a_topic_that_the_rule_does_not_match_has_no_destination(topic: str) -> None:
    out = to_remote(parse_rule("1/# local plant/ remote site/"))
    assert out.destination_topic(topic) is None
    assert out.source_topic(topic) is None
    assert out.source_topic("site/") is None


def test_rules_of_one_direction_must_not_overlap() -> None:
    rules = [to_remote(parse_rule(each)) for each in ("plant/#", "+/1 qos 0", "yard/2/#")]
    (problem,) = check_direction(rules, "to_remote")
    assert problem.startswith("to_remote: ")
    assert "overlap" in problem
    rules = [to_remote(parse_rule(each)) for each in ("# local plant/", "# local yard/")]
    assert check_direction(rules, "to_remote") == []


def test_topics_of_the_broker_need_a_prefix_at_the_destination() -> None:
    rule = parse_rule("$SYS/# remote site/")
    assert check_direction([to_remote(rule)], "to_remote") == []
    (problem,) = check_direction([to_local(rule)], "to_local")
    assert "begins with $" in problem


@pytest.mark.parametrize(
    ("out", "inward", "is_returning"),
    [
        ("plant/#", "plant/#", True),
        ("plant/#", "jobs/#", False),
        ("#", "jobs/#", True),
        ("# local out/", "# local in/", False),
        ("# local out/", "+/x local out/", True),
    ],
)
def test_what_comes_back_without_no_local_is_found(
    out: str, inward: str, is_returning: bool
) -> None:
    there = find_returning([to_remote(parse_rule(out))], [to_local(parse_rule(inward))])
    assert (there is not None) is is_returning
