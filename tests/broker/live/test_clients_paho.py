"""paho-mqtt against the live broker: both versions, every QoS, its network loop in a thread.

Where paho differs from the standard a comment says so. It delivers a QoS 2 message when it has the
PUBREL, keeps the identifiers over a reconnection, and so is a fair judge of "once".
"""

import itertools
from collections.abc import Callable, Iterator
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.broker_process import PATIENCE, Process

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt
else:
    mqtt = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker.paho_client import VERSIONS, Client, facts, properties, seen, topic_of

ON_ALL_VERSIONS = pytest.mark.parametrize("version", VERSIONS)
AT_EVERY_QOS = pytest.mark.parametrize("qos", [0, 1, 2])
AT_QOS_1_AND_2 = pytest.mark.parametrize("qos", [1, 2])

# Nothing, every byte there is, what is no text, and more than one read of a socket brings.
PAYLOADS = (b"", bytes(range(256)), b"\x00", b"\xff\xfe", bytes(200_000))
TOPICS = ("größe", "温度/🌡", "/", "a//b/", "with space/*")

number = itertools.count()


Make = Callable[..., Client]


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def root() -> str:
    """Where a test has its topics and client identifiers to itself."""
    return f"paho-{next(number)}"


@pytest.fixture
def make(broker: Process, root: str) -> Iterator[Make]:
    """Makes clients that are closed in the end: `make("name", "5.0", ...)`."""
    clients = []

    def made(name: str, version: str, *, to: Process = broker, **options: Any) -> Client:
        clients.append(Client(to, f"{root}-{name}", version, **options))
        return clients[-1]

    yield made
    for client in clients:
        client.close()


@pytest.fixture
def connect(make: Make) -> Make:
    """Makes clients whose connection is accepted, with a session that is new."""

    def connected(name: str, version: str, **options: Any) -> Client:
        client = make(name, version, **options)
        assert client.open() == (False, 0)
        return client

    return connected


# --- round trips ----------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_what_is_published_is_received(connect: Make, root: str, version: str, qos: int) -> None:
    publisher, subscriber = connect("p", version), connect("s", version)
    assert subscriber.subscribe(f"{root}/#") == [2]
    expected = []
    for topic, payload in itertools.product(TOPICS, PAYLOADS):
        publisher.publish(f"{root}/{topic}", payload, qos)
        expected.append((f"{root}/{topic}", payload, qos, False))
    # Within a topic there is an order, between topics there is none.
    received = subscriber.receive(len(expected))
    assert sorted(received, key=topic_of) == sorted(expected, key=topic_of)
    assert subscriber.others() == []


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_message_arrives_at_the_lower_qos(
    connect: Make, root: str, version: str, qos: int
) -> None:
    """[MQTT-3.8.4-8] (3.1.1: [MQTT-3.8.4-6]): of the message's QoS and the granted one"""
    client = connect("c", version)
    client.publish(f"{root}/t", b"kept", 2, retain=True)
    assert client.subscribe(f"{root}/t", qos) == [qos]
    assert client.receive() == [(f"{root}/t", b"kept", qos, True)]
    for published in (0, 1, 2):
        client.publish(f"{root}/t", b"%d" % published, published)
    received = sorted(client.receive(3), key=lambda message: message[1])
    assert [message[2] for message in received] == [min(qos, published) for published in range(3)]


@AT_EVERY_QOS
@pytest.mark.parametrize(("sender", "receiver"), [("3.1.1", "5.0"), ("5.0", "3.1.1")])
def test_the_versions_talk_to_each_other(
    connect: Make, root: str, sender: str, receiver: str, qos: int
) -> None:
    publisher, subscriber = connect("p", sender), connect("s", receiver)
    subscriber.subscribe(f"{root}/#")
    said: dict[str, Any] = (
        {"ContentType": "text/plain", "UserProperty": ("a", "b")} if sender == "5.0" else {}
    )
    publisher.publish(f"{root}/ü", b"\x00\xff", qos, **said)
    assert subscriber.receive() == [(f"{root}/ü", b"\x00\xff", qos, False)]


