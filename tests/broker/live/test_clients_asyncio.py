"""aiomqtt and gmqtt against the live broker: both versions, every QoS, each test with both.

aiomqtt_client.py and gmqtt_client.py give the two one form, and say where they differ from the
standard. Everything runs under one time-out, so that a test fails where it would hang.
"""

import asyncio
import importlib
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import pytest

from tests.broker.broker_process import PATIENCE, Process

ON_ALL_VERSIONS = pytest.mark.parametrize("version", ["3.1.1", "5.0"])
AT_EVERY_QOS = pytest.mark.parametrize("qos", [0, 1, 2])
AT_QOS_1_AND_2 = pytest.mark.parametrize("qos", [1, 2])

# Nothing, every byte there is, what is no text, and more than one read of a socket brings.
PAYLOADS = (b"", bytes(range(256)), b"\x00", b"\xff\xfe", bytes(200_000))
TOPICS = ("größe", "温度/🌡", "/", "a//b/", "with space/*")

# Topic, payload, QoS, RETAIN, and with properties.
Facts = tuple[str, bytes, int, bool]
Received = tuple[str, bytes, int, bool, dict[str, Any]]

number = itertools.count()


class Client(Protocol):
    """What both libraries do here."""

    async def open(self) -> int: ...
    async def subscribe(
        self, topic_filter: str, qos: int = 2, identifier: int | None = None
    ) -> list[int]: ...
    async def unsubscribe(self, topic_filter: str) -> None: ...
    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **said: Any
    ) -> None: ...
    async def receive(self) -> Received: ...
    async def ended(self) -> int | None: ...
    async def cut(self) -> None: ...
    async def close(self) -> None: ...


class Group:
    """The clients of one test, of one library, which are closed together."""

    def __init__(self, library: str, root: str, broker: Process) -> None:
        self.make: Callable[..., Client] = importlib.import_module(
            f"tests.broker.{library}_client"
        ).Client
        self.root = root
        self.broker = broker
        self.clients: list[Client] = []

    def add(self, name: str, version: str, *, to: Process | None = None, **said: Any) -> Any:
        """A client that is not connected yet."""
        address = (to or self.broker).address
        self.clients.append(self.make(address, f"{self.root}-{name}", version, **said))
        return self.clients[-1]

    async def connect(self, name: str, version: str, **said: Any) -> Client:
        """A client whose connection is accepted."""
        client: Client = self.add(name, version, **said)
        assert await client.open() == 0
        return client

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a test's coroutine, and close its clients in the same loop."""

        async def whole() -> None:
            try:
                async with asyncio.timeout(PATIENCE):
                    await scenario
            finally:
                async with asyncio.timeout(PATIENCE):
                    for client in self.clients:
                        await client.close()

        asyncio.run(whole())


async def receive(client: Client, count: int = 1) -> list[Facts]:
    """The next messages, without their properties."""
    return [(await client.receive())[:4] for _ in range(count)]


async def others(client: Client, sender: Client | None = None) -> list[Facts]:
    """What comes before a message that the sender, or the client itself, now sends to it.

    At QoS 2, so that nothing that was on its way to the client is overtaken.
    """
    topic = f"last/{next(number)}"
    await client.subscribe(topic)
    await (sender or client).publish(topic, qos=2)
    received = await receive(client)
    while received[-1][0] != topic:
        received += await receive(client)
    return received[:-1]


def topic_of(received: Facts) -> str:
    return received[0]


def lasting(version: str) -> dict[str, Any]:
    """What a client says that wants its session kept."""
    return {"clean": False} | ({"session_expiry_interval": 600} if version == "5.0" else {})


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def root() -> str:
    """Where a test has its topics and client identifiers to itself."""
    return f"asyncio-{next(number)}"


@pytest.fixture(params=["aiomqtt", "gmqtt"])
def group(request: pytest.FixtureRequest, root: str, broker: Process) -> Group:
    library: str = request.param
    pytest.importorskip(library, reason=f"{library} is not installed")
    return Group(library, root, broker)


