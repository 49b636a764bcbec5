"""SCRAM-SHA-256 [RFC 5802, RFC 7677] as an authentication method of MQTT 5.0, without TLS binding.

    client                                   server
    CONNECT  n,,n=ann,r=<nonce>        ─▶
             ◀─  AUTH 0x18  r=<nonces>,s=<salt>,i=<iterations>
    AUTH 0x18  c=biws,r=<nonces>,p=<proof>   ─▶
             ◀─  CONNACK    v=<signature>

The password is never sent, and the server stores only keys from which it cannot be computed. Both
sides prove that they know it. This module has the client's side and what both sides compute.
"""

import asyncio
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Awaitable
from typing import Final

from semel.client.authentication import ClientAuthentication

METHOD: Final = "SCRAM-SHA-256"
# [RFC 7677 §4] at least; the maximum takes about a quarter of a second.
MINIMUM_ITERATIONS: Final = 4_096
MAXIMUM_ITERATIONS: Final = 600_000
NONCE_BYTES: Final = 18
MAXIMUM_MESSAGE_BYTES: Final = 8_192

# [RFC 5802 §7] printable ASCII without the comma
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,1024}")
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramFailed(Exception):
    """Why an exchange failed, in one sentence."""


# --- what both sides compute ----------------------------------------------------------------------


def prepare_text(text: str) -> str:
    """SASLprep [RFC 4013] of a user name or password, with unassigned characters allowed.

    Raises ValueError with what is wrong, to follow "the password".
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared:
        raise ValueError("is empty")
    for character in prepared:
        if any(is_prohibited(character) for is_prohibited in _PROHIBITED):
            raise ValueError(f"contains the character U+{ord(character):04X}")
    # [RFC 3454 §6] text from right to left begins and ends so, and has nothing from left to right
    if any(map(stringprep.in_table_d1, prepared)):
        is_mixed = any(map(stringprep.in_table_d2, prepared))
        has_ends = all(map(stringprep.in_table_d1, (prepared[0], prepared[-1])))
        if is_mixed or not has_ends:
            raise ValueError("mixes text from right to left with other text")
    return prepared


def salt_password(password: str, salt: bytes, *, iterations: int) -> bytes:
    """SaltedPassword [RFC 5802 §3]. Slow by design. Raises ValueError as `prepare_text` does."""
    prepared = prepare_text(password).encode()
    return hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)


def client_key(salted_password: bytes) -> bytes:
    """ClientKey, which only the client can compute."""
    return hmac.digest(salted_password, b"Client Key", "sha256")


def stored_key(client_key: bytes) -> bytes:
    """StoredKey, by which the server checks the client."""
    return hashlib.sha256(client_key).digest()


def server_key(salted_password: bytes) -> bytes:
    """ServerKey, by which the server proves that it knows the user."""
    return hmac.digest(salted_password, b"Server Key", "sha256")


def exclusive_or(left: bytes, right: bytes) -> bytes:
    """The bits in which two keys differ."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def new_nonce() -> str:
    """A random nonce."""
    return b64encode(secrets.token_bytes(NONCE_BYTES)).decode()


def is_nonce(text: str) -> bool:
    """Whether a nonce has allowed characters only."""
    return _NONCE.fullmatch(text) is not None


def decode_message(data: bytes | None) -> str:
    """The text of a message. Raises ScramFailed."""
    if data is None:
        raise ScramFailed("a SCRAM message is missing")
    if len(data) > MAXIMUM_MESSAGE_BYTES:
        raise ScramFailed(f"a SCRAM message has more than {MAXIMUM_MESSAGE_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a SCRAM message is not UTF-8") from None


def read_attributes(message: str, *names: str) -> list[str]:
    """The values of the attributes with which a message begins, in this order.

    Attributes after them are extensions and ignored, but a mandatory one (m=) is not supported.
    Raises ScramFailed.
    """
    parts = message.split(",")
    values = []
    for index, name in enumerate(names):
        if index >= len(parts) or not parts[index].startswith(f"{name}="):
            raise ScramFailed(f"a SCRAM message has no attribute {name}= where it must have one")
        values.append(parts[index][2:])
    return values


