"""The broker without the network: bytes, time and random identifiers are arguments.

    opened ─▶ receive(bytes) … ─▶ lost          the life of one connection
    flush                                       the end of a tick: commit, and send packets
    take_turns                                  continue connections that have used up their turn
    sweep                                       once a second: timeouts, delayed wills, expiry

A tick is everything since the last flush. Its durable changes are one Commit, and packets that
report them are sent after it is committed (`CommitGate`). A failure closes one connection only.
"""

from collections.abc import Callable
from traceback import format_exc
from typing import Final, final

from semel.broker.access_control import AccessControl
from semel.broker.admission import Admission, answer_to_broken_connect, refuse_for_violation
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.broker_log import BrokerLog, source_of
from semel.broker.connecting import Connecting
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.counters import BrokerCounters
from semel.broker.flushing import Flushing
from semel.broker.hot_path import HotPath
from semel.broker.identity import Identity, PeerInfo
from semel.broker.lifetimes import WINDOW, Lifetimes
from semel.broker.listener_limits import ListenerLimits, default_limits
from semel.broker.memory import ROOM_WHEN_SHORT, UNLIMITED, Memory
from semel.broker.operator_actions import OperatorActions
from semel.broker.oversight import Oversight
from semel.broker.pressure import Pressure
from semel.broker.rate_limits import RateLimits
from semel.broker.replay import Replays, is_of_stream, suback
from semel.broker.revocation import Revocation
from semel.broker.router import Router
from semel.broker.router_limits import make_router
from semel.broker.session_state import SessionState
from semel.broker.settings import BrokerSettings
from semel.broker.silence import SilenceCheck
from semel.broker.snapshot import BrokerSnapshot, Snapshots
from semel.broker.store_pressure import StorePressure
from semel.broker.sys_topics import SysTopics
from semel.broker.throttled_log import ThrottledLog
from semel.broker.turns import (
    COPY_SHIFT,
    ITEM_BYTES_SHIFT,
    PACKET_WORK,
    TURN_WORK,
    UNWRITTEN_ROWS,
    Turns,
)
from semel.mqtt.codec import Packet
from semel.mqtt.exchange import NEW
from semel.mqtt.message import Message, received_message
from semel.mqtt.packet_types import CONNECT, MQTT311
from semel.mqtt.packets.acks import Ack
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq, PingResp
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.reasons import (
    DISCONNECT_WITH_WILL_MESSAGE,
    FAILURE,
    NO_MATCHING_SUBSCRIBERS,
    NO_SUBSCRIPTION_EXISTED,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SUCCESS,
)
from semel.mqtt.side import CLIENT
from semel.mqtt.topics import check_levels
from semel.mqtt.violation import Violation
from semel.store.commit import Commit
from semel.store.store import OPEN, Store
from semel.store.streams import Streams


