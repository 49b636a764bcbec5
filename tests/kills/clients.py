"""What the raw clients do: publish, subscribe, keep retained messages, leave wills, take notes."""

from typing import TYPE_CHECKING

from tests.kills import wire
from tests.kills.account import DUE, NEVER, Key, Named, Taker, payload_of
from tests.kills.raw import OPEN, SUBSCRIBE_ID, Flight, Raw

if TYPE_CHECKING:
    from tests.kills.driver import Driver

# A payload from 4096 bytes on is kept in another way than a smaller one.
LARGE = 5000


class Publisher(Raw):
    """Sends numbered messages to a few topics, as many as its window lets it."""

    def __init__(
        self, driver: "Driver", name: str, version: int, qos: tuple[int, ...], *, window: int
    ) -> None:
        super().__init__(driver, name, version, window=window)
        self.qos = qos
        self.laziness = 0.2

    def work(self, now: float) -> None:
        # In bursts, so that windows are now full and now empty.
        if not self.driver.loading or self.random.random() < 0.3:
            return
        for _ in range(self.random.randrange(1, self.window + 1)):
            qos = self.random.choice(self.qos)
            if (qos and not self.has_room()) or not self.driver.may_submit():
                return
            self.counter += 1
            size = LARGE if self.random.random() < 0.02 else self.random.randrange(100)
            topic = f"load/{self.name}/{self.counter % 3}"
            self.ledger.submit((self.name, self.counter), topic, qos)
            self.driver.submitted += qos > 0
            self.send(
                topic,
                payload_of(self.name, self.counter, qos, size),
                qos,
                key=(self.name, self.counter),
            )
            if not qos:
                return


class Subscriber(Raw):
    """Takes what its filters bring. A sleeper is away now and then, and its messages wait."""

    def __init__(
        self,
        driver: "Driver",
        name: str,
        version: int,
        filters: list[tuple[str, int]],
        taker: Taker,
        *,
        window: int = 20,
        at_once: bool = True,
        sleeps: bool = False,
    ) -> None:
        super().__init__(driver, name, version, window=window)
        self.filters = filters
        self.taker = taker
        self.at_once = at_once
        self.sleeps = sleeps
        self.subscribed = False
        self.laziness = 0.3

    def begin(self, present: bool) -> None:
        if not present:
            self.subscribed = False
        if not self.subscribed:
            self.out += wire.subscribe(SUBSCRIBE_ID, self.filters, self.version)

    def answered(self, packet_id: int, codes: bytes, kind: int) -> None:
        if list(codes) != [qos for _, qos in self.filters]:
            self.fault("subscription refused", f"{self.filters}: {codes.hex()}")
        self.subscribed = True

    def work(self, now: float) -> None:
        if self.sleeps and self.driver.loading and self.random.random() < 0.003:
            self.out += wire.disconnect()
            self.flush()
            self.close()
            self.next_attempt = now + self.random.uniform(0.2, 3)


class Keeper(Raw):
    """Publishes retained messages, and deletes some, always to the same few topics."""

    TOPICS = 8

    def __init__(self, driver: "Driver", name: str, version: int) -> None:
        super().__init__(driver, name, version, window=5)
        # For each topic what was retained there, in order; None: deleted.
        self.history: dict[str, list[int | None]] = {}
        # For each topic the last place of its history that was acknowledged.
        self.safe: dict[str, int] = {}
        self.places: dict[Flight, tuple[str, int]] = {}

    def work(self, now: float) -> None:
        if not self.driver.loading or not self.has_room() or self.random.random() < 0.8:
            return
        number = self.random.randrange(self.TOPICS)
        topic = f"kept/{self.name}/{number}"
        # One QoS for a topic: a QoS 1 message that comes again may well follow a QoS 2 message
        # that was sent later, and has come already.
        qos = 1 + number % 2
        history = self.history.setdefault(topic, [])
        if self.random.random() < 0.1:
            history.append(None)
            flight = self.send(topic, b"", qos, key=None, retain=True)
        else:
            self.counter += 1
            key = (self.name, self.counter)
            self.ledger.submit(key, topic, qos)
            history.append(self.counter)
            flight = self.send(topic, payload_of(*key, qos), qos, key=key, retain=True)
        self.places[flight] = (topic, len(history) - 1)

    def settled(self, flight: Flight) -> None:
        topic, place = self.places.pop(flight)
        self.safe[topic] = max(place, self.safe.get(topic, -1))


