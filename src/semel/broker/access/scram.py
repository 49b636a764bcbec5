"""The server's side of SCRAM-SHA-256 [RFC 5802, RFC 7677], without channel binding.

The password file has the keys, so nothing here is slow, and all of it runs on the event loop. An
unknown user gets a salt and fails in the last step only, as with a wrong password. `semel.client.
scram` has the client's side and describes the messages.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from semel.broker.access.names import name_problem
from semel.broker.access.scram_keys import KEY_BYTES, ScramKeys
from semel.broker.authority import Challenge, Denied, Granted, ServerAuthentication, Step
from semel.broker.identity import Identity
from semel.client.scram import (
    ScramFailed,
    decode_message,
    decode_name,
    decode_value,
    exclusive_or,
    is_nonce,
    new_nonce,
    prepare_text,
    read_attributes,
    stored_key,
)


class ScramServerExchange(ServerAuthentication):
    """The SCRAM authentication of one connection, and its later re-authentications."""

    def __init__(
        self,
        *,
        keys_of: Callable[[str], ScramKeys],
        grant: Callable[[str], Identity | Denied],
        refuse: Callable[[str | None, str], Denied],
        user_name: str | None,
        make_nonce: Callable[[], str] = new_nonce,
    ) -> None:
        """`grant` decides about a user who has proved its name, `refuse` counts a failure.

        `user_name` is that of CONNECT; if it is not None, no other user is accepted.
        """
        self._keys_of: Final = keys_of
        self._grant: Final = grant
        self._refuse: Final = refuse
        self._make_nonce: Final = make_nonce
        # After the first success no other user is accepted, either.
        self._expected = user_name
        self._name = ""
        self._header = ""
        self._nonce = ""
        self._messages = ""
        self._keys: ScramKeys | None = None

    def start(self, data: bytes | None) -> Step:
        """Answer the client-first message with the salt."""
        self._keys = None
        self._name = ""
        try:
            return self._server_first(decode_message(data))
        except ScramFailed as problem:
            return self._fail(str(problem))

    def answer(self, data: bytes | None) -> Step:
        """Check the proof in the client-final message."""
        keys, self._keys = self._keys, None
        assert keys is not None, "the broker calls it after a Challenge"
        try:
            return self._server_final(keys, decode_message(data))
        except ScramFailed as problem:
            return self._fail(str(problem))

    def _server_first(self, message: str) -> Step:
        binding, comma, rest = message.partition(",")
        authorization, second_comma, bare = rest.partition(",")
        if not comma or not second_comma or binding not in ("n", "y"):
            raise ScramFailed("the client requires channel binding, or its message is malformed")
        if authorization:
            raise ScramFailed("the client wants to act for another user, which is not supported")
        self._header = f"{binding},,"
        encoded_name, nonce = read_attributes(bare, "n", "r")
        if not is_nonce(nonce):
            raise ScramFailed("the nonce of the client is malformed")
        name = decode_name(encoded_name)
        try:
            name = prepare_text(name)
        except ValueError as problem:
            raise ScramFailed(f"the user name {problem}") from None
        problem_with_name = name_problem(name)
        if problem_with_name is not None:
            raise ScramFailed(f"the user name {problem_with_name}")
        self._name = name
        if self._expected not in (None, name):
            raise ScramFailed(f"this connection belongs to user {self._expected!a}")
        self._keys = self._keys_of(name)
        self._nonce = nonce + self._make_nonce()
        salt = b64encode(self._keys.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        self._messages = f"{bare},{server_first}"
        return Challenge(server_first.encode())

    def _server_final(self, keys: ScramKeys, message: str) -> Step:
        without_proof, separator, proof_text = message.rpartition(",p=")
        if not separator:
            raise ScramFailed("the last SCRAM message of the client has no proof")
        binding, nonce = read_attributes(without_proof, "c", "r")
        if decode_value(binding) != self._header.encode():
            raise ScramFailed("the channel binding of the client differs from its first message")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise ScramFailed("the client repeated another nonce")
        proof = decode_value(proof_text)
        if len(proof) != KEY_BYTES:
            raise ScramFailed("the proof of the client does not have 32 bytes")
        messages = f"{self._messages},{without_proof}".encode()
        signature = hmac.digest(keys.stored_key, messages, "sha256")
        client_key = exclusive_or(proof, signature)
        if not hmac.compare_digest(stored_key(client_key), keys.stored_key):
            return self._fail("unknown user or wrong password")
        granted = self._grant(self._name)
        if isinstance(granted, Denied):
            return granted
        self._expected = self._name
        verifier = b64encode(hmac.digest(keys.server_key, messages, "sha256")).decode()
        return Granted(f"v={verifier}".encode(), identity=granted)

    def _fail(self, sentence: str) -> Denied:
        return self._refuse(self._name or None, sentence)
