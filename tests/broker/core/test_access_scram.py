"""SCRAM-SHA-256: the example of RFC 7677, both sides together, and every way to fail."""

import asyncio
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable

import pytest

from semel.broker.access.scram import ScramServerExchange
from semel.broker.access.scram_keys import (
    ScramKeys,
    fake_keys,
    make_keys,
    new_secret_line,
    parse_keys,
    parse_secret,
)
from semel.broker.authority import Challenge, Denied, Granted, Step
from semel.broker.identity import Identity
from semel.client import scram as client_module
from semel.client.scram import (
    METHOD,
    ScramAuthentication,
    ScramFailed,
    client_key,
    decode_name,
    encode_name,
    exclusive_or,
    prepare_text,
    salt_password,
    server_key,
    stored_key,
)

# [RFC 7677 §3] the user is "user", the password "pencil".
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def keys_with(salt: bytes, iterations: int, password: str) -> ScramKeys:
    salted = salt_password(password, salt, iterations=iterations)
    return ScramKeys(iterations, salt, stored_key(client_key(salted)), server_key(salted))


RFC_KEYS = keys_with(SALT, 4096, "pencil")
QUICK = {"user": RFC_KEYS, "bob": keys_with(b"salt", 4096, "secret")}
REFUSED = Denied(0x86)


class Server:
    """A server's side with the users of QUICK, and what it refused."""

    def __init__(self, user_name: str | None = None, nonce: str = SERVER_NONCE) -> None:
        self.refused: list[tuple[str | None, str]] = []
        self.may_connect = True
        self.exchange = ScramServerExchange(
            keys_of=self.keys_of,
            grant=self.grant,
            refuse=self.refuse,
            user_name=user_name,
            make_nonce=lambda: nonce,
        )

    def keys_of(self, name: str) -> ScramKeys:
        return QUICK[name] if name in QUICK else fake_keys(name, bytes(32), iterations=4096)

    def grant(self, name: str) -> Identity | Denied:
        return Identity("c", user_name=name) if self.may_connect else Denied(0x8A)

    def refuse(self, name: str | None, sentence: str) -> Denied:
        self.refused.append((name, sentence))
        return REFUSED


def data_of(step: Step) -> bytes:
    assert isinstance(step, Challenge | Granted)
    assert step.data is not None
    return step.data


def log_in(server: Server, user_name: str, password: str) -> tuple[ScramAuthentication, Step]:
    """Both sides together, as far as they get."""
    client = ScramAuthentication(user_name, password)
    step = server.exchange.start(client.begin())
    if isinstance(step, Denied):
        return client, step
    return client, server.exchange.answer(client.final_message(data_of(step)))


# --- the example of the standard ------------------------------------------------------------------


def test_the_server_exchanges_the_messages_of_rfc_7677() -> None:
    server = Server()
    assert data_of(server.exchange.start(FIRST)) == SERVER_FIRST
    step = server.exchange.answer(FINAL)
    assert isinstance(step, Granted)
    assert step.data == SERVER_FINAL
    assert step.identity is not None
    assert step.identity.user_name == "user"
    assert server.refused == []


def test_the_client_exchanges_the_messages_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "new_nonce", lambda: CLIENT_NONCE)
    client = ScramAuthentication("user", "pencil")
    assert client.method == METHOD == "SCRAM-SHA-256"
    assert client.begin() == FIRST

    async def respond() -> bytes | None:
        return await client.respond(SERVER_FIRST)

    assert asyncio.run(respond()) == FINAL
    client.finish(SERVER_FINAL)


# --- both sides together --------------------------------------------------------------------------


def test_a_right_password_is_accepted_and_the_server_proves_itself() -> None:
    server = Server()
    client, step = log_in(server, "bob", "secret")
    assert isinstance(step, Granted)
    client.finish(step.data)


def test_a_wrong_password_and_an_unknown_user_fail_alike() -> None:
    for name in ("bob", "nobody"):
        server = Server()
        _, step = log_in(server, name, "guess")
        assert step is REFUSED
        assert server.refused == [(name, "unknown user or wrong password")]


def test_a_user_whom_the_authority_refuses_does_not_get_in() -> None:
    server = Server()
    server.may_connect = False
    _, step = log_in(server, "bob", "secret")
    assert isinstance(step, Denied)
    assert step.reason == 0x8A


def test_a_client_can_re_authenticate_as_the_same_user_only() -> None:
    server = Server()
    for _ in range(2):
        client, step = log_in(server, "bob", "secret")
        assert isinstance(step, Granted)
        client.finish(step.data)
    _, step = log_in(server, "user", "pencil")
    assert step is REFUSED
    assert server.refused == [("user", "this connection belongs to user 'bob'")]
    # The failed attempt has changed nothing.
    assert isinstance(log_in(server, "bob", "secret")[1], Granted)


