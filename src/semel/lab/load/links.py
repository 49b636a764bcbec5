"""Connections: opened one after another, then non-blocking in one epoll.

A broker that misbehaves ends the run with a `LinkError`: a sentence whose subject is the broker,
such as "closed a connection".
"""

import select
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, TypeVar

from semel.lab.load.streams import ANSWER_SECONDS, Stream
from semel.lab.load.wire import encode_subscribe
from semel.mqtt import (
    MQTT5,
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    Properties,
    SubAck,
    Violation,
    decode,
    encode,
    reasons,
)
from semel.mqtt.packet_types import CONNACK
from semel.mqtt.wire import frame

S = TypeVar("S", bound=Stream)

RECEIVE_SIZE: Final = 1 << 18
# A new buffer of this size for each recv would cost more than the recv: the allocator maps it.
_BUFFER: Final = memoryview(bytearray(RECEIVE_SIZE))
# Topic filters in one SUBSCRIBE.
FILTERS: Final = 100


class LinkAuthentication(Protocol):
    """An authentication method of MQTT 5.0 that needs no event loop."""

    method: str

    def begin(self) -> bytes:
        """The data of CONNECT, new for each connection."""

    def final_message(self, data: bytes | None) -> bytes:
        """The data of AUTH that answers the AUTH of the broker. Raises ScramFailed."""

    def finish(self, data: bytes | None) -> None:
        """Verify the data of CONNACK. Raises ScramFailed."""


class LinkError(Exception):
    """The broker misbehaved: it closed a connection, stalled, or sent something unexpected."""


def reason_label(reason: int, packet_type: int = 0, version: int = MQTT5) -> str:
    """A reason code as name and number."""
    # Imported here, because a worker starts three times as fast without the client.
    from semel.client.errors import reason_name

    return f"{reason_name(reason, packet_type, version)} (0x{reason:02x})"


def send_whole(link: Stream, data: bytes) -> None:
    """Send everything over a blocking socket."""
    try:
        link.sendall(data)
    except OSError as problem:
        raise LinkError(f"closed a connection: {problem.strerror or problem}") from None


