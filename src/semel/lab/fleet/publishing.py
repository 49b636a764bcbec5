"""A fleet at work: gateways publish the messages of their devices at a rate, each once.

    Devices ─▶ Gateway ─▶ Client ─▶ broker        one connection carries many devices
                  │          └─ outbox            QoS 1 and 2: on disk before it leaves
                  └─▶ Journal                     begun, done

Device d belongs to gateway d % gateways, and a gateway publishes the messages of its devices in the
order of the fleet's numbers. Messages that are not complete are at most `window` for each gateway;
at that bound it waits, and makes up for lost time afterwards, MAKE_UP_SECONDS of it at the most.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.client import Client, Refused
from semel.lab.fleet.devices import Devices
from semel.lab.fleet.journal import BEGIN, DONE, KEPT, REFUSED, Journal, JournalLine
from semel.mqtt import Violation

MOST_GATEWAYS: Final = 1_000
MOST_WINDOW: Final = 10_000
WINDOW: Final = 100
# A gateway looks for what is due no more often than this, so that a high rate comes in bursts.
TICK_SECONDS: Final = 0.005
MAKE_UP_SECONDS: Final = 10.0
# How long what is in flight may take when the fleet is stopped.
STOP_SECONDS: Final = 10.0
# How often an outbox with messages of an earlier run is asked whether it is empty.
DRAIN_SECONDS: Final = 0.02
# Messages that were refused whose reasons are remembered.
MOST_REASONS: Final = 5


@dataclass(frozen=True)
class FleetPace:
    """How much, how fast, how sure. `count` is of the whole fleet, over all its runs."""

    qos: int
    rate: float | None
    window: int
    count: int | None


@dataclass(frozen=True)
class FleetProgress:
    """Where a fleet stands. Of this run, but for `total`, which counts what all runs completed."""

    seconds: float
    published: int
    total: int
    refused: int
    # Begun, and not complete; after the end, those that are left.
    in_flight: int
    gateways: int
    connected: int
    reconnects: int
    sessions_lost: int
    # Sent anew because a session was lost: these may have arrived twice.
    resent: int


class Begun:
    """What earlier runs have left, from the journal: bounded by the number of devices."""

    def __init__(self, devices: Devices, lines: Iterable[JournalLine]) -> None:
        """Raises ValueError for the journal of another fleet."""
        # The last counter of each device; messages that an outbox has; how many are complete.
        self.last = [0] * len(devices)
        self.kept: set[int] = set()
        self.done = 0
        for word, device, counter in lines:
            index = devices.index_of(device, counter)
            if word == BEGIN:
                self.last[device] = max(self.last[device], counter)
            elif word == KEPT:
                self.kept.add(index)
            else:
                self.done += word == DONE
                self.kept.discard(index)


class Gateway:
    """One connection, and the devices behind it."""

    def __init__(self, fleet: "Fleet", number: int, client: Client, begun: Begun) -> None:
        self.fleet = fleet
        self.client = client
        every = len(fleet.devices)
        self.own = range(number, every, fleet.gateways_wanted)
        # How many of its messages were begun, and how many there are to be.
        self.position = sum(begun.last[device] for device in self.own)
        self.limit: int | None = None
        if fleet.pace.count is not None:
            rounds, rest = divmod(fleet.pace.count, every)
            self.limit = rounds * len(self.own) + sum(device < rest for device in self.own)
        self.kept = {index for index in begun.kept if index % every in self.own}
        self.going: dict[asyncio.Task[None], int] = {}
        # How many were going when it left; None: it is at work.
        self._left: int | None = None
        self._room = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Messages that are not complete, of earlier runs too."""
        return len(self.kept) + (len(self.going) if self._left is None else self._left)

    def index(self, position: int) -> int:
        """Which message of the fleet is this gateway's next."""
        rounds, place = divmod(position, len(self.own))
        return rounds * len(self.fleet.devices) + self.own[place]

    async def run(self) -> None:
        """Publish until all is published, or the fleet is stopped."""
        fleet = self.fleet
        pace = fleet.pace
        rate = pace.rate and pace.rate * len(self.own) / len(fleet.devices)
        began = time.monotonic()
        first = self.position
        while not fleet.stopping.is_set() and self.position != self.limit:
            room = pace.window - len(self.going)
            if room <= 0:
                self._room.clear()
                await fleet.unless_stopped(self._room.wait())
                continue
            due = room
            if rate:
                # The first message is due at once.
                behind = (time.monotonic() - began) * rate + 1 - (self.position - first)
                if behind > MAKE_UP_SECONDS * rate + 1:
                    began += (behind - 1) / rate - MAKE_UP_SECONDS
                if behind < 1:
                    wait = max(TICK_SECONDS, (1 - behind) / rate)
                    await fleet.unless_stopped(asyncio.sleep(wait))
                    continue
                due = min(room, int(behind))
            if self.limit is not None:
                due = min(due, self.limit - self.position)
            self._begin(due)
            await asyncio.sleep(0)
        await self._finish()

    def _begin(self, count: int) -> None:
        """Hand over so many messages."""
        fleet = self.fleet
        indexes = [self.index(self.position + each) for each in range(count)]
        self.position += count
        for index in indexes:
            fleet.journal.note(BEGIN, *fleet.devices.name_of(index))
        fleet.journal.flush()
        for index in indexes:
            task = asyncio.get_running_loop().create_task(self._publish(index))
            self.going[task] = index
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.going[task]
        self._room.set()
        if not task.cancelled() and task.exception() is not None:
            problem = task.exception()
            assert problem is not None
            self.fleet.fail(problem)

    async def _publish(self, index: int) -> None:
        fleet = self.fleet
        message = fleet.devices.message(index)
        name = fleet.devices.name_of(index)
        try:
            await self.client.publish(message.topic, message.payload, fleet.pace.qos)
        except (Refused, Violation) as problem:
            # What breaks a rule of the server's CONNACK was never sent, and so has no code.
            reason = problem.reason if isinstance(problem, Refused) else None
            fleet.journal.note(REFUSED, *name, reason)
            fleet.refused += 1
            if len(fleet.reasons) < MOST_REASONS:
                fleet.reasons.append(f"{message.topic}: {problem}")
        else:
            fleet.journal.note(DONE, *name)
            fleet.published += 1
        fleet.flush_soon()

    async def _finish(self) -> None:
        """Let what is in flight become complete, of earlier runs too."""
        fleet = self.fleet
        if not fleet.stopping.is_set():
            await fleet.unless_stopped(self._drain())
        if fleet.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._drain()

    async def _drain(self) -> None:
        while self.going:
            await asyncio.wait(self.going)
        while self.client.counters.waiting or self.client.counters.in_flight:
            await asyncio.sleep(DRAIN_SECONDS)
        # They were in the outbox, which is empty now.
        for index in sorted(self.kept):
            self.fleet.journal.note(DONE, *self.fleet.devices.name_of(index))
            self.fleet.published += 1
        self.kept.clear()

    def leave(self) -> None:
        """What is still in flight goes to the next run."""
        # Nobody waits for these any more, and so they will not be going for long.
        self._left = len(self.going)
        for task, index in list(self.going.items()):
            task.cancel()
            if self.fleet.pace.qos:
                self.fleet.journal.note(KEPT, *self.fleet.devices.name_of(index))