@ON_ALL_VERSIONS
def test_after_unsubscribe_nothing_comes(connect: Make, root: str, version: str) -> None:
    client = connect("c", version)
    client.subscribe(f"{root}/a")
    client.subscribe(f"{root}/b")
    client.paho.unsubscribe(f"{root}/a")
    client.subacks.get(timeout=PATIENCE)
    client.publish(f"{root}/a", b"not any more", 1)
    client.publish(f"{root}/b", b"still", 1)
    assert client.others() == [(f"{root}/b", b"still", 1, False)]


@ON_ALL_VERSIONS
def test_the_broker_serves_without_epoll_too(connect: Make, root: str, version: str) -> None:
    with Process(epoll=False) as process:
        client = connect("c", version, to=process)
        client.subscribe(f"{root}/#")
        for qos in (0, 1, 2):
            client.publish(f"{root}/t", b"x", qos)
            assert client.receive() == [(f"{root}/t", b"x", qos, False)]


# --- retained messages ----------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_retained_message_is_kept_flagged_and_deleted(
    connect: Make, root: str, version: str, qos: int
) -> None:
    """[MQTT-3.3.1-5] to [MQTT-3.3.1-8] [MQTT-3.3.1-12] (3.1.1: [MQTT-3.3.1-5] to -12)"""
    client, topic = connect("c", version), f"{root}/kept"
    client.publish(topic, b"old", qos, retain=True)
    client.publish(topic, b"new", qos, retain=True)
    client.publish(topic, b"passes by", qos)
    client.subscribe(f"{root}/+")
    assert client.receive() == [(topic, b"new", qos, True)]
    # To a subscription that exists it comes as any other message.
    client.publish(topic, b"newer", qos, retain=True)
    assert client.receive() == [(topic, b"newer", qos, False)]
    client.publish(topic, b"", qos, retain=True)
    assert client.receive() == [(topic, b"", qos, False)]
    late = connect("late", version)
    late.subscribe(f"{root}/#")
    assert late.others() == []


@pytest.mark.parametrize(
    ("handling", "first", "again"),
    [
        (SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE, True, True),
        (SubscribeOptions.RETAIN_SEND_IF_NEW_SUB, True, False),
        (SubscribeOptions.RETAIN_DO_NOT_SEND, False, False),
    ],
)
def test_retain_handling_decides_what_a_subscription_brings(
    connect: Make, root: str, handling: int, first: bool, again: bool
) -> None:
    """[MQTT-3.3.1-9] to [MQTT-3.3.1-11]"""
    client = connect("c", "5.0")
    client.publish(f"{root}/t", b"kept", 1, retain=True)
    kept = [(f"{root}/t", b"kept", 1, True)]
    for expected in (first, again):
        options = SubscribeOptions(qos=1, retainHandling=handling)
        client.paho.subscribe(f"{root}/t", options=options)
        assert client.subacks.get(timeout=PATIENCE) == [1]
        assert client.others() == (kept if expected else [])


def test_retain_as_published_and_no_local_are_heeded(connect: Make, root: str) -> None:
    """[MQTT-3.3.1-13] [MQTT-3.8.3-3]"""
    client, other = connect("c", "5.0"), connect("other", "5.0")
    options = SubscribeOptions(qos=1, retainAsPublished=True, noLocal=True)
    client.paho.subscribe(f"{root}/t", options=options)
    assert client.subacks.get(timeout=PATIENCE) == [1]
    client.publish(f"{root}/t", b"own", 1)
    other.publish(f"{root}/t", b"another's", 1, retain=True)
    assert client.others() == [(f"{root}/t", b"another's", 1, True)]


# --- wills ----------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
@pytest.mark.parametrize("retain", [False, True])
def test_a_cut_publishes_the_will(
    connect: Make, root: str, version: str, qos: int, retain: bool
) -> None:
    """[MQTT-3.1.2-8]"""
    topic = f"{root}/will"
    watcher = connect("w", version)
    watcher.subscribe(topic)
    will = {"topic": topic, "payload": b"\x00gone", "qos": qos, "retain": retain}
    connect("c", version, will=will).cut()
    assert watcher.receive() == [(topic, b"\x00gone", qos, False)]
    late = connect("late", version)
    late.subscribe(topic)
    assert late.others() == ([(topic, b"\x00gone", qos, True)] if retain else [])


