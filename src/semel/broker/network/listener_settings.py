"""[[listener]]: where the broker accepts connections, over which transport, and with which limits.

A listener comes from the file or from `--listener URL`. Without any, [broker] host and port make
one of transport tcp, named "default".
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Final, TypeVar
from urllib.parse import parse_qsl

from semel.broker.identity import DEFAULT_LISTENER
from semel.broker.listener_limits import ListenerLimits
from semel.broker.settings import KIB, BrokerSettings
from semel.client.address import BadAddress, ascii_host, parse_where
from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.topics import quoted
from semel.settings import (
    BYTES,
    SECONDS,
    Settings,
    SettingsError,
    check,
    read_one,
    required,
    setting,
)
from semel.settings_values import shown

T = TypeVar("T")

TCP: Final = "tcp"
TLS: Final = "tls"
WS: Final = "ws"
WSS: Final = "wss"
UNIX: Final = "unix"
TRANSPORTS: Final = (TCP, TLS, WS, WSS, UNIX)
ENCRYPTED: Final = (TLS, WSS)
WEBSOCKET: Final = (WS, WSS)
DEFAULT_PORTS: Final = {TCP: 1883, TLS: 8883, WS: 8083, WSS: 8084}
# The schemes of --listener; mqtt and mqtts are those of clients.
SCHEMES: Final = {**{name: name for name in TRANSPORTS}, "mqtt": TCP, "mqtts": TLS}

# client_certificate
NONE: Final = "none"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"

LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MODE: Final = re.compile(r"0?[0-7]{3}")
WEBSOCKET_PATH: Final = re.compile(r"/[!-~]*")
# The path of a Unix socket in a sockaddr_un of Linux, without its final NUL.
MAXIMUM_SOCKET_PATH: Final = 107
# As browsers send it: a host in lowercase, no path, and no slash at the end.
ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+|null")

FORM: Final = "such as tls://0.0.0.0:8883?certfile=a.pem&keyfile=b.pem, or unix:/run/semel.sock"

# The keys that only some transports have.
TLS_KEYS: Final = (
    *("certfile", "keyfile", "key_password", "key_password_file", "cafile", "capath", "crlfile"),
    *("client_certificate", "tls_version", "ciphers", "sni"),
)
TRANSPORT_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("host", "port"), (TCP, TLS, WS, WSS)),
    **dict.fromkeys(("path", "mode"), (UNIX,)),
    **dict.fromkeys(TLS_KEYS, ENCRYPTED),
    **dict.fromkeys(("ws_path", "origins", "maximum_header_bytes"), WEBSOCKET),
}


def _name_problem(name: str) -> str | None:
    """What is wrong with the name of a listener, or None."""
    if LISTENER_NAME.fullmatch(name):
        return None
    return "must be 1 to 64 letters, digits, -, _ and ., and begin with a letter or digit"


def _mode_problem(mode: str) -> str | None:
    """What is wrong with the permissions of a socket file, or None."""
    if MODE.fullmatch(mode):
        return None
    return "must be the permissions of a file as octal digits, such as 0660"


def _websocket_path_problem(path: str) -> str | None:
    """What is wrong with the path of a WebSocket, or None."""
    if WEBSOCKET_PATH.fullmatch(path) and "?" not in path and "#" not in path:
        return None
    return "must begin with /, in ASCII without spaces, ? and #, such as /mqtt"


@dataclass(frozen=True)
class SniCertificate:
    """The certificate for one server name, or for `*.` and a domain."""

    server_name: str
    certfile: Path
    # None: the key is in the file of the certificate.
    keyfile: Path | None


@dataclass(frozen=True)
class ListenerSettings:
    """A listener: where the broker accepts connections, and over which transport. Without any
    listener, [broker] host and port make one of transport tcp."""

    section: ClassVar[str] = "listener"
    repeated: ClassVar[str] = "name"

    name: str = required(
        "local",
        "Its name in the log, in metrics and in access rules: at most 64 letters, digits, -, _ "
        "and ., beginning with a letter or digit. Names must be unique.",
        rule=_name_problem,
    )
    transport: str = setting(
        TCP,
        "tcp: MQTT over TCP, not encrypted. tls: MQTT over TLS. ws: MQTT over WebSocket, not "
        "encrypted. wss: MQTT over WebSocket over TLS. unix: MQTT over a Unix socket.",
        choices=TRANSPORTS,
    )
    host: str = setting(
        "127.0.0.1",
        "The address or host name to listen on. 127.0.0.1 accepts connections from this machine "
        "only, 0.0.0.0 from everywhere by IPv4, :: from everywhere by IPv6 and not by IPv4: for "
        "both, write two listeners. A host name with several addresses listens on all of them.",
    )
    port: int | None = setting(
        None,
        "The TCP port to listen on. 0 lets the system choose a free one. The default is 1883 for "
        "tcp, 8883 for tls, 8083 for ws and 8084 for wss.",
        minimum=0,
        maximum=65_535,
    )
    path: Path | None = setting(  # noqa: RUF009
        None,
        "The file of a Unix socket; required for unix. It is removed at the end. A socket file "
        "whose broker has died is replaced; any other file is an error.",
    )
    mode: str = setting(
        "0600",
        "The permissions of the file of a Unix socket, in octal digits. 0600 admits programs of "
        "the same user, 0660 also those of the same group.",
        rule=_mode_problem,
    )
    proxy_protocol: bool = setting(
        False,
        "Whether every connection begins with a header of the PROXY protocol, version 1 or 2, "
        "which tells the address of the client. true: a connection without it is closed. false: "
        "a connection with it is closed. Only a proxy may reach such a listener, because the "
        "header is believed.",
    )
    anonymous: bool | None = setting(
        None,
        "Whether clients without a user name may connect. Without it they may if no users are "
        "configured, but then a listener that other machines can reach is refused at the start: "
        "true says that everyone who reaches it may connect.",
    )
    certfile: Path | None = setting(  # noqa: RUF009
        None,
        "The certificate of the server with its chain, in PEM format; required for tls and wss.",
    )
    keyfile: Path | None = setting(  # noqa: RUF009
        None,
        "The private key of the certificate, in PEM format. Without it, the key is in certfile.",
    )
    key_password: str | None = setting(
        None,
        "The password of an encrypted private key. key_password_file keeps it out of this file.",
        secret=True,
    )
    key_password_file: Path | None = setting(  # noqa: RUF009
        None,
        "A file with the password of the private key on its first line.",
    )
    cafile: Path | None = setting(  # noqa: RUF009
        None,
        "The CA certificates that client certificates are verified with, in PEM format.",
    )
    capath: Path | None = setting(  # noqa: RUF009
        None,
        "A directory of such CA certificates, as `openssl rehash` makes it.",
    )
    crlfile: Path | None = setting(  # noqa: RUF009
        None,
        "A certificate revocation list of the CA, in PEM format. A client with a revoked "
        "certificate, or with a certificate of a CA without a valid list, is refused.",
    )
    client_certificate: str = setting(
        NONE,
        "Whether clients prove who they are by a certificate. none: none is requested. optional: "
        "a client may have none, but what it sends must be valid. required: a client without a "
        "valid certificate is refused. optional and required need cafile or capath.",
        choices=(NONE, OPTIONAL, REQUIRED),
    )
    tls_version: str = setting(
        "1.2",
        "The lowest version of TLS. A client that supports only older ones is refused.",
        choices=("1.2", "1.3"),
    )
    ciphers: str | None = setting(
        None,
        "The ciphers of TLS 1.2, as a list of OpenSSL. The default is that of Python, which has "
        "forward secrecy. The ciphers of TLS 1.3 are fixed.",
    )
    sni: tuple[str, ...] = setting(
        (),
        "Further certificates, chosen by the server name that a client asks for, each as "
        "NAME=CERTFILE:KEYFILE, or NAME=CERTFILE if the key is in the same file. The name "
        "*.example.org matches one level. Without a match, certfile is used.",
    )
    ws_path: str = setting(
        "/mqtt",
        "The path of the WebSocket. A request for another path is answered with 404.",
        rule=_websocket_path_problem,
    )
    origins: tuple[str, ...] = setting(
        (),
        "The web sites whose pages may connect, such as https://example.org. A request with "
        "another origin is answered with 403. Programs that are no browsers send none, and may "
        "always connect, except paho-mqtt, which sends the address of the broker: to admit it, add "
        "https://HOST:PORT, or http://HOST:PORT for ws. Empty: pages of every site.",
    )
    maximum_header_bytes: int = setting(
        8 * KIB,
        "Bytes of the HTTP request that opens a WebSocket. A longer one is answered with 431, "
        "and the connection is closed.",
        unit=BYTES,
        minimum=256,
        maximum=64 * KIB,
    )
    maximum_connections: int | None = setting(
        None,
        "Connected clients of this listener at one time. A further client is refused with reason "
        "code 0x89 (Server busy), in MQTT 3.1.1 with return code 3. The limit of [broker] holds "
        "for all listeners together.",
        minimum=1,
        maximum=1_000_000,
    )
    maximum_connections_per_address: int | None = setting(
        None,
        "Connected clients of one address at this listener at one time. A further client is "
        "refused with reason code 0x89 (Server busy), in MQTT 3.1.1 with return code 3. An IPv6 "
        "/64 network is one address. Without it there is no limit per address.",
        minimum=1,
        maximum=1_000_000,
    )
    connections_per_second: float | None = setting(
        None,
        "New connections of one address to this listener per second, on average; at once, as "
        "many as in two seconds. A further one is closed, before any handshake. An IPv6 /64 "
        "network is one address. Without it there is no limit.",
        minimum=0.01,
        maximum=1_000_000,
    )
    connect_timeout: float | None = setting(
        None,
        "How long a new connection may take for the PROXY header, TLS, the WebSocket request and "
        "its CONNECT together. After that it is closed. The default is that of [broker].",
        unit=SECONDS,
        minimum=0.1,
        maximum=3600,
    )
    maximum_packet_size: int | None = setting(
        None,
        "The largest packet accepted from a client of this listener, announced to MQTT 5.0 "
        "clients. A larger one closes the connection. The default is that of [broker].",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    before_connect_packet_size: int | None = setting(
        None,
        "The largest packet accepted before the client is connected. A larger one closes the "
        "connection. The default is that of [broker].",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    packet_timeout: float | None = setting(
        None,
        "How long a packet may take from its first byte to its last, plus one second for each "
        "KiB of its size. After that the connection is closed. The default is that of [broker].",
        unit=SECONDS,
        minimum=0.1,
        maximum=86_400,
    )
    receive_maximum: int | None = setting(
        None,
        "QoS 1 and 2 messages that an MQTT 5.0 client may send before they are acknowledged. A "
        "client that sends more is disconnected. The default is that of [broker].",
        minimum=1,
        maximum=65_535,
    )
    topic_alias_maximum: int | None = setting(
        None,
        "The highest topic alias that an MQTT 5.0 client may use. A client that uses a higher "
        "one is disconnected. The default is that of [broker].",
        minimum=0,
        maximum=65_535,
    )
    maximum_keep_alive: int | None = setting(
        None,
        "The longest Keep Alive. An MQTT 5.0 client that requests a longer one, or none, is "
        "assigned this. The default is that of [broker].",
        unit=SECONDS,
        minimum=0,
        maximum=65_535,
    )
    topic_levels: int | None = setting(
        None,
        "Levels of a topic name or topic filter. A client that sends one with more levels is "
        "disconnected. The default is that of [broker].",
        minimum=1,
        maximum=65_536,
    )
    maximum_subscriptions: int | None = setting(
        None,
        "Subscriptions of one client. A further one is refused with reason code 0x97 (Quota "
        "exceeded), in MQTT 3.1.1 with 0x80; those that its session has from another listener "
        "stay. The default is that of [broker].",
        minimum=1,
    )
    maximum_inflight_messages: int | None = setting(
        None,
        "QoS 1 and 2 messages that were sent to one client and are not complete; further ones "
        "wait in its queue. The default is that of [broker].",
        minimum=1,
        maximum=65_535,
    )
    messages_per_second: int | None = setting(
        None,
        "PUBLISH packets of one connection per second, on average. A client that sends more is "
        "read from more slowly. Without it there is no limit.",
        minimum=1,
    )
    bytes_per_second: int | None = setting(
        None,
        "Bytes that are read from one connection per second, on average. A client that sends "
        "more is read from more slowly. Without it there is no limit.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)
        problems = [
            f"{key} does not belong to transport {self.transport}: remove it, or use transport "
            f"{' or '.join(transports)}"
            for key, transports in TRANSPORT_KEYS.items()
            if self.transport not in transports and getattr(self, key) != _default(key)
        ]
        if self.transport == UNIX:
            problems += self._path_problems()
        elif self.transport in ENCRYPTED:
            problems += self._tls_problems()
        problems += [
            f"origins has {shown(each)}, but an origin is scheme://host or scheme://host:port, "
            "without a path"
            for each in self.origins
            if ORIGIN.fullmatch(each) is None
        ]
        if problems:
            raise SettingsError(problems)

    def _path_problems(self) -> list[str]:
        if self.path is None:
            return ["path is missing: a unix listener needs the file of its socket"]
        if len(bytes(self.path)) > MAXIMUM_SOCKET_PATH:
            return [
                f"path has {len(bytes(self.path))} bytes, but the path of a Unix socket has at "
                f"most {MAXIMUM_SOCKET_PATH}: choose a shorter one"
            ]
        return []

    def _tls_problems(self) -> list[str]:
        problems = []
        if self.certfile is None:
            problems.append(f"certfile is missing: a {self.transport} listener needs a certificate")
        if self.key_password is not None and self.key_password_file is not None:
            problems.append("key_password and key_password_file are both given: remove one")
        has_trusted = self.cafile is not None or self.capath is not None
        if self.client_certificate != NONE and not has_trusted:
            problems.append(
                f"client_certificate is {self.client_certificate}, but without cafile or capath "
                "no certificate can be verified: give one of them"
            )
        if self.client_certificate == NONE:
            problems += [
                f"{key} is for client certificates, but client_certificate is none: set it to "
                "optional or required"
                for key in ("cafile", "capath", "crlfile")
                if getattr(self, key) is not None
            ]
        try:
            names = [each.server_name for each in self.sni_certificates()]
        except SettingsError as problem:
            return [*problems, *problem.problems]
        problems += [
            f"sni names {quoted(name)} twice: remove one"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        return problems

    def sni_certificates(self) -> tuple[SniCertificate, ...]:
        """The certificates by server name. Raises SettingsError."""
        return tuple(parse_sni(text) for text in self.sni)

    @property
    def effective_port(self) -> int:
        """The port to listen on: the given one, or the default of the transport; unix: 0."""
        return DEFAULT_PORTS.get(self.transport, 0) if self.port is None else self.port

    @property
    def address(self) -> str:
        """Where it listens, for the log: host and port, or the path of the socket."""
        if self.transport == UNIX:
            return f"unix:{self.path}"
        return format_address(self.host, self.effective_port)


def _default(key: str) -> object:
    return next(each.default for each in fields(ListenerSettings) if each.name == key)


def format_address(host: str, port: int) -> str:
    """Host and port as text; an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_sni(text: str) -> SniCertificate:
    """Parse an item of sni: NAME=CERTFILE:KEYFILE. Raises SettingsError."""
    name, _, files = text.partition("=")
    certfile, colon, keyfile = files.partition(":")
    domain = name.removeprefix("*.")
    try:
        is_name = ascii_host(domain) == domain and not _is_ip_address(domain)
    except BadAddress:
        is_name = False
    if not is_name or not certfile or (colon and not keyfile):
        raise SettingsError(
            [
                f"sni has {quoted(text)}, but each item must be NAME=CERTFILE:KEYFILE with a "
                "lowercase host name, such as *.example.org=example.pem:example.key"
            ]
        )
    return SniCertificate(name, Path(certfile), Path(keyfile) if colon else None)


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# --- --listener URL -------------------------------------------------------------------------------


