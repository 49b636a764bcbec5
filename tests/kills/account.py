"""The account: what was sent, acknowledged, taken and recorded, and what is wrong with that.

Every message has a name of its own, publisher and counter, which is in its payload. A message is
*due* when its publisher was told that it is safe (PUBACK, PUBCOMP), a will when its connection was
accepted and then cut. What is due must be taken by everyone who subscribed; what arrives at QoS 2
must be taken once, what arrives at QoS 1 at least once, and no taker may see a publisher's
messages of one QoS in another order than that in which they were first sent [MQTT-4.6.0-5].
"""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

# What must become of a message.
MAYBE = "may come"
DUE = "must come"
NEVER = "may not come"

# The name of the taker that is a stream: it has every message, in rows.
RECORD = "record"

# What happens to a message that is answered, but perhaps not accepted.
REFUSED = "refused"

# Publisher and counter.
Key = tuple[str, int]

# So many messages of one fault are shown; the rest is counted.
SHOWN = 10


class Named(NamedTuple):
    """What a payload says about its message."""

    key: Key
    qos: int


def payload_of(publisher: str, n: int, qos: int, size: int = 0) -> bytes:
    """A payload that says whose it is, and that shows if a byte of it is missing."""
    head = f"{publisher} {n} {qos} {size} ".encode()
    return head + b"x" * size


def read_payload(payload: bytes) -> Named:
    """Raises ValueError if this is no payload of ours, or not a whole one."""
    publisher, n, qos, size, rest = payload.split(b" ", 4)
    if rest != b"x" * int(size):
        raise ValueError(f"{len(rest)} bytes where {int(size)} were sent")
    return Named((publisher.decode(), int(n)), int(qos))


class Sent:
    """One message at its publisher. Lives count the broker's processes, from 1."""

    __slots__ = ("audience", "begun", "done", "fate", "lives", "qos", "topic", "tries")

    def __init__(self, topic: str, qos: int, fate: str = MAYBE, audience: str | None = None):
        self.topic = topic
        self.qos = qos
        self.fate = fate
        # The one taker beside the record that gets it; None: all whose subscriptions match.
        self.audience = audience
        # How often its PUBLISH was written to a socket.
        self.tries = 0
        # What happened, and in which life of the broker.
        self.lives: dict[str, int] = {}
        # When it was first sent, and when its fate was decided; infinite: unknown.
        self.begun = math.inf
        self.done = math.inf

    def story(self) -> str:
        seen = ", ".join(f"{what} in life {life}" for what, life in self.lives.items())
        return f"{self.topic}, QoS {self.qos}, {self.fate}, {self.tries} tries: {seen}"


class Taker:
    """One subscriber, or the members of a shared subscription together."""

    def __init__(self, name: str, qos: int, prefixes: tuple[str, ...], *, order: str = "qos"):
        self.name = name
        self.qos = qos
        self.prefixes = prefixes
        # What keeps its order: a publisher's messages of one "qos", all that a "publisher" sent,
        # or, with "", nothing.
        self.order = order
        # message to the life in which it was first taken
        self.takes: dict[Key, int] = {}
        # message to the lives in which it was taken again
        self.again: dict[Key, list[int]] = {}
        # how often a message came without DUP
        self.fresh: dict[Key, int] = {}
        self.last: dict[tuple[str, int], int] = {}
        self.disorder: list[tuple[Key, int]] = []

    def take(self, named: Named, life: int, *, dup: bool | None = None) -> None:
        key = named.key
        if dup is False and min(named.qos, self.qos) == 1:
            self.fresh[key] = self.fresh.get(key, 0) + 1
        if key in self.takes:
            self.again.setdefault(key, []).append(life)
            return
        self.takes[key] = life
        # QoS 0 waits for nothing, and may overtake.
        if not self.order or not named.qos:
            return
        line = (key[0], named.qos if self.order == "qos" else 0)
        if key[1] < self.last.get(line, -1):
            self.disorder.append((key, self.last[line]))
        else:
            self.last[line] = key[1]

    def wants(self, sent: Sent) -> bool:
        if sent.audience is not None and self.name != RECORD:
            return sent.audience == self.name
        return sent.topic.startswith(self.prefixes)

    def repeats(self, key: Key) -> int:
        return len(self.again.get(key, ()))


@dataclass
class Pair:
    """What one taker got of one publisher's messages of one QoS."""

    publisher: str
    qos: int
    taker: str
    sent: int = 0
    acknowledged: int = 0
    taken: int = 0
    repeats: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0


# The columns that can be summed up.
COUNTS = ("sent", "acknowledged", "taken", "repeats", "lost", "doubled", "disordered")


