"""What the broker knows of one client identifier, connected or not."""

from typing import Final, final

from semel.broker.cursors import Cursors
from semel.broker.retained import RetainedSearch
from semel.mqtt.packets.connect import Will
from semel.mqtt.session import Session

# Characters of a client identifier that the log shows.
_SHOWN: Final = 64


@final
class SessionState:
    """The session of one client identifier [4.1]: its exchanges, its will, how long it lasts."""

    client_id: Final[str]
    session: Final[Session]
    # Its identifier in the store; 0: it is in memory only.
    store_id: int
    # What was in flight is still in the store alone.
    needs_load: bool
    # Why the store's part of it cannot be read, for the log; "": it can, or nobody has tried.
    damage: str
    # Whether its packets of this tick await the tick's commit; in a session in memory, the commit
    # after which all messages that it got are durable. `CommitGate` sets both.
    awaits_commit: bool
    awaited_commit: int
    # Who its client says to be.
    user_name: str | None
    # Number of the connection that has the session now, 0 if it is offline.
    connection: int
    # The address that it counts for; None: for none.
    address: str | None
    # Seconds that it outlives its connection; 0xFFFFFFFF: for ever.
    expiry_interval: int
    will: Will | None
    # The store has a will of its client.
    has_stored_will: bool
    # When the delayed will of a lost connection is due; None: no will waits.
    will_due: float | None
    # When the broker looks at it next, if that is arranged.
    next_check: float | None
    subscriptions: int
    # About what they take, if no other client has any.
    subscription_bytes: int
    # Whether this tick has given it anything; whether the session is over.
    dirty: bool
    has_ended: bool
    # By topic filter: searches for the retained messages that a new subscription brings, as long as
    # not all of them were sent.
    retained_searches: dict[str, RetainedSearch] | None
    # Its subscriptions to streams, if it has any.
    cursors: Cursors | None
    # Publishers have waited for it in vain.
    is_too_slow: bool
    # Its connection is sent topic aliases, so that its packets are like nobody else's.
    uses_aliases: bool

    def __init__(self, client_id: str, session: Session, expiry_interval: int) -> None:
        self.client_id = client_id
        self.session = session
        self.store_id = 0
        self.needs_load = False
        self.damage = ""
        self.awaits_commit = False
        self.awaited_commit = 0
        self.user_name = None
        self.connection = 0
        self.address = None
        self.expiry_interval = expiry_interval
        self.will = None
        self.has_stored_will = False
        self.will_due = None
        self.next_check = None
        self.subscriptions = 0
        self.subscription_bytes = 0
        self.dirty = False
        self.has_ended = False
        self.retained_searches = None
        self.cursors = None
        self.is_too_slow = False
        self.uses_aliases = False

    @property
    def is_durable(self) -> bool:
        """Whether the store keeps it: it outlives its connection, and there is a store."""
        return self.store_id > 0


def shown(client_id: str) -> str:
    """A client identifier for the log: escaped, and cut if it is long."""
    if len(client_id) <= _SHOWN:
        return ascii(client_id)
    return f"{client_id[:_SHOWN]!a}… of {len(client_id)} characters"
