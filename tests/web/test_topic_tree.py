"""The tree of topics, and payloads as the page shows them."""

from typing import Any

import pytest

from semel.web.payloads import HEX_BYTES, TEXT_CHARACTERS, describe_payload
from semel.web.topic_tree import SHOWN_ENTRIES, LastMessage, TopicTree

LAST = LastMessage(at=1.0, payload=b"x", size=1, qos=0, retain=False)


def levels(tree: TopicTree, key: str) -> list[str]:
    branch = tree.branch(key)
    assert branch is not None
    return [each.level for each in tree.entries(branch)[0]]


def test_levels_are_sorted_as_people_do_and_counted_at_and_below() -> None:
    tree = TopicTree()
    for topic in ("plant/line10", "plant/line2", "plant", "plant/line2/temp", "yard"):
        tree.add(topic, 2, LAST)
    assert levels(tree, "") == ["plant", "yard"]
    assert levels(tree, "plant/") == ["line2", "line10"]
    plant = tree.branch("plant/")
    assert plant is not None
    assert (plant.topics, plant.messages, plant.last) == (4, 8, LAST)
    line = tree.branch("plant/line2/")
    assert line is not None
    assert (line.topics, len(line.children)) == (2, 1)
    assert tree.root.topics == 5
    assert tree.branch("nothing/here/") is None


def test_empty_levels_are_levels() -> None:
    tree = TopicTree()
    for topic in ("/", "/a", "a//b", "a"):
        tree.add(topic, 1, LAST)
    assert levels(tree, "") == ["", "a"]
    assert levels(tree, "/") == ["", "a"]
    assert levels(tree, "a/") == [""]
    assert levels(tree, "a//") == ["b"]
    found = tree.branch("/")
    assert found is not None
    assert [each.key for each in tree.entries(found)[0]] == ["//", "/a/"]
    assert tree.root.topics == 4


def test_a_full_tree_takes_no_further_topic() -> None:
    tree = TopicTree(maximum_topics=2)
    for topic in ("a", "b/c", "d", "b"):
        tree.add(topic, 3, LAST)
    assert (tree.root.topics, tree.root.messages) == (2, 6)
    tree.add("a", 1, LAST)
    assert tree.root.messages == 7


def test_a_rate_rises_and_falls_to_nothing() -> None:
    tree = TopicTree()
    for _ in range(30):
        tree.add("a", 10, LAST)
        tree.end_interval(1.0)
    branch = tree.branch("a/")
    assert branch is not None
    assert branch.rate == pytest.approx(10, abs=0.1)
    for _ in range(60):
        tree.end_interval(1.0)
    assert branch.rate == 0
    assert tree._active == {}


def test_a_search_finds_text_or_matches_a_filter() -> None:
    tree = TopicTree()
    for topic in ("plant/1/Temp", "plant/2/temp", "plant/2", "$SYS/temp"):
        tree.add(topic, 1, LAST)

    def found(text: str) -> list[str]:
        return sorted(each.topic for each in tree.search(text)[0])

    assert found("TEMP") == ["$SYS/temp", "plant/1/Temp", "plant/2/temp"]
    assert found("plant/+") == ["plant/2"]
    # [MQTT-4.7.2-1] a wildcard at the beginning matches no topic that begins with $
    assert found("#") == ["plant/1/Temp", "plant/2", "plant/2/temp"]
    assert found("nothing") == []
    for number in range(SHOWN_ENTRIES + 2):
        tree.add(f"many/{number}", 1, LAST)
    branch = tree.branch("many/")
    assert branch is not None
    for shown, more in (tree.search("many"), tree.entries(branch)):
        assert (len(shown), more) == (SHOWN_ENTRIES, 2)


@pytest.mark.parametrize(
    ("payload", "kind", "number", "text"),
    [
        (b"", "empty", None, ""),
        (b"21.5", "number", 21.5, "21.5"),
        (b" -3e2 ", "number", -300.0, " -3e2 "),
        (b"1_000", "text", None, "1_000"),
        (b"nan", "text", None, "nan"),
        (b"1e999", "text", None, "1e999"),
        (b'{"a": 1}', "json", None, '{"a": 1}'),
        (b" [1]", "json", None, " [1]"),
        (b'{"a": ', "text", None, '{"a": '),
        (b"[" * 5_000, "text", None, None),
        ("<b>é".encode(), "text", None, "<b>é"),
        (b"\xff\x00", "binary", None, None),
    ],
)
def test_a_payload_is_shown_by_its_kind(
    payload: bytes, kind: str, number: float | None, text: str | None
) -> None:
    found: dict[str, Any] = describe_payload(payload)
    assert (found["kind"], found["number"], found["size"]) == (kind, number, len(payload))
    if text is not None or kind == "binary":
        assert found["text"] == text
    assert bytes.fromhex(found["hex"]) == payload[:HEX_BYTES]


def test_a_long_payload_is_cut() -> None:
    found = describe_payload(b"x" * 10_000)
    assert (len(found["text"]), found["cut"], found["size"]) == (TEXT_CHARACTERS, True, 10_000)
    found = describe_payload(b"\xff" * 300)
    assert (found["text"], found["cut"]) == (None, True)
    assert describe_payload(b"x" * TEXT_CHARACTERS)["cut"] is False
