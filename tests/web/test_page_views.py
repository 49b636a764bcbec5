"""Each view of the page shows what the server says, and does what its buttons promise."""

import json
import re

from tests.web.page_browser import Page, Visits, expect
from tests.web.page_server import PageStandIn


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


# --- now ------------------------------------------------------------------------------------------


def test_now_shows_the_way_of_a_message_with_counts_rates_and_lags(visit: Visits) -> None:
    page = visit()
    way = page.get_by_role("img", name=re.compile("The way of a message"))
    expect(way).to_have_attribute("aria-label", re.compile(r"Received: [\d,]+, [\d,]+/s\."))
    label = way.get_attribute("aria-label") or ""
    for part in ("On disk:", "Sealed:", "Landed:", "lag ", " ms", " rows"):
        assert part in label
    expect(page.get_by_role("list", name="Parts of semel")).to_contain_text("broker ready")
    expect(page.get_by_role("list", name="Parts of semel")).to_contain_text("landing ready")


def test_now_shows_a_landing_that_does_not_run(visit: Visits, stand_in: PageStandIn) -> None:
    stand_in.landed = False
    page = visit()
    expect(page.locator("svg.flow")).to_contain_text("not running")
    expect(page.get_by_role("list", name="Parts of semel")).to_contain_text("landing starting")


def test_now_shows_figures_charts_and_drops(visit: Visits) -> None:
    page = visit()
    for name in ("Messages per second", "Bytes per second", "Latency", "Clients", "Queues"):
        chart = page.get_by_role("slider", name=f"{name}, last 5 minutes")
        expect(chart).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d:\d\d: .* from "))
    expect(page.get_by_role("row", name=re.compile("queue full"))).to_contain_text("1,420")
    expect(page.locator("dl.figures")).to_contain_text("1,204")
    page.get_by_role("link", name="37").click()
    expect(page).to_have_url(re.compile("#/violations$"))


def test_a_missing_field_is_an_en_dash_and_no_exception(
    visit: Visits, stand_in: PageStandIn
) -> None:
    stand_in.change_sample = lambda sample: {"type": "now", "at": sample["at"]}
    page = visit()
    expect(page.locator("dl.figures .figure-value").first).to_have_text("–")
    expect(page.locator(".resources")).to_contain_text("–")


# --- topics ---------------------------------------------------------------------------------------


def test_topics_open_down_to_a_value_its_payload_and_its_last_hour(visit: Visits) -> None:
    # High enough for all rows: those out of sight are not in the document.
    page = visit("#/topics", height=2400)
    for name in ("berlin", "line-1", "press-1"):
        page.get_by_role("row", name=re.compile(rf"^{name}\b")).locator(".twisty").click()
    row = page.get_by_role("row", name=re.compile("^pressure"))
    expect(row).to_contain_text('{"bar":')
    row.click()
    detail = page.get_by_role("complementary", name="Topic")
    expect(detail.get_by_role("heading", level=2)).to_have_text(
        "plant/berlin/line-1/press-1/pressure"
    )
    expect(detail.locator(".json-key").first).to_have_text('"bar"')
    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator("pre")).to_contain_text("7b 22 62 61 72")
    expect(detail.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("bar "))
    expect(detail.get_by_role("grid").get_by_role("row").nth(3)).to_contain_text("press-0007")
    assert page.url.endswith("#/topics/plant%2Fberlin%2Fline-1%2Fpress-1%2Fpressure")
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^pressure"))).to_be_visible()
    detail.get_by_role("button", name="Close").click()
    expect(page).to_have_url(re.compile("#/topics$"))


def test_a_search_lists_topics_by_their_full_name(visit: Visits) -> None:
    page = visit("#/topics")
    page.get_by_label("Search topics").fill("LINE-7/oven-3")
    expect(page.get_by_role("status").filter(has_text="found")).to_have_text("20 found")
    row = page.get_by_role("row").filter(has_text="plant/turin/line-7/oven-3/temp")
    row.click()
    expect(page.locator("pre.number")).to_have_text(re.compile(r"^\d+\.\d+$"))
    page.get_by_label("Search topics").fill("")
    expect(page.get_by_role("row", name=re.compile("^meters"))).to_be_visible()


def test_without_a_record_the_topics_say_why(visit: Visits, stand_in: PageStandIn) -> None:
    stand_in.without_record = "topics of the record need pyarrow: pip install 'semel[sql]'"
    page = visit("#/topics")
    expect(page.locator("main")).to_contain_text(stand_in.without_record)
    expect(page.locator("main")).not_to_contain_text("Loading")


