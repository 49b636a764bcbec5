"""Hooks that raise, and rows that cannot be read, when the schedule says so.

A hook raises once, over one client, while the broker works off what that client has sent: its
server closes the connection then, and whatever the client sent last has not happened. Or it raises
over whether a client may receive what another has sent: that message is lost to it, its connection
ends, and later messages of the same topic have to arrive again. Rows are damaged for as long as the
schedule leaves them so. Each time that something is raised, the log has to say it once, and nobody
but the one that it concerns may be worse off.

Left out, because what is lost then is lost by design: members of a shared subscription, over whom
the authority fails or whose rows are damaged when they end; and what is retained.
"""

from typing import Final

from semel.broker.authority import Authority
from semel.mqtt import Connect
from semel.mqtt.reasons import SUCCESS

# By this the log's lines about faults on purpose are known.
MARK: Final = "on purpose"

CONNECT: Final = "connect"
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
RECEIVE: Final = "receive"
HOOKS: Final = (CONNECT, PUBLISH, SUBSCRIBE, RECEIVE)


class Fault(Exception):
    """What a hook, or a read of the store, raises on purpose."""


class Faults:
    """What fails, and how often it has."""

    def __init__(self) -> None:
        # Numbers of sessions whose rows cannot be read.
        self.damaged: set[int] = set()
        # The hook that raises next, over whom, and how often it does not yet.
        self.hook = ""
        self.client = ""
        self.spared = 0
        # Whether the broker works off what a client has sent, and whose it is.
        self.is_receiving = False
        self.served = ""
        # Clients and topics over which the authority failed in this tick, and since the beginning.
        self.unreceived: set[tuple[str, str]] = set()
        self.ever_unreceived: set[tuple[str, str]] = set()
        self.raised = 0
        self.told = 0

    def check_hook(self, hook: str, client: str) -> None:
        """A hook is called."""
        if self.is_receiving and hook == self.hook and client == self.client:
            if self.spared:
                self.spared -= 1
                return
            self.hook = ""
            self.raised += 1
            raise Fault(f"{hook} fails {MARK}")

    def check_receive(self, client: str, topic: str) -> None:
        """It is asked whether a client may receive a message, which another has sent just now."""
        if any(client == other for other, _ in self.unreceived):
            return
        try:
            self.check_hook(RECEIVE, client)
        except Fault:
            self.unreceived.add((client, topic))
            self.ever_unreceived.add((client, topic))
            raise

    def check_rows(self, session: int) -> None:
        """Rows of a session are read."""
        if session in self.damaged:
            self.raised += 1
            raise Fault(f"a row is damaged {MARK}")


class Hooks(Authority):
    """Allows everything, or fails."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def connect(self, packet: Connect, peer: str) -> int:
        self._faults.check_hook(CONNECT, packet.client_id)
        return SUCCESS

    def publish(self, client_id: str, topic_name: str) -> int:
        # A will may be published while somebody else is served.
        if not topic_name.startswith("w/"):
            self._faults.check_hook(PUBLISH, client_id)
        return SUCCESS

    def subscribe(self, client_id: str, topic_filter: str) -> int:
        self._faults.check_hook(SUBSCRIBE, client_id)
        return SUCCESS

    def receive(self, client_id: str, topic_name: str) -> bool:
        # A will may be published while somebody else is served.
        if client_id != self._faults.served and not topic_name.startswith("w/"):
            self._faults.check_receive(client_id, topic_name)
        return True
