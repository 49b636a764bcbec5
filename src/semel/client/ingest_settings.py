"""The [ingest] section: the broker, the topics, the session, and the stream."""

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
    """What is wrong with a topic filter, shared or not; None if it is valid."""
    try:
        check_topic_filter(topic_filter, None)
        check_share(topic_filter, MQTT5, None)
    except Violation as violation:
        return f"is not a topic filter: {violation.rule.sentence.removesuffix('.')}"
    return None


def _about_share(name: str) -> str | None:
    """What is wrong with the name of a share; None if it is valid."""
    if "/" not in name:
        return _about_topic(f"{SHARE_PREFIX}{name}/a")
    return "must be a name without /, as in $share/NAME/topic"


@dataclass(frozen=True)
class IngestSettings:
    """Ingest: a client of another broker that records its messages in a stream."""

    section: ClassVar[str] = "ingest"

    url: str | None = setting(
        None,
        "The broker: mqtt://host[:port], or mqtts, ws, wss, unix:path. It may include a user name "
        "and a password, so it is never printed. On the command line it is the argument.",
        secret=True,
    )
    topic: tuple[str, ...] = setting(
        (),
        "A topic filter to subscribe to. Filters should not overlap: a broker may send a message "
        "once for each filter that matches. A changed list is applied to the existing session.",
    )
    qos: int = setting(
        2,
        "The QoS to request: 2 for exactly once, 1 for at least once, 0 for at most once.",
        minimum=0,
        maximum=2,
    )
    stream: str | None = setting(
        None,
        "The stream that records the messages: lowercase letters, digits, - and _, at most 64 "
        "characters, the first a letter or a digit.",
        rule=stream_name_problem,
    )
    share: str | None = setting(
        None,
        "The ShareName of a shared subscription: every topic is requested as $share/NAME/topic, "
        "and each message goes to one subscriber of the share.",
        rule=_about_share,
    )
    client_id: str | None = setting(
        None,
        "The client identifier, the same at every start. By default one is generated and kept in "
        "the store.",
    )
    session_expiry: int = setting(
        NEVER_EXPIRES,
        "How long the broker should keep the session without a connection; 4294967295 is forever. "
        "A longer outage loses messages. MQTT 3.1.1 cannot request it.",
        unit=SECONDS,
        minimum=1,
        maximum=NEVER_EXPIRES,
    )
    mqtt_version: str | None = setting(
        None,
        "The version of MQTT. By default 5, and 3.1.1 if the broker refuses it.",
        choices=tuple(VERSIONS),
    )
    keep_alive: int = setting(
        60,
        "The Keep Alive interval: a connection that is silent for longer is checked with PINGREQ, "
        "and closed if there is no answer. 0 turns the check off.",
        unit=SECONDS,
        minimum=0,
        maximum=65_535,
    )
    longest_wait: float = setting(
        60.0,
        "The longest wait between two attempts to connect. The first is half a second, and it "
        "doubles after each failed attempt.",
        unit=SECONDS,
        minimum=0.01,
        maximum=86_400,
    )
    username: str | None = setting(None, "The user name.")
    password: str | None = setting(None, "The password.", secret=True)
    password_file: Path | None = setting(  # noqa: RUF009
        None,
        "A file that contains only the password. A line end after it is ignored.",
    )
    cafile: Path | None = setting(  # noqa: RUF009
        None, "File of trusted CA certificates (PEM)."
    )
    capath: Path | None = setting(None, "Directory of trusted CA certificates.")  # noqa: RUF009
    cert: Path | None = setting(None, "The client certificate (PEM).")  # noqa: RUF009
    key: Path | None = setting(None, "The key of the client certificate (PEM).")  # noqa: RUF009
    key_password: str | None = setting(None, "The password of the key.", secret=True)
    tls_version: str | None = setting(
        None, "The minimum TLS version. By default tlsv1.2.", choices=("tlsv1.2", "tlsv1.3")
    )
    ciphers: str | None = setting(None, "The TLS 1.2 ciphers, as an OpenSSL cipher list.")
    tls_alpn: str | None = setting(None, "The ALPN protocol to offer.")
    insecure: bool = setting(
        False,
        "Accept a certificate for another host name. Any server with a trusted certificate can "
        "then pose as the broker.",
    )
    retain_for: float | None = setting(
        None,
        "How long rows are kept after receipt. A segment whose newest row is older is deleted, but "
        "never the newest segment, and none that has not landed. Without it, no segment is deleted "
        "for its age.",
        unit=SECONDS,
        minimum=1,
    )
    retain_bytes: int | None = setting(
        None,
        "How many bytes of segments this ingest keeps. Above it the oldest are deleted, but never "
        "the newest, and none that has not landed. Without it, no segment is deleted for size.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)
