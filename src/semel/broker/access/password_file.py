"""The password file: the users of a broker, one per line.

    name:password hash[:group,group[:SCRAM keys]]

    ann:$argon2id$v=19$m=19456,t=2,p=1$…$…:ops,staff
    press-7:*:machines

A `*` instead of the hash is a user without a password, who authenticates by a certificate. Empty
lines and lines that begin with # are ignored. A password file of Mosquitto is such a file, too.

Everything that is wrong with a file is reported at once, with its line. `set_user` and
`remove_user` replace the file in one step, so that a broker reads either the old or the new one.
"""

import fcntl
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from semel.broker.access.file_reading import (
    OTHERS_READ,
    OTHERS_WRITE,
    UnreadableFile,
    read_with_mode,
)
from semel.broker.access.names import MAXIMUM_GROUPS, file_name_problem, group_problem
from semel.broker.access.password_hashes import (
    LANES,
    MEMORY_KIB,
    NEW_DIGEST_BYTES,
    NEW_SALT_BYTES,
    PASSES,
    Argon2Hash,
    PasswordHash,
    parse_hash,
    same_cost,
)
from semel.broker.access.scram_keys import (
    KEY_BYTES,
    NEW_ITERATIONS,
    SECRET_PREFIX,
    ScramKeys,
    fake_keys,
    new_secret_line,
    parse_keys,
    parse_secret,
)
from semel.broker.access.verified_passwords import VerifiedPasswords
from semel.counts import count
from semel.settings import SettingsError

MAXIMUM_FILE_BYTES: Final = 256 * 1024 * 1024
# More problems than this are counted, not listed.
MAXIMUM_PROBLEMS: Final = 20
NO_PASSWORD: Final = "*"

T = TypeVar("T")


@dataclass(frozen=True)
class UserEntry:
    """One user of the file."""

    name: str
    # None: the user has no password.
    password: PasswordHash | None
    groups: tuple[str, ...] = ()
    # None: the user cannot authenticate by SCRAM.
    scram: ScramKeys | None = None

    @property
    def line(self) -> str:
        """The entry as the file has it."""
        fields = [
            self.name,
            NO_PASSWORD if self.password is None else self.password.text,
            ",".join(self.groups),
            "" if self.scram is None else self.scram.text,
        ]
        while len(fields) > 2 and not fields[-1]:
            fields.pop()
        return ":".join(fields)


