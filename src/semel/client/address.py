"""Where a server is: the addresses that the client and the commands take, and how they are read.

    mqtt://[user[:password]@]host[:port]        also written tcp://
    mqtts://[user[:password]@]host[:port]       also written ssl:// or tls://
    ws://[user[:password]@]host[:port][/path]   and wss://; the path is /mqtt if none is given
    unix:path                                   or unix:///path

What has a meaning of its own in an address is written in percent form in user name, password and
path: `%40` is an @. A user name and a password are those of MQTT's CONNECT, on a WebSocket too.
An Address that exists is valid. It says its password to nobody who only prints it.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal, overload
from urllib.parse import quote

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
# As other tools write them.
ALIASES: Final = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts"}
DEFAULT_RESOURCE: Final = "/mqtt"

FORM: Final = "mqtt://[user[:password]@]host[:port], or mqtts, ws, wss, or unix:path"
HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?", re.IGNORECASE)
PERCENT_FORM: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
# All that a part of a URL may have as it is, and the percent sign of what is in percent form.
RESOURCE_SAFE: Final = "/?:@!$&'()*+,;=-._~%"
MOST_DIGITS: Final = 5
LAST_PORT: Final = 65535


class BadAddress(ValueError):
    """What is wrong with an address and what is allowed, in one sentence."""


@dataclass(frozen=True, repr=False)
class Address:
    """One server. Raises BadAddress if there can be no such."""

    # mqtt, mqtts, ws, wss or unix
    scheme: str
    # A name, an IPv4 or an IPv6 address without brackets; "" for unix.
    host: str
    # 0 for unix
    port: int
    # The path of the socket for unix, the HTTP resource (with its query) for ws and wss.
    path: str = ""
    user_name: str | None = None
    password: bytes | None = None

    def __post_init__(self) -> None:
        if self.scheme == "unix":
            check_socket_path(self.path)
            if self.host or self.port:
                raise BadAddress("a unix address has a path, and neither host nor port")
            return
        if self.scheme not in DEFAULT_PORTS:
            raise BadAddress(f"no scheme {self.scheme!r}; an address is {FORM}")
        # A name that is not ASCII has one form on the wire, which certificates have too.
        object.__setattr__(self, "host", wire_host(self.host))
        if not 1 <= self.port <= LAST_PORT:
            raise BadAddress(f"no port {self.port}; a port is a number from 1 to {LAST_PORT}")
        if self.scheme in ("ws", "wss"):
            check_resource(self.path)
        elif self.path:
            raise BadAddress(f"a {self.scheme} address has no path")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        user = f"{quote(self.user_name, safe='')}@" if self.user_name is not None else ""
        # A query may hold a key or a signature.
        path, mark, _ = self.path.partition("?")
        return f"{self.scheme}://{user}{self.where}{path}{mark}{'…' if mark else ''}"

    def __repr__(self) -> str:
        return f"<Address {self}>"

    @property
    def secure(self) -> bool:
        """Whether the connection is inside TLS."""
        return self.scheme in ("mqtts", "wss")

    @property
    def where(self) -> str:
        """Host and port, or the path of the socket."""
        if self.scheme == "unix":
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@overload
def parse_address(url: str, *, topic: Literal[False] = False) -> Address: ...


@overload
def parse_address(url: str, *, topic: Literal[True]) -> tuple[Address, str]: ...


def parse_address(url: str, *, topic: bool = False) -> Address | tuple[Address, str]:
    """The Address that `url` is. Raises BadAddress.

    With `topic`, what follows the first slash after the host is a topic name or filter, just as it
    stands (`mosquitto_pub -L`), and comes back beside the Address, unchecked.
    """
    if not url:
        raise BadAddress(f"the address is empty; it is {FORM}")
    if url[:5].lower() == "unix:":
        if topic:
            raise BadAddress("a unix address has no place for a topic; give the topic apart")
        check_no_space(url)
        return parse_unix(url[5:])
    name, colon, rest = url.partition("://")
    if not colon:
        raise BadAddress(f"the address has no scheme; it is {FORM}")
    check_no_space(name)
    scheme = ALIASES.get(name.lower(), name.lower())
    if scheme not in DEFAULT_PORTS:
        raise BadAddress(f"no scheme {name!r}; an address is {FORM}")
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = rest[:end], rest[end:]
    check_no_space(authority)
    named = ""
    if topic:
        if not path.startswith("/") or path == "/":
            raise BadAddress(
                f"the topic is missing; with one the address is {name}://host[:port]/topic"
            )
        named, path = path[1:], ""
    check_no_space(path)
    if "@" in path and "@" not in authority and scheme in ("mqtt", "mqtts"):
        # Said without the part in question, which may be half a password.
        raise BadAddress("a /, ? or # in a user name or password is written %2F, %3F or %23")
    user_info, _, where = authority.rpartition("@")
    user_name, password = parse_user_info(user_info)
    host, port = parse_where(where, DEFAULT_PORTS[scheme])
    if scheme in ("ws", "wss"):
        path = parse_resource(path)
    elif path not in ("", "/"):
        raise BadAddress(f"a {scheme} address ends with its port; topics are given apart")
    else:
        path = ""
    address = Address(scheme, host, port, path, user_name, password)
    return (address, named) if topic else address


def parse_unix(rest: str) -> Address:
    """What follows `unix:`."""
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise BadAddress("a unix address has no host; it is unix:path or unix:///path")
        rest = rest[2:]
    return Address("unix", "", 0, decode_text(rest, "the path of the socket"))


def parse_user_info(text: str) -> tuple[str | None, bytes | None]:
    user, colon, password = text.partition(":")
    return (
        decode_text(user, "the user name") if user else None,
        decode_percent(password, "the password") if colon else None,
    )


def parse_where(text: str, default_port: int) -> tuple[str, int]:
    """Host and port."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket:
            raise BadAddress("the bracket after the IPv6 address is missing: [::1]:1883")
        if rest and not rest.startswith(":"):
            raise BadAddress("only :port may follow the bracket of an IPv6 address: [::1]:1883")
        if ":" not in host:
            raise BadAddress("only an IPv6 address is written in brackets: [::1]:1883")
        # RFC 6874: the % before a zone is in percent form itself.
        host = host.replace("%25", "%", 1)
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise BadAddress("an IPv6 address is written in brackets: [::1]:1883")
    if not host:
        raise BadAddress(f"the host is missing; an address is {FORM}")
    return host, parse_port(port) if colon else default_port


