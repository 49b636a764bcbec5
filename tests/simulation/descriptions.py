"""Short descriptions of packets and commits for a trace."""

from semel.mqtt import Connect, Packet, Publish, Subscribe
from semel.store.commit import Commit


def describe_packet(packet: Packet) -> str:
    """A packet in a few words."""
    name = type(packet).__name__
    if isinstance(packet, Publish):
        dup = " DUP" if packet.dup else ""
        retain = " RETAIN" if packet.retain else ""
        return (
            f"PUBLISH {packet.packet_id} QoS {packet.qos}{dup}{retain} {packet.topic_name}"
            f" {packet.payload[:20]!r}"
        )
    if isinstance(packet, Connect):
        clean = " clean" if packet.clean_start else ""
        return f"CONNECT{clean}"
    if isinstance(packet, Subscribe):
        filters = ", ".join(f"{each.topic_filter} at {each.qos}" for each in packet.subscriptions)
        return f"SUBSCRIBE {packet.packet_id} {filters}"
    return f"{name.upper()} {getattr(packet, 'packet_id', '')}".rstrip()


def describe_commit(commit: Commit) -> str:
    """The contents of a commit in a few words."""
    parts = [f"{len(commit.packets)} packets wait"]
    for name in ("changes", "sessions", "ended", "subscriptions", "wills", "retained", "records"):
        count = len(getattr(commit, name))
        if count:
            parts.append(f"{count} {name}")
    return ", ".join(parts)
