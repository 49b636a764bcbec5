"""`python -m bench soak`: whether the broker's memory stays flat while clients come and go.

Up to `CROWD` clients of both versions are connected at a time. At random one of them subscribes (to
new topics, with and without wildcards), unsubscribes, publishes at QoS 0, 1 or 2, sets or deletes a
retained message, or leaves: with DISCONNECT, or abruptly in the middle of an exchange. Most
sessions end with their connection. Some are durable, and queue messages: those of 5.0 expire after
a second or two, or are resumed; those of 3.1.1 are resumed, and end with a clean start. Everything
that exists at a time is bounded, so a broker that frees what has ended needs no more memory after
an hour than after a minute.
"""

import random
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from bench.broker.contenders import HOST, SEMEL, Process, separate_processors, started
from semel.lab.load.links import LinkError
from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Violation,
    encode,
)

CROWD: Final = 60
# The maximum number of sessions without a client; beyond it the oldest is resumed.
WAITING: Final = 40
RETAINED: Final = 300
# Limits per client: subscriptions, and unacknowledged messages.
FILTERS: Final = 8
UNANSWERED: Final = 20
# After this many steps, wait until the broker has answered one more packet.
STEPS: Final = 50
STUCK_SECONDS: Final = 20.0

SAMPLE_SECONDS: Final = 2.0
# The share of the time that is ignored at the beginning, and the growth that counts as flat: the
# regression line of the other samples rises by less than this fraction of their mean.
WARM_UP: Final = 0.25
FLAT: Final = 0.03

# The second, and KB of resident memory.
Sample = tuple[float, int]

ROWS: Final = 10
BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass
class Client:
    """One connection and its session."""

    link: socket.socket
    client_id: str
    version: int
    is_durable: bool
    decoder: Decoder
    filters: list[str] = field(default_factory=list)
    unanswered: set[int] = field(default_factory=set)
    packet_id: int = 0
    connected: bool = False
    leaving: bool = False

    def send(self, packet: Packet) -> None:
        """Send. Clients send little: if the socket is full, the broker does not read."""
        data = encode(packet, self.version)
        if self.link.send(data) != len(data):
            raise BlockingIOError

    def next_id(self) -> int:
        """A free packet identifier; few are in use at a time."""
        self.packet_id = self.packet_id % 65_535 + 1
        return self.packet_id


@dataclass
class Totals:
    """Counters."""

    lives: int = 0
    published: int = 0
    delivered: int = 0
    refused: int = 0


