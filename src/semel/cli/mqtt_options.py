"""The flags of `semel pub`, `sub` and `fleet`: Mosquitto's, and our own.

A command is a `MqttCommand` and has `@connection_options`, which turns all flags about a connection
into one `ConnectionOptions`. Wrong flags are reported before anything is sent, with exit code 1 and
not click's 2, because here 2 is an exit code of the server.

Two things differ from click: -h is the host, and -D takes three or four words, which
`property_options` parses.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from ipaddress import ip_address
from typing import Any, Final

import click

from semel import __version__
from semel.cli.flags import mqtt_version_option, shared_option
from semel.cli.numbers import IntegerRange, WholeSeconds
from semel.cli.option_groups import CONNECTION, GENERAL, SESSION, TLS, SemelCommand
from semel.cli.option_groups import WILL as WILL_SECTION
from semel.cli.option_groups import grouped_option as option
from semel.cli.property_options import parse_properties, take_properties
from semel.client.address import DEFAULT_RESOURCE, Address, BadAddress, parse_address
from semel.client.scram import ScramAuthentication
from semel.mqtt import MQTT5, MQTT311, NO_PROPERTIES, Properties, Violation, Will
from semel.mqtt.packet_types import CONNECT, WILL
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import check_share, check_topic_filter, check_topic_name
from semel.settings_values import QUANTITY, SECONDS, UNITS

TLS_PORT: Final = 8883
DEFAULT_KEEP_ALIVE: Final = 60

# The key of click's context under which the words of -D are passed on.
GIVEN_PROPERTIES: Final = "semel.cli.properties"

# Mosquitto's flags that semel does not have: whether one takes a value, and what to do instead.
ABSENT: Final = {
    "-S": (False, "SRV lookups are not supported; give the server with -h and -p"),
    "-o": (True, "option files are not supported; give the options on the command line"),
    "--proxy": (True, "SOCKS proxies are not supported"),
    "--psk": (True, "TLS needs certificates: use --cafile, --cert and --key"),
    "--psk-identity": (True, "TLS needs certificates: use --cafile, --cert and --key"),
    "--tls-engine": (True, "OpenSSL engines are not supported; --key takes a PEM file"),
    "--tls-engine-kpass-sha1": (True, "OpenSSL engines are not supported; --key takes a PEM file"),
}


class MqttCommand(SemelCommand):
    """A command with Mosquitto's flags and exit codes."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with usage_exits_1():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with usage_exits_1():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest, properties = take_properties(args, self.words_per_option())
        ctx.meta[GIVEN_PROPERTIES] = properties
        return super().parse_args(ctx, rest)

    def words_per_option(self) -> dict[str, int]:
        """How many words follow each option."""
        return {
            name: 0 if each.is_flag or each.count else each.nargs
            for each in self.params
            if isinstance(each, click.Option)
            for name in each.opts
        }


class WrongUsage(click.UsageError):
    """A mistake in the flags. Click's exit code, 2, would be read as the code of a CONNACK."""

    exit_code = 1


@contextmanager
def usage_exits_1() -> Iterator[None]:
    """Let wrong usage end the command with exit code 1."""
    try:
        yield
    except click.UsageError as problem:
        raise WrongUsage(problem.format_message(), problem.ctx) from None


# --- values of options ----------------------------------------------------------------------------


