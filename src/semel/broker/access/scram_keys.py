"""What the password file keeps of a user for SCRAM-SHA-256.

    $scram-sha-256$<iterations>$<salt>$<StoredKey>$<ServerKey>     the fourth field of a user
    $scram-secret$<secret>                                         a line of its own

The secret gives every unknown user a salt that never changes, so that a client cannot find out
which users exist. It is in the file, so that all of this holds after a restart, too.
"""

import binascii
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

from semel.client.scram import (
    MAXIMUM_ITERATIONS,
    MINIMUM_ITERATIONS,
    client_key,
    salt_password,
    server_key,
    stored_key,
)
from semel.counts import count

SECRET_PREFIX: Final = "$scram-secret$"
# [RFC 7677 §4] recommends it for devices with little computing power.
NEW_ITERATIONS: Final = 15_000
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
MAXIMUM_SALT_BYTES: Final = 128

_KEYS: Final = re.compile(
    r"\$scram-sha-256\$([0-9]{1,9})\$([A-Za-z0-9+/]+=*)\$([A-Za-z0-9+/]+=*)\$([A-Za-z0-9+/]+=*)"
)


@dataclass(frozen=True)
class ScramKeys:
    """The keys of one user. The password cannot be computed from them."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @property
    def text(self) -> str:
        """The keys as the password file has them."""
        parts = (self.salt, self.stored_key, self.server_key)
        return "$".join(
            ("$scram-sha-256", str(self.iterations), *(b64encode(part).decode() for part in parts))
        )


def make_keys(password: str, *, iterations: int = NEW_ITERATIONS) -> ScramKeys:
    """New keys for a password. Raises ValueError with what is wrong, to follow "the password"."""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salt_password(password, salt, iterations=iterations)
    return ScramKeys(iterations, salt, stored_key(client_key(salted)), server_key(salted))


def parse_keys(text: str) -> ScramKeys:
    """The keys in a password file. Raises ValueError with what is wrong, to follow "the keys"."""
    found = _KEYS.fullmatch(text)
    if found is None:
        raise ValueError("are not $scram-sha-256$<iterations>$<salt>$<StoredKey>$<ServerKey>")
    iterations = int(found[1])
    if not MINIMUM_ITERATIONS <= iterations <= MAXIMUM_ITERATIONS:
        bounds = f"from {MINIMUM_ITERATIONS} to {MAXIMUM_ITERATIONS}"
        raise ValueError(f"have {iterations} iterations, but must have {bounds}")
    try:
        salt, stored, server = (b64decode(part, validate=True) for part in found.groups()[1:])
    except binascii.Error:
        raise ValueError("have a part that is not base64") from None
    if not 1 <= len(salt) <= MAXIMUM_SALT_BYTES:
        raise ValueError(f"have a salt of {len(salt)} bytes, but at most {MAXIMUM_SALT_BYTES}")
    if (len(stored), len(server)) != (KEY_BYTES, KEY_BYTES):
        raise ValueError(f"have a key that does not have {KEY_BYTES} bytes")
    return ScramKeys(iterations, salt, stored, server)


def new_secret_line() -> str:
    """A line with a new secret."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse_secret(line: str) -> bytes:
    """The secret in a line. Raises ValueError with what is wrong, to follow "the secret"."""
    try:
        secret = b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if len(secret) != KEY_BYTES:
        raise ValueError(f"has {count(len(secret), 'byte')}, but must have {KEY_BYTES}")
    return secret


def fake_keys(user_name: str, secret: bytes, *, iterations: int) -> ScramKeys:
    """Keys for a user who does not exist: always the same salt, and keys of no password."""
    salt = hmac.digest(secret, b"salt of " + user_name.encode(), "sha256")[:SALT_BYTES]
    return ScramKeys(
        iterations, salt, secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
    )
