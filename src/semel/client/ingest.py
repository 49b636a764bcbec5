"""Ingest: a client of any broker that records its messages in a stream. See docs/data/ingest.md.

    broker ─▶ BrokerLink, ClientCore ─▶ one commit: message and packet identifier ─▶ segments
              ◀─ PUBACK, PUBREC, PUBCOMP: when the commit is on disk

The session outlives connections and processes on both sides: in the broker, and in the store of
this end. `ingest_plan.make_plan` makes an `IngestPlan` of settings.
"""

import asyncio
import logging
import re
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from semel.client.core import ClientCore
from semel.client.errors import Disconnected, Refused
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.ingest_plan import IngestPlan
from semel.client.link import BrokerLink
from semel.client.outbox import SESSION, Outbox, open_ingest_store
from semel.client.purge import purge
from semel.client.received import Incoming
from semel.client.recording import break_key
from semel.mqtt import reasons
from semel.mqtt.packet_types import SUBACK, UNSUBACK
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.properties import NO_PROPERTIES
from semel.mqtt.reasons import FAILURE, NORMAL_DISCONNECTION
from semel.mqtt.session import NEVER_EXPIRES
from semel.store.disk import SWITCH_INTERVAL
from semel.store.folder import read_only
from semel.store.schema import Unusable
from semel.store.store import BEHIND, FULL, OPEN
from semel.store.streams import Stream

LOG: Final = logging.getLogger("semel.ingest")

# How long `run` waits at the end for rows to be sealed; the next start seals the others.
SEAL_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05
CONNECT_SECONDS: Final = 30.0
# A client identifier that `make_client_id` has made: no other client uses it.
MADE_CLIENT_ID: Final = re.compile(r"semel[0-9a-f]{18}")

# With these reason codes a server rejects what we send, and we send the same on the next
# connection. The server may be wrong, so a few attempts are made.
PERMANENT_REASONS: Final = frozenset(
    (
        reasons.MALFORMED_PACKET,
        reasons.PROTOCOL_ERROR,
        reasons.TOPIC_FILTER_INVALID,
        reasons.TOPIC_NAME_INVALID,
        reasons.RECEIVE_MAXIMUM_EXCEEDED,
        reasons.TOPIC_ALIAS_INVALID,
        reasons.PACKET_TOO_LARGE,
        reasons.PAYLOAD_FORMAT_INVALID,
        reasons.RETAIN_NOT_SUPPORTED,
        reasons.QOS_NOT_SUPPORTED,
        reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    )
)
# How many connections in a row may end with such a code, without a granted subscription or a
# message in between.
MAXIMUM_REFUSALS: Final = 3

CONDITIONS: Final = {OPEN: "open", BEHIND: "behind", FULL: "full"}


@dataclass(frozen=True)
class IngestCounters:
    """The counters and the state of an ingest."""

    # connecting, connected, draining or ended
    state: str
    client_id: str
    node: str
    # Messages since the start.
    received: int
    # The last row on disk, the last row in a segment, and the age in seconds of the first row
    # that is not in a segment.
    stored: int
    sealed: int
    lag: float
    reconnects: int
    # How often since the start the broker had lost the session.
    sessions_lost: int
    # open; behind or full: nothing is read from the broker
    store: str


