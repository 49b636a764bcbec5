"""What the page's server answers, over real sockets and from a real broker."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from semel.broker.authority import Authority, Denied
from semel.broker.identity import HOOK, Identity, PeerInfo, identity_of
from semel.mqtt import Connect
from semel.settings import SettingsError
from semel.web.settings import WebSettings
from semel.web.sign_in import ACTIONS
from tests.web.serving import Browser, Served, served

Test = Callable[[Served, Browser], Awaitable[None]]


def run(folder: Path, test: Test, **options: object) -> None:
    async def whole() -> None:
        async with served(folder, **options) as page:  # type: ignore[arg-type]
            await test(page, await page.browser())

    asyncio.run(whole())


# --- guards ---------------------------------------------------------------------------------------


def test_every_answer_forbids_other_sources_and_frames(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        for path in ("/", "/api/session", "/page/main.js", "/nothing"):
            _, headers, _ = await browser.get(path)
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
        status, headers, content = await browser.get("/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"<script" in content

    run(tmp_path, test)


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e%2fapp.py", "app.py", "..", "nothing.js"])
def test_only_files_of_the_page_are_served(tmp_path: Path, name: str) -> None:
    async def test(page: Served, browser: Browser) -> None:
        status, _, _ = await browser.get(f"/page/{name}")
        assert status == 404
        status, _, _ = await browser.get("/page/main.js")
        assert status == 200

    run(tmp_path, test)


def test_a_request_for_another_host_is_refused(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        status, _, found = await browser.get("/api/session", Host="attacker.example:80")
        assert status == 421
        assert "[web] hostnames" in found["error"]
        for host in (f"localhost:{page.port}", "127.0.0.1", f"[::1]:{page.port}", "page.example"):
            status, _, _ = await browser.get("/api/session", Host=host)
            assert status == 200

    run(tmp_path, test, settings=WebSettings(port=0, hostnames=("page.example",)))


def test_data_needs_a_session(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        stranger = Browser(page.port)
        for path in ("clients", "violations", "tables", "history?topic=a", "retained", "names"):
            status, _, found = await stranger.get(f"/api/{path}")
            assert (status, found) == (401, {"error": "log in first"})
        status, _, _ = await stranger.post("/api/disconnect", {"client": "a"})
        assert status == 401
        status, _, found = await browser.get("/api/clients")
        assert (status, found["clients"]) == (200, [])

    run(tmp_path, test)


def test_an_action_needs_the_token_of_the_page(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        await page.broker.connect("press")
        for token in ("", "wrong"):
            status, _, _ = await browser.post(
                "/api/disconnect", {"client": "press"}, **{"X-CSRF-Token": token}
            )
            assert status == 403
        _, _, found = await browser.get("/api/clients")
        assert [each["client"] for each in found["clients"]] == ["press"]
        status, _, _ = await browser.post("/api/disconnect", {"client": "press"})
        assert status == 200
        _, _, found = await browser.get("/api/clients")
        assert found["clients"] == []

    run(tmp_path, test)


def test_the_live_stream_refuses_other_sites_and_strangers(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        for who, origin in ((browser, "http://attacker.example"), (Browser(page.port), None)):
            with pytest.raises(InvalidStatus):
                async with who.live(origin):
                    pass
        async with browser.live() as live:
            assert (await live.next("hello"))["type"] == "hello"

    run(tmp_path, test)


def test_too_many_actions_are_refused(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        found = [
            await browser.post("/api/disconnect", {"client": "nobody"}) for _ in range(ACTIONS + 1)
        ]
        assert [status for status, _, _ in found] == [400] * ACTIONS + [429]
        assert found[0][2] == {"error": "client 'nobody' is not connected"}

    run(tmp_path, test)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 100_000, b'{"client": 5}', b"x" * 300_000]
)
def test_a_request_that_is_not_one_is_a_sentence(tmp_path: Path, body: bytes) -> None:
    async def test(page: Served, browser: Browser) -> None:
        headers = {"X-CSRF-Token": browser.csrf}
        status, _, found = await browser._send("POST", "/api/disconnect", body, headers)
        assert status in (400, 413)
        assert "Traceback" not in json.dumps(found)

    run(tmp_path, test)


# --- users ----------------------------------------------------------------------------------------


class ByPassword(Authority):
    """Users prove who they are by the password `right`."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied:
        if packet.user_name is None or packet.password != b"right":
            return Denied(0x86, "wrong password")
        return identity_of(packet.client_id, peer, user_name=packet.user_name, proof=HOOK)


