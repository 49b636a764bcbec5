"""Generated data for the page's fake server: a plant with 10,000 topics, and hostile names.

Everything is made from fixed seeds, so that two runs show the same, but for the time.
"""

import json
import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

Values = dict[str, Any]

PLANTS: Final = ("berlin", "lyon", "porto", "turin")
LINES: Final = 10
MACHINES: Final = ("press", "oven", "robot", "mill")
SENSORS: Final = ("temp", "pressure", "vibration", "state", "count")
# 4 plants × 10 lines × 4 kinds × 10 machines × 5 sensors = 8,000 topics, and 2,000 in one branch.
MACHINES_OF_A_KIND: Final = 10
METERS: Final = 2_000

RTL: Final = "\u202e"
HOSTILE_LEVELS: Final = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    f"safe{RTL}gnp.exe",
    "zero\u200bwidth",
    "nul\x00bell\x07",
    "שלום",
    "👩‍🔧 wrench 🔧",
    "x" * 65_000,
    "'\"&amp;${7*7}{{7*7}}",
    "",
)
HOSTILE_CLIENTS: Final = (
    "<img src=x onerror=alert(3)>",
    f"admin{RTL}tneilc",
    "\x1b[31mred\x1b[0m",
    "c" * 23_000,
    "😀😀😀",
    "a/b?c#d&e=%2e%2e",
    "__proto__",
)


@lru_cache(maxsize=4_096)
def describe_payload(payload: bytes) -> Values:
    """PAYLOAD of the interface."""
    try:
        text: str | None = payload.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    kind, number = "text", None
    if not payload:
        kind = "empty"
    elif text is None:
        kind = "binary"
    else:
        try:
            value = json.loads(text)
            if isinstance(value, dict | list):
                kind = "json"
            elif isinstance(value, int | float) and math.isfinite(value):
                kind, number = "number", value
        except (ValueError, RecursionError):
            pass
    is_cut = text is not None and len(text) > 4_096
    return {
        "size": len(payload),
        "kind": kind,
        "text": None if text is None else text[:4_096],
        "hex": payload[:256].hex(),
        "cut": is_cut,
        "number": number,
    }


def plant_topics() -> Iterator[str]:
    """10,000 topics as plants have them."""
    for plant in PLANTS:
        for line in range(1, LINES + 1):
            for machine in MACHINES:
                for number in range(1, MACHINES_OF_A_KIND + 1):
                    for sensor in SENSORS:
                        yield f"plant/{plant}/line-{line}/{machine}-{number}/{sensor}"
    for meter in range(METERS):
        yield f"meters/{meter:05}"


def hostile_topics() -> Iterator[str]:
    """Topics whose names and payloads attack a page."""
    for level in HOSTILE_LEVELS:
        yield f"hostile/{level}"
    yield "/leading/slash"


def payload_of(topic: str, now: float) -> bytes:
    """The last payload of a topic at a time."""
    seed = sum(topic.encode()) % 97
    value = 20 + seed / 5 + 3 * math.sin(now / 60 + seed) + random.Random(now).random() / 4
    sensor = topic.rpartition("/")[2]
    if topic.startswith(("hostile", "/")):
        return _hostile_payload(topic)
    if sensor == "temp":
        return f"{value:.2f}".encode()
    if sensor == "pressure":
        return json.dumps({"bar": round(value / 10, 3), "valve": {"open": seed % 2 == 0}}).encode()
    if sensor == "vibration":
        return bytes(random.Random(seed).randbytes(48))
    if sensor == "state":
        return b"running" if seed % 7 else b"stopped: door open"
    if sensor == "count":
        return str(int(now) % 100_000 + seed).encode()
    reading = {"meter": sensor, "kwh": round(1000 + value * 7, 1), "volt": [229.8, 230.1, 231.4]}
    return json.dumps(reading).encode()