def read_exactly(link: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            more = link.recv(size - len(data))
        except TimeoutError:
            raise LinkError("does not answer") from None
        except OSError as problem:
            raise LinkError(f"closed a connection: {problem.strerror}") from None
        if not more:
            raise LinkError("closed a connection")
        data += more
    return data


def read_packet(link: Stream) -> tuple[int, bytes]:
    """Read one packet from a blocking socket: its first byte and its body."""
    first = read_exactly(link, 1)[0]
    length = shift = 0
    while True:
        byte = read_exactly(link, 1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return first, read_exactly(link, length)
        if shift == 28:
            raise LinkError("sent something that is not MQTT")


def read_answer(link: Stream, version: int) -> Packet:
    """Read and decode one packet."""
    first, body = read_packet(link)
    packet = take_packet(frame(first, body), 0, version)
    assert packet is not None
    return packet[0]


def take_packet(data: bytes, start: int, version: int) -> tuple[Packet, int] | None:
    """The packet at `start` and its end; None if it is incomplete. DISCONNECT is a LinkError."""
    try:
        found = decode(data, version, start=start)
    except Violation as violation:
        raise LinkError(f"sent something that is not MQTT: {violation}") from None
    if found is not None and isinstance(found[0], Disconnect):
        raise LinkError(f"closed a connection: {reason_label(found[0].reason)}")
    return found


def connect_tcp(address: tuple[str, int]) -> socket.socket:
    """A blocking socket. Raises OSError."""
    made = socket.create_connection(address, ANSWER_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def open_socket(
    address: tuple[str, int], connect_packet: bytes, version: int
) -> tuple[socket.socket, ConnAck]:
    """Connect a client by TCP. Returns its socket, which is blocking, and the CONNACK."""
    return connect_client(lambda: connect_tcp(address), connect_packet, version)


def connect_client(
    connect: Callable[[], S],
    connect_packet: bytes,
    version: int,
    *,
    authentication: LinkAuthentication | None = None,
) -> tuple[S, ConnAck]:
    """Connect a client. `connect` opens its socket, which is blocking, or raises OSError.

    `authentication` has begun, and its first data is in the CONNECT.
    """
    try:
        link = connect()
    except OSError as problem:
        raise LinkError(f"cannot be reached: {problem.strerror or problem}") from None
    try:
        send_whole(link, connect_packet)
        answer = read_answer(link, version)
        if isinstance(answer, Auth) and authentication is not None:
            send_whole(link, _answer_auth(answer, authentication))
            answer = read_answer(link, version)
        if not isinstance(answer, ConnAck):
            raise LinkError(f"answered CONNECT with {type(answer).__name__}")
        if answer.reason:
            raise LinkError(
                f"refused a connection: {reason_label(answer.reason, CONNACK, version)}"
            )
        if authentication is not None:
            _verify(answer, authentication)
    except BaseException:
        link.close()
        raise
    return link, answer


def _answer_auth(packet: Auth, authentication: LinkAuthentication) -> bytes:
    # Imported here, because a worker starts three times as fast without the client.
    from semel.client.scram import ScramFailed

    try:
        data = authentication.final_message(packet.properties.authentication_data)
    except ScramFailed as problem:
        raise LinkError(f"failed the authentication: {problem}") from None
    properties = Properties(authentication_method=authentication.method, authentication_data=data)
    return encode(Auth(reasons.CONTINUE_AUTHENTICATION, properties=properties), MQTT5)


def _verify(answer: ConnAck, authentication: LinkAuthentication) -> None:
    from semel.client.scram import ScramFailed

    try:
        authentication.finish(answer.properties.authentication_data)
    except ScramFailed as problem:
        raise LinkError(f"failed the authentication: {problem}") from None


def subscribe(link: Stream, version: int, topic_filters: list[str], qos: int) -> None:
    """Subscribe; the broker must grant every filter its QoS."""
    for at in range(0, len(topic_filters), FILTERS):
        requested = topic_filters[at : at + FILTERS]
        send_whole(link, encode_subscribe(version, requested, qos))
        answer = read_answer(link, version)
        if not isinstance(answer, SubAck) or len(answer.reasons) != len(requested):
            raise LinkError(f"answered SUBSCRIBE with {type(answer).__name__}")
        for granted in answer.reasons:
            if granted >= reasons.FAILURE:
                raise LinkError(f"refused a subscription: {reason_label(granted)}")
            if granted != qos:
                raise LinkError(f"granted QoS {granted} to a subscription instead of QoS {qos}")


class LoadLink:
    """The non-blocking connection of a client."""

    def __init__(self, connected: Stream, version: int, epoll: select.epoll) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.version = version
        self.number = connected.fileno()
        # The time until CONNACK.
        self.connect_ns = 0
        # The server's keep alive in seconds; 0: none.
        self.keep_alive = 0
        self.pinged = time.monotonic()
        # An incomplete packet, and bytes that are not sent yet.
        self._rest = b""
        self._pending = bytearray()
        self._epoll = epoll
        epoll.register(self.number, select.EPOLLIN)

    @property
    def is_full(self) -> bool:
        """Whether there are bytes that are not sent yet."""
        return bool(self._pending)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, after those that are not sent yet."""
        if self._pending:
            self._pending += data
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            raise self._lost(problem) from None
        if sent < len(data):
            self._pending += memoryview(data)[sent:]
            self._epoll.modify(self.number, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send pending bytes."""
        try:
            sent = self.socket.send(self._pending)
        except BlockingIOError:
            return
        except OSError as problem:
            raise self._lost(problem) from None
        del self._pending[:sent]
        if not self._pending:
            self._epoll.modify(self.number, select.EPOLLIN)

    def receive(self) -> bytes:
        """The bytes that were kept, and those that can be read now."""
        data = bytes(_BUFFER[: self.receive_into(_BUFFER)])
        return self._rest + data if self._rest else data

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Read bytes into a buffer, and return how many there were."""
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        except OSError as problem:
            raise LinkError(f"closed a connection: {problem.strerror}") from None
        if not size:
            raise LinkError("closed a connection")
        return size

    def keep(self, rest: bytes) -> None:
        """Keep an incomplete packet for the next `receive`."""
        self._rest = rest

    def _lost(self, problem: OSError) -> LinkError:
        """Why the connection is closed: by its DISCONNECT, if that can still be read."""
        try:
            data, at = self.receive(), 0
            while (found := take_packet(data, at, self.version)) is not None:
                at = found[1]
        except LinkError as fault:
            return fault
        return LinkError(f"closed a connection: {problem.strerror}")


class Links:
    """The connections of one process, in one epoll."""

    def __init__(
        self,
        address: tuple[str, int],
        version: int,
        *,
        connect: Callable[[], Stream] | None = None,
    ) -> None:
        """`connect` opens a blocking socket, or raises OSError; by default by TCP."""
        self.version = version
        self._connect: Callable[[], Stream] = (
            (lambda: connect_tcp(address)) if connect is None else connect
        )
        self.epoll = select.epoll()
        self.by_number: dict[int, LoadLink] = {}

    def open(
        self,
        connect_packet: bytes,
        topic_filters: list[str] | None = None,
        qos: int = 0,
        *,
        authentication: LinkAuthentication | None = None,
    ) -> tuple[LoadLink, ConnAck]:
        """Connect one more client, and subscribe."""
        began = time.monotonic_ns()
        connected, answer = connect_client(
            self._connect, connect_packet, self.version, authentication=authentication
        )
        connect_ns = time.monotonic_ns() - began
        try:
            if topic_filters:
                subscribe(connected, self.version, topic_filters, qos)
        except BaseException:
            connected.close()
            raise
        link = LoadLink(connected, self.version, self.epoll)
        link.connect_ns = connect_ns
        link.keep_alive = answer.properties.server_keep_alive or 0
        self.by_number[link.number] = link
        return link, answer

    def __enter__(self) -> "Links":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.epoll.close()
        for link in self.by_number.values():
            link.socket.close()
