"""An adapter for `semel probe codec`: the codec here knows a short PUBLISH at QoS 0 of MQTT 3.1.1.

    semel probe codec -- python examples/codec_adapter.py

Replace `decode` and `encode` by calls of the library that is to be examined. As it stands, the
examiner finds that this codec takes and writes wildcards, U+0000 and empty Topic Names.
"""

import json
import sys
from typing import Any


def decode(data: bytes) -> dict[str, Any]:
    if data[0] != 0x30 or data[1] > 127:
        return {"cannot": "this codec has a short PUBLISH at QoS 0 only, without flags"}
    end = 4 + int.from_bytes(data[2:4])
    if end > len(data):
        raise ValueError("the Topic Name is longer than the packet")
    payload = "hex:" + data[end:].hex()
    return {"packet": {"type": "Publish", "topic_name": data[4:end].decode(), "payload": payload}}


def encode(packet: dict[str, Any]) -> dict[str, Any]:
    topic_name = packet["topic_name"].encode()
    payload = bytes.fromhex(packet.get("payload", "hex:").removeprefix("hex:"))
    body = len(topic_name).to_bytes(2) + topic_name + payload
    if packet.keys() - {"type", "topic_name", "payload"} or len(body) > 127:
        return {"cannot": "this codec has a short PUBLISH at QoS 0 only, without flags"}
    return {"hex": (bytes([0x30, len(body)]) + body).hex()}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "hello":
        types = {"3.1.1": ["Publish"]}
        return {"name": "example", "version": "1", "decode": types, "encode": types}
    if request["do"] == "decode":
        return decode(bytes.fromhex(request["hex"]))
    return encode(request["packet"])


for line in sys.stdin:
    request = json.loads(line)
    try:
        found = answer(request)
    except Exception as problem:  # whatever the library raises where it refuses something
        found = {"refused": repr(problem)}
    print(json.dumps({"id": request["id"], **found}), flush=True)