class Churn:
    """All clients, and the random generator."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.dice = random.Random(1)
        self.epoll = select.epoll()
        self.clients: dict[int, Client] = {}
        # Client identifier and version of durable sessions without a client, oldest first.
        self.waiting: dict[str, int] = {}
        self.number = 0
        self.answered = False
        self.totals = Totals()
        # A client that stays connected, to check whether the broker keeps up.
        self.steady = self._connect("steady", MQTT311, is_durable=False, clean_start=True)

    def close(self) -> None:
        """Cut all clients."""
        for client in list(self.clients.values()):
            self._close(client)
        self.epoll.close()

    def steps(self) -> None:
        """Make some steps, and wait until the broker has caught up."""
        for _ in range(STEPS):
            self._step()
        self.answered = False
        self.steady.send(PingReq())
        deadline = time.monotonic() + STUCK_SECONDS
        while not self.answered:
            if time.monotonic() > deadline:
                raise LinkError("the broker does not answer any more")
            self._receive_all(0.1)

    def _step(self) -> None:
        """One random action of one client; then all clients read."""
        if len(self.waiting) > WAITING:
            self._return()
        elif len(self.clients) < CROWD:
            self._arrive()
        client = self.dice.choice(list(self.clients.values()))
        if client.connected and client is not self.steady:
            try:
                self._act(client)
            except OSError:
                self._refused(client)
        self._receive_all(0)

    def _arrive(self) -> None:
        self.number += 1
        version = self.dice.choice((MQTT311, MQTT5))
        is_durable = self.dice.random() < 0.2
        self._connect(
            f"client-{self.number}", version, is_durable=is_durable, clean_start=not is_durable
        )

    def _return(self) -> None:
        """Resume a session, or end it."""
        client_id = next(iter(self.waiting))
        ends = self.dice.random() < 0.5
        version = self.waiting.pop(client_id)
        self._connect(client_id, version, is_durable=not ends, clean_start=ends)

    def _connect(
        self, client_id: str, version: int, *, is_durable: bool, clean_start: bool
    ) -> Client:
        properties = NO_PROPERTIES
        if version == MQTT5 and is_durable:
            properties = Properties(session_expiry_interval=self.dice.randint(1, 2))
        link = socket.create_connection((HOST, self.port), 5)
        link.setblocking(False)
        client = Client(link, client_id, version, is_durable, Decoder(version))
        client.send(
            Connect(client_id, version=version, clean_start=clean_start, properties=properties)
        )
        self.clients[link.fileno()] = client
        self.epoll.register(link.fileno(), select.EPOLLIN)
        self.totals.lives += 1
        return client

    def _act(self, client: Client) -> None:
        chance = self.dice.random()
        if client.leaving or chance > 0.95:
            self._leave(client)
        elif chance < 0.15:
            self._subscribe(client)
        elif chance < 0.20 and client.filters:
            topic_filter = client.filters.pop(0)
            client.send(Unsubscribe(client.next_id(), [topic_filter]))
        else:
            self._publish(client)

    def _subscribe(self, client: Client) -> None:
        if len(client.filters) >= FILTERS:
            return
        dice = self.dice
        self.number += 1
        topic_filter = dice.choice(
            (
                f"churn/{self.number}/x",
                f"churn/{self.number}/+",
                f"+/{self.number}/#",
                f"kept/{dice.randrange(RETAINED)}",
                f"shared/{dice.randrange(5)}/+",
                f"shared/{dice.randrange(5)}/{dice.randrange(10)}",
            )
        )
        if topic_filter not in client.filters:
            client.filters.append(topic_filter)
            client.send(
                Subscribe(client.next_id(), [Subscription(topic_filter, dice.randrange(3))])
            )

    def _publish(self, client: Client) -> None:
        dice = self.dice
        qos = dice.randrange(3)
        if qos and len(client.unanswered) >= UNANSWERED:
            return
        payload = dice.randbytes(dice.choice((0, 10, 100, 1000)))
        retain = dice.random() < 0.2
        if retain:
            # An empty payload deletes.
            topic_name = f"kept/{dice.randrange(RETAINED)}"
        elif dice.random() < 0.5:
            topic_name = f"shared/{dice.randrange(5)}/{dice.randrange(10)}"
        else:
            topic_name = f"churn/{max(1, self.number - dice.randrange(500))}/x"
        packet_id = client.next_id() if qos else 0
        if packet_id:
            client.unanswered.add(packet_id)
        client.send(Publish(topic_name, payload, qos, packet_id, retain=retain))
        self.totals.published += 1

    def _leave(self, client: Client) -> None:
        """Leave, with DISCONNECT or without. If the session is resumed later, drain it first."""
        client.leaving = True
        if client.is_durable and client.unanswered:
            return
        if self.dice.random() < 0.5:
            client.send(Disconnect())
        # Some sessions expire by themselves.
        if client.is_durable and (client.version == MQTT311 or self.dice.random() < 0.5):
            self.waiting[client.client_id] = client.version
        self._close(client)

    def _close(self, client: Client) -> None:
        del self.clients[client.link.fileno()]
        self.epoll.unregister(client.link.fileno())
        client.link.close()

    def _refused(self, client: Client) -> None:
        """The broker closed a connection, for which it has no reason here."""
        self.totals.refused += 1
        self._close(client)
        if client.is_durable:
            # Its session would exist forever.
            self._connect(client.client_id, client.version, is_durable=False, clean_start=True)

    def _receive_all(self, seconds: float) -> None:
        for number, _ in self.epoll.poll(seconds):
            client = self.clients[number]
            if not self._receive(client):
                self._refused(client)

    def _receive(self, client: Client) -> bool:
        """Read and acknowledge; False if the broker has closed, or sent an invalid packet."""
        try:
            data = client.link.recv(65_536)
            for item in client.decoder.receive(data):
                if isinstance(item, Violation):
                    return False
                self._answer(client, item)
        except OSError:
            return False
        return bool(data)

    def _answer(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.totals.delivered += 1
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                client.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
        elif isinstance(packet, PubRec):
            client.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubAck | PubComp):
            client.unanswered.discard(packet.packet_id)
        elif isinstance(packet, ConnAck):
            client.connected = True
        elif isinstance(packet, PingResp):
            self.answered = True


def slope(samples: list[Sample]) -> float:
    """The slope of the regression line, in KB per second."""
    mean_time = sum(at for at, _ in samples) / len(samples)
    mean = sum(resident for _, resident in samples) / len(samples)
    spread = sum((at - mean_time) ** 2 for at, _ in samples)
    return sum((at - mean_time) * (resident - mean) for at, resident in samples) / spread


def sparkline(values: list[int]) -> str:
    low, high = min(values), max(values)
    step = (high - low) / (len(BARS) - 1) or 1
    return "".join(BARS[int((value - low) / step)] for value in values)


def churn_for(seconds: float, churn: Churn, process: Process) -> list[Sample]:
    """Samples while clients churn; prints the table as it grows."""
    samples: list[Sample] = []
    began = time.monotonic()
    row = 1
    print("| minute | resident KB | clients so far | published | delivered |")
    print("|---:|---:|---:|---:|---:|", flush=True)
    while (elapsed := time.monotonic() - began) < seconds or row <= ROWS:
        churn.steps()
        if elapsed < SAMPLE_SECONDS * len(samples):
            continue
        totals, resident = churn.totals, process.resident_kb()
        samples.append((elapsed, resident))
        if sys.stderr.isatty():
            # The next row of the table overwrites it.
            print(f"{elapsed:,.0f} of {seconds:,.0f} s", end="\r", file=sys.stderr, flush=True)
        if elapsed >= seconds * row / ROWS:
            row += 1
            print(
                f"| {elapsed / 60:.1f} | {resident:,} | {totals.lives:,} "
                f"| {totals.published:,} | {totals.delivered:,} |",
                flush=True,
            )
    return samples


def growth_verdict(samples: list[Sample], minutes: float) -> tuple[bool, str]:
    """Whether memory is flat, and a line that says so."""
    measured = [sample for sample in samples if sample[0] >= minutes * 60 * WARM_UP]
    if len(measured) < 3:
        return False, "✗ too short for a verdict"
    mean = sum(resident for _, resident in measured) / len(measured)
    rise = slope(measured)
    growth = rise * (measured[-1][0] - measured[0][0]) / mean
    is_flat = growth < FLAT
    return is_flat, (
        f"{'✓ flat' if is_flat else '✗ growing'}: after the first {WARM_UP:.0%} of {minutes:g} "
        f"minutes {rise * 60:+.1f} KB a minute, {growth:+.1%} of {mean:,.0f} KB in all "
        f"(flat is less than {FLAT:.0%})"
    )


def complaints(log: str) -> list[str]:
    """Lines of the broker's log that these clients did not cause."""
    signs = ("broke a rule", "too slowly", "cannot be sent", "failed", "Exception")
    return [line for line in log.splitlines() if any(sign in line for sign in signs)]


