"""The devices of a fleet, and their messages: a function of the seed and of a number.

A device stands at a line of a site, is a pump or a press or another thing, and measures what such a
thing measures, one value after another. Some speak JSON and some a binary form. Message `index` of
a fleet is the next one of device `index % devices`, with counter `index // devices + 1`: so index,
and device with counter, are two names of the same message. Nothing is drawn from a generator that
would have to be wound forward, and no clock is looked at: the time in a message is the device's own
and simulated. Same seed, same bytes, whoever asks, whenever, and in any order.

A binary payload has 40 bytes, with the first byte of a number first:

    0  4 bytes  SF01
    4  uint32   device
    8  uint64   counter
   16  int64    the device's time, in milliseconds since 1970
   24  float64  value
   32  uint16   status: 0 ok, 1 warning
   34  uint16   which of the device's measures
   36  uint32   CRC-32 of what is before it
"""

import json
import math
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

MOST_DEVICES: Final = 100_000
MOST_SEED: Final = 2**63 - 1

JSON: Final = "json"
BINARY: Final = "binary"
MIXED: Final = "mixed"
FORMS: Final = (JSON, BINARY, MIXED)
# Of a mixed fleet, one device of so many speaks the binary form.
ONE_BINARY_OF: Final = 3

MAGIC: Final = b"SF01"
BODY: Final = struct.Struct(">4sIQqdHH")
SUM: Final = struct.Struct(">I")

STATUSES: Final = ("ok", "warning")
# One message of so many carries a warning.
ONE_WARNING_OF: Final = 97

SITES: Final = ("aachen", "brno", "cork", "dijon", "elche", "fulda", "graz", "hasselt")
MOST_SITES: Final = 4
MOST_LINES: Final = 4

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_MS: Final = int(EPOCH.timestamp() * 1000)
# Between two messages of a device, by its own clock.
PERIOD_MS: Final = 1_000
MASK: Final = (1 << 64) - 1


class Measure(NamedTuple):
    """What a device measures: values lie around the middle, this far from it at the most."""

    name: str
    unit: str
    middle: float
    reach: float


KINDS: Final[dict[str, tuple[Measure, ...]]] = {
    "pump": (
        Measure("flow", "l/min", 240.0, 35.0),
        Measure("vibration", "mm/s", 2.4, 1.2),
        Measure("temperature", "°C", 48.0, 9.0),
    ),
    "press": (
        Measure("pressure", "bar", 160.0, 40.0),
        Measure("temperature", "°C", 61.0, 12.0),
        Measure("position", "mm", 350.0, 349.0),
    ),
    "oven": (
        Measure("temperature", "°C", 215.0, 18.0),
        Measure("humidity", "%", 31.0, 12.0),
        Measure("power", "kW", 42.0, 14.0),
    ),
    "robot": (
        Measure("torque", "N·m", 85.0, 60.0),
        Measure("current", "A", 11.0, 7.5),
        Measure("temperature", "°C", 39.0, 8.0),
    ),
    "meter": (
        Measure("voltage", "V", 230.0, 6.0),
        Measure("current", "A", 64.0, 48.0),
        Measure("power", "kW", 44.0, 33.0),
    ),
}
KIND_NAMES: Final = tuple(KINDS)


class FleetMessage(NamedTuple):
    """One message, before it has a QoS."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Device:
    """One device: `name` is its kind and its number; `place` is where its topics begin."""

    number: int
    name: str
    place: str
    measures: tuple[Measure, ...]
    is_binary: bool
    # Of its slow swing, from 0 to 1; and how far its clock is off, in milliseconds.
    phase: float
    skew_ms: int


def mixed(*numbers: int) -> int:
    """64 bits that look as if drawn by lot, and are a function of the numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def part(number: int) -> float:
    """A number of 64 bits as one from 0 up to 1."""
    return (number >> 11) / (1 << 53)


class Devices:
    """All devices of a fleet."""

    def __init__(self, seed: int, count: int, *, form: str = MIXED, prefix: str = "plant") -> None:
        assert 1 <= count <= MOST_DEVICES
        assert form in FORMS
        self.seed = seed
        self.form = form
        self.prefix = prefix
        start = mixed(seed) % len(SITES)
        self._sites = [SITES[(start + place) % len(SITES)] for place in range(MOST_SITES)]
        self.all = [self._made(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.all)

    def _made(self, number: int) -> Device:
        lot = mixed(self.seed, number)
        kind = KIND_NAMES[lot % len(KIND_NAMES)]
        site = self._sites[(lot >> 8) % MOST_SITES]
        line = (lot >> 16) % MOST_LINES + 1
        name = f"{kind}-{number:05}"
        is_binary = self.form == BINARY
        if self.form == MIXED:
            is_binary = number % ONE_BINARY_OF == ONE_BINARY_OF - 1
        levels = [site, f"line-{line}", name]
        if self.prefix:
            levels.insert(0, self.prefix)
        return Device(
            number,
            name,
            "/".join(levels),
            KINDS[kind],
            is_binary,
            part(mixed(lot)),
            (lot >> 32) % PERIOD_MS,
        )

    def name_of(self, index: int) -> tuple[int, int]:
        """Device and counter of a message."""
        return index % len(self.all), index // len(self.all) + 1

    def index_of(self, device: int, counter: int) -> int:
        """The message of this name. Raises ValueError if this fleet has no such device."""
        if not 0 <= device < len(self.all) or counter < 1:
            raise ValueError(f"message {counter} of device {device} is none of this fleet")
        return (counter - 1) * len(self.all) + device

    def message(self, index: int) -> FleetMessage:
        """Topic and payload."""
        number, counter = self.name_of(index)
        device = self.all[number]
        place = counter % len(device.measures)
        measure = device.measures[place]
        lot = mixed(self.seed, number, counter)
        # A slow swing, and a little noise on it.
        swing = math.sin(2 * math.pi * (device.phase + counter / 600))
        value = round(measure.middle + measure.reach * (0.8 * swing + 0.2 * (part(lot) - 0.5)), 3)
        status = int(lot % ONE_WARNING_OF == 0)
        time_ms = EPOCH_MS + counter * PERIOD_MS + device.skew_ms
        topic = f"{device.place}/{measure.name}"
        if device.is_binary:
            body = BODY.pack(MAGIC, number, counter, time_ms, value, status, place)
            return FleetMessage(topic, body + SUM.pack(zlib.crc32(body)))
        at = EPOCH + timedelta(milliseconds=time_ms - EPOCH_MS)
        fields_by_name = {
            "device": device.name,
            "n": counter,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "value": value,
            "unit": measure.unit,
            "status": STATUSES[status],
        }
        return FleetMessage(topic, json.dumps(fields_by_name, ensure_ascii=False).encode())


def read_name(payload: bytes) -> tuple[int, int]:
    """Device and counter that a payload names. Raises ValueError if it is none of a fleet's."""
    if payload.startswith(MAGIC):
        if len(payload) != BODY.size + SUM.size:
            raise ValueError(f"a binary payload has {BODY.size + SUM.size} bytes")
        if SUM.unpack_from(payload, BODY.size)[0] != zlib.crc32(payload[: BODY.size]):
            raise ValueError("its checksum is wrong")
        fields = BODY.unpack_from(payload)
        return int(fields[1]), int(fields[2])
    fields_by_name = json.loads(payload)
    if not isinstance(fields_by_name, dict):
        raise ValueError("it is no JSON object")
    device, counter = fields_by_name.get("device"), fields_by_name.get("n")
    if not isinstance(device, str) or type(counter) is not int:
        raise ValueError("it has no device and n")
    return int(device.rpartition("-")[2]), counter