# --- clients --------------------------------------------------------------------------------------


def test_clients_are_filtered_sorted_and_shown_with_their_subscriptions(visit: Visits) -> None:
    page = visit("#/clients")
    table = page.get_by_role("grid", name="Clients")
    expect(page.get_by_text("1,127 clients")).to_be_visible()
    page.get_by_label("Filter clients").fill("press-000")
    expect(page.get_by_text("3 of 1,127 clients")).to_be_visible()
    table.get_by_role("button", name="Queued").click()
    header = table.get_by_role("columnheader", name="Queued")
    expect(header).to_have_attribute("aria-sort", "descending")
    table.get_by_role("button", name="Queued").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(table.get_by_role("row").nth(1)).to_contain_text("press-0004")
    table.get_by_role("row", name=re.compile("^press-0004")).click()
    detail = page.get_by_role("complementary", name="Client")
    expect(detail).to_contain_text("commands/press-0004/#")
    expect(detail).to_contain_text("MQTT")


def test_a_session_without_a_connection_is_listed_and_cannot_be_disconnected(
    visit: Visits,
) -> None:
    page = visit("#/clients")
    page.get_by_label("Which clients").select_option("Not connected")
    page.get_by_role("row", name=re.compile("^handheld-003")).click()
    detail = page.get_by_role("complementary", name="Client")
    expect(detail).to_contain_text("not connected")
    expect(detail.get_by_role("button", name="Disconnect…")).to_have_count(0)


