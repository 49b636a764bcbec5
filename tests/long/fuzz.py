"""Feeds the codec mutated packets and compares its parts with each other.

    python -m tests.long.fuzz --inputs 10000000 --seed 1 --jobs 2

The inputs are mutations of the conformance vectors: bytes are flipped, removed, duplicated,
inserted and spliced. The Remaining Length is usually corrected afterwards, so that the damage
reaches the fields. An input that breaks a new set of rules for its packet type and version is added
to the corpus, unless it breaks too many. `examine` requires of each input:

    - `decode` returns packets, then raises at most one violation, and no other exception
    - a Decoder gives the same outcomes for the same bytes, whole or in pieces
    - `observe` finds no violation in what `decode` accepts, and finds the rule by which `decode`
      refuses among others; both agree on the end and on the version
    - a decoded packet can be encoded, and decodes to the same packet again

A seed gives the same inputs on every machine. Each job has its own seed and shares no state; only
numbers and texts pass between processes. Exit code 1 at the first disagreement.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.queues import Queue
from random import Random

from semel import vectors
from semel.mqtt import (
    LARGEST_PACKET,
    MQTT5,
    MQTT311,
    PACKET_NAMES,
    RULES,
    Connect,
    Decoder,
    Packet,
    Violation,
    decode,
    encode,
    observe,
    rules,
)
from tests.mqtt.standard_tables import PROPERTIES

# Of an input: packet type, version, names of the broken rules (sorted, comma-separated).
Signature = tuple[int, int, str]

# Longer inputs are left to other tests.
LONGEST = 256
# A job reports after this many inputs.
REPORT = 50_000

INTERESTING = (0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xFF, 0x23, 0x2B, 0x2F, 0x24)
_VALUES = {
    "flag": "01",
    "two": "0001",
    "four": "00000001",
    "variable": "c801",
    "text": "000161",
    "binary": "000161",
    "pair": "000161000162",
}
PROPERTY_BYTES = tuple(bytes((row[0],)) + bytes.fromhex(_VALUES[row[2]]) for row in PROPERTIES)
TOKENS = (
    *PROPERTY_BYTES,
    *(b"\x00\x01a", b"\x00\x00", b"\x00\x03a/#", b"\x00\x01+", b"\x00\x02+a", b"\x00\x04MQTT"),
    *(b"\x00\x0a$share/g/a", b"\x00\x09$share//a", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\x80\x00", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80", b"\xc0\x00", b"\x30\x03\x00\x01a"),
)


class Disagreement(Exception):
    """Two parts of the codec contradict each other, or one raised an unexpected exception."""


# --- checks ---------------------------------------------------------------------------------------


def frame_end(data: bytes, start: int) -> int:
    """The end of the packet at `start`; 0 if its length is incomplete or invalid [2.1.4]."""
    value = 0
    unit = 1
    for at in range(start + 1, min(start + 5, len(data))):
        digit = data[at]
        if digit < 128:
            return at + 1 + value + digit * unit
        value += (digit - 128) * unit
        unit *= 128
    return 0


def in_pieces(data: bytes, version: int, cut: int, maximum: int) -> list[Packet | Violation]:
    """The outcomes of a Decoder for data in two pieces; byte by byte if `cut` is 0."""
    decoder = Decoder(version, maximum_packet_size=maximum)
    if cut:
        outcomes = decoder.receive(data[:cut])
        outcomes += decoder.receive(data[cut:])
        return outcomes
    outcomes = []
    for at in range(len(data)):
        outcomes += decoder.receive(data[at : at + 1])
    return outcomes


def compare(walked: list[Packet | Violation], received: list[Packet | Violation]) -> None:
    """Both must have the same packets, and the same violation at the end, if any."""
    if len(walked) != len(received):
        raise Disagreement(f"{len(walked)} outcomes, of a Decoder {len(received)}")
    for one, other in zip(walked, received, strict=True):
        if isinstance(one, Violation) and isinstance(other, Violation):
            if (
                one.rule is not other.rule
                or one.seen != other.seen
                or one.version != other.version
                or one.packet_type != other.packet_type
            ):
                raise Disagreement(f"{one!r}, of a Decoder {other!r}")
        elif one != other:
            raise Disagreement(f"{one!r}, of a Decoder {other!r}")


def check_packet(data: bytes, version: int, at: int, packet: Packet, end: int) -> None:
    """Check a packet that was decoded from `data[at:end]` with this version."""
    if end != frame_end(data, at):
        raise Disagreement(f"decoded to {end}, not {frame_end(data, at)}")
    observation = observe(data, version, start=at)
    if observation is None:
        raise Disagreement("decoded, not observed")
    if observation.violations:
        raise Disagreement(f"decoded, but {observation.violations[0]}")
    if observation.end != end or observation.version != version:
        seen = f"observed to {observation.end} under {observation.version}"
        raise Disagreement(f"{seen}, not to {end} under {version}")
    again = encode(packet, version)
    if decode(again, version) != (packet, len(again)):
        raise Disagreement(f"{packet!r} decodes to a different packet after encoding")


def check_violation(data: bytes, version: int, at: int, violation: Violation) -> str:
    """Check a packet that was refused at `at`. Returns the rules that `observe` found broken."""
    observation = observe(data, version, start=at)
    end = frame_end(data, at)
    rule = violation.rule
    if observation is None:
        # Refused before it was complete, while `observe` waits for the end.
        if 0 < end <= len(data):
            raise Disagreement(f"complete but not observed, and refused: {violation}")
        return rule.name
    if observation.end != (end or len(data)):
        raise Disagreement(f"observed to end at {observation.end}, not {end}")
    if rule is rules.PACKET_SIZE_WITHIN_MAXIMUM:
        return rule.name
    broken = {each.rule.name for each in observation.violations}
    if rule.name not in broken:
        raise Disagreement(f"refused by {rule}, observed {broken}")
    # A CONNECT with wrong flags is refused before its version is read.
    early = rule is rules.FIXED_HEADER_FLAGS and violation.packet_type == 1
    if observation.version != violation.version and not early:
        raise Disagreement(f"version {violation.version}, observed {observation.version}")
    return ",".join(sorted(broken)) if len(broken) > 1 else rule.name


def examine(data: bytes, version: int, cut: int, maximum: int) -> Signature:
    """Check one input. Returns the signature of its last packet. Raises Disagreement."""
    walked: list[Packet | Violation] = []
    received = in_pieces(data, version, cut, maximum)
    signature: Signature = (0, version, "nothing")
    at = 0
    while True:
        try:
            decoded = decode(data, version, start=at, maximum_packet_size=maximum)
        except Violation as violation:
            walked.append(violation)
            broken = check_violation(data, version, at, violation)
            signature = (data[at] >> 4, violation.version, broken)
            break
        if decoded is None:
            if observe(data, version, start=at) is not None:
                raise Disagreement("observed, not decoded")
            break
        packet, end = decoded
        walked.append(packet)
        if isinstance(packet, Connect):
            version = packet.version
        check_packet(data, version, at, packet, end)
        signature = (data[at] >> 4, version, "")
        at = end
    compare(walked, received)
    return signature


# --- inputs ---------------------------------------------------------------------------------------


def seeds(*, right: bool) -> list[tuple[int, bytes]]:
    """Version and bytes of all valid (or all invalid) vectors that are short enough."""
    found: dict[tuple[int, bytes], None] = {}
    for name in vectors.names():
        if name == vectors.EXCHANGE:
            continue
        for vector in vectors.load(name):
            notation = vector.get("bytes")
            if isinstance(notation, str) and ("packet" in vector) is right:
                data = vectors.parse_bytes(notation)
                if len(data) <= LONGEST:
                    found[MQTT5 if vector["version"] == "5.0" else MQTT311, data] = None
    return list(found)


def set_remaining_length(data: bytearray) -> None:
    """Set the Remaining Length of the first packet so that it ends with the data."""
    body = 1
    while body < len(data) and body < 5 and data[body] >= 128:
        body += 1
    body += 1
    size = len(data) - body
    if size < 0:
        return
    data[1:body] = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))


class Fuzzer:
    """Generates inputs from a seed, and counts their signatures."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.corpus = seeds(right=True)
        self.right = len(self.corpus)
        self.corpus += seeds(right=False)
        self.signatures: Counter[Signature] = Counter()
        self.inputs = 0

    def mutate(self, data: bytearray) -> None:
        """Apply one mutation."""
        bits = self.random.getrandbits(64)
        choice = bits & 15
        at = (bits >> 4 & 0xFFFF) % (len(data) + 1)
        extent = 1 + (bits >> 20 & 7)
        value = bits >> 24 & 0xFF
        pick = bits >> 32
        if choice <= 2 and at < len(data):
            data[at] ^= 1 << (value & 7)
        elif choice <= 4 and at < len(data):
            data[at] = INTERESTING[value % len(INTERESTING)]
        elif choice == 5 and at < len(data):
            data[at] = value
        elif choice == 6 and at < len(data):
            data[at] = (data[at] + (1 if value & 1 else 255)) & 255
        elif choice == 7:
            del data[at : at + extent]
        elif choice == 8:
            data[at:at] = data[at : at + extent]
        elif choice == 9:
            data.insert(at, value)
        elif choice == 10:
            data[at:at] = TOKENS[pick % len(TOKENS)]
        elif choice == 11 and at < len(data):
            # If this byte is a property length, one more property fits behind it.
            token = PROPERTY_BYTES[pick % len(PROPERTY_BYTES)]
            data[at] = (data[at] + len(token)) & 255
            data[at + 1 : at + 1] = token
        elif choice == 12:
            del data[at:]
        elif choice <= 14:
            _, other = self.corpus[pick % len(self.corpus)]
            if other:
                start = value % len(other)
                if choice == 13:
                    data[at:] = other[start:]
                else:
                    data[at : at + extent] = other[start : start + extent]
        else:
            data += self.corpus[pick % len(self.corpus)][1]

    def step(self) -> Signature:
        """Generate and examine one input."""
        bits = self.random.getrandbits(64)
        # Three of four start from a valid packet, because the rest of the corpus drifts away.
        pool = self.right if bits & 3 else len(self.corpus)
        version, seed = self.corpus[(bits >> 2 & 0xFFFFFF) % pool]
        bits >>= 26
        data = bytearray(seed)
        self.mutate(data)
        while bits & 1:
            bits >>= 1
            self.mutate(data)
        if bits & 6:
            set_remaining_length(data)
        if not bits & 0x38:
            version = MQTT5 + MQTT311 - version
        maximum = LARGEST_PACKET if bits & 0x3C0 else bits >> 10 & 63
        # Single bytes, whole, or two pieces.
        cut = 0
        if bits >> 16 & 15:
            cut = len(data) if bits >> 20 & 3 == 0 else (bits >> 22 & 0xFF) % (len(data) + 1)
        content = bytes(data[: 2 * LONGEST])
        try:
            signature = examine(content, version, cut, maximum)
        except Disagreement as disagreement:
            raise Disagreement(reproducer(content, version, cut, maximum, disagreement)) from None
        except Exception as surprise:
            raise Disagreement(reproducer(content, version, cut, maximum, surprise)) from surprise
        self.inputs += 1
        seen = self.signatures[signature] = self.signatures[signature] + 1
        if seen == 1 and signature[2].count(",") < 3 and len(content) <= LONGEST:
            self.corpus.append((version, content))
        return signature

    def run(self, inputs: int) -> None:
        """Examine more inputs. Raises `Disagreement` with a reproducer."""
        for _ in range(inputs):
            self.step()


