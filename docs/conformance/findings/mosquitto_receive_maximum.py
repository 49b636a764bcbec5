"""Mosquitto 2.0.11 has three messages open with a Receive Maximum of 2 [MQTT-3.3.4-9].

Usage: python mosquitto_receive_maximum.py [HOST [PORT]]. Exits with 1 if the broker does so.
"""

import socket
import sys

HOST = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 1883


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def frame(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    length = (
        bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 + 128, len(body) // 128])
    )
    return bytes([first]) + length + body


def send(link: socket.socket, data: bytes) -> None:
    print("sent    ", data.hex())
    link.sendall(data)


def receive(link: socket.socket, seconds: float = 2.0) -> bytes:
    """One packet; empty if none comes or the connection is closed."""
    link.settimeout(seconds)
    try:
        data = link.recv(1)
        length = shift = 0
        while data:
            data += link.recv(1)
            length |= (data[-1] & 127) << shift
            shift += 7
            if data[-1] < 128:
                break
        while data and length:
            part = link.recv(length)
            if not part:
                break
            data, length = data + part, length - len(part)
    except OSError:
        data = b""
    print("received", data.hex() or "nothing")
    return data


def connect(client_id: bytes, properties: bytes = b"") -> socket.socket:
    link = socket.create_connection((HOST, PORT), timeout=5)
    rest = bytes([len(properties)]) + properties + text(client_id)
    send(link, frame(0x10, text(b"MQTT"), b"\5\2\0\x3c", rest))
    assert receive(link)[3:4] == b"\0", "the control: a right CONNECT is accepted"
    return link


reader, writer = connect(b"reader", b"\x21\0\2"), connect(b"writer")
send(reader, frame(0x82, b"\0\1\0", text(b"finding/open"), b"\1"))
assert receive(reader)[-1:] == b"\1"
for number in range(1, 6):
    send(writer, frame(0x32, text(b"finding/open"), bytes([0, number, 0]), b"x"))
    assert receive(writer)[0] == 0x40
delivered = [receive(reader), receive(reader)]
assert receive(reader, 0.5) == b"", "the control: two messages are open, and no third one comes"
send(reader, b"\x40\2" + delivered[0][-4:-2])
assert receive(reader)[0] == 0x32, "the control: after a PUBACK one more comes"
is_wrong = receive(reader)[:1] == b"\x32"
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