def test_the_user_name_of_connect_must_be_the_same() -> None:
    assert isinstance(log_in(Server("bob"), "bob", "secret")[1], Granted)
    server = Server("ann")
    assert log_in(server, "bob", "secret")[1] is REFUSED
    assert server.refused == [("bob", "this connection belongs to user 'ann'")]


def test_an_answer_cannot_be_replayed() -> None:
    first = Server(nonce="one")
    client = ScramAuthentication("bob", "secret")
    begin = client.begin()
    final = client.final_message(data_of(first.exchange.start(begin)))
    assert isinstance(first.exchange.answer(final), Granted)
    second = Server(nonce="two")
    second.exchange.start(begin)
    assert second.exchange.answer(final) is REFUSED
    assert second.refused == [("bob", "the client repeated another nonce")]


# --- broken messages to the server ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "a SCRAM message is missing"),
        (b"", "the client requires channel binding, or its message is malformed"),
        (b"n", "the client requires channel binding, or its message is malformed"),
        (b"n,", "the client requires channel binding, or its message is malformed"),
        (b"p=tls-unique,,n=bob,r=x", "the client requires channel binding"),
        (b"n,a=ann,n=bob,r=x", "the client wants to act for another user"),
        (b"n,,m=x,n=bob,r=x", "has no attribute n= where it must have one"),
        (b"n,,n=bob", "has no attribute r= where it must have one"),
        (b"n,,n=bob,r=", "the nonce of the client is malformed"),
        (b"n,,n=bob,r=a b", "the nonce of the client is malformed"),
        (b"n,,n=bob,r=" + b"x" * 1025, "the nonce of the client is malformed"),
        (b"n,,n=b=ob,r=x", "the user name in a SCRAM message is not encoded correctly"),
        (b"n,,n=,r=x", "the user name is empty"),
        (b"n,,n=a\x00b,r=x", "the user name in a SCRAM message is not encoded correctly"),
        (b"n,,n=a\x07b,r=x", "the user name contains the character U+0007"),
        (b"n,,n=" + b"a" * 1025 + b",r=x", "the user name has more than 1,024 characters"),
        (b"n,,n=\xff,r=x", "a SCRAM message is not UTF-8"),
        (b"n,,n=bob,r=" + b"x" * 9000, "a SCRAM message has more than 8,192 bytes"),
    ],
)
def test_a_broken_first_message_is_refused(data: bytes | None, sentence: str) -> None:
    server = Server()
    assert server.exchange.start(data) is REFUSED
    ((_, found),) = server.refused
    assert sentence in found


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: None, "a SCRAM message is missing"),
        (lambda data: b"", "the last SCRAM message of the client has no proof"),
        (lambda data: data.replace(b"c=biws", b"c=eSws"), "channel binding of the client differs"),
        (lambda data: data.replace(b"c=biws", b"c=!"), "has a value that is not base64"),
        (lambda data: data.replace(b"c=biws,", b""), "has no attribute c= where it must have one"),
        (lambda data: data.replace(b"r=r", b"r=s"), "the client repeated another nonce"),
        (lambda data: data.replace(b"r=r", "r=é".encode()), "repeated another nonce"),
        (lambda data: data[:-44] + b"AAAA", "the proof of the client does not have 32 bytes"),
        (lambda data: data[:-1] + b"!", "has a value that is not base64"),
        (
            lambda data: data[:-44] + b64encode(bytes(32)),
            "unknown user or wrong password",
        ),
    ],
)
def test_a_broken_last_message_is_refused(
    change: Callable[[bytes], bytes | None], sentence: str
) -> None:
    server = Server()
    server.exchange.start(FIRST)
    assert server.exchange.answer(change(FINAL)) is REFUSED
    ((name, found),) = server.refused
    assert name == "user"
    assert sentence in found


@pytest.mark.parametrize(("binding", "is_granted"), [(b"eSws", True), (b"biws", False)])
def test_a_client_that_could_bind_the_channel_is_accepted_without(
    binding: bytes, is_granted: bool
) -> None:
    # "y": the client supports channel binding, but believes that the server does not.
    server = Server()
    bare = FIRST.removeprefix(b"n,,")
    server_first = data_of(server.exchange.start(b"y,," + bare))
    without_proof = FINAL.rpartition(b",p=")[0].replace(b"biws", binding)
    key = client_key(salt_password("pencil", SALT, iterations=4096))
    messages = b",".join((bare, server_first, without_proof))
    proof = exclusive_or(key, hmac.digest(stored_key(key), messages, "sha256"))
    step = server.exchange.answer(without_proof + b",p=" + b64encode(proof))
    assert isinstance(step, Granted) is is_granted


