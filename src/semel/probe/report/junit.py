"""A report as JUnit XML, which continuous integration systems show: one test case per case."""

from typing import Final
from xml.etree import ElementTree  # nosec B405: it writes XML and reads none

from semel.probe.evidence import WireEvent
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.safe_strings import spaced_hex, visible_text
from semel.probe.verdicts import (
    ARGUABLE,
    FAILED,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    NOT_OBSERVABLE,
)

_SKIPPED: Final = frozenset((NOT_APPLICABLE, NOT_EXAMINED, NOT_OBSERVABLE))


def make_junit(report: ExaminationReport) -> str:
    """The XML: violated is a failure, inconclusive an error, and what was not examined skipped."""
    root = ElementTree.Element("testsuites", name="semel probe")
    for version in report.versions:
        outcomes = [each for each in report.outcomes if each.version == version]
        suite = ElementTree.SubElement(
            root, "testsuite", name=visible_text(f"{report.name or report.subject} MQTT {version}")
        )
        _count(suite, outcomes)
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (
            ("subject", report.subject),
            ("kind", report.kind),
            ("seed", str(report.seed)),
            ("semel", report.semel_version),
        ):
            ElementTree.SubElement(properties, "property", name=name, value=visible_text(value))
        for outcome in outcomes:
            suite.append(_test_case(outcome))
    _count(root, report.outcomes)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def evidence_line(event: WireEvent) -> str:
    """An event as a line of text."""
    parts = [f"{event.at:8.3f} s", event.arm, f"connection {event.link}", event.kind]
    if event.data:
        parts.append(spaced_hex(event.data))
    if event.meaning:
        parts.append(visible_text(event.meaning))
    return "  ".join(parts)


def _count(element: ElementTree.Element, outcomes: list[CaseOutcome]) -> None:
    element.set("tests", str(len(outcomes)))
    element.set("failures", str(sum(each.verdict in FAILED for each in outcomes)))
    element.set("errors", str(sum(each.verdict == INCONCLUSIVE for each in outcomes)))
    element.set("skipped", str(sum(each.verdict in _SKIPPED for each in outcomes)))
    element.set("time", f"{sum(each.seconds for each in outcomes):.3f}")


def _test_case(outcome: CaseOutcome) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase",
        classname=visible_text(f"mqtt-{outcome.version}.{outcome.path}"),
        name=visible_text(outcome.case),
        time=f"{outcome.seconds:.3f}",
    )
    found = visible_text(outcome.found)
    lines = [
        f"Statements: {', '.join(outcome.statements)}",
        f"Required: {outcome.title}",
        f"Found: {outcome.found}",
        *(evidence_line(event) for event in outcome.evidence),
    ]
    text = "\n".join(visible_text(line) for line in lines)
    if outcome.verdict in FAILED:
        ElementTree.SubElement(element, "failure", message=found, type=outcome.verdict).text = text
    elif outcome.verdict == INCONCLUSIVE:
        ElementTree.SubElement(element, "error", message=found, type=outcome.verdict).text = text
    elif outcome.verdict in _SKIPPED:
        ElementTree.SubElement(element, "skipped", message=f"{outcome.verdict}: {found}")
    elif outcome.verdict == ARGUABLE:
        ElementTree.SubElement(element, "system-out").text = f"arguable: {found}"
    return element
