"""What many quiet devices feel of one publisher at full speed: the time until PUBACK.

200 devices publish two messages per second each, at QoS 1, to topics of their own; one client
subscribes to all of them. The publisher has one subscriber, to which it sends as fast as the load
generator and the broker permit.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Final

from bench.broker.load import build, links
from bench.broker.measure import await_acknowledgements
from semel.lab.load.delivery_tracker import Latencies
from semel.lab.load.description import FLEET, Load
from semel.lab.load.links import LinkError
from semel.mqtt import MQTT5

DEVICES: Final = 200
RATE: Final = 2.0

_DEVICES: Final = Load(
    FLEET, publishers=DEVICES, subscribers=1, topics=DEVICES, qos=1, window=1, rate=RATE
)


@dataclass(frozen=True)
class FastPublisher:
    """A publisher at full speed beside the devices; None: there is none."""

    name: str
    title: str
    load: Load | None


def fast_publishers() -> Iterator[FastPublisher]:
    """The devices alone, and beside a publisher at QoS 0 and 1."""
    devices = f"PUBACK to {DEVICES} devices with {RATE:g} messages/s each"
    yield FastPublisher("devices", f"nobody: {devices}", None)
    for qos in (0, 1):
        title = f"one publisher at full speed at QoS {qos}: {devices}"
        yield FastPublisher(f"devices-fast{qos}", title, Load(qos=qos))


def run_publisher(fast: FastPublisher, port: int, seconds: float, begun: Event) -> None:
    """Publish until the time is over. Sets `begun` at the start."""
    if fast.load is None:
        begun.set()
        return
    with links(port, MQTT5) as clients:
        traffic = build(fast.load, clients, prefix="fast")
        begun.set()
        end = time.monotonic() + seconds
        # In the end the broker closes the connection.
        with contextlib.suppress(LinkError):
            while time.monotonic() < end:
                traffic.step()


def watch_devices(port: int, seconds: float) -> Latencies:
    """The times until PUBACK of all devices. An unanswered message counts with `seconds`."""
    latencies = Latencies()
    missing = DEVICES
    with contextlib.suppress(LinkError), links(port, MQTT5) as clients:
        traffic = build(_DEVICES, clients)
        for publisher in traffic.publishers.values():
            publisher.latencies = latencies
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            traffic.step()
        missing = await_acknowledgements(traffic)
    if missing:
        latencies.add(int(seconds * 1e9), missing)
    return latencies
