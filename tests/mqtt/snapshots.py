"""The state of a session, an exchange or a side as values that can be compared."""

from semel.mqtt import Exchange, Session
from semel.mqtt.message import Message
from semel.mqtt.side import Side

# (number, message, share) of each delivery in memory that waits in the backlog
Waiting = tuple[tuple[int, Message, str], ...]
# (packet_id, number, qos, place among the released, message, share) of each in flight
InFlight = tuple[tuple[int, int, int, int, Message | None, str], ...]
SessionSnapshot = tuple[Waiting, InFlight, tuple[int, ...], tuple[int, float | None]]


def session_snapshot(session: Session) -> SessionSnapshot:
    """What a store keeps of a session.

    Of what was released, only the order counts, and the share no longer matters.
    """
    releases = sorted(each.released for each in session.flights.values() if each.released)
    in_flight = tuple(
        (packet_id, each.number, each.qos, releases.index(each.released) + 1, None, "")
        if each.released
        else (packet_id, each.number, each.qos, 0, each.message, each.share)
        for packet_id, each in session.flights.items()
    )
    waiting: list[tuple[int, Message, str]] = []
    for each in session.backlog.in_memory():
        assert each.message is not None
        waiting.append((each.number, each.message, each.share))
    return (
        tuple(waiting),
        in_flight,
        tuple(session.stored_ids.listed()),
        (session.last_number, session.ends_at),
    )


def exchange_snapshot(exchange: Exchange) -> tuple[object, ...]:
    """All that an exchange knows."""
    return (
        (exchange.phase, exchange.version, exchange.session_present, exchange.clean_start),
        (exchange.history_known, exchange.assigns_client_id, exchange.session_expiry_interval),
        (exchange.wants_response_information, exchange.wants_problem_information),
        (exchange.authentication_method, exchange.authenticating, exchange.client_owes_auth),
        (exchange.maximum_qos, exchange.retain_available, exchange.wildcard_available),
        (exchange.subscription_identifiers_available, exchange.shared_available),
        side_snapshot(exchange.client),
        side_snapshot(exchange.server),
    )


def side_snapshot(side: Side) -> tuple[object, ...]:
    """All that an exchange knows of one side."""
    return (
        (side.receive_maximum, side.maximum_packet_size, side.topic_alias_maximum),
        (side.quota, side.serial, side.carried_until, side.disconnected),
        (side.last_resend, side.last_puback, side.last_pubrec, side.last_pubrel),
        tuple(side.opened.items()),
        tuple(side.received.listed()),
        tuple(side.received_before.listed()),
        tuple(side.used.listed()),
        tuple(side.repeats.items()),
        tuple(side.strays.listed()),
        tuple(side.stray_pubrels.listed()),
        tuple(side.requests.items()),
        tuple(side.aliases.items()),
    )
