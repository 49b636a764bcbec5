"""semel's own client as a subject: subscribes with a durable session, or publishes with an outbox.

semel_client.py subscribe HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
semel_client.py publish HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
"""

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from semel.client import Backoff, Client, Disconnected, Messages, Refused


async def print_messages(messages: Messages) -> None:
    async for message in messages:
        print(message.payload.decode("utf-8", "replace"), flush=True)


async def subscribe(client: Client, topic: str) -> None:
    async with client:
        await asyncio.gather(
            print_messages(client.subscribe(topic, qos=2)), print_messages(client.messages())
        )


async def publish(client: Client, topic: str) -> None:
    async with client, asyncio.TaskGroup() as group:
        group.create_task(print_messages(client.messages()))
        for qos in (0, 1, 2, 1, 2):
            group.create_task(client.publish(topic, f"at QoS {qos}", qos))


async def main(role: str, host: str, port: str, level: str, client_id: str, topic: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory() as folder:
        client = Client(
            f"mqtt://{host}:{port}",
            client_id=client_id,
            version=int(level),
            session_expiry=300,
            # The publisher first deletes what the server has of an earlier session, on a connection
            # of its own, which the examiner must pass over.
            clean_start=False if role == "subscribe" and level == "4" else None,
            keep_alive=int(sys.argv[7]),
            reconnect=Backoff(first=0.05, most=0.1),
            outbox=Path(folder) / "outbox" if role == "publish" else None,
        )
        work = asyncio.create_task((subscribe if role == "subscribe" else publish)(client, topic))
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        try:
            await work
        except (asyncio.CancelledError, Disconnected, Refused, ExceptionGroup) as problem:
            # A server that breaks a rule ends the program: its session is in memory.
            if not isinstance(problem, asyncio.CancelledError):
                print(repr(problem), file=sys.stderr)


asyncio.run(main(*sys.argv[1:7]))
