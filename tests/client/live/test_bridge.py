"""Bridges between real brokers: semel's and Mosquitto, cut off, full, refused and restarted."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel import Client
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.client.bridge import Bridge
from semel.client.bridge_path import PATH_PROPERTY
from semel.client.bridge_plan import make_bridge_plan
from semel.client.bridge_settings import BridgeSettings
from semel.client.errors import Disconnected, Refused
from semel.client.ingest import MADE_CLIENT_ID
from semel.client.received import Received
from semel.mqtt import MQTT5, MQTT311, Connect, Properties
from semel.mqtt.reasons import SERVER_UNAVAILABLE
from semel.store.schema import Unusable
from tests.broker.serving import serving
from tests.cli.old_server import OldServer
from tests.client.bridges import bridge_of, bridging, is_ready
from tests.client.certificates import NEEDS_OPENSSL, Certificates
from tests.client.ingests import said, send, served, until, url_of
from tests.client.listening import run
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto
from tests.kills.brokers import free_port

KINDS = pytest.mark.parametrize(
    "kinds",
    [
        ("semel", "semel"),
        pytest.param(("semel", "mosquitto"), marks=NEEDS_MOSQUITTO),
        pytest.param(("mosquitto", "semel"), marks=NEEDS_MOSQUITTO),
        pytest.param(("mosquitto", "mosquitto"), marks=NEEDS_MOSQUITTO),
    ],
    ids="-".join,
)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All that is said is kept, and the interpreter is left as it was."""
    interval = sys.getswitchinterval()
    caplog.set_level(logging.INFO)
    yield
    sys.setswitchinterval(interval)


class Listener:
    """A client that collects what it gets."""

    def __init__(self, port: int, topic_filter: str = "#", version: int = MQTT5) -> None:
        self.client = Client(url_of(port), version=version)
        self.topic_filter = topic_filter
        self.found: list[Received] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Listener":
        await self.client.__aenter__()
        messages = await self.client.subscribe(self.topic_filter, qos=2)

        async def collect() -> None:
            async for message in messages:
                self.found.append(message)

        self._task = asyncio.get_running_loop().create_task(collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__(None, None, None)
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def got(self, count: int) -> list[tuple[str, str]]:
        await until(lambda: len(self.found) >= count)
        # Nothing more is on its way.
        await asyncio.sleep(0.1)
        return [(each.topic, each.payload.decode()) for each in self.found]


def brokers(stack: ExitStack, folder: Path, kinds: tuple[str, ...]) -> list[int]:
    """Brokers of these kinds. Their ports."""
    ports = []
    for number, kind in enumerate(kinds):
        place = folder / f"broker-{number}"
        place.mkdir()
        ports.append(stack.enter_context(served(kind, place)))
    return ports


# --- messages -------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("version", [None, "3.1.1"], ids=["5.0", "3.1.1"])
def test_messages_move_between_brokers_of_every_kind(
    kinds: tuple[str, str], version: str | None, tmp_path: Path
) -> None:
    async def main(local: int, remote: int) -> None:
        settings = bridge_of(
            tmp_path,
            local,
            remote,
            to_remote=("# local plant/ remote site-7/",),
            to_local=("jobs/#",),
            local_mqtt_version=version,
            remote_mqtt_version=version,
        )
        async with (
            Listener(local, "jobs/#") as at_local,
            Listener(remote, "site-7/#") as at_remote,
            bridging(settings) as work,
        ):
            await is_ready(work)
            await send(local, *((f"plant/{qos}", f"out-{qos}", qos) for qos in (0, 1, 2)))
            await send(remote, *((f"jobs/{qos}", f"in-{qos}", qos) for qos in (0, 1, 2)))
            await send(local, ("elsewhere", "not moved", 2))
            out = sorted(await at_remote.got(3))
            inward = sorted(await at_local.got(3))
            assert out == [(f"site-7/{qos}", f"out-{qos}") for qos in (0, 1, 2)]
            assert inward == [(f"jobs/{qos}", f"in-{qos}") for qos in (0, 1, 2)]
            assert {each.payload[-1:]: each.qos for each in at_remote.found} == {
                b"0": 0,
                b"1": 1,
                b"2": 2,
            }
            await until(lambda: work.status.to_remote.delivered == 2)
            status = work.status
            assert status.state == "running"
            assert status.local.is_connected
            assert (status.to_remote.moved, status.to_local.moved) == (3, 3)
        assert work.status.state == "ended"
        written = json.loads((tmp_path / "bridge" / "status.json").read_text())
        assert (written["state"], written["to_remote"]["moved"]) == ("ended", 3)
        assert (tmp_path / "bridge" / "status.json").stat().st_mode & 0o777 == 0o600

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, kinds)))


