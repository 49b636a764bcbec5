"""Certificates, keys and revocation lists for tests, as PEM files."""

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from semel.broker.network.tls_contexts import ListenerTls

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
# What the key of a CA is for.
SIGNING = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def common_name(text: str) -> x509.Name:
    """A subject with one Common Name, whatever its characters."""
    with warnings.catch_warnings(action="ignore"):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text, _validate=False)])


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class Authority:
    """A CA in a folder: NAME.pem and NAME.key. What it issues is OTHER.pem and OTHER.key."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = common_name(name)
        # It may also be used as a certificate that nobody else has signed.
        (folder / f"{name}.key").write_bytes(private_pem(self._key))
        certificate = (
            self._builder(self._subject, self._key, -DAY, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(SIGNING, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        subject: x509.Name | None = None,
        *,
        hosts: Sequence[str] = (),
        alternatives: Sequence[x509.GeneralName] = (),
        usage: x509.ObjectIdentifier = CLIENT_AUTH,
        begins: timedelta = -DAY,
        ends: timedelta = DAY,
    ) -> x509.Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = common_name(name) if subject is None else subject
        builder = self._builder(subject, key, begins, ends).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        names = [*(x509.DNSName(host) for host in hosts), *alternatives]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.key").write_bytes(private_pem(key))
        (self.folder / f"{name}.pem").write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
        )
        return certificate

    def revoke(self, name: str, *certificates: x509.Certificate, ends: timedelta = DAY) -> None:
        """Write the revocation list NAME.crl with these certificates."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._subject)
            .last_update(NOW - 2 * DAY)
            .next_update(NOW + ends)
        )
        for certificate in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(certificate.serial_number)
                .revocation_date(NOW - DAY)
                .build()
            )
        revoked = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.crl").write_bytes(revoked.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: timedelta,
        ends: timedelta,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + begins)
            .not_valid_after(NOW + ends)
            # Python 3.13 requires that a certificate names the key of its authority.
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


class TlsFiles:
    """What the tests of TLS need.

    ca.pem signs the servers server (localhost), other (other.example) and wild (*.wild.example),
    and the clients client, expired, early, revoked and for-servers; stranger is of other-ca.pem.
    revoked.crl revokes the client revoked, old.crl is a list that has expired, and other.crl that
    of the other CA.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder, "ca")
        self.other_ca = Authority(folder, "other-ca")
        self.ca.issue("server", hosts=["localhost"], usage=SERVER_AUTH)
        self.ca.issue("other", hosts=["other.example"], usage=SERVER_AUTH)
        self.ca.issue("wild", hosts=["*.wild.example"], usage=SERVER_AUTH)
        self.ca.issue("client")
        self.ca.issue("expired", begins=-2 * DAY, ends=-DAY)
        self.ca.issue("early", begins=DAY, ends=2 * DAY)
        revoked = self.ca.issue("revoked")
        self.ca.issue("for-servers", usage=SERVER_AUTH)
        self.other_ca.issue("stranger")
        self.ca.revoke("revoked", revoked)
        self.ca.revoke("old", ends=-DAY)
        self.other_ca.revoke("other")

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def options(self, name: str = "server", **more: Any) -> ListenerTls:
        """Options of a listener with the certificate NAME."""
        own = {"certfile": self / f"{name}.pem", "keyfile": self / f"{name}.key"}
        return ListenerTls(**{**own, **more})

    def demanding(self, wanted: str = "required", **more: Any) -> ListenerTls:
        """Options of a listener that wants client certificates of ca.pem."""
        return self.options(client_certificate=wanted, cafile=self / "ca.pem", **more)
