"""The page works by keyboard, for screen readers, in light and dark, and on a phone."""

import re
from importlib import resources
from typing import Any

import pytest

from tests.web.page_browser import VIEWS, Page, Visits, expect
from tests.web.page_server import PageStandIn

STEPS = {
    "topics": "#/topics/plant%2Fberlin%2Fline-1%2Fpress-1%2Fpressure",
    "clients": "#/clients/press-0004",
}


def opened(visit: Visits, view: str, **options: Any) -> Page:
    """A view with as much shown as it can show."""
    page = visit(STEPS.get(view, f"#/{view}"), **options)
    if view == "tables":
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".bar-chart")).to_be_visible()
    elif view == "violations":
        page.locator("summary").first.click()
    elif view == "messages":
        page.get_by_role("button", name="Subscribe").click()
        page.get_by_role("grid", name="Messages").get_by_role("row").nth(2).click()
    elif view in STEPS:
        expect(page.get_by_role("complementary").get_by_role("heading", level=2)).to_be_visible()
    page.wait_for_timeout(500)
    return page


def findings(page: Page) -> list[str]:
    """What axe finds: rule and element."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(visit: Visits, view: str, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python")
    page = opened(visit, view, scheme=scheme)
    assert findings(page) == []


def test_axe_finds_nothing_in_the_form_and_the_banner(visit: Visits, stand_in: PageStandIn) -> None:
    pytest.importorskip("axe_playwright_python")
    visit.expected = ("WebSocket", "ERR_")
    page = visit()
    stand_in.cut()
    expect(page.locator("#banner")).to_be_visible()
    # The view behind the banner is pale on purpose: of it, only contrast is excepted.
    assert [each for each in findings(page) if not each.startswith("color-contrast")] == []
    stand_in.is_up = True
    stand_in.needs_login = True
    page = visit()
    assert findings(page) == []


@pytest.mark.parametrize("width", [360, 768, 3840])
@pytest.mark.parametrize("view", VIEWS)
def test_the_page_never_scrolls_sideways(visit: Visits, view: str, width: int) -> None:
    page = opened(visit, view, width=width, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for link in page.get_by_role("navigation", name="Views").get_by_role("link").all():
        expect(link).to_be_in_viewport()


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_colors_follow_the_system_until_they_are_chosen(visit: Visits) -> None:
    page = visit(scheme="dark")
    dark = ground(page)
    switch = page.get_by_role("button", name="Dark colors")
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    light = ground(page)
    assert light != dark
    page.reload()
    assert ground(page) == light
    expect(switch).to_have_attribute("aria-pressed", "false")
    other = visit(scheme="light")
    assert ground(other) == light


def test_dots_move_only_if_motion_is_allowed(visit: Visits) -> None:
    still = visit(motion="reduce")
    still.wait_for_timeout(300)
    assert still.evaluate("document.getAnimations().length") == 0
    moving = visit(motion="no-preference")
    moving.wait_for_timeout(300)
    assert moving.evaluate("document.getAnimations().length") > 0


def test_a_view_is_reached_and_announced_by_keyboard(visit: Visits) -> None:
    page = visit()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="Clients").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("link", name="Clients")).to_have_attribute("aria-current", "page")


def test_a_chart_is_read_by_keyboard(visit: Visits) -> None:
    page = visit()
    chart = page.get_by_role("slider", name="Messages per second, last 5 minutes")
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "0")
    first = chart.get_attribute("aria-valuetext") or ""
    # After midnight the first points are of yesterday, and say so.
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d: in [\d,]+, out [\d,]+", first)
    page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuetext") != first
    expect(chart.locator(".chart-readout")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chart.locator(".chart-readout")).to_be_hidden()


def test_the_tree_is_used_by_keyboard(visit: Visits) -> None:
    page = visit("#/topics")
    tree = page.get_by_role("treegrid", name="Topics")
    expect(page.get_by_role("row", name=re.compile("^berlin"))).to_be_visible()
    tree.focus()

    def active() -> str:
        name = tree.get_attribute("aria-activedescendant")
        return page.locator(f"#{name}").locator("th").inner_text()

    page.keyboard.press("End")
    assert active().startswith("turin")
    page.keyboard.press("ArrowRight")
    row = page.get_by_role("row", name=re.compile("^turin"))
    expect(row).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("row", name=re.compile("^line-1 ")).last).to_be_visible()
    page.keyboard.press("ArrowRight")
    assert active().startswith("line-1")
    page.keyboard.press("ArrowLeft")
    assert active().startswith("turin")
    page.keyboard.press("ArrowLeft")
    expect(row).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowLeft")
    assert active().startswith("plant")
    page.keyboard.press("Home")
    assert active().startswith("(empty)")


def test_details_open_and_close_by_keyboard(visit: Visits) -> None:
    page = visit("#/clients")
    table = page.get_by_role("grid", name="Clients")
    expect(table).to_have_attribute("aria-rowcount", "1128")
    table.focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("Enter")
    close = page.get_by_role("complementary", name="Client").get_by_role("button", name="Close")
    close.focus()
    page.keyboard.press("Escape")
    expect(close).to_have_count(0)
    expect(table).to_be_focused()


def test_a_question_is_answered_by_keyboard(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/clients/press-0004")
    page.get_by_role("button", name="Disconnect…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Disconnect this client?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Disconnect…")).to_be_focused()
    assert not [path for path, _ in stand_in.requests if path == "/api/disconnect"]
