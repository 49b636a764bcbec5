"""A lost connection is shown at once, and comes back by itself."""

import re

from tests.web.page_browser import Visits, expect
from tests.web.page_server import PageStandIn

LOST = ("WebSocket connection", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION", "Failed to load resource")


def test_a_lost_connection_shows_a_banner_and_comes_back(
    visit: Visits, stand_in: PageStandIn
) -> None:
    visit.expected = LOST
    page = visit()
    expect(page.locator("#banner")).to_be_hidden()
    stand_in.cut()
    expect(page.locator("#banner")).to_contain_text("The connection to semel is lost.")
    expect(page.locator("#banner")).to_contain_text(re.compile(r"What you see is of \d\d:\d\d"))
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("body")).to_have_attribute("data-live", "lost")
    expect(page.get_by_text("Not live")).to_be_visible()
    # What is old is pale.
    assert "grayscale" in page.evaluate("getComputedStyle(document.querySelector('main')).filter")
    stand_in.is_up = True
    expect(page.locator("#banner")).to_be_hidden(timeout=20_000)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_the_user_may_try_at_once(visit: Visits, stand_in: PageStandIn) -> None:
    visit.expected = LOST
    page = visit()
    stand_in.cut()
    # After some attempts the next one is seconds away.
    expect(page.locator("#banner-wait")).to_have_text(re.compile("in [3-9] s"), timeout=30_000)
    button = page.get_by_role("button", name="Try now")
    stand_in.is_up = True
    button.click()
    expect(page.locator("#banner")).to_be_hidden(timeout=2_500)


def test_a_connection_without_samples_is_not_live(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit()
    stand_in.is_silent = True
    expect(page.locator("body")).to_have_attribute("data-live", "lost", timeout=12_000)
    stand_in.is_silent = False
    expect(page.locator("body")).to_have_attribute("data-live", "live", timeout=20_000)


def test_what_was_watched_and_subscribed_is_repeated(visit: Visits, stand_in: PageStandIn) -> None:
    visit.expected = LOST
    page = visit("#/messages")
    page.get_by_label("Topic Filter").fill("plant/#")
    page.get_by_role("button", name="Subscribe").click()
    filters = page.get_by_role("list", name="Subscriptions of this page")
    expect(filters).to_contain_text("QoS 0")
    stand_in.cut()
    expect(filters).to_contain_text("waiting…")
    stand_in.requests.clear()
    stand_in.is_up = True
    expect(filters).to_contain_text("QoS 0", timeout=20_000)
    assert ("live", {"subscribe": "plant/#", "qos": 0}) in stand_in.requests


def test_a_session_that_has_ended_leads_to_the_form(visit: Visits, stand_in: PageStandIn) -> None:
    visit.expected = LOST
    page = visit()
    stand_in.cut()
    stand_in.needs_login = True
    stand_in.is_up = True
    expect(page.get_by_role("form", name="Log in")).to_be_visible(timeout=20_000)
    expect(page.get_by_text("The way of a message")).to_have_count(0)


def test_an_update_of_the_server_is_announced(visit: Visits, stand_in: PageStandIn) -> None:
    visit.expected = LOST
    page = visit()
    stand_in.cut()
    stand_in.version = "1.0"
    stand_in.is_up = True
    expect(page.locator("#notices")).to_contain_text("semel was updated.", timeout=20_000)


def test_a_page_without_a_server_says_so(visit: Visits, stand_in: PageStandIn) -> None:
    visit.expected = LOST
    page = visit.context().new_page()
    page.route("**/api/**", lambda route: route.abort())
    page.goto(visit.url)
    expect(page.locator("#banner")).to_contain_text("The server does not answer.")
