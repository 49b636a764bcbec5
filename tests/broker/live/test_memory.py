"""Every bound in bytes, held against the resident memory of a real broker that is filled to it.

The bounds are small, so that each test takes seconds. What a process takes beside them (its code,
buffers, what the allocator keeps) is in `SLACK`; `FACTOR` is what docs/operate/broker.md promises:
what is counted may take up to twice as much as its bound.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from semel.mqtt import (
    MQTT311,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import Link, healthy_pair, link, publish, text

MIB = 1024 * 1024
FACTOR = 2
SLACK = 12 * MIB
KEPT = Properties(session_expiry_interval=1_000)


def peak(process_id: int) -> int:
    """The most bytes of memory that a process has had."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")


@contextmanager
def within(broker: Process, bound: int) -> Iterator[None]:
    """What happens here takes no more memory than the bound allows."""
    before = peak(broker.process.pid)
    yield
    grown = peak(broker.process.pid) - before
    assert grown <= FACTOR * bound + SLACK, f"{grown / MIB:.1f} MiB for {bound / MIB:.1f} MiB"


def test_small_messages_for_many_sessions_take_what_may_be_unwritten(tmp_path: Path) -> None:
    """30 KB of QoS 1 in one piece are 100,000 rows, if 100 durable sessions wait for them"""
    bound = 4 * MIB
    count = 1_000
    with Process("--data", str(tmp_path), "--maximum-unwritten-bytes", str(bound)) as broker:
        for number in range(100):
            with link(broker.address, version=MQTT311) as away:
                assert away.connect(f"away{number}", clean_start=False).reason == 0
                away.subscribe("t", qos=1)
        with link(broker.address, "publisher", MQTT311) as publisher, within(broker, bound):
            flood = [Publish("t", b"%012d" % n, qos=1, packet_id=n + 1) for n in range(count)]
            publisher.send_bytes(b"".join(encode(packet, MQTT311) for packet in flood))
            assert publisher.take(count) == [PubAck(n + 1) for n in range(count)]
        # All of it was taken: whoever comes back has it, in its order.
        with link(broker.address, version=MQTT311) as back:
            back.connect("away99", clean_start=False)
            received = back.take(200)
            assert [p.payload for p in received if isinstance(p, Publish)] == [
                b"%012d" % n for n in range(200)
            ]


def test_packets_without_their_end_take_what_may_be_unfinished() -> None:
    """1,000 of 1 MiB were held for ever"""
    bound = 8 * MIB
    data = encode(Publish("t", bytes(MIB - 100)))[:-1]
    with (
        Process("--maximum-unfinished-bytes", str(bound)) as broker,
        healthy_pair(broker.address) as pair,
        ExitStack() as links,
    ):
        pair.exchange()
        with within(broker, bound):
            clients = [links.enter_context(link(broker.address, f"half{n}")) for n in range(100)]
            for client in clients:
                client.send_bytes(data)
            # The last is served, the first were closed for it.
            clients[-1].send_bytes(b"\x00" + encode(PingReq()))
            clients[-1].take(1)


# Empty user properties, and an expiry that every transmission has anew.
PAIRS = 4_500
PROPERTIES = b"\x02\x00\x00\xff\xff" + b"\x26\x00\x00\x00\x00" * PAIRS
# 1,000 of these messages are 30 MB on the wire, and were 800 MB as objects.
COUNT = 40


def check_bomb(packet: Packet) -> None:
    """It arrives as it was sent."""
    assert isinstance(packet, Publish)
    assert packet.properties.user_properties == (("", ""),) * PAIRS
    assert packet.properties.message_expiry_interval is not None


