"""What a hook gets to know of a client that connects."""

from dataclasses import dataclass, field

from semel.broker.identity import PeerInfo
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.connect import Connect


@dataclass(frozen=True)
class ConnectRequest:
    """A client that wants to connect. Its representation does not contain the password."""

    client_id: str
    # None: the client sent none.
    user_name: str | None
    password: bytes | None = field(repr=False)
    # Without the port, and for IPv6 the /64 network.
    address: str
    listener: str
    # The Common Name of the verified client certificate.
    certificate: str | None
    # "3.1.1" or "5.0".
    version: str

    @property
    def has_credentials(self) -> bool:
        """Whether the client sent a user name or a password."""
        return self.user_name is not None or self.password is not None


def request_of(packet: Connect, peer: PeerInfo) -> ConnectRequest:
    """The request of a CONNECT from this peer."""
    return ConnectRequest(
        packet.client_id,
        packet.user_name,
        packet.password,
        peer.address,
        peer.listener,
        peer.certificate,
        "5.0" if packet.version == MQTT5 else "3.1.1",
    )
