"""Injected faults: hooks that raise, and rows that cannot be read.

A hook raises once, for one client, while the broker processes what that client has sent: the server
then closes the connection, and the packet has no effect. Or it raises in the decision whether a
client may receive another's message: that client loses the message and its connection, but later
messages of the same topic must arrive again. Rows stay damaged until the schedule repairs them. The
log must report each fault once, and no other client may be affected.

Excluded, because these losses are by design: members of a shared subscription for which the
authority fails, or whose rows are damaged when their session ends; and retained messages.
"""

from typing import Final

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.mqtt import Connect
from semel.mqtt.reasons import NOT_AUTHORIZED, SUCCESS
from tests.simulation.rights import PUBLISH, RECEIVE, SUBSCRIBE, Rights, account_of

# Marks the log lines about injected faults.
MARK: Final = "on purpose"

CONNECT: Final = "connect"
HOOKS: Final = (CONNECT, PUBLISH, SUBSCRIBE, RECEIVE)


class Fault(Exception):
    """An injected fault of a hook, or of a read from the store."""


class Faults:
    """Which faults to inject, and how often that happened."""

    def __init__(self) -> None:
        # Numbers of sessions whose rows cannot be read.
        self.damaged: set[int] = set()
        # The hook that raises next, for which client, and how many calls it spares first.
        self.hook = ""
        self.client = ""
        self.spared = 0
        # Whether the broker processes what a client has sent, and which client.
        self.is_receiving = False
        self.served = ""
        # Whether that is a CONNECT.
        self.is_connecting = False
        # Clients and topics for which the authority failed: in this tick, and ever.
        self.unreceived: set[tuple[str, str]] = set()
        self.ever_unreceived: set[tuple[str, str]] = set()
        self.raised = 0
        self.reported = 0

    def check_hook(self, hook: str, client: str) -> None:
        """Raise in this hook, if it is its turn."""
        if self.is_receiving and hook == self.hook and client == self.client:
            if self.spared:
                self.spared -= 1
                return
            self.hook = ""
            self.raised += 1
            raise Fault(f"{hook} fails {MARK}")

    def check_receive(self, client: str, topic: str) -> None:
        """Raise in the decision whether a client may receive a message, if it is its turn."""
        if any(client == other for other, _ in self.unreceived):
            return
        try:
            self.check_hook(RECEIVE, client)
        except Fault:
            self.unreceived.add((client, topic))
            self.ever_unreceived.add((client, topic))
            raise

    def check_rows(self, session: int) -> None:
        """Raise if the rows of a session are damaged."""
        if session in self.damaged:
            self.raised += 1
            raise Fault(f"a row is damaged {MARK}")


class Hooks(Authority):
    """Permits what the rights allow, or fails on purpose."""

    def __init__(self, faults: Faults, rights: Rights) -> None:
        self.generation = rights.generation
        self._faults = faults
        self._rights = rights

    def rights(self, identity: Identity) -> str:
        return user_name(identity)

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        self._faults.check_hook(CONNECT, packet.client_id)
        self._faults.is_connecting = True
        return super().connect(packet, peer)

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        return account_of(user_name(identity)) == account_of(user_name(owner))

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        # A will may be published while somebody else is served.
        if not topic_name.startswith("w/"):
            self._faults.check_hook(PUBLISH, identity.client_id)
        allowed = self._rights.allows(user_name(identity), PUBLISH, topic_name)
        return SUCCESS if allowed else NOT_AUTHORIZED

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        # A failure over a CONNECT would leave only some of its subscriptions checked.
        if not self._faults.is_connecting:
            self._faults.check_hook(SUBSCRIBE, identity.client_id)
        allowed = self._rights.allows(user_name(identity), SUBSCRIBE, topic_filter)
        return qos if allowed else NOT_AUTHORIZED

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if not self._rights.allows(user_name(identity), RECEIVE, topic_name):
            return False
        # A will may be published while somebody else is served.
        if identity.client_id != self._faults.served and not topic_name.startswith("w/"):
            self._faults.check_receive(identity.client_id, topic_name)
        return True


def user_name(identity: Identity) -> str:
    """The user name of a client; all clients of a simulated world have one."""
    assert identity.user_name is not None
    return identity.user_name