def _hostile_payload(topic: str) -> bytes:
    choices = (
        b"<img src=x onerror=alert(4)>",
        b'{"a": "<script>alert(5)</script>", "big": 12345678901234567890, "a": 2}',
        f"left {RTL}thgir\nline\ttab\r\x00".encode(),
        bytes(range(256)) * 40,
        b"",
        b"[" * 3_000,
        b"1e999",
    )
    return choices[sum(topic.encode()) % len(choices)]


class Tree:
    """Topics as the server's tree has them."""

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics
        self.children: dict[str, dict[str, str]] = {"": {}}
        self.count: dict[str, int] = {"": len(topics)}
        for topic in topics:
            levels = topic.split("/")
            for depth in range(len(levels)):
                key = "".join(f"{level}/" for level in levels[:depth])
                below = "/".join(levels[: depth + 1])
                self.children.setdefault(key, {})[levels[depth]] = below
                self.count[f"{below}/"] = self.count.get(f"{below}/", 0) + 1
        self.leaves = set(topics)

    def entry(self, level: str, topic: str, now: float) -> Values:
        key = f"{topic}/"
        topics = self.count.get(key, 1)
        seed = sum(topic.encode()) % 89
        last = None
        if topic in self.leaves:
            # A tenth of the topics is quiet.
            at = now - (seed % 10) / 10 if seed % 10 else now - 60 * seed
            payload = describe_payload(payload_of(topic, math.floor(at)))
            last = {"at": at, "payload": payload, "qos": seed % 3, "retain": seed % 11 == 0}
        return {
            "key": key,
            "level": level,
            "topic": topic,
            "children": len(self.children.get(key, {})),
            "topics": topics,
            "messages": topics * 1_000 + int(now) % 1_000,
            "rate": round(topics * (0.4 + seed / 100), 2) if seed % 10 else 0,
            "last": last,
        }

    def branch(self, key: str, now: float, *, most: int = 5_000) -> Values:
        found = self.children.get(key, {})
        entries = [self.entry(level, topic, now) for level, topic in list(found.items())[:most]]
        return {
            "type": "topics",
            "branch": key,
            "entries": entries,
            "more": max(0, len(found) - most),
            "total_topics": len(self.topics),
            "messages": len(self.topics) * 1_000 + int(now),
        }

    def search(self, text: str, now: float) -> Values:
        needle = text.lower()
        found = [topic for topic in self.topics if needle in topic.lower()]
        return {
            "type": "found",
            "search": text,
            "entries": [self.entry(t.rpartition("/")[2], t, now) for t in found[:500]],
            "more": max(0, len(found) - 500),
        }


def sample(now: float, *, landed: bool = True) -> Values:
    """NOW of the interface."""
    noise = random.Random(int(now))
    wave = 1 + 0.25 * math.sin(now / 23) + 0.1 * math.sin(now / 5)
    received = 2_400 * wave + noise.random() * 200
    sent = received * 1.6 + noise.random() * 150
    total = int(84_000_000 + (now % 1_000_000) * 2_400)
    lag = int(received * (0.8 + noise.random() / 2))
    landed_lag = int(received * (2.1 + noise.random()))
    return {
        "type": "now",
        "at": now,
        "parts": [
            {"name": "broker", "state": "ready", "text": ""},
            {"name": "sealer", "state": "ready", "text": ""},
            {"name": "landing", "state": "ready" if landed else "starting", "text": ""},
        ],
        "clients": 1_012 + int(4 * math.sin(now / 40)),
        "connections": 1_013 + int(4 * math.sin(now / 40)),
        "sessions": 1_204,
        "subscriptions": 3_480,
        "retained": 8_211,
        "received_rate": received,
        "sent_rate": sent,
        "received_bytes_rate": received * 212,
        "sent_bytes_rate": sent * 214,
        "received_total": total,
        "sent_total": int(total * 1.6),
        "queued_messages": int(340 + 120 * math.sin(now / 31) + noise.random() * 40),
        "inflight_messages": int(85 + noise.random() * 30),
        "paused_publishers": 0,
        "dropped": {"queue full": 1_420, "message expired": 311, "packet too large": 12},
        "dropped_rate": 0.4 if int(now) % 40 < 3 else 0,
        "violations_total": 37,
        "loop_lag_ms": 0.35 + 0.2 * noise.random(),
        "commit_ms": 2.4 + 1.8 * noise.random() + (6 if int(now) % 61 == 0 else 0),
        "cpu": 0.18 * wave + noise.random() * 0.02,
        "memory_bytes": 148_000_000 + 6_000_000 * math.sin(now / 80),
        "memory_limit_bytes": 512_000_000,
        "free_bytes": 212_400_000_000,
        "store_condition": "open",
        "flow": {
            "stream": "all",
            "received": {"total": total, "rate": received},
            "recorded": {"seq": total - 40, "rate": received, "lag_ms": 2.9 + noise.random()},
            "sealed": {
                "seq": total - lag,
                "rate": received,
                "lag_rows": lag,
                "lag_seconds": lag / received,
            },
            "landed": {
                "seq": total - landed_lag,
                "rate": received,
                "lag_rows": landed_lag,
                "lag_seconds": landed_lag / received,
            }
            if landed
            else None,
        },
    }


