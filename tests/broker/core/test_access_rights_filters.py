"""Filters of rules: cover and overlap are exact, and substitution never widens anything."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.access.filter_cover import covers, overlaps, split_levels
from semel.broker.access.topic_template import (
    CLAIM,
    CLIENT_ID,
    USER_NAME,
    ClientValues,
    TemplateError,
    Variable,
    is_usable,
    literal_template,
    parse_template,
    substitute_all,
    variables_of,
)
from semel.mqtt.topics import check_topic_filter, topic_matches
from semel.mqtt.violation import Violation
from tests.modes import repeats

USER = Variable(USER_NAME)
CLIENT = Variable(CLIENT_ID)
SITE = Variable(CLAIM, "site")

# Levels of filters. Names have one more: what a wildcard covers, and no literal does.
LEVELS = ("a", "", "$s", "+", "#")
NAME_LEVELS = ("a", "", "$s", "other")
DEPTH = 3


def is_filter(text: str) -> bool:
    try:
        check_topic_filter(text, None)
    except Violation:
        return False
    return True


def texts(levels: tuple[str, ...], depth: int) -> list[str]:
    """Every text of at most `depth` levels."""
    return [
        "/".join(each)
        for length in range(1, depth + 1)
        for each in itertools.product(levels, repeat=length)
    ]


FILTERS = [each for each in texts(LEVELS, DEPTH) if is_filter(each)]
# One level more than filters have: a # must be told from any number of +.
NAMES = [each for each in texts(NAME_LEVELS, DEPTH + 1) if each]
MATCHED = {each: {name for name in NAMES if topic_matches(each, name)} for each in FILTERS}


def test_there_are_filters_of_every_kind() -> None:
    assert {"#", "+", "+/#", "a/#", "/", "$s/+", "a/$s/#", "+/+/+"} <= set(FILTERS)
    assert len(FILTERS) > 60


@pytest.mark.parametrize("outer", FILTERS)
def test_cover_is_exact(outer: str) -> None:
    for inner in FILTERS:
        expected = MATCHED[inner] <= MATCHED[outer]
        assert covers(split_levels(outer), split_levels(inner)) is expected, inner


@pytest.mark.parametrize("one", FILTERS)
def test_overlap_is_exact(one: str) -> None:
    for other in FILTERS:
        expected = not MATCHED[one].isdisjoint(MATCHED[other])
        assert overlaps(split_levels(one), split_levels(other)) is expected, other


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plant/1/#", ("plant", "1", "#")),
        ("users/%u/#", ("users", (USER,), "#")),
        ("%c", ((CLIENT,),)),
        ("a/dev-%c-x/+", ("a", ("dev-", CLIENT, "-x"), "+")),
        ("%u%c", ((USER, CLIENT),)),
        ("%%u/%%", ("%u", "%")),
        ("100%%%u", (("100%", USER),)),
        ("s/%{claim:site}", ("s", (SITE,))),
        ("#", ("+", "#")),
        ("/#", ("", "+", "#")),
        ("+/#", ("+", "#")),
        ("a/+/#", ("a", "+", "#")),
        ("a//b/", ("a", "", "b", "")),
        ("$SYS/#", ("$SYS", "#")),
    ],
)
def test_a_template_has_levels_of_texts_and_variables(
    text: str, expected: tuple[object, ...]
) -> None:
    template = parse_template(text)
    assert template == expected
    used = {"%u": USER, "%c": CLIENT, "%{claim:site}": SITE}
    plain = text.replace("%%", "")
    assert variables_of(template) == {each for sign, each in used.items() if sign in plain}


def test_the_name_of_a_claim_may_be_an_address() -> None:
    claim = Variable(CLAIM, "https://acme.example/site#1")
    template = parse_template("a/%{claim:https://acme.example/site#1}/+")
    assert template == ("a", (claim,), "+")
    values = ClientValues({claim: "bonn"}, frozenset())
    assert substitute_all(template, values, is_allow=True) == ("a", "bonn", "+")


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("a/%x/b", 2, "'%x' is not a substitution"),
        ("a/%", 2, "'%' is not a substitution"),
        ("a/%{claim:}", 2, "'%{' is not a substitution"),
        ("a/%{claim:x", 2, "'%{' is not a substitution"),
        ("a/%{user}", 2, "'%{' is not a substitution"),
        ("a/+%u", 0, "'a/+%u' is not a topic filter"),
        ("a/#%u", 0, "'a/#%u' is not a topic filter"),
        ("a/#/b", 0, "'a/#/b' is not a topic filter"),
        ("", 0, "'' is not a topic filter"),
        ("a\0b", 0, "is not a topic filter"),
        ("$share/g/a", 0, "give the filter without $share"),
        ("$stream/s/a", 0, "give the filter without $stream"),
        ("$%u/a", 0, "no value can be substituted in a first level that begins with $"),
        ("$SYS%c", 0, "no value can be substituted in a first level that begins with $"),
    ],
)
def test_what_is_not_a_template_is_refused_with_its_position(
    text: str, offset: int, words: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        parse_template(text)
    assert words in str(caught.value)
    assert caught.value.offset == offset


def test_a_literal_template_substitutes_nothing() -> None:
    assert literal_template("users/%u/%x") == ("users", "%u", "%x")
    with pytest.raises(TemplateError, match="is not a topic filter"):
        literal_template("a/b#")


@pytest.mark.parametrize("value", ["", "+", "#", "a/b", "/", "a+", "a\0", "#a"])
def test_a_value_that_could_widen_a_filter_is_unusable(value: str) -> None:
    assert not is_usable(value)


@pytest.mark.parametrize("value", ["a", " ", "%u", "$SYS", "..", "größe", "a b", "*"])
def test_any_other_value_is_usable(value: str) -> None:
    assert is_usable(value)


VALUES = ClientValues({USER: "$u", CLIENT: "c"}, frozenset([SITE]))


@pytest.mark.parametrize(
    ("text", "allow", "deny"),
    [
        ("a/%c/+", ("a", "c", "+"), ("a", "c", "+")),
        ("a/%u", ("a", "$u"), ("a", "$u")),
        # No value leads to topics that begin with $.
        ("%u/a", None, None),
        ("%u/%{claim:site}", None, None),
        ("x%u/a", ("x$u", "a"), ("x$u", "a")),
        # An unusable value: an allow rule matches nothing, and a deny rule all from there on.
        ("a/%{claim:site}/b", None, ("a", "#")),
        ("%{claim:site}/b", None, ("+", "#")),
        ("a/x-%{claim:site}%c", None, ("a", "#")),
        # A value that the client does not have.
        ("a/%{claim:other}/b", None, None),
    ],
)
def test_substitution_is_literal(
    text: str, allow: tuple[str, ...] | None, deny: tuple[str, ...] | None
) -> None:
    template = parse_template(text)
    assert substitute_all(template, VALUES, is_allow=True) == allow
    assert substitute_all(template, VALUES, is_allow=False) == deny


NASTY = st.text(st.sampled_from("ab+#/$%u\0"), max_size=5)
TEMPLATES = st.sampled_from(
    ["users/%u/#", "%u", "%u/#", "a/%u", "a/x%u", "a/%u%c/+", "+/%u", "a/%u/b/%c", "%c%u/a"]
)


@settings(max_examples=repeats(2_000, 300), deadline=None)
@given(TEMPLATES, NASTY, NASTY, st.text(st.sampled_from("abux+#/$%"), min_size=1, max_size=9))
def test_an_allowed_filter_matches_at_most_what_a_harmless_name_would(
    text: str, user: str, client: str, topic_name: str
) -> None:
    """Whatever its values, a filter matches as if they were a name without any sign."""
    given_values = {USER: user, CLIENT: client}
    usable = {each: value for each, value in given_values.items() if is_usable(value)}
    values = ClientValues(usable, frozenset(given_values) - frozenset(usable))
    found = substitute_all(parse_template(text), values, is_allow=True)
    if found is None or "+" in topic_name or "#" in topic_name:
        return
    # The wildcards are those of the template, at the same levels.
    template = parse_template(text)
    assert [level in ("+", "#") for level in found] == [each in ("+", "#") for each in template]
    if topic_matches("/".join(found), topic_name):
        levels = topic_name.split("/")
        for expected, level in zip(template, levels, strict=False):
            if isinstance(expected, tuple):
                whole = "".join(
                    part if isinstance(part, str) else given_values[part] for part in expected
                )
                assert level == whole
        assert not topic_name.startswith("$")