WITH_LOGIN = WebSettings(port=0, login=True, admins=("alice",), viewers=("victor",))


def test_users_of_the_broker_log_in_with_their_roles(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def test(page: Served, browser: Browser) -> None:
        session = await browser.begin()
        assert (session["needs_login"], session["role"], session["csrf"]) == (True, None, None)
        await page.broker.connect("press", user_name="device", password=b"right")
        for user, password, expected in (
            ("alice", "wrong", 401),
            ("nobody", "right", 401),
            ("", "right", 400),
            ("victor", "right", 200),
        ):
            status, _, _ = await browser.post("/api/login", {"user": user, "password": password})
            assert status == expected
        session = await browser.begin()
        assert (session["user"], session["role"]) == ("victor", "viewer")
        status, _, found = await browser.post("/api/disconnect", {"client": "press"})
        assert (status, found["error"]) == (403, "only an admin may do that")
        async with browser.live() as live:
            await live.send(publish={"id": 1, "topic": "a", "payload": ""})
            assert "only an admin" in (await live.next("error"))["text"]
            await live.send(subscribe="a", qos=0)
            assert (await live.next("subscribed"))["filter"] == "a"
        admin = Browser(page.port)
        await admin.post("/api/login", {"user": "alice", "password": "right"})
        await admin.begin()
        status, _, _ = await admin.post("/api/disconnect", {"client": "press"})
        assert status == 200
        await admin.post("/api/logout", {})
        status, _, _ = await admin.get("/api/clients")
        assert status == 401

    run(tmp_path, test, settings=WITH_LOGIN, authority=ByPassword(), audit=audit)
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    (done,) = [each for each in events if each["event"] == "client_disconnected"]
    assert (done["client"], done["by"]) == ("press", "alice")


def test_passwords_cannot_be_guessed_quickly(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        given = {"user": "alice", "password": "wrong"}
        found = [(await browser.post("/api/login", given))[0] for _ in range(6)]
        assert found == [401] * 5 + [429]
        right = {"user": "alice", "password": "right"}
        assert (await browser.post("/api/login", right))[0] == 429

    run(tmp_path, test, settings=WITH_LOGIN, authority=ByPassword())


def test_another_site_cannot_log_a_browser_in(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        body = json.dumps({"user": "alice", "password": "right"}).encode()
        status, _, _ = await browser._send("POST", "/api/login", body, {})
        assert status == 403

    run(tmp_path, test, settings=WITH_LOGIN, authority=ByPassword())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"host": "0.0.0.0"}, "set certfile and keyfile"),
        ({"host": "0.0.0.0", "certfile": Path("c"), "keyfile": Path("k")}, "set admins or viewers"),
        ({"host": "page.example"}, "can be reached from other machines"),
        ({"login": True}, "set admins or viewers"),
        ({"certfile": Path("c")}, "belong together"),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        WebSettings(**settings)  # type: ignore[arg-type]


def test_settings_of_a_page_for_other_machines() -> None:
    files = {"certfile": Path("c"), "keyfile": Path("k")}
    made = WebSettings(host="0.0.0.0", viewers=("*",), admins=("a",), **files)  # type: ignore[arg-type]
    assert made.needs_login
    assert [made.role_of(each) for each in ("a", "b")] == ["admin", "viewer"]
    assert not WebSettings(host="::1").needs_login
    assert WebSettings().role_of("a") is None


# --- views ----------------------------------------------------------------------------------------


def test_numbers_are_live(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        async with browser.live() as live:
            hello = await live.next("hello")
            assert isinstance(hello["history"], list)
            first = await live.next("now")
            await page.broker.connect("press")
            while (found := await live.next("now"))["clients"] != 1:
                pass
            assert found["at"] > first["at"]
            assert found["parts"][0] == {"name": "broker", "state": "ready", "text": ""}
            assert found["flow"] is None
        async with browser.live() as live:
            assert (await live.next("hello"))["history"][-1]["clients"] in (0, 1)

    run(tmp_path, test)


def test_a_broker_that_has_ended_is_reported(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        async with browser.live() as live:
            await live.next("now")
            await page.broker.administration.stop()
            while (found := await live.next("now"))["parts"][0]["state"] == "ready":
                pass
            assert found["clients"] is None
            assert found["parts"][0]["text"]
        status, _, answer = await browser.get("/api/clients")
        assert status == 503
        assert "no broker answers" in answer["error"]

    run(tmp_path, test)


def test_clients_sessions_and_subscriptions(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>‮"

    async def test(page: Served, browser: Browser) -> None:
        await page.broker.connect(hostile)
        _, _, found = await browser.get("/api/clients")
        (client,) = found["clients"]
        assert client["client"] == hostile
        assert (client["version"], client["queued_messages"]) == ("5.0", 0)
        _, headers, _ = await browser.get("/api/clients")
        assert headers["content-type"] == "application/json"
        _, _, shown = await browser.get("/api/client?client=nobody")
        assert shown == {"client": None, "subscriptions": []}

    run(tmp_path, test)


def test_a_violation_is_listed_with_bytes_and_advice(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        _, _, found = await browser.get("/api/violations")
        assert found == {"rules": [], "recent": []}
        link = await page.broker.connect("press")
        link.writer.write(b"\x36\x08\x00\x03a/b\x00\x01\x00")
        while not found["recent"]:
            _, _, found = await browser.get("/api/violations")
        (recent,) = found["recent"]
        assert recent["bytes"] == "36080003612f62000100"
        assert recent["statements"] == ["MQTT-3.3.1-4"]
        assert "semel rules QOS_NOT_3" in recent["advice"]
        (rule,) = found["rules"]
        assert (rule["rule"], rule["total"]) == ("QOS_NOT_3", 1)
        assert rule["sentence"] == recent["sentence"]

    run(tmp_path, test)


def test_a_page_publishes_and_subscribes(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        async with browser.live() as live:
            await live.send(subscribe="plant/#", qos=1)
            assert (await live.next("subscribed"))["filter"] == "plant/#"
            message = {"topic": "plant/1", "payload": "21.5", "encoding": "text", "qos": 2}
            await live.send(publish={"id": 7, "retain": False, **message})
            found = await live.next("message")
            assert (found["topic"], found["payload"]["number"]) == ("plant/1", 21.5)
            await live.send(publish={"id": 8, **message, "payload": "00ff", "encoding": "hex"})
            assert (await live.next("message"))["payload"]["hex"] == "00ff"
            await live.send(unsubscribe="plant/#")
            assert (await live.next("unsubscribed"))["filter"] == "plant/#"
            for wrong in (
                {"topic": "a/#", "payload": ""},
                {"topic": "a", "payload": "zz", "encoding": "hex"},
                {"topic": "a", "qos": 3},
            ):
                await live.send(publish={"id": 9, **wrong})
                problem = await live.next("error")
                assert (problem["about"], problem["id"]) == ("publish", 9)
                assert problem["text"]
            await live.send(subscribe="a/#/b", qos=0)
            problem = await live.next("error")
            assert (problem["about"], problem["filter"]) == ("subscribe", "a/#/b")

    run(tmp_path, test)


def test_without_a_record_and_a_lake_their_views_say_so(tmp_path: Path) -> None:
    async def test(page: Served, browser: Browser) -> None:
        session = await browser.begin()
        assert (session["has_record"], session["has_lake"]) == (False, False)
        for path in ("history?topic=a", "tables", "names"):
            status, _, found = await browser.get(f"/api/{path}")
            assert status == 404
            assert found["error"] in ("this broker records no stream", "there is no lake")
        assert session["without_record"] == "this broker records no stream"
        status, _, _ = await browser.post("/api/sql", {"query": "select 1"})
        assert status == 404

    run(tmp_path, test)
