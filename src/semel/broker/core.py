"""The broker without the network: bytes, time and random identifiers come in as arguments.

    opened ─▶ receive(bytes) … ─▶ lost          what one connection goes through
    flush                                       the end of a tick: commit, then let packets leave
    take_turns                                  go on with those whose share of the tick was used up
    sweep                                       once a second: time-outs, delayed wills, expiry

A tick is whatever the loop did since the last flush. Everything that has to last is in the tick's
one Commit; packets leave when the store has it. One connection's fault ends that connection.
"""

from collections.abc import Callable
from traceback import format_exc
from typing import Final, final

from semel.broker.admission import (
    Admission,
    ConnectAccepted,
    ConnectChallenged,
    ConnectDecision,
    ConnectRefused,
    answer_to_broken_connect,
    next_auth,
    refuse_for_violation,
    refused,
)
from semel.broker.arrivals import Arrivals
from semel.broker.authority import Authority, Challenge, Granted
from semel.broker.connection import Connection
from semel.broker.faults import fault_report
from semel.broker.hot_path import HotPath
from semel.broker.lifetimes import WINDOW, Lifetimes
from semel.broker.memory import ROOM_WHEN_SHORT, UNLIMITED, Memory
from semel.broker.pressure import Pressure
from semel.broker.replay import Replays, is_of_stream, suback
from semel.broker.router import Router
from semel.broker.send_queue import SendQueue
from semel.broker.session_state import SessionState, shown
from semel.broker.settings import BrokerSettings
from semel.broker.store_pressure import StorePressure
from semel.broker.sys_topics import BrokerCounters, sys_topics
from semel.broker.turns import (
    COPY_SHIFT,
    ITEM_BYTES_SHIFT,
    PACKET_WORK,
    TURN_WORK,
    UNWRITTEN_ROWS,
    Turns,
)
from semel.mqtt.codec import Packet, encode
from semel.mqtt.exchange import CONNECTED, NEW, Exchange
from semel.mqtt.message import Message, received_message
from semel.mqtt.packet_types import CONNECT, DISCONNECT, MQTT5, MQTT311, PUBLISH
from semel.mqtt.packets.acks import Ack
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq, PingResp
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.properties import Properties
from semel.mqtt.reasons import (
    DISCONNECT_WITH_WILL_MESSAGE,
    FAILURE,
    KEEP_ALIVE_TIMEOUT,
    NO_MATCHING_SUBSCRIBERS,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    RE_AUTHENTICATE,
    REASONS_5,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    SUCCESS,
)
from semel.mqtt.session import Outgoing, Session
from semel.mqtt.side import CLIENT, SERVER
from semel.mqtt.topics import check_levels
from semel.mqtt.violation import Violation
from semel.store.commit import Commit
from semel.store.store import FULL, OPEN, Store
from semel.store.streams import Streams

# What clients are told.
_FULL: Final = "the disk of the server is full"

# Retained messages looked at for expiry in one sweep.
_SWEPT: Final = 1_000