def parse_port(text: str) -> int:
    # Said without the text: without its slash in percent form, it is part of a password.
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise BadAddress(f"after the host and a colon comes a port, from 1 to {LAST_PORT}")
    return int(text)


def parse_resource(text: str) -> str:
    """The HTTP resource for what follows the host of a WebSocket address."""
    if "#" in text:
        raise BadAddress("a WebSocket address has no part after a #, which is written %23")
    if not text.startswith("/"):
        text = DEFAULT_RESOURCE + text
    # Only to see that it is well formed; it is sent as it stands.
    decode_percent(text, "the path")
    return quote(text, safe=RESOURCE_SAFE)


def decode_percent(text: str, what: str) -> bytes:
    """The bytes that `text` stands for."""
    data = text.encode("utf-8")
    if data.count(b"%") != len(PERCENT_FORM.findall(data)):
        raise BadAddress(f"a % in {what} is followed by two hex digits, and itself written %25")
    return PERCENT_FORM.sub(lambda found: bytes.fromhex(found[1].decode()), data)


def decode_text(text: str, what: str) -> str:
    try:
        return decode_percent(text, what).decode("utf-8")
    except UnicodeDecodeError:
        raise BadAddress(f"{what} is not UTF-8 when its percent forms are decoded") from None


def wire_host(host: str) -> str:
    """The host as names are looked up and certificates are compared: ASCII, in lower case."""
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise BadAddress(f"{host!r} is no IPv6 address") from None
    if not host:
        raise BadAddress(f"the host is missing; an address is {FORM}")
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        name = ""
    if not HOST_NAME.fullmatch(name):
        raise BadAddress(f"{host!r} is no host name")
    return name


def check_no_space(text: str) -> None:
    for character in text:
        if character.isspace() or not character.isprintable():
            raise BadAddress(
                "an address has no spaces or control characters; a space is written %20"
            )


def check_socket_path(path: str) -> None:
    if not path:
        raise BadAddress("the path of the socket is missing; the address is unix:path")
    if "\0" in path:
        raise BadAddress("the path of a socket has no null character in it")


def check_resource(path: str) -> None:
    if not path.startswith("/"):
        raise BadAddress("the path of a WebSocket address begins with a slash")
    if not path.isascii():
        raise BadAddress("the path of a WebSocket address is ASCII, the rest in percent form")
    check_no_space(path)
