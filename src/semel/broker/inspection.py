"""Values of clients, sessions, subscriptions, retained messages and violations, for `semel ctl`.

Each function describes one thing, as values for JSON. The caller decides how many it asks for at a
time: a broker may have a hundred thousand of each. Times are in seconds from now.
"""

from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.recent_violations import RecentViolation
from semel.broker.session_state import SessionState
from semel.broker.subscriptions import SubscriptionEntry
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT311, PACKET_NAMES
from semel.mqtt.session import NEVER_EXPIRES

Values = dict[str, object]


def client_values(connection: Connection, state: SessionState, now: float) -> Values:
    """A connected client."""
    identity = state.identity
    return {
        "client": state.client_id,
        "user": identity.user_name,
        "address": connection.peer,
        "listener": connection.peer_info.listener,
        "proof": identity.proof,
        "version": "3.1.1" if connection.exchange.version == MQTT311 else "5.0",
        "connected_seconds": round(max(0.0, now - connection.opened_at), 1),
        "silent_seconds": round(max(0.0, now - connection.last_packet_at), 1),
        "keep_alive": connection.keep_alive,
        "messages_received": connection.messages_received,
        "messages_sent": state.messages_sent,
        "bytes_received": connection.bytes_received,
        "bytes_sent": connection.bytes_sent,
        "unsent_bytes": connection.unsent,
        "paused": _paused(connection),
    }


def client_details(connection: Connection, state: SessionState, now: float) -> Values:
    """A connected client with everything that is known about it."""
    values = client_values(connection, state, now)
    values["certificate"] = state.identity.certificate
    values["groups"] = list(state.identity.groups)
    expires_at = state.identity.expires_at
    values["credentials_expire_seconds"] = None if expires_at is None else round(expires_at - now)
    values["session"] = session_values(state, now)
    return values


def session_values(state: SessionState, now: float) -> Values:
    """A session, connected or not."""
    session = state.session
    ends_at = session.ends_at
    interval = state.expiry_interval
    return {
        "client": state.client_id,
        "user": state.identity.user_name,
        "connected": state.connection > 0,
        "durable": state.is_durable,
        "expiry_interval": None if interval == NEVER_EXPIRES else interval,
        "expires_seconds": None if ends_at is None else round(max(0.0, ends_at - now), 1),
        "subscriptions": state.subscriptions,
        "queued_messages": len(session.backlog),
        "queued_bytes": session.backlog.size,
        "inflight_messages": session.in_flight,
        "has_will": state.will is not None,
        "damage": state.damage or None,
    }


def subscription_values(entry: SubscriptionEntry) -> Values:
    """A subscription of one client."""
    return {
        "client": entry.client_id,
        "filter": entry.topic_filter,
        "qos": entry.qos,
        "no_local": entry.no_local,
        "retain_as_published": entry.retain_as_published,
        "identifier": entry.identifier or None,
    }


def retained_values(message: Message, now: float) -> Values:
    """A retained message, without its payload."""
    expires_at = message.expires_at
    return {
        "topic": message.topic_name,
        "qos": message.qos,
        "bytes": len(message.payload),
        "expires_seconds": None if expires_at is None else round(max(0.0, expires_at - now), 1),
    }


def violation_values(entry: RecentViolation, now: float) -> Values:
    """A rule that a client broke, once or several times; the bytes are of the last time."""
    return {
        "rule": entry.rule.name,
        "sentence": entry.rule.sentence,
        "statements": list(entry.statements),
        "count": entry.count,
        "seconds_ago": round(max(0.0, now - entry.last_at), 1),
        "client": entry.client_id,
        "user": entry.user,
        "address": entry.address,
        "version": "3.1.1" if entry.version == MQTT311 else "5.0",
        "packet": PACKET_NAMES[entry.packet_type] if entry.packet_type else None,
        "seen": entry.seen,
        "bytes": entry.data.hex(),
        "closed": entry.rule.closes,
    }


def broker_values(broker: Broker, now: float) -> Values:
    """How much there is of everything, and what has passed since the start."""
    snapshot = broker.snapshot(now)
    return {
        "clients": snapshot.clients,
        "connections": len(broker.connections),
        "sessions": snapshot.sessions,
        "subscriptions": snapshot.subscriptions,
        "retained": snapshot.retained_messages,
        "bans": len(broker.oversight.bans),
        "draining": broker.oversight.draining.is_active,
        **traffic_values(broker),
        "packets_received": snapshot.packets_received,
        "packets_sent": snapshot.packets_sent,
        "memory_is_short": snapshot.memory_is_short,
    }


def traffic_values(broker: Broker) -> Values:
    """Messages and bytes of all clients since the start."""
    counters = broker.counters
    return {
        "messages_received": counters.messages_received,
        "messages_sent": counters.messages_sent,
        "bytes_received": counters.bytes_received,
        "bytes_sent": counters.bytes_sent,
    }


def _paused(connection: Connection) -> str | None:
    """Why the broker does not read from the client; None: it does."""
    if connection.paused_by_reader:
        return "a subscriber of its messages is behind"
    if connection.paused_by_store:
        return "the store is behind"
    if connection.paused_by_rate:
        return "it exceeds its rate"
    return None