def parse_listener(url: str, taken_names: Iterable[str] = ()) -> ListenerSettings:
    """Parse the value of --listener. Raises SettingsError.

    Without a key `name`, the listener is named by its transport, with a number if that name is
    taken.
    """
    try:
        given = _parse_url(url)
    except BadAddress as problem:
        raise SettingsError([f"flag --listener: {quoted(url)}: {problem}"]) from None
    if "key_password" in given:
        raise SettingsError(
            [
                "flag --listener: other users can see key_password on a command line: use "
                "key_password_file"
            ]
        )
    if "name" not in given:
        taken = set(taken_names)
        name, number = given["transport"], 2
        while name in taken:
            name, number = f"{given['transport']}-{number}", number + 1
        given["name"] = name
    return read_one(ListenerSettings, given, source=f"flag --listener {quoted(url)}")


def _parse_url(url: str) -> dict[str, str]:
    """The keys of a listener in a URL, as text. Raises BadAddress."""
    scheme, colon, rest = url.partition(":")
    transport = SCHEMES.get(scheme.lower())
    if not colon or transport is None:
        raise BadAddress(f"a listener begins with {', '.join(SCHEMES)}, {FORM}")
    place, _, query = rest.partition("?")
    given = {"transport": transport}
    if transport == UNIX:
        if place.startswith("//"):
            place = place[2:]
        given["path"] = place
    else:
        if not place.startswith("//"):
            raise BadAddress(f"// must follow the scheme, {FORM}")
        where, slash, path = place[2:].partition("/")
        if "@" in where:
            raise BadAddress("a listener has no user name or password; users are configured apart")
        host, port = parse_where(where, DEFAULT_PORTS[transport])
        given |= {"host": host, "port": str(port)}
        if transport in WEBSOCKET and slash:
            given["ws_path"] = f"/{path}"
        elif path:
            raise BadAddress(f"a {transport} listener has no path")
    for key, value in _parse_query(query):
        if key in given:
            # Repeated items of a list; any other key is refused as a value with a comma.
            if key not in ("sni", "origins"):
                raise BadAddress(f"{key} is given twice: remove one")
            value = f"{given[key]},{value}"
        given[key] = value
    return given


