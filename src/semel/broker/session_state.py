"""The broker's state for one client identifier, connected or not."""

from typing import Final, final

from semel.broker.cursors import Cursors
from semel.broker.identity import Identity, encode_identity
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
    # The identifier of the session in the store; 0: the session is in memory only.
    store_id: int
    # Why its rows in the store cannot be read; "": they can, or have not been read yet.
    damage: str
    # Set by `CommitGate`: for a session in memory, the number of the commit after which all
    # messages that it got are durable.
    awaited_commit: int
    # Who connected last. If the store does not know, whoever connects next becomes the owner.
    identity: Identity
    # Set by `AccessControl`: the key for what the client may do, and the version it is of.
    rights: str | None
    rights_version: int
    # Set by `Revocation`: the version of the rights that its subscriptions and queue conform to.
    checked_version: int
    # The number of its connection; 0: it is not connected.
    connection: int
    # How many messages were sent on this connection, or are about to be sent in this tick.
    messages_sent: int
    # The address for which `SessionShares` counts it; None: it is not counted.
    address: str | None
    # How many seconds it outlives its connection; 0xFFFFFFFF: forever.
    expiry_interval: int
    will: Will | None
    # When the will of a lost connection is due; None: no will is due.
    will_due: float | None
    # When `Lifetimes` checks the session next; None: no check is scheduled.
    next_check: float | None
    subscriptions: int
    # How many its client may have; and the owner for whom `SubscriptionShares` counts them.
    maximum_subscriptions: int
    counted_owner: Identity
    # An upper bound for the approximate memory of its subscriptions.
    subscription_bytes: int
    # By topic filter: unfinished searches for the retained messages of new subscriptions.
    retained_searches: dict[str, RetainedSearch] | None
    # Its subscriptions to streams, if it has any.
    cursors: Cursors | None
    # The flags are next to each other, so that each takes one byte.
    # Whether its open exchanges must still be loaded from the store.
    needs_load: bool
    # Set by `CommitGate`: whether its packets of this tick await the tick's commit.
    awaits_commit: bool
    # Whether `identity` is its owner; else the store does not know the owner.
    has_known_owner: bool
    # Whether the store has a will of its client.
    has_stored_will: bool
    # Whether it must be served at the end of this tick; whether it has ended.
    dirty: bool
    has_ended: bool
    # Publishers have waited for its client until the timeout, and no longer wait.
    is_too_slow: bool
    # Its connection uses topic aliases, so that its packets differ from those of other sessions.
    uses_aliases: bool

    def __init__(self, identity: Identity, session: Session, expiry_interval: int) -> None:
        """`identity` is who connects; or only the client identifier, if the owner is unknown."""
        self.client_id = identity.client_id
        self.session = session
        self.store_id = 0
        self.needs_load = False
        self.damage = ""
        self.awaits_commit = False
        self.awaited_commit = 0
        self.identity = identity
        self.has_known_owner = False
        self.rights = None
        self.rights_version = 0
        self.checked_version = -1
        self.connection = 0
        self.messages_sent = 0
        self.address = None
        self.expiry_interval = expiry_interval
        self.will = None
        self.has_stored_will = False
        self.will_due = None
        self.next_check = None
        self.subscriptions = 0
        self.maximum_subscriptions = 0
        self.counted_owner = identity
        self.subscription_bytes = 0
        self.dirty = False
        self.has_ended = False
        self.retained_searches = None
        self.cursors = None
        self.is_too_slow = False
        self.uses_aliases = False

    def set_owner(self, identity: Identity) -> None:
        """The session belongs to this client from now on."""
        self.identity = identity
        self.has_known_owner = True
        self.rights = None

    @property
    def stored_owner(self) -> str:
        """The owner, as the store keeps it; "": unknown."""
        return encode_identity(self.identity) if self.has_known_owner else ""

    @property
    def label(self) -> str:
        """The name of its client in the log."""
        return client_label(self.client_id)

    @property
    def is_durable(self) -> bool:
        """Whether the session is in the store: it outlives its connection, and there is a store."""
        return self.store_id > 0


def client_label(client_id: str) -> str:
    """A client identifier for the log: escaped, and truncated if it is long."""
    if len(client_id) <= _LOGGED_CHARACTERS:
        return ascii(client_id)
    return f"{client_id[:_LOGGED_CHARACTERS]!a}… of {len(client_id)} characters"
