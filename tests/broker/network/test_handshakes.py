"""The loop and the threads in which handshakes run."""

import asyncio
import threading

from semel.broker.network.handshake_workers import HandshakeWorkers
from tests.broker.core.test_handshakes import PATIENCE, Job


def test_the_loop_goes_on_while_all_threads_are_busy() -> None:
    async def run() -> None:
        gate = threading.Event()
        workers = HandshakeWorkers(asyncio.get_running_loop())
        jobs = [Job("a", [], gate) for _ in range(5)]
        for job in jobs:
            workers.submit(job)
        await asyncio.sleep(0.01)
        assert not any(job.done.is_set() for job in jobs)
        gate.set()
        for job in jobs:
            await asyncio.wait_for(job.done.wait(), PATIENCE)
        workers.close()

    asyncio.run(run())
