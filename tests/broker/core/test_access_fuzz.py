"""Whatever a file contains or a client sends: an answer or a refusal, and never another error."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.access.http_hook import HookDecision, HookFailed, _parse_answer
from semel.broker.access.password_file import parse_entry, parse_password_file
from semel.broker.access.tokens import TokenRefused, is_token, load_tokens
from semel.broker.access.users_settings import UsersSettings
from semel.broker.authority import Challenge, Denied, Granted
from semel.client.scram import ScramAuthentication, ScramFailed, decode_name, encode_name
from semel.settings import SettingsError
from tests.broker.core.test_access_password_hashes import mosquitto_1, mosquitto_2
from tests.broker.core.test_access_scram import FINAL, FIRST, SERVER_FIRST, Server
from tests.broker.core.test_access_tokens import SECRET, forge, payload, secret_verifier, sign
from tests.modes import repeats

EXAMPLES = settings(max_examples=repeats(400, 80), deadline=None)
LINES = [
    f"ann:{mosquitto_2(b'secret', iterations=1)}:ops,staff",
    f"bob:{mosquitto_1(b'secret')}",
    "press-7:*:machines",
    "$scram-secret$" + base64.b64encode(bytes(32)).decode(),
]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some of them replaced, removed or repeated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 3))
        data[at : at + length] = draw(st.binary(max_size=4))
    return bytes(data)


@pytest.mark.slow
@EXAMPLES
@given(st.one_of(st.binary(max_size=200), damaged("\n".join(LINES).encode())))
def test_a_password_file_is_read_or_refused(data: bytes) -> None:
    try:
        found = parse_password_file(data, source="users.txt")
    except SettingsError:
        return
    for entry in found.users.values():
        assert parse_entry(entry.line) == entry
    assert not found.verify("nobody", b"secret")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
CLAIMS = st.dictionaries(st.sampled_from(("sub", "exp", "nbf", "iat", "aud", "iss", "x")), JSON)
HEADERS = st.dictionaries(st.sampled_from(("alg", "kid", "typ", "crit", "b64", "jwk", "zip")), JSON)


def test_a_token_without_the_secret_is_never_accepted(tmp_path: Path) -> None:
    verifier = secret_verifier(tmp_path)
    good = sign(payload(), SECRET, "HS256")
    assert verifier.verify(good).user_name == "ann"

    @EXAMPLES
    @given(
        st.one_of(
            damaged(good).filter(lambda token: token != good),
            st.builds(forge, HEADERS, CLAIMS, st.binary(max_size=32)),
            st.builds(
                lambda header, claims: forge({"alg": "HS256", **header}, claims, bytes(32)),
                HEADERS,
                CLAIMS,
            ),
        )
    )
    def check(token: bytes) -> None:
        if is_token(token) and same_signature(token, good):
            return
        with pytest.raises(TokenRefused):
            verifier.verify(token)

    check()


def same_signature(token: bytes, good: bytes) -> bool:
    """Whether only unused bits of base64 differ, which mean nothing."""

    def parts(text: bytes) -> list[bytes]:
        return [base64.urlsafe_b64decode(part + b"==") for part in text.split(b".")]

    try:
        return parts(token) == parts(good) and token.rpartition(b".")[0] == good.rpartition(b".")[0]
    except ValueError:
        return False


def test_signed_claims_of_any_kind_are_read_or_refused(tmp_path: Path) -> None:
    verifier = secret_verifier(tmp_path, jwt_groups_claim="x")

    @EXAMPLES
    @given(CLAIMS)
    def check(claims: dict[str, object]) -> None:
        from jwt import PyJWS

        token = PyJWS().encode(json.dumps(claims).encode(), SECRET, algorithm="HS256").encode()
        try:
            found = verifier.verify(token)
        except TokenRefused:
            return
        assert found.user_name == claims["sub"]
        assert all(isinstance(value, str) for value in found.claims.values())

    check()


def test_a_file_of_keys_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    @EXAMPLES
    @given(st.one_of(st.binary(max_size=100), JSON.map(lambda value: json.dumps(value).encode())))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        with pytest.raises(SettingsError):
            load_tokens(UsersSettings(jwt_keys=path))

    check()


@EXAMPLES
@given(
    st.one_of(st.none(), st.binary(max_size=60), damaged(FIRST)),
    st.one_of(st.none(), st.binary(max_size=60), damaged(FINAL)),
)
def test_no_damaged_scram_message_is_accepted(first: bytes | None, final: bytes | None) -> None:
    server = Server()
    step = server.exchange.start(first)
    if isinstance(step, Challenge):
        step = server.exchange.answer(final)
        if isinstance(step, Granted):
            # Only unused bits of base64 may differ, in the proof.
            assert final is not None
            assert (first, final.rpartition(b"p=")[0]) == (FIRST, FINAL.rpartition(b"p=")[0])
    assert isinstance(step, Denied | Granted)


@EXAMPLES
@given(st.one_of(st.binary(max_size=60), damaged(SERVER_FIRST)))
def test_the_client_answers_or_rejects_a_damaged_challenge(data: bytes) -> None:
    client = ScramAuthentication("user", "pencil")
    client.begin()
    with pytest.raises(ScramFailed):
        client.final_message(data)


@EXAMPLES
@given(st.text())
def test_every_name_survives_its_encoding(name: str) -> None:
    encoded = encode_name(name)
    assert "," not in encoded
    if "\0" not in name:
        assert decode_name(encoded) == name


@EXAMPLES
@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_an_answer_of_the_hook_is_read_or_refused(body: bytes) -> None:
    try:
        decision = _parse_answer(body)
    except HookFailed:
        return
    assert isinstance(decision, HookDecision)
    assert json.loads(body)["allow"] is decision.is_allowed
