"""What a seed stands for: a plan of the participants, and a list of actions.

Both are plain values. An action has its own numbers, so removing some actions does not change the
others: a failing schedule replays exactly, and can be shrunk.
"""

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.mqtt.packet_types import MQTT5, MQTT311

# The roles of clients.
PUBLISHER: Final = "publisher"
SUBSCRIBER: Final = "subscriber"
WORKER: Final = "worker"  # a member of a shared subscription
VISITOR: Final = "visitor"  # its session ends with its connection

NEVER: Final = 0xFFFF_FFFF

# The topics and filters of all clients; wills have topics of their own.
TOPICS: Final = ("a", "a/b", "c/d", "r/1", "r/2")
FILTERS: Final = ("#", "a/#", "a", "+/b", "c/d", "r/+")
SHARED_FILTER: Final = "$share/g/a/#"

# The relative frequency of each action.
WEIGHTS: Final = {
    "publish": 16,
    "step": 9,
    "rush": 4,
    "settle": 2,
    "up": 5,
    "down": 4,
    "tick": 4,
    "apply": 4,
    "report": 4,
    "connect": 9,
    "cut": 6,
    "crash": 4,
    "stop": 1,
    "wait": 4,
    "subscribe": 3,
    "unsubscribe": 1,
    "disconnect": 1,
    "ping": 1,
    "repeat": 1,
    "answer": 2,
    "seal": 6,
    "compact": 1,
    "space": 4,
    "behind": 1,
    "stall": 2,
    "fault": 4,
    "heal": 1,
    "rights": 12,
    "theft": 2,
}
KINDS: Final = tuple(WEIGHTS)
_CUMULATED: Final = tuple(sum(list(WEIGHTS.values())[: at + 1]) for at in range(len(WEIGHTS)))


class Action(NamedTuple):
    """An action: its kind, the client, and two numbers as parameters."""

    kind: str
    who: int
    a: int
    b: int

    def __str__(self) -> str:
        return f"{self.kind} {self.who} {self.a} {self.b}"


@dataclass(frozen=True)
class Part:
    """One client: its role, and how it behaves."""

    name: str
    role: str
    version: int
    # Its Session Expiry Interval.
    expiry: int
    receive_maximum: int
    # QoS of its subscriptions, if it has any.
    qos: int
    # It acknowledges (lazy) or reads (slow) only when an action says so.
    lazy: bool = False
    slow: bool = False
    # It takes the lowest free Packet Identifier instead of the next.
    thrifty: bool = False
    # It publishes without waiting for CONNACK.
    eager: bool = False
    # Its Will Delay Interval; None: it has no will.
    will_delay: int | None = None
    will_qos: int = 1
    will_retain: bool = False
    # Its keep alive in seconds; 0: none.
    keep_alive: int = 0


@dataclass(frozen=True)
class Plan:
    """The participants, and the limits of the broker."""

    seed: int
    parts: tuple[Part, ...]
    # name, filter
    streams: tuple[tuple[str, str], ...]
    inflight_window: int = 200
    receive_maximum: int = 200
    maximum_outgoing: int = 1 << 23
    maximum_queued: int = 10_000
    # How long a publisher waits for a slow subscriber, and a 5.0 client on a full disk.
    slow_subscriber_timeout: float = 0.5
    full_disk_timeout: float = 10.0
    # Deliveries that a session keeps in memory.
    queue_window: int = 1_000
    # How many commits a step leaves pending, to simulate a slow disk.
    lag: int = 0
    # Whether queues are small enough to overflow.
    bounded: bool = False
    # Whether everything is restarted at the end, to check that nothing changes.
    again: bool = False
    # Whether rights and user names change.
    changes_rights: bool = False


class Schedule(NamedTuple):
    """A plan and its actions."""

    plan: Plan
    actions: list[Action]


