"""paho-mqtt as a subject: subscribes at QoS 2, publishes at QoS 0, 1 and 2, prints, reconnects.

paho_client.py HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
"""

import signal
import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

host, port, level, client_id, topic, keep_alive = sys.argv[1:7]
is_5 = level == "5"


def on_connect(client: paho.Client, *others: Any) -> None:
    client.subscribe(topic, qos=2)
    if not published:
        published.append(True)
        for qos in (0, 1, 2, 1, 2):
            client.publish(topic, f"at QoS {qos}", qos)


def on_message(client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
    print(message.payload.decode("utf-8", "replace"), flush=True)


def stop(number: int, frame: object) -> None:
    client.disconnect()


published: list[bool] = []
client = paho.Client(
    CallbackAPIVersion.VERSION2,
    client_id,
    clean_session=None if is_5 else False,
    protocol=paho.MQTTv5 if is_5 else paho.MQTTv311,
)
client.on_connect = on_connect
client.on_message = on_message
client.reconnect_delay_set(1, 1)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
if is_5:
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 300
    client.connect(
        host, int(port), int(keep_alive), clean_start=paho.MQTT_CLEAN_START_FIRST_ONLY,
        properties=properties,
    )  # fmt: skip
else:
    client.connect(host, int(port), int(keep_alive))
client.loop_forever()
