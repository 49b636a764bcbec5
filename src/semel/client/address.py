"""Addresses of servers, as the client and the commands accept them.

    mqtt://[user[:password]@]host[:port]        also written tcp://
    mqtts://[user[:password]@]host[:port]       also written ssl:// or tls://
    ws://[user[:password]@]host[:port][/path]   and wss://; the path is /mqtt if none is given
    unix:path                                   or unix:///path

Reserved characters in user name, password and path are percent-encoded: `%40` is an @. User name
and password are those of CONNECT, also with WebSocket. An Address that exists is valid. Its text
form does not have the password.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal, overload
from urllib.parse import quote

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
# Schemes of other tools.
ALIASES: Final = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts"}
DEFAULT_RESOURCE: Final = "/mqtt"

FORM: Final = "mqtt://[user[:password]@]host[:port], or mqtts, ws, wss, or unix:path"
HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?", re.IGNORECASE)
PERCENT_FORM: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
# The characters of a URL that need no percent-encoding, and the percent sign itself.
RESOURCE_SAFE: Final = "/?:@!$&'()*+,;=-._~%"
MAXIMUM_PORT_DIGITS: Final = 5
MAXIMUM_PORT: Final = 65535


class BadAddress(ValueError):
    """An invalid address: the problem and the valid form, in one sentence."""


@dataclass(frozen=True, repr=False)
class Address:
    """The address of one server. Raises BadAddress if it is not valid."""

    # mqtt, mqtts, ws, wss or unix
    scheme: str
    # A host name, or an IPv4 or IPv6 address without brackets; "" for unix.
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
                raise BadAddress("a unix address has a path, but no host or port")
            return
        if self.scheme not in DEFAULT_PORTS:
            raise BadAddress(f"unknown scheme {self.scheme!r}; an address is {FORM}")
        # DNS and certificates use the ASCII form of a name.
        object.__setattr__(self, "host", ascii_host(self.host))
        if not 1 <= self.port <= MAXIMUM_PORT:
            raise BadAddress(f"port {self.port} is not a number from 1 to {MAXIMUM_PORT}")
        if self.scheme in ("ws", "wss"):
            check_resource(self.path)
        elif self.path:
            raise BadAddress(f"a {self.scheme} address has no path")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        user = f"{quote(self.user_name, safe='')}@" if self.user_name is not None else ""
        # A query may contain a key or a signature.
        path, mark, _ = self.path.partition("?")
        return f"{self.scheme}://{user}{self.where}{path}{mark}{'…' if mark else ''}"

    def __repr__(self) -> str:
        return f"<Address {self}>"

    @property
    def secure(self) -> bool:
        """Whether the connection uses TLS."""
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
    """Parse an address. Raises BadAddress.

    With `topic`, the text after the first slash behind the host is a topic name or filter, as in
    `mosquitto_pub -L`. It is returned beside the Address, unchecked and not decoded.
    """
    if not url:
        raise BadAddress(f"the address is empty; it is {FORM}")
    if url[:5].lower() == "unix:":
        if topic:
            raise BadAddress("a unix address cannot include a topic; give the topic separately")
        check_no_space(url)
        return parse_unix(url[5:])
    name, colon, rest = url.partition("://")
    if not colon:
        raise BadAddress(f"the address has no scheme; it is {FORM}")
    check_no_space(name)
    scheme = ALIASES.get(name.lower(), name.lower())
    if scheme not in DEFAULT_PORTS:
        raise BadAddress(f"unknown scheme {name!r}; an address is {FORM}")
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
        # The message leaves out the text, which may be part of a password.
        raise BadAddress("a /, ? or # in a user name or password is written %2F, %3F or %23")
    user_info, _, where = authority.rpartition("@")
    user_name, password = parse_user_info(user_info)
    host, port = parse_where(where, DEFAULT_PORTS[scheme])
    if scheme in ("ws", "wss"):
        path = parse_resource(path)
    elif path not in ("", "/"):
        raise BadAddress(f"a {scheme} address ends after the port; give topics separately")
    else:
        path = ""
    address = Address(scheme, host, port, path, user_name, password)
    return (address, named) if topic else address


def parse_unix(rest: str) -> Address:
    """Parse the text after `unix:`."""
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
            raise BadAddress("the closing bracket of the IPv6 address is missing: [::1]:1883")
        if rest and not rest.startswith(":"):
            raise BadAddress("only :port may follow the bracket of an IPv6 address: [::1]:1883")
        if ":" not in host:
            raise BadAddress("only an IPv6 address is written in brackets: [::1]:1883")
        # RFC 6874: the % before a zone is percent-encoded itself.
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
    # The message leaves out the text, which is part of a password if a slash was not encoded.
    if not (text.isascii() and text.isdigit() and len(text) <= MAXIMUM_PORT_DIGITS):
        raise BadAddress(f"the port after the host is not a number from 1 to {MAXIMUM_PORT}")
    return int(text)


def parse_resource(text: str) -> str:
    """The HTTP resource from the text after the host of a WebSocket address."""
    if "#" in text:
        raise BadAddress("a WebSocket address has no fragment; a # in the path is written %23")
    if not text.startswith("/"):
        text = DEFAULT_RESOURCE + text
    # Only check it: the path is sent percent-encoded.
    decode_percent(text, "the path")
    return quote(text, safe=RESOURCE_SAFE)


def decode_percent(text: str, what: str) -> bytes:
    """The bytes of percent-encoded text."""
    data = text.encode("utf-8")
    if data.count(b"%") != len(PERCENT_FORM.findall(data)):
        raise BadAddress(
            f"a % in {what} is not followed by two hex digits; a % itself is written %25"
        )
    return PERCENT_FORM.sub(lambda found: bytes.fromhex(found[1].decode()), data)


def decode_text(text: str, what: str) -> str:
    try:
        return decode_percent(text, what).decode("utf-8")
    except UnicodeDecodeError:
        raise BadAddress(f"{what} is not UTF-8 after percent-decoding") from None


def ascii_host(host: str) -> str:
    """The host in the form of DNS and certificates: ASCII and lowercase."""
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise BadAddress(f"{host!r} is not an IPv6 address") from None
    if not host:
        raise BadAddress(f"the host is missing; an address is {FORM}")
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        name = ""
    if not HOST_NAME.fullmatch(name):
        raise BadAddress(f"{host!r} is not a host name")
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
        raise BadAddress("the path of a socket must not contain a null character")


def check_resource(path: str) -> None:
    if not path.startswith("/"):
        raise BadAddress("the path of a WebSocket address starts with a slash")
    if not path.isascii():
        raise BadAddress(
            "the path of a WebSocket address is ASCII; other characters are percent-encoded"
        )
    check_no_space(path)