def _parse_query(query: str) -> list[tuple[str, str]]:
    try:
        # A + in a path is a plus, not a space.
        return parse_qsl(
            query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(query)
        )
    except ValueError:
        raise BadAddress("after the ?, each key is written key=value, separated by &") from None


# --- limits ---------------------------------------------------------------------------------------


def limits_of(listener: ListenerSettings, broker: BrokerSettings) -> ListenerLimits:
    """The limits of the connections of a listener: its own, or else those of [broker]."""
    return ListenerLimits(
        listener.name,
        maximum_connections=listener.maximum_connections or 0,
        maximum_connections_per_address=listener.maximum_connections_per_address or 0,
        connect_timeout=_first(listener.connect_timeout, broker.connect_timeout),
        packet_timeout=_first(listener.packet_timeout, broker.packet_timeout),
        maximum_packet_size=_first(listener.maximum_packet_size, broker.maximum_packet_size),
        before_connect_packet_size=_first(
            listener.before_connect_packet_size, broker.before_connect_packet_size
        ),
        receive_maximum=_first(listener.receive_maximum, broker.receive_maximum),
        topic_alias_maximum=_first(listener.topic_alias_maximum, broker.topic_alias_maximum),
        maximum_keep_alive=_first(listener.maximum_keep_alive, broker.maximum_keep_alive),
        topic_levels=_first(listener.topic_levels, broker.topic_levels),
        maximum_subscriptions=_first(listener.maximum_subscriptions, broker.maximum_subscriptions),
        maximum_inflight_messages=_first(
            listener.maximum_inflight_messages, broker.maximum_inflight_messages
        ),
        messages_per_second=listener.messages_per_second or 0,
        bytes_per_second=listener.bytes_per_second or 0,
    )


