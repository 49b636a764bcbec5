"""The password file: what is read, what is refused, and how it is changed."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from semel.broker.access.file_reading import UnreadableFile, read_bounded
from semel.broker.access.names import file_name_problem, group_problem
from semel.broker.access.password_file import (
    PasswordFile,
    UserEntry,
    load_password_file,
    parse_entry,
    parse_password_file,
    remove_user,
    set_user,
)
from semel.broker.access.password_hashes import Argon2Hash, hash_password
from semel.broker.access.scram_keys import ScramKeys, make_keys, new_secret_line
from semel.settings import SettingsError
from tests.broker.core.test_access_password_hashes import mosquitto_1, mosquitto_2

QUICK = mosquitto_2(b"secret", iterations=1)
MOSQUITTO_PASSWD = shutil.which("mosquitto_passwd")


def problems_of(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(SettingsError) as caught:
        parse_password_file(data, source="users.txt")
    return list(caught.value.problems)


def private_file(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


# --- reading --------------------------------------------------------------------------------------


def test_users_groups_keys_and_comments_are_read() -> None:
    keys = make_keys("secret", iterations=4096)
    lines = (
        "# a comment",
        "",
        "   ",
        new_secret_line(),
        f"ann:{QUICK}:ops,staff",
        f"bob:{QUICK}\r",
        "press-7:*:machines",
        f"dan:{mosquitto_1(b'secret')}::{keys.text}",
        f"eve smith:{QUICK}:",
    )
    found = parse_password_file("\n".join(lines).encode(), source="users.txt")
    assert list(found.users) == ["ann", "bob", "press-7", "dan", "eve smith"]
    assert found.users["ann"].groups == ("ops", "staff")
    assert found.users["press-7"] == UserEntry("press-7", None, ("machines",))
    assert found.users["dan"].scram == keys
    assert found.has_secret
    for name in ("ann", "bob", "dan", "eve smith"):
        assert found.verify(name, b"secret")
        assert not found.verify(name, b"guess")
    assert not found.verify("press-7", b"*")
    assert not found.verify("nobody", b"secret")
    for line in lines[4:]:
        entry = parse_entry(line.strip())
        assert parse_entry(entry.line) == entry


def test_an_empty_file_has_no_users() -> None:
    found = parse_password_file(b"", source="users.txt")
    assert found.users == {}
    assert not found.has_secret
    assert not found.verify("ann", b"secret")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ann", "a line must be name:password hash[:group,group[:SCRAM keys]]"),
        (f"ann:{QUICK}:a:b:c", "a line has at most four fields separated by colons, not 5"),
        (f":{QUICK}", "the user name is empty"),
        (f"$ann:{QUICK}", "the user name begins with $"),
        (f" ann:{QUICK}", "the user name begins or ends with a space"),
        (f"a\tb:{QUICK}", "the user name contains the character U+0009"),
        (f"a\u202eb:{QUICK}", "the user name contains the character U+202E"),
        (f"{'a' * 1025}:{QUICK}", "the user name has more than 1,024 characters"),
        ("ann:secret", "the hash is of an unknown kind: it must begin with $argon2id$, or $7$"),
        ("ann:", "the hash is of an unknown kind"),
        (f"ann:{QUICK}:a,,b", "a group name is empty"),
        (f"ann:{QUICK}:a, b", "a group name begins or ends with a space"),
        (f"ann:{QUICK}:a,b,a", "a group is listed twice"),
        (f"ann:{QUICK}:{','.join(map(str, range(257)))}", "a user has at most 256 groups, not 257"),
        (f"ann:{QUICK}::x", "the SCRAM keys are not $scram-sha-256$<iterations>$"),
        ("$scram-secret$AAAA", "the SCRAM secret has 3 bytes, but must have 32"),
        ("$scram-secret$é", "the SCRAM secret is not base64"),
        ("$scram-secret$A", "the SCRAM secret is not base64"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(line: str, problem: str) -> None:
    (found,) = problems_of(f"# users\n{line}\n")
    assert found.startswith("users.txt, line 2: ")
    assert problem in found
    assert "secret" not in found.replace("SCRAM secret", "")


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    secret = new_secret_line()
    assert problems_of(f"ann\n{secret}\nbob:{QUICK}\nbob:{QUICK}\n{secret}\n") == [
        "users.txt, line 1: a line must be name:password hash[:group,group[:SCRAM keys]]",
        "users.txt, line 4: user 'bob' is on line 3 already: remove one",
        "users.txt, line 5: the file has a second SCRAM secret: remove one of them",
    ]
    assert problems_of(b"ann:\xff\n") == ["users.txt, line 1: is not UTF-8"]


def test_many_problems_are_counted() -> None:
    found = problems_of("x\n" * 23)
    assert len(found) == 21
    assert found[-1] == "users.txt: and 3 more problems"


def test_a_file_that_everyone_can_read_is_warned_of_and_one_to_write_refused(
    tmp_path: Path,
) -> None:
    path = private_file(tmp_path / "users", f"ann:{QUICK}\n")
    assert load_password_file(path).warnings == ()
    path.chmod(0o640)
    assert load_password_file(path).warnings == ()
    path.chmod(0o644)
    (warning,) = load_password_file(path).warnings
    assert warning == (
        f"{path}: every user of this machine can read the password hashes: run chmod o-rwx {path}"
    )
    path.chmod(0o602)
    with pytest.raises(SettingsError, match="every user of this machine can change this file"):
        load_password_file(path)


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, problem in (
        (tmp_path / "missing", "cannot be read: No such file or directory"),
        (tmp_path, "is a directory, not a file"),
        (pipe, "is not a regular file"),
    ):
        with pytest.raises(SettingsError) as caught:
            load_password_file(path)
        assert str(caught.value) == f"{path}: {problem}"
    large = tmp_path / "large"
    large.write_bytes(b"12345")
    assert read_bounded(large, 5) == b"12345"
    with pytest.raises(UnreadableFile, match="has more than 4 bytes"):
        read_bounded(large, 4)


def test_names_that_would_break_the_file_are_refused() -> None:
    assert file_name_problem("ann:b") == "contains a colon"
    assert file_name_problem("#ann") == "begins with #"
    assert file_name_problem("ann#") is None
    assert file_name_problem("zoë") is None
    assert group_problem("a,b") == group_problem("a:b") == "contains a comma or a colon"
    assert group_problem("a b") is None


# --- constant time --------------------------------------------------------------------------------


def test_an_unknown_user_costs_the_same_hash_as_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = Argon2Hash(64, 1, 1, b"salt salt", bytes(32))
    users = {name: UserEntry(name, quick) for name in ("ann", "bob")}
    users["old"] = parse_entry(f"old:{QUICK}")
    users["none"] = UserEntry("none", None)
    found = PasswordFile(users)
    computed: list[tuple[int, int, int, int]] = []
    original = Argon2Hash.compute

    def counted(self: Argon2Hash, password: bytes) -> bytes:
        computed.append((self.memory_kib, self.passes, self.lanes, len(self.digest)))
        return original(self, password)

    monkeypatch.setattr(Argon2Hash, "compute", counted)
    for name in ("ann", "nobody", "none"):
        computed.clear()
        assert not found.verify(name, b"guess")
        assert computed == [(64, 1, 1, 32)]


def test_without_hashes_an_unknown_user_costs_a_usual_hash() -> None:
    assert not PasswordFile({}).verify("ann", b"guess")


# --- changing -------------------------------------------------------------------------------------


def test_users_are_added_changed_and_removed_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = private_file(tmp_path / "users", f"# staff\nann:{QUICK}:ops\n\nbob:{QUICK}\n")
    assert set_user(path, UserEntry("dan", None, ("machines",)))
    new = hash_password(b"new")
    assert not set_user(path, UserEntry("ann", new, ("ops",)))
    assert path.read_text("utf-8").splitlines() == [
        "# staff",
        f"ann:{new.text}:ops",
        "",
        f"bob:{QUICK}",
        "dan:*:machines",
    ]
    assert load_password_file(path).verify("ann", b"new")
    assert remove_user(path, "bob")
    assert not remove_user(path, "bob")
    assert not remove_user(path, "an")
    set_user(path, UserEntry("eve", None))
    path.write_text("#eve: a comment\n" + path.read_text("utf-8"), "utf-8")
    assert not remove_user(path, "#eve")
    assert remove_user(path, "eve")
    assert path.read_text("utf-8").startswith("#eve: a comment\n")
    assert list(load_password_file(path).users) == ["ann", "dan"]
    assert [each.name for each in tmp_path.iterdir()] == ["users"]


def test_a_new_file_is_private_and_gets_a_secret_with_the_first_scram_user(tmp_path: Path) -> None:
    path = tmp_path / "users"
    old = os.umask(0)
    try:
        assert set_user(path, parse_entry(f"ann:{QUICK}"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not load_password_file(path).has_secret
    keys = make_keys("secret", iterations=4096)
    for name in ("bob", "dan"):
        set_user(path, UserEntry(name, None, (), keys))
    lines = path.read_text("utf-8").splitlines()
    assert [line[:14] for line in lines].count("$scram-secret$") == 1
    found = load_password_file(path)
    assert found.has_secret
    assert found.scram_keys("bob") == keys


def test_a_changed_file_keeps_its_mode_and_a_link_to_it(tmp_path: Path) -> None:
    target = private_file(tmp_path / "real", f"ann:{QUICK}\n")
    target.chmod(0o640)
    link = tmp_path / "users"
    link.symlink_to(target)
    set_user(link, parse_entry(f"bob:{QUICK}"))
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(load_password_file(link).users) == ["ann", "bob"]


def test_a_file_with_mistakes_or_a_missing_one_is_not_changed(tmp_path: Path) -> None:
    path = private_file(tmp_path / "users", "ann\n")
    with pytest.raises(SettingsError, match="line 1"):
        set_user(path, UserEntry("bob", None))
    assert path.read_text("utf-8") == "ann\n"
    with pytest.raises(SettingsError, match="No such file"):
        remove_user(tmp_path / "missing", "ann")
    empty = private_file(tmp_path / "empty", "")
    set_user(empty, UserEntry("bob", None))
    assert empty.read_text("utf-8") == "bob:*\n"


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path / "users", f"ann:{QUICK}\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        set_user(path, UserEntry("bob", None))
    assert path.read_text("utf-8") == f"ann:{QUICK}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["users"]


def test_no_change_is_lost_when_several_are_made_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users"
    entries = [UserEntry(f"user-{number}", None) for number in range(12)]
    threads = [threading.Thread(target=set_user, args=(path, each)) for each in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_password_file(path).users) == sorted(each.name for each in entries)


# --- SCRAM keys of users who do not exist ---------------------------------------------------------


def test_unknown_users_have_a_salt_that_never_changes_and_looks_like_others() -> None:
    keys = make_keys("secret", iterations=5000)
    text = f"{new_secret_line()}\nann:*::{keys.text}\nbob:{QUICK}\n".encode()
    first = parse_password_file(text, source="users.txt")
    second = parse_password_file(text, source="users.txt")
    assert first.scram_keys("ann") == second.scram_keys("ann") == keys
    for name in ("bob", "nobody"):
        fake = first.scram_keys(name)
        assert isinstance(fake, ScramKeys)
        assert fake.salt == first.scram_keys(name).salt == second.scram_keys(name).salt
        assert (len(fake.salt), fake.iterations) == (len(keys.salt), keys.iterations)
        assert fake.stored_key != first.scram_keys(name).stored_key
    assert first.scram_keys("bob").salt != first.scram_keys("nobody").salt
    other = parse_password_file(f"{new_secret_line()}\n".encode(), source="users.txt")
    assert other.scram_keys("bob").salt != first.scram_keys("bob").salt
    assert other.scram_keys("bob").iterations == 15_000
