"""Sentences for TLS handshakes that fail, from the codes of OpenSSL."""

import re
import ssl
from typing import Final

# Why a client certificate was refused, by the code of OpenSSL's verification (X509_V_ERR_…).
_VERIFICATION: Final = {
    2: "it was signed by a CA that is not trusted",
    3: "there is no revocation list of the CA that signed it: add it to crlfile",
    9: "it is not valid yet",
    10: "it has expired",
    11: "the revocation list of its CA is not valid yet: check the clock",
    12: "the revocation list of its CA has expired: replace crlfile",
    18: "it is self-signed, and not trusted",
    19: "it was signed by a CA that is not trusted",
    20: "it was signed by a CA that is not trusted",
    21: "it was signed by a CA that is not trusted",
    22: "its chain is too long",
    23: "it has been revoked",
    24: "it was signed by a certificate that is not a CA",
    26: "it is not meant for clients",
    66: "its key is too weak",
    68: "its signature algorithm is too weak",
}

_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client gave no certificate, but this listener requires one"
    ),
    "NO_SHARED_CIPHER": "the client and this listener have no cipher in common",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": (
        "the client does not support the signature algorithm of this listener's certificate"
    ),
    "NO_SUITABLE_KEY_SHARE": "the client and this listener have no key exchange in common",
    "UNSUPPORTED_PROTOCOL": "the client supports only TLS versions that are too old",
    "VERSION_TOO_LOW": "the client supports only TLS versions that are too old",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS 1.2 or 1.3",
    "INAPPROPRIATE_FALLBACK": "the client asks for an older TLS version than it supports",
    "EXCESSIVE_MESSAGE_SIZE": "the client sent a handshake message that is too long",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "the client sent a TLS record that is damaged",
    # What OpenSSL 3.5 says of the same.
    "RECORD_LAYER_FAILURE": "the client sent a TLS record that is damaged",
    "DIGEST_CHECK_FAILED": "the client sent a handshake that is damaged",
    "LENGTH_MISMATCH": "the client sent a handshake message that is malformed",
    "BAD_EXTENSION": "the client sent a handshake message that is malformed",
}

# Alerts in which a client says why it goes, by the end of OpenSSL's name for them.
_ALERTS: Final = {
    "UNKNOWN_CA": "does not trust the CA of this listener's certificate",
    "CERTIFICATE_UNKNOWN": "does not accept this listener's certificate",
    "BAD_CERTIFICATE": "does not accept this listener's certificate",
    "CERTIFICATE_EXPIRED": "refuses this listener's certificate, which has expired",
    "CERTIFICATE_REVOKED": "refuses this listener's certificate, which has been revoked",
    "UNSUPPORTED_CERTIFICATE": "does not support this listener's certificate",
    "HANDSHAKE_FAILURE": "found no parameters in common with this listener",
    "PROTOCOL_VERSION": "found no TLS version in common with this listener",
    "NO_APPLICATION_PROTOCOL": "found no application protocol in common with this listener",
    "ACCESS_DENIED": "denies access",
    "USER_CANCELLED": "canceled the handshake",
}
_ALERT: Final = "_ALERT_"
# "[SSL] tlsv1 alert no application protocol (_ssl.c:1006)"
_TEXT: Final = re.compile(r"\[SSL[^]]*\] ([^(]+?)(?: \(|$)")


def explain_tls_failure(problem: ssl.SSLError) -> str:
    """One sentence about what the client did or has, without the words of OpenSSL if possible."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        why = _VERIFICATION.get(problem.verify_code)
        return f"the client certificate is refused: {why or problem.verify_message}"
    reason = problem.reason or _reason_in_text(str(problem))
    if _ALERT in reason:
        alert = reason.partition(_ALERT)[2]
        what = _ALERTS.get(alert) or f"ended TLS with the alert {_words(alert)}"
        return f"the client {what}"
    return _REASONS.get(reason) or f"TLS failed: {_words(reason)}"


def _reason_in_text(text: str) -> str:
    """The reason of a failure for which Python has no name, from OpenSSL's text."""
    found = _TEXT.search(text)
    return found[1].upper().replace(" ", "_") if found else "UNKNOWN_REASON"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
