"""ACL files of Mosquitto: which rules they become, and how mistakes are reported."""

import pytest

from semel.broker.access.mosquitto_acl import parse_mosquitto_acl
from semel.broker.access.rights import Rights
from semel.broker.access.rights_rules import RightsError
from semel.broker.identity import PASSWORD, Identity

ACL = """\
# for anonymous clients
topic read $SYS/#
topic news/#

user alice
topic plant/1/#
topic deny plant/1/secret/#
topic read all/of  it
topic write  commands/#

pattern read dev/%c/#
pattern deny dev/%c/locked
pattern readwrite users/%u/x-%u%c
pattern write 100%/%x/%%u

user ann lee
  topic read a
"""


def rights(text: str) -> Rights:
    return Rights(parse_mosquitto_acl(text, name="acl"), source="acl")


def user(name: str, client_id: str = "id") -> Identity:
    return Identity(client_id, user_name=name, proof=PASSWORD)


ALICE = user("alice")
ANYONE = Identity("id")


@pytest.mark.parametrize(
    ("who", "topic", "read", "write"),
    [
        (ANYONE, "$SYS/broker", True, False),
        (ANYONE, "news/1", True, True),
        (ANYONE, "plant/1/x", False, False),
        (ANYONE, "dev/id/x", True, False),
        # The rules before the first `user` are not for users.
        (ALICE, "$SYS/broker", False, False),
        (ALICE, "plant/1/x", True, True),
        (ALICE, "plant/1/secret/x", False, False),
        (ALICE, "all/of  it", True, False),
        (ALICE, "commands/x", False, True),
        (ALICE, "dev/id/x", True, False),
        (ALICE, "dev/id/locked", False, False),
        (ALICE, "dev/other/x", False, False),
        (ALICE, "users/alice/x-aliceid", True, True),
        (ALICE, "users/alice/x-alice", False, False),
        # Only %u and %c have a meaning.
        (ALICE, "100%/%x/%alice", False, True),
        (user("ann lee"), "a", True, False),
        (user("ann"), "a", False, False),
        (user("+"), "dev/id/x", False, False),
        (user("bob", "#"), "users/bob/x-bob#", False, False),
        (user("a/b"), "dev/id/x", True, False),
    ],
)
def test_a_client_may_read_and_write(who: Identity, topic: str, read: bool, write: bool) -> None:
    found = rights(ACL)
    assert found.may_receive(who, topic) is read
    assert found.may_publish(who, topic, qos=2, retain=True) is write


@pytest.mark.parametrize("topic_filter", ["#", "plant/#", "$SYS/#", "$share/g/any", "a"])
@pytest.mark.parametrize("who", [ALICE, ANYONE, user("+")])
def test_every_subscription_is_granted_as_mosquitto_does(who: Identity, topic_filter: str) -> None:
    found = rights(ACL)
    assert found.granted_qos(who, topic_filter, qos=2) == 2
    decision = found.explain(who, "subscribe", topic_filter, qos=2)
    assert (decision.line, decision.rule) == (0, "every subscription is granted")


def test_a_subscription_that_no_rule_covers_says_so() -> None:
    found = rights(ACL)
    decision = found.explain(ALICE, "subscribe", "#")
    assert decision.reason == "only messages that another rule allows are delivered"
    decision = found.explain(ALICE, "subscribe", "plant/1/#")
    assert decision.reason is None
    assert [rule.text for rule in decision.withheld] == ["topic deny plant/1/secret/#"]


def test_the_rules_of_the_user_come_before_patterns_and_deny_before_allow() -> None:
    text = "pattern deny a/b\nuser alice\ntopic read a/b\ntopic read c\ntopic deny c\n"
    found = rights(text)
    assert found.may_receive(ALICE, "a/b")
    assert not found.may_receive(user("bob"), "a/b")
    assert not found.may_receive(ALICE, "c")
    assert found.explain(ALICE, "receive", "a/b").line == 3
    assert found.explain(ALICE, "receive", "c").line == 5


def test_a_pattern_without_substitution_is_not_for_names_with_wildcards_either() -> None:
    found = rights("pattern read fixed\n")
    assert found.may_receive(user("a", "c"), "fixed")
    assert not found.may_receive(user("a", "c#"), "fixed")
    assert not found.may_receive(user("+", "c"), "fixed")


def test_one_word_is_a_topic() -> None:
    assert rights("topic read ").may_publish(ANYONE, "read", qos=0, retain=False)


def test_a_section_may_be_continued() -> None:
    found = rights("user alice\ntopic a\nuser bob\ntopic b\nuser alice\ntopic c\n")
    assert [found.may_receive(ALICE, topic) for topic in "abc"] == [True, False, True]


def test_rules_about_shared_filters_have_no_effect() -> None:
    found = rights("topic read $share/g/a\ntopic read $stream/s/a\n")
    assert found.lines == []
    assert not found.may_receive(ANYONE, "a")


def test_unused_rules_are_found_without_the_one_that_grants_subscriptions() -> None:
    found = rights("topic read a/#\ntopic read a/b\n")
    assert [(rule.line, other.line) for rule, other in found.find_unused()] == [(2, 1)]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("foo bar", "'foo' is not user, topic or pattern"),
        ("topic\tread a", "'topic\\tread' is not user, topic or pattern"),
        ("user", "there is no name after user"),
        ("topic", "there is no topic"),
        (
            "topic foo bar",
            "'foo' is not read, write, readwrite or deny, of which one must precede a topic that "
            "contains a space",
        ),
        ("topic read a#", "'a#' is not a topic filter"),
        ("pattern read a/+%u", "'a/+%u' is not a topic filter"),
        ("pattern read $%u", "no value can be substituted in a first level that begins with $"),
    ],
)
def test_a_mistake_is_reported_with_its_line(line: str, sentence: str) -> None:
    with pytest.raises(RightsError) as caught:
        parse_mosquitto_acl(f"topic a\n{line}\nuser\n", name="acl")
    first, second = caught.value.problems
    assert first.startswith(f"acl, line 2: {sentence}")
    assert second == "acl, line 3: there is no name after user"
