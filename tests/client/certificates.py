"""Certificates for tests, made with the program `openssl`: an authority and what it has signed."""

import shutil
import subprocess
from pathlib import Path

import pytest

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
PASSWORD = "open sesame"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Certificates:
    """A folder of PEM files.

    ca.pem trusts server.pem (localhost and 127.0.0.1), elsewhere.pem (elsewhere.example) and
    client.pem; their keys are NAME.key, and client.key is in locked.key with a password.
    other-ca.pem trusts none of them. both.pem has client.pem and its key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("ca", "other-ca"):
            self._authority(name)
        self._sign("server", "DNS:localhost,IP:127.0.0.1")
        self._sign("elsewhere", "DNS:elsewhere.example")
        self._sign("client", "DNS:client.example")
        locking = ("-aes256", "-passout", f"pass:{PASSWORD}", "-out", "locked.key")
        openssl(folder, "ec", "-in", "client.key", *locking)
        both = (folder / "client.pem").read_bytes() + (folder / "client.key").read_bytes()
        (folder / "both.pem").write_bytes(both)
        for each in folder.iterdir():
            # A broker may give up its rights before it reads them.
            each.chmod(0o644)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def rehash(self, folder: Path) -> None:
        """Let a folder be one that OpenSSL finds an authority in."""
        openssl(folder, "rehash", str(folder))

    def _key(self, name: str) -> None:
        openssl(
            self.folder,
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            f"{name}.key",
        )

    def _authority(self, name: str) -> None:
        self._key(name)
        openssl(
            self.folder,
            *("req", "-x509", "-new", "-key", f"{name}.key", "-days", "2"),
            *("-subj", f"/CN={name}", "-out", f"{name}.pem"),
        )

    def _sign(self, name: str, names: str) -> None:
        self._key(name)
        openssl(
            self.folder,
            *("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}"),
            *("-out", f"{name}.csr"),
        )
        extensions = self.folder / f"{name}.ext"
        # Python 3.13 requires that a certificate names the key of its authority.
        extensions.write_text(
            f"subjectAltName={names}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        openssl(
            self.folder,
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions.name, "-out", f"{name}.pem"),
        )
