"""Who a client is: what its transport and its proof say about it.

    PeerInfo    before CONNECT: where the connection comes from
    Identity    after CONNECT: the client, and how it proved who it is

Both are values. The store keeps the Identity of a durable session as JSON, so that messages for an
offline session are authorized for the user who owns it.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.broker.addresses import address_of

# How a client proved its user name.
ANONYMOUS: Final = "anonymous"
PASSWORD: Final = "password"
CERTIFICATE: Final = "certificate"
TOKEN: Final = "token"
SCRAM: Final = "scram"
HOOK: Final = "hook"

DEFAULT_LISTENER: Final = "default"

# The most characters of JSON for one character, and for everything else in an identity.
ESCAPED: Final = 12
FRAME: Final = 256

# Shared by all clients without claims.
_NO_CLAIMS: Final[Mapping[str, str]] = MappingProxyType({})


@final
@mypyc_attr(acyclic=True)
class PeerInfo:
    """The other end of a connection, as its transport knows it."""

    # The address with its port, for the log, and without it, for limits and rules.
    label: Final[str]
    address: Final[str]
    # The name of the listener that accepted the connection.
    listener: Final[str]
    # The Common Name of its verified client certificate; None: it has none.
    certificate: Final[str | None]

    def __init__(
        self,
        label: str,
        *,
        listener: str = DEFAULT_LISTENER,
        certificate: str | None = None,
    ) -> None:
        self.label = label
        self.address = address_of(label)
        self.listener = listener
        self.certificate = certificate


@final
@mypyc_attr(acyclic=True)
class Identity:
    """A client that the broker has accepted. `claims` are those of its token, as text."""

    client_id: Final[str]
    # None: the client is anonymous.
    user_name: Final[str | None]
    proof: Final[str]
    certificate: Final[str | None]
    address: Final[str]
    listener: Final[str]
    groups: Final[tuple[str, ...]]
    claims: Final[Mapping[str, str]]
    # When its proof expires, in seconds of the wall clock; None: never.
    expires_at: Final[float | None]

    def __init__(
        self,
        client_id: str,
        *,
        user_name: str | None = None,
        proof: str = ANONYMOUS,
        certificate: str | None = None,
        address: str = "",
        listener: str = DEFAULT_LISTENER,
        groups: tuple[str, ...] = (),
        claims: Mapping[str, str] | None = None,
        expires_at: float | None = None,
    ) -> None:
        self.client_id = client_id
        self.user_name = user_name
        self.proof = proof
        self.certificate = certificate
        self.address = address
        self.listener = listener
        self.groups = groups
        self.claims = _NO_CLAIMS if claims is None else claims
        self.expires_at = expires_at

    @property
    def proved_user(self) -> str | None:
        """The user name, if the client has proved it; None: it counts as anonymous."""
        return None if self.proof == ANONYMOUS else self.user_name

    @property
    def counted_as(self) -> str:
        """The user for whom limits per user count the client; for an anonymous one, its address."""
        user_name = self.proved_user
        return f"address {self.address}" if user_name is None else f"user {user_name}"

    def with_client_id(self, client_id: str) -> "Identity":
        """The same client with an identifier that the broker has assigned."""
        return Identity(
            client_id,
            user_name=self.user_name,
            proof=self.proof,
            certificate=self.certificate,
            address=self.address,
            listener=self.listener,
            groups=self.groups,
            claims=self.claims,
            expires_at=self.expires_at,
        )


def identity_of(
    client_id: str,
    peer: PeerInfo,
    *,
    user_name: str | None = None,
    proof: str = ANONYMOUS,
    groups: tuple[str, ...] = (),
    claims: Mapping[str, str] | None = None,
    expires_at: float | None = None,
) -> Identity:
    """The identity of a client that connects from this peer."""
    return Identity(
        client_id,
        user_name=user_name,
        proof=proof,
        certificate=peer.certificate,
        address=peer.address,
        listener=peer.listener,
        groups=groups,
        claims=claims,
        expires_at=expires_at,
    )


def encode_identity(identity: Identity) -> str:
    """The text that the store keeps. Values that are not known are left out."""
    values: dict[str, object] = {"proof": identity.proof, "listener": identity.listener}
    if identity.user_name is not None:
        values["user_name"] = identity.user_name
    if identity.certificate is not None:
        values["certificate"] = identity.certificate
    if identity.address:
        values["address"] = identity.address
    if identity.groups:
        values["groups"] = list(identity.groups)
    if identity.claims:
        values["claims"] = dict(identity.claims)
    if identity.expires_at is not None:
        values["expires_at"] = identity.expires_at
    return json.dumps(values, separators=(",", ":"), sort_keys=True)


def fits(identity: Identity, maximum_bytes: int) -> bool:
    """Whether the text that the store keeps has at most this many bytes."""
    if not identity.groups and not identity.claims:
        # Most identities are short, and need not be encoded to know it.
        characters = len(identity.user_name or "") + len(identity.certificate or "")
        characters += len(identity.address) + len(identity.listener) + len(identity.proof)
        if characters * ESCAPED + FRAME <= maximum_bytes:
            return True
    return len(encode_identity(identity)) <= maximum_bytes


def decode_identity(client_id: str, text: str) -> Identity:
    """The identity in a text of the store; "" is that of an anonymous client.

    Raises ValueError if it is not such a text.
    """
    values = json.loads(text) if text else {}
    if not isinstance(values, dict):
        raise ValueError("not an identity")
    groups = values.get("groups", [])
    claims = values.get("claims", {})
    expires_at = values.get("expires_at")
    if not isinstance(groups, list) or not isinstance(claims, dict):
        raise ValueError("not an identity")
    if expires_at is not None and not isinstance(expires_at, int | float):
        raise ValueError("not an identity")
    return Identity(
        client_id,
        user_name=_text_or_none(values.get("user_name")),
        proof=_text(values.get("proof", ANONYMOUS)),
        certificate=_text_or_none(values.get("certificate")),
        address=_text(values.get("address", "")),
        listener=_text(values.get("listener", DEFAULT_LISTENER)),
        groups=tuple(_text(group) for group in groups),
        claims={_text(name): _text(value) for name, value in claims.items()},
        expires_at=None if expires_at is None else float(expires_at),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not an identity")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)
