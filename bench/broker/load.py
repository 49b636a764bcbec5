"""The load of a bench: the clients of `semel load`, without stamps and without an account.

What a broker takes for one message is less than Python takes for looking at it. So the packets were
encoded before, deliveries at QoS 0 are counted by their bytes, and above it nothing is read of them
but packet identifiers, which are cut out by slicing. Only where times are wanted each message says
when it left.
"""

import socket
from collections.abc import Callable
from typing import Protocol

from bench.broker.contenders import HOST
from bench.broker.wire import Prepared, encode_connect, encode_stream
from semel.lab.load.account import DeliveryAccount, Latencies
from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.description import Load
from semel.lab.load.links import Links, open_socket
from semel.lab.load.traffic import Counts, Traffic
from semel.lab.load.wire import PacketSource, Stamped, layout_of

PREFIX = "bench"


class Driven(Protocol):
    """What can be driven: so many messages, of which `received` should be `sent * fan_out`."""

    fan_out: int

    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    def step(self) -> None: ...
    def finish(self) -> None: ...


def connect(port: int, version: int, client_id: str) -> socket.socket:
    """A connected client; its socket blocks."""
    return open_socket((HOST, port), encode_connect(version, client_id), version)[0]


def links(port: int, version: int) -> Links:
    """For the clients of one run."""
    return Links((HOST, port), version)


def build(
    load: Load,
    links: Links,
    *,
    sources: list[PacketSource] | None = None,
    latencies: Latencies | None = None,
    encode: Callable[[int, str], bytes] = encode_connect,
) -> Traffic:
    """The clients of a load, connected and subscribed, each by its own CONNECT.

    Each publisher sends what its source gives: prepared packets, or, where latencies are wanted,
    packets that are stamped.
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
        account = None if latencies is None else DeliveryAccount(load.lanes(number), latencies)
        subscribers[number] = Subscriber(link, layout, account)
    return Traffic(load, links, publishers, subscribers, Counts.alone(), size=layout.size)


def source_of(load: Load, publisher: int, *, stamped: bool) -> PacketSource:
    """What a publisher sends to its topics."""
    if stamped:
        return Stamped(load, PREFIX, publisher)
    names = tuple(load.topic_name(PREFIX, topic) for topic in load.written_by(publisher))
    return Prepared(encode_stream(load.version, names, load.payload, load.qos))
