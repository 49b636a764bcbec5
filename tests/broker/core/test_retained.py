"""Retained messages: compared with a dictionary that is read from end to end."""

import gc
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.retained import LEVEL_BYTES, RETAINED_BYTES, Retained, RetainedNode, cost
from semel.mqtt import Message, topic_matches
from tests.broker.by_hand import memory
from tests.modes import repeats

LEVELS = ("", "a", "b", "c", "$", "$SYS", "__proto__", "é", "e\u0301", "A", " ")
PLENTY = 1_000_000_000
# What a message to a topic of one character takes beside its topic and its payload.
EACH = RETAINED_BYTES + 1


def kept(*topic_names: str, maximum: int = PLENTY) -> Retained:
    retained = Retained(maximum)
    for topic_name in topic_names:
        assert retained.put(topic_name, Message(topic_name, b"x", retain=True))
    return retained


def timed(**expiries: float | None) -> Retained:
    retained = Retained(PLENTY)
    for topic_name, expires_at in expiries.items():
        assert retained.put(topic_name, Message(topic_name, b"x", expires_at=expires_at))
    return retained


def found(retained: Retained, topic_filter: str, now: float) -> list[Message]:
    """What a search gives from its beginning to its end."""
    messages: list[Message] = []
    search = retained.search(topic_filter, 0, 0)
    while not search.is_done():
        message = search.next(now)
        if message is not None:
            messages.append(message)
    return messages


def matched(retained: Retained, topic_filter: str, now: float = 0.0) -> list[str]:
    """Their topics, sorted: among topics there is no order [4.6]."""
    return sorted(message.topic_name for message in found(retained, topic_filter, now))


def count_nodes(root: RetainedNode) -> int:
    """The nodes below the root; one that leads to no message fails."""
    count, pending = 0, [root]
    while pending:
        node = pending.pop()
        assert node is root or node.message is not None or node.children
        count += len(node.children)
        pending += node.children.values()
    return count


def nodes_of(retained: Retained) -> int:
    return count_nodes(retained._root) + count_nodes(retained._dollar_root)


def is_bare(retained: Retained) -> bool:
    return (
        len(retained) == 0
        and retained.size == 0
        and not retained._by_name
        and not retained._expiring
        and not retained._root.children
        and not retained._dollar_root.children
    )


def check_size(retained: Retained, names: dict[str, Message]) -> None:
    """There is a node for each distinct beginning of a name, and no other."""
    beginnings = {
        tuple(levels[: i + 1])
        for levels in (name.split("/") for name in names)
        for i in range(len(levels))
    }
    assert nodes_of(retained) == len(beginnings)
    assert len(retained) == len(names)
    assert retained.size == sum(cost(message) for message in names.values())
    assert set(retained._expiring) == {
        name for name, message in names.items() if message.expires_at is not None
    }


def living(names: dict[str, Message], topic_filter: str, now: float) -> list[str]:
    """The topics that a search should find, by a scan of all names."""
    return sorted(
        name
        for name, message in names.items()
        if topic_matches(topic_filter, name) and not message.is_expired(now)
    )


def any_name(source: random.Random) -> str:
    return "/".join(source.choice(LEVELS) for _ in range(source.randint(1, 4))) or "a"


def any_filter(source: random.Random) -> str:
    levels = [source.choice((*LEVELS, *("+",) * 8)) for _ in range(source.randint(1, 4))]
    if source.random() < 0.4:
        levels[-1] = "#"
    return "/".join(levels) or "+"