def test_queued_properties_take_what_may_be_queued() -> None:
    """64 MiB of them took 1.8 GB"""
    bound = MIB
    with Process("--maximum-queued-bytes", str(bound)) as broker:
        with link(broker.address) as away:
            away.connect("away", properties=KEPT)
            away.subscribe("t", qos=1)
        with link(broker.address, "publisher") as publisher:
            data = publish(b"t", qos=1, properties=PROPERTIES)
            publisher.send_bytes(data)
            publisher.take(1)
            with within(broker, bound):
                for _ in range(COUNT):
                    publisher.send_bytes(data)
                    publisher.take(1)
        with link(broker.address) as back:
            back.connect("away", clean_start=False, properties=KEPT)
            check_bomb(back.take(1)[0])


def test_messages_without_an_acknowledgement_take_what_may_be_in_flight() -> None:
    """400 of 1 MB took 400 MB, with any maximum_memory: nothing bounded them but their number"""
    inflight, queued = 4 * MIB, MIB
    flags = ("--maximum-inflight-bytes", str(inflight), "--maximum-queued-bytes", str(queued))
    with (
        Process(*flags) as broker,
        link(broker.address, "reader") as reader,
        link(broker.address, "publisher") as publisher,
    ):
        reader.subscribe("t", qos=1)
        sent: list[Packet] = []
        with within(broker, inflight + queued):
            for number in range(1, 101):
                publisher.send(Publish("t", bytes(500_000), qos=1, packet_id=number))
                publisher.take(1)
                sent += reader.take(1) if len(sent) < 9 else reader.within(0.01)
        # Nobody has acknowledged anything yet; then it goes on.
        assert len(sent) == 9
        reader.send(PubAck(1))
        reader.take(1)


def test_retained_properties_take_what_may_be_retained() -> None:
    """250 MB of them took 6.6 GB"""
    bound = MIB
    with Process("--maximum-retained-bytes", str(bound)) as broker:
        with link(broker.address, "publisher") as publisher:
            publisher.send_bytes(publish(b"r", properties=PROPERTIES))
            publisher.ping()
            with within(broker, bound):
                for number in range(COUNT):
                    data = publish(b"r/%d" % number, properties=PROPERTIES)
                    # RETAIN
                    publisher.send_bytes(b"\x31" + data[1:])
                publisher.ping()
        with link(broker.address, "late") as late:
            late.subscribe("r/1")
            check_bomb(late.take(1)[0])


def test_subscriptions_take_what_they_may() -> None:
    """Deep filters that share nothing took 1.2 GB"""
    bound = 3 * MIB
    filters = ["/".join(f"{number}.{level}" for level in range(100)) for number in range(900)]
    with Process("--maximum-subscription-bytes", str(bound)) as broker:
        with ExitStack() as links:
            clients = [links.enter_context(link(broker.address, f"c{n}")) for n in range(3)]
            with within(broker, bound):
                refused = 0
                for number, client in enumerate(clients):
                    # Packets are no larger than 300 KB, or they would be what is measured.
                    for start in range(300 * number, 300 * (number + 1), 100):
                        chosen = filters[start : start + 100]
                        client.send(Subscribe(1, [Subscription(f"{f}/#", 1) for f in chosen]))
                        (suback,) = client.take(1)
                        assert isinstance(suback, SubAck)
                        refused += suback.reasons.count(0x97)
            assert 700 < refused < 890
        # What they had is free when they are gone.
        with link(broker.address, "next") as client:
            client.subscribe(f"{filters[-1]}/#", qos=1)


def test_topic_aliases_take_what_they_may() -> None:
    """100 for each of 10,000 connections, each of 64 KB, took 1.2 GB before they were all there"""
    connections, each = 20, 64 * 1024
    with Process("--topic-levels", "1") as broker, ExitStack() as links:
        clients = [links.enter_context(link(broker.address, f"c{n}")) for n in range(connections)]
        with within(broker, connections * each):
            for client in clients:
                # Without a bound these are 4 MB.
                for alias in range(1, 71):
                    topic = b"%d" % alias + b"x" * 60_000
                    client.send_bytes(publish(topic, properties=b"\x23\x00" + bytes([alias])))
                    client.send(PingReq())
                    (answer,) = client.take(1)
                    if isinstance(answer, Disconnect):
                        assert answer.reason == 0x97
                        break
                # The first may be as long as it likes.
                assert alias == 2


