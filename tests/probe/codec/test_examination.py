"""semel's own codec is examined: nothing is violated, and nothing is left open."""

import asyncio
import json
import sys

import pytest

from semel import standard, vectors
from semel.probe.adapters.semel_codec import build_packet
from semel.probe.codec.cases import LEVELS, blamed_statements, codec_cases, controls, distance
from semel.probe.codec.examination import examine_codec
from semel.probe.outcomes import CODEC, ExaminationReport, report_from_json
from semel.probe.packet_form import (
    BadForm,
    describe_packet,
    differences,
    expand,
    has_discouraged_character,
    has_lone_surrogate,
    shorten,
)
from semel.probe.verdicts import NOT_APPLICABLE, NOT_EXAMINED, NOT_OBSERVABLE, SATISFIED

SEMEL = [sys.executable, "-m", "semel.probe.adapters.semel_codec"]


@pytest.fixture(scope="module")
def semel_report() -> ExaminationReport:
    return asyncio.run(examine_codec(SEMEL, timeout=20))


def test_semel_violates_nothing_and_leaves_nothing_open(semel_report: ExaminationReport) -> None:
    assert {outcome.verdict for outcome in semel_report.outcomes} == {SATISFIED}
    for version in ("3.1.1", "5.0"):
        for path in ("encode", "decode"):
            found = [o for o in semel_report.outcomes if (o.version, o.path) == (version, path)]
            assert len(found) > 390, (version, path)
    verdicts = {each.verdict for each in semel_report.statements()}
    assert verdicts == {SATISFIED, NOT_APPLICABLE, NOT_OBSERVABLE, NOT_EXAMINED}
    assert semel_report.kind == CODEC
    assert semel_report.remarks == []
    assert semel_report.name.startswith("semel ")


def test_what_is_not_examined_depends_on_earlier_packets(semel_report: ExaminationReport) -> None:
    """Every statement that a single packet can show has a verdict."""
    left = {each.id for each in semel_report.statements() if each.verdict == NOT_EXAMINED}
    known = {each.id: each for version in LEVELS for each in standard.statements(version)}
    assert len(left) == 19
    for each in left:
        assert {"trace", "exchange"} & set(known[each].observable), each


def test_the_report_survives_json(semel_report: ExaminationReport) -> None:
    found = report_from_json(json.loads(json.dumps(semel_report.as_json())))
    assert len(found.outcomes) == len(semel_report.outcomes)
    assert found.as_json() == report_from_json(found.as_json()).as_json()


def test_every_refusal_has_a_control_in_its_evidence(semel_report: ExaminationReport) -> None:
    refused = [o for o in semel_report.outcomes if o.found.startswith("refused")]
    assert len(refused) > 2000
    for outcome in refused:
        assert {event.arm for event in outcome.evidence} == {"control", "test"}


@pytest.mark.parametrize("version", LEVELS)
def test_the_cases_of_a_version_have_different_names_and_known_statements(version: str) -> None:
    cases = codec_cases(version)
    assert len({case.name for case in cases}) == len(cases)
    known = {each.id for each in standard.statements(version)}
    for case in cases:
        assert set(case.statements) <= known
        assert (case.rule is None) == bool(case.is_right)
        assert case.title.startswith("The ")


@pytest.mark.parametrize("version", LEVELS)
def test_the_origins_cases_are_among_them(version: str) -> None:
    names = {case.name for case in codec_cases(version)}
    for topic in ("sensor/#", "sensor/+", "#", "+"):
        assert f"encode origin: a PUBLISH to {topic} at QoS 0" in names
        assert f"decode publish: Topic Name {topic}" in names
    assert "encode origin: a PUBLISH with an empty Topic Name at QoS 1" in names
    assert "decode publish: an empty Topic Name at QoS 1" in names
    assert "encode origin: a PUBLISH with DUP 1 at QoS 0" in names
    assert "decode publish: DUP 1 at QoS 0, RETAIN 0" in names


