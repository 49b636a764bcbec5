"""The one place where every action of a client is allowed or refused.

Everything a client wants passes `Authority`: connecting, publishing (its will too), subscribing,
and receiving. The default allows everything; a later Authority asks a password file and a list of
rights, and nothing else in the broker has to know.
"""

from mypy_extensions import mypyc_attr

from semel.mqtt.packets.connect import Connect
from semel.mqtt.reasons import SUCCESS


@mypyc_attr(allow_interpreted_subclasses=True)
class Authority:
    """Allows everything. Codes are 5.0's; the broker translates them for 3.1.1."""

    def connect(self, packet: Connect, peer: str) -> int:
        """SUCCESS, or the code with which the CONNECT is refused."""
        return SUCCESS

    def publish(self, client_id: str, topic_name: str) -> int:
        """SUCCESS, or the code with which a message to that topic is refused."""
        return SUCCESS

    def subscribe(self, client_id: str, topic_filter: str) -> int:
        """SUCCESS, or the code with which that filter is refused."""
        return SUCCESS

    def receive(self, client_id: str, topic_name: str) -> bool:
        """Whether a message to that topic may reach this client."""
        return True