@final
class Broker:
    """Handles the packets of all connections."""

    settings: Final[BrokerSettings]
    router: Final[Router]
    memory: Final[Memory]
    store: Final[Store]
    connections: Final[dict[int, Connection]]
    # Connections that were continued: their sockets may be read again, if `may_be_read`.
    resumed: list[Connection]
    counters: Final[BrokerCounters]
    # None: every packet takes the plain path.
    hot_path: HotPath | None
    replays: Final[Replays]
    pressure: Final[Pressure]
    store_pressure: Final[StorePressure]
    rate_limits: Final[RateLimits]
    turns: Final[Turns]
    oversight: Final[Oversight]
    log: Final[BrokerLog]
    actions: Final[OperatorActions]
    # The work of one turn of one connection, in the units of `turns.py`.
    turn_work: int
    _outgoing_bytes: Final[int]
    _inflight_bytes: Final[int]
    _limits: Final[ListenerLimits]
    _connections: Final[Connections]
    _connecting: Final[Connecting]
    _revocation: Final[Revocation]
    _silence: Final[SilenceCheck]
    _flushing: Final[Flushing]
    _lifetimes: Final[Lifetimes]
    _report_due: float
    _snapshots: Final[Snapshots]
    _sys_topics: Final[SysTopics]

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        authority: Authority,
        store: Store,
        new_client_id: Callable[[], str],
        log: Callable[[str], None],
        now: float,
        streams: Streams | None = None,
        wall: Callable[[], float] | None = None,
        window: int = WINDOW,
        log_connection: Callable[[str], None] | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        """`now` is the time of a monotonic clock that continues after a restart, because durable
        deadlines are in this time. `wall` returns the wall clock time, by default always `now`.
        `window` is how many queued messages of a durable session are kept in memory. `log` logs
        problems, `log_connection` (by default `log`) connections and disconnections."""
        made = BrokerLog(log, log_connection or log, lines_per_minute=settings.log_lines_per_minute)
        self.log = made
        self.settings = settings
        self._outgoing_bytes = settings.maximum_outgoing_bytes
        self._inflight_bytes = settings.maximum_inflight_bytes
        self.oversight = Oversight() if oversight is None else oversight
        limit = settings.maximum_memory
        self.memory = Memory(UNLIMITED if limit is None else limit)
        if streams is None:
            streams = Streams([])
        access = AccessControl(authority)
        router = make_router(settings, access, store, streams, self.memory)
        self.router = router
        self.store = store
        self.resumed = []
        self.counters = router.counters
        self.hot_path = HotPath(router, settings.route_cache)
        self.pressure = Pressure(settings.slow_subscriber_timeout)
        self.store_pressure = StorePressure(router, settings.full_disk_timeout)
        self.rate_limits = RateLimits(settings)
        self.turns = Turns()
        self.turn_work = TURN_WORK
        self._lifetimes = Lifetimes(
            router,
            made,
            window,
            maximum_sessions=settings.maximum_sessions,
            maximum_expiry=settings.maximum_session_expiry,
        )
        self._limits = default_limits(settings)
        self._connections = Connections(
            settings,
            router.gate,
            router.access,
            self._lifetimes,
            self.pressure,
            made,
            audit=self.oversight.audit,
        )
        self.connections = self._connections.by_number
        self.replays = Replays(router, self._connections.send_queue, made)
        self._flushing = Flushing(
            settings,
            self._connections,
            router,
            self.replays,
            self._lifetimes,
            log=made,
            wall=(lambda: now) if wall is None else wall,
        )
        self._silence = SilenceCheck(self._connections, self.store_pressure, made)
        self._revocation = Revocation(router, self.replays, self._connections, ThrottledLog(log))
        self._connecting = Connecting(
            settings,
            Admission(
                settings,
                authority,
                access=access,
                new_client_id=new_client_id,
                sessions=router.sessions,
                arrivals=self._connections.arrivals,
                shares=self._lifetimes.shares,
                memory=self.memory,
            ),
            self._connections,
            router,
            self._lifetimes,
            self._revocation,
            oversight=self.oversight,
            log=made,
        )
        self.actions = OperatorActions(
            router, self._connections, lifetimes=self._lifetimes, oversight=self.oversight
        )
        self._report_due = now
        self._sys_topics = SysTopics(now)
        saved = store.restore()
        self._lifetimes.restore(saved, now)
        self.replays.restore(saved)
        self._snapshots = Snapshots(
            router,
            self._connections,
            self.pressure,
            self.store_pressure,
            self.rate_limits,
            now=now,
        )
        self._revocation.check_all()

    # --- for the owner of the sockets -------------------------------------------------------------

    def opened(
        self, peer: PeerInfo, now: float, limits: ListenerLimits | None = None
    ) -> Connection:
        """Add a new connection. `limits` are those of its listener, by default of the settings."""
        connection = self._connections.open(peer, now, self._limits if limits is None else limits)
        self.rate_limits.opened(connection, now)
        return connection

    def receive(self, connection: Connection, data: bytes, now: float) -> None:
        """Process received bytes. Packets that exceed the turn of the connection stay in its
        decoder: then it `awaits_turn`, and its socket must not be read until that is False."""
        self.counters.bytes_received += len(data)
        connection.bytes_received += len(data)
        connection.decoder.feed(data)
        if not connection.awaits_turn and not connection.paused_by_rate:
            self._take_turn(connection, now, len(data))

    def take_proofs(self) -> list[tuple[Connection, Proof]]:
        """Take the proofs to run in other threads. `proved` must be called with each result."""
        proofs = self._connecting.proofs
        if proofs:
            self._connecting.proofs = []
        return proofs

    def proved(self, connection: Connection, decided: Identity | Denied, now: float) -> None:
        """A Proof has decided. Nothing happens if its connection is closed meanwhile."""
        if connection.closing or not connection.awaits_proof:
            return
        try:
            self._connecting.proved(connection, decided, now)
        except Exception:
            self._connections.close_failed(connection, format_exc(), now)
        self._continue(connection, now)

    def lost(self, connection: Connection, now: float) -> None:
        """The socket of a connection is closed, by either side."""
        self._connections.remove(connection, now)
        self.store_pressure.forget(connection)
        self.rate_limits.forget(connection)
        self.turns.forget(connection)
        if not connection.closing:
            line = f"{connection.label} lost its connection"
            self.log.connection(connection.log_source, line, now)
            connection.close_reason = "lost its connection"
        self._connections.detach_session(connection, now)
        self.pressure.forget(connection)

    def has_output(self) -> bool:
        """Whether `take_output` would return something."""
        return bool(self._connections.with_output)

    def take_output(self) -> dict[int, Connection]:
        """Take the connections, by number, that have bytes to write or must be closed."""
        with_output = self._connections.with_output
        self._connections.with_output = {}
        return with_output

    def take_released(self) -> list[Connection]:
        """Take the connections whose sockets may be read again, if they `may_be_read`."""
        released = [*self.pressure.released, *self.resumed]
        if released:
            self.pressure.released = []
            self.resumed = []
        return released

    def written(self, connection: Connection, unsent: int) -> None:
        """The output was written; `unsent` bytes are still in the socket's write buffer."""
        connection.unsent = unsent
        state = connection.state
        if state is not None:
            session = state.session
            had_room = session.room > 0
            bound = self._outgoing_bytes
            in_flight = self._inflight_bytes
            if self.memory.is_short:
                bound = min(bound, ROOM_WHEN_SHORT)
                in_flight = min(in_flight, ROOM_WHEN_SHORT)
            session.room = bound - unsent
            session.maximum_in_flight_bytes = in_flight
            if not had_room or state.retained_searches is not None:
                # Messages that did not fit may fit now.
                self.router.mark_dirty(state)
            self.replays.written(state)
            if self.pressure.delays_publishers(state) and self.router.has_caught_up(state):
                self.pressure.caught_up(state)

    def flush(self, now: float) -> None:
        """End the tick: commit its changes, and send packets, now or after the commit."""
        if self._revocation.is_due():
            self._revocation.check_sessions(now)
        self._flushing.close_faulty(now)
        if not self.pressure.is_idle():
            for state in self.pressure.expire(self.router.sessions, now):
                line = f"{state.label} reads too slowly: publishers no longer wait for it"
                self.log.problem(source_of(state.identity), line, now)
        self._resume_paused(now)
        if self._revocation.is_due():
            self._revocation.check_senders(now)
        self._flushing.flush(now)

    def has_work(self) -> bool:
        """Whether the next tick has something to do even if nothing is received: to send queued
        messages, to continue a connection, or to check sessions after a change of rights."""
        return (
            bool(self.router.dirty)
            or self.has_turns()
            or self.store_pressure.has_resumable()
            or self.is_checking_rights()
        )

    def is_checking_rights(self) -> bool:
        """Whether rights have changed, and the next ticks have to check sessions."""
        return self._revocation.is_due()

    def committed(self, commit: Commit, now: float) -> None:
        """The store has written this commit: send the packets that awaited it."""
        self._flushing.committed(commit, now)

    @property
    def store_failure(self) -> str:
        """Why a commit could not be passed to the store; "": none failed. After a failure the
        owner must stop the broker."""
        return self._flushing.store_failure

    def snapshot(self, now: float) -> BrokerSnapshot:
        """All numbers at this time, but sums over all sessions may be older: `session_totals`."""
        return self._snapshots.take(now)

    def disconnect(
        self, connection: Connection, reason: int, now: float, why: str | None = None
    ) -> None:
        """Close a connection, with a DISCONNECT if its version has one [MQTT-3.14.0-1]."""
        self._connections.disconnect(connection, reason, now, why)

    def stop(self, now: float) -> None:
        """Disconnect all clients. Sessions stay as they are."""
        for connection in list(self.connections.values()):
            if not connection.closing:
                self.disconnect(connection, SERVER_SHUTTING_DOWN, now)
        self.flush(now)
        self.log.end()

    # --- turns ------------------------------------------------------------------------------------

    def take_turns(self, now: float) -> bool:
        """Start a new round, and continue some connections that await their turn, unless the store
        is behind. Returns whether anything was continued."""
        self.turns.number += 1
        if not self.has_turns():
            return False
        self._lifetimes.continue_checks(now)
        for connection in self.turns.take():
            self._continue(connection, now)
        return True

    def has_turns(self) -> bool:
        """Whether `take_turns` has something to continue: connections, wills, ends of sessions."""
        # While the store is not OPEN, `StorePressure` decides for each packet.
        return (self.turns.has_next() or self._lifetimes.is_behind) and (
            self.store.condition != OPEN or self.router.unwritten_rows() < UNWRITTEN_ROWS
        )

    def _resume_paused(self, now: float) -> None:
        """Continue connections that were paused by the store, while it accepts messages, and those
        that have waited long enough for their rate."""
        if self.rate_limits.next_due() is not None:
            for number in self.rate_limits.take_due(now):
                paused = self.connections.get(number)
                if paused is not None and not paused.closing:
                    paused.paused_by_rate = False
                    self._continue(paused, now)
        for _ in range(self.store_pressure.paused):
            connection = self.store_pressure.release()
            if connection is None:
                return
            self._continue(connection, now)

    def _continue(self, connection: Connection, now: float) -> None:
        """Process the bytes in the decoder. A failure closes this connection only."""
        # A paused client was not silent.
        connection.last_packet_at = now
        self.resumed.append(connection)
        try:
            self._take_turn(connection, now, 0)
        except Exception:
            self._connections.close_failed(connection, format_exc(), now)

    def _take_turn(self, connection: Connection, now: float, received: int) -> None:
        """Process the bytes in the decoder, up to the work of one turn."""
        router = self.router
        # An exception in an earlier turn may have left some.
        router.slow_readers = []
        # All turns of a connection in one round share its work.
        router.work = connection.work if connection.turn == self.turns.number else 0
        router.work += received >> COPY_SHIFT
        messages = self.counters.messages_received
        self._process(connection, now)
        messages = self.counters.messages_received - messages
        connection.messages_received += messages
        if self.rate_limits.is_active:
            self.rate_limits.charge(connection, messages=messages, size=received, now=now)
        connection.turn = self.turns.number
        connection.work = router.work
        if router.slow_readers:
            self.pressure.pause(connection, router.slow_readers, now)
            router.slow_readers = []
        self._connections.arrivals.received(connection, now)

    def _process(self, connection: Connection, now: float) -> None:
        decoder = connection.decoder
        router = self.router
        while not (connection.closing or connection.paused_by_store or connection.is_waiting):
            if router.work >= self.turn_work:
                if decoder.has_unread():
                    self.turns.wait(connection)
                return
            state = connection.state
            store_accepts = self.store_pressure.accepts_messages()
            if (
                store_accepts
                and self.hot_path is not None
                and state is not None
                and connection.is_connected
            ):
                self.hot_path.take(connection, state, now, self.turn_work)
                if router.work >= self.turn_work:
                    continue
                store_accepts = self.store_pressure.accepts_messages()
            at = decoder.position
            item = decoder.next()
            if (
                not store_accepts
                and item is not None
                and self.store_pressure.must_wait(connection, item)
            ):
                decoder.move_to(at)
                self.store_pressure.pause(connection)
                return
            if item is None:
                return
            router.work += PACKET_WORK
            if isinstance(item, Violation):
                self._close_for_violation(connection, item, decoder.refused, now)
                continue
            if not isinstance(item, Publish):
                # Their cost grows with their items, which may be a few bytes each.
                router.work += (decoder.position - at) >> ITEM_BYTES_SHIFT
            # [MQTT-3.1.2-22] packets count, not bytes
            connection.last_packet_at = now
            self.counters.packets_received += 1
            self._observe(connection, item, at, now)

    def _observe(self, connection: Connection, packet: Packet, at: int, now: float) -> None:
        """Take a packet, which begins `at` this position of the received bytes."""
        try:
            # Size 0: the decoder has already refused packets that are too large.
            connection.exchange.observe(CLIENT, packet, 0)
        except Violation as violation:
            data = connection.decoder.first_bytes(at)
            if violation.rule.closes:
                self._close_for_violation(connection, violation, data, now)
                return
            # The standard obliges the receiver to continue.
            self._note_violation(connection, violation, data, now)
            connection.exchange.observe(CLIENT, packet, 0, [])
        try:
            self._handle(connection, packet, now)
        except Violation as violation:
            violation.version = connection.exchange.version
            data = connection.decoder.first_bytes(at)
            self._close_for_violation(connection, violation, data, now)

    def _note_violation(
        self, connection: Connection, violation: Violation, data: bytes, now: float
    ) -> None:
        self.counters.break_rule(violation.rule)
        self.oversight.violations.add(connection, violation, data, now)

    def _close_for_violation(
        self, connection: Connection, violation: Violation, data: bytes, now: float
    ) -> None:
        """Close the connection, with a reason code if the version has a packet for it."""
        line = f"{connection.label} broke a rule: {violation}"
        self.log.problem(connection.log_source, line, now)
        self._note_violation(connection, violation, data, now)
        if connection.is_connected:
            reason = violation.rule.reason
            self._connections.disconnect(connection, reason, now, violation.rule.name)
            return
        pending = connection.pending_connect
        if pending is not None:
            # A client that authenticates has not got its CONNACK yet.
            self._connections.send(connection, refuse_for_violation(pending, violation).connack)
        elif violation.packet_type == CONNECT and connection.exchange.phase == NEW:
            connection.write(answer_to_broken_connect(violation))
        connection.close_reason = f"{violation.rule.name}: {violation.rule.sentence}"
        self._connections.drop(connection, now)

    # --- packets ----------------------------------------------------------------------------------

    def _handle(self, connection: Connection, packet: Packet, now: float) -> None:
        if isinstance(packet, Connect):
            self._connecting.connect(connection, packet, now)
            return
        if isinstance(packet, Auth):
            self._connecting.authenticate(connection, packet, now)
            return
        state = connection.state
        if state is None:
            # A DISCONNECT during authentication: the Exchange allows nothing else.
            self._connections.drop(connection, now)
            return
        if isinstance(packet, Disconnect):
            self._disconnect(connection, state, packet, now)
            return
        if isinstance(packet, Publish):
            self._publish(connection, state, packet, now)
        elif isinstance(packet, Ack):
            state.session.receive_ack(packet)
        elif isinstance(packet, Subscribe):
            self._subscribe(connection, state, packet, now)
        elif isinstance(packet, Unsubscribe):
            self._unsubscribe(connection, state, packet)
        else:
            assert isinstance(packet, PingReq), "the Exchange allows a client nothing else"
            self._connections.send(connection, PingResp())
        self.router.mark_dirty(state)

    def _publish(
        self, connection: Connection, state: SessionState, packet: Publish, now: float
    ) -> None:
        self.counters.received.add(packet.qos, messages=1, size=len(packet.payload))
        if packet.properties.present and connection.has_too_many_aliases():
            limit = f"maximum_alias_bytes is {connection.maximum_alias_bytes}"
            why = f"its topics with an alias take too many bytes: {limit}"
            line = f"{connection.label} closed: {why}"
            self.log.problem(connection.log_source, line, now)
            self._connections.disconnect(connection, QUOTA_EXCEEDED, now, why)
            return
        topic_name = connection.exchange.topic_name(CLIENT, packet)
        check_levels(topic_name, connection.limits.topic_levels)
        # Before the session changes, so that the client may resend the message if this raises.
        reason = self.router.access.publish(
            state.identity, topic_name, qos=packet.qos, retain=packet.retain
        )
        receipt = state.session.receive_publish(packet)
        if receipt is None:
            return
        if reason == SUCCESS and self.store_pressure.refuses(packet.qos):
            if self.router.would_keep(topic_name, packet.qos, state, retain=packet.retain):
                reason = QUOTA_EXCEEDED
        if reason == SUCCESS and not self._route(state, packet, topic_name, now):
            reason = NO_MATCHING_SUBSCRIBERS
        if reason >= FAILURE:
            self.counters.refuse_publish(reason)
        state.session.accept(receipt, reason)
        # Last, because it calls the authority: if that raises, the message is already accepted.
        if reason < FAILURE and self.hot_path is not None:
            self.hot_path.learn(state, packet)

    def _route(self, state: SessionState, packet: Publish, topic_name: str, now: float) -> bool:
        """Record a message and route it to its subscribers. Returns whether there are any."""
        router = self.router
        message = received_message(packet, topic_name, now)
        is_kept = router.gate.keeps_identifier(state, packet.qos)
        streams = router.streams.of(topic_name)
        if streams:
            is_kept = True
            router.record(
                streams,
                message,
                state,
                packet_id=packet.packet_id,
                dup=packet.dup,
                properties=packet.properties,
            )
        has_subscribers = router.route(message, state, now, is_kept=is_kept)
        router.gate.await_routed_message(state)
        return has_subscribers

    def _subscribe(
        self, connection: Connection, state: SessionState, packet: Subscribe, now: float
    ) -> None:
        for subscription in packet.subscriptions:
            check_levels(subscription.topic_filter, connection.limits.topic_levels)
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        reasons: list[int] = []
        problems: list[str] = []
        for subscription in packet.subscriptions:
            if is_of_stream(subscription.topic_filter):
                reason = self.replays.subscribe(state, subscription, packet, problems, now)
            else:
                reason = self.router.subscribe(state, subscription, identifier, now)
            # [MQTT-3.9.3-2] in 3.1.1 there is one code for all failures
            if reason >= FAILURE and connection.exchange.version == MQTT311:
                reason = FAILURE
            reasons.append(reason)
        self._connections.send(connection, suback(connection.exchange, packet, reasons, problems))
        if state.retained_searches is not None:
            # Now, so that they precede later messages. The next ticks continue a long search.
            self.router.retained_work = TURN_WORK
            self.router.send_retained(state, now)

    def _unsubscribe(
        self, connection: Connection, state: SessionState, packet: Unsubscribe
    ) -> None:
        for topic_filter in packet.topic_filters:
            check_levels(topic_filter, connection.limits.topic_levels)
        reasons: list[int] = []
        for topic_filter in packet.topic_filters:
            existed = self.router.unsubscribe(state, topic_filter)
            self.replays.unsubscribe(state, topic_filter)
            reasons.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)
        if connection.exchange.version == MQTT311:
            reasons = []
        self._connections.send(connection, UnsubAck(packet.packet_id, reasons))

    def _disconnect(
        self, connection: Connection, state: SessionState, packet: Disconnect, now: float
    ) -> None:
        """Handle DISCONNECT. Only code 0x00 discards the will [MQTT-3.14.4-3]."""
        if packet.reason < FAILURE and packet.reason != DISCONNECT_WITH_WILL_MESSAGE:
            self._lifetimes.discard_will(state)
        interval = packet.properties.session_expiry_interval
        if interval is not None:
            allowed = min(interval, self.settings.maximum_session_expiry)
            self._lifetimes.change_expiry(state, allowed)
        self.log.connection(connection.log_source, f"{connection.label} disconnected", now)
        connection.close_reason = f"disconnected by the client, 0x{packet.reason:02x}"
        self._connections.drop(connection, now)

    # --- time -------------------------------------------------------------------------------------

    def sweep(self, now: float, stalled_seconds: float = 0.0) -> None:
        """Once a second: check silent connections, delayed wills and expired sessions.

        The loop has read nothing for `stalled_seconds`: deadlines of clients move by that time.
        """
        for connection in list(self.connections.values()):
            connection.opened_at += stalled_seconds
            connection.last_packet_at += stalled_seconds
            connection.begun_at += stalled_seconds
            if connection.closing:
                continue
            try:
                self._silence.check(connection, now)
            except Exception:
                self._connections.close_failed(connection, format_exc(), now)
        # A failure of one of these must not prevent the others.
        try:
            self._connections.arrivals.sweep(now)
        except Exception:
            self.log.fault(f"the sweep of incomplete packets failed: {format_exc()}")
        self.rate_limits.sweep(now)
        self.log.flush(now)
        self._revocation.flush_log(now)
        try:
            if self.memory.is_short:
                self._lifetimes.free_memory(self.memory.limit // 20, now)
        except Exception:
            self.log.fault(f"freeing memory failed: {format_exc()}")
        try:
            self.router.retained.sweep(now)
        except Exception:
            self.log.fault(f"the sweep of retained messages failed: {format_exc()}")
        try:
            self._report(now)
        except Exception:
            self.log.fault(f"the report under $SYS failed: {format_exc()}")
        self.replays.retry()
        self._lifetimes.sweep(now)

    def _report(self, now: float) -> None:
        """Publish the topics under $SYS, once per `sys_interval`."""
        self._snapshots.sweep(now)
        interval = self.settings.sys_interval
        if interval and now >= self._report_due:
            self._report_due = now + interval
            for topic_name, value in self._sys_topics.report(self.snapshot(now), now):
                self.router.route(Message(topic_name, value.encode(), retain=True), None, now)
