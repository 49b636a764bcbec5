"""Text that devices choose is shown as text, whole or cut, and never does anything."""

import re

from tests.web.page_browser import VIEWS, Page, Visits, expect
from tests.web.page_server import PageStandIn

# What an attack would leave in the document: elements that the page itself never makes.
INJECTED = "img[src=x], main script, main b > b, main i[onerror], main iframe, main object"
HIDDEN = re.compile(r"[\u0000-\u0008\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def check_text(page: Page) -> None:
    """Nothing was injected, and no hidden character is in the document."""
    assert page.locator(INJECTED).count() == 0
    assert not HIDDEN.search(page.evaluate("document.body.textContent"))
    names = "[...document.querySelectorAll('[aria-label],[title]')]"
    labels = page.evaluate(f"{names}.map(e => (e.ariaLabel ?? '') + e.title).join(' ')")
    assert not HIDDEN.search(labels)


def test_hostile_topics_and_payloads_are_text(visit: Visits) -> None:
    page = visit("#/topics", height=1400)
    tree = page.get_by_role("treegrid")
    expect(tree).to_contain_text("<img src=x onerror=alert(1)>")
    expect(tree).to_contain_text("<script>alert(2)<")
    expect(tree).to_contain_text(r"safe\u202egnp.exe")
    expect(tree).to_contain_text(r"nul\x00bell\x07")
    expect(tree).to_contain_text(r"zero\u200bwidth")
    expect(tree).to_contain_text("👩‍🔧 wrench 🔧")
    # A level of 65,000 characters is cut.
    expect(tree).to_contain_text("… (65,000 characters)")
    check_text(page)
    rows = tree.get_by_role("row", level=2)
    for index in range(1, 11):
        rows.nth(index).click()
        expect(page.get_by_role("complementary", name="Topic").locator("h2")).not_to_be_empty()
        expect(page.locator("pre.payload")).to_be_visible()
        check_text(page)


def test_a_number_that_javascript_would_round_keeps_its_digits(visit: Visits) -> None:
    page = visit("#/topics")
    json = b'{"a": 1, "big": 12345678901234567890, "a": 2}'
    shown = page.evaluate(
        """async (text) => {
            const { prettyJson } = await import('/page/payload.js');
            const element = document.createElement('pre');
            element.append(prettyJson(text));
            return element.textContent;
        }""",
        json.decode(),
    )
    assert shown == '{\n  "a": 1,\n  "big": 12345678901234567890,\n  "a": 2\n}'


def test_hostile_clients_are_text_and_their_details_open(visit: Visits) -> None:
    page = visit("#/clients")
    table = page.get_by_role("grid", name="Clients")
    expect(table).to_contain_text("<img src=x onerror=alert(3)>")
    expect(table).to_contain_text(r"admin\u202etneilc")
    expect(table).to_contain_text(r"\x1b[31mred")
    check_text(page)
    for index in range(1, 8):
        table.get_by_role("row").nth(index).click()
        detail = page.get_by_role("complementary", name="Client")
        expect(detail).to_contain_text("<b>bold</b>/#")
        check_text(page)
    page.get_by_role("button", name="Disconnect…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()


def test_hostile_messages_rows_and_violations_are_text(visit: Visits) -> None:
    page = visit("#/messages")
    page.get_by_role("button", name="Subscribe").click()
    table = page.get_by_role("grid", name="Messages")
    expect(table).to_contain_text("hostile/<script>")
    table.get_by_role("row").nth(3).click()
    check_text(page)
    page.get_by_role("link", name="Tables").click()
    page.get_by_role("textbox", name="Query").fill("select limit 100")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("grid", name="Result")).to_contain_text(r"zero\u200bwidth")
    check_text(page)
    page.get_by_role("link", name="Violations").click()
    page.locator("summary").nth(1).click()
    expect(page.locator("details").nth(1)).to_contain_text("<img src=x onerror=alert(3)>")
    check_text(page)


def test_a_hostile_address_opens_a_view(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/topics/%E0%A4%A")
    expect(page.get_by_role("treegrid")).to_be_visible()
    for route in ("#/topics/<img src=x onerror=alert(1)>", "#/clients/%00", "#/__proto__/x", "#//"):
        page.goto(stand_in.url + route)
        expect(page.locator("h1")).not_to_be_empty()
        check_text(page)


def test_nothing_but_json_is_understood(visit: Visits, stand_in: PageStandIn) -> None:
    stand_in.change_sample = lambda sample: {
        **sample,
        "parts": [{"name": "<b>x</b>", "state": "odd", "text": 5}, None, 7],
        "dropped": {"<i>reason</i>": 3, "none": None},
        "clients": "many",
        "flow": {"stream": 5, "received": None, "recorded": {}, "sealed": {"lag_rows": "x"}},
        "cpu": {"a": 1},
    }
    page = visit()
    expect(page.get_by_role("list", name="Parts of semel")).to_contain_text("<b>x</b>")
    expect(page.locator("dl.figures .figure-value").first).to_have_text("–")
    check_text(page)
    for view in VIEWS:
        page.goto(f"{stand_in.url}#/{view}")
        expect(page.locator("h1")).to_have_text(view.capitalize())