# --- which filters find which messages ------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("a", ["a"], ["A", "a/", "/a", "aa", "a/b", "$a"]),
        ("a/b", ["a/b"], ["a", "a/b/", "a/B", "a//b"]),
        ("#", ["a", "/", "a/b/c", " ", "a$"], ["$", "$SYS", "$SYS/a"]),
        ("+", ["a", " ", "__proto__"], ["/", "a/b", "$", "$SYS"]),
        ("+/+", ["/", "a/b", "/a"], ["a", "//", "a/b/c", "$SYS/a"]),
        ("+/#", ["/", "a", "a/b/c"], ["$", "$SYS/a"]),
        ("/+", ["/", "/a", "/$SYS"], ["a", "a/", "//"]),
        ("/#", ["/", "/a", "//", "/$"], ["a", "a/"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c", "a/$SYS"], ["b", "/a", "ab", "aa/b"]),
        ("a/+", ["a/", "a/b"], ["a", "a/b/c", "b/a"]),
        ("a/+/#", ["a/", "a/b", "a/b/c/d"], ["a", "b/b"]),
        ("+/b/#", ["a/b", "/b", "a/b/c"], ["b", "b/a/b", "$SYS/b"]),
        ("sport/+/player1", ["sport/tennis/player1"], ["sport/player1", "sport/a/b/player1"]),
        ("$SYS/#", ["$SYS", "$SYS/", "$SYS/a/b"], ["SYS", "a/$SYS", "$SYSx", "$"]),
        ("$SYS/+/x", ["$SYS/a/x"], ["$SYS/x", "a/a/x"]),
        ("+/__proto__", ["a/__proto__"], ["a/proto", "a/constructor"]),
        ("\u00e9/+", ["\u00e9/a"], ["e\u0301/a", "e/a", "\u00c9/a"]),
        ("\u00e9", ["\u00e9"], ["e\u0301", "e", "\u00c9"]),
        ("$share//a", ["$share//a"], ["a", "/a"]),
        ("$share/+/a", ["$share/g/a"], ["a", "$share/g/b"]),
    ],
)
def test_a_filter_finds_messages_as_the_standard_says(
    topic_filter: str, matching: list[str], others: list[str]
) -> None:
    """[4.7]"""
    assert matched(kept(*matching, *others), topic_filter) == sorted(matching)
    assert matched(kept(*others, *matching), topic_filter) == sorted(matching)
    assert matched(kept(*others), topic_filter) == []


def test_nothing_is_found_where_nothing_is_kept() -> None:
    for topic_filter in ("a", "+", "#", "a/+/#", "$SYS/#"):
        assert found(Retained(PLENTY), topic_filter, 0.0) == []


def test_a_topic_that_leads_to_others_has_no_message_of_its_own() -> None:
    retained = kept("a/b/c")
    assert matched(retained, "a/b") == []
    assert matched(retained, "a/+") == []
    assert matched(retained, "a/b/#") == ["a/b/c"]
    assert matched(retained, "a/+/c") == ["a/b/c"]


# --- put and delete -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic_filter", ["t", "+", "#"])
def test_a_topic_has_the_last_message_that_was_put(topic_filter: str) -> None:
    """[MQTT-3.3.1-5]"""
    retained = Retained(PLENTY)
    first, second = Message("t", b"1", qos=1), Message("t", b"2", qos=2, retain=True)
    assert retained.put("t", first)
    assert found(retained, topic_filter, 0.0) == [first]
    assert retained.put("t", second)
    assert found(retained, topic_filter, 0.0) == [second]
    assert len(retained) == 1


def test_delete_takes_one_topic_and_nothing_else() -> None:
    retained = kept("a", "a/b", "a/b/c", "b")
    for topic_name in ("a/", "c", "a/b/c/d", "+", "#", "a/+", "A"):
        retained.delete(topic_name)
    assert matched(retained, "#") == ["a", "a/b", "a/b/c", "b"]
    retained.delete("a/b")
    assert matched(retained, "#") == ["a", "a/b/c", "b"]
    assert matched(retained, "a/b") == []
    assert len(retained) == 3
    retained.delete("a/b")
    assert len(retained) == 3


# --- a search, step by step -----------------------------------------------------------------------


