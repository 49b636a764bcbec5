"""A bridge: a client of two brokers that moves messages between them. See docs/operate/bridge.md.

    local broker ◀─▶ BridgeSide ◀─▶ BridgeCore ◀─▶ BridgeSide ◀─▶ remote broker
                                        │
                                   one store: both sessions, and the messages on their way

The two connections are independent: each reconnects by itself. `bridge_plan.make_bridge_plans`
makes a `BridgePlan` of settings.
"""

import asyncio
import logging
import sys
from contextlib import suppress
from secrets import token_hex
from typing import Final

from semel.client.bridge_core import (
    LOCAL_SESSION,
    REMOTE_SESSION,
    BridgeCore,
    BridgeDirection,
)
from semel.client.bridge_plan import BridgePlan, SidePlan
from semel.client.bridge_side import BridgeSide
from semel.client.bridge_status import (
    ENDED,
    FAILED,
    RUNNING,
    STARTING,
    STOPPING,
    BridgeSnapshot,
    BridgeStatus,
    DirectionStatus,
    DirectionTraffic,
    write_status,
)
from semel.client.core import ClientCore
from semel.client.errors import Disconnected, Refused
from semel.client.ingest import CONDITIONS
from semel.client.outbox import OtherClientId, make_client_id
from semel.mqtt.properties import NO_PROPERTIES
from semel.mqtt.reasons import NORMAL_DISCONNECTION
from semel.store.commit import Commit
from semel.store.disk import SWITCH_INTERVAL
from semel.store.opening import BRIDGE, Opened, open_store
from semel.store.settings import StoreSettings

LOG: Final = logging.getLogger("semel.bridge")

# How often the status file is written.
STATUS_SECONDS: Final = 1.0


