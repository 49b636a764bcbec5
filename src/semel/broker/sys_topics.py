"""The topics under $SYS/broker, named as in Mosquitto."""

from typing import Final, final

from semel import __version__

PREFIX: Final = "$SYS/broker/"


@final
class BrokerCounters:
    """Counts since the start of the broker."""

    bytes_received: int
    bytes_sent: int
    packets_received: int
    packets_sent: int
    messages_received: int
    messages_sent: int

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0
        self.packets_sent = 0
        self.messages_received = 0
        self.messages_sent = 0


def sys_topics(
    counters: BrokerCounters,
    *,
    uptime: float,
    connected: int,
    sessions: int,
    subscriptions: int,
    retained: int,
    dropped: int,
) -> list[tuple[str, str]]:
    """All topic names, with their values as text."""
    values = (
        ("version", f"semel version {__version__}"),
        ("uptime", f"{int(uptime)} seconds"),
        ("clients/connected", f"{connected}"),
        ("clients/disconnected", f"{sessions - connected}"),
        ("clients/total", f"{sessions}"),
        ("subscriptions/count", f"{subscriptions}"),
        ("retained messages/count", f"{retained}"),
        ("messages/received", f"{counters.packets_received}"),
        ("messages/sent", f"{counters.packets_sent}"),
        ("publish/messages/received", f"{counters.messages_received}"),
        ("publish/messages/sent", f"{counters.messages_sent}"),
        ("publish/messages/dropped", f"{dropped}"),
        ("bytes/received", f"{counters.bytes_received}"),
        ("bytes/sent", f"{counters.bytes_sent}"),
    )
    return [(PREFIX + name, value) for name, value in values]
