"""Verified passwords are remembered for a while; nothing else is, and nothing that changed."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.password_file import PasswordFile, UserEntry, remove_user, set_user
from semel.broker.access.password_hashes import Argon2Hash, same_cost
from semel.broker.access.users import load_users
from semel.broker.access.users_settings import UsersSettings
from semel.broker.access.verified_passwords import VerifiedPasswords
from semel.broker.authority import Proof
from semel.broker.identity import Identity, PeerInfo
from semel.mqtt import Connect

# As cheap as argon2id can be: what counts is how often it is computed.
CHEAP = Argon2Hash(8, 1, 1, b"salt salt", bytes(32))


def hash_of(password: bytes) -> Argon2Hash:
    salted = same_cost(CHEAP)
    assert isinstance(salted, Argon2Hash)
    return replace(salted, digest=salted.compute(password))


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that were hashed by argon2id."""
    passwords: list[bytes] = []
    original = Argon2Hash.compute

    def counted(self: Argon2Hash, password: bytes) -> bytes:
        passwords.append(password)
        return original(self, password)

    monkeypatch.setattr(Argon2Hash, "compute", counted)
    return passwords


# --- the cache ------------------------------------------------------------------------------------


def test_what_was_verified_is_found_until_its_time_is_over() -> None:
    clock = Clock()
    verified = VerifiedPasswords(10, 60.0, clock=clock)
    digest = verified.digest("ann", "hash", b"secret")
    assert not verified.has(digest)
    verified.add(digest)
    clock.now = 59.9
    assert verified.has(digest)
    # A use does not prolong it.
    clock.now = 60.0
    assert not verified.has(digest)
    assert len(verified) == 0


def test_verifying_again_starts_the_time_again() -> None:
    clock = Clock()
    verified = VerifiedPasswords(10, 60.0, clock=clock)
    digest = verified.digest("ann", "hash", b"secret")
    verified.add(digest)
    clock.now = 50.0
    verified.add(digest)
    clock.now = 100.0
    assert verified.has(digest)
    assert len(verified) == 1


def test_beyond_the_maximum_the_one_that_was_not_used_is_forgotten() -> None:
    verified = VerifiedPasswords(2, 60.0, clock=Clock())
    first, second, third = (verified.digest(name, "hash", b"x") for name in ("a", "b", "c"))
    verified.add(first)
    verified.add(second)
    assert verified.has(first)
    verified.add(third)
    assert (verified.has(first), verified.has(second), verified.has(third)) == (True, False, True)
    verified.set_limits(1, 60.0)
    assert len(verified) == 1
    verified.set_limits(0, 60.0)
    verified.add(first)
    assert len(verified) == 0


def test_a_digest_depends_on_each_part_and_where_it_ends() -> None:
    verified = VerifiedPasswords(10, 60.0)
    digests = {
        verified.digest(*parts)
        for parts in (
            ("ann", "hash", b"secret"),
            ("ann", "hash", b"secreT"),
            ("ann", "Hash", b"secret"),
            ("anN", "hash", b"secret"),
            ("annh", "ash", b"secret"),
            ("ann", "hashs", b"ecret"),
            ("", "", b"annhashsecret"),
        )
    }
    assert len(digests) == 7
    # Another process, another key.
    assert VerifiedPasswords(10, 60.0).digest("ann", "hash", b"secret") not in digests


def test_many_threads_keep_the_bound() -> None:
    verified = VerifiedPasswords(50, 60.0)

    def work(name: str) -> None:
        for number in range(300):
            digest = verified.digest(name, str(number), b"x")
            verified.add(digest)
            verified.has(digest)

    threads = [threading.Thread(target=work, args=(str(each),)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verified) == 50


# --- the password file ----------------------------------------------------------------------------


def test_a_verified_password_costs_no_hash_and_any_other_does(computed: list[bytes]) -> None:
    entry = UserEntry("ann", hash_of(b"secret"))
    found = PasswordFile({"ann": entry, "none": UserEntry("none", None)})
    verified = VerifiedPasswords(10, 60.0, clock=Clock())
    computed.clear()
    assert found.verify("ann", b"secret", verified)
    assert found.verify("ann", b"secret", verified)
    assert computed == [b"secret"]
    # A failed one is not remembered, whoever it is of, and costs as much each time.
    for name in ("ann", "nobody", "none"):
        computed.clear()
        for _ in range(3):
            assert not found.verify(name, b"guess", verified)
        assert computed == [b"guess"] * 3
    assert len(verified) == 1
    # The password of one user is not that of another.
    assert not found.verify("nobody", b"secret", verified)
    assert found.verify("ann", b"secret", verified)


# --- the broker -----------------------------------------------------------------------------------


class Broker:
    """An authority with a password file that changes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.settings = UsersSettings(password_file=path)
        users = load_users(self.settings)
        self.authority = ConfiguredAuthority(users, log=print, clock=clock)

    def admits(self, user_name: str, password: bytes) -> bool:
        packet = Connect("c", user_name=user_name, password=password)
        decided = self.authority.connect(packet, PeerInfo("192.0.2.7:5000"))
        assert isinstance(decided, Proof)
        return isinstance(decided.run(), Identity)

    def reload(self, settings: UsersSettings | None = None) -> None:
        self.authority.replace(load_users(settings or self.settings), None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock) -> Broker:
    path = tmp_path / "users"
    set_user(path, UserEntry("ann", hash_of(b"secret")))
    set_user(path, UserEntry("bob", hash_of(b"other")))
    return Broker(path, clock)


def test_a_client_that_reconnects_costs_no_slow_hash(
    broker: Broker, clock: Clock, computed: list[bytes]
) -> None:
    for _ in range(100):
        assert broker.admits("ann", b"secret")
    assert computed == [b"secret"]
    assert not broker.admits("ann", b"guess")
    assert not broker.admits("nobody", b"secret")
    assert computed == [b"secret", b"guess", b"secret"]
    clock.now = 3600.0
    assert broker.admits("ann", b"secret")
    assert len(computed) == 4


def test_after_a_reload_a_changed_password_and_a_removed_user_do_not_get_in(
    broker: Broker, computed: list[bytes]
) -> None:
    assert broker.admits("ann", b"secret")
    assert broker.admits("bob", b"other")
    computed.clear()
    set_user(broker.path, UserEntry("ann", hash_of(b"new")))
    remove_user(broker.path, "bob")
    broker.reload()
    computed.clear()
    assert not broker.admits("ann", b"secret")
    assert not broker.admits("bob", b"other")
    assert broker.admits("ann", b"new")
    assert computed == [b"secret", b"other", b"new"]


def test_a_reload_without_changes_keeps_what_was_verified(
    broker: Broker, computed: list[bytes]
) -> None:
    assert broker.admits("ann", b"secret")
    broker.reload()
    assert broker.admits("ann", b"secret")
    assert computed == [b"secret"]


def test_zero_remembers_nothing(broker: Broker, computed: list[bytes]) -> None:
    assert broker.admits("ann", b"secret")
    broker.reload(replace(broker.settings, maximum_verified_passwords=0))
    assert len(broker.authority.verified) == 0
    assert broker.admits("ann", b"secret")
    assert broker.admits("ann", b"secret")
    assert computed == [b"secret"] * 3
