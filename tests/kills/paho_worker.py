"""paho-mqtt under the same load: publishers and subscribers in a process of their own.

    python -m tests.kills.paho_worker PORT SEED

It obeys words on its standard input, and answers each with a line of JSON: `load`, `finish` (when
all is acknowledged, or nothing happens any more), `count`, `report`. Each client has a thread that
calls paho's loop, connects again at once, and publishes only between two turns of that loop: so
what paho sends again after a cut goes before what is new.
"""

import json
import random
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.kills.account import payload_of, read_payload

V311, V5 = mqtt.MQTTv311, mqtt.MQTTv5
FILTERS = [("load/#", 2), ("will/#", 2)]
# Nothing has happened for so long: it never will.
STALLED_SECONDS = 20.0


class Client:
    """A paho client that keeps its session as long as this process lives."""

    def __init__(
        self, port: int, seed: int, name: str, version: MQTTProtocolVersion, qos: int
    ) -> None:
        self.port = port
        self.name = name
        self.version = version
        # 0: a subscriber
        self.qos = qos
        self.random = random.Random(f"{seed} {name}")
        self.loading = False
        # Held by who publishes, and by who tells it to begin or to end.
        self.turn = threading.Lock()
        self.stopping = False
        self.connected = False
        self.known = False
        self.subscribed = False
        self.faults: list[str] = []
        # counter to whether it is acknowledged
        self.published: dict[int, bool] = {}
        self.under_way: dict[int, int] = {}
        # publisher, counter, QoS of what was taken, in order
        self.taken: list[tuple[str, int, int]] = []
        self.moved = time.monotonic()
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=None if version == V5 else False,
            protocol=version,
        )
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_publish = self._on_publish
        self.paho.on_message = self._on_message
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping:
            if self.paho.socket() is None:
                try:
                    self._connect()
                except OSError:
                    time.sleep(0.01)
                    continue
            was_connected = self.connected
            if self.paho.loop(0.02) == MQTTErrorCode.MQTT_ERR_SUCCESS and was_connected:
                with self.turn:
                    self._publish()

    def _connect(self) -> None:
        # paho 2.1.0 sends a PUBLISH again after its PUBREL [MQTT-4.3.3-6] if it tries to connect
        # twice without a CONNACK between: the second attempt overwrites what the first noted.
        for message in self.paho._out_messages.values():
            if message.state == mqtt.mqtt_ms_resend_pubrel:
                message.state = mqtt.mqtt_ms_wait_for_pubcomp
        if self.version == V5:
            said = Properties(PacketTypes.CONNECT)
            said.SessionExpiryInterval = 0xFFFFFFFF
            self.paho.connect("127.0.0.1", self.port, 0, clean_start=False, properties=said)
        else:
            self.paho.connect("127.0.0.1", self.port, 0)

    def _publish(self) -> None:
        if not self.loading or not self.qos or not self.connected:
            return
        if self.random.random() < 0.7:
            return
        for _ in range(self.random.randrange(5)):
            if len(self.under_way) >= 10:
                return
            n = len(self.published) + 1
            payload = payload_of(self.name, n, self.qos, self.random.randrange(100))
            self.published[n] = False
            sent = self.paho.publish(f"load/{self.name}/{n % 3}", payload, self.qos)
            self.under_way[sent.mid] = n

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, _said: Any) -> None:
        self.connected = True
        if reason.is_failure:
            self.faults.append(f"{self.name}: CONNACK with {reason}")
        if self.known and not flags.session_present:
            self.faults.append(f"{self.name}: session lost")
        self.known = True
        if not self.qos and not (self.subscribed and flags.session_present):
            self.paho.subscribe(FILTERS)

    def _on_disconnect(self, *_arguments: Any) -> None:
        self.connected = False

    def _on_subscribe(self, _client: Any, _data: Any, _mid: int, codes: Any, _said: Any) -> None:
        if [code.value for code in codes] != [2, 2]:
            self.faults.append(f"{self.name}: SUBACK with {codes}")
        self.subscribed = True

    def _on_publish(self, _client: Any, _data: Any, mid: int, reason: Any, _said: Any) -> None:
        self.moved = time.monotonic()
        n = self.under_way.pop(mid, None)
        # 0x92 for a PUBREL: all was done before, and only its acknowledgement lost.
        if n is None or (reason.is_failure and reason.value != 0x92):
            self.faults.append(f"{self.name}: {n} (identifier {mid}) ends with {reason}")
        else:
            self.published[n] = True

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.moved = time.monotonic()
        try:
            (publisher, n), qos = read_payload(bytes(message.payload))
        except ValueError as problem:
            self.faults.append(f"{self.name}: {problem}: {message.payload[:40]!r}")
            return
        if message.qos != qos:
            self.faults.append(f"{self.name}: {publisher} {n} came at QoS {message.qos}")
        self.taken.append((publisher, n, qos))

    def end(self) -> None:
        self.stopping = True
        self.thread.join()
        self.paho.disconnect()


class Worker:
    def __init__(self, port: int, seed: int) -> None:
        self.subscribers = [
            Client(port, seed, "paho-s-311", V311, 0),
            Client(port, seed, "paho-s-5", V5, 0),
        ]
        self.publishers = [
            Client(port, seed, "paho-p1-5", V5, 1),
            Client(port, seed, "paho-p2-311", V311, 2),
            Client(port, seed, "paho-p2-5", V5, 2),
        ]

    def obey(self, word: str) -> object:
        if word == "load":
            while not all(client.subscribed for client in self.subscribers):
                time.sleep(0.01)
            self._load(True)
            return True
        if word == "finish":
            # Who is publishing at this moment ends its turn first.
            self._load(False)
            while any(client.under_way for client in self.publishers):
                moved = max(client.moved for client in self.publishers)
                if time.monotonic() - moved > STALLED_SECONDS:
                    break
                time.sleep(0.01)
            return {
                client.name: {"qos": client.qos, "acknowledged": list(client.published.values())}
                for client in self.publishers
            }
        if word == "count":
            return {client.name: len(client.taken) for client in self.subscribers}
        assert word == "report", word
        everyone = self.publishers + self.subscribers
        return {
            "faults": [fault for client in everyone for fault in client.faults],
            "taken": {client.name: client.taken for client in self.subscribers},
        }

    def _load(self, loading: bool) -> None:
        for client in self.publishers:
            with client.turn:
                client.loading = loading
                client.moved = time.monotonic()


def main() -> None:
    worker = Worker(int(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        print(json.dumps(worker.obey(line.strip())), flush=True)
    for client in worker.publishers + worker.subscribers:
        client.end()


if __name__ == "__main__":
    main()
