"""RabbitMQ 3.10.8 and Aedes 1.2.0 copy the DUP flag of a publisher to subscribers [MQTT-3.3.1-3].

Usage: python dup_copied.py [HOST [PORT]]. Exits with 1 if the broker does so.
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
send(reader, frame(0x82, b"\0\1", text(b"finding/dup"), b"\1"))
assert receive(reader) == b"\x90\3\0\1\1"
send(writer, frame(0x32, text(b"finding/dup"), b"\0\6", b"control"))
first = receive(reader)
assert first[:1] == b"\x32", "the control: DUP 0 arrives as DUP 0"
send(reader, b"\x40\2" + first[-9:-7])
send(writer, frame(0x3A, text(b"finding/dup"), b"\0\7", b"marked"))
is_wrong = receive(reader)[:1] == b"\x3a"
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
