"""Replays the recorded exchange of one case. `reproducer` writes its text into files of their own.

A reproducer has the docstring and the data of its case instead of those here, so this module uses
the standard library of Python 3.8 only.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess  # nosec B404: it runs the client that the user names
import sys
import time
from collections.abc import Callable

# --- the case: begin ---
CASE = ""
VERSION = "5.0"
STATEMENTS: list[tuple[str, str]] = []
REQUIRED = ""
FOUND = ""
# Whether the subject is a client, which connects to this program.
LISTENS = False
COMPARES_CONNACK_PROPERTIES = False
# Part of topic names and client identifiers. Each run against a broker uses another one.
TAG = ""
# Seconds, arm, connection, what happened, bytes, meaning.
STEPS: list[tuple[float, str, int, str, str, str]] = []
# --- the case: end ---

# How long to wait for a packet that was recorded, and after the last step.
TIMEOUT = 5.0
FINAL_WAIT = 1.0
NAMES = (
    *("reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT"),
    "AUTH",
)
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)


class ReplayStopped(Exception):
    """The replay cannot prove anything: the reason, as a sentence."""


def name(packet: bytes) -> str:
    return NAMES[packet[0] >> 4]


def body_start(data: bytes) -> tuple[int, int]:
    """Where the body of the packet begins and ends; the end is 0 if that is not known yet."""
    length = 0
    for index in range(1, min(len(data), 5)):
        length |= (data[index] & 127) << 7 * (index - 1)
        if data[index] < 128:
            return index + 1, index + 1 + length
    return 0, 0


def split(data: bytes) -> list[bytes]:
    """The packets of a stream of bytes. The last one may be incomplete."""
    packets = []
    while data:
        _, end = body_start(data)
        packets.append(data[: end or len(data)])
        data = data[end:] if end else b""
    return packets


def complete(data: bytes) -> int:
    """How many packets of a stream of bytes are complete."""
    return sum(0 < body_start(packet)[1] <= len(packet) for packet in split(data))


def read_properties(data: bytes, ignored: str) -> tuple[object, bytes]:
    """The properties of MQTT 5.0 before `data` without the ignored ones, and what follows them."""
    start, end = body_start(b"?" + data)
    rest, found = data[start - 1 : end - 1], []
    while rest:
        kind = f"{rest[0]:02x}"
        if kind in ["01", "17", "19", "24", "25", "28", "29", "2a"]:
            size = 2
        elif kind in ["13", "21", "22", "23"]:
            size = 3
        elif kind in ["02", "11", "18", "27"]:
            size = 5
        elif kind == "0b":
            size = next((i + 1 for i in range(1, len(rest)) if rest[i] < 128), len(rest))
        else:
            size = 3 + int.from_bytes(rest[1:3], "big")
            if kind == "26":
                size += 2 + int.from_bytes(rest[size : size + 2], "big")
        if kind not in ignored.split():
            found.append(rest[:size])
        rest = rest[size:]
    return found, data[end - 1 :]


def essence(packet: bytes) -> tuple[object, ...]:
    """What two packets have in common if they are equal but for what a sender may choose."""
    start, end = body_start(packet)
    kind, body = packet[0] >> 4, packet[start:]
    if not end or len(packet) != end or kind in (CONNECT, SUBSCRIBE, UNSUBSCRIBE):
        return packet[0], end
    if kind == PUBLISH:
        size = 2 + int.from_bytes(body[:2], "big")
        topic, rest = body[:size], body[size:]
        if packet[0] & 0x06:
            rest = rest[2:]  # the packet identifier
        properties: object = ()
        if VERSION == "5.0":
            # Message Expiry Interval: it becomes smaller with time.
            properties, rest = read_properties(rest, "02")
        return packet[0], topic, properties, rest
    if kind == CONNACK:
        properties = ()
        if COMPARES_CONNACK_PROPERTIES and VERSION == "5.0":
            # Assigned Client Identifier and texts for people.
            properties, _ = read_properties(body[2:], "12 16 1a 1c 1f 26")
        return packet[0], body[:2], properties
    if kind in (PUBACK, PUBREC, PUBCOMP):
        return packet[0], body[:2], body[2:3] or b"\0"
    if kind == PUBREL:
        return packet[0], body[2:3] or b"\0"
    if kind in (SUBACK, UNSUBACK) and VERSION == "5.0":
        return packet[0], body[:2], read_properties(body[2:], "")[1]
    if kind in (DISCONNECT, AUTH):
        return packet[0], body[:1] or b"\0"
    return packet[0], body


class ReplayedConnection:
    """One connection: what was recorded on it, and what is seen now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket: socket.socket | None = None
        self.seen = b""
        self.is_closed_by_subject = False
        self.recorded: list[tuple[str, bytes]] = []
        self.is_recorded_as_closed = False
        # What was recorded up to the step that is being replayed.
        self.expected = b""
        # How many packets came within the recorded time; None as long as it is not over.
        self.in_time: int | None = None
        self.is_closing_expected = False

    def packets(self, is_relevant: Callable[[bytes], bool]) -> tuple[list[bytes], list[bytes]]:
        """The packets recorded and seen. What came after the recorded time is no difference."""
        recorded = [packet for _, packet in self.recorded]
        seen = split(self.seen)
        if self.in_time is not None:
            seen = seen[: max(self.in_time, len(recorded))]
        return [p for p in recorded if is_relevant(p)], [p for p in seen if is_relevant(p)]

    def is_up_to_date(self) -> bool:
        """Whether all has come that was recorded up to now."""
        if self.socket is None or self.is_closed_by_subject:
            return True
        return not self.is_closing_expected and complete(self.seen) >= complete(self.expected)