class Reader(Raw):
    """Comes clean in each life, and looks whether the retained messages are those they must be."""

    def __init__(self, driver: "Driver", name: str, version: int, keeper: Keeper) -> None:
        super().__init__(driver, name, version, durable=False)
        self.keeper = keeper
        self.checked_life = 0
        self.checks = 0
        self.floor: dict[str, int] = {}
        self.found: dict[str, int] = {}
        self.until = 0.0

    def returns(self, now: float) -> bool:
        return self.checked_life != self.ledger.life and super().returns(now)

    def begin(self, present: bool) -> None:
        self.floor = dict(self.keeper.safe)
        self.found = {}
        self.until = self.driver.now + self.driver.patience
        filters = [(f"kept/{self.keeper.name}/#", 0)]
        self.out += wire.subscribe(SUBSCRIBE_ID, filters, self.version)

    def expects(self, message: wire.Message) -> bool:
        # What the keeper sends while we look is no retained message.
        return message.retain

    def arrived(self, message: wire.Message, topic: str, named: Named) -> None:
        place = self.keeper.history[topic].index(named.key[1])
        self.found[topic] = place
        if place < self.floor.get(topic, -1):
            newer = self.keeper.history[topic][self.floor[topic]]
            self.fault("retained message lost", f"{topic} has {named.key[1]}, not {newer}")

    def take(self, named: Named, dup: bool | None) -> None:
        """What is retained is no message that anybody owes us."""

    def work(self, now: float) -> None:
        missing = [
            topic
            for topic, place in self.floor.items()
            # If it is deleted meanwhile, it need not come.
            if topic not in self.found and None not in self.keeper.history[topic][place:]
        ]
        if missing and now < self.until:
            return
        for topic in missing:
            newest = self.keeper.history[topic][self.floor[topic]]
            self.fault("retained message lost", f"{topic} has nothing, not {newest}")
        self.checked_life = self.life
        self.checks += 1
        self.out += wire.disconnect()
        self.flush()
        self.close()

    def is_done(self) -> bool:
        return self.checked_life == self.ledger.life


class Bearer(Raw):
    """Leaves a will that is another for each connection.

    `delay` is its Will Delay Interval. With `returns_at_once` it is back before that, and the will
    may not come; else it is away until somebody has taken the will.
    """

    def __init__(
        self,
        driver: "Driver",
        name: str,
        version: int,
        *,
        durable: bool,
        delay: int = 0,
        returns_at_once: bool = True,
    ) -> None:
        super().__init__(driver, name, version, durable=durable)
        self.delay = delay
        self.returns_at_once = returns_at_once
        self.key: Key = (name, 0)
        # The will of a connection that said DISCONNECT, and the life it did so in.
        self.parted: tuple[Key, int] | None = None
        # A will that becomes NEVER if we are back in time.
        self.delayed: Key | None = None

    def will(self) -> wire.Will:
        self.key = (self.name, self.connections)
        topic = f"will/{self.name}"
        self.ledger.submit(self.key, topic, 2)
        self.ledger.mark(self.key, "will", self.life)
        return wire.Will(topic, payload_of(*self.key, 2), 2, self.delay)

    def begin(self, present: bool) -> None:
        self.ledger.mark(self.key, "accepted", self.life)
        if self.parted is not None and self.parted[1] == self.life:
            # Our DISCONNECT was read, and this CONNACK came after it was safe.
            self.ledger.mark(self.parted[0], "back after DISCONNECT", self.life, NEVER)
        if self.delayed is not None:
            self.ledger.mark(self.delayed, "back in time", self.life, NEVER)
        self.parted = self.delayed = None

    def work(self, now: float) -> None:
        if self.parted is None and (not self.driver.loading or self.random.random() < 0.005):
            self.parted = (self.key, self.life)
            self.ledger.mark(self.key, "DISCONNECT", self.life)
            # The broker closes: that is how we know that it has read this. So nobody else may.
            self.cut_at = 0.0
            self.out += wire.disconnect()

    def left(self) -> None:
        if self.state != OPEN or self.parted is not None:
            return
        if self.delay and self.returns_at_once:
            self.delayed = self.key
        else:
            self.ledger.mark(self.key, "cut", self.life, DUE)

    def returns(self, now: float) -> bool:
        sent = self.ledger.sent.get(self.key)
        if self.delay and not self.returns_at_once and sent is not None and sent.fate is DUE:
            if self.key not in self.driver.witness.takes:
                return False
        return self.driver.loading and super().returns(now)


