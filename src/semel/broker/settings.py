"""The [broker] section: where the broker listens, and its bounds.

Everything that a client can make grow has a bound. Each help text says what happens at the bound.
"""

from dataclasses import dataclass
from typing import ClassVar

from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import check_levels, check_topic_name, quoted
from semel.mqtt.violation import Violation
from semel.settings import BYTES, SECONDS, SettingsError, check, setting

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400
# From the most to the fewest lines.
LOG_LEVELS = ("info", "warning", "error")
# How the log is written.
TEXT = "text"
JSON = "json"
JOURNALD = "journald"
LOG_FORMATS = (TEXT, JSON, JOURNALD)
# Copies of a message for overlapping subscriptions of one client.
ONCE = "once"
EACH = "each"
OVERLAPPING = (ONCE, EACH)


@dataclass(frozen=True)
class BrokerSettings:
    """The broker: where it listens, and its bounds."""

    section: ClassVar[str] = "broker"

    host: str = setting(
        "127.0.0.1",
        "The address to listen on, if there is no [[listener]]. 127.0.0.1 accepts connections "
        "from this machine only, 0.0.0.0 from everywhere by IPv4, :: by IPv6.",
    )
    port: int = setting(
        1883,
        "The TCP port to listen on, if there is no [[listener]]. 0 lets the system choose a free "
        "one.",
        minimum=0,
        maximum=65_535,
    )
    anonymous: bool | None = setting(
        None,
        "Whether clients without a user name may connect to this host and port. Without it they "
        "may if no users are configured, but then an address that other machines can reach is "
        "refused at the start: true says that everyone who reaches it may connect.",
    )
    log_level: str = setting(
        "info",
        "What is logged. info: everything. warning: problems, such as a rule that a client breaks. "
        "error: failures of the broker itself.",
        choices=LOG_LEVELS,
    )
    log_format: str = setting(
        TEXT,
        "How the log is written. text: lines on standard error. json: the same as JSON, one object "
        "per line. journald: entries of systemd's journal with fields such as SEMEL_CLIENT; "
        "without a journal the broker does not start. The flag --json writes JSON to standard "
        "output instead.",
        choices=LOG_FORMATS,
    )
    connection_messages: bool = setting(
        True,
        "Whether a line is logged for each client that connects and disconnects, at level info. "
        "For `semel up` the default is false.",
    )
    log_lines_per_minute: int = setting(
        40,
        "Lines per minute that the clients of one user can cause in the log, of those who are "
        "anonymous or not connected the clients of one address: problems, and separately connects "
        "and disconnects. Further ones are counted, and reported in one line when the minute is "
        "over. 0: no limit, except that the log never has more than 50 lines with the same words "
        "in 10 seconds.",
        minimum=0,
        maximum=1_000_000,
    )
    maximum_memory: int | None = setting(
        None,
        "Memory of the process, measured once a second, on Linux. Above this limit, clients "
        "without a session are refused with reason code 0x89 (Server busy), in MQTT 3.1.1 with "
        "return code 3, and new subscriptions with 0x97; messages that would be queued in memory, "
        "for sessions that are not durable, are dropped and counted; messages for new topics are "
        "not retained; and idle sessions that are not durable are discarded, those with the most "
        "queued bytes first. The default is half of the memory of the machine or its container.",
        unit=BYTES,
        minimum=64 * MIB,
    )
    maximum_connections: int = setting(
        10_000,
        "Connected clients at one time. A further client is refused with reason code 0x89 (Server "
        "busy), in MQTT 3.1.1 with return code 3.",
        minimum=1,
        maximum=1_000_000,
    )
    maximum_connections_per_user: int = setting(
        0,
        "Connected clients of one user at one time, whatever their addresses. A further client is "
        "refused with reason code 0x97 (Quota exceeded), in MQTT 3.1.1 with return code 3. "
        "Anonymous clients do not count. 0: no limit.",
        minimum=0,
        maximum=1_000_000,
    )
    user_messages_per_second: int = setting(
        0,
        "Messages per second of all clients of one user together. Above this rate, and after a "
        "burst of one second, their connections are not read for a while, so that the clients "
        "have to wait; nothing is dropped. 0: no limit.",
        minimum=0,
    )
    user_bytes_per_second: int = setting(
        0,
        "The same for received bytes. 0: no limit.",
        unit=BYTES,
    )
    address_messages_per_second: int = setting(
        0,
        "The same for messages of all clients of one address; of an IPv6 address its /64 network. "
        "0: no limit.",
        minimum=0,
    )
    address_bytes_per_second: int = setting(
        0,
        "The same for bytes received from one address. 0: no limit.",
        unit=BYTES,
    )
    maximum_unconnected: int = setting(
        1_000,
        "Open connections without an accepted CONNECT: it was not sent, or the client is not "
        "authenticated yet. They do not count as connected clients. If there are more, the oldest "
        "one of the address with the most is closed. The same holds, counted separately, for "
        "connections in a handshake of TLS, WebSocket or the PROXY protocol.",
        minimum=1,
        maximum=1_000_000,
    )
    maximum_sessions: int = setting(
        100_000,
        "Sessions at one time, connected or not; every connected client has one. If there would "
        "be more, an idle session is discarded: the oldest one of the address with the most. If "
        "no session is idle, the client is refused with reason code 0x97 (Quota exceeded), in "
        "MQTT 3.1.1 with return code 3. A client that has a session may always reconnect.",
        minimum=1,
    )
    connect_timeout: float = setting(
        10.0,
        "How long a new connection may take to complete its handshakes, to send its CONNECT, and "
        "to prove who the client is. After that it is closed.",
        unit=SECONDS,
        minimum=0.1,
        maximum=3600,
    )
    maximum_packet_size: int = setting(
        MIB,
        "The largest packet accepted from a client, announced to MQTT 5.0 clients. A larger one "
        "closes the connection, with reason code 0x95 (Packet too large).",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    before_connect_packet_size: int = setting(
        64 * KIB,
        "The largest packet accepted before the client is connected: its CONNECT with its will, "
        "or an AUTH. A larger one closes the connection.",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    maximum_unfinished_bytes: int = setting(
        256 * MIB,
        "Bytes of all incomplete packets together; the limit is at least maximum_packet_size. "
        "Above it, the connection with the oldest incomplete packet, of the address with the most "
        "bytes, is closed with reason code 0x97 (Quota exceeded).",
        unit=BYTES,
        minimum=1,
    )
    packet_timeout: float = setting(
        60.0,
        "How long a packet may take from its first byte to its last, plus one second for each KiB "
        "of its size, which allows for slow lines. After that the connection is closed with "
        "reason code 0x97 (Quota exceeded).",
        unit=SECONDS,
        minimum=0.1,
        maximum=86_400,
    )
    topic_levels: int = setting(
        128,
        "Levels of a topic name or topic filter. A client that sends one with more levels is "
        "disconnected with reason code 0x90 (Topic Name invalid).",
        minimum=1,
        maximum=65_536,
    )
    packet_items: int = setting(
        5_000,
        "Topic filters and properties of one packet, together. A client that sends a packet with "
        "more is disconnected with reason code 0x97 (Quota exceeded).",
        minimum=16,
    )
    maximum_subscriptions: int = setting(
        1000,
        "Subscriptions of one client. A further one is refused with reason code 0x97 (Quota "
        "exceeded), in MQTT 3.1.1 with 0x80. An existing subscription may always be replaced.",
        minimum=1,
    )
    maximum_subscriptions_per_user: int = setting(
        0,
        "Subscriptions of all sessions of one user, connected or not; anonymous clients of one "
        "address are one user. A further one is refused in the same way. 0: no limit.",
        minimum=0,
    )
    maximum_client_subscription_bytes: int = setting(
        8 * MIB,
        "Memory of all subscriptions of one client: the bytes of their filters, 500 bytes for "
        "each, and 350 bytes for each level of a filter with a wildcard. A further subscription "
        "is refused with reason code 0x97 (Quota exceeded), in MQTT 3.1.1 with 0x80.",
        unit=BYTES,
        minimum=1,
    )
    maximum_subscription_bytes: int = setting(
        256 * MIB,
        "The same for the subscriptions of all clients together. Levels that several filters "
        "share count once.",
        unit=BYTES,
        minimum=1,
    )
    maximum_queued_messages: int = setting(
        10_000,
        "QoS 1 and 2 messages queued for one session, connected or not. A further message is not "
        "queued for this session, but dropped and counted.",
        minimum=1,
    )
    maximum_queued_bytes: int = setting(
        64 * MIB,
        "Bytes of QoS 1 and 2 messages queued for one session. A message that does not fit is not "
        "queued for this session, but dropped and counted.",
        unit=BYTES,
        minimum=1,
    )
    maximum_retained: int = setting(
        100_000,
        "Topics with a retained message. A message to retain for a further topic is sent to "
        "subscribers, but not retained, and counted as dropped.",
        minimum=1,
    )
    maximum_retained_bytes: int = setting(
        256 * MIB,
        "Memory of all retained messages together: their bytes, 400 bytes for each, and 350 bytes "
        "for each further level of its topic. A message that does not fit is sent to subscribers, "
        "but not retained, and counted as dropped; the previous message of its topic is deleted, "
        "because it is no longer the last one.",
        unit=BYTES,
        minimum=1,
    )
    maximum_retained_per_user: int = setting(
        0,
        "Topics whose retained message was published by one user. A message to retain for a "
        "further topic is sent to subscribers, but not retained, and counted as dropped; the "
        "message that another user has retained there is deleted, because it is no longer the "
        "last one. Anonymous clients of one address are one user. Messages that were restored at "
        "the start count for nobody until they are published again. 0: no limit.",
        minimum=0,
    )
    maximum_retained_bytes_per_user: int = setting(
        0,
        "The same for their memory, which is counted as for maximum_retained_bytes. 0: no limit.",
        unit=BYTES,
    )
    maximum_outgoing_bytes: int = setting(
        8 * MIB,
        "Bytes kept in memory for a client that reads slowly. Above this limit, QoS 0 messages "
        "for this client are dropped and counted, and QoS 1 and 2 messages stay in its queue. If "
        "its unread bytes reach twice the limit, its connection is closed.",
        unit=BYTES,
        minimum=1,
    )
    slow_subscriber_timeout: float = setting(
        0.5,
        "How long a publisher is paused while a connected subscriber of its messages uses half of "
        "maximum_outgoing_bytes or of maximum_queued_messages. After that no publisher waits for "
        "this subscriber until it has caught up. 0: publishers never wait.",
        unit=SECONDS,
        minimum=0,
        maximum=60,
    )
    full_disk_timeout: float = setting(
        10.0,
        "How long an MQTT 5.0 client waits for an acknowledgement while the disk is full. After "
        "that it is disconnected with reason code 0x97 (Quota exceeded), because acknowledgements "
        "are sent in order and cannot report the problem. 0: it waits until there is space.",
        unit=SECONDS,
        minimum=0,
        maximum=86_400,
    )
    route_cache: int = setting(
        200_000,
        "Entries in the cache of routes: one for each topic, and one for each session that gets "
        "its messages. Beyond this number, entries that were not used recently are dropped, and "
        "computed again when they are needed. 0 caches nothing, which makes every message slower.",
        minimum=0,
    )
    receive_maximum: int = setting(
        200,
        "QoS 1 and 2 messages that an MQTT 5.0 client may send before they are acknowledged, "
        "announced to it. A client that sends more is disconnected with reason code 0x93 (Receive "
        "Maximum exceeded).",
        minimum=1,
        maximum=65_535,
    )
    topic_alias_maximum: int = setting(
        100,
        "The highest topic alias that an MQTT 5.0 client may use, announced to it. A client that "
        "uses a higher one is disconnected with reason code 0x94 (Topic Alias invalid). 0 permits "
        "no alias.",
        minimum=0,
        maximum=65_535,
    )
    client_topic_aliases: int = setting(
        100,
        "Topic aliases that the broker uses towards an MQTT 5.0 client, if the client permits "
        "them. The first topics that are sent to it get them. 0 uses none.",
        minimum=0,
        maximum=65_535,
    )
    maximum_alias_bytes: int = setting(
        64 * KIB,
        "Bytes of the topics that have an alias on one connection, plus 100 bytes for each. A "
        "client that sets more is disconnected with reason code 0x97 (Quota exceeded); its first "
        "topic may have any length. Towards a client, the broker stops setting aliases at this "
        "limit.",
        unit=BYTES,
        minimum=1,
    )
    maximum_session_expiry: int = setting(
        7 * DAY,
        "How long a session may outlive its connection. It also applies to a client that requests "
        "a longer time, or connects by MQTT 3.1.1 with CleanSession 0; MQTT 5.0 clients are "
        "informed. For restored sessions it counts from the start of the broker. 4294967295 is "
        "forever.",
        unit=SECONDS,
        minimum=0,
        maximum=NEVER_EXPIRES,
    )
    maximum_keep_alive: int = setting(
        65_535,
        "The longest Keep Alive. An MQTT 5.0 client that requests a longer one, or none, is "
        "assigned this. 0 sets no limit, and neither does 65535, the maximum of the protocol.",
        unit=SECONDS,
        minimum=0,
        maximum=65_535,
    )
    response_topic_prefix: str | None = setting(
        None,
        "The Response Information for MQTT 5.0 clients that request it is the topic "
        "`<prefix>/<client identifier>`. It grants no rights. A client whose identifier contains "
        "+, # or / gets none. Without a prefix no client gets one.",
    )
    overlapping: str = setting(
        "once",
        "How often a message is sent to a client with several matching subscriptions. once: one "
        "copy, with the highest QoS and all subscription identifiers. each: one copy for each "
        "subscription, as Mosquitto and EMQX do. The standard permits both [MQTT-3.3.4-2].",
        choices=OVERLAPPING,
    )
    sys_interval: float = setting(
        10.0,
        "The time between two updates of the topics under $SYS. 0 publishes none.",
        unit=SECONDS,
        maximum=86_400,
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "The address on which metrics are served by HTTP. They show numbers and names of streams, "
        "but no topics and no clients. Nothing protects them: listen on an address that only "
        "trusted machines can reach.",
    )
    metrics_port: int | None = setting(
        None,
        "The TCP port on which metrics are served by HTTP: /metrics for Prometheus, /healthz and "
        "/readyz. 0 lets the system choose a free one. Without a port they are not served.",
        minimum=0,
        maximum=65_535,
    )
    inflight_window: int = setting(
        200,
        "QoS 1 and 2 messages that are sent to an MQTT 3.1.1 client before it acknowledges them; "
        "further ones wait in its queue. MQTT 5.0 clients announce their own Receive Maximum, "
        "which is bounded by maximum_inflight_messages.",
        minimum=1,
        maximum=65_535,
    )
    maximum_inflight_messages: int = setting(
        5_000,
        "QoS 1 and 2 messages that were sent to one client and are not complete, whatever the "
        "Receive Maximum of an MQTT 5.0 client, and however often it reconnects; further ones "
        "wait in its queue. All of them are sent again to a client that reconnects.",
        minimum=1,
        maximum=65_535,
    )
    maximum_inflight_bytes: int = setting(
        16 * MIB,
        "Bytes of QoS 1 and 2 messages that were sent to one client and are not acknowledged, "
        "plus 500 bytes for each. Above this limit, further messages wait in its queue, however "
        "many the client permits. One message is always sent, however large.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.response_topic_prefix is not None:
            _check_prefix(self.response_topic_prefix, self.topic_levels)


def _check_prefix(prefix: str, topic_levels: int) -> None:
    """Check that `prefix` plus one level is a topic that clients can use. Raises SettingsError."""
    problem = None
    if prefix.startswith("$"):
        problem = "topics that begin with $ are reserved for the broker"
    try:
        check_topic_name(prefix, "the topic", None)
        check_levels(f"{prefix}/client", topic_levels)
    except Violation as violation:
        problem = f"{violation.rule.sentence} Seen: {violation.seen}"
    if problem is not None:
        raise SettingsError([f"[broker] response_topic_prefix is {quoted(prefix)}: {problem}"])
