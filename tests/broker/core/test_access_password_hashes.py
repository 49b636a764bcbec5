"""Password hashes: real ones are accepted, wrong passwords are not, and costs are bounded."""

import hashlib
from base64 import b64encode

import pytest
from argon2 import PasswordHasher

from semel import extras
from semel.broker.access.password_hashes import (
    Argon2Hash,
    Pbkdf2Hash,
    Sha512Hash,
    hash_password,
    parse_hash,
    same_cost,
)
from semel.extras import MissingExtra

SALT = b64encode(b"salty salt 16 by").decode().rstrip("=")
DIGEST = b64encode(b"d" * 32).decode().rstrip("=")


def mosquitto_2(password: bytes, *, iterations: int = 101) -> str:
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    return f"$7${iterations}${b64encode(salt).decode()}${b64encode(digest).decode()}"


def mosquitto_1(password: bytes) -> str:
    salt = b"twelve bytes"
    digest = hashlib.sha512(password + salt).digest()
    return f"$6${b64encode(salt).decode()}${b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PasswordHasher(time_cost=1, memory_cost=64, parallelism=2).hash("secret"), "argon2id"),
        (mosquitto_2(b"secret"), "PBKDF2-SHA512"),
        (mosquitto_1(b"secret"), "SHA-512"),
    ],
    ids=["argon2id", "PBKDF2-SHA512", "SHA-512"],
)
def test_a_hash_accepts_its_password_only(text: str, kind: str) -> None:
    found = parse_hash(text)
    assert found.kind == kind
    assert found.text == text
    assert found.verify(b"secret")
    for wrong in (b"", b"Secret", b"secret\n", b"secret ", b"\xff"):
        assert not found.verify(wrong)
    dummy = same_cost(found)
    assert type(dummy) is type(found)
    assert dummy != found
    assert len(dummy.text) == len(found.text)
    assert not dummy.verify(b"secret")


def test_a_new_hash_is_argon2id_that_the_library_accepts() -> None:
    first, second = hash_password(b"secret"), hash_password(b"secret")
    assert first.text != second.text
    assert parse_hash(first.text) == first
    assert PasswordHasher().verify(first.text, b"secret")
    assert first.verify(b"secret")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("secret", "is of an unknown kind: it must begin with $argon2id$"),
        ("$argon2i$v=19$m=64,t=1,p=1$x$y", "is of an unknown kind"),
        (f"$argon2id$v=19$m=64,t=1${SALT}${DIGEST}", "is not $argon2id$v=19$m="),
        (f"$argon2id$v=16$m=64,t=1,p=1${SALT}${DIGEST}", "has version 16, but only 19"),
        (f"$argon2id$v=19$m=64,t=1,p=0${SALT}${DIGEST}", "has p=0, but p must be from 1 to 16"),
        (f"$argon2id$v=19$m=640,t=1,p=17${SALT}${DIGEST}", "has p=17"),
        (f"$argon2id$v=19$m=7,t=1,p=1${SALT}${DIGEST}", "has m=7, but m must be from 8 to"),
        (f"$argon2id$v=19$m=15,t=1,p=2${SALT}${DIGEST}", "has m=15, but m must be from 16 to"),
        (f"$argon2id$v=19$m=4294967295,t=1,p=1${SALT}${DIGEST}", "has m=4294967295"),
        (f"$argon2id$v=19$m=64,t=0,p=1${SALT}${DIGEST}", "has t=0, but t must be from 1 to"),
        (f"$argon2id$v=19$m=64,t=4000000000,p=1${SALT}${DIGEST}", "has t=4000000000"),
        (f"$argon2id$v=19$m=262144,t=5,p=1${SALT}${DIGEST}", "t must be from 1 to 4 for m=262144"),
        (f"$argon2id$v=19$m=64,t=1,p=1$A${DIGEST}", "has a salt or a hash that is not base64"),
        (f"$argon2id$v=19$m=64,t=1,p=1$AAAA${DIGEST}", "has a salt of 3 bytes, but must have"),
        (f"$argon2id$v=19$m=64,t=1,p=1${SALT}$AAAA", "has 3 bytes, but must have from 16 to 128"),
        (f"$argon2id$v=19$m=64,t=1,p=1${SALT}${'A' * 400}", "has 300 bytes"),
        (f"$argon2id$v=19$m=64,t=1,p=1${'A' * 400}${DIGEST}", "has a salt of 300 bytes"),
        ("$7$101$AAAA", "is not $7$<iterations>$<salt>$<hash>"),
        (f"$7$0$AAAA${DIGEST}=", "has 0 iterations, but must have from 1 to 1000000"),
        (f"$7$1000001$AAAA${DIGEST}=", "has 1000001 iterations"),
        (f"$7$101$AAAAA${DIGEST}=", "that is not base64"),
        ("$6$AAAA", "is not $6$<salt>$<hash>"),
        (f"$6$AAAA${DIGEST}=", "has 32 bytes, but SHA-512 has 64"),
    ],
)
def test_a_hash_that_cannot_be_used_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) ") as caught:
        parse_hash(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"$argon2id$v=19$m=8,t=1,p=1${SALT}${DIGEST}",
        f"$argon2id$v=19$m=128,t=1,p=16${SALT}${DIGEST}",
        f"$argon2id$v=19$m=262144,t=4,p=1${SALT}${DIGEST}",
        f"$7$1000000$AAAA${DIGEST}=",
    ],
)
def test_a_hash_at_the_bounds_is_accepted(text: str) -> None:
    assert parse_hash(text).text == text


def test_the_three_kinds_are_distinct_types() -> None:
    assert isinstance(parse_hash(mosquitto_2(b"a")), Pbkdf2Hash)
    assert isinstance(parse_hash(mosquitto_1(b"a")), Sha512Hash)
    assert isinstance(hash_password(b"a"), Argon2Hash)


def test_without_argon2_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for call in (lambda: hash_password(b"a"), lambda: parse_hash("$argon2id$v=19$")):
        with pytest.raises(MissingExtra, match=r"hash needs argon2: pip install 'semel\[broker\]'"):
            call()
    # Mosquitto's hashes need nothing.
    assert parse_hash(mosquitto_2(b"a")).verify(b"a")