def first_traceback(log: str) -> str:
    """The first exception in the log, if there is one."""
    lines = log[max(0, log.find("Traceback")) :].splitlines()
    end = next((at for at, line in enumerate(lines[1:], 1) if line[:1] != " "), 0)
    return "\n".join(lines[: end + 1]) if "Traceback" in log else ""


def soak(minutes: float) -> int:
    """Run and print. 1 if memory grows, or if the broker closed a connection without reason."""
    seconds = minutes * 60
    with separate_processors() as processors, started(SEMEL, processors) as process:
        churn = Churn(process.port)
        try:
            samples = churn_for(seconds, churn, process)
        except (LinkError, OSError) as problem:
            print(f"✗ the broker has died or hangs: {problem}")
            print(first_traceback(process.log.read_text(errors="replace")))
            return 1
        finally:
            churn.close()
        log = process.log.read_text(errors="replace")
    is_flat, verdict = growth_verdict(samples, minutes)
    every = -(-len(samples) // 60)
    refused, found = churn.totals.refused, complaints(log)
    print(f"\n{sparkline([resident for _, resident in samples[::every]])}")
    print(f"{refused} clients closed by the broker, {len(found)} unexpected lines in its log")
    if found:
        print("\n".join([*found[:5], first_traceback(log)]))
    print(verdict)
    return 0 if is_flat and not refused and not found else 1
