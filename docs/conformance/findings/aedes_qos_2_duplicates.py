"""Aedes 1.2.0 delivers repeats of a QoS 2 PUBLISH that come before its PUBREC [MQTT-4.3.3-2].

Usage: python aedes_qos_2_duplicates.py [HOST [PORT]]. Exits with 1 if the broker does so.
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
send(reader, frame(0x82, b"\0\1", text(b"finding/once"), b"\0"))
assert receive(reader) == b"\x90\3\0\1\0"
first = frame(0x34, text(b"finding/once"), b"\0\7", b"once")
again = frame(0x3C, text(b"finding/once"), b"\0\7", b"once")
send(writer, first + again)
for _ in range(2):
    assert receive(writer) == b"\x50\2\0\7"
send(writer, b"\x62\2\0\7")
assert receive(writer) == b"\x70\2\0\7"
assert receive(reader).endswith(b"once"), "the control: the message arrives"
is_wrong = receive(reader).endswith(b"once")
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
