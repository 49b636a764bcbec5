"""The text of the HTML pages: complete, escaped, without network."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from semel.probe.evidence import SENT, TEST, WireEvent
from semel.probe.report.case_files import list_case_files
from semel.probe.report.html import make_html
from semel.probe.report.matrix_page import make_matrix
from semel.probe.report.page_parts import SCRIPT, SIGNS, STYLE, escaped
from semel.probe.verdicts import SATISFIED, VERDICTS
from tests.probe.report.hand_made_reports import (
    case,
    hostile_report,
    large_report,
    origin_report,
    report,
)

PAGES = {
    "empty": lambda: make_html(report()),
    "origin": lambda: make_html(origin_report(), list_case_files(origin_report())),
    "hostile": lambda: make_html(hostile_report(), list_case_files(hostile_report())),
    "matrix": lambda: make_matrix([origin_report(), hostile_report(), report()]),
}
EVERY_PAGE = pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)


class _Elements(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(text)
    return parser.found


@EVERY_PAGE
def test_a_page_has_one_script_and_loads_nothing(made: Any) -> None:
    text = made()
    found = elements(text)
    assert [tag for tag, _ in found].count("script") == 1
    assert [tag for tag, _ in found].count("style") == 1
    assert not {"img", "link", "iframe", "object", "base", "video"} & {tag for tag, _ in found}
    for tag, attributes in found:
        assert not {"src", "style", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        link = attributes.get("href") or "#"
        assert re.fullmatch(r"#[\w.-]+|#|(reproducers|bug-reports)/[\w.-]+", link)
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    for word in ("innerHTML", "eval", "fetch", "XMLHttpRequest", "document.write"):
        assert word not in SCRIPT


@EVERY_PAGE
def test_a_page_is_well_formed_and_its_links_lead_somewhere(made: Any) -> None:
    text = made()
    text.encode("utf-8")
    assert not [c for c in text if not (c.isprintable() or c == "\n")]
    ids = [str(attributes["id"]) for _, attributes in elements(text) if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements(text):
        link = attributes.get("href") or ""
        if link.startswith("#"):
            assert link[1:] in ids


@EVERY_PAGE
def test_every_header_cell_has_a_scope_and_headings_descend(made: Any) -> None:
    found = elements(made())
    assert all(
        attributes.get("scope") in ("col", "row") for tag, attributes in found if tag == "th"
    )
    levels = [int(tag[1]) for tag, _ in found if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_statement_is_on_the_page_with_its_reason() -> None:
    text = make_html(report(versions=("3.1.1", "5.0")))
    bodies = [
        attributes for tag, attributes in elements(text) if tag == "tbody" and "id" in attributes
    ]
    assert len(bodies) == 141 + 251 + 80
    assert "it binds clients: semel probe client examines it" in text
    assert "No case found a violation." in text


def test_a_case_is_shown_in_full_once() -> None:
    text = make_html(large_report(200))
    assert text.count('class="evidence"') == 200
    assert text.count("</article>") == len(large_report(200).failed())


def test_long_bytes_are_cut_on_the_page() -> None:
    event = WireEvent(0.0, TEST, 1, SENT, b"\xab" * 16_384)
    text = make_html(report(case("long", SATISFIED, ("MQTT-4.7.3-1",), (event,))))
    assert text.count("ab ab ab") < 200
    assert "… (16,384 bytes in all)" in text


def test_2000_cases_make_a_page_of_a_few_megabytes() -> None:
    assert len(make_html(large_report())) < 4_000_000


def test_text_cannot_end_an_attribute() -> None:
    assert escaped("\"'<&\n") == "&quot;&#x27;&lt;&amp;\\n"


def test_every_verdict_has_a_sign_of_its_own() -> None:
    assert len({sign for sign, _ in SIGNS.values()}) == len(VERDICTS)
    assert set(SIGNS) == set(VERDICTS)


def test_the_matrix_has_a_cell_per_subject_and_marks_differences() -> None:
    text = make_matrix([origin_report(), report(), report(versions=("5.0",))])
    rows = re.findall(r'<tbody id="s3\.1\.1-MQTT-4\.7\.3-1".*?</tbody>', text, re.DOTALL)
    assert len(rows) == 1
    assert " data-differs" in rows[0]
    assert re.findall(r"<td[^>]*>([^<]*)", rows[0])[1:] == ["◐ partly", "· not examined", ""]
    same = make_matrix([origin_report(), origin_report()])
    assert " data-differs" not in same.partition("<main>")[2].partition("<script>")[0]
    assert text.count('<tbody id="') == 141 + 251 + 80
