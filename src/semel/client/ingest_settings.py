"""The [ingest] section: what to take from which broker, as whom, and into which stream."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import SHARE_PREFIX, check_share, check_topic_filter
from semel.mqtt.violation import Violation
from semel.settings import BYTES, SECONDS, check, setting
from semel.store.settings import stream_name_problem

VERSIONS: Final = {"5": MQTT5, "3.1.1": MQTT311}


def _about_topic(topic_filter: str) -> str | None:
    """What is wrong with a topic filter, shared or not."""
    try:
        check_topic_filter(topic_filter, None)
        check_share(topic_filter, MQTT5, None)
    except Violation as violation:
        return f"is no topic filter: {violation.rule.sentence.removesuffix('.')}"
    return None


def _about_share(name: str) -> str | None:
    """What is wrong with the name of a group."""
    if "/" not in name:
        return _about_topic(f"{SHARE_PREFIX}{name}/a")
    return "must be a name without /, as in $share/NAME/topic"


@dataclass(frozen=True)
class IngestSettings:
    """Ingest: a client of another broker that puts what it gets into a stream."""

    section: ClassVar[str] = "ingest"

    url: str | None = setting(
        None,
        "The broker: mqtt://host[:port], or mqtts, ws, wss, unix:path. As it may have a user name "
        "and a password in it, it is never printed. On the command line it stands alone.",
        secret=True,
    )
    topic: tuple[str, ...] = setting(
        (),
        "Messages to topics that this filter matches are taken. Filters should not overlap: a "
        "broker may send a message once for each that matches. A changed list is applied to the "
        "session that is there.",
    )
    qos: int = setting(
        2,
        "The QoS to ask for: 2 for exactly once, 1 for at least once, 0 for what gets through.",
        minimum=0,
        maximum=2,
    )
    stream: str | None = setting(
        None,
        "The stream that messages go to: small letters, digits, - and _, at most 64 of them, the "
        "first a letter or a digit.",
        rule=stream_name_problem,
    )
    share: str | None = setting(
        None,
        "Take part in this group of a shared subscription: all topics are asked for as "
        "$share/GROUP/topic, and each message goes to one of the group.",
        rule=_about_share,
    )
    client_id: str | None = setting(
        None,
        "The client identifier, the same at every start. By default one is made, and kept in the "
        "store.",
    )
    session_expiry: int = setting(
        NEVER_EXPIRES,
        "How long the broker is asked to keep the session while there is no connection; 4294967295 "
        "is for ever. An outage that lasts longer loses messages. MQTT 3.1.1 cannot say it.",
        unit=SECONDS,
        minimum=1,
        maximum=NEVER_EXPIRES,
    )
    mqtt_version: str | None = setting(
        None,
        "The version of MQTT. By default 5, and 3.1.1 if the broker refuses that.",
        choices=tuple(VERSIONS),
    )
    keep_alive: int = setting(
        60,
        "A connection on which nothing comes for so long is tried, and given up if there is no "
        "answer. 0 never tries.",
        unit=SECONDS,
        minimum=0,
        maximum=65_535,
    )
    longest_wait: float = setting(
        60.0,
        "The longest wait between two attempts to connect. It begins with half a second, and "
        "doubles with each attempt that fails.",
        unit=SECONDS,
        minimum=0.01,
        maximum=86_400,
    )
    username: str | None = setting(None, "The user name.")
    password: str | None = setting(None, "The password.", secret=True)
    password_file: Path | None = setting(  # noqa: RUF009
        None,
        "A file that has the password in it, and nothing else. A line end after it is ignored.",
    )
    cafile: Path | None = setting(  # noqa: RUF009
        None, "Trust who has signed for the certificates in this file (PEM)."
    )
    capath: Path | None = setting(None, "The same, a folder.")  # noqa: RUF009
    cert: Path | None = setting(None, "The certificate of this client (PEM).")  # noqa: RUF009
    key: Path | None = setting(None, "Its key (PEM).")  # noqa: RUF009
    key_password: str | None = setting(None, "What opens the key.", secret=True)
    tls_version: str | None = setting(
        None, "The lowest version of TLS. By default tlsv1.2.", choices=("tlsv1.2", "tlsv1.3")
    )
    ciphers: str | None = setting(None, "OpenSSL's list of ciphers for TLS 1.2.")
    tls_alpn: str | None = setting(None, "The protocol to ask for in TLS.")
    insecure: bool = setting(
        False, "Take a certificate that is for another host. Then anybody may be the broker."
    )
    retain_for: float | None = setting(
        None,
        "How long rows are kept after they were received. A segment whose newest row is older is "
        "deleted, but never the newest segment, and none that has not landed. Without it, age "
        "deletes nothing.",
        unit=SECONDS,
        minimum=1,
    )
    retain_bytes: int | None = setting(
        None,
        "Bytes of this ingester's segments that are kept. Above it the oldest are deleted, but "
        "never the newest, and none that has not landed. Without it, size deletes nothing.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)
