"""The devices of a fleet, and their messages: a pure function of the seed and an index.

A device (a pump, a press, …) belongs to a line of a site, and publishes its measures in turn. Some
devices send JSON, others a binary format. Message `index` of a fleet belongs to device
`index % devices` and has counter `index // devices + 1`: the index, and device with counter, are
two names of the same message. No random generator has to be advanced, and no clock is read: the
time in a message is simulated. The same seed gives the same bytes, in any order of access.

A binary payload has 40 bytes, with big-endian numbers:

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
# In a mixed fleet, one device in this many uses the binary format.
ONE_BINARY_OF: Final = 3

MAGIC: Final = b"SF01"
BODY: Final = struct.Struct(">4sIQqdHH")
CHECKSUM: Final = struct.Struct(">I")

STATUSES: Final = ("ok", "warning")
# One message in this many has status warning.
ONE_WARNING_OF: Final = 97

SITES: Final = ("aachen", "brno", "cork", "dijon", "elche", "fulda", "graz", "hasselt")
MOST_SITES: Final = 4
MOST_LINES: Final = 4

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_MS: Final = int(EPOCH.timestamp() * 1000)
# Between two messages of a device, by its simulated clock.
PERIOD_MS: Final = 1_000
MASK: Final = (1 << 64) - 1


class Measure(NamedTuple):
    """A quantity that a device measures; values are within `spread` of `center`."""

    name: str
    unit: str
    center: float
    spread: float


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
    """The topic and payload of one message."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Device:
    """One device: `name` is its kind and number; its topics begin with `topic_prefix`."""

    number: int
    name: str
    topic_prefix: str
    measures: tuple[Measure, ...]
    is_binary: bool
    # The phase of its slow oscillation, from 0 to 1, and the offset of its clock.
    phase: float
    skew_ms: int


def splitmix64(*numbers: int) -> int:
    """A 64-bit hash of the numbers that looks random."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def as_fraction(number: int) -> float:
    """A 64-bit number scaled to 0 (inclusive) to 1 (exclusive)."""
    return (number >> 11) / (1 << 53)


class Devices:
    """All devices of a fleet."""

    def __init__(self, seed: int, count: int, *, form: str = MIXED, prefix: str = "plant") -> None:
        assert 1 <= count <= MOST_DEVICES
        assert form in FORMS
        self.seed = seed
        self.form = form
        self.prefix = prefix
        start = splitmix64(seed) % len(SITES)
        self._sites = [SITES[(start + each) % len(SITES)] for each in range(MOST_SITES)]
        self.all = [self._make_device(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.all)

    def _make_device(self, number: int) -> Device:
        hashed = splitmix64(self.seed, number)
        kind = KIND_NAMES[hashed % len(KIND_NAMES)]
        site = self._sites[(hashed >> 8) % MOST_SITES]
        line = (hashed >> 16) % MOST_LINES + 1
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
            as_fraction(splitmix64(hashed)),
            (hashed >> 32) % PERIOD_MS,
        )

    def name_of(self, index: int) -> tuple[int, int]:
        """The device and counter of message `index`."""
        return index % len(self.all), index // len(self.all) + 1

    def index_of(self, device: int, counter: int) -> int:
        """The index of a message. Raises ValueError if this fleet has no such message."""
        if not 0 <= device < len(self.all) or counter < 1:
            raise ValueError(f"message {counter} of device {device} does not belong to this fleet")
        return (counter - 1) * len(self.all) + device

    def message(self, index: int) -> FleetMessage:
        """The topic and payload of message `index`."""
        number, counter = self.name_of(index)
        device = self.all[number]
        measure_index = counter % len(device.measures)
        measure = device.measures[measure_index]
        hashed = splitmix64(self.seed, number, counter)
        # A slow oscillation with a little noise.
        swing = math.sin(2 * math.pi * (device.phase + counter / 600))
        noise = as_fraction(hashed) - 0.5
        value = round(measure.center + measure.spread * (0.8 * swing + 0.2 * noise), 3)
        status = int(hashed % ONE_WARNING_OF == 0)
        time_ms = EPOCH_MS + counter * PERIOD_MS + device.skew_ms
        topic = f"{device.topic_prefix}/{measure.name}"
        if device.is_binary:
            body = BODY.pack(MAGIC, number, counter, time_ms, value, status, measure_index)
            return FleetMessage(topic, body + CHECKSUM.pack(zlib.crc32(body)))
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
    """The device and counter in a payload. Raises ValueError if it is not from a fleet."""
    if payload.startswith(MAGIC):
        if len(payload) != BODY.size + CHECKSUM.size:
            raise ValueError(f"a binary payload has {BODY.size + CHECKSUM.size} bytes")
        if CHECKSUM.unpack_from(payload, BODY.size)[0] != zlib.crc32(payload[: BODY.size]):
            raise ValueError("its checksum is wrong")
        fields = BODY.unpack_from(payload)
        return int(fields[1]), int(fields[2])
    fields_by_name = json.loads(payload)
    if not isinstance(fields_by_name, dict):
        raise ValueError("it is not a JSON object")
    device, counter = fields_by_name.get("device"), fields_by_name.get("n")
    if not isinstance(device, str) or type(counter) is not int:
        raise ValueError("it has no device and n")
    return int(device.rpartition("-")[2]), counter