@KINDS
def test_the_same_topics_may_go_both_ways_with_5_0(kinds: tuple[str, str], tmp_path: Path) -> None:
    async def main(local: int, remote: int) -> None:
        settings = bridge_of(tmp_path, local, remote, to_remote=("t/#",), to_local=("t/#",))
        async with (
            Listener(local) as at_local,
            Listener(remote) as at_remote,
            bridging(settings) as work,
        ):
            await is_ready(work)
            await send(local, ("t/1", "a", 2))
            await send(remote, ("t/2", "b", 2))
            expected = [("t/1", "a"), ("t/2", "b")]
            assert sorted(await at_local.got(2)) == sorted(await at_remote.got(2)) == expected
            await until(lambda: work.status.to_local.delivered == 1)
            assert (work.status.to_remote.moved, work.status.to_local.moved) == (1, 1)

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, kinds)))


def test_retained_messages_are_moved_once_and_stay_retained(tmp_path: Path) -> None:
    async def main(local: int, remote: int) -> None:
        await send(local, ("plant/state", "on", 1), retain=True)
        settings = bridge_of(tmp_path, local, remote, to_remote=("plant/#",))
        async with bridging(settings) as work:
            await until(lambda: work.status.to_remote.delivered == 1)
        async with bridging(settings) as again:
            await is_ready(again)
            await send(local, ("plant/other", "", 2))
            await until(lambda: again.status.to_remote.delivered == 1)
        async with Listener(remote) as late:
            # The message of the second run was not retained.
            assert await late.got(1) == [("plant/state", "on")]
            assert late.found[0].retain

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "semel"))))


@NEEDS_MOSQUITTO
def test_properties_pass_through_a_mosquitto(tmp_path: Path) -> None:
    async def main(local: int, remote: int) -> None:
        settings = bridge_of(tmp_path, local, remote, to_remote=("ask/#",), remote_name="far")
        async with (
            Listener(remote) as at_remote,
            Client(url_of(local)) as client,
            bridging(settings) as work,
        ):
            await is_ready(work)
            properties = Properties(
                content_type="text/plain", response_topic="r", user_properties=[("k", "v")]
            )
            await client.publish("ask/1", "x", qos=2, properties=properties)
            await at_remote.got(1)
            found = at_remote.found[0].properties
            assert (found.content_type, found.response_topic) == ("text/plain", "r")
            assert found.user_properties == (("k", "v"), (PATH_PROPERTY, "site.local"))

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "mosquitto"))))