class Ingest:
    """One ingest. `run` returns after `stop`, and raises if another attempt would fail too."""

    def __init__(self, plan: IngestPlan, *, start_clean: bool = False) -> None:
        self.plan = plan
        self._start_clean = start_clean
        self._stop_event = asyncio.Event()
        self._is_stopped = False
        self._problem: Exception | None = None
        self._is_draining = False
        self._outbox: Outbox | None = None
        self._link: BrokerLink | None = None
        self._last: IngestCounters | None = None
        self._expiry: int | None = None
        self._granted: dict[str, int] = {}
        self._sessions_lost = 0
        # Connections in a row that ended for a permanent reason, and the messages received by then.
        self._permanent_ends = 0
        self._received_before = 0
        self._positions = (0, 0, 0.0)

    # --- for the caller ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Ingest. Raises Refused, Disconnected, Unusable and MissingExtra; all is closed then.

        When it returns, every message received is stored and acknowledged, and DISCONNECT was
        sent; the broker keeps the session.
        """
        try:
            await self._run()
        except Refused as problem:
            fallback = self.plan.fallback
            if fallback is None or not problem.refuses_version or self._is_stopped:
                raise
            LOG.warning("the broker refused MQTT 5.0; connecting with MQTT 3.1.1")
            # The refused CONNECT has changed nothing on either side.
            self.plan = fallback
            self._stop_event.clear()
            self._problem = self._last = None
            self._is_draining = False
            await self._run()

    async def _run(self) -> None:
        """Ingest with the MQTT version of the plan."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        for warning in self.plan.warnings:
            LOG.warning("%s", warning)
        outbox = open_ingest_store(self.plan.store, self.plan.stream, self.plan.client_id)
        try:
            link = self._make_link(outbox)
        except BaseException:
            outbox.opened.close()
            raise
        starting = asyncio.get_running_loop().create_task(self._start(link))
        try:
            await self._stop_event.wait()
            self._is_draining = True
            link.pause_for_reader(True)
            if self._problem is None:
                await self._wait_until_sealed(link)
        finally:
            self._is_draining = True
            try:
                await link.close(NORMAL_DISCONNECTION, None)
                starting.cancel()
                await asyncio.wait((starting,))
            finally:
                outbox.opened.store.close()
                self._keep_final_counters()
                outbox.opened.folder.close()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Stop reading; `run` returns when all messages received are stored and acknowledged."""
        self._is_stopped = True
        self._stop_event.set()

    @property
    def counters(self) -> IngestCounters:
        """The present counters."""
        if self._last is not None:
            return self._last
        if self._outbox is None:
            return IngestCounters("connecting", self.plan.client_id, "", 0, 0, 0, 0.0, 0, 0, "open")
        assert self._link is not None
        state = "connecting"
        if self._link.is_connected and not self._awaits_subscription():
            state = "connected"
        if self._is_draining:
            state = "draining"
        self._read_positions(self._outbox.opened.store.reader.connection)
        return self._make_counters(state)

    def _awaits_subscription(self) -> bool:
        """Whether the session lacks a filter before its SUBACK: messages may be missed so far."""
        assert self._link is not None
        subscriptions = self._link.core.subscriptions
        asked = {*subscriptions.due, *(each for each, _ in subscriptions.pending.values())}
        return not asked <= subscriptions.in_session.keys()

    # --- start and end ----------------------------------------------------------------------------

    def _make_link(self, outbox: Outbox) -> BrokerLink:
        """A BrokerLink that continues the session of the store."""
        plan = self.plan
        opened = outbox.opened
        stream = opened.streams.all[0]
        if self._start_clean:
            # The broker will discard its queued messages. Record the break first: after a crash
            # it would not be known.
            opened.store.database.set_metadata(break_key(stream), "the session was started clean")
        core = ClientCore(
            plan.connect_parameters,
            outbox.client_id,
            run=token_hex(6),
            store=opened.store,
            store_id=SESSION,
            stream=stream,
        )
        core.restore()
        for subscription in plan.subscriptions:
            core.subscribe(subscription, NO_PROPERTIES)
        link = BrokerLink(
            core,
            plan.address,
            self,
            tls=plan.tls,
            authentication=plan.authentication,
            timeout=CONNECT_SECONDS,
            backoff=plan.backoff,
            clean_start=self._starts_clean(core, stream),
            purge=self._purge,
            store=opened.store,
        )
        self._outbox = outbox
        self._link = link
        link.flush()
        return link

    def _starts_clean(self, core: ClientCore, stream: Stream) -> bool | None:
        """Whether the first connection starts clean; None: as the state of the client requires.

        A session that the broker has under our client identifier is not discarded silently, unless
        the identifier was made for us and never used: then no message can be missed.
        """
        if self._start_clean:
            return True
        is_new = not core.has_state and stream.last_seq == 0
        return None if is_new and MADE_CLIENT_ID.fullmatch(core.client_id) else False

    async def _start(self, link: BrokerLink) -> None:
        # `on_failed` reports these errors.
        with suppress(Refused, Disconnected):
            await link.start(offline=True)

    async def _wait_until_sealed(self, link: BrokerLink) -> None:
        """Wait until all rows are stored, and sealed if that takes at most SEAL_SECONDS."""
        assert self._outbox is not None
        store = self._outbox.opened.store
        with suppress(TimeoutError, Refused, Disconnected):
            async with asyncio.timeout(SEAL_SECONDS):
                await link.until(lambda: link.core.is_committed)
                while self.plan.store.seal_after < SEAL_SECONDS:
                    stored, sealed, _ = self._read_positions(store.reader.connection)
                    if sealed >= stored:
                        break
                    await asyncio.sleep(POLL_SECONDS)

    async def _purge(self, client_id: str) -> None:
        parameters = self.plan.connect_parameters
        await purge(
            self.plan.address,
            client_id,
            user_name=parameters.user_name,
            password=parameters.password,
            tls=self.plan.tls,
            timeout=CONNECT_SECONDS,
        )

    def _fail(self, problem: Exception) -> None:
        if self._problem is None and not self._is_draining:
            self._problem = problem
        self._stop_event.set()

    # --- counters ---------------------------------------------------------------------------------

    def _read_positions(self, connection: sqlite3.Connection) -> tuple[int, int, float]:
        """How far the stream is stored and sealed; the previous values if they cannot be read.

        The writer of the store reports its errors.
        """
        with suppress(sqlite3.Error):
            self._positions = positions(connection, self._stream.id)
        return self._positions

    def _make_counters(self, state: str) -> IngestCounters:
        assert self._link is not None
        assert self._outbox is not None
        core, opened = self._link.core, self._outbox.opened
        stored, sealed, lag = self._positions
        return IngestCounters(
            state=state,
            client_id=core.client_id,
            node=opened.node,
            received=core.recorded,
            stored=stored,
            sealed=sealed,
            lag=lag,
            reconnects=self._link.reconnects,
            sessions_lost=core.sessions_lost,
            store=CONDITIONS[opened.store.condition],
        )

    def _keep_final_counters(self) -> None:
        """Keep the final counters: the store is closed, and its folder is still locked by us."""
        assert self._outbox is not None
        folder = self._outbox.opened.folder.path
        with suppress(OSError, sqlite3.Error, Unusable), closing(read_only(folder)) as connection:
            self._read_positions(connection)
        self._last = self._make_counters("ended")

    @property
    def _stream(self) -> Stream:
        assert self._outbox is not None
        return self._outbox.opened.streams.all[0]

    # --- events of the link -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The broker has accepted the connection."""
        link = self._link
        assert link is not None
        core = link.core
        how = "session resumed" if packet.session_present else "new session"
        LOG.info("%s: connected as %s, %s", link.address, core.client_id, how)
        if core.sessions_lost > self._sessions_lost:
            self._sessions_lost = core.sessions_lost
            LOG.warning(
                "the broker lost the session: messages may be missing before row %d of stream %s",
                self._stream.last_seq + 1,
                self._stream.name,
            )
        self._report_expiry(packet)
        if not packet.session_present:
            self._granted.clear()

    def _report_expiry(self, packet: ConnAck) -> None:
        asked = self.plan.connect_parameters.session_expiry
        given = packet.properties.session_expiry_interval
        expiry = asked if given is None else given
        if expiry < asked and expiry != self._expiry:
            requested = "forever" if asked == NEVER_EXPIRES else f"for {asked} s"
            LOG.warning(
                "the broker keeps the session for %d s without a connection, not %s as requested:"
                " a longer outage loses messages",
                expiry,
                requested,
            )
        self._expiry = expiry

    def on_answered(self, answers: list[SubscriptionAnswer]) -> None:
        """The broker has answered SUBSCRIBE or UNSUBSCRIBE packets."""
        assert self._link is not None
        refusal: Exception | None = None
        for answer in answers:
            problem = refusal_of(answer)
            if not answer.subscribed:
                if problem is None:
                    LOG.info("unsubscribed from %s", answer.topic_filter)
                else:
                    LOG.warning("%s", problem)
            elif problem is None:
                self._permanent_ends = 0
                self._report_qos(answer)
            else:
                refusal = problem
                LOG.warning("%s", problem)
        subscriptions = self._link.core.subscriptions
        if refusal is not None and not subscriptions.pending and not subscriptions.due:
            if not any(
                each.topic_filter in subscriptions.in_session for each in self.plan.subscriptions
            ):
                self._fail(refusal)

    def _report_qos(self, answer: SubscriptionAnswer) -> None:
        topic_filter, granted = answer.topic_filter, answer.reason
        asked = self.plan.subscriptions[0].qos
        if self._granted.get(topic_filter) == granted:
            return
        self._granted[topic_filter] = granted
        if granted < asked:
            LOG.warning(
                "subscribed to %s at QoS %d, not %d as requested", topic_filter, granted, asked
            )
        else:
            LOG.info("subscribed to %s at QoS %d", topic_filter, granted)

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is lost. The link reconnects, unless the broker rejects us repeatedly."""
        link = self._link
        assert link is not None
        if link.core.recorded > self._received_before:
            self._received_before = link.core.recorded
            self._permanent_ends = 0
        if not isinstance(problem, Disconnected) or problem.reason not in PERMANENT_REASONS:
            self._permanent_ends = 0
            return
        self._permanent_ends += 1
        if self._permanent_ends == MAXIMUM_REFUSALS:
            filters = ", ".join(each.topic_filter for each in self.plan.subscriptions)
            link.give_up(
                Disconnected(
                    f"{problem}; {MAXIMUM_REFUSALS} connections in a row ended like this: check"
                    f" that the broker allows the subscription to {filters}",
                    reason=problem.reason,
                    properties=problem.properties,
                )
            )

    def on_failed(self, problem: Exception) -> None:
        """The link makes no other connection."""
        self._fail(problem)

    def on_arrived(self, messages: list[Incoming]) -> None:
        """Not called: messages go to the stream."""

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Not called: nothing is published."""

    def on_stored(self, numbers: list[int]) -> None:
        """Not called: nothing is published."""


def positions(connection: sqlite3.Connection, stream: int) -> tuple[int, int, float]:
    """The last row stored, the last row sealed, and the age of the first row not sealed."""
    stored, sealed = connection.execute(
        "SELECT last_seq, sealed_seq FROM stream WHERE id = ?", (stream,)
    ).fetchone()
    if sealed >= stored:
        return stored, sealed, 0.0
    row = connection.execute(
        "SELECT received_at FROM record WHERE stream_id = ? AND seq = ?", (stream, sealed + 1)
    ).fetchone()
    lag = 0.0 if row is None else max(0.0, time.time() - row[0] / 1_000_000)
    return stored, sealed, lag


def refusal_of(answer: SubscriptionAnswer) -> Exception | None:
    """Why the broker refused a SUBSCRIBE or UNSUBSCRIBE, None if it did not."""
    if answer.violation is not None:
        return answer.violation
    if answer.reason < FAILURE:
        return None
    about = f"the subscription to {answer.topic_filter}"
    if not answer.subscribed:
        about = f"to end {about}"
    packet_type = SUBACK if answer.subscribed else UNSUBACK
    return Refused(answer.reason, packet_type, about=about, properties=answer.properties)
