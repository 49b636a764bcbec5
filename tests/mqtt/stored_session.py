"""A store of one session, without a disk: the sum of its changes, and a Session made from it."""

from collections.abc import Iterable

from semel.mqtt import Change, Delivery, Session
from semel.mqtt.delivery import (
    ASSIGNED,
    ENDS,
    FINISHED,
    FREED,
    QUEUED,
    RECALLED,
    RELEASED,
    STORED,
)
from semel.mqtt.message import Message
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_restore import restore_backlog, restore_end, restore_exchanges


class StoredSession:
    """Rows by number of delivery, as the tables of a store have them."""

    def __init__(self) -> None:
        # Message (None once released), share, QoS.
        self.deliveries: dict[int, tuple[Message | None, str, int]] = {}
        self.packet_ids: dict[int, int] = {}
        self.released: dict[int, int] = {}
        self.stored: set[int] = set()
        self.ends_at: float | None = None
        self.last_number = 0
        self.releases = 0

    def apply(self, change: Change) -> None:
        """Take in one change."""
        kind, number = change.kind, change.number
        if kind == QUEUED:
            assert change.message is not None
            self.deliveries[number] = change.message, change.share, change.message.qos
            self.last_number = number
        elif kind == ASSIGNED:
            self.packet_ids[number] = change.packet_id
        elif kind == RELEASED:
            assert self.packet_ids[number] == change.packet_id
            self.releases += 1
            self.released[number] = self.releases
            self.deliveries[number] = None, "", self.deliveries[number][2]
        elif kind == FINISHED:
            assert self.packet_ids.pop(number, 0) == change.packet_id
            self.released.pop(number, None)
            del self.deliveries[number]
        elif kind == STORED:
            self.stored.add(change.packet_id)
        elif kind == FREED:
            self.stored.remove(change.packet_id)
        elif kind == RECALLED:
            assert self.packet_ids.pop(number) == change.packet_id
        else:
            assert kind == ENDS
            self.ends_at = change.at

    def restored(self) -> Session:
        """A new Session, restored as an owner restores it, with its whole backlog loaded."""
        session = Session()
        waiting: list[Delivery] = []
        in_flight: list[Delivery] = []
        for number, (message, share, qos) in sorted(self.deliveries.items()):
            delivery = Delivery(number, message, share, qos)
            delivery.packet_id = self.packet_ids.get(number, 0)
            delivery.released = self.released.get(number, 0)
            (in_flight if delivery.packet_id else waiting).append(delivery)
        size = sum(each.message.size for each in waiting if each.message is not None)
        first = waiting[0].number if waiting else 0
        restore_backlog(session, len(waiting), size, first, None, self.last_number)
        restore_exchanges(session, in_flight, sorted(self.stored))
        restore_end(session, self.ends_at, NEVER_EXPIRES, 0.0)
        session.backlog.refill(waiting)
        return session


def restored(changes: Iterable[Change]) -> Session:
    """A session made from nothing but its durable changes."""
    stored = StoredSession()
    for change in changes:
        stored.apply(change)
    return stored.restored()
