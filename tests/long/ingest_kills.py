"""Kills `semel ingest` repeatedly under load, cuts its connections, and counts every row.

    python -m tests.long.ingest_kills --kills 100 --seed 1

The kills are distributed over semel and Mosquitto, each with MQTT 3.1.1 and 5.0; one connection is
cut per kill, at any byte. Exit code 1 if a message was lost, or duplicated at QoS 2, or after any
other fault; the directory with store, record and logs is then kept, and its path is printed.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.kills.ingesting import Plan, run
from tests.kills.wire import V5, V311


def progress(text: str) -> None:
    print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--kills", type=int, default=100, help="total number of SIGKILLs of the ingest"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.8, help="seconds of load before a kill")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    arguments = parser.parse_args()

    brokers = ["semel"]
    if shutil.which("mosquitto") is None:
        print("Mosquitto is not installed: testing with semel only", file=sys.stderr)
    else:
        brokers.append("mosquitto")
    kinds = [(broker, version) for broker in brokers for version in (V311, V5)]
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-ingest-kills-"))
    kills = cuts = sent = rows = repeats = faults = 0
    for at, (broker, version) in enumerate(kinds):
        share = arguments.kills * (at + 1) // len(kinds) - arguments.kills * at // len(kinds)
        name = f"{broker}, MQTT {'5.0' if version == V5 else '3.1.1'}"
        plan = Plan(
            broker, version, arguments.seed + at, kills=share, cuts=share, load=arguments.load
        )
        place = folder / f"{broker}-{version}"

        def say(text: str, name: str = name) -> None:
            progress(f"{name}: {text}")

        try:
            result = run(plan, place, say)
        except BaseException:
            print(f"\nseed {plan.seed} aborted; files are in {place}", file=sys.stderr)
            raise
        print(file=sys.stderr)
        print(f"{name}: {result}")
        for fault in result.faults:
            print(f"    {fault}")
        kills += result.kills
        cuts += result.cuts
        sent += result.sent
        rows += result.rows
        repeats += result.repeats
        faults += len(result.faults)
    print(
        f"seed {arguments.seed}: {kills} kills, {cuts} cuts, {sent} sent, {rows} rows,"
        f" {repeats} repeated at QoS 1, {faults} faults"
    )
    if faults:
        print(f"failed; files are in {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    print("QoS 2 exactly once, QoS 1 at least once, all accounted for", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