def test_topics_that_differ_in_one_level_are_found_in_the_order_in_which_they_came() -> None:
    names = [f"t/{number * 7919 % 3_001}" for number in range(3_001)]
    retained = kept(*names)
    assert [message.topic_name for message in found(retained, "t/+", 0.0)] == names
    assert [message.topic_name for message in found(retained, "#", 0.0)] == names


@pytest.mark.parametrize("topic_filter", ["t/+", "#", "+/#", "t/+/#"])
def test_a_search_finds_what_was_there_before_it_and_still_is(topic_filter: str) -> None:
    """While topics come and go, also those that it stands at, and nothing is found twice."""
    source = random.Random(topic_filter)
    names = [f"t/{number}" for number in range(4_000)]
    retained = kept(*names)
    search = retained.search(topic_filter, 0, 0)
    untouched = set(names)
    given: list[str] = []
    while not search.is_done():
        message = search.next(0.0)
        if message is not None:
            given.append(message.topic_name)
        if source.random() < 0.3:
            topic_name = source.choice(names)
            untouched.discard(topic_name)
            retained.delete(topic_name)
            if source.random() < 0.5:
                retained.put(topic_name, Message(topic_name, b"later"))
        retained.put(f"t/new{len(given)}", Message(f"t/new{len(given)}", b"later"))
    assert len(given) == len(set(given))
    assert untouched < set(given) <= set(names)


def test_a_message_that_was_replaced_after_a_search_began_is_not_given() -> None:
    """Its subscriber got the new one when it was published."""
    retained = kept("a", "b", "c")
    search = retained.search("#", 0, 0)
    retained.put("b", Message("b", b"new"))
    given = [message for message in (search.next(0.0) for _ in range(5)) if message is not None]
    assert [message.topic_name for message in given] == ["a", "c"]
    assert matched(retained, "#") == ["a", "b", "c"]


def test_a_step_looks_at_a_bounded_number_of_nodes() -> None:
    retained = Retained(PLENTY)
    for number in range(5_000):
        topic_name = f"{number}/a/b"
        retained.put(topic_name, Message(topic_name, b"x"))
    search = retained.search("+/a/b/c", 0, 0)
    steps = 0
    while not search.is_done():
        assert search.next(0.0) is None
        assert search.visited <= 110
        steps += 1
    assert steps > 100


def test_a_full_store_takes_no_new_topic_but_new_messages_for_its_own() -> None:
    retained = kept("a", "b/c", maximum=2)
    assert not retained.put("d/e", Message("d/e", b"x"))
    assert (len(retained), nodes_of(retained)) == (2, 3)
    assert matched(retained, "#") == ["a", "b/c"]
    assert retained.put("a", Message("a", b"2"))
    retained.delete("a")
    assert retained.put("d/e", Message("d/e", b"x"))
    assert matched(retained, "#") == ["b/c", "d/e"]
    assert not retained.put("a", Message("a", b"x"))


def test_a_store_for_nothing_takes_nothing() -> None:
    retained = Retained(0)
    assert not retained.put("a", Message("a", b"x", expires_at=1.0))
    assert is_bare(retained)
    assert Retained(1).put("a", Message("a", b"x"))


def test_messages_are_kept_as_far_as_their_bytes_fit() -> None:
    """A message has the size of its topic and its payload, and exactly the bound fits"""
    retained = Retained(PLENTY, 10 + 2 * EACH)
    assert retained.put("a", Message("a", bytes(5)))
    assert not retained.put("b", Message("b", bytes(4)))
    assert retained.put("b", Message("b", bytes(3)))
    assert not retained.put("c", Message("c"))
    assert (retained.size, matched(retained, "#")) == (10 + 2 * EACH, ["a", "b"])
    retained.delete("b")
    assert retained.size == 6 + EACH
    assert retained.put("c", Message("c", bytes(3)))
    assert matched(retained, "#") == ["a", "c"]