@NEEDS_MOSQUITTO
@NEEDS_OPENSSL
def test_a_bridge_speaks_tls_with_a_client_certificate_and_websocket(tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    folder = tmp_path / "certificates"
    folder.mkdir()
    made = Certificates(folder)
    tls = [
        *(f"cafile {made / 'ca.pem'}", f"certfile {made / 'server.pem'}"),
        *(f"keyfile {made / 'server.key'}", "require_certificate true"),
    ]

    async def main(secure: int, websocket: int, plain: int) -> None:
        settings = bridge_of(
            tmp_path,
            # One broker at two addresses: the messages go from one topic to another.
            f"ws://127.0.0.1:{websocket}",
            f"mqtts://localhost:{secure}",
            remote_cafile=made / "ca.pem",
            remote_cert=made / "client.pem",
            remote_key=made / "client.key",
            to_remote=("# local a/ remote b/",),
        )
        async with Listener(plain, "b/#") as there, bridging(settings) as work:
            await is_ready(work)
            await send(plain, ("a/1", "x", 2))
            assert await there.got(1) == [("b/1", "x")]

    with mosquitto(tmp_path, tls, ["protocol websockets"], []) as ports:
        run(main(*ports))


# --- loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("are_named", [True, False], ids=["named", "unnamed"])
def test_a_ring_of_three_brokers_ends_every_message(are_named: bool, tmp_path: Path) -> None:
    async def main(*ports: int) -> None:
        async with Listener(ports[0]) as first, Listener(ports[2]) as third:
            async with (
                bridging(member(0, ports)) as one,
                bridging(member(1, ports)) as two,
                bridging(member(2, ports)) as three,
            ):
                for work in (one, two, three):
                    await is_ready(work)
                await send(ports[0], ("t", "x", 2))
                assert await third.got(1) == [("t", "x")]
                looped = (one, two, three) if not are_named else (three,)
                await until(lambda: sum(each.status.to_remote.looped for each in looped) == 1)
                await asyncio.sleep(0.2)
                assert sum(each.status.to_remote.looped for each in (one, two, three)) == 1
            # Without names the message comes back once, and goes no further.
            assert len(first.found) == (1 if are_named else 2)
            assert len(third.found) == 1

    def member(number: int, ports: tuple[int, ...]) -> BridgeSettings:
        names = {"local_name": "abc"[number], "remote_name": "abca"[number + 1]}
        return bridge_of(
            tmp_path,
            ports[number],
            ports[(number + 1) % 3],
            name=f"bridge-{number}",
            data=tmp_path / f"bridge-{number}",
            to_remote=("#",),
            **(names if are_named else {}),
        )

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "semel", "semel"))))


@pytest.mark.parametrize("side", ["local", "remote"])
def test_a_broker_that_refuses_5_0_is_used_with_3_1_1_unless_the_rules_would_loop(
    side: str, tmp_path: Path
) -> None:
    async def moves(local: int, remote: int) -> None:
        settings = bridge_of(tmp_path, local, remote, to_remote=("a/#",), to_local=("b/#",))
        async with Listener(remote, version=MQTT311) as at_remote, bridging(settings) as work:
            await is_ready(work)
            assert getattr(work.plan, side).connect_parameters.version == MQTT311
            async with Client(url_of(local), version=MQTT311) as client:
                await client.publish("a/1", "x", qos=2)
            assert await at_remote.got(1) == [("a/1", "x")]

    async def refuses(local: int, remote: int) -> None:
        settings = bridge_of(
            *(tmp_path, local, remote),
            data=tmp_path / "other",
            to_remote=("a/#",),
            to_local=("a/#",),
        )
        work = Bridge(make_bridge_plan(settings))
        with pytest.raises(Disconnected, match=r"refused MQTT 5\.0\. With 3\.1\.1 the bridge su"):
            await work.run()
        assert work.failed_side == side
        assert work.status.state == "failed"

    with ExitStack() as stack:
        ports = brokers(stack, tmp_path, ("semel", "semel"))
        index = ("local", "remote").index(side)
        old = stack.enter_context(OldServer(ports[index]))
        ports[index] = old.port
        # Not `run`: the sockets of the old server are in this process.
        asyncio.run(moves(*ports))
        asyncio.run(refuses(*ports))


# --- outages --------------------------------------------------------------------------------------


