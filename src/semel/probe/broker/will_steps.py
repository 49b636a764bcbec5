"""Steps that the cases about wills share.

That a will is not published is shown by that of another client, which is lost later and whose will
arrives, and by a last message after it.
"""

from collections.abc import Sequence

from semel.mqtt.packets.publish import Publish
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial


async def must_publish_will(trial: Trial, watcher: ProbeLink, payload: bytes, why: str) -> Publish:
    """Claim that the next message is this will."""
    message = await trial.message(watcher)
    if message is None:
        trial.refute(f"the will was not published {why}")
    trial.must(message.payload == payload, "the message is not the will of this connection")
    return message


async def published_before_control(
    trial: Trial, watcher: ProbeLink, topic: bytes
) -> Sequence[Publish]:
    """What was published to the topic so far: a control will and a last message end the wait."""
    control = await trial.connect("control", will=(topic, b"control"))
    await control.cut()
    found = []
    while True:
        with trial.control():
            message = await trial.must_receive_message(watcher)
        if message.payload == b"control":
            break
        found.append(message)
    publisher = await trial.connect("p")
    return [*found, *await trial.messages_until(watcher, topic, publisher)]


async def must_not_publish_will(trial: Trial, watcher: ProbeLink, topic: bytes, why: str) -> None:
    """Claim that no will was published to the topic so far."""
    found = await published_before_control(trial, watcher, topic)
    trial.must(not found, f"the will was published {why}")