@pytest.fixture
def gmqtt(root: str, broker: Process) -> Group:
    """For what aiomqtt keeps its users from doing."""
    pytest.importorskip("gmqtt", reason="gmqtt is not installed")
    return Group("gmqtt", root, broker)


# --- round trips ----------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_what_is_published_is_received(group: Group, root: str, version: str, qos: int) -> None:
    async def scenario() -> None:
        publisher = await group.connect("p", version)
        subscriber = await group.connect("s", version)
        assert await subscriber.subscribe(f"{root}/#") == [2]
        expected = []
        for topic, payload in itertools.product(TOPICS, PAYLOADS):
            await publisher.publish(f"{root}/{topic}", payload, qos)
            expected.append((f"{root}/{topic}", payload, qos, False))
        # Within a topic there is an order, between topics there is none.
        received = await receive(subscriber, len(expected))
        assert sorted(received, key=topic_of) == sorted(expected, key=topic_of)
        assert await others(subscriber) == []

    group.play(scenario())


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_message_arrives_at_the_lower_qos(
    group: Group, root: str, version: str, qos: int
) -> None:
    """[MQTT-3.8.4-8] (3.1.1: [MQTT-3.8.4-6]): of the message's QoS and the granted one"""

    async def scenario() -> None:
        client = await group.connect("c", version)
        await client.publish(f"{root}/t", b"kept", 2, retain=True)
        assert await client.subscribe(f"{root}/t", qos) == [qos]
        assert await receive(client) == [(f"{root}/t", b"kept", qos, True)]
        for published in (0, 1, 2):
            await client.publish(f"{root}/t", b"%d" % published, published)
        received = sorted((message[1], message[2]) for message in await receive(client, 3))
        assert received == [(b"%d" % published, min(qos, published)) for published in range(3)]

    group.play(scenario())


@ON_ALL_VERSIONS
def test_after_unsubscribe_nothing_comes(group: Group, root: str, version: str) -> None:
    async def scenario() -> None:
        client = await group.connect("c", version)
        await client.subscribe(f"{root}/ä")
        await client.subscribe(f"{root}/b")
        await client.unsubscribe(f"{root}/ä")
        await client.publish(f"{root}/ä", b"not any more", 1)
        await client.publish(f"{root}/b", b"still", 1)
        assert await others(client) == [(f"{root}/b", b"still", 1, False)]

    group.play(scenario())


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_many_publishers_at_once_are_all_heard(
    group: Group, root: str, version: str, qos: int
) -> None:
    """[MQTT-4.6.0-5] (3.1.1: [MQTT-4.6.0-6]): each in its order"""

    async def publish(client: Client, name: int) -> None:
        for each in range(20):
            await client.publish(f"{root}/{name}", b"%d" % each, qos)

    async def scenario() -> None:
        subscriber = await group.connect("s", version)
        await subscriber.subscribe(f"{root}/+")
        publishers = [await group.connect(f"p{name}", version) for name in range(15)]
        await asyncio.gather(*itertools.starmap(publish, zip(publishers, range(15), strict=True)))
        received = await receive(subscriber, 15 * 20)
        for name in range(15):
            own = [int(message[1]) for message in received if message[0] == f"{root}/{name}"]
            assert own == [*range(20)]

    group.play(scenario())