@ON_ALL_VERSIONS
def test_a_disconnect_takes_the_will_back(connect: Make, root: str, version: str) -> None:
    """[MQTT-3.14.4-3]"""
    watcher = connect("w", version)
    watcher.subscribe(f"{root}/#")
    client = connect("c", version, will={"topic": f"{root}/will", "payload": b"gone", "qos": 1})
    client.publish(f"{root}/last words", b"bye")
    client.close()
    assert watcher.receive() == [(f"{root}/last words", b"bye", 0, False)]
    assert watcher.others() == []


def test_a_disconnect_with_code_4_publishes_the_will(connect: Make, root: str) -> None:
    watcher = connect("w", "5.0")
    watcher.subscribe(f"{root}/#")
    client = connect("c", "5.0", will={"topic": f"{root}/will", "payload": b"gone", "qos": 1})
    client.close(reason=4)
    assert watcher.receive() == [(f"{root}/will", b"gone", 1, False)]


def test_a_will_keeps_its_properties(connect: Make, root: str) -> None:
    watcher = connect("w", "5.0")
    watcher.subscribe(f"{root}/#")
    said = {
        "ContentType": "text/plain",
        "ResponseTopic": f"{root}/answer",
        "CorrelationData": b"\x00\x01",
        "UserProperty": [("a", "1"), ("a", "2")],
    }
    will = {"topic": f"{root}/will", "payload": b"gone", "qos": 1}
    connect("c", "5.0", will=will, will_properties=said).cut()
    assert seen(watcher.inbox.get(timeout=PATIENCE)) == said


def test_who_is_back_before_the_delay_is_over_has_no_will(connect: Make, root: str) -> None:
    """[MQTT-3.1.3-9]"""
    watcher = connect("w", "5.0")
    watcher.subscribe(f"{root}/#")
    client = connect(
        "c",
        "5.0",
        clean=False,
        will={"topic": f"{root}/will", "payload": b"gone", "qos": 1},
        will_properties={"WillDelayInterval": 600},
        SessionExpiryInterval=600,
    )
    client.cut()
    assert client.open() == (True, 0)
    client.publish(f"{root}/back", b"here", 1)
    assert watcher.others() == [(f"{root}/back", b"here", 1, False)]


# --- sessions -------------------------------------------------------------------------------------


def lasting(version: str) -> dict[str, Any]:
    """What a client says that wants its session kept."""
    return {"clean": False} | ({"SessionExpiryInterval": 600} if version == "5.0" else {})


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_session_keeps_what_came_meanwhile(
    connect: Make, root: str, version: str, qos: int, abruptly: bool
) -> None:
    """[MQTT-3.1.2-5] (3.1.1: [MQTT-3.1.2-4]) [MQTT-4.5.0-1]"""
    publisher = connect("p", version)
    client = connect("c", version, **lasting(version))
    client.subscribe(f"{root}/#", qos)
    if abruptly:
        client.cut()
    else:
        client.close()
    for each in range(30):
        publisher.publish(f"{root}/t", b"%d" % each, qos)
    assert client.open() == (True, 0)
    assert client.receive(30) == [(f"{root}/t", b"%d" % each, qos, False) for each in range(30)]
    publisher.publish(f"{root}/t", b"live", qos)
    assert client.others() == [(f"{root}/t", b"live", qos, False)]