def test_a_remote_broker_that_is_away_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()

    async def is_full(work: Bridge, start: int) -> None:
        await until(lambda: bool(work._sides) and work.status.local.is_connected)
        await until(lambda: work._sides[0].core.subscriptions.has_no_open_request)
        await send(local, *(("plant/1", str(n), 2) for n in range(start, start + 10)))
        await until(lambda: work.status.to_remote.held > 0)
        assert work.status.to_remote.queued == 5
        assert not work.status.remote.is_connected
        assert "refused" in (work.status.remote.last_error or "")

    async def main() -> None:
        settings = bridge_of(tmp_path, local, port, to_remote=("plant/#",), maximum_queued=5)
        for start in (0, 10):
            async with bridging(settings) as work:
                await is_full(work, start)
        with serving(BrokerSettings(port=port, sys_interval=0.0)):
            async with Listener(port) as at_remote, bridging(settings) as work:
                expected = [("plant/1", str(number)) for number in range(20)]
                assert await at_remote.got(20) == expected

    with ExitStack() as stack:
        (local,) = brokers(stack, tmp_path, ("semel",))
        run(main())


class ClosedForBridges(Authority):
    """Refuses clients whose identifier a bridge has made, until it is open."""

    is_open = False

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        if MADE_CLIENT_ID.fullmatch(packet.client_id) and not self.is_open:
            return Denied(SERVER_UNAVAILABLE)
        return super().connect(packet, peer)


def test_too_much_that_waits_in_memory_ends_the_connection_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = ClosedForBridges()

    async def main(local: int, remote: int) -> None:
        settings = bridge_of(
            *(tmp_path, local, remote),
            to_remote=("plant/#",),
            maximum_queued=1,
            maximum_held_bytes=2_000,
            local_mqtt_version="3.1.1",
        )
        async with Listener(remote) as at_remote, bridging(settings) as work:
            await until(lambda: bool(work._sides) and work.status.local.is_connected)
            await until(lambda: work._sides[0].core.subscriptions.has_no_open_request)
            await send(local, *(("plant/1", f"{n}{'x' * 1_000}", 2) for n in range(10)))
            await said(caplog, "more messages wait for room in the queue of the other broker")
            assert work._core is not None
            assert work._core.to_remote.held_bytes < 12_000
            authority.is_open = True
            found = await at_remote.got(10)
            assert [payload[:1] for _, payload in found] == list("0123456789")

    with ExitStack() as stack:
        (local,) = brokers(stack, tmp_path, ("semel",))
        remote = stack.enter_context(serving(authority=authority))
        run(main(local, remote.address[1]))


def test_changed_rules_are_applied_to_the_sessions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(local: int, remote: int) -> None:
        async with bridging(bridge_of(tmp_path, local, remote, to_remote=("a/#", "b/#"))) as work:
            await is_ready(work)
        async with (
            Listener(remote) as at_remote,
            bridging(bridge_of(tmp_path, local, remote, to_remote=("b/#", "c/#"))) as work,
        ):
            await is_ready(work)
            await said(caplog, "bridge site, local: unsubscribed from a/#")
            await send(local, ("a/1", "", 2), ("b/1", "", 2), ("c/1", "", 2))
            assert [topic for topic, _ in await at_remote.got(2)] == ["b/1", "c/1"]

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "semel"))))


# --- refusals -------------------------------------------------------------------------------------


def failing(settings: BridgeSettings, kind: type[Exception], words: str) -> Bridge:
    """A bridge that ends by itself. `words` are in its error."""

    made: list[Bridge] = []

    async def main() -> None:
        made.append(Bridge(make_bridge_plan(settings)))
        with pytest.raises(kind, match=words):
            await made[0].run()

    run(main())
    return made[0]


@NEEDS_MOSQUITTO
def test_a_refused_user_ends_the_bridge_and_its_status_says_why(tmp_path: Path) -> None:
    with (
        served("semel", tmp_path) as local,
        mosquitto(tmp_path, ["allow_anonymous false"]) as (remote,),
    ):
        settings = bridge_of(tmp_path, local, remote, to_remote=("a",))
        work = failing(settings, Refused, "not authorized")
    assert work.failed_side == "remote"
    written = json.loads((tmp_path / "bridge" / "status.json").read_text())
    assert written["state"] == "failed"
    assert "not authorized" in written["remote"]["last_error"]
    assert written["local"]["last_error"] is None


