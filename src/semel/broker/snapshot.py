"""All numbers of the broker at one time, as a plain value.

A snapshot is taken for a scrape of the metrics and for the topics under $SYS, never for a message.
Most numbers are kept as totals. The few that need a pass over all sessions come from
`SessionPasses`, so that the cost is bounded however many sessions there are, and however often a
snapshot is taken.
"""

from typing import Final, final

from semel.broker.connections import Connections
from semel.broker.counters import DROP_REASONS, BrokerCounters
from semel.broker.pressure import Pressure
from semel.broker.rate_limits import RateLimits
from semel.broker.router import Router
from semel.broker.session_totals import SessionPasses, SessionTotals
from semel.broker.store_pressure import StorePressure


@final
class BrokerSnapshot:
    """The numbers of a broker at one time. Nothing changes them afterwards."""

    uptime: Final[float]
    totals: Final[SessionTotals]
    # Network connections by listener, whether or not their CONNECT was accepted.
    connections: Final[dict[str, int]]
    # Clients whose CONNECT was accepted: now, the most at a time, and since the start.
    clients: Final[int]
    most_clients: Final[int]
    ever_connected: Final[int]
    connections_opened: Final[int]
    sessions: Final[int]
    sessions_expired: Final[int]
    subscriptions: Final[int]
    shared_subscriptions: Final[int]
    retained_messages: Final[int]
    retained_bytes: Final[int]
    # Since the start; by QoS where there are three.
    messages_received: Final[tuple[int, int, int]]
    messages_sent: Final[tuple[int, int, int]]
    payload_received: Final[tuple[int, int, int]]
    payload_sent: Final[tuple[int, int, int]]
    packets_received: Final[int]
    packets_sent: Final[int]
    bytes_received: Final[int]
    bytes_sent: Final[int]
    # By reason; those without the expired and the too large ones.
    dropped: Final[dict[str, int]]
    dropped_by_limits: Final[int]
    # By rule, and by reason code.
    violations: Final[dict[str, int]]
    refused_connects: Final[dict[int, int]]
    refused_publishes: Final[dict[int, int]]
    authentication_failures: Final[int]
    # Publishers that are not read now: because of a slow reader, of the store, or of their rate.
    paused_by_reader: Final[int]
    paused_by_store: Final[int]
    paused_by_rate: Final[int]
    # Commits that the store has not written, and its condition: OPEN, BEHIND or FULL.
    uncommitted: Final[int]
    store_condition: Final[int]
    # By stream: the last seq that was assigned.
    streams: Final[dict[str, int]]
    # Bytes of the process: measured last, the most, and the limit.
    memory: Final[int]
    most_memory: Final[int]
    memory_limit: Final[int]
    memory_is_short: Final[bool]

    def __init__(
        self,
        uptime: float,
        totals: SessionTotals,
        *,
        router: Router,
        connections: Connections,
        paused_by_reader: int,
        paused_by_store: int,
        paused_by_rate: int,
    ) -> None:
        counters: BrokerCounters = router.counters
        arrivals = connections.arrivals
        self.uptime = uptime
        self.totals = totals
        self.connections = dict(connections.by_listener)
        self.clients = arrivals.connected
        self.most_clients = arrivals.most_connected
        self.ever_connected = arrivals.ever_connected
        self.connections_opened = connections.opened
        self.sessions = len(router.sessions)
        self.sessions_expired = counters.sessions_expired
        self.subscriptions = router.subscriptions.count
        self.shared_subscriptions = router.subscriptions.shared_count
        self.retained_messages = len(router.retained)
        self.retained_bytes = router.retained.size
        self.messages_received = counters.received.messages()
        self.messages_sent = counters.sent.messages()
        self.payload_received = counters.received.payload_bytes()
        self.payload_sent = counters.sent.payload_bytes()
        self.packets_received = counters.packets_received
        self.packets_sent = counters.packets_sent
        self.bytes_received = counters.bytes_received
        self.bytes_sent = counters.bytes_sent
        by_reason = counters.drops.by_reason
        self.dropped = {name: by_reason[at] for at, name in enumerate(DROP_REASONS)}
        self.dropped_by_limits = counters.drops.by_limits
        self.violations = dict(counters.violations)
        self.refused_connects = dict(counters.refused_connects)
        self.refused_publishes = dict(counters.refused_publishes)
        self.authentication_failures = counters.authentication_failures
        self.paused_by_reader = paused_by_reader
        self.paused_by_store = paused_by_store
        self.paused_by_rate = paused_by_rate
        self.uncommitted = len(router.uncommitted)
        self.store_condition = router.store.condition
        self.streams = {stream.name: stream.last_seq for stream in router.streams.all}
        self.memory = router.memory.resident
        self.most_memory = router.memory.most_resident
        self.memory_limit = router.memory.limit
        self.memory_is_short = router.memory.is_short


@final
class Snapshots:
    """Takes snapshots of one broker."""

    _router: Final[Router]
    _connections: Final[Connections]
    _pressure: Final[Pressure]
    _store_pressure: Final[StorePressure]
    _rate_limits: Final[RateLimits]
    _started_at: Final[float]
    _passes: Final[SessionPasses]

    def __init__(
        self,
        router: Router,
        connections: Connections,
        pressure: Pressure,
        store_pressure: StorePressure,
        rate_limits: RateLimits,
        *,
        now: float,
    ) -> None:
        self._router = router
        self._connections = connections
        self._pressure = pressure
        self._store_pressure = store_pressure
        self._rate_limits = rate_limits
        self._started_at = now
        self._passes = SessionPasses(router.sessions, now)

    def sweep(self, now: float) -> None:
        """Once a second: add up sessions, if there are many."""
        self._passes.sweep(now)

    def take(self, now: float) -> BrokerSnapshot:
        """The numbers at this time."""
        self._passes.advance(now)
        return BrokerSnapshot(
            now - self._started_at,
            self._passes.totals,
            router=self._router,
            connections=self._connections,
            paused_by_reader=self._pressure.paused,
            paused_by_store=self._store_pressure.paused,
            paused_by_rate=self._rate_limits.paused,
        )
