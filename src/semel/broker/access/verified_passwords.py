"""Remembers for a while which passwords were verified, so that a reconnect costs no slow hash.

A hash of argon2id takes tens of milliseconds by design, and a fleet that reconnects after a network
failure would wait for thousands of them. The cache has only keyed hashes: HMAC-SHA256, with a key
that is random and never leaves the process, of the user name, the hash in the password file, and
the password. So a changed or removed hash is not found any more, and nothing has to be emptied.

Only a verified password is remembered. A wrong one and one of an unknown user are looked up, too,
and then cost their slow hash every time: the time that a check takes says nothing about users to
somebody who does not know the password.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

KEY_BYTES: Final = 32


class VerifiedPasswords:
    """The passwords that were verified lately. All methods may be called in any thread."""

    def __init__(
        self, maximum: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """At most `maximum` are remembered, each for `seconds`; 0 remembers none."""
        self._clock: Final = clock
        self._key: Final = secrets.token_bytes(KEY_BYTES)
        self._lock: Final = threading.Lock()
        self._maximum = maximum
        self._seconds = seconds
        # By digest: when it was verified. The one that was not used for the longest time is first.
        self._verified_at: Final[dict[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._verified_at)

    def set_limits(self, maximum: int, seconds: float) -> None:
        """Change the limits, also of what is remembered already."""
        with self._lock:
            self._maximum = maximum
            self._seconds = seconds
            self._evict()

    def digest(self, user_name: str, hash_text: str, password: bytes) -> bytes:
        """The digest for `has` and `add`. It depends on every bit of the three."""
        made = hmac.new(self._key, digestmod="sha256")
        for part in (user_name.encode(), hash_text.encode(), password):
            made.update(len(part).to_bytes(8))
            made.update(part)
        return made.digest()

    def has(self, digest: bytes) -> bool:
        """Whether this password was verified, not longer ago than the limit."""
        with self._lock:
            verified_at = self._verified_at.pop(digest, None)
            if verified_at is None or self._clock() >= verified_at + self._seconds:
                return False
            # Now it is the one that was used last; its time is still that of its verification.
            self._verified_at[digest] = verified_at
            return True

    def add(self, digest: bytes) -> None:
        """Remember a password, because it was verified just now."""
        with self._lock:
            self._verified_at.pop(digest, None)
            self._verified_at[digest] = self._clock()
            self._evict()

    def _evict(self) -> None:
        while len(self._verified_at) > self._maximum:
            del self._verified_at[next(iter(self._verified_at))]
