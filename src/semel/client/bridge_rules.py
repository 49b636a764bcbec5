"""The topic rules of a bridge: which messages it moves, and how their topics are translated.

A rule is written as `FILTER [local PREFIX] [remote PREFIX] [qos N]`. It moves the messages whose
topic is the prefix of the one side followed by a topic that matches FILTER, and replaces this
prefix by that of the other side:

    to_remote = ["# local plant/ remote site-7/"]       plant/1/temp ─▶ site-7/1/temp

No two rules of one direction match the same topic, so that a message is moved once.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from semel.client.ingest_plan import do_overlap
from semel.mqtt.packets.publish import Publish
from semel.mqtt.topics import check_topic_filter, check_topic_name, is_shared, quoted
from semel.mqtt.topics import topic_matches as matches
from semel.mqtt.violation import Violation

FORM: Final = "FILTER [local PREFIX] [remote PREFIX] [qos N]"
KEYWORDS: Final = ("local", "remote", "qos")
MAXIMUM_QOS: Final = 2


class BadRule(ValueError):
    """An invalid rule: what is wrong with it, in one sentence."""


@dataclass(frozen=True)
class TopicRule:
    """One rule, as it is written: the filter is without the prefixes."""

    topic_filter: str
    local_prefix: str = ""
    remote_prefix: str = ""
    qos: int = MAXIMUM_QOS

    @property
    def local_filter(self) -> str:
        """The filter of the topics on the local broker."""
        return self.local_prefix + self.topic_filter

    @property
    def remote_filter(self) -> str:
        """The filter of the topics on the remote broker."""
        return self.remote_prefix + self.topic_filter


@dataclass(frozen=True)
class Translation:
    """A rule in one direction."""

    # What to subscribe to at the source, and the filter that its messages match without the prefix.
    source_filter: str
    topic_filter: str
    source_prefix: str
    destination_prefix: str
    qos: int

    @property
    def destination_filter(self) -> str:
        """The filter of the topics at the destination."""
        return self.destination_prefix + self.topic_filter

    def destination_topic(self, topic: str) -> str | None:
        """The topic at the destination, None if the rule does not move this topic.

        `plant/#` matches `plant` too, which does not begin with the prefix `plant/`.
        """
        if not topic.startswith(self.source_prefix):
            return None
        rest = topic[len(self.source_prefix) :]
        if not rest or not matches(self.topic_filter, rest):
            return None
        return self.destination_prefix + rest

    def source_topic(self, topic: str) -> str | None:
        """The topic at the source that becomes this one at the destination, None if none does."""
        if not topic.startswith(self.destination_prefix):
            return None
        rest = topic[len(self.destination_prefix) :]
        if not rest or not matches(self.topic_filter, rest):
            return None
        return self.source_prefix + rest


def to_remote(rule: TopicRule) -> Translation:
    """The rule for messages of the local broker."""
    return Translation(
        rule.local_filter, rule.topic_filter, rule.local_prefix, rule.remote_prefix, rule.qos
    )


def to_local(rule: TopicRule) -> Translation:
    """The rule for messages of the remote broker."""
    return Translation(
        rule.remote_filter, rule.topic_filter, rule.remote_prefix, rule.local_prefix, rule.qos
    )


# --- parsing --------------------------------------------------------------------------------------


def parse_rule(text: str) -> TopicRule:
    """Parse a rule. Raises BadRule."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise BadRule(
            f"{quoted(text)} has an open quotation mark: a filter or prefix with spaces or"
            " quotation marks is quoted as in a shell"
        ) from None
    if not words:
        raise BadRule(f"{quoted(text)} has no topic filter; a rule is {FORM}")
    found: dict[str, str] = {}
    for at in range(1, len(words), 2):
        keyword = words[at]
        if keyword not in KEYWORDS:
            raise BadRule(f"{quoted(text)}: {quoted(keyword)} is not a keyword; a rule is {FORM}")
        if at + 1 == len(words):
            raise BadRule(f"{quoted(text)} has nothing after {keyword}; a rule is {FORM}")
        if keyword in found:
            raise BadRule(f"{quoted(text)} has {keyword} twice; a rule is {FORM}")
        found[keyword] = words[at + 1]
    qos = found.get("qos", str(MAXIMUM_QOS))
    if qos not in ("0", "1", "2"):
        raise BadRule(f"{quoted(text)}: the QoS is {quoted(qos)}, but must be 0, 1 or 2")
    rule = TopicRule(words[0], found.get("local", ""), found.get("remote", ""), int(qos))
    check_rule(rule, text)
    return rule


def check_rule(rule: TopicRule, text: str) -> None:
    """Check that the rule makes valid filters on both sides. Raises BadRule."""
    for name, prefix in (("local", rule.local_prefix), ("remote", rule.remote_prefix)):
        if not prefix:
            continue
        try:
            check_topic_name(prefix, "prefix", None)
        except Violation as violation:
            why = violation.rule.sentence.removesuffix(".")
            raise BadRule(f"{quoted(text)}: the {name} prefix is not valid: {why}") from None
    for topic_filter in (rule.topic_filter, rule.local_filter, rule.remote_filter):
        if is_shared(topic_filter):
            raise BadRule(
                f"{quoted(text)}: a bridge moves every message, so it has no shared subscription:"
                " give the filter without $share and its group"
            )
        try:
            check_topic_filter(topic_filter, None)
        except Violation as violation:
            why = violation.rule.sentence.removesuffix(".")
            raise BadRule(
                f"{quoted(text)}: {quoted(topic_filter)} is not a topic filter: {why}"
            ) from None


def check_direction(translations: Sequence[Translation], key: str) -> list[str]:
    """What is wrong with the rules of one direction, a sentence each."""
    problems: list[str] = []
    for number, one in enumerate(translations):
        if one.destination_filter.startswith("$"):
            problems.append(
                f"{key}: {quoted(one.destination_filter)} begins with $, and such topics belong to"
                " the broker itself: give a prefix for the side that receives the messages"
            )
        for other in translations[number + 1 :]:
            if do_overlap(one.source_filter, other.source_filter):
                problems.append(
                    f"{key}: {quoted(one.source_filter)} and {quoted(other.source_filter)} overlap,"
                    " so a message could be moved twice: remove one, or use two bridges"
                )
    return problems


def find_returning(
    subscribed: Iterable[Translation], published: Iterable[Translation]
) -> tuple[str, str] | None:
    """A filter that the bridge subscribes to on one side, and one that it publishes to there, if
    a topic can match both: without No Local the bridge gets its own messages back."""
    there = list(published)
    for one in subscribed:
        for other in there:
            if do_overlap(one.source_filter, other.destination_filter):
                return one.source_filter, other.destination_filter
    return None


def response_topic(packet: Publish, opposite: Iterable[Translation]) -> str | None:
    """The Response Topic as the destination knows it, None if there is none or it stays.

    The answer is moved by a rule of the opposite direction, so that rule translates the topic.
    """
    topic = packet.properties.response_topic
    if topic is None:
        return None
    for each in opposite:
        found = each.source_topic(topic)
        if found is not None:
            return found
    return None