# --- retained messages, wills ---------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_retained_message_is_kept_flagged_and_deleted(
    group: Group, root: str, version: str, qos: int
) -> None:
    """[MQTT-3.3.1-5] to [MQTT-3.3.1-8] [MQTT-3.3.1-12] (3.1.1: [MQTT-3.3.1-5] to -12)"""

    async def scenario() -> None:
        client, topic = await group.connect("c", version), f"{root}/kept"
        await client.publish(topic, b"old", qos, retain=True)
        await client.publish(topic, b"new", qos, retain=True)
        await client.publish(topic, b"passes by", qos)
        await client.subscribe(f"{root}/+")
        assert await receive(client) == [(topic, b"new", qos, True)]
        # To a subscription that exists it comes as any other message.
        await client.publish(topic, b"newer", qos, retain=True)
        assert await receive(client) == [(topic, b"newer", qos, False)]
        await client.publish(topic, b"", qos, retain=True)
        assert await receive(client) == [(topic, b"", qos, False)]
        late = await group.connect("late", version)
        await late.subscribe(f"{root}/#")
        assert await others(late) == []

    group.play(scenario())


@ON_ALL_VERSIONS
@AT_EVERY_QOS
@pytest.mark.parametrize("retain", [False, True])
def test_a_cut_publishes_the_will(
    group: Group, root: str, version: str, qos: int, retain: bool
) -> None:
    """[MQTT-3.1.2-8]"""

    async def scenario() -> None:
        topic = f"{root}/will"
        watcher = await group.connect("w", version)
        await watcher.subscribe(topic)
        will = {"topic": topic, "payload": b"\x00gone", "qos": qos, "retain": retain}
        client = await group.connect("c", version, will=will)
        await client.cut()
        assert await receive(watcher) == [(topic, b"\x00gone", qos, False)]
        late = await group.connect("late", version)
        await late.subscribe(topic)
        assert await others(late) == ([(topic, b"\x00gone", qos, True)] if retain else [])

    group.play(scenario())


@ON_ALL_VERSIONS
def test_a_disconnect_takes_the_will_back(group: Group, root: str, version: str) -> None:
    """[MQTT-3.14.4-3]"""

    async def scenario() -> None:
        watcher = await group.connect("w", version)
        await watcher.subscribe(f"{root}/#")
        will = {"topic": f"{root}/will", "payload": b"gone", "qos": 1}
        client = await group.connect("c", version, will=will)
        await client.publish(f"{root}/last words", b"bye")
        await client.close()
        assert await receive(watcher) == [(f"{root}/last words", b"bye", 0, False)]
        assert await others(watcher) == []

    group.play(scenario())


def test_a_disconnect_with_code_4_publishes_the_will(gmqtt: Group, root: str) -> None:
    async def scenario() -> None:
        watcher = await gmqtt.connect("w", "5.0")
        await watcher.subscribe(f"{root}/#")
        will = {"topic": f"{root}/will", "payload": b"gone", "qos": 1, "content_type": "x/y"}
        client = gmqtt.add("c", "5.0", will=will)
        await client.open()
        await client.close(reason=4)
        expected = (f"{root}/will", b"gone", 1, False, {"content_type": "x/y"})
        assert await watcher.receive() == expected

    gmqtt.play(scenario())


# --- sessions -------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_session_keeps_what_came_meanwhile(
    group: Group, root: str, version: str, qos: int, abruptly: bool
) -> None:
    """[MQTT-3.1.2-5] (3.1.1: [MQTT-3.1.2-4]) [MQTT-4.5.0-1]"""

    async def scenario() -> None:
        publisher = await group.connect("p", version)
        client = await group.connect("c", version, **lasting(version))
        await client.subscribe(f"{root}/#", qos)
        if abruptly:
            await client.cut()
        else:
            await client.close()
        for each in range(30):
            await publisher.publish(f"{root}/t", b"%d" % each, qos)
        assert await client.open() == 0
        expected = [(f"{root}/t", b"%d" % each, qos, False) for each in range(30)]
        assert await receive(client, 30) == expected
        await publisher.publish(f"{root}/t", b"live", qos)
        assert await others(client) == [(f"{root}/t", b"live", qos, False)]

    group.play(scenario())


