"""Attacks: what a client can send to keep a broker busy.

An attack is one client or several, in their own process. It prepares (subscribes, retains messages,
leaves sessions behind), and then sends the same bytes repeatedly, as fast as the broker accepts
them. It reads and discards what it receives.
"""

import argparse
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from multiprocessing.synchronize import Event
from typing import Final

from bench.broker.contenders import HOST
from bench.broker.devices import fast_publishers
from bench.broker.strangers import stranger_attacks
from bench.broker.wire import encode_connect
from semel.mqtt import (
    MQTT5,
    Connect,
    Decoder,
    PingReq,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Will,
    encode,
)

_CHUNK: Final = 256 * 1024
_MEGABYTE: Final = 1024 * 1024
# Unacknowledged messages: fewer than any of these brokers allows.
_AT_A_TIME: Final = 10
# Wills are due while the pair is measured; their sessions outlive the connections until then.
_LATER: Final = Properties(will_delay_interval=3)


@dataclass(frozen=True)
class Attack:
    """`prepare` is sent once, `repeat` repeatedly, on each of its connections.

    `before` has what other clients send first, each with its CONNECT; they are cut when each has
    got a response. With `returns`, its session has that many unacknowledged messages, and it
    reconnects for each `repeat`.
    """

    name: str
    title: str
    prepare: tuple[bytes, ...]
    repeat: tuple[bytes, ...]
    before: tuple[bytes, ...] = ()
    connections: int = 1
    returns: int = 0


