"""The simulation with as many seeds as asked: clients, network, broker, store and crashes.

    python -m tests.long.simulate --seeds 100000
    python -m tests.long.simulate --seed 4711 --trace

See `tests.simulation`. A seed that fails is printed with a short trace, and replays exactly.
"""

import sys

from tests.simulation.runs import main

if __name__ == "__main__":
    sys.exit(main())
