"""JUnit, SARIF, badge and bug report: other programs read them, so their form is checked."""

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from semel import standard
from semel.probe.evidence import NOTE, TEST, WireEvent
from semel.probe.report.badge import make_badge
from semel.probe.report.bug_report import make_bug_report, markdown_text
from semel.probe.report.case_files import list_case_files
from semel.probe.report.chapters import chapter, totals_by_chapter
from semel.probe.report.junit import make_junit
from semel.probe.report.sarif import make_sarif
from semel.probe.verdicts import INCONCLUSIVE, SATISFIED, VIOLATED
from tests.probe.report.hand_made_reports import (
    HOSTILE,
    ORIGIN_CASE,
    case,
    hostile_report,
    large_report,
    origin_report,
    report,
)

SVG = "{http://www.w3.org/2000/svg}"
EVERY_REPORT = pytest.mark.parametrize(
    "made", [report, origin_report, hostile_report, large_report], ids=lambda made: made.__name__
)

# --- JUnit ----------------------------------------------------------------------------------------


@EVERY_REPORT
def test_junit_is_xml_with_a_test_case_per_case(made: Any) -> None:
    found = made()
    root = ElementTree.fromstring(make_junit(found))
    cases = list(root.iter("testcase"))
    assert len(cases) == len(found.outcomes) == int(root.get("tests", ""))
    for suite in root:
        assert suite.get("tests") == str(len(list(suite.iter("testcase"))))
        assert suite.get("failures") == str(len(list(suite.iter("failure"))))
        assert suite.get("errors") == str(len(list(suite.iter("error"))))
        assert suite.get("skipped") == str(len(list(suite.iter("skipped"))))


def test_junit_has_the_verdicts_of_the_cases() -> None:
    root = ElementTree.fromstring(make_junit(origin_report()))
    found = {each.get("name"): [child.tag for child in each] for each in root.iter("testcase")}
    assert found == {
        "empty-topic-name": ["failure"],
        "wildcard-in-topic-name": [],
        "empty-topic-name-qos-0": [],
        "retained": ["skipped"],
        "order": ["error"],
        "session": ["system-out"],
    }
    (failure,) = root.iter("failure")
    assert failure.get("message") == "The broker answered with PUBACK."
    assert failure.text is not None
    assert "sent  32 05 00 00 00 07 78  PUBLISH QoS 1" in failure.text


def test_junit_shows_hostile_text_and_has_no_markup_of_it() -> None:
    text = make_junit(hostile_report())
    assert "<script>" not in text
    assert "]]>" not in text
    root = ElementTree.fromstring(text)
    (failure,) = root.iter("failure")
    assert "\\x00\\x1b[31m\\n" in str(failure.get("message"))


# --- SARIF ----------------------------------------------------------------------------------------


