"""What rules allow to a client: the first that matches decides, and names never widen anything."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from semel.broker.access.bounded_cache import BoundedCache
from semel.broker.access.filter_cover import covers, overlaps, split_levels
from semel.broker.access.rights import Rights
from semel.broker.access.rights_file import parse_rights
from semel.broker.access.rights_rules import ACTION_NAMES, RightsRule
from semel.broker.access.rule_index import RuleNode
from semel.broker.access.topic_template import ClientValues, is_usable
from semel.broker.identity import CERTIFICATE, PASSWORD, TOKEN, Identity
from semel.mqtt.topics import topic_matches
from tests.modes import repeats

FILE = """
# action  who               what                 on
allow     user:alice        publish,subscribe    plant/1/#          max-qos 1
allow     group:ops         all                  #
allow     cert:press-7      publish              plant/press-7/+    no-retain
allow     client:gateway-3  publish,receive      gw/%c/#
deny      anonymous         subscribe            $SYS/#
allow     *                 publish              users/%u/#
allow     claim:tenant=acme subscribe            acme/%{claim:site}/#
allow     *                 subscribe            $SYS/broker/uptime
"""


def rights(text: str) -> Rights:
    return Rights(parse_rights(text, name="rights.txt"), source="rights.txt")


RIGHTS = rights(FILE)


def user(name: str, **others: object) -> Identity:
    return Identity("id", user_name=name, proof=PASSWORD, **others)  # type: ignore[arg-type]


ALICE = user("alice")
OPERATOR = user("olga", groups=("staff", "ops"))
PRESS = Identity("p", certificate="press-7", proof=CERTIFICATE, user_name="press-7")
GATEWAY = Identity("gateway-3")
ACME = Identity("t", user_name="tom", proof=TOKEN, claims={"tenant": "acme", "site": "bonn"})
STRANGER = Identity("eve")


def may(who: Identity, action: str, topic: str, found: Rights = RIGHTS, *, qos: int = 0) -> bool:
    """Whether it may, by the method of the action, which agrees with `explain`."""
    if action == "publish":
        allowed = found.may_publish(who, topic, qos=qos, retain=False)
    elif action == "receive":
        allowed = found.may_receive(who, topic)
    else:
        allowed = found.granted_qos(who, topic, qos=qos) is not None
    assert found.explain(who, action, topic, qos=qos).allowed is allowed
    return allowed


# --- who, what, on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "action", "topic", "expected"),
    [
        (ALICE, "publish", "plant/1/temp", True),
        (ALICE, "publish", "plant/1", True),
        (ALICE, "publish", "plant/2/temp", False),
        (ALICE, "subscribe", "plant/1/#", True),
        (ALICE, "subscribe", "plant/1/+/x", True),
        (ALICE, "subscribe", "plant/#", False),
        (ALICE, "subscribe", "plant/+/temp", False),
        # subscribe includes receive.
        (ALICE, "receive", "plant/1/temp", True),
        (ALICE, "receive", "plant/2/temp", False),
        (OPERATOR, "publish", "any/thing", True),
        (OPERATOR, "subscribe", "#", True),
        (OPERATOR, "receive", "any/thing", True),
        # A wildcard in the first level does not match topics that begin with $.
        (OPERATOR, "publish", "$any", False),
        (OPERATOR, "subscribe", "$SYS/#", False),
        (OPERATOR, "subscribe", "$SYS/broker/uptime", True),
        (PRESS, "publish", "plant/press-7/count", True),
        (PRESS, "publish", "plant/press-7/count/x", False),
        (PRESS, "subscribe", "plant/press-7/count", False),
        (GATEWAY, "publish", "gw/gateway-3/up", True),
        (GATEWAY, "publish", "gw/gateway-4/up", False),
        (GATEWAY, "receive", "gw/gateway-3/up", True),
        (GATEWAY, "subscribe", "gw/gateway-3/up", False),
        (ACME, "subscribe", "acme/bonn/#", True),
        (ACME, "subscribe", "acme/#", False),
        (ACME, "publish", "acme/bonn/x", False),
        (ACME, "publish", "users/tom", True),
        (STRANGER, "publish", "users/eve", False),
        (STRANGER, "publish", "plant/1/temp", False),
        (STRANGER, "subscribe", "$SYS/broker/uptime", False),
        (STRANGER, "receive", "$SYS/broker/uptime", False),
    ],
)
def test_a_rule_applies_to_whom_it_names(
    who: Identity, action: str, topic: str, expected: bool
) -> None:
    assert may(who, action, topic) is expected
    # The second time from the cache.
    assert may(who, action, topic) is expected


def test_without_rules_everything_is_denied() -> None:
    empty = rights("# nothing\n")
    for action in ACTION_NAMES:
        assert not may(OPERATOR, action, "a", empty)
    assert empty.lines == []


def test_the_first_rule_that_matches_decides() -> None:
    text = "deny user:alice publish a/b\nallow * publish a/#\ndeny * publish a/c\n"
    found = rights(text)
    assert not may(ALICE, "publish", "a/b", found)
    assert may(STRANGER, "publish", "a/b", found)
    assert may(STRANGER, "publish", "a/c", found)
    first, second, third = text.splitlines()
    assert may(STRANGER, "publish", "a/c", rights(f"{second}\n{first}\n{third}\n"))
    assert not may(STRANGER, "publish", "a/c", rights(f"{third}\n{second}\n{first}\n"))


def test_a_user_name_that_was_not_proved_counts_for_nothing() -> None:
    """Class 11: an anonymous listener accepts any user name."""
    pretender = Identity("id", user_name="alice")
    assert may(ALICE, "publish", "plant/1/temp")
    assert not may(pretender, "publish", "plant/1/temp")
    assert not may(pretender, "publish", "users/alice/x")
    assert RIGHTS.key(pretender) == RIGHTS.key(STRANGER)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos", "expected"), [(0, True), (1, True), (2, False)])
def test_a_message_with_a_higher_qos_than_the_rule_allows_is_refused(
    qos: int, expected: bool
) -> None:
    assert may(ALICE, "publish", "plant/1/temp", qos=qos) is expected
    assert may(OPERATOR, "publish", "plant/1/temp", qos=qos)


@pytest.mark.parametrize(("qos", "expected"), [(0, 0), (1, 1), (2, 1)])
def test_a_subscription_gets_at_most_the_qos_of_the_rule(qos: int, expected: int) -> None:
    assert RIGHTS.granted_qos(ALICE, "plant/1/#", qos=qos) == expected
    assert RIGHTS.granted_qos(OPERATOR, "plant/1/#", qos=qos) == qos
    decision = RIGHTS.explain(ALICE, "subscribe", "plant/1/#", qos=qos)
    assert decision.granted_qos == expected
    assert decision.reason == (None if qos == expected else "QoS 1 is granted")


def test_a_retained_message_needs_a_rule_without_no_retain() -> None:
    topic = "plant/press-7/count"
    assert RIGHTS.may_publish(PRESS, topic, qos=2, retain=False)
    assert not RIGHTS.may_publish(PRESS, topic, qos=2, retain=True)
    assert RIGHTS.may_publish(OPERATOR, topic, qos=2, retain=True)
    decision = RIGHTS.explain(PRESS, "publish", topic, retain=True)
    assert (decision.allowed, decision.line) == (False, 5)
    assert decision.reason == "the message is retained, which no-retain forbids"
    assert RIGHTS.explain(OPERATOR, "publish", topic, retain=True).allowed


LIMITED = """
allow * subscribe a/b/#      max-qos 1
allow * subscribe users/%u   max-qos 0
allow * subscribe a/#
allow * subscribe users/#
allow * subscribe a/b/c      max-qos 0
"""


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("a/b/c", 1),
        ("a/c", 2),
        # The limit of an earlier rule holds for a broader subscription, too.
        ("a/#", 1),
        ("a/+/c", 1),
        ("a/+", 1),
        ("a/c/#", 2),
        ("users/#", 0),
        ("users/alice", 0),
        ("users/bob", 2),
    ],
)
def test_a_broader_subscription_does_not_evade_the_limit_of_an_earlier_rule(
    topic_filter: str, expected: int
) -> None:
    assert rights(LIMITED).granted_qos(ALICE, topic_filter, qos=2) == expected


def test_a_value_that_a_client_lacks_limits_nothing() -> None:
    assert rights(LIMITED).granted_qos(STRANGER, "users/#", qos=2) == 2


def test_of_very_many_limits_the_lowest_holds_for_a_filter_with_wildcards() -> None:
    """Comparing thousands of rules with each of thousands of filters would take too long."""
    lines = [f"allow * subscribe a/{number} max-qos 1" for number in range(150)]
    lines[120] = "allow * subscribe other max-qos 0"
    found = rights("\n".join([*lines, "allow * subscribe #"]))
    assert found.granted_qos(ALICE, "b/+", qos=2) == 0
    assert found.granted_qos(ALICE, "b/1", qos=2) == 2
    few = rights("\n".join([*lines[:100], "allow * subscribe #"]))
    assert few.granted_qos(ALICE, "b/+", qos=2) == 2
    assert few.granted_qos(ALICE, "a/+", qos=2) == 1
    # Rules after the one that decides do not count.
    last = rights("\n".join(["allow * subscribe #", *lines]))
    assert last.granted_qos(ALICE, "a/+", qos=2) == 2


# --- subscriptions --------------------------------------------------------------------------------

PARTLY = """
deny  user:bob subscribe plant/secret/#
allow user:bob subscribe plant/#
deny  user:bob receive   log/#
allow user:bob subscribe log/#
"""
BOB = user("bob")


def test_a_broad_subscription_does_not_deliver_what_a_rule_denies() -> None:
    found = rights(PARTLY)
    assert found.granted_qos(BOB, "plant/#", qos=1) == 1
    assert found.may_receive(BOB, "plant/1")
    assert not found.may_receive(BOB, "plant/secret/1")
    assert not found.may_receive(BOB, "plant/secret")
    assert found.granted_qos(BOB, "plant/secret/1", qos=1) is None
    decision = found.explain(BOB, "subscribe", "plant/+", qos=1)
    assert decision.line == 3
    assert [rule.line for rule in decision.withheld] == [2]
    assert found.explain(BOB, "subscribe", "plant/1", qos=1).withheld == ()


def test_a_denied_receive_permits_the_subscription() -> None:
    found = rights(PARTLY)
    assert found.granted_qos(BOB, "log/x", qos=0) == 0
    assert not found.may_receive(BOB, "log/x")
    assert [rule.line for rule in found.explain(BOB, "subscribe", "log/x").withheld] == [4]


def test_a_deny_rule_that_never_decides_withholds_nothing() -> None:
    found = rights("allow * receive a/b\ndeny * receive a/b\nallow * subscribe a/#\n")
    assert found.explain(BOB, "subscribe", "a/#").withheld == ()
    assert may(BOB, "receive", "a/b", found)


def test_rules_are_not_added_up_to_cover_a_filter() -> None:
    found = rights("allow * subscribe a\nallow * subscribe a/+/#\n")
    assert found.granted_qos(BOB, "a/#", qos=0) is None
    assert found.granted_qos(BOB, "a", qos=0) == 0
    assert found.granted_qos(BOB, "a/+/#", qos=0) == 0


@pytest.mark.parametrize("prefix", ["$share/group/", "$stream/plant/", "$share/g/$stream/plant/"])
def test_a_shared_or_replayed_filter_is_decided_as_the_inner_one(prefix: str) -> None:
    """Class 11: a shared filter."""
    assert RIGHTS.granted_qos(ALICE, f"{prefix}plant/1/#", qos=2) == 1
    assert RIGHTS.granted_qos(ALICE, f"{prefix}plant/2", qos=2) is None
    assert RIGHTS.granted_qos(ALICE, f"{prefix}#", qos=2) is None
    assert RIGHTS.granted_qos(OPERATOR, f"{prefix}$SYS/x", qos=2) is None
    assert RIGHTS.explain(ALICE, "subscribe", f"{prefix}plant/1/#", qos=2).granted_qos == 1


@pytest.mark.parametrize("topic_filter", ["$stream/+/plant/1/#", "$stream/plant", "$stream/#"])
def test_a_filter_for_a_stream_without_an_inner_filter_is_refused(topic_filter: str) -> None:
    assert RIGHTS.granted_qos(ALICE, topic_filter, qos=0) is None
    decision = RIGHTS.explain(ALICE, "subscribe", topic_filter)
    assert decision.reason == "the filter for a stream is $stream/<name>/<filter>"
    assert decision.line is None


def test_a_replayed_message_is_decided_by_its_original_topic() -> None:
    assert may(ALICE, "receive", "$stream/all/plant/1/temp")
    assert not may(ALICE, "receive", "$stream/all/plant/2/temp")
    assert not may(OPERATOR, "receive", "$stream/all")
    assert not may(ALICE, "publish", "$stream/all/plant/1/temp")


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["+", "#", "a/b", "alice/#", "", "a\0"])
def test_a_name_with_a_wildcard_gets_nothing_from_a_pattern(name: str) -> None:
    """Class 10: a wildcard in a user name or client identifier."""
    found = rights("allow * all users/%u/#\nallow * all dev/%c\nallow * all x/%{claim:n}\n")
    claims = {"n": name}
    who = Identity(name, user_name=name, proof=PASSWORD, claims=claims)
    for topic in ("users/alice", f"users/{name}", "users/", "dev/x", f"dev/{name}", f"x/{name}"):
        assert not found.may_publish(who, topic, qos=0, retain=False)
        assert not found.may_receive(who, topic)
        assert found.granted_qos(who, topic, qos=0) is None
    for topic_filter in ("users/+/#", "users/#", "#", "dev/+", "x/+"):
        assert found.granted_qos(who, topic_filter, qos=0) is None
    assert may(ALICE, "subscribe", "users/alice/#", found)
    assert may(ALICE, "publish", "dev/id", found)


def test_a_name_in_a_rule_is_compared_exactly() -> None:
    found = rights("allow user:+ publish plus\nallow user:* publish star\n")
    assert may(user("+"), "publish", "plus", found)
    assert not may(ALICE, "publish", "plus", found)
    assert may(user("*"), "publish", "star", found)
    assert not may(ALICE, "publish", "star", found)


def test_a_user_named_like_a_system_topic_does_not_get_it() -> None:
    found = rights("allow * all %u/#\nallow * all x/%u\n")
    assert may(ALICE, "publish", "alice/x", found)
    assert not may(user("$SYS"), "publish", "$SYS/x", found)
    assert not may(user("$SYS"), "subscribe", "$SYS/#", found)
    assert may(user("$SYS"), "publish", "x/$SYS", found)


def test_a_name_that_cannot_be_substituted_does_not_evade_a_deny_rule() -> None:
    found = rights("deny * all users/%u/locked\nallow * all users/#\nallow * all misc\n")
    assert not may(ALICE, "publish", "users/alice/locked", found)
    assert may(ALICE, "publish", "users/bob/locked", found)
    odd = user("a/b")
    # For such a user, the deny rule matches all that it could match.
    for topic in ("users/a/b/locked", "users/alice/x", "users"):
        assert not may(odd, "publish", topic, found)
    assert may(odd, "publish", "misc", found)
    assert not may(odd, "subscribe", "users/#", found)
    # An anonymous client has no user name at all: the rule is not about it.
    assert may(STRANGER, "publish", "users/alice/locked", found)
    decision = found.explain(odd, "subscribe", "misc")
    assert decision.withheld == ()


def test_an_unusable_name_denies_nothing_beside_its_level() -> None:
    found = rights("deny * receive a/%c/x\ndeny * receive %c/x\nallow * all #\nallow * all $a\n")
    odd = Identity("i+d")
    assert not may(odd, "receive", "a/b", found)
    assert not may(odd, "receive", "b", found)
    assert may(odd, "receive", "$a", found)
    assert [rule.line for rule in found.explain(odd, "subscribe", "#").withheld] == [1, 2]
    assert may(Identity("id"), "receive", "b", found)


# --- keys -----------------------------------------------------------------------------------------


def test_the_members_of_a_group_have_one_key() -> None:
    found = rights("allow group:dev publish data/#\nallow user:x publish x\n")
    keys = {found.key(Identity(f"c{n}", groups=("dev",))) for n in range(100)}
    assert len(keys) == 1
    assert found.key(Identity("c", groups=("dev", "dev", "other"))) in keys
    assert found.key(Identity("c")) not in keys


def test_a_value_belongs_to_the_key_only_if_a_rule_for_the_client_uses_it() -> None:
    found = rights("allow group:dev publish data/%c\nallow * publish all\n")
    assert found.key(Identity("c1")) == found.key(Identity("c2"))
    in_group = {"groups": ("dev",)}
    assert found.key(user("c1", **in_group)) == found.key(user("c2", **in_group))
    one = found.key(Identity("c1", groups=("dev",)))
    assert one != found.key(Identity("c2", groups=("dev",)))
    # All unusable values have the same effect.
    assert found.key(Identity("+", groups=("dev",))) == found.key(Identity("#", groups=("dev",)))
    assert found.key(Identity("+", groups=("dev",))) != one
    # A deny rule is about a client with an unusable user name, not about one without.
    denying = rights("deny * all users/%u\nallow * all users/#\n")
    assert denying.key(user("a/b")) != denying.key(STRANGER)


# --- all of it, against a plain description -------------------------------------------------------

LEVEL = st.sampled_from(["a", "b", "+", "%u", "%c", "x%u", "%{claim:k}", "$s"])
TOPIC = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVEL, min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)
WHO = st.sampled_from(
    ["*", "anonymous", "user:a", "user:b", "group:g", "group:h", "cert:a", "client:a", "claim:k=a"]
)
LINE = st.builds(
    lambda verb, who, what, topic, limit: " ".join(
        [verb, who, what, topic, *([limit] if verb == "allow" and what != "receive" else [])]
    ),
    st.sampled_from(["allow", "allow", "deny"]),
    WHO,
    st.sampled_from(["publish", "subscribe", "receive", "all", "publish,receive"]),
    TOPIC.filter(lambda topic: not topic.startswith("$s%")),
    st.sampled_from(["", "", "max-qos 0", "max-qos 1"]),
)
VALUE = st.sampled_from(["a", "b", "+", "#", "a/b", "$s", ""])
IDENTITY = st.builds(
    lambda client, name, proof, certificate, groups, claim: Identity(
        client,
        user_name=name,
        proof=proof,
        certificate=certificate,
        groups=tuple(groups),
        claims={} if claim is None else {"k": claim},
    ),
    VALUE,
    st.none() | VALUE,
    st.sampled_from(["anonymous", "password"]),
    st.none() | VALUE,
    st.lists(st.sampled_from(["g", "h"]), unique=True),
    st.none() | VALUE,
)
TOPIC_NAMES = [
    "/".join(each)
    for length in (1, 2, 3, 4)
    for each in itertools.product(["a", "b", "xa", "$s", "z"], repeat=length)
]
SOME_FILTERS = [
    *("#", "+", "a", "a/#", "a/+", "+/a", "a/b/#", "a/+/b", "$s/#", "$s/a", "+/+/#", "b/+/+"),
    *("$share/g/a/#", "$stream/s/b/#"),
]


def described(rule: RightsRule, who: Identity) -> tuple[str, ...] | None:
    """The filter of a rule for a client as text; None if the rule does not apply to it."""
    name = None if who.proof == "anonymous" else who.user_name
    kind, value = rule.who.kind, rule.who.value
    applies = {
        "*": True,
        "anonymous": name is None,
        "user": name == value,
        "group": value in who.groups,
        "cert": who.certificate == value,
        "client": who.client_id == value,
        "claim": f"k={who.claims.get('k')}" == value,
    }
    if not applies[kind]:
        return None
    topic = rule.text.split()[3]
    levels: list[str] = []
    for level in topic.split("/"):
        is_substituted = False
        for sign, known in (("%u", name), ("%c", who.client_id or None)):
            if sign in level:
                is_substituted = True
                if known is None:
                    return None
                if not is_usable(known):
                    return None if rule.is_allow else split_levels("/".join([*levels, "#"]))
                level = level.replace(sign, known)
        if "%{claim:k}" in level:
            is_substituted = True
            claim = who.claims.get("k")
            if claim is None:
                return None
            if not is_usable(claim):
                return None if rule.is_allow else split_levels("/".join([*levels, "#"]))
            level = claim
        if is_substituted and not levels and level.startswith("$"):
            return None
        levels.append(level)
    return split_levels("/".join(levels))


def first(rules: list[RightsRule], who: Identity, action: str, topic: str) -> RightsRule | None:
    for rule in rules:
        found = described(rule, who)
        if found is None or not rule.actions & ACTION_NAMES[action]:
            continue
        if action == "subscribe":
            if covers(found, split_levels(topic)):
                return rule
        elif topic_matches("/".join(found), topic):
            return rule
    return None


@settings(max_examples=repeats(600, 100), deadline=None)
@given(st.lists(LINE, max_size=8), IDENTITY, st.sampled_from([0, 1, 2]))
def test_decisions_are_those_of_a_search_through_all_rules(
    lines: list[str], who: Identity, qos: int
) -> None:
    rules = parse_rights("\n".join(lines), name="r")
    found = Rights(rules)
    for topic in TOPIC_NAMES[:: max(1, len(TOPIC_NAMES) // 60)]:
        for action in ("publish", "receive"):
            rule = first(rules, who, action, topic)
            limited = rule is not None and action == "publish" and qos > rule.max_qos
            expected = rule is not None and rule.is_allow and not limited
            assert may(who, action, topic, found, qos=qos) is expected
            line = found.explain(who, action, topic, qos=qos).line
            assert line == (None if rule is None else rule.line)
    for topic_filter in SOME_FILTERS:
        inner = topic_filter.removeprefix("$share/g/").removeprefix("$stream/s/")
        rule = first(rules, who, "subscribe", inner)
        if rule is None or not rule.is_allow:
            assert found.granted_qos(who, topic_filter, qos=qos) is None
            continue
        limit = rule.max_qos
        for earlier in rules[: rule.order]:
            topic_of_rule = described(earlier, who)
            if topic_of_rule is not None and earlier.actions & ACTION_NAMES["subscribe"]:
                if overlaps(topic_of_rule, split_levels(inner)):
                    limit = min(limit, earlier.max_qos)
        assert found.granted_qos(who, topic_filter, qos=qos) == min(qos, limit)
        decision = found.explain(who, "subscribe", topic_filter, qos=qos)
        assert (decision.line, decision.granted_qos) == (rule.line, min(qos, limit))
        withheld = {each.line for each in decision.withheld}
        for topic in TOPIC_NAMES:
            if topic_matches(inner, topic) and not found.may_receive(who, topic):
                denying = first(rules, who, "receive", topic)
                assert denying is not None
                assert denying.line in withheld


@settings(max_examples=repeats(600, 100), deadline=None)
@given(st.lists(LINE, max_size=5), IDENTITY, IDENTITY)
def test_clients_with_equal_keys_have_equal_rights(
    lines: list[str], one: Identity, other: Identity
) -> None:
    rules = parse_rights("\n".join(lines), name="r")
    found = Rights(rules)
    assume(found.key(one) == found.key(other))
    for topic in (*TOPIC_NAMES[:30], "+", "#"):
        for action in ("publish", "receive"):
            if topic not in ("+", "#"):
                expected = first(rules, one, action, topic)
                assert first(rules, other, action, topic) is expected
    for topic_filter in SOME_FILTERS[:-2]:
        assert first(rules, one, "subscribe", topic_filter) is first(
            rules, other, "subscribe", topic_filter
        )


# --- caches ---------------------------------------------------------------------------------------


def test_the_caches_are_bounded() -> None:
    text = "allow * publish a/%c\n"
    found = Rights(parse_rights(text, name="r"), cached_decisions=100)
    for number in range(1_000):
        who = Identity(str(number))
        assert found.may_publish(who, f"a/{number}", qos=0, retain=False)
        assert found.granted_qos(who, f"a/{number}", qos=0) is None
    for cache in (found._clients, found._rules, found._granted):
        assert 50 <= len(cache) <= 100


def test_a_decision_about_a_long_topic_is_made_each_time() -> None:
    found = rights("allow * all a/#\n")
    topic = "a/" + "x" * 1_000
    for _ in range(2):
        assert may(ALICE, "publish", topic, found)
        assert may(ALICE, "subscribe", topic, found)
    assert len(found._rules) == len(found._granted) == 0


def test_of_a_client_only_what_rules_ask_about_is_kept() -> None:
    found = rights("allow claim:a=1 publish a\nallow * publish x/%{claim:b}\n")
    for number in range(10):
        who = Identity(f"c{number}", claims={"a": "1", "other": "x" * 10_000})
        assert may(who, "publish", "a", found)
    assert len(found._clients) == 1
    large = Identity("c", claims={"a": "1", "b": "x" * 10_000})
    assert may(large, "publish", "a", found)
    assert may(large, "publish", f"x/{large.claims['b']}", found)
    assert len(found._clients) == 1


def test_the_cache_keeps_what_is_used() -> None:
    cache: BoundedCache[int, int] = BoundedCache(10)
    for number in range(1, 101):
        cache.put(number, number)
        assert cache.get(1) == 1
        assert cache.get(number) == number
        assert len(cache) <= 10
    assert cache.get(2) is None


def test_a_topic_of_very_many_levels_takes_linear_time() -> None:
    """Class 7: 65,000 slashes."""
    found = rights("allow * all +/+/+/#\nallow * all a/#\n")
    deep = "/".join(["a"] * 32_000)
    assert may(ALICE, "publish", deep, found)
    assert may(ALICE, "subscribe", "/".join(["+"] * 32_000), found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        "allow user:u{0} publish plant/{0}/#",
        "allow * publish plant/{0}/+/x",
        "allow group:g{0} publish plant/{0}/%c/#",
        "deny * publish +/{0}/%u",
    ],
)
def test_a_decision_does_not_visit_all_rules(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[RuleNode] = []
    collect = RuleNode.collect

    def counted(
        node: RuleNode, action: int, values: ClientValues, found: list[RightsRule | None]
    ) -> None:
        visited.append(node)
        collect(node, action, values, found)

    monkeypatch.setattr(RuleNode, "collect", counted)
    found = rights("\n".join(form.format(number) for number in range(2_000)))
    for number in (0, 1_999):
        who = Identity("c", user_name=f"u{number}", proof=PASSWORD, groups=(f"g{number}",))
        visited.clear()
        decision = found.explain(who, "publish", f"plant/{number}/c/x")
        assert len(visited) <= 8
        assert decision.allowed is form.startswith("allow")


# --- unused rules ---------------------------------------------------------------------------------


def test_rules_that_never_decide_are_found() -> None:
    found = rights(
        "allow * publish a/#\n"
        "deny * publish a/b\n"  # covered by 1
        "allow user:x all a/b\n"  # publish is, subscribe is not
        "allow user:x publish a/+/c\n"  # covered by 1, of everyone
        "allow user:x publish a/%u\n"  # not compared
        "allow user:y publish b\n"
        "deny user:y publish b\n"  # covered by 6
        "deny user:z publish b\n"
    )
    pairs = [(rule.line, other.line) for rule, other in found.find_unused()]
    assert pairs == [(2, 1), (4, 1), (7, 6)]
    assert rights("allow user:x publish a\nallow user:y publish a\n").find_unused() == []
