"""One client library in its own process: publishes or receives a number of messages.

    python -m bench.client.worker LIBRARY publish|receive QOS MESSAGES PORT

Each library is used as its documentation shows. At QoS 1 and 2, WINDOW messages are in flight; all
use MQTT 5.0 with one topic and payloads of 100 bytes. The worker prints "ready" when it has
subscribed, and at the end one JSON object: the number of messages, and nanoseconds of processor
time from the first to the last.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

HOST: Final = "127.0.0.1"
TOPIC: Final = "plant/1/temperature"
PAYLOAD: Final = bytes(100)
WINDOW: Final = 100


def print_result(messages: int, begun: int) -> None:
    spent = time.process_time_ns() - begun
    print(json.dumps({"messages": messages, "nanoseconds": spent}), flush=True)


async def many(publish: Callable[[], Coroutine[Any, Any, object]], messages: int) -> None:
    """Publish everything with WINDOW tasks, each of which publishes one message at a time."""
    left = iter(range(messages))

    async def some() -> None:
        for _ in left:
            await publish()

    await asyncio.gather(*(some() for _ in range(WINDOW)))


async def semel_publish(qos: int, messages: int, port: int) -> None:
    from semel import Client

    async with Client(f"mqtt://{HOST}:{port}") as client:
        begun = time.process_time_ns()
        if qos:
            await many(lambda: client.publish(TOPIC, PAYLOAD, qos), messages)
        else:
            for _ in range(messages):
                await client.publish(TOPIC, PAYLOAD)
        print_result(messages, begun)


async def semel_receive(qos: int, messages: int, port: int) -> None:
    from semel import Client

    async with Client(f"mqtt://{HOST}:{port}") as client:
        received = await client.subscribe(TOPIC, qos=qos)
        print("ready", flush=True)
        await anext(received)
        begun = time.process_time_ns()
        for _ in range(messages - 1):
            await anext(received)
        print_result(messages - 1, begun)


async def aiomqtt_publish(qos: int, messages: int, port: int) -> None:
    import aiomqtt

    # aiomqtt logs a warning for each message beyond ten pending ones.
    logging.getLogger("mqtt").setLevel(logging.ERROR)
    async with aiomqtt.Client(
        HOST,
        port,
        protocol=aiomqtt.ProtocolVersion.V5,
        max_inflight_messages=WINDOW,
        max_queued_outgoing_messages=0,
    ) as client:
        begun = time.process_time_ns()
        if qos:
            await many(lambda: client.publish(TOPIC, PAYLOAD, qos), messages)
        else:
            for _ in range(messages):
                await client.publish(TOPIC, PAYLOAD)
        print_result(messages, begun)


async def aiomqtt_receive(qos: int, messages: int, port: int) -> None:
    import aiomqtt

    async with aiomqtt.Client(HOST, port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(TOPIC, qos=qos)
        print("ready", flush=True)
        received = client.messages
        await anext(received)
        begun = time.process_time_ns()
        for _ in range(messages - 1):
            await anext(received)
        print_result(messages - 1, begun)


def paho_client(port: int) -> Any:
    import paho.mqtt.client as paho

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.max_inflight_messages_set(WINDOW)
    client.connect(HOST, port)
    while not client.is_connected():
        client.loop(0.01)
    return client


def paho_publish(qos: int, messages: int, port: int) -> None:
    client = paho_client(port)
    done = 0

    def on_publish(*_: object) -> None:
        nonlocal done
        done += 1

    client.on_publish = on_publish
    begun = time.process_time_ns()
    sent = 0
    while done < messages:
        while sent < messages and sent - done < WINDOW:
            client.publish(TOPIC, PAYLOAD, qos)
            sent += 1
        client.loop(0.01)
    print_result(messages, begun)


def paho_receive(qos: int, messages: int, port: int) -> None:
    client = paho_client(port)
    received = begun = 0

    def on_message(*_: object) -> None:
        nonlocal received, begun
        received += 1
        if received == 1:
            begun = time.process_time_ns()

    client.on_message = on_message
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.subscribe(TOPIC, qos)
    while received < messages:
        client.loop(0.1)
    print_result(messages - 1, begun)


ASYNCIO: Final = {
    ("semel", "publish"): semel_publish,
    ("semel", "receive"): semel_receive,
    ("aiomqtt", "publish"): aiomqtt_publish,
    ("aiomqtt", "receive"): aiomqtt_receive,
}
CALLBACKS: Final = {
    ("paho-mqtt", "publish"): paho_publish,
    ("paho-mqtt", "receive"): paho_receive,
}


def main() -> None:
    library, job, *numbers = sys.argv[1:]
    qos, messages, port = map(int, numbers)
    if (library, job) in ASYNCIO:
        asyncio.run(ASYNCIO[library, job](qos, messages, port))
    else:
        CALLBACKS[library, job](qos, messages, port)


if __name__ == "__main__":
    main()
