"""Runs the schedules of `bridge_world` with many seeds."""

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.bridge_world import BridgedWorld
from tests.simulation.runs import LISTED, Outcome, table

# How many schedules a process runs before it reports.
CHUNK = 50


def run_bridge_seeds(first: int, count: int, fault: str = "") -> Outcome:
    """Run the schedules of these seeds one by one."""
    outcome = Outcome()
    for seed in range(first, first + count):
        world = BridgedWorld(seed, fault)
        try:
            world.play()
        except Exception as problem:
            outcome.failures.append((seed, f"{type(problem).__name__}: {problem}"))
        outcome.schedules += 1
        outcome.tally += world.tally
        world.close()
    return outcome


def _chunk(bounds: tuple[int, int]) -> Outcome:
    return run_bridge_seeds(*bounds)


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="simulate_bridges", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--seeds", type=int, default=500, help="the number of schedules")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(words)
    first, end = arguments.first, arguments.first + arguments.seeds
    bounds = [(start, min(CHUNK, end - start)) for start in range(first, end, CHUNK)]
    began = time.monotonic()
    total = Outcome()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for outcome in pool.imap_unordered(_chunk, bounds):
            total.add(outcome)
            for seed, what in outcome.failures:
                print(f"seed {seed}: {what}", file=sys.stderr, flush=True)
    print(table(total))
    print(f"{'seconds':>24}  {time.monotonic() - began:,.1f} on {arguments.processes} processes")
    for seed, what in sorted(total.failures)[:LISTED]:
        print(f"failed: --first {seed} --seeds 1: {what}")
    return 1 if total.failures else 0
