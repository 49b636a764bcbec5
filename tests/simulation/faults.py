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

from semel.broker.authority import Authority
from semel.mqtt import Connect
from semel.mqtt.reasons import SUCCESS

# Marks the log lines about injected faults.
MARK: Final = "on purpose"

CONNECT: Final = "connect"
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
RECEIVE: Final = "receive"
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
    """Permits everything, or fails on purpose."""

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
