"""The gateways of a fleet, which publish the messages of their devices at a rate, each once.

    Devices ─▶ Gateway ─▶ Client ─▶ broker        one connection carries many devices
                  │          └─ outbox            QoS 1 and 2: on disk before it is sent
                  └─▶ Journal                     begun, done

Device d belongs to gateway d % gateways. A gateway publishes the messages of its devices in the
order of their indexes. It has at most `window` incomplete messages; at this limit it waits, and
afterwards catches up with the rate, for at most MAKE_UP_SECONDS of delay.
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
# The minimum time between two checks of what is due: a high rate is sent in bursts.
TICK_SECONDS: Final = 0.005
MAKE_UP_SECONDS: Final = 10.0
# How long in-flight messages may take to complete when the fleet is stopped.
STOP_SECONDS: Final = 10.0
# How often to check whether the messages of an earlier run have left the outbox.
DRAIN_SECONDS: Final = 0.02
# How many reasons for refusals are kept.
MOST_REASONS: Final = 5


@dataclass(frozen=True)
class FleetPace:
    """QoS and rate of a fleet. `count` is the total over all its runs."""

    qos: int
    rate: float | None
    window: int
    count: int | None


@dataclass(frozen=True)
class FleetProgress:
    """The progress of this run; `total` counts the messages that all runs completed."""

    seconds: float
    published: int
    total: int
    refused: int
    # Begun but not complete; after the end, those that remain.
    in_flight: int
    gateways: int
    connected: int
    reconnects: int
    sessions_lost: int
    # Sent again because a session was lost: these may have arrived twice.
    resent: int


class EarlierRuns:
    """The state after earlier runs, from the journal; its size depends on the devices only."""

    def __init__(self, devices: Devices, lines: Iterable[JournalLine]) -> None:
        """Raises ValueError if the journal belongs to another fleet."""
        # The last counter of each device; messages in an outbox; complete messages.
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

    def __init__(self, fleet: "Fleet", number: int, client: Client, earlier: EarlierRuns) -> None:
        self.fleet = fleet
        self.client = client
        every = len(fleet.devices)
        self.devices = range(number, every, fleet.gateway_count)
        # How many of its messages were begun, and how many there are in total.
        self.position = sum(earlier.last[device] for device in self.devices)
        self.limit: int | None = None
        if fleet.pace.count is not None:
            rounds, rest = divmod(fleet.pace.count, every)
            self.limit = rounds * len(self.devices) + sum(device < rest for device in self.devices)
        self.kept = {index for index in earlier.kept if index % every in self.devices}
        self.in_progress: dict[asyncio.Task[None], int] = {}
        # How many were in progress when it ended; None: it has not ended.
        self._in_progress_at_end: int | None = None
        self._has_room = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Incomplete messages, including those of earlier runs."""
        left = self._in_progress_at_end
        return len(self.kept) + (len(self.in_progress) if left is None else left)

    def index(self, position: int) -> int:
        """The index of the message at a position of this gateway."""
        rounds, offset = divmod(position, len(self.devices))
        return rounds * len(self.fleet.devices) + self.devices[offset]

    async def run(self) -> None:
        """Publish until everything is published, or the fleet is stopped."""
        fleet = self.fleet
        pace = fleet.pace
        rate = pace.rate and pace.rate * len(self.devices) / len(fleet.devices)
        began = time.monotonic()
        first = self.position
        while not fleet.stopping.is_set() and self.position != self.limit:
            room = pace.window - len(self.in_progress)
            if room <= 0:
                self._has_room.clear()
                await fleet.unless_stopped(self._has_room.wait())
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
        """Begin the next `count` messages."""
        fleet = self.fleet
        indexes = [self.index(self.position + each) for each in range(count)]
        self.position += count
        for index in indexes:
            fleet.journal.note(BEGIN, *fleet.devices.name_of(index))
        fleet.journal.flush()
        for index in indexes:
            task = asyncio.get_running_loop().create_task(self._publish(index))
            self.in_progress[task] = index
            task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        del self.in_progress[task]
        self._has_room.set()
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
            # A message that exceeds a limit of the CONNACK was not sent, and has no code.
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
        """Wait until in-flight messages are complete, including those of earlier runs."""
        fleet = self.fleet
        if not fleet.stopping.is_set():
            await fleet.unless_stopped(self._drain())
        if fleet.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._drain()

    async def _drain(self) -> None:
        while self.in_progress:
            await asyncio.wait(self.in_progress)
        while self.client.counters.waiting or self.client.counters.in_flight:
            await asyncio.sleep(DRAIN_SECONDS)
        # They were in the outbox, which is empty now.
        for index in sorted(self.kept):
            self.fleet.journal.note(DONE, *self.fleet.devices.name_of(index))
            self.fleet.published += 1
        self.kept.clear()

    def hand_over(self) -> None:
        """Leave the in-flight messages to the next run."""
        # A task that is done has noted its message, even if its done-callback has not run yet.
        left = [(task, index) for task, index in self.in_progress.items() if not task.done()]
        # The tasks end soon after they are cancelled: remember their number.
        self._in_progress_at_end = len(left)
        for task, index in left:
            task.cancel()
            if self.fleet.pace.qos:
                self.fleet.journal.note(KEPT, *self.fleet.devices.name_of(index))


class Fleet:
    """Devices, gateways and a journal. The caller connects and closes the clients."""

    def __init__(
        self,
        devices: Devices,
        clients: Sequence[Client],
        journal: Journal,
        pace: FleetPace,
        earlier: EarlierRuns,
    ) -> None:
        self.devices = devices
        self.journal = journal
        self.pace = pace
        self.gateway_count = len(clients)
        self.stopping = asyncio.Event()
        self.published = 0
        self.refused = 0
        # Why the first messages were refused.
        self.reasons: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._earlier = earlier.done
        self._is_flushing = False
        self._began = time.monotonic()
        self._ended: float | None = None
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self.gateways = [
            Gateway(self, number, client, earlier) for number, client in enumerate(clients)
        ]

    def stop(self) -> None:
        """Begin no further messages."""
        self.stopping.set()

    def fail(self, problem: BaseException) -> None:
        """End the run with this exception."""
        if not self._failed.done():
            self._failed.set_exception(problem)

    def flush_soon(self) -> None:
        """Flush the journal once after this turn of the event loop."""
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
        """Await something, or until the fleet is stopped."""
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
        """Publish everything. Raises Disconnected, Refused or OSError if it cannot continue."""
        self._began = time.monotonic()
        work = {self._loop.create_task(gateway.run()) for gateway in self.gateways}
        try:
            pending: set[asyncio.Future[None]] = {*work, self._failed}
            while pending > {self._failed}:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self._failed.cancel()
            for gateway in self.gateways:
                gateway.hand_over()
            self._ended = time.monotonic()
            self.journal.flush()

    def progress(self) -> FleetProgress:
        """The current progress."""
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
