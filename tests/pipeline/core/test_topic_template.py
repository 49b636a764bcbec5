"""Topic templates: what they take is what a Topic Filter takes, and Spark agrees."""

import pytest

from semel.pipeline.errors import OptionError
from semel.pipeline.topic_template import parse_template


def test_named_levels_are_columns_of_a_topic_filter() -> None:
    found = parse_template("site/{plant}/{line:int}/+/#")
    assert found.topic_filter == "site/+/+/+/#"
    assert [(each.column, each.kind, each.at) for each in found.named] == [
        ("plant", "string", 1),
        ("line", "int", 2),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a Topic Filter"),
        ("a/#/b", "is not a Topic Filter"),
        ("a+/b", "is not a Topic Filter"),
        ("a/x{b}", "level 2 is 'x{b}', but a named level is {name} or {name:type}"),
        ("a/{b", "level 2 is '{b', but a named level"),
        ("a/{}", "a named level is {name}"),
        ("a/{1b}", "a named level is {name}"),
        ("a/{b:float}", "has type float, but a level is string or int"),
        ("{a}/{A}", "two levels are named a"),
        ("$share/group/a", "no shared subscriptions"),
    ],
)
def test_what_is_no_template_is_refused_with_the_level(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match="topic") as caught:
        parse_template(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("template", "topic", "reason"),
    [
        ("site/{plant}/temp", "site/a/temp", None),
        ("site/{plant}/temp", "site//temp", None),
        ("site/{plant}/temp", "site/a/humidity", "level 3 is 'humidity', not 'temp'"),
        ("site/{plant}/temp", "site/a", "it has 2 levels, and the template 3"),
        ("site/{plant}/temp", "site/a/temp/x", "it has 4 levels, and the template 3"),
        ("site/{line:int}", "site/-7", None),
        ("site/{line:int}", "site/7a", "level 2 is '7a', but line is an int"),
        ("site/{line:int}", "site/" + "1" * 19, f"level 2 is '{'1' * 19}', but line is an int"),
        ("site/{line:int}", "site/" + "1" * 18, None),
        ("site/#", "site", None),
        ("site/+/#", "site", "it has 1 level, and the template at least 2"),
        ("#", "$SYS/x", "it begins with $, and the template with a wildcard"),
        ("{a}/#", "$SYS/x", "it begins with $, and the template with a wildcard"),
        ("$SYS/#", "$SYS/x", None),
    ],
)
def test_a_template_says_why_it_does_not_take_a_topic(
    template: str, topic: str, reason: str | None
) -> None:
    assert parse_template(template).explain(topic) == reason
