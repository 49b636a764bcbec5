"""How much one attacking client affects two others: the latency of 50 messages per second.

A run has a new broker, a pair of clients that measures, and an attacker: a client (`attacks.py`),
or one that never becomes a client (`strangers.py`), on a listener of its own. A message
that has not arrived at the end counts with the time it was awaited. Finally the broker gets
SIGTERM, which it should obey at once. In some runs 200 devices measure instead of the pair, beside
a publisher that is only fast (`devices.py`).
"""

import multiprocessing
import os
import select
import signal
import socket
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from bench.broker.attacks import Attack, attacks, run_attack
from bench.broker.configurations import PLAIN, TCP, TLS, USERS, WS, Configuration
from bench.broker.contenders import (
    DURABLE,
    HOST,
    MOSQUITTO,
    SEMEL,
    Process,
    started,
    version_of,
)
from bench.broker.devices import FastPublisher, fast_publishers, run_publisher, watch_devices
from bench.broker.strangers import StrangerAttack, run_strangers, stranger_attacks
from bench.broker.wire import encode_connect
from semel.lab.load.delivery_tracker import Latencies
from semel.mqtt import (
    MQTT5,
    Decoder,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Violation,
    encode,
)

ALL_LISTENERS: Final = Configuration((TCP, TLS, WS, USERS))
SECONDS: Final = 6.0
INTERVAL: Final = 0.02
TOPIC: Final = "innocent/of/all"
# Targets in milliseconds and in seconds.
P99_TARGETS: Final = {SEMEL: 50.0, DURABLE: 100.0}
STOP_TARGET: Final = 1.0
NAMES: Final = (SEMEL, DURABLE, MOSQUITTO)


@dataclass
class AttackResult:
    """One attack on one broker: latencies in ms per round, and how long SIGTERM took."""

    attack: str
    title: str
    contender: str
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    stop: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def measure_fairness(rounds: int, contenders: list[str], only: list[str]) -> list[AttackResult]:
    """Every attack on every broker; progress goes to standard error."""
    selected = [*contenders, DURABLE] if SEMEL in contenders else contenders
    names = [name for name in NAMES if name in selected and version_of(name) is not None]
    results: list[AttackResult] = []
    for attack in chain(attacks(), stranger_attacks(), fast_publishers()):
        if only and attack.name not in only:
            continue
        cells = [AttackResult(attack.name, attack.title, name) for name in names]
        results += cells
        for number in range(1, rounds + 1):
            for cell in cells:
                what = f"{attack.name} {cell.contender}"
                print(f"bench: round {number}/{rounds}, {what} … ", end="", file=sys.stderr)
                sys.stderr.flush()
                run(attack, cell)
                print(
                    f"p50 {cell.p50[-1]:.1f}, p99 {cell.p99[-1]:.1f}, worst {cell.worst[-1]:.1f} "
                    f"ms, stop {cell.stop[-1]:.2f} s",
                    file=sys.stderr,
                )
    return results


def run(attack: Attack | StrangerAttack | FastPublisher, cell: AttackResult) -> None:
    """One attack on one broker."""
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    configuration = ALL_LISTENERS if isinstance(attack, StrangerAttack) else PLAIN
    with started(cell.contender, os.sched_getaffinity(0), configuration) as process:
        if isinstance(attack, StrangerAttack):
            begun.set()
            port = process.ports[attack.listener]
            attacker = fork.Process(target=run_strangers, args=(attack, port, SECONDS + 2))
        else:
            target = run_publisher if isinstance(attack, FastPublisher) else run_attack
            attacker = fork.Process(target=target, args=(attack, process.port, SECONDS + 4, begun))
        attacker.daemon = True
        attacker.start()
        try:
            begun.wait(60)
            time.sleep(1.0)
            if isinstance(attack, FastPublisher):
                latencies = watch_devices(process.port, SECONDS)
                if attack.load is not None and not attacker.is_alive():
                    print("the publisher has ended, ", end="", file=sys.stderr)
            else:
                latencies = Latencies()
                for latency in watch(process.port, qos=1 if cell.contender == DURABLE else 0):
                    latencies.add(int(latency * 1e9))
            cell.stop.append(stop(process))
        finally:
            attacker.terminate()
            attacker.join()
    cell.p50.append(latencies.quantile(0.5) / 1e6)
    cell.p99.append(latencies.quantile(0.99) / 1e6)
    cell.worst.append(latencies.longest / 1e6)


