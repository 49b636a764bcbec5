"""The load of a bench: the clients of `semel load`, without stamps and without tracking.

A broker needs less time for a message than Python needs to decode it. So packets are encoded in
advance, deliveries at QoS 0 are counted by their bytes, and at QoS 1 and 2 only packet identifiers
are read, by slicing. Only if latencies are measured, each message has its send time.
"""

import socket
from collections.abc import Callable
from typing import Protocol

from bench.broker.contenders import HOST
from bench.broker.wire import Prepared, encode_connect, encode_stream
from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.delivery_tracker import DeliveryTracker, Latencies
from semel.lab.load.description import Load
from semel.lab.load.links import Links, open_socket
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
    """The blocking socket of a connected client."""
    return open_socket((HOST, port), encode_connect(version, client_id), version)[0]


def links(port: int, version: int) -> Links:
    """The connections of one run."""
    return Links((HOST, port), version)


def build(
    load: Load,
    links: Links,
    *,
    sources: list[PacketSource] | None = None,
    latencies: Latencies | None = None,
    encode: Callable[[int, str], bytes] = encode_connect,
) -> Traffic:
    """Connect and subscribe the clients of a load.

    Each publisher sends the packets of its source: prepared ones, or stamped ones if latencies are
    measured.
    """
    layout = layout_of(load.version, load.topic_name(PREFIX, 0), load.payload, load.qos)
    publishers: dict[int, Publisher] = {}
    subscribers: dict[int, Subscriber] = {}
    for number in range(load.publishers):
        link, _ = links.open(encode(load.version, f"publisher-{number}"))
        source = sources[number] if sources else source_of(load, number, stamped=bool(latencies))
        window = load.acknowledgements
        publishers[number] = Publisher(link, source, qos=load.qos, window=window)
    for number in range(load.subscribers):
        filters = load.topic_filters(PREFIX, number)
        link, _ = links.open(encode(load.version, f"subscriber-{number}"), filters, load.qos)
        tracker = None if latencies is None else DeliveryTracker(load.lanes(number), latencies)
        subscribers[number] = Subscriber(link, layout, tracker)
    return Traffic(load, links, publishers, subscribers, SharedCounts.single(), size=layout.size)


def source_of(load: Load, publisher: int, *, stamped: bool) -> PacketSource:
    """The packets of a publisher."""
    if stamped:
        return StampedPackets(load, PREFIX, publisher)
    names = tuple(load.topic_name(PREFIX, topic) for topic in load.written_by(publisher))
    return Prepared(encode_stream(load.version, names, load.payload, load.qos))
