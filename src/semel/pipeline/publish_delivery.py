"""Delivers messages through a client's outbox until the server has acknowledged each of them.

    put ─▶ one transaction: messages and the caller's metadata ─▶ PUBLISH … PUBACK, PUBCOMP
                                                                       refused ─▶ `refused`

The outbox is that of `semel.client`: a message has its packet identifier on disk before it is sent,
and the session on the server is resumed, so that a process that is killed at any point continues
where it was. That the server has refused a message is written in the same transaction that removes
it from the outbox, so that no refusal is forgotten either.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Final

from semel.client.connect_parameters import ConnectParameters
from semel.client.core import ClientCore
from semel.client.errors import Disconnected, Refused, reason_name
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.ingest import MAXIMUM_REFUSALS, PERMANENT_REASONS
from semel.client.link import BrokerLink
from semel.client.outbox import SESSION, Outbox
from semel.client.purge import purge
from semel.client.received import Incoming
from semel.client.reconnect import Backoff
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5, PACKET_NAMES
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.properties import (
    NO_PROPERTIES,
    SESSION_EXPIRY_INTERVAL,
    Properties,
)
from semel.mqtt.reasons import FAILURE, NORMAL_DISCONNECTION, SESSION_TAKEN_OVER
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.violation import Violation
from semel.mqtt.wire import MAXIMUM_TWO_BYTES
from semel.pipeline.errors import PipelineError
from semel.pipeline.live_ingest import printable
from semel.pipeline.publish_options import BrokerAccess, PublishOptions
from semel.store.commit import Commit
from semel.store.store import FULL

LOG: Final = logging.getLogger("semel.pipeline")

# Seconds between two checks whether the batch makes progress, and whether Spark still runs.
CHECK_SECONDS: Final = 1.0
BACKOFF: Final = Backoff(first=0.25, most=5.0)
CONNECT_SECONDS: Final = 30.0
# How much of a second's messages may be sent at once with a maximum rate.
BURST_SECONDS: Final = 0.1
# The metadata of the outbox with the messages that the server refused: their rows, each with the
# reason code (null: it was not sent) and a sentence.
REFUSED: Final = "publish:refused"
# Characters of a server's reason that are kept: a part may have thousands of refused rows.
REASON_CHARACTERS: Final = 1_000

Refusal = tuple[int | None, str]


class SendRate:
    """A token bucket: how many messages may be sent now."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._capacity = max(1.0, rate * BURST_SECONDS)
        self._tokens = self._capacity
        self._at = now

    def available(self, now: float) -> int:
        """How many messages may be sent now."""
        self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return int(self._tokens)

    def take(self, count: int) -> None:
        """Messages were sent."""
        self._tokens -= count

    @property
    def wait(self) -> float:
        """Seconds until the next message may be sent."""
        return max(0.0, (1.0 - self._tokens) / self._rate)


def refusal_text(outcome: PublishOutcome) -> str:
    """Why the server has refused a message, in one line."""
    text = f"the server refused it with {PACKET_NAMES[outcome.packet_type]}"
    text += f" 0x{outcome.reason:02x}, {reason_name(outcome.reason)}"
    why = outcome.properties.reason_string
    return f"{text}: {printable(why[:REASON_CHARACTERS])}" if why else text


