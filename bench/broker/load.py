"""The load of a bench: the clients of `semel load`, without stamps and without tracking.

A broker needs less time for a message than Python needs to decode it. So packets are encoded in
advance, deliveries at QoS 0 are counted by their bytes, and at QoS 1 and 2 only packet identifiers
are read, by slicing. Only if latencies are measured, each message has its send time.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from bench.broker.configurations import HOST, TCP, TLS, WSS
from bench.broker.wire import CYCLE, Prepared, encode_connect, encode_stream
from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.delivery_tracker import DeliveryTracker, Latencies
from semel.lab.load.description import Load
from semel.lab.load.links import Links, open_socket
from semel.lab.load.streams import Stream, open_stream
from semel.lab.load.traffic import SharedCounts, Traffic
from semel.lab.load.wire import PacketSource, StampedPackets, layout_of

PREFIX = "bench"


class Driven(Protocol):
    """A load to drive: `received` should become `sent * fan_out`."""

    fan_out: int

    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    def step(self) -> None: ...
    def finish(self) -> None: ...


def connect(port: int, version: int, client_id: str) -> socket.socket:
    """The blocking socket of a client that is connected by TCP."""
    return open_socket((HOST, port), encode_connect(version, client_id), version)[0]


def links(port: int, version: int, transport: str = TCP) -> Links:
    """The connections of one run."""
    if transport == TCP:
        return Links((HOST, port), version)
    return Links((HOST, port), version, connect=connector(port, transport))


def connector(port: int, transport: str) -> Callable[[], Stream]:
    """A function that opens a blocking connection. The certificate is not verified."""
    context = None
    if transport in (TLS, WSS):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    scheme = {TCP: "mqtt", TLS: "mqtts"}.get(transport, transport)
    return partial(open_stream, scheme, (HOST, port), "/mqtt", context)


def build(
    load: Load,
    links: Links,
    *,
    sources: list[PacketSource] | None = None,
    latencies: Latencies | None = None,
    encode: Callable[[int, str], bytes] = encode_connect,
    prefix: str = PREFIX,
) -> Traffic:
    """Connect and subscribe the clients of a load.

    Each publisher sends the packets of its source: prepared ones, or stamped ones if latencies are
    measured. `prefix` is the start of topics and client identifiers.
    """
    layout = layout_of(load.version, load.topic_name(prefix, 0), load.payload, load.qos)
    publishers: dict[int, Publisher] = {}
    subscribers: dict[int, Subscriber] = {}
    for number in range(load.publishers):
        link, _ = links.open(encode(load.version, f"{prefix}-publisher-{number}"))
        if sources:
            source = sources[number]
        else:
            source = source_of(load, number, prefix=prefix, stamped=latencies is not None)
        window = load.acknowledgements
        publishers[number] = Publisher(link, source, qos=load.qos, window=window)
    for number in range(load.subscribers):
        filters = load.topic_filters(prefix, number)
        client_id = f"{prefix}-subscriber-{number}"
        link, _ = links.open(encode(load.version, client_id), filters, load.qos)
        tracker = None if latencies is None else DeliveryTracker(load.lanes(number), latencies)
        subscribers[number] = Subscriber(link, layout, tracker)
    return Traffic(load, links, publishers, subscribers, SharedCounts.single(), size=layout.size)


def source_of(load: Load, publisher: int, *, prefix: str, stamped: bool) -> PacketSource:
    """The packets of a publisher."""
    if stamped:
        return StampedPackets(load, prefix, publisher)
    names = tuple(load.topic_name(prefix, topic) for topic in load.written_by(publisher))
    cycle = CYCLE
    if load.writers == 1:
        # Each publisher has a block of its own.
        cycle = max(2 * load.acknowledgements, CYCLE // load.publishers)
    return Prepared(encode_stream(load.version, names, load.payload, load.qos, cycle=cycle))


def paced(traffic: Traffic, rate: float) -> Traffic:
    """The same clients, with this many messages per second of each publisher."""
    size = next(iter(traffic.subscribers.values())).layout.size
    return Traffic(
        replace(traffic.load, rate=rate),
        traffic.links,
        traffic.publishers,
        traffic.subscribers,
        SharedCounts.single(),
        size=size,
    )
