"""Executes a schedule: clients, network, broker, store, and crashes.

Each action is something that can happen in a real process: bytes arrive, a tick ends, a transaction
completes, the process dies.
"""

from collections import Counter
from typing import Final

from semel.broker.core import Broker
from semel.broker.identity import PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from semel.mqtt.reasons import NOT_AUTHORIZED, REFUSED_NOT_AUTHORIZED
from semel.store.commit import Commit
from semel.store.database import Database
from semel.store.forensics.check import CheckReport, check_tables
from semel.store.store import FULL
from semel.store.streams import Stream, Streams
from tests.simulation.client import Client
from tests.simulation.clock import Broken, Clock
from tests.simulation.descriptions import describe_commit, describe_packet
from tests.simulation.faults import HOOKS, MARK, Fault
from tests.simulation.ledger import Facts, Ledger, Snapshot
from tests.simulation.network import Link
from tests.simulation.promptness import Promptness
from tests.simulation.right_changes import RightChanges
from tests.simulation.rights import RECEIVE, Rights, user_of
from tests.simulation.schedule import NEVER, WORKER, Action, Plan
from tests.simulation.thefts import Thefts
from tests.simulation.traffic import Traffic, subscribe
from tests.simulation.variants import FAITHFUL, Variant
from tests.simulation.witness import Witness

# Log messages about a misbehaving client or an internal error: only injected faults may cause them.
ALARMS: Final = ("broke a rule", "failed", "cannot be sent", " lost: ", "no room")
# Log messages about the end of a connection, which must appear only once.
CLOSE_MESSAGES: Final = (
    "closed: it reads too slowly",
    "closed: keep alive timeout",
    "closed: serving it failed",
)

WAITS: Final = (0.3, 1.0, 3.0, 12.0, 40.0)
# How long readers stall: longer than a publisher's keep alive, shorter than its timeout.
STALLED: Final = 12.0


