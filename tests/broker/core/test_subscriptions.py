"""Who subscribes to what: compared with a list that is read from end to end."""

import gc
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.subscriptions import (
    ENTRY_BYTES,
    MAXIMUM_CHANGED_TOPICS,
    NODE_BYTES,
    FilterNode,
    Leaf,
    Matches,
    ShareGroup,
    SubscriptionEntry,
    SubscriptionTree,
    subscription_cost,
)
from semel.mqtt import Subscription, split_share, topic_matches
from semel.mqtt.topics import has_wildcard
from tests.broker.by_hand import memory
from tests.modes import repeats

LEVELS = ("", "a", "b", "c", "$", "$SYS", "$share", "__proto__", "é", "e\u0301", "A", " ")
CLIENTS = ("one", "two", "three", "", "__proto__")
SHARES = ("g", "h", "__proto__")

# What of a subscription is visible: client, filter, QoS, No Local, Retain As Published, identifier.
Row = tuple[str, str, int, bool, bool, int]


def row(entry: SubscriptionEntry) -> Row:
    return (
        entry.client_id,
        entry.topic_filter,
        entry.qos,
        entry.no_local,
        entry.retain_as_published,
        entry.identifier,
    )


def holding(*filters: str) -> SubscriptionTree:
    """One client, "c", with these filters."""
    subscriptions = SubscriptionTree()
    for topic_filter in filters:
        assert subscriptions.subscribe("c", Subscription(topic_filter)) is None
    return subscriptions


def sharing(*client_ids: str, topic_filter: str = "$share/g/t") -> SubscriptionTree:
    subscriptions = SubscriptionTree()
    for client_id in client_ids:
        subscriptions.subscribe(client_id, Subscription(topic_filter))
    return subscriptions


def matched(subscriptions: SubscriptionTree, topic_name: str) -> list[str]:
    """The filters that are not shared and match, sorted."""
    return sorted(entry.topic_filter for entry in subscriptions.match(topic_name).entries)


def only_group(subscriptions: SubscriptionTree, topic_name: str = "t") -> ShareGroup:
    (group,) = subscriptions.match(topic_name).groups
    return group


def turn_of(group: ShareGroup, *, without: tuple[str, ...] = ()) -> str:
    """Who gets the next message when some members cannot; it is done."""
    for entry in group.members():
        if entry.client_id not in without:
            group.advance(entry)
            return entry.client_id
    return "nobody"


def turns(group: ShareGroup, count: int, *, without: tuple[str, ...] = ()) -> list[str]:
    return [turn_of(group, without=without) for _ in range(count)]


def waiting(group: ShareGroup) -> list[str]:
    """The members from the one whose turn it is."""
    return [entry.client_id for entry in group.members()]


def leaves_and_nodes(root: FilterNode) -> tuple[int, int]:
    """How many filters end in a tree, and how many nodes it has below its root."""
    leaves, nodes, pending = 0, 0, [root]
    while pending:
        node = pending.pop()
        for leaf in (node.here, node.below):
            if leaf is not None:
                assert not leaf.is_empty()
                assert leaf.groups is None or leaf.groups
                leaves += 1
        below = [*node.children.values(), *([] if node.plus is None else [node.plus])]
        nodes += len(below)
        pending += below
    return leaves, nodes


def is_bare(subscriptions: SubscriptionTree) -> bool:
    return (
        subscriptions._root.is_empty()
        and subscriptions._dollar_root.is_empty()
        and not subscriptions._exact
        and not subscriptions._clients
        and not subscriptions.size
    )


