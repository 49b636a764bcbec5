"""What must be true when everything has come to rest."""

from collections import Counter

from tests.simulation.client import Client, Got, Sent
from tests.simulation.clock import Broken
from tests.simulation.ledger import SHARE, Ledger, matches
from tests.simulation.schedule import WORKER
from tests.simulation.world import World


def check(world: World) -> None:
    """Check every guarantee that can be checked at the end."""
    _check_record(world)
    for client in world.clients:
        _check_publisher(world, client)
    lost = 0
    for client in world.clients:
        lost += _check_subscriber(world, client)
    lost += _check_shared(world)
    if lost > world.dropped:
        raise Broken(f"{lost} messages are missing, but {world.dropped} were counted as dropped")
    for client in world.clients:
        _check_replays(world, client)
        _check_once(client)
        if not world.plan.bounded:
            _check_by_clients_alone(world, client)
    _check_disk(world)


def _check_record(world: World) -> None:
    """Streams have no gaps, and have each accepted message once, in commit order."""
    ledger = world.ledger
    for sealer, (name, topic_filter) in zip(world.sealers, world.plan.streams, strict=True):
        rows = sealer.record(world.database)
        numbers = [row[0] for row in rows]
        if numbers != list(range(1, len(rows) + 1)):
            raise Broken(f"stream {name} has gaps: {numbers}")
        wanted = [each for each in ledger.accepted if matches(topic_filter, each.topic)]
        # Wills that are due in the same tick are not ordered relative to other messages.
        ordinary = [(row[1], row[3]) for row in rows if not row[2].startswith("w/")]
        accepted = [(each.client, each.payload) for each in wanted if not each.is_will]
        if ordinary != accepted:
            raise Broken(_difference(f"stream {name}", accepted, ordinary))
        wills = Counter(row[3] for row in rows if row[2].startswith("w/"))
        due = Counter(each.payload for each in wanted if each.is_will)
        if wills != due:
            raise Broken(f"stream {name} has the wills {wills}, but {due} were due")
        if any(count > 1 for count in wills.values()):
            raise Broken(f"stream {name} has a will twice: {wills}")


def _difference(name: str, wanted: list[tuple[str, bytes]], found: list[tuple[str, bytes]]) -> str:
    missing = Counter(wanted) - Counter(found)
    surplus = Counter(found) - Counter(wanted)
    if not missing and not surplus:
        return f"{name} has its messages in a different order than they were accepted"
    return f"{name} lacks {_shown(missing)}, and has {_shown(surplus)} in addition"