def stop(process: Process) -> float:
    """How long a broker takes after SIGTERM until it refuses connections."""
    began = time.monotonic()
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        return 0.0
    while time.monotonic() < began + 20:
        try:
            socket.create_connection((HOST, process.port), timeout=0.2).close()
        except OSError:
            break
        time.sleep(0.01)
    return time.monotonic() - began


def watch(port: int, *, qos: int) -> list[float]:
    """The latencies of a pair, in seconds."""
    with (
        socket.create_connection((HOST, port), timeout=30) as publisher,
        socket.create_connection((HOST, port), timeout=30) as subscriber,
    ):
        for sock, name in ((publisher, "innocent-p"), (subscriber, "innocent-s")):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(encode_connect(MQTT5, name))
        subscriber.sendall(encode(Subscribe(1, [Subscription(TOPIC, qos)])))
        decoder = Decoder(MQTT5)
        if not is_subscribed(subscriber, decoder):
            return [SECONDS]
        sent: dict[int, float] = {}
        latencies: list[float] = []
        began = time.monotonic()
        number = 0
        while (now := time.monotonic()) < began + SECONDS:
            if now >= began + number * INTERVAL:
                sent[number] = now
                packet_id = number + 1 if qos else 0
                publisher.sendall(encode(Publish(TOPIC, b"%d" % number, qos, packet_id)))
                number += 1
            wait = max(0.0, began + number * INTERVAL - time.monotonic())
            readable = select.select([subscriber, publisher], [], [], wait)[0]
            if publisher in readable and not publisher.recv(65_536):
                break
            if subscriber in readable:
                data = subscriber.recv(65_536)
                if not data:
                    break
                now = time.monotonic()
                for packet in decoder.receive(data):
                    assert not isinstance(packet, Violation), packet
                    if isinstance(packet, Publish):
                        latencies.append(now - sent.pop(int(packet.payload)))
                        if qos:
                            subscriber.sendall(encode(PubAck(packet.packet_id)))
        now = time.monotonic()
        return latencies + [now - at for at in sent.values()] or [SECONDS]


def is_subscribed(subscriber: socket.socket, decoder: Decoder) -> bool:
    """Wait for SUBACK before anything is published; False if it does not arrive."""
    subscriber.settimeout(SECONDS)
    try:
        while data := subscriber.recv(4_096):
            if any(isinstance(each, SubAck) for each in decoder.receive(data)):
                subscriber.settimeout(30)
                return True
    except OSError:
        pass
    return False


def fairness_lines(results: list[AttackResult]) -> list[str]:
    """A Markdown table of the p99 in ms: medians of the rounds."""
    names = [name for name in NAMES if any(cell.contender == name for cell in results)]
    lines = [
        f"| p99 (worst) in ms beside | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for title in dict.fromkeys(cell.title for cell in results):
        cells = {cell.contender: cell for cell in results if cell.title == title}
        figures = [
            f"{statistics.median(cells[name].p99):.1f} ({statistics.median(cells[name].worst):.0f})"
            for name in names
        ]
        lines.append(f"| {title} | {' | '.join(figures)} |")
    return [*lines, ""]


def fairness_targets(results: list[AttackResult]) -> list[str]:
    """Whether latencies and the time to stop meet their targets."""
    targets: list[str] = []
    for name, bound in P99_TARGETS.items():
        ours = [cell for cell in results if cell.contender == name]
        if ours:
            p99 = max(statistics.median(cell.p99) for cell in ours)
            stops = max(statistics.median(cell.stop) for cell in ours)
            targets += [
                f"{'✓' if p99 < bound else '✗'} {name}: innocent clients have a p99 below "
                f"{bound:.0f} ms beside every attacker: {p99:.1f} ms",
                f"{'✓' if stops < STOP_TARGET else '✗'} {name}: SIGTERM is heard within "
                f"{STOP_TARGET:.0f} s: {stops:.2f} s",
            ]
    return targets