def reproducer(data: bytes, version: int, cut: int, maximum: int, reason: Exception) -> str:
    """The failure, and the call that reproduces it."""
    what = str(reason) if isinstance(reason, Disagreement) else repr(reason)
    call = f'examine(bytes.fromhex("{data.hex()}"), {version}, {cut}, {maximum})'
    return f"{what}\nreproduce with: {call}"


# --- jobs -----------------------------------------------------------------------------------------


def work(
    queue: "Queue[tuple[int, int, list[tuple[Signature, int]], str]]",
    job: int,
    seed: int,
    inputs: int,
) -> None:
    """One job: reports (job, inputs done, signatures counted, disagreement or "")."""
    fuzzer = Fuzzer(seed)
    problem = ""
    while fuzzer.inputs < inputs and not problem:
        try:
            fuzzer.run(min(REPORT, inputs - fuzzer.inputs))
        except Disagreement as disagreement:
            problem = str(disagreement)
        queue.put((job, fuzzer.inputs, list(fuzzer.signatures.items()), problem))


def summary(signatures: Counter[Signature]) -> tuple[int, int, int]:
    """The numbers of inputs whose last packet was valid, invalid, and incomplete."""
    right = sum(count for (_, _, broken), count in signatures.items() if not broken)
    waiting = sum(count for (_, _, broken), count in signatures.items() if broken == "nothing")
    return right, sum(signatures.values()) - right - waiting, waiting