class Scribe(Raw):
    """Subscribes and unsubscribes all the time, and sends notes to itself.

    A note to a filter whose SUBACK has come must come back once, one to a filter whose UNSUBACK
    has come may not come back.
    """

    FILTERS = 6

    def __init__(self, driver: "Driver", name: str, version: int, taker: Taker) -> None:
        super().__init__(driver, name, version, window=8)
        self.taker = taker
        self.filters: set[int] = set()
        self.given_up: list[int] = []
        # The filter that a SUBSCRIBE, or an UNSUBSCRIBE, without an answer is about.
        self.joining: int | None = None
        self.leaving: int | None = None
        self.next_filter = 0
        # Notes that have not come back, by filter.
        self.under_way: dict[int, set[Key]] = {}

    def topic(self, number: int) -> str:
        return f"note/{self.name}/{number}"

    def begin(self, present: bool) -> None:
        self._ask()

    def _ask(self) -> None:
        """Say again what was not answered: nobody else does."""
        if self.joining is not None:
            wanted = [(self.topic(self.joining), 2)]
            self.out += wire.subscribe(SUBSCRIBE_ID, wanted, self.version)
        if self.leaving is not None:
            topic = self.topic(self.leaving)
            self.out += wire.unsubscribe(SUBSCRIBE_ID + 1, [topic], self.version)

    def answered(self, packet_id: int, codes: bytes, kind: int) -> None:
        if packet_id == SUBSCRIBE_ID and self.joining is not None:
            if codes != b"\x02":
                self.fault("subscription refused", f"{self.joining}: {codes.hex()}")
            self.filters.add(self.joining)
            self.joining = None
        elif packet_id == SUBSCRIBE_ID + 1 and self.leaving is not None:
            self.given_up.append(self.leaving)
            self.leaving = None

    def work(self, now: float) -> None:
        if not self.driver.loading or self.random.random() < 0.7:
            return
        if self.joining is None and self.leaving is None and self.random.random() < 0.3:
            if len(self.filters) < self.FILTERS:
                self.joining = self.next_filter
                self.next_filter += 1
            else:
                number = self.random.choice(sorted(self.filters))
                # What is on its way when we leave may come or not: so nothing is.
                if not self.under_way.get(number):
                    self.filters.remove(number)
                    self.leaving = number
            self._ask()
        elif self.has_room() and self.filters:
            self._write()

    def _write(self) -> None:
        self.counter += 1
        key = (self.name, self.counter)
        if self.given_up and self.random.random() < 0.2:
            number = self.random.choice(self.given_up[-20:])
            self.ledger.submit(key, self.topic(number), 2, audience="nobody")
        else:
            number = self.random.choice(sorted(self.filters))
            self.under_way.setdefault(number, set()).add(key)
            self.ledger.submit(key, self.topic(number), 2, audience=self.name)
        self.send(self.topic(number), payload_of(*key, 2), 2, key=key)

    def take(self, named: Named, dup: bool | None) -> None:
        super().take(named, dup)
        sent = self.ledger.sent.get(named.key)
        if sent is not None:
            self.under_way.get(int(sent.topic.rpartition("/")[2]), set()).discard(named.key)

    def is_done(self) -> bool:
        return not self.flights and self.joining is None and self.leaving is None
