"""What clients publish and subscribe to, by the numbers of an action."""

from typing import Final

from tests.simulation.client import Client
from tests.simulation.schedule import FILTERS, PUBLISHER, SHARED_FILTER, TOPICS, WORKER, Plan

# A payload of this size is stored once for all sessions (semel.store.schema.SHARED_PAYLOAD).
LARGE: Final = 5_000


class Traffic:
    """The messages of a world, each of which has a payload of its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._messages = 0
        # Whether there is a shared subscription.
        self.has_group = any(part.role == WORKER for part in plan.parts)

    def publish(self, client: Client, a: int, b: int) -> None:
        """A client publishes a message that these numbers describe."""
        if client.part.role == WORKER:
            return
        self._messages += 1
        payload = b"%s.%d" % (client.name.encode(), self._messages)
        if b % 23 == 0 and self._plan.maximum_outgoing > LARGE:
            payload = payload.ljust(LARGE, b".")
        # If there is a shared subscription, most messages are for it.
        topic = TOPICS[a % (2 if self.has_group and b % 4 else len(TOPICS))]
        retain = b % 7 == 0 or topic.startswith("r/")
        if retain and b % 3 == 0:
            payload = b""
        qos = (2, 1, 2, 1, 0)[a // 8 % 5]
        expires = b // 16 % 8 == 0 or (self._plan.bounded and b // 16 % 2 == 0)
        expiry = (2, 20)[b & 1] if expires else None
        client.publish(topic, payload, qos, retain=retain, expiry=expiry)


def subscribe(client: Client, a: int) -> None:
    """A client subscribes to a filter that this number describes, if it is a subscriber."""
    part = client.part
    if part.role == WORKER:
        client.subscribe(SHARED_FILTER, part.qos)
    elif part.role != PUBLISHER:
        qos = part.qos if a % 5 else 1
        topic_filter = FILTERS[0] if a % 2 else FILTERS[a // 2 % len(FILTERS)]
        client.subscribe(topic_filter, qos, retain_handling=a // 64 % 3)