@ON_ALL_VERSIONS
def test_a_clean_start_forgets_the_session(group: Group, root: str, version: str) -> None:
    """[MQTT-3.1.2-4] (3.1.1: [MQTT-3.1.2-6])"""

    async def scenario() -> None:
        publisher = await group.connect("p", version)
        client = await group.connect("c", version, **lasting(version))
        await client.subscribe(f"{root}/#")
        await client.close()
        await publisher.publish(f"{root}/t", b"for nobody", 2)
        fresh = await group.connect("c", version)
        await publisher.publish(f"{root}/t", b"for nobody", 2)
        assert await others(fresh) == []

    group.play(scenario())


@ON_ALL_VERSIONS
def test_a_publisher_cut_before_the_answer_is_heard_once(
    group: Group, root: str, version: str
) -> None:
    """Method B: [MQTT-4.3.3-10] (3.1.1: [MQTT-4.3.3-2]). No PUBREC reaches the publisher.

    gmqtt repeats with DUP 0: what counts is the identifier, DUP is but a hint [3.3.1.1].
    """

    async def scenario() -> None:
        with Process() as process:
            subscriber = await group.connect("s", version, to=process)
            await subscriber.subscribe(f"{root}/t")
            will = {"topic": f"{root}/t", "payload": b"cut", "qos": 2}
            publisher = await group.connect("p", version, to=process, will=will, **lasting(version))
            process.pause()
            publications = [
                asyncio.ensure_future(publisher.publish(f"{root}/t", b"%d" % each, 2))
                for each in range(3)
            ]
            await asyncio.sleep(0)
            # At QoS 0, both are done when the bytes have left: so have those before.
            await publisher.publish(f"{root}/written")
            await publisher.cut()
            process.resume()
            # The will tells that the broker has seen the end of that connection.
            received = await receive(subscriber, 4)
            assert [message[1] for message in received] == [b"0", b"1", b"2", b"cut"]
            assert await publisher.open() == 0
            await asyncio.gather(*publications)
            assert await others(subscriber) == []

    group.play(scenario())


@ON_ALL_VERSIONS
def test_a_second_connection_takes_over(group: Group, root: str, version: str) -> None:
    """[MQTT-3.1.4-3] (3.1.1: [MQTT-3.1.4-2])"""

    async def scenario() -> None:
        publisher = await group.connect("p", version)
        first = await group.connect("c", version, **lasting(version))
        await first.subscribe(f"{root}/t")
        second = await group.connect("c", version, **lasting(version))
        assert await first.ended() == (0x8E if version == "5.0" else None)
        await publisher.publish(f"{root}/t", b"for the second", 1)
        assert await others(second) == [(f"{root}/t", b"for the second", 1, False)]

    group.play(scenario())


# --- shared subscriptions -------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_two_workers_share_the_work(group: Group, root: str, version: str, qos: int) -> None:
    """[4.8.2] each message to one of them"""

    async def scenario() -> None:
        publisher = await group.connect("p", version)
        workers = [await group.connect(name, version) for name in ("a", "b")]
        for worker in workers:
            assert await worker.subscribe(f"$share/{root}/{root}/+", qos) == [qos]
        for each in range(60):
            await publisher.publish(f"{root}/{each % 3}", b"%d" % each, qos)
        shares = [
            [int(message[1]) for message in await others(worker, publisher)] for worker in workers
        ]
        assert sorted(shares[0] + shares[1]) == [*range(60)]
        assert all(shares)

    group.play(scenario())


# --- the properties of 5.0 ------------------------------------------------------------------------


