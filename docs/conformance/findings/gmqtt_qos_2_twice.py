"""gmqtt 0.8.0 delivers a repeated QoS 2 PUBLISH twice [MQTT-4.3.3-2].

Usage: python gmqtt_qos_2_twice.py CMD …, where {port} in CMD is the port to connect to. CMD is a
client program that subscribes and prints the payload of each message on a line of its own, such as
tests/probe/client_programs/gmqtt_client.py. Exits with 1 if the message is printed twice.
"""

import socket
import subprocess
import sys
import time


def receive(link: socket.socket) -> bytes:
    """One packet of fewer than 128 bytes."""
    data = link.recv(2, socket.MSG_WAITALL)
    if len(data) == 2 and data[1]:
        data += link.recv(data[1], socket.MSG_WAITALL)
    print("received", data.hex() or "nothing")
    assert data, "the client closed the connection"
    return data


def wait_for(link: socket.socket, wanted: bytes) -> None:
    """Answer what the client sends until a packet comes that begins with `wanted`."""
    while True:
        packet = receive(link)
        if packet.startswith(wanted):
            return
        kind, identifier = packet[0] >> 4, packet[-2:]
        if kind == 8:
            send(link, b"\x90\3" + packet[2:4] + b"\2")
        elif kind == 3 and packet[0] & 6:
            size = int.from_bytes(packet[2:4], "big")
            identifier = packet[4 + size : 6 + size]
            send(link, (b"\x40\2" if packet[0] & 2 else b"\x50\2") + identifier)
        elif kind == 6:
            send(link, b"\x70\2" + identifier)
        elif kind == 12:
            send(link, b"\xd0\0")


def send(link: socket.socket, data: bytes) -> None:
    print("sent    ", data.hex())
    link.sendall(data)


def publish(payload: bytes, first: int, identifier: int) -> bytes:
    body = b"\0\1t" + identifier.to_bytes(2, "big") + payload
    return bytes([first, len(body)]) + body


server = socket.create_server(("127.0.0.1", 0))
port = str(server.getsockname()[1])
command = [part.replace("{port}", port) for part in sys.argv[1:]]
client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
try:
    server.settimeout(10)
    link, _ = server.accept()
    link.settimeout(10)
    assert receive(link)[0] == 0x10, "a CONNECT"
    send(link, b"\x20\2\0\0")
    wait_for(link, b"\x82")
    send(link, b"\x90\3\0\1\2")
    send(link, publish(b"control", 0x34, 1001))
    wait_for(link, b"\x50\2\x03\xe9")
    send(link, b"\x62\2\x03\xe9")
    wait_for(link, b"\x70\2\x03\xe9")
    send(link, publish(b"once", 0x34, 1002))
    wait_for(link, b"\x50\2\x03\xea")
    send(link, publish(b"once", 0x3C, 1002))
    wait_for(link, b"\x50\2\x03\xea")
    send(link, b"\x62\2\x03\xea")
    wait_for(link, b"\x70\2\x03\xea")
    time.sleep(1)
finally:
    client.terminate()
printed = client.communicate()[0].splitlines()
print("printed", printed)
assert "control" in printed, "the control: a QoS 2 message is delivered"
is_wrong = printed.count("once") > 1
print("violated" if is_wrong else "right")
sys.exit(is_wrong)
