"""gmqtt as a subject: subscribes at QoS 2, publishes at QoS 0, 1 and 2, prints, reconnects.

gmqtt_client.py HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
"""

import asyncio
import signal
import sys
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

host, port, level, client_id, topic, keep_alive = sys.argv[1:7]
is_5 = level == "5"
published: list[bool] = []


def on_connect(client: Any, flags: int, result: int, properties: object) -> None:
    client.subscribe(topic, qos=2)
    if not published:
        published.append(True)
        for qos in (0, 1, 2, 1, 2):
            client.publish(topic, f"at QoS {qos}", qos=qos)


async def on_message(client: Any, name: str, payload: bytes, qos: int, properties: object) -> int:
    print(payload.decode("utf-8", "replace"), flush=True)
    return 0


async def main() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    options = {"session_expiry_interval": 300} if is_5 else {}
    client = gmqtt.Client(client_id, clean_session=is_5, **options)
    client.on_connect = on_connect
    client.on_message = on_message
    client.set_config({"reconnect_retries": -1, "reconnect_delay": 1})
    version = MQTTv50 if is_5 else MQTTv311
    await client.connect(host, int(port), keepalive=int(keep_alive), version=version)
    await stopped.wait()
    await client.disconnect()


asyncio.run(main())