# --- broken messages to the client ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "a SCRAM message is missing"),
        (b"r=other,s=AAAA,i=4096", "the server did not extend the nonce of the client"),
        (b"r=NONCE,s=AAAA,i=4096", "the server did not extend the nonce of the client"),
        (b"r=NONCE x,s=AAAA,i=4096", "the server did not extend the nonce of the client"),
        (b"r=NONCEx,s=AAAA,i=many", "an iteration count that is not a number"),
        (b"r=NONCEx,s=AAAA,i=4095", "asks for 4095 iterations, but from 4096 to 600000 are"),
        (b"r=NONCEx,s=AAAA,i=600001", "asks for 600001 iterations"),
        (b"r=NONCEx,s=!,i=4096", "has a value that is not base64"),
        (b"m=x,r=NONCEx,s=AAAA,i=4096", "has no attribute r= where it must have one"),
    ],
)
def test_the_client_rejects_a_broken_challenge(
    data: bytes | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "new_nonce", lambda: "NONCE")
    client = ScramAuthentication("bob", "secret")
    client.begin()
    with pytest.raises(ScramFailed, match=sentence):
        client.final_message(data)


def test_the_client_rejects_a_server_that_does_not_know_the_user() -> None:
    client, step = log_in(Server(), "bob", "secret")
    for data in (b"v=" + b64encode(bytes(32)), b"v=!", b"e=other-error", b"", None):
        with pytest.raises(ScramFailed):
            client.finish(data)
    client.finish(data_of(step))
    client.begin()
    with pytest.raises(ScramFailed, match="could not prove that it knows the user"):
        client.finish(data_of(step))


@pytest.mark.parametrize(
    ("name", "password", "sentence"),
    [
        ("", "secret", "the user name is empty"),
        ("a\0", "secret", r"the user name contains the character U\+0000"),
        ("ann", "", "the password is empty"),
        ("ann", "\u00ad", "the password is empty"),
        ("ann", "\ue000", r"the password contains the character U\+E000"),
    ],
)
def test_a_name_or_password_that_cannot_be_prepared_is_refused(
    name: str, password: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ScramAuthentication(name, password)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # [RFC 4013 §3]
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_text_is_prepared_as_rfc_4013_says(text: str, expected: str) -> None:
    assert prepare_text(text) == expected


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0627", "\ufffd"])
def test_text_that_rfc_4013_prohibits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"contains|mixes"):
        prepare_text(text)


@pytest.mark.parametrize("name", ["ann", "a,b", "a=b", "=2C", "=3D,", "é"])
def test_names_survive_their_encoding(name: str) -> None:
    assert "," not in encode_name(name)
    assert decode_name(encode_name(name)) == name


def test_a_name_with_comma_and_equals_sign_can_log_in() -> None:
    QUICK["a,b=c"] = QUICK["bob"]
    try:
        assert isinstance(log_in(Server(), "a,b=c", "secret")[1], Granted)
    finally:
        del QUICK["a,b=c"]


# --- keys in the file -----------------------------------------------------------------------------


def test_keys_survive_the_file() -> None:
    keys = make_keys("secret", iterations=4096)
    assert parse_keys(keys.text) == keys
    assert make_keys("secret").iterations == 15_000
    assert make_keys("secret").salt != make_keys("secret").salt
    with pytest.raises(ValueError, match="is empty"):
        make_keys("")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text + "$", "are not $scram-sha-256$<iterations>$<salt>"),
        (lambda text: text.replace("$4096$", "$4095$"), "have 4095 iterations, but must have from"),
        (lambda text: text.replace("$4096$", "$600001$"), "have 600001 iterations"),
        (lambda text: text.replace("$W22Z", "$W22ZA"), "have a part that is not base64"),
        (lambda text: text.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "A" * 400), "a salt of 300 bytes"),
        (lambda text: text.rpartition("$")[0] + "$AAAA", "have a key that does not have 32 bytes"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(change: Callable[[str], str], problem: str) -> None:
    assert parse_keys(RFC_KEYS.text) == RFC_KEYS
    with pytest.raises(ValueError, match=r"have|are not") as caught:
        parse_keys(change(RFC_KEYS.text))
    assert problem in str(caught.value)


def test_a_secret_survives_the_file() -> None:
    line = new_secret_line()
    assert len(parse_secret(line)) == 32
    assert parse_secret(line) != parse_secret(new_secret_line())