def clients(count: int) -> Values:
    """The answer of /api/clients."""
    noise = random.Random(7)
    names = [*HOSTILE_CLIENTS, *(f"{MACHINES[n % 4]}-{n:04}" for n in range(count))]
    found = [
        {
            "client": name,
            "user": noise.choice(("press-line", "oven", "telemetry", None)),
            "address": f"10.0.{n % 256}.{noise.randrange(1, 255)}:{noise.randrange(30000, 60000)}",
            "listener": "mqtts",
            "proof": "password",
            "version": noise.choice(("5.0", "3.1.1")),
            "connected_seconds": noise.randrange(1, 900_000),
            "silent_seconds": noise.random() * 50,
            "keep_alive": 60,
            "messages_received": noise.randrange(0, 900_000),
            "messages_sent": noise.randrange(0, 90_000),
            "bytes_received": noise.randrange(0, 90_000_000),
            "bytes_sent": noise.randrange(0, 9_000_000),
            "unsent_bytes": 0,
            "paused": "Paused: its queue is full." if n % 331 == 300 else None,
            "queued_messages": noise.choice((0, 0, 0, 0, 3, 40)),
            "inflight_messages": noise.choice((0, 0, 1, 5)),
            "subscriptions": noise.randrange(0, 9),
            "durable": n % 3 == 0,
        }
        for n, name in enumerate(names)
    ]
    sessions = [
        {
            "client": f"handheld-{n:03}",
            "user": "worker",
            "connected": False,
            "durable": True,
            "expires_seconds": 86_400 - n * 60,
            "subscriptions": 2,
            "queued_messages": n * 3,
            "queued_bytes": n * 3 * 210,
            "inflight_messages": 0,
        }
        for n in range(120)
    ]
    return {"clients": found, "sessions": sessions, "more": False}


def violations() -> Values:
    """The answer of /api/violations."""
    rules = [
        (
            "PUBLISH_TOPIC_WITHOUT_WILDCARDS",
            "The Topic Name of a PUBLISH contains no wildcard characters.",
            ["MQTT-3.3.2-2"],
            21,
        ),
        (
            "PACKET_ID_NOT_ZERO",
            "A packet identifier is not 0.",
            ["MQTT-2.2.1-3", "MQTT-2.2.1-4"],
            12,
        ),
        (
            "CONNECT_ONCE",
            "A client sends CONNECT once on a connection.",
            ["MQTT-3.1.0-2"],
            4,
        ),
    ]
    recent = [
        {
            "rule": rule,
            "sentence": sentence,
            "statements": statements,
            "count": max(1, total - n),
            "seconds_ago": 4 + n * 97,
            "client": ("press-0007", HOSTILE_CLIENTS[0], None)[n % 3],
            "user": "press-line",
            "address": f"10.0.3.{n + 4}:41234",
            "version": "5.0",
            "packet": "PUBLISH",
            "seen": f"Topic Name 'plant/+/temp' {RTL}evil",
            "bytes": "30160009706c616e742f2b2f74656d7000" + "32312e35" * 6,
            "advice": "The connection was closed. Correct how the client makes its PUBLISH, or "
            "update its library.",
        }
        for n, (rule, sentence, statements, total) in enumerate(rules * 2)
    ]
    return {
        "rules": [{"rule": rule, "sentence": s, "total": total} for rule, s, _, total in rules],
        "recent": recent,
    }