@AT_EVERY_QOS
def test_the_properties_of_a_message_arrive_unaltered(group: Group, root: str, qos: int) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] to [MQTT-3.3.2-20] [MQTT-3.3.4-3]"""

    async def scenario() -> None:
        client = await group.connect("c", "5.0")
        await client.subscribe(f"{root}/#", identifier=268_435_455)
        said: dict[str, Any] = {
            "payload_format_id": 1,
            "content_type": "text/plain; Größe",
            "response_topic": f"{root}/antwort/ü",
            "correlation_data": bytes(range(256)),
            "user_property": [("b", "2"), ("a", "1"), ("b", ""), ("ü", "🌡")],
        }
        await client.publish(f"{root}/t", "größe".encode(), qos, **said)
        said["subscription_identifier"] = [268_435_455]
        assert await client.receive() == (f"{root}/t", "größe".encode(), qos, False, said)

    group.play(scenario())


def test_what_remains_of_an_expiry_interval_is_told(group: Group, root: str) -> None:
    """[MQTT-3.3.2-6]"""

    async def scenario() -> None:
        client = await group.connect("c", "5.0")
        await client.subscribe(f"{root}/t")
        await client.publish(f"{root}/t", qos=1, message_expiry_interval=100_000)
        said = (await client.receive())[4]
        assert 99_000 < said["message_expiry_interval"] <= 100_000

    group.play(scenario())


@AT_EVERY_QOS
def test_an_alias_stands_for_its_topic(group: Group, root: str, qos: int) -> None:
    """[MQTT-3.3.2-12]"""

    async def scenario() -> None:
        client = await group.connect("c", "5.0")
        await client.subscribe(f"{root}/#")
        await client.publish(f"{root}/ä", b"1", qos, topic_alias=100)
        await client.publish("", b"2", qos, topic_alias=100)
        await client.publish(f"{root}/b", b"3", qos, topic_alias=100)
        await client.publish("", b"4", qos, topic_alias=100)
        for topic, payload in [("ä", b"1"), ("ä", b"2"), ("b", b"3"), ("b", b"4")]:
            # [MQTT-3.1.2-27] and no alias: this client has allowed none in the other direction
            assert await client.receive() == (f"{root}/{topic}", payload, qos, False, {})

    group.play(scenario())


def test_a_request_is_answered_where_it_says(group: Group, root: str) -> None:
    """[4.10] response topic and correlation data, as a requester and a responder use them"""

    async def respond(responder: Client) -> None:
        for _ in range(3):
            _, payload, _, _, said = await responder.receive()
            await responder.publish(
                said["response_topic"],
                b"answer " + payload,
                1,
                correlation_data=said["correlation_data"],
            )

    async def scenario() -> None:
        requester = await group.connect("requester", "5.0")
        responder = await group.connect("responder", "5.0")
        await requester.subscribe(f"{root}/answer")
        await responder.subscribe(f"{root}/request")
        answering = asyncio.create_task(respond(responder))
        for each in range(3):
            data = b"\x00%d" % each
            await requester.publish(
                f"{root}/request",
                b"%d" % each,
                1,
                response_topic=f"{root}/answer",
                correlation_data=data,
            )
            answer = await requester.receive()
            expected = (f"{root}/answer", b"answer %d" % each, 1, False, {"correlation_data": data})
            assert answer == expected
        await answering

    group.play(scenario())


# --- refusals -------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
def test_one_client_too_many_is_told_so(gmqtt: Group, root: str, version: str) -> None:
    """[MQTT-3.2.2-7] (3.1.1: [MQTT-3.2.2-5]): return code 3, or the reason code Server busy"""

    async def scenario() -> None:
        with Process("--maximum-connections", "1") as process:
            first = await gmqtt.connect("a", version, to=process)
            second = gmqtt.add("b", version, to=process)
            assert await second.open() == (0x89 if version == "5.0" else 3)
            assert await second.ended() is None
            await first.subscribe(f"{root}/t", 0)
            await first.publish(f"{root}/t", b"still here")
            assert await receive(first) == [(f"{root}/t", b"still here", 0, False)]

    gmqtt.play(scenario())


def test_an_authentication_method_that_nobody_knows_is_refused(group: Group) -> None:
    """[MQTT-4.12.0-1]"""

    async def scenario() -> None:
        client = group.add("c", "5.0", auth_method="unheard of")
        assert await client.open() == 0x8C

    group.play(scenario())


def test_a_protocol_level_that_nobody_knows_is_refused(gmqtt: Group) -> None:
    """[MQTT-3.1.2-2] of 3.1.1: CONNACK 0x01, then the end"""

    async def scenario() -> None:
        client = gmqtt.add("c", "level 3")
        assert await client.open() == 1
        assert await client.ended() is None

    gmqtt.play(scenario())


@ON_ALL_VERSIONS
def test_one_subscription_too_many_is_refused(group: Group, root: str, version: str) -> None:
    """[MQTT-3.8.4-7] (3.1.1: [MQTT-3.8.4-5], where one code stands for every failure)"""

    async def scenario() -> None:
        with Process("--maximum-subscriptions", "1") as process:
            client = await group.connect("c", version, to=process)
            assert await client.subscribe(f"{root}/a", 1) == [1]
            refused = await client.subscribe(f"{root}/b", 1)
            assert refused == [0x97 if version == "5.0" else 0x80]
            for name in ("b", "a"):
                await client.publish(f"{root}/{name}", b"x", 1)
            assert await receive(client) == [(f"{root}/a", b"x", 1, False)]

    group.play(scenario())


@pytest.mark.parametrize(
    ("version", "topic_filter"),
    [*itertools.product(["3.1.1", "5.0"], ["#/a", "a+"]), ("5.0", "$share//a")],
)
def test_a_filter_that_is_none_ends_the_connection(
    gmqtt: Group, root: str, version: str, topic_filter: str
) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] (3.1.1: -2, -3) [MQTT-4.8.2-1]; gmqtt sends what it is given

    5.0 lets the server choose among codes, so any failure will do. `$share//a` is an ordinary
    filter in 3.1.1.
    """

    async def scenario() -> None:
        client = gmqtt.add("c", version)
        await client.open()
        assert await client.subscribe("a/+/#", 1) == [1]
        client.client.subscribe(topic_filter)
        reason = await client.ended()
        assert reason is None if version == "3.1.1" else reason >= 0x80

    gmqtt.play(scenario())


