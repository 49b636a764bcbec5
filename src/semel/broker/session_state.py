"""What the broker knows about one client identifier, connected or not."""

from typing import Final, final

from semel.broker.cursors import Cursors
from semel.broker.retained import RetainedSearch
from semel.mqtt.packets.connect import Will
from semel.mqtt.session import Session

# Characters of a client identifier that the log shows.
_LOGGED_CHARACTERS: Final = 64


@final
class SessionState:
    """The session of one client identifier [4.1]: its exchanges, its will, its lifetime."""

    client_id: Final[str]
    session: Final[Session]
    # Its identifier in the store; 0: it is in memory only.
    store_id: int
    # Its messages in flight are still to be loaded from the store.
    needs_load: bool
    # Why its rows in the store cannot be read, for the log; "": they can, or were not read yet.
    damage: str
    # Whether its packets of this tick await the tick's commit; in a session in memory, the commit
    # after which all messages that it got are durable. `CommitGate` sets both.
    awaits_commit: bool
    awaited_commit: int
    # The user name that its client gave.
    user_name: str | None
    # Number of the connection that has the session now; 0: none has.
    connection: int
    # The address that it counts for; None: for none.
    address: str | None
    # Seconds that it outlives its connection; 0xFFFFFFFF: forever.
    expiry_interval: int
    will: Will | None
    # The store has a will of its client.
    has_stored_will: bool
    # When the delayed will of a lost connection is due; None: there is none.
    will_due: float | None
    # When a sweep checks it next; None: that is not scheduled.
    next_check: float | None
    subscriptions: int
    # About how many bytes they take, at most.
    subscription_bytes: int
    # It has something to send or to commit at the end of this tick; it is over.
    dirty: bool
    has_ended: bool
    # By topic filter: searches for the retained messages of new subscriptions, until all of them
    # were sent.
    retained_searches: dict[str, RetainedSearch] | None
    # Its subscriptions to streams, if it has any.
    cursors: Cursors | None
    # Publishers have waited for its client until the timeout, and do not wait any longer.
    is_too_slow: bool
    # Its connection is sent topic aliases, so that its packets differ from everybody else's.
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


def client_label(client_id: str) -> str:
    """A client identifier for the log: escaped, and cut if it is long."""
    if len(client_id) <= _LOGGED_CHARACTERS:
        return ascii(client_id)
    return f"{client_id[:_LOGGED_CHARACTERS]!a}… of {len(client_id)} characters"
