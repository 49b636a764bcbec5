"""nats-server 2.9.10 delivers topics that begin with $ to a subscriber of # [MQTT-4.7.2-1].

Usage: python nats_hash_and_dollar.py [HOST [PORT]]. Exits with 1 if the broker does so.
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


def connect(client_id: bytes, clean: bool = True) -> socket.socket:
    link = socket.create_connection((HOST, PORT), timeout=5)
    flags = b"\2" if clean else b"\0"
    send(link, frame(0x10, text(b"MQTT"), b"\4", flags, b"\0\x3c", text(client_id)))
    assert receive(link)[3:4] == b"\0", "the control: a right CONNECT is accepted"
    return link


reader, writer = connect(b"reader"), connect(b"writer")
send(reader, frame(0x82, b"\0\1", text(b"#"), b"\0"))
send(writer, frame(0x30, text(b"$finding/secret"), b"x"))
send(writer, frame(0x30, text(b"finding/plain"), b"control"))
topics = []
while not topics or topics[-1] != b"finding/plain":
    packet = receive(reader)
    assert packet, "the control: a plain topic arrives"
    if packet[0] >> 4 == 3:
        start = 3 if packet[1] > 127 else 2
        size = int.from_bytes(packet[start : start + 2], "big")
        topics.append(packet[start + 2 : start + 2 + size])
print(*topics)
is_wrong = any(topic.startswith(b"$") for topic in topics)
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