@EVERY_REPORT
def test_sarif_has_the_required_fields(made: Any) -> None:
    found = made()
    value = json.loads(make_sarif(found, {}))
    assert value["version"] == "2.1.0"
    assert value["$schema"].endswith("sarif-2.1.0.json")
    (run,) = value["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == len(found.statements())
    assert len(run["results"]) == len(found.failed())
    fingerprints = set()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        assert re.fullmatch(r"[\w./-]+", location["physicalLocation"]["artifactLocation"]["uri"])
        fingerprints.add(result["partialFingerprints"]["semelProbeCase/v1"])
    assert len(fingerprints) == len(run["results"])
    (invocation,) = run["invocations"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", invocation["startTimeUtc"])


def test_a_result_of_sarif_points_to_its_reproducer() -> None:
    found = origin_report()
    shown = {key: each.shown_path for key, each in list_case_files(found).items()}
    (result,) = json.loads(make_sarif(found, shown))["runs"][0]["results"]
    assert result["ruleId"] == "3.1.1/MQTT-4.7.3-1"
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "reproducers/empty-topic-name-3.1.1.py"}
    assert result["properties"]["statements"] == ["MQTT-4.7.3-1", "MQTT-3.3.2-1"]


# --- badge ----------------------------------------------------------------------------------------


def badge_words(*outcomes: Any, **others: Any) -> tuple[str, list[str]]:
    """The words of a badge, and the colors of its results."""
    root = ElementTree.fromstring(make_badge(report(*outcomes, **others)))
    group = root.find(f"{SVG}g")
    assert group is not None
    words = " ".join(str(each.text) for each in group.iter(f"{SVG}text"))
    assert root.get("aria-label") == words
    return words, [str(each.get("fill")) for each in group.iter(f"{SVG}rect")][1::2]


def test_a_badge_counts_the_satisfied_among_the_examined_statements() -> None:
    good = case("good", SATISFIED, ("MQTT-4.7.1-1", "MQTT-4.7.3-2"))
    bad = case("bad", VIOLATED, ("MQTT-4.7.3-1",))
    open_one = case("open", INCONCLUSIVE, ("MQTT-4.6.0-6",))
    assert badge_words(good) == ("MQTT 3.1.1 2/2", ["#177245"])
    assert badge_words(good, bad) == ("MQTT 3.1.1 2/3", ["#b92323"])
    assert badge_words(good, open_one) == ("MQTT 3.1.1 2/3", ["#8a5800"])
    assert badge_words() == ("MQTT 3.1.1 not examined", ["#596474"])
    words, colors = badge_words(good, versions=("3.1.1", "5.0"))
    assert words == "MQTT 3.1.1 2/2 MQTT 5.0 not examined"
    assert colors == ["#177245", "#596474"]


# --- bug report -----------------------------------------------------------------------------------


def bug_report(found: Any) -> str:
    (outcome,) = found.failed()
    return make_bug_report(found, outcome, list_case_files(found)[outcome.case, outcome.version])


def test_a_bug_report_has_the_parts_of_the_origin_cases() -> None:
    text = bug_report(origin_report())
    titles = re.findall(r"^## (.*)", text.partition("<details>")[0], re.MULTILINE)
    assert titles == [
        "What went wrong",
        "Statements",
        "What must happen",
        "Bytes sent and seen",
        "Control case",
        "How sure this is",
        "How to reproduce it",
        "Versions",
    ]
    assert "| MQTT-4.7.3-1 | 4.7.3 Topic semantic and usage | No Topic Name and no" in text
    test, _, control = text.partition("## Control case")
    assert "sent      32 05 00 00 00 07 78  PUBLISH QoS 1, packet_id 7, topic_name ''" in test
    assert "received  40 02 00 07  PUBACK, packet_id 7" in test
    assert "32 05 00 00 00 07 78" not in control.partition("## How sure")[0]
    assert "3 runs on fresh connections all had this result." in text
    assert "python3 reproducers/empty-topic-name-3.1.1.py localhost 1883" in text
    assert "#!/usr/bin/env python3\n" in text


def test_hostile_text_has_no_meaning_in_a_bug_report() -> None:
    text = bug_report(hostile_report())
    head = text.partition("```")[0]
    assert "\\<script\\>" in head
    assert not re.search(r"(?<!\\)[<>|`](?!\s|---)", head.replace("|---|---|---|", ""))
    assert not [c for c in text if not (c.isprintable() or c == "\n")]
    # The text has two backticks in a row, so that no fence may be of two.
    assert "\n```\n" in text


def test_a_fence_is_longer_than_those_in_its_text() -> None:
    for each in ("```", "`````"):
        note = WireEvent(0.0, TEST, 0, NOTE, b"", f"x {each} y")
        text = bug_report(report(replace(ORIGIN_CASE, evidence=(note,))))
        assert f"\n{each}`\n" in text
        assert "The evidence cannot be replayed by a program" in text
    assert markdown_text("a|b_c") == "a\\|b\\_c"


# --- chapters -------------------------------------------------------------------------------------


def test_every_section_has_a_chapter_with_a_title() -> None:
    for version in ("3.1.1", "5.0"):
        for each in standard.statements(version):
            assert re.fullmatch(r"\d+(\.\d+)? \S.*", chapter(version, each.section)), each
    assert chapter("5.0", "3.1.2.11.4 Maximum Packet Size") == "3.1 CONNECT"
    assert chapter("3.1.1", "4.8 Handling errors") == "4.8 Handling errors"
    assert chapter("5.0", "4.8.2 Shared Subscriptions") == "4.8 Subscriptions"


def test_the_totals_of_chapters_have_every_statement_in_the_order_of_the_standard() -> None:
    found = totals_by_chapter(report(versions=("3.1.1", "5.0")).statements())
    assert sum(sum(each.values()) for each in found.values()) == 141 + 251 + 80
    names = [name for version, name in found if version == "5.0"]
    assert (
        names.index("3.2 CONNACK")
        < names.index("3.10 UNSUBSCRIBE")
        < names.index("3.14 DISCONNECT")
    )


def test_the_hostile_text_is_hostile() -> None:
    assert not HOSTILE.isprintable()
    with pytest.raises(UnicodeEncodeError):
        HOSTILE.encode()
