"""The exceptions of the client, besides `Violation`."""

from typing import Final

from semel.client.connection_end import ConnectionEnd
from semel.mqtt import reasons
from semel.mqtt.packet_types import CONNACK, MQTT5, PACKET_NAMES
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.violation import Violation

# [2.4] the name of each reason code of a failure
REASON_NAMES: Final = {
    value: name.lower().replace("_", " ")
    for name, value in vars(reasons).items()
    if isinstance(value, int) and value >= reasons.FAILURE and name != "FAILURE"
}
# [3.1.1 §3.2.2.3]
RETURN_CODES: Final = {
    1: "unacceptable protocol version",
    2: "client identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}

# Reason codes after which another attempt may succeed.
TEMPORARY_REASONS: Final = frozenset(
    (
        reasons.SERVER_UNAVAILABLE,
        reasons.SERVER_BUSY,
        reasons.QUOTA_EXCEEDED,
        reasons.CONNECTION_RATE_EXCEEDED,
        reasons.MESSAGE_RATE_TOO_HIGH,
        reasons.REFUSED_SERVER_UNAVAILABLE,
    )
)
# Reason codes of DISCONNECT after which the client does not reconnect.
FINAL_REASONS: Final = frozenset(
    (
        reasons.NOT_AUTHORIZED,
        reasons.BANNED,
        # Two clients would take the session over from each other in turn.
        reasons.SESSION_TAKEN_OVER,
        reasons.ADMINISTRATIVE_ACTION,
        reasons.USE_ANOTHER_SERVER,
        reasons.SERVER_MOVED,
    )
)


def reason_name(reason: int, packet_type: int = 0, version: int = MQTT5) -> str:
    """The name of a reason code."""
    if version != MQTT5 and packet_type == CONNACK:
        return RETURN_CODES.get(reason, "unknown return code")
    return REASON_NAMES.get(reason, "success")


class Refused(Exception):
    """The server refused a request: by which packet, its reason code and its Reason String."""

    def __init__(
        self,
        reason: int,
        packet_type: int,
        *,
        version: int = MQTT5,
        about: str = "",
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.reason = reason
        self.packet_type = packet_type
        self.version = version
        self.reason_string = properties.reason_string
        self.properties = properties
        name = reason_name(reason, packet_type, version)
        detail = f": {self.reason_string}" if self.reason_string else ""
        what = f" {about}" if about else ""
        super().__init__(
            f"the server refused{what} with {PACKET_NAMES[packet_type]} 0x{reason:02x},"
            f" {name}{detail}"
        )

    @property
    def refuses_version(self) -> bool:
        """Whether the server refused the MQTT version; a 3.1.1 server answers in its own."""
        if self.packet_type != CONNACK:
            return False
        if self.version == MQTT5:
            return self.reason == reasons.UNSUPPORTED_PROTOCOL_VERSION
        return self.reason == reasons.REFUSED_PROTOCOL_VERSION

    @property
    def is_temporary(self) -> bool:
        """Whether the server may accept the same request later."""
        return self.reason in TEMPORARY_REASONS


class Disconnected(ConnectionError):
    """There is no connection: why, and the rule that the server broke, if any."""

    def __init__(
        self,
        why: str,
        *,
        violation: Violation | None = None,
        reason: int | None = None,
        properties: Properties = NO_PROPERTIES,
        is_final: bool = False,
    ) -> None:
        super().__init__(why)
        self.is_final = is_final
        self.violation = violation
        self.reason = reason
        self.properties = properties

    @property
    def is_temporary(self) -> bool:
        """Whether another attempt may succeed."""
        return not self.is_final and self.violation is None and self.reason not in FINAL_REASONS


def connection_error(ending: ConnectionEnd, version: int) -> Refused | Disconnected:
    """The exception for the end of a connection."""
    if ending.packet_type == CONNACK:
        return Refused(
            ending.reason,
            CONNACK,
            version=ending.version or version,
            about=ending.why if ending.version else "the connection",
            properties=ending.properties,
        )
    why = ending.why
    if ending.packet_type:
        why += f": 0x{ending.reason:02x}, {reason_name(ending.reason)}"
        if ending.properties.reason_string:
            why += f" ({ending.properties.reason_string})"
        if ending.properties.server_reference:
            why += f"; it refers to {ending.properties.server_reference}"
    return Disconnected(
        why,
        violation=ending.violation,
        reason=ending.reason if ending.packet_type else None,
        properties=ending.properties,
        is_final=ending.is_final,
    )
