"""What an ingest records in a stream: a row for each message, and where messages may be missing."""

from semel.mqtt.message import message_properties
from semel.mqtt.packets.publish import Publish
from semel.store.commit import RecordedMessage
from semel.store.streams import Stream


def next_row(
    stream: Stream, topic: str, packet: Publish, client_id: str, version: int
) -> RecordedMessage:
    """The next row of a stream: a message that the server sent to `client_id`."""
    stream.last_seq += 1
    return RecordedMessage(
        stream.id,
        stream.last_seq,
        topic,
        packet.payload,
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        client_id=client_id,
        packet_id=packet.packet_id,
        version=version,
        properties=message_properties(packet.properties),
    )


def break_key(stream: Stream) -> str:
    """The metadata key of a break: messages may be missing before the next row of a stream."""
    return f"break:{stream.id}:{stream.last_seq + 1}"
