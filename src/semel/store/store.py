"""The interface between a loop and its store. The `Store` here keeps everything in memory only."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.store.commit import Commit, RecordedMessage

# The condition of a store.
OPEN: Final = 0
# Too much waits to be written or sealed: publishers are not read from.
BEHIND: Final = 1
# The disk is full: new messages are refused, or not read.
FULL: Final = 2

# More bytes than anybody writes.
BOUNDLESS: Final = 1 << 60


@final
@mypyc_attr(acyclic=True)
class RestoredSession:
    """A session as a store has it; its exchanges are read when its client connects."""

    store_id: Final[int]
    client_id: Final[str]
    expiry_interval: Final[int]
    # When it ends; None: its connection was open, or it never ends.
    ends_at: Final[float | None]
    # The backlog: how many deliveries, their size, and the number of the first.
    waiting: Final[int]
    waiting_bytes: Final[int]
    first_waiting: Final[int]
    # No later than the first expiry among them; None: none of them expires.
    next_expiry: Final[float | None]
    # The highest number of a delivery, sent or not.
    last_delivery: Final[int]

    def __init__(
        self,
        store_id: int,
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
        self.store_id = store_id
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
class RestoredWill:
    """The will of a client that was connected, or a will that is delayed."""

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
class RestoredState:
    """What a store has when its owner starts."""

    sessions: Final[list[RestoredSession]]
    # session, subscription, its identifier (0: none)
    subscriptions: Final[list[tuple[int, Subscription, int]]]
    # In the order in which their topics got their first message.
    retained: Final[list[Message]]
    wills: Final[list[RestoredWill]]
    # session, filter of its subscription to a stream, and its cursor, as in a Commit
    cursors: Final[list[tuple[int, str, int]]]
    # The id for the next new session.
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
    """Keeps nothing: every commit counts as safe at once."""

    # Whether anything outlives the process. If not, changes need not be listed.
    is_durable: bool
    # OPEN, BEHIND or FULL; may change at any time.
    condition: int
    # Bytes that may still be written before it is BEHIND.
    room: int

    def __init__(self, *, is_durable: bool = False) -> None:
        self.is_durable = is_durable
        self.condition = OPEN
        self.room = BOUNDLESS

    def write(self, commit: Commit) -> bool:
        """Accept a commit. True: it is safe now. False: the owner is notified when it is.

        Commits become safe in the order in which they were written.
        """
        return True

    def restore(self) -> RestoredState:
        """What the owner needs at its start."""
        return RestoredState()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        """Deliveries in flight, by their numbers, and inbound identifiers of a restored session.

        For a session that has not changed since the start, except that messages were queued.
        """
        return [], []

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        """Messages that a client's program has not acknowledged, in order.

        Each with its number in the store and the key that identifies it to the program.
        """
        return []

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        """The backlog of a session from number `first` on, as far as it is committed."""
        return []

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        """Numbers and sizes of expired deliveries in the backlog, from number `first` on."""
        return []

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        """When the first of the others expires."""
        return None

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        """Committed records of a stream from seq `first` on, without a gap between them.

        They begin later if `first` is no longer kept; an empty list: there is no such record yet.
        There may be fewer than `limit`, but at least one if there are any. None: they are being
        read, and the owner is notified when to call again.
        """
        return []

    def seek(self, stream: int, received: int) -> int | None:
        """The lowest seq of a record that was received at this time, in microseconds, or later.

        If there is none yet, the seq after the last. None: as for `records`.
        """
        return 1
