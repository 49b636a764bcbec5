"""Runs the simulation of clients, network, broker, store and crashes with many seeds.

    python -m tests.long.simulate --seeds 100000
    python -m tests.long.simulate --seed 4711 --trace

See `tests.simulation`. A failing seed is printed with a short trace, and replays exactly.
"""

import sys

from tests.simulation.runs import main

if __name__ == "__main__":
    sys.exit(main())
