"""Runs random schedules of a client with an outbox, its crashes and its server for a given time.

    python -m tests.long.client_schedules --seconds 600 --seed 1

Every schedule has its own seed. The seed of the first that loses or duplicates a message is
printed.
"""

import argparse
import sys
import time

from semel.mqtt import MQTT5, MQTT311
from tests.client.core_schedules import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = shown = time.monotonic()
    schedules = messages = crashes = 0
    while time.monotonic() - began < arguments.seconds:
        seed = arguments.seed + schedules
        version = MQTT5 if seed % 2 else MQTT311
        forgetful = seed % 3 == 0
        try:
            done = run(seed, version, forgetful=forgetful)
        except Exception:
            print(f"schedule {seed} failed", flush=True)
            raise
        schedules += 1
        messages += len(done.stored) + len(done.sent)
        crashes += done.crashes
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{schedules} schedules, {messages} messages", file=sys.stderr, flush=True)
    print(f"{schedules} schedules, {crashes} crashes, {messages} messages, all accounted for")


if __name__ == "__main__":
    main()
