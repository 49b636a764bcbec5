"""The settings of a connection to a broker, declared once for [ingest] and each side of a bridge.

Each function declares one setting. `side` is "" where there is only one broker, otherwise the side
of a bridge, which the help names.
"""

from pathlib import Path
from typing import Final

from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.settings import setting

VERSIONS: Final = {"5": MQTT5, "3.1.1": MQTT311}
TLS_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
# The keys of all these settings, without the side.
CONNECTION_KEYS: Final = (
    *("client_id", "mqtt_version", "username", "password", "password_file", "scram"),
    *("cafile", "capath", "cert", "key", "key_password"),
    *("tls_version", "ciphers", "tls_alpn", "insecure"),
)


def _broker(preposition: str, side: str) -> str:
    """The broker of a side, as the end of a clause; nothing where there is only one."""
    return f" {preposition} the {side} broker" if side else ""


# --- the session and the user ---------------------------------------------------------------------


def client_id_setting(side: str = "") -> str | None:
    """`client_id`."""
    return setting(
        None,
        f"The client identifier{_broker('on', side)}, the same at every start. By default one is "
        "generated and kept in the store.",
    )


def mqtt_version_setting(side: str = "") -> str | None:
    """`mqtt_version`."""
    return setting(
        None,
        f"The version of MQTT{_broker('on', side)}. By default 5, and 3.1.1 if the broker refuses "
        "it.",
        choices=tuple(VERSIONS),
    )


def username_setting(side: str = "") -> str | None:
    """`username`."""
    return setting(None, f"The user name{_broker('on', side)}.")


def password_setting(side: str = "") -> str | None:
    """`password`."""
    return setting(None, f"The password{_broker('on', side)}.", secret=True)


def password_file_setting(side: str = "") -> Path | None:
    """`password_file`."""
    return setting(
        None,
        f"A file that contains only the password{_broker('on', side)}. A line end after it is "
        "ignored.",
    )


def scram_setting(side: str = "") -> bool:
    """`scram`."""
    return setting(
        False,
        f"Prove the password{_broker('on', side)} by SCRAM-SHA-256 instead of sending it. Needs "
        "MQTT 5.0.",
    )


# --- TLS ------------------------------------------------------------------------------------------


def cafile_setting(side: str = "") -> Path | None:
    """`cafile`."""
    return setting(None, f"File of trusted CA certificates (PEM){_broker('for', side)}.")


def capath_setting(side: str = "") -> Path | None:
    """`capath`."""
    return setting(None, f"Directory of trusted CA certificates{_broker('for', side)}.")


def cert_setting(side: str = "") -> Path | None:
    """`cert`."""
    return setting(None, f"The client certificate (PEM){_broker('for', side)}.")


def key_setting(side: str = "") -> Path | None:
    """`key`."""
    return setting(None, f"The key of the client certificate (PEM){_broker('for', side)}.")


def key_password_setting(side: str = "") -> str | None:
    """`key_password`."""
    return setting(None, f"The password of the key{_broker('for', side)}.", secret=True)


def tls_version_setting(side: str = "") -> str | None:
    """`tls_version`."""
    return setting(
        None,
        f"The minimum TLS version{_broker('for', side)}. By default tlsv1.2.",
        choices=TLS_VERSIONS,
    )


def ciphers_setting(side: str = "") -> str | None:
    """`ciphers`."""
    return setting(None, f"The TLS 1.2 ciphers{_broker('for', side)}, as an OpenSSL cipher list.")


def tls_alpn_setting(side: str = "") -> str | None:
    """`tls_alpn`."""
    return setting(None, f"The ALPN protocol to offer{_broker('to', side)}.")


def insecure_setting(side: str = "") -> bool:
    """`insecure`."""
    return setting(
        False,
        f"Accept a certificate{_broker('of', side)} for another host name. Any server with a "
        "trusted certificate can then pose as the broker.",
    )
