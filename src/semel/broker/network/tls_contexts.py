"""The certificates of a listener, and what it requires of its clients, as SSL contexts.

A `TlsContexts` is shared by the connections of a listener. A reload replaces its contexts: the
next handshake uses the new ones, and connections that exist are not affected. Session tickets are
encrypted with keys of a context, so that a client whose certificate a new revocation list contains
cannot resume a session after the reload.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from semel.client.tls import (
    TlsError,
    check_readable,
    load_certificate,
    load_trusted,
    parse_version,
    quoted_path,
    set_alpn,
    set_ciphers,
)

NONE: Final = "none"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"
_VERIFY_MODES: Final = {
    NONE: ssl.CERT_NONE,
    OPTIONAL: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}

# The application protocols of a listener, the preferred one first (RFC 7301).
MQTT_PROTOCOLS: Final = ("mqtt",)
WEBSOCKET_PROTOCOLS: Final = ("http/1.1", "mqtt")

PathName = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class ListenerTls:
    """The TLS options of a listener.

    `certfile` and `keyfile` (PEM; the key may be in the file of the certificate) are the
    listener's own, and `password` decrypts the key. `client_certificate` is none, optional or
    required; `cafile` (PEM) and `capath` (a directory as `openssl rehash` makes it) are the CAs
    that sign client certificates, and `crlfile` (PEM) has their revocation lists, which must be
    there and valid for every CA that signs a client certificate itself. `minimum_version` is 1.2
    (default) or 1.3. `ciphers` is OpenSSL's list for TLS 1.2. `protocols` are accepted by ALPN: a
    client that offers others only is refused, one that offers none is accepted. `sni` maps a host
    name, or a wildcard such as *.example.com, to another certificate and key; any other name gets
    `certfile`. `password` decrypts these keys, too.
    """

    certfile: PathName
    keyfile: PathName | None = None
    password: str | bytes | None = field(default=None, repr=False)
    client_certificate: str = NONE
    cafile: PathName | None = None
    capath: PathName | None = None
    crlfile: PathName | None = None
    minimum_version: str | None = None
    ciphers: str | None = None
    protocols: tuple[str, ...] = MQTT_PROTOCOLS
    sni: Mapping[str, tuple[PathName, PathName | None]] = field(default_factory=dict)


class TlsContexts:
    """The contexts of a listener, by server name."""

    def __init__(self, options: ListenerTls) -> None:
        """Raises TlsError."""
        self._install(options)

    def reload(self, options: ListenerTls | None = None) -> None:
        """Read the files again, with other options if they are given.

        Raises TlsError and keeps everything as it was if something is invalid.
        """
        self._install(self.options if options is None else options)

    def _install(self, options: ListenerTls) -> None:
        default = make_server_context(options)
        contexts = {}
        for name, (certfile, keyfile) in options.sni.items():
            try:
                host = check_server_name(name)
                contexts[host] = make_server_context(options, certfile=certfile, keyfile=keyfile)
            except TlsError as problem:
                raise TlsError(f"sni {name!r}: {problem}") from None
        self.options = options
        self.protocols = frozenset(name.encode("ascii") for name in options.protocols)
        # One assignment, because handshakes read it in other threads.
        self._contexts = (default, contexts)

    def select(self, server_name: str | None) -> ssl.SSLContext:
        """The context for a name that a client asks for; the default if there is no better one."""
        default, contexts = self._contexts
        if not contexts or server_name is None:
            return default
        found = contexts.get(server_name)
        if found is None:
            # A wildcard stands for the first label, and for no other.
            found = contexts.get(f"*.{server_name.partition('.')[2]}")
        return default if found is None else found


def check_server_name(name: str) -> str:
    """The name in lowercase. Raises TlsError if no client can ask for it."""
    lower = name.lower().removesuffix(".")
    host = lower.removeprefix("*.")
    labels = host.split(".")
    if not all(
        label and label.isascii() and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    ):
        raise TlsError(
            "a host name or a wildcard such as *.example.com is expected; international names "
            "are written in their ASCII form (xn--…)"
        )
    return lower


def make_server_context(
    options: ListenerTls, *, certfile: PathName | None = None, keyfile: PathName | None = None
) -> ssl.SSLContext:
    """A context for a listener, with another certificate if one is given. Raises TlsError.

    The sentence starts with the name of the option.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.minimum_version = parse_version(options.minimum_version)
    if certfile is None:
        load_certificate(context, options.certfile, options.keyfile, options.password)
    else:
        load_certificate(context, certfile, keyfile, options.password)
    _require_certificates(context, options)
    if options.ciphers is not None:
        set_ciphers(context, options.ciphers)
    if options.protocols:
        set_alpn(context, list(options.protocols))
    return context


def _require_certificates(context: ssl.SSLContext, options: ListenerTls) -> None:
    """Set what clients have to show."""
    wanted = options.client_certificate
    mode = _VERIFY_MODES.get(wanted)
    if mode is None:
        raise TlsError(f"client_certificate: none, optional or required, not {wanted!r}")
    if mode is ssl.CERT_NONE:
        # Who gives these files expects that they are used.
        for option in ("cafile", "capath", "crlfile"):
            if getattr(options, option) is not None:
                raise TlsError(
                    f"{option} is given, but client certificates are not checked: "
                    "set client_certificate to optional or required"
                )
        return
    if options.cafile is None and options.capath is None:
        # The CAs of the system sign certificates for anybody.
        raise TlsError(
            f"cafile is missing: client_certificate is {wanted}, "
            "so the CA that signs client certificates must be given"
        )
    load_trusted(context, options.cafile, options.capath)
    if options.cafile is not None and not context.cert_store_stats()["x509"]:
        raise TlsError(f"cafile {quoted_path(options.cafile)}: not a certificate in PEM format")
    if options.crlfile is not None:
        load_revocations(context, options.crlfile)
    context.verify_mode = mode


def load_revocations(context: ssl.SSLContext, crlfile: PathName) -> None:
    """Refuse the certificates that a revocation list contains. Raises TlsError."""
    check_readable("crlfile", crlfile)
    holder = f"crlfile {quoted_path(crlfile)}"
    # In a context of its own: a certificate in this file must not become trusted.
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        trial.load_verify_locations(cafile=crlfile)
    except ssl.SSLError:
        raise TlsError(f"{holder}: not a certificate revocation list in PEM format") from None
    found = trial.cert_store_stats()
    if found["x509"]:
        raise TlsError(f"{holder}: contains a certificate; it may only contain revocation lists")
    context.load_verify_locations(cafile=crlfile)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
