"""Runs random schedules of cuts, crashes and delays between two sessions for a given time.

    python -m tests.long.schedules --seconds 600 --seed 1

Every schedule has its own seed. The seed of the first that loses or duplicates a message is
printed.
"""

import argparse
import sys
import time

from tests.mqtt.schedules import schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = shown = time.monotonic()
    schedules = messages = 0
    while time.monotonic() - began < arguments.seconds:
        seed = arguments.seed + schedules
        try:
            world = schedule(seed)
        except Exception:
            print(f"schedule {seed} failed", flush=True)
            raise
        schedules += 1
        messages += sum(len(end.owned) for end in world.ends)
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{schedules} schedules, {messages} messages", file=sys.stderr, flush=True)
    print(f"{schedules} schedules, {messages} messages, all accounted for")


if __name__ == "__main__":
    main()