class World:
    """The whole simulated system."""

    def __init__(self, plan: Plan, *, variant: Variant = FAITHFUL, trace: bool = False) -> None:
        self.plan = plan
        self.variant = variant
        self.trace: list[str] | None = [] if trace else None
        self.clock = Clock()
        self.log: list[str] = []
        self.clients = [Client(part, self.clock) for part in plan.parts]
        self.rights = Rights()
        self.ledger = Ledger([topic_filter for _, topic_filter in plan.streams], self.rights)
        self.store = variant.store(self._written)
        self.faults = self.store.faults
        self.sealers = [variant.sealer(self.database.stream(name).id) for name, _ in plan.streams]
        self.witness = Witness(self.ledger, self.store, self.sealers)
        self.witness.checks_disk = variant.checks_disk
        self.links: list[Link] = []
        self._by_number: dict[int, Link] = {}
        # Links whose next packet waits for the store, in the order in which they started waiting.
        self._blocked: list[Link] = []
        self._links = 0
        self.traffic = Traffic(plan)
        # How often each event happened.
        self.tally: Counter[str] = Counter()
        # Messages dropped from full queues, over all brokers.
        self.dropped = 0
        # The latest time so far: the clock may be set back.
        self.latest = 0.0
        self.settings = BrokerSettings(
            inflight_window=plan.inflight_window,
            receive_maximum=plan.receive_maximum,
            maximum_outgoing_bytes=plan.maximum_outgoing,
            maximum_queued_messages=plan.maximum_queued,
            # No limits, so that the witness need not know them, and sees each line of the log.
            maximum_session_expiry=NEVER,
            log_lines_per_minute=0,
            slow_subscriber_timeout=plan.slow_subscriber_timeout,
            full_disk_timeout=variant.full_disk_timeout(plan.full_disk_timeout),
            sys_interval=0.0,
        )
        # A failure found inside a callback: raised later, because the broker might catch it.
        self.problem: Exception | None = None
        self.authority = variant.authority(self.faults, self.rights)
        self.broker = self._start()
        self.promptness = Promptness(self)
        self.right_changes = RightChanges(self)
        self.thefts = Thefts(self)

    @property
    def database(self) -> Database:
        """The database."""
        return self.store.database

    def _start(self) -> Broker:
        streams: list[Stream] = []
        for name, topic_filter in self.plan.streams:
            row = self.database.stream(name)
            streams.append(Stream(row.id, name, topic_filter, self.variant.last_seq(row.last_seq)))
        self.authority = self.variant.authority(self.faults, self.rights)
        return Broker(
            self.settings,
            authority=self.authority,
            store=self.store,
            new_client_id=lambda: "nobody",
            log=self._logged,
            now=self.clock.now,
            streams=Streams(streams),
            wall=lambda: self.clock.now,
            window=self.plan.queue_window,
        )

    def _logged(self, line: str) -> None:
        for written in self.variant.log(line):
            self._handle_log_line(written)

    def _handle_log_line(self, line: str) -> None:
        """Check a line of the log."""
        if any(words in line for words in CLOSE_MESSAGES) and line in self.log:
            self.problem = Broken(f"the broker logged twice: {line}")
        self.log.append(line)
        self.add_trace(f"    broker: {line}")
        if MARK in line:
            self.faults.reported += 1
        elif self.problem is None and any(alarm in line for alarm in ALARMS):
            self.problem = Broken(f"the broker logged: {line}")

    def add_trace(self, line: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(line)

    # --- the broker -------------------------------------------------------------------------------

    def _written(self, commit: Commit, number: int) -> Snapshot:
        """The broker writes a commit during a tick."""
        self._update_blocked()
        for link in self.links:
            # Closed by a fault in this tick. Closing while packets leave belongs to the next.
            if link.has_broker and link.connection.closing and not link.connection.is_muted:
                self._end_connection(link)
        self.witness.written(commit)
        self.tally["commits"] += 1
        if self.trace is not None:
            self.add_trace(f"    commit {number} is written: {describe_commit(commit)}")
        return self.ledger.snapshot(number)

    def _update_blocked(self) -> None:
        """Handle packets that waited for the store and are processed now."""
        try:
            for link in self._blocked:
                if link.was_closing:
                    link.inbox = []
                self._catch_up(link)
        except Broken as problem:
            self.problem = problem
        self._blocked = [link for link in self._blocked if link.connection.paused_by_store]

    def _catch_up(self, link: Link) -> None:
        for packet in link.take_processed():
            self._processed(link, packet)

    def _processed(self, link: Link, packet: Packet) -> None:
        """The broker has processed a packet: update ledger and witness."""
        ledger, witness = self.ledger, self.witness
        name = self.clients[link.who].name
        if self.trace is not None:
            self.add_trace(f"    {name}/{link.number} ▶ {describe_packet(packet)}")
        if link.is_refused:
            return
        if isinstance(packet, Connect):
            self.tally["connections"] += 1
            if ledger.has_denied_will(packet):
                self.tally["connections refused over rights"] += 1
                link.is_refused = True
                code = NOT_AUTHORIZED if link.version == MQTT5 else REFUSED_NOT_AUTHORIZED
                witness.received(link, packet, refusal=code)
                return
            if self.store.condition == FULL and ledger.is_refused(packet):
                self.tally["connections refused"] += 1
                link.is_refused = True
                witness.received(link, packet)
                return
            if link.connection.closing:
                # Its session cannot be read.
                self.tally["connections refused over damage"] += 1
                ledger.connect_failed(packet, self.clock.now)
                link.is_refused = True
                witness.received(link, packet)
                return
            present = ledger.connect(packet, link.number, self.clock.now)
            facts = ledger.sessions[name]
            link.epoch = facts.epoch
            self._end_denied_subscriptions(facts)
            witness.received(link, packet, present=present)
            return
        facts = ledger.of_link(name, link.number)
        if isinstance(packet, Publish):
            unreceived = {
                client for client, topic in self.faults.unreceived if topic == packet.topic_name
            }
            is_full = self.store.condition == FULL
            outcome = ledger.publish(
                facts, packet, self.clock.now, full=is_full, unreceived=unreceived
            )
            ledger.unreceived.update((client, packet.payload) for client in unreceived)
            if packet.qos:
                witness.message_received(link, packet, outcome)
            self.tally["messages in"] += 1
            self.tally["messages in again"] += outcome.accepted is None and not outcome.refused
            self.tally["messages refused"] += outcome.refused
            self.tally["messages refused over rights"] += outcome.denied
        elif isinstance(packet, PubAck | PubComp):
            witness.answered(facts, packet.packet_id)
        elif isinstance(packet, PubRel):
            facts.inbound.discard(packet.packet_id)
            witness.received(link, packet)
        elif isinstance(packet, Subscribe):
            witness.subscribe_received(link, packet, ledger.subscribe(facts, packet))
        elif isinstance(packet, Unsubscribe):
            ledger.unsubscribe(facts, packet)
            witness.received(link, packet)
        elif isinstance(packet, Disconnect):
            ledger.disconnect(facts, packet, self.clock.now)
        elif isinstance(packet, PingReq):
            witness.received(link, packet)
        else:
            assert isinstance(packet, PubRec), packet

    def _collect(self) -> None:
        """Write the broker's output to the network, as its server does."""
        self._check_problem()
        while self.broker.has_output():
            ready = self.broker.take_output()
            for number, connection in ready.items():
                if self.thefts.take_output(connection):
                    continue
                link = self._by_number[number]
                data = self.variant.leaving(connection.take_outgoing(), link.version)
                if data:
                    self._send(link, data)
                self.broker.written(connection, len(link.down))
                if connection.closing:
                    if connection.abort_on_close:
                        link.cut(0, 0)
                    self._closed(link)
        self.broker.pressure.released = []
        self.broker.resumed = []
        self._check_bounds()

    def _check_problem(self) -> None:
        if self.problem is not None:
            raise self.problem

    def _send(self, link: Link, data: bytes) -> None:
        name = self.clients[link.who].name
        for packet in self.witness.check_output(link, name, data):
            self.tally["packets out"] += 1
            if isinstance(packet, Publish):
                self.tally[f"messages out at QoS {packet.qos}"] += 1
                self.tally["messages out again"] += packet.dup
            if self.trace is not None:
                self.add_trace(f"    {name}/{link.number} ◀ {describe_packet(packet)}")
        link.send_down(data)

    def _closed(self, link: Link) -> None:
        """The broker's side of a link is closed, by either side."""
        if not link.has_broker:
            return
        link.has_broker = False
        link.inbox = []
        self._by_number.pop(link.connection.number)
        self._end_connection(link)
        self.broker.lost(link.connection, self.clock.now)

    def _end_connection(self, link: Link) -> None:
        """Disconnect the session of a link, if it still has one."""
        facts = self.ledger.sessions.get(self.clients[link.who].name)
        if facts is not None and facts.link == link.number:
            self.ledger.leave(facts, self.clock.now)

    def check_tables(self) -> None:
        """The database is consistent, by the check of `semel store check`; not in every world,
        because it is slow."""
        if not self.plan.again:
            return
        report = CheckReport()
        check_tables(self.database.connection, report)
        for finding in report.findings:
            raise Broken(f"on disk, {finding.table}, {finding.row}: {finding.problem}")

    def _check_bounds(self) -> None:
        for client, state in self.broker.router.sessions.items():
            if len(state.session.backlog) > self.plan.maximum_queued:
                raise Broken(f"{len(state.session.backlog)} messages are queued for {client}")
        if self.plan.bounded:
            for number, count in self.database.connection.execute(
                "SELECT session_id, count(*) FROM delivery WHERE packet_id = 0 GROUP BY session_id"
            ):
                if count > self.plan.maximum_queued:
                    raise Broken(f"{count} messages are queued on disk for session {number}")

    # --- actions ----------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Execute one action."""
        self.clock.tick()
        kind, who, a, b = action
        who %= len(self.clients)
        client = self.clients[who]
        if kind == "publish":
            # Sometimes many at once, so that queues grow.
            for more in range(6 if b // 512 % (3 if self.traffic.has_group else 6) == 0 else 1):
                self.traffic.publish(client, a + more, b + more)
        elif kind == "step":
            self.step()
        elif kind == "rush":
            self.rush()
        elif kind == "settle":
            for _ in range(a % 4 + 1):
                self.step()
        elif kind == "up":
            self._up(client.link or self._last_link(who), a)
        elif kind == "down":
            self._down(client, a)
        elif kind == "tick":
            self.tick()
        elif kind == "apply":
            self.apply(a % 3 + 1)
        elif kind == "report":
            self.report(a % 3 + 1)
        elif kind == "connect":
            if client.link is not None and a % 4:
                # Mostly a disconnected client reconnects; sometimes one takes over its session.
                who = next((at for at, each in enumerate(self.clients) if each.link is None), who)
            self.connect(who, clean=b % 12 == 1, brief=b % 12 == 2, is_other=b // 12 % 4 == 1)
        elif kind == "cut":
            self._cut(client, a, b)
        elif kind == "crash":
            self.crash(a, b)
        elif kind == "wait":
            self.wait(WAITS[a % len(WAITS)])
        elif kind == "stall":
            self._stall(self.clients[0], a, b)
        elif kind == "subscribe":
            subscribe(client, a)
        elif kind == "unsubscribe":
            if client.wanted:
                client.unsubscribe(sorted(client.wanted)[a % len(client.wanted)])
        elif kind == "disconnect":
            expiry = (None, None, 0, 20)[b % 4] if client.part.expiry else None
            client.disconnect((0, 0, 4)[a % 3], expiry)
        elif kind == "ping":
            client.ping()
        elif kind == "stop":
            self.stop(b)
        elif kind == "repeat":
            client.repeat(a)
        elif kind == "answer":
            client.answer(a % 3 + 1)
        elif kind == "seal":
            for sealer in self.sealers:
                for _ in range(a % 6 + 1):
                    sealer.go_on(self.database, b)
        elif kind == "compact":
            for sealer in self.sealers:
                sealer.root.compact(a)
        elif kind == "space":
            if self.sealers:
                self.store.set_space(not self.store.has_space)
        elif kind == "behind":
            if self.sealers:
                self.store.set_behind(not self.store.is_behind)
        elif kind == "fault":
            self._inject_fault(client, a, b)
        elif kind == "heal":
            self.faults.damaged.clear()
        elif kind == "rights":
            if self.plan.changes_rights:
                self.right_changes.change(client, a, b)
        elif kind == "theft":
            self.thefts.attempt(client, a)
        else:
            raise ValueError(kind)

    def _stall(self, client: Client, a: int, b: int) -> None:
        """All clients are connected, none of them reads for a while, and one publishes."""
        self.connect_all()
        for more in range(8):
            self.traffic.publish(client, a + more, b + more)
            self.commit_all()
        self.wait(STALLED)

    def _inject_fault(self, client: Client, a: int, b: int) -> None:
        """Make a hook raise, or damage the rows of a session."""
        if a % 2:
            hook = HOOKS[b % len(HOOKS)]
            if hook != RECEIVE or client.part.role != WORKER:
                self.faults.hook, self.faults.client = hook, client.name
                self.faults.spared = a // 2 % 2
            return
        state = self.broker.router.sessions.get(client.name)
        if state is not None and state.is_durable and client.part.role != WORKER:
            self.faults.damaged.add(state.store_id)
            self.tally["sessions damaged"] += 1

    def _end_denied_subscriptions(self, facts: Facts) -> None:
        """The broker ends the subscriptions of a session to which its client has no right."""
        for topic_filter in self.ledger.end_denied_subscriptions(facts):
            self.tally["subscriptions ended"] += 1
            for client in self.clients:
                if client.name == facts.client:
                    client.revoke_subscription(topic_filter)

    def _last_link(self, who: int) -> Link | None:
        for link in reversed(self.links):
            if link.who == who and link.has_broker:
                return link
        return None

    def connect(
        self, who: int, *, clean: bool, brief: bool = False, is_other: bool = False
    ) -> None:
        """A client opens a connection, even if it has one; see `Client.connect`.

        `is_other`: under its other user name, with other rights.
        """
        client = self.clients[who]
        if client.part.role == WORKER and client.part.version != MQTT5:
            # With a clean session, its session would end with its connection.
            clean = False
        self._links += 1
        connection = self.broker.opened(PeerInfo(f"net:{self._links}"), self.clock.now)
        link = Link(who, self._links, connection, client.part.version)
        self.links.append(link)
        self._by_number[connection.number] = link
        user = user_of(client.name, is_other=is_other and self.plan.changes_rights)
        brief = brief and client.part.role != WORKER
        client.connect(link, user=user, clean=clean, brief=brief)

    def _cut(self, client: Client, a: int, b: int) -> None:
        link = client.link
        if link is not None:
            up, down = a % (len(link.up) + 1), b % (len(link.down) + 1)
            self.add_trace(
                f"    {client.name}/{link.number}: cut; {up} bytes still go up, {down} down"
            )
            link.cut(up, down)
            self.tally["cuts"] += 1
            if a & 256:
                client.lost()

    def connect_all(self) -> None:
        """Clients without a connection reconnect, if they can."""
        for who, each in enumerate(self.clients):
            if each.link is None:
                self.connect(who, clean=False)
        self.step()
        self.step()

    def lose_connection(self, client: Client) -> None:
        """The connection of a client is lost, and both sides notice it."""
        if client.link is not None:
            self._cut(client, 0, 0)
            client.lost()
            self._all_up()

    def _up(self, link: Link | None, count: int) -> None:
        """Some bytes, or the end of the connection, reach the broker."""
        if link is None or not link.has_broker:
            return
        connection = link.connection
        if connection.closing:
            link.up.clear()
            return
        if connection.paused_by_reader or connection.paused_by_store:
            self.tally["not read from for a reader"] += connection.paused_by_reader
            return
        if link.up:
            piece = link.take_up(count % len(link.up) + 1 if count else len(link.up))
            self.faults.is_receiving = True
            self.faults.is_connecting = False
            self.faults.served = self.clients[link.who].name
            try:
                self.variant.receive(self.broker, connection, piece, self.clock.now)
            except Fault as fault:
                self._close_after_fault(link, fault)
                return
            finally:
                self.faults.is_receiving = False
            self._check_problem()
            self._catch_up(link)
            if link.connection.paused_by_store:
                # The broker does not notice the end of the connection either.
                self._blocked.append(link)
                self.tally["held up by the store"] += 1
                return
        if link.ends_for_broker:
            self._closed(link)

    def _close_after_fault(self, link: Link, fault: Fault) -> None:
        """A packet made a hook raise: the server closes the connection."""
        connection = link.connection
        self.tally["hooks raised"] += 1
        self._handle_log_line(f"{connection.peer} closed: serving it failed: {fault}")
        self._check_problem()
        processed = link.take_until_fault()
        # The last of them had no effect.
        for packet in processed[:-1]:
            self._processed(link, packet)
        connection.closing = True
        self._closed(link)

    def _down(self, client: Client, count: int) -> None:
        """Some bytes, or the end of the connection, reach the client."""
        link = client.link
        if link is None:
            return
        if link.down:
            piece = link.take_down(count % len(link.down) + 1 if count else len(link.down))
            if link.has_broker:
                self.broker.written(link.connection, len(link.down))
            client.receive(piece)
        if client.link is link and link.ends_for_client:
            client.lost()

    def tick(self) -> None:
        """A tick of the broker's loop ends."""
        for link in self._blocked:
            link.was_closing = link.connection.closing
        # The broker checks all sessions before anything else.
        for facts in self.ledger.sessions.values():
            self._end_denied_subscriptions(facts)
        self.variant.flush(self.broker, self.store, self.clock.now)
        self.tally["messages lost to a fault"] += len(self.faults.unreceived)
        self.faults.unreceived.clear()
        self._update_blocked()
        self.witness.output_tick = self.ledger.end_tick()
        self._collect()
        self.witness.check_pings(self.links)
        missing_lines = (
            self.faults.raised - self.faults.reported - len(self.broker.router.unreadable)
        )
        if missing_lines:
            raise Broken(f"the log lacks {missing_lines} lines about injected faults")

    def apply(self, count: int) -> None:
        """Some commits happen; the broker is not notified yet."""
        snapshot = self.store.apply(count)
        if snapshot is not None:
            self.ledger.committed(snapshot)
            self.add_trace(f"    commit {self.store.safe} is on disk")

    def report(self, count: int) -> None:
        """Notify the broker of some commits."""
        for _ in range(min(count, len(self.store.applied))):
            commit = self.store.report()
            if commit is not None:
                self.broker.committed(commit, self.clock.now)
                self.witness.output_tick = self.witness.commit_ticks[commit.number]
                self._collect()

    def wait(self, seconds: float) -> None:
        """Let time pass between two sweeps."""
        self.sweep()
        self.tick()
        self.clock.now += seconds
        self.sweep()
        self.tick()

    def sweep(self) -> None:
        """Check everything that depends on time."""
        self.latest = max(self.latest, self.clock.now)
        unread_links = self.promptness.unread_links()
        self.variant.sweep(self.broker, self.store, self.clock.now)
        self.promptness.check_unread(unread_links)
        # It closes connections that exceeded their keep alive.
        for link in self.links:
            if link.connection.closing and link.has_broker:
                self._end_connection(link)
        self.ledger.sweep(self.clock.now)
        self.promptness.check(self.clock.now)

    def step(self, *, everybody: bool = False) -> None:
        """Advance everything by one round, except slow and lazy clients."""
        self._all_up()
        self.apply(len(self.store.pending) - (0 if everybody else self.plan.lag))
        self.report(len(self.store.applied))
        self._all_down(everybody=everybody)

    def commit_all(self) -> None:
        """What clients have sent is committed; no client reads."""
        self._all_up()
        self.apply(len(self.store.pending))
        self.report(len(self.store.applied))

    def rush(self) -> None:
        """Like `step`, but without commits."""
        self._all_up()
        self._all_down(everybody=False)

    def _all_up(self) -> None:
        for link in self.links:
            if link.up or link.ends_for_broker:
                self._up(link, 0)
        self.tick()

    def _all_down(self, *, everybody: bool) -> None:
        for client in self.clients:
            if everybody or not client.part.slow:
                self._down(client, 0)
            if everybody:
                client.answer(len(client.owed))
        self.links = [link for link in self.links if link.has_broker or link.has_client]

    # --- crashes ----------------------------------------------------------------------------------

    def crash(self, a: int, b: int) -> None:
        """The process dies before, during or after a commit, and is restarted."""
        how = a % 4
        snapshot: Snapshot | None = None
        if how == 1:
            self.rush()
            self.rush()
        elif how == 2:
            waiting = bool(self.store.pending)
            snapshot = self.store.apply_and_crash(b % 3 + 1, a // 4 % 512)
            self.tally["crashes in a commit"] += waiting and snapshot is None
        elif how == 3 and self.store.has_space:
            snapshot = self.store.apply(b % 3 + 1)
        if snapshot is not None:
            self.ledger.committed(snapshot)
        self._restart(b)

    def stop(self, b: int) -> None:
        """The broker is shut down, and restarted."""
        self.report(len(self.store.applied))
        for link in self.links:
            link.was_closing = True
            if link.has_broker:
                self._end_connection(link)
        for facts in self.ledger.sessions.values():
            self._end_denied_subscriptions(facts)
        self.broker.stop(self.clock.now)
        self.witness.output_tick = self.ledger.end_tick()
        self._collect()
        self.apply(len(self.store.pending))
        self._restart(b)

    def _restart(self, b: int) -> None:
        self.add_trace(f"    the broker restarts: commit {self.store.safe} was the last")
        self.tally["restarts"] += 1
        if self.store.pending:
            self.tally["restarts with commits lost"] += 1
        if b % 8 == 0:
            # The clock was set back meanwhile: nothing may happen early because of that.
            self.clock.now -= 3.0
        self.dropped += self.broker.router.dropped
        for link in self.links:
            link.cut(len(link.up), b % (len(link.down) + 1))
            link.has_broker = False
        self._by_number = {}
        self._blocked = []
        self.thefts.forget()
        # The log lines about the last faults are lost with the process.
        self.faults.reported = self.faults.raised
        self.faults.unreceived.clear()
        self.promptness.forget()
        self.store.crash()
        for sealer in self.sealers:
            sealer.crash(self.database, b)
        self.check_tables()
        self.witness.crash()
        self.ledger.restart(self.clock.now)
        self.broker = self._start()
