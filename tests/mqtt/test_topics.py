"""Topic Names and Topic Filters: what is one, and which filter matches which name [4.7, 4.8]."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Rule,
    Violation,
    check_levels,
    rules,
    split_share,
    topic_matches,
)
from semel.mqtt.topics import (
    check_share,
    check_topic_filter,
    check_topic_name,
    has_wildcard,
    is_shared,
    quoted,
)
from tests.modes import repeats
from tests.mqtt.verdicts import BOTH, refuses

GOOD_NAMES = (
    "a",
    "/",
    "//",
    "*",
    "$",
    "$SYS/x",
    " ",
    "a b",
    "é",
    "\ufeff",
    "a/",
    "sensor/value",
    "?",
)
GOOD_FILTERS = (
    *("#", "+", "/", "+/+", "/+", "+/", "a/#", "+/#", "/#", "a/+/b", "+//+", "$SYS/#", "*", "$"),
    *("$share", "$shared/x", "a b/+", "$share/g/#", "$share/g/+/a", "$share//a", "$share/g"),
)
BAD_FILTERS = (
    ("", rules.TOPIC_FILTER_NOT_EMPTY),
    ("a#", rules.HASH_IS_LAST_LEVEL),
    ("#a", rules.HASH_IS_LAST_LEVEL),
    ("##", rules.HASH_IS_LAST_LEVEL),
    ("#/", rules.HASH_IS_LAST_LEVEL),
    ("#/a", rules.HASH_IS_LAST_LEVEL),
    ("#/#", rules.HASH_IS_LAST_LEVEL),
    ("a/b#", rules.HASH_IS_LAST_LEVEL),
    ("sport/tennis/#/ranking", rules.HASH_IS_LAST_LEVEL),
    ("a+", rules.PLUS_FILLS_ITS_LEVEL),
    ("+a", rules.PLUS_FILLS_ITS_LEVEL),
    ("++", rules.PLUS_FILLS_ITS_LEVEL),
    ("+/a+", rules.PLUS_FILLS_ITS_LEVEL),
    ("a/+b/c", rules.PLUS_FILLS_ITS_LEVEL),
    ("a+/#", rules.PLUS_FILLS_ITS_LEVEL),
)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_topic_name_is_any_text_without_wildcards(name: str) -> None:
    check_topic_name(name, "topic_name", None)


def test_an_empty_topic_name_is_refused() -> None:
    with refuses(rules.TOPIC_NAME_NOT_EMPTY):
        check_topic_name("", "topic_name", None)


@pytest.mark.parametrize("name", ["+", "#", "sensor/+", "sensor/#", "a+b", "a#", "/#", "+/a"])
def test_a_topic_name_with_a_wildcard_is_refused(name: str) -> None:
    with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
        check_topic_name(name, "topic_name", None)


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("a\0", rules.TEXT_WITHOUT_NUL),
        ("\ud800", rules.TEXT_WELL_FORMED),
        ("a/\udfff/b", rules.TEXT_WELL_FORMED),
        ("a" * 65_536, rules.TEXT_FITS_ITS_LENGTH),
        ("é" * 32_768, rules.TEXT_FITS_ITS_LENGTH),
    ],
    ids=["nul", "surrogate", "inner surrogate", "long", "long in bytes"],
)
def test_a_name_or_filter_that_is_no_proper_string_is_refused(topic: str, rule: Rule) -> None:
    with refuses(rule):
        check_topic_name(topic, "topic_name", None)
    with refuses(rule):
        check_topic_filter(topic, None)


@pytest.mark.parametrize("topic", ["a" * 65_535, "é" * 32_767, "\x01\x7f\u0085"])
def test_a_topic_takes_up_to_65535_bytes_of_any_text(topic: str) -> None:
    check_topic_name(topic, "topic_name", None)
    check_topic_filter(topic, None)


# A name may have any character but three; those before the comma are looked at more closely.
@pytest.mark.parametrize("number", [*range(1, 0x80), 0x9F, 0xFEFF, 0xFFFF, 0x10FFFF])
def test_every_character_but_nul_and_the_wildcards_may_stand_in_a_name(number: int) -> None:
    name = f"a{chr(number)}"
    if chr(number) in "+#":
        with refuses(rules.TOPIC_NAME_WITHOUT_WILDCARDS):
            check_topic_name(name, "topic_name", None)
    else:
        check_topic_name(name, "topic_name", None)
        check_topic_filter(name, None)


@pytest.mark.parametrize("topic_filter", GOOD_FILTERS)
def test_a_wildcard_that_fills_its_level_makes_a_topic_filter(topic_filter: str) -> None:
    check_topic_filter(topic_filter, None)


@pytest.mark.parametrize(("topic_filter", "rule"), BAD_FILTERS)
def test_a_wildcard_elsewhere_is_refused(topic_filter: str, rule: Rule) -> None:
    with refuses(rule):
        check_topic_filter(topic_filter, None)


def test_a_filter_can_be_wrong_in_two_ways() -> None:
    found: list[Violation] = []
    check_topic_filter("a+/b#", found)
    assert [violation.rule for violation in found] == [
        rules.HASH_IS_LAST_LEVEL,
        rules.PLUS_FILLS_ITS_LEVEL,
    ]


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/g/a", "$share/g/#", "$share/g//", "$share/é/+", "$share/$/a", "$share/g/$share/h/a"],
)
def test_a_share_is_a_name_and_a_filter(topic_filter: str) -> None:
    assert is_shared(topic_filter)
    for version in BOTH:
        check_share(topic_filter, version, None)


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("$share//a", rules.SHARE_NAME_NOT_EMPTY),
        ("$share/+/a", rules.SHARE_NAME_WITHOUT_WILDCARDS),
        ("$share/g+/a", rules.SHARE_NAME_WITHOUT_WILDCARDS),
        ("$share/g#/a", rules.SHARE_NAME_WITHOUT_WILDCARDS),
        ("$share/g", rules.SHARE_NAME_BEFORE_FILTER),
        ("$share/g/", rules.SHARE_NAME_BEFORE_FILTER),
    ],
)
def test_a_share_without_one_of_them_is_refused_in_5_only(topic_filter: str, rule: Rule) -> None:
    with refuses(rule):
        check_share(topic_filter, MQTT5, None)
    check_share(topic_filter, MQTT311, None)


def test_all_that_is_wrong_with_a_share_is_gathered_where_someone_gathers() -> None:
    found: list[Violation] = []
    check_share("$share/", MQTT5, found)
    check_share("$share/#", MQTT5, found)
    assert [violation.rule for violation in found] == [
        rules.SHARE_NAME_NOT_EMPTY,
        rules.SHARE_NAME_BEFORE_FILTER,
        rules.SHARE_NAME_WITHOUT_WILDCARDS,
        rules.SHARE_NAME_BEFORE_FILTER,
    ]


@pytest.mark.parametrize(
    "topic_filter", ["$share", "$shared/g/a", "share/g/a", "/$share/g/a", "sensors1/x/y", "#"]
)
def test_a_filter_that_does_not_begin_with_the_share_prefix_is_not_shared(
    topic_filter: str,
) -> None:
    assert not is_shared(topic_filter)
    check_share(topic_filter, MQTT5, None)
    assert split_share(topic_filter) == ("", topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "share_name", "rest"),
    [
        ("$share/g/a", "g", "a"),
        ("$share/g/a/#", "g", "a/#"),
        ("$share/g//", "g", "/"),
        ("$share/g/+", "g", "+"),
        ("$share/g", "", "$share/g"),
        ("$share/g/", "", "$share/g/"),
        ("$share//a", "", "$share//a"),
        ("$share/+/a", "", "$share/+/a"),
        ("$share/#", "", "$share/#"),
        ("a/b", "", "a/b"),
    ],
)
def test_a_shared_filter_splits_into_share_name_and_filter(
    topic_filter: str, share_name: str, rest: str
) -> None:
    assert split_share(topic_filter) == (share_name, rest)


@pytest.mark.parametrize(
    ("topic_filter", "expected"), [("#", True), ("a/+", True), ("a/b", False), ("*", False)]
)
def test_plus_and_hash_are_the_only_wildcards(topic_filter: str, expected: bool) -> None:
    assert has_wildcard(topic_filter) is expected


def test_a_receiver_may_limit_the_levels() -> None:
    check_levels("a/b/c", 3)
    check_levels("a", 1)
    with refuses(rules.TOPIC_LEVELS_WITHIN_LIMIT):
        check_levels("a/b/c", 2)
    with refuses(rules.TOPIC_LEVELS_WITHIN_LIMIT):
        check_levels("/" * 65_535, 65_535)
    check_levels("/" * 65_534, 65_535)


def test_a_quoted_topic_is_ascii_and_short() -> None:
    assert quoted("é\n") == r"'\xe9\n'"
    assert quoted("a" * 80) == repr("a" * 80)
    assert quoted("a" * 81) == repr("a" * 80) + "…"


# The examples of 4.7.1.2, 4.7.1.3, 4.7.2 and 4.7.3, and their nearest neighbours.
@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis/player10", False),
        ("sport/#", "sport", True),
        ("sport/#", "sport/", True),
        ("sport/#", "spor", False),
        ("sport/#", "Sport", False),
        ("#", "a", True),
        ("#", "/", True),
        ("#", "a/b/c", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/tennis/+", "sport/tennis", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+", "a", True),
        ("+/#", "a", True),
        ("+/b/#", "a/b", True),
        ("+/b/#", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a//c", True),
        ("a/+/c", "a/b/d", False),
        ("#", "$SYS/x", False),
        ("#", "$", False),
        ("+", "$SYS", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/", True),
        ("$SYS/#", "$SYS/a/b", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/#", "a/$b", True),
        ("a/+", "a/$b", True),
        ("ACCOUNTS", "Accounts", False),
        ("/finance", "finance", False),
        ("a", "a", True),
        ("a", "b", False),
        ("$SYS", "$SYS", True),
        ("\u00e9", "e\u0301", False),
        ("a.c", "abc", False),
    ],
)
def test_a_filter_matches_as_the_standard_shows(
    topic_filter: str, topic_name: str, expected: bool
) -> None:
    assert topic_matches(topic_filter, topic_name) is expected


def pattern(topic_filter: str) -> re.Pattern[str]:
    """The filter as a regular expression, which says the same in another language.

    `+` is a run without slashes; `#` is nothing, or a slash and anything. A first wildcard
    matches no `$`.
    """
    parts: list[str] = []
    for number, level in enumerate(topic_filter.split("/")):
        slash = "/" if number else ""
        if level == "#":
            parts.append("(/.*)?" if number else ".*")
        elif level == "+":
            parts.append(slash + "[^/]*")
        else:
            parts.append(slash + re.escape(level))
    first = r"(?!\$)" if topic_filter[0] in "+#" else ""
    return re.compile(first + "".join(parts), re.DOTALL)


levels = st.sampled_from(["", "a", "b", "ab", "$", "$a", ".", "*", "\n"])
names = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
filters = st.builds(
    lambda body, last: "/".join([*body, *last]),
    st.lists(levels | st.just("+"), min_size=0, max_size=4),
    st.sampled_from([["#"], ["+"], ["a"], [""]]),
).filter(bool)


@settings(max_examples=repeats(600, 150), deadline=None, derandomize=True)
@given(filters, names)
@example("+", "$")
@example("#", "$a/b")
@example("/#", "/")
@example("a/#", "a")
def test_a_filter_matches_what_its_regular_expression_matches(
    topic_filter: str, topic_name: str
) -> None:
    check_topic_filter(topic_filter, None)
    check_topic_name(topic_name, "topic_name", None)
    expected = pattern(topic_filter).fullmatch(topic_name) is not None
    assert topic_matches(topic_filter, topic_name) is expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(names, st.data())
def test_a_filter_made_from_a_name_matches_it(topic_name: str, data: st.DataObject) -> None:
    parts = topic_name.split("/")
    for number in range(len(parts)):
        if data.draw(st.booleans()) and not (number == 0 and topic_name[0] == "$"):
            parts[number] = "+"
    assert topic_matches("/".join(parts), topic_name)
    if topic_name[0] != "$":
        assert topic_matches("/".join([*parts, "#"]), topic_name)
        assert topic_matches("#", topic_name)


def test_a_topic_of_65535_slashes_is_matched_without_recursion() -> None:
    deep = "/" * 65_535
    check_topic_name(deep, "topic_name", None)
    check_topic_filter(deep[:-1] + "#", None)
    check_topic_filter("+" + deep[1:], None)
    assert topic_matches("+" + deep, deep)
    assert topic_matches(deep[:-1] + "#", deep)
    assert topic_matches("/#", deep)
    assert not topic_matches("/+", deep)