class Reference:
    """The same by plain lists: every look-up reads all of them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.groups: dict[tuple[str, str], list[str]] = {}

    def subscribe(self, client_id: str, subscription: Subscription, identifier: int) -> Row | None:
        new = (
            client_id,
            subscription.topic_filter,
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            identifier,
        )
        for i, old in enumerate(self.rows):
            if old[:2] == new[:2]:
                self.rows[i] = new
                return old
        self.rows.append(new)
        share = split_share(subscription.topic_filter)
        if share[0]:
            self.groups.setdefault(share, []).append(client_id)
        return None

    def unsubscribe(self, client_id: str, topic_filter: str) -> Row | None:
        for i, old in enumerate(self.rows):
            if old[:2] == (client_id, topic_filter):
                del self.rows[i]
                share = split_share(topic_filter)
                if share[0]:
                    self.groups[share].remove(client_id)
                    if not self.groups[share]:
                        del self.groups[share]
                return old
        return None

    def forget(self, client_id: str) -> None:
        for old in self.of(client_id):
            self.unsubscribe(client_id, old[1])

    def of(self, client_id: str) -> list[Row]:
        return [old for old in self.rows if old[0] == client_id]

    def advance(self, share: tuple[str, str], client_id: str) -> None:
        members = self.groups[share]
        at = members.index(client_id) + 1
        self.groups[share] = members[at:] + members[:at]

    def entries(self, topic_name: str) -> list[Row]:
        return sorted(
            old
            for old in self.rows
            if not split_share(old[1])[0] and topic_matches(old[1], topic_name)
        )

    def groups_for(self, topic_name: str) -> dict[tuple[str, str], list[Row]]:
        return {
            share: [
                old
                for client_id in members
                for old in self.rows
                if old[0] == client_id and split_share(old[1]) == share
            ]
            for share, members in self.groups.items()
            if topic_matches(share[1], topic_name)
        }


def entries_of(matches: Matches) -> list[Row]:
    return sorted(row(entry) for entry in matches.entries)


def groups_of(matches: Matches) -> dict[tuple[str, str], list[Row]]:
    found = {
        (group.share_name, group.topic_filter): [row(entry) for entry in group.members()]
        for group in matches.groups
    }
    assert len(found) == len(matches.groups)
    return found


def check_same(subscriptions: SubscriptionTree, reference: Reference, topic_name: str) -> None:
    matches = subscriptions.match(topic_name)
    assert entries_of(matches) == reference.entries(topic_name)
    assert groups_of(matches) == reference.groups_for(topic_name)
    for entry in matches.entries:
        assert entry.share_name == ""


def check_size(subscriptions: SubscriptionTree, reference: Reference) -> None:
    """There is a node for each distinct beginning of a filter with a wildcard, and no other."""
    filters = {split_share(old[1])[1] for old in reference.rows}
    wild = {topic_filter for topic_filter in filters if has_wildcard(topic_filter)}
    beginnings = set()
    for topic_filter in wild:
        levels = topic_filter.split("/")
        if levels[-1] == "#":
            levels.pop()
        beginnings |= {tuple(levels[: i + 1]) for i in range(len(levels))}
    plain = leaves_and_nodes(subscriptions._root)
    dollar = leaves_and_nodes(subscriptions._dollar_root)
    assert (plain[0] + dollar[0], plain[1] + dollar[1]) == (len(wild), len(beginnings))
    assert set(subscriptions._exact) == filters - wild
    assert set(subscriptions._clients) == {old[0] for old in reference.rows}


def any_name(source: random.Random) -> str:
    name = "/".join(source.choice(LEVELS) for _ in range(source.randint(1, 4)))
    return name or "a"


def any_filter(source: random.Random) -> str:
    levels = [source.choice((*LEVELS, *("+",) * 4)) for _ in range(source.randint(1, 4))]
    if source.random() < 0.3:
        levels[-1] = "#"
    topic_filter = "/".join(levels) or "+"
    if source.random() < 0.3:
        return f"$share/{source.choice(SHARES)}/{topic_filter}"
    return topic_filter


def any_subscription(source: random.Random, topic_filter: str) -> Subscription:
    return Subscription(
        topic_filter,
        source.randint(0, 2),
        no_local=source.random() < 0.3 and not topic_filter.startswith("$share/"),
        retain_as_published=source.random() < 0.3,
    )


# --- which filters match which names --------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("a", ["a"], ["A", "a/", "/a", "aa", "a/b", "$a"]),
        ("a/b", ["a/b"], ["a", "a/b/", "a/B", "a//b"]),
        ("/", ["/"], ["//", "a", "/a", "a/"]),
        ("#", ["a", "/", "a/b/c", " ", "a$"], ["$", "$SYS", "$SYS/a"]),
        ("+", ["a", " ", "__proto__"], ["/", "a/b", "$", "$SYS"]),
        ("+/+", ["/", "a/b", "/a"], ["a", "//", "a/b/c", "$SYS/a"]),
        ("/+", ["/", "/a", "/$SYS"], ["a", "a/", "//"]),
        ("/#", ["/", "/a", "//", "/$"], ["a", "a/"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c", "a/$SYS"], ["b", "/a", "ab", "aa/b"]),
        ("a/+", ["a/", "a/b", "a/+"], ["a", "a/b/c", "b/a"]),
        ("a/+/#", ["a/", "a/b", "a/b/c/d"], ["a", "b/b"]),
        ("+/b/#", ["a/b", "/b", "a/b/c"], ["b", "b/a/b", "$SYS/b"]),
        ("sport/+/player1", ["sport/tennis/player1"], ["sport/player1", "sport/a/b/player1"]),
        ("$SYS/#", ["$SYS", "$SYS/", "$SYS/a/b"], ["SYS", "a/$SYS", "$SYSx", "$"]),
        ("$SYS/+/x", ["$SYS/a/x"], ["$SYS/x", "a/a/x"]),
        ("$/+", ["$/", "$/a"], ["$", "$SYS/a"]),
        ("+/__proto__", ["a/__proto__"], ["a/proto", "a/constructor"]),
        ("\u00e9/+", ["\u00e9/a"], ["e\u0301/a", "e/a", "\u00c9/a"]),
        ("\u00e9", ["\u00e9"], ["e\u0301", "e", "\u00c9"]),
        ("\ufeffa/#", ["\ufeffa/x"], ["a/x"]),
        ("$share//a", ["$share//a"], ["a", "/a"]),
        ("$share/g", ["$share/g"], ["g", "$share/g/a"]),
        ("$share/+/a", ["$share/g/a"], ["a", "$share/g/b"]),
        ("$share/#", ["$share", "$share/g/a"], ["g/a", "$shared"]),
    ],
)
def test_a_filter_matches_names_as_the_standard_says(
    topic_filter: str, matching: list[str], others: list[str]
) -> None:
    """[4.7]; what 3.1.1 permits after $share/ without being a shared subscription included."""
    subscriptions = holding(topic_filter)
    for name in matching:
        assert matched(subscriptions, name) == [topic_filter], name
    for name in others:
        assert matched(subscriptions, name) == [], name
        assert subscriptions.match(name).groups == []


def test_a_leading_wildcard_never_meets_a_dollar_topic_however_the_tree_is_filled() -> None:
    """[MQTT-4.7.2-1]"""
    everything = (
        "#",
        "+",
        "+/#",
        "+/x",
        "$SYS/#",
        "$SYS/+",
        "$SYS/x",
        "$share/g/#",
        "$share/g/+/x",
    )
    subscriptions = holding(*everything)
    assert matched(subscriptions, "$SYS/x") == ["$SYS/#", "$SYS/+", "$SYS/x"]
    assert subscriptions.match("$SYS/x").groups == []
    assert matched(subscriptions, "SYS/x") == ["#", "+/#", "+/x"]
    assert len(subscriptions.match("SYS/x").groups) == 2


def test_overlapping_filters_of_one_client_all_come_back() -> None:
    subscriptions = holding("a/b", "a/+", "a/#", "#", "+/b", "b/#")
    assert matched(subscriptions, "a/b") == ["#", "+/b", "a/#", "a/+", "a/b"]


def test_one_filter_of_many_clients_comes_back_once_for_each() -> None:
    subscriptions = SubscriptionTree()
    for topic_filter in ("a/b", "a/+"):
        for client_id in ("x", "y", "z"):
            subscriptions.subscribe(client_id, Subscription(topic_filter))
    found = [(entry.client_id, entry.topic_filter) for entry in subscriptions.match("a/b").entries]
    assert Counter(found) == Counter((c, f) for c in "xyz" for f in ("a/b", "a/+"))


def test_an_entry_has_the_options_that_were_asked_for() -> None:
    subscriptions = SubscriptionTree()
    asked = Subscription("a/+", 2, no_local=True, retain_as_published=True, retain_handling=2)
    subscriptions.subscribe("x", asked, 268_435_455)
    subscriptions.subscribe("y", Subscription("a/+", 1))
    first, second = subscriptions.match("a/b").entries
    assert row(first) == ("x", "a/+", 2, True, True, 268_435_455)
    assert row(second) == ("y", "a/+", 1, False, False, 0)
    assert first.share_name == ""


def test_what_match_returns_is_not_changed_by_later_subscriptions() -> None:
    subscriptions = holding("a", "+")
    matches = subscriptions.match("a")
    subscriptions.subscribe("other", Subscription("a"))
    subscriptions.forget("c")
    assert sorted(entry.topic_filter for entry in matches.entries) == ["+", "a"]


# --- subscribe, unsubscribe, forget ---------------------------------------------------------------


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "a/#", "#", "$SYS/+", "$share/g/a/+"])
def test_the_same_filter_replaces_and_another_does_not(topic_filter: str) -> None:
    """[MQTT-3.8.4-3]"""
    subscriptions = SubscriptionTree()
    assert subscriptions.subscribe("x", Subscription(topic_filter, 1), 7) is None
    replaced = subscriptions.subscribe("x", Subscription(topic_filter, 2), 8)
    assert replaced is not None
    assert row(replaced) == ("x", topic_filter, 1, False, False, 7)
    assert [row(e) for e in subscriptions.of("x")] == [("x", topic_filter, 2, False, False, 8)]
    assert subscriptions.subscribe("x", Subscription("a"), 8) is None
    assert subscriptions.subscribe("y", Subscription(topic_filter), 8) is None
    assert len(subscriptions.of("x")) == 2


def test_filters_that_match_the_same_names_do_not_replace_each_other() -> None:
    subscriptions = holding("a", "$share/g/a", "$share/h/a", "a/#")
    assert len(subscriptions.of("c")) == 4
    assert matched(subscriptions, "a") == ["a", "a/#"]
    assert len(subscriptions.match("a").groups) == 2


@pytest.mark.parametrize(
    ("held", "given_up"),
    [
        ("a/b", "a/+"),
        ("a/b", "a/#"),
        ("a/+", "a/b"),
        ("a/+", "+/+"),
        ("a/#", "a"),
        ("a", "a/#"),
        ("#", "+"),
        ("\u00e9", "e\u0301"),
        ("a", "A"),
        ("$share/g/a", "a"),
        ("a", "$share/g/a"),
        ("$share/g/a", "$share/h/a"),
    ],
)
def test_unsubscribe_compares_filters_letter_by_letter(held: str, given_up: str) -> None:
    """[MQTT-3.10.4-1]"""
    subscriptions = holding(held)
    assert subscriptions.unsubscribe("c", given_up) is None
    assert [entry.topic_filter for entry in subscriptions.of("c")] == [held]
    removed = subscriptions.unsubscribe("c", held)
    assert removed is not None
    assert removed.topic_filter == held
    assert is_bare(subscriptions)


def test_unsubscribe_is_about_one_client() -> None:
    subscriptions = holding("a", "+")
    assert subscriptions.unsubscribe("other", "a") is None
    subscriptions.subscribe("other", Subscription("a"))
    subscriptions.subscribe("other", Subscription("+"))
    for topic_filter in ("a", "+"):
        assert subscriptions.unsubscribe("other", topic_filter) is not None
        assert subscriptions.unsubscribe("other", topic_filter) is None
    assert matched(subscriptions, "a") == ["+", "a"]


def test_forget_takes_all_of_one_client_and_nothing_of_another() -> None:
    subscriptions = holding("a", "+", "#", "a/+", "$SYS/#", "$share/g/a", "$share/g/#")
    subscriptions.subscribe("other", Subscription("a/#"))
    subscriptions.subscribe("other", Subscription("$share/g/a"))
    subscriptions.forget("nobody")
    assert len(subscriptions.of("c")) == 7
    subscriptions.forget("c")
    assert subscriptions.of("c") == []
    assert matched(subscriptions, "a") == ["a/#"]
    assert waiting(only_group(subscriptions, "a")) == ["other"]
    subscriptions.forget("other")
    assert is_bare(subscriptions)


def test_a_client_holds_what_it_holds_in_the_order_in_which_it_asked() -> None:
    subscriptions = holding("b", "a/+", "a", "$share/g/a")
    subscriptions.subscribe("c", Subscription("a/+", 2))
    held = [entry.topic_filter for entry in subscriptions.of("c")]
    assert held == ["b", "a/+", "a", "$share/g/a"]
    assert subscriptions.of("nobody") == []


def test_one_can_ask_for_one_subscription() -> None:
    subscriptions = holding("a/+")
    assert subscriptions.has("c", "a/+")
    assert not subscriptions.has("c", "a/b")
    assert not subscriptions.has("other", "a/+")
    assert [subscriptions.entry("c", "a/+")] == subscriptions.of("c")
    with pytest.raises(KeyError):
        subscriptions.entry("c", "a/b")


# --- shared subscriptions -------------------------------------------------------------------------


def test_a_group_is_one_share_name_with_one_filter() -> None:
    """[4.8.2]"""
    subscriptions = SubscriptionTree()
    for client_id, topic_filter in [
        ("x", "$share/g/a/b"),
        ("y", "$share/g/a/b"),
        ("x", "$share/h/a/b"),
        ("x", "$share/g/a/+"),
        ("z", "a/b"),
    ]:
        subscriptions.subscribe(client_id, Subscription(topic_filter, 1))
    matches = subscriptions.match("a/b")
    assert {
        (group.share_name, group.topic_filter, tuple(waiting(group))) for group in matches.groups
    } == {("g", "a/b", ("x", "y")), ("h", "a/b", ("x",)), ("g", "a/+", ("x",))}
    assert [(entry.client_id, entry.share_name) for entry in matches.entries] == [("z", "")]
    for group in matches.groups:
        for entry in group.members():
            assert entry.share_name == group.share_name
            assert entry.topic_filter == f"$share/{group.share_name}/{group.topic_filter}"


def test_members_take_turns_in_the_order_in_which_they_joined() -> None:
    group = only_group(sharing("x", "y", "z"))
    assert turns(group, 7) == ["x", "y", "z", "x", "y", "z", "x"]


def test_a_single_member_always_has_its_turn() -> None:
    assert turns(only_group(sharing("x")), 3) == ["x", "x", "x"]


@pytest.mark.parametrize("without", [("a",), ("a", "b"), ("b", "d"), ("d",), ("a", "c", "d")])
def test_those_who_are_not_passed_over_get_the_same_number_of_turns(
    without: tuple[str, ...],
) -> None:
    group = only_group(sharing("a", "b", "c", "d"))
    rest = [client_id for client_id in "abcd" if client_id not in without]
    assert turns(group, 12, without=without) == (rest * 12)[:12]


def test_looking_at_the_members_passes_no_turn_on() -> None:
    group = only_group(sharing("x", "y"))
    assert turn_of(group, without=("x", "y")) == "nobody"
    assert waiting(group) == ["x", "y"]
    assert waiting(group) == ["x", "y"]
    assert turns(group, 2) == ["x", "y"]


def test_who_was_passed_over_has_its_turn_in_the_next_round() -> None:
    group = only_group(sharing("x", "y", "z"))
    assert turn_of(group, without=("x",)) == "y"
    assert turns(group, 4) == ["z", "x", "y", "z"]


def test_who_joins_is_last_in_the_round() -> None:
    subscriptions = sharing("x", "y")
    group = only_group(subscriptions)
    assert turn_of(group) == "x"
    subscriptions.subscribe("new", Subscription("$share/g/t"))
    assert turns(group, 6) == ["y", "x", "new", "y", "x", "new"]


@pytest.mark.parametrize(
    ("leaver", "then"), [("x", ["y", "z", "y"]), ("y", ["z", "x", "z"]), ("z", ["y", "x", "y"])]
)
def test_who_leaves_takes_no_turn_from_others(leaver: str, then: list[str]) -> None:
    subscriptions = sharing("x", "y", "z")
    group = only_group(subscriptions)
    assert turn_of(group) == "x"
    subscriptions.unsubscribe(leaver, "$share/g/t")
    assert turns(group, 3) == then


def test_who_changes_its_options_keeps_its_turn() -> None:
    subscriptions = sharing("x", "y", "z")
    group = only_group(subscriptions)
    assert turn_of(group) == "x"
    assert subscriptions.subscribe("y", Subscription("$share/g/t", 2)) is not None
    assert [(entry.client_id, entry.qos) for entry in group.members()] == [
        ("y", 2),
        ("z", 0),
        ("x", 0),
    ]


def test_a_member_that_left_before_its_turn_was_booked_passes_no_turn_on() -> None:
    subscriptions = sharing("x", "y", "z")
    group = only_group(subscriptions)
    gone = next(iter(group.members()))
    subscriptions.forget("x")
    group.advance(gone)
    assert waiting(group) == ["y", "z"]


def test_a_group_that_lost_its_last_member_is_empty_and_a_later_one_is_new() -> None:
    subscriptions = sharing("x")
    old = only_group(subscriptions)
    gone = next(iter(old.members()))
    assert not old.is_empty()
    subscriptions.forget("x")
    assert old.is_empty()
    assert turn_of(old) == "nobody"
    old.advance(gone)
    assert subscriptions.match("t").groups == []
    subscriptions.subscribe("y", Subscription("$share/g/t"))
    assert waiting(only_group(subscriptions)) == ["y"]
    assert old.is_empty()


@pytest.mark.slow
def test_a_group_of_thousands_is_joined_and_left_one_by_one() -> None:
    members = [str(i) for i in range(5_000)]
    subscriptions = sharing(*members)
    group = only_group(subscriptions)
    assert turns(group, 5_000) == members
    for client_id in members[::2]:
        subscriptions.forget(client_id)
    assert turns(group, 2_500) == members[1::2]


def connected(group: ShareGroup) -> list[str]:
    return [entry.client_id for entry in group.connected()]


def offline(group: ShareGroup) -> list[str]:
    return [entry.client_id for entry in group.offline()]


def test_members_are_offline_until_their_client_is_connected() -> None:
    """So that nobody has to look through those who are away for one who is not."""
    subscriptions = SubscriptionTree()
    for client_id in ("x", "y", "z"):
        is_connected = client_id == "y"
        shared = Subscription("$share/g/t/#")
        subscriptions.subscribe(client_id, shared, is_connected=is_connected)
        subscriptions.subscribe(client_id, Subscription("t/1"), is_connected=is_connected)
    group = only_group(subscriptions, "t/1")
    assert (connected(group), offline(group)) == (["y"], ["x", "z"])
    subscriptions.set_connected("z", is_connected=True)
    assert (connected(group), offline(group)) == (["y", "z"], ["x"])
    subscriptions.set_connected("y", is_connected=False)
    subscriptions.set_connected("nobody", is_connected=False)
    assert (connected(group), offline(group)) == (["z"], ["x", "y"])
    # each round has an order of its own
    group.advance(next(iter(group.offline())))
    assert (connected(group), offline(group)) == (["z"], ["y", "x"])
    subscriptions.forget("z")
    subscriptions.unsubscribe("x", "$share/g/t/#")
    assert (connected(group), offline(group)) == ([], ["y"])
    assert waiting(group) == ["y"]


# --- what a cache is told -------------------------------------------------------------------------


@pytest.mark.parametrize("topic_filter", ["a/+", "#", "$SYS/#", "$share/g/+", "$share/+/a"])
def test_a_filter_with_a_wildcard_changes_the_generation(topic_filter: str) -> None:
    subscriptions = SubscriptionTree()
    seen = {subscriptions.generation}
    for qos in (0, 1):
        subscriptions.subscribe("x", Subscription(topic_filter, qos))
        seen.add(subscriptions.generation)
    subscriptions.unsubscribe("x", topic_filter)
    seen.add(subscriptions.generation)
    subscriptions.subscribe("x", Subscription(topic_filter))
    seen.add(subscriptions.generation)
    subscriptions.forget("x")
    seen.add(subscriptions.generation)
    assert len(seen) == 6
    assert subscriptions.take_changed_topics() == []


@pytest.mark.parametrize(
    ("topic_filter", "topic_name"),
    [("a/b", "a/b"), ("$share/g/a/b", "a/b"), ("$SYS/x", "$SYS/x"), ("$share//a", "$share//a")],
)
def test_a_filter_without_a_wildcard_changes_one_topic(topic_filter: str, topic_name: str) -> None:
    subscriptions = SubscriptionTree()
    for qos in (0, 1):
        subscriptions.subscribe("x", Subscription(topic_filter, qos))
        assert subscriptions.take_changed_topics() == [topic_name]
    subscriptions.unsubscribe("x", topic_filter)
    assert subscriptions.take_changed_topics() == [topic_name]
    subscriptions.subscribe("x", Subscription(topic_filter))
    subscriptions.subscribe("x", Subscription("other"))
    subscriptions.take_changed_topics()
    subscriptions.forget("x")
    assert sorted(subscriptions.take_changed_topics()) == sorted([topic_name, "other"])
    assert subscriptions.take_changed_topics() == []
    assert subscriptions.generation == 0


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "$share/g/a/b", "$share/g/a/#"])
def test_a_subscription_repeated_word_for_word_changes_nothing(topic_filter: str) -> None:
    subscriptions = SubscriptionTree()
    subscriptions.subscribe("x", Subscription(topic_filter, 1), 5)
    subscriptions.take_changed_topics()
    generation = subscriptions.generation
    replaced = subscriptions.subscribe("x", Subscription(topic_filter, 1), 5)
    assert replaced is not None
    assert row(replaced) == ("x", topic_filter, 1, False, False, 5)
    assert (subscriptions.generation, subscriptions.take_changed_topics()) == (generation, [])
    assert subscriptions.subscribe("x", Subscription(topic_filter, 1), 6) is not None
    assert (subscriptions.generation, subscriptions.take_changed_topics()) != (generation, [])


@pytest.mark.parametrize("call", ["unsubscribe", "forget"])
def test_taking_out_what_is_not_there_changes_nothing(call: str) -> None:
    subscriptions = holding("a", "+")
    subscriptions.take_changed_topics()
    generation = subscriptions.generation
    if call == "forget":
        subscriptions.forget("nobody")
    else:
        subscriptions.unsubscribe("nobody", "a")
        subscriptions.unsubscribe("c", "b")
        subscriptions.unsubscribe("c", "#")
    assert (subscriptions.generation, subscriptions.take_changed_topics()) == (generation, [])


def test_as_many_changed_topics_as_fit_are_listed_and_one_more_changes_the_generation() -> None:
    subscriptions = SubscriptionTree()
    for i in range(MAXIMUM_CHANGED_TOPICS):
        subscriptions.subscribe("x", Subscription(f"t/{i}"))
    assert subscriptions.generation == 0
    assert len(subscriptions.take_changed_topics()) == MAXIMUM_CHANGED_TOPICS
    for i in range(MAXIMUM_CHANGED_TOPICS + 1):
        subscriptions.subscribe("y", Subscription(f"t/{i}"))
    assert subscriptions.generation == 1
    assert subscriptions.take_changed_topics() == []


# --- any order of events --------------------------------------------------------------------------


class Cache:
    """What is kept of `match` by the two signs alone."""

    def __init__(self, subscriptions: SubscriptionTree) -> None:
        self.subscriptions = subscriptions
        self.generation = subscriptions.generation
        self.kept: dict[str, Matches] = {}

    def match(self, topic_name: str) -> Matches:
        if self.generation != self.subscriptions.generation:
            self.generation = self.subscriptions.generation
            self.kept.clear()
        for changed in self.subscriptions.take_changed_topics():
            self.kept.pop(changed, None)
        if topic_name not in self.kept:
            self.kept[topic_name] = self.subscriptions.match(topic_name)
        return self.kept[topic_name]


def churn(seed: int, operations: int, *, few: bool) -> None:
    """Random events on the structure, on the reference and on a cache; compared as they go."""
    source = random.Random(seed)
    subscriptions, reference = SubscriptionTree(), Reference()
    cache = Cache(subscriptions)
    names = [any_name(source) for _ in range(40)]
    filters = [any_filter(source) for _ in range(60)] + names[:20]
    for step in range(operations):
        client_id = source.choice(CLIENTS)
        topic_filter = source.choice(filters)
        event = source.random()
        if event < (0.35 if few else 0.6):
            asked = any_subscription(source, topic_filter)
            identifier = source.randint(0, 2)
            old = subscriptions.subscribe(client_id, asked, identifier)
            expected = reference.subscribe(client_id, asked, identifier)
            assert (None if old is None else row(old)) == expected
        elif event < 0.9:
            old = subscriptions.unsubscribe(client_id, topic_filter)
            expected = reference.unsubscribe(client_id, topic_filter)
            assert (None if old is None else row(old)) == expected
        elif event < 0.93:
            subscriptions.forget(client_id)
            reference.forget(client_id)
        topic_name = source.choice(names)
        check_same(subscriptions, reference, topic_name)
        matches = cache.match(topic_name)
        assert entries_of(matches) == reference.entries(topic_name)
        assert groups_of(matches) == reference.groups_for(topic_name)
        for group in matches.groups:
            chosen = source.choice(list(group.members()))
            group.advance(chosen)
            reference.advance((group.share_name, group.topic_filter), chosen.client_id)
        if step % 50 == 0:
            check_size(subscriptions, reference)
            for each in CLIENTS:
                assert [row(entry) for entry in subscriptions.of(each)] == reference.of(each)
    for client_id in CLIENTS:
        subscriptions.forget(client_id)
    assert is_bare(subscriptions)
    assert all(not cache.match(name).entries for name in names)


@pytest.mark.parametrize("seed", range(repeats(4, 1)))
@pytest.mark.parametrize("few", [False, True])
def test_thousands_of_random_events_agree_with_a_list(seed: int, few: bool) -> None:
    churn(seed, 1_500, few=few)


LEVEL = st.sampled_from(LEVELS) | st.text("ab/$é", max_size=3)
NAMES = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
PLAIN_FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(LEVEL | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
FILTERS = PLAIN_FILTERS | st.builds("$share/{}/{}".format, st.sampled_from(SHARES), PLAIN_FILTERS)


@given(
    st.lists(st.tuples(st.sampled_from(CLIENTS), FILTERS)), st.lists(NAMES, min_size=1), st.data()
)
@settings(deadline=None, max_examples=repeats(150, 50))
def test_any_subscriptions_match_as_a_list_does_while_they_come_and_go(
    wanted: list[tuple[str, str]], names: list[str], data: st.DataObject
) -> None:
    subscriptions, reference = SubscriptionTree(), Reference()
    for client_id, topic_filter in wanted:
        subscriptions.subscribe(client_id, Subscription(topic_filter))
        reference.subscribe(client_id, Subscription(topic_filter), 0)
    check_size(subscriptions, reference)
    for name in names:
        check_same(subscriptions, reference, name)
    for client_id, topic_filter in data.draw(st.permutations(wanted)):
        old = subscriptions.unsubscribe(client_id, topic_filter)
        assert (None if old is None else row(old)) == reference.unsubscribe(client_id, topic_filter)
        check_size(subscriptions, reference)
        check_same(subscriptions, reference, names[0])
    assert is_bare(subscriptions)


# --- depth, cost, memory --------------------------------------------------------------------------


@pytest.mark.slow
def test_topics_of_65_000_levels_need_no_stack() -> None:
    deep = "/" * 65_000
    filters = [deep, deep + "#", deep[:-1] + "/+", "+" + deep, "#", "$share/g/+" + deep[1:]]
    subscriptions = holding(*filters, "$" + deep[:-1] + "/#")
    assert matched(subscriptions, deep) == sorted([*filters[:3], "#", "+" + deep])
    assert matched(subscriptions, deep[:-1]) == ["#", deep + "#"]
    assert matched(subscriptions, deep[:-2]) == ["#"]
    assert only_group(subscriptions, deep[1:]).topic_filter == "+" + deep[1:]
    assert matched(subscriptions, "$" + deep[:-1]) == ["$" + deep[:-1] + "/#"]
    subscriptions.forget("c")
    assert is_bare(subscriptions)


def living_nodes() -> int:
    return sum(isinstance(thing, FilterNode) for thing in gc.get_objects())


@pytest.mark.slow
def test_a_tree_of_65_000_levels_is_freed_without_a_deep_stack() -> None:
    gc.collect()  # what other tests left behind
    before = living_nodes()
    subscriptions = holding("/" * 65_000 + "+")
    assert leaves_and_nodes(subscriptions._root) == (1, 65_001)
    assert living_nodes() == before + 65_003
    del subscriptions
    assert living_nodes() == before


def test_every_combination_of_name_and_wildcard_is_found_once() -> None:
    filters = [
        "/".join("+" if number >> bit & 1 else "a" for bit in range(10)) for number in range(1_024)
    ]
    subscriptions = holding(*filters)
    assert matched(subscriptions, "/".join("a" * 10)) == sorted(filters)
    assert matched(subscriptions, "/".join("b" * 10)) == ["/".join("+" * 10)]
    assert matched(subscriptions, "/".join("a" * 9)) == []


def test_pruning_stops_where_another_filter_goes_on() -> None:
    subscriptions = holding("a/b/c/+", "a/b/+", "a/b/#", "a/+/#", "a/+/+")
    assert leaves_and_nodes(subscriptions._root) == (5, 7)
    subscriptions.unsubscribe("c", "a/b/c/+")
    assert leaves_and_nodes(subscriptions._root) == (4, 5)
    subscriptions.unsubscribe("c", "a/b/+")
    assert leaves_and_nodes(subscriptions._root) == (3, 4)
    subscriptions.unsubscribe("c", "a/+/#")
    assert leaves_and_nodes(subscriptions._root) == (2, 4)
    subscriptions.unsubscribe("c", "a/+/+")
    assert leaves_and_nodes(subscriptions._root) == (1, 2)
    assert matched(subscriptions, "a/b") == ["a/b/#"]
    subscriptions.unsubscribe("c", "a/b/#")
    assert is_bare(subscriptions)


def test_a_leaf_without_members_is_empty_also_after_it_was_shared() -> None:
    leaf = Leaf()
    assert leaf.is_empty()
    entries = [
        SubscriptionEntry(client_id, Subscription(f"{share}t"))
        for share in ("", "$share/g/", "$share/h/")
        for client_id in ("x", "y")
    ]
    for entry in entries:
        leaf.put(entry, "t", entry.client_id == "x")
    for entry in entries:
        assert not leaf.is_empty()
        leaf.remove(entry)
    assert leaf.is_empty()


def test_a_group_is_found_by_its_filter() -> None:
    subscriptions = SubscriptionTree()
    for topic_filter in ("$share/g/a", "$share/g/a/#", "$share/h/+/b", "a/+"):
        subscriptions.subscribe("c", Subscription(topic_filter))
    for topic_filter in ("$share/g/a", "$share/g/a/#", "$share/h/+/b"):
        group = subscriptions.group(topic_filter)
        assert group is not None
        assert [entry.topic_filter for entry in group.members()] == [topic_filter]
    for topic_filter in (
        "$share/x/a",
        "$share/g/a/b",
        "$share/g/b/#",
        "$share/g/a/+",
        "$share/g/z",
    ):
        assert subscriptions.group(topic_filter) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        "exact/{}",
        "{}/#",
        "+/{}/+",
        "$share/g/exact/{}",
        "$share/{}/a/+",
        "/".join(["{0}." + str(level) for level in range(60)]) + "/+",
        "t" * 1_000 + "{}/#",
        "\U0001f600" * 500 + "{}/a",
    ],
)
def test_subscriptions_take_about_what_they_are_counted(form: str) -> None:
    count = repeats(500, 100)
    with memory() as held:
        subscriptions = SubscriptionTree()
        most = 0
        for number in range(count):
            topic_filter = form.format(number)
            assert subscriptions.subscribe("c", Subscription(topic_filter)) is None
            most += subscription_cost(topic_filter)
        assert subscriptions.size / 3 < held() < 1.6 * subscriptions.size
        assert subscriptions.size <= most
    subscriptions.forget("c")
    assert subscriptions.size == 0
    assert is_bare(subscriptions)


def test_a_level_that_many_filters_begin_with_is_counted_once() -> None:
    subscriptions = holding("a/b/c/#")
    first = subscriptions.size
    assert first == subscription_cost("a/b/c/#") - NODE_BYTES - len("///#")
    subscriptions.subscribe("other", Subscription("a/b/c/#"))
    assert subscriptions.size - first < NODE_BYTES + ENTRY_BYTES
    subscriptions.subscribe("other", Subscription("a/b/c/#", qos=1))
    assert subscriptions.size - first < NODE_BYTES + ENTRY_BYTES
    subscriptions.unsubscribe("c", "a/b/c/#")
    assert subscriptions.size == first
