"""TLS: one context from the options that MQTT's tools share, or one sentence why there is none."""

import os
import ssl
from collections.abc import Sequence
from typing import Final

MINIMUM_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# The longest password of a key that OpenSSL takes.
MOST_PASSWORD_BYTES: Final = 1024


class TlsError(Exception):
    """Which option of TLS is wrong and why, in one sentence that begins with its name."""

    @property
    def parameter(self) -> str:
        """The parameter of `make_context` that is wrong."""
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
    """A context for the client's end. Raises TlsError.

    `cafile` (PEM) and `capath` (a folder as `openssl rehash` makes it) are whom to trust; without
    them it is whom the system trusts. `certfile` and `keyfile` (PEM; the key may be in the file of
    the certificate) are the client's own, `password` opens the key. `insecure` accepts a
    certificate for another host name, as in mosquitto's tools; it still has to be signed by
    somebody who is trusted. `minimum_version` is 1.2, which is the default, or 1.3 (also written
    tlsv1.2, tlsv1.3). `ciphers` is OpenSSL's list for TLS 1.2. `alpn` names the protocols to offer:
    servers that share a port between protocols want "mqtt".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = parse_version(minimum_version)
    trust(context, cafile, capath)
    if certfile is not None:
        load_certificate(context, certfile, keyfile, password)
    elif keyfile is not None:
        raise TlsError("keyfile is given without certfile, and a key alone proves nothing")
    if insecure:
        context.check_hostname = False
    if ciphers is not None:
        try:
            context.set_ciphers(ciphers)
        except (ssl.SSLError, ValueError):
            raise TlsError(
                f"ciphers: OpenSSL knows none of {ciphers!r}; `openssl ciphers` lists its names"
            ) from None
    if alpn is not None:
        offer(context, [alpn] if isinstance(alpn, str) else list(alpn))
    return context


def parse_version(version: str | ssl.TLSVersion | None) -> ssl.TLSVersion:
    if version is None:
        return ssl.TLSVersion.TLSv1_2
    if isinstance(version, str):
        found = MINIMUM_VERSIONS.get(version.lower().removeprefix("tlsv"))
    else:
        found = version if version in MINIMUM_VERSIONS.values() else None
    if found is None:
        raise TlsError(f"minimum_version: there is tlsv1.2 and tlsv1.3, not {version}")
    return found


def trust(
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
            raise TlsError(f"cafile {shown(cafile)}: no certificate in PEM form") from None
    if capath is not None:
        if not os.path.isdir(capath):
            raise TlsError(f"capath {shown(capath)}: no such folder")
        context.load_verify_locations(capath=capath)


def load_certificate(
    context: ssl.SSLContext,
    certfile: str | os.PathLike[str],
    keyfile: str | os.PathLike[str] | None,
    password: str | bytes | None,
) -> None:
    check_readable("certfile", certfile)
    holder = f"certfile {shown(certfile)}"
    if keyfile is not None:
        check_readable("keyfile", keyfile)
        holder = f"keyfile {shown(keyfile)}"
    secret = password.encode("utf-8") if isinstance(password, str) else password
    asked = False

    def tell() -> bytes:
        # Without this, OpenSSL would ask on the terminal.
        nonlocal asked
        asked = True
        if secret is None:
            raise TlsError(f"{holder}: the key is encrypted, and no password is given")
        return secret

    if secret is not None and len(secret) > MOST_PASSWORD_BYTES:
        raise TlsError(f"password: that of a key has at most {MOST_PASSWORD_BYTES} bytes")
    try:
        context.load_cert_chain(certfile, keyfile, tell)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            why = f"{holder}: the key does not belong to certfile {shown(certfile)}"
        elif asked:
            why = f"{holder}: the password does not open the key"
        else:
            why = certificate_fault(certfile, holder)
        raise TlsError(why) from None


def certificate_fault(certfile: str | os.PathLike[str], holder: str) -> str:
    """Which of the two files is no good: a certificate is read as one to trust, without a key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=certfile)
    except ssl.SSLError:
        return f"certfile {shown(certfile)}: no certificate in PEM form"
    return f"{holder}: no private key in PEM form"


def offer(context: ssl.SSLContext, protocols: list[str]) -> None:
    if not all(name.isascii() and 1 <= len(name) <= 255 for name in protocols):
        raise TlsError("alpn: the name of a protocol has 1 to 255 ASCII characters")
    context.set_alpn_protocols(protocols)


def check_readable(option: str, path: str | os.PathLike[str]) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as problem:
        raise TlsError(f"{option} {shown(path)}: {problem.strerror}") from None
    except ValueError:
        raise TlsError(f"{option}: a path has no null character in it") from None


def shown(path: str | os.PathLike[str]) -> str:
    return repr(os.fspath(path))