def test_sockets_without_a_connect_take_what_they_may() -> None:
    """As many as there may be, each with as much of a CONNECT as is taken"""
    count, each = 100, 64 * 1024
    # It says that it is as long as it may be, and lacks its last bytes.
    begun = b"\x10\xfc\xff\x03" + text(b"MQTT") + bytes([5, 0x04, 0, 0]) + bytes(each - 100)
    with (
        Process("--maximum-unconnected", str(count)) as broker,
        link(broker.address, "here") as here,
        ExitStack() as links,
        within(broker, count * each),
    ):
        for _ in range(10 * count):
            opened = Link(broker.address)
            links.callback(opened.close)
            with suppress(ConnectionError):
                opened.send_bytes(begun)
        here.ping()


def test_topics_that_are_remembered_take_what_the_cache_of_routes_does() -> None:
    """About a kilobyte for each entry; 24,000 topics, of which it keeps a twelfth"""
    entries = 2_000
    with (
        Process("--route-cache", str(entries), "--maximum-retained", "1") as broker,
        link(broker.address, "publisher") as publisher,
        within(broker, entries * 1_024),
    ):
        for start in range(0, 12 * entries, 500):
            numbers = range(start, start + 500)
            publisher.send(*(Publish(f"route/{'x' * 400}/{n}", b"") for n in numbers))
            publisher.ping()


def test_queued_messages_of_one_byte_take_500_bytes_each() -> None:
    """Their bytes are not what they take: docs/operate/broker.md says what a delivery does"""
    count = 10_000
    with (
        Process("--maximum-queued-messages", str(count)) as broker,
        link(broker.address, "publisher", MQTT311) as publisher,
    ):
        with link(broker.address) as away:
            away.connect("away", properties=KEPT)
            away.subscribe("t", qos=1)
        publisher.ping()
        # Without a bound these are 50 MB.
        flood = [Publish("t", b"x", qos=1, packet_id=n + 1) for n in range(500)]
        data = b"".join(encode(packet, MQTT311) for packet in flood)
        with within(broker, count * 500):
            for _ in range(200):
                publisher.send_bytes(data)
                publisher.take(500)


def test_sessions_take_what_their_number_allows() -> None:
    """Eight times as many clients as there may be sessions; each leaves one behind, with a will"""
    count, each = 500, 12 * 1024
    will = Will("w", bytes(8 * 1024), properties=Properties(will_delay_interval=1_000))
    with (
        Process("--maximum-sessions", str(count)) as broker,
        link(broker.address, "here") as here,
        within(broker, count * each),
    ):
        for number in range(8 * count):
            with link(broker.address) as away:
                away.send(Connect(f"away{number}", properties=KEPT, will=will))
                away.take(1)
        here.ping()


def test_topic_aliases_towards_clients_take_what_they_may() -> None:
    """The broker chooses them, from topics that others choose"""
    readers, each = 3, 64 * 1024
    flags = ("--client-topic-aliases", "1000", "--maximum-alias-bytes", str(each))
    with (
        Process("--topic-levels", "1", "--route-cache", "1", *flags) as broker,
        link(broker.address, "publisher") as publisher,
        ExitStack() as links,
    ):
        clients = [links.enter_context(link(broker.address)) for _ in range(readers)]
        for number, client in enumerate(clients):
            client.connect(f"reader{number}", properties=Properties(topic_alias_maximum=1_000))
            client.subscribe("#")
        with within(broker, readers * each):
            aliased = 0
            for topic in range(600):
                # Without a bound these are 24 MB.
                publisher.send_bytes(publish(b"%d" % topic + b"x" * 40_000))
                for client in clients:
                    (packet,) = client.take(1)
                    assert isinstance(packet, Publish)
                    aliased += packet.properties.topic_alias is not None
        assert aliased == readers
