"""Password hashes: argon2id, and the two kinds of Mosquitto's password files.

    $argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>    made by `semel passwd`
    $7$<iterations>$<salt>$<hash>                   Mosquitto 2: PBKDF2 with SHA-512
    $6$<salt>$<hash>                                Mosquitto 1: SHA-512 of the password and salt

The parameters of a hash decide how long it takes to check a password. They are bounded, so that no
file can make the broker stop or run out of memory. All checks compare in constant time, and spend
nearly all of their time without Python's lock.
"""

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import Final

from semel.counts import count
from semel.extras import need

# For new hashes: OWASP's recommendation for servers. About 20 ms and 19 MiB per check.
MEMORY_KIB: Final = 19 * 1024
PASSES: Final = 2
LANES: Final = 1
NEW_SALT_BYTES: Final = 16
NEW_DIGEST_BYTES: Final = 32

# Bounds for the hashes in a file: about one second per check.
MAXIMUM_MEMORY_KIB: Final = 256 * 1024
MAXIMUM_MEMORY_PASSES: Final = 1024 * 1024
MAXIMUM_LANES: Final = 16
MAXIMUM_ITERATIONS: Final = 1_000_000
MAXIMUM_SALT_BYTES: Final = 128
MINIMUM_DIGEST_BYTES: Final = 16
MAXIMUM_DIGEST_BYTES: Final = 128

ARGON2_VERSION: Final = 19
SHA512_BYTES: Final = 64