@dataclass
class Verdict:
    """The sum of it all."""

    pairs: list[Pair] = field(default_factory=list)
    # kind of fault to the messages concerned
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.faults

    def count(self, what: str) -> int:
        return sum(getattr(pair, what) for pair in self.pairs)

    def blame(self, kind: str, text: str) -> None:
        self.faults.setdefault(kind, []).append(text)

    def as_json(self) -> dict[str, object]:
        return {"pairs": [asdict(pair) for pair in self.pairs], "faults": self.faults}

    def by_taker(self) -> list[Pair]:
        """The pairs of one taker and one QoS summed up."""
        sums: dict[tuple[str, int], Pair] = {}
        for pair in self.pairs:
            key = (pair.taker, pair.qos)
            total = sums.setdefault(key, Pair("(all)", pair.qos, pair.taker))
            for name in COUNTS:
                setattr(total, name, getattr(total, name) + getattr(pair, name))
        return list(sums.values())

    def describe(self, *, every_pair: bool = False) -> str:
        """The table, and the first faults of each kind."""
        lines = table(self.pairs if every_pair else self.by_taker())
        return "\n".join([*lines, *self.fault_lines()])

    def fault_lines(self) -> list[str]:
        """The first faults of each kind."""
        lines: list[str] = []
        for kind, found in self.faults.items():
            lines += ["", f"{kind}: {len(found)}", *(f"  {text}" for text in found[:SHOWN])]
        return lines


def table(pairs: Iterable[Pair]) -> list[str]:
    """A line for each pair."""
    columns = list(Pair.__dataclass_fields__)
    rows = [columns, *([str(getattr(pair, name)) for name in columns] for pair in pairs)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    # Names to the left, numbers to the right.
    return [
        "  ".join(
            cell.ljust(width) if name in ("publisher", "taker") else cell.rjust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        )
        for row in rows
    ]


class Ledger:
    """Everything that the clients know, gathered while they run."""

    def __init__(self) -> None:
        self.life = 0
        self.sent: dict[Key, Sent] = {}
        self.takers: dict[str, Taker] = {}
        # Faults that show at once: kind and text.
        self.seen: list[tuple[str, str]] = []

    def fault(self, kind: str, text: str) -> None:
        self.seen.append((kind, f"life {self.life}: {text}"))

    def submit(
        self, key: Key, topic: str, qos: int, *, fate: str = MAYBE, audience: str | None = None
    ) -> Sent:
        """A message that is sent for the first time."""
        sent = self.sent[key] = Sent(topic, qos, fate, audience)
        sent.lives["first sent"] = self.life
        sent.begun = time.monotonic()
        return sent

    def mark(self, key: Key, what: str, life: int, fate: str | None = None) -> None:
        """Something happened to a message, which may decide its fate."""
        sent = self.sent[key]
        sent.lives[what] = life
        if fate is not None:
            sent.fate = fate
            sent.done = time.monotonic()

    def owed(self, taker: Taker) -> list[Key]:
        """What the taker must take and has not."""
        return [
            key
            for key, sent in self.sent.items()
            if sent.fate is DUE and key not in taker.takes and taker.wants(sent)
        ]

    def tell(self, key: Key) -> str:
        """All that is known about one message: where it was last seen."""
        sent = self.sent.get(key)
        story = sent.story() if sent else "never sent"
        takers = [
            f"{taker.name} in life {taker.takes[key]}"
            + "".join(f" and {life}" for life in taker.again.get(key, ()))
            for taker in self.takers.values()
            if key in taker.takes
        ]
        return f"{key[0]} {key[1]} ({story}); taken by {', '.join(takers) or 'nobody'}"

    def verdict(self) -> Verdict:
        verdict = Verdict()
        for kind, text in self.seen:
            verdict.blame(kind, text)
        for taker in self.takers.values():
            self._settle(taker, verdict)
        for key, sent in self.sent.items():
            if sent.fate is MAYBE and sent.qos and not {"will", REFUSED} & sent.lives.keys():
                verdict.blame("unfinished", self.tell(key))
        return verdict

    def _settle(self, taker: Taker, verdict: Verdict) -> None:
        """Compare what one taker took with what it should have."""
        pairs: dict[tuple[str, int], Pair] = {}
        for key, sent in self.sent.items():
            count = key in taker.takes
            if not taker.wants(sent):
                if count:
                    verdict.blame("came to the wrong taker", f"{taker.name}: {self.tell(key)}")
                continue
            pair = pairs.get((key[0], sent.qos))
            if pair is None:
                pair = pairs[key[0], sent.qos] = Pair(key[0], sent.qos, taker.name)
            pair.sent += 1
            pair.acknowledged += sent.fate is DUE
            pair.taken += count
            if count and sent.fate is NEVER:
                verdict.blame("came though it may not", f"{taker.name}: {self.tell(key)}")
            if sent.fate is DUE and not count:
                pair.lost += 1
                verdict.blame("lost", f"not taken by {taker.name}: {self.tell(key)}")
            if taker.repeats(key):
                if min(sent.qos, taker.qos) == 1:
                    pair.repeats += taker.repeats(key)
                else:
                    pair.doubled += taker.repeats(key)
                    verdict.blame("doubled", f"by {taker.name}: {self.tell(key)}")
            if taker.fresh.get(key, 0) > sent.tries > 0:
                verdict.blame("more often than sent", f"{taker.name}: {self.tell(key)}")
        for key in taker.takes:
            if key not in self.sent:
                verdict.blame("never sent", f"{taker.name}: {self.tell(key)}")
        for key, before in taker.disorder:
            sent_before = self.sent.get(key)
            pair = pairs.get((key[0], sent_before.qos)) if sent_before else None
            if pair is not None:
                pair.disordered += 1
            verdict.blame("out of order", f"{taker.name}, after {before}: {self.tell(key)}")
        verdict.pairs += sorted(pairs.values(), key=lambda pair: (pair.qos, pair.publisher))