@ON_ALL_VERSIONS
def test_a_packet_too_large_ends_the_connection(group: Group, root: str, version: str) -> None:
    """[3.1.2.11.4] [3.2.2.3.6] 0x95; the largest that is allowed passes"""

    async def scenario() -> None:
        with Process("--maximum-packet-size", "2000") as process:
            client = await group.connect("c", version, to=process)
            topic = "t" * 100
            await client.subscribe(topic)
            # A byte of header, two of length, two before the topic; 5.0 has no properties in one.
            room = 2_000 - 3 - 2 - 100 - (version == "5.0")
            await client.publish(topic, bytes(room))
            assert await receive(client) == [(topic, bytes(room), 0, False)]
            await client.publish(topic, bytes(room + 1))
            assert await client.ended() == (0x95 if version == "5.0" else None)

    group.play(scenario())


# --- in bulk --------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_two_thousand_messages_arrive_once_and_in_order(
    gmqtt: Group, root: str, version: str, qos: int
) -> None:
    """[MQTT-4.6.0-5] (3.1.1: [MQTT-4.6.0-6])"""

    async def scenario() -> None:
        publisher = gmqtt.add("p", version)
        await publisher.open()
        subscriber = await gmqtt.connect("s", version)
        await subscriber.subscribe(f"{root}/t")
        for first in range(0, 2_000, 100):
            for each in range(first, first + 100):
                publisher.client.publish(f"{root}/t", b"%d" % each, qos)
            # gmqtt raises an exception where it should wait for the server's Receive Maximum.
            await publisher.outbox.wait_empty()
        expected = [(f"{root}/t", b"%d" % each, qos, False) for each in range(2_000)]
        assert await receive(subscriber, 2_000) == expected
        assert await others(subscriber) == []

    gmqtt.play(scenario())
