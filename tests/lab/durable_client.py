"""A raw client whose session outlives its connection."""

from semel.mqtt import MQTT5, Connect, Properties, Will
from tests.broker.by_hand import Link

DURABLE = Properties(session_expiry_interval=600)


def connect_durable(client: Link, client_id: str = "w", *, will: Will | None = None) -> bool:
    """Begin or resume a durable session; returns whether it existed."""
    properties = DURABLE if client.version == MQTT5 else Properties()
    client.send(
        Connect(
            client_id,
            version=client.version,
            clean_start=False,
            will=will,
            properties=properties,
        )
    )
    (connack,) = client.take(1)
    assert getattr(connack, "reason", None) == 0
    return bool(getattr(connack, "session_present", None))