class OutboxDelivery:
    """One client over one batch. Use it in `async with`, with an open outbox."""

    def __init__(self, options: PublishOptions, access: BrokerAccess, outbox: Outbox) -> None:
        self._options = options
        self._address = access.address
        self._tls = access.tls
        self._user = access.user
        self._store = outbox.opened.store
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._started_at = self._progress_at = self._loop.time()
        self._logged_at = self._started_at
        self._parent = os.getppid()
        self._last_problem: Exception | None = None
        self._permanent_ends = 0
        self._sessions_lost = 0
        self._last_commit = 0
        self._commit = Commit()
        self._rate: SendRate | None = None
        if options.max_rate is not None:
            self._rate = SendRate(options.max_rate, self._started_at)
        # The rows of the messages in the outbox, by the numbers of their deliveries.
        self._rows: dict[int, int] = {}
        self.refused: dict[int, Refusal] = {}
        # Whether `refused` has refusals that no commit has.
        self._has_new_refusals = False
        self.acknowledged = 0
        self.expired = 0
        # For the line about the progress.
        self.name = ""
        settings = options.settings
        self._parameters = ConnectParameters(
            options.version,
            keep_alive=settings.keep_alive,
            user_name=self._user.user_name,
            password=self._user.password,
            will=None,
            properties=self._connect_properties(settings.session_expiry),
            session_expiry=self._session_expiry(settings.session_expiry),
        )
        self._core = ClientCore(
            self._parameters,
            outbox.client_id,
            run=token_hex(6),
            store=self._store,
            store_id=SESSION,
        )
        self._core.use_commit(self._commit)
        self._core.restore()
        self._store.connect(
            self._loop,
            safe=self._on_committed,
            changed=self._on_condition_changed,
            failed=self._on_store_failed,
        )
        self._link = BrokerLink(
            self._core,
            self._address,
            self,
            tls=self._tls,
            timeout=CONNECT_SECONDS,
            backoff=BACKOFF,
            clean_start=None,
            purge=self._purge,
            store=self._store,
            authentication=self._user.authentication,
            flush_core=self._flush,
        )
        self._starting: asyncio.Task[None] | None = None

    def _session_expiry(self, asked: int) -> int:
        if self._options.version == MQTT5:
            return asked
        # [3.1.1 §3.1.2.4] a session ends with its connection, or never expires
        return 0 if self._options.is_temporary else NEVER_EXPIRES

    def _connect_properties(self, session_expiry: int) -> Properties:
        if self._options.version != MQTT5:
            return NO_PROPERTIES
        return Properties([(SESSION_EXPIRY_INTERVAL, session_expiry), *self._user.properties])

    async def __aenter__(self) -> "OutboxDelivery":
        self._link.flush()
        self._starting = self._loop.create_task(self._start())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Nothing is remembered of a write without a state, so the server need not either.
        expiry = 0 if self._options.is_temporary else None
        # Nothing is written to a full disk, however long we wait.
        at_once = self._store.condition == FULL
        await self._link.close(NORMAL_DISCONNECTION, expiry, at_once=at_once)
        assert self._starting is not None
        self._starting.cancel()
        await asyncio.wait((self._starting,))

    async def _start(self) -> None:
        # `on_failed` reports these errors.
        with suppress(Refused, Disconnected):
            await self._link.start(offline=True)

    async def _purge(self, client_id: str) -> None:
        await purge(
            self._address,
            client_id,
            user_name=self._user.user_name,
            password=self._user.password,
            tls=self._tls,
            timeout=CONNECT_SECONDS,
        )

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Messages in the outbox that the server has not acknowledged."""
        session = self._core.session
        return len(session.backlog) + session.in_flight

    @property
    def next_number(self) -> int:
        """The number of the next message that is put into the outbox."""
        return self._core.session.last_number + 1

    def now(self) -> float:
        """The time from which the expiry of a message counts."""
        return self._link.now()

    def resume(self, rows: Mapping[int, int], refused: Mapping[int, Refusal]) -> None:
        """Continue with the messages of an earlier process: their rows by number, and refusals."""
        self._rows = dict(rows)
        self.refused = dict(refused)

    async def put(
        self, messages: Sequence[tuple[int, Message]], metadata: Sequence[tuple[str, str]]
    ) -> None:
        """Put messages (with their rows) and metadata into the outbox in one transaction.

        Refusals of earlier messages are forgotten with it. Returns when it is on disk.
        """
        assert not self.outstanding
        self._check_link()
        self._progress_at = self._loop.time()
        self.refused = {}
        now = self._link.now()
        self._rows = {self._core.publish(message, now): row for row, message in messages}
        self._commit.metadata.extend([*metadata, (REFUSED, "{}")])
        self._link.flush()
        if any(message.expires_at is not None for _, message in messages):
            self._link.watch_expiry()
        await self._until(self._is_committed)

    async def record(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Write metadata. Returns when it is on disk."""
        self._progress_at = self._loop.time()
        await self._until(self._is_committed)
        self._commit.metadata.extend(metadata)
        self._link.flush()
        await self._until(self._is_committed)

    async def until_acknowledged(self) -> None:
        """Wait until each message is acknowledged or refused, and that is on disk.

        Raises PipelineError if the broker cannot be reached for too long, or refuses the client.
        """
        await self._until(lambda: not self.outstanding and self._is_committed())

    async def until_connected(self) -> None:
        """Wait for a connection. Raises PipelineError."""
        await self._until(lambda: self._link.is_connected)

    async def send_unacknowledged(self, messages: Sequence[tuple[int, Message]]) -> None:
        """Send QoS 0 messages, each at most once. Returns when the server has read them."""
        link, core = self._link, self._core
        for row, message in messages:
            if self._rate is not None:
                while not self._rate.available(self._loop.time()):
                    self._progress_at = self._loop.time()
                    await asyncio.sleep(self._rate.wait)
                self._rate.take(1)
            await self._until(lambda: link.is_connected and link.is_writable)
            now = link.now()
            if message.is_expired(now):
                self._add_expired(row)
                continue
            try:
                core.publish_now(message, now)
            except Violation as violation:
                self._add_refusal(row, None, str(violation))
                continue
            self._progress_at = self._loop.time()
            self.acknowledged += 1
            if link.handed_over(message.size):
                await asyncio.sleep(0)
        try:
            await link.ping()
        except (Disconnected, Refused) as problem:
            LOG.warning(
                "%s: the connection was lost after QoS 0 messages were sent: some of %d may be"
                " lost: %s",
                self.name,
                len(messages),
                problem,
            )
        # Refusals are on disk before the caller goes on.
        await self.record([])

    def _is_committed(self) -> bool:
        has_changes = self._has_new_refusals or not self._commit.is_empty()
        return self._core.is_committed and not has_changes

    # --- waiting ----------------------------------------------------------------------------------

    async def _until(self, is_met: Callable[[], bool]) -> None:
        while not is_met():
            self._check_link()
            self._check_progress()
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(CHECK_SECONDS, self._options.timeout)):
                    await self._changed.wait()

    def _check_link(self) -> None:
        problem = self._link.problem
        if problem is None:
            return
        if isinstance(problem, Disconnected) and problem.reason == SESSION_TAKEN_OVER:
            raise PipelineError(
                f"{self._address}: another client has connected with the client identifier"
                f" {self._core.client_id}: two queries must not use the same one, nor two copies"
                f" of a checkpoint; give each query its own with option clientId. {self._left()}"
            )
        advice = ""
        if isinstance(problem, Refused) and problem.refuses_version:
            advice = "; give option mqttVersion 3.1.1"
        raise PipelineError(f"{self._address}: {printable(str(problem))}{advice}. {self._left()}")

    def _check_progress(self) -> None:
        now = self._loop.time()
        if os.getppid() != self._parent:
            raise PipelineError(f"the Spark driver has ended. {self._left()}")
        session = self._core.session
        if self._rate is not None and self._link.is_connected and not session.in_flight:
            if self._is_committed():
                self._progress_at = now
        if now - self._logged_at >= self._options.progress_seconds:
            self._logged_at = now
            LOG.info(
                "%s: acknowledged %d messages in %.0f s, %d are in the outbox",
                self.name,
                self.acknowledged,
                now - self._started_at,
                self.outstanding,
            )
        if now - self._progress_at <= self._options.timeout:
            return
        waited = f"{self._options.timeout:g} s"
        if self._store.condition == FULL:
            raise PipelineError(f"the disk of {self._options.state} is full. {self._left()}")
        if not self._link.is_connected:
            last = self._last_problem
            why = f": {printable(str(last))}" if last is not None else ""
            raise PipelineError(
                f"{self._address}: the broker could not be reached for {waited}{why}."
                f" {self._left()}"
            )
        raise PipelineError(
            f"{self._address}: the broker has not acknowledged a message for {waited}."
            f" {self._left()}"
        )

    def _left(self) -> str:
        if self._options.is_temporary:
            return "Some rows may have been sent: a repeated write sends all of them"
        return f"Nothing is lost: {self._options.state} has the batch, and a restart continues it"

    # --- the core ---------------------------------------------------------------------------------

    def _flush(self, now: float, wall: float) -> None:
        """Commit the changes of this tick, with the refusals that it has brought."""
        core = self._core
        session = core.session
        in_flight = session.in_flight
        if self._rate is not None:
            available = self._rate.available(self._loop.time())
            session.maximum_in_flight = min(MAXIMUM_TWO_BYTES, in_flight + available)
        packets = core.collect(now)
        if self._rate is not None:
            self._rate.take(session.in_flight - in_flight)
            # A message that is put is queued, and the next flush sends it.
            session.maximum_in_flight = 0
            if len(session.backlog) and core.is_connected:
                self._loop.call_later(max(self._rate.wait, 0.001), self._link.schedule)
        outcomes, core.outcomes = core.outcomes, []
        self._note(outcomes)
        commit = self._commit
        if self._has_new_refusals:
            # Once per commit: all of them are one value.
            commit.metadata.append((REFUSED, json.dumps(self.refused)))
            self._has_new_refusals = False
        if commit.is_empty():
            core.pass_on(packets, now)
            return
        self._last_commit += 1
        commit.number = self._last_commit
        commit.at = wall
        self._commit = Commit()
        core.await_commit(packets, self._commit)
        self._store.write(commit)

    def _note(self, outcomes: list[PublishOutcome]) -> None:
        if not outcomes:
            return
        self._progress_at = self._loop.time()
        self._permanent_ends = 0
        for outcome in outcomes:
            # -1: another program has put it into the outbox.
            row = self._rows.get(outcome.number, -1)
            if outcome.violation is not None:
                self._add_refusal(row, None, str(outcome.violation))
            elif outcome.expired:
                self._add_expired(row)
            elif outcome.reason >= FAILURE:
                self._add_refusal(row, outcome.reason, refusal_text(outcome))
            else:
                self.acknowledged += 1
        self._changed.set()

    def _add_expired(self, row: int) -> None:
        self.expired += 1
        if self._options.failures is not None:
            self._add_refusal(row, None, "it expired before it could be sent")

    def _add_refusal(self, row: int, code: int | None, reason: str) -> None:
        if row < 0:
            LOG.warning("%s: a message that is of no batch failed: %s", self._address, reason)
            return
        self.refused[row] = (code, reason)
        self._has_new_refusals = True

    def _on_committed(self, commits: list[Commit]) -> None:
        self._link.on_committed(commits)
        self._changed.set()

    def _on_condition_changed(self) -> None:
        self._link.on_condition_changed()

    def _on_store_failed(self, why: str) -> None:
        self._link.on_store_failed(why)

    # --- events of the link -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The server has accepted the connection."""
        core = self._core
        if core.sessions_lost > self._sessions_lost:
            self._sessions_lost = core.sessions_lost
            if core.resent:
                LOG.warning(
                    "%s: the broker has lost the session of %s: %d messages that were in flight are"
                    " sent again and may arrive twice",
                    self._address,
                    core.client_id,
                    core.resent,
                )
        asked = self._parameters.session_expiry
        given = packet.properties.session_expiry_interval
        if not packet.session_present and given is not None and given < asked:
            LOG.warning(
                "%s: the broker keeps the session for %d s without a connection, not %d s as"
                " requested: after a longer interruption messages in flight may arrive twice",
                self._address,
                given,
                asked,
            )
        self._changed.set()

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Messages could not be sent, after the flush that sent the others."""
        self._note(outcomes)
        self._link.schedule()

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is lost. The link reconnects, unless the broker rejects us repeatedly."""
        self._last_problem = problem
        if not isinstance(problem, Disconnected) or problem.reason not in PERMANENT_REASONS:
            return
        self._permanent_ends += 1
        if self._permanent_ends == MAXIMUM_REFUSALS:
            rows = sorted(self._rows.values())
            which = f" rows {rows[0]} to {rows[-1]} of" if rows else ""
            self._link.give_up(
                Disconnected(
                    f"{problem}; {MAXIMUM_REFUSALS} connections in a row ended like this: the"
                    f" broker does not accept one of{which} {self.name}",
                    reason=problem.reason,
                    properties=problem.properties,
                )
            )

    def on_failed(self, problem: Exception) -> None:
        """The link makes no other connection."""
        self._changed.set()

    def on_arrived(self, messages: list[Incoming]) -> None:
        """Not called: nothing is subscribed."""

    def on_stored(self, numbers: list[int]) -> None:
        """`put` waits for the commit itself."""

    def on_answered(self, answers: list[SubscriptionAnswer]) -> None:
        """Not called: nothing is subscribed."""
