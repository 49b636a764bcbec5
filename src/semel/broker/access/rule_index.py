"""Finds the rule that decides, without a search through all rules.

Rules are in buckets by whom they apply to, so that a client is concerned by a few buckets only. The
rules of a bucket are in a tree of topic levels:

    users ─ %u ─ #     line 3          plant ─ + ─ temp    line 7
                                             └ 1 ─ #       line 4

A search descends from the first level to the last and visits only nodes that match so far. At each
node only the first rule for an action is kept, because a later one with the same filter cannot
decide. For clients with an unusable value, a deny rule is also at the node above each level in
which a value is substituted: there it acts as `#`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, final

from semel.broker.access.filter_cover import DOLLAR, HASH, PLUS
from semel.broker.access.rights_rules import ACTIONS, MAXIMUM_QOS, SUBSCRIBE, RightsRule, Who
from semel.broker.access.topic_template import (
    ClientValues,
    Level,
    Variable,
    is_unusable,
    substitute,
    variables_of,
)


@final
class RuleNode:
    """One level of the filters of a bucket. `ends` and `hashes` have the first rule by action."""

    __slots__ = ("children", "ends", "guards", "hashes", "plus", "templates")

    def __init__(self) -> None:
        # Filters that end here, and filters that have # as the next level.
        self.ends: dict[int, RightsRule] = {}
        self.hashes: dict[int, RightsRule] = {}
        self.children: dict[str, RuleNode] = {}
        self.plus: RuleNode | None = None
        self.templates: dict[tuple[str | Variable, ...], RuleNode] = {}
        # By the level below: deny rules that act as # if the client has an unusable value in it.
        self.guards: dict[Level, dict[int, RightsRule]] = {}

    def child(self, level: Level) -> "RuleNode":
        """The node of a level below this one, which is created if it is missing."""
        if isinstance(level, tuple):
            return self.templates.setdefault(level, RuleNode())
        if level != PLUS:
            return self.children.setdefault(level, RuleNode())
        if self.plus is None:
            self.plus = RuleNode()
        return self.plus

    def collect(self, action: int, values: ClientValues, found: list[RightsRule | None]) -> None:
        """Append the first rules that match all topics from here on, this level included."""
        if self.hashes:
            found.append(self.hashes.get(action))
        for level, rules in self.guards.items():
            if is_unusable(level, values):
                found.append(rules.get(action))


@final
class RuleBucket:
    """The rules for the same clients."""

    who: Final[Who]
    # Its position among all buckets.
    number: Final[int]
    rules: Final[list[RightsRule]]
    # Allow rules that limit the QoS of subscriptions, and for each the lowest limit up to it.
    limiting: Final[list[RightsRule]]
    lowest_qos: Final[list[int]]
    variables: Final[set[Variable]]

    def __init__(self, who: Who, number: int) -> None:
        self.who = who
        self.number = number
        self.rules = []
        self.limiting = []
        self.lowest_qos = []
        self.variables = set()
        self._root = RuleNode()
        self._all_topics: dict[int, RightsRule] = {}

    def add(self, rule: RightsRule) -> None:
        """Add a rule; rules must be added in their order."""
        self.rules.append(rule)
        if rule.actions & SUBSCRIBE and rule.max_qos < MAXIMUM_QOS:
            self.limiting.append(rule)
            self.lowest_qos.append(min(rule.max_qos, *self.lowest_qos[-1:], MAXIMUM_QOS))
        self.variables.update(variables_of(rule.topic))
        if not rule.topic:
            _keep_first(self._all_topics, rule)
            return
        node = self._root
        for level in rule.topic:
            if level == HASH:
                _keep_first(node.hashes, rule)
                return
            if not rule.is_allow and not isinstance(level, str):
                _keep_first(node.guards.setdefault(level, {}), rule)
            node = node.child(level)
        _keep_first(node.ends, rule)

    def limiting_before(self, order: int) -> int:
        """How many of `limiting` come before a rule of this order."""
        return bisect_left(self.limiting, order, key=lambda rule: rule.order)

    def find(
        self, levels: Sequence[str], action: int, *, values: ClientValues, before: int
    ) -> RightsRule | None:
        """The first rule for an action whose filter covers these levels of `split_levels`.

        None if there is none with a lower order than `before`. A topic name is covered by the
        filters that match it.
        """
        best: RightsRule | None = None
        found = [self._all_topics.get(action)]
        is_dollar = levels[0].startswith(DOLLAR)
        nodes = [self._root]
        for at, level in enumerate(levels):
            # A wildcard in the first level does not match a name that begins with $.
            is_wild = at > 0 or not is_dollar
            if is_wild:
                for node in nodes:
                    node.collect(action, values, found)
            if level == HASH:
                nodes = []
                break
            below: list[RuleNode] = []
            for node in nodes:
                if is_wild and node.plus is not None:
                    below.append(node.plus)
                if level == PLUS:
                    continue
                child = node.children.get(level)
                if child is not None:
                    below.append(child)
                # The value of a client must not lead to topics that begin with $.
                if is_wild:
                    for template, child in node.templates.items():
                        if substitute(template, values) == level:
                            below.append(child)
            nodes = below
            if not nodes:
                break
        for node in nodes:
            found.append(node.ends.get(action))
            node.collect(action, values, found)
        for rule in found:
            if rule is not None and rule.order < before:
                best = rule
                before = rule.order
        return best


def _keep_first(slots: dict[int, RightsRule], rule: RightsRule) -> None:
    for action in ACTIONS:
        if rule.actions & action:
            slots.setdefault(action, rule)