_ARGON2: Final = re.compile(
    r"\$argon2id\$v=([0-9]{1,3})\$m=([0-9]{1,10}),t=([0-9]{1,10}),p=([0-9]{1,10})"
    r"\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)
_PBKDF2: Final = re.compile(r"\$7\$([0-9]{1,10})\$([A-Za-z0-9+/]+=*)\$([A-Za-z0-9+/]+=*)")
_SHA512: Final = re.compile(r"\$6\$([A-Za-z0-9+/]+=*)\$([A-Za-z0-9+/]+=*)")


@dataclass(frozen=True)
class Argon2Hash:
    """An argon2id hash."""

    memory_kib: int
    passes: int
    lanes: int
    salt: bytes
    digest: bytes

    def verify(self, password: bytes) -> bool:
        """Whether this is the hash of the password."""
        return hmac.compare_digest(self.compute(password), self.digest)

    def compute(self, password: bytes) -> bytes:
        """The digest of a password with these parameters."""
        from argon2 import low_level

        return low_level.hash_secret_raw(
            password,
            self.salt,
            time_cost=self.passes,
            memory_cost=self.memory_kib,
            parallelism=self.lanes,
            hash_len=len(self.digest),
            type=low_level.Type.ID,
            version=ARGON2_VERSION,
        )

    @property
    def text(self) -> str:
        """The hash as a password file has it."""
        costs = f"m={self.memory_kib},t={self.passes},p={self.lanes}"
        salt, digest = (b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${digest}"

    @property
    def kind(self) -> str:
        """What people call it."""
        return "argon2id"

    @property
    def cost(self) -> tuple[int, ...]:
        """What hashes of this kind that take equally long have in common."""
        return (self.memory_kib, self.passes, self.lanes, len(self.digest))


@dataclass(frozen=True)
class Pbkdf2Hash:
    """A hash of Mosquitto 2: PBKDF2 with SHA-512."""

    iterations: int
    salt: bytes
    digest: bytes

    def verify(self, password: bytes) -> bool:
        """Whether this is the hash of the password."""
        found = hashlib.pbkdf2_hmac(
            "sha512", password, self.salt, self.iterations, len(self.digest)
        )
        return hmac.compare_digest(found, self.digest)

    @property
    def text(self) -> str:
        """The hash as a password file has it."""
        salt, digest = (b64encode(part).decode() for part in (self.salt, self.digest))
        return f"$7${self.iterations}${salt}${digest}"

    @property
    def kind(self) -> str:
        """What people call it."""
        return "PBKDF2-SHA512"

    @property
    def cost(self) -> tuple[int, ...]:
        """What hashes of this kind that take equally long have in common."""
        return (self.iterations, len(self.digest))


@dataclass(frozen=True)
class Sha512Hash:
    """A hash of Mosquitto 1: one SHA-512 of the password and the salt."""

    salt: bytes
    digest: bytes

    def verify(self, password: bytes) -> bool:
        """Whether this is the hash of the password."""
        return hmac.compare_digest(hashlib.sha512(password + self.salt).digest(), self.digest)

    @property
    def text(self) -> str:
        """The hash as a password file has it."""
        salt, digest = (b64encode(part).decode() for part in (self.salt, self.digest))
        return f"$6${salt}${digest}"

    @property
    def kind(self) -> str:
        """What people call it."""
        return "SHA-512"

    @property
    def cost(self) -> tuple[int, ...]:
        """What hashes of this kind that take equally long have in common."""
        return ()


PasswordHash = Argon2Hash | Pbkdf2Hash | Sha512Hash


def hash_password(password: bytes) -> Argon2Hash:
    """A new hash of a password. Raises MissingExtra without argon2-cffi."""
    _need_argon2()
    salt = secrets.token_bytes(NEW_SALT_BYTES)
    empty = Argon2Hash(MEMORY_KIB, PASSES, LANES, salt, bytes(NEW_DIGEST_BYTES))
    return replace(empty, digest=empty.compute(password))


def same_cost(model: PasswordHash) -> PasswordHash:
    """A hash that costs as much to check as `model`, and that no password has."""
    digest = secrets.token_bytes(len(model.digest))
    return replace(model, salt=secrets.token_bytes(len(model.salt)), digest=digest)


def parse_hash(text: str) -> PasswordHash:
    """The hash in a password file.

    Raises ValueError with what is wrong, to follow "the hash"; MissingExtra without argon2-cffi.
    """
    if text.startswith("$argon2id$"):
        _need_argon2()
        return _parse_argon2(text)
    if text.startswith("$7$"):
        return _parse_pbkdf2(text)
    if text.startswith("$6$"):
        return _parse_sha512(text)
    known = "$argon2id$, or $7$ and $6$ of Mosquitto"
    raise ValueError(f"is of an unknown kind: it must begin with {known}")


def _parse_argon2(text: str) -> Argon2Hash:
    found = _ARGON2.fullmatch(text)
    if found is None:
        raise ValueError("is not $argon2id$v=19$m=<KiB>,t=<passes>,p=<lanes>$<salt>$<hash>")
    version, memory, passes, lanes = (int(number) for number in found.groups()[:4])
    if version != ARGON2_VERSION:
        raise ValueError(f"has version {version}, but only {ARGON2_VERSION} is supported")
    if not 1 <= lanes <= MAXIMUM_LANES:
        raise ValueError(f"has p={lanes}, but p must be from 1 to {MAXIMUM_LANES}")
    # [RFC 9106 §3.1] at least 8 KiB for each lane
    if not 8 * lanes <= memory <= MAXIMUM_MEMORY_KIB:
        bounds = f"from {8 * lanes} to {MAXIMUM_MEMORY_KIB}"
        raise ValueError(f"has m={memory}, but m must be {bounds}")
    if not 1 <= passes <= MAXIMUM_MEMORY_PASSES // memory:
        bounds = f"from 1 to {MAXIMUM_MEMORY_PASSES // memory} for m={memory}"
        raise ValueError(f"has t={passes}, but t must be {bounds}")
    salt, digest = _salt_and_digest(_pad(found[5]), _pad(found[6]), minimum_salt=8)
    return Argon2Hash(memory, passes, lanes, salt, digest)


def _parse_pbkdf2(text: str) -> Pbkdf2Hash:
    found = _PBKDF2.fullmatch(text)
    if found is None:
        raise ValueError("is not $7$<iterations>$<salt>$<hash>")
    iterations = int(found[1])
    if not 1 <= iterations <= MAXIMUM_ITERATIONS:
        bounds = f"from 1 to {MAXIMUM_ITERATIONS}"
        raise ValueError(f"has {iterations} iterations, but must have {bounds}")
    return Pbkdf2Hash(iterations, *_salt_and_digest(found[2], found[3], minimum_salt=1))


def _parse_sha512(text: str) -> Sha512Hash:
    found = _SHA512.fullmatch(text)
    if found is None:
        raise ValueError("is not $6$<salt>$<hash>")
    salt, digest = _salt_and_digest(found[1], found[2], minimum_salt=1)
    if len(digest) != SHA512_BYTES:
        raise ValueError(f"has {count(len(digest), 'byte')}, but SHA-512 has {SHA512_BYTES}")
    return Sha512Hash(salt, digest)


def _salt_and_digest(salt: str, digest: str, *, minimum_salt: int) -> tuple[bytes, bytes]:
    try:
        salt_bytes, digest_bytes = (b64decode(part, validate=True) for part in (salt, digest))
    except binascii.Error:
        raise ValueError("has a salt or a hash that is not base64") from None
    if not minimum_salt <= len(salt_bytes) <= MAXIMUM_SALT_BYTES:
        bounds = f"from {minimum_salt} to {MAXIMUM_SALT_BYTES}"
        raise ValueError(f"has a salt of {len(salt_bytes)} bytes, but must have {bounds}")
    if not MINIMUM_DIGEST_BYTES <= len(digest_bytes) <= MAXIMUM_DIGEST_BYTES:
        bounds = f"from {MINIMUM_DIGEST_BYTES} to {MAXIMUM_DIGEST_BYTES}"
        raise ValueError(f"has {count(len(digest_bytes), 'byte')}, but must have {bounds}")
    return salt_bytes, digest_bytes


def _pad(text: str) -> str:
    """Base64 of the PHC format, which has no padding."""
    return text + "=" * (-len(text) % 4)


def _need_argon2() -> None:
    need("argon2", extra="broker", by="an argon2id password hash")