@ON_ALL_VERSIONS
def test_a_clean_start_forgets_the_session(connect: Make, root: str, version: str) -> None:
    """[MQTT-3.1.2-4] (3.1.1: [MQTT-3.1.2-6])"""
    publisher = connect("p", version)
    client = connect("c", version, **lasting(version))
    client.subscribe(f"{root}/#")
    client.close()
    publisher.publish(f"{root}/t", b"for nobody", 2)
    fresh = connect("c", version)
    publisher.publish(f"{root}/t", b"for nobody", 2)
    assert fresh.others() == []
    fresh.close()
    # [MQTT-3.1.2-6] the clean session did not outlive its connection either
    assert client.open() == (False, 0)


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_a_subscriber_cut_in_the_middle_misses_nothing(
    connect: Make, root: str, version: str, qos: int
) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.3.3-10]: at QoS 2 each message once, at QoS 1 at least once"""
    publisher = connect("p", version)
    client = connect("c", version, **lasting(version))
    client.subscribe(f"{root}/t", qos)
    for each in range(300):
        publisher.paho.publish(f"{root}/t", b"%d" % each, qos)
        if each % 100 == 50:
            client.cut()
            assert client.open() == (True, 0)
    received: list[int] = []
    while not received or received[-1] != 299:
        received += [int(message[1]) for message in client.receive()]
    if qos == 2:
        assert received == [*range(300)]
    else:
        # What was on its way when the connection failed comes again, in the same order.
        assert [*dict.fromkeys(received)] == [*range(300)]
    assert client.others() == []


@ON_ALL_VERSIONS
def test_a_publisher_cut_before_the_answer_is_heard_once(
    connect: Make, root: str, version: str
) -> None:
    """Method B: [MQTT-4.3.3-10] (3.1.1: [MQTT-4.3.3-2]). No PUBREC reaches the publisher."""
    with Process() as process:
        subscriber = connect("s", version, to=process)
        subscriber.subscribe(f"{root}/t")
        will = {"topic": f"{root}/t", "payload": b"cut", "qos": 2}
        publisher = connect("p", version, to=process, will=will, **lasting(version))
        process.pause()
        infos = [publisher.paho.publish(f"{root}/t", b"%d" % each, 2) for each in range(3)]
        # At QoS 0, paho is done when the bytes have left: so have those before.
        publisher.publish(f"{root}/written")
        publisher.cut()
        process.resume()
        # The will tells that the broker has seen the end of that connection.
        assert [message[1] for message in subscriber.receive(4)] == [b"0", b"1", b"2", b"cut"]
        assert publisher.open() == (True, 0)
        for info in infos:
            info.wait_for_publish(PATIENCE)
            assert info.is_published()
        assert subscriber.others() == []


@ON_ALL_VERSIONS
def test_a_second_connection_takes_over(make: Make, connect: Make, root: str, version: str) -> None:
    """[MQTT-3.1.4-3] (3.1.1: [MQTT-3.1.4-2])"""
    publisher = connect("p", version)
    first = connect("c", version, **lasting(version))
    first.subscribe(f"{root}/t")
    second = make("c", version, **lasting(version))
    assert second.open() == (True, 0)
    from_server, reason = first.ends.get(timeout=PATIENCE)
    if version == "5.0":
        assert (from_server, reason) == (True, 0x8E)
    else:
        assert not from_server
    publisher.publish(f"{root}/t", b"for the second", 1)
    assert second.others() == [(f"{root}/t", b"for the second", 1, False)]
    assert first.inbox.empty()


# --- shared subscriptions -------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_two_workers_share_the_work(connect: Make, root: str, version: str, qos: int) -> None:
    """[4.8.2] each message to one of them"""
    publisher = connect("p", version)
    workers = [connect(name, version) for name in ("a", "b")]
    for worker in workers:
        assert worker.subscribe(f"$share/{root}/{root}/+", qos) == [qos]
    for each in range(60):
        publisher.publish(f"{root}/{each % 3}", b"%d" % each, qos)
    shares = [[int(message[1]) for message in worker.others(publisher)] for worker in workers]
    assert sorted(shares[0] + shares[1]) == [*range(60)]
    assert all(shares)


# --- the properties of 5.0 ------------------------------------------------------------------------


@AT_EVERY_QOS
def test_the_properties_of_a_message_arrive_unaltered(connect: Make, root: str, qos: int) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] to [MQTT-3.3.2-20]"""
    client = connect("c", "5.0")
    client.subscribe(f"{root}/#", SubscriptionIdentifier=268_435_455)
    said: dict[str, Any] = {
        "PayloadFormatIndicator": 1,
        "ContentType": "text/plain; Größe",
        "ResponseTopic": f"{root}/antwort/ü",
        "CorrelationData": bytes(range(256)),
        "UserProperty": [("b", "2"), ("a", "1"), ("b", ""), ("ü", "🌡")],
    }
    client.publish(f"{root}/t", "größe".encode(), qos, **said)
    assert seen(client.inbox.get(timeout=PATIENCE)) == said | {
        "SubscriptionIdentifier": [268_435_455]
    }


def test_what_remains_of_an_expiry_interval_is_told(connect: Make, root: str) -> None:
    """[MQTT-3.3.2-6]"""
    client = connect("c", "5.0")
    client.subscribe(f"{root}/t")
    client.publish(f"{root}/t", qos=1, MessageExpiryInterval=100_000)
    interval = seen(client.inbox.get(timeout=PATIENCE))["MessageExpiryInterval"]
    assert 99_000 < interval <= 100_000