def decode_value(text: str) -> bytes:
    """The bytes of a base64 value. Raises ScramFailed."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed("a SCRAM message has a value that is not base64") from None


def encode_name(name: str) -> str:
    """A user name as a message contains it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: str) -> str:
    """The user name in a message. Raises ScramFailed."""
    plain = text.replace("=2C", ",").replace("=3D", "\0")
    if "=" in plain or "\0" in text:
        raise ScramFailed("the user name in a SCRAM message is not encoded correctly")
    return plain.replace("\0", "=")


# --- the client -----------------------------------------------------------------------------------


class ScramAuthentication(ClientAuthentication):
    """Authenticates with a user name and a password by SCRAM-SHA-256.

    Raises ValueError for a name or password that SASLprep does not allow. A server that asks for
    fewer than 4,096 or more than 600,000 iterations, or cannot prove that it knows the user, is
    rejected with ScramFailed.
    """

    def __init__(self, user_name: str, password: str) -> None:
        super().__init__(METHOD)
        try:
            self._name = prepare_text(user_name)
        except ValueError as problem:
            raise ValueError(f"the user name {problem}") from None
        try:
            prepare_text(password)
        except ValueError as problem:
            raise ValueError(f"the password {problem}") from None
        self._password = password
        self._nonce = ""
        self._signature: bytes | None = None
        # The salted password, which takes long to compute, with its salt and iterations: the same
        # on every connection to a server that keeps them.
        self._salted: tuple[bytes, int, bytes] | None = None

    def begin(self) -> bytes:
        """The client-first message."""
        self._nonce = new_nonce()
        self._signature = None
        return f"n,,{self._first_bare()}".encode()

    def respond(self, data: bytes | None) -> Awaitable[bytes | None]:
        """The client-final message, computed in another thread because it takes long."""
        return asyncio.to_thread(self.final_message, data)

    def final_message(self, data: bytes | None) -> bytes:
        """The client-final message for a server-first message. Raises ScramFailed."""
        server_first = decode_message(data)
        nonce, salt, count = read_attributes(server_first, "r", "s", "i")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not is_nonce(nonce):
            raise ScramFailed("the server did not extend the nonce of the client")
        if re.fullmatch(r"[0-9]{1,9}", count) is None:
            raise ScramFailed("the server sent an iteration count that is not a number")
        iterations = int(count)
        if not MINIMUM_ITERATIONS <= iterations <= MAXIMUM_ITERATIONS:
            bounds = f"from {MINIMUM_ITERATIONS} to {MAXIMUM_ITERATIONS} are accepted"
            raise ScramFailed(f"the server asks for {iterations} iterations, but {bounds}")
        salted = self._salt_password(decode_value(salt), iterations)
        without_proof = f"c=biws,r={nonce}"
        messages = f"{self._first_bare()},{server_first},{without_proof}".encode()
        key = client_key(salted)
        signature = hmac.digest(stored_key(key), messages, "sha256")
        proof = b64encode(exclusive_or(key, signature)).decode()
        self._signature = hmac.digest(server_key(salted), messages, "sha256")
        return f"{without_proof},p={proof}".encode()

    def _salt_password(self, salt: bytes, iterations: int) -> bytes:
        known = self._salted
        if known is None or known[:2] != (salt, iterations):
            computed = salt_password(self._password, salt, iterations=iterations)
            self._salted = known = (salt, iterations, computed)
        return known[2]

    def finish(self, data: bytes | None) -> None:
        """Verify the signature of the server. Raises ScramFailed."""
        (value,) = read_attributes(decode_message(data), "v")
        expected = self._signature
        if expected is None or not hmac.compare_digest(decode_value(value), expected):
            raise ScramFailed("the server could not prove that it knows the user")

    def _first_bare(self) -> str:
        return f"n={encode_name(self._name)},r={self._nonce}"