class Replay:
    """Takes the steps of the examiner again, and compares what the subject does."""

    def __init__(self, host: str, port: int, command: list[str]) -> None:
        self.address = (host, port)
        self.command = command
        self.client: subprocess.Popen[bytes] | None = None
        self.listener: socket.socket | None = None
        self.connections: dict[int, ReplayedConnection] = {}
        self.began = time.monotonic()
        self.timeout = TIMEOUT
        self.last_action = 0.0
        self.steps = [(*step[:4], bytes.fromhex(step[4]), step[5]) for step in STEPS]
        if TAG and not LISTENS:
            new = os.urandom(len(TAG)).hex()[: len(TAG)].encode()
            self.steps = [
                (*step[:4], step[4].replace(TAG.encode(), new), step[5]) for step in self.steps
            ]
        for _, arm, number, kind, data, _ in self.steps:
            connection = self.connections.setdefault(number, ReplayedConnection(number))
            if kind == "received":
                connection.recorded += [(arm, packet) for packet in split(data)]
            elif kind == "closed by subject":
                connection.is_recorded_as_closed = True

    def show(self, arm: str, number: int, what: str, text: str = "") -> None:
        seconds = time.monotonic() - self.began
        print(f"{seconds:8.3f}  {arm:7}  connection {number}  {what:17}  {text}".rstrip())

    # --- the steps ---

    def run(self) -> None:
        """Take all steps, in the order and with the pauses that were recorded."""
        if LISTENS:
            try:
                self.listener = socket.create_server(self.address)
            except OSError as problem:
                host, port = self.address
                raise ReplayStopped(f"cannot listen on {host} port {port}: {problem}") from None
            host, port = self.listener.getsockname()[:2]
            print(f"listening on {host} port {port}", flush=True)
        last_action = max(
            (i for i, step in enumerate(self.steps) if step[3] in ("opened", "sent")), default=-1
        )
        offset = time.monotonic()
        for index, (at, arm, number, kind, data, meaning) in enumerate(self.steps):
            connection = self.connections[number]
            if kind == "received":
                connection.expected += data
                continue
            if kind == "closed by subject":
                connection.is_closing_expected = True
                continue
            self.receive(arm, until=offset + at)
            if not self.wait_for_recorded(arm):
                # It behaves differently: do not wait long again.
                self.timeout = FINAL_WAIT
            if kind == "closed by examiner" and index > last_action:
                self.wait_for_end(arm)
            # What came late makes everything after it late.
            offset = max(offset, time.monotonic() - at)
            self.take_step(arm, connection, kind, data, meaning)
        self.wait_for_recorded("test")
        self.wait_for_end("test")

    def wait_for_end(self, arm: str) -> None:
        """Give a subject that is slower than the recorded one some time, to close above all."""
        for connection in self.connections.values():
            if connection.in_time is None:
                connection.in_time = 0 if self.ended_at_once() else complete(connection.seen)
        self.receive(arm, until=max(time.monotonic(), self.last_action + FINAL_WAIT))

    def ended_at_once(self) -> bool:
        """Whether the case ended when something came, and did not wait whether more would come."""
        ends = [step[0] for step in self.steps if step[3] == "closed by examiner"]
        others = [step[0] for step in self.steps if step[3] not in ("closed by examiner", "note")]
        return bool(ends and others) and 0 <= max(ends) - max(others) < 0.05

    def take_step(
        self, arm: str, connection: ReplayedConnection, kind: str, data: bytes, meaning: str
    ) -> None:
        if kind == "note":
            print(f"{'':8}  {arm:7}  note: {meaning}", flush=True)
            if LISTENS:
                self.control_client(meaning)
            elif re.search(r"\b(restart|start|stopp|kill)ed\b", meaning):
                self.ask(meaning)
            return
        if kind != "closed by examiner":
            self.last_action = time.monotonic()
        if kind == "opened":
            connection.socket = self.accept() if LISTENS else self.connect()
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.show(arm, connection.number, "opened")
        elif connection.socket is None or connection.is_closed_by_subject:
            self.show(arm, connection.number, "(closed)", "not possible any more: " + meaning)
        elif kind == "sent":
            data = self.with_seen_packet_id(connection, data)
            self.show(arm, connection.number, "sent", data[:64].hex(" ") + "  " + meaning)
            try:
                connection.socket.sendall(data)
            except OSError:
                self.note_closed(arm, connection)
        elif kind == "closed by examiner":
            if "cut" in meaning:
                # Closes without FIN, as a network failure does.
                linger = struct.pack("ii", 1, 0)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.socket.close()
            connection.socket = None
            self.show(arm, connection.number, "closed by us")

    def connect(self) -> socket.socket:
        try:
            found = socket.create_connection(self.address, TIMEOUT)
        except OSError as problem:
            host, port = self.address
            raise ReplayStopped(f"cannot connect to {host} port {port}: {problem}") from None
        return found

    def accept(self) -> socket.socket:
        assert self.listener is not None
        if self.client is None or self.client.poll() is not None:
            self.start_client()
        self.listener.settimeout(TIMEOUT if self.command else 60)
        try:
            return self.listener.accept()[0]
        except OSError:
            raise ReplayStopped("no client connected") from None

    def control_client(self, meaning: str) -> None:
        """Do to the client what was done when the case was recorded."""
        number = re.match(r"sent (SIG[A-Z]+[0-9]*) to the program", meaning)
        if meaning.startswith("started: "):
            self.start_client()
        elif number is not None and self.client is not None:
            self.client.send_signal(getattr(signal, number.group(1)))

    def start_client(self) -> None:
        """Start the client's command; without one, somebody must start the client."""
        assert self.listener is not None
        if not self.command:
            print("start the client now, or let it connect again", flush=True)
            return
        self.stop_client()
        host, port = self.listener.getsockname()[:2]
        values = {
            "{host}": host,
            "{port}": str(port),
            "{version}": "5" if VERSION == "5.0" else "311",
            "{level}": "5" if VERSION == "5.0" else "4",
            "{client_id}": "semel" + TAG,
            "{topic}": "semel-probe/" + TAG,
            "{keep_alive}": "5",
        }
        words = self.command
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        try:
            self.client = subprocess.Popen(words)  # nosec B603: the user's own command
        except OSError as problem:
            raise ReplayStopped(f"cannot start {words[0]}: {problem.strerror}") from None

    def stop_client(self) -> None:
        if self.client is not None:
            self.client.kill()
            self.client.wait()

    def close(self) -> None:
        self.stop_client()
        for each in (self.listener, *(one.socket for one in self.connections.values())):
            if each is not None:
                each.close()

    def ask(self, meaning: str) -> None:
        try:
            input(f"{'':10}do the same with the subject ({meaning}), then press Enter: ")
        except EOFError:
            raise ReplayStopped(f"somebody must do this: {meaning}") from None

    def with_seen_packet_id(self, connection: ReplayedConnection, data: bytes) -> bytes:
        """An acknowledgement with the packet identifier that the subject chose in this run."""
        if len(data) < 4 or data[0] >> 4 not in (PUBACK, PUBREC, PUBCOMP):
            return data
        recorded, seen = packet_ids(connection.expected), packet_ids(connection.seen)
        for index in range(min(len(recorded), len(seen)) - 1, -1, -1):
            if recorded[index] == data[2:4]:
                return data[:2] + seen[index] + data[4:]
        return data

    # --- what comes back ---

    def receive(self, arm: str, until: float) -> None:
        """Read from all connections, at least once, until this time."""
        while True:
            self.read_once(arm, until - time.monotonic())
            if time.monotonic() >= until:
                return

    def wait_for_recorded(self, arm: str) -> bool:
        """Read until all has come that was recorded up to now; False if it does not come."""
        deadline = time.monotonic() + self.timeout
        while not all(each.is_up_to_date() for each in self.connections.values()):
            if time.monotonic() >= deadline:
                return False
            self.read_once(arm, deadline - time.monotonic())
        return True

    def read_once(self, arm: str, seconds: float) -> None:
        open_ones = {
            each.socket: each
            for each in self.connections.values()
            if each.socket is not None and not each.is_closed_by_subject
        }
        if not open_ones:
            time.sleep(max(0.0, seconds))
            return
        ready, _, _ = select.select(list(open_ones), [], [], max(0.0, seconds))
        for each in ready:
            connection = open_ones[each]
            try:
                data = each.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.note_closed(arm, connection)
                continue
            before = complete(connection.seen)
            connection.seen += data
            names = ", ".join(name(packet) for packet in split(connection.seen)[before:])
            self.show(arm, connection.number, "received", data[:64].hex(" ") + "  " + names)

    def note_closed(self, arm: str, connection: ReplayedConnection) -> None:
        connection.is_closed_by_subject = True
        self.show(arm, connection.number, "closed by subject")

    # --- the result ---

    def is_relevant(self, packet: bytes) -> bool:
        """Whether a packet belongs to the case: not messages of the broker itself or of others."""
        if packet[0] >> 4 != PUBLISH:
            return True
        name = topic(packet)
        return not name.startswith(b"$SYS/") and any(name in step[4] for step in self.steps)

    def check_control(self) -> None:
        """Raise ReplayStopped unless the control behaved as recorded."""
        for connection in self.connections.values():
            _, seen = connection.packets(self.is_relevant)
            recorded = [each for each in connection.recorded if self.is_relevant(each[1])]
            for index, (arm, packet) in enumerate(recorded):
                now = seen[index : index + 1]
                if arm == "control" and [essence(each) for each in now] != [essence(packet)]:
                    came = name(now[0]) if now else "nothing"
                    if now and name(now[0]) == name(packet):
                        came = now[0].hex(" ") + " instead of " + packet.hex(" ")
                    raise ReplayStopped(
                        f"the control failed on connection {connection.number}: "
                        f"{name(packet)} was recorded, and {came} came"
                    )
        before = [p for each in self.connections.values() for _, p in each.recorded]
        after = [p for each in self.connections.values() for p in split(each.seen)]
        if any(map(is_accepting, before)) and not any(map(is_accepting, after)):
            raise ReplayStopped("the control failed: no connection was accepted")

    def differences(self) -> list[str]:
        """What the subject does differently from what was recorded, by connection."""
        found = []
        for number, connection in sorted(self.connections.items()):
            recorded, seen = connection.packets(self.is_relevant)
            was = outline(recorded, connection.is_recorded_as_closed)
            now = outline(seen, connection.is_closed_by_subject)
            if was != now:
                found.append(f"connection {number}: recorded {was}; now {now}")
                continue
            for index, old in enumerate(recorded):
                if essence(old) != essence(seen[index]):
                    was, now = old.hex(" "), seen[index].hex(" ")
                    found.append(f"connection {number}: recorded {name(old)} {was}; now {now}")
        return found


