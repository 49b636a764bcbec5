"""What a client may do: the rules of a rights file, applied to an Identity.

The first rule that matches the client, the action and the topic decides; without one, the answer is
no. A topic filter in SUBSCRIBE is matched by a rule that *covers* it. A rule that only overlaps it
does not decide about the subscription; the messages that it denies are withheld at delivery,
because `may_receive` asks about each topic.

    Identity ─▶ ClientFacts       what rules can ask about it
                   │
                   ▼
                ClientRights      the buckets of rules that apply to it, and its values
                   │ key          equal for all clients to which the same rules apply, with the
                   ▼              same substituted values
    (key, action, topic) ─▶ rule

Both steps are kept in bounded caches.

A user name counts only if it was proved: without a proof, a client is anonymous, whatever user name
its CONNECT has. A client identifier is chosen by the client.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, final

from semel.broker.access.bounded_cache import BoundedCache
from semel.broker.access.filter_cover import HASH, PLUS, overlaps, split_levels
from semel.broker.access.rights_rules import (
    ACTION_NAMES,
    ACTIONS,
    CERTIFIED,
    CLAIMING,
    CLIENT,
    EVERYONE,
    GROUP,
    NO_USER,
    PLAIN_NAMED,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    USER,
    RightsRule,
    Who,
)
from semel.broker.access.rights_settings import CACHED_DECISIONS
from semel.broker.access.rule_index import RuleBucket
from semel.broker.access.topic_template import (
    CLAIM,
    CLIENT_ID,
    USER_NAME,
    ClientValues,
    Variable,
    is_usable,
    substitute_all,
)
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.identity import Identity
from semel.broker.replay import split_stream
from semel.mqtt.topics import split_share

# The caches count entries, not bytes. So decisions about longer topics are not cached, nor are the
# rules for a client whose names, groups and claims have more characters than this.
_LONGEST_TOPIC: Final = 256
_LONGEST_FACTS: Final = 2_048
# At most this many rules of a bucket are compared with a subscription to find those that limit
# its QoS. If there are more, all of them count.
_COMPARED_RULES: Final = 100
# Bytes of a key: nobody can find two client identifiers with equal keys.
_KEY_BYTES: Final = 20
# More than the order of any rule.
_LAST: Final = 1 << 62

# Decides where no rule matches.
_NO_RULE: Final = RightsRule(_LAST, 0, "", False, Who(EVERYONE), 0, ())


@dataclass(frozen=True)
class Decision:
    """A decision about one action, and the rule that made it."""

    allowed: bool
    # Where the rule is, and how it is written. None: no rule matches. Line 0: the format of the
    # file implies the rule.
    line: int | None
    rule: str | None
    # Why the rule decides so, if that is not obvious.
    reason: str | None = None
    # Of a subscription: its QoS, and the deny rules whose topics are withheld from it.
    granted_qos: int | None = None
    withheld: tuple[RightsRule, ...] = ()


class ClientFacts(NamedTuple):
    """What rules can ask about a client. Equal facts mean equal rights."""

    # None: not proved.
    user_name: str | None
    # "" if no rule asks.
    client_id: str
    certificate: str | None
    groups: tuple[str, ...]
    # Of the claims that rules ask about; None: the client does not have it.
    claims: tuple[str | None, ...]

    @property
    def size(self) -> int:
        """How many characters they have; a token may have very many."""
        names = (self.user_name, self.client_id, self.certificate, *self.groups, *self.claims)
        return sum(len(name) for name in names if name is not None)


@final
class ClientRights:
    """The rules that apply to a client, and its values in their filters."""

    key: Final[str]
    buckets: Final[tuple[RuleBucket, ...]]
    values: Final[ClientValues]

    def __init__(self, buckets: tuple[RuleBucket, ...], values: ClientValues) -> None:
        self.buckets = buckets
        self.values = values
        numbers = tuple(bucket.number for bucket in buckets)
        usable = sorted((each.kind, each.name, text) for each, text in values.usable.items())
        unusable = sorted((each.kind, each.name) for each in values.unusable)
        text = repr((numbers, usable, unusable)).encode("utf-8", "backslashreplace")
        self.key = blake2b(text, digest_size=_KEY_BYTES).hexdigest()

    def find(self, levels: Sequence[str], action: int) -> RightsRule:
        """The rule that decides about a topic name, or a filter."""
        best = _NO_RULE
        for bucket in self.buckets:
            found = bucket.find(levels, action, values=self.values, before=best.order)
            if found is not None:
                best = found
        return best

    def limit_qos(self, levels: Sequence[str], rule: RightsRule) -> int:
        """The highest QoS that an allow rule grants to a subscription that it covers.

        An earlier rule that overlaps the subscription decides about some of its topics, so its
        limit holds for the whole subscription.
        """
        limit = rule.max_qos
        if PLUS not in levels and levels[-1] != HASH:
            return limit
        for bucket in self.buckets:
            earlier = bucket.limiting_before(rule.order)
            if earlier > _COMPARED_RULES:
                limit = min(limit, bucket.lowest_qos[earlier - 1])
                continue
            for each in bucket.limiting[:earlier]:
                topic = substitute_all(each.topic, self.values, is_allow=True)
                if topic is not None and overlaps(topic, levels):
                    limit = min(limit, each.max_qos)
        return limit

    def withheld_by(self, levels: Sequence[str]) -> tuple[RightsRule, ...]:
        """The deny rules that withhold messages from a subscription to these levels."""
        last = self.find(levels, RECEIVE).order
        found = []
        for bucket in self.buckets:
            for rule in bucket.rules:
                if rule.is_allow or not rule.actions & RECEIVE or rule.order > last:
                    continue
                topic = substitute_all(rule.topic, self.values, is_allow=False)
                if topic is None or not overlaps(topic, levels):
                    continue
                if self.find(topic, RECEIVE) is rule:
                    found.append(rule)
        return tuple(sorted(found, key=lambda rule: rule.order))


@final
class Rights:
    """The rules of one file. All decisions about equal `key`s are equal.

    It is for one thread: a decision changes the cache.
    """

    # The name of the file, its lines that are rules, and sentences for the operator about it.
    source: Final[str]
    lines: Final[list[int]]
    warnings: Final[tuple[str, ...]]

    def __init__(
        self,
        rules: Iterable[RightsRule],
        *,
        source: str = "",
        cached_decisions: int = CACHED_DECISIONS,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.warnings = warnings
        self._buckets: dict[Who, RuleBucket] = {}
        self.lines = []
        for rule in sorted(rules, key=lambda rule: rule.order):
            if rule.line:
                self.lines.append(rule.line)
            bucket = self._buckets.get(rule.who)
            if bucket is None:
                bucket = RuleBucket(rule.who, len(self._buckets))
                self._buckets[rule.who] = bucket
            bucket.add(rule)
        # Which facts rules ask about.
        variables = {each for bucket in self._buckets.values() for each in bucket.variables}
        self._asks_client_id = Variable(CLIENT_ID) in variables or any(
            who.kind in (CLIENT, PLAIN_NAMED) for who in self._buckets
        )
        claims = {who.value.partition("=")[0] for who in self._buckets if who.kind == CLAIMING}
        claims |= {each.name for each in variables if each.kind == CLAIM}
        self._claims = tuple(sorted(claims))
        self._clients: BoundedCache[ClientFacts, ClientRights] = BoundedCache(cached_decisions)
        self._rules: BoundedCache[tuple[str, int, str], RightsRule] = BoundedCache(cached_decisions)
        self._granted: BoundedCache[tuple[str, str], int] = BoundedCache(cached_decisions)

    # --- decisions --------------------------------------------------------------------------------

    def key(self, identity: Identity) -> str:
        """A key for what this client may do: equal keys mean equal decisions."""
        return self._client(identity).key

    def may_publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> bool:
        """Whether the client may publish a message to this topic, with this QoS and RETAIN."""
        rule = self._rule(self._client(identity), PUBLISH, topic_name)
        return rule.is_allow and qos <= rule.max_qos and (rule.allows_retain or not retain)

    def granted_qos(self, identity: Identity, topic_filter: str, *, qos: int) -> int | None:
        """The QoS to grant to a subscription, at most `qos`; None if it is refused."""
        client = self._client(identity)
        key = (client.key, topic_filter)
        limit = self._granted.get(key)
        if limit is None:
            limit = _limit_of(client, topic_filter)
            if len(topic_filter) <= _LONGEST_TOPIC:
                self._granted.put(key, limit)
        return None if limit < 0 else min(qos, limit)

    def may_receive(self, identity: Identity, topic_name: str) -> bool:
        """Whether the client may receive messages of this topic.

        A replayed message is decided by the topic to which it was published.
        """
        return self._rule(self._client(identity), RECEIVE, _original_topic(topic_name)).is_allow

    def explain(
        self, identity: Identity, action: str, topic: str, *, qos: int = 0, retain: bool = False
    ) -> Decision:
        """The decision of `may_publish`, `granted_qos` or `may_receive`, and its reason.

        `action` is one of ACTION_NAMES; `topic` is a valid topic name, or a valid topic filter if
        the action is subscribe.
        """
        client = self._client(identity)
        if action == "subscribe":
            return _explain_subscribe(client, topic, qos)
        if action == "receive":
            topic = _original_topic(topic)
        rule = client.find(split_levels(topic), ACTION_NAMES[action])
        if action == "publish" and rule.is_allow:
            if qos > rule.max_qos:
                return _refused(rule, f"QoS {qos} is higher than max-qos {rule.max_qos}")
            if retain and not rule.allows_retain:
                return _refused(rule, "the message is retained, which no-retain forbids")
        return _decided(rule)

    def find_unused(self) -> list[tuple[RightsRule, RightsRule]]:
        """The rules that never decide, each with an earlier rule that decides instead of it.

        Only rules for the same clients, or for everyone, are compared, and rules without
        substitutions.
        """
        nothing = ClientValues({}, frozenset())
        unused = []
        for bucket in self._buckets.values():
            rivals = {bucket.number: bucket}
            if Who(EVERYONE) in self._buckets:
                everyone = self._buckets[Who(EVERYONE)]
                rivals[everyone.number] = everyone
            client = ClientRights(tuple(rivals.values()), nothing)
            for rule in bucket.rules:
                if not rule.topic:
                    continue
                levels = substitute_all(rule.topic, nothing, is_allow=True)
                if levels is None:
                    continue
                actions = [action for action in ACTIONS if rule.actions & action]
                deciding = [client.find(levels, action) for action in actions]
                if all(each is not rule for each in deciding):
                    unused.append((rule, deciding[0]))
        return sorted(unused, key=lambda pair: pair[0].line)

    # --- caches -----------------------------------------------------------------------------------

    def _rule(self, client: ClientRights, action: int, topic_name: str) -> RightsRule:
        key = (client.key, action, topic_name)
        rule = self._rules.get(key)
        if rule is None:
            rule = client.find(split_levels(topic_name), action)
            if len(topic_name) <= _LONGEST_TOPIC:
                self._rules.put(key, rule)
        return rule

    def _client(self, identity: Identity) -> ClientRights:
        facts = ClientFacts(
            identity.proved_user,
            identity.client_id if self._asks_client_id else "",
            identity.certificate,
            identity.groups,
            tuple([identity.claims.get(name) for name in self._claims]) if self._claims else (),
        )
        client = self._clients.get(facts)
        if client is None:
            client = self._rights_of(facts)
            if facts.size <= _LONGEST_FACTS:
                self._clients.put(facts, client)
        return client

    def _rights_of(self, facts: ClientFacts) -> ClientRights:
        claims = dict(zip(self._claims, facts.claims, strict=True))
        whos = dict.fromkeys(_whos_of(facts, claims))
        found = [self._buckets[who] for who in whos if who in self._buckets]
        found.sort(key=lambda bucket: bucket.number)
        variables = {each for bucket in found for each in bucket.variables}
        return ClientRights(tuple(found), _values_of(facts, claims, variables))


def _whos_of(facts: ClientFacts, claims: Mapping[str, str | None]) -> list[Who]:
    """All descriptions of a client by which a rule can apply to it."""
    whos = [Who(EVERYONE), Who(CLIENT, facts.client_id)]
    whos.append(Who(NO_USER) if facts.user_name is None else Who(USER, facts.user_name))
    if facts.certificate is not None:
        whos.append(Who(CERTIFIED, facts.certificate))
    for group in facts.groups:
        whos.append(Who(GROUP, group))
    for name, value in claims.items():
        if value is not None:
            whos.append(Who(CLAIMING, f"{name}={value}"))
    if not any(sign in f"{facts.user_name}{facts.client_id}" for sign in (PLUS, HASH)):
        whos.append(Who(PLAIN_NAMED))
    return whos


def _values_of(
    facts: ClientFacts, claims: Mapping[str, str | None], variables: Iterable[Variable]
) -> ClientValues:
    """The values of these variables."""
    usable: dict[Variable, str] = {}
    unusable: set[Variable] = set()
    for variable in variables:
        if variable.kind == USER_NAME:
            value = facts.user_name
        elif variable.kind == CLIENT_ID:
            value = facts.client_id or None
        else:
            value = claims[variable.name]
        if value is None:
            continue
        if is_usable(value):
            usable[variable] = value
        else:
            unusable.add(variable)
    return ClientValues(usable, frozenset(unusable))


def _original_topic(topic_name: str) -> str:
    """The topic to which a message was published that may be replayed from a stream."""
    if not topic_name.startswith(STREAM_TOPICS):
        return topic_name
    return split_stream(topic_name)[1] or topic_name


def _checked_filter(topic_filter: str) -> str:
    """The filter that the rules have to cover: without its share, or its stream; "" if none."""
    _, inner_filter = split_share(topic_filter)
    if inner_filter.startswith(STREAM_TOPICS):
        _, inner_filter = split_stream(inner_filter)
    return inner_filter


def _limit_of(client: ClientRights, topic_filter: str) -> int:
    """The highest QoS of a subscription; -1 if it is refused."""
    inner_filter = _checked_filter(topic_filter)
    if not inner_filter:
        return -1
    levels = split_levels(inner_filter)
    rule = client.find(levels, SUBSCRIBE)
    return client.limit_qos(levels, rule) if rule.is_allow else -1


def _explain_subscribe(client: ClientRights, topic_filter: str, qos: int) -> Decision:
    inner_filter = _checked_filter(topic_filter)
    if not inner_filter:
        reason = f"the filter for a stream is {STREAM_TOPICS}<name>/<filter>"
        return Decision(False, None, None, reason)
    levels = split_levels(inner_filter)
    rule = client.find(levels, SUBSCRIBE)
    if not rule.is_allow:
        return _decided(rule)
    limit = min(qos, client.limit_qos(levels, rule))
    notes = []
    if limit < qos:
        notes.append(f"QoS {limit} is granted")
    if client.find(levels, RECEIVE) is _NO_RULE:
        notes.append("only messages that another rule allows are delivered")
    note = "; ".join(notes) or None
    return Decision(True, rule.line, rule.text, note, limit, client.withheld_by(levels))


def _decided(rule: RightsRule) -> Decision:
    if rule is _NO_RULE:
        return Decision(False, None, None, "no rule matches")
    return Decision(rule.is_allow, rule.line, rule.text)


def _refused(rule: RightsRule, reason: str) -> Decision:
    return Decision(False, rule.line, rule.text, reason)
