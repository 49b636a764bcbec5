"""A program on `semel.Client` with an outbox, which nobody minds being killed.

    python -m tests.kills.client_worker PORT OUTBOX JOURNAL VERSION SEED

It publishes numbered messages, takes those of others, and writes into its journal what it knows at
each moment. A line is in the journal when `write` has returned, whatever becomes of the process:

    subscribed           the server has its subscription
    begin N QOS TOPIC    it is about to publish number N
    stored N             the outbox has it
    complete N           the server has it
    got KEY PAYLOAD      a message was handed out
    done KEY             it was acknowledged

The next run goes on with the number after the last one. The word `finish` on its standard input
ends the publishing; `finished` is the answer when the outbox is empty. With the end of its input it
closes the client.
"""

import asyncio
import os
import random
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Literal

from semel.client import Backoff, Client, Received
from semel.mqtt.session import NEVER_EXPIRES
from tests.kills.account import payload_of

NAME = "worker"
FILTER = "load/#"
# Publications that are waited for at a time, and how many more the outbox may have.
WINDOW = 15
QUEUED = 300
# A payload from 4096 bytes on is kept in another way than a smaller one.
LARGE = 5_000


class Journal:
    """What the program knows, line by line."""

    def __init__(self, path: Path) -> None:
        self.last = 0
        if path.exists():
            # A kill between two pages leaves a part of a line: nobody knew it, nobody has read it.
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            for line in path.read_text().splitlines():
                word, _, rest = line.partition(" ")
                if word == "begin":
                    self.last = int(rest.split()[0])
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, line: str) -> None:
        # One call, so that lines of a process never mix.
        os.write(self._file, f"{line}\n".encode())


class Program:
    """Publishes and takes until it is told to finish."""

    def __init__(self, client: Client, journal: Journal, seed: str) -> None:
        self.client = client
        self.journal = journal
        self.random = random.Random(seed)
        self.finishing = False
        self.going: set[asyncio.Task[None]] = set()
        # Messages that are not acknowledged yet.
        self.held: list[Received] = []
        # Whatever goes wrong ends the program.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- publishing -------------------------------------------------------------------------------

    async def publish(self) -> None:
        choose = self.random
        while not self.finishing:
            # In bursts, so that windows are now full and now empty.
            for _ in range(choose.randrange(1, WINDOW)):
                self.begin()
            while len(self.going) > WINDOW or self.client.counters.waiting > QUEUED:
                await asyncio.sleep(0.002)
            await asyncio.sleep(choose.random() * 0.02)
        while self.going:
            await asyncio.wait(self.going)
        while self.client.counters.waiting or self.client.counters.in_flight:
            await asyncio.sleep(0.01)
        print("finished", flush=True)

    def begin(self) -> None:
        number = self.journal.last = self.journal.last + 1
        qos = self.random.choice((1, 2))
        topic = f"up/{number % 3}"
        size = LARGE if self.random.random() < 0.02 else self.random.randrange(100)
        until: Literal["stored", "complete"] = "stored"
        if self.random.random() < 0.3:
            until = "complete"
        self.journal.write(f"begin {number} {qos} {topic}")
        payload = payload_of(NAME, number, qos, size)
        task = self.start(self.wait_for(number, topic, payload, qos, until))
        self.going.add(task)
        task.add_done_callback(self.going.discard)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self.ended)
        return task

    def ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and not self.failed.done():
            problem = task.exception()
            assert problem is not None
            self.failed.set_exception(problem)

    async def wait_for(
        self,
        number: int,
        topic: str,
        payload: bytes,
        qos: int,
        until: Literal["stored", "complete"],
    ) -> None:
        code = await self.client.publish(topic, payload, qos, until=until)
        assert code in (0, 0x10), code
        self.journal.write(f"{until} {number}")

    # --- taking -----------------------------------------------------------------------------------

    async def take(self) -> None:
        messages = await self.client.subscribe(FILTER, qos=2, auto_ack=False)
        self.journal.write("subscribed")
        async for message in messages:
            name = " ".join(message.payload.decode().split()[:3])
            self.journal.write(f"got {message.key} {name}")
            if not self.held and self.random.random() < 0.5:
                self.acknowledge(message)
            else:
                self.held.append(message)

    async def work(self) -> None:
        """Acknowledge the others after a while, and not in their order."""
        while True:
            await asyncio.sleep(self.random.random() * 0.02)
            for _ in range(self.random.randrange(1, 20)):
                if self.held:
                    # Not too much out of order: the first of them holds back all the others.
                    at = self.random.randrange(min(5, len(self.held)))
                    self.acknowledge(self.held.pop(at))

    def acknowledge(self, message: Received) -> None:
        message.ack()
        self.journal.write(f"done {message.key}")


async def main(port: int, outbox: Path, journal: Journal, version: int, seed: str) -> None:
    client = Client(
        f"mqtt://127.0.0.1:{port}",
        client_id=NAME,
        version=version,
        session_expiry=NEVER_EXPIRES,
        outbox=outbox,
        reconnect=Backoff(first=0.01, most=0.1),
        # Mosquitto 2.0.11 exceeds a smaller one after a reconnect.
        receive_maximum=1_000,
    )
    async with client:
        program = Program(client, journal, f"{seed} {journal.last}")
        tasks = [program.start(each) for each in (program.take(), program.work())]
        tasks.append(program.start(program.publish()))
        obeying = program.start(obey(program))
        await asyncio.wait((obeying, program.failed), return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if program.failed.done():
            program.failed.result()


async def obey(program: Program) -> None:
    """Do what the standard input says, until it ends."""
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), sys.stdin
    )
    while word := await words.readline():
        assert word == b"finish\n", word
        program.finishing = True


if __name__ == "__main__":
    asyncio.run(
        main(
            int(sys.argv[1]),
            Path(sys.argv[2]),
            Journal(Path(sys.argv[3])),
            int(sys.argv[4]),
            sys.argv[5],
        )
    )