class Fleet:
    """Devices, gateways and a journal. The clients are connected by the caller, and closed."""

    def __init__(
        self,
        devices: Devices,
        clients: Sequence[Client],
        journal: Journal,
        pace: FleetPace,
        begun: Begun,
    ) -> None:
        self.devices = devices
        self.journal = journal
        self.pace = pace
        self.gateways_wanted = len(clients)
        self.stopping = asyncio.Event()
        self.published = 0
        self.refused = 0
        # Of the first that were refused, in words.
        self.reasons: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._earlier = begun.done
        self._is_flushing = False
        self._began = time.monotonic()
        self._ended: float | None = None
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self.gateways = [
            Gateway(self, number, client, begun) for number, client in enumerate(clients)
        ]

    def stop(self) -> None:
        """Begin no more messages."""
        self.stopping.set()

    def fail(self, problem: BaseException) -> None:
        """There is no use in going on."""
        if not self._failed.done():
            self._failed.set_exception(problem)

    def flush_soon(self) -> None:
        """Write to the journal what this turn of the loop brings."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        try:
            self.journal.flush()
        except OSError as problem:
            self.fail(problem)

    async def unless_stopped(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait for something, but no longer than until the fleet is stopped."""
        tasks = [self._loop.create_task(waiting), self._loop.create_task(self.stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def run(self) -> None:
        """Publish all. Raises Disconnected, Refused or OSError if there is no use in going on."""
        self._began = time.monotonic()
        work = {self._loop.create_task(gateway.run()) for gateway in self.gateways}
        try:
            going: set[asyncio.Future[None]] = {*work, self._failed}
            while going > {self._failed}:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self._failed.cancel()
            for gateway in self.gateways:
                gateway.leave()
            self._ended = time.monotonic()
            self.journal.flush()

    def progress(self) -> FleetProgress:
        """Where it stands."""
        counters = [gateway.client.counters for gateway in self.gateways]
        return FleetProgress(
            seconds=(self._ended or time.monotonic()) - self._began,
            published=self.published,
            total=self._earlier + self.published,
            refused=self.refused,
            in_flight=sum(gateway.in_flight for gateway in self.gateways),
            gateways=len(self.gateways),
            connected=sum(gateway.client.connected for gateway in self.gateways),
            reconnects=sum(each.reconnects for each in counters),
            sessions_lost=sum(each.sessions_lost for each in counters),
            resent=sum(each.resent for each in counters),
        )
