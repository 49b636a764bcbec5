"""Runs the simulation of two brokers, a bridge between them, and crashes with many seeds.

    python -m tests.long.simulate_bridges --seeds 5000
    python -m tests.long.simulate_bridges --first 4711 --seeds 1

See `tests.simulation.bridge_world`. A seed replays exactly.
"""

import sys

from tests.simulation.bridge_runs import main

if __name__ == "__main__":
    sys.exit(main())