def test_overlapping_subscriptions_tell_all_their_identifiers(connect: Make, root: str) -> None:
    """[MQTT-3.3.4-3] to [MQTT-3.3.4-5]: in one copy or in several"""
    client = connect("c", "5.0")
    client.subscribe(f"{root}/a", SubscriptionIdentifier=1)
    client.subscribe(f"{root}/+", SubscriptionIdentifier=2)
    client.subscribe(f"{root}/b", SubscriptionIdentifier=3)
    client.publish(f"{root}/a", qos=1)
    client.publish(f"{root}/last", qos=1)
    found: list[int] = []
    while (message := client.inbox.get(timeout=PATIENCE)).topic != f"{root}/last":
        found += seen(message)["SubscriptionIdentifier"]
    assert sorted(found) == [1, 2]


@AT_EVERY_QOS
def test_an_alias_stands_for_its_topic(connect: Make, root: str, qos: int) -> None:
    """[MQTT-3.3.2-12]: it can be given another topic, and belongs to one connection"""
    client = connect("c", "5.0")
    client.subscribe(f"{root}/#")
    client.publish(f"{root}/ä", b"1", qos, TopicAlias=1)
    client.publish("", b"2", qos, TopicAlias=1)
    client.publish(f"{root}/b", b"3", qos, TopicAlias=1)
    client.publish("", b"4", qos, TopicAlias=1)
    expected = [("ä", b"1"), ("ä", b"2"), ("b", b"3"), ("b", b"4")]
    received = [client.inbox.get(timeout=PATIENCE) for _ in expected]
    assert [facts(each) for each in received] == [
        (f"{root}/{topic}", payload, qos, False) for topic, payload in expected
    ]
    # [MQTT-3.1.2-27] this client has allowed no alias in the other direction
    assert all("TopicAlias" not in seen(each) for each in received)


def test_an_alias_that_nobody_has_set_ends_the_connection(connect: Make, root: str) -> None:
    """[3.3.2.3.4] an alias that the receiver does not know is a Protocol Error"""
    client = connect("c", "5.0")
    said = properties(PacketTypes.PUBLISH, {"TopicAlias": 7})
    client.paho.publish("", b"x", 1, properties=said)
    assert client.ends.get(timeout=PATIENCE) == (True, 0x82)


def test_a_request_is_answered_where_it_says(connect: Make, root: str) -> None:
    """[4.10] response topic and correlation data, as a requester and a responder use them"""
    requester, responder = connect("requester", "5.0"), connect("responder", "5.0")
    requester.subscribe(f"{root}/answers/+")
    responder.subscribe(f"{root}/requests")
    for each in range(3):
        requester.publish(
            f"{root}/requests",
            b"%d" % each,
            1,
            ResponseTopic=f"{root}/answers/{each}",
            CorrelationData=b"\x00%d" % each,
        )
    for _ in range(3):
        request = responder.inbox.get(timeout=PATIENCE)
        said = seen(request)
        responder.publish(
            said["ResponseTopic"],
            b"answer " + request.payload,
            1,
            CorrelationData=said["CorrelationData"],
        )
    for each in range(3):
        answer = requester.inbox.get(timeout=PATIENCE)
        assert facts(answer) == (f"{root}/answers/{each}", b"answer %d" % each, 1, False)
        assert seen(answer) == {"CorrelationData": b"\x00%d" % each}


# --- refusals -------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
def test_one_client_too_many_is_told_so(make: Make, root: str, version: str) -> None:
    """[MQTT-3.2.2-7] (3.1.1: [MQTT-3.2.2-5]): return code 3, or the reason code Server busy"""
    with Process("--maximum-connections", "1") as process:
        first, second = (make(name, version, to=process) for name in "ab")
        assert first.open() == (False, 0)
        # paho translates the return code of 3.1.1 to a reason code of 5.0.
        assert second.open() == (False, 0x89 if version == "5.0" else 0x88)
        first.subscribe(f"{root}/t", 0)
        first.publish(f"{root}/t", b"still here")
        assert first.receive() == [(f"{root}/t", b"still here", 0, False)]