def tables(now: float) -> Values:
    """The answer of /api/tables."""
    names = (
        ("messages", 84_120_331, 9_120_000_000, 412, 0),
        ("temperature", 16_804_110, 640_000_000, 120, 2_310),
        ("pressure", 16_790_002, 810_000_000, 118, 2_290),
        ("machine_state", 1_204_882, 22_000_000, 64, 0),
        ("dead_letters", 4_211, 1_900_000, 9, None),
    )
    return {
        "tables": [
            {
                "table": name,
                "rows": rows,
                "bytes": size,
                "files": files,
                "version": 18_220 + files,
                "modified": now - 2 - files / 40,
                "stream": None if lag is None else "all",
                "lag": None
                if lag is None
                else [{"node": "broker-1", "landed": rows, "recorded": rows + lag, "rows": lag}],
                "problem": None,
            }
            for name, rows, size, files, lag in names
        ],
        "dead_letters": [
            {
                "table_name": "temperature",
                "reason": "not a number",
                "column_name": "value",
                "count": 3_120,
            },
            {
                "table_name": "pressure",
                "reason": "field is missing",
                "column_name": "bar",
                "count": 902,
            },
            {
                "table_name": "pressure",
                "reason": "<b>not JSON</b>",
                "column_name": None,
                "count": 189,
            },
        ],
    }


def query(text: str, now: float) -> Values:
    """The answer of /api/sql: the words of the query choose the columns."""
    if "error" in text:
        raise ValueError('Parser Error: syntax error at or near "error" <b>bold</b>')
    if "minute" in text:
        rows: list[list[Any]] = [
            [
                f"2026-11-17T{10 + n // 60:02}:{n % 60:02}:00",
                round(21 + 2 * math.sin(n / 9), 2),
                round(24 + 1.5 * math.sin(n / 7), 2),
            ]
            for n in range(120)
        ]
        columns = [("minute", "time"), ("average", "number"), ("highest", "number")]
    elif "limit 100" in text:
        columns = [
            ("seq", "number"),
            ("received", "time"),
            ("topic", "text"),
            ("payload", "text"),
            ("qos", "number"),
            ("client_id", "text"),
        ]
        rows = [
            [
                84_120_331 - n,
                f"2026-11-17T10:00:{n % 60:02}.{n:03}",
                HOSTILE_LEVELS[n % 7]
                if n % 20 == 3
                else f"plant/berlin/line-{n % 10}/press-1/temp",
                f"{20 + n / 10:.1f}",
                n % 3,
                None if n % 9 == 0 else f"press-{n:04}",
            ]
            for n in range(1_000)
        ]
    else:
        columns = [("topic", "text"), ("messages", "number")]
        rows = [
            [f"plant/{PLANTS[n % 4]}/line-{n % 10 + 1}/press-{n + 1}/temp", 98_000 - n * n * 190]
            for n in range(20)
        ]
    return {
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "rows": rows,
        "more": len(rows) == 1_000,
        "seconds": 0.084,
        "notes": [],
    }


NAMES: Final[Values] = {
    "tables": [
        {
            "name": "messages_now",
            "kind": "view",
            "columns": ["seq", "received", "topic", "payload", "qos", "retain", "client_id"],
        },
        {"name": "temperature", "kind": "table", "columns": ["plant", "line", "value", "unit"]},
        {"name": "dead_letters", "kind": "table", "columns": ["reason", "table_name"]},
    ]
}
