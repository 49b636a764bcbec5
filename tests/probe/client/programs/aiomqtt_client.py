"""aiomqtt as a subject: subscribes at QoS 2, publishes at QoS 0, 1 and 2, prints, reconnects.

aiomqtt_client.py HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
"""

import asyncio
import contextlib
import signal
import sys

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

host, port, level, client_id, topic, keep_alive = sys.argv[1:7]
is_5 = level == "5"


async def print_messages(client: aiomqtt.Client) -> None:
    async for message in client.messages:
        print(bytes(message.payload).decode("utf-8", "replace"), flush=True)


async def run() -> None:
    properties = None
    if is_5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 300
    client = aiomqtt.Client(
        host,
        int(port),
        identifier=client_id,
        keepalive=int(keep_alive),
        protocol=aiomqtt.ProtocolVersion.V5 if is_5 else aiomqtt.ProtocolVersion.V311,
        clean_session=None if is_5 else False,
        properties=properties,
    )
    is_first = True
    # The loop that aiomqtt's documentation recommends for reconnecting.
    while True:
        try:
            async with client:
                await client.subscribe(topic, qos=2)
                async with asyncio.TaskGroup() as group:
                    group.create_task(print_messages(client))
                    if is_first:
                        is_first = False
                        for qos in (0, 1, 2, 1, 2):
                            group.create_task(client.publish(topic, f"at QoS {qos}", qos))
        except* aiomqtt.MqttError:
            await asyncio.sleep(0.1)


async def main() -> None:
    task = asyncio.create_task(run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


asyncio.run(main())
