"""The [[bridge]] sections: two brokers, and the topics that are moved between them.

The section [bridges] has what the bridges of one process share.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.client.bridge_path import MAXIMUM_NAME
from semel.client.bridge_rules import (
    BadRule,
    TopicRule,
    Translation,
    check_direction,
    parse_rule,
    to_local,
    to_remote,
)
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
from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.wire import MAXIMUM_TWO_BYTES
from semel.settings import BYTES, SECONDS, SettingsError, check, required, setting
from semel.store.settings import DISK, GIB, MIB, OS

SEVEN_DAYS: Final = 7 * 86_400
# A name is a part of the path of a message, and of log lines.
BRIDGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def _name_problem(name: str) -> str | None:
    """What is wrong with the name of a bridge or a broker, or None."""
    if BRIDGE_NAME.fullmatch(name) and len(name) <= MAXIMUM_NAME:
        return None
    return (
        f"must be 1 to {MAXIMUM_NAME} letters, digits, -, _ and ., and begin with a letter or digit"
    )


@dataclass(frozen=True)
class BridgeSettings:
    """A bridge: a client of two brokers that moves messages between them, at QoS 2 each once."""

    section: ClassVar[str] = "bridge"
    repeated: ClassVar[str] = "name"

    name: str = required(
        "site",
        "Its name: at most 64 letters, digits, -, _ and ., beginning with a letter or digit. Names "
        "must be unique.",
        rule=_name_problem,
    )
    data: Path = required(  # noqa: RUF009
        Path("bridge-site"),
        "The folder of its store, created if it is missing: both sessions, and the messages on "
        "their way. One process at a time may use it. It also has status.json.",
    )
    remote: str = required(
        "mqtts://broker.example",
        "The address of the remote broker: mqtt://host[:port], or mqtts, ws, wss, unix:path. It "
        "may include a user name and a password, so it is never printed.",
        secret=True,
    )
    local: str = setting(
        "mqtt://127.0.0.1:1883",
        "The address of the local broker, in the same form.",
        secret=True,
    )
    to_remote: tuple[str, ...] = setting(
        (),
        "Topics to move to the remote broker: FILTER [local PREFIX] [remote PREFIX] [qos N]. "
        "The filter is without the prefixes; each topic loses that of the one side and gets that "
        "of the other. Without qos it is 2. Filters of one direction must not overlap. A changed "
        "list is applied to the existing session.",
    )
    to_local: tuple[str, ...] = setting(
        (),
        "Topics to move to the local broker, in the same form.",
    )
    maximum_queued: int = setting(
        100_000,
        "Messages stored for each broker, at most. At the limit, messages for it are not "
        "acknowledged, so that the other broker keeps them and sends no more than receive_maximum. "
        "QoS 0 messages are not stored: without a connection they are dropped.",
        minimum=1,
    )
    maximum_queued_bytes: int = setting(
        GIB,
        "Bytes of the messages stored for each broker, at most. At the limit the same happens.",
        unit=BYTES,
        minimum=1,
    )
    receive_maximum: int = setting(
        1000,
        "QoS 1 and 2 messages that a broker may send before the bridge has acknowledged them. "
        "MQTT 3.1.1 cannot announce it.",
        minimum=1,
        maximum=MAXIMUM_TWO_BYTES,
    )
    maximum_held_bytes: int = setting(
        64 * MIB,
        "Bytes in memory of received messages that wait for room in a full queue, at most. Above "
        "it the connection to the broker that sends them ends. The broker sends them again on the "
        "next connection.",
        unit=BYTES,
        minimum=1,
    )
    maximum_packet_size: int = setting(
        16 * MIB,
        "The largest packet accepted from a broker. An MQTT 5.0 broker does not send a larger "
        "message to the bridge, so it is not moved. From an MQTT 3.1.1 broker a larger message "
        "ends the bridge with an error.",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    session_expiry: int = setting(
        SEVEN_DAYS,
        "How long the brokers should keep the sessions without a connection; 4294967295 is "
        "forever. A longer outage loses messages. MQTT 3.1.1 cannot request it.",
        unit=SECONDS,
        minimum=1,
        maximum=NEVER_EXPIRES,
    )
    durability: str = setting(
        DISK,
        "What an acknowledgement means. disk: written and synced, so that it survives loss of "
        "power. os: written to the operating system, so that it survives the end of the process, "
        "kill -9 included, but not loss of power.",
        choices=(DISK, OS),
    )
    keep_alive: int = setting(
        60,
        "The Keep Alive interval of both connections: one that is silent for longer is checked "
        "with PINGREQ, and closed if there is no answer. 0 turns the check off.",
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
    local_name: str | None = setting(
        None,
        "The name of the local broker in the path of messages, which stops loops. Bridges of one "
        "ring should use the same name for the same broker. By default the name of the bridge and "
        ".local.",
        rule=_name_problem,
    )
    local_client_id: str | None = client_id_setting("local")
    local_mqtt_version: str | None = mqtt_version_setting("local")
    local_username: str | None = username_setting("local")
    local_password: str | None = password_setting("local")
    local_password_file: Path | None = password_file_setting("local")  # noqa: RUF009
    local_scram: bool = scram_setting("local")
    local_cafile: Path | None = cafile_setting("local")  # noqa: RUF009
    local_capath: Path | None = capath_setting("local")  # noqa: RUF009
    local_cert: Path | None = cert_setting("local")  # noqa: RUF009
    local_key: Path | None = key_setting("local")  # noqa: RUF009
    local_key_password: str | None = key_password_setting("local")
    local_tls_version: str | None = tls_version_setting("local")
    local_ciphers: str | None = ciphers_setting("local")
    local_tls_alpn: str | None = tls_alpn_setting("local")
    local_insecure: bool = insecure_setting("local")
    remote_name: str | None = setting(
        None,
        "The name of the remote broker in the path of messages, which stops loops. Bridges of one "
        "ring should use the same name for the same broker. By default the name of the bridge and "
        ".remote.",
        rule=_name_problem,
    )
    remote_client_id: str | None = client_id_setting("remote")
    remote_mqtt_version: str | None = mqtt_version_setting("remote")
    remote_username: str | None = username_setting("remote")
    remote_password: str | None = password_setting("remote")
    remote_password_file: Path | None = password_file_setting("remote")  # noqa: RUF009
    remote_scram: bool = scram_setting("remote")
    remote_cafile: Path | None = cafile_setting("remote")  # noqa: RUF009
    remote_capath: Path | None = capath_setting("remote")  # noqa: RUF009
    remote_cert: Path | None = cert_setting("remote")  # noqa: RUF009
    remote_key: Path | None = key_setting("remote")  # noqa: RUF009
    remote_key_password: str | None = key_password_setting("remote")
    remote_tls_version: str | None = tls_version_setting("remote")
    remote_ciphers: str | None = ciphers_setting("remote")
    remote_tls_alpn: str | None = tls_alpn_setting("remote")
    remote_insecure: bool = insecure_setting("remote")

    def __post_init__(self) -> None:
        check(self)
        problems: list[str] = []
        rules_to_remote = _parse(self.to_remote, "to_remote", problems)
        rules_to_local = _parse(self.to_local, "to_local", problems)
        problems += check_direction([to_remote(each) for each in rules_to_remote], "to_remote")
        problems += check_direction([to_local(each) for each in rules_to_local], "to_local")
        if problems:
            raise SettingsError(problems)

    @property
    def translations_to_remote(self) -> tuple[Translation, ...]:
        """The rules of `to_remote`."""
        return tuple(to_remote(parse_rule(each)) for each in self.to_remote)

    @property
    def translations_to_local(self) -> tuple[Translation, ...]:
        """The rules of `to_local`."""
        return tuple(to_local(parse_rule(each)) for each in self.to_local)


@dataclass(frozen=True)
class SharedBridgeSettings:
    """What the bridges of one process share."""

    section: ClassVar[str] = "bridges"

    metrics_host: str = setting(
        "127.0.0.1",
        "The address on which the metrics of the bridges are served by HTTP. They show numbers and "
        "names of bridges, but no topics and no addresses. Nothing protects them: listen on an "
        "address that only trusted machines can reach.",
    )
    metrics_port: int | None = setting(
        None,
        "The TCP port on which the metrics of the bridges are served by HTTP: /metrics for "
        "Prometheus, /healthz and /readyz. 0 lets the system choose a free one. Without a port "
        "they are not served.",
        minimum=0,
        maximum=65_535,
    )

    def __post_init__(self) -> None:
        check(self)


def _parse(texts: tuple[str, ...], key: str, problems: list[str]) -> list[TopicRule]:
    found: list[TopicRule] = []
    for text in texts:
        try:
            found.append(parse_rule(text))
        except BadRule as problem:
            problems.append(f"{key}: {problem}")
    return found
