"""The metrics of a broker, from a snapshot of its server."""

import platform
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel import __version__
from semel.broker import core
from semel.broker.memory import UNLIMITED
from semel.broker.snapshot import BrokerSnapshot
from semel.metrics.families import (
    INFO,
    HistogramValue,
    MetricFamily,
    counter,
    gauge,
    histogram,
)
from semel.mqtt import RULES
from semel.mqtt.packet_types import CONNACK, PUBACK
from semel.mqtt.reasons import FAILURE, REASONS_5
from semel.store.statistics import StoreStatistics
from semel.store.store import BEHIND, FULL, OPEN

# The conditions of a store, by the names that metrics have for them.
STORE_CONDITIONS: Final = {"open": OPEN, "behind": BEHIND, "full": FULL}


@dataclass(frozen=True)
class ServerSnapshot:
    """The numbers of a broker, its store and its event loop at one time."""

    broker: BrokerSnapshot
    # None: nothing is stored on disk, or the store is not connected yet.
    store: StoreStatistics | None
    # Why the store failed; None: it did not.
    failure: str | None
    # Whether clients are served.
    is_ready: bool
    # How late the sweep was, which is due once a second.
    loop_lag: HistogramValue
    loop_lag_maximum: float
    # Processor time of the process.
    cpu_seconds: float
    # Free bytes of the file system of the store; None: not known.
    free_bytes: int | None
    # The names of all listeners.
    listeners: tuple[str, ...]


def server_families(snapshot: ServerSnapshot) -> list[MetricFamily]:
    """All metrics of a broker. The set of series depends on the configuration only."""
    broker = snapshot.broker
    return [
        *_process_families(snapshot),
        *_client_families(broker, snapshot.listeners),
        *_traffic_families(broker),
        *_queue_families(broker),
        *_refusal_families(broker),
        *_store_families(snapshot),
        *_stream_families(broker, snapshot.store),
    ]


def _process_families(snapshot: ServerSnapshot) -> list[MetricFamily]:
    broker = snapshot.broker
    lag = "How late the sweep, which is due once a second, was run by the event loop"
    families = [
        MetricFamily("semel_build", INFO, "Versions of the broker and what it runs on").add(
            1,
            version=__version__,
            mode="interpreted" if str(core.__file__).endswith(".py") else "compiled",
            python=platform.python_version(),
            sqlite=sqlite3.sqlite_version,
        ),
        gauge("semel_ready", "1 while /readyz reports that clients are served").add(
            int(snapshot.is_ready)
        ),
        gauge("semel_uptime_seconds", "Time since the broker was started").add(broker.uptime),
        counter("semel_cpu_seconds", "Processor time of the broker's process").add(
            snapshot.cpu_seconds
        ),
        gauge("semel_memory_bytes", "Resident memory of the broker's process").add(broker.memory),
        gauge("semel_memory_short", "1 while the memory exceeds maximum_memory").add(
            int(broker.memory_is_short)
        ),
        histogram("semel_loop_lag_seconds", lag).add(snapshot.loop_lag),
        gauge("semel_loop_lag_maximum_seconds", f"{lag}: the maximum since the start").add(
            snapshot.loop_lag_maximum
        ),
    ]
    if broker.memory_limit < UNLIMITED // 2:
        limit = gauge("semel_memory_limit_bytes", "The limit maximum_memory, given or computed")
        families.append(limit.add(broker.memory_limit))
    return families


def _client_families(broker: BrokerSnapshot, listeners: tuple[str, ...]) -> list[MetricFamily]:
    totals = broker.totals
    return [
        gauge("semel_connections", "Open network connections, by listener").add_each(
            "listener", dict.fromkeys(listeners, 0) | broker.connections
        ),
        counter("semel_connections_opened", "Network connections that were opened").add(
            broker.connections_opened
        ),
        gauge("semel_clients_connected", "Clients whose CONNECT was accepted").add(broker.clients),
        gauge("semel_clients_connected_maximum", "The most clients connected at a time").add(
            broker.most_clients
        ),
        counter("semel_connects_accepted", "CONNECT packets that were accepted").add(
            broker.ever_connected
        ),
        gauge("semel_sessions", "Sessions, connected or not").add(broker.sessions),
        gauge("semel_sessions_durable", "Sessions that are stored on disk").add(totals.durable),
        counter("semel_sessions_expired", "Sessions that ended because their time was over").add(
            broker.sessions_expired
        ),
        gauge("semel_subscriptions", "Subscriptions of all sessions").add(broker.subscriptions),
        gauge("semel_shared_subscriptions", "Those of the subscriptions that are shared").add(
            broker.shared_subscriptions
        ),
        gauge("semel_retained_messages", "Retained messages, with those under $SYS").add(
            broker.retained_messages
        ),
        gauge("semel_retained_bytes", "Approximate memory of the retained messages").add(
            broker.retained_bytes
        ),
    ]


def _traffic_families(broker: BrokerSnapshot) -> list[MetricFamily]:
    return [
        counter("semel_messages_received", "Messages received from clients, by QoS").add_each(
            "qos", _by_qos(broker.messages_received)
        ),
        counter("semel_messages_sent", "Messages sent to clients, by QoS").add_each(
            "qos", _by_qos(broker.messages_sent)
        ),
        counter("semel_payload_received_bytes", "Payloads of received messages, by QoS").add_each(
            "qos", _by_qos(broker.payload_received)
        ),
        counter("semel_payload_sent_bytes", "Payloads of sent messages, by QoS").add_each(
            "qos", _by_qos(broker.payload_sent)
        ),
        counter("semel_packets_received", "MQTT packets received, of all types").add(
            broker.packets_received
        ),
        counter("semel_packets_sent", "MQTT packets sent, of all types").add(broker.packets_sent),
        counter("semel_network_received_bytes", "Bytes of MQTT received").add(
            broker.bytes_received
        ),
        counter("semel_network_sent_bytes", "Bytes of MQTT sent").add(broker.bytes_sent),
    ]


