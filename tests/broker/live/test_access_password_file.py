"""A password file that `mosquitto_passwd` has written."""

import subprocess
from pathlib import Path

import pytest

from semel.broker.access.password_file import (
    load_password_file,
)
from semel.broker.access.password_hashes import Argon2Hash, Pbkdf2Hash
from tests.broker.core.test_access_password_file import MOSQUITTO_PASSWD


@pytest.mark.skipif(MOSQUITTO_PASSWD is None, reason="mosquitto_passwd is not installed")
def test_a_file_of_mosquitto_passwd_can_be_used(tmp_path: Path) -> None:
    assert MOSQUITTO_PASSWD is not None
    path = tmp_path / "users"
    for arguments in (("-c", "-b"), ("-b",)):
        name = "ann" if "-c" in arguments else "bob"
        subprocess.run([MOSQUITTO_PASSWD, *arguments, path, name, f"secret {name}"], check=True)
    path.chmod(0o600)
    found = load_password_file(path)
    assert isinstance(found.users["ann"].password, Pbkdf2Hash | Argon2Hash)
    for name in ("ann", "bob"):
        assert found.verify(name, f"secret {name}".encode())
        assert not found.verify(name, b"secret")
    plain = tmp_path / "plain"
    plain.write_text("dan:secret dan\n", "utf-8")
    plain.chmod(0o600)
    subprocess.run([MOSQUITTO_PASSWD, "-U", plain], check=True)
    assert load_password_file(plain).verify("dan", b"secret dan")
