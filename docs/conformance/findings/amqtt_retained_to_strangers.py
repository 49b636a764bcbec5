"""amqtt 0.12.1 sends a new client retained messages that others subscribe to [MQTT-3.3.2-3].

Usage: python amqtt_retained_to_strangers.py [HOST [PORT]]. Exits with 1 if the broker does so.
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


writer, reader = connect(b"writer"), connect(b"reader")
send(writer, frame(0x33, text(b"finding/private"), b"\0\7", b"secret"))
assert receive(writer) == b"\x40\2\0\7"
send(reader, frame(0x82, b"\0\1", text(b"finding/private"), b"\0"))
packets = [receive(reader), receive(reader)]
assert any(each.endswith(b"secret") for each in packets), "the control: a subscriber gets it"
stranger = connect(b"stranger")
is_wrong = receive(stranger).endswith(b"secret")
send(writer, frame(0x31, text(b"finding/private")))
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
