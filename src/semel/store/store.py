"""The interface between an event loop and its store. `Store` itself stores nothing."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.store.commit import Commit, RecordedMessage

# The condition of a store.
OPEN: Final = 0
# Too much waits to be written or sealed: publishers are paused.
BEHIND: Final = 1
# The disk is full: new messages are refused, or their publishers paused.
FULL: Final = 2

# No limit: more bytes than can ever be written.
BOUNDLESS: Final = 1 << 60


@final
@mypyc_attr(acyclic=True)
class RestoredSession:
    """A session from the store. Its exchanges are read when its client connects."""

    store_id: Final[int]
    client_id: Final[str]
    expiry_interval: Final[int]
    # When it ends; None: its client was connected, or it never ends.
    ends_at: Final[float | None]
    # Its owner, as its last commit had it; "": unknown.
    identity: Final[str]
    # The backlog: the number of deliveries, their total size, and the number of the first.
    waiting: Final[int]
    waiting_bytes: Final[int]
    first_waiting: Final[int]
    # A lower bound of the earliest expiry in the backlog; None: nothing in it expires.
    next_expiry: Final[float | None]
    # Whether some deliveries of the backlog are of a shared subscription.
    has_shared: Final[bool]
    # The highest number of a delivery, sent or not.
    last_delivery: Final[int]

    def __init__(
        self,
        store_id: int,
        client_id: str,
        expiry_interval: int,
        ends_at: float | None,
        *,
        identity: str = "",
        waiting: int = 0,
        waiting_bytes: int = 0,
        first_waiting: int = 0,
        next_expiry: float | None = None,
        has_shared: bool = False,
        last_delivery: int = 0,
    ) -> None:
        self.store_id = store_id
        self.client_id = client_id
        self.expiry_interval = expiry_interval
        self.ends_at = ends_at
        self.identity = identity
        self.waiting = waiting
        self.waiting_bytes = waiting_bytes
        self.first_waiting = first_waiting
        self.next_expiry = next_expiry
        self.has_shared = has_shared
        self.last_delivery = last_delivery


@final
@mypyc_attr(acyclic=True)
class RestoredWill:
    """The will of a client that was connected, or a delayed will."""

    client_id: Final[str]
    # Its owner, as for a session.
    identity: Final[str]
    will: Final[Will]
    # None: the client was connected.
    due_at: Final[float | None]

    def __init__(self, client_id: str, identity: str, will: Will, due_at: float | None) -> None:
        self.client_id = client_id
        self.identity = identity
        self.will = will
        self.due_at = due_at


@final
class RestoredState:
    """The content of a store when its owner starts."""

    sessions: Final[list[RestoredSession]]
    # session, subscription, its identifier (0: none)
    subscriptions: Final[list[tuple[int, Subscription, int]]]
    # Ordered by the first message of their topic.
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
    """The interface of a store, and a store that keeps nothing: every commit is done at once."""

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
        """Accept a commit. Returns True if it is durable now; otherwise the owner will be notified.

        Commits become durable in the order in which they were written.
        """
        return True

    def restore(self) -> RestoredState:
        """The state that the owner needs at its start."""
        return RestoredState()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        """The deliveries in flight, ordered by number, and inbound identifiers of a session.

        Call it only for a restored session that has not changed, except that messages were queued.
        """
        return [], []

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        """Messages that a client's program has not acknowledged, in order.

        Each has its number in the store and the key that identifies it to the program.
        """
        return []

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        """At most `limit` committed deliveries of a session's backlog, from number `first` on."""
        return []

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        """Numbers and sizes of expired deliveries in the backlog, from number `first` on."""
        return []

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        """When the next delivery of this backlog expires after `now`; None: none does."""
        return None

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        """At most `limit` consecutive committed records of a stream, from seq `first` on.

        They start later if `first` is no longer kept. Returns at least one if there are any, and an
        empty list if there is no such record yet. Returns None while they are being read: the owner
        will be notified when to call again.
        """
        return []

    def seek(self, stream: int, received: int) -> int | None:
        """The lowest seq of a record that was received at this time, in microseconds, or later.

        If there is none yet, the seq after the last. None: as for `records`.
        """
        return 1