def table(signatures: Counter[Signature]) -> str:
    """The findings by packet and version, then by rule."""
    lines = [f"{'packet':<12} {'version':<8} {'valid':>10} {'invalid':>10} {'sets of rules':>14}"]
    for packet_type in range(16):
        for version in (MQTT311, MQTT5):
            mine = {
                broken: count
                for (kind, spoken, broken), count in signatures.items()
                if (kind, spoken) == (packet_type, version) and broken != "nothing"
            }
            if mine:
                name = PACKET_NAMES[packet_type] if packet_type else "type 0"
                right = mine.pop("", 0)
                wrong = sum(mine.values())
                spoken_name = "5.0" if version == MQTT5 else "3.1.1"
                lines.append(f"{name:<12} {spoken_name:<8} {right:>10} {wrong:>10} {len(mine):>14}")
    by_rule: Counter[str] = Counter()
    for (_, _, broken), count in signatures.items():
        for rule in broken.split(","):
            by_rule[rule] += count
    lines.append("")
    for one in RULES:
        if "decode" in one.boundaries:
            found = by_rule[one.name]
            lines.append(f"{one.name:<40} {found or 'never':>10}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--inputs", type=int, default=10_000_000, help="number of inputs of all jobs"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)

    context = multiprocessing.get_context("spawn")
    queue: Queue[tuple[int, int, list[tuple[Signature, int]], str]] = context.Queue()
    processes = []
    for job in range(options.jobs):
        share = options.inputs // options.jobs + (job < options.inputs % options.jobs)
        seed = options.seed + job * 1_000_003
        process = context.Process(target=work, args=(queue, job, seed, share))
        process.start()
        processes.append((process, share, seed))

    done = [0] * options.jobs
    found: list[Counter[Signature]] = [Counter() for _ in processes]
    started = time.monotonic()
    problem = ""
    while sum(done) < options.inputs and not problem:
        if queue.empty():
            for job, (process, share, seed) in enumerate(processes):
                if process.exitcode and done[job] < share and queue.empty():
                    problem = (
                        f"job {job} with seed {seed} exited with {process.exitcode} "
                        f"within {REPORT} inputs after its first {done[job]}"
                    )
            time.sleep(0.05)
            continue
        job, done[job], counted, problem = queue.get()
        found[job] = Counter(dict(counted))
        everything = sum(found, Counter())
        right, wrong, waiting = summary(everything)
        rate = sum(done) / (time.monotonic() - started)
        print(
            f"{sum(done):>12} inputs {rate:>9.0f}/s   valid {right}  invalid {wrong}  "
            f"incomplete {waiting}  signatures {len(everything)}",
            flush=True,
        )
    for process, _, _ in processes:
        if problem:
            process.terminate()
        process.join()
    print(table(sum(found, Counter())))
    if problem:
        print(f"\nDISAGREEMENT: {problem}", file=sys.stderr)
        return 1
    print(f"\n{sum(done)} inputs, no disagreement")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