def outline(packets: list[bytes], is_closed: bool) -> str:
    names = ", ".join(name(packet) for packet in packets) or "nothing"
    return names + (", closed by the subject" if is_closed else ", not closed by the subject")


def topic(packet: bytes) -> bytes:
    """The topic name of a PUBLISH."""
    start = body_start(packet)[0]
    size = int.from_bytes(packet[start : start + 2], "big")
    return packet[start + 2 : start + 2 + size]


def packet_ids(data: bytes) -> list[bytes]:
    """The packet identifiers of the PUBLISH packets with QoS 1 and 2 in a stream of bytes."""
    found = []
    for packet in split(data):
        if packet[0] >> 4 == PUBLISH and packet[0] & 0x06:
            start = body_start(packet)[0] + 2 + len(topic(packet))
            found.append(packet[start : start + 2])
    return found


def is_accepting(packet: bytes) -> bool:
    return packet[0] >> 4 == CONNACK and packet[3:4] == b"\0"


def main(words: list[str]) -> int:
    command: list[str] = []
    if "--" in words:
        words, command = words[: words.index("--")], words[words.index("--") + 1 :]
    if len(words) > 2 or (len(words) == 2 and not words[1].isdigit()):
        print(f"usage: python3 {sys.argv[0]} [host] [port]" + " [-- client command]" * LISTENS)
        return 2
    # Terminals that cannot show a character get an escape sequence.
    getattr(sys.stdout, "reconfigure", lambda **_: None)(errors="backslashreplace")
    host = words[0] if words else "127.0.0.1" if LISTENS else "localhost"
    replay = Replay(host, int(words[1]) if len(words) == 2 else 1883, command)
    print(f"{CASE}, MQTT {VERSION}\nThe subject must do this: {REQUIRED}\n", flush=True)
    try:
        replay.run()
        replay.check_control()
    except ReplayStopped as reason:
        print(f"\n{reason}: nothing is proved")
        return 2
    finally:
        replay.close()
    differences = replay.differences()
    if differences:
        print("\nNOT REPRODUCED: the subject does not behave as it was recorded.")
        for each in differences:
            print("  " + each)
        return 0
    print("\nVIOLATED: " + FOUND)
    for number, sentence in STATEMENTS:
        print(f"  [{number}] {sentence}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
