"""The hook that allows or refuses every action of a client.

The broker asks the `Authority` whether a client may connect, publish (its will, too), subscribe and
receive. The default allows everything; a subclass can consult a password file and a list of rights.

Enhanced authentication [4.12] is a `ServerAuthentication` that the Authority makes for one
connection:

    CONNECT with a method ─▶ Authority.begin_authentication ─▶ ServerAuthentication
        its data ─▶ start ─┐
    AUTH 0x18    ─▶ answer ┴─▶ Challenge   AUTH 0x18 with data, and the client owes an answer
                               Granted     CONNACK 0, or AUTH 0x00 to a client that was connected
                               Denied      CONNACK or DISCONNECT with the code, then closed
    AUTH 0x19    ─▶ start      the client authenticates again while it is connected

The broker checks the order of packets; a subclass only decides about the data. It is called on the
broker's loop, where no other client is served meanwhile: it has to return at once. An exception in
it closes the connection that it is for.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import CONNACK
from semel.mqtt.packets.connect import Connect
from semel.mqtt.properties import Properties
from semel.mqtt.reasons import NOT_AUTHORIZED, REASONS_5, SUCCESS
from semel.mqtt.violation import Violation


@final
class Challenge:
    """Not decided yet: the client gets `data` and has to answer."""

    data: Final[bytes | None]

    def __init__(self, data: bytes | None = None) -> None:
        _check_data(data)
        self.data = data


@final
class Granted:
    """The client is authenticated, and gets `data`."""

    data: Final[bytes | None]

    def __init__(self, data: bytes | None = None) -> None:
        _check_data(data)
        self.data = data


@final
class Denied:
    """The client is refused. `reason` is a code of CONNACK; `reason_string` is for people."""

    reason: Final[int]
    reason_string: Final[str | None]

    def __init__(self, reason: int = NOT_AUTHORIZED, reason_string: str | None = None) -> None:
        if reason == SUCCESS or reason not in REASONS_5[CONNACK]:
            raise ValueError(f"CONNACK refuses with no code 0x{reason:02x}")
        try:
            Properties(reason_string=reason_string)
        except Violation as violation:
            raise ValueError(str(violation)) from None
        self.reason = reason
        self.reason_string = reason_string


Step = Challenge | Granted | Denied


def _check_data(data: bytes | None) -> None:
    # A ValueError, because a Violation would blame the client.
    try:
        Properties(authentication_data=data)
    except Violation as violation:
        raise ValueError(str(violation)) from None


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerAuthentication:
    """The enhanced authentication of one connection, to be subclassed.

    No ABC, because a compiled one does not notice a method that a subclass lacks.
    """

    def start(self, data: bytes | None) -> Step:
        """The client begins, with the data of its CONNECT, or later of an AUTH 0x19.

        State of an earlier exchange, finished or not, is void.
        """
        raise NotImplementedError

    def answer(self, data: bytes | None) -> Step:
        """The client answers the last Challenge."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Authority:
    """Allows everything. Codes are those of 5.0; the broker translates them for 3.1.1.

    The results of `publish` and `receive` may be cached by topic, for all clients with equal
    `rights`, until `generation` changes.
    """

    generation: int = 0

    def rights(self, client_id: str) -> str:
        """A name for what this client may publish: equal names mean equal rights."""
        return ""

    def connect(self, packet: Connect, peer: str) -> int:
        """SUCCESS, or the code with which the CONNECT is refused.

        Called for every CONNECT. With an Authentication Method, SUCCESS only begins the exchange.
        """
        return SUCCESS

    def begin_authentication(
        self, method: str, packet: Connect, peer: str
    ) -> ServerAuthentication | None:
        """The authentication of a client by this method; None: the method is unknown.

        An unknown method is refused with 0x8C [MQTT-4.12.0-1]. By default every method is.
        """
        return None

    def publish(self, client_id: str, topic_name: str) -> int:
        """SUCCESS, or the code with which a message to that topic is refused."""
        return SUCCESS

    def subscribe(self, client_id: str, topic_filter: str) -> int:
        """SUCCESS, or the code with which that filter is refused."""
        return SUCCESS

    def receive(self, client_id: str, topic_name: str) -> bool:
        """Whether a message to that topic may reach this client."""
        return True
