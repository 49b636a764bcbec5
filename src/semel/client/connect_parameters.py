"""The contents of a client's CONNECT packets."""

from typing import Final, final

from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.packets.connect import Connect, Will
from semel.mqtt.properties import AUTHENTICATION_DATA, Properties


@final
class ConnectParameters:
    """What is the same in every CONNECT of a client."""

    version: Final[int]
    keep_alive: Final[int]
    user_name: Final[str | None]
    password: Final[bytes | None]
    will: Final[Will | None]
    properties: Final[Properties]
    # [3.1.2.11.2] in seconds; in 3.1.1 0 for CleanSession 1, NEVER_EXPIRES for 0
    session_expiry: Final[int]
    # The largest packet that the client accepts. 3.1.1 cannot tell the server, but a larger packet
    # ends the connection there too.
    maximum_packet_size: Final[int]

    def __init__(
        self,
        version: int,
        *,
        keep_alive: int,
        user_name: str | None,
        password: bytes | None,
        will: Will | None,
        properties: Properties,
        session_expiry: int,
        maximum_packet_size: int | None = None,
    ) -> None:
        self.version = version
        self.keep_alive = keep_alive
        self.user_name = user_name
        self.password = password
        self.will = will
        self.properties = properties
        self.session_expiry = session_expiry
        self.maximum_packet_size = (
            maximum_packet_size or properties.maximum_packet_size or LARGEST_PACKET
        )

    def connect(self, client_id: str, clean_start: bool, authentication: bytes | None) -> Connect:
        """The packet; `authentication` is the first Authentication Data, if any."""
        properties = self.properties
        if authentication is not None:
            properties = Properties([*properties.items, (AUTHENTICATION_DATA, authentication)])
        return Connect(
            client_id,
            version=self.version,
            clean_start=clean_start,
            keep_alive=self.keep_alive,
            user_name=self.user_name,
            password=self.password,
            will=self.will,
            properties=properties,
        )
