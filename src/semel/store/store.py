"""The seam between a loop and what lasts. The `Store` here keeps nothing: there is only memory."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.store.commit import Commit, RecordedMessage

# How a store stands towards new messages.
OPEN: Final = 0
# More waits to be written, or to be sealed, than may: who publishes is not read from.
BEHIND: Final = 1
# The disk has no space left: what comes now is refused, or not read.
FULL: Final = 2

# More bytes than anybody writes.
BOUNDLESS: Final = 1 << 60


@final
@mypyc_attr(acyclic=True)
class SavedSession:
    """A session as a store has it; its exchanges are read when its client comes."""

    number: Final[int]
    client_id: Final[str]
    expiry_interval: Final[int]
    # When it is over; None: its connection was open, or it never is.
    ends_at: Final[float | None]
    # What waits to be sent: how many, of what size, and the number of the first.
    waiting: Final[int]
    waiting_bytes: Final[int]
    first_waiting: Final[int]
    # No later than the first expiry among them; None: none of them expires.
    next_expiry: Final[float | None]
    # The highest number of a delivery, sent or not.
    last_delivery: Final[int]

    def __init__(
        self,
        number: int,
        client_id: str,
        expiry_interval: int,
        ends_at: float | None,
        *,
        waiting: int = 0,
        waiting_bytes: int = 0,
        first_waiting: int = 0,
        next_expiry: float | None = None,
        last_delivery: int = 0,
    ) -> None:
        self.number = number
        self.client_id = client_id
        self.expiry_interval = expiry_interval
        self.ends_at = ends_at
        self.waiting = waiting
        self.waiting_bytes = waiting_bytes
        self.first_waiting = first_waiting
        self.next_expiry = next_expiry
        self.last_delivery = last_delivery


@final
@mypyc_attr(acyclic=True)
class SavedWill:
    """The will of a client that was connected, or whose will was delayed."""

    client_id: Final[str]
    user_name: Final[str | None]
    will: Final[Will]
    # None: its connection was open.
    due_at: Final[float | None]

    def __init__(
        self, client_id: str, user_name: str | None, will: Will, due_at: float | None
    ) -> None:
        self.client_id = client_id
        self.user_name = user_name
        self.will = will
        self.due_at = due_at


@final
class Saved:
    """What a store has when its owner starts."""

    sessions: Final[list[SavedSession]]
    # number of the session, subscription, its identifier (0: none)
    subscriptions: Final[list[tuple[int, Subscription, int]]]
    # In the order in which their topics got a first message.
    retained: Final[list[Message]]
    wills: Final[list[SavedWill]]
    # number of the session, filter of its subscription to a stream, and its cursor, as in a Commit
    cursors: Final[list[tuple[int, str, int]]]
    # The number for the next new session.
    next_session: int

    def __init__(self) -> None:
        self.sessions = []
        self.subscriptions = []
        self.retained = []
        self.wills = []
        self.cursors = []
        self.next_session = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Store:
    """Keeps nothing: every commit is as safe at once as it ever gets."""

    # Whether anything outlives the process. If not, nobody need list what changes.
    lasts: bool
    # OPEN, BEHIND or FULL; may change at any time.
    condition: int
    # Bytes that may be written yet before it is BEHIND.
    room: int

    def __init__(self, *, lasts: bool = False) -> None:
        self.lasts = lasts
        self.condition = OPEN
        self.room = BOUNDLESS

    def write(self, commit: Commit) -> bool:
        """Take a commit. True: it is safe now. False: the owner is told later that it is.

        Commits become safe in the order in which they were written.
        """
        return True

    def restore(self) -> Saved:
        """All that the owner has to know before it starts."""
        return Saved()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        """Deliveries in flight, by their numbers, and inbound identifiers of a saved session.

        For a session that nobody has touched since the start, but to queue messages for it.
        """
        return [], []

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        """Messages that a client's program has not acknowledged, in their order.

        Each with its number in the store and the key that the program knows it by.
        """
        return []

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        """Deliveries of a session that wait, from number `first` on: what is safe of them."""
        return []

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        """Numbers and sizes of deliveries that wait, from `first` on, and that have expired."""
        return []

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        """When the first of the others expires."""
        return None

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        """Records of a stream that are safe, from seq `first` on, without a gap between them.

        They begin later if `first` is no longer kept; none: there is no such record yet. There
        may be fewer than `limit`, but if there are any, there is one here. None: they are being
        read, and the owner is told when to ask again.
        """
        return []

    def seek(self, stream: int, received: int) -> int | None:
        """The lowest seq of a record that was received then, in microseconds, or later.

        If there is none yet, the seq that follows the last. None: as for `records`.
        """
        return 1