class Bridge:
    """One bridge. `run` returns after `stop`, and raises if another attempt would fail too."""

    def __init__(self, plan: BridgePlan, *, start_clean: bool = False) -> None:
        self.plan = plan
        # The side on which `run` has failed: local or remote, "" if on neither.
        self.failed_side = ""
        self._start_clean = start_clean
        self._stop_event = asyncio.Event()
        self._is_stopped = False
        self._problem: Exception | None = None
        self._state = STARTING
        self._opened: Opened | None = None
        self._core: BridgeCore | None = None
        self._sides: list[BridgeSide] = []
        self._last: BridgeStatus | None = None
        self._is_status_written = True

    # --- for the caller ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Move messages. Raises Refused, Disconnected, Unusable and MissingExtra.

        When it returns or raises, all is closed: every message that was acknowledged is stored, and
        the brokers keep the sessions.
        """
        try:
            while True:
                try:
                    await self._run()
                    break
                except Refused as problem:
                    self.plan = self._without_5_0(problem)
                    self._reset()
        except BaseException:
            self._state = FAILED
            raise
        self._state = ENDED

    def stop(self) -> None:
        """Stop reading; `run` returns when all messages received are stored and acknowledged."""
        self._is_stopped = True
        self._stop_event.set()

    @property
    def status(self) -> BridgeStatus:
        """The present status."""
        if self._core is None or not self._sides:
            return BridgeStatus(self.plan.name, self._state)
        local, remote = self._sides
        assert self._opened is not None
        return BridgeStatus(
            self.plan.name,
            self._state,
            local=local.status,
            remote=remote.status,
            to_remote=_direction_status(self._core.to_remote, remote),
            to_local=_direction_status(self._core.to_local, local),
            store=CONDITIONS[self._opened.store.condition],
        )

    def snapshot(self) -> BridgeSnapshot:
        """All numbers at this time."""
        status = self.status
        if self._core is None or not self._sides:
            return BridgeSnapshot(status)
        local, remote = self._sides
        return BridgeSnapshot(
            status,
            to_remote=_direction_traffic(self._core.to_remote, remote),
            to_local=_direction_traffic(self._core.to_local, local),
        )

    # --- start and end ----------------------------------------------------------------------------

    def _without_5_0(self, problem: Refused) -> BridgePlan:
        """The plan with 3.1.1 for the side that refused 5.0. Raises `problem` if that is not so."""
        sides = {"local": self.plan.local, "remote": self.plan.remote}
        side = sides.get(self.failed_side)
        if side is None or side.fallback is None or not problem.refuses_version or self._is_stopped:
            raise problem
        if isinstance(side.fallback, str):
            raise Disconnected(f"the broker refused MQTT 5.0. With 3.1.1 {side.fallback}")
        LOG.warning(
            "bridge %s, %s: the broker refused MQTT 5.0; connecting with MQTT 3.1.1",
            self.plan.name,
            side.side,
        )
        # The refused CONNECT has changed nothing on either side.
        return self.plan.with_side(side.fallback)

    def _reset(self) -> None:
        self._stop_event.clear()
        self._problem = None
        self.failed_side = ""
        self._state = STARTING
        self._core = self._opened = None
        self._sides = []

    async def _run(self) -> None:
        """Move messages with the MQTT versions of the plan."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        plan = self.plan
        self._opened = opened = open_store(
            StoreSettings(data=plan.data, durability=plan.durability), (), BRIDGE
        )
        tasks: list[asyncio.Task[None]] = []
        final_state = FAILED
        try:
            self._make_sides(opened)
            loop = asyncio.get_running_loop()
            self._state = RUNNING
            tasks = [loop.create_task(_start(side)) for side in self._sides]
            tasks.append(loop.create_task(self._keep_status()))
            await self._stop_event.wait()
            if self._problem is None:
                final_state = ENDED
        finally:
            self._state = STOPPING
            try:
                await self._close_links()
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks)
            finally:
                opened.store.close()
                self._state = final_state
                self._write_status()
                opened.folder.close()
        if self._problem is not None:
            raise self._problem

    def _make_sides(self, opened: Opened) -> None:
        """Both sides, which continue the sessions of the store."""
        plan = self.plan
        local_id, remote_id = client_ids(opened, plan)
        run = token_hex(6)
        local = self._make_core(plan.local, local_id, opened, LOCAL_SESSION, run)
        remote = self._make_core(plan.remote, remote_id, opened, REMOTE_SESSION, run)
        to_remote = BridgeDirection(
            local,
            remote,
            names=(plan.local.broker_name, plan.remote.broker_name),
            translations=plan.to_remote,
            opposite=plan.to_local,
            limits=plan.limits,
        )
        to_local = BridgeDirection(
            remote,
            local,
            names=(plan.remote.broker_name, plan.local.broker_name),
            translations=plan.to_local,
            opposite=plan.to_remote,
            limits=plan.limits,
        )
        core = BridgeCore(to_remote, to_local, opened.store)
        core.restore()
        for side, client in ((plan.local, local), (plan.remote, remote)):
            for subscription in side.subscriptions:
                client.subscribe(subscription, NO_PROPERTIES)
        sides = [
            BridgeSide(plan.name, plan.local, local, toward=to_local, fail=self._fail),
            BridgeSide(plan.name, plan.remote, remote, toward=to_remote, fail=self._fail),
        ]
        opened.store.connect(
            asyncio.get_running_loop(),
            safe=self._on_committed,
            changed=self._on_condition_changed,
            failed=self._on_store_failed,
        )
        for each in sides:
            each.make_link(
                opened.store, plan.backoff, start_clean=self._start_clean, flush_core=self._flush
            )
        self._core = core
        self._sides = sides
        sides[0].link.flush()

    def _make_core(
        self, plan: SidePlan, client_id: str, opened: Opened, store_id: int, run: str
    ) -> ClientCore:
        return ClientCore(
            plan.connect_parameters, client_id, run=run, store=opened.store, store_id=store_id
        )

    async def _close_links(self) -> None:
        """Stop reading, acknowledge what is stored, and disconnect from both brokers."""
        for side in self._sides:
            side.link.pause_for_reader(True)
        closing = [side.link.close(NORMAL_DISCONNECTION, None) for side in self._sides]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                LOG.error("bridge %s: a connection did not close: %r", self.plan.name, outcome)

    def _fail(self, side: BridgeSide, problem: Exception) -> None:
        if self._problem is None and self._state != STOPPING:
            self._problem = problem
            self.failed_side = side.plan.side
            side.last_error = str(problem)
        self._stop_event.set()

    # --- both cores -------------------------------------------------------------------------------

    def _flush(self, now: float, wall: float) -> None:
        """Flush both cores in one commit, whichever link it is for."""
        assert self._core is not None
        self._core.flush(now, wall)
        for side in self._sides:
            side.link.release()
            side.watch_expiry()
        for side, direction in zip(
            self._sides, (self._core.to_remote, self._core.to_local), strict=True
        ):
            if direction.is_overloaded:
                side.link.drop_connection(
                    "more messages wait for room in the queue of the other broker than"
                    " maximum_held_bytes"
                )

    def _on_committed(self, commits: list[Commit]) -> None:
        for side in self._sides:
            side.link.on_committed(commits)

    def _on_condition_changed(self) -> None:
        for side in self._sides:
            side.link.on_condition_changed()

    def _on_store_failed(self, why: str) -> None:
        for side in self._sides:
            side.link.on_store_failed(why)

    # --- status -----------------------------------------------------------------------------------

    async def _keep_status(self) -> None:
        """Write the status file whenever the status has changed."""
        while True:
            self._write_status()
            await asyncio.sleep(STATUS_SECONDS)

    def _write_status(self) -> None:
        status = self.status
        if status == self._last:
            return
        try:
            write_status(self.plan.data, status)
        except OSError as problem:
            if self._is_status_written:
                LOG.warning(
                    "bridge %s: the status file cannot be written: %s",
                    self.plan.name,
                    problem.strerror or problem,
                )
            self._is_status_written = False
            return
        self._is_status_written = True
        self._last = status


