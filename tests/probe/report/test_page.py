"""The HTML pages in Chromium: filters, links, printing, accessibility, and hostile text."""

import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from semel.probe.report.files import write_report
from semel.probe.report.matrix_page import make_matrix
from semel.probe.verdicts import SATISFIED
from tests.probe.report.hand_made_reports import (
    HOSTILE,
    case,
    hostile_report,
    large_report,
    origin_report,
    report,
)
from tests.web.page_browser import Page, Visits, expect, launched

# Measured: 1 s for 2,000 cases, on a machine that does other things meanwhile.
LONGEST_LOAD = 10.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Visits]:
    """A browser for this module."""
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page per kind of report."""
    home = tmp_path_factory.mktemp("pages")
    for name, each in (
        ("origin", origin_report()),
        ("hostile", hostile_report()),
        ("large", large_report()),
        ("empty", report()),
    ):
        write_report(each, home / name)
    other = report(case("other", SATISFIED, ("MQTT-4.7.3-1",)), name=HOSTILE)
    (home / "matrix").mkdir()
    (home / "matrix" / "report.html").write_text(make_matrix([origin_report(), other]), "utf-8")
    return home


@pytest.fixture
def visits(browser: Visits, folder: Path) -> Iterator[Visits]:
    """Pages; after the test, none may have had an error, a dialog or a request to elsewhere."""
    browser.url = folder.as_uri()
    yield browser
    browser.close()


def opened(visits: Visits, name: str, scheme: str = "light", width: int = 1280) -> Page:
    page = visits.context(scheme=scheme, width=width).new_page()
    page.goto(f"{visits.url}/{name}/report.html")
    return page


def shown(page: Page) -> list[str]:
    """The statements that the filter shows."""
    found: list[str] = page.evaluate(
        "Array.from(document.querySelectorAll('.all > tbody:not([hidden])'), each => each.id)"
    )
    return found


@pytest.mark.parametrize("name", ["origin", "hostile", "empty", "matrix"])
def test_a_page_shows_all_statements_and_runs_no_foreign_script(visits: Visits, name: str) -> None:
    page = opened(visits, name)
    expect(page.locator("output")).to_have_text("148 of 148 statements")
    assert page.locator("script").count() == 1


def test_a_foreign_script_would_be_refused_and_noticed(browser: Visits, folder: Path) -> None:
    """The control of the test above: the policy of the page blocks what is not its own."""
    text = (folder / "empty" / "report.html").read_text("utf-8")
    (folder / "injected").mkdir()
    broken = text.replace("<main>", "<main><script>document.title = 'run'</script>")
    (folder / "injected" / "report.html").write_text(broken, "utf-8")
    browser.url = folder.as_uri()
    page = opened(browser, "injected")
    assert page.title() != "run"
    with pytest.raises(AssertionError, match="Content Security Policy"):
        browser.close()


def test_statements_are_found_by_text_verdict_section_and_bytes(visits: Visits) -> None:
    page = opened(visits, "origin")
    page.select_option("select[name=verdict]", "partly")
    expect(page.locator("output")).to_have_text("1 of 148 statements")
    assert shown(page) == ["s3.1.1-MQTT-4.7.3-1"]
    page.click("button[type=reset]")
    expect(page.locator("output")).to_have_text("148 of 148 statements")
    page.select_option("select[name=section]", "3.14 DISCONNECT")
    expect(page.locator("output")).to_have_text("4 of 148 statements")
    page.click("button[type=reset]")
    page.keyboard.press("/")
    page.keyboard.type("32 05 00 00 qos-0")
    expect(page.locator("output")).to_have_text("1 of 148 statements")
    page.fill("input[name=text]", "no such thing")
    expect(page.locator("output")).to_have_text("0 of 148 statements")


def test_versions_and_paths_are_filtered(visits: Visits) -> None:
    page = opened(visits, "large")
    page.select_option("select[name=version]", "5.0")
    expect(page.locator("output")).to_have_text("324 of 472 statements")
    page.click("button[type=reset]")
    page.select_option("select[name=path]", "receive")
    expect(page.locator("output")).not_to_have_text("472 of 472 statements")
    assert 0 < len(shown(page)) < 472


def test_a_link_opens_what_it_leads_to_even_if_it_is_filtered_away(visits: Visits) -> None:
    page = opened(visits, "origin")
    page.fill("input[name=text]", "no such thing")
    expect(page.locator("output")).to_have_text("0 of 148 statements")
    page.click("#violations a[href='#s3.1.1-MQTT-3.3.2-1']")
    statement = page.locator("[id='s3.1.1-MQTT-3.3.2-1']")
    expect(statement).to_be_in_viewport()
    expect(statement.locator("a", has_text="evidence")).to_be_visible()
    statement.locator("a", has_text="evidence").click()
    expect(page.locator("#c0 h3")).to_be_in_viewport()


def test_everything_is_open_in_print_and_closed_again_after(visits: Visits, tmp_path: Path) -> None:
    page = opened(visits, "origin")
    closed = page.locator("details:not([open])").count()
    assert closed > 3
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    expect(page.locator("form")).to_be_hidden()
    expect(page.locator("#c1 .evidence")).to_be_visible()
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["origin", "hostile", "matrix"])
def test_axe_finds_nothing(visits: Visits, name: str, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python")
    page = opened(visits, name, scheme)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
    ] == []


def test_a_narrow_page_does_not_scroll_sideways(visits: Visits) -> None:
    page = opened(visits, "origin", width=420)
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    page.locator("#statements").scroll_into_view_if_needed()
    assert widths[0] <= widths[1]


def test_2000_cases_load_and_filter_quickly(visits: Visits) -> None:
    began = time.monotonic()
    page = opened(visits, "large")
    expect(page.locator("output")).to_have_text("472 of 472 statements")
    page.fill("input[name=text]", "case-999")
    expect(page.locator("output")).to_have_text("4 of 472 statements")
    assert time.monotonic() - began < LONGEST_LOAD


def test_the_matrix_shows_only_what_differs(visits: Visits) -> None:
    page = opened(visits, "matrix")
    page.check("input[name=differs]")
    expect(page.locator("output")).not_to_have_text("148 of 148 statements")
    assert "s3.1.1-MQTT-4.7.3-1" in shown(page)
    page.select_option("select[name=verdict]", "satisfied")
    expect(page.locator("output")).to_have_text("2 of 148 statements")
    assert shown(page) == ["s3.1.1-MQTT-4.7.1-1", "s3.1.1-MQTT-4.7.3-1"]