def _shown(messages: Counter[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(client, payload[:20]) for client, payload in messages.elements()]


def _check_publisher(world: World, client: Client) -> None:
    """Every acknowledgement that a publisher received is true."""
    if not world.sealers:
        # Without a stream, messages without subscribers need not be durable.
        return
    accepted = Counter(each.payload for each in world.ledger.accepted)
    recorded = Counter(row[3] for row in world.sealers[0].record(world.database))
    for sent in client.published:
        if not sent.qos or not sent.payload:
            continue
        what = f"{sent.payload[:20]!r} of {client.name}, QoS {sent.qos},"
        if not sent.acked_at and not sent.refused and not sent.abandoned:
            raise Broken(f"{what} was never acknowledged")
        for count in (accepted[sent.payload], recorded[sent.payload]):
            if sent.acked_at and not count and sent.payload not in world.ledger.denied:
                raise Broken(f"{what} was acknowledged, but is lost")
            if sent.qos == 2 and count > 1:
                raise Broken(f"{what} was accepted {count} times")
            if sent.qos == 2 and sent.refused and count:
                raise Broken(f"{what} was refused, but accepted nevertheless")


def _check_subscriber(world: World, client: Client) -> int:
    """Check the deliveries of its current session, and return how many are missing."""
    ledger = world.ledger
    facts = ledger.sessions.get(client.name)
    if facts is None:
        return 0
    got = [each for each in client.got if each.life == client.life and each.qos and not each.retain]
    first = _first_times(got)
    missing = 0
    places: dict[tuple[str, str], int] = {}
    expected = ledger.expected.get(facts.epoch, [])
    shares = client.part.role == WORKER
    counts = Counter((each.payload, each.qos) for each in got)
    wanted = Counter((ledger.accepted[index].payload, qos) for index, qos in expected)
    for (payload, qos), count in counts.items():
        if qos == 2 and payload and count > wanted[payload, qos] and not shares:
            raise Broken(f"{client.name} got {payload[:20]!r} {count} times at QoS 2")
    seen: set[bytes] = set()
    for index, qos in expected:
        message = ledger.accepted[index]
        if not message.payload or message.payload in seen:
            continue
        seen.add(message.payload)
        place = first.get(message.payload)
        if place is None or not counts[message.payload, qos]:
            if (client.name, message.payload) in ledger.unreceived:
                continue
            if message.expires_at is not None and message.expires_at <= world.latest:
                continue
            if ledger.history.was_missing_since(client.name, message.topic, message.moment):
                continue
            missing += 1
            if not world.plan.bounded:
                raise Broken(
                    f"{client.name} did not get {message.payload[:20]!r} at QoS {qos}, which was"
                    " accepted while it was subscribed"
                )
            continue
        if message.expires_at is not None or (client.name, message.payload) in ledger.unreceived:
            # The copy that arrived may be another than the one that was sent first.
            continue
        # [MQTT-4.6.0-6] order is kept per publisher and topic.
        line = (message.client, message.topic)
        if place < places.get(line, -1):
            raise Broken(f"{client.name} got {message.payload[:20]!r} out of order")
        places[line] = place
    return missing


def _check_replays(world: World, client: Client) -> None:
    """A new subscription gets retained messages, unless they were replaced or a crash came."""
    ledger = world.ledger
    facts = ledger.sessions.get(client.name)
    if facts is None or world.plan.bounded:
        return
    got = {each.payload for each in client.got if each.retain and each.life == client.life}
    for replay in ledger.replays.get(facts.epoch, ()):
        kept = ledger.retained.get(replay.topic)
        if kept is None or kept[0] != replay.payload or kept[2] is not None:
            continue
        if len(ledger.by_payload[replay.payload]) > 1:
            # Its publisher sent it again, which replaced it.
            continue
        if replay.is_excused:
            continue
        if ledger.history.was_missing_since(client.name, replay.topic, replay.moment):
            continue
        if replay.qos and replay.crashes == ledger.crashes and replay.payload not in got:
            raise Broken(f"{client.name} did not get {replay.payload[:20]!r}, which is retained")


def _check_once(client: Client) -> None:
    """A client gets no QoS 2 message twice, in all its sessions."""
    counts = Counter(
        each.payload for each in client.got if each.qos == 2 and each.payload and not each.retain
    )
    for payload, count in counts.items():
        if count > 1:
            raise Broken(f"{client.name} got {payload[:20]!r} {count} times at QoS 2")


def _first_times(got: list[Got]) -> dict[bytes, int]:
    first: dict[bytes, int] = {}
    for place, each in enumerate(got):
        first.setdefault(each.payload, place)
    return first


def _check_shared(world: World) -> int:
    """One member of a shared subscription gets each message; how many are missing."""
    ledger = world.ledger
    got: Counter[bytes] = Counter()
    for client in world.clients:
        if client.part.role == WORKER:
            got.update(each.payload for each in client.got if each.qos and not each.retain)
    missing = 0
    for index, qos in ledger.shared:
        message = ledger.accepted[index]
        if not message.payload:
            continue
        if not got[message.payload] and index not in ledger.excused:
            if message.expires_at is not None and message.expires_at <= world.latest:
                continue
            if any(
                ledger.history.was_missing_since(client.name, message.topic, message.moment)
                for client in world.clients
                if client.part.role == WORKER
            ):
                # It was dropped with a member that could not receive it any more.
                continue
            missing += 1
            if not world.plan.bounded:
                raise Broken(f"no member of the group got {message.payload[:20]!r}")
        if qos == 2 and got[message.payload] > 1:
            raise Broken(f"the group got {message.payload[:20]!r} more than once at QoS 2")
    return missing


def _check_by_clients_alone(world: World, client: Client) -> None:
    """A client that had its SUBACK before a message was sent gets the message.

    This uses neither ledger nor database, only what publishers and subscribers have recorded.
    """
    got = {(each.life, each.payload) for each in client.got}
    for held in client.held:
        if held.life != client.life or held.topic_filter.startswith(SHARE):
            continue
        for publisher in world.clients:
            for sent in publisher.published:
                if (
                    sent.qos
                    and sent.payload
                    and sent.expiry is None
                    and sent.acked_at
                    and sent.sent_at > held.since
                    and (not held.until or sent.acked_at < held.until)
                    and matches(held.topic_filter, sent.topic)
                    and (client.life, sent.payload) not in got
                    and (client.name, sent.payload) not in world.ledger.unreceived
                    and sent.payload not in world.ledger.denied
                    and not _lacked_right(world, client, sent)
                ):
                    raise Broken(
                        f"{client.name} was subscribed to {held.topic_filter} when"
                        f" {publisher.name} sent {sent.payload[:20]!r}, and did not get it"
                    )


def _lacked_right(world: World, client: Client, sent: Sent) -> bool:
    """Whether a client could not receive a message when it was accepted, or later."""
    history = world.ledger.history
    return all(
        history.was_missing_since(client.name, each.topic, each.moment)
        for each in world.ledger.by_payload.get(sent.payload, ())
    )


def _check_disk(world: World) -> None:
    """No exchange is open, and the database has the expected contents."""
    world.check_tables()
    ask = world.database.connection.execute
    for table in ("delivery", "delivery_extra", "shared_payload", "inbound", "will"):
        rows = ask(f"SELECT * FROM {table}").fetchall()
        if rows:
            raise Broken(f"{len(rows)} rows are left in {table}: {rows[0][:4]}")
    ledger = world.ledger
    retained = {
        row[0]: row[1:] for row in ask("SELECT topic, payload, qos, expires_at FROM retained")
    }
    now = world.latest
    kept = {
        topic: message
        for topic, message in ledger.retained.items()
        if message[2] is None or message[2] > now or topic in retained
    }
    if retained != kept:
        raise Broken(f"retained on disk is {retained} instead of {kept}")
    _check_sessions(world, ledger)
    broker = world.broker
    if broker.connections:
        raise Broken(f"{len(broker.connections)} connections are left open")
    if not broker.router.commit.is_empty() or not broker.pressure.is_idle():
        raise Broken("the broker has unfinished work")
    for client, state in broker.router.sessions.items():
        session = state.session
        if len(session.backlog) or session.in_flight or session.inbound_size:
            raise Broken(f"the session of {client} is not at rest")


def _check_sessions(world: World, ledger: Ledger) -> None:
    rows = world.database.connection.execute(
        "SELECT client_id, expiry_interval, topic_filter, options & 3 FROM session"
        " LEFT JOIN subscription ON session_id = id"
    )
    found: dict[str, tuple[int, dict[str, int]]] = {}
    for client, expiry, topic_filter, qos in rows:
        _, subscriptions = found.setdefault(client, (expiry, {}))
        if topic_filter is not None:
            subscriptions[topic_filter] = qos
    wanted = {
        facts.client: (facts.expiry, facts.subscriptions)
        for facts in ledger.sessions.values()
        if facts.stored
    }
    if found != wanted:
        raise Broken(f"the sessions on disk are {found} instead of {wanted}")