@final
class Broker:
    """Connections, sessions, and what happens to them."""

    settings: Final[BrokerSettings]
    router: Final[Router]
    memory: Final[Memory]
    store: Final[Store]
    connections: Final[dict[int, Connection]]
    # Connections that have bytes to write, or that are to be closed.
    ready: dict[int, Connection]
    # Connections that were served again, and may be read from again if nothing else is against it.
    resumed: list[Connection]
    counters: Final[BrokerCounters]
    # None: every packet goes the plain way.
    hot_path: HotPath | None
    replays: Final[Replays]
    pressure: Final[Pressure]
    store_pressure: Final[StorePressure]
    turns: Final[Turns]
    # How much is done for one connection in its turn.
    turn_work: int
    # Why the store could not even be given a commit; "": it could. The broker is at its end then.
    store_failure: str
    _send_queue: Final[SendQueue]
    # Sessions whose next deliveries were not safe yet when they were wanted.
    _awaiting_refill: list[SessionState]
    # Sessions for whom this tick had no time to find retained messages.
    _awaiting_search: list[SessionState]
    _lifetimes: Final[Lifetimes]
    _arrivals: Final[Arrivals]
    _wall: Final[Callable[[], float]]
    _admission: Final[Admission]
    _log: Final[Callable[[str], None]]
    _number: int
    _report_due: float
    _started_at: Final[float]
    _log_connection: Final[Callable[[str], None]]

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
    ) -> None:
        """`now` is the time of a clock that never goes back and that a restart does not upset:
        what has to last is due by it. `wall` tells the time for people, and is `now` if None.
        `window` is how many waiting messages of a stored session are kept in memory. `log` takes
        what is wrong, and `log_connection`, or `log` if None, what every connection brings."""
        self.settings = settings
        limit = settings.maximum_memory
        self.memory = Memory(UNLIMITED if limit is None else limit)
        self.router = Router(
            authority,
            store,
            Streams([]) if streams is None else streams,
            self.memory,
            maximum_subscriptions=settings.maximum_subscriptions,
            maximum_client_subscription_bytes=settings.maximum_client_subscription_bytes,
            maximum_subscription_bytes=settings.maximum_subscription_bytes,
            maximum_queued=settings.maximum_queued_messages,
            maximum_queued_bytes=settings.maximum_queued_bytes,
            maximum_outgoing=settings.maximum_outgoing_bytes,
            maximum_retained=settings.maximum_retained,
            maximum_retained_bytes=settings.maximum_retained_bytes,
        )
        self.store = store
        self.connections = {}
        self.ready = {}
        self.resumed = []
        self.counters = BrokerCounters()
        self.hot_path = HotPath(self.router, self.counters, settings.route_cache)
        self.pressure = Pressure(settings.slow_subscriber_timeout)
        self.store_pressure = StorePressure(self.router, settings.full_disk_timeout)
        self.turns = Turns()
        self.turn_work = TURN_WORK
        self.store_failure = ""
        self._send_queue = SendQueue(self.connections, self.router.gate)
        self.replays = Replays(self.router, self._send_queue, log)
        self._awaiting_refill = []
        self._awaiting_search = []
        self._lifetimes = Lifetimes(
            self.router,
            log,
            window,
            maximum_sessions=settings.maximum_sessions,
            maximum_expiry=settings.maximum_session_expiry,
        )
        self._wall = (lambda: now) if wall is None else wall
        self._admission = Admission(
            settings,
            authority,
            new_client_id=new_client_id,
            taken=self.router.sessions,
            shares=self._lifetimes.shares,
            memory=self.memory,
        )
        self._arrivals = Arrivals(settings, self.connections, self.disconnect, log)
        self._log = log
        self._number = 0
        self._report_due = now
        self._started_at = now
        self._log_connection = log if log_connection is None else log_connection
        saved = store.restore()
        self._lifetimes.restore(saved, now)
        self.replays.restore(saved)

    # --- the network's side -----------------------------------------------------------------------

    def opened(self, peer: str, now: float) -> Connection:
        """A connection was made. Until its CONNECT it may send small packets only."""
        self._number += 1
        settings = self.settings
        connection = Connection(
            self._number,
            peer,
            now,
            maximum_packet_size=settings.maximum_packet_size,
            before_connect=settings.before_connect_packet_size,
            maximum_items=settings.packet_items,
        )
        self.connections[connection.number] = connection
        self._arrivals.opened(connection, now)
        return connection

    def receive(self, connection: Connection, data: bytes, now: float) -> None:
        """Bytes arrived on a connection. What its share does not suffice for waits in its decoder:
        then it `awaits_turn`, and nothing more is to be read from it until it does not."""
        self.counters.bytes_received += len(data)
        connection.decoder.feed(data)
        if not connection.awaits_turn:
            self._take_turn(connection, now, len(data))

    def take_turns(self, now: float) -> None:
        """A new turn for everybody. Of those that wait for theirs some go on now, unless the disk
        is behind."""
        self.turns.number += 1
        if self.has_turns():
            for connection in self.turns.take():
                self._serve_again(connection, now)

    def has_turns(self) -> bool:
        """Whether `take_turns` would do something now."""
        # A store that takes no messages is no reason: then each packet is told what it has to do.
        return self.turns.has_next() and (
            self.store.condition != OPEN or self.router.unwritten_rows() < UNWRITTEN_ROWS
        )

    def _serve_again(self, connection: Connection, now: float) -> None:
        """Go on with what is in its decoder. A fault of this connection is its alone."""
        # Whoever was not read from was not silent.
        connection.last_packet_at = now
        self.resumed.append(connection)
        try:
            self._take_turn(connection, now, 0)
        except Exception:
            self._log(f"serving {_name(connection)} failed: {format_exc()}")
            self._drop(connection, now)

    def _take_turn(self, connection: Connection, now: float, received: int) -> None:
        """One turn: work off what is in the decoder, as far as its share goes."""
        router = self.router
        # An exception may have left some.
        router.slow_readers = []
        # Within one turn of everybody, what it sends in many pieces counts as one.
        router.work = connection.work if connection.turn == self.turns.number else 0
        router.work += received >> COPY_SHIFT
        self._work_off(connection, now)
        connection.turn = self.turns.number
        connection.work = router.work
        if router.slow_readers:
            self.pressure.pause(connection, router.slow_readers, now)
            router.slow_readers = []
        self._arrivals.received(connection, now)

    def _work_off(self, connection: Connection, now: float) -> None:
        decoder = connection.decoder
        router = self.router
        while not connection.closing and not connection.paused_by_store:
            if router.work >= self.turn_work:
                if decoder.has_unread():
                    self.turns.wait(connection)
                return
            state = connection.state
            is_open = self.store_pressure.accepts_messages()
            if (
                is_open
                and self.hot_path is not None
                and state is not None
                and connection.is_connected
            ):
                self.hot_path.take(connection, state, now, self.turn_work)
                if router.work >= self.turn_work:
                    continue
                is_open = self.store_pressure.accepts_messages()
            at = decoder.at
            item = decoder.next()
            if not is_open and item is not None and self.store_pressure.must_wait(connection, item):
                decoder.at = at
                self.store_pressure.pause(connection)
                return
            if item is None:
                return
            router.work += PACKET_WORK
            if isinstance(item, Violation):
                self._refuse(connection, item, now)
                continue
            if not isinstance(item, Publish):
                # Of these every few bytes are an item of their own.
                router.work += (decoder.at - at) >> ITEM_BYTES_SHIFT
            # [MQTT-3.1.2-22] it is packets that count, not bytes
            connection.last_packet_at = now
            self.counters.packets_received += 1
            self._observe(connection, item, now)

    def lost(self, connection: Connection, now: float) -> None:
        """The network connection is gone, whoever ended it."""
        self._arrivals.lost(connection, now)
        self.connections.pop(connection.number, None)
        self.ready.pop(connection.number, None)
        self.store_pressure.forget(connection)
        self.turns.forget(connection)
        if not connection.closing:
            self._log_connection(f"{_name(connection)} is gone")
        self._leave(connection, now)
        self.pressure.forget(connection)

    def flush(self, now: float) -> None:
        """The tick ends: what has to last goes to the store, and packets leave when it is safe."""
        router = self.router
        faults = router.faults
        router.faults = {}
        for client_id, problem in faults.items():
            owner = router.sessions.get(client_id)
            what = f"a message for {shown(client_id)} is lost"
            self._end_by_fault(0 if owner is None else owner.connection, what, problem, now)
        unreadable = router.unreadable
        router.unreadable = []
        for state, number, problem in unreadable:
            what = f"the stored session of {shown(state.client_id)} cannot be read"
            # It may have another connection by now, which is none the worse for it.
            self._end_by_fault(number, what, problem, now)
        if not self.pressure.is_idle():
            for state in self.pressure.expire(router.sessions, now):
                self._log(f"{shown(state.client_id)} reads too slowly: publishers wait no longer")
        self._unblock(now)
        dirty = router.dirty
        router.dirty = []
        commit = router.commit
        router.retained_work = TURN_WORK
        for state in dirty:
            state.dirty = False
            if state.has_ended:
                continue
            try:
                self._serve(state, now)
            except Exception:
                # Those behind it in the list have no part in it.
                what = f"serving {shown(state.client_id)}"
                self._end_by_fault(state.connection, what, format_exc(), now)
                self._take_changes(state)
        for state in self._awaiting_search:
            router.mark_dirty(state)
        self._awaiting_search = []
        expired = router.retained.expired
        router.retained.expired = []
        if not router.gate.has_store:
            self._release(self._send_queue.take(), now)
            return
        for topic_name in expired:
            # It may have got a new one since, which is in the commit already.
            if router.retained.get(topic_name) is None:
                commit.retained.append((topic_name, None))
        leaving = self._send_queue.split(commit)
        for connection, problem in self._send_queue.failed:
            self._log(f"serving {_name(connection)} failed: closed. {problem}")
            self._drop(connection, now)
        self._send_queue.failed = []
        number = router.gate.end_tick(dirty)
        router.commit = Commit()
        router.unwritten_bytes = 0
        self._release(leaving, now)
        if commit.packets or not commit.is_empty():
            commit.number = number
            commit.at = self._wall()
            self._write(commit, now)

    def _serve(self, state: SessionState, now: float) -> None:
        """Let a session send what it can, and take what of it has to last."""
        state.session.poll(now)
        if state.session.wanted:
            self._refill(state, now)
        if state.retained_searches is not None and not self.router.send_retained(state, now):
            self._awaiting_search.append(state)
        if state.cursors is not None:
            self.replays.send(state, now)
        packets = self._take_changes(state)
        if packets and state.connection:
            self._send_queue.add(state.connection, packets)

    def _take_changes(self, state: SessionState) -> list[Outgoing]:
        """Put what has to last of a session into the commit. What it wants to send."""
        changes, packets = state.session.drain()
        if changes:
            self.router.gate.await_commit(state)
            for change in changes:
                self.router.commit.changes.append((state.store_id, change))
        return packets

    def _write(self, commit: Commit, now: float) -> None:
        safe = False
        if not self.store_failure:
            try:
                safe = self.store.write(commit)
            except Exception as problem:
                # Numbers were given out that no row has. Nothing is said of it to anybody, nothing
                # more is written, and whoever owns the broker has to end it.
                self.store_failure = fault_report(problem)
                self._log(f"the store failed: {self.store_failure}")
        if self.store_failure:
            for number, _ in commit.packets:
                self._drop(self.connections[number], now)
        elif safe:
            self.committed(commit, now)
        else:
            self.router.uncommitted.append(commit)

    def _refill(self, state: SessionState, now: float) -> None:
        """Bring back what waits in the store alone, as much as can be sent."""
        session = state.session
        while session.connected and session.wanted:
            if not self.router.refill(state):
                if not state.damage:
                    # The commit that has them is not safe yet.
                    self._awaiting_refill.append(state)
                return
            session.poll(now)

    def committed(self, commit: Commit, now: float) -> None:
        """The store has this commit: what waited for it may leave."""
        for state in self._awaiting_refill:
            self.router.mark_dirty(state)
        self._awaiting_refill = []
        self.router.gate.confirm(commit)
        if self.router.uncommitted and self.router.uncommitted[0] is commit:
            del self.router.uncommitted[0]
        self.replays.recorded(commit)
        paused_by_reader: list[tuple[int, list[Outgoing]]] = []
        for number, packets in commit.packets:
            connection = self.connections.get(number)
            if connection is not None and not connection.closing:
                self.router.gate.release_packets(connection)
                paused_by_reader.append((number, packets))
                self.replays.released(connection.state, commit)
        self._release(paused_by_reader, now)

    def _release(self, leaving: list[tuple[int, list[Outgoing]]], now: float) -> None:
        """These packets leave."""
        # Messages stop at the bound: only answers that nobody reads can make twice as much.
        bound = 2 * self.settings.maximum_outgoing_bytes
        for number, packets in leaving:
            connection = self.connections.get(number)
            if connection is None or connection.is_muted:
                continue
            self.ready[number] = connection
            try:
                for packet in packets:
                    if isinstance(packet, bytes):
                        # The hot path has counted its messages.
                        if connection.send_encoded(packet) != PUBLISH:
                            self.counters.packets_sent += 1
                    else:
                        connection.send(packet)
                        self.counters.packets_sent += 1
                        if isinstance(packet, Publish):
                            self.counters.messages_sent += 1
            except Violation as violation:
                # It takes no packet of this size, or we are wrong: it pays with its connection,
                # and nobody else does.
                connection.is_muted = True
                self._log(f"{_name(connection)} cannot be answered: {violation}")
                self._drop(connection, now)
            except Exception:
                connection.is_muted = True
                self._log(f"serving {_name(connection)} failed: {format_exc()}")
                self._drop(connection, now)
            if connection.unsent and connection.unsent + connection.outgoing_size >= bound:
                connection.is_muted = True
                self._log(f"{_name(connection)} reads too slowly: closed")
                connection.outgoing = []
                connection.abort_on_close = True
                self._drop(connection, now)

    def written(self, connection: Connection, unsent: int) -> None:
        """The network has what was outgoing, but for `unsent` bytes that wait in memory."""
        connection.unsent = unsent
        state = connection.state
        if state is not None:
            session = state.session
            had_room = session.room > 0
            bound = self.settings.maximum_outgoing_bytes
            if self.memory.is_short:
                bound = min(bound, ROOM_WHEN_SHORT)
            session.room = bound - unsent
            if not had_room or state.retained_searches is not None:
                # What waited for room is looked at again.
                self.router.mark_dirty(state)
            self.replays.written(state)
            if self.pressure.delays_publishers(state) and self.router.has_caught_up(state):
                self.pressure.caught_up(state)

    def sweep(self, now: float, stalled_seconds: float = 0.0) -> None:
        """Once a second: silent connections, delayed wills, sessions that end.

        For `unheard` seconds nobody was listened to, which is nobody's silence but ours.
        """
        for connection in list(self.connections.values()):
            connection.opened_at += stalled_seconds
            connection.last_packet_at += stalled_seconds
            connection.begun_at += stalled_seconds
            if connection.closing:
                continue
            try:
                self._check_silence(connection, now)
            except Exception:
                self._log(f"serving {_name(connection)} failed: closed. {format_exc()}")
                self._drop(connection, now)
        # Whatever fails in one of these, the others have their turn, now and in a second.
        try:
            self._arrivals.sweep(now)
        except Exception:
            self._log(f"the sweep of packets that are not complete failed: {format_exc()}")
        try:
            if self.memory.is_short:
                self._lifetimes.free_memory(self.memory.limit // 20, now)
        except Exception:
            self._log(f"freeing memory failed: {format_exc()}")
        try:
            self.router.retained.sweep(now, _SWEPT)
        except Exception:
            self._log(f"the sweep of retained messages failed: {format_exc()}")
        try:
            self._report(now)
        except Exception:
            self._log(f"the report under $SYS failed: {format_exc()}")
        self._lifetimes.sweep(now)

    def _check_silence(self, connection: Connection, now: float) -> None:
        """End a connection that did not connect in time, or was silent for too long.

        Or one that would be silent for too long if nobody told it why it gets no answer.
        """
        if self.store_pressure.has_timed_out(connection, now):
            self._log(f"{_name(connection)} waits for an answer: told that the disk is full")
            self.disconnect(connection, QUOTA_EXCEEDED, now, _FULL)
        elif connection.paused_by_store or connection.awaits_turn:
            return
        elif connection.paused_by_reader or connection.was_paused_by_reader:
            # Whoever is not read from is not silent.
            connection.was_paused_by_reader = False
            connection.last_packet_at = now
        elif not connection.is_connected:
            if now - connection.opened_at >= self.settings.connect_timeout:
                self._log(f"{_name(connection)} did not connect in time")
                self._drop(connection, now)
        # [MQTT-3.1.2-22] one and a half times the interval
        elif connection.keep_alive:
            if now - connection.last_packet_at >= connection.keep_alive * 1.5:
                self._log(f"{_name(connection)} was silent for too long")
                self.disconnect(connection, KEEP_ALIVE_TIMEOUT, now)

    def _report(self, now: float) -> None:
        """Publish what the broker knows of itself, as often as the settings say."""
        interval = self.settings.sys_interval
        if interval and now >= self._report_due:
            self._report_due = now + interval
            router = self.router
            states = router.sessions.values()
            report = sys_topics(
                self.counters,
                uptime=now - self._started_at,
                connected=sum(1 for state in states if state.connection),
                sessions=len(states),
                subscriptions=sum(state.subscriptions for state in states),
                retained=len(router.retained),
                dropped=router.dropped,
            )
            for topic_name, value in report:
                router.route(Message(topic_name, value.encode(), retain=True), "", now)

    def stop(self, now: float) -> None:
        """The broker ends: every client is told, sessions stay as they are."""
        for connection in list(self.connections.values()):
            if not connection.closing:
                self.disconnect(connection, SERVER_SHUTTING_DOWN, now)
        self.flush(now)

    # --- faults -----------------------------------------------------------------------------------

    def _observe(self, connection: Connection, packet: Packet, now: float) -> None:
        try:
            # The decoder has refused what is too large.
            connection.exchange.observe(CLIENT, packet, 0)
        except Violation as violation:
            if violation.rule.closes:
                self._refuse(connection, violation, now)
                return
            # The standard has the receiver carry on.
            connection.exchange.observe(CLIENT, packet, 0, [])
        try:
            self._handle(connection, packet, now)
        except Violation as violation:
            violation.version = connection.exchange.version
            self._refuse(connection, violation, now)

    def _refuse(self, connection: Connection, violation: Violation, now: float) -> None:
        """A client broke a rule: say so where the version can, and close."""
        self._log(f"{_name(connection)} broke a rule: {violation}")
        if connection.is_connected:
            self.disconnect(connection, violation.rule.reason, now, violation.rule.name)
            return
        pending_connect = connection.pending_connect
        if pending_connect is not None:
            # While it authenticates, CONNACK is all that can tell it.
            self._answer(connection, refuse_for_violation(pending_connect, violation).connack)
        elif violation.packet_type == CONNECT and connection.exchange.phase == NEW:
            connection.write(answer_to_broken_connect(violation))
        self._drop(connection, now)

    def _drop(self, connection: Connection, now: float) -> None:
        """Close without a word."""
        connection.closing = True
        self._arrivals.leaving(connection, now)
        self.ready[connection.number] = connection
        self._leave(connection, now)

    def disconnect(
        self, connection: Connection, reason: int, now: float, why: str | None = None
    ) -> None:
        """End a connection, with DISCONNECT where there is one [MQTT-3.14.0-1]."""
        exchange = connection.exchange
        if reason not in REASONS_5[DISCONNECT]:
            # A second CONNECT with a level that nobody knows: 0x84 is for CONNACK alone.
            reason = PROTOCOL_ERROR
        if exchange.version == MQTT5 and exchange.phase == CONNECTED:
            packet = Disconnect(reason)
            if why is not None:
                told = Disconnect(reason, properties=Properties(reason_string=why))
                # [MQTT-3.14.2-3] only if it fits
                if len(encode(told)) <= exchange.client.maximum_packet_size:
                    packet = told
            self._answer(connection, packet)
        self._drop(connection, now)

    def _end_by_fault(self, number: int, what: str, problem: str, now: float) -> None:
        """Whatever failed over a client, it pays with its connection, and nobody else does.

        `what` failed is for the log if it has none: `number` is 0, or of one that is gone.
        """
        connection = self.connections.get(number)
        if connection is None or connection.closing:
            self._log(f"{what}: {problem}")
        else:
            self._log(f"serving {_name(connection)} failed: closed. {problem}")
            self._drop(connection, now)

    # --- sessions ---------------------------------------------------------------------------------

    def _leave(self, connection: Connection, now: float) -> None:
        """The session, if any, goes on without this connection [4.1], or ends with it."""
        state = connection.state
        connection.state = None
        if state is None:
            return
        self.router.gate.leave(connection, state)
        state.connection = 0
        try:
            self._lifetimes.leave(state, now)
            self.pressure.caught_up(state)
            # At QoS 0 it goes with the connection; the rest stays for the next.
            if state.retained_searches is not None:
                for topic_filter, search in list(state.retained_searches.items()):
                    search.minimum_qos = 1
                    if not search.qos:
                        del state.retained_searches[topic_filter]
        except Exception:
            # Whoever is served just now need not be the one that leaves.
            self._log(f"the leave of {shown(state.client_id)} failed: {format_exc()}")
            state.retained_searches = None

    # --- packets ----------------------------------------------------------------------------------

    def _answer(self, connection: Connection, packet: Packet) -> None:
        self._send_queue.add(connection.number, [packet])

    def _handle(self, connection: Connection, packet: Packet, now: float) -> None:
        if isinstance(packet, Connect):
            connections = self._arrivals.connected + 1
            decision = self._admission.decide_connect(packet, connection.peer, connections)
            self._carry_out(connection, packet, decision, now)
            return
        if isinstance(packet, Auth):
            self._authenticate(connection, packet, now)
            return
        state = connection.state
        if state is None:
            # DISCONNECT while it authenticates: Exchange lets nothing else pass
            self._drop(connection, now)
            return
        if isinstance(packet, Disconnect):
            self._disconnected(connection, state, packet, now)
            return
        if isinstance(packet, Publish):
            self._publish(connection, state, packet, now)
        elif isinstance(packet, Ack):
            state.session.receive_answer(packet)
        elif isinstance(packet, Subscribe):
            self._subscribe(connection, state, packet, now)
        elif isinstance(packet, Unsubscribe):
            self._unsubscribe(connection, state, packet)
        else:
            assert isinstance(packet, PingReq), "the Exchange lets a client send nothing else"
            self._answer(connection, PingResp())
        self.router.mark_dirty(state)

    def _authenticate(self, connection: Connection, packet: Auth, now: float) -> None:
        """One step of enhanced authentication [4.12], which the Exchange found to be in turn."""
        authentication = connection.authentication
        assert authentication is not None
        data = packet.properties.authentication_data
        if packet.reason == RE_AUTHENTICATE:
            step = authentication.start(data)
        else:
            step = authentication.answer(data)
        pending_connect = connection.pending_connect
        if pending_connect is not None:
            connections = self._arrivals.connected + 1
            decision = self._admission.decide_step(
                pending_connect, authentication, step, connections
            )
            self._carry_out(connection, pending_connect, decision, now)
        elif isinstance(step, Challenge | Granted):
            method = packet.properties.authentication_method
            assert method is not None
            self._answer(connection, next_auth(method, step))
        else:
            # [MQTT-4.12.1-2]
            self._log(f"{_name(connection)} could not authenticate again: 0x{step.reason:02x}")
            reason = step.reason if step.reason in REASONS_5[DISCONNECT] else NOT_AUTHORIZED
            self.disconnect(connection, reason, now, step.reason_string)

    def _carry_out(
        self, connection: Connection, packet: Connect, decision: ConnectDecision, now: float
    ) -> None:
        if isinstance(decision, ConnectAccepted):
            if self.store.condition == FULL and self._would_be_stored(decision, packet):
                refusal = refused(packet, QUOTA_EXCEEDED, _FULL)
                self._turn_away(connection, packet, refusal, now)
                return
            self._accept(connection, packet, decision, now)
        elif isinstance(decision, ConnectChallenged):
            connection.pending_connect = packet
            connection.authentication = decision.authentication
            # It is not connected yet, and may send small packets only.
            connection.decoder.before_connect = self.settings.before_connect_packet_size
            self._answer(connection, decision.auth)
        else:
            self._turn_away(connection, packet, decision, now)

    def _would_be_stored(self, terms: ConnectAccepted, packet: Connect) -> bool:
        """Whether a session on these terms, or its will, is a matter of the store."""
        if terms.expiry_interval or packet.will is not None:
            return True
        old = self.router.sessions.get(terms.client_id)
        return old is not None and old.is_durable

    def _turn_away(
        self, connection: Connection, packet: Connect, decision: ConnectRefused, now: float
    ) -> None:
        why = "" if decision.why is None else f", {decision.why!a}"
        code = f"0x{decision.reason:02x}"
        self._log(f"{connection.peer} was refused as {shown(packet.client_id)}: {code}{why}")
        self._answer(connection, decision.connack)
        self._drop(connection, now)

    def _accept(
        self, connection: Connection, packet: Connect, terms: ConnectAccepted, now: float
    ) -> None:
        client_id = terms.client_id
        old = self.router.sessions.get(client_id)
        if old is not None and old.connection:
            # [MQTT-3.1.4-3] the newer connection takes over
            other = self.connections[old.connection]
            words = f"{_name(other)} gives way to a new connection from {connection.peer}"
            self._log_connection(words)
            self.disconnect(other, SESSION_TAKEN_OVER, now)
            old = self.router.sessions.get(client_id)
        if old is not None:
            # What was due while it was away is done first, looked at or not.
            self._lifetimes.check(old, now)
            old = self.router.sessions.get(client_id)
        if old is not None and packet.clean_start:
            # [MQTT-3.1.2-4]
            self._lifetimes.end(old, now)
            old = None
        state = old
        if state is None:
            self._lifetimes.make_room(now)
            state = SessionState(client_id, Session(), 0)
            self.router.sessions[client_id] = state
        elif not self.router.is_readable(state):
            # It is neither begun anew nor thrown out again and again: whoever looks after the
            # broker has to know, and a clean start gives it up.
            refusal = refused(packet, SERVER_UNAVAILABLE, "the stored session cannot be read")
            self._turn_away(
                connection,
                packet,
                ConnectRefused(refusal.reason, state.damage, refusal.connack),
                now,
            )
            return
        connection.state = state
        self._arrivals.admitted(connection)
        connection.pending_connect = None
        connection.authentication = terms.authentication
        connection.decoder.before_connect = 0
        connection.keep_alive = terms.keep_alive
        state.connection = connection.number
        state.user_name = packet.user_name
        self._lifetimes.begin(state, terms.expiry_interval, packet.will, address=connection.address)
        self.router.gate.begin_session(state)
        exchange = Exchange(state.session.open_exchanges(SERVER, CLIENT))
        exchange.observe(CLIENT, packet, 0)
        connection.exchange = exchange
        present = old is not None
        self._answer(connection, ConnAck(session_present=present, properties=terms.properties))
        state.session.connect(
            packet.version,
            receive_maximum=terms.window,
            maximum_packet_size=exchange.client.maximum_packet_size,
        )
        self.router.subscriptions.set_connected(client_id, True)
        state.session.room = self.settings.maximum_outgoing_bytes
        aliases = min(exchange.client.topic_alias_maximum, self.settings.client_topic_aliases)
        connection.alias_maximum = aliases
        connection.maximum_alias_bytes = self.settings.maximum_alias_bytes
        connection.aliases = {} if aliases else None
        state.uses_aliases = aliases > 0
        self.router.mark_dirty(state)
        kind = "3.1.1" if packet.version == MQTT311 else "5.0"
        self._log_connection(f"{_name(connection)} connected with MQTT {kind}")

    def _publish(
        self, connection: Connection, state: SessionState, packet: Publish, now: float
    ) -> None:
        self.counters.messages_received += 1
        if packet.properties.present and connection.has_too_many_aliases():
            why = f"topics with an alias: maximum_alias_bytes is {connection.maximum_alias_bytes}"
            self._log(f"{_name(connection)} was closed, {why}")
            self.disconnect(connection, QUOTA_EXCEEDED, now, why)
            return
        topic_name = connection.exchange.topic_name(CLIENT, packet)
        check_levels(topic_name, self.settings.topic_levels)
        # Asked first: if that fails, the message has not come yet, and may come again.
        reason = self.router.authorize_publish(state.client_id, topic_name)
        receipt = state.session.receive_publish(packet)
        if receipt is None:
            return
        if reason == SUCCESS and self.store_pressure.refuses(packet.qos):
            if self.router.would_keep(topic_name, packet.qos, state, retain=packet.retain):
                reason = QUOTA_EXCEEDED
        if reason == SUCCESS:
            message = received_message(packet, topic_name, now)
            router = self.router
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
            if not router.route(message, state.client_id, now, is_kept=is_kept):
                reason = NO_MATCHING_SUBSCRIBERS
            router.gate.await_routed_message(state)
        state.session.accept(receipt, reason)
        # Last, because it asks the authority: if that fails, the message is not half accepted.
        if reason < FAILURE and self.hot_path is not None:
            self.hot_path.learn(state, packet)

    def _unblock(self, now: float) -> None:
        """What waited for the store in decoders goes on, as far as it takes messages again."""
        for _ in range(self.store_pressure.paused):
            connection = self.store_pressure.release()
            if connection is None:
                return
            self._serve_again(connection, now)

    def _subscribe(
        self, connection: Connection, state: SessionState, packet: Subscribe, now: float
    ) -> None:
        for subscription in packet.subscriptions:
            check_levels(subscription.topic_filter, self.settings.topic_levels)
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        reasons: list[int] = []
        why: list[str] = []
        for subscription in packet.subscriptions:
            if is_of_stream(subscription.topic_filter):
                reason = self.replays.subscribe(state, subscription, packet, why, now)
            else:
                reason = self.router.subscribe(state, subscription, identifier, now)
            # [MQTT-3.9.3-2] of 3.1.1: one code for every failure
            if reason >= FAILURE and connection.exchange.version == MQTT311:
                reason = FAILURE
            reasons.append(reason)
        self._answer(connection, suback(connection.exchange, packet, reasons, why))
        if state.retained_searches is not None:
            # Before what is published later; what there is no time for follows in the next ticks.
            self.router.send_retained(state, now)

    def _unsubscribe(
        self, connection: Connection, state: SessionState, packet: Unsubscribe
    ) -> None:
        for topic_filter in packet.topic_filters:
            check_levels(topic_filter, self.settings.topic_levels)
        reasons: list[int] = []
        for topic_filter in packet.topic_filters:
            existed = self.router.unsubscribe(state, topic_filter)
            self.replays.unsubscribe(state, topic_filter)
            reasons.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)
        if connection.exchange.version == MQTT311:
            reasons = []
        self._answer(connection, UnsubAck(packet.packet_id, reasons))

    def _disconnected(
        self, connection: Connection, state: SessionState, packet: Disconnect, now: float
    ) -> None:
        """The client leaves. [MQTT-3.14.4-3] only code 0x00 takes its will back."""
        if packet.reason < FAILURE and packet.reason != DISCONNECT_WITH_WILL_MESSAGE:
            self._lifetimes.discard_will(state)
        interval = packet.properties.session_expiry_interval
        if interval is not None:
            kept = min(interval, self.settings.maximum_session_expiry)
            self._lifetimes.change_expiry(state, kept)
        self._log_connection(f"{_name(connection)} disconnected")
        self._drop(connection, now)


def _name(connection: Connection) -> str:
    """How the log calls a connection; what a peer chose is escaped."""
    state = connection.state
    who = connection.peer if state is None else f"{shown(state.client_id)} ({connection.peer})"
    return who