@pytest.mark.parametrize("expires_at", [None, 10.0])
def test_a_next_message_that_does_not_fit_leaves_its_topic_without_one(
    expires_at: float | None,
) -> None:
    """[MQTT-3.3.1-5]: the one before would pass for the last"""
    retained = Retained(PLENTY, 10 + LEVEL_BYTES + 2 * EACH + 2)
    assert retained.put("a/b", Message("a/b", bytes(3), expires_at=expires_at))
    assert retained.put("c", Message("c", bytes(2)))
    assert retained.put("a/b", Message("a/b", bytes(4), expires_at=expires_at))
    assert not retained.put("a/b", Message("a/b", bytes(5), expires_at=expires_at))
    assert (retained.size, len(retained), nodes_of(retained)) == (3 + EACH, 1, 1)
    assert matched(retained, "#") == ["c"]
    retained.delete("c")
    assert is_bare(retained)


def test_a_smaller_message_fits_where_a_larger_one_was() -> None:
    retained = Retained(1, 10 + EACH)
    for size in (9, 1, 8, 9):
        assert retained.put("a", Message("a", bytes(size)))
        assert retained.size == 1 + size + EACH
    assert not retained.put("b", Message("b"))
    assert matched(retained, "#") == ["a"]


@pytest.mark.parametrize("swept", [True, False])
def test_bytes_of_the_expired_are_free_when_they_are_dropped(swept: bool) -> None:
    retained = Retained(PLENTY, 10 + EACH)
    assert retained.put("a", Message("a", bytes(9), expires_at=10.0))
    assert not retained.put("b", Message("b", bytes(9)))
    if swept:
        assert retained.sweep(10.0, 1) == 1
    else:
        assert matched(retained, "a", 10.0) == []
    assert is_bare(retained)
    assert retained.put("b", Message("b", bytes(9)))


def test_a_message_under_the_name_of_another_topic_is_a_mistake_of_ours() -> None:
    retained = Retained(PLENTY)
    with pytest.raises(AssertionError):
        retained.put("a", Message("b", b"x"))
    assert is_bare(retained)


# --- expiry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic_filter", ["t", "+", "#", "t/#"])
def test_a_message_is_given_out_until_its_expiry_and_then_dropped(topic_filter: str) -> None:
    """[MQTT-3.3.2-5]"""
    retained = timed(t=10.0, u=None)
    assert matched(retained, topic_filter, 9.999)[0] == "t"
    assert len(retained) == 2
    assert "t" not in matched(retained, topic_filter, 10.0)
    assert len(retained) == 1
    assert nodes_of(retained) == 1
    assert matched(retained, "#", 1e12) == ["u"]


def test_match_drops_what_has_expired_only_where_it_looks() -> None:
    retained = timed(a=10.0, b=10.0)
    assert matched(retained, "a", 11.0) == []
    assert len(retained) == 1
    assert matched(retained, "b", 9.0) == ["b"]


def test_a_later_message_brings_its_own_expiry() -> None:
    retained = timed(a=10.0, b=10.0, c=None)
    retained.put("a", Message("a", b"2", expires_at=20.0))
    retained.put("b", Message("b", b"2"))
    retained.put("c", Message("c", b"2", expires_at=10.0))
    assert retained.sweep(10.0, PLENTY) == 1
    assert matched(retained, "#", 19.0) == ["a", "b"]
    assert retained.sweep(20.0, PLENTY) == 1
    assert matched(retained, "#", 1e12) == ["b"]
    assert not retained._expiring


def test_sweep_drops_at_the_expiry_and_not_before() -> None:
    retained = timed(a=10.0, b=11.0, c=None)
    assert retained.sweep(9.999, PLENTY) == 0
    assert retained.sweep(10.0, PLENTY) == 1
    assert matched(retained, "#", 0.0) == ["b", "c"]
    assert retained.sweep(11.0, PLENTY) == 1
    assert retained.sweep(1e12, PLENTY) == 0
    assert matched(retained, "#", 0.0) == ["c"]


