"""The client and servers of other people: semel's own, Mosquitto, amqtt and aedes.

What each can is asked of it by the same tests: QoS 0, 1 and 2 both ways, retained messages, wills,
the end of a subscription, a session that is resumed, a client id that is taken over. A server is in
a process of its own; where a program is missing, its tests are skipped and say so.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from semel.client import Client, Disconnected, Messages, Received, Refused
from semel.client.tls import make_context
from semel.mqtt import MQTT5, MQTT311, Properties, Subscription, Will
from tests.broker.broker_process import Process
from tests.client.certificates import Certificates
from tests.client.listening import run
from tests.client.mosquitto import mosquitto, wait_for
from tests.client.servers import QUICK, start
from tests.kills.brokers import free_port

AEDES = Path(__file__).parent.parent / "aedes"
# Where `npm ci` was run beforehand, if it was: a folder with node_modules in it.
AEDES_FOLDER = "SEMEL_TEST_AEDES"
AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


@dataclass
class Peer:
    """A server that listens; `port` is that of plain TCP, 0 if the address is another."""

    name: str
    url: str
    versions: tuple[int, ...]
    port: int
    tls: ssl.SSLContext | None = None

    def client(self, name: str, version: int, *, at: str | None = None, **more: object) -> Client:
        url = at or self.url
        return Client(url, client_id=name, version=version, tls=self.tls, **more)  # type: ignore[arg-type]


# --- the servers ----------------------------------------------------------------------------------


@contextmanager
def running_amqtt(folder: Path) -> Iterator[int]:
    port = free_port()
    settings = folder / "amqtt.yaml"
    settings.write_text(AMQTT.format(port=port))
    log = folder / "amqtt.log"
    start_it = "from amqtt.scripts.broker_script import main; main()"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", start_it, "-c", str(settings)],
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(port, process, log)
        yield port
    finally:
        process.kill()
        process.wait()


def installed_aedes(folder: Path) -> Path:
    """A folder with aedes in it. What it takes is said where it is not there."""
    if AEDES_FOLDER in os.environ:
        return Path(os.environ[AEDES_FOLDER])
    for each in AEDES.iterdir():
        shutil.copy(each, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as problem:
        pytest.skip(f"npm cannot install aedes: {problem}")
    return folder


@contextmanager
def running_aedes(folder: Path) -> Iterator[int]:
    process = subprocess.Popen(
        ["node", "server.mjs"], cwd=installed_aedes(folder), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


KINDS = ("semel", "mosquitto", "amqtt", "aedes")
# The same Mosquitto by other ways than TCP.
WAYS = ("mqtts", "ws", "wss", "unix")


@pytest.fixture(scope="module", params=KINDS)
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("peer")
    both = (MQTT311, MQTT5)
    if request.param == "semel":
        with Process() as process:
            port = process.address[1]
            yield Peer(request.param, f"mqtt://127.0.0.1:{port}", both, port)
    elif request.param == "mosquitto":
        if shutil.which("mosquitto") is None:
            pytest.skip("not installed: mosquitto")
        with mosquitto(folder, []) as (port,):
            yield Peer(request.param, f"mqtt://127.0.0.1:{port}", both, port)
    elif request.param == "amqtt":
        if find_spec("amqtt") is None:
            pytest.skip("not installed: amqtt")
        with running_amqtt(folder) as port:
            yield Peer(request.param, f"mqtt://127.0.0.1:{port}", (MQTT311,), port)
    else:
        missing = [each for each in ("node", "npm") if shutil.which(each) is None]
        if missing and AEDES_FOLDER not in os.environ:
            pytest.skip(f"not installed: {', '.join(missing)}")
        with running_aedes(folder) as port:
            yield Peer(request.param, f"mqtt://127.0.0.1:{port}", (MQTT311,), port)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    missing = [each for each in ("mosquitto", "openssl") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("way")
    files = Certificates(tmp_path_factory.mktemp("certificates"))
    secure = [f"certfile {files / 'server.pem'}", f"keyfile {files / 'server.key'}"]
    scheme = request.param
    lines = {
        "mqtts": secure,
        "ws": ["protocol websockets"],
        "wss": ["protocol websockets", *secure],
        "unix": [f"unix {folder / 'socket'}"],
    }[scheme]
    with mosquitto(folder, lines, []) as (port, _):
        tls = make_context(cafile=files / "ca.pem") if scheme in ("mqtts", "wss") else None
        url = f"unix:{folder / 'socket'}" if scheme == "unix" else f"{scheme}://localhost:{port}"
        yield Peer(scheme, url, (MQTT311, MQTT5), 0, tls)


@asynccontextmanager
async def brittle(port: int) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """An address that leads to `port`, and what cuts every connection that goes by it."""
    writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, other_writer))
        await asyncio.gather(carry(reader, other_writer), carry(other_reader, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(start(join(reader, writer)))

    def cut() -> None:
        for writer in writers:
            writer.transport.abort()
        writers.clear()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    finally:
        server.close()
        cut()
        if tasks:
            await asyncio.wait(tasks)


# --- what is asked of them ------------------------------------------------------------------------


async def next_of(messages: Messages) -> Received:
    return await asyncio.wait_for(anext(messages), 20)


PAYLOADS = (b"", b"\x00\xff", bytes(100_000))


async def everything_passes(
    peer: Peer, version: int, payloads: tuple[bytes, ...] = PAYLOADS
) -> None:
    async with (
        peer.client("listener", version) as listener,
        peer.client("speaker", version) as speaker,
    ):
        topic = f"plant/{version}/{time.monotonic_ns()}"
        messages = await listener.subscribe(f"{topic}/#", qos=2)
        assert messages.granted == {f"{topic}/#": 2}
        for qos in range(3):
            for number, payload in enumerate(payloads):
                assert await speaker.publish(f"{topic}/{number}", payload, qos=qos) == 0
                message = await next_of(messages)
                assert message.topic == f"{topic}/{number}"
                assert message.payload == payload
                assert not message.retain
                if peer.name != "amqtt":
                    # amqtt sends at the QoS of the subscription, whatever came.
                    assert message.qos == qos
        await messages.unsubscribe()
        await speaker.publish(f"{topic}/unheard", qos=1)
        heard = await listener.subscribe(f"{topic}/heard", qos=1)
        await speaker.publish(f"{topic}/heard", b"x", qos=1)
        assert (await next_of(heard)).topic == f"{topic}/heard"


def test_messages_pass_both_ways_at_every_qos(peer: Peer) -> None:
    for version in peer.versions:
        run(everything_passes(peer, version))


def test_messages_pass_by_tls_by_websocket_and_by_unix_sockets(way: Peer) -> None:
    for version in way.versions:
        # Mosquitto sends large packets on a WebSocket in small pieces, ten a second.
        run(everything_passes(way, version, (b"", b"\x00\xff", bytes(3_000))))


def test_hundreds_of_messages_at_once_arrive_in_their_order(peer: Peer) -> None:
    async def main(version: int) -> None:
        async with peer.client("many", version) as client:
            topic = f"many/{version}/{time.monotonic_ns()}"
            messages = await client.subscribe(topic, qos=2)
            for qos in range(3):
                going = start(publish_in_order(client, topic, qos))
                for number in range(300):
                    assert (await next_of(messages)).payload == str(number).encode()
                await going

    for version in peer.versions:
        run(main(version))


async def publish_in_order(client: Client, topic: str, qos: int) -> None:
    for first in range(0, 300, 20):
        await asyncio.gather(
            *(client.publish(topic, str(n), qos=qos) for n in range(first, first + 20))
        )


def test_a_retained_message_waits_for_who_subscribes(peer: Peer) -> None:
    async def main(version: int) -> None:
        topic = f"retained/{version}/{time.monotonic_ns()}"
        async with peer.client("keeper", version) as client:
            await client.publish(topic, b"kept", qos=1, retain=True)
            async with client.subscribe(topic, qos=1) as messages:
                message = await next_of(messages)
                if not message.retain and peer.name == "aedes":
                    # Its PUBACK may come before it has looked for subscribers.
                    message = await next_of(messages)
                assert (message.payload, message.retain) == (b"kept", True)
            await client.publish(topic, b"", qos=1, retain=True)

    for version in peer.versions:
        run(main(version))


def test_a_will_is_published_when_its_client_is_cut(peer: Peer) -> None:
    async def main(version: int) -> None:
        topic = f"wills/{version}/{time.monotonic_ns()}"
        async with brittle(peer.port) as (url, cut), peer.client("heir", version) as heir:
            messages = await heir.subscribe(topic, qos=1)
            will = Will(topic, b"gone", qos=1)
            mortal = peer.client("mortal", version, at=url, will=will, reconnect=False)
            async with mortal:
                cut()
                assert (await next_of(messages)).payload == b"gone"
            # And one that leaves in order leaves none, unless it says so.
            async with peer.client("mortal", version, will=will):
                pass
            polite = peer.client("mortal", version, will=will)
            await polite.connect()
            await polite.close(reason=0x04)
            assert (await next_of(messages)).payload == b"gone"
            await heir.publish(topic, b"last", qos=1)
            assert (await next_of(messages)).payload == b"last"

    for version in peer.versions:
        run(main(version))


def test_a_session_is_resumed_after_a_cut(peer: Peer) -> None:
    """What was published meanwhile waits there; nothing of QoS 2 comes twice."""
    # aedes may send a PUBLISH again after its PUBREL [MQTT-4.3.3-1], which ends a connection; amqtt
    # loses what is in flight when one ends.
    qos = 1 if peer.name in ("aedes", "amqtt") else 2

    async def seen_of(messages: Messages, wanted: set[str]) -> None:
        seen: list[str] = []
        while not wanted <= set(seen):
            seen.append((await next_of(messages)).payload.decode())
        assert qos == 1 or len(seen) == len(wanted), seen

    async def main(version: int) -> None:
        topic = f"resumed/{version}/{time.monotonic_ns()}"
        async with brittle(peer.port) as (url, cut):
            lasting = peer.client(
                f"lasting{version}", version, at=url, session_expiry=100, reconnect=QUICK
            )
            async with lasting, peer.client("other", version) as other:
                messages = await lasting.subscribe(topic, qos=qos)
                await other.publish(topic, b"before", qos=qos)
                await seen_of(messages, {"before"})
                for number in range(5):
                    cut()
                    while lasting.connected:
                        await asyncio.sleep(0)
                    if peer.name == "amqtt":
                        await lasting.publish(f"{topic}/back", qos=1)
                    await asyncio.gather(
                        other.publish(topic, f"there {number}", qos=qos),
                        lasting.publish(topic, f"here {number}", qos=qos),
                    )
                    await seen_of(messages, {f"there {number}", f"here {number}"})
                if peer.name != "amqtt":
                    # It may forget the session of a connection that it is ending when the next
                    # comes; our client then subscribes anew, and all that is wanted came.
                    assert lasting.session_present
                    assert lasting.counters.sessions_lost == 0
                await other.publish(topic, b"after", qos=qos)
                await seen_of(messages, {"after"})

    for version in peer.versions:
        run(main(version))


def test_a_message_that_was_not_acknowledged_is_the_same_after_a_cut(peer: Peer) -> None:
    if peer.name == "amqtt":
        pytest.skip("amqtt forgets what was in flight when a connection ends")

    async def main(version: int, qos: int) -> None:
        topic = f"kept/{version}/{time.monotonic_ns()}"
        async with brittle(peer.port) as (url, cut):
            lasting = peer.client(
                f"kept{version}{qos}", version, at=url, session_expiry=100, reconnect=QUICK
            )
            async with lasting, peer.client("other", version) as other:
                messages = await lasting.subscribe(topic, qos=qos, auto_ack=False)
                await other.publish(topic, b"1", qos=qos)
                first = await next_of(messages)
                cut()
                while lasting.connected:
                    await asyncio.sleep(0)
                await other.publish(topic, b"2", qos=qos)
                second = await next_of(messages)
                assert (first.payload, second.payload) == (b"1", b"2")
                second.ack()
                first.ack()
                await other.publish(topic, b"3", qos=qos)
                third = await next_of(messages)
                assert third.payload == b"3"
                third.ack()
                assert len({first.key, second.key, third.key}) == 3

    for version in peer.versions:
        for qos in (1, 2):
            run(main(version, qos))


def test_a_client_id_that_another_takes_is_lost(peer: Peer) -> None:
    """[MQTT-3.1.4-3] In 5.0 the first may be told why, and does not take it back."""
    if peer.name == "amqtt":
        pytest.skip("amqtt lets both live")

    async def main(version: int) -> None:
        first = peer.client("taken", version, reconnect=False)
        async with first, peer.client("taken", version) as second:
            with pytest.raises(Disconnected) as caught:
                await asyncio.wait_for(anext(first.messages()), 20)
            if peer.name == "semel" and version == MQTT5:
                assert caught.value.reason == 0x8E
                assert not caught.value.is_temporary
            await second.publish("still/there", qos=1)

    for version in peer.versions:
        run(main(version))


def test_requests_are_answered(peer: Peer) -> None:
    if MQTT5 not in peer.versions:
        pytest.skip("a server of 3.1.1 only")

    async def main() -> None:
        async with peer.client("asks", MQTT5) as asks, peer.client("answers", MQTT5) as answers:
            questions = await answers.subscribe("square", qos=1)

            async def answer() -> None:
                async for question in questions:
                    properties = question.properties
                    assert properties.response_topic is not None
                    await answers.publish(
                        properties.response_topic,
                        str(int(question.payload) ** 2),
                        qos=1,
                        properties=Properties(correlation_data=properties.correlation_data),
                    )

            answering = start(answer())
            got = await asyncio.gather(*(asks.request("square", str(n)) for n in range(20)))
            assert [int(each.payload) for each in got] == [n * n for n in range(20)]
            await questions.unsubscribe()
            await answering

    run(main())


def test_a_shared_subscription_gives_each_message_to_one(peer: Peer) -> None:
    if MQTT5 not in peer.versions:
        pytest.skip("a server of 3.1.1 only")

    async def main() -> None:
        async with (
            peer.client("one", MQTT5) as one,
            peer.client("two", MQTT5) as two,
            peer.client("source", MQTT5) as source,
        ):
            topic = f"shared/{time.monotonic_ns()}"
            shared = Subscription(f"$share/group/{topic}", 1)
            seen: list[bytes] = []

            async def take(messages: Messages) -> None:
                async for message in messages:
                    seen.append(message.payload)

            iterators = [await each.subscribe(shared) for each in (one, two)]
            taking = [start(take(each)) for each in iterators]
            for number in range(50):
                await source.publish(topic, str(number), qos=1)
            async with asyncio.timeout(20):
                while len(seen) < 50:
                    await asyncio.sleep(0.01)
            assert sorted(seen, key=int) == [str(number).encode() for number in range(50)]
            for iterator in iterators:
                await iterator.unsubscribe()
            await asyncio.gather(*taking)

    run(main())


def test_a_server_of_3_1_1_only_refuses_5_0_in_words(peer: Peer) -> None:
    """[MQTT-3.1.2-2] (3.1.1) It answers in its own version, which is not malformed for that."""
    if peer.name != "aedes":
        pytest.skip("amqtt does not answer at all" if peer.name == "amqtt" else "a server of 5.0")

    async def main() -> None:
        with pytest.raises((Refused, Disconnected)) as caught:
            await peer.client("five", MQTT5).connect()
        assert isinstance(caught.value, Refused), caught.value
        assert "version" in str(caught.value)

    run(main())
