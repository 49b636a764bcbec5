"""Makes an SSL context from the options that MQTT tools share."""

import os
import ssl
from collections.abc import Sequence
from typing import Final

MINIMUM_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# The longest password of a key that OpenSSL accepts.
MAXIMUM_PASSWORD_BYTES: Final = 1024


class TlsError(Exception):
    """An invalid TLS option; the sentence starts with the name of the parameter."""

    @property
    def parameter(self) -> str:
        """The invalid parameter of `make_context`."""
        return str(self).partition(" ")[0].rstrip(":")


def make_context(
    *,
    cafile: str | os.PathLike[str] | None = None,
    capath: str | os.PathLike[str] | None = None,
    certfile: str | os.PathLike[str] | None = None,
    keyfile: str | os.PathLike[str] | None = None,
    password: str | bytes | None = None,
    insecure: bool = False,
    minimum_version: str | ssl.TLSVersion | None = None,
    ciphers: str | None = None,
    alpn: str | Sequence[str] | None = None,
) -> ssl.SSLContext:
    """A context for a client. Raises TlsError.

    `cafile` (PEM) and `capath` (a directory as `openssl rehash` makes it) are the trusted CA
    certificates; the default is those of the system. `certfile` and `keyfile` (PEM; the key may be
    in the file of the certificate) are the client's own, and `password` decrypts the key.
    `insecure` accepts a certificate for another host name, as Mosquitto's tools do; a trusted CA
    must still have signed it. `minimum_version` is 1.2 (default) or 1.3, also written tlsv1.2 and
    tlsv1.3. `ciphers` is OpenSSL's list for TLS 1.2. `alpn` names the protocols to offer: servers
    that share a port between protocols require "mqtt".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = parse_version(minimum_version)
    load_trusted(context, cafile, capath)
    if certfile is not None:
        load_certificate(context, certfile, keyfile, password)
    elif keyfile is not None:
        raise TlsError("keyfile is given without certfile: give both")
    if insecure:
        context.check_hostname = False
    if ciphers is not None:
        set_ciphers(context, ciphers)
    if alpn is not None:
        set_alpn(context, [alpn] if isinstance(alpn, str) else list(alpn))
    return context


def parse_version(version: str | ssl.TLSVersion | None) -> ssl.TLSVersion:
    if version is None:
        return ssl.TLSVersion.TLSv1_2
    if isinstance(version, str):
        found = MINIMUM_VERSIONS.get(version.lower().removeprefix("tlsv"))
    else:
        found = version if version in MINIMUM_VERSIONS.values() else None
    if found is None:
        raise TlsError(f"minimum_version: tlsv1.2 or tlsv1.3, not {version}")
    return found


def load_trusted(
    context: ssl.SSLContext,
    cafile: str | os.PathLike[str] | None,
    capath: str | os.PathLike[str] | None,
) -> None:
    if cafile is None and capath is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    if cafile is not None:
        check_readable("cafile", cafile)
        try:
            context.load_verify_locations(cafile=cafile)
        except ssl.SSLError:
            raise TlsError(
                f"cafile {quoted_path(cafile)}: not a certificate in PEM format"
            ) from None
    if capath is not None:
        if not os.path.isdir(capath):
            raise TlsError(f"capath {quoted_path(capath)}: no such directory")
        context.load_verify_locations(capath=capath)


def load_certificate(
    context: ssl.SSLContext,
    certfile: str | os.PathLike[str],
    keyfile: str | os.PathLike[str] | None,
    password: str | bytes | None,
) -> None:
    check_readable("certfile", certfile)
    holder = f"certfile {quoted_path(certfile)}"
    if keyfile is not None:
        check_readable("keyfile", keyfile)
        holder = f"keyfile {quoted_path(keyfile)}"
    key_password = password.encode("utf-8") if isinstance(password, str) else password
    was_asked = False

    def give_password() -> bytes:
        # Without this callback, OpenSSL would prompt on the terminal.
        nonlocal was_asked
        was_asked = True
        if key_password is None:
            raise TlsError(f"{holder}: the key is encrypted: give its password")
        return key_password

    if key_password is not None and len(key_password) > MAXIMUM_PASSWORD_BYTES:
        raise TlsError(f"password: at most {MAXIMUM_PASSWORD_BYTES} bytes")
    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            why = f"{holder}: the key does not belong to certfile {quoted_path(certfile)}"
        elif was_asked:
            why = f"{holder}: the password does not decrypt the key"
        else:
            why = certificate_fault(certfile, holder)
        raise TlsError(why) from None


def certificate_fault(certfile: str | os.PathLike[str], holder: str) -> str:
    """Which of the two files is invalid: try to load the certificate alone, as a trusted one."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=certfile)
    except ssl.SSLError:
        return f"certfile {quoted_path(certfile)}: not a certificate in PEM format"
    return f"{holder}: not a private key in PEM format"


def set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except (ssl.SSLError, ValueError):
        raise TlsError(
            f"ciphers: OpenSSL has none of {ciphers!r}; `openssl ciphers` lists their names"
        ) from None


def set_alpn(context: ssl.SSLContext, protocols: list[str]) -> None:
    if not all(name.isascii() and 1 <= len(name) <= 255 for name in protocols):
        raise TlsError("alpn: the name of a protocol has 1 to 255 ASCII characters")
    context.set_alpn_protocols(protocols)


def check_readable(option: str, path: str | os.PathLike[str]) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as problem:
        raise TlsError(f"{option} {quoted_path(path)}: {problem.strerror}") from None
    except ValueError:
        raise TlsError(f"{option}: a path must not contain a null character") from None


def quoted_path(path: str | os.PathLike[str]) -> str:
    return repr(os.fspath(path))
