"""A certificate for the broker of a test, made by the program `openssl`."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Generous: it takes a few hundredths of a second.
OPENSSL_SECONDS: Final = 30.0
DAYS: Final = 2


@dataclass(frozen=True)
class ThrowAwayCertificate:
    """A certificate for localhost that signs itself, so that it is its own CA."""

    certfile: Path
    keyfile: Path


def make_certificate(folder: Path) -> ThrowAwayCertificate:
    """Make a certificate in a folder. Raises RuntimeError."""
    made = ThrowAwayCertificate(folder / "broker.pem", folder / "broker.key")
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", str(made.keyfile), "-out", str(made.certfile)),
        *("-days", str(DAYS), "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
    ]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=OPENSSL_SECONDS)
    except FileNotFoundError:
        raise RuntimeError("a test broker with TLS needs the program openssl: install it") from None
    except subprocess.SubprocessError as problem:
        output = getattr(problem, "stderr", None) or b""
        words = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"openssl could not make a certificate: {words or problem}") from None
    return made
