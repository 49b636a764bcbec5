"""The topics under $SYS/broker: named, and their values formatted, as in Mosquitto 2.

Dashboards for Mosquitto read them. Where the two brokers count differently: `heap` is the resident
memory of the process; `messages/stored` and `store/messages` are the retained messages, those in
queues, and those in flight; `clients/disconnected` are sessions without a connection.
"""

from math import exp
from typing import Final, final

from semel import __version__
from semel.broker.snapshot import BrokerSnapshot

PREFIX: Final = "$SYS/broker/"

# The averages of a load: their names, and the seconds over which they decay.
_AVERAGES: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


@final
class LoadAverages:
    """The growth of a count per minute, as moving averages like those of `uptime`."""

    averages: Final[list[float]]
    _last: int

    def __init__(self) -> None:
        self.averages = [0.0] * len(_AVERAGES)
        self._last = 0

    def update(self, total: int, seconds: float) -> None:
        """Note the count after this many seconds, which must be more than 0."""
        per_minute = (total - self._last) * 60.0 / seconds
        self._last = total
        for at in range(len(_AVERAGES)):
            weight = exp(-seconds / _AVERAGES[at][1])
            self.averages[at] = per_minute + weight * (self.averages[at] - per_minute)


@final
class SysTopics:
    """Makes the reports, which include moving averages."""

    _loads: Final[dict[str, LoadAverages]]
    _reported_at: float

    def __init__(self, now: float) -> None:
        self._loads = {}
        self._reported_at = now

    def report(self, snapshot: BrokerSnapshot, now: float) -> list[tuple[str, str]]:
        """All topic names, with their values as text."""
        values = _values(snapshot)
        values.extend(self._load_values(snapshot, now))
        return [(PREFIX + name, value) for name, value in values]

    def _load_values(self, snapshot: BrokerSnapshot, now: float) -> list[tuple[str, str]]:
        totals = (
            ("messages/received", snapshot.packets_received),
            ("messages/sent", snapshot.packets_sent),
            ("publish/received", sum(snapshot.messages_received)),
            ("publish/sent", sum(snapshot.messages_sent)),
            ("publish/dropped", snapshot.dropped_by_limits),
            ("bytes/received", snapshot.bytes_received),
            ("bytes/sent", snapshot.bytes_sent),
            ("connections", snapshot.ever_connected),
            ("sockets", snapshot.connections_opened),
        )
        seconds = now - self._reported_at
        self._reported_at = now
        values: list[tuple[str, str]] = []
        for name, total in totals:
            load = self._loads.get(name)
            if load is None:
                load = self._loads[name] = LoadAverages()
            if seconds > 0:
                load.update(total, seconds)
            for at in range(len(_AVERAGES)):
                values.append((f"load/{name}/{_AVERAGES[at][0]}", f"{load.averages[at]:.2f}"))
        return values


def _values(snapshot: BrokerSnapshot) -> list[tuple[str, str]]:
    totals = snapshot.totals
    # The sums over all sessions may be a few seconds older.
    offline = max(0, snapshot.sessions - totals.connected)
    stored = snapshot.retained_messages + totals.queued_messages + totals.in_flight_messages
    stored_bytes = snapshot.retained_bytes + totals.queued_bytes + totals.in_flight_bytes
    return [
        ("version", f"semel version {__version__}"),
        ("uptime", f"{int(snapshot.uptime)} seconds"),
        ("clients/connected", f"{totals.connected}"),
        ("clients/active", f"{totals.connected}"),
        ("clients/disconnected", f"{offline}"),
        ("clients/inactive", f"{offline}"),
        ("clients/total", f"{snapshot.sessions}"),
        ("clients/maximum", f"{snapshot.most_clients}"),
        ("clients/expired", f"{snapshot.sessions_expired}"),
        ("subscriptions/count", f"{snapshot.subscriptions}"),
        ("shared_subscriptions/count", f"{snapshot.shared_subscriptions}"),
        ("retained messages/count", f"{snapshot.retained_messages}"),
        ("messages/stored", f"{stored}"),
        ("store/messages/count", f"{stored}"),
        ("store/messages/bytes", f"{stored_bytes}"),
        ("messages/received", f"{snapshot.packets_received}"),
        ("messages/sent", f"{snapshot.packets_sent}"),
        ("publish/messages/received", f"{sum(snapshot.messages_received)}"),
        ("publish/messages/sent", f"{sum(snapshot.messages_sent)}"),
        ("publish/messages/dropped", f"{snapshot.dropped_by_limits}"),
        ("publish/bytes/received", f"{sum(snapshot.payload_received)}"),
        ("publish/bytes/sent", f"{sum(snapshot.payload_sent)}"),
        ("bytes/received", f"{snapshot.bytes_received}"),
        ("bytes/sent", f"{snapshot.bytes_sent}"),
        ("heap/current", f"{snapshot.memory}"),
        ("heap/maximum", f"{snapshot.most_memory}"),
    ]
