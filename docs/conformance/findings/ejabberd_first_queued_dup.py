"""ejabberd 23.01 sends the first queued message with DUP 1 [MQTT-4.3.2-1].

Usage: python ejabberd_first_queued_dup.py [HOST [PORT]]. Exits with 1 if the broker does so.
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
    flags = b"\xc2" if clean else b"\xc0"
    user = text(b"me@localhost") + text(b"password")
    send(link, frame(0x10, text(b"MQTT"), b"\4", flags, b"\0\x3c", text(client_id), user))
    assert receive(link)[3:4] == b"\0", "the control: a right CONNECT is accepted"
    return link


connect(b"sleeper").close()
reader, writer = connect(b"sleeper", clean=False), connect(b"writer")
send(reader, frame(0x82, b"\0\1", text(b"finding/queue"), b"\1"))
assert receive(reader) == b"\x90\3\0\1\1"
send(reader, b"\xe0\0")
receive(reader)
for number in (1, 2):
    send(writer, frame(0x32, text(b"finding/queue"), bytes([0, number]), b"x"))
    assert receive(writer) == bytes([0x40, 2, 0, number])
reader = connect(b"sleeper", clean=False)
first = receive(reader)
assert first.endswith(b"x"), "the control: the queued message arrives"
is_wrong = first[:1] == b"\x3a"
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
