"""Kills two brokers and the bridge between them repeatedly under load, and counts every message.

    python -m tests.long.bridge_kills --kills 30 --seed 1

The connections of the bridge are cut at any byte meanwhile. Half of the kills are with a queue of
only a few messages, so that messages wait for room. Either broker takes the right to publish away
from the bridge and gives it back, each time by SIGHUP. Exit code 1 if a message was lost, was
duplicated at QoS 2, or arrived without a right, or after any other fault; the directory with the
stores and logs is then kept, and its path is printed.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from tests.kills.bridging import Plan, run


def progress(text: str) -> None:
    print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30, help="total number of SIGKILLs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.6, help="seconds of load before a kill")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    arguments = parser.parse_args()
    # The publishers lose their brokers, as intended.
    logging.getLogger("semel.client").setLevel(logging.ERROR)

    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-bridge-kills-"))
    first = arguments.kills // 2
    plans = {
        "large queue": Plan(arguments.seed, first, load=arguments.load, changes_rights=True),
        "small queue": Plan(
            arguments.seed + 1,
            arguments.kills - first,
            load=arguments.load,
            maximum_queued=20,
            changes_rights=True,
        ),
    }
    faults = lost = duplicated = 0
    for name, plan in plans.items():
        place = folder / name.replace(" ", "-")

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
        faults += len(result.faults)
        lost += result.lost
        duplicated += result.duplicated
    print(
        f"seed {arguments.seed}: {arguments.kills} kills, lost {lost}, duplicated at QoS 2"
        f" {duplicated}, {faults} faults"
    )
    if faults:
        print(f"failed; files are in {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