def parse_topic(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A topic name."""
    if text is not None:
        check_topic(text)
    return text


def check_topic(text: str) -> None:
    """Raises click.BadParameter with the broken rule."""
    try:
        check_topic_name(text, "topic", None)
    except Violation as violation:
        raise click.BadParameter(str(violation)) from None


def parse_filters(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Topic filters."""
    for text in texts:
        check_filter(text)
    return texts


def check_filter(text: str) -> None:
    """Raises click.BadParameter with the broken rule."""
    try:
        check_topic_filter(text, None)
    except Violation as violation:
        raise click.BadParameter(str(violation)) from None


def parse_ip(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """An IP address."""
    if text is not None:
        try:
            ip_address(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not an IP address") from None
    return text


def parse_expiry(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parse how many seconds a session outlives its connection."""
    if text is None:
        return None
    if text in ("-1", "∞"):
        return NEVER_EXPIRES
    found = QUANTITY.fullmatch(text)
    seconds = Fraction(-1)
    if found is not None and (not found[2] or found[2] in UNITS[SECONDS]):
        seconds = Fraction(found[1]) * UNITS[SECONDS].get(found[2], 1)
    if seconds.denominator != 1 or not 0 <= seconds <= NEVER_EXPIRES:
        raise click.BadParameter(
            f"{text!r} is not a duration in whole seconds such as 90 or 1h, at most"
            f" {NEVER_EXPIRES}; -1 and ∞ mean forever"
        )
    return int(seconds)


QOS: Final = IntegerRange(0, 2)
FILE: Final = click.Path(path_type=str)


# --- one connection -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TlsOptions:
    """The flags about TLS."""

    cafile: str | None
    capath: str | None
    cert: str | None
    key: str | None
    version: str | None
    ciphers: str | None
    alpn: str | None
    insecure: bool


@dataclass(frozen=True)
class ConnectionOptions:
    """The flags about a connection, validated."""

    address: Address
    client_id: str
    # -I: the client identifier ends with the process id, so it is another one in every run.
    id_prefix: str | None
    version: int
    # Whether to connect with 3.1.1 if the server refuses 5.0: nothing requires a version.
    may_fall_back: bool
    keep_alive: int
    user_name: str | None
    password: bytes | None
    # --scram: the user name and the password, which are then not in CONNECT.
    scram: tuple[str, str] | None
    will: Will | None
    # -c: resume an earlier session, and leave one behind.
    persistent: bool
    # -x; None: the command decides.
    session_expiry: int | None
    bind_address: str | None
    # None: no TLS
    tls: TlsOptions | None
    properties: dict[int, Properties]
    # The topic of -L
    topic: str | None
    debug: bool
    quiet: bool

    def properties_of(self, packet_type: int) -> Properties:
        """The properties of -D for a packet."""
        return self.properties.get(packet_type, NO_PROPERTIES)

    def with_311(self) -> "ConnectionOptions":
        """The same connection with MQTT 3.1.1."""
        return replace(self, version=MQTT311, may_fall_back=False)


def connection_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the flags. The function receives them as `connection: ConnectionOptions`."""

    @functools.wraps(function)
    def with_connection(**values: Any) -> None:
        context = click.get_current_context()
        own = {name: values.pop(name) for name in OWN_NAMES}
        connection = make_connection(own, context.meta[GIVEN_PROPERTIES])
        function(connection=connection, **values)

    decorated: Callable[..., None] = with_connection
    for each in reversed(OPTIONS):
        decorated = each(decorated)
    return decorated


def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Report what to do instead of a flag that semel does not have."""
    if value:
        raise click.UsageError(f"{parameter.opts[0]}: {ABSENT[parameter.opts[0]][1]}")


def absent_options() -> Iterator[Callable[[Any], Any]]:
    for name, (takes_value, _) in ABSENT.items():
        yield click.option(
            name,
            f"absent{name.replace('-', '_')}",
            is_flag=not takes_value,
            hidden=True,
            expose_value=False,
            callback=refuse,
        )


OPTIONS: Final[list[Callable[[Any], Any]]] = [
    shared_option("--host", "-h", section=CONNECTION, help="The server. By default localhost."),
    shared_option(
        "--port",
        "-p",
        section=CONNECTION,
        type=IntegerRange(0, 65535),
        help="The port. By default 1883; 8883 with TLS, 80 or 443 with WebSocket.",
    ),
    option(
        "-L",
        "--url",
        section=CONNECTION,
        metavar="URL",
        help="Server and topic in one: mqtt://[user[:password]@]host[:port]/topic, or mqtts, ws,"
        " wss. The topic is not percent-encoded, user and password are.",
    ),
    option("--unix", section=CONNECTION, metavar="PATH", help="Connect to a Unix socket."),
    option("--ws", section=CONNECTION, is_flag=True, help="Connect by WebSocket, to /mqtt."),
    shared_option("--username", section=CONNECTION, help="The user name."),
    option(
        "-P",
        "--password",
        "--pw",
        section=CONNECTION,
        metavar="PASSWORD",
        help="The password. Other users of this machine can see it: prefer --password-file.",
    ),
    shared_option(
        "--password-file",
        section=CONNECTION,
        type=FILE,
        help="A file that contains the password and nothing else. A line end after it is ignored.",
    ),
    option(
        "--scram",
        section=CONNECTION,
        is_flag=True,
        help="Prove the password by SCRAM-SHA-256 instead of sending it. Needs MQTT 5.0.",
    ),
    option(
        "-A",
        "bind_address",
        section=CONNECTION,
        metavar="ADDRESS",
        callback=parse_ip,
        help="Connect from this local IP address.",
    ),
    mqtt_version_option(
        "The version of MQTT. By default 5, and 3.1.1 if the server refuses that. Mosquitto's"
        " spellings mqttv5, mqttv311 and 311 are accepted too.",
        "--protocol-version",
        section=CONNECTION,
    ),
    shared_option(
        "--keep-alive",
        "--keepalive",
        section=CONNECTION,
        type=WholeSeconds(0, 65535),
        default=DEFAULT_KEEP_ALIVE,
        help=f"Keep Alive; 0 for none. By default {DEFAULT_KEEP_ALIVE} seconds.",
    ),
    option(
        "--nodelay",
        section=CONNECTION,
        is_flag=True,
        help="Send small packets at once, which semel always does.",
    ),
    shared_option("--client-id", "--id", section=SESSION, help="The client identifier."),
    option(
        "-I",
        "--id-prefix",
        section=SESSION,
        metavar="PREFIX",
        help="Use this prefix and the process ID as the client identifier.",
    ),
    option(
        "-c",
        "--disable-clean-session",
        "persistent",
        section=SESSION,
        is_flag=True,
        help="Resume the session of this client identifier (-i), and keep it afterwards. The state"
        " of this side is stored below $XDG_STATE_HOME/semel.",
    ),
    shared_option(
        "--session-expiry",
        "-x",
        section=SESSION,
        callback=parse_expiry,
        help="How long the session outlives the connection (5.0); -1 means forever, which is the"
        " default with -c.",
    ),
    option(
        "--will-topic",
        section=WILL_SECTION,
        callback=parse_topic,
        metavar="TOPIC",
        help="The topic of the will, which the server publishes if it loses this client.",
    ),
    option("--will-payload", section=WILL_SECTION, metavar="TEXT", help="The payload of the will."),
    option(
        "--will-qos", section=WILL_SECTION, type=QOS, metavar="0|1|2", help="The QoS of the will."
    ),
    option("--will-retain", section=WILL_SECTION, is_flag=True, help="Retain the will."),
    shared_option(
        "--cafile",
        section=TLS,
        type=FILE,
        help="Use TLS, and trust the CA certificates in this file (PEM).",
    ),
    shared_option("--capath", section=TLS, type=FILE, help="Directory of trusted CA certificates."),
    option(
        "--tls-use-os-certs",
        section=TLS,
        is_flag=True,
        help="Use TLS, and trust the CAs of the system. The default for mqtts:// and port 8883.",
    ),
    option("--no-tls", section=TLS, is_flag=True, help="Do not use TLS even on port 8883."),
    shared_option("--cert", section=TLS, type=FILE, help="The certificate of this client (PEM)."),
    shared_option("--key", section=TLS, type=FILE, help="The private key of --cert (PEM)."),
    option(
        "--keyform",
        section=TLS,
        type=click.Choice(["pem"]),
        help="The format of the key. Only pem is supported.",
    ),
    shared_option(
        "--tls-version",
        section=TLS,
        type=click.Choice(["tlsv1.2", "tlsv1.3"]),
        help="The lowest version of TLS. By default tlsv1.2.",
    ),
    shared_option("--ciphers", section=TLS, help="The list of TLS 1.2 ciphers, as in OpenSSL."),
    shared_option("--tls-alpn", section=TLS, help="The ALPN protocol to request."),
    option(
        "--insecure",
        section=TLS,
        is_flag=True,
        help="Accept a certificate for another host name. Any server with a trusted certificate"
        " can then pose as the server.",
    ),
    option(
        "-D",
        "--property",
        section=GENERAL,
        expose_value=False,
        metavar="PACKET PROPERTY VALUE",
        help="Set an MQTT 5.0 property of a packet: connect, publish, will, subscribe,"
        " unsubscribe or disconnect. A user-property has a name and a value. May be repeated.",
    ),
    option(
        "-d",
        "--debug",
        section=GENERAL,
        is_flag=True,
        help="Print a line for each packet to standard error.",
    ),
    option("--quiet", section=GENERAL, is_flag=True, help="Do not report failures."),
    click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s"),
    *absent_options(),
]
# The parameter names that click derives from OPTIONS.
OWN_NAMES: Final = (
    *("host", "port", "url", "unix", "ws", "username", "password", "password_file"),
    *("scram", "bind_address", "mqtt_version", "keep_alive", "nodelay"),
    *("client_id", "id_prefix", "persistent", "session_expiry"),
    *("will_topic", "will_payload", "will_qos", "will_retain"),
    *("cafile", "capath", "tls_use_os_certs", "no_tls", "cert", "key", "keyform", "tls_version"),
    *("ciphers", "tls_alpn", "insecure", "debug", "quiet"),
)


def make_connection(own: dict[str, Any], given: Sequence[tuple[str, ...]]) -> ConnectionOptions:
    """The flags as one object. Raises click.UsageError."""
    properties = parse_properties(given)
    version, may_fall_back = version_of(own, properties)
    address, topic = address_of(own)
    client_id = client_id_of(own)
    user_name = own["username"] if own["username"] is not None else address.user_name
    password = password_of(own, address)
    if password is not None and user_name is None and own["mqtt_version"] != MQTT5:
        raise click.UsageError("a password needs a user name (-u), except with MQTT 5.0: -V 5")
    scram = None
    if own["scram"]:
        scram = scram_of(user_name, password, properties)
        user_name = password = None
        address = replace(address, user_name=None, password=None)
    expiry = expiry_of(own, properties, client_id)
    return ConnectionOptions(
        address=address,
        client_id=client_id,
        id_prefix=own["id_prefix"],
        version=version,
        may_fall_back=may_fall_back,
        keep_alive=own["keep_alive"],
        user_name=user_name,
        password=password,
        scram=scram,
        will=will_of(own, properties.pop(WILL, NO_PROPERTIES)),
        persistent=own["persistent"],
        session_expiry=expiry,
        bind_address=own["bind_address"],
        tls=tls_of(own, address),
        properties=properties,
        topic=topic,
        debug=own["debug"],
        quiet=own["quiet"],
    )


def version_of(own: dict[str, Any], properties: dict[int, Properties]) -> tuple[int, bool]:
    """The version to connect with, and whether 3.1.1 may follow if the server refuses it."""
    needing = "-D" if properties else "-x" if own["session_expiry"] is not None else ""
    needing = "--scram" if own["scram"] else needing
    version = own["mqtt_version"]
    if version is None:
        return MQTT5, not needing
    if needing and version == MQTT311:
        raise click.UsageError(f"{needing} needs MQTT 5.0: leave -V out, or give -V 5")
    return int(version), False


def password_of(own: dict[str, Any], address: Address) -> bytes | None:
    """The password of -P, of --password-file or of the URL. Raises click.UsageError."""
    path = own["password_file"]
    if path is None:
        return address.password if own["password"] is None else os.fsencode(own["password"])
    if own["password"] is not None:
        raise click.UsageError("give one of -P and --password-file")
    try:
        with open(path, "rb") as file:
            return file.read().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as problem:
        raise click.UsageError(f"--password-file {path}: {problem.strerror}") from None


def scram_of(
    user_name: str | None, password: bytes | None, properties: dict[int, Properties]
) -> tuple[str, str]:
    """The user name and password for --scram. Raises click.UsageError."""
    if user_name is None or password is None:
        raise click.UsageError("--scram needs a user name (-u) and a password (--password-file)")
    if properties.get(CONNECT, NO_PROPERTIES).authentication_method is not None:
        raise click.UsageError("give one of --scram and -D connect authentication-method")
    try:
        text = password.decode()
        ScramAuthentication(user_name, text)
    except UnicodeDecodeError:
        raise click.UsageError("--scram: the password is not UTF-8") from None
    except ValueError as problem:
        raise click.UsageError(f"--scram: {problem}") from None
    return user_name, text


def address_of(own: dict[str, Any]) -> tuple[Address, str | None]:
    """The server, and the topic of -L. TLS and WebSocket are part of an address."""
    host, port, url, unix = own["host"], own["port"], own["url"], own["unix"]
    try:
        if unix is not None:
            if host is not None or port is not None or url is not None or own["ws"]:
                raise click.UsageError("--unix cannot be combined with -h, -p, -L or --ws")
            if asks_for_tls(own):
                raise click.UsageError(
                    "--unix cannot be combined with --cafile, --capath or --tls-use-os-certs: a"
                    " Unix socket is used without TLS"
                )
            if own["bind_address"] is not None:
                raise click.UsageError("-A cannot be combined with --unix")
            return Address("unix", "", 0, unix), None
        topic = None
        scheme = "ws" if own["ws"] else "mqtt"
        secure = asks_for_tls(own)
        path = user_name = password = None
        if url is not None:
            if host is not None:
                raise click.UsageError("give one of -L and -h")
            parsed, topic = parse_address(url, topic=True)
            host, user_name, password = parsed.host, parsed.user_name, parsed.password
            if parsed.scheme in ("ws", "wss"):
                scheme = "ws"
            secure = secure or parsed.secure
            port = parsed.port if port is None else port
        if own["no_tls"] and secure:
            raise click.UsageError(
                "--no-tls cannot be combined with --cafile, --capath, --tls-use-os-certs, mqtts://"
                " or wss://"
            )
        secure = secure or (port == TLS_PORT and not own["no_tls"])
        if scheme == "ws":
            path = DEFAULT_RESOURCE
        name = scheme + ("s" if secure else "")
        if port is None:
            port = {"mqtt": 1883, "mqtts": TLS_PORT, "ws": 80, "wss": 443}[name]
        host = "localhost" if host is None else host
        return Address(name, host, port, path or "", user_name, password), topic
    except BadAddress as problem:
        raise click.UsageError(str(problem)) from None


def asks_for_tls(own: dict[str, Any]) -> bool:
    """Whether a flag names the trusted certificates, which selects TLS."""
    return bool(own["cafile"] or own["capath"] or own["tls_use_os_certs"])


def client_id_of(own: dict[str, Any]) -> str:
    client_id, prefix = own["client_id"], own["id_prefix"]
    if client_id is not None and prefix is not None:
        raise click.UsageError("-i and -I cannot be used together")
    if client_id == "":
        raise click.UsageError(
            "-i is empty: leave it out to let the server assign a client identifier"
        )
    if own["persistent"] and client_id is None:
        raise click.UsageError("-c needs -i: a session belongs to a client identifier")
    if prefix is not None:
        return f"{prefix}{os.getpid()}"
    return str(client_id or "")


def expiry_of(own: dict[str, Any], properties: dict[int, Properties], client_id: str) -> int | None:
    given = properties.get(CONNECT, NO_PROPERTIES).session_expiry_interval
    expiry = own["session_expiry"]
    if expiry is not None and given is not None:
        raise click.UsageError("give one of -x and -D connect session-expiry-interval")
    expiry = given if expiry is None else expiry
    if expiry == NEVER_EXPIRES and (not client_id or own["id_prefix"] is not None):
        raise click.UsageError("a session that never expires needs a client identifier: -i")
    if own["persistent"] and expiry is None:
        return NEVER_EXPIRES
    return None if expiry is None else int(expiry)


def will_of(own: dict[str, Any], properties: Properties) -> Will | None:
    topic = own["will_topic"]
    if topic is None:
        for name in ("will_payload", "will_qos", "will_retain"):
            if own[name] is not None and own[name] is not False:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --will-topic")
        if properties.present:
            raise click.UsageError("-D will needs --will-topic")
        return None
    try:
        return Will(
            topic,
            os.fsencode(own["will_payload"] or ""),
            qos=own["will_qos"] or 0,
            retain=own["will_retain"],
            properties=properties,
        )
    except Violation as violation:
        raise click.UsageError(f"the will: {violation}") from None


def tls_of(own: dict[str, Any], address: Address) -> TlsOptions | None:
    if not address.secure:
        for name in ("cert", "key", "keyform", "tls_version", "ciphers", "tls_alpn", "insecure"):
            if own[name]:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} needs TLS: use --cafile, --capath,"
                    " --tls-use-os-certs, mqtts:// or wss://"
                )
        return None
    return TlsOptions(
        cafile=own["cafile"],
        capath=own["capath"],
        cert=own["cert"],
        key=own["key"],
        version=own["tls_version"],
        ciphers=own["ciphers"],
        alpn=own["tls_alpn"],
        insecure=own["insecure"],
    )


def check_filters(filters: Sequence[str], version: int) -> None:
    """The rules of topic filters that depend on the version. Raises click.UsageError."""
    try:
        for topic_filter in filters:
            check_share(topic_filter, version, None)
    except Violation as violation:
        raise click.UsageError(str(violation)) from None
