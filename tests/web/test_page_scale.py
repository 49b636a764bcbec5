"""10,000 topics and 1,000 clients cost the page no more than what is in sight."""

import re
from typing import Any

from tests.web.page_browser import Page, Visits, expect
from tests.web.page_server import PageStandIn

# Elements of a page with a full table in sight.
MOST_ELEMENTS = 1_500


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def live(stand_in: PageStandIn, key: str) -> list[Any]:
    return [given for path, given in stand_in.requests if path == "live" and key in given]


def test_a_branch_of_2000_topics_has_few_rows_in_the_document(visit: Visits) -> None:
    page = visit("#/topics")
    page.get_by_role("row", name=re.compile("^meters")).locator(".twisty").click()
    tree = page.get_by_role("treegrid")
    expect(page.get_by_role("row", name=re.compile("^00003"))).to_be_visible()
    assert int(tree.get_attribute("aria-rowcount") or 0) > 2_000
    assert elements(page) < MOST_ELEMENTS
    tree.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("row", name=re.compile("^turin"))).to_be_visible()
    for _ in range(30):
        page.keyboard.press("PageUp")
    assert elements(page) < MOST_ELEMENTS
    page.locator(".scroller").first.evaluate("box => { box.scrollTop = 28 * 1000 }")
    expect(page.get_by_role("row", name=re.compile("^0098[0-9]")).first).to_be_visible()
    assert elements(page) < MOST_ELEMENTS


def test_only_open_branches_are_requested_and_at_most_50(
    visit: Visits, stand_in: PageStandIn
) -> None:
    page = visit("#/topics")
    expect(page.get_by_role("row", name=re.compile("^berlin"))).to_be_visible()
    last = live(stand_in, "watch")[-1]["branches"]
    assert set(last) == {"", "/", "hostile/", "plant/"}
    page.evaluate(
        """async () => {
            // Sixty branches at once, as nobody opens them by hand.
            const tree = document.querySelector('[role=treegrid]');
            tree.focus();
        }"""
    )
    page.keyboard.press("End")
    for _ in range(4):
        for key in ("ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
            page.wait_for_timeout(150)
    assert all(len(each["branches"]) <= 50 for each in live(stand_in, "watch"))
    page.get_by_role("link", name="Now").click()
    expect(page.locator("h1")).to_have_text("Now")
    page.wait_for_timeout(200)
    assert live(stand_in, "watch")[-1]["branches"] == []


def test_1000_clients_have_few_rows_in_the_document(visit: Visits) -> None:
    page = visit("#/clients")
    table = page.get_by_role("grid", name="Clients")
    expect(table).to_have_attribute("aria-rowcount", "1128")
    assert elements(page) < MOST_ELEMENTS
    table.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("row", name=re.compile("^robot-0998"))).to_be_visible()
    active = table.get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-rowindex") == "1128"
    assert elements(page) < MOST_ELEMENTS


def test_a_result_of_1000_rows_has_few_in_the_document(visit: Visits) -> None:
    page = visit("#/tables")
    page.get_by_role("textbox", name="Query").fill("select limit 100")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("grid", name="Result")).to_have_attribute("aria-rowcount", "1001")
    assert elements(page) < MOST_ELEMENTS


COUNT_DRAWINGS = """
    window.drawings = new Map();
    const clear = CanvasRenderingContext2D.prototype.clearRect;
    CanvasRenderingContext2D.prototype.clearRect = function (...box) {
        window.drawings.set(this.canvas, (window.drawings.get(this.canvas) ?? 0) + 1);
        return clear.apply(this, box);
    };
"""


def test_a_chart_is_drawn_once_per_second_and_not_by_the_pointer(visit: Visits) -> None:
    page = visit.context().new_page()
    page.add_init_script(COUNT_DRAWINGS)
    page.goto(visit.url)
    page.wait_for_selector("body[data-live=live]")
    page.wait_for_timeout(1_200)
    page.evaluate("window.drawings.clear()")
    chart = page.get_by_role("slider").first
    box = chart.bounding_box()
    assert box is not None
    for step in range(30):
        page.mouse.move(box["x"] + 60 + step * 8, box["y"] + 60)
        page.wait_for_timeout(100)
    expect(page.locator(".chart-readout").first).to_contain_text("in ")
    counts = page.evaluate("[...window.drawings.values()]")
    assert counts
    assert max(counts) <= 5


SET_HIDDEN = """(hidden) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_hidden_tab_draws_nothing_and_watches_nothing(
    visit: Visits, stand_in: PageStandIn
) -> None:
    page = visit.context().new_page()
    page.add_init_script(COUNT_DRAWINGS)
    page.goto(f"{visit.url}#/topics")
    expect(page.get_by_role("row", name=re.compile("^berlin"))).to_be_visible()
    page.evaluate(SET_HIDDEN, True)
    page.wait_for_timeout(300)
    assert live(stand_in, "watch")[-1]["branches"] == []
    page.evaluate(SET_HIDDEN, False)
    page.wait_for_timeout(300)
    assert "plant/" in live(stand_in, "watch")[-1]["branches"]
    page.get_by_role("link", name="Now").click()
    page.wait_for_timeout(1_500)
    page.evaluate(SET_HIDDEN, True)
    page.evaluate("window.drawings.clear()")
    page.wait_for_timeout(2_300)
    assert page.evaluate("window.drawings.size") == 0
