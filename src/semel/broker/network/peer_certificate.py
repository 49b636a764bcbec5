"""The names in the certificate of a client that TLS has verified.

A name becomes a user name, is matched by rules and is written to logs. So a certificate whose
names are ambiguous or cannot be displayed is refused, even if a trusted CA has signed it.
"""

from dataclasses import dataclass
from typing import Final, cast

from semel.broker.network.layer import LayerFailed

# X.520 allows 64 characters in a Common Name; some CAs allow more.
MAXIMUM_NAME_LENGTH: Final = 256

# Names of attributes in a subject: as OpenSSL gives them, and as RFC 4514 abbreviates them.
_ABBREVIATIONS: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = frozenset('"+,;<>\\')

# What `ssl` gives: relative distinguished names, each with one or more attributes.
_Subject = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The names of a verified client certificate. All of them are printable."""

    # None: the subject has no Common Name.
    common_name: str | None
    # The whole subject as RFC 4514 writes it, the most specific attribute first.
    subject: str
    # The alternative names by kind, such as ("DNS", "a.example") or ("URI", "spiffe://a/b").
    alternative_names: tuple[tuple[str, str], ...]


def read_peer_certificate(decoded: dict[str, object]) -> PeerCertificate:
    """The names in what `SSLObject.getpeercert` returns. Raises LayerFailed.

    It refuses several Common Names, names with characters that cannot be printed (control
    characters, NUL, marks that change the direction of text), and names that are too long.
    """
    subject = cast(_Subject, decoded.get("subject", ()))
    attributes = [attribute for group in subject for attribute in group]
    for kind, value in attributes:
        _check_name(kind, value)
    common_names = [value for kind, value in attributes if kind == "commonName" and value]
    if len(common_names) > 1:
        raise LayerFailed(
            f"the client certificate has {len(common_names)} Common Names, so that it is not clear "
            "who the client is: issue one with a single Common Name"
        )
    alternatives = cast(tuple[tuple[str, object], ...], decoded.get("subjectAltName", ()))
    return PeerCertificate(
        common_names[0] if common_names else None,
        format_subject(subject),
        tuple(
            (kind, value)
            for kind, value in alternatives
            # A directory name is no text. One that cannot be printed identifies nobody.
            if isinstance(value, str) and value.isprintable() and len(value) <= MAXIMUM_NAME_LENGTH
        ),
    )


def _check_name(kind: str, value: str) -> None:
    what = "Common Name" if kind == "commonName" else f"subject ({kind})"
    if not value.isprintable():
        raise LayerFailed(
            f"the {what} of the client certificate has a character that cannot be printed"
        )
    if len(value) > MAXIMUM_NAME_LENGTH:
        raise LayerFailed(
            f"the {what} of the client certificate has {len(value)} characters; "
            f"at most {MAXIMUM_NAME_LENGTH} are accepted"
        )


def format_subject(subject: _Subject) -> str:
    """The subject as text of RFC 4514. Different subjects give different texts."""
    return ",".join(
        "+".join(f"{_ABBREVIATIONS.get(kind, kind)}={_escape(value)}" for kind, value in group)
        for group in reversed(subject)
    )


def _escape(value: str) -> str:
    escaped = "".join(f"\\{one}" if one in _ESCAPED else one for one in value)
    if escaped.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    if value.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped
