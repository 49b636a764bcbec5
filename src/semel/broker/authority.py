"""The one place where every action of a client is allowed or refused.

Everything a client wants passes `Authority`: connecting, publishing (its will too), subscribing,
and receiving. The default allows everything; a later Authority asks a password file and a list of
rights, and nothing else in the broker has to know.

Enhanced authentication [4.12] is a `ServerAuthentication` that the Authority makes for one
connection:

    CONNECT with a method ─▶ Authority.begin_authentication ─▶ ServerAuthentication
        its data ─▶ start ─┐
    AUTH 0x18    ─▶ answer ┴─▶ Challenge   AUTH 0x18 with data, and the client owes an answer
                               Granted     CONNACK 0, or AUTH 0x00 to a client that was connected
                               Denied      CONNACK or DISCONNECT with the code, and the end
    AUTH 0x19    ─▶ start      the client authenticates again while it is connected

The broker drives it and judges who may speak; a subclass only says what it thinks of the data. It
is called on the broker's loop, where nobody else is served meanwhile: answer at once. An exception
in it closes the connection it is for.
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
    """Not yet: the client gets `data` and has to answer."""

    data: Final[bytes | None]

    def __init__(self, data: bytes | None = None) -> None:
        _check_data(data)
        self.data = data


@final
class Granted:
    """The client is who it says it is, and gets `data` with the good news."""

    data: Final[bytes | None]

    def __init__(self, data: bytes | None = None) -> None:
        _check_data(data)
        self.data = data


@final
class Denied:
    """It is not. `reason` is a code of CONNACK that refuses; `reason_string` is for people."""

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
    # A ValueError, since a Violation would look like the client's fault.
    try:
        Properties(authentication_data=data)
    except Violation as violation:
        raise ValueError(str(violation)) from None


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerAuthentication:
    """One client's enhanced authentication, for as long as its connection lasts: to be extended.

    No ABC, since a compiled one does not notice that a subclass left a method out.
    """

    def start(self, data: bytes | None) -> Step:
        """The client begins, with the data of its CONNECT, or later of an AUTH 0x19.

        What an earlier exchange left behind, finished or not, counts no more.
        """
        raise NotImplementedError

    def answer(self, data: bytes | None) -> Step:
        """The client answers the last Challenge."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Authority:
    """Allows everything. Codes are 5.0's; the broker translates them for 3.1.1.

    What `publish` and `receive` say may be remembered: by topic, for all clients that have equal
    `rights`, until `generation` is another number.
    """

    generation: int = 0

    def rights(self, client_id: str) -> str:
        """A name for what this client may publish: clients with the same may publish the same."""
        return ""

    def connect(self, packet: Connect, peer: str) -> int:
        """SUCCESS, or the code with which the CONNECT is refused.

        Asked for every CONNECT, and for one with an Authentication Method before the exchange
        begins: SUCCESS is then not the last word.
        """
        return SUCCESS

    def begin_authentication(
        self, method: str, packet: Connect, peer: str
    ) -> ServerAuthentication | None:
        """Who judges a client that authenticates by this method; None: the method is unknown.

        An unknown one is refused with 0x8C [MQTT-4.12.0-1]. Without this, every one is.
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
