"""The flags that `semel pub` and `semel sub` share with mosquitto_pub and mosquitto_sub.

A command is a `MqttCommand` and has `@connection_options`, which turns all the flags about a
connection into one `ConnectionOptions`. Wrong flags are reported before anything is sent, with
exit code 1, not with click's 2: here a 2 is the server's.

Two things are not as click has them: -h is the host, and -D takes three words or four, as
`property_options` knows.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import click

from semel import __version__
from semel.cli.property_options import parse_properties, take_properties
from semel.client.address import DEFAULT_RESOURCE, Address, BadAddress, parse_address
from semel.mqtt import MQTT5, MQTT311, NO_PROPERTIES, Properties, Violation, Will
from semel.mqtt.packet_types import CONNECT, WILL
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import check_share, check_topic_filter, check_topic_name

VERSIONS: Final = {"mqttv311": MQTT311, "311": MQTT311, "mqttv5": MQTT5, "5": MQTT5}
OLD_VERSIONS: Final = ("mqttv31", "31")
TLS_PORT: Final = 8883
EXPIRY: Final = re.compile(r"[0-9]{1,10}", re.ASCII)

# Where the words of -D are between click's reading of the flags and ours.
GIVEN_PROPERTIES: Final = "semel.cli.properties"

# mosquitto's flags that semel does not have: whether it takes a value, and what to do instead.
ABSENT: Final = {
    "-S": (False, "there are no SRV lookups; give the server with -h and -p"),
    "-o": (True, "no file with options is read; give them on the command line"),
    "--proxy": (True, "there is no way through a SOCKS proxy"),
    "--psk": (True, "there is TLS with certificates only: --cafile, --cert and --key"),
    "--psk-identity": (True, "there is TLS with certificates only: --cafile, --cert and --key"),
    "--tls-engine": (True, "there are no engines of OpenSSL; --key takes a file in PEM form"),
    "--tls-engine-kpass-sha1": (True, "there are no engines of OpenSSL; --key takes a PEM file"),
}


class OptionGroup(click.Option):
    """An option that `--help` shows under a heading."""

    def __init__(self, *arguments: Any, section: str = "Other", **others: Any) -> None:
        self.section = section
        super().__init__(*arguments, **others)


def option(*names: str, section: str, **others: Any) -> Callable[[Any], Any]:
    """`click.option` under a heading."""
    return click.option(*names, cls=OptionGroup, section=section, **others)


class MqttCommand(click.Command):
    """A command with the flags of mosquitto's, and their exit codes."""

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
        rest, properties = take_properties(args, self.values_of())
        ctx.meta[GIVEN_PROPERTIES] = properties
        return super().parse_args(ctx, rest)

    def values_of(self) -> dict[str, int]:
        """How many words follow each option."""
        return {
            name: 0 if each.is_flag or each.count else each.nargs
            for each in self.params
            if isinstance(each, click.Option)
            for name in each.opts
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                name = each.section if isinstance(each, OptionGroup) else "Other"
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


class WrongUsage(click.UsageError):
    """A mistake in the flags. With click's own exit code, 2, it would look like a CONNACK's."""

    exit_code = 1


@contextmanager
def usage_exits_1() -> Iterator[None]:
    """In here wrong usage ends with exit code 1."""
    try:
        yield
    except click.UsageError as problem:
        raise WrongUsage(problem.format_message(), problem.ctx) from None


# --- values of options ----------------------------------------------------------------------------


def parse_topic(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A topic to publish to."""
    if text is not None:
        check_topic(text)
    return text


def check_topic(text: str) -> None:
    """Raises click.BadParameter with the rule that it breaks."""
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
    """Raises click.BadParameter with the rule that it breaks."""
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
            raise click.BadParameter(f"{text!r} is no IP address of this machine") from None
    return text


def parse_version(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A version of MQTT."""
    if text is None:
        return None
    if text in OLD_VERSIONS:
        raise click.BadParameter("MQTT 3.1 is not spoken here; there is mqttv311 and mqttv5")
    if text not in VERSIONS:
        raise click.BadParameter(f"{text!r} is none of {', '.join(VERSIONS)}")
    return VERSIONS[text]


def parse_expiry(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Seconds that a session outlives its connection."""
    if text is None:
        return None
    if text in ("-1", "∞"):
        return NEVER_EXPIRES
    if not EXPIRY.fullmatch(text) or int(text) > NEVER_EXPIRES:
        raise click.BadParameter(
            f"{text!r} is no number of seconds up to {NEVER_EXPIRES}, nor -1, nor ∞"
        )
    return int(text)


QOS: Final = click.IntRange(0, 2)
FILE: Final = click.Path(path_type=str)


# --- one connection -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tls:
    """What the flags say about TLS."""

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
    """What the flags say about a connection, checked."""

    address: Address
    client_id: str
    version: int
    keep_alive: int
    user_name: str | None
    password: bytes | None
    will: Will | None
    # -c: an earlier session is taken up again, and a new one kept.
    persistent: bool
    # -x; None: as long as is sensible.
    session_expiry: int | None
    bind_address: str | None
    # None: without TLS
    tls: Tls | None
    properties: dict[int, Properties]
    # The topic of -L
    topic: str | None
    debug: bool
    quiet: bool

    def properties_of(self, packet_type: int) -> Properties:
        """What -D gives to a packet."""
        return self.properties.get(packet_type, NO_PROPERTIES)


def connection_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the flags; the function gets them as `connection`, a Connection."""

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
    """Say why a flag of mosquitto's is not here, if it is given."""
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


SERVER: Final = "Server"
SESSION: Final = "Session"
WILL_SECTION: Final = "Will"
TLS_SECTION: Final = "TLS"
OTHER: Final = "Other"

OPTIONS: Final[list[Callable[[Any], Any]]] = [
    option("-h", "--host", section=SERVER, help="Where the server is. By default localhost."),
    option(
        "-p",
        "--port",
        section=SERVER,
        type=click.IntRange(0, 65535),
        help="Its port. By default 1883, with TLS 8883, on a WebSocket 80 or 443.",
    ),
    option(
        "-L",
        "--url",
        section=SERVER,
        metavar="URL",
        help="Server and topic in one: mqtt://[user[:password]@]host[:port]/topic, or mqtts, ws,"
        " wss. The topic is written as it is, user and password in percent form.",
    ),
    option("--unix", section=SERVER, metavar="PATH", help="Connect to a unix socket."),
    option("--ws", section=SERVER, is_flag=True, help="Connect by WebSocket, to /mqtt."),
    option("-u", "--username", section=SERVER, metavar="NAME", help="The user name."),
    option("-P", "--pw", section=SERVER, metavar="PASSWORD", help="The password."),
    option(
        "-A",
        "bind_address",
        section=SERVER,
        metavar="ADDRESS",
        callback=parse_ip,
        help="Connect from this IP address of the machine.",
    ),
    option(
        "-V",
        "--protocol-version",
        section=SERVER,
        callback=parse_version,
        metavar="VERSION",
        help="mqttv311 (or 311), the default, or mqttv5 (or 5), which -D and -x ask for too.",
    ),
    option(
        "-k",
        "--keepalive",
        section=SERVER,
        type=click.IntRange(0, 65535),
        default=60,
        metavar="SECONDS",
        help="Keep Alive; 0 for none. By default 60.",
    ),
    option(
        "--nodelay",
        section=SERVER,
        is_flag=True,
        help="Send small packets at once. They always are.",
    ),
    option("-i", "--id", "client_id", section=SESSION, metavar="ID", help="The client identifier."),
    option(
        "-I",
        "--id-prefix",
        section=SESSION,
        metavar="PREFIX",
        help="A client identifier of this and the number of the process.",
    ),
    option(
        "-c",
        "--disable-clean-session",
        "persistent",
        section=SESSION,
        is_flag=True,
        help="Go on with the session of this client identifier (-i), and leave one behind. What"
        " belongs to it on this side is kept below $XDG_STATE_HOME/semel.",
    ),
    option(
        "-x",
        "session_expiry",
        section=SESSION,
        callback=parse_expiry,
        metavar="SECONDS",
        help="How long the session outlives the connection; -1 is for ever, and what -c means.",
    ),
    option(
        "--will-topic",
        section=WILL_SECTION,
        callback=parse_topic,
        metavar="TOPIC",
        help="What the server publishes if this client is lost goes to this topic.",
    ),
    option("--will-payload", section=WILL_SECTION, metavar="TEXT", help="Its payload."),
    option("--will-qos", section=WILL_SECTION, type=QOS, metavar="QOS", help="Its QoS."),
    option("--will-retain", section=WILL_SECTION, is_flag=True, help="It is retained."),
    option(
        "--cafile",
        section=TLS_SECTION,
        type=FILE,
        metavar="FILE",
        help="Use TLS, and trust who has signed for the certificates in this file (PEM).",
    ),
    option("--capath", section=TLS_SECTION, type=FILE, metavar="DIR", help="The same, a folder."),
    option(
        "--tls-use-os-certs",
        section=TLS_SECTION,
        is_flag=True,
        help="Use TLS, and trust whom the system trusts. So it is for mqtts:// and port 8883.",
    ),
    option("--no-tls", section=TLS_SECTION, is_flag=True, help="No TLS, though the port is 8883."),
    option("--cert", section=TLS_SECTION, type=FILE, metavar="FILE", help="A certificate (PEM)."),
    option("--key", section=TLS_SECTION, type=FILE, metavar="FILE", help="Its key (PEM)."),
    option(
        "--keyform",
        section=TLS_SECTION,
        type=click.Choice(["pem"]),
        help="The form of the key. There is no other.",
    ),
    option(
        "--tls-version",
        section=TLS_SECTION,
        type=click.Choice(["tlsv1.2", "tlsv1.3"]),
        help="The lowest version of TLS. By default tlsv1.2.",
    ),
    option("--ciphers", section=TLS_SECTION, metavar="LIST", help="OpenSSL's list of ciphers."),
    option("--tls-alpn", section=TLS_SECTION, metavar="NAME", help="The protocol to ask for."),
    option(
        "--insecure",
        section=TLS_SECTION,
        is_flag=True,
        help="Take a certificate that is for another host. Then anybody may be the server.",
    ),
    option(
        "-D",
        "--property",
        section=OTHER,
        expose_value=False,
        metavar="PACKET PROPERTY VALUE",
        help="Give a property of MQTT 5.0 to a packet: connect, publish, will, subscribe,"
        " unsubscribe or disconnect. A user-property has a name and a value. May be repeated.",
    ),
    option(
        "-d",
        "--debug",
        section=OTHER,
        is_flag=True,
        help="Print a line for each packet, on standard error.",
    ),
    option("--quiet", section=OTHER, is_flag=True, help="Print nothing about failures."),
    click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s"),
    *absent_options(),
]
# By the names that click gives them.
OWN_NAMES: Final = (
    *("host", "port", "url", "unix", "ws", "username", "pw", "bind_address", "protocol_version"),
    *("keepalive", "nodelay", "client_id", "id_prefix", "persistent", "session_expiry"),
    *("will_topic", "will_payload", "will_qos", "will_retain"),
    *("cafile", "capath", "tls_use_os_certs", "no_tls", "cert", "key", "keyform", "tls_version"),
    *("ciphers", "tls_alpn", "insecure", "debug", "quiet"),
)


def make_connection(own: dict[str, Any], given: Sequence[tuple[str, ...]]) -> ConnectionOptions:
    """One Connection from all the flags. Raises click.UsageError."""
    properties = parse_properties(given)
    version = version_of(own, properties)
    address, topic = address_of(own)
    client_id = client_id_of(own)
    user_name = own["username"] if own["username"] is not None else address.user_name
    password = os.fsencode(own["pw"]) if own["pw"] is not None else address.password
    if version == MQTT311 and password is not None and user_name is None:
        raise click.UsageError("-P needs -u: MQTT 3.1.1 has no password without a user name")
    expiry = expiry_of(own, properties, client_id)
    return ConnectionOptions(
        address=address,
        client_id=client_id,
        version=version,
        keep_alive=own["keepalive"],
        user_name=user_name,
        password=password,
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


def version_of(own: dict[str, Any], properties: dict[int, Properties]) -> int:
    """What is spoken: 3.1.1 if nothing asks for 5.0, as mosquitto has it."""
    asking = "-D" if properties else "-x" if own["session_expiry"] is not None else ""
    version = own["protocol_version"]
    if version is None:
        return MQTT5 if asking else MQTT311
    if asking and version == MQTT311:
        raise click.UsageError(f"{asking} needs MQTT 5.0: leave -V out, or give -V mqttv5")
    return int(version)


def address_of(own: dict[str, Any]) -> tuple[Address, str | None]:
    """Where to connect to, and the topic of -L. TLS and WebSocket are part of an address."""
    host, port, url, unix = own["host"], own["port"], own["url"], own["unix"]
    try:
        if unix is not None:
            if host is not None or url is not None or own["ws"]:
                raise click.UsageError("--unix stands in place of -h, -L and --ws")
            if own["bind_address"] is not None:
                raise click.UsageError("-A is not for a unix socket")
            return Address("unix", "", 0, unix), None
        topic = None
        scheme = "ws" if own["ws"] else "mqtt"
        secure = bool(own["cafile"] or own["capath"] or own["tls_use_os_certs"])
        path = user_name = password = None
        if url is not None:
            if host is not None:
                raise click.UsageError("-L stands in place of -h")
            parsed, topic = parse_address(url, topic=True)
            host, user_name, password = parsed.host, parsed.user_name, parsed.password
            if parsed.scheme in ("ws", "wss"):
                scheme = "ws"
            secure = secure or parsed.secure
            port = parsed.port if port is None else port
        secure = secure or port == TLS_PORT
        if own["no_tls"]:
            secure = False
        if scheme == "ws":
            path = DEFAULT_RESOURCE
        name = scheme + ("s" if secure else "")
        if port is None:
            port = {"mqtt": 1883, "mqtts": TLS_PORT, "ws": 80, "wss": 443}[name]
        host = "localhost" if host is None else host
        return Address(name, host, port, path or "", user_name, password), topic
    except BadAddress as problem:
        raise click.UsageError(str(problem)) from None


def client_id_of(own: dict[str, Any]) -> str:
    client_id, prefix = own["client_id"], own["id_prefix"]
    if client_id is not None and prefix is not None:
        raise click.UsageError("-i and -I cannot be used together")
    if client_id == "":
        raise click.UsageError("-i takes a client identifier; without -i the server chooses one")
    if own["persistent"] and client_id is None:
        raise click.UsageError("-c needs -i: a session belongs to a client identifier")
    if prefix is not None:
        return f"{prefix}{os.getpid()}"
    return str(client_id or "")


def expiry_of(own: dict[str, Any], properties: dict[int, Properties], client_id: str) -> int | None:
    given = properties.get(CONNECT, NO_PROPERTIES).session_expiry_interval
    expiry = own["session_expiry"]
    if expiry is not None and given is not None:
        raise click.UsageError("-x and -D connect session-expiry-interval say the same; give one")
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


def tls_of(own: dict[str, Any], address: Address) -> Tls | None:
    if not address.secure:
        for name in ("cert", "key", "keyform", "tls_version", "ciphers", "tls_alpn", "insecure"):
            if own[name]:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is for TLS, which --cafile, --capath,"
                    " --tls-use-os-certs, mqtts:// or wss:// ask for"
                )
        return None
    return Tls(
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
    """What only the version tells about topic filters. Raises click.UsageError."""
    try:
        for topic_filter in filters:
            check_share(topic_filter, version, None)
    except Violation as violation:
        raise click.UsageError(str(violation)) from None
