"""ejabberd 23.01 sends a PUBLISH larger than the Maximum Packet Size [MQTT-3.1.2-24].

Usage: python ejabberd_packet_size.py [HOST [PORT]]. Exits with 1 if the broker does so.
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
    rest += text(b"me@localhost") + text(b"password")
    send(link, frame(0x10, text(b"MQTT"), b"\5\xc2\0\x3c", rest))
    assert receive(link)[3:4] == b"\0", "the control: a right CONNECT is accepted"
    return link


reader, writer = connect(b"reader", b"\x27\0\0\0\x40"), connect(b"writer")
send(reader, frame(0x82, b"\0\1\0", text(b"finding/size"), b"\0"))
assert receive(reader)[0] == 0x90
send(writer, frame(0x30, text(b"finding/size"), b"\0", b"control"))
assert receive(reader).endswith(b"control"), "the control: a small message arrives"
send(writer, frame(0x30, text(b"finding/size"), b"\0", 100 * b"x"))
is_wrong = len(receive(reader)) > 64
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