def test_sweep_looks_at_no_more_messages_than_it_may() -> None:
    retained = timed(**{f"t{i}": 10.0 for i in range(10)})
    assert retained.sweep(10.0, 0) == 0
    assert [retained.sweep(10.0, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert is_bare(retained)


def test_sweeps_go_round_so_that_those_that_stay_hide_no_others() -> None:
    expiries = {f"t{i}": 10.0 if i % 10 == 9 else 1e9 for i in range(100)}
    retained = timed(**expiries)
    dropped = [retained.sweep(10.0, 5) for _ in range(20)]
    assert dropped == [0, 1] * 10
    assert len(retained) == 90
    assert sum(retained.sweep(1e9, 5) for _ in range(18)) == 90


def test_sweep_passes_over_those_that_never_expire() -> None:
    retained = kept(*(f"t{i}" for i in range(100)))
    retained.put("late", Message("late", b"x", expires_at=10.0))
    assert retained.sweep(10.0, 1) == 1
    assert len(retained) == 100


def test_room_taken_by_the_expired_is_free_after_a_sweep() -> None:
    retained = Retained(1)
    retained.put("a", Message("a", b"x", expires_at=10.0))
    assert not retained.put("b", Message("b", b"x"))
    retained.sweep(10.0, 1)
    assert retained.put("b", Message("b", b"x"))


# --- any order of events --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(repeats(6, 2)))
def test_thousands_of_random_events_agree_with_a_dictionary(seed: int) -> None:
    source = random.Random(seed)
    maximum = source.choice((5, 30, PLENTY))
    maximum_bytes = source.choice((2_000, 20_000, PLENTY))
    retained = Retained(maximum, maximum_bytes)
    names: dict[str, Message] = {}
    pool = [any_name(source) for _ in range(60)]
    now = 0.0
    for step in range(2_000):
        now += source.choice((0.0, 0.5, 1.0))
        topic_name = source.choice(pool)
        event = source.random()
        if event < 0.5:
            expires_at = now + source.randint(0, 40) if source.random() < 0.5 else None
            payload = bytes(source.choice((1, 10, 30)))
            message = Message(topic_name, payload, expires_at=expires_at)
            others = sum(cost(other) for name, other in names.items() if name != topic_name)
            fits = others + cost(message) <= maximum_bytes
            has_room = fits and (topic_name in names or len(names) < maximum)
            assert retained.put(topic_name, message) == has_room
            if has_room:
                names[topic_name] = message
            elif not fits:
                names.pop(topic_name, None)
        elif event < 0.7:
            retained.delete(topic_name)
            names.pop(topic_name, None)
        elif event < 0.95:
            topic_filter = topic_name if source.random() < 0.3 else any_filter(source)
            assert matched(retained, topic_filter, now) == living(names, topic_filter, now)
            for name in [name for name in names if topic_matches(topic_filter, name)]:
                if names[name].is_expired(now):
                    del names[name]
        else:
            limit = source.choice((0, 1, 3, PLENTY))
            before = len(retained)
            dropped = retained.sweep(now, limit)
            assert dropped <= limit
            assert len(retained) == before - dropped
            gone = [name for name in names if names[name].is_expired(now)]
            assert dropped == len(gone) or limit < PLENTY
            for name in gone:
                if name not in retained._by_name:
                    del names[name]
        if step % 20 == 0:
            check_size(retained, names)
    for topic_name in pool:
        retained.delete(topic_name)
    assert is_bare(retained)


LEVEL = st.sampled_from(LEVELS) | st.text("ab/$é", max_size=3)
NAMES = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(LEVEL | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@given(st.lists(NAMES), st.lists(FILTERS, min_size=1), st.data())
@settings(deadline=None, max_examples=repeats(150, 50))
def test_any_messages_are_found_as_a_scan_finds_them_while_they_come_and_go(
    topic_names: list[str], filters: list[str], data: st.DataObject
) -> None:
    retained = Retained(PLENTY)
    names: dict[str, Message] = {}
    for number, topic_name in enumerate(topic_names):
        message = Message(topic_name, b"%d" % number, expires_at=10.0 if number % 3 else None)
        retained.put(topic_name, message)
        names[topic_name] = message
    check_size(retained, names)
    for topic_filter in filters:
        assert matched(retained, topic_filter, 9.0) == living(names, topic_filter, 9.0)
    for topic_name in data.draw(st.permutations(topic_names)):
        retained.delete(topic_name)
        names.pop(topic_name, None)
        check_size(retained, names)
        assert matched(retained, filters[0], 9.0) == living(names, filters[0], 9.0)
    assert is_bare(retained)


# --- depth, cost, memory --------------------------------------------------------------------------


@pytest.mark.slow
def test_topics_of_65_000_levels_need_no_stack() -> None:
    deep = "/" * 65_000
    retained = kept(deep, "a" + deep[1:], "$" + deep[1:])
    assert matched(retained, deep) == [deep]
    assert matched(retained, deep + "#") == [deep]
    assert matched(retained, deep + "/#") == [deep]
    assert matched(retained, deep + "//#") == []
    assert matched(retained, "+" + deep[1:]) == ["a" + deep[1:]]
    assert matched(retained, "/".join("+" * 65_000)) == ["a" + deep[1:]]
    assert matched(retained, "$/#") == ["$" + deep[1:]]
    assert matched(retained, "#") == sorted([deep, "a" + deep[1:]])
    for topic_name in (deep, "a" + deep[1:], "$" + deep[1:]):
        retained.delete(topic_name)
    assert is_bare(retained)


def living_nodes() -> int:
    return sum(isinstance(thing, RetainedNode) for thing in gc.get_objects())


@pytest.mark.slow
def test_a_tree_of_65_000_levels_is_freed_without_a_deep_stack() -> None:
    gc.collect()  # what other tests left behind
    before = living_nodes()
    retained = kept("/" * 65_000)
    assert nodes_of(retained) == 65_001
    assert living_nodes() == before + 65_003
    del retained
    assert living_nodes() == before


def test_pruning_stops_at_a_message_and_at_a_branch() -> None:
    retained = kept("a/b", "a/b/c/d", "a/x/y")
    assert nodes_of(retained) == 6
    retained.delete("a/b/c/d")
    assert nodes_of(retained) == 4
    retained.delete("a/b")
    assert nodes_of(retained) == 3
    retained.delete("a/x/y")
    assert is_bare(retained)


def test_a_topic_above_others_is_deleted_without_them() -> None:
    retained = kept("a", "a/b")
    retained.delete("a")
    assert nodes_of(retained) == 2
    assert matched(retained, "#") == ["a/b"]


def test_the_levels_of_a_topic_count_too() -> None:
    """Each takes a place in the tree, however short the message is."""
    retained = Retained(PLENTY, 50 * LEVEL_BYTES + RETAINED_BYTES)
    deep = "/".join("x" * 50)
    assert not retained.put(deep + "/x", Message(deep + "/x"))
    assert retained.put(deep, Message(deep))
    assert not retained.put("a/b", Message("a/b"))
    retained.delete(deep)
    assert retained.put("a/b", Message("a/b"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "text"),
    [(1, "t"), (1, "t" * 1_000), (1, "t" * 1_000 + "\U0001f600"), (60, "t"), (2, "é" * 500)],
)
def test_retained_messages_take_about_what_they_are_counted(levels: int, text: str) -> None:
    count = repeats(500, 100)
    with memory() as held:
        retained = Retained(PLENTY, PLENTY)
        for number in range(count):
            # Each has its own branch: no two share a place in the tree.
            topic_name = "/".join(f"{number}.{level}{text}" for level in range(levels))
            assert retained.put(topic_name, Message(topic_name, b"%d" % number))
        assert retained.size / 4 < held() < 1.6 * retained.size