def test_an_authentication_method_that_nobody_knows_is_refused(make: Make) -> None:
    """[MQTT-4.12.0-1]"""
    client = make("c", "5.0", AuthenticationMethod="unheard of")
    assert client.open() == (False, 0x8C)


def test_the_version_before_3_1_1_is_refused(broker: Process, root: str) -> None:
    """[MQTT-3.1.2-1] [MQTT-3.1.2-2]: closed, with CONNACK 0x01 or without a word"""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=root,
        protocol=mqtt.MQTTv31,
        reconnect_on_failure=False,
    )
    ends: Queue[bool] = Queue()
    client.on_connect = lambda _c, _u, _f, reason, _p: ends.put(reason.is_failure)
    client.on_disconnect = lambda _c, _u, _f, reason, _p: ends.put(reason.is_failure)
    client.connect(*broker.address)
    client.loop_start()
    assert ends.get(timeout=PATIENCE)
    client.loop_stop()


@ON_ALL_VERSIONS
def test_one_subscription_too_many_is_refused_alone(connect: Make, root: str, version: str) -> None:
    """[MQTT-3.8.4-6] (3.1.1: [MQTT-3.9.3-2]): a code for each filter, and 3.1.1 has one for all"""
    with Process("--maximum-subscriptions", "2") as process:
        client = connect("c", version, to=process)
        client.paho.subscribe([(f"{root}/{each}", qos) for each, qos in enumerate((1, 2, 0))])
        assert client.subacks.get(timeout=PATIENCE) == [1, 2, 0x97 if version == "5.0" else 0x80]
        for each in (2, 0):
            client.publish(f"{root}/{each}", b"x", 1)
        assert client.receive() == [(f"{root}/0", b"x", 1, False)]


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_nobody_publishes_under_the_brokers_own_topics(
    connect: Make, root: str, version: str, qos: int
) -> None:
    """[3.4.2.1] [3.5.2.1] 0x87; 3.1.1 cannot say so, and acknowledges [MQTT-3.3.5-2]"""
    client = connect("c", version)
    client.subscribe(f"$SYS/{root}")
    client.subscribe(root)
    reason = client.publish(f"$SYS/{root}", b"forged", qos)
    if version == "3.1.1":
        assert reason == 0
    elif qos == 1:
        assert reason == 0x87
    else:
        # paho answers even this PUBREC with a PUBREL, against [MQTT-4.3.3-4], and reports what
        # the PUBCOMP says: that there is no such identifier [MQTT-4.3.3-11].
        assert reason == 0x92
    assert client.publish(root, b"fine", qos) == 0
    assert client.others() == [(root, b"fine", qos, False)]


@ON_ALL_VERSIONS
def test_a_packet_too_large_ends_the_connection(connect: Make, root: str, version: str) -> None:
    """[3.1.2.11.4] [3.2.2.3.6] 0x95; the largest that is allowed passes"""
    with Process("--maximum-packet-size", "2000") as process:
        client = connect("c", version, to=process)
        topic = "t" * 100
        client.subscribe(topic)
        # One byte of header, two of length, two before the topic; 5.0 has no properties in one.
        room = 2_000 - 3 - 2 - 100 - (version == "5.0")
        client.publish(topic, bytes(room))
        assert client.receive() == [(topic, bytes(room), 0, False)]
        client.paho.publish(topic, bytes(room + 1))
        from_server, reason = client.ends.get(timeout=PATIENCE)
        if version == "5.0":
            assert (from_server, reason) == (True, 0x95)
        else:
            assert not from_server


# --- in bulk --------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_two_thousand_messages_arrive_once_and_in_order(
    connect: Make, root: str, version: str, qos: int
) -> None:
    """[MQTT-4.6.0-5] (3.1.1: [MQTT-4.6.0-6])"""
    publisher, subscriber = connect("p", version), connect("s", version)
    subscriber.subscribe(f"{root}/t")
    infos = [publisher.paho.publish(f"{root}/t", b"%d" % n, qos) for n in range(2_000)]
    expected = [(f"{root}/t", b"%d" % n, qos, False) for n in range(2_000)]
    assert subscriber.receive(2_000) == expected
    for info in infos:
        info.wait_for_publish(PATIENCE)
        assert info.is_published()
    assert subscriber.others() == []
