"""Reads an ACL file of Mosquitto 2, as rules that decide as Mosquitto does.

    topic read $SYS/#              before the first `user`: for anonymous clients
    user alice
    topic readwrite plant/1/#      for alice; without read or write, both are allowed
    topic deny plant/1/secret
    pattern write dev/%c/#         for everyone, wherever it is

Mosquitto decides by the rules of the client's user before the patterns, and by the deny rules of
each before the others. That is an order of rules, so the first one that matches decides here, too.
Patterns are not for clients with a + or # in their user name or client identifier.

Mosquitto grants every subscription and withholds messages that the client may not read. So the last
rule allows everyone to subscribe to everything, and to receive nothing.
"""

from dataclasses import replace
from typing import Final

from semel.broker.access.rights_file import lines_of
from semel.broker.access.rights_rules import (
    EVERYONE,
    MAXIMUM_PROBLEMS,
    NO_USER,
    PLAIN_NAMED,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    USER,
    RightsError,
    RightsRule,
    Who,
)
from semel.broker.access.topic_template import (
    CLIENT_ID,
    USER_NAME,
    Template,
    TemplateError,
    Variable,
    literal_template,
    make_template,
)
from semel.broker.cursors import STREAM_TOPICS
from semel.mqtt.topics import SHARE_PREFIX, quoted

_DENY: Final = "deny"
# Mosquitto's access types; deny refuses reading and writing.
_ACCESS: Final = {
    "read": RECEIVE,
    "write": PUBLISH,
    "readwrite": PUBLISH | RECEIVE,
    _DENY: PUBLISH | RECEIVE,
}
_VARIABLES: Final = {"%u": Variable(USER_NAME), "%c": Variable(CLIENT_ID)}
# No topic name of a message begins like this, so a rule about it has no effect.
_WITHOUT_EFFECT: Final = (SHARE_PREFIX, STREAM_TOPICS)


def parse_mosquitto_acl(text: str, *, name: str) -> list[RightsRule]:
    """The rules in the text of an ACL file of Mosquitto.

    `name` is that of the file, for messages. Raises RightsError with the mistakes of all lines,
    up to the maximum.
    """
    rules: list[RightsRule] = []
    problems: list[str] = []
    who = Who(NO_USER)
    for number, line in lines_of(text):
        # Only a space separates words in Mosquitto, so a user name may contain a tab.
        keyword, _, rest = line.strip(" ").partition(" ")
        rest = rest.strip(" ")
        try:
            if keyword == "user":
                who = _parse_user(rest)
            elif keyword in ("topic", "pattern"):
                is_pattern = keyword == "pattern"
                rule = _parse_rule(
                    rest,
                    is_pattern=is_pattern,
                    who=Who(PLAIN_NAMED) if is_pattern else who,
                    line=number,
                    text=" ".join((keyword, rest)),
                )
                if rule is not None:
                    rules.append(rule)
            else:
                raise TemplateError(f"{quoted(keyword)} is not user, topic or pattern")
        except TemplateError as problem:
            problems.append(f"{name}, line {number}: {problem}")
            if len(problems) == MAXIMUM_PROBLEMS:
                break
    if problems:
        raise RightsError(problems)
    rules.sort(key=lambda rule: (rule.who.kind == PLAIN_NAMED, rule.is_allow))
    rules.append(
        RightsRule(0, 0, "every subscription is granted", True, Who(EVERYONE), SUBSCRIBE, ())
    )
    return [replace(rule, order=order) for order, rule in enumerate(rules)]


def _parse_user(rest: str) -> Who:
    if not rest:
        raise TemplateError("there is no name after user")
    return Who(USER, rest)


def _parse_rule(
    rest: str, *, is_pattern: bool, who: Who, line: int, text: str
) -> RightsRule | None:
    """The rule of a `topic` or `pattern` line; None if it has no effect in Mosquitto either."""
    access, space, topic = rest.partition(" ")
    if not space:
        access, topic = "readwrite", rest
    if access not in _ACCESS:
        raise TemplateError(
            f"{quoted(access)} is not read, write, readwrite or deny, of which one must precede a "
            "topic that contains a space"
        )
    topic = topic.strip(" ")
    if not topic:
        raise TemplateError("there is no topic")
    if topic.startswith(_WITHOUT_EFFECT):
        return None
    return RightsRule(
        0,
        line,
        text,
        access != _DENY,
        who,
        _ACCESS[access],
        _pattern_template(topic) if is_pattern else literal_template(topic),
    )


def _pattern_template(topic: str) -> Template:
    """The template of a pattern, in which only %u and %c have a meaning."""
    parts: list[str | Variable] = []
    start = at = 0
    while at < len(topic):
        variable = _VARIABLES.get(topic[at : at + 2])
        if variable is None:
            at += 1
            continue
        parts += (topic[start:at], variable)
        at += 2
        start = at
    parts.append(topic[start:])
    return make_template(parts, topic)
