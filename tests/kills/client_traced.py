"""A program on `semel.Client` with an outbox that does one thing of each kind, and says so.

    python -m tests.kills.client_traced PORT OUTBOX VERSION

What it says on its standard output is in the trace of its calls, between what it did before and
what it does then.
"""

import asyncio
import sys

from semel.client import Client


async def main(port: str, outbox: str, version: int) -> None:
    client = Client(f"mqtt://127.0.0.1:{port}", client_id="c", version=version, outbox=outbox)
    async with client:
        messages = await client.subscribe("in/#", qos=2, auto_ack=False)
        for qos in (1, 2):
            print(f"publishing at QoS {qos}", flush=True)
            await client.publish("out", f"a row at QoS {qos}", qos)
        for qos in (1, 2):
            message = await anext(messages)
            assert message.qos == qos
            print(f"got {message.payload.decode()}", flush=True)
            # In a turn of its own, so that nothing is stored together with what came.
            await asyncio.sleep(0.1)
            print(f"acknowledging at QoS {qos}", flush=True)
            message.ack()
        print("waiting", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