def attacks() -> Iterator[Attack]:
    """All attacks, built lazily, because some take a second to build."""
    ping = encode(PingReq())
    yield Attack("pings", "PINGREQ without end", (), (ping * (_CHUNK // 2),))
    yield Attack("flood", "QoS 0 messages without end", (), (_published(["flood"] * 20_000),))
    echo = _subscribe(["echo"])
    yield Attack("echo", "the same, to itself", (echo,), (_published(["echo"] * 20_000),))
    yield Attack(
        "topics",
        "1,000,000 topics at QoS 0",
        (),
        tuple(
            _published([f"t/{block * 10_000 + number}" for number in range(10_000)])
            for block in range(100)
        ),
    )
    filters = ["/".join(levels) for levels in product("a+", repeat=9)]
    tail = "/+" * 119
    yield Attack(
        "levels",
        "512 filters of levels a or +, topics of 128 levels",
        _in_parts([f"{topic_filter}{tail}" for topic_filter in filters]),
        tuple(
            _published(["a/" * 9 + f"{block * 500 + number}" + "/c" * 118 for number in range(500)])
            for block in range(40)
        ),
    )
    yield Attack(
        "shares",
        "1,000 shared groups of #",
        _in_parts([f"$share/g{number}/#" for number in range(1_000)]),
        (_published([f"s/{number}" for number in range(1_000)]),),
    )
    overlapping = ["/".join(levels) + "/+" for levels in product("a+", repeat=10)][:1_000]
    yield Attack(
        "overlapping",
        "1,000 filters that match the same topics",
        _in_parts(overlapping),
        tuple(
            _published(["a/" * 10 + f"{block * 2_000 + number}" for number in range(2_000)])
            for block in range(20)
        ),
    )
    retained = b"".join(
        encode(Publish(f"r/{number}", b"x", retain=True)) for number in range(1_000)
    )
    yield Attack(
        "subscribe",
        "a SUBSCRIBE of 1 MB: # 200,000 times; 1,000 retained messages",
        (retained,),
        tuple(_subscribe(["#"] * 200_000, packet_id) for packet_id in range(1, 10)),
    )
    many = b"".join(encode(Publish(f"r/{number}", b"x", retain=True)) for number in range(50_000))
    yield Attack(
        "retained",
        "# subscribed to again and again; 50,000 retained messages",
        (many,),
        tuple(_subscribe(["#"], packet_id) for packet_id in range(1, 20_000)),
    )
    properties = Properties(user_properties=[("", "")] * 200_000)
    yield Attack(
        "properties",
        "a PUBLISH with 200,000 user properties",
        (),
        (encode(Publish("p", b"x", properties=properties)),),
    )
    yield Attack(
        "many",
        "QoS 0 messages on 100 connections",
        (),
        (_published(["many"] * 2_000),),
        connections=100,
    )
    yield Attack(
        "offline",
        "100 shared groups of 500 members that are away",
        (),
        (_published(["offline"] * 100),),
        before=tuple(
            _connect(f"member-{number}")
            + _subscribe([f"$share/g{group}/offline" for group in range(100)])
            for number in range(500)
        ),
    )
    deep = "/".join(["+"] * 128)
    yield Attack(
        "wills",
        "3,000 wills that are due in the same second, topics of 128 levels",
        (_subscribe([deep]),),
        (ping,),
        before=tuple(
            _connect(f"will-{number}", Will("/".join([f"{number}"] * 128), b"x", properties=_LATER))
            for number in range(3_000)
        ),
    )
    yield Attack(
        "returning",
        "reconnects to a session with 65,535 messages, none acknowledged",
        (),
        (ping,),
        returns=65_535,
    )


def parse_attacks(text: str) -> list[str]:
    """Names of attacks, comma-separated; empty: all."""
    selected = text.split(",") if text else []
    unknown = set(selected) - {
        *(attack.name for attack in attacks()),
        *(attack.name for attack in stranger_attacks()),
        *(each.name for each in fast_publishers()),
    }
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no attack {', '.join(sorted(unknown))}")
    return selected


def run_attack(attack: Attack, port: int, seconds: float, begun: Event) -> None:
    """Attack a broker, and reconnect when it closes a connection. Sets `begun` at the start."""
    with contextlib.ExitStack() as visitors:
        for data in attack.before:
            visitors.enter_context(_visit(port, data))
    if attack.returns:
        _fill_session(port, "attacker-0", attack.returns)
    begun.set()
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_attack, args=(attack, port, f"attacker-{number}", end))
        for number in range(attack.connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attack(attack: Attack, port: int, client_id: str, end: float) -> None:
    connect = _connect(client_id) if attack.returns else encode_connect(MQTT5, client_id)
    while time.monotonic() < end:
        try:
            with socket.create_connection((HOST, port), timeout=5) as sock:
                sock.setblocking(False)
                _send(sock, connect, end)
                for data in attack.prepare:
                    _send(sock, data, end)
                while time.monotonic() < end:
                    for data in attack.repeat:
                        _send(sock, data, end)
                    if attack.returns:
                        _read_some(sock)
                        break
        except OSError:
            time.sleep(0.01)


def _visit(port: int, data: bytes) -> socket.socket:
    """A connection that has sent `data` and received a response."""
    sock = socket.create_connection((HOST, port), timeout=30)
    sock.sendall(data)
    sock.recv(_CHUNK)
    return sock


def _fill_session(port: int, client_id: str, count: int) -> None:
    """Publish messages to a session from another client, a few at a time."""
    with (
        _visit(port, _connect(client_id) + _subscribe(["own"], qos=1)),
        _visit(port, encode_connect(MQTT5, "filler")) as sock,
    ):
        decoder = Decoder(MQTT5)
        for first in range(0, count, _AT_A_TIME):
            size = min(_AT_A_TIME, count - first)
            numbers = range(1, size + 1)
            sock.sendall(b"".join(encode(Publish("own", b"12345678", 1, at)) for at in numbers))
            acknowledged = 0
            while acknowledged < size:
                data = sock.recv(_CHUNK)
                if not data:
                    raise OSError("closed")
                acknowledged += sum(isinstance(each, PubAck) for each in decoder.receive(data))


def _read_some(sock: socket.socket) -> None:
    """Read once, with a timeout."""
    sock.settimeout(1.0)
    if not sock.recv(_MEGABYTE):
        raise OSError("closed")


def _send(sock: socket.socket, data: bytes, end: float) -> None:
    """Send everything, and discard what arrives. Raises OSError if the broker closes."""
    view = memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while view and time.monotonic() < end:
            for _, events in selector.select(0.1):
                if events & selectors.EVENT_READ and not sock.recv(_MEGABYTE):
                    raise OSError("closed")
                if events & selectors.EVENT_WRITE:
                    view = view[sock.send(view[:_CHUNK]) :]


def _connect(client_id: str, will: Will | None = None) -> bytes:
    """CONNECT with a durable session."""
    properties = Properties(session_expiry_interval=600)
    return encode(Connect(client_id, clean_start=False, will=will, properties=properties))


def _subscribe(filters: list[str], packet_id: int = 1, *, qos: int = 0) -> bytes:
    return encode(Subscribe(packet_id, [Subscription(each, qos) for each in filters]))


def _in_parts(filters: list[str]) -> tuple[bytes, ...]:
    """Several SUBSCRIBE packets, each with its own identifier."""
    return tuple(_subscribe(filters[at : at + 100], at + 1) for at in range(0, len(filters), 100))


def _published(topic_names: list[str]) -> bytes:
    return b"".join(encode(Publish(topic_name, b"x")) for topic_name in topic_names)