class PasswordFile:
    """The users of one file, as the broker looks them up."""

    def __init__(
        self,
        users: dict[str, UserEntry],
        *,
        scram_secret: bytes | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.users: Final = users
        self.warnings: Final = warnings
        self.has_secret: Final = scram_secret is not None
        self._secret: Final = (
            secrets.token_bytes(KEY_BYTES) if scram_secret is None else scram_secret
        )
        # What most users have, so that a check for an unknown user takes as long as theirs.
        counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        models: dict[tuple[str, tuple[int, ...]], PasswordHash] = {}
        for each in users.values():
            if each.password is not None:
                cost = (each.password.kind, each.password.cost)
                counts[cost] += 1
                models[cost] = each.password
        self._dummy: Final = same_cost(models[counts.most_common(1)[0][0]] if counts else _usual())
        iterations = Counter(each.scram.iterations for each in users.values() if each.scram)
        self._iterations: Final = iterations.most_common(1)[0][0] if iterations else NEW_ITERATIONS

    def verify(self, name: str, password: bytes, verified: VerifiedPasswords | None = None) -> bool:
        """Whether the user exists and has this password.

        Computes one slow hash in either case, unless `verified` has this password.
        """
        entry = self.users.get(name)
        known = None if entry is None else entry.password
        expected = self._dummy if known is None else known
        if verified is None:
            return expected.verify(password) and known is not None
        # Also for an unknown user, who would otherwise be refused a little sooner.
        digest = verified.digest(name, expected.text, password)
        if verified.has(digest):
            return True
        is_correct = expected.verify(password) and known is not None
        if is_correct:
            verified.add(digest)
        return is_correct

    def scram_keys(self, name: str) -> ScramKeys:
        """The SCRAM keys of a user; of one without keys, those of no password."""
        entry = self.users.get(name)
        if entry is None or entry.scram is None:
            return fake_keys(name, self._secret, iterations=self._iterations)
        return entry.scram


def _usual() -> Argon2Hash:
    return Argon2Hash(MEMORY_KIB, PASSES, LANES, bytes(NEW_SALT_BYTES), bytes(NEW_DIGEST_BYTES))


# --- reading --------------------------------------------------------------------------------------


def load_password_file(path: Path) -> PasswordFile:
    """Read a password file. Raises SettingsError with everything that is wrong in it."""
    try:
        data, mode = read_with_mode(path, MAXIMUM_FILE_BYTES)
    except UnreadableFile as problem:
        raise SettingsError([f"{path}: {problem}"]) from None
    if mode & OTHERS_WRITE:
        raise SettingsError(
            [f"{path}: every user of this machine can change this file: run chmod o-rwx {path}"]
        )
    warnings = []
    if mode & OTHERS_READ:
        warnings.append(
            f"{path}: every user of this machine can read the password hashes: "
            f"run chmod o-rwx {path}"
        )
    return parse_password_file(data, source=str(path), warnings=tuple(warnings))


def parse_password_file(
    data: bytes, *, source: str, warnings: tuple[str, ...] = ()
) -> PasswordFile:
    """The users in the bytes of a file, which messages call `source`. Raises SettingsError."""
    users: dict[str, UserEntry] = {}
    lines: dict[str, int] = {}
    secret: bytes | None = None
    problems: list[str] = []
    for number, line in _lines(data, source):
        try:
            if line.startswith(SECRET_PREFIX):
                if secret is not None:
                    raise ValueError("the file has a second SCRAM secret: remove one of them")
                secret = _parse_part("the SCRAM secret", parse_secret, line)
                continue
            entry = parse_entry(line)
            if entry.name in users:
                first = lines[entry.name]
                raise ValueError(f"user {entry.name!r} is on line {first} already: remove one")
            users[entry.name] = entry
            lines[entry.name] = number
        except ValueError as problem:
            problems.append(f"{source}, line {number}: {problem}")
    if problems:
        more = len(problems) - MAXIMUM_PROBLEMS
        if more > 0:
            problems[MAXIMUM_PROBLEMS:] = [f"{source}: and {count(more, 'more problem')}"]
        raise SettingsError(problems)
    return PasswordFile(users, scram_secret=secret, warnings=warnings)


def parse_entry(line: str) -> UserEntry:
    """The user in a line. Raises ValueError with a sentence that does not quote the hash."""
    fields = line.split(":")
    if len(fields) < 2:
        raise ValueError("a line must be name:password hash[:group,group[:SCRAM keys]]")
    if len(fields) > 4:
        raise ValueError(f"a line has at most four fields separated by colons, not {len(fields)}")
    name, hash_text, groups_text, scram_text = fields + [""] * (4 - len(fields))
    problem = file_name_problem(name)
    if problem is not None:
        raise ValueError(f"the user name {problem}")
    groups = tuple(groups_text.split(",")) if groups_text else ()
    check_groups(groups)
    password = None
    if hash_text != NO_PASSWORD:
        password = _parse_part("the hash", parse_hash, hash_text)
    scram = _parse_part("the SCRAM keys", parse_keys, scram_text) if scram_text else None
    return UserEntry(name, password, groups, scram)


def check_groups(groups: tuple[str, ...]) -> None:
    """Raises ValueError if these cannot be the groups of a user."""
    if len(groups) > MAXIMUM_GROUPS:
        raise ValueError(f"a user has at most {MAXIMUM_GROUPS} groups, not {len(groups)}")
    for group in groups:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(f"a group name {problem}")
    if len(set(groups)) != len(groups):
        raise ValueError("a group is listed twice")


def _parse_part(what: str, parse: Callable[[str], T], text: str) -> T:
    """Parse a part of a line. Raises ValueError with a sentence about this part."""
    try:
        return parse(text)
    except ValueError as problem:
        raise ValueError(f"{what} {problem}") from None


def _lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    """The lines that are neither empty nor a comment, with their numbers. Raises SettingsError."""
    for number, raw in enumerate(data.split(b"\n"), 1):
        try:
            line = raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise SettingsError([f"{source}, line {number}: is not UTF-8"]) from None
        if line.strip() and not line.startswith("#"):
            yield number, line


# --- editing --------------------------------------------------------------------------------------


def set_user(path: Path, entry: UserEntry) -> bool:
    """Add a user to the file, or replace it. Returns whether the user is new.

    Creates the file, readable by its owner only, if there is none. Raises SettingsError if the
    file has mistakes, and OSError if it cannot be written.
    """
    with _locked_folder(path):
        lines = _read_lines(path, may_be_missing=True)
        index = _index_of(entry.name, lines)
        if index is None:
            lines.append(entry.line)
        else:
            lines[index] = entry.line
        if entry.scram is not None and not any(map(_is_secret, lines)):
            lines.insert(0, new_secret_line())
        _replace_file(path, lines)
    return index is None


def remove_user(path: Path, name: str) -> bool:
    """Remove a user from the file. Returns False if there is no such user. Raises as `set_user`."""
    with _locked_folder(path):
        lines = _read_lines(path, may_be_missing=False)
        index = _index_of(name, lines)
        if index is None:
            return False
        del lines[index]
        _replace_file(path, lines)
    return True


def _is_secret(line: str) -> bool:
    return line.startswith(SECRET_PREFIX)


def _index_of(name: str, lines: list[str]) -> int | None:
    if file_name_problem(name) is not None:
        # It could be a comment.
        return None
    for index, line in enumerate(lines):
        if line.startswith(f"{name}:"):
            return index
    return None


def _read_lines(path: Path, *, may_be_missing: bool) -> list[str]:
    """The lines of a file without mistakes, to be changed; comments are kept."""
    if may_be_missing and not path.exists():
        return []
    load_password_file(path)
    text = path.read_bytes().decode()
    return text.removesuffix("\n").split("\n") if text else []


@contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Let one process at a time change files in the folder, so that no change is lost."""
    descriptor = os.open(_target(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _target(path: Path) -> Path:
    """The file itself, if the path is a symbolic link, which is kept."""
    return Path(os.path.realpath(path))


def _replace_file(path: Path, lines: list[str]) -> None:
    """Write the lines to a new file, and rename it to `path` when it is on disk.

    An existing file keeps its owner, group and mode: a broker that may read it may still do so.
    """
    target = _target(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            with suppress(FileNotFoundError):
                old = target.stat()
                os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, old.st_mode & 0o7777)
            file.flush()
            os.fsync(descriptor)
        os.rename(name, target)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