def _queue_families(broker: BrokerSnapshot) -> list[MetricFamily]:
    totals = broker.totals
    return [
        gauge("semel_queued_messages", "Messages in the queues of all sessions").add(
            totals.queued_messages
        ),
        gauge("semel_queued_bytes", "Topics and payloads of the queued messages").add(
            totals.queued_bytes
        ),
        gauge("semel_inflight_messages", "Messages sent at QoS 1 or 2 and not complete").add(
            totals.in_flight_messages
        ),
        gauge("semel_inflight_bytes", "Approximate memory of the messages in flight").add(
            totals.in_flight_bytes
        ),
        counter("semel_messages_dropped", "Messages dropped for a receiver, by reason").add_each(
            "reason", broker.dropped
        ),
        gauge("semel_publishers_paused", "Connections that are not read, by reason").add_each(
            "reason",
            {
                "slow_reader": broker.paused_by_reader,
                "store": broker.paused_by_store,
                "rate": broker.paused_by_rate,
            },
        ),
    ]


def _refusal_families(broker: BrokerSnapshot) -> list[MetricFamily]:
    violations = {rule.name: broker.violations.get(rule.name, 0) for rule in RULES}
    return [
        counter("semel_violations", "Rules of MQTT that clients broke, by rule").add_each(
            "rule", violations
        ),
        counter("semel_connects_refused", "Refused CONNECT packets, by reason code").add_each(
            "reason", _by_code(broker.refused_connects, CONNACK)
        ),
        counter(
            "semel_publishes_refused", "Refused PUBLISH packets and wills, by reason code"
        ).add_each("reason", _by_code(broker.refused_publishes, PUBACK)),
        counter(
            "semel_authentication_failures",
            "CONNECT and AUTH packets of clients that did not prove who they are",
        ).add(broker.authentication_failures),
    ]


def _store_families(snapshot: ServerSnapshot) -> list[MetricFamily]:
    broker, store = snapshot.broker, snapshot.store
    condition = gauge("semel_store_condition", "The condition of the store: 1 for the current one")
    for name, value in STORE_CONDITIONS.items():
        is_current = snapshot.failure is None and broker.store_condition == value
        condition.add(int(is_current), condition=name)
    families = [condition.add(int(snapshot.failure is not None), condition="failed")]
    if store is not None:
        families += [
            histogram(
                "semel_commit_seconds", "Time from the end of a tick until its commit is on disk"
            ).add(store.commit_seconds),
            histogram(
                "semel_transaction_seconds", "Time to write and sync one transaction of the store"
            ).add(store.transaction_seconds),
            histogram(
                "semel_transaction_commits", "Commits that were written as one transaction"
            ).add(store.transaction_commits),
            histogram("semel_transaction_rows", "Messages and changes in one transaction").add(
                store.transaction_rows
            ),
            gauge("semel_commits_unwritten", "Commits that are not on disk yet").add(
                broker.uncommitted
            ),
            gauge("semel_commits_unwritten_bytes", "Size of the commits not on disk yet").add(
                store.unwritten_bytes
            ),
        ]
    if snapshot.free_bytes is not None:
        free = gauge("semel_store_free_bytes", "Free space of the file system of the store")
        families.append(free.add(snapshot.free_bytes))
    return families


def _stream_families(broker: BrokerSnapshot, store: StoreStatistics | None) -> list[MetricFamily]:
    last = gauge("semel_stream_last_seq", "The seq of the last row of a stream")
    families = [last.add_each("stream", broker.streams)]
    if store is None or store.is_sealer_running is None:
        return families
    sealed = gauge("semel_stream_sealed_seq", "The seq of the last sealed row of a stream")
    unsealed = gauge("semel_stream_unsealed_rows", "Committed rows of a stream, not yet sealed")
    oldest = gauge(
        "semel_stream_unsealed_seconds",
        "Time since the oldest unsealed row of a stream was committed; 0 if all are sealed",
    )
    for each in store.streams:
        sealed.add(each.sealed_seq, stream=each.stream)
        unsealed.add(each.unsealed_rows, stream=each.stream)
        oldest.add(each.oldest_seconds, stream=each.stream)
    return [
        *families,
        *(sealed, unsealed, oldest),
        gauge("semel_unsealed_bytes", "Size of the unsealed rows of all streams").add(
            store.unsealed_bytes
        ),
        gauge("semel_sealer_running", "1 while the sealer's process runs").add(
            int(store.is_sealer_running)
        ),
    ]


def _by_qos(values: tuple[int, int, int]) -> dict[str, int]:
    return {str(qos): value for qos, value in enumerate(values)}


def _by_code(values: Mapping[int, int], packet_type: int) -> dict[str, int]:
    """The counts of all failures that are defined for a packet, as 0x…; 0 for those not seen."""
    codes = sorted(code for code in {*REASONS_5[packet_type], *values} if code >= FAILURE)
    return {f"0x{code:02x}": values.get(code, 0) for code in codes}