def test_only_the_selected_cases_are_run() -> None:
    report = asyncio.run(examine_codec(SEMEL, statements=["3.3.1-2"], only=["decode"], timeout=20))
    assert 0 < len(report.outcomes) < 40
    for outcome in report.outcomes:
        assert "MQTT-3.3.1-2" in outcome.statements
        assert outcome.path == "decode"
    assert report.remarks == ["only selected cases were run"]
    one = asyncio.run(
        examine_codec(SEMEL, only=["encode origin*dup*"], versions=("5.0",), timeout=20)
    )
    assert [outcome.case for outcome in one.outcomes] == [
        "encode origin: a PUBLISH with DUP 1 at QoS 0"
    ]


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    asyncio.run(
        examine_codec(
            SEMEL,
            only=["decode puback"],
            timeout=20,
            progress=lambda done, total: seen.append((done, total)),
        )
    )
    assert seen[-1][0] == seen[-1][1] > 10
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))


def test_the_nearest_right_case_is_the_control() -> None:
    cases = {case.name: case for case in codec_cases("3.1.1")}
    nearest = controls(cases["decode publish: DUP 1 at QoS 0, RETAIN 0"])[0]
    assert nearest.data == bytes.fromhex("300400016178")
    nearest = controls(cases["encode origin: a PUBLISH to sensor/# at QoS 1"])[0]
    assert nearest.form["type"] == "Publish"
    assert nearest.is_right
    assert distance(b"\x30\x02ab", b"\x30\x02ab") == 0
    assert distance(b"\x30\x02ab", b"\x30\x03axb") == 1


def test_bytes_are_blamed_on_the_statement_of_the_nearest_vector() -> None:
    rules = {case.rule.name: case.rule for case in codec_cases("5.0") if case.rule}
    twice = bytes.fromhex("200d00000a27000003e727000003e7")
    assert blamed_statements(rules["PROPERTY_ONCE"], twice, "5.0") == ("U5-30",)


def test_a_packet_is_described_as_the_vectors_describe_it() -> None:
    for file in vectors.names():
        for vector in vectors.load(file):
            if "packet" in vector and len(str(vector)) < 3000:
                form = expand(vector["packet"])
                assert differences(form, describe_packet(build_packet(form))) == []


def test_differences_count_in_the_fields_that_an_answer_has() -> None:
    form = {
        "type": "Publish",
        "topic_name": "a",
        "payload": "hex:78",
        "properties": {"content_type": "x", "user_properties": [["a", "1"], ["b", "2"]]},
    }
    assert differences(form, {"type": "Publish"}) == []
    assert differences(form, {"type": "Publish", "payload": "hex:78", "packet_id": None}) == []
    assert differences(form, {"type": "PubAck"}) == ["the type is PubAck, not Publish"]
    assert differences(form, {"type": "Publish", "dup": True}) == ["dup is True, not False"]
    properties = [["content_type", "x"], ["user_properties", ["a", "1"]], [0x26, ["b", "2"]]]
    assert differences(form, {"type": "Publish", "properties": properties}) == []
    assert differences(form, {"type": "Publish", "properties": list(reversed(properties))}) == [
        "property user_properties: their order is lost"
    ]
    missing = {"user_properties": [["a", "1"], ["b", "2"]], "payload_format_indicator": 0}
    assert differences(form, {"type": "Publish", "properties": missing}) == [
        "property content_type is None, not 'x'"
    ]
    with pytest.raises(BadForm, match="binary data is given as 'x'"):
        differences(form, {"type": "Publish", "payload": "x"})
    with pytest.raises(BadForm, match="neither an object nor a list"):
        differences(form, {"type": "Publish", "properties": 7})
    with pytest.raises(BadForm, match="subscriptions is not a list"):
        differences(
            {"type": "Subscribe", "subscriptions": []},
            {
                "type": "Subscribe",
                "subscriptions": [1],
            },
        )


def test_texts_are_recognized_that_not_every_library_can_hold_or_must_take() -> None:
    assert has_lone_surrogate({"type": "Publish", "topic_name": "a\ud800"})
    assert not has_lone_surrogate({"type": "Publish", "topic_name": "\U0001f600"})
    assert has_discouraged_character({"type": "Publish", "topic_name": "a\x01"})
    assert not has_discouraged_character(
        {"type": "Publish", "topic_name": "a", "payload": "hex:01"}
    )
    assert (
        shorten({"type": "Publish", "topic_name": "\ud800"}) == r"PUBLISH with topic_name '\ud800'"
    )
    assert shorten({"type": "PingReq"}) == "PINGREQ"
    assert len(shorten({"type": "Publish", "topic_name": "a" * 70_000})) < 400
