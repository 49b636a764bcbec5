"""The hook that allows or refuses every action of a client.

The broker asks the `Authority` who a client is when it connects, and from then on whether this
`Identity` may publish (including its will), subscribe and receive. The default allows everything; a
subclass can check passwords and rights.

A check that takes long, such as that of a password, is a `Proof`: the broker runs it in another
thread, and reads nothing more from the client until it has decided.

Enhanced authentication [4.12] is a `ServerAuthentication` that the Authority makes for one
connection:

    CONNECT with a method ─▶ Authority.begin_authentication ─▶ ServerAuthentication
        its data ─▶ start ─┐
    AUTH 0x18    ─▶ answer ┴─▶ Challenge   AUTH 0x18 with data, which the client must answer
                               Granted     CONNACK 0, or AUTH 0x00 to a connected client
                               Denied      CONNACK or DISCONNECT with the code, then closed
    AUTH 0x19    ─▶ start      a connected client re-authenticates

The broker checks the order of packets; a subclass only decides about the data. All methods except
`Proof.run` are called by the broker's event loop and must not block: no other client is served
meanwhile. An exception closes the connection for which the method was called.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.broker.identity import Identity, PeerInfo, identity_of
from semel.mqtt.packet_types import CONNACK
from semel.mqtt.packets.connect import Connect
from semel.mqtt.properties import Properties
from semel.mqtt.reasons import NOT_AUTHORIZED, REASONS_5, SUCCESS
from semel.mqtt.violation import Violation


@final
class Challenge:
    """Not decided yet: the client gets `data` and must answer."""

    data: Final[bytes | None]

    def __init__(self, data: bytes | None = None) -> None:
        _check_data(data)
        self.data = data


@final
class Granted:
    """The client is authenticated, and gets `data`.

    `identity` replaces the one that `Authority.connect` returned; None keeps that.
    """

    data: Final[bytes | None]
    identity: Final[Identity | None]

    def __init__(self, data: bytes | None = None, *, identity: Identity | None = None) -> None:
        _check_data(data)
        self.data = data
        self.identity = identity


@final
class Denied:
    """The client is refused. `reason` is a code of CONNACK; `reason_string` is for people."""

    reason: Final[int]
    reason_string: Final[str | None]

    def __init__(self, reason: int = NOT_AUTHORIZED, reason_string: str | None = None) -> None:
        if reason == SUCCESS or reason not in REASONS_5[CONNACK]:
            raise ValueError(f"0x{reason:02x} is not a reason code with which CONNACK can refuse")
        try:
            Properties(reason_string=reason_string)
        except Violation as violation:
            raise ValueError(str(violation)) from None
        self.reason = reason
        self.reason_string = reason_string


Step = Challenge | Granted | Denied


def _check_data(data: bytes | None) -> None:
    # ValueError, because a Violation would be reported as a mistake of the client.
    try:
        Properties(authentication_data=data)
    except Violation as violation:
        raise ValueError(str(violation)) from None


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerAuthentication:
    """The enhanced authentication of one connection. Subclass it, and override all methods.

    It is not an ABC, because a compiled ABC does not detect missing methods.
    """

    def start(self, data: bytes | None) -> Step:
        """Start an authentication with the data of a CONNECT, or later of an AUTH 0x19.

        Any state of an earlier exchange, complete or not, must be discarded.
        """
        raise NotImplementedError

    def answer(self, data: bytes | None) -> Step:
        """Decide about the client's answer to the last Challenge."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Proof:
    """A check of a client's credentials that takes long. Subclass it, and override `run`."""

    def run(self) -> Identity | Denied:
        """Decide. Called once, in another thread, where it may block for a while.

        After `connect_timeout` the client is closed, and the result is ignored.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Authority:
    """Allows everything. Codes are those of 5.0; the broker translates them for 3.1.1.

    The results of `publish` and `receive` may be cached by topic, for all clients with equal
    `rights`, until `generation` changes. After a change, the broker asks again about all
    subscriptions and queued messages.
    """

    generation: int = 0
    # Whether it logs the clients that it refuses, so that the broker does not.
    logs_refusals: bool = False

    def rights(self, identity: Identity) -> str:
        """A key for what this client may do: equal keys mean equal rights."""
        return ""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        """Return who the client is, why it is refused, or a Proof that decides.

        Called for every CONNECT. If it has an Authentication Method, an Identity only starts the
        enhanced authentication.
        """
        return identity_of(packet.client_id, peer, user_name=packet.user_name)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        """Return an authentication of this client by `method`, None if the method is unknown.

        An unknown method is refused with 0x8C [MQTT-4.12.0-1]. By default every method is unknown.
        """
        return None

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        """Whether the client may resume, take over or discard the session of `owner`.

        Both have the same client identifier. If not, the client is refused with 0x85.
        """
        return True

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        """Return SUCCESS, or the reason code with which to refuse a message to this topic.

        A client that may publish with a QoS may also publish with a lower one.
        """
        return SUCCESS

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        """Return the QoS to grant, at most `qos`, or the reason code with which to refuse."""
        return qos

    def receive(self, identity: Identity, topic_name: str) -> bool:
        """Whether this client may receive messages of this topic."""
        return True

    def left(self, identity: Identity) -> None:
        """The connection of this client has ended, whatever the reason."""
