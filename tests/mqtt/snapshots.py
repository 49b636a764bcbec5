"""The state of a session, an exchange or a side as values that can be compared."""

from semel.mqtt import Exchange, Session
from semel.mqtt.message import Message
from semel.mqtt.packet_ids import PacketIds
from semel.mqtt.side import RareSteps, Side

# (number, message, share) of each delivery in memory that waits in the backlog
Waiting = tuple[tuple[int, Message, str], ...]
# (packet_id, number, qos, place among the released, message, share) of each in flight
InFlight = tuple[tuple[int, int, int, int, Message | None, str], ...]
SessionSnapshot = tuple[Waiting, InFlight, tuple[int, ...], tuple[int, float | None]]


def session_snapshot(session: Session) -> SessionSnapshot:
    """What a store keeps of a session.

    Of what was released, only the order counts, and the share no longer matters.
    """
    releases = sorted(each.released for each in session.deliveries_in_flight() if each.released)
    in_flight = tuple(
        (each.packet_id, each.number, each.qos, releases.index(each.released) + 1, None, "")
        if each.released
        else (each.packet_id, each.number, each.qos, 0, each.message, each.share)
        for each in session.deliveries_in_flight()
    )
    waiting: list[tuple[int, Message, str]] = []
    for each in session.backlog.in_memory():
        assert each.message is not None
        waiting.append((each.number, each.message, each.share))
    return (
        tuple(waiting),
        in_flight,
        listed(session.stored_ids),
        (session.last_number, session.ends_at),
    )


def exchange_snapshot(exchange: Exchange) -> tuple[object, ...]:
    """All that an exchange knows."""
    features = exchange.server_features
    return (
        (exchange.phase, exchange.version, exchange.session_present, exchange.clean_start),
        (exchange.history_known, exchange.assigns_client_id, exchange.session_expiry_interval),
        (exchange.wants_response_information, exchange.wants_problem_information),
        (exchange.authentication_method, exchange.authenticating, exchange.client_owes_auth),
        (exchange.maximum_qos, features.retain, features.wildcards),
        (features.subscription_identifiers, features.shared_subscriptions),
        side_snapshot(exchange.client),
        side_snapshot(exchange.server),
    )


def side_snapshot(side: Side) -> tuple[object, ...]:
    """All that an exchange knows of one side."""
    rare = side.rare or RareSteps()
    return (
        (side.receive_maximum, side.maximum_packet_size, side.topic_alias_maximum),
        (side.quota, side.serial, side.carried_until, side.disconnected),
        (rare.last_resend, side.last_puback, side.last_pubrec, side.last_pubrel),
        tuple((side.opened or {}).items()),
        listed(rare.received),
        listed(rare.received_before),
        listed(side.used),
        tuple(rare.repeats.items()),
        listed(rare.strays),
        listed(rare.stray_pubrels),
        tuple((side.requests or {}).items()),
        () if side.aliases is None else tuple(side.aliases.topics.items()),
    )


def listed(ids: PacketIds | None) -> tuple[int, ...]:
    """The identifiers in a set."""
    return () if ids is None else tuple(ids.listed())