def test_disconnect_asks_once(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/clients/press-0004")
    page.get_by_role("button", name="Disconnect…").click()
    dialog = page.get_by_role("dialog", name="Disconnect this client?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert not [path for path, _ in stand_in.requests if path == "/api/disconnect"]
    page.get_by_role("button", name="Disconnect…").click()
    dialog.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("The client was disconnected.")).to_be_visible()
    assert ("/api/disconnect", {"client": "press-0004"}) in stand_in.requests


def test_a_viewer_sees_no_action_of_an_admin(visit: Visits, stand_in: PageStandIn) -> None:
    stand_in.role = "viewer"
    page = visit("#/clients/press-0004")
    expect(page.get_by_role("complementary", name="Client")).to_contain_text("plant/+/alarm")
    expect(page.get_by_role("button", name="Disconnect…")).to_have_count(0)
    page.goto(f"{stand_in.url}#/messages")
    expect(page.get_by_role("button", name="Subscribe")).to_be_visible()
    expect(page.get_by_role("button", name="Publish")).to_have_count(0)


# --- tables ---------------------------------------------------------------------------------------


def test_tables_list_rows_lag_and_dead_letters(visit: Visits) -> None:
    page = visit("#/tables")
    row = page.get_by_role("row", name=re.compile("^temperature 16,804,110"))
    expect(row).to_contain_text("2,310 rows")
    letters = page.get_by_role("table", name="Dead letters by reason")
    expect(letters).to_contain_text("not a number")
    page.get_by_role("button", name="machine_state").click()
    expect(page.get_by_role("textbox", name="Query")).to_have_value(
        "select * from machine_state limit 100"
    )
    expect(page.get_by_role("grid", name="Result")).to_have_attribute("aria-rowcount", "1001")


def test_a_query_runs_by_ctrl_enter_and_its_chart_follows_the_columns(visit: Visits) -> None:
    page = visit("#/tables")
    query = page.get_by_role("textbox", name="Query")
    query.press("Control+Enter")
    expect(page.locator(".bar-chart")).to_contain_text("98,000")
    page.get_by_role("button", name="Table", exact=True).click()
    expect(page.get_by_role("grid", name="Result")).to_contain_text("98000")
    query.fill("select minute")
    query.press("Control+Enter")
    chart = page.get_by_role("slider", name="Result of the query")
    expect(chart).to_have_attribute("aria-valuetext", re.compile("average .* highest "))
    visit.expected = ("400 (Bad Request)",)
    query.fill("an error")
    query.press("Control+Enter")
    expect(page.locator("pre.problem")).to_contain_text("Parser Error")


def test_names_are_completed_and_queries_are_remembered(visit: Visits) -> None:
    page = visit("#/tables")
    query = page.get_by_role("textbox", name="Query")
    query.fill("")
    query.press_sequentially("select * from mess")
    expect(page.get_by_role("option", name=re.compile("messages_now"))).to_be_visible()
    query.press("Tab")
    expect(query).to_have_value("select * from messages_now")
    expect(query).to_be_focused()
    query.press("Control+Enter")
    expect(page.locator(".bar-chart")).to_be_visible()
    page.reload()
    query.press("Alt+ArrowUp")
    expect(query).to_have_value("select * from messages_now")
    stored = json.loads(page.evaluate("localStorage.getItem('semel-sql-history')"))
    assert stored == ["select * from messages_now"]


def test_a_result_is_exported(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/tables")
    page.get_by_role("textbox", name="Query").press("Control+Enter")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as CSV").click()
    assert download.value.suggested_filename == "semel.csv"
    path, given = stand_in.requests[-1]
    assert (path, given["format"]) == ("/api/export", "csv")


# --- violations -----------------------------------------------------------------------------------


def test_violations_show_the_rule_its_bytes_and_what_to_do(visit: Visits) -> None:
    page = visit("#/violations")
    entry = page.locator("details").first
    entry.locator("summary").click()
    for text in ("MQTT-3.3.2-2", "contains no wildcard", "30 16 00 09", "What to do", "library"):
        expect(entry).to_contain_text(text)
    page.get_by_role("button", name="PACKET_ID_NOT_ZERO").click()
    expect(page.locator("details")).to_have_count(2)
    page.locator("details").first.locator("summary").click()
    expect(page.locator("details").first).to_contain_text("MQTT-2.2.1-4")


# --- messages -------------------------------------------------------------------------------------


def test_a_message_is_published(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/messages")
    page.get_by_label("Topic Name").fill("plant/1/temp")
    page.get_by_role("textbox", name="Payload").fill("0a ff")
    page.get_by_label("Payload is").select_option("hex")
    page.get_by_label("QoS").first.select_option("2")
    page.get_by_label("Retain").check()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published.")).to_be_visible()
    sent = [message["publish"] for path, message in stand_in.requests if "publish" in message]
    assert sent == [
        {
            "id": 1,
            "topic": "plant/1/temp",
            "payload": "0aff",
            "encoding": "hex",
            "qos": 2,
            "retain": True,
        }
    ]
    page.get_by_role("textbox", name="Payload").fill("0a f")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("The payload is not hex.")).to_be_visible()


def test_subscriptions_receive_and_end(visit: Visits, stand_in: PageStandIn) -> None:
    page = visit("#/messages")
    page.get_by_label("Topic Filter").fill("plant/#")
    page.get_by_role("button", name="Subscribe").click()
    filters = page.get_by_role("list", name="Subscriptions of this page")
    expect(filters).to_contain_text("plant/#")
    row = page.get_by_role("row").filter(has_text="/leading/slash").first
    expect(row).to_be_visible()
    row.click()
    expect(page.locator(".opened-message h3")).to_have_text("/leading/slash")
    # Another view does not end it.
    page.get_by_role("link", name="Now").click()
    page.get_by_role("link", name="Messages").click()
    expect(filters).to_contain_text("plant/#")
    page.get_by_role("button", name="Unsubscribe").click()
    expect(filters).to_have_count(0)
    assert ("live", {"unsubscribe": "plant/#"}) in stand_in.requests


def test_a_refused_filter_is_reported_and_forgotten(visit: Visits) -> None:
    page = visit("#/messages")
    page.get_by_label("Topic Filter").fill("bad/#/filter")
    page.get_by_role("button", name="Subscribe").click()
    expect(page.locator("#notices")).to_contain_text("a filter has # only at its end")
    expect(page.get_by_role("list", name="Subscriptions of this page")).to_have_count(0)


# --- the frame ------------------------------------------------------------------------------------


def test_back_and_reload_keep_the_view(visit: Visits) -> None:
    page = visit("#/tables")
    page.get_by_role("link", name="Violations").click()
    assert heading(page) == "Violations"
    assert page.title() == "Violations · semel"
    page.go_back()
    expect(page.locator("h1")).to_have_text("Tables")
    page.reload()
    expect(page.locator("h1")).to_have_text("Tables")
    page.goto(f"{page.url.partition('#')[0]}#/nothing")
    expect(page.locator("h1")).to_have_text("Now")


def test_who_must_log_in_sees_a_form_and_nothing_else(visit: Visits, stand_in: PageStandIn) -> None:
    stand_in.needs_login = True
    visit.expected = ("401 (Unauthorized)",)
    page = visit("#/clients")
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.get_by_label("User").fill("ann")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert").filter(has_text="wrong")).to_be_visible()
    page.get_by_label("Password").fill("right")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("1,127 clients")).to_be_visible()
    expect(page.get_by_text("ann (admin)")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("form", name="Log in")).to_be_visible()
    expect(page.get_by_text("press-0004")).to_have_count(0)
