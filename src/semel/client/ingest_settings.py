"""The [ingest] section: the broker, the topics, the session, and the stream."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from semel.client.connection_settings import (
    cafile_setting,
    capath_setting,
    cert_setting,
    ciphers_setting,
    client_id_setting,
    insecure_setting,
    key_password_setting,
    key_setting,
    mqtt_version_setting,
    password_file_setting,
    password_setting,
    scram_setting,
    tls_alpn_setting,
    tls_version_setting,
    username_setting,
)
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import SHARE_PREFIX, check_share, check_topic_filter
from semel.mqtt.violation import Violation
from semel.settings import BYTES, SECONDS, check, setting
from semel.store.settings import stream_name_problem


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
    client_id: str | None = client_id_setting()
    session_expiry: int = setting(
        NEVER_EXPIRES,
        "How long the broker should keep the session without a connection; 4294967295 is forever. "
        "A longer outage loses messages. MQTT 3.1.1 cannot request it.",
        unit=SECONDS,
        minimum=1,
        maximum=NEVER_EXPIRES,
    )
    mqtt_version: str | None = mqtt_version_setting()
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
    username: str | None = username_setting()
    password: str | None = password_setting()
    password_file: Path | None = password_file_setting()  # noqa: RUF009
    scram: bool = scram_setting()
    cafile: Path | None = cafile_setting()  # noqa: RUF009
    capath: Path | None = capath_setting()  # noqa: RUF009
    cert: Path | None = cert_setting()  # noqa: RUF009
    key: Path | None = key_setting()  # noqa: RUF009
    key_password: str | None = key_password_setting()
    tls_version: str | None = tls_version_setting()
    ciphers: str | None = ciphers_setting()
    tls_alpn: str | None = tls_alpn_setting()
    insecure: bool = insecure_setting()
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