def schedule_of(seed: int) -> Schedule:
    """The schedule that this seed stands for."""
    choose = random.Random(seed)
    plan = _plan(seed, choose)
    actions: list[Action] = []
    for who in range(len(plan.parts)):
        actions.append(Action("connect", who, 0, 0))
    actions.append(Action("settle", 0, 2, 0))
    for who, part in enumerate(plan.parts):
        if part.role != PUBLISHER:
            actions.append(Action("subscribe", who, choose.randrange(1 << 16), 0))
    if choose.random() < 0.8:
        actions.append(Action("settle", 0, 2, 0))
    count = choose.randint(20, 60)
    for kind in choose.choices(KINDS, cum_weights=_CUMULATED, k=count):
        who = choose.randrange(len(plan.parts))
        if kind == "rights" and not plan.changes_rights:
            kind = "publish"
        if kind == "publish" and plan.parts[who].role != PUBLISHER:
            # Mostly publishers publish.
            who = choose.randrange(len(plan.parts))
        actions.append(Action(kind, who, choose.randrange(1 << 16), choose.randrange(1 << 16)))
    return Schedule(plan, actions)


def _plan(seed: int, choose: random.Random) -> Plan:
    roles = [PUBLISHER, SUBSCRIBER]
    kind = choose.random()
    if kind < 0.25:
        roles += [WORKER, WORKER]
    elif kind < 0.4:
        roles += [VISITOR]
    elif kind < 0.6:
        roles += [SUBSCRIBER]
    elif kind < 0.7:
        roles += [PUBLISHER, SUBSCRIBER]
    shared_qos = choose.choice((1, 2, 2))
    parts: list[Part] = []
    for at, role in enumerate(roles):
        version = choose.choice((MQTT311, MQTT5))
        expiry = 0
        if role != VISITOR:
            # 3.1.1 has no expiry interval: a session ends with its connection, or never.
            finite = version == MQTT5 and choose.random() < 0.4
            expiry = choose.choice((4, 30)) if finite else NEVER
        slow = role != PUBLISHER and choose.random() < 0.15
        parts.append(
            Part(
                f"{role[0]}{at}",
                role,
                version,
                expiry,
                receive_maximum=_receive_maximum(role, version, choose),
                qos=shared_qos if role == WORKER else choose.choice((1, 2, 2)),
                lazy=role != PUBLISHER and choose.random() < (0.6 if role == WORKER else 0.25),
                slow=slow,
                thrifty=choose.random() < 0.5,
                eager=choose.random() < 0.2,
                will_delay=choose.choice((0, 0, 2, 10)) if choose.random() < 0.4 else None,
                will_qos=choose.choice((0, 1, 2)),
                will_retain=choose.random() < 0.25,
                keep_alive=choose.choice((0, 0, 5)),
            )
        )
    bounded = choose.random() < 0.15
    # Queues that overflow or are handed over should also be longer than the memory window.
    long_queues = bounded or WORKER in roles
    streams: list[tuple[str, str]] = []
    if choose.random() < 0.9:
        streams.append(("all", "#"))
        if choose.random() < 0.3:
            streams.append(("some", "a/#"))
    maximum_outgoing = choose.choice((300, 1 << 23, 1 << 23))
    return Plan(
        seed,
        tuple(parts),
        tuple(streams),
        inflight_window=choose.choice((1, 1, 2) if long_queues else (1, 2, 5, 200)),
        receive_maximum=choose.choice((2, 5, 200)),
        maximum_outgoing=maximum_outgoing,
        maximum_queued=choose.choice((2, 4)) if bounded else 10_000,
        queue_window=choose.choice((1, 1, 2, 1_000) if long_queues else (1, 2, 4, 1_000)),
        lag=choose.choice((0, 0, 1, 2)),
        bounded=bounded,
        again=choose.random() < 0.3,
        # If subscribers get behind quickly, publishers wait for longer than their keep alive.
        slow_subscriber_timeout=20.0 if maximum_outgoing < 1_000 else 0.5,
        changes_rights=choose.random() < 0.5,
    )


def _receive_maximum(role: str, version: int, choose: random.Random) -> int:
    if version != MQTT5:
        return 65_535
    return choose.choice((1, 2) if role == WORKER else (1, 2, 3, 100))
