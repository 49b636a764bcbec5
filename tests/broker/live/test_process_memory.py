"""A broker in a process of its own, near the limit of its memory."""

import time

from semel.mqtt import (
    Properties,
    PubAck,
    Publish,
)
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import link, resident
from tests.broker.core.test_process_memory import MIB


def test_a_process_stays_near_its_limit_and_goes_on_when_there_is_memory_again() -> None:
    """400 MB for queues that may have them, of sessions that are within all other bounds"""
    kept = Properties(session_expiry_interval=3_600)
    with Process("--maximum-memory", "100MiB") as broker:
        for number in range(10):
            with link(broker.address) as away:
                away.connect(f"away{number}", properties=kept)
                away.subscribe(f"t/{number}", qos=1)
        with link(broker.address, "publisher") as publisher:
            most = 0
            for count in range(400):
                publisher.send(Publish(f"t/{count % 10}", bytes(1_000_000), 1, 1))
                assert isinstance(publisher.take(1)[0], PubAck)
                most = max(most, resident(broker.process.pid))
            # It is measured after each 4 MiB, and one packet takes some copies on its way.
            assert most < 130 * MIB
            publisher.ping()
        # The largest queues go, and there is memory again.
        deadline = time.monotonic() + PATIENCE
        while True:
            with link(broker.address) as patient:
                if patient.connect("patient").reason == 0:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert [line for line in broker.log if "memory is short: " in line]
    assert [line for line in broker.log if "discarded with its queue" in line]
    assert [line for line in broker.log if "memory is no longer short" in line]