def _first(own: T | None, general: T) -> T:
    return general if own is None else own


# --- all listeners --------------------------------------------------------------------------------


def default_listener(settings: BrokerSettings) -> ListenerSettings:
    """The listener that [broker] host and port make."""
    return ListenerSettings(
        name=DEFAULT_LISTENER,
        host=settings.host,
        port=settings.port,
        anonymous=settings.anonymous,
    )


def choose_listeners(
    settings: Settings, broker: BrokerSettings, urls: Sequence[str] = ()
) -> tuple[ListenerSettings, ...]:
    """The listeners of the file and of --listener, or the one of [broker]. Raises SettingsError."""
    listeners = list(settings.all_of(ListenerSettings))
    for url in urls:
        listeners.append(parse_listener(url, [each.name for each in listeners]))
    if not listeners:
        return (default_listener(broker),)
    problems = [
        f"{source}: [broker] {key} has no effect beside [[listener]] and --listener: remove it, "
        "and set it in each listener"
        for key in ("host", "port", "anonymous")
        if (source := settings.source_of(broker.section, key)) is not None
    ]
    problems += address_conflicts(listeners)
    if problems:
        raise SettingsError(problems)
    return tuple(listeners)


def address_conflicts(listeners: Sequence[ListenerSettings]) -> list[str]:
    """One sentence for each two listeners that have the same name or address."""
    problems = []
    for index, second in enumerate(listeners):
        for first in listeners[:index]:
            if first.name == second.name:
                problems.append(f"two listeners are named {first.name}: rename one of them")
            elif _have_same_address(first, second):
                problems.append(
                    f"the listeners {first.name} ({first.address}) and {second.name} "
                    f"({second.address}) have the same address: change one of them"
                )
    return problems


def _have_same_address(first: ListenerSettings, second: ListenerSettings) -> bool:
    if first.transport == UNIX or second.transport == UNIX:
        return first.path is not None and first.path == second.path
    if first.effective_port != second.effective_port or first.effective_port == 0:
        return False
    hosts = {first.host, second.host}
    if len(hosts) == 1:
        return True
    # An address for everything overlaps with any other of its family.
    return any(
        wildcard in hosts and all((":" in host) == (":" in wildcard) for host in hosts)
        for wildcard in ("0.0.0.0", "::")  # nosec B104 # compared, not bound
    )
