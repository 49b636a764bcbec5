"""The end of a tick: sessions send what they can, the store gets the commit, packets are sent.

flush ─▶ each changed session: poll, refill from the store, retained messages, replays
      ─▶ CommitGate: which packets await the commit, which are sent at once
      ─▶ Store.write(commit) ─▶ … ─▶ committed: the packets that awaited it are sent
"""

from collections.abc import Callable
from traceback import format_exc
from typing import Final, final

from semel.broker.broker_log import BrokerLog, source_of
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.counters import BrokerCounters
from semel.broker.faults import fault_report
from semel.broker.lifetimes import Lifetimes
from semel.broker.replay import Replays
from semel.broker.router import Router
from semel.broker.session_state import SessionState, client_label
from semel.broker.settings import BrokerSettings
from semel.broker.turns import SEARCH_WORK, SEND_SHARE, TICK_MESSAGES, TURN_WORK
from semel.broker.withholding import Withholding
from semel.mqtt.packet_types import PUBLISH
from semel.mqtt.packets.publish import Publish
from semel.mqtt.session import Outgoing
from semel.mqtt.violation import Violation
from semel.store.commit import Commit


@final
class Flushing:
    """Commits the changes of a tick, and sends its packets."""

    # Why a commit could not be passed to the store; "": none failed. After a failure the broker
    # must be stopped.
    store_failure: str
    # At this many unread bytes a connection is closed. Messages stop at `maximum_outgoing_bytes`:
    # only answers can reach twice as much.
    _maximum_unread: Final[int]
    _connections: Final[Connections]
    _router: Final[Router]
    _replays: Final[Replays]
    _lifetimes: Final[Lifetimes]
    _withholding: Final[Withholding]
    _counters: Final[BrokerCounters]
    _log: Final[BrokerLog]
    _wall: Final[Callable[[], float]]
    # Sessions whose next deliveries are in commits that the store has not written yet.
    _awaiting_refill: list[SessionState]
    # What this tick may still spend on searches of retained messages, in the units of `turns.py`,
    # and how many messages from backlogs it may still send.
    _search_work: int
    _send_left: int
    # Sessions that have used their share of this and have more to send; those that got no share.
    _unfinished: list[SessionState]
    _unserved: list[SessionState]

    def __init__(
        self,
        settings: BrokerSettings,
        connections: Connections,
        router: Router,
        replays: Replays,
        lifetimes: Lifetimes,
        *,
        log: BrokerLog,
        wall: Callable[[], float],
    ) -> None:
        self.store_failure = ""
        self._maximum_unread = 2 * settings.maximum_outgoing_bytes
        self._connections = connections
        self._router = router
        self._replays = replays
        self._lifetimes = lifetimes
        self._withholding = Withholding(router, connections)
        self._counters = router.counters
        self._log = log
        self._wall = wall
        self._awaiting_refill = []
        self._search_work = 0
        self._send_left = 0
        self._unfinished = []
        self._unserved = []

    def close_faulty(self, now: float) -> None:
        """Close the connections for which the authority or the store failed in this tick."""
        router = self._router
        if not router.access.faults and not router.unreadable:
            return
        faults = router.access.faults
        router.access.faults = {}
        for client_id, problem in faults.items():
            owner = router.sessions.get(client_id)
            number = 0 if owner is None else owner.connection
            event = f"message for {client_label(client_id)} lost"
            self._connections.close_for_fault(number, event, problem, now)
        unreadable = router.unreadable
        router.unreadable = []
        for state, number, problem in unreadable:
            # A newer connection of the same client is not closed.
            event = f"stored session of {client_label(state.client_id)} cannot be read"
            self._connections.close_for_fault(number, event, problem, now)

    def flush(self, now: float) -> None:
        """Commit the changes of the tick. Packets are sent now, or when it is committed."""
        router = self._router
        changed = router.dirty
        router.dirty = []
        commit = router.commit
        self._search_work = TURN_WORK
        self._send_left = TICK_MESSAGES
        self._lifetimes.work = 0
        self._serve_all(changed, now)
        if self._withholding.is_due():
            self._withholding.check_tick(now)
        self._take_handed_over(changed, now)
        self._mark_unfinished()
        expired = router.retained.expired
        router.retained.expired = []
        if not router.gate.has_store:
            self._send(self._connections.send_queue.take(), now)
            return
        for topic_name in expired:
            # A newer message of the topic may already be in the commit.
            if router.retained.get(topic_name) is None:
                commit.retained.append((topic_name, None))
        leaving = self._connections.send_queue.split(commit)
        commit.number = router.gate.end_tick(changed)
        router.commit = Commit()
        router.unwritten_bytes = 0
        is_written = bool(commit.packets) or not commit.is_empty()
        if is_written:
            # From here on, a session that ends with a failed connection hands over its messages of
            # this tick, too; what that changes is in the next commit.
            commit.at = self._wall()
            router.uncommitted.append(commit)
        self._close_unsplit(now)
        self._send(leaving, now)
        if is_written:
            self._write(commit, now)

    def _close_unsplit(self, now: float) -> None:
        """Close the connections whose packets could not be split."""
        send_queue = self._connections.send_queue
        failed = send_queue.failed
        send_queue.failed = []
        for connection, problem in failed:
            self._connections.close_failed(connection, problem, now)

    def _serve_all(self, states: list[SessionState], now: float) -> None:
        """Let each session send what it can. A failure closes the connection of one session."""
        served = 0
        try:
            for state in states:
                served += 1
                state.dirty = False
                if not state.has_ended:
                    try:
                        self._poll(state, now)
                    except Exception:
                        self._close_unserved(state, format_exc(), now)
        finally:
            # Whatever else fails, the remaining sessions are served in the next tick.
            self._router.dirty.extend(states[served:])

    def _close_unserved(self, state: SessionState, problem: str, now: float) -> None:
        """Close the connection of a session because serving it failed."""
        client = client_label(state.client_id)
        self._connections.close_for_fault(
            state.connection, f"serving {client} failed", problem, now
        )
        try:
            self._take_changes(state)
        except Exception:
            line = f"changes of {client} in this tick are lost: {format_exc()}"
            self._log.problem(source_of(state.identity), line, now)

    def _take_handed_over(self, changed: list[SessionState], now: float) -> None:
        """Add messages to the commit that sessions got from others while those were served.

        Otherwise a crash could find such a message deleted from one queue, and not yet in another.
        """
        dirty = self._router.dirty
        at = 0
        # A session that fails here may hand over its own messages.
        while at < len(dirty):
            state = dirty[at]
            at += 1
            if not state.has_ended:
                changed.append(state)
                try:
                    self._take_packets(state)
                except Exception:
                    self._close_unserved(state, format_exc(), now)

    def _mark_unfinished(self) -> None:
        """Continue in the next tick, beginning with the sessions that got no share of this one."""
        if not self._unserved and not self._unfinished:
            return
        router = self._router
        marked = router.dirty
        router.dirty = []
        for state in self._unserved:
            router.mark_dirty(state)
        router.dirty.extend(marked)
        for state in self._unfinished:
            router.mark_dirty(state)
        self._unserved = []
        self._unfinished = []

    def _poll(self, state: SessionState, now: float) -> None:
        session = state.session
        share = SEND_SHARE if self._send_left > 0 else 1
        given_up = session.poll(now, share)
        if given_up:
            self._counters.drops.add_given_up(given_up, now)
        if session.backlog.missing():
            self._refill(state, now)
        self._send_left -= share - session.poll_left
        if not session.poll_left:
            (self._unserved if share == 1 else self._unfinished).append(state)
        if state.retained_searches is not None:
            self._send_retained(state, now)
        if state.cursors is not None:
            self._replays.send(state, now)
        self._take_packets(state)

    def _send_retained(self, state: SessionState, now: float) -> None:
        """Send retained messages to a new subscriber, within its share of the tick's searches."""
        router = self._router
        share = router.retained_work = min(SEARCH_WORK, self._search_work)
        is_complete = router.send_retained(state, now)
        self._search_work -= share - router.retained_work
        if not is_complete:
            (self._unfinished if share > 0 else self._unserved).append(state)

    def _refill(self, state: SessionState, now: float) -> None:
        """Load deliveries from the store, as many as can be sent."""
        session = state.session
        while session.connected and session.backlog.missing() and session.poll_left:
            # Reading a delivery costs as much as sending it.
            self._send_left -= session.backlog.missing()
            if not self._router.refill(state, now):
                if not state.damage:
                    self._awaiting_refill.append(state)
                return
            self._counters.drops.add_given_up(session.poll(now, session.poll_left), now)

    def _take_packets(self, state: SessionState) -> None:
        """Add the changes of a session to the commit, and its packets to those of this tick."""
        packets = self._take_changes(state)
        if packets and state.connection:
            self._connections.send_queue.add(state.connection, packets)

    def _take_changes(self, state: SessionState) -> list[Outgoing]:
        """Add the durable changes of a session to the commit. Returns its packets."""
        changes, packets = state.session.drain()
        if changes:
            self._router.gate.await_commit(state)
            for change in changes:
                self._router.commit.changes.append((state.store_id, change))
        return packets

    def _write(self, commit: Commit, now: float) -> None:
        is_committed = False
        if not self.store_failure:
            try:
                is_committed = self._router.store.write(commit)
            except Exception as problem:
                # The rows of this commit are lost, but their numbers are assigned. So nothing more
                # is written or acknowledged, and the owner must stop the broker.
                self.store_failure = fault_report(problem)
                self._log.fault(f"the store failed: {self.store_failure}")
        if self.store_failure or is_committed:
            self._router.uncommitted.pop()
        if self.store_failure:
            for number, _ in commit.packets:
                self._connections.drop(self._connections.by_number[number], now)
        elif is_committed:
            self.committed(commit, now)

    def committed(self, commit: Commit, now: float) -> None:
        """The store has written this commit: send the packets that awaited it."""
        for state in self._awaiting_refill:
            self._router.mark_dirty(state)
        self._awaiting_refill = []
        self._router.gate.confirm(commit)
        if self._router.uncommitted and self._router.uncommitted[0] is commit:
            del self._router.uncommitted[0]
        self._replays.recorded(commit)
        if self._withholding.is_due():
            self._withholding.check_commit(commit, now)
        leaving: list[tuple[int, list[Outgoing]]] = []
        for number, packets in commit.packets:
            connection = self._connections.by_number.get(number)
            if connection is not None and not connection.closing:
                self._router.gate.release_packets(connection)
                leaving.append((number, packets))
                self._replays.released(connection.state, commit)
        self._send(leaving, now)

    def _send(self, leaving: list[tuple[int, list[Outgoing]]], now: float) -> None:
        """Encode packets into the output of their connections."""
        bound = self._maximum_unread
        for number, packets in leaving:
            connection = self._connections.by_number.get(number)
            if connection is None or connection.is_muted:
                continue
            self._connections.with_output[number] = connection
            try:
                self._encode(connection, packets)
            except Violation as violation:
                # The packet exceeds the client's Maximum Packet Size, or this is a bug.
                connection.is_muted = True
                line = f"{connection.label} closed: a packet cannot be sent: {violation}"
                self._log.problem(connection.log_source, line, now)
                connection.close_reason = "a packet cannot be sent"
                self._connections.drop(connection, now)
            except Exception:
                connection.is_muted = True
                self._connections.close_failed(connection, format_exc(), now)
            if connection.unsent and connection.unsent + connection.outgoing_size >= bound:
                connection.is_muted = True
                line = f"{connection.label} closed: it reads too slowly"
                self._log.problem(connection.log_source, line, now)
                connection.close_reason = "it reads too slowly"
                connection.outgoing = []
                connection.abort_on_close = True
                self._connections.drop(connection, now)

    def _encode(self, connection: Connection, packets: list[Outgoing]) -> None:
        counters = self._counters
        for packet in packets:
            if isinstance(packet, bytes):
                # The hot path has already counted its messages.
                if connection.send_encoded(packet) != PUBLISH:
                    counters.packets_sent += 1
            else:
                connection.send(packet)
                counters.packets_sent += 1
                if isinstance(packet, Publish):
                    counters.sent.add(packet.qos, messages=1, size=len(packet.payload))
                    if connection.state is not None:
                        connection.state.messages_sent += 1