async def _start(side: BridgeSide) -> None:
    # `on_failed` reports these errors.
    with suppress(Refused, Disconnected):
        await side.link.start(offline=True)


def _direction_status(direction: BridgeDirection, destination: BridgeSide) -> DirectionStatus:
    counters = direction.counters
    return DirectionStatus(
        moved=counters.moved,
        delivered=destination.delivered,
        queued=direction.queued,
        held=direction.held,
        dropped=counters.dropped,
        looped=counters.looped,
        unmatched=counters.unmatched,
        refused=destination.refused,
        expired=destination.expired,
    )


def _direction_traffic(direction: BridgeDirection, destination: BridgeSide) -> DirectionTraffic:
    counters = direction.counters
    idle = None
    if counters.moved_at is not None:
        # The two links read their clocks at slightly different times.
        idle = max(0.0, destination.link.now() - counters.moved_at)
    return DirectionTraffic(
        messages=tuple(counters.moved_by_qos),
        payload_bytes=tuple(counters.payload_bytes_by_qos),
        idle_seconds=idle,
        queued_bytes=direction.queued_bytes,
        not_connected=counters.not_connected,
        no_room=counters.no_room,
        over_limit=destination.over_limit,
        refused_by_reason=dict(destination.refused_by_reason),
    )


def client_ids(opened: Opened, plan: BridgePlan) -> tuple[str, str]:
    """The client identifiers of both sides: as configured, as stored, or new ones.

    Raises OtherClientId if the store belongs to another one than is configured.
    """
    stored = {each.store_id: each.client_id for each in opened.store.restore().sessions}
    found: list[str] = []
    for store_id, side in ((LOCAL_SESSION, plan.local), (REMOTE_SESSION, plan.remote)):
        known = stored.get(store_id)
        if known is not None and side.client_id and side.client_id != known:
            raise OtherClientId(opened.folder.path, known)
        found.append(known or side.client_id or make_client_id())
    return found[0], found[1]