@NEEDS_MOSQUITTO
def test_a_broker_that_accepts_only_a_lower_qos_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with served("semel", tmp_path) as local, mosquitto(tmp_path, ["max_qos 1"]) as (remote,):
        settings = bridge_of(tmp_path, local, remote, to_remote=("a",))
        work = failing(settings, Disconnected, "accepts QoS 1 at most: add `qos 1` to to_remote")
        assert work.failed_side == "remote"

        async def main() -> None:
            lower = bridge_of(tmp_path, local, remote, to_remote=("a qos 1",))
            async with Listener(remote) as at_remote, bridging(lower) as work:
                await is_ready(work)
                await send(local, ("a", "x", 2))
                assert await at_remote.got(1) == [("a", "x")]

        run(main())


def test_a_store_of_other_client_ids_or_of_a_client_is_refused(tmp_path: Path) -> None:
    async def first(local: int, remote: int) -> None:
        settings = bridge_of(tmp_path, local, remote, to_remote=("a",), local_client_id="one")
        async with bridging(settings) as work:
            await is_ready(work)

    async def client(local: int) -> None:
        async with Client(url_of(local), client_id="c", outbox=tmp_path / "outbox"):
            pass

    with ExitStack() as stack:
        local, remote = brokers(stack, tmp_path, ("semel", "semel"))
        run(first(local, remote))
        settings = bridge_of(tmp_path, local, remote, to_remote=("a",), local_client_id="two")
        failing(settings, Unusable, "belongs to the client 'one'")
        assert json.loads((tmp_path / "bridge" / "status.json").read_text())["state"] == "failed"
        run(client(local))
        settings = bridge_of(tmp_path, local, remote, to_remote=("a",), data=tmp_path / "outbox")
        failing(settings, Unusable, "is the store of a client, not of a bridge")


def test_a_session_that_the_store_does_not_know_is_not_discarded_silently(tmp_path: Path) -> None:
    async def main(local: int, remote: int) -> None:
        known = bridge_of(tmp_path, local, remote, to_remote=("a",), local_client_id="one")
        async with bridging(known) as work:
            await is_ready(work)
        await send(local, ("a", "queued", 2))
        other = bridge_of(
            *(tmp_path, local, remote),
            data=tmp_path / "new",
            to_remote=("a",),
            local_client_id="one",
        )
        with pytest.raises(Disconnected, match="no state of it") as caught:
            async with bridging(other) as work:
                await until(lambda: work.status.state == "failed")
        assert caught.value.is_final
        async with bridging(other, start_clean=True) as work:
            await is_ready(work)
            assert work.status.to_remote.moved == 0

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "semel"))))


def wait_until_written(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and json.loads(path.read_text())["local"]["is_connected"]


def test_a_status_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.client.bridge.STATUS_SECONDS", 0.01)

    async def main(local: int, remote: int) -> None:
        settings = bridge_of(tmp_path, local, remote, to_remote=("a/#",))
        async with bridging(settings) as work:
            await is_ready(work)
            path = tmp_path / "bridge" / "status.json"
            await until(wait_until_written(path))
            path.with_suffix(".tmp").mkdir()
            for _ in range(3):
                await send(local, ("a/1", "x", 1))
                await asyncio.sleep(0.05)
            await said(caplog, "the status file cannot be written")
            path.with_suffix(".tmp").rmdir()
            await until(lambda: json.loads(path.read_text())["to_remote"]["delivered"] == 3)
        assert sum("status file" in line for line in caplog.messages) == 1

    with ExitStack() as stack:
        run(main(*brokers(stack, tmp_path, ("semel", "semel"))))
